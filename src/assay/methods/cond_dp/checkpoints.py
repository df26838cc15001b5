"""Checkpoints of private training that can be resumed without losing count: JSON and safetensors.

A checkpoint holds the state of the noise generator, from which past and coming noise can be computed: it is
secret, its files are readable by their owner only, and only the model is to be published.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from assay.errors import InputError
from assay.files import replacing_folder

if TYPE_CHECKING:
    from assay.methods.cond_dp.engine import CondPrivacyEngine

FORMAT = "assay.cond_dp.checkpoint"
FORMAT_VERSION = 1


def save_checkpoint(engine: CondPrivacyEngine, folder: Path) -> None:
    """Write everything that continuing needs to `folder`, which is replaced as a whole."""
    inner: Any = getattr(engine.module, "_module", engine.module)
    numbers, moments = _flattened(engine.optimizer.original_optimizer.state_dict())
    tensors = {f"model.{name}": value for name, value in inner.state_dict().items()}
    tensors |= {f"optimizer.{name}": value for name, value in moments.items()}
    tensors |= {f"generator.{name}": g.get_state() for name, g in _generators(engine).items()}
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "adjacency": engine.accountant.adjacency,
        "history": [list(entry) for entry in engine.accountant.history],
        "noise_multiplier": float(engine.optimizer.noise_multiplier),
        "max_grad_norm": float(engine.optimizer.max_grad_norm),
        "optimizer": numbers,
    }
    with replacing_folder(folder) as temporary:
        for name in ("state.safetensors", "state.json"):
            (temporary / name).touch(mode=0o600)
        text = json.dumps(document, indent=2, allow_nan=False)
        (temporary / "state.json").write_text(text + "\n", encoding="utf-8")
        save_file({name: v.detach().cpu().contiguous().clone() for name, v in tensors.items()},
                  temporary / "state.safetensors")  # fmt: skip
        (temporary / "state.safetensors").chmod(0o600)


def load_checkpoint(engine: CondPrivacyEngine, folder: Path) -> None:
    """Continue a run: `engine` has been prepared as at the start of it.

    The count only grows: of the checkpoint's history and the engine's own (its ledger), the longer one holds.
    If the ledger has steps that the checkpoint has not, the noise generator is seeded anew: the same noise on
    another batch would reveal the difference of the two.

    Raises:
        InputError: the checkpoint is missing, damaged, without a history, or of another run.
    """
    document, tensors = _read(folder)
    if document["adjacency"] != engine.accountant.adjacency:
        raise InputError(
            f"{folder} was trained for adjacency {document['adjacency']!r}, not "
            f"{engine.accountant.adjacency!r}"
        )
    inner: Any = getattr(engine.module, "_module", engine.module)
    # Count first: whatever goes wrong afterwards, nothing is forgotten.
    same = engine.adopt_history(checked_history(document["history"], folder))
    try:
        inner.load_state_dict(_with_prefix(tensors, "model."))
        if engine.switched and engine._layer is not None:
            engine._layer.fold()
            _freeze_factor(engine)
        state = _restored(document["optimizer"], _with_prefix(tensors, "optimizer."))
        engine.optimizer.original_optimizer.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} does not fit this model and optimizer: {error}") from error
    engine.optimizer.noise_multiplier = float(document["noise_multiplier"])
    engine.optimizer.max_grad_norm = float(document["max_grad_norm"])
    states = _with_prefix(tensors, "generator.")
    for name, generator in _generators(engine).items():
        # A ledger that is behind belongs to a run without one; only one that is ahead tells of lost steps.
        if name in states and (same or engine.ledger is None):
            generator.set_state(states[name])
        else:
            generator.manual_seed(secrets.randbits(63))


def checked_history(history: Any, path: Path) -> list[tuple[float, float, int]]:
    """The entries of a history that was read from a file.

    Raises:
        InputError: it is not a list of (noise multiplier, sample rate, steps).
    """
    try:
        entries = [(float(sigma), float(rate), int(steps)) for sigma, rate, steps in history]
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} has no readable privacy history: what was spent is unknown") from error
    if any(not (sigma >= 0 and 0 < rate <= 1 and steps >= 1) for sigma, rate, steps in entries):
        raise InputError(f"{path} has a privacy history with impossible entries: what was spent is unknown")
    return entries


def read_ledger(path: Path, adjacency: str) -> list[tuple[float, float, int]]:
    """The history in a ledger.

    Raises:
        InputError: the file is not a ledger, or one for another adjacency.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        history, kept_for = document["history"], document["adjacency"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a privacy ledger: what was spent is unknown") from error
    if kept_for != adjacency:
        raise InputError(f"{path} was kept for adjacency {kept_for!r}, not {adjacency!r}: use another ledger")
    return checked_history(history, path)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        document = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "state.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{folder} is not a checkpoint that can be read: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{folder} is not a checkpoint of CondPrivacyEngine")
    if document.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{folder} has format version {document.get('format_version')!r}, not {FORMAT_VERSION}"
        )
    if "history" not in document:
        raise InputError(f"{folder} has no privacy history: resuming would forget what was spent")
    return document, tensors


def _flattened(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An optimizer's state as JSON values and named tensors."""
    numbers: dict[str, Any] = {"param_groups": state["param_groups"], "state": {}}
    tensors = {}
    for index, entries in state["state"].items():
        numbers["state"][str(index)] = {k: v for k, v in entries.items() if not isinstance(v, Tensor)}
        tensors |= {f"{index}.{k}": v for k, v in entries.items() if isinstance(v, Tensor)}
    return numbers, tensors


def _restored(numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {
        int(index): dict(entries) for index, entries in numbers["state"].items()
    }
    for name, value in tensors.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    groups = [
        # JSON has no tuples, and PyTorch wants one for Adam's betas.
        {key: tuple(value) if key == "betas" else value for key, value in group.items()}
        for group in numbers["param_groups"]
    ]
    return {"state": state, "param_groups": groups}


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _generators(engine: CondPrivacyEngine) -> dict[str, torch.Generator]:
    """The generators of noise and of samples, as far as they are PyTorch's."""
    sampler: Any = engine.data_loader.batch_sampler
    found = {"noise": engine.generator, "sampling": getattr(sampler, "generator", None)}
    return {name: generator for name, generator in found.items() if isinstance(generator, torch.Generator)}


def _freeze_factor(engine: CondPrivacyEngine) -> None:
    """A factor that was folded before the checkpoint is not trained any more."""
    layer = engine._layer
    if layer is None or layer.factor is None:
        return
    layer.factor.factor.requires_grad_(False)
    hooks: Any = engine.module
    if hasattr(hooks, "trainable_parameters"):
        hooks.trainable_parameters = [p for p in hooks.trainable_parameters if p.requires_grad]
