"""The baselines against independent implementations and known answers, and scikit-learn's contract."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.utils.estimator_checks import check_estimator

from assay.errors import InputError
from assay.methods.desi.baselines import (
    E2M,
    DeepFrechet,
    FrechetForest,
    FrechetKNN,
    FrechetMean,
    FrechetSingleIndex,
    GlobalFrechet,
    IndexFrechet,
    LocalFrechet,
)
from assay.methods.desi.baselines.single_index import (
    angles_from_direction,
    direction_from_angles,
    leave_one_out_error,
)
from assay.methods.desi.metrics import angle, mpe
from assay.methods.desi.simulate import simulate
from assay.methods.desi.spaces import SPD, Euclidean, Sphere, Wasserstein1D
from assay.methods.desi.weights import local_linear_weights


def data(n: int = 60, p: int = 3, dimension: int = 2, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * np.arange(1, p + 1)
    return X, np.tanh(X @ rng.normal(size=(p, dimension))) + 0.1 * rng.normal(size=(n, dimension))


def in_content_order(X, Y):
    """The order into which the estimators put their rows."""
    order = np.lexsort(np.column_stack([Y.reshape(len(Y), -1), X]).T)
    return X[order], Y[order]


def test_global_regression_is_least_squares():
    X, Y = data()
    predictions = GlobalFrechet(Euclidean()).fit(X, Y).predict(X)
    np.testing.assert_allclose(predictions, LinearRegression().fit(X, Y).predict(X), atol=1e-10)
    scalar = GlobalFrechet(Euclidean()).fit(X, Y[:, 0])
    np.testing.assert_allclose(scalar.predict(X), predictions[:, 0], atol=1e-12)


def test_global_regression_with_more_predictors_than_rows_interpolates_with_a_warning():
    X, Y = data(n=12, p=20)
    with pytest.warns(UserWarning, match="20 predictors but 12 rows"):
        model = GlobalFrechet(Euclidean()).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), Y, atol=1e-8)


def test_global_regression_of_distributions_stays_in_the_space():
    sample = simulate("distributions", 60, seed=0)
    far = 10 * sample.X
    predictions = GlobalFrechet(sample.space).fit(sample.X, sample.Y).predict(far)
    assert (np.diff(predictions, axis=1) >= 0).all()


def test_local_regression_on_one_predictor():
    X, Y = data(p=1)
    model = LocalFrechet(Euclidean(), bandwidth=0.5).fit(X, Y)
    z, targets = (X[:, 0] - X.mean()) / X.std(), np.linspace(-1, 1, 5)
    W = local_linear_weights(torch.from_numpy(z), torch.from_numpy(targets), 0.5).weights.numpy()
    np.testing.assert_allclose(model.predict((targets * X.std() + X.mean())[:, None]), W @ Y, atol=1e-10)


def test_local_regression_reproduces_linear_responses_with_any_kernel():
    X, _ = data(n=200, p=2)
    Y = X @ np.array([[1.0, 2], [3, -1]]) + 4
    for kernel in ("gauss", "rect", "epan", "quar", "gausvar"):
        model = LocalFrechet(Euclidean(), bandwidth=[0.8, 1.5], kernel=kernel).fit(X, Y)
        inner = np.abs(X - X.mean(0)).max(1) < 1
        np.testing.assert_allclose(model.predict(X[inner]), Y[inner], atol=1e-8)


def test_local_bandwidth_minimises_the_leave_one_out_error():
    X, Y = data(n=40, p=2)
    model = LocalFrechet(Euclidean(), n_bandwidths=5).fit(X, Y)
    errors = []
    for bandwidth in model.cv_bandwidths_:
        left_out = []
        for i in range(40):
            rest = np.arange(40) != i
            # Standardised with all rows, as the estimator does it.
            Z = (X - X.mean(0)) / X.std(0)
            fit = LocalFrechet(Euclidean(), bandwidth=float(bandwidth) / Z[rest].std(0)).fit(Z[rest], Y[rest])
            left_out.append(((fit.predict(Z[[i]]) - Y[i]) ** 2).sum())
        errors.append(np.mean(left_out))
    np.testing.assert_allclose(model.cv_errors_, errors, rtol=1e-8)
    assert model.bandwidth_ == model.cv_bandwidths_[np.argmin(errors)]
    assert len(set(model.cv_errors_)) == 5


def test_forest_is_scikit_learns_in_a_euclidean_space():
    X, Y = data()
    model = FrechetForest(Euclidean(), n_estimators=20, random_state=0).fit(X, Y)
    Z, targets = in_content_order(X, Y)
    Z = (Z - Z.mean(0)) / Z.std(0)
    reference = RandomForestRegressor(20, min_samples_leaf=5, random_state=model.forest_.random_state)
    reference.fit(Z, targets)
    new = data(seed=1)[0]
    expected = reference.predict((new - X.mean(0)) / X.std(0))
    np.testing.assert_allclose(model.predict(new), expected, atol=1e-10)


def test_forest_of_distributions_is_the_forest_of_their_quantiles():
    sample = simulate("distributions", 60, seed=0)
    model = FrechetForest(sample.space, n_estimators=15, random_state=1).fit(sample.X, sample.Y)
    Z = (sample.X - sample.X.mean(0)) / sample.X.std(0)
    np.testing.assert_allclose(model.predict(sample.X), 10 * model.forest_.predict(Z), atol=1e-9)


def test_forest_grows_without_coordinates():
    sample = simulate("sphere", 100, seed=0)
    model = FrechetForest(sample.space, n_estimators=30, random_state=0).fit(sample.X[:60], sample.Y[:60])
    constant = FrechetMean(sample.space).fit(sample.X[:60], sample.Y[:60])
    errors = [mpe(sample.space, sample.truth[60:], m.predict(sample.X[60:])) for m in (model, constant)]
    assert errors[0] < 0.75 * errors[1]
    np.testing.assert_allclose(np.linalg.norm(model.predict(sample.X), axis=1), 1)


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_neighbours_are_scikit_learns_in_a_euclidean_space(weights):
    X, Y = data()
    new = np.vstack([data(seed=1)[0], X[:3]])
    model = FrechetKNN(Euclidean(), n_neighbors=4, weights=weights).fit(X, Y)
    reference = KNeighborsRegressor(4, weights=weights).fit((X - X.mean(0)) / X.std(0), Y)
    expected = reference.predict((new - X.mean(0)) / X.std(0))
    np.testing.assert_allclose(model.predict(new), expected, atol=1e-9)
    assert FrechetKNN(Euclidean(), n_neighbors=1000).fit(X, Y).predict(X[:1]) == pytest.approx(
        Y.mean(0)[None]
    )


def test_polar_coordinates_go_there_and_back():
    rng = np.random.default_rng(0)
    for p in (2, 3, 6):
        for direction in rng.normal(size=(10, p)):
            direction /= np.linalg.norm(direction)
            angles = angles_from_direction(direction)
            assert angles.shape == (p - 1,)
            np.testing.assert_allclose(direction_from_angles(angles), direction, atol=1e-12)
    np.testing.assert_allclose(direction_from_angles(np.array([])), [1.0])
    axis = np.array([0.0, -1, 0])
    np.testing.assert_allclose(direction_from_angles(angles_from_direction(axis)), axis, atol=1e-12)


def test_frechet_single_index_finds_the_direction():
    sample = simulate("spd", 100, seed=0)
    model = FrechetSingleIndex(sample.space, n_bandwidths=2, random_state=0).fit(sample.X[:60], sample.Y[:60])
    assert angle(model.coef_, sample.direction) < 6
    assert mpe(sample.space, sample.truth[60:], model.predict(sample.X[60:])) < 0.2
    # The criterion is the mean squared distance of the fit to its own rows.
    fitted = model.predict(sample.X[:60])
    expected = (sample.space.distance(sample.Y[:60], fitted) ** 2).mean()
    assert model.criterion_ == pytest.approx(expected, rel=1e-9)


def test_frechet_single_index_with_one_predictor():
    X, Y = data(p=1)
    model = FrechetSingleIndex(Euclidean(), bandwidth=0.4, random_state=0).fit(X, Y)
    np.testing.assert_allclose(
        model.predict(X), LocalFrechet(Euclidean(), 0.4).fit(X, Y).predict(X), atol=1e-10
    )


def test_index_frechet_takes_the_best_of_its_directions():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 3))
    theta = np.array([0.8, 0.5, 0.33])
    Y = np.sort((X @ theta)[:, None] + 0.1 * rng.normal(size=(100, 4)), axis=1)
    model = IndexFrechet(Wasserstein1D(grid_size=4), n_directions=300, random_state=0).fit(X, Y)
    assert angle(model.coef_, theta) < 12
    assert model.n_bins_ in (15, 20, 30, 50)
    fewer = IndexFrechet(Wasserstein1D(grid_size=4), n_directions=5, random_state=0).fit(X, Y)
    assert model.criterion_ < fewer.criterion_


def test_index_frechet_takes_its_bandwidth_from_the_equal_direction():
    X, Y = data(n=50)
    model = IndexFrechet(Euclidean(), n_directions=2, n_bandwidths=4, random_state=0).fit(X, Y)
    Z, targets = in_content_order((X - X.mean(0)) / X.std(0), Y)
    errors = {
        h: leave_one_out_error(Euclidean(), Z @ np.full(3, 3**-0.5), targets, h)
        for h in 50**-0.2 * np.geomspace(0.5, 3, 4)
    }
    assert model.bandwidth_ == pytest.approx(min(errors, key=errors.__getitem__))


def test_index_frechet_bins_are_of_equal_size():
    z, Y = np.array([3.0, 1, 2, 5, 4, 6]), np.arange(6.0)[:, None]
    centres, means = IndexFrechet(Euclidean())._binned(z, Y, 3)
    np.testing.assert_allclose(centres, [1.5, 3.5, 5.5])
    np.testing.assert_allclose(means[:, 0], [1.5, 2.0, 4.0])


def test_deep_frechet_predicts_better_than_the_constant():
    sample = simulate("networks", 160, seed=0)
    model = DeepFrechet(sample.space, max_epochs=200, random_state=0).fit(sample.X[:100], sample.Y[:100])
    constant = FrechetMean(sample.space).fit(sample.X[:100], sample.Y[:100])
    errors = [mpe(sample.space, sample.truth[100:], m.predict(sample.X[100:])) for m in (model, constant)]
    assert errors[0] < 0.5 * errors[1]


def test_e2m_learns_weights_of_its_anchors():
    sample = simulate("spd", 80, seed=0)
    settings: dict[str, Any] = {"lr": 5e-3, "dropout": 0.0, "max_epochs": 60, "random_state": 0}
    model = E2M(sample.space, n_anchors=20, **settings).fit(sample.X[:50], sample.Y[:50])
    assert model.loss_curve_[-1] < 0.3 * model.loss_curve_[0]
    assert len(model._Y) == 20
    weights = model._weights(model._standardised(sample.X[50:]))
    np.testing.assert_allclose(weights.sum(1), 1)
    assert (weights >= 0).all()
    np.testing.assert_allclose(model.predict(sample.X[50:]), sample.space.mean(model._Y, weights), atol=1e-12)
    # A positive penalty on the entropy concentrates the weights.
    sharp = E2M(sample.space, n_anchors=20, entropy_penalty=1.0, **settings).fit(sample.X[:50], sample.Y[:50])
    entropy = [
        -(w * np.log(np.maximum(w, 1e-300))).sum(1).mean()
        for w in (weights, sharp._weights(sharp._standardised(sample.X[50:])))
    ]
    assert entropy[1] < 0.5 * entropy[0]


@pytest.mark.parametrize(
    "estimator",
    [
        FrechetSingleIndex(Euclidean(), n_bandwidths=1, max_evaluations=30),
        IndexFrechet(Euclidean(), n_directions=20),
        DeepFrechet(Euclidean(), max_epochs=10, n_bandwidths=2),
        E2M(Euclidean(), max_epochs=3),
        FrechetForest(Euclidean(), n_estimators=5),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_seeds_decide_and_the_order_of_rows_does_not(estimator):
    X, Y = data(n=40)
    order = np.random.default_rng(1).permutation(40)
    torch.manual_seed(1)
    one = estimator.set_params(random_state=0).fit(X, Y).predict(X)
    torch.manual_seed(2)
    np.testing.assert_allclose(estimator.fit(X[order], Y[order]).predict(X), one, atol=1e-10)
    if not isinstance(estimator, FrechetSingleIndex):
        # The first starts of FSI are not random.
        assert np.abs(estimator.set_params(random_state=1).fit(X, Y).predict(X) - one).max() > 1e-8


@pytest.mark.parametrize(
    "space", [SPD(metric="affine-invariant"), Sphere(positive=True)], ids=["spd", "sphere"]
)
def test_curved_spaces_are_predicted_within_the_space(space):
    sample = simulate("spd" if isinstance(space, SPD) else "sphere", 40, seed=0)
    for estimator in (
        GlobalFrechet(space),
        LocalFrechet(space, bandwidth=1.0),
        FrechetForest(space, n_estimators=5, random_state=0),
        FrechetKNN(space),
        FrechetMean(space),
        E2M(space, max_epochs=1, random_state=0),
    ):
        predictions = estimator.fit(sample.X, sample.Y).predict(sample.X[:5])
        np.testing.assert_allclose(space.check(predictions), predictions, atol=1e-9)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (LocalFrechet(Euclidean(), kernel="box"), "kernel 'box' is unknown"),  # pyright: ignore[reportArgumentType]
        (LocalFrechet(Euclidean(), bandwidth=-1.0), "bandwidth is -1.0"),
        (LocalFrechet(Euclidean(), bandwidth="best"), "bandwidth is 'best'"),  # pyright: ignore[reportArgumentType]
        (LocalFrechet(Euclidean(), bandwidth=[1.0, 2.0]), "2 values, but 3 predictors vary: pass one or 3"),
        (LocalFrechet(Euclidean(), n_bandwidths=0), "n_bandwidths is 0"),
        (FrechetSingleIndex(Euclidean(), bandwidth=0.0), "bandwidth is 0.0"),
        (FrechetSingleIndex(Euclidean(), n_starts=0), "n_starts is 0"),
        (IndexFrechet(Euclidean(), n_directions=0), "n_directions is 0"),
        (IndexFrechet(Euclidean(), n_bins=(1,)), r"n_bins is \(1,\)"),
        (DeepFrechet(Euclidean(), n_components=0), "n_components is 0"),
        (E2M(Euclidean(), dropout=1.0), "dropout is 1.0"),
        (E2M(Euclidean(), lr=0.0), "lr is 0.0"),
        (E2M(Euclidean(), n_anchors=0), "n_anchors is 0"),
        (E2M(Euclidean(), entropy_penalty=np.inf), "entropy_penalty is inf"),
        (FrechetForest(Euclidean(), n_estimators=0), "n_estimators is 0"),
        (FrechetKNN(Euclidean(), weights="nearest"), "weights is 'nearest'"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_bad_parameters_are_named(estimator, message):
    with pytest.raises(InputError, match=message):
        estimator.fit(*data(n=20))


# A few random directions in ten dimensions, and a bandwidth from an arbitrary one, find no linear signal.
IFR_POOR = {"check_regressors_train": "a random search over 20 directions in 10 dimensions scores < 0.5"}


@pytest.mark.parametrize(
    ("estimator", "failing"),
    [
        (GlobalFrechet(Euclidean()), {}),
        (LocalFrechet(Euclidean(), n_bandwidths=3), {}),
        (FrechetSingleIndex(Euclidean(), n_bandwidths=1, n_starts=1, max_evaluations=20, random_state=0), {}),
        (IndexFrechet(Euclidean(), n_directions=20, n_bandwidths=2, random_state=0), IFR_POOR),
        (DeepFrechet(Euclidean(), max_epochs=40, n_bandwidths=2, random_state=0), {}),
        (E2M(Euclidean(), max_epochs=15, lr=1e-2, n_layers=1, dropout=0.0, random_state=0), {}),
        (FrechetForest(Euclidean(), n_estimators=5, random_state=0), {}),
        (FrechetKNN(Euclidean()), {}),
        (FrechetMean(Euclidean()), {}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
def test_scikit_learn_contract(estimator, failing):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(estimator, expected_failed_checks=failing, on_skip=None)
