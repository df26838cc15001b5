"""What the trials share: image sets, encoders, generators, the judge, and sets of samples, kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.cache import cached
from assay.data.embedded import EMBEDDED
from assay.lm import embed_texts, sentence_encoder
from assay.lm.sentences import SENTENCE_PACKAGE
from assay.methods.jepa_guidance.augmentations import Augmentation
from assay.methods.jepa_guidance.baselines import MinorityClassifier, train_minority_classifier
from assay.methods.jepa_guidance.datasets import (
    CAPTIONS,
    CLASSES,
    WORLD_RARE,
    BiasedImages,
    biased,
    captions,
)
from assay.methods.jepa_guidance.encoder_training import EncoderTraining, train_encoder
from assay.methods.jepa_guidance.generator_pipeline import load_generator
from assay.methods.jepa_guidance.generator_training import GeneratorTraining, train_generator
from assay.methods.jepa_guidance.metrics import ImageJudge
from assay.methods.jepa_guidance.scorer import JEPAScorer
from assay.methods.jepa_guidance.study import DESIGNS, Design
from assay.methods.jepa_guidance.study_claims import WEIGHTS
from assay.methods.jepa_guidance.training_loop import Optimisation
from assay.study import Trial

if TYPE_CHECKING:
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

# Part of every cache key; to be raised when what is kept changes.
VERSION = 1
# Real images for precision and recall: as many as digits have.
REAL = 1402
# Weights of the Gaussian term in the encoder that guides, and in the one that the invariance dominates.
GAUSSIAN, INVARIANT = max(WEIGHTS), min(WEIGHTS)


@dataclass(frozen=True)
class Bench:
    """One image set with the models of one seed.

    Attributes:
        size: a key of `DESIGNS`.
        data: a name of `datasets.SOURCES`.
        seed: of encoders, generator and samples.
    """

    size: str
    data: str
    seed: int

    @classmethod
    def of(cls, trial: Trial) -> Bench:
        """The bench on which a trial is measured."""
        return cls(str(trial.setting["size"]), str(trial.setting["data"]), trial.seed)

    @property
    def design(self) -> Design:
        return DESIGNS[self.size]

    @property
    def images(self) -> BiasedImages:
        return biased(self.data)

    @property
    def judge(self) -> ImageJudge:
        return judge_of(self.data)

    @property
    def held_out(self) -> Float[Tensor, "n 1 h w"]:
        """Images that no model has seen; all classes are equally frequent."""
        return torch.from_numpy(self.images.held_out.images)

    @property
    def generator_seed(self) -> int:
        return self.seed if self.data == "digits" else self.seed % self.design.generators

    def key(self, **more: Any) -> dict[str, Any]:
        """The key of what is kept of this bench."""
        return {"version": VERSION, **asdict(self), "design": asdict(self.design), **more}


@cache
def judge_of(data: str) -> ImageJudge:
    """The judge of an image set, fitted to all its training images before they were thinned."""
    real = biased(data).real
    return ImageJudge().fit(real.images, real.labels)


@cache
def reference_features(data: str) -> dict[str, Float[np.ndarray, "n d"]]:
    """Features of the real, the world, the generator and the rare held-out images."""
    images, judge = biased(data), judge_of(data)
    rare = images.held_out.images[np.isin(images.held_out.labels, images.world_rare)]
    sets = {name: getattr(images, name).images for name in ("real", "world", "generator", "held_out")}
    # Precision and recall cost the square of the number of real images.
    sets["real"] = sets["real"][np.random.default_rng(0).permutation(len(sets["real"]))[:REAL]]
    return {name: judge.features(values) for name, values in (sets | {"rare": rare}).items()}


# ------------------------------------------------------------------------------------------------- encoders


def recipe(kind: str, steps: int) -> EncoderTraining:
    """How an encoder is trained: `"lejepa-WEIGHT"`, `"second"`, `"vicreg"` or `"ijepa"`."""

    def lejepa(weight: float, width: int, hidden_size: int, count: int) -> EncoderTraining:
        return EncoderTraining(
            arch="mlp",
            objective="lejepa",
            hidden_size=hidden_size,
            width=width,
            patch_size=2,
            augmentation=Augmentation(noise=0.3),
            gaussianity="sliced-wasserstein",
            gaussian_weight=weight,
            optimisation=Optimisation(steps=count, batch_size=192, learning_rate=2e-3),
        )

    match kind:
        case "second":
            return lejepa(GAUSSIAN, 192, 16, steps)
        case "vicreg":
            short = Optimisation(steps=steps // 2, batch_size=128, learning_rate=2e-3)
            return EncoderTraining("conv", "vicreg", 32, 16, augmentation="geometric", optimisation=short)
        case "ijepa":
            short = Optimisation(steps=steps // 4, batch_size=96, learning_rate=2e-3)
            return EncoderTraining("vit", "ijepa", width=16, patch_size=2, optimisation=short)
    weight = float(kind.removeprefix("lejepa-"))
    return lejepa(weight, 256, 24, steps if weight == GAUSSIAN else steps // 2)


@cache
def scorer(bench: Bench, kind: str) -> JEPAScorer:
    """The scorer of an encoder that was trained on the world set and calibrated on it."""
    training = recipe(kind, bench.design.encoder_steps)
    world = torch.from_numpy(bench.images.world.images)
    seed = bench.seed + (1000 if kind == "second" else 0)

    def build(folder: Path) -> None:
        train_encoder(world, training, out=folder / "encoder", seed=seed, device="cpu")
        made = JEPAScorer.from_pretrained(folder / "encoder", device="cpu")
        made.calibrate(world, torch.from_numpy(_rare(bench.images.world.labels))).save(folder / "encoder")

    key = {"version": VERSION, "data": bench.data, "seed": seed, "training": asdict(training)}
    return JEPAScorer.from_pretrained(cached("jepa-encoder", key, build) / "encoder", device="cpu")


def _rare(labels: np.ndarray) -> np.ndarray:
    return np.isin(labels, WORLD_RARE)


# ----------------------------------------------------------------------------------------------- generators


@cache
def generator(bench: Bench) -> tuple[torch.nn.Module, DDPMScheduler]:
    """Denoiser and scheduler, trained on the generator's set; on digits by class, on MNIST by caption."""
    images = bench.images.generator
    training = GeneratorTraining(
        arch="mlp",
        width=256,
        depth=3,
        ema_decay=0.995,
        condition_dropout=0.3,
        optimisation=Optimisation(
            steps=bench.design.generator_steps[bench.data],
            batch_size=96,
            learning_rate=3e-3,
            weight_decay=0.0,
        ),
    )
    if bench.data == "digits":
        condition: dict[str, Any] = {"labels": torch.from_numpy(images.labels)}
    else:
        chosen = np.random.default_rng(0).integers(len(CAPTIONS), size=len(images))
        condition = {"texts": caption_embeddings()[images.labels, chosen]}
    seed = bench.generator_seed

    def build(folder: Path) -> None:
        train_generator(
            torch.from_numpy(images.images),
            training,
            **condition,
            out=folder / "generator",
            seed=seed,
            device="cpu",
        )

    key = {"version": VERSION, "data": bench.data, "seed": seed, "training": asdict(training)}
    pipeline = load_generator(cached("jepa-generator", key, build) / "generator")
    return pipeline.unet.eval().requires_grad_(False), pipeline.scheduler


