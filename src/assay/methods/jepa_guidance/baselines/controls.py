"""Controls: a random direction of the same length, and neighbours in pixel space in place of an encoder."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.jepa_guidance.baselines.shifts import check_strength, shift_along
from assay.methods.jepa_guidance.guidance_step import GuidanceStep


class RandomDirection:
    """Shifts along Gaussian directions, as long as the guided ones: what any push of that length does.

    Args:
        eta: largest absolute value of a step's shift.
        seed: of the directions; the sampler's own noise is not touched.
    """

    def __init__(self, eta: float, seed: int = 0) -> None:
        check_strength(eta)
        self.eta = eta
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, step: GuidanceStep) -> Tensor:
        """The shift of one step."""
        direction = torch.randn(step.x_t.shape, generator=self._generator, dtype=torch.float32)
        return shift_along(direction.to(step.x_t), step, self.eta, "constant")


class NeighbourGuidance:
    """Ascends the mean distance in pixels to the nearest reference images: rare without any encoder.

    Args:
        reference: real images in [0, 1], those of the world.
        eta: largest absolute value of a step's shift.
        k: neighbours.

    Raises:
        InputError: fewer than k reference images.
    """

    def __init__(self, reference: Float[Tensor, "n c h w"], eta: float, k: int = 5) -> None:
        check_strength(eta)
        if len(reference) < k or k < 1:
            raise InputError(f"{len(reference)} reference images for {k} neighbours: pass at least that many")
        self.reference, self.eta, self.k = reference.flatten(1), eta, k

    def __call__(self, step: GuidanceStep) -> Tensor:
        """The shift of one step."""
        with torch.enable_grad():
            x = step.x_t.detach().requires_grad_()
            images = step.to_image(step.predict(x)).flatten(1).float()
            distances = torch.cdist(
                images, self.reference.to(images), compute_mode="donot_use_mm_for_euclid_dist"
            )
            nearest = distances.topk(self.k, dim=1, largest=False).values.mean(dim=1)
            (gradient,) = torch.autograd.grad(nearest.sum(), x)
        return shift_along(gradient, step, self.eta, "constant")
