"""Self-guided minority sampling: rare is what the generator itself reconstructs badly.

Um and Ye, "Self-Guided Generation of Minority Samples Using Diffusion Models", ECCV 2024.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.jepa_guidance.baselines.shifts import Schedule, check_strength, shift_along
from assay.methods.jepa_guidance.guidance_step import GuidanceStep


def reconstruction_error(
    step: GuidanceStep, clean: Float[Tensor, "batch ..."], timestep: int, generator: torch.Generator
) -> Float[Tensor, " batch"]:
    """The distance of clean samples to what the denoiser makes of them after noise.

    Differentiable in `clean`. The reconstruction itself is held constant (the stop-gradient of the paper's
    equation 8). The distance is Euclidean: LPIPS, which the paper uses, needs weights that only a hub has.

    Args:
        step: gives the denoiser and its noise schedule.
        clean: clean samples in the sampler's units.
        timestep: of the training schedule, how much noise is added.
        generator: of that noise.
    """
    alpha_bar = step.alpha_bar_at(timestep)
    noise = torch.randn(clean.shape, generator=generator, dtype=torch.float32).to(clean)
    with torch.no_grad():
        noisy = alpha_bar**0.5 * clean + (1 - alpha_bar) ** 0.5 * noise
        again = step.predict(noisy, t=timestep)
    return (clean - again).flatten(1).norm(dim=1)


class SelfGuidedMinority:
    """Ascends the error with which the generator reconstructs the clean sample that it sees in x_t.

    Args:
        eta: largest absolute value of a step's shift (0.2 to 0.4 with the variance schedule in the release).
        timestep: of the training schedule, to which clean samples are noised; the release takes 0.8 of it.
        schedule: `"variance"` multiplies the shift by the posterior variance, as released; `"constant"`
            makes shifts as long as those of other guidances.
        seed: of the perturbation; the sampler's own noise is not touched.
    """

    def __init__(
        self, eta: float, *, timestep: int = 800, schedule: Schedule = "constant", seed: int = 0
    ) -> None:
        check_strength(eta, schedule)
        if timestep < 1:
            raise InputError(f"timestep is {timestep}; noise is added from timestep 1 on")
        self.eta, self.timestep = eta, timestep
        self.schedule: Schedule = schedule
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, step: GuidanceStep) -> Tensor:
        """The shift of one step."""
        with torch.enable_grad():
            x = step.x_t.detach().requires_grad_()
            error = reconstruction_error(step, step.predict(x), self.timestep, self._generator)
            (gradient,) = torch.autograd.grad(error.sum(), x)
        return shift_along(gradient, step, self.eta, self.schedule)