@cache
def caption_embeddings() -> Float[Tensor, "classes templates 384"]:
    """Embeddings of the captions of all digits by all-MiniLM-L6-v2."""
    package = EMBEDDED[SENTENCE_PACKAGE]
    sentences = [caption for label in range(CLASSES) for caption in captions(label)]

    def build(folder: Path) -> None:
        found = embed_texts(*sentence_encoder(), sentences)
        np.save(folder / "embeddings.npy", found, allow_pickle=False)

    key = {"version": VERSION, "model": package.checksums, "sentences": sentences}
    rows = np.load(cached("jepa-captions", key, build) / "embeddings.npy", allow_pickle=False)
    return torch.from_numpy(rows).view(CLASSES, len(CAPTIONS), -1)


@cache
def minority_classifier(bench: Bench) -> MinorityClassifier:
    """The classifier of minority guidance, trained on the generator's set."""
    denoiser, scheduler = generator(bench)

    def predict(x: Tensor, t: int) -> Tensor:
        velocity = denoiser(x, t).sample
        alpha_bar = scheduler.alphas_cumprod[t]
        return (alpha_bar.sqrt() * x - (1 - alpha_bar).sqrt() * velocity).clamp(-1, 1)

    clean = 2 * torch.from_numpy(bench.images.generator.images) - 1
    return train_minority_classifier(clean, predict, scheduler.alphas_cumprod, seed=bench.seed)


def kept_samples(
    bench: Bench, what: dict[str, Any], draw: Callable[[], Tensor]
) -> Float[np.ndarray, "n 1 h w"]:
    """Images in [0, 1] with 256 levels, drawn once."""

    def build(folder: Path) -> None:
        levels = (draw() * 255).round().to(torch.uint8).numpy()
        np.savez_compressed(folder / "images.npz", images=levels)

    found = cached("jepa-samples", bench.key(**what), build) / "images.npz"
    with np.load(found, allow_pickle=False) as archive:
        return archive["images"].astype(np.float32) / 255
