"""`certify`: what can be guaranteed about the risk of a learner, and what can only be estimated."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.lp_stability.analytic import PairFunction
from assay.methods.lp_stability.assumptions import Assumptions, law_text
from assay.methods.lp_stability.concentration import Radius, check_delta, radius, radius_table
from assay.methods.lp_stability.envelopes import DeclaredEnvelope, Envelope
from assay.methods.lp_stability.fits import perturbable_fits
from assay.methods.lp_stability.generalization import mean_of
from assay.methods.lp_stability.hold_out import hold_out_rows
from assay.methods.lp_stability.label_envelope import LabelEnvelope, LabelSize
from assay.methods.lp_stability.learners import FixedDesign, RandomDesign, match_learner
from assay.methods.lp_stability.losses import Function, Loss, as_loss
from assay.methods.lp_stability.moments import (
    MomentWarning,
    hill_index,
    inflate_moment,
    law_envelope,
    norm_interval,
    pair_envelope,
)
from assay.methods.lp_stability.replace_one import Perturbable
from assay.methods.lp_stability.rows import FEW_ROWS, checked_rows, split_rows
from assay.methods.lp_stability.statements import BoundRow, Certificate, Estimate, hash_rows
from assay.methods.lp_stability.swap_effects import SwapEffects, fingerprint, measure_swaps

# Share of delta that pays for moments estimated under a declared kappa.
MOMENT_SHARE = 0.1
# A moment beyond this share of the tail index cannot be trusted.
TRUSTED_SHARE = 0.8
INDEPENDENT = "the rows are independent draws from one law"


@dataclass(frozen=True)
class _Problem:
    """The rows after the split, the learner on them, and what was asked."""

    estimator: Any
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


@dataclass(frozen=True)
class _Gap:
    """The envelope of risk - training risk, its parts, and the bias; what a certificate is made of."""

    envelope: Envelope
    stability: Envelope | None
    sampling: Envelope | None
    bias: float
    size_gap: float | None
    conditional: tuple[str, ...]
    assumed: tuple[str, ...]
    over: str
    delta_moments: float = 0.0
    scales: Float[np.ndarray, " m"] | None = None
    stability_scales: Float[np.ndarray, " m"] | None = None


def certify(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    loss: str | Loss | Function = "absolute",
    delta: float = 0.05,
    assumptions: Assumptions | None = None,
    reserve: float = 0.2,
    n_pairs: int = 200,
    p: tuple[float, ...] = (2.0, 3.0, 4.0),
    seed: int = 0,
    checkpoint: Path | str | None = None,
) -> Certificate | Estimate:
    """Bound the risk of a learner from its training rows, without a bound of the loss.

    A share of the rows is held out and the estimator is fitted to the rest. If the estimator, the loss and the
    assumptions together have an envelope for every sample, and its moments are declared, the result is a `Certificate`.
    In every other case it is an `Estimate` from random swaps of rows: a different type, without an upper bound.

    Args:
        estimator: an unfitted scikit-learn regressor; a clone is fitted.
        X: predictors (n, d).
        y: labels (n,).
        loss: a name (`losses.as_loss`) or an elementwise function of labels and predictions.
        delta: the probability with which the bound may fail.
        assumptions: what is declared about the data and the learner.
        reserve: share of the rows to hold out, at least 30 rows and twice the highest order, at most half of all.
        n_pairs: swaps for an estimate.
        p: moment orders for an estimate.
        seed: of the split and of the swaps.
        checkpoint: a file for the partial results of an estimate, from which an interrupted one goes on.

    Raises:
        InputError: an argument or a row is invalid.
        AssumptionViolated: the data contradict what was declared.

    Source: Lei, Bonnerjee, Han and Wu (2026), Theorem 3.4, with the combined envelope 2 beta H + beta' G / m in the
        place of its decoupled terms.
    """
    return certify_with_model(
        estimator,
        X,
        y,
        loss=loss,
        delta=delta,
        assumptions=assumptions,
        reserve=reserve,
        n_pairs=n_pairs,
        p=p,
        seed=seed,
        checkpoint=checkpoint,
    )[0]


def certify_with_model(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    loss: str | Loss | Function = "absolute",
    delta: float = 0.05,
    assumptions: Assumptions | None = None,
    reserve: float = 0.2,
    n_pairs: int = 200,
    p: tuple[float, ...] = (2.0, 3.0, 4.0),
    seed: int = 0,
    checkpoint: Path | str | None = None,
) -> tuple[Certificate | Estimate, Any]:
    """`certify`, and the fitted model that its statement speaks of."""
    check_delta(delta)
    assumptions = assumptions or Assumptions()
    loss = as_loss(loss)
    X, y = checked_rows(X, y)
    if not p or min(p) < 2:
        raise InputError(f"p is {p!r}: the moment orders of an estimate are at least 2")
    if n_pairs < 1:
        raise InputError(f"n_pairs is {n_pairs!r}: at least one swap is needed")
    train, held = split_rows(len(y), reserve, max(FEW_ROWS, math.ceil(2 * max(p))), seed)
    assumptions.check_rows(X, y)
    from sklearn.base import clone

    fitted = clone(estimator).fit(X[train], y[train])
    fits = perturbable_fits(estimator, X[train], y[train], np.vstack([X[train], X[held]]))
    problem = _Problem(estimator, X[train], y[train], X[held], y[held], fits, loss, delta, assumptions, seed)
    inputs = hash_rows(X, y)
    learner = match_learner(estimator, fitted, problem.X, problem.y, loss, assumptions)
    gap = learner if isinstance(learner, str) else _gap(problem, learner)
    if isinstance(gap, str):
        return _estimate(problem, gap, inputs, n_pairs, p, checkpoint), fitted
    return _certificate(problem, gap, inputs), fitted


def _gap(problem: _Problem, learner: RandomDesign | FixedDesign) -> _Gap | str:
    """The envelope with its moments, or what is missing."""
    label = problem.assumptions.label_size()
    missing = "its moments are unknown: declare label_moment, label_law, label_bound, row_law or kappa"
    if isinstance(learner, FixedDesign):
        if label is None:
            return "the noise is unknown: declare label_moment, label_law or label_bound of y - E[y|x]"
        difference = LabelEnvelope(0.0, 1.0, label, difference=True)
        return _Gap(
            envelope=difference,
            stability=difference,
            sampling=None,
            bias=learner.bias * mean_of(difference),
            size_gap=None,
            conditional=(),
            assumed=(*learner.assumed, *_label_words(problem.assumptions, "y - E[y|x]")),
            over=f"draw of the {problem.m} training labels, given their predictors",
            scales=learner.scales,
            stability_scales=learner.stability_scales,
        )
    if label is not None:
        bound = problem.assumptions.x_bound
        envelopes = [_in_labels(effect, bound, label) for effect in learner.effects]
        return _random_gap(problem, learner, *envelopes, _label_words(problem.assumptions, "y"))
    if problem.assumptions.row_law is not None:
        envelopes = [law_envelope(effect, problem.assumptions.row_law) for effect in learner.effects]
        return _random_gap(problem, learner, *envelopes, ("the rows follow the declared law",))
    if problem.assumptions.kappa is not None:
        return _kappa_gap(problem, learner, problem.assumptions.kappa)
    return missing


def _in_labels(effect: PairFunction, x_bound: float | None, label: LabelSize) -> LabelEnvelope:
    """The envelope that a pair function implies for the labels alone.

    A row's share of every pair function here is affine in |y| and grows with ||x||, so that two values at the bound
    of ||x|| determine it.
    """
    at_zero, at_one = effect.row_share(np.full((2, 1), x_bound), np.array([0.0, 1.0]))
    return LabelEnvelope(2 * at_zero, at_one - at_zero, label)


def _random_gap(
    problem: _Problem,
    learner: RandomDesign,
    envelope: Envelope,
    stability: Envelope,
    sampling: Envelope,
    words: tuple[str, ...],
) -> _Gap:
    bias = mean_of(stability) / 2
    return _Gap(
        envelope=envelope,
        stability=stability,
        sampling=sampling,
        bias=bias,
        # One more row moves the learner by at most half of what a swap does, a removal and an insertion.
        size_gap=0.0 if problem.assumptions.monotone_risk else bias,
        conditional=(learner.conditional,) if learner.conditional else (),
        assumed=(INDEPENDENT, *learner.assumed, *words),
        over=f"draw of the {problem.m} training rows",
    )


def _kappa_gap(problem: _Problem, learner: RandomDesign, kappa: float) -> _Gap | str:
    """Moments of all pairs of training rows, inflated so that they bound the true ones."""
    effect = learner.effects[0]
    measured = pair_envelope(effect, problem.X, problem.y, seed=problem.seed)
    spent = MOMENT_SHARE * problem.delta
    pairs, share = measured.independent, spent / len(measured.orders)
    inflated = {
        order: inflate_moment(math.exp(measured.log_moments(order)), pairs, kappa, share)
        for order in measured.orders
    }
    inflated = {order: value for order, value in inflated.items() if math.isfinite(value)}
    words = (f"E H^(2p) <= {kappa:g} (E H^p)^2 for the swap effect H",)
    if not inflated:
        return (
            f"kappa={kappa:g} is too large for {pairs} independent pairs of rows: "
            "more rows, or a smaller kappa, bound the moments"
        )
    envelope = DeclaredEnvelope(inflated, provenance="analytic")
    # 2 beta H is at most the whole effect, so that half of its mean bounds the bias without a further estimate.
    bias = mean_of(envelope) / 2
    why = words[0] + " is declared, not known"
    return _Gap(
        envelope=envelope,
        stability=None,
        sampling=None,
        bias=bias,
        size_gap=0.0 if problem.assumptions.monotone_risk else bias,
        conditional=(*((learner.conditional,) if learner.conditional else ()), why),
        assumed=(INDEPENDENT, *learner.assumed, *words),
        over=f"draw of the {problem.m} training rows",
        delta_moments=spent,
    )


def _certificate(problem: _Problem, gap: _Gap, inputs: dict[str, str]) -> Certificate:
    delta = problem.delta - gap.delta_moments
    risk = float(problem.loss(problem.y, problem.fits.predictions[: problem.m]).mean())
    best = radius(gap.envelope, problem.m, delta, scales=gap.scales)
    table = [
        _bound_row(name, found, risk + gap.bias)
        for name, found in radius_table(gap.envelope, problem.m, delta, scales=gap.scales).items()
        if name != "best"
    ]
    risk_loo = _leave_one_out_risk(problem)
    upper_loo = None
    if risk_loo is not None and gap.size_gap is not None:
        upper_loo = risk_loo + best.value + gap.size_gap
        table.append(BoundRow(best.bound, "leave-one-out risk", best.value, upper_loo, best.p, best.reason))
    table += hold_out_rows(
        problem.loss,
        problem.fits.predictions[problem.m :],
        problem.y_reserve,
        problem.delta,
        problem.assumptions,
    )
    warnings_, conditional = [], list(gap.conditional)
    if note := _beyond_tail_index(problem, best):
        warnings_.append(note)
        conditional.append("a declared moment exists")
    upper = risk + best.value + gap.bias
    constant = _constant_risk(problem)
    return Certificate(
        kind="conditional" if conditional else "certificate",
        upper=upper,
        gap=best.value + gap.bias,
        upper_loo=upper_loo,
        delta_moments=gap.delta_moments,
        vacuous=bool(upper > 2 * constant),
        risk_loo=risk_loo,
        bias=gap.bias,
        table=tuple(table),
        decomposition=_decomposition(problem, gap, delta),
        assumed=gap.assumed,
        over=gap.over,
        warnings=tuple(warnings_),
        reason=best.reason or ("" if math.isfinite(upper) else "the bias is unknown"),
        **_common(problem, inputs, risk, constant),
    )


def _common(problem: _Problem, inputs: dict[str, str], risk: float, constant: float) -> dict[str, Any]:
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


def _decomposition(problem: _Problem, gap: _Gap, delta: float) -> dict[str, float]:
    """The radius of each part of the envelope alone; they don't add up to the radius of the whole."""
    parts = {"bias": gap.bias}
    if gap.stability is not None:
        scales = gap.stability_scales
        parts["stability"] = radius(gap.stability, problem.m, delta, scales=scales).value
    if gap.sampling is not None:
        parts["sampling"] = radius(gap.sampling, problem.m, delta).value
    elif gap.scales is not None:
        lipschitz = gap.scales - gap.stability_scales
        parts["sampling"] = radius(gap.envelope, problem.m, delta, scales=lipschitz).value
    return parts


