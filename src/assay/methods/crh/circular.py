"""Statistics of angles."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float


def mean_angle(angles: Float[np.ndarray, " n"]) -> float:
    """The circular mean, in (-pi, pi]."""
    return math.atan2(float(np.sin(angles).sum()), float(np.cos(angles).sum()))


def resultant_length(angles: Float[np.ndarray, " n"]) -> float:
    """The mean resultant length: 1 when all angles are equal, about sqrt(pi / 4n) for uniform ones."""
    return float(np.hypot(np.cos(angles).mean(), np.sin(angles).mean()))


def rayleigh_p(angles: Float[np.ndarray, " n"]) -> float:
    """The p-value of Rayleigh's test that angles are uniform against one preferred direction.

    Zar's approximation (*Biostatistical Analysis*, equation 27.4), accurate to three decimals for n >= 10.
    """
    n = len(angles)
    squared = (n * resultant_length(angles)) ** 2
    return min(1.0, math.exp(math.sqrt(1 + 4 * n + 4 * (n**2 - squared)) - (1 + 2 * n)))
