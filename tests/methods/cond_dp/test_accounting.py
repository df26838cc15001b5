"""What training costs: closed forms against dp-accounting and Opacus, for the relation that is meant."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from scipy.stats import norm

from assay.errors import InputError
from assay.methods.cond_dp.accounting import (
    NoisySteps,
    PrivacyReport,
    calibrate,
    epsilon_spent,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)

RELATIONS = dp_accounting.NeighboringRelation


def library_epsilon(sigma, rate, steps, delta, relation):
    """What dp-accounting's accountant says about so many steps, with no code of ours."""
    accountant = PLDAccountant(relation)
    gaussian = dp_accounting.GaussianDpEvent(sigma)
    event = gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    return accountant.get_epsilon(delta)


def test_known_answers_of_full_batches():
    assert gaussian_epsilon(33.8, 64, 1e-6) == pytest.approx(1.0, abs=0.005)
    assert gaussian_epsilon(33.8, 64, 1e-6, sensitivity=2) == pytest.approx(2.12, abs=0.01)
    assert library_epsilon(33.8, 1, 64, 1e-6, RELATIONS.REPLACE_ONE) == pytest.approx(2.1227, abs=2e-4)


@pytest.mark.parametrize(("sigma", "steps"), [(5.0, 1), (33.8, 64), (200.0, 512)])
def test_full_batches_agree_with_dp_accounting(sigma, steps):
    for adjacency, relation in (
        ("replace_label", RELATIONS.REPLACE_ONE),
        ("semi_sensitive", RELATIONS.REPLACE_ONE),
        ("add_remove", RELATIONS.ADD_OR_REMOVE_ONE),
    ):
        ours = epsilon_spent([NoisySteps(sigma, 1.0, steps)], 1e-6, adjacency)
        library = library_epsilon(sigma, 1, steps, 1e-6, relation)
        assert ours <= library * (1 + 1e-6)
        assert ours == pytest.approx(library, rel=0.01, abs=2e-3)


@pytest.mark.parametrize(("rate", "steps", "sigma"), [(0.1, 20, 2.129), (0.02, 50, 2.0), (0.5, 8, 6.0)])
def test_sampled_batches_agree_with_dp_accounting(rate, steps, sigma):
    history = [NoisySteps(sigma, rate, steps)]
    for adjacency, relation in (
        ("replace_label", RELATIONS.REPLACE_ONE),
        ("add_remove", RELATIONS.ADD_OR_REMOVE_ONE),
    ):
        expected = library_epsilon(sigma, rate, steps, 1e-6, relation)
        assert epsilon_spent(history, 1e-6, adjacency) == pytest.approx(expected, rel=0.01)


def test_adding_a_row_agrees_with_opacus():
    accountant = PRVAccountant()
    accountant.history = [(2.129, 0.1, 20)]
    assert accountant.get_epsilon(1e-5) == pytest.approx(0.992, abs=0.002)
    ours = epsilon_spent([NoisySteps(2.129, 0.1, 20)], 1e-5, "add_remove")
    # Opacus gives an upper bound of its own estimate of the error (0.01 here).
    assert ours == pytest.approx(0.992, abs=0.011)


def test_replacing_costs_about_twice_as_much():
    history = [NoisySteps(33.8, 1.0, 64)]
    ratio = epsilon_spent(history, 1e-6, "replace_label") / epsilon_spent(history, 1e-6, "add_remove")
    assert ratio == pytest.approx(2.123, abs=0.01)


def hockey_stick(first, second, sigma, rate, epsilon):
    """delta of the sampled mechanism whose row contributes `first` or `second`, by quadrature."""
    x = np.linspace(-1 - 14 * sigma, 1 + 14 * sigma, 200_001)
    rest = (1 - rate) * norm.pdf(x, 0, sigma)
    p = rest + rate * norm.pdf(x, first, sigma)
    q = rest + rate * norm.pdf(x, second, sigma)
    return float(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x))


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_opposite_gradients_are_the_worst_neighbours(rate):
    sigma, epsilon = 1.5, 0.2
    worst = hockey_stick(1, -1, sigma, rate, epsilon)
    for first, second in [(1, 0), (0, 1), (1, 0.5), (0.5, -0.5), (1, -0.5), (-1, 0.9)]:
        assert hockey_stick(first, second, sigma, rate, epsilon) <= worst + 1e-12
    accountant = PLDAccountant(RELATIONS.REPLACE_ONE)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)))
    assert accountant.get_delta(epsilon) == pytest.approx(worst, rel=1e-3)


@given(st.floats(0.01, 20), st.floats(1e-12, 1e-2))
def test_mu_and_epsilon_undo_each_other(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(epsilon, mu) <= delta
    assert gaussian_delta(epsilon, mu) == pytest.approx(delta, rel=1e-6)
    assert gaussian_epsilon(1 / mu, 1, delta) == pytest.approx(epsilon, rel=1e-6)


@given(st.floats(0.05, 8), st.integers(1, 500), st.sampled_from(["replace_label", "add_remove"]))
def test_calibrated_noise_spends_the_budget_and_not_more(epsilon, steps, adjacency):
    sigma = calibrate(epsilon, 1e-6, steps, adjacency=adjacency)
    spent = epsilon_spent([NoisySteps(sigma, 1.0, steps)], 1e-6, adjacency)
    assert epsilon * (1 - 1e-6) <= spent <= epsilon


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(0.5, 0.3, 5), (2.0, 0.02, 60)])
def test_calibrated_noise_for_samples(epsilon, rate, steps):
    sigma = calibrate(epsilon, 1e-5, steps, sampling="poisson", sample_rate=rate)
    spent = epsilon_spent([NoisySteps(sigma, rate, steps)], 1e-5, "replace_label")
    assert spent <= epsilon
    assert spent >= 0.97 * epsilon
    assert sigma <= calibrate(epsilon, 1e-5, steps)


