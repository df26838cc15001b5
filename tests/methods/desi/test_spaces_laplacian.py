"""Graph Laplacians: means, both metrics, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm

from assay.errors import InputError
from assay.methods.desi.spaces import GraphLaplacian


def random_laplacians(seed, n=8, q=6, density=0.6):
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.uniform(size=(n, q, q)) * (rng.uniform(size=(n, q, q)) < density), 1)
    # A path through all nodes keeps every graph connected.
    upper[:, np.arange(q - 1), np.arange(1, q)] += 0.1
    edges = upper + np.swapaxes(upper, 1, 2)
    return np.eye(q) * edges.sum(axis=2)[:, :, None] - edges


def mixed_weights(seed, m, n):
    weights = np.random.default_rng(seed).normal(size=(m, n)) + 0.5
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("space", [GraphLaplacian(), GraphLaplacian("power"), GraphLaplacian(max_weight=1.1)])
def test_predictions_are_laplacians(space):
    means = space.mean(random_laplacians(0), mixed_weights(1, 20, 8))
    off_diagonal = ~np.eye(6, dtype=bool)
    np.testing.assert_array_equal(means, np.swapaxes(means, 1, 2))
    np.testing.assert_allclose(means.sum(axis=2), 0, atol=1e-12 * np.abs(means).max())
    assert (means[:, off_diagonal] <= 0).all()
    if space.max_weight is not None:
        assert (means[:, off_diagonal] >= -space.max_weight).all()
    np.testing.assert_allclose(space.check(means), means, atol=1e-9 * np.abs(means).max())


def test_positive_weights_need_no_projection():
    Y = random_laplacians(2)
    weights = np.random.default_rng(3).dirichlet(np.ones(8), size=5)
    np.testing.assert_allclose(GraphLaplacian().mean(Y, weights), np.tensordot(weights, Y, 1), atol=1e-13)


def test_mean_minimises_the_objective_over_laplacians():
    space = GraphLaplacian()
    Y, rng = random_laplacians(4), np.random.default_rng(5)
    weights = np.array([[1.5, -1.0, 0.8, -0.6, 0.4, 0.3, -0.5, 0.1]])
    mean = space.mean(Y, weights)
    assert not np.allclose(mean[0], np.tensordot(weights[0], Y, 1))

    def objective(candidate):
        return (weights[0] * space.distance(Y, candidate) ** 2).sum()

    for scale in (1e-4, 1e-2, 1):
        for other in space.project(mean + scale * rng.normal(size=(50, 6, 6))):
            assert objective(mean) <= objective(other) + 1e-10


def test_power_metric_is_the_distance_of_matrix_roots():
    A, B = random_laplacians(7, n=4), random_laplacians(8, n=4)
    # The constant vector spans the null space of both; lifting it keeps SciPy's root away from singularity.
    ones = np.full((6, 6), 1 / 6)
    roots = [np.linalg.norm(np.real(sqrtm(a + ones) - sqrtm(b + ones))) for a, b in zip(A, B, strict=True)]
    space = GraphLaplacian("power", alpha=0.5)
    np.testing.assert_allclose(space.distance(A, B), roots, rtol=1e-9)
    np.testing.assert_allclose(np.diag(space.pairwise(A, B)), space.distance(A, B), rtol=1e-12)


def test_power_mean_of_multiples_of_one_graph():
    # On the ray {c L} the power metric with exponent 1/2 averages the roots of c.
    base = random_laplacians(9, n=1)[0]
    factors = np.array([1.0, 4.0, 9.0])
    weights = np.array([[0.2, 0.5, 0.3]])
    mean = GraphLaplacian("power", alpha=0.5).mean(factors[:, None, None] * base, weights)
    np.testing.assert_allclose(mean[0], (weights[0] @ np.sqrt(factors)) ** 2 * base, atol=1e-10)


def test_power_metric_with_exponent_one_is_frobenius():
    Y, weights = random_laplacians(10), mixed_weights(11, 3, 8)
    one, other = GraphLaplacian("power", alpha=1.0), GraphLaplacian()
    np.testing.assert_allclose(one.distance(Y[:4], Y[4:]), other.distance(Y[:4], Y[4:]), atol=1e-12)
    positive = np.abs(weights)
    np.testing.assert_allclose(one.mean(Y, positive), other.mean(Y, positive), atol=1e-12)


def test_isolated_nodes_give_no_noise_under_the_power_metric():
    Y = random_laplacians(12, n=3, q=4)
    padded = np.zeros((3, 6, 6))
    padded[:, :4, :4] = Y
    space = GraphLaplacian("power")
    np.testing.assert_allclose(
        space.distance(padded, padded[[1, 2, 0]]), space.distance(Y, Y[[1, 2, 0]]), rtol=1e-13
    )


def test_check_rebuilds_exact_laplacians():
    Y = random_laplacians(13)
    noisy = Y + 1e-9 * np.random.default_rng(14).normal(size=(8, 1, 1)) * np.eye(6)
    checked = GraphLaplacian().check(noisy)
    np.testing.assert_allclose(checked, Y, atol=1e-12)


def bad(change, base=None):
    Y = random_laplacians(15, n=3, q=3) if base is None else base
    change(Y)
    return Y


@pytest.mark.parametrize(
    ("space", "change", "message"),
    [
        (GraphLaplacian(), lambda Y: Y.__setitem__((1, 0, 0), 9.0), "a row of matrix 1 sums to"),
        (GraphLaplacian(), lambda Y: Y.__setitem__((2, 0, 1), 9.0), "row 2 is not symmetric"),
        (GraphLaplacian(), lambda Y: Y.__imul__(-1), r"matrix 0 has the positive entry .* \(3 rows of 3"),
        (
            GraphLaplacian(),
            lambda Y: Y.__setitem__((0, 0, 0), np.nan),
            r"row 0 holds nan at position \(0, 0\)",
        ),
        (GraphLaplacian(max_weight=0.01), lambda Y: None, "has an edge of weight .*, above max_weight=0.01"),
    ],
)
def test_bad_laplacians(space, change, message):
    with pytest.raises(InputError, match=message):
        space.check(bad(change))


def test_other_bad_input():
    with pytest.raises(InputError, match="must be square"):
        GraphLaplacian().check(np.zeros((2, 3, 4)))
    with pytest.raises(InputError, match="two nodes or more"):
        GraphLaplacian().check(np.zeros((2, 1, 1)))
    with pytest.raises(InputError, match="metric is 'cosine'; choose one of frobenius, power"):
        GraphLaplacian("cosine")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="alpha is 0"):
        GraphLaplacian("power", alpha=0)
    with pytest.raises(InputError, match="max_weight is -1"):
        GraphLaplacian(max_weight=-1)
