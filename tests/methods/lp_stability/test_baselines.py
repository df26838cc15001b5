"""Hold-out and uniform-stability bounds against their formulas, exact coverage and each other."""

import math

import numpy as np
import pytest
from scipy import stats

from assay.errors import InputError
from assay.methods.lp_stability import baselines
from assay.methods.lp_stability.concentration import radius
from assay.methods.lp_stability.envelopes import DeclaredEnvelope

HOLD_OUT = [
    (baselines.hold_out_hoeffding, "loss_bound"),
    (baselines.hold_out_empirical_bernstein, "loss_bound"),
    (baselines.hold_out_betting, "loss_bound"),
    (baselines.hold_out_second_moment, "second_moment"),
    (baselines.hold_out_median_of_means, "variance"),
    (baselines.hold_out_catoni, "variance"),
]


def test_bousquet_elisseeff():
    beta, m, delta = 0.002, 400, 0.05
    found = baselines.bousquet_elisseeff(beta, m, delta, loss_bound=1.0)
    # The published form has the stability under removal, half of this.
    removal = beta / 2
    published = 2 * removal + (4 * m * removal + 1) * math.sqrt(math.log(1 / delta) / (2 * m))
    assert found == pytest.approx(published)
    # It is McDiarmid's inequality with the differences 2 beta + M / m, plus the bias.
    envelope = DeclaredEnvelope({}, bound=2 * beta + 1 / m)
    assert found == pytest.approx(beta + radius(envelope, m, delta, bound="mcdiarmid").value)


def test_moment_bounds_win_where_stability_is_slow():
    """beta = m^(-1/2): the differences of Bousquet and Elisseeff do not concentrate, the moment bounds do."""
    delta = 1e-3
    for m in (10**6, 10**8):
        beta = m**-0.5
        classical = baselines.bousquet_elisseeff(beta, m, delta, loss_bound=1.0)
        log_free = baselines.log_free_stability(beta, m, delta, loss_bound=1.0)
        assert classical > 2
        assert log_free < 1
    bound = baselines.bousquet_klochkov_zhivotovskiy
    rates = [bound(m**-0.5, m, delta, loss_bound=1.0) for m in (10**6, 10**8)]
    assert rates[0] / rates[1] == pytest.approx(10 * 20 / 27, rel=0.05)


def test_moment_bounds_are_the_formula_at_the_best_order():
    delta, m, beta = 1e-4, 1000, 1e-3
    p = np.linspace(2, 60, 20001)
    norms = 33 * p * beta + np.sqrt(2 * p / m)
    assert baselines.log_free_stability(beta, m, delta, loss_bound=1.0) == pytest.approx(
        (norms * delta ** (-1 / p)).min(), rel=1e-3
    )
    norms = 2 * beta + 24 * math.sqrt(2) * p * beta * 10 + 4 * np.sqrt(p / m)
    assert baselines.bousquet_klochkov_zhivotovskiy(beta, m, delta, loss_bound=1.0) == pytest.approx(
        (norms * delta ** (-1 / p)).min(), rel=1e-3
    )


def test_formulas_of_the_hold_out_bounds():
    losses = np.array([0.1, 0.4, 0.4, 0.9])
    mean, delta = 0.45, 0.1
    hoeffding = baselines.hold_out_hoeffding(losses, delta, loss_bound=2.0)
    assert hoeffding.upper == pytest.approx(mean + 2 * math.sqrt(math.log(10) / 8))
    assert hoeffding.over == "draw of the 4 test rows"
    bernstein = baselines.hold_out_empirical_bernstein(losses, delta, loss_bound=2.0)
    spread = math.sqrt(2 * losses.var(ddof=1) * math.log(20) / 4)
    assert bernstein.upper == pytest.approx(mean + spread + 14 * math.log(20) / 9)
    second = baselines.hold_out_second_moment(losses, delta, second_moment=0.3)
    assert second.upper == pytest.approx(mean + math.sqrt(0.6 * math.log(10) / 4))


def test_median_of_means():
    losses = np.arange(40.0)
    found = baselines.hold_out_median_of_means(losses, 0.4, variance=100.0)
    blocks = math.ceil(8 * math.log(1 / 0.4))
    assert blocks == 8
    assert found.centre == np.median(losses.reshape(8, 5).mean(axis=1))
    # At the radius the binomial failure probability is exactly delta.
    radius_ = found.upper - found.centre
    chance = 100 / (100 + 5 * radius_**2)
    assert stats.binom.sf(3, 8, chance) == pytest.approx(0.4)
    # The exact binomial is no looser than the textbook radius 2 sqrt(v k / n).
    big = baselines.hold_out_median_of_means(np.zeros(1000), 0.01, variance=1.0)
    assert big.upper <= 2 * math.sqrt(math.ceil(8 * math.log(100)) / 1000) * 1.02


def test_catoni_solves_its_equation():
    losses = stats.pareto(2.5).rvs(size=200, random_state=0)
    found = baselines.hold_out_catoni(losses, 0.05, variance=3.0)
    n, exponent = 200, math.log(20)
    alpha = math.sqrt(2 * exponent / (n * 3.0 * (1 + 2 * exponent / (n - 2 * exponent))))
    x = alpha * (losses - found.centre)
    assert abs((np.sign(x) * np.log1p(np.abs(x) + x * x / 2)).sum()) < 1e-8
    assert found.upper - found.centre == pytest.approx(math.sqrt(6 * exponent / (n - 2 * exponent)))
    assert baselines.hold_out_catoni(np.full(50, 2.0), 0.1, variance=0.0).upper == 2.0


