"""The descent behind iterative means, on a line where Newton's method by itself diverges."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import InputError
from assay.methods.desi.spaces.karcher import Descent, karcher_mean


class Hyperbola:
    """Objective sqrt(1 + (x - y)^2) on the real line: from x the Newton step leads to y - (x - y)^3."""

    def start(self, Y, weights):
        return np.full((len(weights), 1), 3.0)

    def evaluate(self, Y, points, weights):
        offset = (points - Y[:1])[:, 0]
        root = np.sqrt(1 + offset**2)
        gradient = offset / root
        return Descent(
            direction=-(gradient * root**3)[:, None],
            slope=gradient**2 * root**3,
            norm=np.abs(gradient),
            objective=root,
            scale=root,
        )

    def exponential(self, points, tangent):
        return points + tangent

    def weight_gradient(self, Y, points, weights, targets):
        raise NotImplementedError


def test_steps_that_overshoot_are_halved():
    Y = np.array([[0.25], [9.0]])
    mean = karcher_mean(Hyperbola(), Y, np.array([[1.0, 0.0], [0.0, 1.0]]))
    np.testing.assert_allclose(mean, [[0.25], [0.25]], atol=1e-10)


def test_steps_that_never_improve_end_in_an_error():
    class Uphill(Hyperbola):
        def evaluate(self, Y, points, weights):
            state = super().evaluate(Y, points, weights)
            return state._replace(direction=-state.direction)

    with pytest.raises(
        InputError, match=r"did not converge \(relative residual 0\.\d+ after a damped retry\)"
    ):
        karcher_mean(Uphill(), np.array([[0.25], [9.0]]), np.array([[1.0, 0.0]]))


def test_points_that_are_not_finite_are_never_accepted():
    class Runaway(Hyperbola):
        def exponential(self, points, tangent):
            return np.where(np.abs(tangent) < 0.5, points + tangent, np.inf)

    mean = karcher_mean(Runaway(), np.array([[0.25], [9.0]]), np.array([[1.0, 0.0]]))
    np.testing.assert_allclose(mean, [[0.25]], atol=1e-10)


def test_the_start_can_be_given():
    class Startless(Hyperbola):
        def start(self, Y, weights):
            raise AssertionError("a start was given")

    init = np.array([[0.5]])
    mean = karcher_mean(Startless(), np.array([[0.25], [9.0]]), np.array([[1.0, 0.0]]), init)
    np.testing.assert_allclose(mean, [[0.25]], atol=1e-10)
    assert init[0, 0] == 0.5
