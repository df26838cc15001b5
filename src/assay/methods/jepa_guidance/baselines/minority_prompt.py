"""MinorityPrompt: one more token in the prompt, optimised while sampling until the generator finds it rare.

Um and Ye, "Minority-Focused Text-to-Image Generation via Prompt Optimization", CVPR 2025.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.jepa_guidance.baselines.self_guided import reconstruction_error
from assay.methods.jepa_guidance.baselines.shifts import check_strength
from assay.methods.jepa_guidance.guidance_step import GuidanceStep


class MinorityPrompt:
    """Both the guidance and the condition of a text-conditional sampler; it never shifts x_t itself.

    Pass the object as `guidance` and its method `condition` as `condition` to `guided_sample`. The token
    starts as the mean of the prompt's tokens, so that a denoiser that averages tokens sees the prompt
    unchanged at first, and is moved by normalised gradient steps on the error with which the denoiser
    reconstructs what it sees under the prompt.

    Args:
        rate: length of a step in units of the token's own length.
        repeats: gradient steps in every guided step of the sampler.
        timestep: of the training schedule, to which clean samples are noised.
        seed: of that noise.
    """

    def __init__(self, rate: float, *, repeats: int = 1, timestep: int = 800, seed: int = 0) -> None:
        check_strength(rate)
        if repeats < 1:
            raise InputError(f"repeats is {repeats}; at least 1 gradient step is needed")
        self.rate, self.repeats, self.timestep = rate, repeats, timestep
        self._generator = torch.Generator().manual_seed(seed)
        self._token: Tensor | None = None

    def condition(
        self, index: int, t: Tensor | int, embedding: Float[Tensor, "batch tokens d"]
    ) -> Float[Tensor, "batch tokens1 d"]:
        """The prompt with the token appended."""
        tokens = embedding if embedding.dim() == 3 else embedding.unsqueeze(1)
        if self._token is None or self._token.shape[0] != tokens.shape[0]:
            self._token = tokens.mean(dim=1, keepdim=True).detach()
        return torch.cat([tokens, self._token], dim=1)

    def __call__(self, step: GuidanceStep) -> Tensor:
        """Move the token; the shift is zero.

        Raises:
            InputError: the sampler does not use `condition`.
        """
        for _ in range(self.repeats):
            self._move(step)
        return torch.zeros_like(step.x_t)

    def _move(self, step: GuidanceStep) -> None:
        with torch.enable_grad():
            # A first call of the denoiser creates the token.
            if self._token is None:
                step.predict(step.x_t)
            if self._token is None:
                raise InputError("pass MinorityPrompt's method `condition` as the sampler's condition, too")
            token = self._token = self._token.detach().requires_grad_()
            error = reconstruction_error(step, step.predict(step.x_t), self.timestep, self._generator)
            (gradient,) = torch.autograd.grad(error.sum(), token)
        length = token.norm(dim=-1, keepdim=True) / (gradient.norm(dim=-1, keepdim=True) + 1e-12)
        self._token = (token + self.rate * length * gradient).detach()
