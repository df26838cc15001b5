"""Positive definite matrices under six metrics, against loops, pymanopt, POT and SciPy."""

from __future__ import annotations

import warnings

import numpy as np
import ot
import pymanopt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymanopt.manifolds import SymmetricPositiveDefinite
from pymanopt.optimizers import ConjugateGradient
from scipy.linalg import expm, fractional_matrix_power, logm, sqrtm
from scipy.optimize import minimize

from assay.errors import InputError
from assay.methods.desi.spaces import SPD
from assay.methods.desi.spaces.whitened import Hessian

METRICS = ("log-cholesky", "frobenius", "affine-invariant", "power", "log-euclidean", "bures")
CURVED = ("affine-invariant", "bures")


def random_spd(seed, n=8, q=3, spread=0.6):
    A = spread * np.random.default_rng(seed).normal(size=(n, q, q))
    values, vectors = np.linalg.eigh(0.5 * (A + np.swapaxes(A, 1, 2)))
    return (vectors * np.exp(values)[:, None]) @ np.swapaxes(vectors, 1, 2)


def local_linear_weights(n, targets, bandwidth):
    """Local linear weights on the grid of n points in [0, 1]; negative on the far side of a boundary."""
    difference = np.linspace(0, 1, n)[None] - np.asarray(targets)[:, None]
    kernel = np.exp(-0.5 * (difference / bandwidth) ** 2)
    first, second = ((kernel * difference**k).sum(axis=1, keepdims=True) for k in (1, 2))
    weights = kernel * (second - first * difference)
    return weights / weights.sum(axis=1, keepdims=True)


EDGE_WEIGHTS = local_linear_weights(30, [-0.1, 0.0, 0.5, 1.0], 0.25)


def test_edge_weights_are_negative():
    assert (EDGE_WEIGHTS < 0).any(axis=1).sum() >= 3


# ----------------------------------------------------------------------------------------------- distances


def test_log_cholesky_against_a_loop():
    A, B = random_spd(0), random_spd(1)
    expected = []
    for a, b in zip(A, B, strict=True):
        L, K = np.linalg.cholesky(a), np.linalg.cholesky(b)
        total = sum((L[i, j] - K[i, j]) ** 2 for i in range(3) for j in range(i))
        total += sum((np.log(L[i, i]) - np.log(K[i, i])) ** 2 for i in range(3))
        expected.append(np.sqrt(total))
    np.testing.assert_allclose(SPD("log-cholesky").distance(A, B), expected, rtol=1e-12)


def test_distances_against_their_definitions():
    A, B = random_spd(2), random_spd(3)
    manifold = SymmetricPositiveDefinite(3)
    expected = {
        "frobenius": [np.linalg.norm(a - b) for a, b in zip(A, B, strict=True)],
        "log-euclidean": [np.linalg.norm(logm(a) - logm(b)) for a, b in zip(A, B, strict=True)],
        "power": [
            np.linalg.norm(fractional_matrix_power(a, 0.3) - fractional_matrix_power(b, 0.3)) / 0.3
            for a, b in zip(A, B, strict=True)
        ],
        "affine-invariant": [manifold.dist(a, b) for a, b in zip(A, B, strict=True)],
        "bures": [
            ot.gaussian.bures_wasserstein_distance(np.zeros(3), np.zeros(3), a, b)
            for a, b in zip(A, B, strict=True)
        ],
    }
    for metric, distances in expected.items():
        np.testing.assert_allclose(
            SPD(metric, alpha=0.3).distance(A, B), distances, rtol=1e-8, err_msg=metric
        )


@pytest.mark.parametrize("metric", METRICS)
def test_pairwise_agrees_with_distance_and_embedding(metric):
    space = SPD(metric)
    A, B = random_spd(4, n=5), random_spd(5, n=4)
    pairwise = space.pairwise(A, B)
    assert pairwise.shape == (5, 4)
    np.testing.assert_allclose(pairwise, space.distance(A[:, None], B[None]), rtol=1e-10)
    embedded = space.embed(A)
    if metric in CURVED:
        assert embedded is None
    else:
        assert embedded.shape == (5, 6)
        np.testing.assert_allclose(np.linalg.norm(embedded[0] - embedded[1]), space.distance(A[0], A[1]))


@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(METRICS))
def test_metric_axioms(seed, metric):
    space = SPD(metric)
    A, B, C = random_spd(seed, n=3)
    np.testing.assert_allclose(space.distance(A, A), 0, atol=1e-7)
    np.testing.assert_allclose(space.distance(A, B), space.distance(B, A), rtol=1e-9)
    assert space.distance(A, B) > 0
    assert space.distance(A, C) <= space.distance(A, B) + space.distance(B, C) + 1e-12


