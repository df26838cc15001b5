"""Perturbed fits of any scikit-learn estimator, by fitting again."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from assay.methods.lp_stability.replace_one import Perturbed


def fitted_clone(estimator: Any, X: Float[np.ndarray, "m d"], y: Float[np.ndarray, "m ..."]) -> Any:
    """A clone of a scikit-learn estimator, fitted."""
    from sklearn.base import clone

    unfitted: Any = clone(estimator)
    return unfitted.fit(X, y)


class RefittedFits:
    """Any scikit-learn estimator, fitted again for every perturbation.

    A random estimator is coupled through its `random_state`: every clone starts with the same one.

    Args:
        n_jobs: processes that fit at once, as in scikit-learn.
    """

    name = "refit"

    def __init__(
        self,
        estimator: Any,
        X: Float[np.ndarray, "m d"],
        y: Float[np.ndarray, " m"],
        points: Float[np.ndarray, "N d"],
        *,
        n_jobs: int | None = None,
    ) -> None:
        self._estimator, self._X, self._y, self._points, self._n_jobs = estimator, X, y, points, n_jobs
        self.predictions = self.predictions_again()

    def predictions_again(self) -> Float[np.ndarray, " N"]:
        """Predictions of another fit to the same rows: equal to `predictions` unless fitting is random."""
        fitted = fitted_clone(self._estimator, self._X, self._y)
        return np.asarray(fitted.predict(self._points), dtype=float)

    def replace(
        self, rows: Int[np.ndarray, " K"], X_new: Float[np.ndarray, "K d"], y_new: Float[np.ndarray, " K"]
    ) -> Perturbed:
        return self._all([(int(i), X_new[k], float(y_new[k])) for k, i in enumerate(rows)])

    def leave_out(self, rows: Int[np.ndarray, " K"]) -> Perturbed:
        return self._all([(int(i), None, 0.0) for i in rows])

    def leave_one_out(self) -> None:
        return None

    def _all(self, changes: list[tuple[int, np.ndarray | None, float]]) -> Perturbed:
        from joblib import Parallel, delayed

        results = Parallel(n_jobs=self._n_jobs)(
            delayed(_refitted)(self._estimator, self._X, self._y, self._points, *change) for change in changes
        )
        at_points, at_new, failed = zip(*results, strict=True)
        return Perturbed(np.array(at_points), np.array(at_new), np.array(failed))


def _refitted(
    estimator: Any,
    X: Float[np.ndarray, "m d"],
    y: Float[np.ndarray, " m"],
    points: Float[np.ndarray, "N d"],
    row: int,
    x_new: np.ndarray | None,
    y_new: float,
) -> tuple[Float[np.ndarray, " N"], float, bool]:
    if x_new is None:
        X, y = np.delete(X, row, axis=0), np.delete(y, row)
    else:
        X, y = X.copy(), y.copy()
        X[row], y[row] = x_new, y_new
    try:
        fitted = fitted_clone(estimator, X, y)
        at_points = np.asarray(fitted.predict(points), dtype=float)
        at_new = np.nan if x_new is None else float(fitted.predict(x_new[None])[0])
    except Exception:
        # Whatever a third party's fit raises on an unlucky sample: the caller counts it and stops when it is
        # common.
        return np.full(len(points), np.nan), np.nan, True
    return at_points, at_new, False
