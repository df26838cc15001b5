"""Envelopes against closed forms, and analytic envelopes against the learners that they speak of."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from assay.errors import InputError
from assay.methods.lp_stability.analytic import (
    WITHOUT_ENVELOPE,
    constrained_ridge,
    linear_smoother,
    loss_sensitivity,
    projected_sgd,
    regularised_erm,
)
from assay.methods.lp_stability.envelopes import DeclaredEnvelope, Envelope, FiniteEnvelope, as_envelope
from assay.methods.lp_stability.laws import LawEnvelope, stop_loss_tail
from assay.methods.lp_stability.moments import DrawnEnvelope


def halfnormal_moment(p, scale):
    return scale**p * 2 ** (p / 2) * math.gamma((p + 1) / 2) / math.sqrt(math.pi)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(0.01, 20), min_size=2, max_size=6),
    weights=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    orders=st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.0, 4.0, 6.0]), min_size=1, max_size=3, unique=True),
    p=st.floats(1.0, 8.0),
)
def test_implied_moments_bound_the_true_ones(values, weights, orders, p):
    """Lyapunov, Jensen and the almost sure bound never claim less than a law with those moments has."""
    values = np.array(values)
    law = np.array(weights[: values.size]) / sum(weights[: values.size])
    truth = {q: float(law @ values**q) for q in orders}
    log_true = math.log(law @ values**p)
    assert DeclaredEnvelope(truth).log_moments(p) >= log_true - 1e-9
    bounded = DeclaredEnvelope(truth, bound=values.max())
    assert bounded.log_moments(p) >= log_true - 1e-9
    assert bounded.log_moments(p) < math.inf


def test_implied_moments_by_hand():
    envelope = DeclaredEnvelope({2: 4.0, 4: 100.0})
    assert envelope.log_moments(3.0) == pytest.approx(0.5 * math.log(4) + 0.5 * math.log(100))
    assert envelope.log_moments(1.0) == pytest.approx(math.log(2))
    assert envelope.log_moments(5.0) == math.inf
    # A loose second moment gives way to what the fourth implies.
    assert DeclaredEnvelope({2: 50.0, 4: 100.0}).log_moments(2.0) == pytest.approx(math.log(10))
    assert DeclaredEnvelope({4: 1.0}).orders == (2.0, 4.0)
    assert DeclaredEnvelope({}, bound=3.0).log_moments(2.0) == pytest.approx(2 * math.log(3))
    assert DeclaredEnvelope({4: 8.0}, conditional_moments={4: 2.0}).log_conditional_moments(4.0) == math.log(
        2
    )


def test_finite_envelope_is_exact():
    points, law = np.array([0.0, 1.0, 5.0]), np.array([0.5, 0.4, 0.1])
    values = np.abs(np.subtract.outer(points, points))
    envelope = FiniteEnvelope(values, law)
    assert isinstance(envelope, Envelope)
    h = values @ law
    for p in (1.0, 2.0, 3.7):
        assert math.exp(envelope.log_moments(p)) == pytest.approx((values**p * np.outer(law, law)).sum())
        assert math.exp(envelope.log_conditional_moments(p)) == pytest.approx(law @ h**p)
    exceedance, shift = envelope.tail(np.array([0.0, h[0], 4.0, 9.0]))
    np.testing.assert_allclose(exceedance, [1.0, 0.5 if h[0] > h[1] else 0.1 + 0.4 * (h[1] > h[0]), 0.1, 0.0])
    np.testing.assert_allclose(shift[[0, 2, 3]], [law @ h, 0.1 * h[2], 0.0])
    assert envelope.bound == 5.0
    # The stated sub-exponential norm is admissible.
    s = envelope.subexponential
    assert (np.exp(values / s) * np.outer(law, law)).sum() <= 2 + 1e-12
    draws = envelope.sample(20000, np.random.default_rng(0))
    assert draws.mean() == pytest.approx(math.exp(envelope.log_moments(1.0)), rel=0.05)


def test_law_envelope_has_the_moments_of_its_law():
    envelope = LawEnvelope(pair=stats.halfnorm(scale=0.3))
    for p in (1.0, 2.0, 4.5, 16.0):
        assert math.exp(envelope.log_moments(p)) == pytest.approx(halfnormal_moment(p, 0.3), rel=1e-9)
    heavy = LawEnvelope(conditional=stats.pareto(4.0))
    assert math.exp(heavy.log_conditional_moments(3.0)) == pytest.approx(4 / (4 - 3), rel=1e-6)
    assert heavy.log_conditional_moments(4.0) == math.inf
    assert heavy.log_moments(2.0) == math.inf
    assert max(heavy.orders) == 3.5
    bounded = LawEnvelope(pair=stats.uniform(0, 2))
    assert bounded.bound == 2.0
    assert math.exp(bounded.log_moments(3.0)) == pytest.approx(2.0, rel=1e-9)


def test_law_envelope_tail_of_h_is_exact():
    envelope = LawEnvelope(conditional=stats.expon(scale=2.0))
    y = np.array([0.1, 1.0, 7.0, 40.0])
    exceedance, shift = envelope.tail(y)
    np.testing.assert_allclose(exceedance, np.exp(-y / 2), rtol=1e-12)
    np.testing.assert_allclose(shift, (y + 2) * np.exp(-y / 2), rtol=5e-3)
    assert (shift >= (y + 2) * np.exp(-y / 2) * (1 - 1e-9)).all()


def test_law_of_pairs_bounds_the_law_of_h():
    """H = |Z - Z'|: what the law of H implies is above the true tail of h(z) = E|z - Z'|."""
    envelope = LawEnvelope(pair=stats.halfnorm(scale=math.sqrt(2)))
    y = np.linspace(0.5, 6, 40)
    exceedance, shift = envelope.tail(y)
    z = np.random.default_rng(0).normal(size=200_000)
    h = z * special.erf(z / math.sqrt(2)) + 2 * stats.norm.pdf(z)
    true_exceedance = (h[:, None] > y).mean(axis=0)
    true_shift = np.where(h[:, None] > y, h[:, None], 0).mean(axis=0)
    assert (exceedance >= true_exceedance - 5 * np.sqrt(true_exceedance / z.size)).all()
    assert (shift >= true_shift * (1 - 0.02) - 1e-4).all()
    assert exceedance[-1] < 0.01


def test_stop_loss_tail_holds_for_the_extreme_law():
    # H in {0, 10} with probability 0.1 of 10; h = H is below H in convex order.
    levels = np.linspace(0, 12, 241)
    exceedance, shift = stop_loss_tail(np.array([5.0, 10.0, 11.0]), levels, 0.1 * np.maximum(10 - levels, 0))
    assert exceedance[0] >= 0.1
    assert shift[0] >= 1.0
    assert exceedance[2] < 0.1


def test_drawn_envelope_errs_upwards():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2, 100_000))
    h = z[0] * special.erf(z[0] / math.sqrt(2)) + 2 * stats.norm.pdf(z[0])
    envelope = DrawnEnvelope(np.abs(z[0] - z[1]), h)
    for p in (1.0, 2.0, 4.0):
        truth = halfnormal_moment(p, math.sqrt(2))
        assert truth < math.exp(envelope.log_moments(p)) < 1.1 * truth
    y = np.array([0.1, 1.0, 2.0, 3.0, 20.0])
    found = envelope.tail(y)
    assert found is not None
    exceedance, shift = found
    # h(x) > y for |x| > x_y.
    grid = np.linspace(0, 10, 100_001)
    for level, chance, mean in zip(y[1:4], exceedance[1:4], shift[1:4], strict=True):
        edge = np.interp(level, grid * special.erf(grid / math.sqrt(2)) + 2 * stats.norm.pdf(grid), grid)
        assert 2 * stats.norm.sf(edge) <= chance < 1.3 * 2 * stats.norm.sf(edge) + 1e-3
        assert mean >= 2 * stats.norm.pdf(edge)
    # Beyond all draws the moments still bound what the draws cannot show.
    assert 0 < exceedance[-1] < 1e-3
    assert shift[-1] > 0
    assert DrawnEnvelope(np.abs(z[0]), provenance="estimated").tail(y) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DeclaredEnvelope({0: 1.0}), "order 0"),
        (lambda: DeclaredEnvelope({2: 1.0}, bound=-1.0), "bound is -1.0"),
        (lambda: FiniteEnvelope(np.ones((2, 3)), np.ones(2) / 2), r"shape \(2, 3\)"),
        (lambda: FiniteEnvelope(-np.ones((2, 2)), np.ones(2) / 2), "entry -1.0"),
        (lambda: FiniteEnvelope(np.ones((2, 2)), np.ones(2)), "sum of"),
        (LawEnvelope, "both None"),
        (lambda: LawEnvelope(pair=stats.norm()), "support from -inf"),
        (lambda: LawEnvelope(pair=stats.poisson(3)), "continuous"),
        (lambda: LawEnvelope(conditional=2.0), "conditional is a float"),
        (lambda: DrawnEnvelope(np.array([1.0, -2.0])), "pairs has shape"),
        (lambda: as_envelope("H"), "envelope is a str"),
        (lambda: -1.0 * loss_sensitivity(weight_bound=1.0), "multiplied by -1.0"),
        (lambda: loss_sensitivity(weight_bound=0.0), "weight_bound is 0.0"),
        (lambda: linear_smoother(np.ones((2, 3))), r"S has shape \(2, 3\)"),
        (lambda: linear_smoother(np.full((2, 2), np.nan)), "4 entries that are not finite"),
        (
            lambda: projected_sgd(x_bound=2.0, weight_bound=1.0, steps=np.array([0.1, 0.6]), m=10),
            r"steps\[1\] is 0.6",
        ),
    ],
)
def test_bad_input_names_the_field_and_the_value(make, message):
    with pytest.raises(InputError, match=message):
        make()


def rows(rng, n, d, bound):
    X = rng.normal(size=(n, d))
    X *= (bound * rng.uniform(0.3, 1, n) / np.linalg.norm(X, axis=1))[:, None]
    return X, X @ np.ones(d) + rng.standard_t(2, size=n)


def ball_ridge(X, y, lam, radius):
    """argmin of (1/2m)||Xw - y||^2 + (lam/2)||w||^2 over ||w|| <= radius, by the multiplier of the ball."""
    gram, moment = X.T @ X / len(y), X.T @ y / len(y)

    def solution(multiplier):
        return np.linalg.solve(gram + (lam + multiplier) * np.eye(len(gram)), moment)

    if np.linalg.norm(solution(0.0)) <= radius:
        return solution(0.0)
    top = np.linalg.norm(moment) / radius + 1

    def excess(multiplier):
        return np.linalg.norm(solution(multiplier)) - radius

    return solution(optimize.brentq(excess, 0, top, xtol=1e-14, rtol=1e-14))


def test_constrained_ridge_envelope_holds_on_random_swaps():
    rng = np.random.default_rng(0)
    lam, radius, bound, m = 0.5, 0.8, 1.5, 12
    envelope = constrained_ridge(x_bound=bound, weight_bound=radius, strong_convexity=lam, m=m)
    largest = 0.0
    for _ in range(300):
        X, y = rows(rng, m + 1, 2, bound)
        swapped_X, swapped_y = X[:m].copy(), y[:m].copy()
        swapped_X[0], swapped_y[0] = X[m], y[m]
        before, after = ball_ridge(X[:m], y[:m], lam, radius), ball_ridge(swapped_X, swapped_y, lam, radius)
        # The absolute loss at the worst point x of the ball moves by B ||w - w'||.
        moved = bound * np.linalg.norm(before - after)
        allowed = envelope(X[:1], y[:1], X[m:], y[m:])[0]
        assert moved <= allowed + 1e-9
        largest = max(largest, moved / allowed)
    assert largest > 0.3


def test_no_pointwise_envelope_without_the_ball():
    """Plain ridge: the same swap moves the weights by any amount as the other labels grow."""
    X, swapped = np.array([[1.0], [1.0], [1.0]]), np.array([[1.0], [1.0], [0.0]])

    def moved(label):
        y = np.array([label, label, 0.0])
        return abs(ball_ridge(X, y, 0.5, math.inf) - ball_ridge(swapped, y, 0.5, math.inf))[0]

    assert moved(1e6) > 1e4 * moved(1.0)
    assert {"ridge", "knn"} <= set(WITHOUT_ENVELOPE)


def test_regularised_erm_envelope_holds_on_random_swaps():
    """Ridge-penalised Huber regression: the training loss is 1-Lipschitz in the prediction."""
    rng = np.random.default_rng(1)
    lam, bound, m = 0.4, 1.0, 8
    envelope = regularised_erm(lipschitz=1.0, x_bound=bound, strong_convexity=lam, m=m)

    def fit(X, y):
        def objective(w):
            residual = X @ w - y
            gradient = X.T @ np.clip(residual, -1, 1) / m + lam * w
            return special.huber(1.0, residual).mean() + lam / 2 * w @ w, gradient

        return optimize.minimize(objective, np.zeros(X.shape[1]), jac=True, method="BFGS", tol=1e-10).x

    largest = 0.0
    for _ in range(60):
        X, y = rows(rng, m + 1, 2, bound)
        y *= 20
        index = np.r_[m, 1:m]
        moved = bound * np.linalg.norm(fit(X[:m], y[:m]) - fit(X[index], y[index]))
        allowed = envelope(X[:1], y[:1], X[m:], y[m:])[0]
        assert moved <= allowed + 1e-6
        largest = max(largest, moved / allowed)
    assert largest > 0.3


def test_projected_sgd_envelope_holds_for_the_mean_over_all_index_sequences():
    rng = np.random.default_rng(2)
    m, radius, bound, steps = 3, 0.7, 1.2, np.array([0.5, 0.9, 0.3])
    envelope = projected_sgd(x_bound=bound, weight_bound=radius, steps=steps, m=m)

    def run(X, y, indices):
        w = np.zeros(X.shape[1])
        for step, i in zip(steps, indices, strict=True):
            w = w - step * (X[i] @ w - y[i]) * X[i]
            w *= min(1.0, radius / max(np.linalg.norm(w), 1e-300))
        return w

    for _ in range(40):
        X, y = rows(rng, m + 1, 2, bound)
        index = np.r_[m, 1:m]
        moved = [
            bound * np.linalg.norm(run(X[:m], y[:m], order) - run(X[index], y[index], order))
            for order in itertools.product(range(m), repeat=len(steps))
        ]
        assert np.mean(moved) <= envelope(X[:1], y[:1], X[m:], y[m:])[0] + 1e-12


def test_loss_sensitivity_holds_and_is_attained():
    rng = np.random.default_rng(3)
    function = loss_sensitivity(weight_bound=2.0, lipschitz=1.5)
    X, y = rows(rng, 400, 3, 1.0)
    X2, y2 = rows(rng, 400, 3, 1.0)
    w = rng.normal(size=(400, 3))
    w *= 2 / np.linalg.norm(w, axis=1, keepdims=True)
    moved = 1.5 * np.abs(np.abs(y - (w * X).sum(1)) - np.abs(y2 - (w * X2).sum(1)))
    assert (moved <= function(X, y, X2, y2) + 1e-12).all()
    one = np.array([[1.0]])
    assert function(one, np.array([0.0]), -one, np.array([5.0]))[0] == pytest.approx(1.5 * (5 + 4))


def test_pair_functions_add_and_scale():
    rng = np.random.default_rng(4)
    a = constrained_ridge(x_bound=1.0, weight_bound=1.0, strong_convexity=0.1, m=50)
    b = loss_sensitivity(weight_bound=1.0)
    rows_ = (*rows(rng, 20, 2, 1.0), *rows(rng, 20, 2, 1.0))
    gap = 2 * a + b / 50
    np.testing.assert_allclose(gap(*rows_), 2 * a(*rows_) + b(*rows_) / 50)
    assert (gap(*rows_) <= gap.row_share(*rows_[:2]) + gap.row_share(*rows_[2:]) + 1e-12).all()
    np.testing.assert_allclose(a(*rows_), a.row_share(*rows_[:2]) + a.row_share(*rows_[2:]))
    assert len(gap.assumptions) == len(set(gap.assumptions)) == 5


def test_linear_smoother_envelope_holds_for_the_gap():
    """R - Remp of ridge at fixed inputs, with the risk over a two-point label law computed exactly."""
    rng = np.random.default_rng(5)
    m = 6
    X = rng.normal(size=(m, 2))
    S = X @ np.linalg.solve(X.T @ X + np.eye(2), X.T)
    mean, noise = rng.normal(size=m), np.array([-3.0, 1.0])
    law = np.array([0.25, 0.75])
    scales = linear_smoother(S)

    def gap(y):
        fitted = S @ y
        fresh = np.abs(mean[:, None] + noise - fitted[:, None]) @ law
        return np.mean(fresh - np.abs(y - fitted))

    samples = list(itertools.product((0, 1), repeat=m))
    gaps = {sample: gap(mean + noise[list(sample)]) for sample in samples}
    for sample in samples:
        for i in range(m):
            swapped = (*sample[:i], 1 - sample[i], *sample[i + 1 :])
            assert abs(gaps[sample] - gaps[swapped]) <= scales.gap_scales[i] * 4 + 1e-12
    expected = sum(gaps[sample] * np.prod(law[list(sample)]) for sample in samples)
    assert abs(expected) <= scales.bias * 4 * 2 * 0.25 * 0.75 + 1e-12
