import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, Ridge, SGDRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.svm import LinearSVR

from assay.errors import InputError
from assay.methods.lp_stability import (
    Assumptions,
    AssumptionViolated,
    BallRidge,
    Certificate,
    Estimate,
    MomentWarning,
    certify,
    radius,
)
from assay.methods.lp_stability.analytic import constrained_ridge, loss_sensitivity
from assay.methods.lp_stability.assumptions import law_from_text, law_text
from assay.methods.lp_stability.envelopes import DeclaredEnvelope
from assay.methods.lp_stability.label_envelope import DeclaredLaw, LabelEnvelope
from assay.methods.lp_stability.losses import as_loss
from assay.methods.lp_stability.moments import inflate_moment, pair_envelope

pytestmark = pytest.mark.filterwarnings("ignore::assay.methods.lp_stability.moments.MomentWarning")

LAW = "t:df=5,scale=0.9"


@pytest.fixture(scope="module")
def certificate():
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.5, 0.5, size=(300, 3))
    y = X[:, 0] + 0.5 * rng.standard_t(5, size=300)
    return X, y, certify(BallRidge(500.0, 1.0), X, y, assumptions=Assumptions(x_bound=1.0, label_law=LAW))


# --- the types ---------------------------------------------------------------------------------------------


def test_plain_ridge_gives_an_estimate(heavy_rows):
    X, y = heavy_rows(400)
    for assumptions in (None, Assumptions(x_bound=1.0, label_law=LAW)):
        found = certify(Ridge(), X, y, assumptions=assumptions)
        assert found.kind == "estimate"
        assert not isinstance(found, Certificate)
        assert "without a bound on the weights" in found.why_no_certificate
        assert "not a guarantee" in found.sentence()


def test_an_estimate_has_no_upper_bound(heavy_rows):
    found = certify(Ridge(), *heavy_rows(300))
    for name in ("upper", "gap", "upper_loo"):
        assert not hasattr(found, name)
    with pytest.raises(AttributeError, match="bounds nothing"):
        found.upper  # noqa: B018
    assert found.plug_in > found.risk_emp
    assert not isinstance(found, Certificate)
    assert not issubclass(Estimate, Certificate)
    assert not issubclass(Certificate, Estimate)


@pytest.mark.parametrize(
    ("estimator", "loss", "assumptions", "missing"),
    [
        (BallRidge(), "absolute", Assumptions(), "declare x_bound"),
        (BallRidge(), "absolute", Assumptions(x_bound=1.0), "declare label_moment, label_law"),
        (BallRidge(), "squared", Assumptions(x_bound=1.0, label_law=LAW), "no known Lipschitz constant"),
        (KNeighborsRegressor(3), "absolute", Assumptions(x_bound=1.0, label_law=LAW), "displaced neighbour"),
        (
            SGDRegressor(random_state=0),
            "absolute",
            Assumptions(x_bound=1.0, label_law=LAW),
            "no envelope is known",
        ),
        (
            Ridge(),
            "absolute",
            Assumptions(x_bound=1.0, weight_bound=3.0, label_law=LAW),
            "intercept is not penalised",
        ),
        (BallRidge(), "absolute", Assumptions(fixed_design=True, label_law=LAW), "not known to be linear"),
        (Ridge(), "absolute", Assumptions(fixed_design=True), "the noise is unknown"),
        (BallRidge(), "absolute", Assumptions(x_bound=1.0, kappa=1e4), "kappa=10000 is too large"),
        (
            LinearSVR(fit_intercept=True, random_state=0),
            "absolute",
            Assumptions(x_bound=1.0, label_law=LAW),
            "no envelope is known",
        ),
    ],
)
def test_no_certificate_without_an_envelope(heavy_rows, estimator, loss, assumptions, missing):
    X, y = heavy_rows(200)
    found = certify(estimator, X, y, loss=loss, assumptions=assumptions, n_pairs=30)
    assert isinstance(found, Estimate)
    assert missing in found.why_no_certificate


# --- the numbers -------------------------------------------------------------------------------------------


