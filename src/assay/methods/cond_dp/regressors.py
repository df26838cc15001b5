"""Linear regression by private gradient descent, with and without a conditioner, for scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from sklearn.base import clone

from assay.errors import InputError
from assay.methods.cond_dp.accounting import (
    SENSITIVITY,
    Adjacency,
    NoisySteps,
    PrivacyReport,
    calibrate,
    check_adjacency,
    replacement_epsilons,
)
from assay.methods.cond_dp.conditioner import PublicConditioner
from assay.methods.cond_dp.linear import LinearTraining, Optimizer, label_sensitivity, train_linear
from assay.methods.cond_dp.validation import LeakageError, PrivateRegressor

COMPARISON_NOTE = (
    "The figure for adding or removing a row is for comparison with software that prints it; it is no "
    "guarantee "
    "when a label is replaced."
)
TUNING_NOTE = (
    "The hyper-parameters must have been chosen without the private data: their choice is not counted."
)


@dataclass(frozen=True)
class Columns:
    """The public and the private columns of a table.

    Args:
        public, private: their positions.
        middle, half: of the declared ranges of the private ones.
    """

    public: Int[np.ndarray, " k"]
    private: Int[np.ndarray, " p"]
    middle: Float[np.ndarray, " p"]
    half: Float[np.ndarray, " p"]

    def mapped_private(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n p"]:
        """The private columns, clipped to their ranges and mapped to [-1, 1]."""
        return np.clip((X[:, self.private] - self.middle) / self.half, -1, 1)


class GradientRegressor(PrivateRegressor):
    """What `CondDPRegressor` and `DPSGDRegressor` share: everything but where the conditioner comes from."""

    adjacency: Adjacency
    epochs: int
    lr: float
    clip: float
    optimizer: Optimizer
    batch: Literal["full"] | int
    private_columns: Mapping[str | int, tuple[float, float]] | None
    fit_intercept: bool
    average: bool
    bias_correction: bool
    conditioner_: PublicConditioner

    def _conditioner(self, X: Any, public: Float[np.ndarray, " k"]) -> PublicConditioner:
        """The fitted conditioner for the public columns of `X`."""
        raise NotImplementedError

    def _check_parameters(self) -> None:
        check_adjacency(self.adjacency)
        for name in ("lr", "clip"):
            value = getattr(self, name)
            if not (isinstance(value, int | float | np.number) and 0 < value < math.inf):
                raise InputError(f"{name} is {value!r}: pass a finite number above 0")
        if not (_is_whole(self.epochs) and self.epochs >= 1):
            raise InputError(f"epochs is {self.epochs!r}: pass a whole number >= 1")
        if self.optimizer not in get_args(Optimizer):
            raise InputError(
                f"optimizer is {self.optimizer!r}: choose one of {', '.join(get_args(Optimizer))}"
            )
        if self.batch != "full" and not (_is_whole(self.batch) and self.batch >= 1):
            raise InputError(f"batch is {self.batch!r}: pass 'full' or the expected number of rows of a step")
        if self.private_columns and self.adjacency != "semi_sensitive":
            raise InputError(
                f"private_columns is for adjacency 'semi_sensitive', not {self.adjacency!r}: that relation "
                "treats "
                + (
                    "every column as public"
                    if self.adjacency == "replace_label"
                    else "every column as private"
                )
            )

    def _fit(self, X: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], rng: np.random.Generator) -> Any:
        columns = self._columns(X)
        self.conditioner_ = self._fitted_conditioner(X, columns)
        Z = np.hstack([_mapped(self.conditioner_, X[:, columns.public]), columns.mapped_private(X)])
        training = self._training(Z)
        weights, intercept = train_linear(Z, t, training, rng.standard_normal, rng)
        n_public = len(columns.public)
        if training.learned_factor is not None:
            weights[:n_public] /= self.conditioner_.ratio_
        coef = np.zeros(X.shape[1])
        coef[columns.public], offset = self.conditioner_.in_original_units(weights[:n_public])
        coef[columns.private] = weights[n_public:] / columns.half
        return coef, intercept + offset - float(columns.middle @ coef[columns.private])

    def _fitted_conditioner(self, X: Float[np.ndarray, "n d"], columns: Columns) -> PublicConditioner:
        conditioner = self._conditioner(X, columns.public)
        if conditioner.n_features_in_ != len(columns.public):
            raise InputError(
                f"the conditioner is for {conditioner.n_features_in_} columns, but there are "
                f"{len(columns.public)} "
                "public ones: fit it on the same columns"
            )
        return conditioner

    def _training(self, Z: Float[np.ndarray, "n d"]) -> LinearTraining:
        """Calibrate the noise, and report what will be spent."""
        n = len(Z)
        sample_rate = 1.0 if self.batch == "full" else min(1.0, self.batch / n)
        sampling = "full" if sample_rate == 1 else "poisson"
        steps = max(1, round(self.epochs / sample_rate))
        learned = self.conditioner_.ratio_ if self.conditioner_.scale == "learned" else None
        sensitivity = None
        if self.adjacency == "replace_label" and sampling == "full":
            # Only here is a row's direction public.
            sensitivity = label_sensitivity(
                np.einsum("ij,ij->i", Z, Z),
                self.clip,
                fit_intercept=self.fit_intercept,
                learned_factor=learned is not None,
            )
        sigma = calibrate(
            float(self.epsilon),
            float(self.delta),
            steps,
            adjacency=self.adjacency,
            sampling=sampling,
            sample_rate=sample_rate,
            sensitivity=sensitivity,
        )
        history = [NoisySteps(sigma, sample_rate, steps)]
        name = "DP-Adam" if self.optimizer == "adam" else "DP-SGD"
        rows = "on all rows" if sampling == "full" else f"on Poisson samples of rate {sample_rate:.4g}"
        self.privacy_ = PrivacyReport(
            mechanism=f"{steps} steps of {name} {rows}, noise multiplier {sigma:.4g}, "
            f"clipping norm {self.clip:g}",
            adjacency=self.adjacency,
            epsilon=replacement_epsilons(history, float(self.delta), self.adjacency, sensitivity),
            delta=float(self.delta),
            public=self._public(n),
            sigma=sigma,
            clip=float(self.clip),
            steps=steps,
            sampling=sampling,
            sample_rate=sample_rate,
            sensitivity=SENSITIVITY[self.adjacency] if sensitivity is None else sensitivity,
            notes=self._notes(),
        )
        return LinearTraining(
            steps=steps,
            lr=float(self.lr),
            clip=float(self.clip),
            sigma=sigma,
            optimizer=self.optimizer,
            sample_rate=sample_rate,
            fit_intercept=self.fit_intercept,
            learned_factor=learned,
            average=self.average,
            bias_correction=self.bias_correction,
        )

    def _notes(self) -> tuple[str, ...]:
        comparison = () if self.adjacency == "add_remove" else (COMPARISON_NOTE,)
        return (TUNING_NOTE, *comparison, *self._seed_notes())

    def _public(self, n: int) -> tuple[str, ...]:
        last = ("the y-range", "the hyper-parameters")
        if self.adjacency == "replace_label":
            return (f"features of the {n} training rows", "n itself", *last)
        if self.adjacency == "semi_sensitive":
            return (
                f"the public features of the {n} training rows",
                "n itself",
                "the ranges of the private features",
                *last,
            )
        return ("the conditioner, computed from other rows", "the number of rows n", *last)

    def _columns(self, X: Float[np.ndarray, "n d"]) -> Columns:
        """Which columns are private, with their declared ranges."""
        names = getattr(self, "feature_names_in_", None)
        places = {} if names is None else {str(name): place for place, name in enumerate(names)}
        ranges: dict[int, tuple[float, float]] = {}
        for column, bounds in (self.private_columns or {}).items():
            place = places.get(column, -1) if isinstance(column, str) else column
            if not 0 <= place < X.shape[1]:
                raise InputError(f"private_columns names {column!r}, but X has no such column")
            try:
                low, high = (float(bound) for bound in bounds)
            except (TypeError, ValueError):
                low, high = math.nan, math.nan
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise InputError(
                    f"private column {column!r} has the range {bounds!r}: declare two finite numbers, the "
                    "lower "
                    "bound first"
                )
            ranges[place] = (low, high)
        private = np.array(sorted(ranges), dtype=int)
        public = np.setdiff1d(np.arange(X.shape[1]), private)
        if not len(public):
            raise InputError("every column is private: the conditioner needs public ones")
        low, high = (np.array([ranges[place][end] for place in private]) for end in (0, 1))
        return Columns(public, private, (low + high) / 2, (high - low) / 2)


class CondDPRegressor(GradientRegressor):
    """Private linear regression on conditioned public features.

    The public features are standardised, multiplied by the conditioner C and go through ordinary DP-SGD,
    which costs as much privacy as without C and no direction of the features drowns in its noise. `coef_` is
    in the units of the features, so nothing of C is needed to predict.

    Args:
        epsilon, delta: the budget; infinity for no noise.
        y_range: smallest and largest possible label, known and not computed from the data. Labels are clipped
            to it.
        adjacency: what may change without being noticed. `"replace_label"`: one label; all features are
            public. `"semi_sensitive"`: one label and the private features of its row. `"add_remove"`: a whole
            row; `conditioner` must then be fitted on other, public rows.
        epochs: passes over the rows.
        lr: learning rate, for labels mapped to [-1, 1].
        clip: norm to which a row's gradient is clipped.
        optimizer: `"adam"` or `"sgd"`.
        batch: `"full"`, or the expected size of Poisson sampled batches.
        conditioner: a `PublicConditioner`; None for `PublicConditioner(standardize=True)`. One that is fitted
            is used as it is (in a `sklearn.frozen.FrozenEstimator` also after cloning), another is fitted on
            the public columns.
        private_columns: for `"semi_sensitive"`, column (name or position) -> its declared range. Values are
            clipped to it and mapped to [-1, 1]; they are not conditioned.
        fit_intercept: whether to fit an intercept.
        average: return the mean of the iterates, as the theory does, instead of the last one.
        bias_correction: subtract the noise's share from Adam's second moment (DP-AdamBC).
        random_state: a seed makes the noise repeatable, also by an attacker: for tests and studies. None
            draws it from the operating system's entropy.

    Attributes:
        conditioner_: the conditioner that was used.
        coef_, intercept_, privacy_, n_labels_clipped_, n_features_in_, feature_names_in_: see
            `PrivateRegressor`.

    Source: Private Learning with Public Feature Conditioning (ICML 2026), section 3; neighbour relations,
        accounting and the label sensitivity are ours.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        y_range: tuple[float, float] | None = None,
        adjacency: Adjacency = "replace_label",
        epochs: int = 64,
        lr: float = 0.01,
        clip: float = 0.1,
        optimizer: Optimizer = "adam",
        batch: Literal["full"] | int = "full",
        conditioner: PublicConditioner | None = None,
        private_columns: Mapping[str | int, tuple[float, float]] | None = None,
        fit_intercept: bool = True,
        average: bool = True,
        bias_correction: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.y_range = y_range
        self.adjacency = adjacency
        self.epochs = epochs
        self.lr = lr
        self.clip = clip
        self.optimizer = optimizer
        self.batch = batch
        self.conditioner = conditioner
        self.private_columns = private_columns
        self.fit_intercept = fit_intercept
        self.average = average
        self.bias_correction = bias_correction
        self.random_state = random_state

    def _conditioner(self, X: Any, public: Any) -> PublicConditioner:
        # scikit-learn's FrozenEstimator keeps what is fitted through `clone`.
        given: Any = getattr(self.conditioner, "estimator", self.conditioner)
        _check_kind(given)
        fitted = hasattr(given, "gains_")
        if self.adjacency == "add_remove":
            if not fitted:
                raise LeakageError(
                    "adjacency 'add_remove' protects whole rows, so the conditioner must not be computed "
                    "from "
                    "them: pass one that is fitted on other, public rows"
                )
            if given.saw_rows_of(X):
                raise LeakageError(
                    "the conditioner was fitted on the rows that adjacency 'add_remove' protects"
                )
        names = getattr(self, "feature_names_in_", None)
        if not fitted:
            unfitted: Any = PublicConditioner(standardize=True) if given is None else clone(given)
            return unfitted.fit(_named(X[:, public], names, public))
        known = getattr(given, "feature_names_in_", None)
        if names is not None and known is not None:
            if leaked := [str(name) for name in known if str(name) not in {str(n) for n in names[public]}]:
                kind = "private" if set(leaked) & {str(name) for name in names} else "missing in X"
                raise LeakageError(f"the conditioner was fitted on {', '.join(leaked)}, which is {kind}")
            if [str(name) for name in known] != [str(name) for name in names[public]]:
                raise InputError(
                    "the conditioner was fitted on the same columns in another order: reorder them"
                )
        return given


