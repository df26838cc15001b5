"""What a denoiser's output says about the clean image, for each family of diffusers' schedulers.

A scheduler keeps its noise levels in one of a few ways. Here each is read without touching the scheduler's
state, at any step: `scheduler.step` alone advances it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from assay.errors import InputError

Family = Literal["alphas", "sigmas", "exploding", "edm", "flow"]

# Families by the name of the class, so that no scheduler of diffusers has to be imported to ask.
# "alphas": x = sqrt(a) x0 + sqrt(1 - a) e, with a by training timestep.
# "sigmas": the same, with the level given by a sigma for each step.
# "exploding": x = x0 + sigma e, and the denoiser sees x / sqrt(1 + sigma^2).
# "edm": the same with the scalings of Karras et al. (2022).
# "flow": x = (1 - sigma) x0 + sigma e, and the denoiser predicts e - x0.
FAMILIES: dict[str, Family] = {
    "DDPMScheduler": "alphas",
    "DDIMScheduler": "alphas",
    "PNDMScheduler": "alphas",
    "LCMScheduler": "alphas",
    "TCDScheduler": "alphas",
    "DPMSolverMultistepScheduler": "sigmas",
    "DEISMultistepScheduler": "sigmas",
    "UniPCMultistepScheduler": "sigmas",
    "EulerDiscreteScheduler": "exploding",
    "EulerAncestralDiscreteScheduler": "exploding",
    "LMSDiscreteScheduler": "exploding",
    "EDMEulerScheduler": "edm",
    "EDMDPMSolverMultistepScheduler": "edm",
    "FlowMatchEulerDiscreteScheduler": "flow",
}


@dataclass(frozen=True)
class NoiseLevel:
    """x = signal * x0 + noise * e."""

    signal: float
    noise: float

    @property
    def alpha_bar(self) -> float:
        """The signal's share of the variance."""
        return self.signal**2 / (self.signal**2 + self.noise**2)


class NoiseSchedule:
    """The noise levels of a scheduler, and the clean image in a denoiser's output.

    Args:
        scheduler: one of diffusers', after `set_timesteps`.

    Raises:
        InputError: the conversion is not known for this scheduler or its prediction type.
    """

    def __init__(self, scheduler: Any) -> None:
        names = [cls.__name__ for cls in type(scheduler).__mro__]
        known: list[Family] = [FAMILIES[name] for name in names if name in FAMILIES]
        if not known:
            raise InputError(
                f"guidance does not know {type(scheduler).__name__}; use one of {', '.join(FAMILIES)}"
            )
        self.scheduler = scheduler
        self.family: Family = known[0]
        self.prediction_type: str = scheduler.config.get("prediction_type", "epsilon")
        allowed = {"epsilon", "sample", "v_prediction"}
        if self.family == "sigmas":
            allowed.add("flow_prediction")
        if self.family != "flow" and self.prediction_type not in allowed:
            raise InputError(
                f"guidance does not know the prediction type {self.prediction_type!r} of "
                f"{type(scheduler).__name__}; known are {', '.join(sorted(allowed))}"
            )

    @property
    def num_steps(self) -> int:
        """Number of steps of the scheduler."""
        return len(self.scheduler.timesteps)

    def level(self, index: int) -> NoiseLevel:
        """The noise level before step `index`; after the last step there is none."""
        if index >= self.num_steps:
            return NoiseLevel(1.0, 0.0)
        if self.family == "alphas":
            return self.level_at(int(self.scheduler.timesteps[index]))
        sigma = float(self.scheduler.sigmas[index])
        if self.family == "flow" or self.scheduler.config.get("use_flow_sigmas", False):
            return NoiseLevel(1 - sigma, sigma)
        if self.family == "sigmas":
            signal = 1 / (sigma**2 + 1) ** 0.5
            return NoiseLevel(signal, sigma * signal)
        return NoiseLevel(1.0, sigma)

    def level_at(self, timestep: int) -> NoiseLevel:
        """The noise level at a timestep of the training schedule.

        Raises:
            InputError: the scheduler has no such schedule, or it is shorter.
        """
        if self.family != "alphas":
            raise InputError(
                f"{type(self.scheduler).__name__} has no discrete training schedule; "
                "use DDPMScheduler or DDIMScheduler"
            )
        alphas = self.scheduler.alphas_cumprod
        if not 0 <= timestep < len(alphas):
            raise InputError(f"timestep {timestep} is outside the training schedule 0 to {len(alphas) - 1}")
        alpha = float(alphas[timestep])
        return NoiseLevel(alpha**0.5, (1 - alpha) ** 0.5)

    def posterior_variance(self, index: int) -> float:
        """(1 - a') / (1 - a) * (1 - a / a') of step `index`; a' is the signal's share after it."""
        before, after = self.level(index).alpha_bar, self.level(index + 1).alpha_bar
        if before >= 1 or after <= 0:
            return 0.0
        return (1 - after) / (1 - before) * (1 - before / after)

    def model_input(self, x: Tensor, level: NoiseLevel) -> Tensor:
        """What the denoiser sees of a noisy sample."""
        if self.family == "edm":
            return self.scheduler.precondition_inputs(x, level.noise)
        if self.family == "exploding":
            return x / (level.noise**2 + 1) ** 0.5
        return x

    def from_model_input(self, seen: Tensor, level: NoiseLevel) -> Tensor:
        """The noisy sample of which the denoiser saw `seen`."""
        return seen / self.model_input(torch.ones((), dtype=torch.float64), level).to(seen.device)

    def clean(self, output: Tensor, x: Tensor, level: NoiseLevel) -> Tensor:
        """The clean sample that the denoiser's output means (Tweedie's estimate).

        Args:
            output: what the denoiser returned; learned variances after x's channels are left out.
            x: the noisy sample, not scaled.
            level: its noise level.
        """
        if output.shape[1] == 2 * x.shape[1] and output.dim() == 4:
            output = output.chunk(2, dim=1)[0]
        output = output.to(x.dtype)
        if self.family == "edm":
            return self.scheduler.precondition_outputs(x, output, torch.tensor(level.noise))
        if self.family == "flow" or self.prediction_type == "flow_prediction":
            return x - level.noise * output
        if self.prediction_type == "sample":
            return output
        if self.prediction_type == "v_prediction":
            return self._from_velocity(output, x, level)
        return (x - level.noise * output) / level.signal

    def _from_velocity(self, output: Tensor, x: Tensor, level: NoiseLevel) -> Tensor:
        # v = sqrt(a) e - sqrt(1 - a) x0 of the sample with variance 1.
        scale = (level.signal**2 + level.noise**2) ** 0.5
        return (level.signal * x / scale - level.noise * output) / scale
