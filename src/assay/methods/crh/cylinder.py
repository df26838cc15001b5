"""The cylinder of a concept: its axis, the normal plane in which samples differ, and coordinates in both."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.crh.directions import (
    ZERO,
    held_out_rank,
    mean_difference,
    principal_direction,
    probe_direction,
    singular_basis,
)
from assay.methods.crh.extraction import DifferenceSet
from assay.methods.crh.pairs import PairsError
from assay.methods.crh.strength import Recommendation, Strengths, recommend

Axis = Literal["diffmean", "pca", "probe"]
LARGEST_RANK = 32
# Below this mean cosine between differences and their mean, there is no axis to speak of.
USABLE = 0.02


@dataclass(frozen=True)
class Coordinates:
    """A vector seen from the cylinder. `z**2 + r**2` is its squared length.

    Attributes:
        z: along the axis.
        r: the length of everything orthogonal to the axis.
        theta: the angle to the axis, in radians.
        plane: the coordinates in the fitted plane.
        remainder: what neither axis nor plane hold.
    """

    z: Float[Tensor, "*rows"]
    r: Float[Tensor, "*rows"]
    theta: Float[Tensor, "*rows"]
    plane: Float[Tensor, "*rows rank"]
    remainder: Float[Tensor, "*rows width"]


@dataclass(frozen=True)
class SampleGeometry:
    """How the differences of samples lie to the axis (paper's code).

    Attributes:
        cosine, sine: of the angle between difference and mean difference; a negative cosine means that the
            sample's own direction pushes against the concept.
        normal: the unit vector of the part orthogonal to the axis; zero where there is none.
        length: the length of the difference over that of the mean difference.
        on_axis: samples without a normal part.
    """

    cosine: Float[Tensor, " n"]
    sine: Float[Tensor, " n"]
    normal: Float[Tensor, "n width"]
    length: Float[Tensor, " n"]
    on_axis: Tensor


@dataclass(frozen=True)
class Cylinder:
    """What a concept's differences have in common, at one layer. Vectors are float64.

    Attributes:
        axis: unit vector; along it the concept grows.
        mean_diff: the mean difference; its length is the unit in which strengths are best understood.
        basis: orthonormal right-singular vectors of the residuals, orthogonal to the axis.
        singular: their singular values.
        rank: how many of them make up the plane.
        n_train: pairs that it was fitted to.
        layer: the block, counted from 0, at whose output it lives.
        mean_cosine: between differences and the mean difference.
        strengths: minimal strengths of calibration samples, when they were measured.
        facts: what a reader needs to use it rightly: model, template, position, seed, concept and so on.
    """

    axis: Float[Tensor, " width"]
    mean_diff: Float[Tensor, " width"]
    basis: Float[Tensor, "components width"]
    singular: Float[Tensor, " components"]
    rank: int
    n_train: int
    layer: int
    mean_cosine: float
    strengths: Strengths | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def axis_norm(self) -> float:
        """The length of the mean difference."""
        return float(self.mean_diff.norm())

    @property
    def width(self) -> int:
        """The width of the model's residual stream."""
        return len(self.axis)

    @property
    def plane(self) -> Float[Tensor, "rank width"]:
        """The basis of the fitted plane."""
        return self.basis[: self.rank]

    @property
    def usable(self) -> bool:
        """Whether the differences agree on a direction at all."""
        return self.mean_cosine >= USABLE

    def decompose(self, vectors: Float[Tensor, "*rows width"]) -> Coordinates:
        """Cylindrical coordinates of vectors; `compose` is the exact inverse.

        Raises:
            InputError: the vectors have another width.
        """
        rows = self._checked(vectors)
        z = rows @ self.axis
        normal = rows - z.unsqueeze(-1) * self.axis
        plane = normal @ self.plane.T
        r = normal.norm(dim=-1)
        return Coordinates(z, r, torch.atan2(r, z), plane, normal - plane @ self.plane)

    def compose(
        self,
        z: Float[Tensor, "*rows"],
        plane: Float[Tensor, "*rows rank"],
        remainder: Float[Tensor, "*rows width"] | None = None,
    ) -> Float[Tensor, "*rows width"]:
        """The vectors with given coordinates.

        Args:
            z: along the axis.
            plane: in the fitted plane.
            remainder: what lies outside both; nothing by default.
        """
        vectors = torch.as_tensor(z).double().unsqueeze(-1) * self.axis + plane.double() @ self.plane
        return vectors if remainder is None else vectors + remainder.double()

    def geometry(self, differences: Float[Tensor, "n width"]) -> SampleGeometry:
        """Angles and normals of sample differences (paper's code, section 2 of its algorithm).

        Raises:
            InputError: the differences have another width, or one of them is zero.
        """
        rows = self._checked(differences)
        lengths = rows.norm(dim=1)
        if bool((lengths == 0).any()):
            raise InputError(f"difference {int(lengths.argmin())} has length zero and hence no angle")
        cosine = (rows @ self.mean_diff / (lengths * self.axis_norm)).clamp(-1, 1)
        residual = rows - (rows @ self.axis).unsqueeze(1) * self.axis
        size = residual.norm(dim=1)
        on_axis = size <= ZERO * lengths
        normal = torch.where(on_axis.unsqueeze(1), 0.0, residual / size.clamp(min=1e-300).unsqueeze(1))
        sine = (1 - cosine.square()).clamp(min=0).sqrt()
        return SampleGeometry(cosine, sine, normal, lengths / self.axis_norm, on_axis)

    def penalised(
        self, difference: Float[Tensor, " width"], strength: float, penalty: float
    ) -> Float[Tensor, " width"]:
        """`s [cos(theta) axis + (1 - p) sin(theta) normal]`: the sample's direction, its normal part shrunk.

        Without a penalty it has length `strength`; with p = 1 it lies on the axis (paper's penalty
            experiment).
        """
        sample = self.geometry(difference.unsqueeze(0))
        along = self.axis * sample.cosine[0]
        return strength * (along + (1 - penalty) * sample.sine[0] * sample.normal[0])

    def frame(
        self, difference: Float[Tensor, " width"] | None = None
    ) -> tuple[Float[Tensor, " width"], Float[Tensor, " width"]]:
        """Two orthonormal vectors that span the plane in which sectors are counted.

        With a sample's difference, the first is the sample's own normal and the second the leading direction
        of the training residuals orthogonal to it; its sign is that of the first basis vector's projection.
        That needs the response with the concept, so it is an oracle. Without, both come from the fitted plane
        alone, as they must at deployment.

        Raises:
            InputError: the residuals span no plane, or the sample lies on the axis.
        """
        if difference is None:
            if len(self.basis) < 2:
                raise InputError(f"the residuals span {len(self.basis)} directions; a plane needs 2")
            return self.basis[0], self.basis[1]
        sample = self.geometry(difference.unsqueeze(0))
        if bool(sample.on_axis[0]):
            raise InputError("the sample's difference lies on the axis, so it has no normal of its own")
        first = sample.normal[0]
        rows = self.basis * self.singular.unsqueeze(1)
        left = rows - (rows @ first).unsqueeze(1) * first
        values, vectors = singular_basis(left)
        if len(values) == 0 or float(values[0]) <= 1e-7 * float(self.singular[0]):
            raise InputError("the residuals have one direction only, so they span no plane of sectors")
        second = vectors[0]
        reference = max((float(second @ row) for row in self.basis[:2]), key=abs)
        return first, -second if reference < 0 else second

    def sector_directions(
        self,
        frame: tuple[Float[Tensor, " width"], Float[Tensor, " width"]],
        tilt: float,
        angles: Float[Tensor, " sectors"],
    ) -> Float[Tensor, "sectors width"]:
        """Unit vectors `cos(tilt) axis + sin(tilt) (cos(phi) e1 + sin(phi) e2)`.

        Args:
            frame: `(e1, e2)` as `frame` returns them.
            tilt: from the axis, in radians.
            angles: phi, in radians.
        """
        first, second = frame
        angles = angles.double().unsqueeze(1)
        return math.cos(tilt) * self.axis + math.sin(tilt) * (
            torch.cos(angles) * first + torch.sin(angles) * second
        )

    def with_strengths(self, strengths: Strengths) -> Cylinder:
        """The same cylinder with measured minimal strengths."""
        return replace(self, strengths=strengths)

    def recommend_strength(self, coverage: float = 0.9) -> Recommendation:
        """How far to push along the axis for a new prompt (see `recommend`).

        Raises:
            InputError: no strengths were measured.
        """
        if self.strengths is None:
            raise InputError("no minimal strengths were measured; fit with calibration pairs")
        return recommend(self.strengths, coverage)

    def _checked(self, vectors: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        if vectors.shape[-1] != self.width:
            raise InputError(
                f"vectors of width {vectors.shape[-1]} do not fit a cylinder of width {self.width}"
            )
        return vectors.detach().cpu().double()


def fit_cylinder(
    differences: DifferenceSet,
    layer: int | None = None,
    rank: int | None = None,
    axis: Axis = "diffmean",
    *,
    seed: int = 0,
    facts: dict[str, Any] | None = None,
) -> Cylinder:
    """Fit axis and normal plane to the differences of training pairs.

    Args:
        differences: of pairs of one concept.
        layer: which of its layers; may be left out where there is one.
        rank: of the plane; chosen by held-out likelihood when None (see `held_out_rank`).
        axis: the mean difference, the first principal direction of the raw differences, or a logistic probe.
        seed: of the folds that choose the rank.
        facts: kept with the cylinder.

    Raises:
        InputError: the layer is unclear or was not read, or the axis has length zero.
        PairsError: there are fewer than three different pairs.
    """
    if layer is None:
        if len(differences.layers) != 1:
            raise InputError(f"name one of the layers {', '.join(map(str, differences.layers))}")
        layer = differences.layers[0]
    present, absent = differences.at(layer)
    rows = present - absent
    distinct = len(torch.unique(rows, dim=0))
    if distinct < 1 + (len(rows) > 1) and float(rows.norm()) == 0:
        raise PairsError("with and without the concept the activations are the same; there is no axis")
    if len(rows) < 3:
        raise PairsError(f"a cylinder needs at least 3 distinct pairs (got {len(rows)})")
    mean = mean_difference(present, absent)
    direction = _axis(axis, present, absent, mean)
    residuals = rows - (rows @ direction).unsqueeze(1) * direction
    limit = min(len(rows) - 1, rows.shape[1] - 1)
    singular, basis = _residual_basis(residuals, rows, direction, max(LARGEST_RANK, rank or 0), limit)
    chosen = _rank(rank, residuals, len(singular), limit, seed)
    lengths = rows.norm(dim=1).clamp(min=1e-300)
    cosine = float((rows @ mean / (lengths * mean.norm())).mean())
    if cosine < USABLE:
        warnings.warn(
            f"the differences hardly agree on a direction (mean cosine {cosine:.3f}): no usable axis",
            stacklevel=2,
        )
    own = {
        "axis": axis,
        "template": differences.template,
        "position": differences.position,
        "concept": differences.concepts[0],
        "seed": seed,
    }
    return Cylinder(
        direction, mean, basis, singular, chosen, len(rows), layer, cosine, None, own | (facts or {})
    )


def _axis(name: Axis, present: Tensor, absent: Tensor, mean: Tensor) -> Float[Tensor, " width"]:
    if name == "diffmean":
        return mean / mean.norm()
    if name == "pca":
        return principal_direction(present - absent)
    if name == "probe":
        return probe_direction(present, absent)
    raise InputError(f"axis {name!r} is not known; use diffmean, pca or probe")


def _residual_basis(
    residuals: Tensor, rows: Tensor, axis: Tensor, largest: int, limit: int
) -> tuple[Float[Tensor, " components"], Float[Tensor, "components width"]]:
    """Leading singular directions of the residuals that are more than rounding, orthogonal to the axis."""
    if float(residuals.norm()) <= 1e-9 * float(rows.norm()):
        return residuals.new_zeros(0), residuals.new_zeros(0, residuals.shape[1])
    singular, basis = singular_basis(residuals)
    kept = min(len(singular), largest, limit)
    basis = basis[:kept] - (basis[:kept] @ axis).unsqueeze(1) * axis
    # A second pass of Gram-Schmidt: products with the axis must vanish to rounding for exact inverses.
    return singular[:kept], torch.linalg.qr(basis.T)[0].T * _signs(basis)


def _signs(basis: Float[Tensor, "components width"]) -> Float[Tensor, "components 1"]:
    """What undoes the signs that a QR decomposition of almost orthonormal rows gives them."""
    orthonormal = torch.linalg.qr(basis.T)[0].T
    return torch.where((orthonormal * basis).sum(dim=1, keepdim=True) < 0, -1.0, 1.0).double()


def _rank(rank: int | None, residuals: Tensor, available: int, limit: int, seed: int) -> int:
    if rank is None:
        # Sectors need a plane, so two directions are kept where there are two.
        return min(available, max(2, held_out_rank(residuals, min(available, LARGEST_RANK), seed=seed)))
    if rank < 0:
        raise InputError(f"rank must be 0 or more, got {rank}")
    if rank > available:
        warnings.warn(
            f"rank {rank} was asked for, but {len(residuals)} pairs span {available} directions (at most "
            f"{limit}); the rank is {available}",
            stacklevel=3,
        )
    return min(rank, available)
