import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge, SGDRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

from assay.errors import InputError
from assay.methods.lp_stability.ball_ridge import BallRidge, ball_coefficients
from assay.methods.lp_stability.coupled_descent import coupled_sgd
from assay.methods.lp_stability.fits import perturbable_fits
from assay.methods.lp_stability.losses import as_loss
from assay.methods.lp_stability.refit import RefittedFits
from assay.methods.lp_stability.replace_one import RidgeFits
from assay.methods.lp_stability.swap_effects import measure_swaps


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    m, d, n_pairs = 60, 4, 15
    X = rng.normal(size=(m, d)) + 3
    y = X @ rng.normal(size=d) + rng.standard_t(3, size=m)
    points = np.vstack([X, rng.normal(size=(25, d)) + 3])
    rows = rng.integers(m, size=n_pairs)
    return X, y, points, rows, rng.normal(size=(n_pairs, d)) + 3, 3 * rng.standard_t(3, size=n_pairs)


SHORTCUTS = [
    Ridge(0.1),
    Ridge(2.0, fit_intercept=False),
    BallRidge(1.0, 0.5),
    BallRidge(1.0, 1.9),
    BallRidge(1.0, 1e3),
    KernelRidge(0.3, kernel="rbf"),
    KernelRidge(2.0, kernel="laplacian", gamma=0.2),
    KernelRidge(5.0, kernel="linear"),
    KNeighborsRegressor(3),
    KNeighborsRegressor(4, weights="distance"),
    KNeighborsRegressor(4, p=1),
    KNeighborsRegressor(4, metric="manhattan", weights="distance"),
]


@pytest.mark.parametrize("estimator", SHORTCUTS, ids=repr)
def test_a_shortcut_agrees_with_fitting_again(estimator, problem):
    X, y, points, rows, X_new, y_new = problem
    fast = perturbable_fits(estimator, X, y, points)
    slow = perturbable_fits(estimator, X, y, points, shortcut="refit")
    assert fast.name != slow.name == "refit"
    np.testing.assert_allclose(fast.predictions, slow.predictions, atol=1e-9)
    changed, reference = fast.replace(rows, X_new, y_new), slow.replace(rows, X_new, y_new)
    assert not reference.failed.any()
    np.testing.assert_allclose(changed.at_points, reference.at_points, atol=1e-9)
    np.testing.assert_allclose(changed.at_new, reference.at_new, atol=1e-9)
    everyone = np.arange(len(y))
    left_out = slow.leave_out(everyone).at_points
    np.testing.assert_allclose(fast.leave_out(everyone).at_points, left_out, atol=1e-9)
    np.testing.assert_allclose(fast.leave_one_out(), left_out[everyone, everyone], atol=1e-9)


@pytest.mark.parametrize("seed", range(50))
def test_replacing_a_row_of_ridge_equals_a_refit(seed):
    rng = np.random.default_rng(seed)
    m, d = rng.integers(6, 80), rng.integers(1, 12)
    X, y = rng.normal(size=(m, d)) * rng.uniform(0.2, 5, d), rng.standard_t(3, size=m)
    alpha, intercept = 10 ** rng.uniform(-2, 2), bool(seed % 2)
    row, x_new, y_new = rng.integers(m), rng.normal(size=d), rng.standard_t(3)
    fits = RidgeFits(X, y, X, alpha=alpha, fit_intercept=intercept)
    X_swapped, y_swapped = X.copy(), y.copy()
    X_swapped[row], y_swapped[row] = x_new, y_new
    refit = Ridge(alpha, fit_intercept=intercept).fit(X_swapped, y_swapped)
    found = fits.replaced_coefficients(np.array([row]), x_new[None], np.array([y_new]))[0]
    assert np.abs(found[:d] - refit.coef_).max() <= 1e-9
    # The leave-one-out residual is r / (1 - h).
    if not intercept:
        hat = X @ np.linalg.solve(X.T @ X + alpha * np.eye(d), X.T)
        expected = (y - hat @ y) / (1 - np.diag(hat))
        np.testing.assert_allclose(y - fits.leave_one_out(), expected, atol=1e-9)


def test_ridge_in_a_ball_satisfies_the_optimality_conditions():
    rng = np.random.default_rng(3)
    for radius in (1e-3, 0.3, 1.0, 50.0):
        X, y = rng.normal(size=(40, 5)), rng.standard_t(2.5, size=40) * 3
        model = BallRidge(alpha=2.0, radius=radius).fit(X, y)
        gradient = X.T @ (X @ model.coef_ - y) + 2.0 * model.coef_
        assert np.linalg.norm(model.coef_) <= radius
        assert model.multiplier_ >= 0
        np.testing.assert_allclose(gradient, -model.multiplier_ * model.coef_, atol=1e-8)
        # Complementary slackness.
        assert model.multiplier_ == 0 or np.linalg.norm(model.coef_) == pytest.approx(radius, rel=1e-12)