def test_a_certificate_from_moments_equals_the_hand_computation(heavy_rows):
    """All steps again with the formulas of the method: beta = B / alpha, H, G, the bias, the radius."""
    X, y = heavy_rows(500)
    alpha, ball, second = 400.0, 1.5, 2.0
    found = certify(
        BallRidge(alpha, ball),
        X,
        y,
        delta=0.1,
        assumptions=Assumptions(x_bound=1.0, label_moment={2: second}, monotone_risk=True),
    )
    m, first = found.m, math.sqrt(second)
    assert (m, found.n_reserve) == (400, 100)
    beta = 1 / alpha
    offset = 2 * beta * 2 * ball + 2 * ball / m
    slope = 2 * beta + 1 / m
    square = offset**2 + 2 * offset * slope * 2 * first + slope**2 * (2 * second + 2 * first**2)
    cantelli = math.sqrt(m * square / 2 * (1 - 0.1) / 0.1)
    row = next(row for row in found.table if row.bound == "chebyshev")
    assert row.radius == pytest.approx(cantelli, rel=1e-9)
    assert found.bias == pytest.approx(beta * (2 * first + 2 * ball), rel=1e-9)
    assert row.upper == pytest.approx(found.risk_emp + cantelli + found.bias)
    assert found.upper == pytest.approx(found.risk_emp + found.gap)
    assert found.upper <= min(r.upper for r in found.table if r.target == "training risk") + 1e-12
    # The expected risk doesn't grow with m, so the leave-one-out version has no bias.
    assert found.upper_loo == pytest.approx(found.risk_loo + found.gap - found.bias)


def test_kinds(heavy_rows):
    X, y = heavy_rows(1000)
    moments = {2: 2.0}

    def kind(estimator, **declared):
        return certify(estimator, X, y, assumptions=Assumptions(**declared)).kind

    assert kind(BallRidge(500.0), x_bound=1.0, label_moment=moments) == "certificate"
    assert kind(BallRidge(500.0), x_bound=1.0, label_law=LAW) == "certificate"
    assert kind(BallRidge(500.0), x_bound=1.0, label_bound=50.0) == "certificate"
    assert kind(BallRidge(500.0), x_bound=1.0, kappa=5.0) == "conditional"
    ridge = Ridge(500.0, fit_intercept=False)
    assert kind(ridge, x_bound=1.0, weight_bound=2.0, label_moment=moments) == "conditional"
    svr = LinearSVR(C=0.002, fit_intercept=False, random_state=0)
    assert kind(svr, x_bound=1.0, label_moment=moments) == "conditional"
    ols = LinearRegression(fit_intercept=False)
    assert (
        kind(ols, x_bound=1.0, strong_convexity=0.1, training_lipschitz=1.0, label_moment=moments)
        == "conditional"
    )
    for smoother in (Ridge(10.0), KernelRidge(5.0, kernel="rbf"), KNeighborsRegressor(20), ols):
        assert kind(smoother, fixed_design=True, label_law="t:df=5,scale=0.5") == "certificate"


def test_a_fixed_design_is_over_the_labels(heavy_rows):
    X, y = heavy_rows(300)
    found = certify(
        Ridge(5.0), X, y, assumptions=Assumptions(fixed_design=True, label_moment={2: 0.25 * 5 / 3})
    )
    assert found.over == f"draw of the {found.m} training labels, given their predictors"
    assert "for new labels at the training predictors" in found.sentence()
    # E (e - e')^2 <= 2 E e^2, row by row.
    fitted = Ridge(5.0)
    order = np.random.default_rng(0).permutation(300)
    train = np.sort(order[found.n_reserve :])
    smoother = fitted.fit(X[train], np.eye(found.m)).predict(X[train])
    scales = (2 * np.abs(smoother).sum(0) + 1) / found.m
    variance = (scales**2).sum() * 0.25 * 5 / 3
    row = next(row for row in found.table if row.bound == "chebyshev")
    assert row.radius == pytest.approx(math.sqrt(variance * 0.95 / 0.05), rel=1e-9)


