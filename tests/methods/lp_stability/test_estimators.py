import math

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.linear_model import Ridge, SGDRegressor
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from assay.errors import InputError
from assay.methods.lp_stability import (
    Assumptions,
    AssumptionViolated,
    BallRidge,
    Certificate,
    CertifiedRegressor,
    Estimate,
    StabilityEstimator,
)

pytestmark = pytest.mark.filterwarnings("ignore::assay.methods.lp_stability.moments.MomentWarning")


@pytest.mark.parametrize(
    "estimator",
    [CertifiedRegressor(Ridge()), CertifiedRegressor(), StabilityEstimator(Ridge(), n_pairs=40), BallRidge()],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_conventions(estimator):
    check_estimator(estimator, on_skip=None)


class Mean(RegressorMixin, BaseEstimator):
    """Predicts the mean of all labels; with labels far from it the absolute loss moves as the mean does."""

    def fit(self, X, y):
        self.mean_ = float(np.mean(y))
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


def test_gaussian_mean_witness():
    """|A_S| of the Gaussian mean: a swap moves it by at most |z - z'| / m, whose L_2 norm is sqrt(2) / m.

    With a mean far from zero the change is exactly that; uniform stability is infinite.
    """
    rng = np.random.default_rng(0)
    m, n_pairs = 50, 3000
    y = rng.normal(size=m) + 100
    reserve = rng.normal(size=n_pairs) + 100
    moved = StabilityEstimator(Mean(), n_pairs=n_pairs, p=(2,), random_state=0).fit(
        np.zeros((m, 1)), y, np.zeros((n_pairs, 1)), reserve
    )
    sample = np.sqrt(np.mean((y[:, None] - reserve[None, :]) ** 2)) / m
    assert moved.coef_[2] == pytest.approx(sample, rel=0.03)
    assert moved.coef_[2] == pytest.approx(math.sqrt(2) / m, rel=0.25)
    low, high = moved.coef_ci_[2]
    assert low < moved.coef_[2] < high


def test_norms_grow_with_p_and_schemes_differ(heavy_rows):
    X, y = heavy_rows(200)
    swap = StabilityEstimator(Ridge(), n_pairs=150, random_state=0).fit(X, y)
    assert swap.coef_[2] < swap.coef_[3] < swap.coef_[4]
    assert swap.deltas_.shape == swap.gap_changes_.shape == (150,)
    assert swap.method_used_ == "ridge (Woodbury)"
    assert swap.n_failed_ == 0
    assert abs(swap.bias_) < 0.1
    left_out = StabilityEstimator(Ridge(), n_pairs=150, scheme="loo", random_state=0).fit(X, y)
    # A swap is a removal and an insertion.
    assert left_out.coef_[2] < swap.coef_[2] < 3 * left_out.coef_[2]
    assert swap.risk_coef_[2] <= swap.coef_[2]


def test_shortcut_and_refit_measure_the_same(heavy_rows):
    X, y = heavy_rows(80)
    for estimator in (Ridge(), BallRidge(2.0, 0.5), KNeighborsRegressor(3)):
        fast, slow = (
            StabilityEstimator(estimator, n_pairs=25, shortcut=shortcut, random_state=1).fit(X, y)
            for shortcut in ("auto", "refit")
        )
        for name in ("deltas_", "risk_changes_", "gap_changes_"):
            np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), atol=1e-10)
        assert slow.method_used_ == "refit"


