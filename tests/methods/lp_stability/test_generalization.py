"""The gap between risk and training risk: envelopes by enumeration, bounds by simulation and exact laws."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from assay.errors import InputError
from assay.methods.lp_stability import generalization, meta, transductive
from assay.methods.lp_stability.analytic import constrained_ridge, loss_sensitivity
from assay.methods.lp_stability.concentration import radius, tail
from assay.methods.lp_stability.envelopes import DeclaredEnvelope, FiniteEnvelope
from assay.methods.lp_stability.moments import law_envelope

LABELS = np.array([0.0, 1.0, 7.0])
LAW = np.array([0.5, 0.4, 0.1])


def shrunken_mean(sample, m, lam=0.5):
    """argmin of (1/2m) sum (w - y)^2 + lam w^2 / 2: beta H = |y - y'| / ((1 + lam) m) (absolute loss)."""
    return np.mean(sample) / (1 + lam)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_envelopes_of_the_gaps_hold_for_every_sample(m):
    """R - Remp and R - Rloo of a shrunken mean under the absolute loss, over all samples and swaps."""
    samples = list(itertools.product(LABELS, repeat=m))

    def risk(w):
        return LAW @ np.abs(LABELS - w)

    def gaps(sample):
        w = shrunken_mean(sample, m)
        training = risk(w) - np.mean(np.abs(np.array(sample) - w))
        if m == 1:
            return training, training
        others = [shrunken_mean(sample[:i] + sample[i + 1 :], m - 1) for i in range(m)]
        return training, risk(w) - np.mean(np.abs(np.array(sample) - others))

    table = {sample: gaps(sample) for sample in samples}
    for sample in samples:
        for i, fresh in itertools.product(range(m), LABELS):
            swapped = (*sample[:i], fresh, *sample[i + 1 :])
            stability, sensitivity = abs(sample[i] - fresh) / (1.5 * m), abs(sample[i] - fresh)
            allowed = 2 * stability + sensitivity / m
            assert abs(table[sample][0] - table[swapped][0]) <= allowed + 1e-12
            assert abs(table[sample][1] - table[swapped][1]) <= allowed + 1e-12
    weights = {sample: np.prod([LAW[list(LABELS).index(y)] for y in sample]) for sample in samples}
    mean_difference = LAW @ np.abs(np.subtract.outer(LABELS, LABELS)) @ LAW
    bias = sum(weights[sample] * table[sample][0] for sample in samples)
    assert abs(bias) <= mean_difference / (1.5 * m) + 1e-12


def test_bounds_hold_with_the_stated_probability_exactly():
    """All samples of a three-point law: the probability that the gap exceeds its bound is at most delta."""
    m = 7
    difference = np.abs(np.subtract.outer(LABELS, LABELS))
    gap = FiniteEnvelope((2 / 1.5 + 1) * difference / m, LAW)
    stability = FiniteEnvelope(difference / (1.5 * m), LAW)
    # The sample enters through its counts.
    for delta in (0.3, 0.05, 0.01):
        bound = generalization.training_gap(gap, m, delta, bias=generalization.mean_of(stability))
        failed = 0.0
        for counts in map(np.array, itertools.product(range(m + 1), repeat=3)):
            if counts.sum() != m:
                continue
            w = counts @ LABELS / m / 1.5
            value = LAW @ np.abs(LABELS - w) - np.array(counts) @ np.abs(LABELS - w) / m
            failed += (value > bound.value) * stats.multinomial(m, LAW).pmf(counts)
        assert failed <= delta
    assert bound.over == "draw of the 7 training rows"
    assert bound.value == bound.radius.value + bound.bias


