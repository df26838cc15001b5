"""The fast path for linear models: Opacus's trajectory, clipped as promised, with the noise that was
promised."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus import PrivacyEngine
from scipy.stats import chi2
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from assay.methods.cond_dp import linear
from assay.methods.cond_dp.linear import DivergedError, LinearTraining, label_sensitivity, train_linear
from assay.methods.cond_dp.linear_loops import BLOCK, columns_of
from assay.methods.cond_dp.validation import check_finite

TRAINING = LinearTraining(steps=10, lr=0.05, clip=0.5, sigma=2.0)


def with_(**changes):
    from dataclasses import replace

    return replace(TRAINING, **changes)


def problem(seed=0, n=40, d=5):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, d))
    return Z, np.clip(Z @ rng.normal(size=d) / 4, -1, 1)


def no_noise(size):
    return np.zeros(size)


def clipped_sum(Z, t, parameters, training):
    return linear.Rows.of(Z, t, training).clipped_sum(parameters)


def clipped_gradients(Z, t, weights, intercept, clip):
    """Row by row, as it is defined."""
    rows = np.column_stack([Z, np.ones(len(Z))])
    gradients = 2 * (Z @ weights + intercept - t)[:, None] * rows
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return gradients * np.minimum(1, clip / (norms + 1e-6))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_trajectory_is_that_of_opacus(optimizer, learned, compiled, monkeypatch):
    monkeypatch.setattr(linear, "COMPILED_FROM", 0 if compiled else math.inf)
    Z, t = problem()
    X, y = torch.from_numpy(Z), torch.from_numpy(t)[:, None]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 1, dtype=torch.float64)
            nn.init.zeros_(self.layer.weight)
            nn.init.zeros_(self.layer.bias)
            if learned:
                from assay.methods.cond_dp.conditioning import LearnedFactor

                self.factor = LearnedFactor(3.0, self.layer.weight)

        def forward(self, x):
            return self.layer(self.factor(x) if learned else x)

    module: nn.Module = Model()
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    made: Any = PrivacyEngine().make_private(
        module=module,
        optimizer=kind(module.parameters(), lr=0.05),
        data_loader=DataLoader(TensorDataset(X, y), batch_size=40),
        noise_multiplier=2.0,
        max_grad_norm=0.5,
        poisson_sampling=False,
        noise_generator=torch.Generator().manual_seed(7),
    )
    private, steps = made[:2]
    for _ in range(10):
        steps.zero_grad()
        nn.MSELoss()(private(X), y).backward()
        steps.step()

    generator = torch.Generator().manual_seed(7)

    def same_noise(size):
        # Opacus draws normals of the standard deviation that it needs.
        return torch.normal(0.0, 1.0, (size,), generator=generator, dtype=torch.float64).numpy()

    training = with_(optimizer=optimizer, learned_factor=3.0 if learned else None)
    weights, intercept = train_linear(Z, t, training, same_noise, np.random.default_rng(0))
    factor = float(module.factor.factor) if learned else 1.0
    np.testing.assert_allclose(weights, module.layer.weight.detach().numpy()[0] * factor, atol=1e-5)
    assert intercept == pytest.approx(float(module.layer.bias), abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-3, 10))
def test_clipped_gradients_are_no_longer_than_the_norm(seed, clip):
    Z, t = problem(seed, n=12)
    rng = np.random.default_rng(seed)
    weights, intercept = rng.normal(size=5), rng.normal()
    parameters = np.concatenate([weights, [intercept, 1.0]])
    total = np.zeros(7)
    for i in range(12):
        gradient = clipped_sum(Z[[i]], t[[i]], parameters, with_(clip=clip, sigma=0.0))
        assert np.linalg.norm(gradient) <= clip * (1 + 1e-6)
        total += gradient
    np.testing.assert_allclose(
        total[:6], clipped_gradients(Z, t, weights, intercept, clip).sum(axis=0), atol=1e-12
    )
    np.testing.assert_allclose(total, clipped_sum(Z, t, parameters, with_(clip=clip, sigma=0.0)), atol=1e-12)


def change_of_one_label(Z, weights, intercept, clip, fit_intercept=True, rows=linear.Rows):
    """The largest change of the sum of clipped gradients over all rows and extreme labels."""
    training = with_(clip=clip, fit_intercept=fit_intercept)
    parameters = np.concatenate([weights, [intercept, 1.0]])
    sums = []
    for label in (-1.0, 1.0):
        labels = np.array([label])
        sums.append([rows.of(Z[[i]], labels, training).clipped_sum(parameters) for i in range(len(Z))])
    return np.linalg.norm(np.array(sums[0]) - np.array(sums[1]), axis=1).max()


def test_a_label_can_move_the_sum_by_twice_the_norm():
    """Adding or removing a row moves it by the norm only: that figure would be wrong for labels."""
    Z, _ = problem()
    moved = change_of_one_label(Z, np.zeros(5), 0.0, clip=0.5)
    assert moved <= 2 * 0.5
    assert moved > 1.99 * 0.5


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 30), st.booleans())
def test_the_label_sensitivity_is_a_bound_and_is_reached(seed, clip, fit_intercept):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(15, 3)) * rng.exponential(size=(15, 1))
    bound = clip * label_sensitivity(
        (Z**2).sum(axis=1), clip, fit_intercept=fit_intercept, learned_factor=False
    )
    for scale in (0.0, 0.3, 3.0):
        weights = scale * rng.normal(size=3)
        for rows in (linear.Rows, linear.CompiledRows):
            # Of the features as they were passed, though the compiled loops have rounded ones.
            moved = change_of_one_label(Z, weights, 0.0, clip, fit_intercept, rows)
            assert moved <= bound * (1 + 1e-9)
    assert change_of_one_label(Z, np.zeros(3), 0.0, clip, fit_intercept) >= 0.99 * bound
    assert label_sensitivity((Z**2).sum(axis=1), clip, fit_intercept=fit_intercept, learned_factor=True) == 2


def test_the_noise_has_the_covariance_that_was_promised():
    """Steps of SGD from zero without signal: the parameters are the noise."""
    sigma, clip, n = 3.0, 0.5, 4
    training = LinearTraining(steps=1, lr=1.0, clip=clip, sigma=sigma, optimizer="sgd")
    draws = []
    rng = np.random.default_rng(11)
    for _ in range(4000):
        weights, intercept = train_linear(np.zeros((n, 3)), np.zeros(n), training, rng.standard_normal, rng)
        draws.append([*weights, intercept])
    noise = np.array(draws) * n / (sigma * clip)
    statistic = (noise**2).sum()
    low, high = chi2.ppf([5e-4, 1 - 5e-4], noise.size)
    assert low < statistic < high
    correlation = noise.T @ noise / len(noise)
    assert np.abs(correlation - np.eye(4)).max() < 4.5 * math.sqrt(2 / len(noise))


def test_noise_free_descent_finds_least_squares():
    Z, t = problem(n=200)
    training = LinearTraining(steps=3000, lr=0.05, clip=1e6, sigma=0.0, optimizer="sgd")
    weights, intercept = train_linear(Z, t, training, no_noise, np.random.default_rng(0))
    expected = np.linalg.lstsq(np.column_stack([Z, np.ones(200)]), t, rcond=None)[0]
    np.testing.assert_allclose([*weights, intercept], expected, atol=1e-6)


def test_the_denominator_is_a_constant_and_empty_batches_are_noise_only():
    Z, t = problem(n=5)
    training = LinearTraining(steps=50, lr=1.0, clip=0.5, sigma=1.0, optimizer="sgd", sample_rate=1e-9)
    calls = []

    def normals(size):
        calls.append(size)
        return np.ones(size)

    weights, intercept = train_linear(Z, t, training, normals, np.random.default_rng(0))
    # Every step moved by its noise over rate x rows, though no row was drawn.
    assert calls == [5, 1] * 50
    np.testing.assert_allclose([*weights, intercept], -50 * 0.5 / (1e-9 * 5))


def test_samples_are_drawn_with_the_rate():
    n, rate, steps = 50, 0.3, 200
    Z, t = np.zeros((n, 1)), -np.ones(n)
    training = LinearTraining(
        steps=steps, lr=1.0, clip=1.0, sigma=0.0, optimizer="sgd", sample_rate=rate, average=False
    )
    # Each drawn row pulls the intercept by the clipping norm until the labels are reached.
    _, intercept = train_linear(
        Z, t, with_(**{**vars(training), "lr": 1e-4}), no_noise, np.random.default_rng(0)
    )
    assert -intercept / (steps * 1e-4) == pytest.approx(1, abs=5 * math.sqrt((1 - rate) / (rate * n * steps)))


def test_averaging_returns_the_mean_iterate():
    Z, t = problem()
    iterates = [
        np.append(*train_linear(Z, t, with_(steps=k, sigma=0.0), no_noise, np.random.default_rng(0)))
        for k in (1, 2, 3)
    ]
    weights, intercept = train_linear(
        Z, t, with_(steps=3, sigma=0.0, average=True), no_noise, np.random.default_rng(0)
    )
    np.testing.assert_allclose(np.append(weights, intercept), np.mean(iterates, axis=0))


def test_bias_correction_restores_the_size_of_the_signal():
    """Where noise dominates, Adam's steps shrink by its size; corrected ones do not."""
    n, d = 400, 1
    Z, t = np.ones((n, d)), np.full(n, 0.9)
    rng = np.random.default_rng(0)

    def moved(correct, sigma):
        training = LinearTraining(
            steps=30, lr=1e-4, clip=0.1, sigma=sigma, fit_intercept=False, bias_correction=correct
        )
        return np.mean([train_linear(Z, t, training, rng.standard_normal, rng)[0][0] for _ in range(60)])

    noise_free = moved(False, 0.0)
    plain, corrected = moved(False, 800.0), moved(True, 800.0)
    assert plain < 0.7 * noise_free
    assert abs(corrected) > 2 * plain


