"""Guidance with models trained on real digits: it moves the full score, a random direction does not."""

from __future__ import annotations

import pytest
import torch

from assay.methods.jepa_guidance import (
    Augmentation,
    EncoderTraining,
    GeneratorTraining,
    JEPAGuidanceConfig,
    JEPAScorer,
    Optimisation,
    RandomDirection,
    guided_sample,
    train_encoder,
    train_generator,
)
from assay.methods.jepa_guidance.datasets import biased


@pytest.mark.slow
def test_guidance_moves_the_full_score_and_random_directions_do_not():
    digits = biased("digits")
    world, known = (torch.from_numpy(part.images) for part in (digits.world, digits.generator))
    recipe = EncoderTraining(
        "mlp",
        "lejepa",
        16,
        256,
        augmentation=Augmentation(noise=0.3),
        gaussianity="sliced-wasserstein",
        gaussian_weight=0.2,
        optimisation=Optimisation(steps=600, batch_size=192, learning_rate=2e-3),
    )
    encoder = train_encoder(world, recipe)
    scorer = JEPAScorer(encoder, mean=encoder.config.image_mean, std=encoder.config.image_std, image_size=8)
    training = Optimisation(steps=2000, batch_size=96, learning_rate=3e-3)
    denoiser, scheduler = train_generator(known, GeneratorTraining("mlp", 256, optimisation=training))

    def score(guiding, config=None, guidance=None) -> float:
        noise = torch.Generator().manual_seed(0)
        options = {"shape": (96, 1, 8, 8), "num_inference_steps": 40, "generator": noise}
        return float(
            scorer.score(
                guided_sample(denoiser, scheduler, guiding, config, guidance=guidance, **options)
            ).mean()
        )

    config = JEPAGuidanceConfig(eta=0.05, assume_sign=1)
    plain = score(None)
    assert score(scorer, config) < plain - 3
    assert score(scorer, JEPAGuidanceConfig(eta=0.05, assume_sign=-1)) > plain + 3
    assert abs(score(None, config, RandomDirection(0.05)) - plain) < 0.5
