"""Any image encoder as a map from images to one vector each, and encoders from folders and the hub."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.errors import InputError, MissingDependencyError

Pooling = Literal["auto", "pooler", "cls", "mean"]

# Of ImageNet's training images, in RGB: what DINOv2 and most other encoders are trained with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# Side at which the released code scores images.
_DEFAULT_SIZE = 224

# Encoders for which the paper reports that low scores are rare.
_PUBLISHED = (
    "facebook/dinov2",
    "facebook/ijepa",
    "facebook/metaclip",
    "timm/vit_small_patch14_reg4_dinov2",
    "timm/vit_base_patch14_reg4_dinov2",
    "timm/vit_large_patch14_reg4_dinov2",
)


class EmbeddingEncoder(nn.Module):
    """A model whose output may be anything usual, as a map from images to one vector each.

    Args:
        model: maps a batch of normalised images to a tensor (batch, d) or (batch, tokens, d), a tuple that
            starts with one, or an output of transformers.
        pooling: `"pooler"` takes `pooler_output`, `"cls"` the first token, `"mean"` the mean over tokens;
            `"auto"` the first of these that the output has: vectors, `pooler_output`, the mean.

    Raises:
        InputError: the output has no such vector (on the first call).
    """

    def __init__(self, model: nn.Module, pooling: Pooling = "auto") -> None:
        super().__init__()
        if pooling not in get_args(Pooling):
            raise InputError(f"pooling {pooling!r} is not known; use one of {', '.join(get_args(Pooling))}")
        self.model = model
        self.pooling: Pooling = pooling
        parameters = inspect.signature(model.forward).parameters
        self._interpolates = "interpolate_pos_encoding" in parameters
        self._own_size = getattr(getattr(model, "config", None), "image_size", None)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch d"]:
        """The vector of each normalised image."""
        if self._interpolates and self._own_size not in (None, images.shape[-1]):
            output = self.model(images, interpolate_pos_encoding=True)
        else:
            output = self.model(images)
        return self._pooled(output, len(images))

    def _pooled(self, output: Any, batch: int) -> Tensor:
        named = _named_tensors(output)
        if self.pooling in ("auto", "pooler") and "pooler_output" in named:
            return named["pooler_output"]
        states = named.get("last_hidden_state", named.get("0"))
        if isinstance(states, Tensor) and len(states) == batch:
            if states.dim() == 2 and self.pooling == "auto":
                return states
            if states.dim() == 3 and self.pooling in ("auto", "mean"):
                return states.mean(dim=1)
            if states.dim() == 3 and self.pooling == "cls":
                return states[:, 0]
            if states.dim() == 4 and self.pooling in ("auto", "mean"):
                return states.mean(dim=(2, 3))
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in named.items()) or "no tensor"
        raise InputError(
            f"the encoder returns {type(output).__name__} ({shapes}), from which pooling={self.pooling!r} "
            f"gives no vector for each of {batch} images; choose another pooling or wrap the encoder"
        )


def _named_tensors(output: Any) -> dict[str, Tensor]:
    if isinstance(output, Tensor):
        return {"0": output}
    if isinstance(output, Mapping):
        return {str(name): value for name, value in output.items() if isinstance(value, Tensor)}
    if isinstance(output, (tuple, list)):
        return {str(i): value for i, value in enumerate(output) if isinstance(value, Tensor)}
    return {}


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder with the preprocessing that it was trained with.

    Attributes:
        model: the encoder.
        mean: subtracted from the values in [0, 1], one for each channel.
        std: what the result is divided by.
        image_size: side in pixels.
        folder: where it was loaded from, if from a folder.
        published: whether the paper reports the direction of the score for it.
    """

    model: nn.Module
    mean: Sequence[float]
    std: Sequence[float]
    image_size: int
    folder: Path | None
    published: bool


def load_encoder(name_or_path: str | Path) -> LoadedEncoder:
    """Load an encoder from a folder in transformers' layout, from the hub, or (`timm/NAME`) from timm.

    The global random state is as it was afterwards. Only safetensors are read, and no code from the folder
    or the hub is run.

    Raises:
        InputError: there is no such encoder, or it cannot be loaded.
        MissingDependencyError: the encoder is of timm, and timm is not installed.
    """
    name = str(name_or_path)
    published = name.startswith(_PUBLISHED)
    with torch.random.fork_rng(devices=[]), _without_bars():
        if name.startswith("timm/"):
            return _from_timm(name.removeprefix("timm/"), published)
        return _from_transformers(name, published)


@contextmanager
def _without_bars() -> Iterator[None]:
    """No bars of transformers in the block: an encoder loads in a moment."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _from_transformers(name: str, published: bool) -> LoadedEncoder:
    from safetensors import SafetensorError
    from transformers import AutoModel

    folder = Path(name) if Path(name).is_dir() else None
    if folder is not None and not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no encoder: config.json is missing")
    try:
        model = AutoModel.from_pretrained(name, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"the encoder {name} cannot be loaded: {reason}") from error
    # A two-tower model is loaded for its images.
    model = getattr(model, "vision_model", model)
    config = model.config
    mean, std, size = _preprocessing(name, folder, config)
    return LoadedEncoder(model, mean, std, size, folder, published)


def _preprocessing(
    name: str, folder: Path | None, config: Any
) -> tuple[Sequence[float], Sequence[float], int]:
    """Mean, standard deviation and size: from the encoder's configuration, or the folder's preprocessor."""
    channels = getattr(config, "num_channels", 3)
    mean, std = getattr(config, "image_mean", None), getattr(config, "image_std", None)
    size = getattr(config, "image_size", _DEFAULT_SIZE) if mean is not None else _DEFAULT_SIZE
    if mean is None and folder is not None and (folder / "preprocessor_config.json").is_file():
        try:
            settings = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise InputError(f"{folder / 'preprocessor_config.json'} is not JSON: {error}") from error
        mean, std = settings.get("image_mean"), settings.get("image_std")
        wanted = settings.get("crop_size") or settings.get("size") or {}
        size = wanted.get("height", size) if isinstance(wanted, dict) else int(wanted)
    elif mean is None and folder is None:
        settings = _hub_preprocessing(name)
        mean, std = settings.get("image_mean"), settings.get("image_std")
    if mean is None or std is None:
        if channels != 3:
            raise InputError(
                f"{name} takes {channels} channels and says neither mean nor standard deviation: build "
                "JEPAScorer(encoder, mean=..., std=..., image_size=...) yourself"
            )
        mean, std = IMAGENET_MEAN, IMAGENET_STD
    return mean, std, size


def _hub_preprocessing(name: str) -> dict[str, Any]:
    from transformers.utils.hub import cached_file

    file = cached_file(name, "preprocessor_config.json", _raise_exceptions_for_missing_entries=False)
    return {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))


def _from_timm(name: str, published: bool) -> LoadedEncoder:
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the encoder timm/{name} needs timm; get it with: pip install timm"
        ) from error
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0, dynamic_img_size=True)
    except Exception as error:
        raise InputError(f"timm has no encoder {name} that can be loaded: {error}") from error
    settings = model.pretrained_cfg
    return LoadedEncoder(model, settings["mean"], settings["std"], _DEFAULT_SIZE, None, published)
