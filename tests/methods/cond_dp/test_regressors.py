"""The private regressors: scikit-learn's conventions, what conditioning gains, and who may know what."""

import logging
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.errors import InputError
from assay.methods.cond_dp import (
    CondDPRegressor,
    DPSGDRegressor,
    LeakageError,
    NoisySteps,
    PublicConditioner,
    epsilon_spent,
)

GENEROUS = {"epsilon": 1e6, "y_range": (-300.0, 300.0), "lr": 0.05, "clip": 1.0, "epochs": 200}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CondDPRegressor(**GENEROUS), DPSGDRegressor(**GENEROUS)])
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4)) * [3, 1, 0.3, 0.1]
    return X, np.clip(X @ [0.2, 0.5, 1, 2] + 5 + 0.1 * rng.normal(size=400), 0, 10)


def error(model, X, y):
    return float(((model.predict(X) - y) ** 2).mean() / y.var())


def test_rotated_spectrum_needs_the_conditioner(rotated):
    errors = {CondDPRegressor: [], DPSGDRegressor: []}
    for seed in range(3):
        X, y = rotated(seed)
        for kind, found in errors.items():
            model = kind(epsilon=0.25, y_range=(-4, 4), random_state=seed).fit(X[:8000], y[:8000])
            found.append(error(model, X[8000:], y[8000:]))
    assert np.mean(errors[CondDPRegressor]) < 0.5 * np.mean(errors[DPSGDRegressor])


def test_nothing_is_gained_along_the_top_direction(rotated):
    """The same features and the same share of noise in the labels, but their signal is the first
    direction."""
    ratios = []
    for seed in range(3):
        X, _ = rotated(seed)
        top = X @ np.linalg.svd(X[:8000], full_matrices=False)[2][0]
        noise = np.random.default_rng(seed).normal(size=len(X))
        y = np.sqrt(0.8) * top / top.std() + np.sqrt(0.2) * noise
        options = {"epsilon": 1, "y_range": (-4, 4), "random_state": seed}
        plain = DPSGDRegressor(standardize=False, **options).fit(X[:8000], y[:8000])
        conditioned = CondDPRegressor(conditioner=PublicConditioner(), **options).fit(X[:8000], y[:8000])
        ratios.append(error(conditioned, X[8000:], y[8000:]) / error(plain, X[8000:], y[8000:]))
    assert 0.8 <= np.mean(ratios) <= 1.3


@pytest.mark.parametrize("kind", [CondDPRegressor, DPSGDRegressor])
def test_without_noise_it_is_least_squares(data, kind):
    X, y = data
    options = {"lr": 0.1, "clip": 1e6, "optimizer": "sgd", "epochs": 2000, "average": False}
    model = kind(epsilon=math.inf, y_range=(-5, 15), **options).fit(X, y)
    reference = LinearRegression().fit(X, y)
    np.testing.assert_allclose(model.coef_, reference.coef_, atol=1e-3)
    assert model.intercept_ == pytest.approx(reference.intercept_, abs=1e-3)
    assert model.privacy_.statement.startswith("NOT PRIVATE")


def test_a_duplicate_column_changes_no_prediction(data):
    X, y = data
    options = {"epsilon": math.inf, "y_range": (0, 10), "clip": 10.0, "epochs": 300}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        once = CondDPRegressor(**options).fit(X, y)
        twice = CondDPRegressor(**options).fit(np.hstack([X, X[:, :1]]), y)
    np.testing.assert_allclose(twice.predict(np.hstack([X, X[:, :1]])), once.predict(X), atol=0.02)
    assert np.isfinite(twice.conditioner_.matrix_).all()


def test_the_learned_factor_is_folded(data):
    X, y = data
    conditioner = PublicConditioner(standardize=True, scale="learned")
    options = {"lr": 0.02, "clip": 1e6, "epochs": 3000, "average": False}
    model = CondDPRegressor(epsilon=math.inf, y_range=(-5, 15), conditioner=conditioner, **options).fit(X, y)
    np.testing.assert_allclose(model.predict(X), LinearRegression().fit(X, y).predict(X), atol=0.02)


def test_the_report_is_what_was_spent(data):
    X, y = data
    model = CondDPRegressor(epsilon=1.5, delta=1e-5, y_range=(0, 10)).fit(X, y)
    report = model.privacy_
    history = [NoisySteps(report.sigma, 1.0, 64)]
    assert report.epsilon["replace_label"] == epsilon_spent(history, 1e-5, "replace_label")
    assert report.epsilon["replace_label"] == pytest.approx(1.5)
    assert report.epsilon["add_remove"] < 0.8
    assert "replacing ONE LABEL" in report.statement
    assert "features of the 400 training rows" in report.statement
    assert "their choice is not counted" in report.statement
    sampled = CondDPRegressor(epsilon=1.5, delta=1e-5, y_range=(0, 10), batch=40).fit(X, y)
    assert (sampled.privacy_.sampling, sampled.privacy_.sample_rate, sampled.privacy_.steps) == (
        "poisson",
        0.1,
        640,
    )
    assert sampled.privacy_.epsilon["replace_label"] <= 1.5


