"""Spaces with the interface of geomstats, through a small stand-in that has it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.errors import InputError
from assay.methods.desi.spaces import Sphere, from_geomstats, space_from_spec


class HypersphereMetric:
    """The round metric, batched as geomstats' own."""

    def inner_product(self, tangent_vec_a, tangent_vec_b, base_point):
        return (tangent_vec_a * tangent_vec_b).sum(axis=-1)

    def exp(self, tangent_vec, base_point):
        length = np.linalg.norm(tangent_vec, axis=-1, keepdims=True)
        return np.cos(length) * base_point + np.sinc(length / np.pi) * tangent_vec

    def log(self, point, base_point):
        cosine = np.clip((point * base_point).sum(axis=-1, keepdims=True), -1, 1)
        across = point - cosine * base_point
        sine = np.linalg.norm(across, axis=-1, keepdims=True)
        return np.where(sine > 0, np.arctan2(sine, cosine) / np.where(sine > 0, sine, 1), 1) * across

    def dist(self, point_a, point_b):
        return np.linalg.norm(self.log(point_b, point_a), axis=-1)


class Hypersphere:
    def __init__(self):
        self.shape = (4,)
        self.metric = HypersphereMetric()

    def belongs(self, point, atol=1e-12):
        return np.abs(np.linalg.norm(point, axis=-1) - 1) < atol

    def projection(self, point):
        return point / np.linalg.norm(point, axis=-1, keepdims=True)


class FlatMetric:
    def inner_product(self, tangent_vec_a, tangent_vec_b, base_point):
        return (tangent_vec_a * tangent_vec_b).sum(axis=(-1, -2))

    def exp(self, tangent_vec, base_point):
        return base_point + tangent_vec

    def log(self, point, base_point):
        return point - base_point

    def dist(self, point_a, point_b):
        return np.linalg.norm(point_a - point_b, axis=(-1, -2))


class Matrices:
    def __init__(self):
        self.shape = (2, 3)
        self.metric = FlatMetric()

    def belongs(self, point, atol=1e-12):
        return np.ones(len(point), dtype=bool)


def sphere_points(seed=0, n=15):
    points = np.abs(np.random.default_rng(seed).normal(size=(n, 4)))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def test_sphere_through_the_interface_equals_the_native_sphere():
    adapted, native = from_geomstats(Hypersphere()), Sphere(positive=False)
    Y = adapted.check(sphere_points())
    weights = 1.2 * np.random.default_rng(1).dirichlet(np.ones(15), size=4) - 0.2 / 15
    np.testing.assert_allclose(adapted.mean(Y, weights), native.mean(Y, weights), atol=1e-8)
    np.testing.assert_allclose(adapted.pairwise(Y, Y[:3]), native.pairwise(Y, Y[:3]), atol=1e-7)
    np.testing.assert_allclose(adapted.distance(Y, Y[0]), native.distance(Y, Y[0]), atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(adapted.project(3 * Y), axis=1), 1)
    assert adapted.embed(Y) is None


def test_loss_is_exact_in_a_flat_space_and_close_in_a_curved_one():
    rng = np.random.default_rng(2)
    space = from_geomstats(Matrices())
    Y, targets = torch.tensor(rng.normal(size=(5, 2, 3))), torch.tensor(rng.normal(size=(2, 2, 3)))
    weights = torch.tensor(rng.uniform(0.1, 1, size=(2, 5)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: space.loss(Y, w, targets), weights)

    points = sphere_points(3)
    points = points + 4 * points[:1]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    weights = torch.full((1, 15), 1 / 15, dtype=torch.float64, requires_grad=True)
    gradients = [
        torch.autograd.grad(
            space.loss(torch.tensor(points), weights, torch.tensor(points[:1])).sum(), weights
        )[0]
        for space in (from_geomstats(Hypersphere()), Sphere(positive=False))
    ]
    relative = torch.linalg.norm(gradients[0] - gradients[1]) / torch.linalg.norm(gradients[1])
    assert 0 < relative < 0.1


def test_bad_input():
    with pytest.raises(InputError, match=r"object has no shape, belongs, metric, metric\.dist"):
        from_geomstats(object())
    space = from_geomstats(Hypersphere())
    with pytest.raises(InputError, match=r"row 1 .* is not in the space"):
        space.check(np.array([[1.0, 0, 0, 0], [1.0, 1.0, 0, 0]]))
    with pytest.raises(InputError, match=r"points must have shape \(4,\), not \(3,\)"):
        space.check(np.eye(3))
    with pytest.raises(InputError, match=r"geomstats space \(Hypersphere\) cannot be rebuilt"):
        space_from_spec(space.spec())
    assert repr(space).startswith("from_geomstats(")
