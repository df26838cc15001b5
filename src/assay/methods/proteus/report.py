"""What is told about a quantized model: per module, in all, and beside the original."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.errors import InputError
from assay.files import as_json, write_json
from assay.methods.proteus.evaluation import Comparison
from assay.methods.proteus.job import MARK


@dataclass(frozen=True)
class Acceptable:
    """How far a quantized model may be from the original before it is held for broken.

    Attributes:
        perplexity_ratio: largest perplexity on held-out text relative to the original's.
        divergence: largest mean KL(original || quantized), nats a token.
    """

    perplexity_ratio: float = 3.0
    divergence: float = 2.0

    def complaint(self, comparison: Comparison) -> str:
        """What is wrong with a model, in a sentence; empty when it is acceptable."""
        wrong = []
        # Written so that NaN is wrong.
        if not (comparison.ratio or 0.0) <= self.perplexity_ratio:
            wrong.append(
                f"perplexity {comparison.perplexity:.4g} is {comparison.ratio:.3g} times the original's "
                f"({comparison.reference_perplexity:.4g}); {self.perplexity_ratio:g} times is accepted"
            )
        if not (comparison.divergence or 0.0) <= self.divergence:
            wrong.append(
                f"the divergence from the original is {comparison.divergence:.3g} nats a token; "
                f"{self.divergence:g} is accepted"
            )
        return "; ".join(wrong)


@dataclass
class QuantReport:
    """A quantization, as it is written beside the model.

    Attributes:
        config: the checkpoint's configuration.
        calibration: tokens, sequences, texts.
        modules: a record for each quantized module: its `LayerReport`, and the SHA-256 of its stored tensors.
        skipped: linear modules that stayed as they were, with the reason.
        distillation: a record for each stage: where, the loss before and after, epochs, status.
        comparison: scores on held-out text beside the original's; None when there was none.
        folder: where the model was written.
        complaint: why the result is not acceptable; empty when it is.
        seconds: how long it took, without what an earlier, interrupted run had done.
    """

    config: dict[str, Any]
    calibration: dict[str, Any]
    modules: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    distillation: list[dict[str, Any]] = field(default_factory=list)
    comparison: Comparison | None = None
    folder: str = ""
    complaint: str = ""
    seconds: float = 0.0

    @property
    def weights(self) -> int:
        """How many weights were quantized."""
        return sum(module["shape"][0] * module["shape"][1] for module in self.modules)

    @property
    def bits_per_weight(self) -> float:
        """All stored bits of quantized modules by their number of weights."""
        bits = sum(
            module["bits_per_weight"] * module["shape"][0] * module["shape"][1] for module in self.modules
        )
        return bits / max(self.weights, 1)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        facts = asdict(self) | {"weights": self.weights, "bits_per_weight": self.bits_per_weight}
        return as_json(facts)

    def write(self, folder: Path) -> None:
        """Write the report into the folder of the model."""
        write_json(folder / MARK, self.to_json())


def read_report(folder: Path) -> dict[str, Any]:
    """The report beside a model, as JSON values.

    Raises:
        InputError: there is none, or it is damaged.
    """
    path = folder / MARK
    if not path.is_file():
        raise InputError(f"{folder} has no {MARK}: it was not written by `assay proteus quantize`")
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(report["modules"], list):
            return report
    except (ValueError, KeyError, TypeError):
        pass
    raise InputError(f"{path} is damaged: quantize the model again, or remove the file")


def fingerprint(tensors: Mapping[str, Tensor], names: Sequence[str] | None = None) -> str:
    """The SHA-256 of named tensors: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors if names is None else names):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        # As bytes, because NumPy has no bfloat16.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
