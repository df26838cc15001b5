"""Minority guidance: classifier guidance towards the images that the generator reconstructs worst.

Um, Lee and Ye, "Don't Play Favorites: Minority Guidance for Diffusion Models", ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from assay.errors import InputError
from assay.methods.jepa_guidance.baselines.shifts import Schedule, check_strength, shift_along
from assay.methods.jepa_guidance.guidance_step import GuidanceStep

_FREQUENCIES = 16


class MinorityClassifier(nn.Module):
    """Predicts the level of the minority score from a noisy sample and its timestep.

    Args:
        size: numbers of one flattened sample.
        levels: levels of the score; the last is the rarest.
        width: of two hidden layers.
        training_steps: timesteps of the generator's training schedule.
    """

    def __init__(self, size: int, levels: int = 10, width: int = 128, training_steps: int = 1000) -> None:
        super().__init__()
        if levels < 2:
            raise InputError(f"levels is {levels}; at least 2 levels are needed")
        self.levels, self.training_steps = levels, training_steps
        self.layers = nn.Sequential(
            nn.Linear(size + 2 * _FREQUENCIES, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, levels),
        )  # fmt: skip

    def forward(
        self, x_t: Float[Tensor, "batch ..."], t: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch levels"]:
        """The logits of the levels."""
        octaves = torch.exp2(torch.linspace(0, 6, _FREQUENCIES, device=x_t.device, dtype=x_t.dtype))
        angles = t.to(x_t)[:, None] / self.training_steps * octaves
        return self.layers(torch.cat([x_t.flatten(1), angles.sin(), angles.cos()], dim=1))


@torch.no_grad()
def minority_scores(
    clean: Float[Tensor, "n ..."],
    predict: Callable[[Tensor, int], Tensor],
    alpha_bars: Float[Tensor, " steps"],
    *,
    timestep: int,
    draws: int,
    generator: torch.Generator,
) -> Float[Tensor, " n"]:
    """The mean distance of clean samples to their one-step reconstructions from noise (paper, equation 5).

    The distance is Euclidean; the paper's is LPIPS.

    Args:
        clean: clean samples in the sampler's units.
        predict: noisy sample and timestep -> clean sample.
        alpha_bars: of the training schedule.
        timestep: how much noise is added.
        draws: noises a sample.
        generator: of the noise.
    """
    alpha_bar = alpha_bars[timestep].to(clean)
    total = clean.new_zeros(len(clean))
    for _ in range(draws):
        noise = torch.randn(clean.shape, generator=generator).to(clean)
        again = predict(alpha_bar.sqrt() * clean + (1 - alpha_bar).sqrt() * noise, timestep)
        total += (clean - again).flatten(1).norm(dim=1)
    return total / draws


def train_minority_classifier(
    clean: Float[Tensor, "n ..."],
    predict: Callable[[Tensor, int], Tensor],
    alpha_bars: Float[Tensor, " steps"],
    *,
    levels: int = 10,
    timestep: int = 900,
    draws: int = 4,
    steps: int = 600,
    batch_size: int = 128,
    learning_rate: float = 2e-3,
    seed: int = 0,
) -> MinorityClassifier:
    """Train the noisy classifier of minority levels for a generator.

    Levels are quantiles of the score over the training samples, so that all have equally many.

    Args:
        clean: the generator's training samples in the sampler's units.
        predict: noisy sample and timestep -> clean sample, by the generator.
        alpha_bars: of the generator's training schedule.
        levels: how many levels.
        timestep: at which the score is measured.
        draws: noises a sample for the score.
        steps, batch_size, learning_rate: of the training.
        seed: of everything random.

    Returns:
        The classifier in evaluation mode, its weights frozen.

    Raises:
        InputError: fewer samples than levels.
    """
    if len(clean) < levels:
        raise InputError(f"{len(clean)} samples for {levels} levels: pass at least one sample for each level")
    generator = torch.Generator().manual_seed(seed)
    scores = minority_scores(clean, predict, alpha_bars, timestep=timestep, draws=draws, generator=generator)
    level = scores.argsort().argsort() * levels // len(scores)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = MinorityClassifier(clean[0].numel(), levels, training_steps=len(alpha_bars))
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=learning_rate, weight_decay=0.01)
    for _ in range(steps):
        rows = torch.randint(len(clean), (batch_size,), generator=generator)
        t = torch.randint(len(alpha_bars), (batch_size,), generator=generator)
        alpha_bar = alpha_bars[t].to(clean).view(-1, *[1] * (clean.dim() - 1))
        noise = torch.randn(clean[rows].shape, generator=generator).to(clean)
        logits = classifier(alpha_bar.sqrt() * clean[rows] + (1 - alpha_bar).sqrt() * noise, t)
        optimizer.zero_grad()
        functional.cross_entropy(logits, level[rows]).backward()
        optimizer.step()
    return classifier.eval().requires_grad_(False)


class MinorityGuidance:
    """Ascends the log-probability of the rarest level.

    Args:
        classifier: of this generator.
        eta: largest absolute value of a step's shift.
        schedule: `"variance"` as in classifier guidance, or `"constant"` for shifts as long as others'.
    """

    def __init__(self, classifier: MinorityClassifier, eta: float, schedule: Schedule = "constant") -> None:
        check_strength(eta, schedule)
        self.classifier, self.eta = classifier, eta
        self.schedule: Schedule = schedule

    def __call__(self, step: GuidanceStep) -> Tensor:
        """The shift of one step."""
        with torch.enable_grad():
            x = step.x_t.detach().float().requires_grad_()
            times = torch.full((len(x),), int(step.t), device=x.device)
            rarest = functional.log_softmax(self.classifier(x, times), dim=1)[:, -1]
            (gradient,) = torch.autograd.grad(rarest.sum(), x)
        return shift_along(gradient.to(step.x_t), step, self.eta, self.schedule)
