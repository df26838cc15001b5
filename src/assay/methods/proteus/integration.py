"""The plug-in for transformers: `from_pretrained` and `save_pretrained` for `quant_method` "proteus".

`import assay` lets `register` run once transformers' table of quantizers has been imported (see
`assay.plugins` and `on_import` in the card).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer, get_keys_to_not_convert

from assay.errors import InputError
from assay.methods.proteus.config import METHOD, ProteusConfig
from assay.methods.proteus.decoder import linear_modules, linear_weight
from assay.methods.proteus.linear import ProteusLinear, proteus_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# safetensors' names of the types that a checkpoint of ours may hold
_TYPES = {
    "U8": torch.uint8,
    "I32": torch.int32,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}


class ProteusHfQuantizer(HfQuantizer):
    """Swaps the linear layers of a model under construction for packed ones, and back on `dequantize`."""

    requires_calibration = True
    quantization_config: ProteusConfig

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        stored = read_headers(checkpoint_files or ())
        prefix = model.base_model_prefix
        for name, module in linear_modules(model).items():
            if listed(name, self.quantization_config.modules_to_not_convert or ()):
                continue
            found = _stored_names(name, prefix, stored)
            replace_module(model, name, packed_like(module, self.quantization_config, found))
        if stored:
            for name, layer in proteus_layers(model).items():
                _check_stored(name, layer, _stored_names(name, prefix, stored))

    def _dequantize(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
        for name, layer in proteus_layers(model).items():
            replace_module(model, name, layer.to_dense(dtype or model.dtype))
        return model

    def is_serializable(self) -> bool:
        """Packed layers are saved as they are."""
        return True

    @property
    def is_trainable(self) -> bool:
        """The codes cannot be trained; `assay proteus quantize --distill` trains the scales."""
        return False


def register() -> None:
    """Make transformers know `quant_method` "proteus"; a second call does nothing."""
    if METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        register_quantization_config(METHOD)(ProteusConfig)
        register_quantizer(METHOD)(ProteusHfQuantizer)


def mark_quantized(model: PreTrainedModel, config: ProteusConfig) -> None:
    """Make a model with packed layers one that `save_pretrained` writes with its configuration."""
    quantizer = ProteusHfQuantizer(config, pre_quantized=True)
    model.hf_quantizer = quantizer  # pyright: ignore[reportArgumentType]
    model.is_quantized = True  # pyright: ignore[reportArgumentType]
    model.quantization_method = config.quant_method  # pyright: ignore[reportArgumentType]
    quantizer.postprocess_model(model)


def kept_modules(model: PreTrainedModel) -> list[str]:
    """The linear modules that are never quantized: the output embedding and whatever is tied."""
    kept = set(get_keys_to_not_convert(model))
    return [name for name in linear_modules(model) if name in kept]


def packed_like(
    module: nn.Module, config: ProteusConfig, stored: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> ProteusLinear:
    """An empty packed layer with the shape of `module` and the types of the stored scales."""
    rows, columns = linear_weight(module).shape
    types = [stored[name][0] if name in stored else torch.float16 for name in ("su", "sv")]
    layer = ProteusLinear(
        columns,
        rows,
        bias=getattr(module, "bias", None) is not None,
        config=config,
        transposed=not isinstance(module, nn.Linear),
        scale_types=(types[0], types[1]),
    )
    return layer.eval()


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put `module` in the place of the sub-module at a path."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent) if parent else model, child, module)


def read_headers(files: Iterable[str | Path]) -> dict[str, tuple[torch.dtype | None, tuple[int, ...]]]:
    """Type and shape of every tensor in safetensors files, by name.

    Raises:
        InputError: a file is truncated or is not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    found = {}
    for file in files:
        if not str(file).endswith(".safetensors"):
            raise InputError(f"{file} is not a safetensors file; proteus checkpoints hold nothing else")
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    view = tensors.get_slice(name)
                    found[name] = (_TYPES.get(view.get_dtype()), tuple(view.get_shape()))
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{file} is damaged or not complete ({' '.join(str(error).split())}): copy it again"
            ) from error
    return found


def _stored_names(
    name: str, prefix: str, stored: Mapping[str, tuple[torch.dtype | None, tuple[int, ...]]]
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The stored tensors of the module at `name`, whether or not names carry the base model's prefix."""
    for path in (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")):
        start = f"{path}."
        inside = {
            key.removeprefix(start): facts
            for key in (f"{start}{tensor}" for tensor in _TENSORS)
            if (facts := stored.get(key)) is not None and facts[0] is not None
        }
        if inside:
            return inside  # pyright: ignore[reportReturnType]
    return {}


_TENSORS = ("qweight", "gen", "affine", "su", "sv", "matrix_in", "matrix_out", "bias", "weight")


def _check_stored(
    name: str, layer: ProteusLinear, stored: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> None:
    for key, expected in layer.state_dict().items():
        if key not in stored:
            have = f"it holds {', '.join(stored)}" if stored else "it holds nothing of this layer"
            raise InputError(
                f"the checkpoint lacks {name}.{key} ({have}): it is not complete, or its "
                "modules_to_not_convert is wrong"
            )
        dtype, shape = stored[key]
        if shape != tuple(expected.shape):
            raise InputError(
                f"{name}.{key} has shape {list(shape)} in the checkpoint, not {list(expected.shape)}: the "
                "file is damaged, or its configuration (bits) is of another model"
            )
        if key not in ("bias", "su", "sv") and dtype != expected.dtype:
            raise InputError(f"{name}.{key} is of type {dtype} in the checkpoint, not {expected.dtype}")


def listed(name: str, skipped: Iterable[str]) -> bool:
    """Whether a module is among those to skip: its path, or consecutive parts of it, are named.

    A base model's paths lack the first part, so a path may also be the end of a named one.
    """
    return any(f".{other}." in f".{name}." or other.endswith(f".{name}") for other in skipped)


@contextmanager
def quiet_saving() -> Iterator[None]:
    """Without transformers' own progress bars, which ignore `--quiet`."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


# Whoever imports this module before transformers' table of quantizers gets the plug-in, too.
register()