def test_a_declared_range_brings_mcdiarmid(certificate, heavy_rows):
    X, y, without = certificate
    found = certify(BallRidge(500.0), X, y, assumptions=Assumptions(x_bound=1.0, label_bound=20.0))

    def row(statement, name):
        return next(row for row in statement.table if row.bound == name)

    envelope = 2 * (2 * 20 + 2) / 500 + (2 * 20 + 2) / found.m
    assert row(found, "mcdiarmid").radius == pytest.approx(
        envelope * math.sqrt(found.m * math.log(20) / 2), rel=1e-9
    )
    assert math.isinf(row(without, "mcdiarmid").upper)
    assert "bound" in row(without, "mcdiarmid").reason
    assert {"Hoeffding", "betting"} <= {r.bound for r in found.table if r.target == "hold-out"}
    assert {"Hoeffding", "betting"}.isdisjoint(r.bound for r in without.table)
    assert {"Catoni", "median of means"} <= {r.bound for r in without.table if r.target == "hold-out"}


def test_kappa_spends_a_tenth_of_delta(heavy_rows):
    X, y = heavy_rows(2000)
    found = certify(BallRidge(500.0), X, y, assumptions=Assumptions(x_bound=1.0, kappa=3.0))
    assert found.delta_moments == pytest.approx(0.005)
    # By hand: sample moments of disjoint pairs, inflated at a third of 0.005 each; the radius gets the rest.
    order = np.random.default_rng(0).permutation(2000)
    train = np.sort(order[found.n_reserve :])
    m = found.m
    effect = 2 * constrained_ridge(x_bound=1.0, weight_bound=1.0, strong_convexity=500 / m, m=m)
    effect = effect + loss_sensitivity(weight_bound=1.0) / m
    measured = pair_envelope(effect, X[train], y[train], seed=0)
    moments = {p: math.exp(measured.log_moments(p)) for p in (2.0, 3.0, 4.0)}
    # A bound of a higher moment bounds the second one too.
    second = min(inflate_moment(value, m // 2, 3.0, 0.005 / 3) ** (2 / p) for p, value in moments.items())
    assert second > moments[2.0]
    row = next(row for row in found.table if row.bound == "chebyshev")
    assert row.radius == pytest.approx(math.sqrt(m * second / 2 * 0.955 / 0.045), rel=1e-6)
    assert "E H^(2p) <= 3" in found.sentence()
    wider = certify(BallRidge(500.0), X, y, assumptions=Assumptions(x_bound=1.0, kappa=30.0))
    assert wider.upper > found.upper


def test_a_row_law_is_simulated(heavy_rows):
    def law(n, rng):
        X = rng.uniform(-0.5, 0.5, size=(n, 2))
        return X, X[:, 0] + rng.normal(size=n)

    X, y = law(300, np.random.default_rng(1))
    found = certify(BallRidge(300.0), X, y, assumptions=Assumptions(x_bound=1.0, row_law=law))
    assert found.kind == "certificate"
    bounded = certify(
        BallRidge(300.0), X, y, assumptions=Assumptions(x_bound=1.0, label_law="norm:scale=1.1")
    )
    # It knows the predictors too, and so is sharper.
    assert found.gap < bounded.gap


def test_coverage_of_ridge_in_a_ball_with_t5_labels(heavy_rows):
    """400 draws of m = 200 rows: the risk may exceed the bound at most as often as the confidence allows."""
    declared = Assumptions(x_bound=1.0, label_law=LAW)
    found = certify(BallRidge(200.0), *heavy_rows(250), delta=0.1, assumptions=declared)
    assert (found.m, found.kind) == (200, "certificate")
    # E|a + T / 2| of t_5 noise, exactly, by interpolation between quadratures.
    grid = np.linspace(-2.5, 2.5, 81)
    mean_absolute = [stats.t(5, loc=a, scale=0.5).expect(abs) for a in grid[40:]]
    exact = np.concatenate([mean_absolute[:0:-1], mean_absolute])
    points, _ = heavy_rows(8_000, seed=99)
    gaps = []
    for seed in range(400):
        X, y = heavy_rows(200, seed=1000 + seed)
        w = BallRidge(200.0).fit(X, y).coef_
        risk = np.interp(points @ (1 / np.sqrt(5) - w), grid, exact).mean()
        gaps.append(risk - np.abs(y - X @ w).mean())
    exceeded = int((np.array(gaps) > found.gap).sum())
    # 51 is the largest count whose lower Clopper-Pearson limit is still at most 0.1.
    assert exceeded <= 51
    # The gaps are of a size that a bound without its sampling part would miss.
    assert 0.03 < np.quantile(gaps, 0.9) < found.gap < 3


def test_the_whole_procedure_covers_the_risk(heavy_rows):
    points, labels = heavy_rows(200_000, seed=77)
    for seed in range(5):
        X, y = heavy_rows(300, seed=seed)
        found = certify(
            BallRidge(100.0), X, y, delta=0.1, assumptions=Assumptions(x_bound=1.0, label_law=LAW), seed=seed
        )
        order = np.random.default_rng(seed).permutation(300)
        train = np.sort(order[found.n_reserve :])
        risk = np.abs(labels - BallRidge(100.0).fit(X[train], y[train]).predict(points)).mean()
        assert risk <= found.upper
        assert all(risk <= row.upper for row in found.table if row.target == "hold-out")


def test_hold_out_bounds_use_what_is_declared(heavy_rows):
    X, y = heavy_rows(500)
    model = Ridge(10.0)
    found = certify(model, X, y, assumptions=Assumptions(x_bound=1.0, label_moment={2: 2.0}))
    assert isinstance(found, Estimate)
    order = np.random.default_rng(0).permutation(500)
    held, train = np.sort(order[: found.n_reserve]), np.sort(order[found.n_reserve :])
    model.fit(X[train], y[train])
    # |y - w.x - b| <= |y| + ||w|| + |b|, by Minkowski's inequality in L_2.
    second = (math.sqrt(2) + np.linalg.norm(model.coef_) + abs(model.intercept_)) ** 2
    row = next(row for row in found.table if row.bound == "second moment")
    assert row.target == "hold-out"
    expected = math.sqrt(2 * second * math.log(20) / 100)
    assert row.radius == pytest.approx(expected, rel=1e-9)
    assert row.upper == pytest.approx(np.abs(y[held] - model.predict(X[held])).mean() + expected)
    without = certify(
        KNeighborsRegressor(3), X, y, assumptions=Assumptions(x_bound=1.0, label_moment={2: 2.0})
    )
    assert (
        "only the losses of linear models" in next(r for r in without.table if r.target == "hold-out").reason
    )


def test_vacuous_is_said_first(heavy_rows):
    X, y = heavy_rows(200)
    found = certify(BallRidge(0.01), X, y, assumptions=Assumptions(x_bound=1.0, label_law=LAW))
    assert found.vacuous
    assert found.text().startswith("This certificate is vacuous")
    twice = certify(
        BallRidge(1500.0), *heavy_rows(1250), assumptions=Assumptions(x_bound=1.0, label_moment={2: 1.5})
    )
    assert 2 < twice.upper / twice.risk_constant < 3
    assert twice.vacuous
    tight = certify(BallRidge(1e6), *heavy_rows(20_000), assumptions=Assumptions(x_bound=1.0, label_law=LAW))
    assert not tight.vacuous
    assert tight.text().startswith("With probability at least 0.95 over the draw of the 16000 training rows")


# --- no number where none is valid -------------------------------------------------------------------------


def test_few_rows_or_swaps_give_infinity_with_a_reason(heavy_rows):
    X, y = heavy_rows(300)
    few_swaps = certify(Ridge(), X, y, n_pairs=29)
    assert few_swaps.plug_in == math.inf
    assert "29 swaps were measured and at least 30 are needed" in few_swaps.reason
    few_rows = certify(Ridge(), X[:20], y[:20])
    assert few_rows.plug_in == math.inf
    assert "the reserve has 10 rows" in few_rows.reason
    high_order = certify(Ridge(), X[:70], y[:70], p=(35.0,))
    assert high_order.plug_in == math.inf
    assert "fewer than twice the order p = 35" in high_order.reason
    for found in (few_swaps, few_rows, high_order):
        assert "even the estimate is missing" in found.sentence()


def test_infinite_moments_give_no_finite_bound(heavy_rows):
    X, y = heavy_rows(300)
    found = certify(
        BallRidge(100.0), X, y, assumptions=Assumptions(x_bound=1.0, label_law="t:df=1,scale=0.8")
    )
    assert found.upper == math.inf
    assert found.reason
    assert found.sentence().startswith("No finite bound is valid here: ")


def test_a_law_without_variance_is_certified_by_a_low_moment():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, size=(5000, 1)), 0.2 * rng.standard_t(1.7, size=5000)
    found = certify(
        BallRidge(1e4), X, y, assumptions=Assumptions(x_bound=1.0, label_law="t:df=1.7,scale=0.3")
    )
    assert math.isfinite(found.upper)
    assert math.isinf(next(row.upper for row in found.table if row.bound == "chebyshev"))


def test_doubtful_moments_are_warned_of_and_conditional():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, size=(2000, 1)), rng.standard_t(2.2, size=2000)
    declared = Assumptions(x_bound=1.0, label_moment={2: 12.0, 8: 1e9})
    with pytest.warns(MomentWarning, match=r"above 0\.8 of the tail index"):
        found = certify(BallRidge(5000.0), X, y, delta=1e-6, assumptions=declared)
    assert found.kind == "conditional"
    assert any("tail index" in warning for warning in found.warnings)
    # With a declared law the moments are known.
    law = Assumptions(x_bound=1.0, label_law="t:df=2.2,scale=1.1")
    assert certify(BallRidge(5000.0), X, y, assumptions=law).kind == "certificate"
    # An estimate drops such orders instead of looking tight.
    with pytest.warns(MomentWarning):
        estimate = certify(Ridge(), X, y, p=(2.0, 12.0))
    row = next(row for row in estimate.table if row.p == 12)
    assert math.isinf(row.upper)


