"""What regressors of metric-valued responses have in common: checks, standardised predictors, the score."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.errors import InputError
from assay.methods.desi.metrics import frechet_r2
from assay.methods.desi.spaces.space import MetricSpace

# Below this many training rows a fit is an exercise in arithmetic, not an estimate.
FEW_ROWS = 10
# Entries of a block of weights (targets x training rows): 64 MiB of float64.
BLOCK_ENTRIES = 2**23


class FrechetRegressor(RegressorMixin, BaseEstimator):
    """Regression of points of a metric space on predictors, with scikit-learn's interface.

    A subclass fits with `_fit(X, Y)` and predicts with `_predict(X)`, where X is standardised, without
    constant columns, and Y are checked points. Their rows come in an order that only depends on their
    content: whatever is random draws the same rows for every permutation of the data. A one-dimensional
    response is treated as points with one coordinate and comes back one-dimensional.

    Attributes:
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
        mean_, scale_: of the predictors in training; the scale of a constant column is zero, and it is not
            used.
    """

    space: MetricSpace
    n_features_in_: int
    feature_names_in_: np.ndarray

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to predictors `X` (n, p), array or data frame, and responses `y` (n, *shape) of the space.

        Raises:
            InputError: a parameter, a predictor or a response is invalid; the message names it.
        """
        # What an earlier fit learnt is forgotten, so that nothing of it survives with other parameters.
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self._fitted = False
        self._check_parameters()
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        X = self._validated(X, reset=True)
        Y = _numeric(y)
        if len(Y) != len(X):
            raise InputError(f"X has {len(X)} rows but y has {len(Y)}: pass one response for every row")
        self._scalar_response = Y.ndim == 1
        Y = self.space.check(Y[:, None] if self._scalar_response else Y)
        if len(X) < FEW_ROWS:
            warnings.warn(
                f"only {len(X)} training rows: fewer than {FEW_ROWS} give no reliable fit", stacklevel=2
            )
        order = np.lexsort(np.column_stack([Y.reshape(len(Y), -1), X]).T)
        X, Y = X[order], Y[order]
        self.mean_, self.scale_ = X.mean(0), X.std(0)
        # A column whose spread is rounding noise of its own size is constant.
        self.scale_[self.scale_ <= 1e-12 * np.abs(X).max(0)] = 0.0
        if (constant := np.flatnonzero(self.scale_ == 0)).size:
            names = getattr(self, "feature_names_in_", np.arange(X.shape[1]).astype(str))
            warnings.warn(f"constant predictors are not used: {', '.join(names[constant])}", stacklevel=2)
            if constant.size == X.shape[1]:
                raise InputError("every predictor is constant: there is nothing to regress on")
        self._fit(self._standardised(X), Y)
        self._fitted = True
        return self

    def predict(self, X: Any) -> Float[np.ndarray, "m ..."]:
        """The estimated conditional Fréchet mean at every row of `X`.

        Raises:
            InputError: `X` has other columns than in training, or values that are not finite.
            sklearn.exceptions.NotFittedError: `fit` was not called.
        """
        return self._shaped(self._predict(self._standardised(self._validated(X, reset=False))))

    def score(self, X: Any, y: Any) -> float:
        """The Fréchet R^2 of the predictions (`metrics.frechet_r2`)."""
        predictions = self.predict(X)
        Y = _numeric(y)
        if Y.ndim == 1:
            Y, predictions = Y[:, None], predictions.reshape(-1, 1)
        return frechet_r2(self.space, self.space.check(Y), predictions)

    def _check_parameters(self) -> None:
        """Raise an InputError for an invalid constructor parameter."""

    def _fit(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        raise NotImplementedError

    def _predict(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m ..."]:
        raise NotImplementedError

    def _validated(self, X: Any, *, reset: bool) -> Float[np.ndarray, "n p"]:
        if not reset:
            check_is_fitted(self)
        try:
            # Local smoothing needs two points and the one that is left out.
            return validate_data(self, X, reset=reset, dtype=np.float64, ensure_min_samples=3 if reset else 1)  # pyright: ignore[reportReturnType]
        except ValueError as error:
            raise InputError(str(error)) from error

    def _standardised(self, X: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n k"]:
        used = self.scale_ > 0
        return (X[:, used] - self.mean_[used]) / self.scale_[used]

    def _shaped(self, points: Float[np.ndarray, "m ..."]) -> Float[np.ndarray, "m ..."]:
        return points[:, 0] if self._scalar_response else points

    def _generator(self) -> np.random.Generator:
        """The source of randomness that scikit-learn's `random_state` stands for."""
        return np.random.default_rng(check_random_state(self.random_state).randint(2**31))  # pyright: ignore[reportAttributeAccessIssue]

    def __sklearn_is_fitted__(self) -> bool:
        # The attributes of a fit that failed half-way do not count.
        return getattr(self, "_fitted", False)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class WeightedFrechetRegressor(FrechetRegressor):
    """A regressor whose predictions are weighted Fréchet means of the training responses.

    A subclass computes `_weights(X)`, one row for every target, and may learn more in `_learn(X, Y)`.
    """

    def _fit(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        self._X, self._Y = X, Y
        self._learn(X, Y)

    def _predict(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m ..."]:
        return frechet_means(self.space, self._Y, lambda rows: self._weights(X[rows]), len(X))

    def _learn(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        """Learn what the weights need beyond the training rows."""

    def _weights(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m n"]:
        raise NotImplementedError


def check_whole(estimator: BaseEstimator, *names: str, least: int = 1, optional: bool = False) -> None:
    """Raise an InputError unless the parameters with these names are whole numbers, `least` or more."""
    for name in names:
        value = getattr(estimator, name)
        if not (isinstance(value, int | np.integer) and value >= least) and not (optional and value is None):
            raise InputError(f"{name} is {value!r}: pass a whole number >= {least}")


def check_number(
    estimator: BaseEstimator,
    *names: str,
    above: float | None = None,
    below: float = math.inf,
    optional: bool = False,
) -> None:
    """Raise an InputError unless the parameters are numbers in [0, below), or in (above, below)."""
    for name in names:
        value = getattr(estimator, name)
        inside = (
            isinstance(value, int | float | np.number)
            and (value >= 0 if above is None else value > above)
            and value < below
        )
        if not inside and not (optional and value is None):
            least = "0" if above is None else f"above {above:g}"
            raise InputError(f"{name} is {value!r}: pass a number from {least} to below {below:g}")


def frechet_means(
    space: MetricSpace,
    Y: Float[np.ndarray, "n ..."],
    weights_of: Callable[[slice], Float[np.ndarray, "b n"]],
    n_targets: int,
) -> Float[np.ndarray, "m ..."]:
    """Weighted Fréchet means in blocks of targets: memory does not grow with targets x training rows."""
    size = max(1, BLOCK_ENTRIES // len(Y))
    blocks = [slice(start, min(start + size, n_targets)) for start in range(0, n_targets, size)]
    return np.concatenate([space.mean(Y, weights_of(block)) for block in blocks])


def coordinates(
    space: MetricSpace, Y: Float[np.ndarray, "n ..."], n_components: int = 10
) -> Float[np.ndarray, "n dim"]:
    """Coordinates for the responses: exact ones where the space has them, else scaled distances.

    Classical (Torgerson) scaling keeps at most `n_components` coordinates: the leading ones with positive
    eigenvalue.
    """
    exact = space.embed(Y)
    if exact is not None:
        return exact
    squared = space.pairwise(Y, Y) ** 2
    row = squared.mean(1, keepdims=True)
    gram = -0.5 * (squared - row - row.T + row.mean())
    values, vectors = np.linalg.eigh(gram)
    keep = np.argsort(values)[::-1][:n_components]
    keep = keep[values[keep] > 1e-10 * max(values.max(), 1e-300)]
    if not keep.size:
        return np.zeros((len(Y), 1))
    return vectors[:, keep] * np.sqrt(values[keep])


def frechet_variance(space: MetricSpace, Y: Float[np.ndarray, "n ..."]) -> float:
    """The mean squared distance to the Fréchet mean."""
    mean = space.mean(Y, np.full((1, len(Y)), 1 / len(Y)))
    return float((space.distance(Y, np.broadcast_to(mean, Y.shape)) ** 2).mean())


def _numeric(Y: Any) -> np.ndarray:
    try:
        return np.asarray(Y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"the responses are not an array of numbers: {error}") from error
