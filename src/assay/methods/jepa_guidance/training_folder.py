"""The folder that a training leaves: a model that its library loads, and `training.json` beside it.

While the training lasts there is only `checkpoint/`; the finished folder replaces it in one step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.errors import InputError
from assay.files import as_json, replacing_folder, write_json
from assay.methods.jepa_guidance.training_loop import CHECKPOINT

RECORD = "training.json"


def identity_of(kind: str, training: Any, seed: int, *tensors: Tensor | None, **facts: Any) -> dict[str, Any]:
    """What makes a training this training: settings, seed, and the data's checksum, as JSON values.

    Args:
        kind: "encoder" or "generator".
        training: the settings, a dataclass.
        seed: of the training.
        tensors: the data.
        facts: further settings.
    """
    settings: dict[str, Any] = {}
    for name, value in vars(training).items():
        settings |= vars(value) if name == "optimisation" else {name: value}
    # How often checkpoints are written, and how many processes read, changes no result.
    for name in ("checkpoint_every", "workers"):
        settings.pop(name, None)
    settings = {name: vars(value) if is_dataclass(value) else value for name, value in settings.items()}
    return as_json({"kind": kind, **settings, **facts, "seed": seed, "data": _checksum(tensors)})


def _checksum(tensors: tuple[Tensor | None, ...]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor is None:
            digest.update(b"none")
            continue
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        for rows in tensor.split(256):
            digest.update(rows.contiguous().view(torch.uint8).numpy().tobytes() if rows.numel() else b"")
    return digest.hexdigest()[:16]


def already_trained(out: Path, identity: Mapping[str, Any]) -> bool:
    """Whether `out` holds the result of this very training; False when it is free or holds its checkpoint.

    Raises:
        InputError: the folder holds something else.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: name a folder")
    if not out.is_dir() or not (inside := {path.name for path in out.iterdir()}):
        return False
    if (out / RECORD).is_file():
        try:
            stored = json.loads((out / RECORD).read_text(encoding="utf-8"))["identity"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{out / RECORD} is damaged: choose another folder") from None
        if stored == dict(identity):
            return True
        differing = sorted(name for name in {*stored, *identity} if stored.get(name) != identity.get(name))
        raise InputError(
            f"{out} holds a model trained with another {', '.join(differing)}: choose another folder"
        )
    # A write that was killed leaves a hidden folder beside the checkpoint.
    if all(name == CHECKPOINT or name.startswith(f".{CHECKPOINT}-") for name in inside):
        return False
    raise InputError(f"{out} is not empty and holds no training of assay: choose another folder")


@contextmanager
def finished_folder(out: Path, record: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the folder to save the model in; it becomes `out`, with the record, when the block succeeds.

    Args:
        out: the final folder.
        record: the content of `training.json`.
    """
    with replacing_folder(out) as folder:
        yield folder
        write_json(folder / RECORD, as_json(dict(record)))
