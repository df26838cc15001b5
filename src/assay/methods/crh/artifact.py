"""Cylinders on disk: arrays as safetensors, facts as JSON. Reading runs no code."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay.cache import content_hash
from assay.errors import InputError
from assay.files import as_json, replacing, write_json
from assay.methods.crh.cylinder import Cylinder
from assay.methods.crh.strength import Strengths

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCHEMA = 1
TENSORS, FACTS = "cylinder.safetensors", "cylinder.json"
_VOLATILE = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}


def model_fingerprint(model: PreTrainedModel) -> str:
    """A hash of a model's configuration, by which a cylinder recognises the model that it was fitted to."""
    facts = {key: value for key, value in model.config.to_dict().items() if key not in _VOLATILE}
    return content_hash(json.loads(json.dumps(as_json(facts), default=str)))


def save_cylinder(cylinder: Cylinder, folder: Path | str) -> None:
    """Write `cylinder.safetensors` and `cylinder.json` into a folder.

    The facts name site and operation, so that a reader need not guess: the vector is *added* to the *output
    of block* `layer`, counted from 0.
    """
    from safetensors.torch import save_file

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    tensors = {
        "axis": cylinder.axis,
        "mean_diff": cylinder.mean_diff,
        "basis": cylinder.basis,
        "singular": cylinder.singular,
    }
    if cylinder.strengths is not None:
        tensors["strengths"] = torch.from_numpy(np.asarray(cylinder.strengths.values, dtype=float))
        tensors["censored"] = torch.from_numpy(np.asarray(cylinder.strengths.censored, dtype=np.uint8))
    with replacing(target / TENSORS) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        digest = _sha256(temporary)
    write_json(
        target / FACTS,
        {
            "schema": SCHEMA,
            "site": "block_output",
            "operation": "add",
            "layer": cylinder.layer,
            "rank": cylinder.rank,
            "n_train": cylinder.n_train,
            "mean_cosine": cylinder.mean_cosine,
            "axis_norm": cylinder.axis_norm,
            "width": cylinder.width,
            "strengths": None if cylinder.strengths is None else _strength_facts(cylinder.strengths),
            "facts": as_json(cylinder.facts),
            "sha256": digest,
        },
    )


def load_cylinder(folder: Path | str) -> Cylinder:
    """Read a cylinder that `save_cylinder` wrote.

    Raises:
        InputError: the folder holds none, or it is damaged or of a later version.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    source = Path(folder)
    if not (source / FACTS).is_file():
        raise InputError(f"{source} holds no cylinder ({FACTS}); make one with: assay crh fit")
    try:
        facts: dict[str, Any] = json.loads((source / FACTS).read_text(encoding="utf-8"))
        if facts["schema"] != SCHEMA:
            raise InputError(f"{source} has schema {facts['schema']}; this version reads {SCHEMA}")
        if facts["sha256"] != _sha256(source / TENSORS):
            raise InputError(f"{source / TENSORS} is not what {FACTS} describes; fit the cylinder again")
        tensors = load_file(source / TENSORS)
        strengths = None
        if "strengths" in tensors:
            about = facts["strengths"]
            strengths = Strengths(
                tensors["strengths"].numpy(),
                tensors["censored"].numpy().astype(bool),
                float(about["s_max"]),
                about["outcome"],
                *(tuple(map(float, about[name])) for name in ("grid", "success", "corrupted")),
            )
        cylinder = Cylinder(
            *(tensors[name].double() for name in ("axis", "mean_diff", "basis", "singular")),
            rank=int(facts["rank"]),
            n_train=int(facts["n_train"]),
            layer=int(facts["layer"]),
            mean_cosine=float(facts["mean_cosine"]),
            strengths=strengths,
            facts=dict(facts["facts"]),
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(f"{source} holds no readable cylinder: {type(error).__name__} {error}") from None
    _check(cylinder, source)
    return cylinder


def _check(cylinder: Cylinder, source: Path) -> None:
    width = cylinder.width
    fits = (
        cylinder.axis.dim() == 1
        and cylinder.mean_diff.shape == (width,)
        and cylinder.basis.dim() == 2
        and cylinder.basis.shape == (len(cylinder.singular), width)
        and 0 <= cylinder.rank <= len(cylinder.basis)
    )
    if not fits:
        raise InputError(f"the arrays of {source} do not fit each other")
    arrays = (cylinder.axis, cylinder.mean_diff, cylinder.basis, cylinder.singular)
    if not all(bool(torch.isfinite(array).all()) for array in arrays):
        raise InputError(f"the arrays of {source} hold NaN or infinity")
    if not math.isclose(float(cylinder.axis.norm()), 1.0, abs_tol=1e-4):
        raise InputError(f"the axis of {source} is not a unit vector")


def _strength_facts(strengths: Strengths) -> dict[str, Any]:
    return {
        "s_max": strengths.s_max,
        "outcome": strengths.outcome,
        "grid": list(strengths.grid),
        "success": list(strengths.success),
        "corrupted": list(strengths.corrupted),
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
