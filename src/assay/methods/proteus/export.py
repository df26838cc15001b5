"""Reading checkpoints of packed layers: what is in them, whether it is intact, and as an ordinary model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay.errors import InputError
from assay.files import replacing_folder
from assay.methods.proteus.config import ProteusConfig
from assay.methods.proteus.integration import quiet_saving, read_headers
from assay.methods.proteus.job import MARK
from assay.methods.proteus.report import fingerprint, read_report

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_PARTS = ("qweight", "gen", "affine", "su", "sv", "matrix_in", "matrix_out", "bias")


def load_packed(folder: Path, device: str | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A quantized model and its tokenizer.

    Raises:
        InputError: the folder is not one of ours, or is damaged.
    """
    from assay import lm

    read_config(folder)
    return lm.load(folder, device=device)


def read_config(folder: Path) -> ProteusConfig:
    """The configuration of a checkpoint.

    Raises:
        InputError: the folder is not one of ours, or has another version of the format.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} has no config.json: pass a folder that `assay proteus quantize` wrote")
    try:
        facts = json.loads(path.read_text(encoding="utf-8")).get("quantization_config") or {}
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path} is not JSON ({error}): copy the folder again") from None
    if facts.get("quant_method") != "proteus":
        raise InputError(
            f"{folder} is not quantized by proteus (quant_method {facts.get('quant_method')!r}): pass a "
            "folder that `assay proteus quantize` wrote"
        )
    return ProteusConfig(**facts)


def inspect_checkpoint(folder: Path, *, verify: bool = False) -> dict[str, Any]:
    """What a checkpoint holds, as JSON values.

    Args:
        folder: the checkpoint.
        verify: also read every packed layer, and compare it with the SHA-256 in the report.

    Returns:
        "config"; "modules", each with shape, bytes, bits a weight and, from the report, its errors; "bytes"
        of all files with weights, "packed_bytes" and "packed_weights", "bits_per_weight"; "comparison" with
        the original and "verified", where known.

    Raises:
        InputError: the folder is not one of ours, is incomplete or damaged.
    """
    config = read_config(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no safetensors file: copy the folder again")
    stored = read_headers(files)
    report = read_report(folder) if (folder / MARK).is_file() else {"modules": []}
    known = {module["name"]: module for module in report["modules"]}
    modules = []
    for name in [key.removesuffix(".qweight") for key in stored if key.endswith(".qweight")]:
        shape = [_length(stored, f"{name}.sv"), _length(stored, f"{name}.su")]
        size = sum(_bytes(stored, f"{name}.{part}") for part in _PARTS if part != "bias")
        facts = {
            "name": name,
            "shape": shape,
            "bytes": size,
            "bits_per_weight": 8 * size / (shape[0] * shape[1]),
        }
        modules.append({**known.get(name, {}), **facts})
    if lost := [name for name in known if f"{name}.qweight" not in stored]:
        raise InputError(f"{folder} lacks {lost[0]} and {len(lost) - 1} more modules: copy the folder again")
    if verify:
        _verify(files, known, folder)
    packed = sum(module["bytes"] for module in modules)
    weights = sum(module["shape"][0] * module["shape"][1] for module in modules)
    return {
        "config": config.to_dict(),
        "modules": modules,
        "bytes": sum(file.stat().st_size for file in files),
        "packed_bytes": packed,
        "packed_weights": weights,
        "bits_per_weight": 8 * packed / max(weights, 1),
        "comparison": report.get("comparison"),
        "complaint": report.get("complaint", ""),
        "verified": verify,
    }


def export_dense(folder: Path, out: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a quantized model as an ordinary one, for software without the plug-in.

    Raises:
        InputError: `out` exists, or `folder` is not one of ours or is damaged.
    """
    if out.exists():
        raise InputError(f"{out} exists: name a folder that does not")
    model, tokenizer = load_packed(folder, "cpu")
    dense = model.dequantize(dtype=dtype).to(dtype)  # pyright: ignore[reportCallIssue, reportArgumentType]
    dense.config.dtype = dtype
    with replacing_folder(out) as temporary, quiet_saving():
        dense.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def _verify(files: list[Path], known: dict[str, Any], folder: Path) -> None:
    if not all("sha256" in module for module in known.values()) or not known:
        raise InputError(
            f"{folder} has no checksums: only folders that `assay proteus quantize` wrote have them"
        )
    parts: dict[str, dict[str, Tensor]] = {}
    for name, part, tensor in _packed_tensors(files):
        parts.setdefault(name, {})[part] = tensor
        # Only the tensors of modules that shards cut in two stay in memory.
        if name in known and fingerprint(parts[name]) == known[name]["sha256"]:
            parts[name] = {}
            known = {other: facts for other, facts in known.items() if other != name}
    if known:
        first = next(iter(known))
        raise InputError(
            f"{len(known)} packed modules of {folder} are not what was written, first {first}: "
            "copy the folder again"
        )


def _packed_tensors(files: list[Path]) -> Iterator[tuple[str, str, Tensor]]:
    from safetensors import safe_open

    for file in files:
        with safe_open(file, framework="pt") as tensors:
            names = sorted(tensors.keys())
            for key in names:
                name, _, part = key.rpartition(".")
                if part in _PARTS:
                    yield name, part, tensors.get_tensor(key)


def _length(stored: dict[str, tuple[torch.dtype | None, tuple[int, ...]]], name: str) -> int:
    if name not in stored:
        raise InputError(f"the checkpoint lacks {name}: copy the folder again")
    return stored[name][1][0]


def _bytes(stored: dict[str, tuple[torch.dtype | None, tuple[int, ...]]], name: str) -> int:
    if name not in stored:
        return 0
    dtype, shape = stored[name]
    return (dtype.itemsize if dtype else 0) * int(torch.Size(shape).numel())