@given(st.floats(1, 50), st.integers(1, 100), st.integers(1, 100))
def test_costs_grow_with_steps_and_fall_with_noise(sigma, steps, more):
    def cost(sigma, steps):
        return epsilon_spent([NoisySteps(sigma, 1.0, steps)], 1e-6, "replace_label")

    assert cost(sigma, steps) <= cost(sigma, steps + more)
    assert cost(2 * sigma, steps) <= cost(sigma, steps)


def test_histories_compose():
    halves = [NoisySteps(40.0, 1.0, 20), NoisySteps(40.0, 1.0, 44)]
    whole = [NoisySteps(40.0, 1.0, 64)]
    assert epsilon_spent(halves, 1e-6, "add_remove") == pytest.approx(
        epsilon_spent(whole, 1e-6, "add_remove")
    )
    mixed = [NoisySteps(40.0, 1.0, 20), NoisySteps(3.0, 0.1, 20)]
    parts = [epsilon_spent([part], 1e-6, "replace_label") for part in mixed]
    assert max(parts) < epsilon_spent(mixed, 1e-6, "replace_label") < sum(parts)


def test_edges():
    assert epsilon_spent([], 1e-6, "replace_label") == 0
    assert epsilon_spent([NoisySteps(1.0, 1.0, 0)], 1e-6, "replace_label") == 0
    assert epsilon_spent([NoisySteps(0.0, 1.0, 1)], 1e-6, "replace_label") == math.inf
    assert calibrate(math.inf, 1e-6, 10) == 0
    assert gaussian_mu(math.inf, 1e-6) == math.inf
    assert gaussian_epsilon(1e8, 1, 1e-3) == 0
    # A smaller proven sensitivity needs less noise, in proportion.
    assert calibrate(1, 1e-6, 64, sensitivity=0.5) == pytest.approx(calibrate(1, 1e-6, 64) / 4)


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        ((0, 1e-6, 10), {}, "epsilon is 0"),
        ((-1.0, 1e-6, 10), {}, "epsilon is -1.0"),
        ((math.nan, 1e-6, 10), {}, "epsilon is nan"),
        ((1, 0, 10), {}, "delta is 0"),
        ((1, 1.0, 10), {}, "delta is 1.0"),
        ((1, 1e-6, 0), {}, "steps is 0"),
        ((1, 1e-6, 2.5), {}, "steps is 2.5"),
        ((1, 1e-6, 10), {"adjacency": "user"}, "replace_label, add_remove, semi_sensitive"),
        ((1, 1e-6, 10), {"sampling": "shuffle"}, "no amplification"),
        ((1, 1e-6, 10), {"sampling": "poisson", "sample_rate": 0}, "sample_rate is 0"),
        ((1, 1e-6, 10), {"sampling": "full", "sample_rate": 0.1}, "every row in every step"),
    ],
)
def test_bad_arguments(arguments, changes, words):
    with pytest.raises(InputError, match=words):
        calibrate(*arguments, **changes)


def test_bad_noise():
    with pytest.raises(InputError, match="sigma is -1"):
        gaussian_epsilon(-1, 10, 1e-6)


REPORT = PrivacyReport(
    mechanism="64 steps",
    adjacency="replace_label",
    epsilon={"replace_label": 2.12268, "add_remove": 1.0},
    delta=1e-6,
    public=("features of the 10 training rows", "n itself", "the y-range"),
    sigma=33.8,
    notes=("A note.",),
)


def test_the_statement():
    assert REPORT.statement == (
        "(2.123, 1e-06)-DP with respect to replacing ONE LABEL; features of the 10 training rows, n itself "
        "and the y-range are treated as public. Mechanism: 64 steps. A note."
    )
    document = REPORT.to_json()
    assert document["statement"] == REPORT.statement
    assert PrivacyReport.from_json(document) == REPORT


@given(st.floats(1e-3, 1e3))
def test_the_statement_never_understates(epsilon):
    report = PrivacyReport("m", "add_remove", {"add_remove": epsilon}, 1e-6, ("n",))
    stated = float(report.statement[1:].split(",")[0])
    assert epsilon * (1 - 2e-9) <= stated <= epsilon * 1.001


def test_no_privacy_is_said_so():
    report = PrivacyReport("m", "add_remove", {"add_remove": math.inf}, 1e-6, ("n",))
    assert report.statement.startswith("NOT PRIVATE")
    assert PrivacyReport.from_json(report.to_json()) == report


def test_bad_reports():
    with pytest.raises(InputError, match="no epsilon for its own adjacency"):
        PrivacyReport("m", "replace_label", {"add_remove": 1.0}, 1e-6, ("n",))
    for broken in ({}, {"epsilon": 3}, REPORT.to_json() | {"more": 1}):
        with pytest.raises(InputError, match="not a privacy report"):
            PrivacyReport.from_json(broken)
