"""DeSIRegressor: accuracy in simulations, invariances, the scikit-learn contract, bad input."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from assay.errors import InputError
from assay.methods.desi import base, bootstrap, smoother, training
from assay.methods.desi.base import frechet_variance
from assay.methods.desi.baselines import FrechetMean, GlobalFrechet
from assay.methods.desi.index_model import starting_directions
from assay.methods.desi.metrics import angle, frechet_r2, mpe, mspe
from assay.methods.desi.per_sample import (
    DISTRIBUTIONS,
    MATRICES,
    NETWORKS,
    SPHERES,
    _Fit,
    published_settings,
)
from assay.methods.desi.regressor import DeSIRegressor
from assay.methods.desi.simulate import simulate
from assay.methods.desi.smoother import IndexSmoother
from assay.methods.desi.spaces import SPD, Composition, Euclidean, GraphLaplacian, Sphere, Wasserstein1D
from assay.methods.desi.training import Rows, leave_one_out_loss, train

TEST_ROWS = 300
# Quick settings for tests of plumbing.
QUICK: dict[str, Any] = {"n_restarts": 0, "max_epochs": 30, "random_state": 0}


def line(n: int = 60, p: int = 3, noise: float = 0.05, seed: int = 0):
    """A real response that is linear in the index."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    theta = np.arange(p, 0, -1) / np.linalg.norm(np.arange(1, p + 1))
    return X, X @ theta + noise * rng.normal(size=n), theta