def test_constant_labels_have_zero_radius():
    X = np.random.default_rng(0).normal(size=(200, 2))
    found = certify(Ridge(), X, np.full(200, 3.0))
    assert found.plug_in == pytest.approx(0.0, abs=1e-9)
    assert certify(KNeighborsRegressor(3), X, np.zeros(200)).plug_in == 0.0


# --- declared constants are checked ------------------------------------------------------------------------


def test_what_the_data_refute_is_an_error(heavy_rows):
    X, y = heavy_rows(500)
    label = {2: 2.0}
    with pytest.raises(AssumptionViolated, match=r"x_bound=0.5 is violated by row \d+: \|\|x\|\| ="):
        certify(BallRidge(), X, y, assumptions=Assumptions(x_bound=0.5, label_moment=label))
    with pytest.raises(AssumptionViolated, match="label_bound=1 is violated by row"):
        certify(BallRidge(), X, y, assumptions=Assumptions(x_bound=1.0, label_bound=1.0))
    with pytest.raises(AssumptionViolated, match=r"label_moment\[2\]=0.1 is contradicted"):
        certify(BallRidge(), X, y, assumptions=Assumptions(x_bound=1.0, label_moment={2: 0.1}))
    with pytest.raises(AssumptionViolated, match="label_law"):
        certify(BallRidge(), X, y, assumptions=Assumptions(x_bound=1.0, label_law="norm:scale=0.1"))
    with pytest.raises(AssumptionViolated, match="outside the support"):
        certify(BallRidge(), X, y, assumptions=Assumptions(x_bound=1.0, label_law="pareto:b=3"))
    with pytest.raises(AssumptionViolated, match=r"weight_bound=0\.5 is below the radius 1"):
        certify(BallRidge(), X, y, assumptions=Assumptions(x_bound=1.0, weight_bound=0.5, label_moment=label))
    with pytest.raises(AssumptionViolated, match="fitted coefficients have the norm"):
        certify(
            Ridge(0.01, fit_intercept=False),
            X,
            y,
            assumptions=Assumptions(x_bound=1.0, weight_bound=0.1, label_moment=label),
        )
    # A moment a little below the sample's is no contradiction.
    slightly = float((y**2).mean()) - (y**2).std() / math.sqrt(500)
    certify(BallRidge(), X, y, assumptions=Assumptions(x_bound=1.0, label_moment={2: slightly}))


