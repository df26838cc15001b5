"""What each part of the study measures: functions of an arm, a setting and a seed.

Bounds are compared at equal information. Where a measurement is named `x@0.01`, 0.01 is the error
probability.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import optimize, stats

from assay.methods.lp_stability import baselines, populations, simulate, transductive
from assay.methods.lp_stability.concentration import radius, tail
from assay.methods.lp_stability.envelopes import DeclaredEnvelope, Envelope, FiniteEnvelope
from assay.methods.lp_stability.generalization import decoupled_erm_tail, mean_of
from assay.methods.lp_stability.laws import LawEnvelope
from assay.methods.lp_stability.witnesses import GaussianMean

Measured = dict[str, float]
DELTAS = (0.1, 0.01)
# Samples in one trial. Without an exceedance in a batch of 100 samples, which has the probability c^100 for a
# bound of coverage c, a trial counts as covered: an exact binary measurement of a bound that should cover 99
# %.
BATCH = 100
HELD_OUT = 0.2
SIMULATED_VARIABLES = 4_000_000
LARGEST_SIMULATION = 20_000


def student_mean(arm: str, *, nu: float, n: int, delta: float) -> Measured:
    """A bound's two-sided radius for the mean of n t_nu variables, beside the exact quantile of |mean|."""
    envelope = _swap(nu)
    found = _radius(arm, envelope, n, delta, sided=2)
    truth = simulate.mean_quantile(delta, nu, n)
    value = found / n
    measured = {
        "radius": value,
        "truth": truth,
        "ratio": value / truth,
        "excess": max(0.0, simulate.mean_tail(value, nu, n) / delta - 1) if math.isfinite(value) else 0.0,
    }
    if nu > 2:
        chebyshev = radius(envelope, n, delta, bound="chebyshev", sided=2).value / n
        measured["over_chebyshev"] = max(0.0, value / chebyshev - 1)
    return measured


