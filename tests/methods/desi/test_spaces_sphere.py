"""The sphere and compositions, against pymanopt and closed forms."""

from __future__ import annotations

import numpy as np
import pymanopt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymanopt.manifolds import Sphere as PymanoptSphere
from pymanopt.optimizers import ConjugateGradient

from assay.errors import InputError
from assay.methods.desi.spaces import Composition, Sphere

FEW = settings(derandomize=True, deadline=None, max_examples=30)


def random_points(seed, n=20, d=4, positive=True):
    points = np.random.default_rng(seed).normal(size=(n, d))
    points = np.abs(points) if positive else points
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def mixed_weights(seed, m, n, negative=0.3):
    rng = np.random.default_rng(seed)
    return (1 + negative) * rng.dirichlet(np.ones(n), m) - negative * rng.dirichlet(np.ones(n), m)


def test_mean_equals_conjugate_gradients():
    Y = random_points(0)
    weights = mixed_weights(1, 4, 20)
    assert (weights < 0).any()
    means = Sphere(positive=False).mean(Y, weights)
    manifold = PymanoptSphere(4)
    for w, mean in zip(weights, means, strict=True):

        @pymanopt.function.numpy(manifold)
        def cost(point, w=w):
            return w @ np.arccos(np.clip(Y @ point, -1, 1)) ** 2

        @pymanopt.function.numpy(manifold)
        def gradient(point, w=w):
            return -2 * sum(weight * manifold.log(point, y) for weight, y in zip(w, Y, strict=True))

        optimizer = ConjugateGradient(verbosity=0, min_gradient_norm=1e-10, max_iterations=300)
        start = Y.mean(axis=0) / np.linalg.norm(Y.mean(axis=0))
        problem = pymanopt.Problem(manifold, cost, riemannian_gradient=gradient)
        np.testing.assert_allclose(mean, optimizer.run(problem, initial_point=start).point, atol=1e-8)


@FEW
@given(st.integers(0, 10**6), st.booleans())
def test_mean_of_two_is_the_midpoint(seed, positive):
    Y = random_points(seed, n=2, positive=positive)
    mean = Sphere(positive).mean(Y, np.array([[0.5, 0.5]]))[0]
    midpoint = Y.sum(axis=0) / np.linalg.norm(Y.sum(axis=0))
    np.testing.assert_allclose(mean, midpoint, atol=1e-9)


@FEW
@given(st.integers(0, 10**6), st.floats(0.05, 0.95))
def test_mean_of_two_lies_on_the_geodesic(seed, t):
    space = Sphere()
    Y = random_points(seed, n=2)
    mean = space.mean(Y, np.array([[1 - t, t]]))
    np.testing.assert_allclose(space.distance(Y[0], mean), t * space.distance(Y[0], Y[1]), atol=1e-9)


def test_mean_turns_with_the_points():
    Y, weights = random_points(2, positive=False)[:8], mixed_weights(3, 3, 8, negative=0.05)
    Y = (Y + 2 * Y[:1]) / np.linalg.norm(Y + 2 * Y[:1], axis=1, keepdims=True)
    Q = np.linalg.qr(np.random.default_rng(4).normal(size=(4, 4)))[0]
    space = Sphere(positive=False)
    np.testing.assert_allclose(space.mean(Y @ Q, weights), space.mean(Y, weights) @ Q, atol=1e-9)


@FEW
@given(st.integers(0, 10**6))
def test_metric_axioms(seed):
    space = Sphere(positive=False)
    A, B, C = random_points(seed, n=3, positive=False)
    assert space.distance(A, A) == 0
    assert space.distance(A, -A) == pytest.approx(np.pi)
    assert space.distance(A, B) == pytest.approx(np.arccos(A @ B))
    assert space.distance(A, B) == space.distance(B, A)
    assert space.distance(A, C) <= space.distance(A, B) + space.distance(B, C) + 1e-12


def test_small_distances_keep_their_digits():
    angle = 1e-9
    assert Sphere().distance(np.array([1.0, 0.0]), np.array([np.cos(angle), np.sin(angle)])) == pytest.approx(
        angle
    )


def test_pairwise_agrees_with_distance(monkeypatch):
    from assay.methods.desi.spaces import sphere

    space, A, B = Sphere(), random_points(5, n=6), random_points(6, n=4)
    expected = np.arccos(np.clip(A @ B.T, -1, 1))
    np.testing.assert_allclose(space.pairwise(A, B), expected)
    monkeypatch.setattr(sphere, "BLOCK_FLOATS", 1)
    np.testing.assert_allclose(space.pairwise(A, B), expected)
    assert space.embed(A) is None