def test_a_loss_of_ones_own_needs_and_keeps_its_lipschitz_constant(heavy_rows):
    X, y = heavy_rows(300)

    def doubled(labels, predictions):
        return 2 * np.abs(labels - predictions)

    declared = {"x_bound": 1.0, "label_law": LAW}
    assert isinstance(certify(BallRidge(), X, y, loss=doubled), Estimate)
    with pytest.raises(AssumptionViolated, match="the loss 'doubled' moves by"):
        certify(BallRidge(), X, y, loss=doubled, assumptions=Assumptions(lipschitz=1.0, **declared))
    with pytest.raises(AssumptionViolated, match=r"lipschitz=0\.5 is below the constant 1"):
        certify(BallRidge(), X, y, assumptions=Assumptions(lipschitz=0.5, **declared))
    own = certify(BallRidge(), X, y, loss=doubled, assumptions=Assumptions(lipschitz=2.0, **declared))
    plain = certify(BallRidge(), X, y, assumptions=Assumptions(**declared))
    assert own.gap == pytest.approx(2 * plain.gap, rel=1e-6)


def test_losses_can_be_negative(heavy_rows):
    X, y = heavy_rows(300)

    def shifted(labels, predictions):
        return np.abs(labels - predictions) - 5

    own = certify(
        BallRidge(500.0),
        X,
        y,
        loss=shifted,
        assumptions=Assumptions(x_bound=1.0, label_law=LAW, lipschitz=1.0),
    )
    plain = certify(BallRidge(500.0), X, y, assumptions=Assumptions(x_bound=1.0, label_law=LAW))
    assert own.upper == pytest.approx(plain.upper - 5)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"x_bound": 0}, "x_bound is 0"),
        ({"x_bound": math.inf}, "x_bound is inf"),
        ({"x_bound": "1"}, "x_bound is '1'"),
        ({"kappa": 0.5}, "kappa is 0.5: declare a finite number at least 1"),
        ({"weight_bound": True}, "weight_bound is True"),
        ({"label_moment": {0.5: 1.0}}, "order 0.5"),
        ({"label_moment": {2: -1.0}}, r"label_moment\[2\] is -1.0"),
        ({"label_moment": {2: 4.0, 4: 8.0}}, r"E\|y\|\^4 = 8 is impossible beside E\|y\|\^2 = 4"),
        ({"label_moment": [1]}, "mapping from p"),
        ({"label_law": "tt:df=5"}, "'tt' is no continuous law"),
        ({"label_law": "t:df=x"}, "'df=x' is not of the form name=number"),
        ({"label_law": "t:nu=5"}, "label law 't:nu=5'"),
        ({"label_law": "t:df=-1"}, "parameters are out of range"),
        ({"label_law": "poisson:mu=3"}, "no continuous law"),
        ({"label_law": 5}, "frozen law"),
        ({"fixed_design": 1}, "fixed_design is 1"),
    ],
)
def test_assumptions_out_of_range(declared, message):
    with pytest.raises(InputError, match=message):
        Assumptions(**declared)