def student_truth(arm: str, *, nu: float, n: int, seed: int) -> Measured:
    """How often simulated means are beyond the exact 90 % quantile of |mean|, and their own quantiles."""
    quantile = simulate.mean_quantile(0.1, nu, n)
    if arm == "inversion":
        return {"exceedance": simulate.mean_tail(quantile, nu, n)}
    rng = np.random.default_rng(seed)
    draws = min(LARGEST_SIMULATION, SIMULATED_VARIABLES // n)
    # A million variables at a time.
    block = max(1, 1_000_000 // n)
    means = [
        rng.standard_t(nu, size=(min(block, draws - start), n)).mean(axis=1)
        for start in range(0, draws, block)
    ]
    sizes = np.abs(np.concatenate(means))
    return {"exceedance": float(np.mean(sizes > quantile))} | {
        f"quantile@{delta:g}": float(np.quantile(sizes, 1 - delta)) for delta in DELTAS
    }


def rate_in_n(arm: str, *, nu: float) -> Measured:
    """The exponent of n in a radius at delta = 0.01, for n from 10^4 to 10^6, against -1/2."""
    sizes = np.array([10_000, 100_000, 1_000_000])
    values = [_radius(arm, _swap(nu), int(n), 0.01, sided=2) / n for n in sizes]
    slope = float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
    return {"exponent": slope, "distance": slope + 0.5}


@lru_cache(maxsize=16)
def _swap(nu: float) -> simulate.StudentSwap:
    return simulate.StudentSwap(nu)


def one_large_jump(arm: str, *, p: float, z: float) -> Measured:
    """The tail bound over the true tail for ten units that are -1 or 1 and, with probability b^-p, b = 2z.

    E H^2 and E H^p hardly change with z, and for z >= 30 the sum is that far from its mean exactly when a
    unit is b.
    """
    units, b = 10, 2 * z
    q = b**-p
    values = np.array([-1.0, 1.0, b])
    envelope = FiniteEnvelope(np.abs(values[:, None] - values), np.array([(1 - q) / 2, (1 - q) / 2, q]))
    truth = -math.expm1(units * math.log1p(-q))
    level: Any = "moments" if arm == "optimised" else "auto"
    name: Any = arm
    bound = tail(z, envelope, units, p=p, bound=name, sided=2, level=level)
    return {"ratio": bound / truth, "tail": bound, "truth": truth}


def growth_with_jumps(arm: str, *, p: float) -> Measured:
    """The power of z with which the ratio of `one_large_jump` grows, for z from 10^4 to 10^8."""
    distances = np.geomspace(1e4, 1e8, 5)
    ratios = [one_large_jump(arm, p=p, z=float(z))["ratio"] for z in distances]
    power = float(np.polyfit(np.log(distances), np.log(ratios), 1)[0])
    return {"power": power, "growth": max(0.0, power), "short_of_one": max(0.0, 0.95 - power)}


def gaussian_mean(arm: str, *, m: int, delta: float) -> Measured:
    """Bounds of |mean of m standard normals| above its mean, which only moments of H can give."""
    witness = GaussianMean(m)
    if arm == "bousquet-elisseeff":
        value = baselines.bousquet_elisseeff(math.inf, m, delta, loss_bound=math.inf)
    else:
        law = LawEnvelope(pair=stats.halfnorm(scale=witness.envelope_norm()))
        value = _radius(arm, law, m, delta)
    truth = float(stats.halfnorm.isf(delta, scale=m**-0.5)) - math.sqrt(2 / (math.pi * m))
    return {
        "radius": value,
        "truth": truth,
        "infinite": float(math.isinf(value)),
        "finite": float(math.isfinite(value)),
        "short": max(0.0, truth - value),
    }


def ball_ridge(arm: str, *, noise: Any, m: int, strong_convexity: float, seed: int) -> Measured:
    """Risk bounds of ridge in a ball for a batch of samples whose true risks are known."""
    problem = _problem(noise, m, strong_convexity)
    if arm == "hold-out":
        draws = _ridge_draws(problem, seed, HELD_OUT)
        measured, n = draws.held_out, round(HELD_OUT * m)
        values = {delta: _hold_out_radius(n, delta, _loss_square(problem)) for delta in DELTAS}
    else:
        draws = _ridge_draws(problem, seed, 0.0)
        measured = draws.training_risk
        values = {delta: _ridge_value(arm, problem, delta) for delta in DELTAS}
    return _summary(measured, draws.risk, values, draws.constant_risk)


@lru_cache(maxsize=16)
def _problem(noise: Any, m: int, strong_convexity: float) -> simulate.BallRidgeProblem:
    return simulate.BallRidgeProblem(noise, m, strong_convexity)


@lru_cache(maxsize=4)
def _ridge_draws(problem: simulate.BallRidgeProblem, seed: int, hold_out: float) -> simulate.RidgeDraws:
    return problem.draw(BATCH, seed, hold_out)


def _loss_square(problem: simulate.BallRidgeProblem) -> float:
    """A bound of E l^2 that needs only E y^2 and the ball: l <= |y| + 1."""
    if problem.noise == "sign":
        return 4.0
    second = problem.label_size.log_moments(2.0)
    return (math.exp(second / 2) + 1) ** 2


def _hold_out_radius(n: int, delta: float, second_moment: float) -> float:
    # The radius does not depend on the losses.
    return baselines.hold_out_second_moment(np.zeros(n), delta, second_moment=second_moment).upper


@lru_cache(maxsize=256)
def _ridge_value(arm: str, problem: simulate.BallRidgeProblem, delta: float) -> float:
    if problem.noise == "sign":
        # H = 2 + 2, so that the loss is uniformly stable; it lies in [0, 2].
        return bounded_gap(arm, beta=4 / (problem.strong_convexity * problem.m), m=problem.m, delta=delta)
    stability = problem.envelope(problem.stability)
    bias = mean_of(stability)
    if arm == "paper-3.4":
        return bias + _decoupled_radius(problem, stability, delta)
    return bias + _radius(arm, problem.envelope(problem.gap), problem.m, delta)


def _decoupled_radius(problem: simulate.BallRidgeProblem, stability: Envelope, delta: float) -> float:
    """Theorem 3.4 with the two parts apart, at its best order."""
    sensitivity = problem.envelope(simulate.loss_sensitivity(weight_bound=1.0))

    def moments(envelope: Envelope, p: float) -> dict[float, float]:
        return {q: math.exp(envelope.log_moments(q)) for q in (2.0, p)}

    found = []
    for p in stability.orders:
        parts: Any = {"stability": moments(stability, p), "sensitivity": moments(sensitivity, p)}
        found.append(
            _inverted(lambda z, p=p, parts=parts: decoupled_erm_tail(z, problem.m, p, **parts), delta)
        )
    return min(found)


def _inverted(bound: Any, delta: float) -> float:
    """The z at which a decreasing tail bound is delta."""
    root = optimize.brentq(lambda log_z: math.log(max(bound(math.exp(log_z)), 1e-300) / delta), -25.0, 25.0)
    return math.exp(float(np.asarray(root)))


def bounded_gap(arm: str, *, beta: float, m: int, delta: float) -> float:
    """Bounds of risk minus training risk for losses in [0, 2] with uniform stability beta."""
    loss_bound = 2.0
    match arm:
        case "bousquet-elisseeff":
            return baselines.bousquet_elisseeff(beta, m, delta, loss_bound=loss_bound)
        case "log-stability":
            return baselines.bousquet_klochkov_zhivotovskiy(beta, m, delta, loss_bound=loss_bound)
        case "log-free":
            return baselines.log_free_stability(beta, m, delta, loss_bound=loss_bound)
        case "hold-out":
            n = max(1, round(HELD_OUT * m))
            return baselines.hold_out_hoeffding(np.zeros(n), delta, loss_bound=loss_bound).upper
        case "paper" | "optimised":
            # H is what uniform stability allows, all the time.
            largest = 2 * beta + loss_bound / m
            moments = {p: largest**p for p in (2.0, 3.0, 4.0, 6.0, 8.0, 12.0)}
            return beta + _radius(arm, DeclaredEnvelope(moments, bound=largest), m, delta, level="auto")
    raise ValueError(f"unknown arm {arm!r}")


def slow_stability(arm: str, *, m: int, delta: float) -> Measured:
    """Bounds for a bounded loss whose stability is only m^(-1/2), and the Lp bound's excess over others."""
    beta = m**-0.5
    value = bounded_gap(arm, beta=beta, m=m, delta=delta)
    ours = bounded_gap("optimised", beta=beta, m=m, delta=delta)
    return {"gap": value, "over_lp": max(0.0, value / ours - 1)}


def real_ridge(arm: str, *, data: str, m: int, strong_convexity: float, pairs: Any, seed: int) -> Measured:
    """Risk bounds of ridge in a ball for samples from a finite population.

    With `pairs="independent"` rows are drawn with replacement and the risk is that of the population; with
    `"distinct"` without, and it is that of the rows that were not drawn.
    """
    people = populations.population(data)
    rows, fitted = _population_draws(data, m, strong_convexity, pairs, seed, arm == "hold-out")
    _, training, risk = fitted
    if pairs == "distinct":
        risk = (len(people.y) * risk - m * training) / (len(people.y) - m)
    if arm == "hold-out":
        w = fitted[0]
        held = rows[:, m - round(HELD_OUT * m) :]
        losses = np.abs(people.y[held] - np.einsum("bmd,bd->bm", people.X[held], w))
        training, n = losses.mean(axis=1), held.shape[1]
        second = (math.sqrt(np.mean(people.y**2)) + people.weight_bound) ** 2
        values = {delta: _hold_out_radius(n, delta, second) for delta in DELTAS}
    else:
        values = {delta: _real_value(arm, data, m, strong_convexity, pairs, delta) for delta in DELTAS}
    return _summary(training, risk, values, people.constant_risk())


@lru_cache(maxsize=4)
def _population_draws(
    data: str, m: int, strong_convexity: float, pairs: Any, seed: int, hold_out: bool
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    people = populations.population(data)
    rows = people.sample(BATCH, m, np.random.default_rng(seed), pairs)
    fitting = rows[:, : m - round(HELD_OUT * m)] if hold_out else rows
    w, training = people.ridge(fitting, strong_convexity)
    return rows, (w, training, people.risk(w))


@lru_cache(maxsize=64)
def _real_value(arm: str, data: str, m: int, strong_convexity: float, pairs: Any, delta: float) -> float:
    gap, bias = _real_envelopes(data, m, strong_convexity, pairs)
    if pairs == "independent":
        return bias + _radius(arm, gap, m, delta, level="auto")
    rest = len(populations.population(data).y) - m
    if arm != "paper":
        name: Any = arm
        return bias + transductive.radius(gap, m, rest, delta, bound=name).value
    moment_2 = math.exp(gap.log_moments(2.0))
    return bias + min(
        _inverted(
            lambda z, p=p: transductive.printed_tail(
                z, m, rest, p, moment_2=moment_2, moment_p=math.exp(gap.log_moments(p))
            ),
            delta,
        )
        for p in gap.orders
    )


@lru_cache(maxsize=8)
def _real_envelopes(data: str, m: int, strong_convexity: float, pairs: Any) -> tuple[DeclaredEnvelope, float]:
    from assay.methods.lp_stability import generalization
    from assay.methods.lp_stability.analytic import constrained_ridge, loss_sensitivity

    people = populations.population(data)
    stability = constrained_ridge(
        x_bound=1.0, weight_bound=people.weight_bound, strong_convexity=strong_convexity, m=m
    )
    sensitivity = loss_sensitivity(weight_bound=people.weight_bound)
    if pairs == "independent":
        function = generalization.gap_function(stability, sensitivity, m)
    else:
        function = transductive.gap_function(stability, sensitivity, m, len(people.y) - m)
    return people.envelope(function, pairs), mean_of(people.envelope(stability, pairs))


def certificate_parts(*, m: int, strong_convexity: float, seed: int) -> Measured:
    """The parts of one certificate: what `certify` says of a sample with t_5 noise."""
    from assay.methods.lp_stability.assumptions import Assumptions
    from assay.methods.lp_stability.ball_ridge import BallRidge
    from assay.methods.lp_stability.certificate import certify

    problem = simulate.BallRidgeProblem("t5", m, strong_convexity)
    X, y = problem.rows(1, np.random.default_rng(seed))
    moments = {p: math.exp(problem.label_size.log_moments(p)) for p in (1.0, 2.0, 3.0, 4.0)}
    # The penalty grows with the rows that are fitted to.
    alpha = strong_convexity * (m - round(HELD_OUT * m))
    with warnings.catch_warnings():
        # Moments close to the tail index are declared on purpose: they are exact.
        warnings.simplefilter("ignore")
        found: Any = certify(
            BallRidge(alpha=alpha, radius=1.0),
            X[0],
            y[0],
            delta=0.1,
            assumptions=Assumptions(x_bound=1.0, label_moment=moments),
            reserve=HELD_OUT,
            seed=seed,
        )
    hold_out = min(row.upper for row in found.table if row.target == "hold-out")
    return {
        "training_risk": found.risk_emp,
        "bias": found.bias,
        "radius": found.gap - found.bias,
        "stability": found.decomposition["stability"],
        "sampling": found.decomposition["sampling"],
        "upper": found.upper,
        "hold_out": hold_out,
        "constant": found.risk_constant,
    }


def _radius(
    arm: str, envelope: Envelope, n: int, delta: float, *, sided: Any = 1, level: Any = "moments"
) -> float:
    """The radius of an arm, infinite where it has none."""
    if arm == "known-law":
        return radius(envelope, n, delta, bound="optimised", level="tail", sided=sided).value
    name: Any = arm
    if arm == "optimised":
        return radius(envelope, n, delta, bound=name, level=level, sided=sided).value
    return radius(envelope, n, delta, bound=name, sided=sided).value


def _summary(
    measured: np.ndarray, risk: np.ndarray, values: Mapping[float, float], constant_risk: float
) -> Measured:
    """How a bound `measured + value` does for a batch of samples."""
    gap = risk - measured
    summary = {"risk": float(risk.mean()), "constant": constant_risk, "gap_q90": float(np.quantile(gap, 0.9))}
    summary["ratio"] = values[0.1] / summary["gap_q90"]
    for delta, value in values.items():
        exceeded = int(np.sum(gap > value))
        upper = float(measured.mean()) + value
        summary |= {
            f"gap@{delta:g}": value,
            f"upper@{delta:g}": upper,
            f"exceeded@{delta:g}": float(exceeded),
            f"covered@{delta:g}": float(exceeded == 0),
            f"beyond@{delta:g}": max(0.0, upper / (2 * constant_risk) - 1),
        }
    return summary


def plug_in(*, data: str, learner: str, m: int, draws: int, seed: int) -> Measured:
    """Whether estimates, which guarantee nothing, are above the true risk all the same."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor

    from assay.methods.lp_stability.certificate import certify_with_model

    learners: dict[str, Any] = {
        "ridge": Ridge(alpha=1.0),
        "kernel-ridge": KernelRidge(kernel="rbf", gamma=2.0),
        "neighbours": KNeighborsRegressor(n_neighbors=10),
    }
    people = populations.population(data)
    # Other samples for every learner, so that all batches are independent.
    rng = np.random.default_rng([seed, list(learners).index(learner)])
    rows = people.sample(draws, m, rng, "independent")
    plugged, risks = np.empty(draws), np.empty(draws)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k, chosen in enumerate(rows):
            found, fitted = certify_with_model(
                learners[learner], people.X[chosen], people.y[chosen], delta=0.1, n_pairs=100, seed=seed
            )
            plugged[k] = found.plug_in  # type: ignore[union-attr]
            risks[k] = np.abs(people.y - fitted.predict(people.X)).mean()
    return {
        "covered": float((plugged >= risks).all()),
        "below": float((plugged < risks).sum()),
        "plug_in": float(plugged.mean()),
        "risk": float(risks.mean()),
        "constant": people.constant_risk(),
    }
