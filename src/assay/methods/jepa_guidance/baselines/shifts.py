"""Shifts of equal length: what makes guidances comparable."""

from __future__ import annotations

import math
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.jepa_guidance.guidance_step import GuidanceStep

Schedule = Literal["constant", "variance"]
_TINY = 1e-8


def normalised(direction: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
    """Every sample's direction divided by its largest absolute value."""
    largest = direction.flatten(1).abs().amax(dim=1) + _TINY
    return direction / largest.view(-1, *[1] * (direction.dim() - 1))


def shift_along(
    direction: Float[Tensor, "batch ..."], step: GuidanceStep, eta: float, schedule: Schedule
) -> Float[Tensor, "batch ..."]:
    """A shift whose largest absolute value is `eta`, times the step's posterior variance if asked for."""
    return eta * (step.variance if schedule == "variance" else 1.0) * normalised(direction).detach()


def check_strength(eta: float, schedule: str = "constant") -> None:
    """Raise an `InputError` for a length that is negative or not finite, or an unknown schedule."""
    if not (math.isfinite(eta) and eta >= 0):
        raise InputError(f"eta is {eta}; pass a number >= 0")
    if schedule not in get_args(Schedule):
        raise InputError(f"schedule is {schedule!r}; use one of {', '.join(map(repr, get_args(Schedule)))}")
