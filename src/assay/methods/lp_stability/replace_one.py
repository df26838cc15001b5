"""What a fit predicts after one training row was replaced or left out, without fitting again.

Each class holds one fit and answers for a batch of perturbations at once; they share the interface
`Perturbable`. `refit.RefittedFits` fits again and is the reference that the shortcuts are tested against.

Notation: m training rows, N points at which predictions are wanted, K perturbations.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

from assay.errors import InputError

# Entries of a temporary array (64 MiB of float64).
BLOCK_ENTRIES = 2**23


class Perturbed(NamedTuple):
    """Predictions of K perturbed fits.

    Args:
        at_points: at the points that were asked for.
        at_new: of the k-th fit at the row that came in; NaN when none did.
        failed: where fitting again raised an error; the predictions are NaN there.
    """

    at_points: Float[np.ndarray, "K N"]
    at_new: Float[np.ndarray, " K"]
    failed: Bool[np.ndarray, " K"]


class Perturbable(Protocol):
    """A fit whose training rows can be replaced or left out one at a time.

    Args:
        name: how the perturbed fits are computed.
        predictions: of the fit itself at the points.
    """

    name: str
    predictions: Float[np.ndarray, " N"]

    def replace(
        self, rows: Int[np.ndarray, " K"], X_new: Float[np.ndarray, "K d"], y_new: Float[np.ndarray, " K"]
    ) -> Perturbed:
        """Replace row `rows[k]` by `(X_new[k], y_new[k])`, each k by itself."""
        ...

    def leave_out(self, rows: Int[np.ndarray, " K"]) -> Perturbed:
        """Leave out row `rows[k]`, each k by itself."""
        ...

    def leave_one_out(self) -> Float[np.ndarray, " m"] | None:
        """The prediction at every training row of the fit without it; None where no shortcut exists."""
        ...


class RidgeFits:
    """Ridge regression, min ||y - Xw - b||^2 + alpha ||w||^2, under rank-two updates
    (Sherman-Morrison-Woodbury).

    With A = X'X + alpha I, replacing row i changes the coefficients by A'^-1 [x' r' - x_i r_i], where r' and
    r_i are the residuals of the old fit at the new and the old row and A' = A + x'x'^T - x_i x_i^T. After one
    Cholesky factorisation a replacement costs O(d^2). The coefficients of an unpenalised intercept are those
    of a column of ones with the penalty zero.
    """

    name = "ridge (Woodbury)"

    def __init__(
        self,
        X: Float[np.ndarray, "m d"],
        y: Float[np.ndarray, " m"],
        points: Float[np.ndarray, "N d"],
        *,
        alpha: float,
        fit_intercept: bool = True,
    ) -> None:
        self._y = y
        # An intercept absorbs any shift of the columns; centred ones keep the factorisation well conditioned.
        self._shift = X.mean(0) if fit_intercept else np.zeros(X.shape[1])
        self._intercept = fit_intercept
        self._rows = self._design(X)
        self._points = self._design(points)
        penalty = np.full(self._rows.shape[1], float(alpha))
        if fit_intercept:
            penalty[-1] = 0.0
        self._factor = cho_factor(self._rows.T @ self._rows + np.diag(penalty), lower=True)
        self.coefficients = cho_solve(self._factor, self._rows.T @ y)
        self.residuals = y - self._rows @ self.coefficients
        self.predictions = self._points @ self.coefficients

    def replaced_coefficients(
        self, rows: Int[np.ndarray, " K"], X_new: Float[np.ndarray, "K d"], y_new: Float[np.ndarray, " K"]
    ) -> Float[np.ndarray, "K c"]:
        """Coefficients after every replacement, for columns shifted by the training mean, the intercept
        last."""
        new, old = self._design(X_new), self._rows[rows]
        residuals = np.stack([y_new - new @ self.coefficients, -self.residuals[rows]], axis=1)
        directions = np.stack([new, old], axis=2)
        solved = cho_solve(self._factor, np.hstack([new.T, old.T]))
        solved = np.stack([solved[:, : len(rows)].T, solved[:, len(rows) :].T], axis=2)
        inner = np.eye(2) + np.array([[1.0], [-1.0]]) * (directions.transpose(0, 2, 1) @ solved)
        change = solved @ np.linalg.solve(inner, residuals[:, :, None])
        return self.coefficients + change[:, :, 0]

    def left_out_coefficients(self, rows: Int[np.ndarray, " K"]) -> Float[np.ndarray, "K c"]:
        """Coefficients without each of the rows."""
        solved = cho_solve(self._factor, self._rows[rows].T).T
        leverage = np.einsum("kc,kc->k", solved, self._rows[rows])
        return self.coefficients - solved * (self.residuals[rows] / (1 - leverage))[:, None]

    def replace(
        self, rows: Int[np.ndarray, " K"], X_new: Float[np.ndarray, "K d"], y_new: Float[np.ndarray, " K"]
    ) -> Perturbed:
        coefficients = self.replaced_coefficients(rows, X_new, y_new)
        return self._perturbed(coefficients, np.einsum("kc,kc->k", self._design(X_new), coefficients))

    def leave_out(self, rows: Int[np.ndarray, " K"]) -> Perturbed:
        return self._perturbed(self.left_out_coefficients(rows), np.full(len(rows), np.nan))

    def leave_one_out(self) -> Float[np.ndarray, " m"]:
        leverage = np.einsum("cm,mc->m", cho_solve(self._factor, self._rows.T), self._rows)
        return self._y - self.residuals / (1 - leverage)

    def _perturbed(
        self, coefficients: Float[np.ndarray, "K c"], at_new: Float[np.ndarray, " K"]
    ) -> Perturbed:
        return Perturbed(coefficients @ self._points.T, at_new, np.zeros(len(coefficients), dtype=bool))

    def _design(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n c"]:
        shifted = X - self._shift
        return np.hstack([shifted, np.ones((len(X), 1))]) if self._intercept else shifted


class KernelRidgeFits:
    """Kernel ridge regression, (K + alpha I) c = y, under symmetric rank-two updates.

    Replacing row i changes row and column i of the Gram matrix G = K + alpha I to e_i u^T + u e_i^T more, so
    that after one factorisation a replacement costs O(m^2).

    Args:
        kernel: `(A, B) -> Gram matrix` between the rows of A and of B.
    """

    name = "kernel ridge (Woodbury)"

    def __init__(
        self,
        X: Float[np.ndarray, "m d"],
        y: Float[np.ndarray, " m"],
        points: Float[np.ndarray, "N d"],
        *,
        kernel: Any,
        alpha: float,
    ) -> None:
        self._kernel, self._X, self._y, self._points = kernel, X, y, points
        self._gram = kernel(X, X)
        regularised = self._gram.copy()
        regularised[np.diag_indices(len(X))] += alpha
        self._factor = cho_factor(regularised, lower=True, overwrite_a=True)
        self._to_points = kernel(points, X)
        self.duals = cho_solve(self._factor, y)
        self.predictions = self._to_points @ self.duals

    def replaced_duals(
        self, rows: Int[np.ndarray, " K"], X_new: Float[np.ndarray, "K d"], y_new: Float[np.ndarray, " K"]
    ) -> Float[np.ndarray, "m K"]:
        """Dual coefficients after every replacement."""
        return self._replaced(rows, self._kernel(self._X, X_new), X_new, y_new)

    def replace(
        self, rows: Int[np.ndarray, " K"], X_new: Float[np.ndarray, "K d"], y_new: Float[np.ndarray, " K"]
    ) -> Perturbed:
        to_new, pairs = self._kernel(self._X, X_new), np.arange(len(rows))
        duals = self._replaced(rows, to_new, X_new, y_new)
        of_new = duals[rows, pairs]
        # The new row stands where the old one stood, so its kernel values replace that column.
        at_points = self._to_points @ duals
        at_points += (self._kernel(self._points, X_new) - self._to_points[:, rows]) * of_new
        at_new = np.einsum("mk,mk->k", to_new, duals) + (self._own(X_new) - to_new[rows, pairs]) * of_new
        return Perturbed(at_points.T, at_new, np.zeros(len(rows), dtype=bool))

    def leave_out(self, rows: Int[np.ndarray, " K"]) -> Perturbed:
        inverse = self._inverse_columns(rows)
        pairs = np.arange(len(rows))
        duals = self.duals[:, None] - inverse * (self.duals[rows] / inverse[rows, pairs])
        duals[rows, pairs] = 0.0
        return Perturbed(
            (self._to_points @ duals).T, np.full(len(rows), np.nan), np.zeros(len(rows), dtype=bool)
        )

    def leave_one_out(self) -> Float[np.ndarray, " m"]:
        inverse = cho_solve(self._factor, np.eye(len(self._X)))
        return self._y - self.duals / np.diag(inverse)

    def _replaced(
        self,
        rows: Int[np.ndarray, " K"],
        to_new: Float[np.ndarray, "m K"],
        X_new: Float[np.ndarray, "K d"],
        y_new: Float[np.ndarray, " K"],
    ) -> Float[np.ndarray, "m K"]:
        pairs = np.arange(len(rows))
        shift = to_new - self._gram[:, rows]
        # The diagonal entry is touched by both halves of the update, so each carries half of its change.
        shift[rows, pairs] = (self._own(X_new) - self._gram[rows, rows]) / 2
        weights = np.stack(
            [y_new - self._y[rows] - np.einsum("mk,m->k", shift, self.duals), -self.duals[rows]], axis=1
        )
        solved_unit, solved_shift = self._inverse_columns(rows), cho_solve(self._factor, shift)
        # U = [e_i, u], C = [[0, 1], [1, 0]]; the 2 x 2 matrices are I + C U' G^-1 U.
        cross = solved_shift[rows, pairs]
        inner = np.empty((len(rows), 2, 2))
        inner[:, 0, 0] = 1 + cross
        inner[:, 0, 1] = np.einsum("mk,mk->k", shift, solved_shift)
        inner[:, 1, 0] = solved_unit[rows, pairs]
        inner[:, 1, 1] = 1 + cross
        small = np.linalg.solve(inner, weights[:, :, None])[:, :, 0]
        return self.duals[:, None] + solved_unit * small[:, 0] + solved_shift * small[:, 1]

    def _inverse_columns(self, rows: Int[np.ndarray, " K"]) -> Float[np.ndarray, "m K"]:
        units = np.zeros((len(self._X), len(rows)))
        units[rows, np.arange(len(rows))] = 1.0
        return cho_solve(self._factor, units)

    def _own(self, X_new: Float[np.ndarray, "K d"]) -> Float[np.ndarray, " K"]:
        return np.array([self._kernel(row[None], row[None])[0, 0] for row in X_new])


class NeighbourFits:
    """k-nearest-neighbour regression: the k + 1 nearest rows of every point are found once.

    When the replaced row is among them the next one moves up; the new row enters when it is nearer than the
    last. Points whose k-th and (k+1)-th neighbours are equally far are as ambiguous as in scikit-learn.

    Args:
        power: of the Minkowski distance.
        weights: `"uniform"`, or `"distance"` for weights 1/distance.
    """

    name = "nearest neighbours (sorted once)"

    def __init__(
        self,
        X: Float[np.ndarray, "m d"],
        y: Float[np.ndarray, " m"],
        points: Float[np.ndarray, "N d"],
        *,
        n_neighbors: int,
        power: float = 2.0,
        weights: str = "uniform",
    ) -> None:
        from sklearn.neighbors import NearestNeighbors

        self._X, self._y, self._points = X, y, points
        self._k, self._power, self._weights = n_neighbors, power, weights
        options: dict[str, Any] = {"n_neighbors": min(n_neighbors + 1, len(X)), "p": power}
        self._index = NearestNeighbors(**options).fit(X)
        self._distances, self._nearest = self._neighbours(points)
        nobody = np.full(len(points), -1)
        self.predictions = self._predicted(
            self._distances, self._nearest, nobody, np.full(len(points), np.inf), np.zeros(len(points))
        )

    def replace(
        self, rows: Int[np.ndarray, " K"], X_new: Float[np.ndarray, "K d"], y_new: Float[np.ndarray, " K"]
    ) -> Perturbed:
        at_points = np.empty((len(rows), len(self._points)))
        to_new = cdist(X_new, self._points, "minkowski", p=self._power)
        for k, row in enumerate(rows):
            at_points[k] = self._predicted(
                self._distances,
                self._nearest,
                np.full(len(self._points), row),
                to_new[k],
                np.full(len(self._points), y_new[k]),
            )
        at_new = self._predicted(*self._neighbours(X_new), rows, np.zeros(len(rows)), y_new)
        return Perturbed(at_points, at_new, np.zeros(len(rows), dtype=bool))

    def leave_out(self, rows: Int[np.ndarray, " K"]) -> Perturbed:
        self._check_enough()
        at_points = np.empty((len(rows), len(self._points)))
        never, nothing = np.full(len(self._points), np.inf), np.zeros(len(self._points))
        for k, row in enumerate(rows):
            leaving = np.full(len(self._points), row)
            at_points[k] = self._predicted(self._distances, self._nearest, leaving, never, nothing)
        return Perturbed(at_points, np.full(len(rows), np.nan), np.zeros(len(rows), dtype=bool))

    def leave_one_out(self) -> Float[np.ndarray, " m"]:
        self._check_enough()
        m = len(self._X)
        return self._predicted(*self._neighbours(self._X), np.arange(m), np.full(m, np.inf), np.zeros(m))

    def _check_enough(self) -> None:
        if len(self._X) <= self._k:
            raise InputError(
                f"{len(self._X)} rows leave fewer than n_neighbors={self._k} when one is left out: "
                "use fewer neighbours"
            )

    def _neighbours(
        self, points: Float[np.ndarray, "N d"]
    ) -> tuple[Float[np.ndarray, "N k1"], Int[np.ndarray, "N k1"]]:
        """Distances and rows of the k + 1 nearest, padded where there are only k rows."""
        distances, nearest = self._index.kneighbors(points)
        if distances.shape[1] == self._k:
            distances = np.hstack([distances, np.full((len(points), 1), np.inf)])
            nearest = np.hstack([nearest, np.full((len(points), 1), -1)])
        return distances, nearest

    def _predicted(
        self,
        distances: Float[np.ndarray, "N k1"],
        nearest: Int[np.ndarray, "N k1"],
        leaving: Int[np.ndarray, " N"],
        new_distance: Float[np.ndarray, " N"],
        new_label: Float[np.ndarray, " N"],
    ) -> Float[np.ndarray, " N"]:
        gone = nearest == leaving[:, None]
        # Everybody behind the row that leaves moves up by one.
        position = np.arange(self._k)[None, :]
        position = position + (position >= np.where(gone.any(1), gone.argmax(1), self._k)[:, None])
        distance = np.take_along_axis(distances, position, 1)
        label = self._y[np.take_along_axis(nearest, position, 1)]
        enters = new_distance < distance[:, -1]
        distance[enters, -1] = new_distance[enters]
        label[enters, -1] = new_label[enters]
        if self._weights == "uniform":
            return label.mean(1)
        with np.errstate(divide="ignore"):
            weight = 1 / distance
        exact = np.isinf(weight)
        weight = np.where(exact.any(1, keepdims=True), exact, weight)
        return (weight * label).sum(1) / weight.sum(1)