def test_affine_invariant_and_bures_distances_are_invariant():
    A, B = random_spd(6), random_spd(7)
    M = np.random.default_rng(8).normal(size=(3, 3))
    moved = SPD("affine-invariant").distance(M @ A @ M.T, M @ B @ M.T)
    np.testing.assert_allclose(moved, SPD("affine-invariant").distance(A, B), rtol=1e-8)
    Q = np.linalg.qr(M)[0]
    rotated = SPD("bures").distance(Q @ A @ Q.T, Q @ B @ Q.T)
    np.testing.assert_allclose(rotated, SPD("bures").distance(A, B), rtol=1e-8)


# --------------------------------------------------------------------------------------------------- means


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.05, 0.95), st.sampled_from(METRICS))
def test_mean_of_two_lies_on_the_geodesic(seed, t, metric):
    space = SPD(metric)
    Y = random_spd(seed, n=2)
    mean = space.mean(Y, np.array([[1 - t, t]]))
    length = space.distance(Y[0], Y[1])
    np.testing.assert_allclose(space.distance(Y[0], mean), t * length, rtol=1e-7)
    np.testing.assert_allclose(space.distance(Y[1], mean), (1 - t) * length, rtol=1e-7)


def test_log_cholesky_mean_against_a_loop():
    Y = random_spd(9, n=30)
    means = SPD("log-cholesky").mean(Y, EDGE_WEIGHTS)
    for weights, mean in zip(EDGE_WEIGHTS, means, strict=True):
        L = np.zeros((3, 3))
        for weight, matrix in zip(weights, Y, strict=True):
            factor = np.linalg.cholesky(matrix)
            L += weight * (np.tril(factor, -1) + np.diag(np.log(np.diag(factor))))
        L = np.tril(L, -1) + np.diag(np.exp(np.diag(L)))
        np.testing.assert_allclose(mean, L @ L.T, rtol=1e-11)


def test_log_euclidean_and_power_means():
    Y = random_spd(10, n=4)
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    expected = expm(sum(w * logm(y) for w, y in zip(weights, Y, strict=True)))
    np.testing.assert_allclose(SPD("log-euclidean").mean(Y, weights[None])[0], expected, rtol=1e-10)
    root = sum(w * sqrtm(y) for w, y in zip(weights, Y, strict=True))
    np.testing.assert_allclose(SPD("power", alpha=0.5).mean(Y, weights[None])[0], root @ root, rtol=1e-10)


@pytest.mark.parametrize("metric", ["frobenius", "power"])
def test_negative_eigenvalues_are_clipped(metric):
    space = SPD(metric)
    Y = np.stack([np.diag([1.0, 4.0]), np.diag([4.0, 1.0])])
    mean = space.mean(Y, np.array([[3.0, -2.0]]))[0]
    np.testing.assert_allclose(mean[0, 0], 0, atol=1e-15)
    assert mean[1, 1] > 4
    space.check(mean[None])  # singular, and still a point of the space


@pytest.mark.parametrize("q", [2, 4])
def test_affine_invariant_mean_equals_conjugate_gradients(q):
    Y = random_spd(11, n=30, q=q, spread=1.0)
    means = SPD("affine-invariant").mean(Y, EDGE_WEIGHTS)
    manifold = SymmetricPositiveDefinite(q)
    for weights, mean in zip(EDGE_WEIGHTS, means, strict=True):

        @pymanopt.function.numpy(manifold)
        def cost(point, weights=weights):
            return sum(w * manifold.dist(point, y) ** 2 for w, y in zip(weights, Y, strict=True))

        @pymanopt.function.numpy(manifold)
        def gradient(point, weights=weights):
            return -2 * sum(w * manifold.log(point, y) for w, y in zip(weights, Y, strict=True))

        optimizer = ConjugateGradient(verbosity=0, min_gradient_norm=1e-9, max_iterations=300)
        problem = pymanopt.Problem(manifold, cost, riemannian_gradient=gradient)
        oracle = optimizer.run(problem, initial_point=Y.mean(axis=0)).point
        np.testing.assert_allclose(mean, oracle, atol=1e-6 * np.abs(oracle).max())


