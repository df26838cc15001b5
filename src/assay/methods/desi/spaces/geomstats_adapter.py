"""Spaces of the geomstats library, and any object with the same interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.desi.spaces.karcher import LEAST_SPREAD, Descent, karcher_loss, karcher_mean
from assay.methods.desi.spaces.validation import as_points, refuse

if TYPE_CHECKING:
    from torch import Tensor

# How far from the space a point may be, as `belongs` understands it.
BELONGS_TOLERANCE = 1e-6


def from_geomstats(space: Any) -> GeomstatsSpace:
    """A geomstats space, with the metric that it is equipped with, as a space to regress on.

    Args:
        space: has `shape` (of a point), `belongs(points, atol)`, and a `metric` with `dist`, `exp`, `log` and
            `inner_product`; arrays are NumPy's (the geomstats default backend). `projection(points)` is used
            where it exists.

    Raises:
        InputError: one of them is missing.
    """
    missing = [name for name in ("shape", "belongs", "metric") if not hasattr(space, name)]
    metric = getattr(space, "metric", None)
    missing += [
        f"metric.{name}" for name in ("dist", "exp", "log", "inner_product") if not hasattr(metric, name)
    ]
    if missing:
        raise InputError(
            f"{type(space).__name__} has no {', '.join(missing)}; a geomstats space equipped with a "
            "Riemannian metric is needed (space.equip_with_metric(...))"
        )
    return GeomstatsSpace(space)


class GeomstatsSpace:
    """What `from_geomstats` returns: means are Karcher iterations through `exp` and `log`."""

    def __init__(self, space: Any) -> None:
        self.space = space
        self.shape = tuple(int(size) for size in space.shape)
        self.name = f"geomstats:{type(space).__name__}"

    def __repr__(self) -> str:
        return f"from_geomstats({self.space!r})"

    def check(self, Y: Any) -> Float[np.ndarray, "n ..."]:
        """Finite points that `belongs` accepts.

        Raises:
            InputError: another shape, a NaN, or a point that is not in the space; the message names the row.
        """
        points = as_points(Y, len(self.shape), self.name)
        if points.shape[1:] != self.shape:
            raise InputError(f"{self.name}: points must have shape {self.shape}, not {points.shape[1:]}")
        inside = np.asarray(self.space.belongs(points, atol=BELONGS_TOLERANCE)).reshape(len(points))
        size = np.abs(points).reshape(len(points), -1).max(axis=1)
        refuse(
            ~inside.astype(bool),
            size,
            self.name + ": row {row} (largest entry {value:.3g}) is not in the space; use its projection",
        )
        return points

    def distance(
        self, A: Float[np.ndarray, "*any"], B: Float[np.ndarray, "*any"]
    ) -> Float[np.ndarray, "*batch"]:
        """Geodesic distances, broadcast over the leading axes."""
        A, B = np.broadcast_arrays(A, B)
        batch = A.shape[: A.ndim - len(self.shape)]
        flat = self.space.metric.dist(A.reshape(-1, *self.shape), B.reshape(-1, *self.shape))
        return np.asarray(flat, dtype=np.float64).reshape(batch)

    def pairwise(
        self, A: Float[np.ndarray, "m ..."], B: Float[np.ndarray, "n ..."]
    ) -> Float[np.ndarray, "m n"]:
        """Distances between every point of `A` and every point of `B`."""
        return self.distance(A[:, None], B[None])

    def embed(self, Y: Float[np.ndarray, "n ..."]) -> None:
        """None: nothing is known of Euclidean coordinates."""
        return

    def mean(
        self,
        Y: Float[np.ndarray, "n ..."],
        weights: Float[np.ndarray, "m n"],
        init: Float[np.ndarray, "m ..."] | None = None,
    ) -> Float[np.ndarray, "m ..."]:
        """Weighted Fréchet means; `init` starts the iteration, by default at the point of the largest weight.

        Raises:
            InputError: malformed weights, or no convergence.
        """
        return karcher_mean(self, Y, weights, init)

    def project(self, Y: Float[np.ndarray, "m ..."]) -> Float[np.ndarray, "m ..."]:
        """`space.projection(Y)` where the space has it, else `Y`."""
        if hasattr(self.space, "projection"):
            return np.asarray(self.space.projection(Y), dtype=np.float64)
        return np.asarray(Y, dtype=np.float64)

    def loss(
        self,
        Y: Float[Tensor, "n ..."],
        weights: Float[Tensor, "m n"],
        targets: Float[Tensor, "m ..."],
    ) -> Float[Tensor, " m"]:
        """Squared distances from the targets to the means, differentiable in `weights`.

        The derivative takes the Hessian of a flat space, because the interface has no curvature. It is exact
        for flat spaces, and close where the points lie close together beside the radius of curvature.
        """
        return karcher_loss(self, Y, weights, targets)

    def spec(self) -> dict[str, Any]:
        """Name and shape; such a space cannot be rebuilt from a file and must be passed again."""
        return {"name": "geomstats", "class": type(self.space).__name__, "shape": list(self.shape)}

    # What `karcher_mean` and `karcher_loss` need.

    def start(
        self, Y: Float[np.ndarray, "n ..."], weights: Float[np.ndarray, "m n"]
    ) -> Float[np.ndarray, "m ..."]:
        """The points of the largest weights."""
        return Y[np.argmax(weights, axis=1)].copy()

    def evaluate(
        self,
        Y: Float[np.ndarray, "n ..."],
        points: Float[np.ndarray, "m ..."],
        weights: Float[np.ndarray, "m n"],
    ) -> Descent:
        """The objective and its gradient."""
        logarithms, base = self._logarithms(Y, points)
        squares = self._inner(logarithms, logarithms, base)
        axes = (...,) + (None,) * len(self.shape)
        tangent = (weights[axes] * logarithms).sum(axis=1)
        norm = np.sqrt(
            np.maximum(self._inner(tangent[:, None], tangent[:, None], points[:, None])[:, 0], 0.0)
        )
        return Descent(
            direction=tangent,
            slope=norm**2,
            norm=norm,
            objective=0.5 * (weights * squares).sum(axis=1),
            scale=(np.abs(weights) * squares).sum(axis=1) + LEAST_SPREAD,
        )

    def exponential(
        self, points: Float[np.ndarray, "m ..."], tangent: Float[np.ndarray, "m ..."]
    ) -> Float[np.ndarray, "m ..."]:
        """`metric.exp`."""
        return np.array(self.space.metric.exp(tangent, points), dtype=np.float64).reshape(points.shape)

    def weight_gradient(
        self,
        Y: Float[np.ndarray, "n ..."],
        points: Float[np.ndarray, "m ..."],
        weights: Float[np.ndarray, "m n"],
        targets: Float[np.ndarray, "m ..."],
    ) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m n"]]:
        """Squared distances to the targets, and their derivative with the identity for the Hessian."""
        logarithms, base = self._logarithms(Y, points)
        aim = np.asarray(self.space.metric.log(targets, points), dtype=np.float64).reshape(points.shape)
        aims = np.broadcast_to(aim[:, None], logarithms.shape)
        return np.square(self.distance(targets, points)), -2.0 * self._inner(aims, logarithms, base)

    def _logarithms(self, Y: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log_o(Y_i) for all pairs (m, n), and the base points repeated to the same shape."""
        shape = (len(points), len(Y), *self.shape)
        base = np.broadcast_to(points[:, None], shape)
        ends = np.broadcast_to(Y[None], shape)
        flat = self.space.metric.log(ends.reshape(-1, *self.shape), base.reshape(-1, *self.shape))
        return np.asarray(flat, dtype=np.float64).reshape(shape), base

    def _inner(self, A: np.ndarray, B: np.ndarray, base: np.ndarray) -> np.ndarray:
        flat = self.space.metric.inner_product(*(part.reshape(-1, *self.shape) for part in (A, B, base)))
        return np.asarray(flat, dtype=np.float64).reshape(base.shape[:2])