def _bound_row(name: str, found: Radius, start: float) -> BoundRow:
    return BoundRow(name, "training risk", found.value, start + found.value, found.p, found.reason)


def _leave_one_out_risk(problem: _Problem) -> float | None:
    try:
        left_out = problem.fits.leave_one_out()
    except InputError:
        # Too few rows to leave one out.
        return None
    return None if left_out is None else float(problem.loss(problem.y, left_out).mean())


def _constant_risk(problem: _Problem) -> float:
    """Training risk of the best constant among the mean and the quantiles of the labels."""
    constants = [problem.y.mean(), *np.quantile(problem.y, np.linspace(0, 1, 41))]
    return min(float(problem.loss(problem.y, np.full(problem.m, value)).mean()) for value in constants)


def _beyond_tail_index(problem: _Problem, best: Radius) -> str:
    """A warning where the labels' tail looks too heavy for the moment that the bound used."""
    assumptions = problem.assumptions
    law_known = assumptions.label_law is not None or assumptions.row_law is not None
    if law_known or assumptions.label_bound is not None or assumptions.fixed_design or best.p is None:
        return ""
    return _tail_note(np.abs(np.concatenate([problem.y, problem.y_reserve])), best.p, "the labels")


def _tail_note(sizes: Float[np.ndarray, " n"], p: float, what: str) -> str:
    index = hill_index(sizes) if len(sizes) >= FEW_ROWS else math.inf
    if p <= TRUSTED_SHARE * index:
        return ""
    note = (
        f"the order p = {p:g} is above {TRUSTED_SHARE:g} of the tail index {index:.3g} that {what} show "
        "(Hill's estimate): such a moment may be infinite"
    )
    warnings.warn(note, MomentWarning, stacklevel=4)
    return note


