"""How far predictions are from responses, in any metric space."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from assay.methods.desi.spaces.space import MetricSpace


def frechet_r2(
    space: MetricSpace, Y: Float[np.ndarray, "n ..."], predictions: Float[np.ndarray, "n ..."]
) -> float:
    """The Fréchet coefficient of determination: 1 - sum d^2(Y_i, prediction_i) / sum d^2(Y_i, Fréchet mean of
    Y).

    One for perfect predictions, zero for the Fréchet mean of `Y`. When all responses are equal it is one for
    perfect predictions and zero for all others.
    """
    mean = space.mean(Y, np.full((1, len(Y)), 1 / len(Y)))
    residual = float((space.distance(Y, predictions) ** 2).sum())
    total = float((space.distance(Y, np.broadcast_to(mean, Y.shape)) ** 2).sum())
    # A total at the level of rounding is no variance.
    if total <= 1e-20 * len(Y):
        return 1.0 if residual <= total else 0.0
    return 1 - residual / total


def mpe(
    space: MetricSpace, truth: Float[np.ndarray, "n ..."], predictions: Float[np.ndarray, "n ..."]
) -> float:
    """Mean prediction error: the mean distance to the true conditional Fréchet mean, which only simulations
    know.
    """
    return float(space.distance(truth, predictions).mean())


def mspe(space: MetricSpace, Y: Float[np.ndarray, "n ..."], predictions: Float[np.ndarray, "n ..."]) -> float:
    """Mean squared prediction error: the mean squared distance to held-out responses."""
    return float((space.distance(Y, predictions) ** 2).mean())


def angle(a: Float[np.ndarray, " p"], b: Float[np.ndarray, " p"]) -> float:
    """The angle between two lines through the origin, in degrees from 0 to 90: a direction has no sign."""
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    # atan2 keeps its accuracy for small angles, where arccos loses half of the digits.
    return float(np.degrees(np.arctan2(np.linalg.norm(a - (a @ b) * b), abs(a @ b))))
