"""Training a small diffusion model of pixels on one's own images: unconditional, by class, or by caption."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
from diffusers.models.unets.unet_2d import UNet2DModel
from diffusers.pipelines.ddpm.pipeline_ddpm import DDPMPipeline
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

from assay.errors import InputError
from assay.methods.jepa_guidance.encoder_training import check_images
from assay.methods.jepa_guidance.generator_model import PixelMLP, PixelUNet, make_denoiser
from assay.methods.jepa_guidance.generator_pipeline import PixelDiffusionPipeline, load_generator
from assay.methods.jepa_guidance.progress_bars import without_library_bars
from assay.methods.jepa_guidance.training_folder import already_trained, finished_folder, identity_of
from assay.methods.jepa_guidance.training_loop import (
    ArrayImages,
    Objective,
    Optimisation,
    in_main_process,
    run_training,
    seeded_weights,
    wait_for_others,
)

Denoiser = UNet2DModel | PixelUNet | PixelMLP
Prediction = Literal["epsilon", "v_prediction"]


@dataclass(frozen=True)
class GeneratorTraining:
    """What is trained, and how.

    Args:
        arch: "unet", or "mlp" for images of 8 or 16 pixels.
        width: channels at the highest resolution (a multiple of 8), or the width of the MLP.
        depth: residual blocks of the MLP.
        train_timesteps: noise levels of the cosine schedule.
        prediction_type: what the network predicts: "epsilon", the noise, or "v_prediction", the velocity.
        ema_decay: of the moving average of the weights, which is what is kept; it starts lower and grows.
        condition_dropout: part of the images whose condition is hidden, for classifier-free guidance.
        optimisation: steps, rates, checkpoints.

    Raises:
        InputError: a value is out of range.
    """

    arch: str = "unet"
    width: int = 32
    depth: int = 3
    train_timesteps: int = 1000
    prediction_type: Prediction = "v_prediction"
    ema_decay: float = 0.999
    condition_dropout: float = 0.1
    optimisation: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        for name, lowest in (("width", 1), ("depth", 1), ("train_timesteps", 10)):
            if getattr(self, name) < lowest:
                raise InputError(f"{name} must be at least {lowest}, got {getattr(self, name)}")
        if self.prediction_type not in ("epsilon", "v_prediction"):
            raise InputError(f"prediction_type is epsilon or v_prediction, not {self.prediction_type!r}")
        for name in ("ema_decay", "condition_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be from 0 to below 1, got {getattr(self, name)}")


class Denoising(Objective):
    """The mean squared error of the prediction at random times (Ho, Jain, Abbeel 2020, eq. 14).

    What is predicted is the noise, or the velocity (Salimans and Ho 2022, appendix D), which stays
    informative at the highest noise.

    Args:
        denoiser: what is trained.
        scheduler: the noise levels.
        ema_decay: of the moving average.
        condition_dropout: part of the images whose condition is hidden.
    """

    def __init__(
        self, denoiser: Denoiser, scheduler: DDPMScheduler, ema_decay: float, condition_dropout: float
    ) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.condition_dropout = condition_dropout
        self.scheduler = scheduler
        self.average = AveragedModel(denoiser, multi_avg_fn=_growing_average(ema_decay)).requires_grad_(False)

    def forward(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> Float[Tensor, ""]:
        clean = 2 * batch["images"] - 1
        options: dict[str, Any] = {"generator": generator, "device": clean.device}
        scheduler: Any = self.scheduler
        times = torch.randint(scheduler.config.num_train_timesteps, (len(clean),), **options)
        noise = torch.randn(clean.shape, dtype=clean.dtype, **options)
        noisy = scheduler.add_noise(clean, noise, times)
        hidden = torch.rand(len(clean), **options) < self.condition_dropout
        condition: dict[str, Tensor] = {}
        if "labels" in batch:
            no_class = self.denoiser.config["num_classes"]
            condition["class_labels"] = batch["labels"].masked_fill(hidden, no_class)
        elif "texts" in batch:
            condition["encoder_hidden_states"] = batch["texts"].masked_fill(hidden[:, None], 0.0)
        predicted = self.denoiser(noisy, times, **condition).sample
        velocity = scheduler.config.prediction_type == "v_prediction"
        target = scheduler.get_velocity(clean, noise, times) if velocity else noise
        return functional.mse_loss(predicted.float(), target)

    def after_step(self, progress: float) -> None:
        self.average.update_parameters(self.denoiser)


def _growing_average(decay: float) -> Any:
    """An exponential average whose decay starts at 0.1, so that the first weights are soon forgotten."""

    def update(averaged: list[Tensor], current: list[Tensor], steps: Tensor) -> None:
        count = int(steps)
        weight = 1 - min(decay, (1 + count) / (10 + count))
        torch._foreach_lerp_(averaged, current, weight)  # pyright: ignore[reportPrivateImportUsage]

    return torch.no_grad()(update)


def make_scheduler(
    train_timesteps: int = 1000, prediction_type: Prediction = "v_prediction"
) -> DDPMScheduler:
    """The cosine schedule of Nichol and Dhariwal (2021), with the clean estimate clipped to [-1, 1].

    Args:
        train_timesteps: noise levels.
        prediction_type: what the network predicts, "epsilon" or "v_prediction".
    """
    return DDPMScheduler(
        num_train_timesteps=train_timesteps,
        beta_schedule="squaredcos_cap_v2",
        prediction_type=prediction_type,
        clip_sample=True,
    )


def train_generator(
    images: Float[Tensor, "n channels size size"],
    training: GeneratorTraining | None = None,
    *,
    labels: Int[Tensor, " n"] | None = None,
    texts: Float[Tensor, "n width"] | None = None,
    class_names: Sequence[str] | None = None,
    text_encoder: Any = None,
    tokenizer: Any = None,
    out: Path | str | None = None,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = True,
) -> tuple[Denoiser, DDPMScheduler]:
    """Train a diffusion model of pixels.

    Args:
        images: pixels in [0, 1], or of 8 bits; square.
        training: what is trained, and how.
        labels: classes 0, 1, ..., for a class-conditional model.
        texts: sentence embeddings of captions, for a text-conditional model.
        class_names: what the classes are called; kept in the pipeline.
        text_encoder: the transformers model that made `texts`; saved with the generator, so that it takes
            prompts.
        tokenizer: its tokenizer.
        out: the folder for the generator, which `DiffusionPipeline.from_pretrained` loads. An interrupted
            training is continued from its checkpoint there; a finished one is loaded. None saves nothing.
        seed: of the weights, the batches and the noise.
        device: "auto" takes a GPU if there is one; "cpu" or "cuda".
        quiet: no progress bar.

    Returns:
        The denoiser, with averaged weights, on the CPU, in evaluation mode, without gradients of its weights;
        and its scheduler.

    Raises:
        InputError: fewer than 200 different images, values that are not finite or out of [0, 1], labels or
            texts that do not fit the images, a folder that holds something else, or a loss that is not
            finite.
    """
    training = training or GeneratorTraining()
    check_images(images)
    extras = _conditions(len(images), labels, texts)
    names = list(class_names) if class_names else None
    classes = None if labels is None else max(int(labels.max()) + 1, len(names or ()))
    if names and (labels is None or len(names) != classes):
        raise InputError(f"{len(names)} class names were given for {classes or 0} classes")
    identity = identity_of("generator", training, seed, images, labels, texts, class_names=names)
    folder = None if out is None else Path(out)
    if folder is not None and already_trained(folder, identity):
        pipeline = load_generator(folder)
        return pipeline.unet, pipeline.scheduler
    with seeded_weights(seed):
        denoiser = make_denoiser(
            training.arch,
            image_size=images.shape[-1],
            num_channels=images.shape[1],
            width=training.width,
            depth=training.depth,
            num_classes=classes,
            text_dim=None if texts is None else texts.shape[1],
        )
    scheduler = make_scheduler(training.train_timesteps, training.prediction_type)
    objective = Denoising(denoiser, scheduler, training.ema_decay, training.condition_dropout)
    history = run_training(
        objective,
        ArrayImages(images, **extras),
        training.optimisation,
        seed=seed,
        identity=identity,
        out=folder,
        device=device,
        quiet=quiet,
        title="Training a generator",
    )
    denoiser = cast(Denoiser, copy.deepcopy(objective.average.module).eval().requires_grad_(False))
    if folder is not None and in_main_process():
        pipeline = make_pipeline(denoiser, scheduler, text_encoder, tokenizer, names)
        record = {"identity": identity, "history": history}
        with finished_folder(folder, record) as temporary, without_library_bars():
            pipeline.save_pretrained(temporary)
    wait_for_others()
    return denoiser, scheduler


def make_pipeline(
    denoiser: Denoiser,
    scheduler: Any,
    text_encoder: Any = None,
    tokenizer: Any = None,
    class_names: Sequence[str] | None = None,
) -> DDPMPipeline | PixelDiffusionPipeline:
    """The pipeline of a denoiser: diffusers' own for an unconditional U-Net, else ours.

    Args:
        denoiser: of pixels.
        scheduler: diffusers'.
        text_encoder: for a text-conditional denoiser.
        tokenizer: of the text encoder.
        class_names: for a class-conditional denoiser.
    """
    if isinstance(denoiser, UNet2DModel):
        return DDPMPipeline(unet=denoiser, scheduler=scheduler)
    return PixelDiffusionPipeline(
        unet=denoiser,
        scheduler=scheduler,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        class_names=list(class_names) if class_names else None,
    )


def _conditions(count: int, labels: Tensor | None, texts: Tensor | None) -> dict[str, Tensor]:
    if labels is not None and texts is not None:
        raise InputError("a generator is conditioned on classes or on captions, not on both")
    for name, rows in (("labels", labels), ("texts", texts)):
        if rows is not None and len(rows) != count:
            raise InputError(f"{len(rows)} {name} were given for {count} images")
    if labels is not None:
        if labels.is_floating_point() or int(labels.min()) < 0:
            raise InputError("labels must be whole numbers from 0")
        return {"labels": labels.long()}
    if texts is not None:
        if texts.ndim != 2 or not torch.isfinite(texts).all() or not math.isfinite(float(texts.sum())):
            raise InputError("texts must be finite embeddings, one row an image")
        return {"texts": texts.float()}
    return {}