def _label_words(assumptions: Assumptions, what: str) -> tuple[str, ...]:
    if assumptions.label_law is not None:
        return (f"{what} follows the law {law_text(assumptions.label_law)}",)
    words = [f"E|{what}|^{p:g} <= {value:g}" for p, value in sorted(assumptions.label_moment.items())]
    if assumptions.label_bound is not None:
        words.append(f"|{what}| <= {assumptions.label_bound:g}")
    return tuple(words)


def _estimate(
    problem: _Problem,
    why: str,
    inputs: dict[str, str],
    n_pairs: int,
    orders: tuple[float, ...],
    checkpoint: Path | str | None,
) -> Estimate:
    mark = fingerprint(inputs, repr(problem.estimator), problem.loss.name, problem.seed, "certify")
    effects = measure_swaps(
        problem.fits,
        (problem.X, problem.y),
        (problem.X_reserve, problem.y_reserve),
        problem.loss,
        n_pairs=n_pairs,
        seed=problem.seed,
        checkpoint=None if checkpoint is None else (Path(checkpoint), mark),
    ).finished()
    risk = float(problem.loss(problem.y, problem.fits.predictions[: problem.m]).mean())
    bias = max(0.0, float(effects.own.mean())) if len(effects.own) else 0.0
    measured = {
        float(order): norm_interval(effects.largest, order, seed=problem.seed)
        for order in sorted(orders)
        if len(effects.largest)
    }
    table, notes = [], []
    for order in sorted(orders):
        reason = _too_little(problem, effects, order)
        if not reason and (note := _tail_note(np.abs(effects.gap), order, "the measured changes of the gap")):
            notes.append(note)
            reason = note
        for bound in ("rio", "chebyshev") if order == 2 else ("rio",):
            table.append(_plug_in_row(problem, effects, bound, order, risk + bias, reason))
    best = min(table, key=lambda row: row.upper)
    table += hold_out_rows(
        problem.loss,
        problem.fits.predictions[problem.m :],
        problem.y_reserve,
        problem.delta,
        problem.assumptions,
    )
    return Estimate(
        plug_in=best.upper,
        coefficients={order: found[0] for order, found in measured.items()},
        intervals={order: found[1:] for order, found in measured.items()},
        n_pairs=len(effects.largest),
        method_used=problem.fits.name,
        why_no_certificate=why,
        risk_loo=_leave_one_out_risk(problem),
        bias=bias,
        table=tuple(table),
        decomposition={"bias": bias},
        assumed=(INDEPENDENT,),
        over=f"draw of the {problem.m} training rows",
        warnings=tuple(notes),
        reason=best.reason,
        **_common(problem, inputs, risk, _constant_risk(problem)),
    )


