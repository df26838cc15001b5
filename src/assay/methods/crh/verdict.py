"""Can the plane and the sector in which a prompt is sensitive be predicted from difference vectors?

The plane is judged against the exact law of a random direction and against the planes of other concepts, the
sector by held-out predictions with intervals and permutation tests. "Not predictable" comes with the smallest
effect that would have been seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.files import as_json
from assay.methods.crh.cylinder import Cylinder
from assay.methods.crh.margin import ConceptMargin
from assay.methods.crh.plane import PlaneTest, captured_energy, plane_test
from assay.methods.crh.sector_prediction import SectorData, SectorTest, sector_test

# Where the gradient is taken, in mean differences along the axis.
GRADIENT_AT = 0.7
PLANE_LEVEL, PLANE_RATIO = 0.01, 2.0


@dataclass(frozen=True)
class Sensitivity:
    """Gradients of the margin at a point on the axis.

    Attributes:
        normal: the unit vectors of their parts orthogonal to the axis.
        cosine: of the whole gradients with the axis.
        length: of the whole gradients.
    """

    normal: Float[Tensor, "n width"]
    cosine: Float[Tensor, " n"]
    length: Float[Tensor, " n"]


def sensitivity(
    margin: ConceptMargin,
    cylinder: Cylinder,
    samples: Sequence[int],
    *,
    at: float = GRADIENT_AT,
    on_sample: Callable[[int, int], None] = lambda done, total: None,
) -> Sensitivity:
    """The direction, orthogonal to the axis, in which each sample's margin grows fastest.

    Args:
        samples: indices into the margin's pairs.
        at: the point, in mean differences along the axis.

    Raises:
        InputError: a gradient has no part orthogonal to the axis.
    """
    point = (at * cylinder.axis_norm) * cylinder.axis
    gradients = []
    for done, i in enumerate(samples, 1):
        gradients.append(margin.grad(i, point).double())
        on_sample(done, len(samples))
    rows = torch.stack(gradients)
    lengths = rows.norm(dim=1)
    along = rows @ cylinder.axis
    normal = rows - along.unsqueeze(1) * cylinder.axis
    size = normal.norm(dim=1, keepdim=True)
    if bool((size <= 1e-10 * lengths.unsqueeze(1)).any()):
        raise InputError("the margin of a sample does not change off the axis, so it has no sector")
    return Sensitivity(normal / size, along / lengths, lengths)


Kind = Literal["cylinder", "both", "sector only", "neither", "undefined"]


@dataclass(frozen=True)
class PredictabilityReport:
    """The verdict on plane and sector.

    Attributes:
        planes: a test for every rank.
        sector: None where the residuals span no plane.
        own_normal: mean share of the held-out samples' own normals in the plane of the largest rank: how much
            difference vectors have in common, whatever the model is sensitive to.
        gradient_axis_cosine: mean and standard deviation of the cosine of gradient and axis.
        gradient_normal_cosine: the same for gradient and the sample's own normal, orthogonal to the axis.
        n_train, n_test: samples.
        usable_axis: whether the differences agree on a direction.
    """

    planes: tuple[PlaneTest, ...]
    sector: SectorTest | None
    own_normal: float
    gradient_axis_cosine: tuple[float, float]
    gradient_normal_cosine: tuple[float, float]
    n_train: int
    n_test: int
    usable_axis: bool

    @property
    def plane_predictable(self) -> bool | None:
        """Whether a rank has more than twice the energy of chance, at p < 0.01 over all ranks.

        None where no plane was tested.
        """
        if not self.planes:
            return None
        level = PLANE_LEVEL / len(self.planes)
        return any(test.p_value < level and test.ratio > PLANE_RATIO for test in self.planes)

    @property
    def sector_predictable(self) -> bool | None:
        """Whether a predictor's interval lies above zero; None where none was tested."""
        return None if self.sector is None else self.sector.predictable

    @property
    def kind(self) -> Kind:
        """Which combination was seen; `"cylinder"` (plane, not sector) is what the paper claims."""
        if self.plane_predictable is None or self.sector_predictable is None:
            return "undefined"
        if self.plane_predictable:
            return "both" if self.sector_predictable else "cylinder"
        return "sector only" if self.sector_predictable else "neither"

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON values."""
        verdict = {
            "kind": self.kind,
            "plane_predictable": self.plane_predictable,
            "sector_predictable": self.sector_predictable,
        }
        return as_json(verdict | asdict(self))


def predictability(
    cylinder: Cylinder,
    margin: ConceptMargin,
    differences: Float[Tensor, "n width"],
    train: Sequence[int],
    test: Sequence[int],
    *,
    ks: Sequence[int] = (2, 4, 8, 16),
    others: Mapping[str, Float[Tensor, "components width"]] | None = None,
    n_perm: int = 999,
    seed: int = 0,
    on_sample: Callable[[int, int], None] = lambda done, total: None,
) -> PredictabilityReport:
    """Test whether the plane and the sector of held-out samples can be predicted.

    Args:
        cylinder: fitted to the training samples.
        margin: over all samples.
        differences: of all samples, at the cylinder's layer.
        train, test: indices; no sample may be in both.
        ks: ranks of the plane; those above the number of directions are left out.
        others: bases of other concepts' cylinders.
        n_perm: permutations.
        seed: of permutations.
        on_sample: called after every gradient.

    Raises:
        InputError: training and held-out samples overlap, or there are fewer than two of the latter.
    """
    if overlap := set(train) & set(test):
        raise InputError(f"samples {sorted(overlap)[:5]} are both training and held-out samples")
    if len(test) < 2:
        raise InputError(f"{len(test)} held-out samples are too few; at least 2 are needed")
    samples = [*train, *test]
    gradients = sensitivity(margin, cylinder, samples, on_sample=on_sample)
    held_out = slice(len(train), None)
    geometry = cylinder.geometry(differences[list(test)])
    normal_cosine = (gradients.normal[held_out] * geometry.normal).sum(dim=1)
    ranks = sorted({k for k in ks if 1 <= k <= len(cylinder.basis)})
    planes = tuple(
        plane_test(gradients.normal[held_out], cylinder.basis, k, others, seed=seed) for k in ranks
    )
    own = captured_energy(geometry.normal, cylinder.basis[: ranks[-1]]).mean() if ranks else math.nan
    sector = None
    if len(cylinder.basis) >= 2:
        data = sector_data(cylinder, differences[samples], gradients.normal, ["concept"] * len(samples))
        sector = sector_test(
            data.subset(range(len(train))),
            data.subset(range(len(train), len(samples))),
            n_perm=n_perm,
            seed=seed,
        )
    return PredictabilityReport(
        planes,
        sector,
        float(own),
        _mean_and_deviation(gradients.cosine[held_out]),
        _mean_and_deviation(normal_cosine),
        len(train),
        len(test),
        cylinder.usable,
    )


def sector_data(
    cylinder: Cylinder,
    differences: Float[Tensor, "n width"],
    normals: Float[Tensor, "n width"],
    groups: Sequence[Hashable],
    *,
    shared: bool = False,
) -> SectorData:
    """The sector of each sample's sensitivity, and what may predict it.

    Args:
        differences: of the samples.
        normals: the unit vectors of `sensitivity`.
        groups: the concept of each sample.
        shared: count angles in the plane of the first two basis vectors instead of from each sample's own
            normal. The latter is the paper's frame.

    Raises:
        InputError: the residuals span no plane.
    """
    phases = []
    for difference, normal in zip(differences, normals, strict=True):
        first, second = cylinder.frame(None if shared else difference)
        phases.append(math.atan2(float(normal @ second), float(normal @ first)))
    rows = differences.double()
    geometry = cylinder.geometry(rows)
    coordinates = cylinder.decompose(rows).plane
    features = torch.cat(
        [coordinates, geometry.length.unsqueeze(1), geometry.cosine.unsqueeze(1)], dim=1
    ).numpy()
    unit = (rows / rows.norm(dim=1, keepdim=True)).numpy()
    return SectorData(np.array(phases), unit, features, tuple(groups))


def _mean_and_deviation(values: Float[Tensor, " n"]) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) if len(values) > 1 else math.nan
