"""Helices, lines and random walks; the optimised path on a tiny model."""

import numpy as np
import pytest
import torch

from assay.errors import InputError
from assay.methods.crh import HelixGrid, Swap, fit_helix, steering_path
from assay.methods.crh.helix import SwapLoss


def frame(width, seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(width, 3)))[0].T


def helix(turns=0.9, n=40, width=60, noise=0.01, seed=0, growth=0.0):
    t = np.linspace(0, 1, n)
    radius = 1 + growth * t
    curve = np.column_stack(
        [2 * t, radius * np.cos(2 * np.pi * turns * t), radius * np.sin(2 * np.pi * turns * t)]
    )
    return curve @ frame(width, seed) + noise * np.random.default_rng(seed + 1).normal(size=(n, width))


@pytest.mark.parametrize("turns", [0.7, 0.9, 1.1])
def test_a_helix_is_recovered(turns):
    found = fit_helix(helix(turns), n_null=39)
    assert found.r2 > 0.99
    assert found.turns == pytest.approx(turns, abs=0.05)
    assert found.growth == 0
    assert found.supported


def test_a_growing_helix():
    found = fit_helix(helix(0.8, growth=1.0, noise=1e-3), n_null=39)
    assert (found.turns, found.growth) == (0.8, 1.0)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_straight_line_is_no_helix(noise):
    t = np.linspace(0, 1, 40)
    line = np.outer(t, frame(60, 2)[0]) * 3
    found = fit_helix(line + noise * np.random.default_rng(3).normal(size=line.shape), n_null=39)
    assert found.line_p > 0.05
    assert not found.supported


def test_random_walks_are_rarely_helices():
    generator = np.random.default_rng(4)
    supported = 0
    for seed in range(100):
        steps = generator.normal(size=(30, 40))
        path = np.cumsum(steps / np.linalg.norm(steps, axis=1, keepdims=True), axis=0)
        supported += fit_helix(path, n_null=39, seed=seed).supported
    assert supported <= 10


def test_restoring_and_its_baselines():
    path = helix(noise=0.0) - helix(noise=0.0).mean(axis=0)
    found = fit_helix(path, n_null=19)
    for j in (0, 17, 39):
        # Restored vectors are shifted as a whole, because the mean is not part of the helix.
        np.testing.assert_allclose(found.restore(j) - found.restore(5), path[j] - path[5], atol=1e-8)
        np.testing.assert_allclose(found.principal_reconstruction(j), path[j], atol=1e-8)
        assert np.linalg.norm(found.random_vector(j, 0)) == pytest.approx(np.linalg.norm(path[j]))
    for j in (-1, 40):
        with pytest.raises(InputError, match="indices 0 to 39"):
            found.restore(j)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (np.zeros((7, 4)), "too few"),
        (np.zeros((12, 4)), "the same"),
        (np.full((12, 4), np.nan), "finite"),
        (np.zeros(9), "one a row"),
    ],
)
def test_bad_paths(path, message):
    with pytest.raises(InputError, match=message):
        fit_helix(path)
    with pytest.raises(InputError, match="n_null"):
        fit_helix(helix(), n_null=5)
    with pytest.raises(InputError, match="turns"):
        HelixGrid(turns=())


def test_optimised_vectors_keep_their_lengths_and_lower_the_loss(model, tokenizer):
    swap = Swap("Is it hot", "Is it wet", "a", "b")
    vectors, losses = steering_path(model, tokenizer, swap, 1, [0.5, 1.0, 2.0], template="crh", steps=8)
    lengths = np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(lengths / lengths[0], [1, 2, 4], rtol=1e-5)
    loss = SwapLoss(model, tokenizer, swap, 1, template="crh")
    assert float(loss(torch.tensor(vectors[2]).float()).detach()) == pytest.approx(losses[2], abs=1e-4)
    assert losses[2] < float(loss(torch.zeros(32)).detach())
    for wrong, message in [
        (Swap("same", "same", "a", "b"), "do not differ"),
        (Swap("one", "two", "a", "a"), "different tokens"),
    ]:
        with pytest.raises(InputError, match=message):
            steering_path(model, tokenizer, wrong, 1, [1.0])
    with pytest.raises(InputError, match="ascending"):
        steering_path(model, tokenizer, swap, 1, [2.0, 1.0])
