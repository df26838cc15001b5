"""Training a small encoder on one's own images, without labels."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.files import write_json
from assay.methods.jepa_guidance.augmentations import PRESETS, Augmentation
from assay.methods.jepa_guidance.encoder_config import JEPAEncoderConfig
from assay.methods.jepa_guidance.encoder_model import JEPAEncoder
from assay.methods.jepa_guidance.encoder_objectives import TwoViews, check_collapse, embedding_std
from assay.methods.jepa_guidance.latent_prediction import LatentPrediction
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

OBJECTIVES = ("vicreg", "simclr", "ijepa", "lejepa")
LEAST_IMAGES = 200
_CHECKED = 2048
# Weights at which the embedding of small encoders comes out close to N(0, I).
_GAUSSIAN_WEIGHTS = {"epps-pulley": 0.05, "sliced-wasserstein": 0.9}


@dataclass(frozen=True)
class EncoderTraining:
    """What is trained, and how.

    Args:
        arch: "conv", "vit" or "mlp".
        objective: "vicreg", "simclr", "ijepa" (arch "vit" only) or "lejepa".
        hidden_size: the dimension d of the embedding; for I-JEPA it is the width.
        width: see `JEPAEncoderConfig`.
        depth: see `JEPAEncoderConfig`.
        num_heads: see `JEPAEncoderConfig`.
        patch_size: see `JEPAEncoderConfig`.
        augmentation: a preset ("geometric", "noise", "photo", "none") or strengths of one's own; by default
            "geometric", and none for I-JEPA.
        projector: hidden width of a projector before the loss; 0 for none. Not for I-JEPA.
        temperature: of SimCLR.
        gaussianity: LeJEPA's regulariser, "epps-pulley" or "sliced-wasserstein".
        gaussian_weight: its weight between 0 and 1; by default 0.05, or 0.9 for the Wasserstein distance.
        optimisation: steps, rates, checkpoints.

    Raises:
        InputError: a value is out of range.
    """

    arch: str = "conv"
    objective: str = "vicreg"
    hidden_size: int = 32
    width: int = 32
    depth: int = 2
    num_heads: int = 4
    patch_size: int = 4
    augmentation: str | Augmentation | None = None
    projector: int = 0
    temperature: float = 0.2
    gaussianity: str = "epps-pulley"
    gaussian_weight: float | None = None
    optimisation: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"the objective {self.objective!r} is none of {', '.join(OBJECTIVES)}")
        if self.objective == "ijepa" and self.arch != "vit":
            raise InputError(f"I-JEPA trains vision transformers: use the architecture vit, not {self.arch}")
        if isinstance(self.augmentation, str) and self.augmentation not in PRESETS:
            raise InputError(f"the augmentation {self.augmentation!r} is none of {', '.join(PRESETS)}")
        if self.projector < 0:
            raise InputError(f"projector must be at least 0, got {self.projector}")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise InputError(f"temperature must be above 0, got {self.temperature}")
        if self.gaussianity not in _GAUSSIAN_WEIGHTS:
            raise InputError(
                f"gaussianity {self.gaussianity!r} is neither epps-pulley nor sliced-wasserstein"
            )
        if self.gaussian_weight is not None and not 0 < self.gaussian_weight < 1:
            raise InputError(f"gaussian_weight must be between 0 and 1, got {self.gaussian_weight}")

    @property
    def strengths(self) -> Augmentation:
        """The augmentation, with the default filled in."""
        if isinstance(self.augmentation, Augmentation):
            return self.augmentation
        return PRESETS[self.augmentation or ("none" if self.objective == "ijepa" else "geometric")]

    def config(self, images: Float[Tensor, "n channels size size"]) -> JEPAEncoderConfig:
        """The configuration of an encoder for these images."""
        predictive = self.objective == "ijepa"
        return JEPAEncoderConfig(
            arch=self.arch,
            image_size=images.shape[-1],
            num_channels=images.shape[1],
            hidden_size=self.width if predictive else self.hidden_size,
            width=self.width,
            depth=self.depth,
            num_heads=self.num_heads,
            patch_size=self.patch_size,
            projection=not predictive,
            objective=self.objective,
        )


def train_encoder(
    images: Float[Tensor, "n channels size size"],
    training: EncoderTraining | None = None,
    *,
    out: Path | str | None = None,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = True,
) -> JEPAEncoder:
    """Train an encoder on images without labels.

    Args:
        images: pixels in [0, 1], or of 8 bits; square.
        training: what is trained, and how.
        out: the folder for the encoder (`config.json`, `model.safetensors`, `preprocessor_config.json`,
            `training.json`), which `AutoModel.from_pretrained` loads. An interrupted training is continued
            from its checkpoint there; a finished one is loaded. None saves nothing.
        seed: of the weights, the batches and the views.
        device: "auto" takes a GPU if there is one; "cpu" or "cuda".
        quiet: no progress bar.

    Returns:
        The encoder, on the CPU, in evaluation mode, without gradients of its weights.

    Raises:
        InputError: fewer than 200 different images, values that are not finite or out of [0, 1], a folder
            that holds something else, a loss that is not finite, or an encoder that has collapsed.
    """
    training = training or EncoderTraining()
    check_images(images)
    identity = identity_of("encoder", training, seed, images)
    folder = None if out is None else Path(out)
    if folder is not None and already_trained(folder, identity):
        with without_library_bars():
            return _ready(JEPAEncoder.from_pretrained(folder))
    with seeded_weights(seed):
        encoder = JEPAEncoder(training.config(images))
        objective = _objective(encoder, training)
    history = run_training(
        objective,
        ArrayImages(images),
        training.optimisation,
        seed=seed,
        identity=identity,
        out=folder,
        device=device,
        quiet=quiet,
        title=f"Training an encoder ({training.objective})",
    )
    _ready(encoder)
    facts = embedding_facts(encoder, images, training.objective)
    if folder is not None and in_main_process():
        record = {"identity": identity, **facts, "history": history}
        with finished_folder(folder, record) as temporary:
            with without_library_bars():
                encoder.save_pretrained(temporary)
            write_json(temporary / "preprocessor_config.json", preprocessing(encoder.config))
    wait_for_others()
    return encoder


def _objective(encoder: JEPAEncoder, training: EncoderTraining) -> Objective:
    if training.objective == "ijepa":
        return LatentPrediction(encoder, training.strengths)
    weight = training.gaussian_weight
    return TwoViews(
        encoder,
        training.objective,
        training.strengths,
        projector=training.projector,
        temperature=training.temperature,
        gaussianity=training.gaussianity,
        gaussian_weight=_GAUSSIAN_WEIGHTS[training.gaussianity] if weight is None else weight,
    )


def _ready(encoder: JEPAEncoder) -> JEPAEncoder:
    return encoder.eval().requires_grad_(False)


def check_images(images: Tensor) -> None:
    """Raise unless images are square, in range, and different enough to learn from.

    Args:
        images: (n, channels, size, size).

    Raises:
        InputError: the message says what is wrong.
    """
    if images.ndim != 4 or images.shape[-1] != images.shape[-2]:
        raise InputError(f"images must have the shape (n, channels, size, size), got {tuple(images.shape)}")
    if len(images) < LEAST_IMAGES:
        raise InputError(f"training needs at least {LEAST_IMAGES} images, got {len(images)}")
    if images.dtype != torch.uint8:
        if not torch.isfinite(images).all():
            raise InputError("the images have values that are not finite: repair them first")
        if images.min() < 0 or images.max() > 1:
            raise InputError(
                f"pixels must be in [0, 1], got {float(images.min()):g} to {float(images.max()):g}"
            )
    different = len({hashlib.sha256(row.numpy().tobytes()).digest() for row in images.flatten(1)})
    if different < LEAST_IMAGES:
        raise InputError(
            f"training needs at least {LEAST_IMAGES} different images; of the {len(images)} given, "
            f"{different} are different"
        )


@torch.no_grad()
def embedding_facts(encoder: JEPAEncoder, images: Tensor, objective: str) -> dict[str, Any]:
    """How the embedding of (up to 2048 of) the images is spread: deviation, and spectrum of the covariance.

    Args:
        encoder: on the CPU.
        images: those that it was trained on.
        objective: what it was trained with; VICReg and LeJEPA fix the scale of the embedding.

    Raises:
        InputError: the encoder has collapsed.
    """
    subset = images[torch.linspace(0, len(images) - 1, min(len(images), _CHECKED)).long()]
    rows = ArrayImages(subset)
    found, places = [], []
    for start in range(0, len(subset), 256):
        batch = rows.__getitems__(list(range(start, min(start + 256, len(subset)))))["images"]
        output = encoder(encoder.normalise(batch))
        found.append(output.pooler_output)
        places.append(output.last_hidden_state.flatten(1))
    embeddings = torch.cat(found)
    absolute = objective in ("vicreg", "lejepa")
    # What I-JEPA trains are the features by place; in their mean over places, images differ little.
    check_collapse(torch.cat(places) if objective == "ijepa" else embeddings, absolute=absolute)
    eigenvalues = torch.linalg.eigvalsh(torch.cov(embeddings.double().T).reshape(embeddings.shape[1], -1))
    return {
        "embedding_std": embedding_std(embeddings, absolute=absolute),
        "covariance_eigenvalues": eigenvalues.flip(0).tolist(),
    }


def preprocessing(config: Any) -> dict[str, Any]:
    """The content of `preprocessor_config.json`, which transformers' `AutoImageProcessor` reads."""
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": config.image_size, "width": config.image_size},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": config.image_mean,
        "image_std": config.image_std,
    }