def test_laws_as_text():
    assert law_text(law_from_text("t:df=5,scale=0.5")) == "t:df=5,scale=0.5"
    assert law_text(stats.norm(1, 2)) == "norm:loc=1,scale=2"
    assert law_text(stats.beta(2, b=3)) == "beta:a=2,b=3"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": 1.5}, "delta is 1.5"),
        ({"loss": "mse"}, "no loss 'mse'"),
        ({"loss": "huber:-1"}, "threshold must be positive"),
        ({"loss": "pinball:2"}, "quantile must lie between 0 and 1"),
        ({"loss": "huber:a"}, "'a' is not a number"),
        ({"loss": 3}, "loss is 3"),
        ({"reserve": 1.0}, "reserve is 1.0"),
        ({"n_pairs": 0}, "n_pairs is 0"),
        ({"p": (1.5,)}, "at least 2"),
        ({"loss": lambda y, f: float(np.abs(y - f).mean())}, "must be elementwise"),
        ({"loss": lambda y, f: np.log(-np.abs(y))}, "is not finite"),
    ],
)
def test_bad_options(heavy_rows, options, message):
    with pytest.raises(InputError, match=message), np.errstate(invalid="ignore", divide="ignore"):
        certify(Ridge(), *heavy_rows(100), **options)


