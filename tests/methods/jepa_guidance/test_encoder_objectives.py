"""The losses of encoders against closed forms and independent computations."""

import math

import numpy as np
import pytest
import torch

from assay.errors import InputError
from assay.methods.jepa_guidance.encoder_objectives import (
    check_collapse,
    embedding_std,
    epps_pulley,
    simclr_loss,
    sliced_wasserstein,
    vicreg_loss,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def test_vicreg_of_a_collapsed_embedding_is_its_variance_term():
    point = torch.ones(16, 4, dtype=torch.float64)
    # The deviation is regularised by 1e-4 under the root.
    assert vicreg_loss(point, point) == pytest.approx(25 * (1 - 0.01))


def test_vicreg_matches_numpy():
    first, second = 0.5 * normal(40, 5), 0.5 * normal(40, 5, seed=1)
    expected = 25 * np.mean((first.numpy() - second.numpy()) ** 2)
    for view in (first.numpy(), second.numpy()):
        covariance = np.cov(view.T)
        expected += 25 * np.maximum(0, 1 - np.sqrt(np.diag(covariance) + 1e-4)).mean() / 2
        expected += (np.sum(covariance**2) - np.sum(np.diag(covariance) ** 2)) / 5
    assert vicreg_loss(first, second) == pytest.approx(expected)


def test_vicreg_of_white_embeddings_is_nothing():
    white = torch.linalg.qr(normal(64, 4) - normal(64, 4).mean(0))[0]
    white = (white - white.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(white.T)).T)
    assert vicreg_loss(1.1 * white, 1.1 * white) == pytest.approx(0, abs=1e-10)


def test_simclr_matches_a_loop():
    first, second = normal(6, 3), normal(6, 3, seed=1)
    views = torch.cat([first, second])
    losses = []
    for i in range(12):
        similarity = [float(torch.cosine_similarity(views[i], views[j], dim=0)) / 0.5 for j in range(12)]
        partner = (i + 6) % 12
        others = sum(math.exp(similarity[j]) for j in range(12) if j != i)
        losses.append(-math.log(math.exp(similarity[partner]) / others))
    assert simclr_loss(first, second, 0.5) == pytest.approx(np.mean(losses))


def test_simclr_leaves_the_scale_open():
    first, second = normal(6, 3), normal(6, 3, seed=1)
    assert simclr_loss(first, second, 0.2) == pytest.approx(float(simclr_loss(7 * first, 0.1 * second, 0.2)))


def test_epps_pulley_of_a_gaussian_sample_has_the_expected_size():
    # E|empirical - phi|^2 = (1 - phi^2) / n, so the statistic's mean is the integral of
    # (1 - exp(-t^2)) exp(-t^2 / 2) = sqrt(2 pi) - sqrt(2 pi / 3), whatever n is.
    expected = math.sqrt(2 * math.pi) - math.sqrt(2 * math.pi / 3)
    values = [float(epps_pulley(normal(200, 6, seed=i), seeded(i))) for i in range(30)]
    assert np.mean(values) == pytest.approx(expected, rel=0.08)


def test_epps_pulley_of_a_point_is_the_closed_form():
    # n times the integral of (1 - exp(-t^2 / 2))^2 exp(-t^2 / 2).
    root = math.sqrt(2 * math.pi)
    expected = 50 * (root - 2 * root / math.sqrt(2) + root / math.sqrt(3))
    assert epps_pulley(torch.zeros(50, 3), seeded()) == pytest.approx(expected, rel=1e-4)


def test_sliced_wasserstein_of_quantiles_is_nothing_and_of_a_shift_its_square():
    levels = (torch.arange(101, dtype=torch.float64) + 0.5) / 101
    quantiles = math.sqrt(2) * torch.erfinv(2 * levels - 1)[:, None]
    assert sliced_wasserstein(quantiles, seeded()) == pytest.approx(0, abs=1e-12)
    assert sliced_wasserstein(quantiles + 0.7, seeded()) == pytest.approx(0.49)


@pytest.mark.parametrize("measure", [epps_pulley, sliced_wasserstein])
def test_gaussianity_is_worse_for_other_laws_and_has_a_gradient(measure):
    gaussian = float(measure(normal(400, 4), seeded()))
    skewed = (normal(400, 4).square() - 1) / math.sqrt(2)
    stretched = (3 * normal(400, 4)).requires_grad_()
    assert float(measure(skewed, seeded())) > 3 * gaussian
    loss = measure(stretched, seeded())
    (gradient,) = torch.autograd.grad(loss, stretched)
    better = stretched.detach() - 0.1 * gradient / gradient.abs().max()
    assert measure(better, seeded()) < loss.detach()


def test_embedding_std_in_its_units_and_relative():
    embeddings = 5 + 0.5 * normal(4000, 3)
    assert embedding_std(embeddings, absolute=True) == pytest.approx(0.5, rel=0.05)
    assert embedding_std(embeddings, absolute=False) == pytest.approx(0.1, rel=0.05)
    assert embedding_std(100 * embeddings, absolute=False) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("absolute", [True, False])
def test_collapse_is_named_with_its_deviation(absolute):
    check_collapse(normal(50, 4), absolute=absolute)
    with pytest.raises(InputError, match=r"collapsed.*0\.00"):
        check_collapse(torch.ones(50, 4) + 1e-3 * normal(50, 4), absolute=absolute)
    with pytest.raises(InputError, match="collapsed"):
        check_collapse(torch.full((50, 4), float("nan")), absolute=absolute)
