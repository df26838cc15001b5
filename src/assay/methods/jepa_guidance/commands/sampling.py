"""The verb `sample`: images from a pipeline, with or without guidance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from assay.errors import InputError
from assay.methods.jepa_guidance.commands.parts import Device, Flag, Out, load_scorer, printer
from assay.methods.jepa_guidance.progress_bars import progress_bar

if TYPE_CHECKING:
    from assay.methods.jepa_guidance.jepa_shift import GuidanceReport
    from assay.methods.jepa_guidance.scorer import JEPAScorer

# On digits, 0.4 to 0.8 in all moves samples; more makes them all alike.
_ETA_TOTAL = 0.6


def sample(
    *,
    model: str,
    out: Out,
    encoder: str | None = None,
    n: int = 64,
    prompt: list[str] | None = None,
    classes: Annotated[list[str] | None, Parameter(name="--class", negative=())] = None,
    guidance_scale: float | None = None,
    steps: int = 50,
    eta: float | None = None,
    eta_total: float | None = None,
    tau: float = 0.8,
    interval: int = 1,
    k: int = 9,
    oversample: int = 2,
    power_iters: int = 2,
    direction: Literal["rare", "common"] = "rare",
    assume_sign: Literal[1, -1] | None = None,
    image_size: int | None = None,
    tiny_decoder: str | None = None,
    checkpoint: Flag = False,
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    batch_size: int = 16,
    device: Device = "auto",
    seed: int = 0,
    quiet: Flag = False,
) -> None:
    """Sample images, guided towards what is rare for an encoder; repeat the command to go on after a break.

    The folder gets one PNG an image, named by its seed, a contact sheet, manifest.parquet, and with an
    encoder scores.csv.

    Parameters
    ----------
    model
        A folder that `train-generator` made, or any pipeline of diffusers (a folder or a hub id).
    out
        The folder for the images.
    encoder
        The encoder that guides, calibrated by `calibrate`; without one nothing is guided.
    n
        How many images; a larger number later adds to the folder.
    prompt
        A caption; several are taken in turn.
    classes
        A class, by name or number; several are taken in turn.
    guidance_scale
        Of classifier-free guidance; by default the pipeline's.
    steps
        Denoising steps.
    eta
        The largest change of a value by one guided step.
    eta_total
        The same over all guided steps; 0.6 by default when neither is given.
    tau
        Guide where 1 - step/steps is at most this: 0.8 leaves the first fifth alone.
    interval
        Guide every so many steps.
    k
        How many singular values are guided.
    oversample
        Further random directions for finding them.
    power_iters
        Power iterations for finding them.
    direction
        rare or common.
    assume_sign
        1: low scores are rare; -1: high scores are. By default what `calibrate` measured.
    image_size
        At which the encoder sees the image while guiding; by default its own.
    tiny_decoder
        Save memory: guide through this small decoder, e.g. madebyollin/taesd, and decode the result by the
        pipeline's own.
    checkpoint
        Save memory: compute activations again in the backward pass.
    dtype
        Of the pipeline; the encoder computes in float32.
    batch_size
        Images at a time.
    device
        auto takes a GPU if there is one.
    seed
        Of the first image; the next has the next.
    quiet
        Print nothing.
    """
    from assay.methods.jepa_guidance.guidance_config import JEPAGuidanceConfig
    from assay.methods.jepa_guidance.sampling_job import SamplingJob, run_job

    config = None
    if encoder is not None:
        config = JEPAGuidanceConfig(
            **step_lengths(eta, eta_total),
            tau=tau,
            interval=interval,
            k=k,
            oversample=oversample,
            power_iters=power_iters,
            direction=direction,
            assume_sign=assume_sign,
            image_size=image_size,
            checkpoint=checkpoint,
            decode="vae" if tiny_decoder is None else "tiny",
            seed=seed,
        )
    elif eta is not None or eta_total is not None or tiny_decoder is not None:
        raise InputError("--eta and --tiny-decoder need an encoder that guides: pass --encoder")
    console = printer(quiet)
    scorer = None if encoder is None else load_scorer(encoder, device)
    pipeline = load_pipeline(model, device, dtype)
    decoder = None if tiny_decoder is None else _load_tiny_decoder(tiny_decoder, pipeline)
    job = SamplingJob(
        steps=steps,
        seed=seed,
        batch_size=batch_size,
        prompts=tuple(prompt or ()),
        classes=class_numbers(pipeline, classes),
        guidance_scale=guidance_scale,
        config=config,
        sources=sources_of(model, encoder),
    )
    with progress_bar("Sampling", n, quiet=quiet) as advance:
        report = run_job(job, pipeline, n, out, scorer=scorer, tiny_decoder=decoder, advance=advance)
    finish(job, out, n, scorer, quiet)
    if report is not None:
        console.print(describe(report))
    console.print(f"{n} images and contact-sheet.png are in {out}", markup=False)


def step_lengths(eta: float | None, eta_total: float | None) -> dict[str, Any]:
    """The length of the shifts as the configuration takes it.

    Raises:
        InputError: both lengths are given.
    """
    if eta is not None and eta_total is not None:
        raise InputError("give --eta (of a step) or --eta-total (of all steps), not both")
    if eta is not None:
        return {"eta": eta}
    return {"eta_total": _ETA_TOTAL if eta_total is None else eta_total}


def load_pipeline(model: str, device: str, dtype: str = "float32") -> Any:
    """A pipeline on its device, without bars of its own.

    Raises:
        InputError: there is no pipeline, or no such device.
    """
    import torch

    from assay.methods.jepa_guidance.generator_pipeline import load_generator

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here: use --device cpu")
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    return load_generator(model, getattr(torch, dtype)).to(chosen)


def _load_tiny_decoder(name: str, pipeline: Any) -> Any:
    from diffusers.models.autoencoders.autoencoder_tiny import AutoencoderTiny

    from assay.methods.jepa_guidance.progress_bars import without_library_bars

    try:
        with without_library_bars():
            decoder: Any = AutoencoderTiny.from_pretrained(name, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise InputError(f"the decoder {name} cannot be loaded: {str(error).splitlines()[0]}") from None
    return decoder.to(pipeline.device, pipeline.dtype)


def class_numbers(pipeline: Any, classes: list[str] | None) -> tuple[int, ...]:
    """The numbers of classes that are given by name or number.

    Raises:
        InputError: the pipeline knows no such class.
    """
    if not classes:
        return ()
    if hasattr(pipeline, "class_index"):
        return tuple(pipeline.class_index(name) for name in classes)
    labels = getattr(pipeline, "labels", None) or {}
    numbers = []
    for name in classes:
        if name in labels:
            numbers.append(int(labels[name]))
        elif name.isdecimal():
            numbers.append(int(name))
        else:
            raise InputError(f"{type(pipeline).__name__} knows no class {name!r}: give its number")
    return tuple(numbers)


def sources_of(model: str, encoder: str | None) -> dict[str, str]:
    """The checksums that tell whether a folder of samples belongs to this model and this encoder."""
    from assay.methods.jepa_guidance.sampling_job import fingerprint

    return {"model": fingerprint(model)} | ({} if encoder is None else {"encoder": fingerprint(encoder)})


def finish(job: Any, out: Path, count: int, scorer: JEPAScorer | None, quiet: bool) -> list[dict[str, Any]]:
    """Score what was sampled and write the tables and the contact sheet; returns the rows of the manifest."""
    from assay.methods.jepa_guidance.sampling_job import file_name, read_samples, write_results

    rows = []
    for index in range(count):
        seed = job.seed + index
        row: dict[str, Any] = {"filename": file_name(seed), "seed": seed}
        if job.prompts:
            row["prompt"] = job.prompts[index % len(job.prompts)]
        if job.classes:
            row["class"] = job.classes[index % len(job.classes)]
        rows.append(row)
    seeds = [row["seed"] for row in rows]
    if scorer is not None:
        with progress_bar("Scoring", count, quiet=quiet) as advance:
            scores: list[float] = []
            for part, images in read_samples(out, seeds):
                scores += scorer.score(images).tolist()
                advance(len(part))
        rows = [row | {"jepa_score": value} for row, value in zip(rows, scores, strict=True)]
    write_results(out, rows, seeds)
    return rows


def describe(report: GuidanceReport) -> str:
    """What the guidance did, in words."""
    if not report.guided + report.skipped + report.flat:
        return "guided nothing: all images were there already, or eta is 0"
    return (
        f"guided {report.guided} steps of single images; {report.skipped} skipped (values that are not "
        f"finite), {report.flat} without a gradient"
    )
