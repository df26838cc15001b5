"""What a guidance sees of one step of a sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Predict(Protocol):
    """The clean image or latent that the denoiser (with classifier-free guidance) sees in a noisy one.

    It is differentiable with respect to `x`. `t` is another timestep of the scheduler's training schedule
    than that of the step; samplers without such a schedule (flow matching) refuse it.
    """

    def __call__(self, x: Float[Tensor, "batch ..."], t: int | None = None) -> Tensor: ...


@dataclass(frozen=True)
class GuidanceStep:
    """One guided step of a sampler, as it is handed to a guidance.

    A guidance is any callable `(step: GuidanceStep) -> shift`: the tensor of `x_t`'s shape that is added to
    `x_t` before the step (`placement="before"`) or to the result of the step (`"after"`).

    Attributes:
        x_t: the noisy sample, detached, in the sampler's own units.
        t: the timestep that the denoiser is called with.
        index: index of the step, counted from 0 at the noise.
        num_steps: number of steps of the sampler.
        predict: noisy sample -> clean sample (see `Predict`).
        to_image: clean sample -> images in [0, 1] (not clamped), differentiable: a change of range for
            pixel models, the decoder for latent ones.
        alpha_bar: share of the signal's variance in x_t (of the step), between 0 and 1.
        alpha_bar_previous: the same after the step.
        variance: posterior variance of the step, (1 - a') / (1 - a) * (1 - a / a').
        alpha_bar_at: the same as `alpha_bar` at any timestep of the training schedule.
        generator: the sampler's generators, None for the global one; what is drawn from them changes the
            images' own noise.
        class_labels: the labels of a class-conditional sampler.
    """

    x_t: Float[Tensor, "batch ..."]
    t: Tensor
    index: int
    num_steps: int
    predict: Predict
    to_image: Callable[[Tensor], Float[Tensor, "batch channels height width"]]
    alpha_bar: float
    alpha_bar_previous: float
    variance: float
    alpha_bar_at: Callable[[int], float]
    generator: torch.Generator | list[torch.Generator] | None = None
    class_labels: Int[Tensor, " batch"] | None = None


Guidance = Callable[[GuidanceStep], Tensor]