def test_coverage_of_constrained_ridge_with_heavy_labels():
    """t_5 labels: the gap of 200 samples stays below the bound, as delta = 0.1 asks, not idly."""
    rng = np.random.default_rng(0)
    m, d, lam, draws = 200, 3, 1.0, 200

    def draw(n, rng):
        X = rng.normal(size=(n, d))
        X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
        return X, X @ np.full(d, 0.5) + 0.5 * rng.standard_t(5, size=n)

    stability = constrained_ridge(x_bound=1.0, weight_bound=1.0, strong_convexity=lam, m=m)
    function = generalization.gap_function(stability, loss_sensitivity(weight_bound=1.0), m)
    envelope = law_envelope(function, draw, n_draws=100_000)
    bias = generalization.mean_of(law_envelope(stability, draw, n_draws=100_000))
    bound = generalization.training_gap(envelope, m, 0.1, bias=bias)
    test_X, test_y = draw(100_000, rng)
    exceeded, gaps = 0, []
    for _ in range(draws):
        X, y = draw(m, rng)
        w = np.linalg.solve(X.T @ X / m + lam * np.eye(d), X.T @ y / m)
        assert np.linalg.norm(w) <= 1
        gap = np.abs(test_y - test_X @ w).mean() - np.abs(y - X @ w).mean()
        gaps.append(gap)
        exceeded += gap > bound.value
    assert exceeded <= stats.binom.isf(1e-6, draws, 0.1)
    assert max(gaps) > 0.05 * bound.value


def test_gap_function_adds_twice_the_stability():
    stability = constrained_ridge(x_bound=1.0, weight_bound=1.0, strong_convexity=1.0, m=10)
    sensitivity = loss_sensitivity(weight_bound=1.0)
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(5, 2)), rng.normal(size=5), rng.normal(size=(5, 2)), rng.normal(size=5))
    found = generalization.gap_function(stability, sensitivity, 10)(*rows)
    np.testing.assert_allclose(found, 2 * stability(*rows) + sensitivity(*rows) / 10)


def test_leave_one_out_needs_the_size_gap():
    gap = {2: 1e-6}
    unknown = generalization.leave_one_out_gap(gap, 100, 0.05, size_gap=None)
    assert math.isinf(unknown.value)
    assert "size_gap" in unknown.reason
    known = generalization.leave_one_out_gap(gap, 100, 0.05, size_gap=0.0)
    assert known.value == radius(gap, 100, 0.05).value
    assert known.target == "leave-one-out risk"


def test_removing_a_row_moves_constrained_minimisers_no_more_than_a_swap_does_on_average():
    """|R_m - R_(m-1)| <= beta E H for regularised means, by enumeration."""
    m = 4
    difference = np.abs(np.subtract.outer(LABELS, LABELS))
    mean_difference = LAW @ difference @ LAW

    def expected_risk(size):
        total = 0.0
        for sample in itertools.product(range(3), repeat=size):
            w = shrunken_mean(LABELS[list(sample)], size)
            total += np.prod(LAW[list(sample)]) * (LAW @ np.abs(LABELS - w))
        return total

    assert abs(expected_risk(m) - expected_risk(m - 1)) <= mean_difference / (1.5 * m)


def test_decoupled_theorem_is_the_formula_and_looser():
    m, p = 100, 4.0
    stability, sensitivity = {2: 1e-4, 4: 3e-8}, {2: 1.0, 4: 3.0}
    z = 60.0
    c1, c2 = 4 * 6**4 * 2**7, 1 / (72 * math.e**4) / 8
    expected = c1 * (m * 3e-8 + 3.0 / m**3) / z**4 + 2 * math.exp(-c2 * z**2 / (m * 1e-4 + 1 / m))
    assert expected < 1
    assert generalization.decoupled_erm_tail(
        z, m, p, stability=stability, sensitivity=sensitivity
    ) == pytest.approx(expected)
    # (a + b)^p <= 2^(p-1) (a^p + b^p): the combined envelope has at most these moments.
    combined = {q: 2 ** (q - 1) * (2**q * stability[q] + sensitivity[q] / m**q) for q in (2, 4)}
    assert tail(z, combined, m, bound="paper", p=p) <= expected * (1 + 1e-12)