def _too_little(problem: _Problem, effects: SwapEffects, order: float) -> str:
    """Why nothing can be said from so little data; empty where something can."""
    if len(effects.largest) < FEW_ROWS:
        return f"{len(effects.largest)} swaps were measured and at least {FEW_ROWS} are needed"
    if len(problem.y_reserve) < FEW_ROWS:
        return f"the reserve has {len(problem.y_reserve)} rows and needs at least {FEW_ROWS}"
    if problem.m < 2 * order:
        return f"{problem.m} training rows are fewer than twice the order p = {order:g}"
    return ""


def _plug_in_row(
    problem: _Problem, effects: SwapEffects, bound: Any, order: float, start: float, reason: str
) -> BoundRow:
    """A bound that needs the norms of f - f^(i) alone, with the measured ones in the place of the true ones."""
    if reason:
        return BoundRow(f"{bound} (plug-in)", "training risk", math.inf, math.inf, order, reason)
    moment = float(np.mean(np.abs(effects.gap) ** order))
    measured = DeclaredEnvelope({order: moment}, pointwise=False, provenance="estimated")
    found = radius(measured, problem.m, problem.delta, bound=bound, p=order)
    return BoundRow(
        f"{bound} (plug-in)", "training risk", found.value, start + found.value, order, found.reason
    )
