"""Unit vectors with the great-circle distance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from assay.methods.desi.spaces.karcher import LEAST_SPREAD, Descent, karcher_loss, karcher_mean
from assay.methods.desi.spaces.spectral import eigenvalues_and_vectors
from assay.methods.desi.spaces.validation import as_points, refuse

if TYPE_CHECKING:
    from torch import Tensor

# How far the norm of a vector may be from one.
UNIT_TOLERANCE = 1e-6
# How negative rounding may make a coordinate on the positive orthant.
NEGATIVE_TOLERANCE = 1e-8
# The length below which a weighted mean has no direction to start from.
LEAST_NORM = 1e-8
# Eigenvalues of the Hessian below this are not curvature to divide by.
LEAST_CURVATURE = 1e-6
# Entries that one block of a distance matrix may take.
BLOCK_FLOATS = 4_194_304


@dataclass(frozen=True)
class Sphere:
    """Unit vectors in R^d with the great-circle distance arccos(a . b).

    Args:
        positive: the points have no negative coordinate, as square roots of compositions have. Means that
            negative weights push out of the orthant are moved to its nearest point.
    """

    positive: bool = True

    name = "sphere"

    def check(self, Y: Any) -> Float[np.ndarray, "n d"]:
        """Validated vectors, scaled to unit length.

        Raises:
            InputError: a norm that differs from one by more than `UNIT_TOLERANCE`, a NaN, or, with
                `positive`, a negative coordinate; the message names the row and the value.
        """
        points = as_points(Y, 1, "unit vectors")
        norm = np.linalg.norm(points, axis=1)
        refuse(
            np.abs(norm - 1.0) > UNIT_TOLERANCE,
            norm,
            "unit vectors: row {row} has norm {value:.9g}; divide every row by its norm",
        )
        if self.positive:
            least = points.min(axis=1)
            refuse(
                least < -NEGATIVE_TOLERANCE,
                least,
                "unit vectors: row {row} has the negative coordinate {value:.3g}; use Sphere(positive=False) "
                "for vectors outside the positive orthant",
            )
        return self.project(points)

    def distance(
        self, A: Float[np.ndarray, "*batch d"], B: Float[np.ndarray, "*batch d"]
    ) -> Float[np.ndarray, "*batch"]:
        """Angles in radians, accurate for near and for opposite vectors, broadcast over the leading axes."""
        return 2.0 * np.arctan2(np.linalg.norm(A - B, axis=-1), np.linalg.norm(A + B, axis=-1))

    def pairwise(self, A: Float[np.ndarray, "m d"], B: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """Angles between every vector of `A` and every vector of `B`."""
        size = max(1, BLOCK_FLOATS // max(1, B.size))
        blocks = [self.distance(A[k : k + size, None], B[None]) for k in range(0, len(A), size)]
        return np.concatenate(blocks) if blocks else np.empty((0, len(B)))

    def embed(self, Y: Float[np.ndarray, "n d"]) -> None:
        """None: the sphere is curved."""
        return

    def mean(
        self,
        Y: Float[np.ndarray, "n d"],
        weights: Float[np.ndarray, "m n"],
        init: Float[np.ndarray, "m d"] | None = None,
    ) -> Float[np.ndarray, "m d"]:
        """Weighted Fréchet means; `init` starts the iteration.

        Raises:
            InputError: malformed weights, or no convergence.
        """
        means = karcher_mean(self, Y, weights, init)
        return self.project(means) if self.positive else means

    def project(self, Y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m d"]:
        """The nearest points of the space.

        Rows are divided by their norm, with `positive` after their negative coordinates are set to zero.

        Raises:
            InputError: a row of zeros, which has no nearest point.
        """
        Y = np.asarray(Y, dtype=np.float64)
        points = Y
        if self.positive:
            points = np.maximum(Y, 0.0)
            # Without a positive coordinate the nearest point of the orthant is its nearest corner.
            lost = ~(points.max(axis=-1) > 0.0)
            if lost.any():
                points[lost] = np.eye(Y.shape[-1])[np.argmax(Y[lost], axis=-1)]
        norm = np.linalg.norm(points, axis=-1, keepdims=True)
        zero = np.linalg.norm(Y, axis=-1).reshape(-1) == 0.0
        refuse(zero, np.zeros(zero.shape), "unit vectors: row {row} is zero and has no direction")
        # A unit vector comes back bit by bit, so that the projection is idempotent.
        return np.where(np.abs(norm - 1.0) <= 2.0 * np.finfo(np.float64).eps, points, points / norm)

    def loss(
        self, Y: Float[Tensor, "n d"], weights: Float[Tensor, "m n"], targets: Float[Tensor, "m d"]
    ) -> Float[Tensor, " m"]:
        """Squared angles from the targets to the weighted means, differentiable in `weights`.

        The derivative comes from the implicit-function theorem at the mean, and passes through the move to
        the positive orthant.
        """
        return karcher_loss(self, Y, weights, targets)

    def spec(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": self.name, **asdict(self)}

    # What `karcher_mean` and `karcher_loss` need.

    def start(
        self, Y: Float[np.ndarray, "n d"], weights: Float[np.ndarray, "m n"]
    ) -> Float[np.ndarray, "m d"]:
        """Directions of the weighted means, or the point of the largest weight where they cancel."""
        means = weights @ Y
        norm = np.linalg.norm(means, axis=1, keepdims=True)
        heaviest = Y[np.argmax(weights, axis=1)]
        return np.where(norm > LEAST_NORM, means / np.where(norm > LEAST_NORM, norm, 1.0), heaviest)

    def evaluate(
        self, Y: Float[np.ndarray, "n d"], points: Float[np.ndarray, "m d"], weights: Float[np.ndarray, "m n"]
    ) -> Descent:
        """The objective and its gradient."""
        logarithms, angles = _logarithms(Y, points)
        gradient = (weights[:, :, None] * logarithms).sum(axis=1)
        direction = _solve_hessian(logarithms, angles, points, weights, gradient)
        squares = np.square(angles)
        return Descent(
            direction=direction,
            slope=(gradient * direction).sum(axis=1),
            norm=np.linalg.norm(gradient, axis=1),
            objective=0.5 * (weights * squares).sum(axis=1),
            scale=(np.abs(weights) * squares).sum(axis=1) + LEAST_SPREAD,
        )

    def exponential(
        self, points: Float[np.ndarray, "m d"], tangent: Float[np.ndarray, "m d"]
    ) -> Float[np.ndarray, "m d"]:
        """cos|v| m + sin|v| v / |v|; not a number for steps beyond the opposite point."""
        length = np.linalg.norm(tangent, axis=1, keepdims=True)
        moved = np.cos(length) * points + np.sinc(length / np.pi) * tangent
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        return np.where(length < np.pi, moved, np.nan)

    def weight_gradient(
        self,
        Y: Float[np.ndarray, "n d"],
        points: Float[np.ndarray, "m d"],
        weights: Float[np.ndarray, "m n"],
        targets: Float[np.ndarray, "m d"],
    ) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m n"]]:
        """Squared angles to the targets, and their derivative by the implicit-function theorem."""
        logarithms, angles = _logarithms(Y, points)
        predictions = self.project(points) if self.positive else points
        gradient = -2.0 * _logarithms(targets[:, None], predictions, paired=True)[0][:, 0]
        if self.positive:
            length = np.linalg.norm(np.maximum(points, 0.0), axis=1, keepdims=True)
            gradient = (points > 0.0) * gradient / np.maximum(length, LEAST_NORM)
        gradient -= (gradient * points).sum(axis=1, keepdims=True) * points
        solved = _solve_hessian(logarithms, angles, points, weights, gradient)
        return np.square(self.distance(targets, predictions)), (logarithms @ solved[:, :, None])[:, :, 0]


def _logarithms(
    Y: np.ndarray, points: Float[np.ndarray, "m d"], paired: bool = False
) -> tuple[Float[np.ndarray, "m n d"], Float[np.ndarray, "m n"]]:
    """Log_m(y) and angles; `paired` gives row j its own Y_j. Zero for opposite points."""
    Y = Y if paired else Y[None]
    cosine = (Y * points[:, None]).sum(axis=-1)
    across = Y - cosine[..., None] * points[:, None]
    sine = np.linalg.norm(across, axis=-1)
    angles = np.arctan2(sine, cosine)
    ratio = np.where(sine > 0.0, angles / np.where(sine > 0.0, sine, 1.0), 1.0)
    return ratio[..., None] * across, angles


def _solve_hessian(
    logarithms: Float[np.ndarray, "m n d"],
    angles: Float[np.ndarray, "m n"],
    points: Float[np.ndarray, "m d"],
    weights: Float[np.ndarray, "m n"],
    right: Float[np.ndarray, "m d"],
) -> Float[np.ndarray, "m d"]:
    """Solve H x = R for tangent vectors, H the Hessian of sum_i w_i d^2(Y_i, .) / 2.

    With v = Log_m(y), t = |v| and the tangent projection P, one term is t cot t P + (1 - t cot t) v v' / t^2.
    Where an eigenvalue is not positive, near the cut locus or under negative weights, it is taken as one.
    """
    small = angles < 1e-3
    safe = np.where(small, 1.0, angles)
    across = np.where(small, 1.0 - angles**2 / 3.0, safe / np.tan(safe))
    along = np.where(small, 1.0 / 3.0 + angles**2 / 45.0, (1.0 - across) / safe**2)
    normal = points[:, :, None] * points[:, None, :]
    hessian = (weights * across).sum(axis=1)[:, None, None] * (np.eye(points.shape[1]) - normal)
    hessian += np.swapaxes(logarithms, 1, 2) @ ((weights * along)[:, :, None] * logarithms)
    values, vectors = eigenvalues_and_vectors(hessian + normal)
    values = np.where(values > LEAST_CURVATURE, values, 1.0)
    coordinates = np.swapaxes(vectors, 1, 2) @ right[:, :, None]
    return (vectors @ (coordinates / values[:, :, None]))[:, :, 0]
