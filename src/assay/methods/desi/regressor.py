"""Deep single-index Fréchet regression as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, get_args, overload

import numpy as np
import torch
from jaxtyping import Bool, Float
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError
from assay.methods.desi.base import (
    FrechetRegressor,
    check_number,
    check_whole,
    coordinates,
    frechet_variance,
)
from assay.methods.desi.bootstrap import DirectionBootstrap, bootstrap_direction
from assay.methods.desi.index_model import Bandwidth, Mode, SharedDirection, oriented, starting_directions
from assay.methods.desi.per_sample import PerSampleIndex, published_settings, train_per_sample
from assay.methods.desi.smoother import IndexSmoother
from assay.methods.desi.spaces.space import MetricSpace
from assay.methods.desi.training import (
    LOSS_ROWS,
    REFINING_LR,
    Rows,
    Schedule,
    Training,
    compare_starts,
    network_models,
    shared_models,
    train,
    train_from_starts,
)
from assay.methods.desi.weights import median_gap

# Validation rows below which early stopping would follow noise.
FEW_VALIDATION_ROWS = 3
SHARED_DEFAULTS = {"lam": 5e-4, "max_epochs": 300, "patience": 30, "dropout": 0.3}
# A network moves all rows' directions at once, so it takes smaller steps than a free vector.
NETWORK_LR = 0.01


class DeSIRegressor(FrechetRegressor):
    """Predicts points of a metric space from one learnt index of the predictors.

    The conditional Fréchet mean is modelled as m(theta' x) with a unit vector theta. Theta and the bandwidth
    minimise the leave-one-out error of local Fréchet regression on the index, d^2(Y_i, m_-i(theta' x_i)) in
    units of the responses' Fréchet variance, plus lam / bandwidth. Adam starts from the directions of the
    first and second moments of the responses and from random ones, each stopped by its validation error. The
    start whose direction has the smallest leave-one-out error on all rows is kept, its direction is refined
    on all rows with the bandwidth held, and the smoother is fitted to all rows.

    Predictors are standardised inside; constant ones get the coefficient zero. The result does not depend on
    the order of the rows: they are put into an order of their own before any random number is drawn.

    Args:
        space: the metric space of the responses (`assay.methods.desi.spaces`).
        mode: `"shared"`, theta is a free vector; `"deep_shared"`, theta is the normalised mean of a network's
            outputs over the rows; `"per_sample"`, the authors' published algorithm with a direction for every
            row, which is no single-index model and is kept for comparison.
        bandwidth: `"learn"`, or a fixed bandwidth in units of the index.
        lam: the weight of 1/bandwidth. None is 5e-4, and in mode `per_sample` the published value for the
            space; so are `max_epochs` (None: 300), `patience` (30) and `dropout` (0.3).
        n_restarts: random starts beside the two from moments; in mode `deep_shared` the number of networks is
            n_restarts + 1. Not used in mode `per_sample`.
        max_epochs: gradient steps from a start at most.
        patience: steps without a better validation error after which a start is given up.
        val_fraction: the share of rows held out to stop the starts by; 0 stops them by the leave-one-out
            error.
        hidden: width of the network.
        dropout: dropout rate of the network.
        device: where torch computes.
        random_state: seed, `RandomState` or None, as in scikit-learn.

    Attributes:
        direction_: theta for standardised predictors, of length one, its first coordinate that is not zero
            positive; coordinates are comparable. In mode `per_sample` the normalised mean of all rows'
            directions.
        coef_, intercept_: theta for predictors in their own units: the index is `X @ coef_ + intercept_`. Not
            in mode `per_sample`.
        bandwidth_: of the final smoother.
        loss_curve_, validation_curve_: of the start that was kept.
        restart_losses_: the leave-one-out errors by which the starts were compared; in mode `per_sample` the
            best monitored loss.
        fallbacks_: number of training rows without a local-linear fit (`IndexSmoother.fallbacks`).
        index_range_: smallest and largest index in training.
        direction_ci_: after `bootstrap_direction`.
        mean_, scale_, n_features_in_, feature_names_in_: see `FrechetRegressor`.

    Source: Deep Single-Index Fréchet Regression (ICML 2026); local Fréchet regression after Petersen and
        Müller (2019).
    """

    def __init__(
        self,
        space: MetricSpace,
        mode: Mode = "shared",
        bandwidth: Literal["learn"] | float = "learn",
        lam: float | None = None,
        n_restarts: int = 4,
        max_epochs: int | None = None,
        patience: int | None = None,
        val_fraction: float = 0.2,
        hidden: int = 64,
        dropout: float | None = None,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.space = space
        self.mode = mode
        self.bandwidth = bandwidth
        self.lam = lam
        self.n_restarts = n_restarts
        self.max_epochs = max_epochs
        self.patience = patience
        self.val_fraction = val_fraction
        self.hidden = hidden
        self.dropout = dropout
        self.device = device
        self.random_state = random_state

    @overload
    def predict(self, X: Any, return_flag: Literal[False] = False) -> Float[np.ndarray, "m ..."]: ...
    @overload
    def predict(
        self, X: Any, return_flag: Literal[True]
    ) -> tuple[Float[np.ndarray, "m ..."], Bool[np.ndarray, " m"]]: ...
    def predict(self, X: Any, return_flag: bool = False):
        """The estimated conditional Fréchet mean at every row of `X`.

        Args:
            return_flag: also return which rows have an index beyond those in training, where the estimate is
                an extrapolation.

        Raises:
            InputError: `X` has other columns than in training, or values that are not finite.
        """
        z = self.predict_index(X)
        predictions = self._shaped(self.smoother_.predict(z))
        return (predictions, self.smoother_.outside(z)) if return_flag else predictions

    def predict_index(self, X: Any) -> Float[np.ndarray, " m"]:
        """The index of every row."""
        return self._index(self._standardised(self._validated(X, reset=False)))

    def bootstrap_direction(
        self, n_boot: int = 200, *, level: float = 0.95, max_epochs: int = 50, seed: int = 0
    ) -> DirectionBootstrap:
        """How stable the direction is under resampling of the rows; also kept as `direction_ci_`.

        Args:
            n_boot: bootstrap samples.
            level: of the intervals.
            max_epochs: gradient steps for every sample, from the fitted direction.
            seed: of the resampling.

        Raises:
            InputError: the fit has a direction for every row, or an argument is out of range.
        """
        check_is_fitted(self)
        if hasattr(self, "per_sample_"):
            raise InputError(
                "mode 'per_sample' has a direction for every row, not one to bootstrap: use mode 'shared'"
            )
        used = self.scale_ > 0
        result = bootstrap_direction(
            self.space,
            self._rows(self._X, self.smoother_.Y),
            self.direction_[used],
            self.bandwidth_,
            n_boot=n_boot,
            level=level,
            max_epochs=max_epochs,
            seed=seed,
        )
        self.direction_ci_ = result.spread(used)
        return self.direction_ci_

    def save(self, folder: Path | str) -> None:
        """Write the fitted estimator to a folder of JSON and npz files (`model_file.save_model`)."""
        from assay.methods.desi.model_file import save_model

        save_model(self, folder)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read an estimator that `save` wrote (`model_file.load_model`)."""
        from assay.methods.desi.model_file import load_model

        return load_model(folder, cls)

    def _check_parameters(self) -> None:
        if self.mode not in get_args(Mode):
            raise InputError(f"mode is {self.mode!r}: choose one of {', '.join(get_args(Mode))}")
        if not (isinstance(self.bandwidth, str) and self.bandwidth == "learn"):
            check_number(self, "bandwidth", above=0)
            if self.mode == "per_sample":
                raise InputError("mode 'per_sample' learns its bandwidth: pass bandwidth='learn'")
        check_whole(self, "n_restarts", least=0)
        check_whole(self, "hidden")
        check_whole(self, "max_epochs", "patience", optional=True)
        check_number(self, "val_fraction", below=0.5)
        check_number(self, "dropout", below=1, optional=True)
        check_number(self, "lam", optional=True)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(
                f"device {self.device!r} is not available: {str(error).splitlines()[0]}"
            ) from error

    def _fit(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        rng = self._generator()
        rows = self._rows(X, Y)
        shuffled = torch.from_numpy(rng.permutation(len(X))).to(rows.X.device)
        n_validation = min(round(self.val_fraction * len(X)), LOSS_ROWS)
        n_validation = n_validation if n_validation >= FEW_VALIDATION_ROWS else 0
        training = rows.take(shuffled[n_validation:])
        validation = rows.take(shuffled[:n_validation]) if n_validation else None
        if self.mode == "per_sample":
            self._fit_per_sample(training, validation, rng)
        else:
            self._fit_shared(rows, training, validation, rng)

    def _fit_shared(
        self, rows: Rows, training: Rows, validation: Rows | None, rng: np.random.Generator
    ) -> None:
        schedule = Schedule(self._setting("lam"), self._setting("max_epochs"), self._setting("patience"))
        if self.mode == "shared":
            # The rows are shuffled; scaling the distances of very many would take longer than the fit.
            some = training.take(torch.arange(min(len(training.X), LOSS_ROWS)))
            responses = coordinates(self.space, some.Y.cpu().numpy())
            starts = starting_directions(some.X.cpu().numpy(), responses, self.n_restarts, rng)
            models = shared_models(starts)
        else:
            schedule = replace(schedule, lr=NETWORK_LR)
            seeds = rng.integers(2**31, size=self.n_restarts + 1).tolist()
            models = network_models(training.X, self.hidden, self._setting("dropout"), seeds)
        fixed = None if self.bandwidth == "learn" else float(self.bandwidth)
        results = train_from_starts(self.space, models, fixed, training, validation, schedule)
        errors = compare_starts(self.space, results, rows)
        best = results[int(np.argmin(errors))]
        self._keep_curves(best, errors)
        bandwidth = float(best.bandwidth().detach()) if fixed is None else fixed
        direction = best.model.direction().detach()
        if validation is not None:
            refined = train(
                self.space,
                SharedDirection(direction.cpu().numpy()).to(rows.X.device),
                Bandwidth(bandwidth, learnt=False).to(rows.X.device),
                rows,
                None,
                replace(schedule, lr=REFINING_LR),
            )
            direction = refined.model.direction().detach()
        theta = oriented(direction.cpu().numpy())
        used = self.scale_ > 0
        self.direction_ = np.zeros(len(used))
        self.direction_[used] = theta
        self.coef_ = np.zeros(len(used))
        self.coef_[used] = theta / self.scale_[used]
        self.intercept_ = -float(self.mean_ @ self.coef_)
        self._keep_smoother(rows, bandwidth)

    def _fit_per_sample(self, training: Rows, validation: Rows | None, rng: np.random.Generator) -> None:
        settings = published_settings(self.space)
        chosen = {name: value for name in SHARED_DEFAULTS if (value := getattr(self, name)) is not None}
        settings = replace(settings, **chosen)
        seed = int(rng.integers(2**31))
        result = train_per_sample(self.space, training, validation, settings, self.hidden, seed)
        self._keep_curves(result, np.array([result.best]))
        self.per_sample_ = PerSampleIndex.from_model(result.model)
        mean = self.per_sample_.directions(training.X.cpu().numpy()).mean(0)
        used = self.scale_ > 0
        self.direction_ = np.zeros(len(used))
        self.direction_[used] = oriented(mean / np.linalg.norm(mean))
        # The published algorithm predicts from the training rows alone.
        self._keep_smoother(training, float(result.bandwidth().detach()))

    def _keep_curves(self, best: Training, errors: Float[np.ndarray, " starts"]) -> None:
        self.loss_curve_ = np.array(best.losses)
        self.validation_curve_ = np.array(best.validation_losses)
        self.restart_losses_ = errors

    def _keep_smoother(self, rows: Rows, bandwidth: float) -> None:
        X, Y = rows.X.cpu().numpy(), rows.Y.cpu().numpy()
        z = self._index(X)
        # The published algorithm has no such guard.
        gap = 0.0 if self.mode == "per_sample" else median_gap(z)
        if bandwidth < gap:
            warnings.warn(
                f"the bandwidth {bandwidth:.3g} is below the index's median gap and was raised to {gap:.3g}",
                stacklevel=5,
            )
            bandwidth = gap
        order = np.argsort(z, kind="stable")
        self._X = X[order]
        self.smoother_ = IndexSmoother(self.space, z[order], Y[order], bandwidth)
        self.bandwidth_ = bandwidth
        self.fallbacks_ = self.smoother_.fallbacks()
        self.index_range_ = (float(z[order[0]]), float(z[order[-1]]))

    def _index(self, X: Float[np.ndarray, "m k"]) -> Float[np.ndarray, " m"]:
        if hasattr(self, "per_sample_"):
            return self.per_sample_.index(X)
        # One dot product a row: a matrix product may round a row differently in another batch.
        return np.einsum("ij,j->i", X, self.direction_[self.scale_ > 0])

    def _rows(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> Rows:
        # Equal responses have no variance, and then every prediction is perfect.
        variance = frechet_variance(self.space, Y) or 1.0
        return Rows(torch.from_numpy(X).to(self.device), torch.from_numpy(Y).to(self.device), variance)

    def _setting(self, name: str) -> Any:
        value = getattr(self, name)
        return SHARED_DEFAULTS[name] if value is None else value