def subsets_and_gap(points, m, statistic):
    for chosen in itertools.combinations(range(len(points)), m):
        rest = [i for i in range(len(points)) if i not in chosen]
        yield statistic(points[list(chosen)], points[rest])


@pytest.mark.parametrize(("m", "u"), [(2, 6), (6, 2), (4, 4), (1, 7), (7, 1)])
def test_transductive_bounds_hold_exactly(m, u):
    """Test minus training mean of a heavy point set, over all subsets."""
    points = np.array([0.0, 0.0, 0.1, -0.2, 0.3, 0.0, 4.0, -1.0])
    total = m + u
    difference = (1 / m + 1 / u) * np.abs(np.subtract.outer(points, points))
    distinct = difference[~np.eye(total, dtype=bool)]
    values = np.array(list(subsets_and_gap(points, m, lambda a, b: b.mean() - a.mean())))
    deviations = values - values.mean()
    for p in (1.5, 2.0, 3.0, 4.0):
        envelope = DeclaredEnvelope({p: np.mean(distinct**p)}, bound=distinct.max())
        for bound in ("best", "optimised", "rio", "chebyshev", "mcdiarmid"):
            for delta in (0.5, 0.2, 0.05):
                found = transductive.radius(envelope, m, u, delta, p=p, bound=bound)
                assert np.mean(deviations >= found.value) <= delta
                found = transductive.radius(envelope, m, u, delta, p=p, bound=bound, sided=2)
                assert np.mean(np.abs(deviations) >= found.value) <= delta


def test_transductive_variance_is_that_of_drawing_without_replacement():
    """Var of a mean of m out of N is (1/m - 1/N) times the variance with divisor N - 1: here exact."""
    points = np.random.default_rng(0).normal(size=300)
    m, total = 30, 300
    distinct = np.abs(np.subtract.outer(points, points))[~np.eye(total, dtype=bool)] / m
    exact = (1 / m - 1 / total) * points.var(ddof=1)
    z = transductive.radius({2: np.mean(distinct**2)}, m, total - m, 0.1, bound="chebyshev", sided=2).value
    assert 0.1 * z**2 == pytest.approx(exact, rel=1e-9)


def test_many_points_outside_are_independent_draws():
    moments = {2: 1e-4, 4: 3e-8}
    together = transductive.radius(moments, 100, 10**6, 0.01, p=4.0, bound="optimised").value
    assert together == pytest.approx(radius(moments, 100, 0.01, p=4.0, bound="optimised").value, rel=1e-3)


@pytest.mark.parametrize("bound", ["best", "optimised", "rio", "chebyshev", "mcdiarmid"])
def test_transductive_tail_inverts_radius(bound):
    envelope = DeclaredEnvelope({2: 1e-4, 4: 3e-8}, bound=0.3)
    for m, u in ((50, 200), (200, 50)):
        found = transductive.radius(envelope, m, u, 1e-3, bound=bound)
        assert transductive.tail(found.value, envelope, m, u, bound=bound) == pytest.approx(1e-3, rel=1e-6)


def test_transductive_printed_sums():
    m, u, p, z = 30, 70, 3.0, 500.0
    v_p = u**p / (p - 1) * ((u - 0.5) ** (1 - p) - (99.5) ** (1 - p)) * 2.0
    v_2 = m * u / (99.5 * (1 - 1 / 140)) * 1.5
    c1, c2 = 4 * (20 / 3) ** 3, 1 / (50 * math.e**3)
    expected = c1 * v_p / z**3 + 2 * math.exp(-c2 * z**2 / v_2)
    found = transductive.printed_tail(z, m, u, p, moment_2=1.5, moment_p=2.0)
    assert found == pytest.approx(min(1.0, expected), rel=1e-12)
    assert found < 0.5
    # V_p is the integral bound of the exact sum of weights.
    weights = (u / (100 - np.arange(1, m + 1))) ** p
    assert weights.sum() * 2.0 <= v_p <= 1.01 * weights.sum() * 2.0


