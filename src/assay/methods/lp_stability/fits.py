"""Which shortcut computes the perturbed fits of a scikit-learn estimator."""

from __future__ import annotations

from functools import partial
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.lp_stability.refit import RefittedFits
from assay.methods.lp_stability.replace_one import (
    KernelRidgeFits,
    NeighbourFits,
    Perturbable,
    RidgeFits,
)

Shortcut = Literal["auto", "refit"]
# Minkowski powers of the distances that scikit-learn names.
POWERS = {"euclidean": 2.0, "l2": 2.0, "manhattan": 1.0, "l1": 1.0, "cityblock": 1.0}


def perturbable_fits(
    estimator: Any,
    X: Float[np.ndarray, "m d"],
    y: Float[np.ndarray, " m"],
    points: Float[np.ndarray, "N d"],
    *,
    shortcut: Shortcut = "auto",
    coupled: bool = True,
    n_jobs: int | None = None,
) -> Perturbable:
    """Fit an estimator so that replacing or leaving out a row is cheap where an exact shortcut exists.

    Shortcuts exist for `Ridge`, `KernelRidge`, `KNeighborsRegressor` and `BallRidge` with settings under
    which they have the closed form; everything else is fitted again.

    Args:
        points: where predictions are wanted.
        shortcut: `"refit"` never uses a shortcut.
        coupled: refuse an estimator that gives another model when it is fitted to the same rows again.
        n_jobs: processes for fitting again.

    Raises:
        InputError: `shortcut` is not one of the two, or the estimator is random and `coupled` is true.
    """
    if shortcut not in get_args(Shortcut):
        raise InputError(f"shortcut is {shortcut!r}: choose one of {', '.join(get_args(Shortcut))}")
    if shortcut == "auto":
        try:
            fits = _shortcut(estimator, X, y, points)
        except np.linalg.LinAlgError:
            # Not positive definite in floating point: scikit-learn then solves by another method.
            fits = None
        if fits is not None:
            return fits
    fits = RefittedFits(estimator, X, y, points, n_jobs=n_jobs)
    if coupled and not np.array_equal(fits.predictions, fits.predictions_again()):
        raise InputError(
            f"{type(estimator).__name__} gives another model when it is fitted again: a change would not be "
            "the effect of a swap alone: set its random_state to an integer, or accept the noise "
            "(coupled=False)"
        )
    return fits


def _shortcut(
    estimator: Any,
    X: Float[np.ndarray, "m d"],
    y: Float[np.ndarray, " m"],
    points: Float[np.ndarray, "N d"],
) -> Perturbable | None:
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor

    from assay.methods.lp_stability.ball_ridge import BallRidge, BallRidgeFits

    # A subclass may override anything, so only the classes themselves count.
    kind = type(estimator)
    if kind is Ridge and _plain_ridge(estimator) and X.shape[1] <= 2 * len(X):
        return RidgeFits(X, y, points, alpha=estimator.alpha, fit_intercept=estimator.fit_intercept)
    if kind is BallRidge:
        return BallRidgeFits(X, y, points, alpha=estimator.alpha, radius=estimator.radius)
    if kind is KernelRidge and isinstance(estimator.kernel, str) and estimator.kernel != "precomputed":
        return KernelRidgeFits(X, y, points, kernel=_kernel(estimator), alpha=float(estimator.alpha))
    if kind is KNeighborsRegressor and (power := _power(estimator)) and len(X) >= estimator.n_neighbors:
        return NeighbourFits(
            X, y, points, n_neighbors=estimator.n_neighbors, power=power, weights=estimator.weights
        )
    return None


def _plain_ridge(estimator: Any) -> bool:
    if estimator.positive or estimator.solver in ("sag", "saga", "lsqr", "sparse_cg", "lbfgs"):
        return False
    return isinstance(estimator.alpha, Real) and float(estimator.alpha) > 0


def _kernel(estimator: Any):
    from sklearn.metrics.pairwise import pairwise_kernels

    parameters = {"gamma": estimator.gamma, "degree": estimator.degree, "coef0": estimator.coef0}
    return partial(pairwise_kernels, metric=estimator.kernel, filter_params=True, **parameters)


def _power(estimator: Any) -> float | None:
    """The power of the estimator's Minkowski distance; None where it has another distance or other
    weights."""
    if estimator.metric_params or estimator.weights not in ("uniform", "distance"):
        return None
    if estimator.metric == "minkowski":
        return float(estimator.p)
    return POWERS.get(estimator.metric) if isinstance(estimator.metric, str) else None
