"""Distributions on the real line with the 2-Wasserstein distance."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist

from assay.errors import InputError
from assay.methods.desi.projection import monotone_with_pullback, project_monotone
from assay.methods.desi.spaces.validation import as_points, as_weights, refuse

if TYPE_CHECKING:
    from torch import Tensor

# A quantile function may decrease, and may leave the box, by this much of its range before that counts as an
# error.
MONOTONE_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Wasserstein1D:
    """Distributions on R as quantile functions at the levels k / (grid_size + 1), k = 1, ..., grid_size.

    On the line the 2-Wasserstein distance is the L2 distance of quantile functions, so the weighted Fréchet
    mean is the weighted mean of the quantile functions projected onto the monotone ones (Petersen and Müller
    2019). The functions `quantiles_from_...` turn samples, histograms and densities into quantiles.

    Args:
        grid_size: number of levels.
        lower: least value of the support, None for no bound.
        upper: largest value of the support, None for no bound.
        strict: refuse quantile functions that decrease, instead of projecting them with a warning.
    """

    grid_size: int = 100
    lower: float | None = None
    upper: float | None = None
    strict: bool = False

    name = "wasserstein"

    def __post_init__(self) -> None:
        if int(self.grid_size) != self.grid_size or self.grid_size < 1:
            raise InputError(f"grid_size is {self.grid_size}; it must be a whole number >= 1")
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise InputError(f"lower is {self.lower} and upper {self.upper}; lower must be less than upper")

    @property
    def levels(self) -> Float[np.ndarray, " grid_size"]:
        """The probabilities at which the quantile functions are known."""
        return np.arange(1, self.grid_size + 1) / (self.grid_size + 1)

    def check(self, Y: Any) -> Float[np.ndarray, "n grid_size"]:
        """Validated quantile functions; those that decrease are projected with a warning unless `strict`.

        Raises:
            InputError: another number of levels, a NaN, a value outside [lower, upper], or, with `strict`, a
                quantile function that decreases.
        """
        points = as_points(Y, 1, "quantile functions")
        if points.shape[1] != self.grid_size:
            raise InputError(
                f"quantile functions have {points.shape[1]} levels but the space has {self.grid_size}: use "
                f"Wasserstein1D(grid_size={points.shape[1]}), or quantiles_from_quantiles to resample"
            )
        slack = MONOTONE_TOLERANCE * np.abs(points).max(axis=1)
        if self.lower is not None:
            least = points.min(axis=1)
            message = f"quantile functions: row {{row}} reaches {{value:.6g}}, below lower={self.lower}"
            refuse(least < self.lower - slack, least, message + "; clip it or widen the support")
        if self.upper is not None:
            largest = points.max(axis=1)
            message = f"quantile functions: row {{row}} reaches {{value:.6g}}, above upper={self.upper}"
            refuse(largest > self.upper + slack, largest, message + "; clip it or widen the support")
        if self.grid_size > 1:
            drop = -np.diff(points, axis=1).min(axis=1)
            bad = drop > slack
            if self.strict:
                message = (
                    "quantile functions: row {row} decreases by {value:.3g}; sort it, or pass strict=False"
                )
                refuse(bad, drop, message + " to project it onto the monotone functions")
            if bad.any():
                row = int(np.argmax(bad))
                warnings.warn(
                    f"{int(bad.sum())} of {len(points)} quantile functions decrease (row {row} by "
                    f"{drop[row]:.3g}); they were projected onto the monotone functions",
                    UserWarning,
                    stacklevel=2,
                )
        return self.project(points)

    def distance(
        self, A: Float[np.ndarray, "*batch grid_size"], B: Float[np.ndarray, "*batch grid_size"]
    ) -> Float[np.ndarray, "*batch"]:
        """2-Wasserstein distances: root of the mean squared difference over the levels."""
        return np.sqrt(np.mean(np.square(A - B), axis=-1))

    def pairwise(
        self, A: Float[np.ndarray, "m grid_size"], B: Float[np.ndarray, "n grid_size"]
    ) -> Float[np.ndarray, "m n"]:
        """Distances between every distribution of `A` and every distribution of `B`."""
        return cdist(A, B) / np.sqrt(self.grid_size)

    def embed(self, Y: Float[np.ndarray, "n grid_size"]) -> Float[np.ndarray, "n grid_size"]:
        """The quantiles divided by the root of their number."""
        return np.asarray(Y, dtype=np.float64) / np.sqrt(self.grid_size)

    def mean(
        self,
        Y: Float[np.ndarray, "n grid_size"],
        weights: Float[np.ndarray, "m n"],
        init: Float[np.ndarray, "m grid_size"] | None = None,
    ) -> Float[np.ndarray, "m grid_size"]:
        """Weighted barycentres; `init` is not needed."""
        return self.project(as_weights(weights, len(Y)) @ Y)

    def project(self, Y: Float[np.ndarray, "m grid_size"]) -> Float[np.ndarray, "m grid_size"]:
        """The nearest quantile functions of distributions on [lower, upper].

        Clipping the isotonic fit is the projection onto the monotone sequences within the bounds.
        """
        return np.clip(project_monotone(Y), self.lower, self.upper)

    def loss(
        self,
        Y: Float[Tensor, "n grid_size"],
        weights: Float[Tensor, "m n"],
        targets: Float[Tensor, "m grid_size"],
    ) -> Float[Tensor, " m"]:
        """Squared distances from the targets to the barycentres, with the projection's exact derivative."""
        from assay.methods.desi.spaces.autograd import differentiable, normalised

        quantiles = differentiable(monotone_with_pullback, normalised(weights) @ Y)
        if self.lower is not None or self.upper is not None:
            quantiles = quantiles.clamp(self.lower, self.upper)
        return (targets - quantiles).square().mean(dim=-1)

    def spec(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": self.name, **asdict(self)}
