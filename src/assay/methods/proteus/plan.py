"""Before a model is quantized: which modules, how much space, and what cannot be quantized at all."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Int
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.proteus.config import TILE, ProteusConfig
from assay.methods.proteus.decoder import decoder_blocks, linear_modules, linear_weight
from assay.methods.proteus.integration import listed
from assay.methods.proteus.layer_quantization import SMALLEST, check_weight, padded
from assay.methods.proteus.linear import proteus_layers
from assay.methods.proteus.report import fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Bytes of each tensor that go into the fingerprint of a model's weights.
_FINGERPRINT_BYTES = 1 << 16


@dataclass(frozen=True)
class Plan:
    """Which modules are quantized, and which are not."""

    chosen: dict[str, tuple[int, int]]
    kept: list[str]
    skipped: dict[str, str]

    @classmethod
    def of(cls, model: PreTrainedModel, config: ProteusConfig) -> Plan:
        """The plan for a model.

        Raises:
            InputError: the model is quantized already, has no linear modules in blocks, or has weights that
                are not finite.
        """
        _check_dense(model)
        path, blocks = decoder_blocks(model)
        inside = {
            f"{path}.{index}.{name}" for index, block in enumerate(blocks) for name in linear_modules(block)
        }
        asked = config.modules_to_not_convert or []
        chosen: dict[str, tuple[int, int]] = {}
        skipped: dict[str, str] = {}
        for name, module in linear_modules(model).items():
            rows, columns = linear_weight(module).shape
            if name not in inside:
                skipped[name] = "outside the decoder blocks"
            elif listed(name, asked):
                skipped[name] = "named in modules_to_not_convert"
            elif min(rows, columns) < SMALLEST:
                skipped[name] = f"{rows} x {columns}: smaller than {SMALLEST} x {SMALLEST}"
            else:
                check_weight(name, linear_weight(module))
                chosen[name] = (rows, columns)
        unknown = [name for name in asked if not any(listed(found, [name]) for found in skipped)]
        if unknown:
            raise InputError(f"modules_to_not_convert names {unknown[0]!r}, which the model does not have")
        if not chosen:
            reasons = "; ".join(sorted(set(skipped.values())))
            raise InputError(f"{type(model).__name__} has no linear module to quantize ({reasons})")
        return cls(chosen, list(skipped), skipped)

    @property
    def weights(self) -> int:
        """How many weights are quantized."""
        return sum(rows * columns for rows, columns in self.chosen.values())

    def bytes_needed(self, model: nn.Module, config: ProteusConfig) -> int:
        """Finished modules and result together, from above: scales may need float32."""
        packed = sum(
            padded(rows) * padded(columns) * config.bits // 8 + 4 * (rows + columns) + 16 * TILE**2
            for rows, columns in self.chosen.values()
        )
        whole = sum(p.numel() * p.element_size() for p in model.parameters())
        modules = linear_modules(model)
        dense = sum(
            linear_weight(modules[name]).numel() * linear_weight(modules[name]).element_size()
            for name in self.chosen
        )
        return 2 * packed + whole - dense


def check_tokens(calibration: Int[Tensor, "n length"], model: PreTrainedModel) -> None:
    """Refuse calibration tokens that a model cannot read.

    Raises:
        InputError: they are not a matrix of its tokens, or longer than its context.
    """
    if calibration.ndim != 2 or calibration.is_floating_point() or not calibration.numel():
        raise InputError(
            f"calibration must be integers of shape [sequences, length], not {calibration.dtype} "
            f"{list(calibration.shape)}"
        )
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and calibration.shape[1] > positions:
        raise InputError(
            f"calibration sequences of {calibration.shape[1]} tokens are longer than the model's {positions} "
            "positions: use a smaller --seq-len"
        )
    vocabulary = model.get_input_embeddings().weight.shape[0]  # pyright: ignore[reportAttributeAccessIssue, reportIndexIssue]
    if int(calibration.max()) >= vocabulary or int(calibration.min()) < 0:
        raise InputError(
            f"the calibration has token {int(calibration.max())}; the model's vocabulary has {vocabulary}: "
            "use the model's own tokenizer"
        )


def sharing_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A model with its own modules and the same tensors, without marks of an earlier quantization."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    student = copy.deepcopy(model, tensors)
    for holder, name in (
        (student.config, "quantization_config"),
        (student, "hf_quantizer"),
        (student, "quantization_method"),
        (student, "is_quantized"),
    ):
        holder.__dict__.pop(name, None)
    return student.eval()


def model_fingerprint(model: nn.Module) -> str:
    """A hash of names, shapes and a sample of every weight; a few milliseconds a gigabyte."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() * flat.element_size() // _FINGERPRINT_BYTES)
        digest.update(f"{name}\0{fingerprint({'sample': flat[::step]})}\0{tuple(tensor.shape)}".encode())
    return digest.hexdigest()


def _check_dense(model: PreTrainedModel) -> None:
    """Refuse a model whose weights are packed already."""
    quantization = getattr(model.config, "quantization_config", None)
    if quantization is None and not proteus_layers(model):
        return
    method = (
        quantization.get("quant_method")
        if isinstance(quantization, dict)
        else getattr(quantization, "quant_method", "proteus")
    )
    method = str(getattr(method, "value", method))
    packed = [
        name
        for name, module in linear_modules(model).items()
        if not linear_weight(module).is_floating_point()
    ]
    # A GGUF that transformers has dequantized is an ordinary model with a mark on it.
    if method == "gguf" and not packed and linear_modules(model):
        return
    raise InputError(
        f"the model is quantized already ({method}): load the original weights, or call model.dequantize() "
        "first"
    )