def test_divergence_is_said():
    Z, t = problem()
    with pytest.raises(DivergedError, match="lower lr"):
        train_linear(
            Z, t, with_(optimizer="sgd", lr=1e300, clip=1e300, sigma=0.0), no_noise, np.random.default_rng(0)
        )


def test_check_finite_knows_that_large_sums_may_overflow():
    check_finite(np.full((3, 2), 1e308))


@pytest.mark.parametrize("sigma", [0.0, 2.0])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("learned", [None, 3.0])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (70, 5), (2 * BLOCK + 3, 8)])
def test_the_compiled_loops_compute_what_numpy_does(sigma, fit_intercept, learned, n, d):
    rng = np.random.default_rng(n)
    Z, t = problem(n, n, d)
    training = with_(sigma=sigma, fit_intercept=fit_intercept, learned_factor=learned, sample_rate=0.5)
    compiled = linear.CompiledRows.of(Z, t, training)
    plain = linear.Rows.of(compiled.columns.T.astype(float), t, training)
    np.testing.assert_allclose(compiled.squared_norms, plain.squared_norms, rtol=1e-14)
    parameters = np.append(rng.normal(size=d + 1) / 3, learned or 1.0)
    for chosen in (rng.random(n) < 0.5, np.zeros(n, dtype=bool), np.ones(n, dtype=bool)):
        expected = plain.sampled(chosen).clipped_sum(parameters)
        np.testing.assert_allclose(
            compiled.sampled(chosen).clipped_sum(parameters), expected, rtol=1e-12, atol=1e-12
        )
    np.testing.assert_allclose(compiled.clipped_sum(parameters), plain.clipped_sum(parameters), atol=1e-12)