def test_betting_capital_is_a_plain_product():
    """The bound is where the gambler's capital, multiplied up loss by loss, reaches 1/delta."""
    losses = np.random.default_rng(0).beta(2, 5, size=60)
    delta = 0.05
    x = baselines.hold_out_betting(losses, delta, loss_bound=1.0).upper

    def peak(x):
        capital, best, total, squares = 1.0, 1.0, 0.5, 0.25
        variance = 0.25
        for t, loss in enumerate(losses):
            bet = min(math.sqrt(2 * math.log(1 / delta) / (60 * variance)), 0.5 / (1 - x))
            capital *= 1 + bet * (x - loss)
            best = max(best, capital)
            total += loss
            squares += (loss - total / (t + 2)) ** 2
            variance = squares / (t + 2)
        return best

    assert peak(x + 1e-6) >= 1 / delta > peak(x - 1e-6)
    grid = [peak(v) for v in np.linspace(0.05, 0.95, 40)]
    assert (np.diff(grid) >= -1e-12).all()


@pytest.mark.parametrize(("bound", "known"), HOLD_OUT)
def test_coverage(bound, known):
    """Bernoulli(1/20) losses, 40 of them: the failure probability over all samples and some orders."""
    n, q, delta = 40, 0.05, 0.1
    truth = {"second_moment": q, "variance": q * (1 - q), "loss_bound": 1.0}
    rng = np.random.default_rng(0)
    failures = 0.0
    for ones in range(n + 1):
        chance = stats.binom(n, q).pmf(ones)
        if chance < 1e-7:
            continue
        orders = 1 if bound not in (baselines.hold_out_betting, baselines.hold_out_median_of_means) else 40
        samples = [rng.permutation(np.arange(n) < ones).astype(float) for _ in range(orders)]
        failures += chance * np.mean(
            [bound(losses, delta, **{known: truth[known]}).upper < q for losses in samples]
        )
    assert failures <= delta + 0.01


def test_hold_out_for_heavy_tails_covers_and_concentrates():
    law = stats.pareto(2.5)
    truth, second, variance = law.mean(), law.moment(2), law.var()
    rng = np.random.default_rng(1)
    for bound, arguments in (
        (baselines.hold_out_second_moment, {"second_moment": second}),
        (baselines.hold_out_median_of_means, {"variance": variance}),
        (baselines.hold_out_catoni, {"variance": variance}),
    ):
        upper = [bound(law.rvs(size=400, random_state=rng), 0.05, **arguments).upper for _ in range(200)]
        assert np.mean(np.array(upper) < truth) <= 0.1
        assert np.median(upper) < truth + 1.0


def test_no_bound_gives_infinity_with_the_reason():
    few = np.ones(5)
    found = baselines.hold_out_median_of_means(few, 0.01, variance=1.0)
    assert found.upper == math.inf
    assert "needs at least 37 losses" in found.reason
    found = baselines.hold_out_catoni(few, 0.01, variance=1.0)
    assert found.upper == math.inf
    assert "there are 5" in found.reason
    found = baselines.hold_out_empirical_bernstein(np.array([0.3]), 0.1, loss_bound=1.0)
    assert found.upper == math.inf


def test_betting_never_exceeds_the_loss_bound():
    assert baselines.hold_out_betting(np.full(3, 2.0), 0.05, loss_bound=2.0).upper == 2.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: baselines.hold_out_hoeffding(np.array([0.1, 2.0]), 0.1, loss_bound=1.0), "is 2, outside"),
        (lambda: baselines.hold_out_hoeffding(np.array([]), 0.1, loss_bound=1.0), "losses has shape"),
        (lambda: baselines.hold_out_hoeffding(np.array([0.1]), 0.1, loss_bound=math.inf), "bound is inf"),
        (lambda: baselines.hold_out_catoni(np.array([1.0, np.nan]), 0.1, variance=1.0), "is nan"),
        (lambda: baselines.hold_out_catoni(np.ones(9), 0.1, variance=-1.0), "variance is -1.0"),
        (lambda: baselines.hold_out_second_moment(np.array([-1.0]), 0.1, second_moment=1.0), "value -1;"),
        (lambda: baselines.hold_out_median_of_means(np.ones(9), 0.1, variance=1.0, blocks=0), "blocks is 0"),
        (lambda: baselines.bousquet_elisseeff(-1.0, 10, 0.1, loss_bound=1.0), "beta is -1.0"),
        (lambda: baselines.bousquet_elisseeff(0.1, 0, 0.1, loss_bound=1.0), "m is 0"),
        (lambda: baselines.bousquet_elisseeff(0.1, 10, 0.0, loss_bound=1.0), "delta is 0.0"),
        (lambda: baselines.bousquet_elisseeff(0.1, 10, 0.1, loss_bound=0.0), "loss_bound is 0.0"),
    ],
)
def test_bad_input_names_the_field_and_the_value(call, message):
    with pytest.raises(InputError, match=message):
        call()
