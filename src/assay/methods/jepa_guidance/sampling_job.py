"""Sampling a folder of images, with or without guidance, so that an interrupted job goes on where it stopped.

Image i has the seed `seed + i` and a generator of its own, and batches are cut at fixed places: a resumed job
repeats the whole batch in which it stopped and writes the images that an uninterrupted job writes.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.cache import content_hash
from assay.errors import InputError
from assay.files import as_json, replacing, write_json
from assay.methods.jepa_guidance.guidance import JEPAGuidance
from assay.methods.jepa_guidance.guidance_config import JEPAGuidanceConfig
from assay.methods.jepa_guidance.guided_sampling import check_pixel_range, guided_sample
from assay.methods.jepa_guidance.images import contact_sheet, read_facts, read_image, write_png
from assay.methods.jepa_guidance.jepa_shift import GuidanceReport, JEPAShift
from assay.methods.jepa_guidance.scorer import JEPAScorer

SETTINGS = "settings.json"
_DIGEST = "assay-settings"
_SHEET_IMAGES = 100


@dataclass(frozen=True)
class SamplingJob:
    """What is sampled. The number of images is not part of it: a job may be extended.

    Args:
        steps: denoising steps; None leaves them to the pipeline.
        seed: of image 0; image i has `seed + i`.
        batch_size: images at a time.
        prompts: captions, taken in turn; for pipelines that take text.
        classes: numbers of classes, taken in turn; for pipelines that take classes.
        guidance_scale: of classifier-free guidance; None leaves it to the pipeline.
        config: of JEPA guidance; without a scorer nothing is guided.
        sources: checksums of the model and of the encoder.

    Raises:
        InputError: a value is out of range.
    """

    steps: int | None = 50
    seed: int = 0
    batch_size: int = 16
    prompts: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()
    guidance_scale: float | None = None
    config: JEPAGuidanceConfig | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise InputError(f"steps must be at least 1, got {self.steps}")
        if self.batch_size < 1:
            raise InputError(f"the batch size must be at least 1, got {self.batch_size}")
        if self.seed < 0:
            raise InputError(f"the seed must be at least 0, got {self.seed}")
        if self.prompts and self.classes:
            raise InputError("give prompts or classes, not both")
        if self.guidance_scale is not None and not math.isfinite(self.guidance_scale):
            raise InputError(f"the guidance scale must be finite, got {self.guidance_scale}")

    def settings(self) -> dict[str, Any]:
        """Everything that determines an image besides its number, as JSON values."""
        return as_json(asdict(self))


def fingerprint(name: str) -> str:
    """A checksum of the weights and settings in a folder; the name itself for a hub id."""
    folder = Path(name)
    if not folder.is_dir():
        return name
    digest = hashlib.sha256()
    for path in sorted((*folder.rglob("*.safetensors"), *folder.rglob("*.json"))):
        relative = path.relative_to(folder)
        # Neither a training's record nor its checkpoints change what the model makes.
        if relative.name == "training.json" or relative.parts[0].startswith((".", "checkpoint")):
            continue
        digest.update(relative.as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def file_name(seed: int) -> str:
    """The file of the image with a seed."""
    return f"seed-{seed:06d}.png"


def run_job(
    job: SamplingJob,
    pipeline: Any,
    count: int,
    out: Path,
    *,
    scorer: JEPAScorer | None = None,
    tiny_decoder: nn.Module | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> GuidanceReport | None:
    """Sample images 0 to `count - 1` into a folder; those that an earlier run finished are left alone.

    Args:
        job: what is sampled.
        pipeline: any pipeline of diffusers that guidance knows.
        count: images.
        out: the folder; beside the images it holds `settings.json`.
        scorer: of the guidance; None samples without.
        tiny_decoder: what a configuration with `decode="tiny"` decodes with.
        advance: called with the number of images finished.

    Returns:
        What the guidance did in this run; None without guidance.

    Raises:
        InputError: the folder holds images of another job, or the pipeline cannot do what is asked.
    """
    if count < 1:
        raise InputError(f"the number of images must be at least 1, got {count}")
    if (job.config is None) != (scorer is None):
        raise InputError("guidance needs both a scorer and its configuration")
    digest = content_hash(job.settings())
    claimed = _claimed(out, job.settings())
    pixels = hasattr(pipeline, "unet") and not hasattr(pipeline, "vae")
    if pixels and tiny_decoder is not None:
        raise InputError(f"{type(pipeline).__name__} makes pixels and needs no decoder")
    sampler = (
        _PixelSampler(job, pipeline, scorer)
        if pixels
        else _PipelineSampler(job, pipeline, scorer, tiny_decoder)
    )
    for start in range(0, count, job.batch_size):
        numbers = range(start, min(start + job.batch_size, count))
        missing = [i for i in numbers if read_facts(out / file_name(job.seed + i)).get(_DIGEST) != digest]
        if missing:
            images = sampler(list(numbers))
            if not claimed:
                write_json(out / SETTINGS, job.settings())
                claimed = True
            for number, image in zip(numbers, images, strict=True):
                if number in missing:
                    seed = job.seed + number
                    write_png(out / file_name(seed), image, {"seed": str(seed), _DIGEST: digest})
        advance(len(numbers))
    return sampler.report


def _claimed(out: Path, settings: dict[str, Any]) -> bool:
    """Whether these settings stand in the folder; False when it is empty, an error when it is another's."""
    path = out / SETTINGS
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: name a folder")
    if path.is_file():
        try:
            stored = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise InputError(f"{path} is damaged: choose another folder") from None
        if stored != settings:
            differing = sorted(
                name for name in {*stored, *settings} if stored.get(name) != settings.get(name)
            )
            raise InputError(
                f"{out} holds images of another {', '.join(differing)}: repeat those settings or choose "
                "another folder"
            )
        return True
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty and holds no samples of assay: choose another folder")
    return False


