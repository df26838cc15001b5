"""What every private regressor checks before it looks at a label, and what they have in common."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import scipy.sparse
from jaxtyping import Float
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.errors import InputError
from assay.methods.cond_dp.accounting import PrivacyReport, check_budget

SEED_NOTE = (
    "The noise was drawn from a seed that the caller chose: whoever knows it can subtract the noise, so keep "
    "it secret, or leave it out."
)


class LeakageError(InputError):
    """Something private would be used as if it were public."""


def check_y_range(y_range: Any) -> tuple[float, float]:
    """The declared range of the label as (low, high).

    Raises:
        InputError: it is missing, or not two increasing finite numbers.
    """
    if y_range is None:
        raise InputError(
            "y_range is missing: declare the smallest and largest possible label, from knowledge of the "
            "domain "
            "and not from the data, e.g. y_range=(0, 10)"
        )
    try:
        low, high = (float(bound) for bound in y_range)
    except (TypeError, ValueError):
        raise InputError(f"y_range is {y_range!r}: pass two numbers, the lower bound first") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"y_range is {y_range!r}: pass two finite numbers, the lower bound first")
    return low, high


def check_finite(X: Any, names: Sequence[str] | None = None) -> None:
    """Raise an InputError that names a column with NaN or infinite values.

    Args:
        X: (n, d), an array or a sparse matrix in CSR format.
        names: of the columns; without them the message has the column's position.
    """
    if scipy.sparse.issparse(X):
        wrong = ~np.isfinite(X.data)
        if not wrong.any():
            return
        column = int(X.indices[np.argmax(wrong)])
        values = X[:, [column]].toarray()[:, 0]
    else:
        # A sum is finite only if its terms are; the entries are looked at when it is not.
        with np.errstate(over="ignore", invalid="ignore"):
            total = X.sum(dtype=np.float64)
        if np.isfinite(total) or np.isfinite(X).all():
            return
        column = int(np.argmax(~np.isfinite(X).all(axis=0)))
        values = X[:, column]
    row = int(np.argmax(~np.isfinite(values)))
    kind = "NaN" if np.isnan(values[row]) else "inf"
    name = repr(str(names[column])) if names is not None else str(column)
    raise InputError(
        f"X has {kind} in column {name}, row {row}: fill in or drop such values (inputs must not contain NaN "
        "or infinity)"
    )


class PrivateRegressor(RegressorMixin, BaseEstimator):
    """A linear regressor whose weights are (epsilon, delta)-differentially private.

    A subclass stores the parameters `epsilon`, `delta`, `y_range` and `random_state`, and implements
    `_fit(X, t, rng)`: X is float64 and finite, t are the labels clipped to `y_range` and mapped to [-1, 1].
    It returns the weights and the intercept for t, and sets `privacy_`. Everything that it computes from t
    must be private.

    Noise comes from NumPy's PCG64, seeded by the operating system. It is no cryptographic generator, and
    rounding of floating-point noise is not hidden: against an attacker who exploits these, train with
    `CondPrivacyEngine(secure_mode=True)`.

    Attributes:
        coef_, intercept_: in the units of X and y.
        privacy_: the guarantee, a `PrivacyReport`.
        n_labels_clipped_: how many labels were outside `y_range`. NOT private: for the eyes of those who may
            see the labels; it is neither printed nor saved nor pickled.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    """

    epsilon: float
    delta: float
    y_range: tuple[float, float] | None
    random_state: int | np.random.RandomState | None
    n_features_in_: int
    feature_names_in_: np.ndarray
    privacy_: PrivacyReport

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to features `X` (n, d) and labels `y` (n,).

        Raises:
            InputError: a parameter, a feature or a label is invalid; the message names it.
        """
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        check_budget(self.epsilon, self.delta)
        low, high = check_y_range(self.y_range)
        self._check_parameters()
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        X = self._features(X, reset=True)
        y = self._labels(y, len(X))
        if self.delta >= 1 / len(X) and not math.isinf(self.epsilon):
            warnings.warn(
                f"delta {self.delta:g} is not below 1 / rows = {1 / len(X):.3g}: a guarantee with such a "
                "delta "
                "would allow publishing a row",
                stacklevel=2,
            )
        middle, half = (low + high) / 2, (high - low) / 2
        clipped = np.clip(y, low, high)
        self._keep(self._fit(X, (clipped - middle) / half, self._rng()), middle, half)
        self.n_labels_clipped_ = int((clipped != y).sum())
        return self

    def predict(self, X: Any) -> Float[np.ndarray, " m"]:
        """`X @ coef_ + intercept_`.

        Raises:
            InputError: `X` has other columns than in training, or values that are not finite.
            sklearn.exceptions.NotFittedError: `fit` was not called.
        """
        check_is_fitted(self, "coef_")
        # One dot product a row: a matrix product may round a row differently in another batch.
        return np.einsum("ij,j->i", self._features(X, reset=False), self.coef_) + self.intercept_

    def _check_parameters(self) -> None:
        """Raise an InputError for an invalid constructor parameter."""

    def _fit(self, X: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], rng: np.random.Generator) -> Any:
        raise NotImplementedError

    def _keep(self, solution: Any, middle: float, half: float) -> None:
        """Store the solution for labels (y - middle) / half as one for y."""
        weights, intercept = solution
        self.coef_ = np.asarray(weights, dtype=float) * half
        self.intercept_ = float(intercept) * half + middle

    def _rng(self) -> np.random.Generator:
        """The source of noise: the operating system's entropy, unless the caller asked for a seed."""
        if self.random_state is None:
            return np.random.default_rng()
        seeds: Any = check_random_state(self.random_state)
        return np.random.default_rng(seeds.randint(2**32, size=4, dtype=np.uint32))

    def _seed_notes(self) -> tuple[str, ...]:
        return () if self.random_state is None else (SEED_NOTE,)

    def _features(self, X: Any, *, reset: bool) -> Float[np.ndarray, "n d"]:
        try:
            least = 2 if reset else 1
            values: Any = validate_data(
                self, X, reset=reset, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=least
            )
        except ValueError as error:
            raise InputError(str(error)) from error
        check_finite(values, getattr(self, "feature_names_in_", None))
        return values

    def _labels(self, y: Any, n_rows: int) -> Float[np.ndarray, " n"]:
        try:
            values = np.asarray(column_or_1d(y, warn=True), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"y must be a column of numbers: {error}") from error
        if len(values) != n_rows:
            raise InputError(f"X has {n_rows} rows but y has {len(values)}: pass one label for every row")
        if not np.isfinite(values).all():
            raise InputError("y has values that are NaN or inf: leave out the rows without a label")
        return values

    def __getstate__(self) -> dict[str, Any]:
        # A pickle is a file too: what is not private stays here.
        state: dict[str, Any] = super().__getstate__().copy()  # pyright: ignore[reportAttributeAccessIssue]
        state.pop("n_labels_clipped_", None)
        return state