def accuracy(design: str, n: int, seed: int) -> tuple[float, float, float, float]:
    """MPE of DeSI, of global Fréchet regression and of the constant mean, and DeSI's angle to the truth.

    As in the published experiments, half of the n rows are for fitting.
    """
    sample = simulate(design, n // 2 + TEST_ROWS, seed=seed)  # pyright: ignore[reportArgumentType]
    train, test = slice(0, n // 2), slice(n // 2, None)
    errors = []
    model = DeSIRegressor(sample.space, random_state=0)
    for estimator in (model, GlobalFrechet(sample.space), FrechetMean(sample.space)):
        predictions = estimator.fit(sample.X[train], sample.Y[train]).predict(sample.X[test])
        errors.append(mpe(sample.space, sample.truth[test], predictions))
    return *errors, angle(model.coef_, sample.direction)


def test_distributions_beat_global_regression_and_the_constant():
    results = np.array([accuracy("distributions", 200, seed) for seed in (0, 1)])
    shared, global_, constant, angles = results.T
    assert (shared < global_).all()
    assert (shared < constant).all()
    assert angles.mean() < 15


def test_networks_are_predicted_far_better_than_by_global_regression():
    shared, global_, _, degrees = accuracy("networks", 200, 0)
    assert shared <= 0.40
    assert shared < 0.7 * global_
    assert degrees < 5


def test_spd_matrices_are_predicted_far_better_than_by_global_regression():
    shared, global_, _, degrees = accuracy("spd", 200, 0)
    assert shared <= 0.13
    assert shared < 0.35 * global_
    assert degrees < 5


@pytest.mark.slow
def test_distributions_with_200_rows():
    results = np.array([accuracy("distributions", 200, seed) for seed in range(6)])
    shared, global_, constant, angles = results.T
    assert shared.mean() <= 0.17
    assert ((shared < global_) & (shared < constant)).sum() >= 5
    assert angles.mean() < 15


@pytest.mark.slow
def test_distributions_with_500_rows():
    angles = [accuracy("distributions", 500, seed)[3] for seed in range(6)]
    assert np.mean(angles) < 7


@pytest.mark.slow
@pytest.mark.parametrize(("design", "largest", "ratio"), [("networks", 0.40, 0.7), ("spd", 0.13, 0.35)])
def test_matrices_with_200_rows(design, largest, ratio):
    shared, global_, _, _ = np.array([accuracy(design, 200, seed) for seed in range(4)]).mean(0)
    assert shared <= largest
    assert shared < ratio * global_


@pytest.mark.slow
def test_sphere_and_composition_agree():
    sample = simulate("sphere", 200, seed=0)
    on_sphere = DeSIRegressor(sample.space, random_state=0, n_restarts=0)
    on_sphere.fit(sample.X[:100], sample.Y[:100])
    predictions = on_sphere.predict(sample.X[100:])
    assert mpe(sample.space, sample.truth[100:], predictions) < 0.08
    assert angle(on_sphere.coef_, sample.direction) < 10
    shares = DeSIRegressor(Composition(), random_state=0, n_restarts=0)
    shares.fit(sample.X[:100], sample.Y[:100] ** 2)
    np.testing.assert_allclose(shares.predict(sample.X[100:]), predictions**2, atol=1e-4)


def test_sphere_direction_is_found():
    sample = simulate("sphere", 60, seed=0)
    model = DeSIRegressor(sample.space, n_restarts=0, max_epochs=40, random_state=0).fit(sample.X, sample.Y)
    assert angle(model.coef_, sample.direction) < 20
    assert model.score(sample.X, sample.Y) > 0.5
    np.testing.assert_allclose(np.linalg.norm(model.predict(sample.X), axis=1), 1)


@pytest.mark.parametrize("mode", ["shared", "deep_shared"])
def test_linear_index_is_recovered(mode):
    X, y, theta = line(80)
    model = DeSIRegressor(Euclidean(), mode=mode, n_restarts=0, random_state=0).fit(X, y)
    assert angle(model.coef_, theta) < 5
    assert model.score(X, y) > 0.95
    assert np.linalg.norm(model.direction_) == pytest.approx(1)
    assert model.direction_[0] > 0
    np.testing.assert_allclose(X @ model.coef_ + model.intercept_, model.predict_index(X), atol=1e-12)


def test_direction_belongs_to_standardised_predictors():
    X, y, theta = line(80)
    units = np.array([1000.0, 1.0, 1e-3])
    one = DeSIRegressor(Euclidean(), n_restarts=0, random_state=0).fit(X, y)
    other = DeSIRegressor(Euclidean(), n_restarts=0, random_state=0).fit(X * units + 7, y)
    np.testing.assert_allclose(one.direction_, other.direction_, atol=1e-6)
    np.testing.assert_allclose(one.coef_, other.coef_ * units, atol=1e-6)
    assert angle(other.coef_ * units, theta) < 5


def test_opposite_direction_gives_the_same_predictions():
    z, Y = np.sort(np.random.default_rng(0).normal(size=30)), np.random.default_rng(1).normal(size=(30, 2))
    targets = np.linspace(-2, 2, 9)
    one = IndexSmoother(Euclidean(), z, Y, 0.4)
    opposite = IndexSmoother(Euclidean(), -z[::-1], Y[::-1], 0.4)
    np.testing.assert_allclose(one.predict(targets), opposite.predict(-targets), atol=1e-12)
    # The same for predictors that are all turned around: the direction turns, the predictions stay.
    X, y, _ = line(60)
    settings = QUICK | {"val_fraction": 0}
    model, turned = (DeSIRegressor(Euclidean(), **settings).fit(sign * X, y) for sign in (1, -1))
    np.testing.assert_allclose(model.direction_, turned.direction_, atol=1e-6)
    np.testing.assert_allclose(model.predict(X), turned.predict(-X), atol=1e-6)


@pytest.mark.parametrize("mode", ["shared", "deep_shared", "per_sample"])
def test_order_of_the_rows_does_not_matter(mode):
    X, y, _ = line(40)
    order = np.random.default_rng(3).permutation(40)
    settings = {"mode": mode, "n_restarts": 1, "max_epochs": 15, "random_state": 5}
    one = DeSIRegressor(Euclidean(), **settings).fit(X, y)
    other = DeSIRegressor(Euclidean(), **settings).fit(X[order], y[order])
    np.testing.assert_array_equal(one.direction_, other.direction_)
    np.testing.assert_array_equal(one.predict(X), other.predict(X))


@pytest.mark.parametrize("mode", ["shared", "deep_shared", "per_sample"])
def test_fit_depends_on_its_seed_alone(mode):
    X, y, _ = line(40, noise=1.0)

    def fitted(seed):
        model = DeSIRegressor(Euclidean(), mode=mode, n_restarts=2, max_epochs=5, random_state=seed)
        return model.fit(X, y).predict(X)

    torch.manual_seed(1)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one = fitted(0)
    # The global random states are neither used nor advanced.
    assert torch.equal(before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002
    torch.manual_seed(2)
    np.testing.assert_array_equal(one, fitted(0))
    assert np.abs(one - fitted(1)).max() > 1e-6


def test_frechet_r2_is_zero_for_the_constant_and_one_for_perfection():
    sample = simulate("spd", 30, seed=0)
    constant = FrechetMean(sample.space).fit(sample.X, sample.Y)
    assert constant.score(sample.X, sample.Y) == pytest.approx(0, abs=1e-12)
    assert frechet_r2(sample.space, sample.Y, sample.Y) == 1
    same = np.repeat(sample.Y[:1], 5, axis=0)
    assert frechet_r2(sample.space, same, same) == 1
    assert frechet_r2(sample.space, same, sample.Y[:5]) == 0


def test_errors_are_mean_distances_and_their_squares():
    a, b = np.array([[0.0, 0], [0, 0]]), np.array([[3.0, 4], [0, 1]])
    assert mpe(Euclidean(), a, b) == 3
    assert mspe(Euclidean(), a, b) == 13


@pytest.mark.parametrize(
    ("a", "b", "degrees"), [([1, 0], [0, 2], 90), ([1, 1], [-2, -2], 0), ([1, 0], [-1, 1], 45)]
)
def test_angle_is_between_lines(a, b, degrees):
    assert angle(np.array(a, float), np.array(b, float)) == pytest.approx(degrees, abs=1e-6)


def test_leave_one_out_is_the_reported_loss():
    """The first entry of the loss curve, by a loop over rows that are really left out."""
    X, y, _ = line(25)
    model = DeSIRegressor(
        Euclidean(), bandwidth=0.5, val_fraction=0, n_restarts=0, max_epochs=1, random_state=0
    ).fit(X, y)
    # With one epoch the first start is kept as it began.
    z = model.predict_index(X)
    left_out = [
        IndexSmoother(
            Euclidean(), np.sort(np.delete(z, i)), np.delete(y, i)[np.argsort(np.delete(z, i)), None], 0.5
        ).predict(z[[i]])[0, 0]
        for i in range(25)
    ]
    expected = np.mean((y - left_out) ** 2) / y.var()
    assert model.loss_curve_[0] == pytest.approx(expected, rel=1e-9)
    assert model.restart_losses_.min() == pytest.approx(expected, rel=1e-9)


def test_penalty_widens_the_bandwidth():
    X, y, _ = line(40, p=1, noise=0.5)
    settings = {"n_restarts": 0, "val_fraction": 0, "random_state": 0}
    mild, strong = (DeSIRegressor(Euclidean(), lam=lam, **settings).fit(X, y) for lam in (0.0, 1.0))
    assert strong.bandwidth_ > 2 * mild.bandwidth_
    # The bandwidth starts from the rule of thumb; the objective holds the penalty.
    difference = strong.loss_curve_[0] - mild.loss_curve_[0]
    assert difference == pytest.approx(1.0 / (1.06 * 40**-0.2))


def test_counts_in_the_loss_are_repeated_rows_without_their_copies():
    X, y, _ = line(12)
    counts = np.random.default_rng(0).integers(1, 4, size=12)
    rows = Rows(
        torch.from_numpy(X), torch.from_numpy(y[:, None]), 2.0, torch.from_numpy(counts.astype(float))
    )
    h = torch.tensor(0.6, dtype=torch.float64)
    loss = leave_one_out_loss(Euclidean(), rows.X[:, 0], rows, h).item()
    errors = []
    for i in range(12):
        others = np.repeat(np.delete(np.arange(12), i), np.delete(counts, i))
        others = others[np.argsort(X[others, 0])]
        fit = IndexSmoother(Euclidean(), X[others, 0], y[others, None], 0.6).predict(X[[i], 0])[0, 0]
        errors += [(fit - y[i]) ** 2] * int(counts[i])
    assert loss == pytest.approx(np.mean(errors) / 2, rel=1e-9)


def test_symmetric_links_have_a_moment_start():
    """Second moments of the response show the direction of a quadratic link, first moments do not."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6))
    theta = np.array([1.0, -1, 0, 0, 2, 0]) / np.sqrt(6)
    responses = ((X @ theta) ** 2)[:, None] * np.array([1.0, 0.5]) + 0.1 * rng.normal(size=(400, 2))
    first, second, *random = starting_directions(X, responses, 3, rng)
    assert angle(second, theta) < 15 < angle(first, theta)
    assert len(random) == 3
    np.testing.assert_allclose(np.linalg.norm([first, second, *random], axis=1), 1)
    # With a linear link it is the other way round: the first start is least squares.
    first, *_ = starting_directions(X, (X @ theta)[:, None] * np.array([1.0, 0.5]), 0, rng)
    assert angle(first, theta) < 1e-4


def test_extrapolation_is_flagged():
    X, y, _ = line(40)
    model = DeSIRegressor(Euclidean(), **QUICK).fit(X, y)
    far = np.vstack([X[:2], 50 * model.coef_, -50 * model.coef_])
    predictions, outside = model.predict(far, return_flag=True)
    assert outside.tolist() == [False, False, True, True]
    np.testing.assert_array_equal(predictions, model.predict(far))
    assert np.isfinite(predictions).all()
    low, high = model.index_range_
    assert low == model.predict_index(X).min()
    assert high == model.predict_index(X).max()


def test_data_frames_keep_their_names():
    X, y, _ = line(30)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = DeSIRegressor(Euclidean(), **QUICK).fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(
        model.predict(frame), DeSIRegressor(Euclidean(), **QUICK).fit(X, y).predict(X)
    )
    with pytest.raises(InputError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))


def test_constant_predictors_get_no_coefficient():
    X, y, _ = line(40)
    frame = pd.DataFrame({"a": X[:, 0], "flat": 3.3, "b": X[:, 1], "c": X[:, 2]})
    with pytest.warns(UserWarning, match="constant predictors are not used: flat"):
        model = DeSIRegressor(Euclidean(), **QUICK).fit(frame, y)
    without = DeSIRegressor(Euclidean(), **QUICK).fit(X, y)
    assert model.direction_[1] == 0
    assert model.coef_[1] == 0
    np.testing.assert_array_equal(np.delete(model.direction_, 1), without.direction_)
    np.testing.assert_array_equal(model.predict(frame), without.predict(X))
    with (
        pytest.warns(UserWarning, match="constant"),
        pytest.raises(InputError, match="every predictor is const"),
    ):
        DeSIRegressor(Euclidean(), **QUICK).fit(np.ones((20, 2)), y[:20])


def test_one_predictor_is_local_regression():
    X, y, _ = line(40, p=1)
    model = DeSIRegressor(Euclidean(), **QUICK).fit(X, y)
    np.testing.assert_array_equal(model.direction_, [1.0])
    assert model.score(X, y) > 0.95


def test_more_predictors_than_rows():
    X, y, _ = line(20, p=30, noise=0.01)
    model = DeSIRegressor(Euclidean(), **QUICK).fit(X, y)
    assert np.isfinite(model.predict(X)).all()


def test_equal_responses_are_predicted_exactly():
    X, _, _ = line(20)
    model = DeSIRegressor(Euclidean(), **QUICK).fit(X, np.full(20, 2.5))
    np.testing.assert_allclose(model.predict(X), 2.5)
    assert model.score(X, np.full(20, 2.5)) == 1


def test_fixed_bandwidth_is_kept_and_too_small_ones_are_raised():
    X, y, _ = line(40)
    assert DeSIRegressor(Euclidean(), bandwidth=0.7, **QUICK).fit(X, y).bandwidth_ == pytest.approx(0.7)
    with pytest.warns(UserWarning, match="below the index's median gap and was raised"):
        model = DeSIRegressor(Euclidean(), bandwidth=1e-6, **QUICK).fit(X, y)
    gaps = np.diff(np.sort(model.predict_index(X)))
    assert model.bandwidth_ == pytest.approx(np.median(gaps))


def test_rows_without_a_slope_are_counted():
    # A binary predictor: within a bandwidth all index values are equal.
    X = np.repeat([[0.0], [1.0]], 10, axis=0)
    y = X[:, 0] + np.random.default_rng(0).normal(size=20)
    model = DeSIRegressor(Euclidean(), bandwidth=0.1, **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    # The bandwidth is raised to the only gap there is; the other group is then in reach, with a slope.
    assert model.fallbacks_ == {"local_constant": 0, "nearest_neighbour": 0}
    groups = IndexSmoother(Euclidean(), np.repeat([-1.0, 1.0], 10), y[:, None], 0.1)
    assert groups.fallbacks() == {"local_constant": 20, "nearest_neighbour": 0}
    np.testing.assert_allclose(groups.predict(np.array([1.0]))[0, 0], y[10:].mean())


def test_per_sample_mode_is_the_published_algorithm():
    X, y, _ = line(60)
    model = DeSIRegressor(Euclidean(), mode="per_sample", random_state=0, max_epochs=5).fit(X, y)
    rows = model.per_sample_.directions(X[:6])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1)
    assert (rows[:, 0] >= 0).all()
    assert np.linalg.norm(rows - rows[0], axis=1).max() > 1e-3, "every row has a direction of its own"
    standardised = (X - X.mean(0)) / X.std(0)
    directions = model.per_sample_.directions(standardised)
    np.testing.assert_allclose(model.predict_index(X), (standardised * directions).sum(1), atol=1e-12)
    # Predictions come from the training rows alone, 80 % of all.
    assert len(model.smoother_.z) == 48
    assert not hasattr(model, "coef_")


def test_per_sample_settings_follow_the_space():
    assert published_settings(Wasserstein1D()) is DISTRIBUTIONS
    assert published_settings(GraphLaplacian()) is NETWORKS
    assert published_settings(SPD()) is MATRICES
    assert published_settings(Sphere()) is SPHERES
    assert published_settings(Composition()) is SPHERES
    sample = simulate("spd", 40, seed=0)
    model = DeSIRegressor(sample.space, mode="per_sample", random_state=0).fit(sample.X, sample.Y)
    assert 0.1 <= model.bandwidth_ <= 1.0


def test_per_sample_loss_has_the_published_scale():
    """The published Fréchet variance of distributions is a sum over the grid, whatever else is set."""
    for design, settings in (("distributions", replace(DISTRIBUTIONS, patience=3)), ("spd", MATRICES)):
        sample = simulate(design, 20, seed=0)  # pyright: ignore[reportArgumentType]
        variance = frechet_variance(sample.space, sample.Y)
        unit = _Fit(sample.space, Rows(torch.empty(0), torch.from_numpy(sample.Y), 1.0), settings).unit
        if design == "distributions":
            assert unit == pytest.approx(100 * variance)
        else:
            mean = sample.space.mean(sample.Y, np.full((1, 20), 0.05))
            assert unit == pytest.approx(sample.space.distance(sample.Y, mean).mean())


def test_many_rows_are_handled_in_blocks_and_the_loss_by_a_sample(monkeypatch):
    X, y, theta = line(90)
    whole = DeSIRegressor(Euclidean(), n_restarts=0, random_state=0).fit(X, y)
    for module in (base, smoother):
        monkeypatch.setattr(module, "BLOCK_ENTRIES", 7 * 90)
    np.testing.assert_allclose(whole.predict(X), whole.smoother_.predict(whole.predict_index(X))[:, 0])
    blocks = DeSIRegressor(Euclidean(), n_restarts=0, random_state=0).fit(X, y)
    np.testing.assert_allclose(blocks.predict(X), whole.predict(X), atol=1e-12)
    assert blocks.fallbacks_ == whole.fallbacks_
    constant = FrechetMean(Euclidean()).fit(X, y)
    np.testing.assert_allclose(constant.predict(X), y.mean())
    # A loss over some of the rows still finds the direction, and is the mean of those rows' errors.
    monkeypatch.setattr(training, "LOSS_ROWS", 30)
    assert angle(DeSIRegressor(Euclidean(), n_restarts=0, random_state=0).fit(X, y).coef_, theta) < 10
    rows = training.Rows(torch.from_numpy(X), torch.from_numpy(y[:, None]), 1.0)
    z, h = rows.X[:, 0], torch.tensor(0.5)
    some = training.leave_one_out_loss(Euclidean(), z, rows, h).item()
    monkeypatch.setattr(training, "LOSS_ROWS", 90)
    every = training.leave_one_out_loss(Euclidean(), z, rows, h).item()
    assert some != every
    chosen = torch.randperm(90, generator=torch.Generator().manual_seed(0))[:30]
    errors = []
    for i in chosen.tolist():
        order = np.argsort(np.delete(X[:, 0], i))
        rest = np.delete(X[:, 0], i)[order], np.delete(y, i)[order, None]
        errors.append((IndexSmoother(Euclidean(), *rest, 0.5).predict(X[[i], 0])[0, 0] - y[i]) ** 2)
    assert some == pytest.approx(np.mean(errors), rel=1e-9)


def test_a_second_fit_forgets_the_first():
    X, y, _ = line(30)
    model = DeSIRegressor(Euclidean(), **QUICK).fit(X, y)
    model.bootstrap_direction(2)
    model.set_params(mode="per_sample", max_epochs=1).fit(X, y)
    assert not hasattr(model, "direction_ci_")
    assert not hasattr(model, "coef_")
    with pytest.raises(InputError):
        model.fit(X, np.full(30, np.nan))
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.filterwarnings("ignore:constant predictors")
def test_bootstrap_of_the_direction(monkeypatch):
    X, y, theta = line(60, noise=0.3)
    model = DeSIRegressor(Euclidean(), n_restarts=0, random_state=0).fit(
        np.column_stack([X, np.zeros(60)]), y
    )
    result = model.bootstrap_direction(20, max_epochs=40, seed=1)
    assert model.direction_ci_ is result
    assert result.directions.shape == (20, 4)
    np.testing.assert_allclose(np.linalg.norm(result.directions, axis=1), 1)
    assert (result.directions[:, 3] == 0).all()
    assert (result.directions @ model.direction_ >= 0).all()
    assert 0 < result.angles.max() < 30
    assert 0.9 < result.cosine_stability < 1
    assert ((result.lower <= model.direction_) & (model.direction_ <= result.upper)).all()
    # The standard error of least squares, noise / sqrt(n), in the two directions that are free.
    assert 0.5 < np.radians(result.angles).std() / (0.3 / np.sqrt(60)) < 2
    assert angle(model.coef_[:3], theta) < 12
    drawn = []
    monkeypatch.setattr(
        bootstrap, "train", lambda *arguments: drawn.append(arguments[3].counts) or train(*arguments)
    )
    again = model.bootstrap_direction(20, max_epochs=40, seed=1)
    assert [int(counts.sum()) for counts in drawn] == [60] * 20
    assert all(len(counts) < 60 and counts.min() == 1 for counts in drawn)
    np.testing.assert_array_equal(again.directions, result.directions)
    noisy = DeSIRegressor(Euclidean(), n_restarts=0, random_state=0).fit(X, y + 3 * line(60, seed=9)[1])
    assert noisy.bootstrap_direction(20, max_epochs=40, seed=1).cosine_stability < result.cosine_stability


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_boot": 1}, "n_boot is 1"),
        ({"level": 1.0}, "level is 1.0"),
        ({"max_epochs": 0}, "max_epochs is 0"),
    ],
)
def test_bootstrap_refuses_bad_arguments(arguments, message):
    X, y, _ = line(20)
    with pytest.raises(InputError, match=message):
        DeSIRegressor(Euclidean(), **QUICK).fit(X, y).bootstrap_direction(**arguments)


def test_bootstrap_needs_one_fitted_direction():
    X, y, _ = line(20)
    with pytest.raises(NotFittedError):
        DeSIRegressor(Euclidean()).bootstrap_direction()
    model = DeSIRegressor(Euclidean(), mode="per_sample", max_epochs=1, random_state=0).fit(X, y)
    with pytest.raises(InputError, match="use mode 'shared'"):
        model.bootstrap_direction()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mode": "deep"}, "mode is 'deep': choose one of shared, deep_shared, per_sample"),
        ({"bandwidth": 0.0}, "bandwidth is 0.0"),
        ({"bandwidth": "cv"}, "bandwidth is 'cv'"),
        ({"mode": "per_sample", "bandwidth": 0.5}, "learns its bandwidth"),
        ({"lam": -1.0}, "lam is -1.0"),
        ({"n_restarts": -1}, "n_restarts is -1"),
        ({"n_restarts": None}, "n_restarts is None"),
        ({"max_epochs": 0}, "max_epochs is 0"),
        ({"patience": 2.5}, "patience is 2.5"),
        ({"val_fraction": 0.5}, "val_fraction is 0.5"),
        ({"hidden": 0}, "hidden is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not available"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    X, y, _ = line(20)
    with pytest.raises(InputError, match=message):
        DeSIRegressor(Euclidean(), **parameters).fit(X, y)


@pytest.mark.filterwarnings("ignore:the bandwidth")
def test_bad_data_are_named():
    X, y, _ = line(20)
    model = DeSIRegressor(Euclidean(), **QUICK)
    with pytest.raises(InputError, match="X has 20 rows but y has 19"):
        model.fit(X, y[:-1])
    with pytest.raises(InputError, match="NaN"):
        model.fit(np.where(X[3, 1] == X, np.nan, X), y)
    with pytest.raises(InputError, match="2 sample"):
        model.fit(X[:2], y[:2])
    with pytest.raises(InputError, match="not an array of numbers"):
        model.fit(X, ["low"] * 20)
    with pytest.raises(InputError, match="row 4"):
        DeSIRegressor(SPD()).fit(X, np.where(np.arange(20)[:, None, None] == 4, -np.eye(2), np.eye(2)))
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.fit(X, y)
    with pytest.raises(InputError, match="X has 2 features"):
        model.predict(X[:, :2])
    with pytest.warns(UserWarning, match="only 5 training rows"):
        model.fit(X[:5], y[:5])


@dataclass(frozen=True)
class Broken(Euclidean):
    """A space whose loss turns into NaN after some calls."""

    calls: list[int] = field(default_factory=list)
    good: int = 0
    bad: int = 10**9

    def loss(self, Y, weights, targets):
        self.calls.append(1)
        loss = super().loss(Y, weights, targets)
        return loss * np.nan if self.good < len(self.calls) <= self.good + self.bad else loss


def test_a_loss_that_stays_nan_ends_the_fit_and_one_that_recovers_does_not():
    X, y, _ = line(20)
    settings = {"n_restarts": 0, "max_epochs": 20, "val_fraction": 0, "random_state": 0}
    with pytest.raises(FloatingPointError, match="not finite for 5 steps in a row"):
        DeSIRegressor(Broken(good=3), **settings).fit(X, y)
    model = DeSIRegressor(Broken(good=3, bad=4), **settings).fit(X, y)
    assert model.score(X, y) > 0.9


def test_curved_spaces_start_from_their_neighbours(monkeypatch):
    """Warm starts along the index change nothing but the speed."""
    sample, starts = simulate("sphere", 60, seed=1), []
    order = np.argsort(sample.X @ sample.direction)
    z = (sample.X @ sample.direction)[order]
    fit = IndexSmoother(sample.space, z, sample.Y[order], 0.3)
    targets = np.random.default_rng(1).uniform(z[5], z[-5], 40)
    single = np.concatenate([fit.predict(targets[[i]]) for i in range(40)])
    mean = Sphere.mean

    def record(self, Y, weights, init=None):
        result = mean(self, Y, weights, init)
        if init is not None:
            starts.extend(self.distance(init, result))
        return result

    monkeypatch.setattr(Sphere, "mean", record)
    np.testing.assert_allclose(fit.predict(targets), single, atol=1e-7)
    # Forty starts, each from a solution nearby; the curve is more than 1 long.
    assert len(starts) == 40
    assert max(starts) < 0.2


def test_scikit_learn_tools():
    sample = simulate("spd", 50, seed=0)
    model = DeSIRegressor(sample.space, **QUICK)
    scores = cross_val_score(model, sample.X, sample.Y, cv=3)
    assert (scores > 0).all()
    pipeline = make_pipeline(StandardScaler(), clone(model)).fit(sample.X, sample.Y)
    assert pipeline.predict(sample.X).shape == sample.Y.shape
    search = GridSearchCV(model, {"bandwidth": [0.3, 5.0]}, cv=2).fit(sample.X, sample.Y)
    assert search.best_params_ == {"bandwidth": 0.3}
    assert clone(model).get_params()["space"] == sample.space
    assert "_X" not in vars(clone(search.best_estimator_))


# The published algorithm gives every row a direction of its own, which ten pure-noise predictors overfit.
POOR = {
    "check_regressors_train": "the published algorithm fails on 10 predictors: the training score is < 0.5"
}


@pytest.mark.parametrize(("mode", "failing"), [("shared", {}), ("deep_shared", {}), ("per_sample", POOR)])
def test_scikit_learn_contract(mode, failing):
    model = DeSIRegressor(Euclidean(), mode=mode, n_restarts=0, max_epochs=15, hidden=8, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(model, expected_failed_checks=failing, on_skip=None)