def test_predictions_stay_in_the_orthant():
    Y, weights = np.eye(3), np.array([[1.2, 0.3, -0.5]])
    free, kept = Sphere(positive=False).mean(Y, weights)[0], Sphere().mean(Y, weights)[0]
    assert free.min() < 0
    assert kept.min() == 0
    np.testing.assert_allclose(np.linalg.norm(kept), 1)


@FEW
@given(st.integers(0, 10**6), st.booleans())
def test_projection_is_idempotent_and_nearest(seed, positive):
    rng = np.random.default_rng(seed)
    space = Sphere(positive)
    points = 3 * rng.normal(size=(2, 3))
    projected = space.project(points)
    np.testing.assert_array_equal(space.project(projected), projected)
    others = random_points(seed + 1, n=50, d=3, positive=positive)
    nearest = np.linalg.norm(points - projected, axis=1)
    assert (nearest <= np.linalg.norm(points[:, None] - others[None], axis=2).min(axis=1) + 1e-12).all()


def test_projection_without_a_positive_coordinate():
    np.testing.assert_array_equal(Sphere().project(np.array([[-1.0, -0.2, -3.0]])), [[0, 1, 0]])


def test_heavy_negative_weights_fall_back_with_a_warning():
    # Two points pull, one pushes hard: the objective is least opposite the pusher, where it has a kink.
    Y = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    weights = np.array([[-9.0, 5.0, 5.0]])
    with pytest.warns(UserWarning, match="negative weights were set to zero"):
        mean = Sphere(positive=False).mean(Y, weights)[0]
    np.testing.assert_allclose(mean, [np.sqrt(0.5), np.sqrt(0.5), 0], atol=1e-9)


@pytest.mark.parametrize(
    ("space", "Y", "message"),
    [
        (Sphere(), [[1, 0], [0.6, 0.81]], "row 1 has norm 1.00"),
        (
            Sphere(),
            [[1, 0], [0.6, -0.8]],
            r"row 1 has the negative coordinate -0.8; use Sphere\(positive=False\)",
        ),
        (Sphere(), [[np.inf, 0]], "row 0 holds inf"),
        (Composition(), [[0.5, 0.5], [1.1, -0.1]], "row 1 has the negative part -0.1"),
        (Composition(), [[0.5, 0.5], [0, 0]], "row 1 sums to 0; at least one part"),
        (Composition(), [0.5, 0.5], "must have 2 axes"),
    ],
)
def test_bad_input(space, Y, message):
    with pytest.raises(InputError, match=message):
        space.check(Y)


def test_zero_rows_have_no_projection():
    with pytest.raises(InputError, match="row 1 is zero"):
        Sphere().project(np.array([[1.0, 0], [0, 0]]))
    with pytest.raises(InputError, match="row 0 has no positive part"):
        Composition().project(np.array([[-1.0, 0]]))


def test_check_scales_to_unit_length():
    Y = random_points(7) * (1 + 1e-8)
    np.testing.assert_allclose(np.linalg.norm(Sphere().check(Y), axis=1), 1, rtol=1e-15)


def test_compositions_are_the_sphere_through_the_square_root():
    Y = random_points(8) ** 2
    weights = mixed_weights(9, 5, 20)
    np.testing.assert_allclose(
        Composition().mean(Y, weights), Sphere().mean(np.sqrt(Y), weights) ** 2, atol=1e-12
    )
    np.testing.assert_allclose(
        Composition().distance(Y[:10], Y[10:]), np.arccos((np.sqrt(Y[:10] * Y[10:])).sum(axis=1))
    )
    np.testing.assert_allclose(Composition().pairwise(Y, Y), Sphere().pairwise(np.sqrt(Y), np.sqrt(Y)))


def test_compositions_are_closed_and_returned_as_compositions():
    Y = Composition().check([[20, 30, 50], [1, 0, 3]])
    np.testing.assert_allclose(Y, [[0.2, 0.3, 0.5], [0.25, 0, 0.75]])
    means = Composition().mean(Y, np.array([[1.4, -0.4], [0.5, 0.5]]), init=Y)
    np.testing.assert_allclose(means.sum(axis=1), 1, rtol=1e-14)
    assert (means >= 0).all()
    np.testing.assert_array_equal(Composition().project(means), means)