class _Sampler:
    """Samples batches from a pipeline; `report` says what the guidance did."""

    def __init__(self, job: SamplingJob, pipeline: Any, scorer: JEPAScorer | None) -> None:
        self.job, self.pipeline, self.scorer = job, pipeline, scorer

    @property
    def report(self) -> GuidanceReport | None:
        raise NotImplementedError

    def __call__(self, numbers: list[int]) -> Float[Tensor, "batch channels height width"]:
        raise NotImplementedError

    def generators(self, numbers: list[int]) -> list[torch.Generator]:
        """One a sample, on the CPU, so that a device changes no noise."""
        return [torch.Generator().manual_seed(self.job.seed + number) for number in numbers]

    def conditions(self, numbers: list[int]) -> dict[str, Any]:
        """The prompts or classes of these images."""
        job = self.job
        if job.prompts:
            return {"prompt": [job.prompts[number % len(job.prompts)] for number in numbers]}
        if job.classes:
            return {"class_labels": [job.classes[number % len(job.classes)] for number in numbers]}
        return {}


class _PixelSampler(_Sampler):
    """A denoiser of pixels, by `guided_sample`."""

    def __init__(self, job: SamplingJob, pipeline: Any, scorer: JEPAScorer | None) -> None:
        super().__init__(job, pipeline, scorer)
        self.shift = None
        if scorer is not None and job.config is not None and job.config.step_size(self.steps) > 0:
            check_pixel_range(job.config, self.steps)
            self.shift = JEPAShift(scorer, job.config)
        self.total = GuidanceReport() if scorer is not None else None
        self.texts: dict[str, Tensor] = {}
        if job.prompts:
            if not hasattr(pipeline, "encode_prompt"):
                raise InputError("this generator takes no prompts: it was trained without captions")
            unique = sorted(set(job.prompts))
            self.texts = dict(zip(unique, pipeline.encode_prompt(unique), strict=True))

    @property
    def steps(self) -> int:
        return self.job.steps or 50

    @property
    def report(self) -> GuidanceReport | None:
        return self.total

    def __call__(self, numbers: list[int]) -> Tensor:
        unet = self.pipeline.unet
        given = self.conditions(numbers)
        condition: dict[str, Any] = {}
        if "class_labels" in given:
            condition["class_labels"] = torch.tensor(given["class_labels"], device=unet.device)
        elif "prompt" in given:
            rows = torch.stack([self.texts[prompt] for prompt in given["prompt"]])
            condition["encoder_hidden_states"] = rows.to(unet.device)
        size = unet.config["sample_size"]
        height, width = (size, size) if isinstance(size, int) else size
        images = guided_sample(
            unet,
            self.pipeline.scheduler,
            config=self.job.config,
            guidance=self.shift,
            shape=(len(numbers), unet.config["in_channels"], height, width),
            num_inference_steps=self.steps,
            generator=self.generators(numbers),
            guidance_scale=1.0 if self.job.guidance_scale is None else self.job.guidance_scale,
            **condition,
        )
        if self.shift is not None and self.total is not None:
            add_report(self.total, self.shift.report)
        return images.cpu()


