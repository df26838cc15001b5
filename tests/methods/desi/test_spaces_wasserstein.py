"""Distributions on the line: closed forms of normal distributions, POT, bad input."""

from __future__ import annotations

import warnings

import cvxpy
import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from assay.errors import InputError
from assay.methods.desi.spaces import Wasserstein1D

SPACE = Wasserstein1D(grid_size=50)


def normal_quantiles(mean, scale, space=SPACE):
    return np.asarray(mean)[:, None] + np.asarray(scale)[:, None] * ndtri(space.levels)


def test_distance_equals_optimal_transport():
    rng = np.random.default_rng(0)
    A, B = np.sort(rng.normal(size=(5, 50)), axis=1), np.sort(rng.gamma(2, size=(5, 50)), axis=1)
    expected = [np.sqrt(ot.emd2_1d(a, b, metric="sqeuclidean")) for a, b in zip(A, B, strict=True)]
    np.testing.assert_allclose(SPACE.distance(A, B), expected, rtol=1e-12)
    np.testing.assert_allclose(np.diag(SPACE.pairwise(A, B)), expected, rtol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(0, 10**6))
def test_mean_of_normals_is_the_normal_with_mean_parameters(seed):
    rng = np.random.default_rng(seed)
    mean, scale = rng.normal(size=7), rng.uniform(0.5, 2, size=7)
    weights = rng.dirichlet(np.ones(7), size=3) * 1.3 - 0.3 / 7  # some negative
    means = SPACE.mean(normal_quantiles(mean, scale), weights)
    np.testing.assert_allclose(means, normal_quantiles(weights @ mean, weights @ scale), atol=1e-12)


def test_mean_equals_bures_barycenter_of_pot():
    mean, scale, weights = np.array([0.0, 1.0, 3.0]), np.array([1.0, 0.3, 2.0]), np.array([0.2, 0.5, 0.3])
    oracle = ot.gaussian.bures_wasserstein_barycenter(
        mean[:, None], (scale**2)[:, None, None], weights=weights
    )
    expected = normal_quantiles(oracle[0], np.sqrt(oracle[1][0]))
    np.testing.assert_allclose(SPACE.mean(normal_quantiles(mean, scale), weights[None]), expected, atol=1e-6)


def test_mean_with_negative_weights_minimises_the_objective():
    rng = np.random.default_rng(1)
    Y = np.sort(rng.normal(size=(6, 50)), axis=1)
    weights = np.array([[1.5, -0.8, 0.9, -0.9, 0.6, -0.3]])
    mean = SPACE.mean(Y, weights)
    assert not np.allclose(mean, weights @ Y)  # the projection had something to do

    def objective(candidate):
        return (weights[0] * SPACE.distance(Y, candidate) ** 2).sum()

    for other in np.concatenate([Y, np.sort(mean + 0.1 * rng.normal(size=(100, 50)), axis=1)]):
        assert objective(mean) <= objective(other) + 1e-12


def test_mean_stays_in_the_box():
    space = Wasserstein1D(grid_size=50, lower=0, upper=1)
    Y = np.sort(np.random.default_rng(2).uniform(size=(3, 50)), axis=1)
    Y[1] = Y[1] ** 2
    mean = space.mean(Y, np.array([[3.0, -2.5, 0.5]]))
    assert mean.min() >= 0
    assert mean.max() == 1
    assert (np.diff(mean) >= 0).all()
    # The nearest monotone function in the box, by a quadratic program.
    nearest = cvxpy.Variable(50)
    objective = cvxpy.sum_squares(nearest - (3.0 * Y[0] - 2.5 * Y[1] + 0.5 * Y[2]))
    cvxpy.Problem(cvxpy.Minimize(objective), [cvxpy.diff(nearest) >= 0, nearest >= 0, nearest <= 1]).solve(
        solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12
    )
    np.testing.assert_allclose(mean[0], nearest.value, atol=1e-6)


def test_mean_of_two_lies_on_the_geodesic():
    Y = np.sort(np.random.default_rng(3).normal(size=(2, 50)), axis=1)
    mean = SPACE.mean(Y, np.array([[0.7, 0.3]]))
    np.testing.assert_allclose(SPACE.distance(Y[0], mean), 0.3 * SPACE.distance(Y[0], Y[1]))
    np.testing.assert_allclose(SPACE.distance(Y[1], mean), 0.7 * SPACE.distance(Y[0], Y[1]))


def test_decreasing_quantiles_are_projected_with_a_warning():
    Y = np.tile(np.arange(50.0), (3, 1))
    Y[1, 10] = 20.0
    with pytest.warns(UserWarning, match=r"1 of 3 quantile functions decrease \(row 1 by 9\)"):
        checked = SPACE.check(Y)
    assert (np.diff(checked, axis=1) >= 0).all()
    np.testing.assert_array_equal(checked[0], Y[0])
    with pytest.raises(InputError, match="row 1 decreases by 9; sort it"):
        Wasserstein1D(grid_size=50, strict=True).check(Y)


def test_rounding_in_a_file_is_no_decrease():
    Y = np.full((1, 50), 1.0)
    Y[0, 20] = 1.0 - 1e-10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (np.diff(Wasserstein1D(grid_size=50, strict=True).check(Y)) >= 0).all()


@pytest.mark.parametrize(
    ("space", "Y", "message"),
    [
        (SPACE, np.zeros((2, 7)), r"7 levels but the space has 50: use Wasserstein1D\(grid_size=7\)"),
        (Wasserstein1D(3, lower=0), [[0, 1, 2], [-1, 0, 1]], "row 1 reaches -1, below lower=0"),
        (Wasserstein1D(3, upper=1.5), [[0, 1, 2]], "row 0 reaches 2, above upper=1.5"),
        (Wasserstein1D(3), [[0, 1, np.nan]], r"row 0 holds nan at position \(2,\)"),
        (Wasserstein1D(3), [0, 1, 2], "must have 2 axes"),
        (Wasserstein1D(3), [["a", "b", "c"]], "must be an array of numbers"),
        (Wasserstein1D(3), np.zeros((0, 3)), "at least one point"),
    ],
)
def test_bad_quantiles(space, Y, message):
    with pytest.raises(InputError, match=message):
        space.check(Y)


def test_bad_parameters():
    with pytest.raises(InputError, match="grid_size is 0"):
        Wasserstein1D(0)
    with pytest.raises(InputError, match="lower is 2 and upper 1"):
        Wasserstein1D(lower=2, upper=1)