@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("learned", [None, 3.0])
def test_trainings_are_the_same_in_numpy_and_compiled(rate, learned, monkeypatch):
    Z, t = problem(n=300)
    training = with_(sample_rate=rate, learned_factor=learned)
    found = []
    for bound in (math.inf, 0):
        monkeypatch.setattr(linear, "COMPILED_FROM", bound)
        rng = np.random.default_rng(5)
        found.append(np.append(*train_linear(Z, t, training, rng.standard_normal, rng)))
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e39, 1e39) | st.floats(-1e-37, 1e-37),
        min_size=1,
        max_size=70,
    )
)
def test_stored_features_are_the_next_towards_zero(values):
    Z = np.array(values)[:, None]
    single, squared_norms = columns_of(Z, single=True)
    assert single.dtype == np.float32
    stored, limits = single[0].astype(float), np.finfo(np.float32)
    assert (np.abs(stored) <= np.abs(Z[:, 0])).all()
    usual = (np.abs(Z[:, 0]) >= limits.tiny) & (np.abs(stored) < float(limits.max))
    above = np.nextafter(np.abs(single[0][usual]), np.float32(np.inf)).astype(float)
    assert (above > np.abs(Z[usual, 0])).all()
    assert (np.abs(stored[np.abs(Z[:, 0]) >= float(limits.max)]) == float(limits.max)).all()
    np.testing.assert_array_equal(squared_norms, stored**2)
    double, _ = columns_of(Z[np.abs(Z[:, 0]) < 1e150][:, :1], single=False)
    np.testing.assert_array_equal(double[0], Z[np.abs(Z[:, 0]) < 1e150][:, 0])
