"""The sign of the score: where it is known, where it is not, and its file."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.jepa_guidance import Calibration, JEPAScorer
from assay.methods.jepa_guidance.calibration import FILE_NAME, calibrate_scores


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Gaussianising(nn.Module):
    """The inverse of z -> sinh(z): it makes Johnson SU variables standard normal."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.asinh(x.flatten(1))


def heavy_tailed(count: int) -> Tensor:
    x = torch.sinh(torch.randn(count, 4, generator=seeded(1)))
    return (x.clamp(-9, 9) / 20 + 0.5).view(count, 1, 2, 2)


def calibrated(scores: Tensor, reference: Tensor, labels: Tensor | None = None, **options) -> Calibration:
    settings = {"k": 5, "space": "pca", "seed": 0, "include_prior": False, "image_size": 2} | options
    return calibrate_scores(scores, reference, labels, **settings)


def test_an_exactly_gaussianising_encoder_has_the_papers_sign():
    scorer = JEPAScorer(Gaussianising(), mean=0.5, std=0.05, image_size=2)
    found = scorer.calibrate(heavy_tailed(300))
    assert found.sign == 1
    assert found.rho > 0.5
    assert found.rho_low > 0
    assert scorer.calibration == found
    assert scorer.rare_sign() == 1


def trained_encoder(pixels: Tensor) -> nn.Module:
    """An MLP made invariant to noise, whose embedding is pushed to a normal distribution."""
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 16)
    )
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=2e-3)
    generator = seeded(1)
    rows = 192
    quantiles = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(rows) + 0.5) / rows)
    for _ in range(300):
        batch = pixels[torch.randint(len(pixels), (rows,), generator=generator)] * 2 - 1
        first, second = (
            encoder(batch + 0.6 * torch.randn(batch.shape, generator=generator)) for _ in range(2)
        )
        projections = nn.functional.normalize(torch.randn(16, 64, generator=generator), dim=0)
        loss = 0.1 * (first - second).square().sum(dim=1).mean()
        for embedding in (first, second):
            ordered = (embedding @ projections).sort(dim=0).values
            loss = loss + (ordered - quantiles[:, None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return encoder


def test_a_small_trained_encoder_ranks_the_other_way_round():
    digits = load_digits()
    pixels = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    thinned = torch.cat(
        [(labels == digit).nonzero().flatten()[: 150 if digit < 5 else 16] for digit in range(10)]
    )
    scorer = JEPAScorer(trained_encoder(pixels[thinned]), mean=0.5, std=0.5, image_size=8)
    found = scorer.calibrate(pixels[thinned], labels[thinned] >= 5)
    assert found.sign == -1
    assert found.rho < -0.5
    assert found.auroc is not None
    assert found.auroc < 0.2
    assert scorer.rare_sign() == -1


def test_a_score_that_ranks_nothing_is_refused_and_never_given_a_default():
    reference = torch.rand(100, 1, 4, 4, generator=seeded(2))
    found = calibrated(torch.randn(100, generator=seeded(3)), reference)
    assert found.sign == 0
    assert found.rho_low < 0 < found.rho_high
    with pytest.raises(InputError, match="does not rank density on your data \\(rho = "):
        found.usable_sign()
    scorer = JEPAScorer(nn.Flatten(), mean=0.5, std=0.5, image_size=4, calibration=found, published=True)
    # What was measured counts more than what is published.
    with pytest.raises(InputError, match="does not rank density"):
        scorer.rare_sign()
    assert scorer.rare_sign(1) == 1


def test_the_numbers_are_scipys_and_sklearns():
    reference = torch.rand(80, 1, 3, 3, generator=seeded(4))
    scores = torch.randn(80, generator=seeded(5)).round(decimals=1)
    rare = torch.rand(80, generator=seeded(6)) < 0.3
    found = calibrated(scores, reference, rare, k=3, space=lambda images: images.flatten(1))
    flat = reference.flatten(1).double()
    distances = torch.cdist(flat, flat).sort(dim=1).values[:, 1:4].mean(dim=1)
    assert found.rho == pytest.approx(spearmanr(-scores, distances).statistic)
    assert found.auroc == pytest.approx(roc_auc_score(rare, -scores))
    assert found.rho_low < found.rho < found.rho_high
    assert found.auroc_low is not None
    assert found.auroc_high is not None
    assert found.auroc_low < found.auroc < found.auroc_high
    assert calibrated(scores, reference, rare, k=3) == calibrated(scores, reference, rare, k=3)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """Independent scores: rho is 0."""
    covered = 0
    for seed in range(20):
        reference = torch.rand(60, 1, 2, 2, generator=seeded(100 + seed))
        found = calibrated(torch.randn(60, generator=seeded(200 + seed)), reference)
        covered += found.sign == 0
    assert covered >= 17


def test_with_the_prior_the_score_is_the_density_and_guidance_refuses_it():
    scorer = JEPAScorer(Gaussianising(), mean=0.5, std=0.05, image_size=2)
    plain = scorer.calibrate(heavy_tailed(200))
    whole = scorer.calibrate(heavy_tailed(200), include_prior=True)
    assert whole.include_prior
    assert whole.rho > plain.rho
    assert scorer.calibration == plain
    with pytest.raises(InputError, match="include_prior"):
        whole.usable_sign()


def test_a_calibration_survives_its_file(tmp_path):
    found = calibrated(torch.randn(50, generator=seeded(7)), torch.rand(50, 1, 2, 2, generator=seeded(8)))
    assert found.save(tmp_path) == tmp_path / FILE_NAME
    assert Calibration.load(tmp_path) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "calibrate the encoder first"),
        ("{", "is not a calibration"),
        ("[]", "is not a calibration"),
        ("{}", "is not a calibration"),
        ('{"sign": 2}', "is not a calibration"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(InputError, match=message):
        Calibration.load(tmp_path)


def test_a_file_with_another_sign_or_number_is_refused(tmp_path):
    found = calibrated(torch.randn(50, generator=seeded(7)), torch.rand(50, 1, 2, 2, generator=seeded(8)))
    path = found.save(tmp_path)
    for change in ({"sign": 3}, {"rho": "high"}, {"rho": None}):
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(InputError, match="is not a calibration"):
            Calibration.load(tmp_path)
        found.save(tmp_path)


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (20, {}, "20 reference images are too few"),
        (40, {"k": 20}, "pass at least 41"),
        (40, {"k": 0}, "k is 0"),
        (40, {"space": "umap"}, "space is 'umap'"),
        (40, {"space": lambda images: images[:3]}, "one finite vector for each image"),
        (40, {"labels": torch.ones(40, dtype=torch.bool)}, "marks 40 of 40"),
        (40, {"labels": torch.ones(7, dtype=torch.bool)}, "labels for 40 images"),
        (40, {"duplicates": True}, "mostly duplicates"),
        (40, {"broken": True}, "not finite"),
    ],
)
def test_what_teaches_nothing_is_refused(count, options, message):
    options = dict(options)
    reference = torch.rand(count, 1, 2, 2, generator=seeded(9))
    if options.pop("duplicates", False):
        reference = reference[:1].expand(count, 1, 2, 2)
    scores = torch.randn(count, generator=seeded(10))
    if options.pop("broken", False):
        scores[3] = np.nan
    with pytest.raises(InputError, match=message):
        calibrated(scores, reference, options.pop("labels", None), **options)
