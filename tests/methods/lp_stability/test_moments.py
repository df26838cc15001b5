"""Moments from draws: Hill's index, bootstrap intervals, inflation, and the pairs they rest on."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.errors import InputError
from assay.methods.lp_stability.analytic import constrained_ridge, loss_sensitivity
from assay.methods.lp_stability.moments import (
    disjoint_pairs,
    hill_index,
    inflate_moment,
    law_envelope,
    norm_interval,
    pair_envelope,
)


def test_hill_index_by_hand():
    assert hill_index(np.array([8.0, 4.0, 2.0, 1.0, -3.0]), k=3) == pytest.approx(1 / (2 * math.log(2)))
    assert hill_index(np.ones(10), k=4) == math.inf


@pytest.mark.parametrize("index", [1.5, 3.0, 6.0])
def test_hill_index_of_pareto(index):
    values = stats.pareto(index).rvs(size=20_000, random_state=0)
    k = math.floor(values.size ** (2 / 3))
    assert hill_index(values) == pytest.approx(index, abs=4 * index / math.sqrt(k))


def test_norm_interval():
    values = np.random.default_rng(0).exponential(size=400)
    norm, low, high = norm_interval(values, 2.0, seed=1)
    assert norm == pytest.approx(math.sqrt(np.mean(values**2)))
    assert low < norm < high
    # The delta method's interval is close at this size.
    spread = 1.96 * np.std(values**2) / math.sqrt(400) / (2 * norm)
    assert (high - low) / 2 == pytest.approx(spread, rel=0.2)
    assert norm_interval(values, 2.0, seed=1) == (norm, low, high)
    assert norm_interval(1e200 * values, 4.0)[0] == pytest.approx(1e200 * norm_interval(values, 4.0)[0])
    assert norm_interval(np.zeros(5), 2.0) == (0.0, 0.0, 0.0)


def test_inflation_by_hand():
    # Cantelli: t = sqrt((kappa - 1)(1 - d) / (N d)); exponential: sqrt(2 kappa log(1/d) / N).
    assert inflate_moment(2.0, 400, 2.0, 0.5) == pytest.approx(2 / (1 - math.sqrt(1 / 400)))
    expected = 2 / (1 - math.sqrt(2 * 5 * math.log(1000) / 4000))
    assert inflate_moment(2.0, 4000, 5.0, 1e-3) == pytest.approx(expected)
    assert inflate_moment(2.0, 10, 50.0, 0.01) == math.inf
    assert inflate_moment(2.0, 10, 1.0, 0.01) == 2.0


@settings(max_examples=50, deadline=None)
@given(q=st.floats(0.005, 1.0), n=st.integers(1, 400), delta=st.floats(0.001, 0.5))
def test_inflation_covers_exactly(q, n, delta):
    """H^p Bernoulli(q): kappa = 1/q, and the failure probability is a binomial one."""
    bounds = np.array([inflate_moment(ones / n, n, 1 / q, delta) for ones in range(n + 1)])
    failures = bounds < q * (1 - 1e-12)
    assert stats.binom(n, q).pmf(np.arange(n + 1))[failures].sum() <= delta + 1e-12


def test_disjoint_pairs():
    first, second = disjoint_pairs(7, 5, np.random.default_rng(0))
    assert first.shape == second.shape == (5, 3)
    for i, j in zip(first, second, strict=True):
        assert len(set(i) | set(j)) == 6
    # A mean over shuffles varies no more than over disjoint pairs of one.
    rng = np.random.default_rng(1)
    one, many = [], []
    for _ in range(400):
        x = rng.normal(size=20)
        a, b = disjoint_pairs(20, 20, rng)
        values = (x[a] - x[b]) ** 2
        one.append(values[0].mean())
        many.append(values.mean())
    assert np.var(many) < np.var(one)


def gap_function():
    stability = constrained_ridge(x_bound=1.0, weight_bound=1.0, strong_convexity=1.0, m=100)
    return 2 * stability + loss_sensitivity(weight_bound=1.0) / 100


def draw(n, rng):
    X = rng.normal(size=(n, 2))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, rng.normal(size=n)


def test_law_envelope_and_pair_envelope_agree():
    function = gap_function()
    law = law_envelope(function, draw, n_draws=100_000)
    X, y = draw(4000, np.random.default_rng(7))
    data = pair_envelope(function, X, y, seed=3)
    assert law.provenance == "declared-law"
    assert data.provenance == "estimated"
    assert data.independent == 2000
    for p in (1.0, 2.0, 4.0):
        assert math.exp(data.log_moments(p)) == pytest.approx(math.exp(law.log_moments(p)), rel=0.1)
        assert data.log_conditional_moments(p) <= data.log_moments(p)
        assert law.log_conditional_moments(p) <= law.log_moments(p)
    assert law.tail(np.array([0.1])) is not None
    again = law_envelope(function, draw, n_draws=100_000)
    np.testing.assert_array_equal(law.pairs, again.pairs)
    # ||x|| = 1: the first moment in closed form is 2/m (2 E|y| + 2) + (E|y - y'| + E||x - x'||) / m.
    mean = 2 * (2 * math.sqrt(2 / math.pi) + 2) / 100 + (2 / math.sqrt(math.pi) + 4 / math.pi) / 100
    assert mean < math.exp(law.log_moments(1.0)) < 1.01 * mean


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hill_index(np.array([1.0, 2.0]), k=2), "k is 2"),
        (lambda: inflate_moment(1.0, 0, 2.0, 0.1), "n_independent is 0"),
        (lambda: inflate_moment(1.0, 10, 0.5, 0.1), "kappa is 0.5"),
        (lambda: inflate_moment(-1.0, 10, 2.0, 0.1), "mean is -1.0"),
        (lambda: inflate_moment(1.0, 10, 2.0, 1.0), "delta is 1.0"),
        (lambda: norm_interval(np.array([]), 2.0), "values has shape"),
        (lambda: norm_interval(np.ones(3), 0.0), "p is 0.0"),
        (lambda: norm_interval(np.ones(3), 2.0, confidence=1.0), "1 - confidence"),
        (lambda: disjoint_pairs(3, 1, np.random.default_rng(0)), "3 rows"),
        (lambda: law_envelope(gap_function(), draw, n_draws=10), "n_draws is 10"),
    ],
)
def test_bad_input_names_the_field_and_the_value(call, message):
    with pytest.raises(InputError, match=message):
        call()
