"""Ridge regression in a ball: the learner whose stability can be certified for heavy-tailed labels.

Unconstrained ridge has no envelope in the two swapped rows alone, because its coefficients, and with them the
gradient at a row, grow with all labels. In a ball they do not.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.errors import InputError
from assay.methods.lp_stability.replace_one import Perturbed, RidgeFits

MAX_NEWTON_STEPS = 100


class BallRidge(RegressorMixin, BaseEstimator):
    """Linear regression without intercept: min ||y - Xw||^2 + alpha ||w||^2 subject to ||w|| <= radius.

    With alpha = lambda m this is the mean squared loss (halved) plus lambda ||w||^2 / 2. For an intercept
    that the guarantee covers append a constant column, which counts in ||x||.

    Args:
        alpha: weight of the penalty, positive; as in `sklearn.linear_model.Ridge` it doesn't grow with the
            number of rows.
        radius: of the ball, positive.

    Attributes:
        coef_: coefficients.
        multiplier_: of the constraint: how much it adds to alpha; zero where the ball is not reached.
    """

    def __init__(self, alpha: float = 1.0, radius: float = 1.0) -> None:
        self.alpha = alpha
        self.radius = radius

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to predictors `X` (m, d) and labels `y` (m,).

        Raises:
            InputError: `alpha` or `radius` is not a positive number.
            ValueError: X or y is invalid, as everywhere in scikit-learn.
        """
        for name in ("alpha", "radius"):
            value = getattr(self, name)
            if not (isinstance(value, Real) and 0 < float(value) < np.inf):
                raise InputError(f"{name} is {value!r}: pass a positive number")
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = y.astype(np.float64)
        coefficients, multipliers = ball_coefficients(
            (X.T @ X)[None], (X.T @ y)[None], self.alpha, self.radius
        )
        self.coef_, self.multiplier_ = coefficients[0], float(multipliers[0])
        return self

    def predict(self, X: Any) -> Float[np.ndarray, " N"]:
        """Predictions `X @ coef_`."""
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False) @ self.coef_

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        # The default ball is small and there is no intercept: good fits need data on that scale.
        tags.regressor_tags.poor_score = True
        return tags


def ball_coefficients(
    grams: Float[np.ndarray, "K d d"], moments: Float[np.ndarray, "K d"], alpha: float, radius: float
) -> tuple[Float[np.ndarray, "K d"], Float[np.ndarray, " K"]]:
    """Solutions of K ridge problems in a ball, and the multipliers of the constraint.

    In the eigenbasis of X'X the solution is c / (eigenvalue + alpha + mu). The secular equation 1/||w(mu)|| =
    1/radius is solved by Newton's method: its left side is concave in mu, so the iterates rise to the root
    from mu = 0.

    Args:
        grams: X'X of every problem.
        moments: X'y of every problem.
    """
    values, vectors = np.linalg.eigh(grams)
    values = np.maximum(values, 0.0) + alpha
    rotated = np.einsum("kde,kd->ke", vectors, moments)
    multipliers = np.zeros(len(grams))
    for _ in range(MAX_NEWTON_STEPS):
        shifted = values + multipliers[:, None]
        solution = rotated / shifted
        norm = np.linalg.norm(solution, axis=1)
        outside = norm > radius * (1 + 1e-14)
        if not outside.any():
            break
        slope = (solution**2 / shifted).sum(1)
        step = np.divide(norm**2 * (norm - radius), slope * radius, out=np.zeros_like(norm), where=outside)
        multipliers = multipliers + step
    # The last rounding error must not leave the ball: the envelope counts on it.
    solution *= np.minimum(1.0, radius / np.maximum(norm, radius))[:, None]
    return np.einsum("kde,ke->kd", vectors, solution), multipliers


class BallRidgeFits:
    """`BallRidge` under replacements: ridge by rank-two updates, and a d x d eigenproblem where that leaves
    the ball."""

    name = "ridge in a ball (Woodbury and secular equation)"

    def __init__(
        self,
        X: Float[np.ndarray, "m d"],
        y: Float[np.ndarray, " m"],
        points: Float[np.ndarray, "N d"],
        *,
        alpha: float,
        radius: float,
    ) -> None:
        self._X, self._y, self._points, self._alpha, self._radius = X, y, points, alpha, radius
        self._gram, self._moment = X.T @ X, X.T @ y
        self._ridge = RidgeFits(X, y, points[:0], alpha=alpha, fit_intercept=False)
        self.coefficients = ball_coefficients(self._gram[None], self._moment[None], alpha, radius)[0][0]
        self.predictions = points @ self.coefficients

    def replace(
        self, rows: Int[np.ndarray, " K"], X_new: Float[np.ndarray, "K d"], y_new: Float[np.ndarray, " K"]
    ) -> Perturbed:
        free = self._ridge.replaced_coefficients(rows, X_new, y_new)
        coefficients = self._into_ball(free, rows, X_new, y_new)
        at_new = np.einsum("kd,kd->k", X_new, coefficients)
        return Perturbed(coefficients @ self._points.T, at_new, np.zeros(len(rows), dtype=bool))

    def leave_out(self, rows: Int[np.ndarray, " K"]) -> Perturbed:
        coefficients = self._left_out(rows)
        nothing = np.full(len(rows), np.nan)
        return Perturbed(coefficients @ self._points.T, nothing, np.zeros(len(rows), dtype=bool))

    def leave_one_out(self) -> Float[np.ndarray, " m"]:
        return np.einsum("md,md->m", self._X, self._left_out(np.arange(len(self._X))))

    def _left_out(self, rows: Int[np.ndarray, " K"]) -> Float[np.ndarray, "K d"]:
        return self._into_ball(self._ridge.left_out_coefficients(rows), rows, None, None)

    def _into_ball(
        self,
        free: Float[np.ndarray, "K d"],
        rows: Int[np.ndarray, " K"],
        X_new: Float[np.ndarray, "K d"] | None,
        y_new: Float[np.ndarray, " K"] | None,
    ) -> Float[np.ndarray, "K d"]:
        """Replace the solutions that lie outside the ball by those of the constrained problem."""
        result = free.copy()
        outside = np.flatnonzero(np.linalg.norm(free, axis=1) > self._radius)
        size = max(1, 2**22 // free.shape[1] ** 2)
        for start in range(0, len(outside), size):
            part = outside[start : start + size]
            old, labels = self._X[rows[part]], self._y[rows[part]]
            grams = self._gram - old[:, :, None] * old[:, None, :]
            moments = self._moment - old * labels[:, None]
            if X_new is not None and y_new is not None:
                new = X_new[part]
                grams = grams + new[:, :, None] * new[:, None, :]
                moments = moments + new * y_new[part, None]
            result[part] = ball_coefficients(grams, moments, self._alpha, self._radius)[0]
        return result
