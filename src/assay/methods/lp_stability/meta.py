"""Meta-learning: the risk on a fresh task of a learner that was set up on m tasks.

The independent units are the m tasks with their samples (T_j, S_j). A meta-learner maps them to a parameter
theta; in a task with sample S the inner learner makes a model from theta and S, with risk R_T(theta, S) on
the task and training risk Remp(theta, S). For the transfer risk R(theta) = E R_T(theta, S) over a fresh task
and its sample,

    R - (1/m) sum_j Remp(theta, S_j)
        = [E Remp(theta, S) - (1/m) sum_j Remp(theta, S_j)] + E[R_T - Remp](theta, S).

The first bracket is the gap of Theorem 3.4 with tasks as rows: it needs stability under the replacement of a
whole task. The second is at most the inner learner's beta E H, for every theta.

Theorem 3.14 of Lei, Bonnerjee, Han and Wu (2026) is printed for the change of one observation within a task,
while its proof replaces a task. Stability within tasks does not suffice (`witnesses.meta_witness`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.lp_stability.concentration import Bound, radius
from assay.methods.lp_stability.envelopes import AssumptionViolated, Envelope
from assay.methods.lp_stability.generalization import GapBound, combine


@dataclass(frozen=True)
class TransferBound:
    """With probability at least 1 - delta over the draw of the tasks with their samples: transfer risk <=
    upper.

    Attributes:
        upper: mean training risk of the tasks plus the gap.
        risk: mean training risk of the tasks.
        gap: of the transfer risk.
        within_bias: the part of the gap that comes from learning within a task.
    """

    upper: float
    risk: float
    gap: GapBound
    within_bias: float


def transfer_gap(
    task_gap: Envelope | Mapping[float, float] | None,
    n_tasks: int,
    delta: float,
    *,
    task_bias: float,
    within_bias: float,
    p: float | Literal["auto"] = "auto",
    bound: Bound = "best",
) -> GapBound:
    """Bound of the transfer risk minus the mean training risk of the tasks (Theorem 3.14, corrected).

    Args:
        task_gap: envelope 2 beta H + beta' G / m for the replacement of one task with its sample by a fresh
            one: beta H bounds the change of Remp(theta, S) for every task sample S, beta' G the difference of
            Remp(theta, .) between two task samples.
        n_tasks: m.
        delta: error probability.
        task_bias: beta E H of the above.
        within_bias: bound of the mean of R_T - Remp within a task, for every theta: the inner beta E H.
        p, bound: as in `radius`.

    Raises:
        AssumptionViolated: `task_gap` is None: stability within tasks alone bounds nothing.
        InputError: a value is out of range.
    """
    if task_gap is None:
        raise AssumptionViolated(
            "task_gap is None: only stability within tasks is given, which does not bound the risk "
            "on a fresh task (two tasks with one possible observation each are perfectly stable within); "
            "give an envelope for the replacement of a whole task"
        )
    if not within_bias >= 0:
        raise InputError(f"within_bias is {within_bias!r}; the bound of a mean gap is a number >= 0")
    if not task_bias >= 0:
        raise InputError(f"task_bias is {task_bias!r}; the bound of a mean gap is a number >= 0")
    found = radius(task_gap, n_tasks, delta, p=p, bound=bound)
    over = f"draw of the {n_tasks} tasks with their samples"
    return combine(found, task_bias + within_bias, "bias", "mean training risk of the tasks", over)


def certify(
    task_risks: Float[np.ndarray, " m"],
    delta: float,
    *,
    task_gap: Envelope | Mapping[float, float] | None,
    task_bias: float,
    within_bias: float,
    p: float | Literal["auto"] = "auto",
    bound: Bound = "best",
) -> TransferBound:
    """Upper bound of the transfer risk from the training risks of the tasks.

    Args:
        task_risks: Remp(theta, S_j) of every task, finite.
        delta, task_gap, task_bias, within_bias, p, bound: as in `transfer_gap`.

    Raises:
        AssumptionViolated: `task_gap` is None.
        InputError: a value is out of range.
    """
    task_risks = np.asarray(task_risks, dtype=float)
    if task_risks.ndim != 1 or task_risks.size == 0 or not np.isfinite(task_risks).all():
        raise InputError(f"task_risks has shape {task_risks.shape}; one finite risk for each task is needed")
    gap = transfer_gap(
        task_gap,
        task_risks.size,
        delta,
        task_bias=task_bias,
        within_bias=within_bias,
        p=p,
        bound=bound,
    )
    risk = float(task_risks.mean())
    return TransferBound(risk + gap.value, risk, gap, within_bias)