@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_affine_invariant_mean_moves_with_congruences(spread):
    Y = random_spd(12, n=30, spread=spread)
    A = np.diag([1e4, 1.0, 1e-3]) @ np.random.default_rng(13).normal(size=(3, 3))
    space = SPD("affine-invariant")
    moved = space.mean(A @ Y @ A.T, EDGE_WEIGHTS)
    expected = A @ space.mean(Y, EDGE_WEIGHTS) @ A.T
    scale = np.sqrt(np.einsum("mii,mjj->mij", expected, expected))
    np.testing.assert_allclose(moved / scale, expected / scale, atol=1e-8)


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_bures_mean_equals_pot(spread):
    Y = random_spd(14, n=30, spread=spread)
    weights = np.random.default_rng(15).dirichlet(np.ones(30), size=2)
    means = SPD("bures").mean(Y, weights)
    for w, mean in zip(weights, means, strict=True):
        oracle = ot.gaussian.bures_wasserstein_barycenter(
            np.zeros((30, 3)), Y, weights=w, num_iter=2000, eps=1e-12
        )[1]
        np.testing.assert_allclose(mean, oracle, rtol=1e-6, atol=1e-7 * np.abs(oracle).max())


def test_bures_mean_with_negative_weights_is_the_minimum():
    Y = random_spd(16, n=30, q=2, spread=0.4)
    means = SPD("bures").mean(Y, EDGE_WEIGHTS)
    for weights, mean in zip(EDGE_WEIGHTS, means, strict=True):

        def objective(entries, weights=weights):
            L = np.array([[entries[0], 0.0], [entries[1], entries[2]]])
            roots = [np.trace(sqrtm(L.T @ y @ L)).real for y in Y]
            return np.trace(L @ L.T) - 2 * weights @ np.array(roots)

        factor = np.linalg.cholesky(Y.mean(axis=0))
        found = minimize(objective, factor[np.tril_indices(2)], method="BFGS", options={"gtol": 1e-7}).x
        oracle = np.array([[found[0], 0.0], [found[1], found[2]]])
        np.testing.assert_allclose(mean, oracle @ oracle.T, atol=1e-5)


@pytest.mark.parametrize("metric", CURVED)
def test_warm_start_changes_nothing(metric):
    Y = random_spd(17, n=30)
    space = SPD(metric)
    means = space.mean(Y, EDGE_WEIGHTS)
    np.testing.assert_allclose(space.mean(Y, EDGE_WEIGHTS, init=means), means, rtol=1e-9)
    np.testing.assert_allclose(space.mean(Y, EDGE_WEIGHTS, init=Y[:4]), means, rtol=1e-8)