def test_ridge_in_a_ball_handles_zero_and_singular_problems():
    coefficients, multipliers = ball_coefficients(np.zeros((1, 3, 3)), np.zeros((1, 3)), 1.0, 1.0)
    assert (coefficients == 0).all()
    assert (multipliers == 0).all()
    with pytest.raises(InputError, match="radius is 0"):
        BallRidge(radius=0).fit([[1.0], [2.0]], [1.0, 2.0])


def test_only_settings_with_a_closed_form_take_the_shortcut():
    class Mine(Ridge):
        pass

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 2)), rng.normal(size=20)
    for estimator in (
        Mine(),
        Ridge(solver="lsqr"),
        Ridge(positive=True),
        Ridge(alpha=0.0),
        KNeighborsRegressor(metric="cosine"),
    ):
        assert perturbable_fits(estimator, X, y, X).name == "refit", estimator
    with pytest.raises(InputError, match="shortcut is 'fast'"):
        perturbable_fits(Ridge(), X, y, X, shortcut="fast")


def test_neighbours_need_a_row_more_to_leave_one_out():
    X = np.arange(3.0)[:, None]
    fits = perturbable_fits(KNeighborsRegressor(3), X, X[:, 0], X)
    # Replacing works: the new row takes the place of the old one.
    assert fits.replace(np.array([0]), np.array([[9.0]]), np.array([30.0])).at_points[0] == pytest.approx(
        11.0
    )
    with pytest.raises(InputError, match="3 rows leave fewer than n_neighbors=3"):
        fits.leave_one_out()


def test_coupled_sgd_equals_separate_runs_with_the_same_stream():
    import torch
    from torch import nn
    from torch.nn.functional import mse_loss

    generator = torch.Generator().manual_seed(0)
    X, y = torch.randn(12, 3, generator=generator), torch.randn(12, 1, generator=generator)
    rows = torch.tensor([2, 7, 7])
    X_new, y_new = torch.randn(3, 3, generator=generator), torch.randn(3, 1, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    steps = [0.1] * 17
    copies = coupled_sgd(model, mse_loss, (X, y), rows, (X_new, y_new), steps=steps, batch_size=5, seed=4)
    for copy in range(4):
        X_copy, y_copy = X.clone(), y.clone()
        if copy:
            X_copy[rows[copy - 1]], y_copy[rows[copy - 1]] = X_new[copy - 1], y_new[copy - 1]
        alone = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
        stream = torch.Generator().manual_seed(4)
        batches = [part for _ in range(9) for part in torch.randperm(12, generator=stream)[:10].split(5)]
        for step, batch in zip(steps, batches, strict=False):
            output = torch.func.functional_call(model, alone, (X_copy[batch],))
            gradients = torch.autograd.grad(mse_loss(output, y_copy[batch]), list(alone.values()))
            alone = {
                name: (value - step * gradient).detach().requires_grad_()
                for (name, value), gradient in zip(alone.items(), gradients, strict=True)
            }
        for name, value in alone.items():
            torch.testing.assert_close(copies[name][copy], value.detach(), atol=1e-6, rtol=1e-5)
    with pytest.raises(InputError, match="batch_size is 13"):
        coupled_sgd(model, mse_loss, (X, y), rows, (X_new, y_new), steps=steps, batch_size=13)
    with pytest.raises(InputError, match="rows must lie between 0 and 11"):
        coupled_sgd(model, mse_loss, (X, y), rows + 5, (X_new, y_new), steps=steps)


def test_a_random_estimator_must_be_coupled():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    with pytest.raises(InputError, match="SGDRegressor gives another model when it is fitted again"):
        perturbable_fits(SGDRegressor(), X, y, X)
    assert perturbable_fits(SGDRegressor(), X, y, X, coupled=False).name == "refit"
    # With a fixed seed the change is the effect of the swap alone: none for an equal row.
    fits = perturbable_fits(SGDRegressor(random_state=0), X, y, X)
    same = fits.replace(np.array([3]), X[3:4], y[3:4])
    np.testing.assert_array_equal(same.at_points[0], fits.predictions)


class Picky(RegressorMixin, BaseEstimator):
    """Predicts the mean; fails on samples with a label above the limit."""

    def __init__(self, limit=np.inf):
        self.limit = limit

    def fit(self, X, y):
        if np.max(y) > self.limit:
            raise RuntimeError("too large a label")
        self.mean_ = float(np.mean(y))
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


def measured(fits, train, reserve, **options):
    return measure_swaps(fits, train, reserve, as_loss("absolute"), **options)


def test_failures_are_counted_up_to_five_percent():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 1)), rng.uniform(size=20)
    X_reserve, y_reserve = rng.normal(size=(50, 1)), rng.uniform(size=50)
    y_reserve[0] = 5.0
    fits = RefittedFits(Picky(2.0), X, y, np.vstack([X, X_reserve]))
    effects = measured(fits, (X, y), (X_reserve, y_reserve), n_pairs=200)
    assert 0 < effects.failed.sum() <= 10
    assert np.isfinite(effects.finished().largest).all()
    assert len(effects.finished().gap) == 200 - effects.failed.sum()
    y_reserve[:10] = 5.0
    with pytest.raises(InputError, match="of 200 fits to a changed sample failed"):
        measured(fits, (X, y), (X_reserve, y_reserve), n_pairs=200)


