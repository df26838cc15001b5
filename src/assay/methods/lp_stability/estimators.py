"""scikit-learn estimators: one that measures the stability of a learner, one that carries a statement of its
risk."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self, cast, get_args

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin
from sklearn.linear_model import Ridge
from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.errors import InputError
from assay.methods.lp_stability.assumptions import Assumptions
from assay.methods.lp_stability.certificate import certify_with_model
from assay.methods.lp_stability.fits import Shortcut, perturbable_fits
from assay.methods.lp_stability.losses import Function, Loss, as_loss
from assay.methods.lp_stability.moments import norm_interval
from assay.methods.lp_stability.refit import fitted_clone
from assay.methods.lp_stability.rows import check_finite, checked_rows, split_rows
from assay.methods.lp_stability.swap_effects import Scheme, describe, fingerprint, measure_swaps


class StabilityEstimator(MetaEstimatorMixin, BaseEstimator):
    """Measures the L_p stability of a regressor: how much a random swap of one training row changes its
    losses.

    What it finds is an estimate, never a guarantee: the largest change over some evaluation rows is at most
    the largest over all, and sample moments of heavy-tailed changes are mostly too small.

    Args:
        estimator: the regressor; clones of it are fitted.
        loss: a name (`losses.as_loss`) or an elementwise function of labels and predictions.
        n_pairs: swaps to measure; for `scheme="loo"` at most the number of rows.
        scheme: `"replace"` swaps a row for a fresh one, as the theorems have it; `"loo"` leaves one out,
            which moves a fit by as little as half of that.
        p: the orders of the norms.
        shortcut: `"auto"` uses exact update formulas where they exist (`fits.perturbable_fits`); `"refit"`
            never.
        reserve: share of the rows that `fit` holds out when it is given no reserve.
        coupled: demand that fitting twice gives the same model, so that a change is the effect of the swap
            alone. A random estimator needs a fixed `random_state` for that; False accepts its noise.
        checkpoint: a file for partial results, saved every 20 pairs; an interrupted `fit` goes on from it. It
            needs an integer `random_state`.
        n_jobs: processes that fit at once where there is no shortcut.
        random_state: of the split and of the swaps.

    Attributes:
        coef_: p -> L_p norm of the largest change of a loss over the evaluation rows.
        coef_ci_: p -> 95 % bootstrap interval of it.
        risk_coef_, gap_coef_: p -> L_p norm of the change of the risk, and of risk minus training risk.
        deltas_: the largest change of every swap; swaps whose fit failed are left out.
        risk_changes_, gap_changes_: the changes of every swap.
        bias_: estimate of E[risk - training risk].
        method_used_: how the changed fits were computed.
        n_failed_: fits that failed, at most 5 %.
        estimator_: the regressor fitted to the training rows.
    """

    def __init__(
        self,
        estimator: Any = None,
        loss: str | Loss | Function = "absolute",
        n_pairs: int = 200,
        scheme: Scheme = "replace",
        p: tuple[float, ...] = (2, 3, 4),
        shortcut: Shortcut = "auto",
        reserve: float = 0.2,
        coupled: bool = True,
        checkpoint: Path | str | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.loss = loss
        self.n_pairs = n_pairs
        self.scheme = scheme
        self.p = p
        self.shortcut = shortcut
        self.reserve = reserve
        self.coupled = coupled
        self.checkpoint = checkpoint
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        X_reserve: Any = None,
        y_reserve: Any = None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Fit to `X` (n, d) and `y` (n,), then measure swaps for rows of the reserve.

        Args:
            X_reserve: fresh rows from the same law; without them a share of `X` and `y` is held out.
            y_reserve: their labels.

        Raises:
            InputError: a parameter or a row is invalid, more than 5 % of the fits failed, or fitting is
                random.
        """
        self._check_parameters()
        loss, estimator = as_loss(self.loss), Ridge() if self.estimator is None else self.estimator
        X, y = _validated(self, X, y)
        seed = _seed(self.random_state)
        if (X_reserve is None) != (y_reserve is None):
            raise InputError("pass both X_reserve and y_reserve, or neither")
        if X_reserve is None:
            train, held = split_rows(len(y), self.reserve, 1, seed)
            X, y, X_reserve, y_reserve = X[train], y[train], X[held], y[held]
        else:
            X_reserve, y_reserve = checked_rows(X_reserve, y_reserve, least=1)
            if X_reserve.shape[1] != X.shape[1]:
                raise InputError(f"X_reserve has {X_reserve.shape[1]} columns and X has {X.shape[1]}")
        self.estimator_ = fitted_clone(estimator, X, y)
        fits = perturbable_fits(
            estimator,
            X,
            y,
            np.vstack([X, X_reserve]),
            shortcut=cast("Shortcut", self.shortcut),
            coupled=self.coupled,
            n_jobs=self.n_jobs,
        )
        learner = describe(estimator, loss, y)
        mark = fingerprint(X, y, X_reserve, y_reserve, *learner, self.scheme, fits.name, seed)
        effects = measure_swaps(
            fits,
            (X, y),
            (X_reserve, y_reserve),
            loss,
            n_pairs=self.n_pairs,
            scheme=cast("Scheme", self.scheme),
            seed=seed,
            checkpoint=None if self.checkpoint is None else (Path(self.checkpoint), mark),
            progress=progress,
        )
        kept = effects.finished()
        self.n_failed_ = int(effects.failed.sum())
        self.method_used_ = fits.name
        self.deltas_, self.risk_changes_, self.gap_changes_ = kept.largest, kept.risk, kept.gap
        found = {p: norm_interval(kept.largest, p, seed=seed) for p in self.p}
        self.coef_ = {p: norm for p, (norm, _, _) in found.items()}
        self.coef_ci_ = {p: (low, high) for p, (_, low, high) in found.items()}
        self.risk_coef_ = {p: norm_interval(kept.risk, p, seed=seed)[0] for p in self.p}
        self.gap_coef_ = {p: norm_interval(kept.gap, p, seed=seed)[0] for p in self.p}
        self.bias_ = float(kept.own.mean())
        return self

    def _check_parameters(self) -> None:
        if not (isinstance(self.n_pairs, Integral) and self.n_pairs >= 1):
            raise InputError(f"n_pairs is {self.n_pairs!r}: pass a whole number of at least 1")
        if self.scheme not in get_args(Scheme):
            raise InputError(f"scheme is {self.scheme!r}: choose one of {', '.join(get_args(Scheme))}")
        if not self.p or not all(isinstance(p, Real) and 1 <= p < np.inf for p in self.p):
            raise InputError(f"p is {self.p!r}: pass orders of at least 1")
        if self.checkpoint is not None and not isinstance(self.random_state, Integral):
            raise InputError(
                f"random_state is {self.random_state!r}: a checkpoint is resumed by its seed, pass an integer"
            )


