"""What certificates and estimates have in common: the learner on its rows, and the facts that both report."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.lp_stability.assumptions import Assumptions
from assay.methods.lp_stability.hold_out import hold_out_rows
from assay.methods.lp_stability.losses import Loss
from assay.methods.lp_stability.moments import MomentWarning, hill_index
from assay.methods.lp_stability.replace_one import Perturbable
from assay.methods.lp_stability.rows import FEW_ROWS
from assay.methods.lp_stability.statements import BoundRow

# A moment beyond this share of the tail index cannot be trusted.
TRUSTED_SHARE = 0.8
NEW_ROWS = "for new rows"
INDEPENDENT = (
    "the rows are independent draws from one law",
    "the learner and all constants were fixed without these rows",
)


@dataclass(frozen=True)
class Problem:
    """The rows after the split, the learner on them, and what was asked."""

    estimator: Any
    fitted: Any
    X: Float[np.ndarray, "m d"]
    y: Float[np.ndarray, " m"]
    X_reserve: Float[np.ndarray, "r d"]
    y_reserve: Float[np.ndarray, " r"]
    fits: Perturbable
    loss: Loss
    delta: float
    assumptions: Assumptions
    seed: int

    @property
    def m(self) -> int:
        return len(self.y)


def common_findings(problem: Problem, inputs: dict[str, str], risk: float, constant: float) -> dict[str, Any]:
    """The fields of `Findings` that don't depend on the kind of statement."""
    return {
        "estimator": repr(problem.estimator),
        "loss": problem.loss.name,
        "delta": problem.delta,
        "m": problem.m,
        "n_reserve": len(problem.y_reserve),
        "risk_emp": risk,
        "risk_constant": constant,
        "declared": problem.assumptions.declared(),
        "inputs": inputs,
        "seed": problem.seed,
    }


def hold_out(problem: Problem) -> list[BoundRow]:
    """The hold-out bounds of the fitted model."""
    predictions = problem.fits.predictions[problem.m :]
    return hold_out_rows(
        problem.fitted, problem.loss, predictions, problem.y_reserve, problem.delta, problem.assumptions
    )


def leave_one_out_risk(problem: Problem) -> float | None:
    """Mean loss of the predictions for each training row without it; None where no shortcut gives them."""
    try:
        left_out = problem.fits.leave_one_out()
    except InputError:
        # Too few rows to leave one out.
        return None
    return None if left_out is None else float(problem.loss(problem.y, left_out).mean())


def constant_risk(problem: Problem) -> float:
    """Training risk of the best constant among the mean and the quantiles of the labels."""
    constants = [problem.y.mean(), *np.quantile(problem.y, np.linspace(0, 1, 41))]
    return min(float(problem.loss(problem.y, np.full(problem.m, value)).mean()) for value in constants)


def doubtful_orders(
    sample: Float[np.ndarray, " n"], orders: Sequence[float], what: str
) -> tuple[list[float], str]:
    """The orders whose moments a sample's tail puts in doubt, and a warning, which is issued too."""
    index = hill_index(np.abs(sample)) if np.count_nonzero(sample) >= FEW_ROWS else math.inf
    doubtful = [p for p in orders if p > TRUSTED_SHARE * index]
    if not doubtful:
        return [], ""
    note = (
        f"p = {', '.join(f'{p:g}' for p in doubtful)} is above {TRUSTED_SHARE:g} of the tail index "
        f"{index:.3g} that {what} show (Hill's estimate): such a moment may be infinite"
    )
    warnings.warn(note, MomentWarning, stacklevel=5)
    return doubtful, note