def test_bad_rows_are_named(heavy_rows):
    X, y = heavy_rows(100)
    broken = X.copy()
    broken[17, 2] = np.nan
    with pytest.raises(InputError, match="X contains NaN in row 17"):
        certify(Ridge(), broken, y)
    worse = y.copy()
    worse[41] = np.inf
    with pytest.raises(InputError, match="y contains infinity in row 41"):
        certify(Ridge(), X, worse)
    with pytest.raises(InputError, match="X has shape"):
        certify(Ridge(), X, y[:50])
    with pytest.raises(InputError, match="must be numbers"):
        certify(Ridge(), [["a"]] * 5, [1] * 5)
    with pytest.raises(InputError, match="at least 2 rows"):
        certify(Ridge(), X[:1], y[:1])


def test_a_random_estimator_is_refused(heavy_rows):
    with pytest.raises(InputError, match="set its random_state to an integer"):
        certify(SGDRegressor(), *heavy_rows(100))


# --- the file ----------------------------------------------------------------------------------------------


def test_a_certificate_survives_the_file(certificate, tmp_path):
    X, y, found = certificate
    path = found.save(tmp_path / "certificate.json")
    assert Certificate.load(path) == found
    again = Certificate.load(path)
    again.verify(X, y)
    changed = y.copy()
    changed[3] += 1e-9
    with pytest.raises(InputError, match=r"y has the SHA-256 .* doesn't speak of these rows"):
        again.verify(X, changed)
    assert again.text() == found.text()


def test_an_estimate_survives_the_file_but_not_as_a_certificate(heavy_rows, tmp_path):
    found = certify(Ridge(), *heavy_rows(40), n_pairs=10)
    path = found.save(tmp_path / "estimate.json")
    again = Estimate.load(path)
    assert again == found
    assert again.plug_in == math.inf
    with pytest.raises(InputError, match="type 'estimate', not 'certificate'"):
        Certificate.load(path)