class DPSGDRegressor(GradientRegressor):
    """Private linear regression without a conditioner: what `CondDPRegressor` is compared with.

    Args:
        standardize: subtract the public columns' means and divide by their standard deviations. Not for
            `"add_remove"`, where these would be computed from private rows.
        epsilon, delta, y_range, adjacency, epochs, lr, clip, optimizer, batch, private_columns,
        fit_intercept,
            average, bias_correction, random_state: see `CondDPRegressor`.

    Attributes:
        conditioner_: the conditioner with C = I.
        coef_, intercept_, privacy_, n_labels_clipped_, n_features_in_, feature_names_in_: see
            `PrivateRegressor`.

    Source: Abadi et al. (2016).
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        y_range: tuple[float, float] | None = None,
        adjacency: Adjacency = "replace_label",
        epochs: int = 64,
        lr: float = 0.01,
        clip: float = 0.1,
        optimizer: Optimizer = "adam",
        batch: Literal["full"] | int = "full",
        standardize: bool = True,
        private_columns: Mapping[str | int, tuple[float, float]] | None = None,
        fit_intercept: bool = True,
        average: bool = True,
        bias_correction: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.y_range = y_range
        self.adjacency = adjacency
        self.epochs = epochs
        self.lr = lr
        self.clip = clip
        self.optimizer = optimizer
        self.batch = batch
        self.standardize = standardize
        self.private_columns = private_columns
        self.fit_intercept = fit_intercept
        self.average = average
        self.bias_correction = bias_correction
        self.random_state = random_state

    def _conditioner(self, X: Any, public: Any) -> PublicConditioner:
        if self.adjacency == "add_remove":
            if self.standardize:
                raise LeakageError(
                    "adjacency 'add_remove' protects whole rows, and standardize would compute means from "
                    "them: "
                    "pass standardize=False, or CondDPRegressor with a conditioner of power 0 from public "
                    "rows"
                )
            return PublicConditioner.identity(X.shape[1])
        names = getattr(self, "feature_names_in_", None)
        chosen = PublicConditioner(power=0.0, standardize=self.standardize)
        return chosen.fit(_named(X[:, public], names, public))


def _named(X: Float[np.ndarray, "n k"], names: Any, public: Any) -> Any:
    if names is None:
        return X
    import pandas as pd

    return pd.DataFrame(X, columns=names[public])


def _mapped(conditioner: PublicConditioner, X: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    """The conditioned features; a factor that is to be trained is left out of them."""
    names = getattr(conditioner, "feature_names_in_", None)
    Z = conditioner.transform(_named(X, names, slice(None)))
    return Z / conditioner.ratio_ if conditioner.scale == "learned" else Z


def _check_kind(conditioner: Any) -> None:
    if conditioner is not None and not isinstance(conditioner, PublicConditioner):
        raise InputError(f"conditioner is {conditioner!r}: pass a PublicConditioner, or None")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