def test_an_interrupted_fit_resumes_from_its_checkpoint(heavy_rows, tmp_path):
    X, y = heavy_rows(60)
    path = tmp_path / "partial.npz"
    whole = StabilityEstimator(Ridge(), n_pairs=50, random_state=3).fit(X, y)
    StabilityEstimator(Ridge(), n_pairs=20, random_state=3, checkpoint=path).fit(X, y)
    resumed = StabilityEstimator(Ridge(), n_pairs=50, random_state=3, checkpoint=path).fit(X, y)
    np.testing.assert_array_equal(resumed.deltas_, whole.deltas_)
    for changed in (
        StabilityEstimator(Ridge(2.0), n_pairs=50, random_state=3, checkpoint=path),
        StabilityEstimator(Ridge(), n_pairs=50, random_state=4, checkpoint=path),
        StabilityEstimator(Ridge(), loss="squared", n_pairs=50, random_state=3, checkpoint=path),
        StabilityEstimator(Ridge(), loss=lambda y, f: np.abs(y), random_state=3, checkpoint=path),
    ):
        with pytest.raises(InputError, match="belongs to another estimate"):
            changed.fit(X, y)
    with pytest.raises(InputError, match="resumed by its seed"):
        StabilityEstimator(Ridge(), checkpoint=path).fit(X, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_pairs": 0}, "n_pairs is 0"),
        ({"scheme": "swap"}, "scheme is 'swap'"),
        ({"p": ()}, r"p is \(\)"),
        ({"p": (0.5,)}, "orders of at least 1"),
        ({"loss": "mae"}, "no loss 'mae'"),
        ({"shortcut": "woodbury"}, "shortcut is 'woodbury'"),
        ({"reserve": 0}, "reserve is 0"),
    ],
)
def test_bad_parameters(heavy_rows, options, message):
    with pytest.raises(InputError, match=message):
        StabilityEstimator(Ridge(), **options).fit(*heavy_rows(40))


def test_bad_rows(heavy_rows):
    X, y = heavy_rows(40)
    y[7] = np.nan
    for estimator in (StabilityEstimator(Ridge()), CertifiedRegressor(Ridge())):
        with pytest.raises(InputError, match="y contains NaN in row 7"):
            estimator.fit(X, y)
    y[7] = 0
    with pytest.raises(InputError, match="both X_reserve and y_reserve"):
        StabilityEstimator(Ridge()).fit(X, y, X)
    with pytest.raises(InputError, match="X_reserve has 2 columns and X has 5"):
        StabilityEstimator(Ridge()).fit(X, y, X[:, :2], y)


def test_random_estimators_must_be_coupled(heavy_rows):
    X, y = heavy_rows(60)
    with pytest.raises(InputError, match="set its random_state"):
        StabilityEstimator(SGDRegressor(), n_pairs=5).fit(X, y)
    noisy = StabilityEstimator(SGDRegressor(), n_pairs=30, coupled=False, random_state=0).fit(X, y)
    coupled = StabilityEstimator(SGDRegressor(random_state=0), n_pairs=30, random_state=0).fit(X, y)
    assert noisy.method_used_ == coupled.method_used_ == "refit"


def test_a_certified_regressor_predicts_and_certifies(heavy_rows):
    X, y = heavy_rows(500)
    model = CertifiedRegressor(
        BallRidge(200.0), assumptions=Assumptions(x_bound=1.0, label_law="t:df=5,scale=0.9"), random_state=0
    ).fit(X, y)
    assert isinstance(model.certificate_, Certificate)
    model.certificate_.verify(X, y)
    np.testing.assert_array_equal(model.predict(X), X @ model.estimator_.coef_)
    # The certificate speaks of the model that predicts.
    order = np.random.default_rng(0).permutation(500)
    train = np.sort(order[model.certificate_.n_reserve :])
    assert np.abs(y[train] - model.predict(X[train])).mean() == pytest.approx(model.certificate_.risk_emp)
    plain = CertifiedRegressor(make_pipeline(StandardScaler(), Ridge()), n_pairs=30, random_state=0).fit(X, y)
    assert isinstance(plain.certificate_, Estimate)
    assert cross_val_score(clone(plain), X, y, cv=3).mean() > 0
    with pytest.raises(AssumptionViolated, match="x_bound"):
        CertifiedRegressor(BallRidge(), assumptions=Assumptions(x_bound=0.1)).fit(X, y)
