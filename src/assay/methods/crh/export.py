"""Cylinders for other tools: control vectors of llama.cpp and repeng, objects of steering-vectors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError, MissingDependencyError, require
from assay.files import replacing
from assay.methods.crh.cylinder import Cylinder

ARCHITECTURE = "controlvector"
_DIRECTION = re.compile(r"direction\.(\d+)")


@dataclass(frozen=True)
class ControlVector:
    """What a GGUF control vector holds.

    Attributes:
        directions: by block, counted from 0: the vector that is added to that block's output.
        model_hint: the architecture of the model that it is for.
    """

    directions: Mapping[int, Float[np.ndarray, " width"]]
    model_hint: str

    def check(self, model_hint: str, width: int, depth: int) -> None:
        """Raise `InputError` when the vector does not fit a model.

        Args:
            model_hint: the model's type.
            width: of its residual stream.
            depth: its number of blocks.
        """
        if self.model_hint != model_hint:
            raise InputError(f"the control vector is for a model of type {self.model_hint}, not {model_hint}")
        for layer, vector in self.directions.items():
            if len(vector) != width:
                raise InputError(f"the control vector has width {len(vector)}, the model {width}")
            if layer >= depth:
                raise InputError(f"the control vector is for block {layer}; the model has {depth} blocks")


def default_strength(cylinder: Cylinder) -> float:
    """The recommended strength where strengths were measured, else the length of the mean difference."""
    if cylinder.strengths is None:
        return cylinder.axis_norm
    return cylinder.recommend_strength().strength()


def write_gguf(cylinder: Cylinder, path: Path | str, *, strength: float | None = None) -> None:
    """Write a control vector for llama.cpp (`--control-vector`), ollama and repeng.

    `direction.N` is added to the output of block N, counted from 0, in both: repeng numbers blocks so, and
    llama.cpp puts `direction.N` at place N - 1 of a buffer that begins with block 1. There is no direction
    for block 0. The vector already has its strength, so the scale to use is 1.

    Args:
        strength: the length of the vector; `default_strength` when None.

    Raises:
        InputError: the cylinder lives at block 0, has no model type, or `strength` is not finite.
        MissingDependencyError: gguf is not installed.
    """
    gguf: Any = require("gguf", extra="lm")
    if cylinder.layer < 1:
        raise InputError("a GGUF control vector cannot address block 0; fit at a later layer")
    hint = cylinder.facts.get("model_type")
    if not hint:
        raise InputError("the cylinder does not say which type of model it is for (facts['model_type'])")
    length = default_strength(cylinder) if strength is None else strength
    if not np.isfinite(length):
        raise InputError(f"the strength must be finite, got {length}")
    with replacing(path) as temporary:
        writer = gguf.GGUFWriter(temporary, ARCHITECTURE)
        writer.add_string(f"{ARCHITECTURE}.model_hint", str(hint))
        writer.add_uint32(f"{ARCHITECTURE}.layer_count", 1)
        # Keys of our own, which other readers pass over: site and operation are not part of the format.
        writer.add_string("assay.crh.site", "block_output")
        writer.add_string("assay.crh.operation", "add")
        writer.add_string("assay.crh.concept", str(cylinder.facts.get("concept", "")))
        writer.add_float32("assay.crh.strength", length)
        vector = (length * cylinder.axis).to(torch.float32).numpy()
        writer.add_tensor(f"direction.{cylinder.layer}", np.ascontiguousarray(vector))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def read_gguf(path: Path | str) -> ControlVector:
    """Read a control vector, of ours or of another tool.

    Raises:
        InputError: the file is no control vector, or has a direction for block 0.
        MissingDependencyError: gguf is not installed.
    """
    gguf: Any = require("gguf", extra="lm")
    source = Path(path)
    if not source.is_file():
        raise InputError(f"{source} does not exist")
    try:
        reader = gguf.GGUFReader(source)
        kind = _text(reader, "general.architecture")
        hint = _text(reader, f"{ARCHITECTURE}.model_hint")
        tensors = {tensor.name: np.array(tensor.data, dtype=np.float32) for tensor in reader.tensors}
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise InputError(f"{source} is no GGUF control vector: {error}") from None
    if kind != ARCHITECTURE:
        raise InputError(f"{source} holds {kind!r}, not a control vector")
    directions = {}
    for name, values in tensors.items():
        match = _DIRECTION.fullmatch(name)
        if match is None or int(match.group(1)) < 1 or values.ndim != 1:
            raise InputError(f"{source} has the tensor {name!r}; a control vector has 1-D direction.1, ...")
        directions[int(match.group(1))] = values
    if not directions:
        raise InputError(f"{source} holds no directions")
    return ControlVector(directions, hint)


def _text(reader: Any, key: str) -> str:
    return bytes(reader.fields[key].parts[-1]).decode("utf-8")


def to_steering_vector(cylinder: Cylinder, *, strength: float | None = None) -> Any:
    """The axis as a `steering_vectors.SteeringVector`, to be applied with multiplier 1.

    Its layers are counted from 0 and `decoder_block` is the output of a block, as here.

    Raises:
        MissingDependencyError: steering-vectors is not installed.
    """
    try:
        import steering_vectors  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{error.name} is not installed; get it with: pip install steering-vectors"
        ) from error
    length = default_strength(cylinder) if strength is None else strength
    vector = (length * cylinder.axis).to(torch.float32)
    return steering_vectors.SteeringVector(
        layer_activations={cylinder.layer: vector}, layer_type="decoder_block"
    )


def from_steering_vector(vector: Any) -> dict[int, Float[Tensor, " width"]]:
    """The vectors of a `steering_vectors.SteeringVector`, by block, for use with `steer`.

    Raises:
        InputError: it does not act on the output of blocks.
    """
    if getattr(vector, "layer_type", None) != "decoder_block":
        raise InputError(
            f"the steering vector acts on {getattr(vector, 'layer_type', None)!r}; only vectors for the "
            "output of blocks ('decoder_block') can be used"
        )
    return {int(layer): values.detach().float() for layer, values in vector.layer_activations.items()}


def write_safetensors(cylinder: Cylinder, path: Path | str, *, strength: float | None = None) -> None:
    """Write the ready-made vector as `steering_vector`, its facts in the header as text.

    Raises:
        InputError: `strength` is not finite.
    """
    from safetensors.torch import save_file

    length = default_strength(cylinder) if strength is None else strength
    if not np.isfinite(length):
        raise InputError(f"the strength must be finite, got {length}")
    facts = {
        "layer": str(cylinder.layer),
        "site": "block_output",
        "operation": "add",
        "strength": repr(length),
        "model_type": str(cylinder.facts.get("model_type", "")),
        "concept": str(cylinder.facts.get("concept", "")),
    }
    with replacing(path) as temporary:
        save_file({"steering_vector": (length * cylinder.axis).to(torch.float32)}, temporary, metadata=facts)


def write_layers(cylinder: Cylinder, path: Path | str, *, strength: float | None = None) -> None:
    """Write what `steering_vectors.SteeringVector` is made of: an array for each block, named by its number.

    Raises:
        InputError: `strength` is not finite.
    """
    from safetensors.torch import save_file

    length = default_strength(cylinder) if strength is None else strength
    if not np.isfinite(length):
        raise InputError(f"the strength must be finite, got {length}")
    vector = (length * cylinder.axis).to(torch.float32)
    with replacing(path) as temporary:
        save_file({str(cylinder.layer): vector}, temporary, metadata={"layer_type": "decoder_block"})
