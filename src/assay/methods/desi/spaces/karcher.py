"""Weighted Fréchet means on curved spaces, and their derivative with respect to the weights.

The mean is found by descent on o -> sum_i w_i d^2(Y_i, o) / 2. The unit step along its negative gradient is
the Karcher fixed point o <- Exp_o(sum_i w_i Log_o(Y_i)), Newton's method in a flat space; where a space knows
its curvature it gives the Newton direction itself. Negative weights can make either overshoot, so a step that
does not decrease the objective is halved. The derivative comes from the implicit-function theorem at the
optimum, never from unrolled iterations: with R_i = Log_o(Y_i) the optimum solves sum_i w_i R_i = 0, so
do/dw_i = H^-1 R_i with the Riemannian Hessian H of the objective.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.desi.spaces.validation import as_weights

if TYPE_CHECKING:
    from torch import Tensor

MAX_ITERATIONS = 200
MAX_DAMPED_ITERATIONS = 200
DAMPED_STEP = 0.2
MIN_STEP = 1e-9
# The descent stops at a gradient norm of this much of the spread of the points ...
GRADIENT_TOLERANCE = 1e-11
# ... and a point at which rounding keeps it from getting there counts as a mean up to this norm.
ACCEPTED_RESIDUAL = 1e-7
# Below this relative gradient norm a smaller gradient is progress, whatever the objective says.
NEAR_OPTIMUM = 1e-3
# Added to the squared spread of the points where distances have no unit: points closer than 1e-3 are held to
# an absolute tolerance, because equal points have no spread to be relative to.
LEAST_SPREAD = 1e-6
# Floats that the logarithms of one block of means may take: 4 MiB, which stay in the processor's cache.
BLOCK_FLOATS = 524_288


class Descent(NamedTuple):
    """The state of the weighted objective at m points."""

    direction: Float[np.ndarray, "m ..."]
    """Where to go: the negative gradient sum_i w_i Log_o(Y_i), or the Newton direction."""
    slope: Float[np.ndarray, " m"]
    """The decrease of the objective along it, per unit step."""
    norm: Float[np.ndarray, " m"]
    """The norm of the gradient."""
    objective: Float[np.ndarray, " m"]
    """sum_i w_i d^2(Y_i, o) / 2."""
    scale: Float[np.ndarray, " m"]
    """Size of the terms of the objective, a positive squared distance; rounding errors go with it."""


class Geometry(Protocol):
    """What the descent needs to know of a space."""

    def start(self, Y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """First guesses of the m means."""
        ...

    def evaluate(self, Y: np.ndarray, points: np.ndarray, weights: np.ndarray) -> Descent:
        """The objective and its gradient at m points, point j under row j of the weights."""
        ...

    def exponential(self, points: np.ndarray, tangent: np.ndarray) -> np.ndarray:
        """Exp_o(tangent), or another retraction, for every point; not finite where the vector is too long."""
        ...

    def weight_gradient(
        self, Y: np.ndarray, points: np.ndarray, weights: np.ndarray, targets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """d^2(target_j, point_j), shape (m,), and its derivative (m, n) in weights that sum to one.

        Point j is the mean under row j of the weights, and moves with them.
        """
        ...


def karcher_mean(
    geometry: Geometry,
    Y: Float[np.ndarray, "n ..."],
    weights: Float[np.ndarray, "m n"],
    init: Float[np.ndarray, "m ..."] | None = None,
) -> Float[np.ndarray, "m ..."]:
    """The weighted Fréchet mean of `Y` for every row of weights.

    A row on which the descent fails, twice, has its negative weights set to zero (a Nadaraya-Watson mean)
    with a warning.

    Raises:
        InputError: malformed weights, or no convergence with weights >= 0; the message holds the residual.
    """
    weights = as_weights(weights, len(Y))
    means = np.empty((len(weights), *Y.shape[1:]))
    for rows in _blocks(len(weights), Y.size):
        start = None if init is None else init[rows]
        means[rows], _ = _means(geometry, Y, weights[rows], start)
    return means


def karcher_loss(
    geometry: Geometry,
    Y: Float[Tensor, "n ..."],
    weights: Float[Tensor, "m n"],
    targets: Float[Tensor, "m ..."],
) -> Float[Tensor, " m"]:
    """d^2(target_j, mean(Y, weights_j)), differentiable in `weights` only; rows with a NaN give NaN."""
    from assay.methods.desi.spaces.autograd import differentiable, normalised

    points = Y.detach().cpu().double().numpy()
    aims = targets.detach().cpu().double().numpy()

    def evaluate(array: np.ndarray) -> tuple[np.ndarray, Any]:
        loss = np.full(len(array), np.nan)
        gradient = np.full(array.shape, np.nan)
        usable = np.flatnonzero(np.isfinite(array).all(axis=1))
        for block in _blocks(len(usable), points.size):
            rows = usable[block]
            means, effective = _means(geometry, points, array[rows], None)
            loss[rows], slope = geometry.weight_gradient(points, means, effective, aims[rows])
            # Negative weights that were set to zero have no influence; the others were divided by their sum.
            lost = (array[rows] < 0.0) & (effective == 0.0)
            total = np.where(lost, 0.0, array[rows]).sum(axis=1, keepdims=True)
            gradient[rows] = np.where(lost, 0.0, slope / total)
        return loss, lambda incoming: incoming[:, None] * gradient

    return differentiable(evaluate, normalised(weights))


def _blocks(m: int, floats_per_mean: int) -> Iterator[slice]:
    size = max(1, BLOCK_FLOATS // max(1, floats_per_mean))
    for first in range(0, m, size):
        yield slice(first, first + size)


def _means(
    geometry: Geometry, Y: np.ndarray, weights: np.ndarray, init: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Means and the weights that they belong to."""
    # Overflow in a step that is too long shows as a point that is not finite, and the step is halved.
    with np.errstate(all="ignore"):
        points = geometry.start(Y, weights) if init is None else np.array(init, dtype=np.float64)
        points, residual = _converge(geometry, Y, weights, points)
        failed = ~(residual <= ACCEPTED_RESIDUAL)
        clipped = failed & (weights < 0.0).any(axis=1)
        if clipped.any():
            warnings.warn(
                f"the weighted Fréchet mean did not converge for {int(clipped.sum())} rows of {len(weights)} "
                f"(relative residual up to {np.nanmax(residual[clipped], initial=0.0):.3g}); their negative "
                "weights were set to zero. A larger bandwidth makes the weights milder",
                UserWarning,
                stacklevel=4,
            )
            milder = np.maximum(weights[clipped], 0.0)
            milder /= milder.sum(axis=1, keepdims=True)
            weights = weights.copy()
            weights[clipped] = milder
            points[clipped], residual[clipped] = _converge(geometry, Y, milder, geometry.start(Y, milder))
            failed = ~(residual <= ACCEPTED_RESIDUAL)
    if failed.any():
        raise InputError(
            f"a weighted Fréchet mean did not converge (relative residual {residual[failed][0]:.3g} after "
            "a damped retry): the points are too far apart, or too close to singular, for this metric; drop "
            "the extreme ones, or choose a metric with a closed form (for SPD matrices, log-cholesky)"
        )
    return points, weights


