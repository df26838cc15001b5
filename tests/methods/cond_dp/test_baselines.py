"""The baselines: known answers, exact privacy of what they release, and scikit-learn's own checks."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.errors import InputError
from assay.methods.cond_dp.accounting import gaussian_delta, gaussian_mu
from assay.methods.cond_dp.baselines import (
    AdaSSPRegressor,
    GaussianLabelNoiseRegressor,
    LabelSSPRegressor,
    RROnBinsRegressor,
    WeightedLLPRegressor,
)
from assay.methods.cond_dp.baselines.bins import optimal_bins, randomised_response
from assay.methods.cond_dp.baselines.design import ConditionedDesign, penalised_weights
from assay.methods.cond_dp.conditioner import PublicConditioner

LABEL_PRIVATE = (LabelSSPRegressor, GaussianLabelNoiseRegressor, RROnBinsRegressor, WeightedLLPRegressor)
ALL = (*LABEL_PRIVATE, AdaSSPRegressor)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4)) @ np.array([[2.0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0.3, 0], [1, 0, 0, 0.1]])
    y = X @ [1.0, -1.0, 0.5, 0.3] + 2 + 0.3 * rng.normal(size=600)
    return X, np.clip(y, -8, 12)


@parametrize_with_checks(
    [
        LabelSSPRegressor(epsilon=1e6, y_range=(-5.0, 5.0)),
        GaussianLabelNoiseRegressor(epsilon=1e8, y_range=(-5.0, 5.0)),
        RROnBinsRegressor(epsilon=1e6, y_range=(-5.0, 5.0)),
        WeightedLLPRegressor(epsilon=1e8, y_range=(-5.0, 5.0), bag_size=2),
        AdaSSPRegressor(epsilon=1e8, y_range=(-5.0, 5.0), row_norm=10.0),
    ]
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# What is released is private.


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("outcomes", [2, 3, 17])
def test_randomised_response_is_exactly_epsilon_private(epsilon, outcomes):
    matrix = randomised_response(epsilon, outcomes)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-12)
    ratios = matrix[:, None, :] / matrix[None, :, :]
    assert ratios.max() <= math.exp(epsilon) * (1 + 1e-12)
    assert ratios.max() == pytest.approx(math.exp(epsilon))


def test_randomised_response_survives_a_huge_budget():
    np.testing.assert_array_equal(randomised_response(1e6, 3), np.eye(3))


def test_bins_are_released_with_the_stated_probabilities():
    n = 40_000
    X = np.random.default_rng(1).normal(size=(n, 1))
    y = np.where(np.arange(n) % 2, 0.9, -0.9)
    model = RROnBinsRegressor(epsilon=1.0, y_range=(-1, 1), random_state=0, max_bins=2).fit(X, y)
    budget = 0.9
    assert model.randomisation_[0, 0] / model.randomisation_[0, 1] == pytest.approx(math.exp(budget))
    # The intercept of a regression on pure noise features is the mean of the released values.
    index = model.bins_.index(y)
    expected = (model.randomisation_ @ model.bins_.outputs)[index].mean()
    assert model.intercept_ == pytest.approx(expected, abs=0.02)


def _moments_noise(model, X, y, draws):
    """Deviations of weights from those without noise, mapped back to the release."""
    exact = _weights(type(model)(**(model.get_params() | {"epsilon": math.inf, "random_state": 0})), X, y)
    return np.array([_weights(model.set_params(random_state=seed), X, y) - exact for seed in range(draws)])


def _weights(model, X, y):
    fitted = model.fit(X, y)
    return np.append(fitted.coef_, fitted.intercept_)


def test_label_ssp_adds_noise_of_the_calibrated_size(rows):
    X, y = rows
    epsilon, delta = 1.0, 1e-6
    model = LabelSSPRegressor(epsilon, delta, y_range=(-8, 12), ridge=0.0)
    design = ConditionedDesign(X, None)
    lengths = np.linalg.norm(design.rows, axis=1)
    longest = np.quantile(lengths, 0.99)
    weighted = design.rows * np.minimum(1, longest / lengths)[:, None]
    # One label moves the sum by (range) x (length of its row), and the noise covers the largest such move.
    sensitivity = 20 * np.linalg.norm(weighted, axis=1).max()
    sigma = sensitivity / gaussian_mu(epsilon, delta)
    gram = weighted.T @ design.rows
    deviations = _moments_noise(model, X, y, 200)
    to_release = np.linalg.inv(np.array([np.append(*_original(design, e)) for e in np.eye(5)]).T)
    released = deviations @ to_release.T @ gram
    scaled = (released / sigma) ** 2
    low, high = stats.chi2.ppf([5e-4, 1 - 5e-4], released.size)
    assert low < scaled.sum() < high


def _original(design, weights):
    coef, intercept = design.in_original_units(weights)
    return coef, [intercept]


def test_one_label_moves_the_released_sum_by_no_more_than_the_noise_allows_for(rows):
    X, y = rows
    longest = 0.0
    base = LabelSSPRegressor(math.inf, y_range=(-8, 12), ridge=0.0)
    design = ConditionedDesign(X, None)
    lengths = np.linalg.norm(design.rows, axis=1)
    cap = np.quantile(lengths, 0.99)
    gram = (design.rows * np.minimum(1, cap / lengths)[:, None]).T @ design.rows
    to_release = np.linalg.inv(np.array([np.append(*_original(design, e)) for e in np.eye(5)]).T)
    for row in (int(np.argmax(lengths)), int(np.argmin(lengths))):
        moved = []
        for label in (-8, 12):
            changed = y.copy()
            changed[row] = label
            moved.append(_weights(base, X, changed))
        longest = max(longest, float(np.linalg.norm(gram @ to_release @ (moved[1] - moved[0]))))
    assert longest == pytest.approx(20 * cap, rel=1e-6)


def test_mean_labels_carry_laplace_noise_of_the_bag(rows):
    _, y = rows
    epsilon, size = 0.5, 6
    ones = np.random.default_rng(2).normal(size=(600, 1))
    model = WeightedLLPRegressor(epsilon, y_range=(-8, 12), bag_size=size, ridge=0.0)
    means = np.array([model.set_params(random_state=s).fit(ones, y).intercept_ for s in range(300)])
    # The intercept averages 100 bags, each with variance 2 (20 / (6 * 0.5))^2.
    expected = math.sqrt(2 * (20 / (size * epsilon)) ** 2 / 100)
    assert means.std() == pytest.approx(expected, rel=0.15)


def test_adassp_spends_exactly_its_budget():
    mu = gaussian_mu(1.0, 1e-6)
    assert 3 * (mu / math.sqrt(3)) ** 2 == pytest.approx(mu**2)
    # The published noise is too small for a third of the budget.
    published = math.sqrt(math.log(6 / 1e-6)) / (1 / 3)
    assert gaussian_delta(1 / 3, 1 / published) > 1e-6 / 3


@pytest.mark.parametrize("kind", ALL)
def test_privacy_reports_name_what_is_protected(rows, kind):
    X, y = rows
    options = {"row_norm": 20.0} if kind is AdaSSPRegressor else {}
    model = kind(epsilon=2.0, y_range=(-8, 12), random_state=0, **options).fit(X, y)
    report = model.privacy_
    assert report.epsilon[report.adjacency] == 2.0
    assert report.adjacency == ("add_remove" if kind is AdaSSPRegressor else "replace_label")
    assert report.delta == (0.0 if kind in (RROnBinsRegressor, WeightedLLPRegressor) else 1e-6)
    assert "ONE" in report.statement


# Without noise they are least squares.


@pytest.mark.parametrize("kind", [LabelSSPRegressor, GaussianLabelNoiseRegressor, AdaSSPRegressor])
def test_an_infinite_budget_gives_least_squares(rows, kind):
    X, y = rows
    options = {"row_norm": 100.0} if kind is AdaSSPRegressor else {}
    if kind is LabelSSPRegressor:
        options = {"row_quantile": 1.0}
    model = kind(epsilon=math.inf, y_range=(-8, 12), random_state=0, **options).fit(X, y)
    exact = LinearRegression().fit(X, y)
    np.testing.assert_allclose(model.coef_, exact.coef_, rtol=1e-6, atol=1e-8)
    assert model.intercept_ == pytest.approx(exact.intercept_)


def test_bags_of_one_row_without_noise_are_least_squares(rows):
    X, y = rows
    model = WeightedLLPRegressor(math.inf, y_range=(-8, 12), bag_size=1, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.coef_, LinearRegression().fit(X, y).coef_, rtol=1e-6)


def test_weighting_long_rows_down_leaves_a_linear_label_unchanged():
    rng = np.random.default_rng(3)
    X = rng.standard_t(2, size=(300, 3))
    y = X @ [0.01, 0.02, -0.01]
    model = LabelSSPRegressor(math.inf, y_range=(-10, 10), row_quantile=0.8).fit(X, y)
    np.testing.assert_allclose(model.coef_, [0.01, 0.02, -0.01], atol=1e-9)


def test_the_ridge_is_a_share_of_the_conditioned_gram(rows):
    X, y = rows
    t = (y - 2) / 10
    model = GaussianLabelNoiseRegressor(
        math.inf, y_range=(-8, 12), ridge=0.3, conditioner=PublicConditioner(gamma=0.0, standardize=True)
    ).fit(X, y)
    design = ConditionedDesign(X, PublicConditioner(gamma=0.0, standardize=True))
    np.testing.assert_allclose(design.rows.T @ design.rows, 600 * np.eye(5), atol=1e-6)
    expected = Ridge(alpha=0.3 * 600, fit_intercept=False).fit(design.rows, t).predict(design.rows)
    np.testing.assert_allclose(model.predict(X), expected * 10 + 2, atol=1e-8)


def test_the_rule_shrinks_more_under_more_noise():
    gram = 100 * np.eye(3)
    weights = [
        penalised_weights(gram, np.full(3, 100.0), ridge=None, noise_variance=v, n_rows=100)
        for v in (0.0, 1.0, 100.0)
    ]
    np.testing.assert_allclose(weights[0], 1)
    np.testing.assert_allclose(weights[1], 100 / (100 + 1 * 3 * 3))
    np.testing.assert_allclose(weights[2], 100 / (100 + 100 * 3 * 3))


def test_dependent_and_constant_columns_are_harmless(rows):
    X, y = rows
    wide = np.column_stack([X, X[:, 0], np.ones(len(X))])
    for model in (
        LabelSSPRegressor(math.inf, y_range=(-8, 12), ridge=0.0, row_quantile=1.0),
        GaussianLabelNoiseRegressor(math.inf, y_range=(-8, 12), ridge=0.0),
    ):
        narrow = model.fit(X, y).predict(X)
        np.testing.assert_allclose(model.fit(wide, y).predict(wide), narrow, atol=1e-8)


# Bins.


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 5), st.floats(0.05, 6))
def test_the_partition_is_the_best_of_all(seed, outcomes, epsilon):
    rng = np.random.default_rng(seed)
    values = np.sort(rng.uniform(-1, 1, size=8))
    prior = rng.dirichlet(np.full(8, 0.5))
    found = optimal_bins(values, prior, epsilon, outcomes)
    matrix = randomised_response(epsilon, outcomes)
    best = math.inf
    for borders in itertools.combinations(range(1, 8), outcomes - 1):
        groups = np.split(np.arange(8), borders)
        best = min(best, _loss(values, prior, matrix, groups, _best_outputs(values, prior, matrix, groups)))
    assert found.expected_loss == pytest.approx(best, abs=1e-10)
    groups = [np.flatnonzero(found.index(values) == k) for k in range(outcomes)]
    assert _loss(values, prior, matrix, groups, found.outputs) == pytest.approx(best, abs=1e-10)


def _best_outputs(values, prior, matrix, groups):
    """The least-squares output of each bin, from the joint law of label and release."""
    outputs = []
    for k in range(len(groups)):
        weight = np.zeros(len(values))
        for i, group in enumerate(groups):
            weight[group] = prior[group] * matrix[i, k]
        outputs.append(weight @ values / weight.sum())
    return np.array(outputs)


def _loss(values, prior, matrix, groups, outputs):
    return sum(
        prior[y] * matrix[i, k] * (values[y] - outputs[k]) ** 2
        for i, group in enumerate(groups)
        for y in group
        for k in range(len(groups))
    )


def test_debiased_values_have_the_true_mean(rows):
    X, y = rows
    model = RROnBinsRegressor(2.0, y_range=(-8, 12), debias=True, random_state=0).fit(X, y)
    released = model._released_values()
    np.testing.assert_allclose(model.randomisation_ @ released, model.bins_.centres, atol=1e-9)


def test_more_budget_gives_more_bins(rows):
    X, y = rows
    counts = [
        len(RROnBinsRegressor(e, y_range=(-8, 12), random_state=0).fit(X, y).bins_.outputs)
        for e in (0.5, 4.0, 50.0)
    ]
    assert counts[0] < counts[1] < counts[2] == 32


# Bad input.


@pytest.mark.parametrize("kind", ALL)
def test_a_missing_range_is_an_error(kind):
    with pytest.raises(InputError, match="y_range is missing"):
        kind().fit(np.zeros((5, 1)), np.zeros(5))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LabelSSPRegressor(epsilon=0.0, y_range=(0, 1)), "epsilon is 0.0"),
        (LabelSSPRegressor(delta=2.0, y_range=(0, 1)), "delta is 2.0"),
        (LabelSSPRegressor(y_range=(1, 0)), "y_range is"),
        (LabelSSPRegressor(y_range=(0, 1), row_quantile=0.0), "row_quantile is 0.0"),
        (LabelSSPRegressor(y_range=(0, 1), ridge=-1.0), "ridge is -1.0"),
        (AdaSSPRegressor(y_range=(0, 1), row_norm=0.0), "row_norm is 0.0"),
        (AdaSSPRegressor(y_range=(0, 1), failure=1.0), "failure is 1.0"),
        (RROnBinsRegressor(y_range=(0, 1), grid_size=1), "grid_size is 1"),
        (RROnBinsRegressor(y_range=(0, 1), max_bins=100), "max_bins is 100"),
        (RROnBinsRegressor(y_range=(0, 1), prior_share=0.0), "prior_share is 0.0"),
        (WeightedLLPRegressor(y_range=(0, 1), bag_size=0), "bag_size is 0"),
        (GaussianLabelNoiseRegressor(y_range=(0, 1), ridge="much"), "ridge is 'much'"),
    ],
)
def test_wrong_parameters_are_named(rows, model, message):
    X, _ = rows
    with pytest.raises(InputError, match=message):
        model.fit(X, np.full(len(X), 0.5))


@pytest.mark.parametrize("kind", LABEL_PRIVATE)
def test_labels_outside_the_range_are_clipped_and_counted(rows, kind):
    X, y = rows
    outside = y.copy()
    outside[:3] = [1e9, -1e9, 50.0]
    inside = np.clip(outside, -8, 12)
    first = kind(y_range=(-8, 12), random_state=0).fit(X, outside)
    second = kind(y_range=(-8, 12), random_state=0).fit(X, inside)
    assert first.n_labels_clipped_ == 3
    np.testing.assert_array_equal(first.coef_, second.coef_)


@pytest.mark.parametrize(("epsilon", "outcomes"), [(0.0, 2), (1.0, 1)])
def test_randomised_response_refuses_nonsense(epsilon, outcomes):
    with pytest.raises(InputError):
        randomised_response(epsilon, outcomes)


def test_more_bins_than_grid_values_are_refused():
    with pytest.raises(InputError, match="9 bins of 8 grid values"):
        optimal_bins(np.linspace(-1, 1, 8), np.full(8, 1 / 8), 1.0, 9)