def test_swap_effects_of_the_mean_in_closed_form():
    """For the sample mean everything is known: a swap moves it by (y' - y_i) / m."""
    rng = np.random.default_rng(1)
    X, y = np.zeros((40, 1)), np.zeros(40)
    X_reserve, y_reserve = np.zeros((30, 1)), rng.uniform(1, 2, size=30)
    fits = RefittedFits(Picky(), X, y, np.vstack([X, X_reserve]))
    effects = measured(fits, (X, y), (X_reserve, y_reserve), n_pairs=25, seed=3)
    # All labels of the reserve lie above the mean, so that its losses fall by exactly the shift.
    shift = effects.largest
    assert np.isin(np.round(40 * shift, 9), np.round(y_reserve, 9)).all()
    np.testing.assert_allclose(effects.risk, -shift)
    np.testing.assert_allclose(effects.own, shift)
    # Training risk before 0; after: 39 rows at distance shift, the new one at 40 shift - shift.
    np.testing.assert_allclose(effects.gap, -shift - (39 * shift + 39 * shift) / 40)
    left_out = measured(fits, (X, y), (X_reserve, y_reserve), n_pairs=100, scheme="loo")
    assert len(left_out.largest) == 40
    np.testing.assert_allclose(left_out.largest, 0)


def test_the_row_that_comes_in_says_nothing_of_its_own_risk():
    """The nearest neighbour of a far-off new row is itself after the swap; no other loss moves."""
    X, y = -1e-3 * np.arange(30)[:, None], np.zeros(30)
    reserve = 3.0 ** np.arange(1, 11)[:, None], np.ones(10)
    fits = perturbable_fits(KNeighborsRegressor(1), X, y, np.vstack([X, reserve[0]]))
    effects = measured(fits, (X, y), reserve, n_pairs=40)
    # Rows further out than the new one have it as their neighbour; the last has nobody behind it.
    np.testing.assert_allclose(effects.largest, 1.0)
    last = np.isclose(effects.risk, 0.0)
    assert last.any()
    assert (effects.risk[~last] < 0).all()


def test_an_interrupted_measurement_resumes(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    reserve = rng.normal(size=(30, 2)), rng.normal(size=30)
    fits = perturbable_fits(Ridge(), X, y, np.vstack([X, reserve[0]]))
    whole = measured(fits, (X, y), reserve, n_pairs=70, seed=5)
    path = tmp_path / "partial.npz"

    class Interrupted:
        name, predictions, calls = fits.name, fits.predictions, 0

        def replace(self, *swap):
            if self.calls == 2:
                raise KeyboardInterrupt
            self.calls += 1
            return fits.replace(*swap)

    with pytest.raises(KeyboardInterrupt):
        measured(Interrupted(), (X, y), reserve, n_pairs=70, seed=5, checkpoint=(path, "mark"))
    with np.load(path, allow_pickle=False) as saved:
        assert saved["effects"].shape == (40, 4)
    finished = []
    resumed = measured(
        fits,
        (X, y),
        reserve,
        n_pairs=70,
        seed=5,
        checkpoint=(path, "mark"),
        progress=lambda done, total: finished.append((done, total)),
    )
    assert finished == [(60, 70), (70, 70)]
    for name in ("largest", "risk", "gap", "own"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))
    with pytest.raises(InputError, match="belongs to another estimate"):
        measured(fits, (X, y), reserve, n_pairs=70, seed=5, checkpoint=(path, "other"))
    path.write_bytes(b"torn")
    with pytest.raises(InputError, match="is not a partial estimate"):
        measured(fits, (X, y), reserve, n_pairs=70, seed=5, checkpoint=(path, "mark"))


def test_a_tree_is_measured_by_fitting_again():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    reserve = rng.normal(size=(10, 2)), rng.normal(size=10)
    fits = perturbable_fits(
        DecisionTreeRegressor(max_depth=2, random_state=0), X, y, np.vstack([X, reserve[0]])
    )
    effects = measured(fits, (X, y), reserve, n_pairs=8)
    assert fits.name == "refit"
    assert (effects.largest > 0).any()
