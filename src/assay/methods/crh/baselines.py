"""What steering along a cylinder is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.crh.blocks import find_decoder
from assay.methods.crh.cylinder import Cylinder
from assay.methods.crh.directions import (
    mean_difference,
    principal_direction,
    probe_direction,
    random_direction,
)
from assay.methods.crh.extraction import DifferenceSet
from assay.methods.crh.steering import Position, editing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DIRECTIONS = ("diffmean", "pca", "probe", "random", "other concept")


def baseline_directions(
    differences: DifferenceSet, layer: int, *, other: Cylinder | None = None, seed: int = 0
) -> dict[str, Float[Tensor, " width"]]:
    """Unit directions of the usual methods, by name.

    Args:
        differences: of the training pairs.
        layer: at which layer.
        other: a cylinder of another concept, at that layer, as a control.
        seed: of the random direction.

    Raises:
        InputError: `other` lives at another layer or width.
    """
    present, absent = differences.at(layer)
    mean = mean_difference(present, absent)
    found = {
        "diffmean": mean / mean.norm(),
        "pca": principal_direction(present - absent),
        "probe": probe_direction(present, absent),
        "random": random_direction(present.shape[1], seed),
    }
    if other is not None:
        if other.layer != layer or other.width != present.shape[1]:
            raise InputError(
                f"the other cylinder lives at layer {other.layer} of width {other.width}, not at "
                f"layer {layer} of width {present.shape[1]}"
            )
        found["other concept"] = other.axis
    return found


def instructed(question: str, instruction: str) -> str:
    """The question with the concept asked for in words: what steering can hardly beat."""
    return f"{question}\n\n{instruction}"


def rotation_plane(
    differences: Float[Tensor, "n width"],
) -> tuple[Float[Tensor, " width"], Float[Tensor, " width"]]:
    """The plane of angular steering: the mean difference and the first principal direction beside it.

    (Angular Steering, arXiv 2510.26243, where the second direction is the first principal component of the
    directions at all layers; one layer has only its own differences.)

    Raises:
        InputError: the differences lie on one line.
    """
    rows = differences.double()
    mean = rows.mean(dim=0)
    if float(mean.norm()) == 0:
        raise InputError("the mean difference has length zero, so there is no plane to rotate in")
    first = mean / mean.norm()
    residual = rows - (rows @ first).unsqueeze(1) * first
    if float(residual.norm()) <= 1e-9 * float(rows.norm()):
        raise InputError("the differences lie on one line, so there is no plane to rotate in")
    second = principal_direction(residual)
    second = second - (second @ first) * first
    return first, second / second.norm()


@contextmanager
def angular_steer(
    model: PreTrainedModel,
    plane: Sequence[Float[Tensor, " width"]],
    angle: float,
    layer: int,
    *,
    position: Position = "all",
    adaptive: bool = False,
) -> Iterator[None]:
    """Turn the part of the residual stream that lies in a plane to a given angle; its length is kept.

    Args:
        plane: two orthonormal vectors; an angle of zero points along the first.
        angle: in degrees.
        layer: the block, counted from 0, whose output is turned.
        position: see `steer`.
        adaptive: turn only tokens that point along the first vector already (the paper's adaptive variant).

    Raises:
        InputError: the vectors are not orthonormal or have another width than the model.
    """
    decoder = find_decoder(model)
    first, second = (vector.double() for vector in plane)
    if len(first) != decoder.width or len(second) != decoder.width:
        raise InputError(f"a plane of width {len(first)} does not fit a model of width {decoder.width}")
    gram = torch.stack([first, second]) @ torch.stack([first, second]).T
    if not torch.allclose(gram, torch.eye(2, dtype=gram.dtype), atol=1e-5):
        raise InputError("the two vectors of the plane must be orthonormal")
    turned = math.cos(math.radians(angle)) * first + math.sin(math.radians(angle)) * second

    def rotate(hidden: Tensor, selected: Tensor) -> Tensor:
        basis = torch.stack([first, second]).to(
            hidden.device, torch.promote_types(hidden.dtype, torch.float32)
        )
        states = hidden.to(basis.dtype)
        inside = states @ basis.T
        length = inside.norm(dim=-1, keepdim=True)
        moved = states - inside @ basis + length * turned.to(basis)
        chosen = selected & (inside[..., 0] > 0) if adaptive else selected
        return torch.where(chosen.unsqueeze(-1), moved, states)

    with editing(model, decoder, layer, rotate, position=position):
        yield