def test_a_changed_file_is_refused(certificate, tmp_path):
    _, _, found = certificate
    path = found.save(tmp_path / "certificate.json")
    good = json.loads(path.read_text())

    def refused(change, message):
        document = json.loads(json.dumps(good))
        change(document)
        path.write_text(json.dumps(document))
        with pytest.raises(InputError, match=message):
            Certificate.load(path)

    refused(lambda d: d["content"].update(upper=0.1, gap=-0.4), "was changed after it was written")
    refused(lambda d: d["content"].update(kind="certified"), "was changed after it was written")
    refused(lambda d: d.update(sha256="0" * 64), "was changed after it was written")
    refused(lambda d: d.update(schema="assay.lp_stability.statement/0"), "has the schema")
    refused(lambda d: d.update(type="estimate"), "type 'estimate'")
    refused(lambda d: d.pop("sha256"), "is no certificate")
    path.write_text('{"schema": ')
    with pytest.raises(InputError, match="is not JSON"):
        Certificate.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"upper": 0.1}, "is not risk_emp"),
        ({"kind": "estimate"}, "kind is 'estimate'"),
        ({"upper": math.inf}, "no reason"),
        ({"delta": 2.0}, "delta is 2.0"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(certificate, tmp_path, change, message):
    path = dataclasses.replace(certificate[2], **change).save(tmp_path / "certificate.json")
    with pytest.raises(InputError, match=message):
        Certificate.load(path)


def test_results_do_not_depend_on_the_process_state(heavy_rows):
    X, y = heavy_rows(200)
    first = certify(Ridge(), X, y, seed=4)
    np.random.seed(0)  # noqa: NPY002
    assert certify(Ridge(), X, y, seed=4) == first
    assert certify(Ridge(), X, y, seed=5) != first


# --- the label envelope ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["norm:loc=1,scale=2", "t:df=6", "pareto:b=4.5", "uniform:loc=-1,scale=3"])
def test_label_envelope_of_a_law_bounds_a_simulation_closely(text):
    law, offset, slope = law_from_text(text), 0.3, 2.0
    envelope = LabelEnvelope(offset, slope, DeclaredLaw(law))
    rng = np.random.default_rng(0)
    y, other = np.abs(law.rvs(size=(2, 400_000), random_state=rng))
    effect, conditional = offset + slope * (y + other), offset + slope * (y + y.mean())
    for p, tolerance in ((1.0, 0.01), (1.5, 0.08), (2.0, 0.03), (3.0, 0.15)):
        assert math.exp(envelope.log_moments(p)) == pytest.approx((effect**p).mean(), rel=tolerance)
        assert math.exp(envelope.log_conditional_moments(p)) == pytest.approx(
            (conditional**p).mean(), rel=tolerance
        )
    levels = np.quantile(conditional, [0.1, 0.5, 0.9, 0.99])
    found = envelope.tail(levels)
    assert found is not None
    probability, partial_mean = found
    np.testing.assert_allclose(probability, [(conditional > level).mean() for level in levels], rtol=0.05)
    expected = [(conditional * (conditional > level)).mean() for level in levels]
    np.testing.assert_allclose(partial_mean, expected, rtol=0.05)
    assert (np.diff(envelope.tail(np.linspace(0, 50, 500))[1]) <= 1e-12).all()


def test_moments_of_a_law_are_exact():
    assert math.exp(DeclaredLaw(stats.norm()).log_moments(2.0)) == pytest.approx(1, rel=2e-5)
    assert math.exp(DeclaredLaw(stats.t(5)).log_moments(4.0)) == pytest.approx(25, rel=2e-5)
    assert math.exp(DeclaredLaw(stats.pareto(3.5)).log_moments(3.0)) == pytest.approx(7, rel=2e-5)
    # At and above the tail index there is none.
    for p in (5.0, 6.0, 20.0):
        assert DeclaredLaw(stats.t(5)).log_moments(p) == math.inf


@settings(max_examples=40, deadline=None)
@given(
    offset=st.just(0.0) | st.floats(0.01, 3),
    slope=st.floats(0.01, 3),
    values=st.lists(st.just(0.0) | st.floats(0.01, 4), min_size=1, max_size=5),
    p=st.sampled_from([1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0]),
)
def test_label_envelope_from_moments_is_an_upper_bound(offset, slope, values, p):
    """For |y| uniform on a few values all moments are exact sums."""
    y = np.array(values)
    moments = {q: float((y**q).mean()) for q in (2.0, 4.0, 6.0)}
    envelope = LabelEnvelope(offset, slope, DeclaredEnvelope(moments))
    exact = ((offset + slope * (y[:, None] + y[None, :])) ** p).mean()
    given_row = ((offset + slope * (y + y.mean())) ** p).mean()
    assert math.exp(envelope.log_moments(p)) >= exact * (1 - 1e-9)
    assert math.exp(envelope.log_conditional_moments(p)) >= given_row * (1 - 1e-9)


def test_a_bounded_label_bounds_the_envelope():
    envelope = LabelEnvelope(0.5, 2.0, DeclaredEnvelope({}, bound=3.0))
    assert envelope.bound == envelope.subgaussian == 12.5
    assert radius(envelope, 100, 0.05, bound="mcdiarmid").value == pytest.approx(
        12.5 * math.sqrt(100 * math.log(20) / 2)
    )


def test_named_losses():
    y, f = np.array([0.0, 0.0, 0.0]), np.array([-0.5, 0.5, 3.0])
    np.testing.assert_allclose(as_loss("absolute")(y, f), [0.5, 0.5, 3.0])
    np.testing.assert_allclose(as_loss("squared")(y, f), [0.25, 0.25, 9.0])
    np.testing.assert_allclose(as_loss("huber:2")(y, f), [0.125, 0.125, 4.0])
    np.testing.assert_allclose(as_loss("pinball:0.9")(y, f), [0.45, 0.05, 0.3])
    assert as_loss("pinball:0.9").lipschitz == pytest.approx(0.9)
