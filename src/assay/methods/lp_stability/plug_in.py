"""What the bounds would say if moments measured on random swaps were the true ones: an estimate."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from assay.methods.lp_stability.concentration import radius
from assay.methods.lp_stability.envelopes import DeclaredEnvelope
from assay.methods.lp_stability.moments import norm_interval
from assay.methods.lp_stability.problem import (
    INDEPENDENT,
    NEW_ROWS,
    Problem,
    common_findings,
    constant_risk,
    doubtful_orders,
    hold_out,
    leave_one_out_risk,
)
from assay.methods.lp_stability.rows import FEW_ROWS
from assay.methods.lp_stability.statements import BoundRow, Estimate
from assay.methods.lp_stability.swap_effects import SwapEffects, describe, fingerprint, measure_swaps


def plug_in_estimate(
    problem: Problem,
    why: str,
    inputs: dict[str, str],
    n_pairs: int,
    orders: tuple[float, ...],
    checkpoint: Path | str | None,
    progress: Callable[[int, int], None] | None,
) -> Estimate:
    """Measure swaps and put their moments into the bounds that need averaged stability alone.

    Args:
        why: why there is no certificate.
        inputs: hashes of the rows.
        n_pairs, orders, checkpoint, progress: as in `certify_with_model`.
    """
    losses = problem.loss(problem.y, problem.fits.predictions[: problem.m])
    learner = describe(problem.estimator, problem.loss, problem.y)
    mark = fingerprint(inputs, *learner, len(problem.y_reserve), problem.seed, "certify")
    effects = measure_swaps(
        problem.fits,
        (problem.X, problem.y),
        (problem.X_reserve, problem.y_reserve),
        problem.loss,
        n_pairs=n_pairs,
        seed=problem.seed,
        checkpoint=None if checkpoint is None else (Path(checkpoint), mark),
        progress=progress,
    ).finished()
    risk = float(losses.mean())
    bias = max(0.0, float(effects.own.mean())) if len(effects.own) else 0.0
    measured = {
        float(order): norm_interval(effects.largest, order, seed=problem.seed)
        for order in sorted(orders)
        if len(effects.largest)
    }
    doubtful, note = doubtful_orders(effects.gap, sorted(orders), "the measured changes of the gap")
    table = []
    for order in sorted(orders):
        reason = _too_little(problem, effects, order)
        # Of order 2 the plug-in errs upwards on average (Efron and Stein 1981); higher ones don't.
        if order > 2 and order in doubtful:
            reason = reason or note
        for bound in ("rio", "chebyshev") if order == 2 else ("rio",):
            table.append(_plug_in_row(problem, effects, bound, order, risk + bias, reason))
    best = min(table, key=lambda row: row.upper)
    table += hold_out(problem)
    return Estimate(
        plug_in=best.upper,
        coefficients={order: found[0] for order, found in measured.items()},
        intervals={order: found[1:] for order, found in measured.items()},
        n_pairs=len(effects.largest),
        method_used=problem.fits.name,
        why_no_certificate=why,
        risk_loo=leave_one_out_risk(problem),
        bias=bias,
        table=tuple(table),
        decomposition={"bias": bias},
        assumed=INDEPENDENT,
        over=f"draw of the {problem.m} training rows",
        subject=NEW_ROWS,
        warnings=(note,) if note else (),
        reason=best.reason,
        **common_findings(problem, inputs, risk, constant_risk(problem)),
    )


def _too_little(problem: Problem, effects: SwapEffects, order: float) -> str:
    """Why nothing can be said from so little data; empty where something can."""
    if len(effects.largest) < FEW_ROWS:
        return f"{len(effects.largest)} swaps were measured and at least {FEW_ROWS} are needed"
    if len(problem.y_reserve) < FEW_ROWS:
        return f"the reserve has {len(problem.y_reserve)} rows and needs at least {FEW_ROWS}"
    if problem.m < 2 * order:
        return f"{problem.m} training rows are fewer than twice the order p = {order:g}"
    return ""


def _plug_in_row(
    problem: Problem,
    effects: SwapEffects,
    bound: Literal["rio", "chebyshev"],
    order: float,
    start: float,
    reason: str,
) -> BoundRow:
    """A bound that needs the norms of f - f^(i) alone, with the measured ones in the place of the true
    ones."""
    if reason:
        return BoundRow(f"{bound} (plug-in)", "training risk", math.inf, math.inf, order, reason)
    moment = float(np.mean(np.abs(effects.gap) ** order))
    measured = DeclaredEnvelope({order: moment}, pointwise=False, provenance="estimated")
    found = radius(measured, problem.m, problem.delta, bound=bound, p=order)
    return BoundRow(
        f"{bound} (plug-in)", "training risk", found.value, start + found.value, order, found.reason
    )
