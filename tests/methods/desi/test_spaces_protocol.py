"""What all spaces promise: the protocol, derivatives of the loss, descriptions that rebuild them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.desi.spaces import (
    SPACES,
    SPD,
    Composition,
    Euclidean,
    GraphLaplacian,
    MetricSpace,
    Sphere,
    Wasserstein1D,
    space_from_spec,
)


def spd_points(rng, n):
    A = 0.6 * rng.normal(size=(n, 3, 3))
    values, vectors = np.linalg.eigh(A + np.swapaxes(A, 1, 2))
    return (vectors * np.exp(values)[:, None]) @ np.swapaxes(vectors, 1, 2)


def laplacian_points(rng, n):
    upper = np.triu(rng.uniform(size=(n, 5, 5)), 1)
    edges = upper + np.swapaxes(upper, 1, 2)
    return np.eye(5) * edges.sum(axis=2)[:, :, None] - edges


def unit_points(rng, n):
    points = np.abs(rng.normal(size=(n, 4)))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


CASES = [
    (Euclidean(), lambda rng, n: rng.normal(size=(n, 3))),
    (Wasserstein1D(12), lambda rng, n: np.sort(rng.normal(size=(n, 12)), axis=1)),
    (Wasserstein1D(12, lower=0, upper=1), lambda rng, n: np.sort(rng.uniform(size=(n, 12)), axis=1)),
    (GraphLaplacian(), laplacian_points),
    (GraphLaplacian(max_weight=1.0), laplacian_points),
    (GraphLaplacian("power"), laplacian_points),
    (GraphLaplacian("power", alpha=0.8, max_weight=2.0), laplacian_points),
    *[(SPD(metric), spd_points) for metric in ("log-cholesky", "frobenius", "log-euclidean")],
    (SPD("power", alpha=0.5), spd_points),
    (SPD("power", alpha=1.5), spd_points),
    (SPD("affine-invariant"), spd_points),
    (SPD("bures"), spd_points),
    (Sphere(), unit_points),
    (Sphere(positive=False), unit_points),
    (Composition(), lambda rng, n: unit_points(rng, n) ** 2),
]
IDS = ["-".join(str(value) for value in space.spec().values() if value is not None) for space, _ in CASES]
# Two rows of weights that a local linear smoother could give, the second with much negative mass.
WEIGHTS = np.array([[0.3, 0.3, 0.2, 0.15, 0.1, -0.05], [0.65, 0.5, 0.3, -0.1, -0.2, -0.15]])

every_space = pytest.mark.parametrize(("space", "points"), CASES, ids=IDS)


@every_space
def test_spaces_have_the_protocol(space, points):
    assert isinstance(space, MetricSpace)
    Y = points(np.random.default_rng(0), 6)
    np.testing.assert_allclose(space.check(Y), Y, atol=1e-12)
    means = space.mean(Y, WEIGHTS)
    assert means.shape == (2, *Y.shape[1:])
    np.testing.assert_allclose(space.project(means), means, atol=1e-12)
    np.testing.assert_allclose(np.diag(space.pairwise(Y, Y)), 0, atol=1e-7)
    embedded = space.embed(Y)
    if embedded is not None:
        np.testing.assert_allclose(
            np.linalg.norm(embedded[0] - embedded[1:], axis=1), space.distance(Y[0], Y[1:]), rtol=1e-10
        )


@every_space
@settings(derandomize=True, deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_metric_axioms(space, points, seed):
    A, B, C = points(np.random.default_rng(seed), 3)
    assert space.distance(A, A) <= 1e-7
    assert space.distance(A, B) > 0
    np.testing.assert_allclose(space.distance(A, B), space.distance(B, A), rtol=1e-9)
    assert space.distance(A, C) <= space.distance(A, B) + space.distance(B, C) + 1e-12


@every_space
def test_loss_is_the_squared_distance_to_the_mean(space, points):
    rng = np.random.default_rng(1)
    Y, targets = points(rng, 6), points(rng, 2)
    loss = space.loss(torch.tensor(Y), torch.tensor(WEIGHTS), torch.tensor(targets))
    assert loss.dtype == torch.float64
    np.testing.assert_allclose(loss.numpy(), space.distance(targets, space.mean(Y, WEIGHTS)) ** 2, rtol=1e-9)


@every_space
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_gradient_equals_finite_differences(space, points, seed):
    rng = np.random.default_rng(seed)
    Y, targets = torch.tensor(points(rng, 6)), torch.tensor(points(rng, 2))
    weights = torch.tensor(3 * WEIGHTS, requires_grad=True)  # the sum need not be one
    assert torch.autograd.gradcheck(
        lambda w: space.loss(Y, w, targets), weights, eps=1e-6, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("space", "points"),
    [
        (Wasserstein1D(12, lower=0.3, upper=0.8), lambda rng, n: np.sort(rng.uniform(size=(n, 12)), axis=1)),
        (SPD("frobenius"), spd_points),
        (SPD("power"), spd_points),
        (GraphLaplacian(), laplacian_points),
        (Sphere(), unit_points),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_loss_gradient_where_the_mean_is_at_the_boundary(space, points):
    rng = np.random.default_rng(4)
    Y, targets = points(rng, 6), points(rng, 1)
    heavy = np.array([[1.4, -0.9, 1.1, -0.5, 0.4, -0.5]])
    boundary = {
        "wasserstein": lambda mean: mean.min() == 0.3 and mean.max() == 0.8,
        "spd": lambda mean: np.linalg.eigvalsh(mean).min() < 1e-12,
        "laplacian": lambda mean: (mean == 0).any(),
        "sphere": lambda mean: mean.min() == 0,
    }
    mean = space.mean(Y, heavy)
    assert boundary[space.name](mean)
    weights = torch.tensor(heavy, requires_grad=True)

    def loss(w):
        return space.loss(torch.tensor(Y), w, torch.tensor(targets))

    np.testing.assert_allclose(loss(weights).detach(), space.distance(targets, mean) ** 2, rtol=1e-9)
    assert torch.autograd.gradcheck(loss, weights, eps=1e-6, atol=1e-5, rtol=1e-4)


@every_space
def test_loss_gradient_is_right_where_the_mean_is_a_data_point(space, points):
    # Distance zero from the mean to a point is where logarithms, arc cosines and roots are delicate.
    Y = torch.tensor(points(np.random.default_rng(2), 3))
    weights = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    space.loss(Y, weights, Y[1:2]).sum().backward()
    step = torch.tensor([[-1e-5, 0.0, 1e-5]], dtype=torch.float64)
    moved = space.loss(Y, weights.detach() + step, Y[1:2]) - space.loss(Y, weights.detach(), Y[1:2])
    assert weights.grad is not None
    np.testing.assert_allclose((weights.grad * step).sum(), moved.sum(), rtol=2e-3, atol=1e-12)


@every_space
def test_loss_hands_a_nan_on(space, points):
    Y = torch.tensor(points(np.random.default_rng(3), 6))
    weights = torch.tensor(WEIGHTS, requires_grad=True)
    spoilt = torch.cat([weights[:1], weights[1:] * float("nan")])
    loss = space.loss(Y, spoilt, Y[:2])
    assert torch.isfinite(loss[0])
    assert torch.isnan(loss[1])
    loss[0].backward()
    assert weights.grad is not None
    assert torch.isfinite(weights.grad[0]).all()


@pytest.mark.parametrize("metric", ["bures"])
def test_loss_gradient_after_the_fall_back_ignores_negative_weights(metric):
    Y = torch.tensor([[[1.0]], [[9.0]], [[4.0]]], dtype=torch.float64)
    weights = torch.tensor([[2.0, -1.5, 0.5]], dtype=torch.float64, requires_grad=True)
    with pytest.warns(UserWarning, match="set to zero"):
        loss = SPD(metric).loss(Y, weights, torch.tensor([[[16.0]]], dtype=torch.float64))
    loss.sum().backward()
    # Left are the weights 0.8 and 0.2 of the roots 1 and 2: (4 - (w1 + 2 w3) / (w1 + w3))^2.
    np.testing.assert_allclose(loss.detach(), [(4 - 1.2) ** 2], rtol=1e-9)
    slope = -2 * 2.8 / 2.5
    expected = [[slope * (1 - 1.2), 0.0, slope * (2 - 1.2)]]
    np.testing.assert_allclose(weights.grad, expected, rtol=1e-7)


@every_space
def test_description_rebuilds_the_space(space, points):
    assert space_from_spec(json.loads(json.dumps(space.spec()))) == space


def test_names():
    assert list(SPACES) == ["wasserstein", "laplacian", "spd", "sphere", "composition", "euclidean"]
    for name in SPACES:
        assert space_from_spec({"name": name}).name == name
    assert space_from_spec({"name": "spd", "metric": "affine-invariant"}) == SPD("affine-invariant")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "torus"}, "space 'torus' is unknown; choose one of wasserstein, laplacian"),
        ({}, "space None is unknown"),
        (
            {"name": "spd", "scale": 2},
            "space 'spd' has no parameter 'scale'; its parameters are metric, alpha",
        ),
        ({"name": "composition", "scale": 2}, "has no parameter 'scale'; it has no parameters"),
        ({"name": "spd", "metric": "other"}, "SPD metric is 'other'"),
        ({"name": "spd", "alpha": "half"}, "space 'spd' refuses"),
    ],
)
def test_bad_descriptions(spec, message):
    with pytest.raises(InputError, match=message):
        space_from_spec(spec)


def test_scalars_are_vectors_of_length_one():
    np.testing.assert_array_equal(Euclidean().check([1, 2, 3]), [[1], [2], [3]])
    with pytest.raises(InputError, match="row 1 holds nan"):
        Euclidean().check([1, np.nan])


def test_spaces_do_not_import_torch():
    code = "import sys, assay.methods.desi.spaces; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
