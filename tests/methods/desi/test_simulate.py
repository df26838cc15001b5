"""The simulated designs: their truths are the conditional Fréchet means, and only the direction matters."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, ndtri

from assay.errors import InputError
from assay.methods.desi.simulate import N_NODES, simulate

DESIGNS = ("distributions", "networks", "spd", "sphere")


@pytest.mark.parametrize("design", DESIGNS)
def test_rows_are_points_of_the_space_and_reproducible(design):
    one, same, other = (simulate(design, 20, p=6, seed=seed) for seed in (0, 0, 1))
    assert one.X.shape == (20, 6)
    np.testing.assert_array_equal(one.space.check(one.Y), one.space.check(same.Y))
    np.testing.assert_allclose(one.space.check(one.truth), one.truth, atol=1e-12)
    np.testing.assert_array_equal(one.X, same.X)
    assert np.abs(one.X - other.X).max() > 0.01
    assert np.linalg.norm(one.direction) == pytest.approx(1)
    assert (one.direction[4:] == 0).all()


@pytest.mark.parametrize("design", ["distributions", "spd", "networks"])
def test_noise_has_mean_zero_where_the_space_is_flat(design):
    sample = simulate(design, 20_000, seed=2)
    noise = sample.space.embed(sample.Y) - sample.space.embed(sample.truth)
    error = noise.std(0) / np.sqrt(len(noise))
    assert (np.abs(noise.mean(0)) <= 5 * error + 1e-12).all()
    assert noise.std() > 1e-3


def test_noise_on_the_sphere_is_symmetric_and_inside_the_orthant():
    sample = simulate("sphere", 20_000, seed=0)
    assert (sample.Y > 0).all()
    cosine = (sample.Y * sample.truth).sum(1)
    distance = np.arccos(np.clip(cosine, -1, 1))
    assert distance.max() < 0.2 + 1e-9
    # Logarithms at the truth: tangent vectors that average to zero, uniform in a disc (mean square r^2 / 2).
    tangent = sample.Y - cosine[:, None] * sample.truth
    tangent *= (distance / np.linalg.norm(tangent, axis=1))[:, None]
    assert np.abs(tangent.mean(0)).max() < 0.003
    assert (distance**2).mean() == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize("design", DESIGNS)
def test_truth_depends_on_the_index_alone(design):
    sample = simulate(design, 2000, seed=3)
    order = np.argsort(sample.X @ sample.direction)
    steps = sample.space.distance(sample.truth[order][1:], sample.truth[order][:-1])
    # Neighbours along the index have nearly the same truth; along another direction they do not.
    shuffled = sample.truth[np.argsort(sample.X[:, 2])]
    other = sample.space.distance(shuffled[1:], shuffled[:-1])
    assert steps.mean() < 0.02 * other.mean()


@pytest.mark.parametrize(
    ("link", "location"), [("linear", lambda s: s), ("quadratic", np.square), ("exponential", np.exp)]
)
def test_distributions_are_normal_quantiles(link, location):
    sample = simulate("distributions", 5, link=link, seed=0)
    s = sample.X @ sample.direction
    z = ndtri(np.arange(1, 101) / 101)
    np.testing.assert_allclose(sample.truth, location(s)[:, None] + expit(s)[:, None] * z, atol=1e-12)
    # A response is a normal as well: linear in the normal quantiles.
    slopes = np.diff(sample.Y, axis=1) / np.diff(z)
    assert np.ptp(slopes, axis=1).max() < 1e-9


def test_distribution_predictors_are_uniform_and_equicorrelated():
    X = simulate("distributions", 50_000, seed=0).X
    assert X.min() > -1
    assert X.max() < 1
    assert X.var(0) == pytest.approx(1 / 3, rel=0.02)
    # The correlation of uniforms whose normal scores have correlation r is 6 / pi arcsin(r / 2).
    expected = 6 / np.pi * np.arcsin(0.125)
    assert np.corrcoef(X.T)[np.triu_indices(4, 1)] == pytest.approx(expected, abs=0.015)


def test_networks_share_their_edges_and_have_no_isolated_node():
    for seed in range(5):
        sample = simulate("networks", 10, seed=seed)
        edges = sample.truth < 0
        assert (edges == edges[0]).all()
        assert (np.diagonal(sample.truth, axis1=1, axis2=2) > 0).all()
        np.testing.assert_allclose(sample.Y.sum(2), 0, atol=1e-12)
        assert (np.abs(sample.Y - sample.truth)[:, ~np.eye(N_NODES, dtype=bool)] <= 0.02).all()
        k, m = np.argwhere(edges[0])[0]
        s = sample.X @ sample.direction
        weight = np.sin((k + m + 2) * np.pi / 20) * (2 + s**2) / (1 + np.abs(s))
        np.testing.assert_allclose(-sample.truth[:, k, m], weight, atol=1e-12)


def test_spd_truth_follows_its_cholesky_factor():
    sample = simulate("spd", 6, seed=0)
    L, s = np.linalg.cholesky(sample.truth), sample.X @ sample.direction
    np.testing.assert_allclose(L[:, 1, 1], np.exp(0.3 * s), atol=1e-12)
    np.testing.assert_allclose(L[:, 2, 0], 0.5 * np.sin(np.pi * s), atol=1e-12)


def test_fewer_predictors_cut_the_direction():
    sample = simulate("distributions", 5, p=2, seed=0)
    np.testing.assert_allclose(sample.direction, np.array([0.5, 0.1]) / np.hypot(0.5, 0.1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"design": "trees"}, "design 'trees' is unknown: choose distributions, networks, spd or sphere"),
        ({"design": "distributions", "link": "cubic"}, "link 'cubic' is unknown: choose linear"),
        ({"design": "spd", "p": 0}, "p is 0: pass at least one predictor"),
    ],
)
def test_unknown_designs_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        simulate(n=10, seed=0, **arguments)
