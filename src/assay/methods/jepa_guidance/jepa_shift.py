"""The guidance of the paper: one shift along the gradient of the surrogate score."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.jepa_guidance.guidance_config import JEPAGuidanceConfig
from assay.methods.jepa_guidance.guidance_step import GuidanceStep
from assay.methods.jepa_guidance.jacobian import differentiable_encoder
from assay.methods.jepa_guidance.randomised_svd import (
    SCORE_FLOOR,
    SURROGATE_FLOOR,
    Surrogate,
    check_rank,
    slope_along_gradient,
)
from assay.methods.jepa_guidance.scorer import JEPAScorer

# More sample-steps than this share without a usable gradient: the run is not what it claims to be.
_MOST_SKIPPED = 0.2
# A share of saturated pixels from which the gradient says little.
_MOST_SATURATED = 0.95
# The slope that a difference finds may differ from the gradient's by this share.
_SLOPE_TOLERANCE = 0.5


@dataclass
class GuidanceReport:
    """What happened in a run, counted in steps of single samples.

    Attributes:
        guided: steps that were shifted.
        skipped: steps left alone because value or gradient was not finite.
        redrawn: repetitions with other random directions.
        flat: steps with a gradient of 0 (the clean image is saturated everywhere, or constant).
        unreachable: guided steps that a pipeline's callback comes too late for (the first one).
        surrogate: for each guided step its index and the mean score over the samples, before the shift.
    """

    guided: int = 0
    skipped: int = 0
    redrawn: int = 0
    flat: int = 0
    unreachable: int = 0
    surrogate: list[tuple[int, float]] = field(default_factory=list)


class JEPAShift:
    """The shift of JEPA guidance; a guidance for `guided_sample`.

    The noisy sample is denoised, decoded and encoded, and moved against the gradient of the surrogate score
    where low scores are rare, along it where high ones are.

    Args:
        scorer: the encoder's scorer.
        config: the settings.

    Raises:
        InputError: the direction is not known (see `JEPAScorer.rare_sign`), or k and oversample do not fit
            the encoder.
    """

    def __init__(self, scorer: JEPAScorer, config: JEPAGuidanceConfig) -> None:
        self.scorer = scorer
        self.config = config
        # Descend (-1) where low scores are what is wanted.
        rare = scorer.rare_sign(config.assume_sign)
        self._ascent = -rare if config.direction == "rare" else rare
        self._method: Literal["rsvd", "exact"] = scorer.resolved_method(config.method)
        if self._method == "rsvd":
            side = scorer.image_size if config.image_size is None else config.image_size
            check_rank(config.k, config.oversample, scorer.width, scorer.channels * side**2)
        self.report = GuidanceReport()
        self._last_index: int | None = None
        self._basis: Tensor | None = None
        self._curved = False

    def __call__(self, step: GuidanceStep) -> Float[Tensor, "batch ..."]:
        """The shift of one step; 0 for samples whose gradient is not usable.

        Raises:
            InputError: the encoder has no second derivative, or more than a fifth of the run was skipped.
        """
        if self._last_index is None or step.index <= self._last_index:
            self._begin()
        self._last_index = step.index
        gradient, usable = self._gradient(step)
        length = self.config.step_size(step.num_steps)
        if self.config.schedule == "variance":
            length *= step.variance
        self.report.guided += int(usable.sum())
        self.report.skipped += int((~usable).sum())
        if step.index == self.config.guided_steps(step.num_steps)[-1]:
            self._check_skipped()
        shift = self._ascent * length * _normalised(gradient, self.config.normalize)
        return shift.to(step.x_t.dtype)

    def _begin(self) -> None:
        self.report = GuidanceReport(unreachable=self.report.unreachable)
        self._basis = None

    def _gradient(self, step: GuidanceStep) -> tuple[Tensor, Tensor]:
        """The gradient of the score at x_t, in float32, and the samples for which it is usable."""
        with torch.inference_mode(False), torch.enable_grad():
            # Half precision would lose the gradient.
            dtype = torch.promote_types(step.x_t.dtype, torch.float32)
            x = step.x_t.detach().clone().to(dtype).requires_grad_()
            image = step.to_image(step.predict(x)).to(dtype)
            if not image.requires_grad:
                raise InputError("the denoiser's output is detached from its input: guidance is impossible")
            seen = image.clamp(0, 1) if self.config.clamp == "hard" else image
            z = self.scorer.preprocess(seen, self.config.image_size)
            finite = torch.isfinite(z.detach()).flatten(1).all(dim=1)
            found = self._score(step, torch.where(_wide(finite, z), z.detach(), 0.0))
            usable = finite & found.usable
            self._check_image(image.detach()[finite])
            # Scaled to 1, so that it survives the denoiser's half precision.
            scale = found.gradients.flatten(1).abs().amax(dim=1).clamp_min(torch.finfo(z.dtype).tiny)
            scaled = torch.where(_wide(usable, z), found.gradients / _wide(scale, z), 0.0)
            (gradient,) = torch.autograd.grad(z, x, scaled)
        gradient = gradient * _wide(scale.to(gradient), gradient)
        usable = usable.to(gradient.device) & torch.isfinite(gradient).flatten(1).all(dim=1)
        gradient = torch.where(_wide(usable, gradient), gradient, 0.0)
        self.report.flat += int((usable & (gradient.flatten(1).abs().amax(dim=1) == 0)).sum())
        values = found.values[usable.to(found.values.device)]
        if len(values):
            self.report.surrogate.append((step.index, float(values.mean())))
        return gradient, usable

    def _score(self, step: GuidanceStep, z: Tensor) -> Surrogate:
        config = self.config
        start = self._basis if config.warm_start else None
        if start is not None and len(start) != len(z):
            start = None
        found, repeated = self.scorer.surrogate_gradient(
            z,
            k=config.k,
            oversample=config.oversample,
            power_iters=config.power_iters,
            seed=config.seed,
            step=step.index,
            start=start,
            method=self._method,
        )
        self.report.redrawn += repeated
        if (found.largest[found.usable] <= SURROGATE_FLOOR).any():
            warnings.warn("the encoder does not react to an image: it is constant or saturated", stacklevel=4)
        if config.warm_start and self._method == "rsvd":
            self._basis = torch.where(
                found.usable[:, None, None], found.basis, torch.eye(*found.basis.shape[1:]).to(found.basis)
            )
        if not self._curved:
            self._check_curved(z, found)
        return found

    def _check_curved(self, z: Tensor, found: Surrogate) -> None:
        """Refuse an encoder whose Jacobian is constant around every sample; report one that hides a part."""
        usable = found.usable
        if not usable.any():
            return
        steepness = torch.where(usable, found.gradients.flatten(1).norm(dim=1), 0.0)
        steepest = int(steepness.argmax())
        if steepness[steepest] == 0:
            if (found.largest[usable] > SURROGATE_FLOOR).any():
                raise InputError(
                    "the encoder has no second derivative (it is linear or made of ReLUs, quantised or "
                    "detached): its score has no gradient to follow; use one with smooth activations (GELU)"
                )
            return
        self._curved = True
        one = slice(steepest, steepest + 1)
        exact = self._method == "exact"
        with differentiable_encoder():
            measured, said = slope_along_gradient(
                self.scorer.encoder,
                z[one],
                Surrogate(*(value[one] for value in found)),
                k=z[0].numel() if exact else self.config.k,
                floor=SCORE_FLOOR if exact else SURROGATE_FLOOR,
            )
        if abs(measured - said) > _SLOPE_TOLERANCE * said:
            warnings.warn(
                f"the score's slope along its gradient is {measured:.3g}, and its gradient says {said:.3g}: "
                "an operation of the encoder hides its second derivative, or has none in places",
                stacklevel=5,
            )

    def _check_image(self, image: Tensor) -> None:
        if self.config.clamp != "hard" or image.numel() == 0:
            return
        saturated = float(((image <= 0) | (image >= 1)).float().mean())
        if saturated > _MOST_SATURATED:
            warnings.warn(
                f"{saturated:.0%} of the decoded image is outside its range and gives no gradient: "
                "lower eta, or use clamp='none'",
                stacklevel=4,
            )

    def _check_skipped(self) -> None:
        total = self.report.guided + self.report.skipped
        if self.report.skipped > _MOST_SKIPPED * total:
            raise InputError(
                f"guidance had to skip {self.report.skipped} of {total} sample-steps, because values were "
                "NaN or infinite: run the pipeline in float32 or bfloat16, or lower eta"
            )


def _normalised(gradient: Float[Tensor, "batch ..."], how: str | None) -> Float[Tensor, "batch ..."]:
    """Each sample's gradient with largest absolute value 1, or Euclidean norm 1; a gradient of 0 stays 0."""
    if how is None:
        return gradient
    flat = gradient.flatten(1)
    # Divided twice: the squares of small numbers would vanish.
    largest = flat.abs().amax(dim=1)
    scaled = gradient / _wide(largest.clamp_min(torch.finfo(gradient.dtype).tiny), gradient)
    if how == "max":
        return scaled
    return scaled / _wide(scaled.flatten(1).norm(dim=1).clamp_min(0.5), gradient)


def _wide(values: Float[Tensor, " batch"], like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))
