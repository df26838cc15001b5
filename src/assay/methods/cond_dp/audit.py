"""Audits: how much does the output tell about one label, measured, beside what was promised?

A canary row gets its lowest or its highest label; the mechanism runs many times on each, and a test guesses
from the output which it was. Its error rates, with exact (Clopper-Pearson) intervals, bound epsilon from
below, whatever the mechanism does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import binomtest, norm
from sklearn.base import BaseEstimator, clone

from assay.errors import InputError
from assay.methods.cond_dp.accounting import gaussian_epsilon

# A mechanism's output, boiled down to a number that is larger when the canary has its higher label:
# (label of the canary, generator of the noise) -> score.
Mechanism = Callable[[float, np.random.Generator], float]


@dataclass(frozen=True)
class LabelAudit:
    """What an audit found.

    Args:
        false_positives: share of runs with the lower label in which the test guessed the higher one.
        true_positives: share of runs with the higher label in which it guessed right.
        epsilon_lower: no mechanism with a smaller epsilon (at `delta`) allows such a test, at the confidence
            that was asked for.
        gaussian_epsilon_lower: the same for mechanisms whose privacy is that of a Gaussian release, such as
            full batch DP-SGD: their whole trade-off curve is promised, so that a test with balanced errors
            says much more than at a tiny delta alone.
        gaussian_mu_lower: the mu that belongs to it.
    """

    false_positives: float
    true_positives: float
    epsilon_lower: float
    gaussian_epsilon_lower: float
    gaussian_mu_lower: float


def audit_label_privacy(
    mechanism: Mechanism,
    labels: tuple[float, float],
    *,
    delta: float,
    runs: int = 500,
    pilot_runs: int = 100,
    confidence: float = 0.999,
    seed: int = 0,
) -> LabelAudit:
    """Run a mechanism many times with each of two labels of one row, and test which label it had.

    Pilot runs set the threshold of the test, half-way between the mean scores; other runs measure its errors.

    Args:
        mechanism: see `Mechanism`.
        labels: the lower and the higher label.
        delta: of the guarantee.
        runs: with each label.
        pilot_runs: with each label, beside them.
        confidence: of the lower bounds.
        seed: of the runs.

    Raises:
        InputError: a count is below 1, or the confidence or delta is no probability.

    Source: Jagielski, Ullman and Oprea (2020) for the bound by Clopper-Pearson intervals; Nasr et al. (2023)
        for the one through Gaussian trade-off curves.
    """
    if min(runs, pilot_runs) < 1:
        raise InputError(f"an audit needs runs: runs is {runs}, pilot_runs is {pilot_runs}")
    if not (0 < confidence < 1 and 0 < delta < 1):
        raise InputError(f"confidence is {confidence!r}, delta is {delta!r}: pass numbers between 0 and 1")
    generators = np.random.default_rng(seed).spawn(2 * (runs + pilot_runs))
    scores = np.array([mechanism(labels[i % 2], rng) for i, rng in enumerate(generators)]).reshape(-1, 2)
    threshold = scores[:pilot_runs].mean()
    guesses = scores[pilot_runs:] > threshold
    false, true = int(guesses[:, 0].sum()), int(guesses[:, 1].sum())
    # Two intervals, each of which may fail.
    level = 1 - (1 - confidence) / 2
    false_high = _upper(false, runs, level)
    true_low = 1 - _upper(runs - true, runs, level)
    mu = max(0.0, float(norm.ppf(true_low) - norm.ppf(false_high)))
    return LabelAudit(
        false_positives=false / runs,
        true_positives=true / runs,
        epsilon_lower=max(
            _log_ratio(true_low - delta, false_high), _log_ratio(1 - false_high - delta, 1 - true_low), 0.0
        ),
        gaussian_epsilon_lower=gaussian_epsilon(1 / mu, 1, delta) if mu > 1e-6 else 0.0,
        gaussian_mu_lower=mu,
    )


def regressor_mechanism(
    estimator: BaseEstimator, X: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"], row: int
) -> Mechanism:
    """The mechanism that fits a private regressor and looks at its prediction for the canary's row.

    Args:
        estimator: with a `random_state`.
        X, y: the rows, the canary among them.
        row: the canary's position.
    """

    def score(label: float, rng: np.random.Generator) -> float:
        labels = np.array(y, dtype=float)
        labels[row] = label
        fresh: Any = clone(estimator)
        fresh.set_params(random_state=int(rng.integers(2**32)))
        return float(fresh.fit(X, labels).predict(X[row : row + 1])[0])

    return score


def canary_rows(n: int, d: int, seed: int = 0) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
    """Rows in which the first is a canary: it alone has a value in the first column. Labels are zero."""
    X = np.random.default_rng(seed).standard_normal((n, d))
    X[:, 0] = 0.0
    X[0] = 0.0
    X[0, 0] = math.sqrt(n)
    return X, np.zeros(n)


def _upper(count: int, runs: int, level: float) -> float:
    """The one-sided upper Clopper-Pearson bound of a rate."""
    return float(binomtest(count, runs, alternative="less").proportion_ci(level, method="exact").high)


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 and below > 0 else -math.inf
