"""Baselines without a gradient: more noise at the start, or a noisy condition."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError


@dataclass(frozen=True)
class BoostAndSkip:
    """Initial noise of a larger deviation, and the first steps left out (Um et al., ICML 2025).

    Args:
        gamma: deviation of the initial noise (4 for CelebA and 2.5 for ImageNet in the release).
        skip: steps that are left out at the start (3 of 250 in the release).
    """

    gamma: float = 2.0
    skip: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma > 0):
            raise InputError(f"gamma is {self.gamma}; pass a deviation above 0")
        if self.skip < 0:
            raise InputError(f"skip is {self.skip}; pass a number of steps")

    def latents(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """The initial noise; pass it as `latents`, and `skip` as `first_step`, to `guided_sample`."""
        return self.gamma * torch.randn(shape, generator=generator)


class CADS:
    """Condition-annealed diffusion sampling: the condition starts as noise and becomes itself.

    With the share of remaining time s: y' = sqrt(g) y + scale sqrt(1 - g) n, where g is 0 above `tau2`, 1
    below `tau1` and linear between; y' is brought back to the mean and deviation of y and mixed with y' as it
    was by `psi` (Sadat et al., "CADS", ICLR 2024, section 3). Pass it as `condition` to `guided_sample`.

    Args:
        num_steps: steps of the sampler.
        scale: of the noise.
        tau1, tau2: shares of time.
        psi: 1 rescales wholly, 0 not at all.
        seed: of the noise; the sampler's own is not touched.
    """

    def __init__(
        self,
        num_steps: int,
        scale: float,
        *,
        tau1: float = 0.6,
        tau2: float = 0.9,
        psi: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not 0 <= tau1 < tau2 <= 1:
            raise InputError(f"tau1 is {tau1} and tau2 is {tau2}; 0 <= tau1 < tau2 <= 1 is needed")
        if not (math.isfinite(scale) and scale >= 0 and 0 <= psi <= 1):
            raise InputError(f"scale is {scale} and psi is {psi}; scale must be >= 0 and psi in [0, 1]")
        self.num_steps, self.scale, self.tau1, self.tau2, self.psi = num_steps, scale, tau1, tau2, psi
        self._seed = seed

    def share(self, index: int) -> float:
        """g at step `index`, counted from the noise."""
        remaining = 1 - index / self.num_steps
        return min(1.0, max(0.0, (self.tau2 - remaining) / (self.tau2 - self.tau1)))

    def __call__(
        self, index: int, t: Tensor | int, embedding: Float[Tensor, "batch ... d"]
    ) -> Float[Tensor, "batch ... d"]:
        """The condition of one step."""
        g = self.share(index)
        if g == 1.0 or self.scale == 0:
            return embedding
        # Equal for all calls of one step, so that a guidance and the denoiser see the same condition.
        generator = torch.Generator().manual_seed(hash((self._seed, index)) % 2**63)
        noise = torch.randn(embedding.shape, generator=generator, dtype=torch.float32).to(embedding)
        mixed = g**0.5 * embedding + self.scale * (1 - g) ** 0.5 * noise
        axes = tuple(range(1, embedding.dim()))
        deviation = mixed.std(dim=axes, keepdim=True).clamp_min(1e-12)
        rescaled = (mixed - mixed.mean(dim=axes, keepdim=True)) / deviation
        rescaled = rescaled * embedding.std(dim=axes, keepdim=True) + embedding.mean(dim=axes, keepdim=True)
        return self.psi * rescaled + (1 - self.psi) * mixed