class CertifiedRegressor(MetaEstimatorMixin, RegressorMixin, BaseEstimator):
    """A regressor that comes with what can be said of its risk.

    `fit` holds out some rows, fits the regressor to the others and keeps the result of `certify`. Only a
    `Certificate` guarantees anything; for most regressors the result is an `Estimate`.

    Args:
        estimator: the regressor; a clone is fitted. None is `sklearn.linear_model.Ridge()`.
        loss: as in `certify`, like the next four.
        delta: one minus the confidence.
        assumptions: what is declared.
        reserve: the share of rows that is held out.
        n_pairs: random swaps of an estimate.
        random_state: of the split and of the swaps.

    Attributes:
        certificate_: a `Certificate` or an `Estimate`.
        estimator_: the fitted regressor that it speaks of.
    """

    def __init__(
        self,
        estimator: Any = None,
        loss: str | Loss | Function = "absolute",
        delta: float = 0.05,
        assumptions: Assumptions | None = None,
        reserve: float = 0.2,
        n_pairs: int = 200,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.loss = loss
        self.delta = delta
        self.assumptions = assumptions
        self.reserve = reserve
        self.n_pairs = n_pairs
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to predictors `X` (n, d) and labels `y` (n,), and certify.

        Raises:
            InputError: a parameter or a row is invalid.
            AssumptionViolated: the data contradict an assumption.
        """
        X, y = _validated(self, X, y)
        estimator = Ridge() if self.estimator is None else self.estimator
        self.certificate_, self.estimator_ = certify_with_model(
            estimator,
            X,
            y,
            loss=self.loss,
            delta=self.delta,
            assumptions=self.assumptions,
            reserve=self.reserve,
            n_pairs=self.n_pairs,
            seed=_seed(self.random_state),
        )
        return self

    def predict(self, X: Any) -> Float[np.ndarray, " N"]:
        """Predictions of the fitted regressor."""
        check_is_fitted(self)
        return self.estimator_.predict(validate_data(self, X, dtype=np.float64, reset=False))


def _validated(estimator: Any, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    options: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": False}
    X = validate_data(estimator, X, ensure_min_samples=2, **options)
    y = check_array(_labels(estimator, y), ensure_2d=False, **options)
    y = column_or_1d(y, warn=True)
    check_consistent_length(X, y)
    check_finite(X, y)
    return X, y


def _labels(estimator: Any, y: Any) -> Any:
    if y is None:
        raise InputError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    return y


def _seed(random_state: Any) -> int:
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
