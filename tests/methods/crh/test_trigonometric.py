"""The searched law: what it finds when it is there, and what its null says when it is not."""

import math

import numpy as np
import pytest

from assay.errors import InputError
from assay.methods.crh import SearchGrid, fit_trigonometric_law

COARSE = SearchGrid(largest=4.0, step_a=0.5, step_p=0.25)


def concepts(generator, n=100, per=5):
    index = np.repeat(np.arange(n), per)
    return generator.uniform(0.2, 1.4, n * per), index, generator.uniform(0.5, 2.0, n)


def test_a_law_that_holds_is_found():
    generator = np.random.default_rng(0)
    theta, index, norms = concepts(generator, 60)
    theta = np.repeat(generator.uniform(0.2, 1.4, 60), 5) + 0.02 * generator.normal(size=300)
    mean = np.array([theta[index == c].mean() for c in range(60)])
    y = norms**2 * np.sin(mean) ** 2 * np.cos(mean)
    found = fit_trigonometric_law(theta, index, norms, y, grid=COARSE, n_perm=99)
    assert found.p_value == 0.01
    assert found.held_out_r2 > 0.9
    assert found.sine_exponent == pytest.approx(2.0)
    assert found.cosine_exponent == pytest.approx(1.0, abs=0.3)  # the grid's step is 0.5
    assert found.correlation > 0.95
    assert (found.n, found.concepts, found.dropped) == (300, 60, 0)


def test_on_noise_the_naive_p_misleads_and_the_corrected_one_does_not():
    naive = corrected = 0
    runs = 200
    for seed in range(runs):
        generator = np.random.default_rng(seed)
        theta, index, norms = concepts(generator)
        # Questions of a concept have similar angles, and they share one steerability.
        theta = 0.2 * theta + 0.8 * generator.uniform(0.2, 1.4, 100)[index]
        y = generator.exponential(size=100)
        found = fit_trigonometric_law(
            theta, index, norms, y, grid=SearchGrid(6.0, 1.0, 0.5), n_perm=39, folds=2, seed=seed
        )
        naive += found.naive_p < 0.05
        corrected += found.p_value <= 0.05
    assert naive / runs > 0.5
    assert corrected / runs == pytest.approx(0.05, abs=0.03)


def test_angles_beyond_a_right_angle_are_dropped_and_counted():
    generator = np.random.default_rng(1)
    theta, index, norms = concepts(generator, 20)
    theta[:7] = 2.0
    found = fit_trigonometric_law(theta, index, norms, generator.uniform(size=20), grid=COARSE, n_perm=0)
    assert found.dropped == 7
    assert found.n == 93
    assert math.isnan(found.p_value)


def test_bad_laws():
    theta, index, norms = concepts(np.random.default_rng(2), 5)
    for arguments, message in [
        ((theta, index, norms, np.full(5, np.nan)), "finite"),
        ((theta, index, norms, np.ones(4)), "equal lengths"),
        ((theta, index, -norms, np.ones(5)), "positive"),
        ((theta[:10], index[:10], norms, np.ones(5)), "too few"),
    ]:
        with pytest.raises(InputError, match=message):
            fit_trigonometric_law(*arguments, grid=COARSE)
    with pytest.raises(InputError, match="empty"):
        SearchGrid(largest=0.1).exponents()
    assert sum(len(p) for _, p in SearchGrid().exponents()) > 10_000
