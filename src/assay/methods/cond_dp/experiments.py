"""The trials of Cond-DP's study: one fit, or one comparison of fits, measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import RidgeCV

from assay.methods.cond_dp import audit as audits
from assay.methods.cond_dp import baselines, datasets
from assay.methods.cond_dp.accounting import calibrate
from assay.methods.cond_dp.conditioner import PublicConditioner
from assay.methods.cond_dp.gain import predicted_gain
from assay.methods.cond_dp.ghost_training import Network, NetworkTraining, Switch, train_network
from assay.methods.cond_dp.regressors import CondDPRegressor, DPSGDRegressor

DELTA = 1e-6
ROWS, COLUMNS = 8000, 50
DECAY = 1.5
HIDDEN = (64, 32)
FACTORS = 8
NETWORK_STEPS = 256
# Standardised features: a row's length is about sqrt(d).
ROW_LENGTHS = 1.5
AUDITED_EPSILON = 4.0

Choice = Mapping[str, Any]


def steps(epsilon: float) -> int:
    """The public rule: steps cost accuracy where noise is large."""
    return 64 if epsilon <= 1 else 256


def split(data: str, seed: int, predicted_gain: float | None = None) -> datasets.Split:
    """Training rows and a risk, by the name of the data set."""
    simulated: dict[str, Any] = {"n": ROWS, "d": COLUMNS, "seed": seed}
    match data:
        case "rotated" | "axis":
            return datasets.spectrum_split(
                decay=DECAY, rotated=data == "rotated", alignment="spread", **simulated
            )
        case "aligned":
            return datasets.spectrum_split(decay=DECAY, rotated=True, alignment="top", **simulated)
        case "spectrum":
            if predicted_gain is None:
                raise ValueError("a spectrum needs a predicted_gain")
            decay = datasets.decay_for_gain(predicted_gain, COLUMNS)
            return datasets.spectrum_split(decay=decay, rotated=True, alignment="spread", **simulated)
    return datasets.real_split(data, seed)


def fitted_error(arm: str, choice: Choice, *, seed: int, **setting: Any) -> float:
    """The error of an arm's linear model with these hyper-parameters; infinite when training diverges."""
    rows = split(setting["data"], seed, setting.get("predicted_gain"))
    model: Any = estimator(arm, rows, setting.get("epsilon", math.inf), seed, choice)
    model.fit(rows.X, rows.y)
    return rows.risk(np.ravel(model.coef_), float(model.intercept_))


def estimator(arm: str, rows: datasets.Split, epsilon: float, seed: int, choice: Choice) -> BaseEstimator:
    """The estimator that an arm stands for."""
    shared: dict[str, Any] = {"epsilon": epsilon, "y_range": rows.y_range, "random_state": seed}
    descent = shared | {"delta": DELTA, "epochs": steps(epsilon), **choice}
    match arm:
        case "dpsgd-raw" | "dpsgd":
            return DPSGDRegressor(standardize=arm == "dpsgd", **descent)
        case "cond-raw" | "cond":
            return CondDPRegressor(conditioner=PublicConditioner(standardize=arm == "cond"), **descent)
        case "cond-damped":
            return CondDPRegressor(conditioner=PublicConditioner(gamma=0.1, standardize=True), **descent)
        case "cond-half":
            return CondDPRegressor(conditioner=PublicConditioner(power=0.5, standardize=True), **descent)
        case "label-ssp":
            return baselines.LabelSSPRegressor(delta=DELTA, **shared)
        case "label-noise":
            return baselines.GaussianLabelNoiseRegressor(delta=DELTA, **shared)
        case "rr-on-bins":
            return baselines.RROnBinsRegressor(**shared, **choice)
        case "weighted-llp":
            return baselines.WeightedLLPRegressor(**shared, **choice)
        case "adassp":
            length = ROW_LENGTHS * math.sqrt(rows.X.shape[1] + 1)
            return _Standardised(baselines.AdaSSPRegressor(delta=DELTA, row_norm=length, **shared))
        case "ridge":
            return RidgeCV(alphas=np.logspace(-3, 4, 15))
    raise ValueError(f"unknown arm {arm!r}")