def test_a_large_clipping_norm_is_not_paid_for():
    """Where labels move gradients by less than twice the norm, less noise is enough."""
    X = np.random.default_rng(0).uniform(-1, 1, size=(300, 2))
    y = X[:, 0]
    tight = CondDPRegressor(y_range=(-1, 1), clip=0.5).fit(X, y).privacy_
    loose = CondDPRegressor(y_range=(-1, 1), clip=50.0).fit(X, y).privacy_
    assert tight.sensitivity == 2
    assert loose.sensitivity < 0.3
    assert loose.sigma == pytest.approx(tight.sigma * loose.sensitivity / 2)
    assert loose.epsilon["replace_label"] == pytest.approx(1)


def test_labels_beyond_the_range_are_clipped_and_counted_in_secret(data, capsys, caplog):
    X, y = data
    wild = y.copy()
    wild[:3] = [1e6, -1e6, 11]
    tame = np.clip(wild, 0, 10)
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = CondDPRegressor(y_range=(0, 10), random_state=0).fit(X, wild)
    assert model.n_labels_clipped_ == 3
    np.testing.assert_array_equal(
        model.coef_, CondDPRegressor(y_range=(0, 10), random_state=0).fit(X, tame).coef_
    )
    # It says nothing of it: not in messages, nor in the report, nor in a pickle.
    assert capsys.readouterr() == ("", "")
    assert not caplog.records
    copied = pickle.loads(pickle.dumps(model))
    assert not hasattr(copied, "n_labels_clipped_")
    np.testing.assert_array_equal(copied.predict(X), model.predict(X))


def test_what_is_kept_of_the_labels_is_private(data):
    """Fits with the same noise whose labels differ only beyond the range end the same."""
    X, y = data
    one, other = np.where(y > 5, 10, 0), np.where(y > 5, 1e9, -1e9)
    fits = [CondDPRegressor(y_range=(0, 10), random_state=1).fit(X, labels) for labels in (one, other)]
    hidden = {"n_labels_clipped_", "conditioner_"}
    for name in vars(fits[0]):
        if name.endswith("_") and name not in hidden:
            np.testing.assert_equal(getattr(fits[0], name), getattr(fits[1], name))


def test_noise_differs_between_fits_unless_a_seed_is_given(data):
    X, y = data
    free = CondDPRegressor(y_range=(0, 10))
    assert (free.fit(X, y).coef_ != clone(free).fit(X, y).coef_).all()
    assert "seed" not in free.privacy_.statement
    seeded = CondDPRegressor(y_range=(0, 10), random_state=3)
    np.testing.assert_array_equal(seeded.fit(X, y).coef_, clone(seeded).fit(X, y).coef_)
    assert "whoever knows it can subtract the noise" in seeded.privacy_.statement


def test_private_features(data):
    X, y = data
    table = pd.DataFrame(X, columns=list("abcd"))
    model = CondDPRegressor(
        epsilon=math.inf,
        y_range=(-5, 15),
        adjacency="semi_sensitive",
        private_columns={"b": (-5, 5)},
        lr=0.1,
        clip=1e6,
        optimizer="sgd",
        epochs=8000,
        average=False,
    ).fit(table, y)
    # Only the public columns were looked at.
    assert list(model.conditioner_.feature_names_in_) == list("acd")
    np.testing.assert_allclose(model.coef_, LinearRegression().fit(X, y).coef_, atol=5e-3)
    private = CondDPRegressor(y_range=(0, 10), adjacency="semi_sensitive", private_columns={1: (-5, 5)}).fit(
        X, y
    )
    assert "replacing the private features and the label of ONE ROW" in private.privacy_.statement
    assert private.privacy_.sensitivity == 2


def test_the_private_columns_do_not_touch_the_conditioner(data):
    X, y = data
    changed = X.copy()
    changed[:, 1] = 99.0
    options = {"y_range": (0, 10), "adjacency": "semi_sensitive", "private_columns": {1: (-5, 5)}}
    one, other = (CondDPRegressor(**options).fit(values, y).conditioner_ for values in (X, changed))
    np.testing.assert_array_equal(one.matrix_, other.matrix_)
    np.testing.assert_array_equal(one.mean_, other.mean_)


def test_whole_rows_need_a_conditioner_from_elsewhere(data):
    X, y = data
    public = np.random.default_rng(9).normal(size=(200, 4)) * [3, 1, 0.3, 0.1]
    options = {"y_range": (0, 10), "adjacency": "add_remove"}
    for conditioner in (None, PublicConditioner()):
        with pytest.raises(LeakageError, match="must not be computed from them"):
            CondDPRegressor(conditioner=conditioner, **options).fit(X, y)
    own = PublicConditioner(standardize=True).fit(X[::-1])
    with pytest.raises(LeakageError, match="fitted on the rows"):
        CondDPRegressor(conditioner=own, **options).fit(X, y)
    with pytest.raises(LeakageError, match="standardize would compute means"):
        DPSGDRegressor(**options).fit(X, y)
    plain = DPSGDRegressor(standardize=False, **options).fit(X, y)
    assert plain.privacy_.sensitivity == 1
    other = PublicConditioner(standardize=True).fit(public)
    model = CondDPRegressor(conditioner=other, **options).fit(X, y)
    assert model.conditioner_ is other
    assert "adding or removing ONE ROW; the conditioner, computed from other rows" in model.privacy_.statement
    frozen = clone(CondDPRegressor(conditioner=FrozenEstimator(other), **options)).fit(X, y)
    assert frozen.conditioner_ is other


