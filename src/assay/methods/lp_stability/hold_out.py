"""What the held-out rows alone say of the risk: printed beside every statement, and mostly tighter."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.methods.lp_stability import baselines
from assay.methods.lp_stability.assumptions import Assumptions
from assay.methods.lp_stability.losses import Loss
from assay.methods.lp_stability.statements import BoundRow

HEAVY = ("second moment", "median of means", "Catoni")
BOUNDED = ("Hoeffding", "empirical Bernstein", "betting")


def hold_out_rows(
    fitted: Any,
    loss: Loss,
    predictions: Float[np.ndarray, " r"],
    labels: Float[np.ndarray, " r"],
    delta: float,
    assumptions: Assumptions,
) -> list[BoundRow]:
    """Upper bounds of the risk of the fitted model from rows that it has not seen.

    A linear model with ||w|| known and ||x|| <= x_bound has losses of at most L (|y| + ||w|| x_bound + |b|),
    so that what is declared of |y| bounds them or their second moment. Each bound holds at the confidence 1 -
    delta by itself.
    """
    largest, second_moment, reason = _loss_size(fitted, loss, assumptions)
    losses = loss(labels, predictions)
    mean = float(losses.mean())
    methods = {
        "second moment": partial(baselines.hold_out_second_moment, second_moment=second_moment),
        "median of means": partial(baselines.hold_out_median_of_means, variance=second_moment),
        "Catoni": partial(baselines.hold_out_catoni, variance=second_moment),
        "Hoeffding": partial(baselines.hold_out_hoeffding, loss_bound=largest),
        "empirical Bernstein": partial(baselines.hold_out_empirical_bernstein, loss_bound=largest),
        "betting": partial(baselines.hold_out_betting, loss_bound=largest),
    }
    if math.isinf(second_moment):
        return [BoundRow("hold-out", "hold-out", math.inf, math.inf, reason=reason)]
    rows = []
    for name in (*HEAVY, *(BOUNDED if math.isfinite(largest) else ())):
        found = methods[name](losses, delta)
        rows.append(BoundRow(name, "hold-out", found.upper - mean, found.upper, reason=found.reason))
    return rows


def _loss_size(fitted: Any, loss: Loss, assumptions: Assumptions) -> tuple[float, float, str]:
    """The largest loss and the second moment of the loss, or why nothing is known of them."""
    label = assumptions.label_size()
    coefficients = np.asarray(getattr(fitted, "coef_", np.nan), dtype=float)
    if assumptions.fixed_design:
        return math.inf, math.inf, "the statement is about new labels, hold-out rows are about new rows"
    if loss.lipschitz is None:
        return math.inf, math.inf, f"the loss {loss.name!r} has no known Lipschitz constant"
    if label is None or assumptions.x_bound is None:
        return math.inf, math.inf, "declare x_bound, and label_moment, label_law or label_bound"
    if coefficients.ndim != 1 or not np.isfinite(coefficients).all():
        return math.inf, math.inf, "only the losses of linear models are bounded by what is declared"
    reach = float(np.linalg.norm(coefficients)) * assumptions.x_bound
    reach += abs(float(np.squeeze(getattr(fitted, "intercept_", 0.0))))
    norm = math.exp(label.log_moments(2.0) / 2) if label.log_moments(2.0) < math.inf else math.inf
    second_moment = (loss.lipschitz * (norm + reach)) ** 2
    reason = "E|y|^2 is infinite or unknown" if math.isinf(second_moment) else ""
    return loss.lipschitz * (label.bound + reach), second_moment, reason