class _Standardised(BaseEstimator):
    """A linear model on features standardised by their own means and deviations, in the features' units."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, X: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"]) -> _Standardised:
        spread = X.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        self.model.fit((X - X.mean(axis=0)) / spread, y)
        self.coef_ = self.model.coef_ / spread
        self.intercept_ = self.model.intercept_ - float(X.mean(axis=0) @ self.coef_)
        return self


@cache
def _tuned() -> dict[str, Choice]:
    text = files("assay.methods.cond_dp").joinpath("tuned.json").read_text(encoding="utf-8")
    return json.loads(text)["choices"]


def cell(arm: str, **setting: Any) -> str:
    """The name of a cell of the tuning table."""
    return " ".join([arm, *(f"{name}={setting[name]}" for name in sorted(setting))])


def tuned(arm: str, **setting: Any) -> Choice:
    """The recorded hyper-parameters of an arm (see `study_tuning`); none for an arm without any."""
    return _tuned().get(cell(arm, **setting), {})


def linear(arm: str, *, seed: int, **setting: Any) -> dict[str, float]:
    """One fit of a linear model."""
    return {"error": fitted_error(arm, tuned(arm, **setting), seed=seed, **setting)}


def gain(*, seed: int, **setting: Any) -> dict[str, float]:
    """Conditioning beside DP-SGD on the same rows: ratios of errors and of what exceeds the noise floor."""
    arms = ("cond", "dpsgd", "dpsgd-raw")
    errors = {arm: fitted_error(arm, tuned(arm, **setting), seed=seed, **setting) for arm in arms}
    excess = {arm: error - datasets.NOISE_VARIANCE for arm, error in errors.items()}
    return {
        "log_error_ratio_standardised": math.log(errors["dpsgd"] / errors["cond"]),
        "log_excess_ratio_raw": math.log(excess["dpsgd-raw"] / excess["cond"]),
        "log_excess_ratio_standardised": math.log(excess["dpsgd"] / excess["cond"]),
    }


def prediction(*, data: str, seed: int) -> dict[str, float]:
    """The predicted gain over standardised DP-SGD, from the labels themselves (a diagnostic, not private).

    The bounds on the excess risk are also proportional to the longest row, which conditioning makes longer
    beside the typical one; `with_lengths` keeps that factor, and can be below 1.
    """
    rows = split(data, seed)
    plain = PublicConditioner(power=0.0, standardize=True).fit(rows.X).transform(rows.X)
    mapped = PublicConditioner(scale=None).fit(plain).transform(plain)
    largest = math.sqrt(float(np.linalg.eigvalsh(plain.T @ plain)[-1]))
    found = predicted_gain(plain, rows.y - rows.y.mean())
    lengths = [float(np.linalg.norm(table, axis=1).max()) for table in (plain / largest, mapped)]
    factor = found.for_labels or math.nan
    return {"predicted": factor, "with_lengths": factor * lengths[0] / lengths[1]}


def identity(*, seed: int) -> dict[str, float]:
    """Cond-DP with C = I beside DP-SGD, with the same noise."""
    rows = split("rotated", seed)
    shared: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "y_range": rows.y_range, "random_state": seed}
    plain = DPSGDRegressor(**shared).fit(rows.X, rows.y)
    same = CondDPRegressor(conditioner=PublicConditioner(power=0.0, standardize=True), **shared)
    same.fit(rows.X, rows.y)
    return {
        "largest_difference": float(np.abs(plain.coef_ - same.coef_).max())
        + abs(plain.intercept_ - same.intercept_),
        "sigma_difference": (plain.privacy_.sigma or 0.0) - (same.privacy_.sigma or 0.0),
    }


def audit(arm: str, *, seed: int, runs: int) -> dict[str, float]:
    """The audited epsilon beyond the reported one, for honest noise or for noise as published."""
    X, y = audits.canary_rows(16, 3, seed)
    settings: dict[str, Any] = {"optimizer": "sgd", "epochs": 4, "lr": 0.01, "y_range": (-1.0, 1.0)}
    if arm == "audit-as-published":
        # The same rows twice stand for a public table with the same features.
        public = PublicConditioner(standardize=True).fit(np.vstack([X, X]))
        settings |= {"adjacency": "add_remove", "conditioner": FrozenEstimator(public)}
    model = CondDPRegressor(epsilon=AUDITED_EPSILON, delta=DELTA, **settings)
    found = audits.audit_label_privacy(
        audits.regressor_mechanism(model, X, y, 0),
        (-1.0, 1.0),
        delta=DELTA,
        runs=runs,
        seed=seed,
    )
    lower = max(found.gaussian_epsilon_lower, found.epsilon_lower)
    return {"epsilon_lower": lower, "beyond_reported": max(0.0, lower - AUDITED_EPSILON)}


def network_error(arm: str, choice: Choice, *, data: str, model: str, epsilon: float, seed: int) -> float:
    """The error of a private network on standardised features, conditioned or not."""
    rows = split(data, seed)
    half = (rows.y_range[1] - rows.y_range[0]) / 2
    middle = rows.y_range[0] + half
    standard = PublicConditioner(power=0.0, standardize=True).fit(rows.X)
    X = standard.transform(rows.X).astype(np.float32)
    conditioner = None
    if not arm.endswith("-dpsgd"):
        fitted = PublicConditioner().fit(X.astype(np.float64))
        conditioner = (fitted.ratio_ * fitted.matrix_).astype(np.float32)
    switch = None
    if arm.endswith("-switch"):
        switch = Switch(step=round(choice["switch_at"] * NETWORK_STEPS), lr=choice["lr_after"])
    rng = np.random.default_rng([13, seed])
    sizes = [X.shape[1], *HIDDEN, 1] if model == "mlp" else [X.shape[1], 1 + FACTORS]
    network = Network.initialised(sizes, rng)
    training = NetworkTraining(
        steps=NETWORK_STEPS,
        lr=choice["lr"],
        clip=choice["clip"],
        sigma=calibrate(epsilon, DELTA, NETWORK_STEPS),
        switch=switch,
    )
    t = ((np.clip(rows.y, *rows.y_range) - middle) / half).astype(np.float32)
    train_network(
        network, X, t, training, lambda shape: rng.standard_normal(shape, dtype=np.float32), conditioner
    )
    predicted = network.predict(standard.transform(rows.X_test).astype(np.float32)) * half + middle
    return datasets.relative_error(predicted.astype(float), rows.y_test)


def network(arm: str, *, seed: int, **setting: Any) -> dict[str, float]:
    """One private network."""
    return {"error": network_error(arm, tuned(arm, **setting), seed=seed, **setting)}