def _converge(
    geometry: Geometry, Y: np.ndarray, weights: np.ndarray, points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    points, residual = _descend(geometry, Y, weights, points, 1.0, MAX_ITERATIONS)
    again = ~(residual <= ACCEPTED_RESIDUAL)
    if again.any():
        start = geometry.start(Y, weights[again])
        points[again], residual[again] = _descend(
            geometry, Y, weights[again], start, DAMPED_STEP, MAX_DAMPED_ITERATIONS
        )
    return points, residual


def _descend(
    geometry: Geometry,
    Y: np.ndarray,
    weights: np.ndarray,
    points: np.ndarray,
    longest_step: float,
    iterations: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Descent with backtracking from `points`; the points reached and their relative residuals."""
    points = points.copy()
    state = Descent(*map(np.array, geometry.evaluate(Y, points, weights)))
    direction, slope, norm, objective, scale = state
    step = np.full(len(points), longest_step)
    axes = (...,) + (None,) * (points.ndim - 1)
    for _ in range(iterations):
        unfinished = (norm > GRADIENT_TOLERANCE * np.sqrt(scale)) & (step >= MIN_STEP)
        rows = np.flatnonzero(unfinished)
        if not rows.size:
            break
        candidate = geometry.exponential(points[rows], step[rows][axes] * direction[rows])
        finite = np.isfinite(candidate).reshape(len(rows), -1).all(axis=1)
        candidate[~finite] = points[rows[~finite]]
        trial = geometry.evaluate(Y, candidate, weights[rows])
        change = objective[rows] - trial.objective
        lower = change >= np.maximum(1e-4 * step[rows] * slope[rows], 1e-14 * scale[rows])
        # Near the optimum the objective drowns in rounding errors long before its gradient does.
        near = norm[rows] <= NEAR_OPTIMUM * np.sqrt(scale[rows])
        flatter = near & (trial.norm <= 0.9 * norm[rows]) & (np.abs(change) <= NEAR_OPTIMUM**2 * scale[rows])
        accepted = finite & np.isfinite(trial.norm) & (lower | flatter)
        good = rows[accepted]
        points[good] = candidate[accepted]
        for part, new in zip(state, trial, strict=True):
            part[good] = new[accepted]
        step[good] = np.minimum(longest_step, 2.0 * step[good])
        # Close to the optimum, a rejected step means that rounding allows no further progress.
        stalled = norm[rows] <= 0.1 * ACCEPTED_RESIDUAL * np.sqrt(scale[rows])
        step[rows[~accepted]] *= np.where(stalled, 0.0, 0.5)[~accepted]
    return points, norm / np.sqrt(scale)
