"""Choosing hyper-parameters with private data, and counting it.

The budget is divided in the terms of Gaussian differential privacy, where costs add as squares: mu^2 =
mu_tuning^2 + mu_final^2 (Dong, Roth and Su, 2022, Corollary 3.3). The rows are split by a permutation that
does not look at them. Every candidate is trained on one part, and the noisy errors of all candidates on the
other part choose one. A label is in one part only, so that each part may spend the whole of mu_tuning: what
is done with the other part does not touch it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import clone

from assay.errors import InputError
from assay.methods.cond_dp.accounting import epsilon_of_mu, gaussian_mu
from assay.methods.cond_dp.regressors import GradientRegressor
from assay.methods.cond_dp.validation import check_y_range

GRID: Mapping[str, Sequence[Any]] = {"lr": (0.003, 0.01, 0.03), "clip": (0.03, 0.3)}
VALIDATION_SHARE = 0.25


@dataclass(frozen=True)
class Tuning:
    """A private choice among candidates.

    Args:
        chosen: the parameters of the winner.
        candidates: all that took part.
        scores: their noisy validation errors, up to a common constant, for labels mapped to [-1, 1]; private
            like the model.
    """

    chosen: Mapping[str, Any]
    candidates: Sequence[Mapping[str, Any]]
    scores: Float[np.ndarray, " k"]


def candidates_of(grid: Mapping[str, Sequence[Any]] = GRID) -> list[dict[str, Any]]:
    """All combinations of a grid of parameters."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def fit_tuned(
    estimator: GradientRegressor,
    X: Any,
    y: Any,
    *,
    share: float,
    candidates: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[GradientRegressor, Tuning]:
    """Choose among candidates and fit the winner to all rows, for the estimator's (epsilon, delta) in total.

    Args:
        estimator: a regressor that trains on full batches, for `"replace_label"` or `"semi_sensitive"`.
        X, y: features, and labels.
        share: of the squared budget mu^2 for the choice.
        candidates: parameters that differ from the estimator's; None for a grid of learning rates and
            clipping norms.

    Returns:
        The fitted estimator, whose `epsilon` is what was left for the last fit and whose `privacy_` states
        the total; and how the choice went.

    Raises:
        InputError: an argument is invalid, or the choice could not be counted.
    """
    if not (isinstance(share, int | float) and 0 < share < 1):
        raise InputError(f"the tuning budget is {share!r}: pass a share between 0 and 1, e.g. 0.2")
    if estimator.adjacency == "add_remove" or estimator.batch != "full":
        raise InputError(
            "tuning is counted for full batches, and for adjacency replace_label or semi_sensitive only"
        )
    options = candidates_of() if candidates is None else [dict(option) for option in candidates]
    if len(options) < 2:
        raise InputError("there is nothing to choose: pass two candidates or more")
    total = gaussian_mu(float(estimator.epsilon), float(estimator.delta))
    if math.isinf(total):
        raise InputError("without a privacy budget (epsilon is infinite) there is nothing to divide")
    mu_tuning, mu_final = total * math.sqrt(share), total * math.sqrt(1 - share)
    rng = estimator._rng()
    values = np.asarray(X, dtype=float)
    # Checked as everywhere, before anything is spent.
    labels = estimator._labels(y, len(values))
    order = rng.permutation(len(values))
    n_validation = round(VALIDATION_SHARE * len(values))
    if n_validation < 1:
        raise InputError(f"{len(values)} rows are too few to choose with")
    held, used = order[:n_validation], order[n_validation:]
    predictions = np.empty((n_validation, len(options)))
    low, high = check_y_range(estimator.y_range)
    middle, half = (low + high) / 2, (high - low) / 2
    for k, option in enumerate(options):
        trial = _with_mu(estimator, option, mu_tuning / math.sqrt(len(options)), rng)
        trial.fit(_rows(X, used), labels[used])
        predictions[:, k] = np.clip((trial.predict(_rows(X, held)) - middle) / half, -1, 1)
    t = np.clip((labels[held] - middle) / half, -1, 1)
    scores = noisy_errors(predictions, t, mu_tuning, rng, public=estimator.adjacency == "replace_label")
    chosen = options[int(np.argmin(scores))]
    final = _with_mu(estimator, chosen, mu_final, rng).fit(X, labels)
    final.random_state = estimator.random_state
    settings = ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                         for name, value in chosen.items())  # fmt: skip
    public = tuple(
        "the other hyper-parameters" if p == "the hyper-parameters" else p for p in final.privacy_.public
    )
    note = (
        f"The choice of {settings} among {len(options)} candidates used private data and is counted: it had "
        f"{share:.0%} of the squared budget."
    )
    final.privacy_ = replace(
        final.privacy_,
        epsilon={estimator.adjacency: float(estimator.epsilon)},
        public=public,
        notes=(note, *estimator._seed_notes()),
    )
    return final, Tuning(chosen, options, scores)


def noisy_errors(
    predictions: Float[np.ndarray, "n k"],
    t: Float[np.ndarray, " n"],
    mu: float,
    rng: np.random.Generator,
    *,
    public: bool,
) -> Float[np.ndarray, " k"]:
    """Mean squared errors up to a constant, with mu-Gaussian differential privacy for replacing a row's
    secrets.

    With public features, sum f^2 is public and sum t^2 is the same for all; what is left, sum f t, changes by
    at most 2 |f_i| (over the candidates) when label i in [-1, 1] is replaced. Otherwise each squared error
    lies in [0, 4] and may change by as much.

    Args:
        predictions: of each candidate in a column, clipped to [-1, 1].
        t: labels in [-1, 1].
        mu: the budget of all scores together.
        rng: the source of noise.
        public: whether the predictions are, given the candidates.

    Source: ours.
    """
    n, k = predictions.shape
    if public:
        sensitivity = 2 * float(np.sqrt((predictions**2).sum(axis=1).max()))
        products = predictions.T @ t + sensitivity / mu * rng.standard_normal(k)
        return ((predictions**2).sum(axis=0) - 2 * products) / n
    errors = ((predictions - t[:, None]) ** 2).sum(axis=0)
    return (errors + 4 * math.sqrt(k) / mu * rng.standard_normal(k)) / n


def _with_mu(
    estimator: GradientRegressor, option: Mapping[str, Any], mu: float, rng: np.random.Generator
) -> GradientRegressor:
    changed: Any = clone(estimator)
    changed.set_params(**option)
    if hasattr(estimator, "conditioner"):
        # `clone` would forget what a fitted conditioner has learnt.
        changed.conditioner = getattr(estimator, "conditioner", None)
    changed.epsilon = epsilon_of_mu(mu, float(estimator.delta))
    # 512 bits: a single number as seed could be found by trying all of them.
    changed.random_state = np.random.RandomState(rng.integers(2**32, size=16, dtype=np.uint32))
    return changed


def _rows(X: Any, rows: np.ndarray) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
