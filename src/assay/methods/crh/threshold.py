"""The smallest strength at which the concept margin of a sample is not negative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError


@dataclass(frozen=True)
class MinimalStrength:
    """The smallest strength at which a sample fires.

    Attributes:
        value: by linear interpolation; `s_max` when censored.
        censored: True where the sample never fired up to `s_max`.
        s_max: the largest strength that was tried.
        strengths, margins: every strength that was tried, ascending, and the margin there.
    """

    value: float
    censored: bool
    s_max: float
    strengths: tuple[float, ...]
    margins: tuple[float, ...]


MarginFunction = Callable[[int, Tensor], Tensor]


def minimal_strength(
    margin: MarginFunction,
    i: int,
    direction: Float[Tensor, " width"],
    s_max: float,
    *,
    steps: int = 25,
    tolerance: float = 0.01,
) -> MinimalStrength:
    """The first zero crossing of the margin along a direction.

    A grid brackets the first crossing, finer grids inside the bracket narrow it, and the crossing is
    interpolated linearly. A crossing that opens and closes between two grid points is missed.

    Args:
        margin: a `ConceptMargin`, or any function of a sample and vectors that returns margins.
        i: the sample.
        direction: of unit length when strengths shall be lengths.
        s_max: the largest strength.
        steps: grid points in (0, s_max]; zero is always tried too.
        tolerance: the width of the final bracket relative to its end.

    Raises:
        InputError: `s_max`, `steps` or `tolerance` is not positive, or a margin is not finite.
    """
    if not (s_max > 0 and steps >= 1 and tolerance > 0):
        raise InputError(f"s_max {s_max}, steps {steps} and tolerance {tolerance} must all be positive")
    tried: dict[float, float] = {}

    def evaluate(strengths: list[float]) -> None:
        values = margin(i, torch.tensor(strengths, dtype=torch.float64).unsqueeze(1) * direction.double())
        if not torch.isfinite(values).all():
            raise InputError(f"the margin of sample {i} is NaN or infinite")
        tried.update(zip(strengths, values.tolist(), strict=True))

    def found(value: float, censored: bool) -> MinimalStrength:
        grid = sorted(tried)
        return MinimalStrength(value, censored, s_max, tuple(grid), tuple(tried[s] for s in grid))

    evaluate([s_max * step / steps for step in range(steps + 1)])
    if tried[0.0] >= 0:
        return found(0.0, False)
    while True:
        grid = sorted(tried)
        crossing = next((k for k, s in enumerate(grid) if tried[s] >= 0), None)
        if crossing is None:
            return found(s_max, True)
        low, high = grid[crossing - 1], grid[crossing]
        if high - low <= tolerance * high:
            below, above = tried[low], tried[high]
            return found(low + (high - low) * below / (below - above), False)
        evaluate([low + (high - low) * step / 9 for step in range(1, 9)])
