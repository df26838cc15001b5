"""The settings of JEPA guidance, and which steps of a sampler they guide."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from assay.errors import InputError

Schedule = Literal["constant", "variance"]
Normalization = Literal["max", "l2"]
Placement = Literal["before", "after"]
Direction = Literal["rare", "common"]
SurrogateMethod = Literal["rsvd", "exact", "auto"]

# Rounding must not move a step across the limit of tau.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class JEPAGuidanceConfig:
    """How a sampler is steered along the gradient of JEPA-SCORE.

    The defaults are those of the paper's released text-to-image setting, which makes 4 steps. Samplers with
    more steps want a smaller `eta`, or `eta_total`: the shift is added at every guided step.

    Args:
        eta: length of the shift of one guided step, in units of the latents (largest absolute change with
            `normalize="max"`).
        eta_total: the sum of the shifts of all guided steps instead; `eta` is then ignored and is
            `eta_total` divided by the number of guided steps (ours).
        tau: step i of T is guided only if 1 - i / T <= tau; 0.8 leaves the first fifth of the steps free.
        interval: guide every so many steps, counted from step 0.
        k: how many leading singular values the surrogate sums (paper, section 4).
        oversample: additional random directions of the randomised SVD.
        power_iters: power iterations of the randomised SVD.
        schedule: `"constant"`, or `"variance"` to multiply the shift by the posterior variance of the step.
        normalize: divide the gradient of each sample by its largest absolute value, by its Euclidean norm, or
            (None) not at all.
        placement: `"before"` shifts x_t and evaluates the denoiser again (the released code); `"after"`
            shifts the result of the step (the paper's equation) and needs one evaluation less.
        direction: towards what the calibrated score says is `"rare"` or `"common"`.
        assume_sign: +1: low scores are rare (the paper's direction); -1: high scores are; None: ask the
            calibration of the scorer.
        method: `"rsvd"` (the paper's surrogate), `"exact"` (the full score through the full Jacobian), or
            `"auto"`: exact for small images and encoders.
        clamp: clamp the decoded image to its range before encoding it (the method), or not.
        image_size: side in pixels at which the encoder sees the image; None: the scorer's own.
        decode: `"vae"`, or `"tiny"`: guide through a small decoder and use the VAE only for the result.
        checkpoint: recompute activations of denoiser and decoder in the backward pass to save memory.
        warm_start: start the randomised SVD from the subspace of the sample's previous guided step, so that
            fewer power iterations are needed (ours).
        seed: of the random directions; the images' own noise is not touched.

    Raises:
        InputError: a value is outside its range.
    """

    eta: float = 0.5
    eta_total: float | None = None
    tau: float = 0.8
    interval: int = 1
    k: int = 9
    oversample: int = 2
    power_iters: int = 2
    schedule: Schedule = "constant"
    normalize: Normalization | None = "max"
    placement: Placement = "before"
    direction: Direction = "rare"
    assume_sign: int | None = None
    method: SurrogateMethod = "rsvd"
    clamp: Literal["hard", "none"] = "hard"
    image_size: int | None = None
    decode: Literal["vae", "tiny"] = "vae"
    checkpoint: bool = False
    warm_start: bool = False
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("eta", "eta_total"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(
                    f"{name} is {value}; pass a number >= 0 (direction='common' turns the guidance round)"
                )
        if not 0 < self.tau <= 1:
            raise InputError(f"tau is {self.tau}; it must be above 0 and at most 1")
        for name, least in (("interval", 1), ("k", 1), ("oversample", 0), ("power_iters", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value}; it must be an integer of at least {least}")
        if self.image_size is not None and self.image_size < 1:
            raise InputError(f"image_size is {self.image_size}; it must be at least 1 pixel")
        if self.assume_sign not in (None, 1, -1):
            raise InputError(f"assume_sign is {self.assume_sign}; use 1, -1 or None")
        choices = {
            "schedule": get_args(Schedule),
            "normalize": (*get_args(Normalization), None),
            "placement": get_args(Placement),
            "direction": get_args(Direction),
            "method": get_args(SurrogateMethod),
            "clamp": ("hard", "none"),
            "decode": ("vae", "tiny"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; use one of {', '.join(map(repr, allowed))}"
                )

    def guided_steps(self, num_steps: int) -> list[int]:
        """The indices of the guided steps of a sampler with `num_steps` steps, noise first."""
        return [i for i in range(0, num_steps, self.interval) if 1 - i / num_steps <= self.tau + _ROUNDING]

    def step_size(self, num_steps: int) -> float:
        """The length of the shift of one guided step of a sampler with `num_steps` steps."""
        if self.eta_total is None:
            return self.eta
        return self.eta_total / max(1, len(self.guided_steps(num_steps)))
