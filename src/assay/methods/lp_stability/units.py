"""n independent units with their envelopes, summed up as the concentration bounds need them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.lp_stability.envelopes import SMALLEST_MOMENT, Envelope
from assay.methods.lp_stability.known_law import TruncationLaw

# Truncation levels for known laws, in units of the largest envelope's norm. The bound holds at every level;
# the range covers n / delta up to 1e14 for tail indices down to 1.2, and a step of 2 % costs far less than
# that.
LEVELS = np.geomspace(1e-2, 1e12, 1600)
# More distinct scales than this are rounded up to a geometric grid before a law is evaluated at all of them.
DISTINCT_SCALES = 128


@dataclass(frozen=True)
class Units:
    """Independent units i = 1..n with envelopes scale_i H.

    Attributes:
        envelope: the law of H, or what is known of it.
        n: number of units.
        scales: of the units; None where all are 1.
    """

    envelope: Envelope
    n: int
    scales: Float[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int | np.integer) or self.n < 1:
            raise InputError(f"n is {self.n!r}; the number of independent units is an integer >= 1")
        if self.scales is None:
            return
        scales = np.asarray(self.scales, dtype=float)
        if scales.shape != (self.n,):
            raise InputError(
                f"scales has shape {scales.shape}; one scale for each of the n = {self.n} units is needed"
            )
        wrong = np.flatnonzero(~(np.isfinite(scales) & (scales >= 0)))
        if wrong.size:
            raise InputError(f"scales[{wrong[0]}] is {scales[wrong[0]]}; scales are finite numbers >= 0")
        object.__setattr__(self, "scales", scales)

    def log_scale_sum(self, power: float) -> float:
        """log sum_i scale_i^power."""
        if self.scales is None:
            return math.log(self.n)
        largest = self.largest_scale
        if largest == 0:
            return -math.inf
        return power * math.log(largest) + math.log(np.sum((self.scales / largest) ** power))

    @property
    def largest_scale(self) -> float:
        return 1.0 if self.scales is None else float(self.scales.max())

    @property
    def constant(self) -> bool:
        """Whether every envelope is zero almost surely: then f is constant."""
        return self.largest_scale == 0 or any(
            self.envelope.log_moments(p) == -math.inf for p in self.envelope.orders
        )

    def log_moment_sum(self, p: float) -> float:
        """log sum_i E h_i^p."""
        return self.log_scale_sum(p) + self.envelope.log_conditional_moments(p)

    @cached_property
    def log_pair_square_sum(self) -> float:
        """log M_2 = log sum_i E H_i^2, the sum that the printed theorem takes."""
        return self.log_scale_sum(2) + self.envelope.log_moments(2)

    @cached_property
    def variance(self) -> float:
        """V >= sum_i Var(D_i | past): the lesser of M_2 / 2 and sum_i E h_i^2.

        Raises:
            InputError: it underflows.
        """
        log_variance = min(self.log_pair_square_sum - math.log(2), self.log_moment_sum(2))
        if log_variance > 700:
            return math.inf
        if -math.inf < log_variance < math.log(SMALLEST_MOMENT):
            raise InputError(f"the variance exp({log_variance:.0f}) underflows; state H in larger units")
        return math.exp(log_variance)

    @cached_property
    def truncation_law(self) -> TruncationLaw | None:
        """Levels y with T(y), b(y) and V(y) of all units, where the law of h is known."""
        order = next(
            (p for p in self.envelope.orders if np.isfinite(self.envelope.log_conditional_moments(p))), None
        )
        if order is None:
            return None
        norm = math.exp(self.envelope.log_conditional_moments(order) / order)
        y = self.largest_scale * norm * LEVELS
        scales, counts = self._rounded_scales()
        law = self.envelope.tail((y / scales[:, None]).ravel())
        if law is None:
            return None
        exceedance, shift = (part.reshape(scales.size, y.size) for part in law)
        variance = np.full(y.shape, self.variance)
        for p in self.envelope.orders:
            if p < 2 and np.isfinite(self.log_moment_sum(p)):
                variance = np.minimum(variance, np.exp(self.log_moment_sum(p) + (2 - p) * np.log(y)))
        return TruncationLaw(y, counts @ exceedance, (counts * scales) @ shift, variance)

    def _rounded_scales(self) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"]]:
        """Distinct positive scales and how many units have each; rounded up where there are many.

        A larger scale is a larger envelope, so rounding up keeps the bounds valid.
        """
        if self.scales is None:
            return np.ones(1), np.full(1, float(self.n))
        scales = self.scales[self.scales > 0]
        distinct, counts = np.unique(scales, return_counts=True)
        if distinct.size > DISTINCT_SCALES:
            grid = scales.max() * np.geomspace(1e-4, 1.0, DISTINCT_SCALES)
            position = np.minimum(np.searchsorted(grid, scales), DISTINCT_SCALES - 1)
            position, counts = np.unique(position, return_counts=True)
            distinct = grid[position]
        return distinct, counts.astype(float)