def test_a_conditioner_that_saw_private_columns_is_refused(data):
    X, y = data
    table = pd.DataFrame(X, columns=list("abcd"))
    options = {"y_range": (0, 10), "adjacency": "semi_sensitive", "private_columns": {"b": (-5, 5)}}
    with pytest.raises(LeakageError, match="fitted on b, which is private"):
        CondDPRegressor(conditioner=PublicConditioner().fit(table), **options).fit(table, y)
    with pytest.raises(InputError, match="for 2 columns, but there are 3"):
        CondDPRegressor(conditioner=PublicConditioner().fit(X[:, :2]), **options).fit(table, y)
    with pytest.raises(InputError, match="another order"):
        CondDPRegressor(conditioner=PublicConditioner().fit(table[["d", "c", "a"]]), **options).fit(table, y)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"y_range": None}, "y_range is missing: declare"),
        ({"y_range": (1, 0)}, "the lower bound first"),
        ({"y_range": (0, math.inf)}, "two finite numbers"),
        ({"y_range": 3}, "pass two numbers"),
        ({"epsilon": 0}, "epsilon is 0"),
        ({"epsilon": -1}, "epsilon is -1"),
        ({"delta": 0}, "delta is 0"),
        ({"delta": 1.5}, "delta is 1.5"),
        ({"adjacency": "label"}, "adjacency is 'label'"),
        ({"epochs": 0}, "epochs is 0"),
        ({"lr": 0}, "lr is 0"),
        ({"clip": math.inf}, "clip is inf"),
        ({"optimizer": "lbfgs"}, "optimizer is 'lbfgs'"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": 2.5}, "batch is 2.5"),
        ({"conditioner": "C.npz"}, "conditioner is 'C.npz'"),
        ({"private_columns": {1: (0, 1)}}, "for adjacency 'semi_sensitive'"),
        ({"adjacency": "semi_sensitive", "private_columns": {9: (0, 1)}}, "no such column"),
        ({"adjacency": "semi_sensitive", "private_columns": {"a": (0, 1)}}, "no such column"),
        ({"adjacency": "semi_sensitive", "private_columns": {1: (1, 0)}}, "declare two finite numbers"),
        ({"adjacency": "semi_sensitive", "private_columns": {1: 3}}, "declare two finite numbers"),
        (
            {"adjacency": "semi_sensitive", "private_columns": dict.fromkeys(range(4), (0, 1))},
            "every column is",
        ),
    ],
)
def test_bad_parameters(data, options, words):
    with pytest.raises(InputError, match=words):
        CondDPRegressor(**({"y_range": (0, 10)} | options)).fit(*data)


def test_bad_data(data):
    X, y = data
    model = CondDPRegressor(y_range=(0, 10))
    broken = pd.DataFrame(X, columns=list("abcd"))
    broken.loc[7, "c"] = np.nan
    with pytest.raises(InputError, match="NaN in column 'c', row 7"):
        model.fit(broken, y)
    with pytest.raises(InputError, match="one label for every row"):
        model.fit(X, y[:-1])
    with pytest.raises(InputError, match="leave out the rows without a label") as caught:
        model.fit(X, np.where(np.arange(400) == 5, np.nan, y))
    # A message must not tell whose label it was.
    assert "5" not in str(caught.value)
    with pytest.raises(InputError, match="column of numbers"):
        model.fit(X, np.full(400, "high"))
    with pytest.warns(UserWarning, match="not below 1 / rows"):
        CondDPRegressor(y_range=(0, 10), delta=0.01).fit(X, y)
    with pytest.warns(UserWarning, match="constant public columns are not used: 0"):
        CondDPRegressor(y_range=(0, 10)).fit(np.column_stack([np.ones(400), X]), y)


def test_weights_are_in_the_units_of_the_data(data):
    X, y = data
    options = {"random_state": 0, "y_range": (0, 10)}
    model = CondDPRegressor(**options).fit(X, y)
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_)
    scaled = CondDPRegressor(**options).fit(X * 100 + 7, y)
    np.testing.assert_allclose(scaled.predict(X * 100 + 7), model.predict(X), rtol=1e-6)
    moved = CondDPRegressor(**(options | {"y_range": (100, 200)})).fit(X, 10 * y + 100)
    np.testing.assert_allclose(moved.predict(X), 10 * model.predict(X) + 100, rtol=1e-9)