class _PipelineSampler(_Sampler):
    """Any other pipeline of diffusers, by its own call, with `JEPAGuidance` where there is a scorer."""

    def __init__(
        self, job: SamplingJob, pipeline: Any, scorer: JEPAScorer | None, tiny_decoder: nn.Module | None
    ) -> None:
        super().__init__(job, pipeline, scorer)
        self.accepted = set(inspect.signature(pipeline.__call__).parameters)
        if job.prompts and "prompt" not in self.accepted:
            raise InputError(f"{type(pipeline).__name__} takes no prompts")
        if job.classes and "class_labels" not in self.accepted:
            raise InputError(f"{type(pipeline).__name__} takes no classes")
        for name, needed in (("prompt", job.prompts), ("class_labels", job.classes)):
            parameter = inspect.signature(pipeline.__call__).parameters.get(name)
            required = parameter is not None and (
                name == "prompt" or parameter.default is inspect.Parameter.empty
            )
            if required and not needed:
                option = "--prompt" if name == "prompt" else "--class"
                raise InputError(f"{type(pipeline).__name__} needs a {option[2:]}: pass {option}")
        self.guidance = None
        if scorer is not None and job.config is not None:
            self.guidance = JEPAGuidance(scorer, job.config, tiny_decoder=tiny_decoder)
        self.total = GuidanceReport() if scorer is not None else None

    @property
    def report(self) -> GuidanceReport | None:
        return self.total

    def __call__(self, numbers: list[int]) -> Tensor:
        arguments: dict[str, Any] = self.conditions(numbers)
        arguments |= {"generator": self.generators(numbers), "output_type": "np"}
        if "batch_size" in self.accepted:
            arguments["batch_size"] = len(numbers)
        if self.job.steps is not None:
            arguments["num_inference_steps"] = self.job.steps
        if self.job.guidance_scale is not None:
            if "guidance_scale" not in self.accepted:
                raise InputError(f"{type(self.pipeline).__name__} takes no guidance scale")
            arguments["guidance_scale"] = self.job.guidance_scale
        if self.guidance is None:
            result = self.pipeline(**arguments)
        else:
            result = self.guidance.run(self.pipeline, **arguments)
            add_report(self.total or GuidanceReport(), self.guidance.report)
        return torch.from_numpy(np.asarray(result.images)).permute(0, 3, 1, 2).float()


def add_report(total: GuidanceReport, part: GuidanceReport) -> None:
    """Add what happened in one batch to what happened before.

    Args:
        total: changed in place.
        part: of the batch.
    """
    for name in ("guided", "skipped", "redrawn", "flat", "unreachable"):
        setattr(total, name, getattr(total, name) + getattr(part, name))
    total.surrogate += part.surrogate


def read_samples(
    out: Path, seeds: Sequence[int], batch_size: int = 64
) -> Iterator[tuple[list[int], Float[Tensor, "batch channels height width"]]]:
    """The images of a job by seed, batch by batch, as they were written.

    Args:
        out: the folder.
        seeds: which.
        batch_size: images at a time.
    """
    for start in range(0, len(seeds), batch_size):
        part = list(seeds[start : start + batch_size])
        pixels = np.stack([read_sample(out / file_name(seed)) for seed in part])
        yield part, torch.from_numpy(pixels).float() / 255


def read_sample(path: Path) -> np.ndarray:
    """The pixels of a sample, grey if it was written as grey: (channels, height, width), of 8 bits."""
    from PIL import Image

    with Image.open(path) as image:
        grey = image.mode == "L"
    return read_image(path, channels=1 if grey else 3)


def write_results(out: Path, rows: list[dict[str, Any]], seeds: Sequence[int]) -> None:
    """Write `scores.csv`, `manifest.parquet` and `contact-sheet.png` beside the images.

    Args:
        out: the folder.
        rows: one an image, with `filename`, `seed`, and `jepa_score` where images were scored.
        seeds: which images the sheet shows, in this order (the first hundred).
    """
    import pandas as pd

    table = pd.DataFrame(rows)
    if "jepa_score" in table:
        with replacing(out / "scores.csv") as temporary:
            table[["filename", "jepa_score"]].to_csv(temporary, index=False)
    with replacing(out / "manifest.parquet") as temporary:
        table.to_parquet(temporary, index=False)
    shown = [read_sample(out / file_name(seed)) for seed in seeds[:_SHEET_IMAGES]]
    write_png(out / "contact-sheet.png", contact_sheet(np.stack(shown)))