@pytest.mark.parametrize("metric", CURVED)
def test_blocks_of_targets_change_nothing(metric, monkeypatch):
    from assay.methods.desi.spaces import karcher

    Y = random_spd(18, n=30)
    means = SPD(metric).mean(Y, EDGE_WEIGHTS)
    monkeypatch.setattr(karcher, "BLOCK_FLOATS", 1)
    np.testing.assert_allclose(SPD(metric).mean(Y, EDGE_WEIGHTS), means, rtol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_equal_matrices_are_their_own_mean(metric):
    Y = np.repeat(random_spd(19, n=1), 5, axis=0)
    weights = np.array([[0.5, 0.7, -0.4, 0.1, 0.1]])
    np.testing.assert_allclose(SPD(metric).mean(Y, weights)[0], Y[0], rtol=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_only_the_proportion_of_weights_counts(metric):
    Y = random_spd(20, n=30)
    space = SPD(metric)
    np.testing.assert_allclose(space.mean(Y, 7 * EDGE_WEIGHTS), space.mean(Y, EDGE_WEIGHTS), rtol=1e-9)


def test_heavy_negative_weights_fall_back_with_a_warning():
    # On 1 x 1 matrices the Bures mean is the square of the mean root, which these weights push below zero.
    Y = np.array([[[1.0]], [[9.0]]])
    with pytest.warns(
        UserWarning, match=r"did not converge for 1 rows of 2 .* negative weights were set to zero"
    ):
        means = SPD("bures").mean(Y, np.array([[2.0, -1.0], [0.5, 0.5]]))
    np.testing.assert_allclose(means[:, 0, 0], [1.0, 4.0], rtol=1e-9)


def test_no_convergence_is_an_error(monkeypatch):
    from assay.methods.desi.spaces import karcher

    monkeypatch.setattr(karcher, "MAX_ITERATIONS", 0)
    monkeypatch.setattr(karcher, "MAX_DAMPED_ITERATIONS", 0)
    with pytest.raises(InputError, match=r"a weighted Fréchet mean did not converge .* log-cholesky"):
        SPD("affine-invariant").mean(random_spd(21), np.full((1, 8), 1 / 8))


def test_heavy_negative_weights_need_and_get_shorter_steps():
    rng = np.random.default_rng(40)
    Y = random_spd(41, n=30, q=4, spread=1.5)
    weights = 4 * rng.dirichlet(np.ones(30), size=8) - 3 * rng.dirichlet(np.ones(30), size=8)
    space, manifold = SPD("affine-invariant"), SymmetricPositiveDefinite(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        means = space.mean(Y, weights)
    for w, mean in zip(weights, means, strict=True):
        gradient = sum(weight * manifold.log(mean, y) for weight, y in zip(w, Y, strict=True))
        assert manifold.norm(mean, gradient) < 1e-6
        for _ in range(20):
            other = manifold.exp(mean, 0.1 * manifold.random_tangent_vector(mean))
            assert w @ space.distance(Y, mean) ** 2 < w @ space.distance(Y, other) ** 2


def test_hessian_without_curvature_gives_the_flat_step():
    vectors, kernel = np.eye(2)[None, None], np.ones((1, 1, 2, 2))
    right = np.array([[[1.0, 2.0], [2.0, 5.0]]])
    for weight, expected in ((-1.0, right), (2.0, right / 2)):
        solved = Hessian(vectors, kernel, np.array([[weight]])).solve(right, np.array([1e-12]))
        np.testing.assert_allclose(solved, expected)


def test_far_apart_matrices_still_have_a_mean():
    Y = random_spd(22, n=20, q=4, spread=3.0)
    weights = np.random.default_rng(23).dirichlet(np.ones(20), size=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for metric in CURVED:
            space = SPD(metric)
            means = space.mean(Y, weights)
            best = (weights * space.pairwise(means, Y) ** 2).sum(axis=1)
            for other in (SPD("log-euclidean").mean(Y, weights), SPD("power").mean(Y, weights)):
                assert (best <= (weights * space.pairwise(other, Y) ** 2).sum(axis=1)).all()


# ------------------------------------------------------------------------------------- checks, projections


@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(METRICS))
def test_projection_is_idempotent_and_near(seed, metric):
    space = SPD(metric)
    matrices = np.random.default_rng(seed).normal(size=(3, 4, 4))
    projected = space.project(matrices)
    np.testing.assert_allclose(space.project(projected), projected, atol=1e-12)
    values, vectors = np.linalg.eigh(0.5 * (matrices + np.swapaxes(matrices, 1, 2)))
    clipped = (vectors * np.maximum(values, 0)[:, None]) @ np.swapaxes(vectors, 1, 2)
    np.testing.assert_allclose(projected, clipped, atol=1e-8)
    space.check(projected)


@pytest.mark.parametrize("metric", METRICS)
def test_points_of_the_space_stay(metric):
    Y = random_spd(24)
    np.testing.assert_array_equal(SPD(metric).check(Y), 0.5 * (Y + np.swapaxes(Y, 1, 2)))
    np.testing.assert_allclose(SPD(metric).project(Y), Y)


@pytest.mark.parametrize("metric", METRICS)
def test_indefinite_matrices_are_refused(metric):
    Y = random_spd(25)
    Y[3] = np.diag([1.0, 2.0, -0.5])
    with pytest.raises(InputError, match=r"row 3 .*-0\.5"):
        SPD(metric).check(Y)


def test_singular_matrices_are_refused_where_the_metric_needs_an_inverse():
    Y = np.diag([1.0, 1.0, 0.0])[None]
    for metric in ("frobenius", "power"):
        np.testing.assert_array_equal(SPD(metric).check(Y), Y)
    for metric in ("log-cholesky", "affine-invariant", "log-euclidean", "bures"):
        with pytest.raises(InputError, match=r"row 0 is not positive definite .*; add a ridge"):
            SPD(metric).check(Y)


def test_other_bad_input():
    Y = random_spd(26)
    Y[2, 0, 1] += 0.1
    with pytest.raises(InputError, match=r"row 2 is not symmetric .*0\.1"):
        SPD().check(Y)
    with pytest.raises(InputError, match="must be square"):
        SPD().check(np.zeros((2, 3, 4)))
    with pytest.raises(InputError, match="metric is 'riemann'; choose one of log-cholesky"):
        SPD("riemann")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="alpha is -1"):
        SPD("power", alpha=-1)


@pytest.mark.parametrize("metric", ["log-cholesky", "affine-invariant"])
def test_bad_weights(metric):
    space, Y = SPD(metric), random_spd(27)
    with pytest.raises(InputError, match=r"one column for each of 8 points, not \(1, 3\)"):
        space.mean(Y, np.ones((1, 3)))
    with pytest.raises(InputError, match="row 1 holds a NaN"):
        space.mean(Y, np.array([np.ones(8), np.full(8, np.nan)]))
    with pytest.raises(InputError, match="row 0 sums to 0; the sum must be positive"):
        space.mean(Y, np.array([[1.0, -1.0, 0, 0, 0, 0, 0, 0]]))
