"""`certify`: what can be guaranteed about the risk of a learner, and what can only be estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
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
from assay.methods.lp_stability.label_envelope import LabelEnvelope, LabelSize
from assay.methods.lp_stability.learners import FixedDesign, RandomDesign, match_learner
from assay.methods.lp_stability.losses import Function, Loss, as_loss
from assay.methods.lp_stability.moments import Draw, hill_index, inflate_moment, law_envelope, pair_envelope
from assay.methods.lp_stability.plug_in import plug_in_estimate
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
from assay.methods.lp_stability.refit import fitted_clone
from assay.methods.lp_stability.rows import FEW_ROWS, checked_rows, split_rows
from assay.methods.lp_stability.statements import BoundRow, Certificate, Estimate, hash_rows

# Share of delta that pays for moments estimated under a declared kappa.
MOMENT_SHARE = 0.1
# Pairs that are simulated for a declared law of rows: for the envelope, its stability and its sampling part.
LAW_DRAWS = (1_000_000, 250_000, 100_000)


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
    subject: str = NEW_ROWS
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

    A share of the rows is held out and the estimator is fitted to the rest. If the estimator, the loss and
    the assumptions together have an envelope for every sample, and its moments are declared, the result is a
    `Certificate`. In every other case it is an `Estimate` from random swaps of rows: a different type,
    without an upper bound.

    Args:
        estimator: an unfitted scikit-learn regressor; a clone is fitted.
        X: predictors (n, d).
        y: labels (n,).
        loss: a name (`losses.as_loss`) or an elementwise function of labels and predictions.
        delta: the probability with which the bound may fail.
        assumptions: what is declared about the data and the learner.
        reserve: share of the rows to hold out, at least 30 rows and twice the highest order, at most half of
            all.
        n_pairs: swaps for an estimate.
        p: moment orders for an estimate.
        seed: of the split and of the swaps.
        checkpoint: a file for the partial results of an estimate, from which an interrupted one goes on.

    Raises:
        InputError: an argument or a row is invalid.
        AssumptionViolated: the data contradict what was declared.

    Source: Lei, Bonnerjee, Han and Wu (2026), Theorem 3.4, with the combined envelope 2 beta H + beta' G / m
    in the place of its decoupled terms.
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
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Certificate | Estimate, Any]:
    """`certify`, and the fitted model that its statement speaks of.

    Args:
        progress: called with the swaps measured and the swaps wanted. The rest as in `certify`.
    """
    check_delta(delta)
    assumptions = assumptions or Assumptions()
    loss = as_loss(loss)
    X, y = checked_rows(X, y)
    if not p or min(p) < 2:
        raise InputError(f"p is {p!r}: the moment orders of an estimate are at least 2")
    if not (isinstance(n_pairs, Integral) and n_pairs >= 1):
        raise InputError(f"n_pairs is {n_pairs!r}: pass a whole number of at least 1")
    train, held = split_rows(len(y), reserve, max(FEW_ROWS, math.ceil(2 * max(p))), seed)
    assumptions.check_rows(X, y)
    fitted = fitted_clone(estimator, X[train], y[train])
    fits = perturbable_fits(estimator, X[train], y[train], np.vstack([X[train], X[held]]))
    problem = Problem(
        estimator, fitted, X[train], y[train], X[held], y[held], fits, loss, delta, assumptions, seed
    )
    inputs = hash_rows(X, y)
    learner = match_learner(estimator, fitted, problem.X, problem.y, loss, assumptions)
    gap = learner if isinstance(learner, str) else _gap(problem, learner)
    if isinstance(gap, str):
        return plug_in_estimate(problem, gap, inputs, n_pairs, p, checkpoint, progress), fitted
    return _certificate(problem, gap, inputs), fitted


def _gap(problem: Problem, learner: RandomDesign | FixedDesign) -> _Gap | str:
    """The envelope with its moments, or what is missing."""
    label = problem.assumptions.label_size()
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
            assumed=(INDEPENDENT[1], *learner.assumed, *_label_words(problem.assumptions, "y - E[y|x]")),
            over=f"draw of the {problem.m} training labels, given their predictors",
            subject="for new labels at the training predictors",
            scales=learner.scales,
            stability_scales=learner.stability_scales,
        )
    if label is not None:
        bound = problem.assumptions.x_bound
        envelopes = [_in_labels(effect, bound, label) for effect in learner.effects]
        return _random_gap(problem, learner, envelopes, _label_words(problem.assumptions, "y"))
    if problem.assumptions.row_law is not None:
        return _law_gap(problem, learner, problem.assumptions.row_law)
    if problem.assumptions.kappa is not None:
        return _kappa_gap(problem, learner, problem.assumptions.kappa)
    return "its moments are unknown: declare label_moment, label_law, label_bound, row_law or kappa"


def _in_labels(effect: PairFunction, x_bound: float | None, label: LabelSize) -> LabelEnvelope:
    """The envelope that a pair function implies for the labels alone.

    A row's share of every pair function here is affine in |y| and grows with ||x||, so that two values at the
    bound of ||x|| determine it.
    """
    at_zero, at_one = effect.row_share(np.full((2, 1), x_bound), np.array([0.0, 1.0]))
    return LabelEnvelope(2 * at_zero, at_one - at_zero, label)


def _random_gap(
    problem: Problem,
    learner: RandomDesign,
    envelopes: Sequence[Envelope],
    words: tuple[str, ...],
) -> _Gap:
    envelope, stability, sampling = envelopes
    bias = mean_of(stability) / 2
    return _Gap(
        envelope=envelope,
        stability=stability,
        sampling=sampling,
        bias=bias,
        # One more row moves the learner by at most half of what a swap does, a removal and an insertion.
        size_gap=0.0 if problem.assumptions.monotone_risk else bias,
        conditional=(learner.conditional,) if learner.conditional else (),
        assumed=(*INDEPENDENT, *learner.assumed, *words),
        over=f"draw of the {problem.m} training rows",
    )


def _law_gap(problem: Problem, learner: RandomDesign, draw: Draw) -> _Gap:
    """Simulated moments, of those orders whose standard errors exist."""
    # The parts of the envelope are only shown, so that fewer draws do.
    envelopes = [
        law_envelope(effect, draw, seed=problem.seed, n_draws=n_draws)
        for effect, n_draws in zip(learner.effects, LAW_DRAWS, strict=True)
    ]
    index = hill_index(envelopes[0].pairs)
    orders = tuple(p for p in envelopes[0].orders if 2 * p < index) or (2.0,)
    envelopes = [replace(envelope, orders=orders) for envelope in envelopes]
    gap = _random_gap(problem, learner, envelopes, ("the rows follow the declared law",))
    if 2 * orders[0] < index:
        return gap
    doubt = f"the simulated second moment is accurate, at a tail index of {index:.3g}"
    return replace(gap, conditional=(*gap.conditional, doubt), assumed=(*gap.assumed, doubt))


def _kappa_gap(problem: Problem, learner: RandomDesign, kappa: float) -> _Gap | str:
    """Moments of all pairs of training rows, inflated so that they bound the true ones."""
    effect = learner.effects[0]
    measured = pair_envelope(effect, problem.X, problem.y, seed=problem.seed)
    spent = MOMENT_SHARE * problem.delta
    pairs, share = problem.m // 2, spent / len(measured.orders)
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
    # 2 beta H is at most the whole effect, so that half of its mean bounds the bias without a further
    # estimate.
    bias = mean_of(envelope) / 2
    why = words[0] + " is declared, not known"
    return _Gap(
        envelope=envelope,
        stability=None,
        sampling=None,
        bias=bias,
        size_gap=0.0 if problem.assumptions.monotone_risk else bias,
        conditional=(*((learner.conditional,) if learner.conditional else ()), why),
        assumed=(*INDEPENDENT, *learner.assumed, *words),
        over=f"draw of the {problem.m} training rows",
        delta_moments=spent,
    )


def _certificate(problem: Problem, gap: _Gap, inputs: dict[str, str]) -> Certificate:
    delta = problem.delta - gap.delta_moments
    risk = float(problem.loss(problem.y, problem.fits.predictions[: problem.m]).mean())
    best = radius(gap.envelope, problem.m, delta, scales=gap.scales)
    table = [
        _bound_row(name, found, risk + gap.bias)
        for name, found in radius_table(gap.envelope, problem.m, delta, scales=gap.scales).items()
        if name != "best"
    ]
    risk_loo = leave_one_out_risk(problem)
    upper_loo = None
    if risk_loo is not None and gap.size_gap is not None:
        upper_loo = risk_loo + best.value + gap.size_gap
        table.append(BoundRow(best.bound, "leave-one-out risk", best.value, upper_loo, best.p, best.reason))
    table += hold_out(problem)
    warnings_, conditional = [], list(gap.conditional)
    if note := _beyond_tail_index(problem, best):
        warnings_.append(note)
        conditional.append("a declared moment exists")
    upper = risk + best.value + gap.bias
    constant = constant_risk(problem)
    return Certificate(
        kind="conditional" if conditional else "certificate",
        upper=upper,
        gap=best.value + gap.bias,
        upper_loo=upper_loo,
        delta_moments=gap.delta_moments,
        # Twice a negative risk is no yardstick.
        vacuous=bool(upper > constant + abs(constant)),
        risk_loo=risk_loo,
        bias=gap.bias,
        table=tuple(table),
        decomposition=_decomposition(problem, gap, delta),
        assumed=gap.assumed,
        over=gap.over,
        subject=gap.subject,
        warnings=tuple(warnings_),
        reason=best.reason or ("" if math.isfinite(upper) else "the bias is unknown"),
        **common_findings(problem, inputs, risk, constant),
    )


def _decomposition(problem: Problem, gap: _Gap, delta: float) -> dict[str, float]:
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


def _beyond_tail_index(problem: Problem, best: Radius) -> str:
    """A warning where the labels' tail looks too heavy for the moment that the bound used."""
    assumptions = problem.assumptions
    law_known = assumptions.label_law is not None or assumptions.row_law is not None
    if law_known or assumptions.label_bound is not None or assumptions.fixed_design:
        return ""
    # Bounds without an order of their own use the second moment.
    order = 2.0 if best.p is None else best.p
    labels = np.concatenate([problem.y, problem.y_reserve])
    return doubtful_orders(labels, [order], "the labels")[1]


def _label_words(assumptions: Assumptions, what: str) -> tuple[str, ...]:
    if assumptions.label_law is not None:
        return (f"{what} follows the law {law_text(assumptions.label_law)}",)
    words = [f"E|{what}|^{p:g} <= {value:g}" for p, value in sorted(assumptions.label_moment.items())]
    if assumptions.label_bound is not None:
        words.append(f"|{what}| <= {assumptions.label_bound:g}")
    return tuple(words)
