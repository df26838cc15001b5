"""Compositions (shares of a whole) through their square roots on the sphere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from assay.methods.desi.spaces.sphere import Sphere
from assay.methods.desi.spaces.validation import as_points, refuse

if TYPE_CHECKING:
    from torch import Tensor

# How negative rounding may make a part, beside the sum of the parts.
NEGATIVE_TOLERANCE = 1e-8

_ORTHANT = Sphere(positive=True)


@dataclass(frozen=True)
class Composition:
    """Compositions (non-negative parts that sum to one) with the angle between their square roots as
    distance.

    The square root maps the simplex onto the positive orthant of the unit sphere, where means are taken;
    points and predictions are compositions. The distance is the Bhattacharyya angle, half the Fisher-Rao
    distance. Parts may be zero.
    """

    name = "composition"

    def check(self, Y: Any) -> Float[np.ndarray, "n d"]:
        """Compositions that sum to one; rows with another positive sum (counts, percentages) are divided by
        it.

        Raises:
            InputError: a negative part, a row that sums to zero, or a NaN; the message names the row and the
                value.
        """
        points = as_points(Y, 1, "compositions")
        total = points.sum(axis=1)
        least = points.min(axis=1)
        refuse(
            least < -NEGATIVE_TOLERANCE * np.abs(total),
            least,
            "compositions: row {row} has the negative part {value:.3g}",
        )
        refuse(
            total <= 0.0,
            total,
            "compositions: row {row} sums to {value:.3g}; at least one part must be positive",
        )
        return self.project(points)

    def distance(
        self, A: Float[np.ndarray, "*batch d"], B: Float[np.ndarray, "*batch d"]
    ) -> Float[np.ndarray, "*batch"]:
        """Angles in radians, at most pi / 2, broadcast over the leading axes."""
        return _ORTHANT.distance(np.sqrt(A), np.sqrt(B))

    def pairwise(self, A: Float[np.ndarray, "m d"], B: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """Angles between every composition of `A` and every composition of `B`."""
        return _ORTHANT.pairwise(np.sqrt(A), np.sqrt(B))

    def embed(self, Y: Float[np.ndarray, "n d"]) -> None:
        """None: the space is curved."""
        return

    def mean(
        self,
        Y: Float[np.ndarray, "n d"],
        weights: Float[np.ndarray, "m n"],
        init: Float[np.ndarray, "m d"] | None = None,
    ) -> Float[np.ndarray, "m d"]:
        """Weighted Fréchet means, as compositions; see `Sphere.mean`."""
        start = None if init is None else np.sqrt(init)
        return self.project(np.square(_ORTHANT.mean(np.sqrt(Y), weights, start)))

    def project(self, Y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m d"]:
        """Negative parts set to zero, then every row divided by its sum.

        Raises:
            InputError: a row without a positive part.
        """
        points = np.maximum(np.asarray(Y, dtype=np.float64), 0.0)
        total = points.sum(axis=-1, keepdims=True)
        empty = total.reshape(-1) <= 0.0
        refuse(empty, total.reshape(-1), "compositions: row {row} has no positive part")
        return np.where(np.abs(total - 1.0) <= 4.0 * np.finfo(np.float64).eps, points, points / total)

    def loss(
        self, Y: Float[Tensor, "n d"], weights: Float[Tensor, "m n"], targets: Float[Tensor, "m d"]
    ) -> Float[Tensor, " m"]:
        """Squared angles from the targets to the weighted means, differentiable in `weights`."""
        return _ORTHANT.loss(Y.sqrt(), weights, targets.sqrt())

    def spec(self) -> dict[str, Any]:
        """`{"name": "composition"}`."""
        return {"name": self.name}