def test_transductive_gap_envelope():
    stability = constrained_ridge(x_bound=1.0, weight_bound=1.0, strong_convexity=1.0, m=10)
    sensitivity = loss_sensitivity(weight_bound=1.0)
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(5, 2)), rng.normal(size=5), rng.normal(size=(5, 2)), rng.normal(size=5))
    found = transductive.gap_function(stability, sensitivity, 10, 30)(*rows)
    np.testing.assert_allclose(found, 2 * stability(*rows) + (1 / 10 + 1 / 30) * sensitivity(*rows))
    bound = transductive.gap({2: 1e-4}, 10, 30, 0.1, bias=0.5)
    assert bound.value == pytest.approx(0.5 + transductive.radius({2: 1e-4}, 10, 30, 0.1).value)
    assert bound.over == "choice of the 10 training rows among the 40"


def test_meta_bound_holds_exactly_for_a_mean_over_tasks():
    """Tasks are points, the learner predicts a shrunken mean of the training tasks; one observation each."""
    m = 6
    difference = np.abs(np.subtract.outer(LABELS, LABELS))
    envelope = FiniteEnvelope((2 / 1.5 + 1) * difference / m, LAW)
    task_bias = float(LAW @ difference @ LAW) / (1.5 * m)
    for delta in (0.2, 0.02):
        gap = meta.transfer_gap(envelope, m, delta, task_bias=task_bias, within_bias=0.0).value
        failed = 0.0
        for counts in map(np.array, itertools.product(range(m + 1), repeat=3)):
            if counts.sum() != m:
                continue
            losses = np.abs(LABELS - counts @ LABELS / m / 1.5)
            failed += (LAW @ losses > counts @ losses / m + gap) * stats.multinomial(m, LAW).pmf(counts)
        assert failed <= delta
    risks = np.abs(np.repeat(LABELS, 2) - 1.0)
    found = meta.certify(risks, delta, task_gap=envelope, task_bias=task_bias, within_bias=0.25)
    assert found.upper == pytest.approx(risks.mean() + gap + 0.25)
    assert (found.within_bias, found.risk) == (0.25, pytest.approx(risks.mean()))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generalization.training_gap({2: 1.0}, 10, 0.1, bias=-1.0), "bias is -1.0"),
        (lambda: generalization.training_gap({2: 1.0}, 10, 2.0, bias=0.0), "delta is 2.0"),
        (lambda: generalization.leave_one_out_gap({2: 1.0}, 10, 0.1, size_gap=-2.0), "size_gap is -2.0"),
        (
            lambda: generalization.decoupled_erm_tail(1.0, 10, 4.0, stability={2: 1.0}, sensitivity={4: 1.0}),
            "order 4 is missing",
        ),
        (lambda: transductive.radius({2: 1.0}, 0, 5, 0.1), "m is 0"),
        (lambda: transductive.radius({2: 1.0}, 5, 5, 0.1, bound="paper"), "bound is 'paper'"),
        (lambda: transductive.radius({2: 1.0}, 5, 5, 0.1, p=0.5), "p is 0.5"),
        (lambda: transductive.radius({2: 1.0}, 5, 5, 0.1, sided=0), "sided is 0"),
        (lambda: transductive.tail(0.0, {2: 1.0}, 5, 5), "z is 0.0"),
        (
            lambda: meta.transfer_gap({2: 1.0}, 5, 0.1, task_bias=0.0, within_bias=-1.0),
            "within_bias is -1.0",
        ),
        (
            lambda: meta.certify(np.array([np.nan]), 0.1, task_gap={2: 1.0}, task_bias=0.0, within_bias=0.0),
            "task_risks has shape",
        ),
    ],
)
def test_bad_input_names_the_field_and_the_value(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_transductive_without_a_moment_is_infinite_with_a_reason():
    found = transductive.radius({1.5: 1.0}, 5, 5, 0.1, bound="rio")
    assert math.isinf(found.value)
    assert "moment" in found.reason
