"""Envelopes whose only random part is the size of a label: offset + slope (|y| + |y'|).

With bounded predictors the analytic envelopes of a linear learner are at most of this form, so that a
declared law, or declared moments, of the label alone settle them, without simulation.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float
from scipy.integrate import cumulative_trapezoid

from assay.errors import InputError
from assay.methods.lp_stability.envelopes import Provenance

HIGHEST_ORDER = 12
GRID_POINTS = 2**14
# The grid of an unbounded law ends where this much of it is left: heavy tails need a far end for their
# moments.
REMAINDER = 1e-250
# Relative margin of every integral; the trapezoidal rule on this grid is more accurate.
QUADRATURE_ERROR = 1e-4


class LabelSize(Protocol):
    """What is known of |y|: moments, an almost sure bound, and perhaps the tail; a `DeclaredEnvelope` for
    example."""

    @property
    def provenance(self) -> Provenance: ...
    @property
    def bound(self) -> float: ...

    def log_moments(self, p: float) -> float:
        """log E |y|^p or an upper bound of it; infinite where there is none."""
        ...

    def tail(
        self, y: Float[np.ndarray, " k"]
    ) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]] | None:
        """P(|Y| > y) and E[|Y|; |Y| > y] of the label Y, or upper bounds; None where nothing is known."""
        ...


class DeclaredLaw:
    """|y| for a label with a declared continuous law: moments and tail by quadrature of the survival
    function.

    Args:
        law: a frozen continuous distribution of `scipy.stats`.

    Raises:
        InputError: its quartiles are not finite, or both zero.
    """

    provenance: Provenance = "declared-law"

    def __init__(self, law: Any) -> None:
        self._law, ends = law, [abs(float(end)) for end in law.support()]
        self.bound = max(ends)
        typical = max(abs(float(law.ppf(0.25))), abs(float(law.ppf(0.75))))
        if not 0 < typical < math.inf:
            raise InputError(f"label_law has quartiles of size {typical:g}: a positive finite size is needed")
        far = self.bound
        if math.isinf(far):
            far = max(abs(float(law.isf(REMAINDER))), abs(float(law.ppf(REMAINDER))))
        # Where the support ends the survival function has a kink, which must lie on the grid.
        kinks = [end for end in ends if 0 < end < far]
        self._grid = np.union1d(np.geomspace(1e-12 * typical, far, GRID_POINTS), kinks)
        self._survival = self._above(self._grid)
        # E[|y|; |y| > t] = t P(|y| > t) + the integral of the survival function from t on.
        area = cumulative_trapezoid((self._survival * self._grid)[::-1], -np.log(self._grid)[::-1], initial=0)
        self._partial_mean = (1 + QUADRATURE_ERROR) * (self._grid * self._survival + area[::-1])
        self._tail_index = math.inf if math.isfinite(self.bound) else self._slope_at_the_end()

    def log_moments(self, p: float) -> float:
        # Above the tail index a moment is infinite, however finite the quadrature looks.
        if p >= 0.999 * self._tail_index:
            return math.inf
        with np.errstate(divide="ignore"):
            logs = np.log(self._survival) + p * np.log(self._grid)
        largest = logs.max()
        integral = np.trapezoid(np.exp(logs - largest), np.log(self._grid))
        return float(np.log(p * integral) + largest) + QUADRATURE_ERROR

    def tail(self, y: Float[np.ndarray, " k"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        # Both fall in y, so that the value at the grid point below is an upper bound.
        below = np.searchsorted(self._grid, y, side="right") - 1
        return self._above(np.maximum(y, 0.0)), self._partial_mean[np.maximum(below, 0)]

    def _above(self, t: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        return self._law.sf(t) + self._law.cdf(-t)

    def _slope_at_the_end(self) -> float:
        """-d log P(|y| > t) / d log t far out: the tail index of a law with a power tail."""
        positive = np.flatnonzero(self._survival > 0)
        last, before = positive[-2], positive[-2 - len(positive) // 50]
        fall = math.log(self._survival[before] / self._survival[last])
        return fall / math.log(self._grid[last] / self._grid[before])


class LabelEnvelope:
    """The envelope offset + slope (|y| + |y'|); see `envelopes.Envelope`.

    Args:
        offset: its constant part.
        slope: per unit of |y| + |y'|; at least zero.
        label: what is known of |y|.
        difference: the envelope is that of a difference, offset + slope |y - y'| <= offset + slope (|y| +
            |y'|), whose second moment is smaller; only used when the offset is zero.
    """

    pointwise = True

    def __init__(self, offset: float, slope: float, label: LabelSize, *, difference: bool = False) -> None:
        self._offset, self._slope, self._label = float(offset), float(slope), label
        self._difference = difference and offset == 0
        self.provenance: Provenance = label.provenance
        self.bound = self._offset + (2 * self._slope * label.bound if slope else 0.0)
        # A variable with |e H| <= c is sub-Gaussian with the constant c, and E exp(H / s) <= 2 for s = c /
        # log 2.
        self.subgaussian = self.bound
        self.subexponential = self.bound / math.log(2)
        self.orders = tuple(
            float(p) for p in range(2, HIGHEST_ORDER + 1) if self.log_moments(float(p)) < math.inf
        )
        if not self.orders:
            candidates = (1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1)
            self.orders = tuple(p for p in candidates if self.log_moments(p) < math.inf)[:1]

    def log_moments(self, p: float) -> float:
        if not float(p).is_integer():
            return self._between(p, self.log_moments, 2)
        sums = [
            _sum_logs([_choose(j, i) + self._size(i) + self._size(j - i) for i in range(j + 1)])
            for j in range(int(p) + 1)
        ]
        if self._difference and p >= 2:
            # Independent copies: E (y - y')^2 = 2 Var(y) <= 2 E y^2.
            sums[2] = min(sums[2], math.log(2) + self._size(2))
        return self._affine(p, self._offset, sums)

    def log_conditional_moments(self, p: float) -> float:
        if not float(p).is_integer():
            return self._between(p, self.log_conditional_moments, 1)
        conditional = self._affine(p, self._centre(), [self._size(j) for j in range(int(p) + 1)])
        return min(conditional, self.log_moments(p))

    def tail(
        self, y: Float[np.ndarray, " k"]
    ) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]] | None:
        centre = self._centre()
        if self._slope == 0:
            above = (np.asarray(y) < centre).astype(float)
            return above, above * centre
        found = self._label.tail((np.asarray(y) - centre) / self._slope)
        if found is None or not math.isfinite(centre):
            return None
        return found[0], centre * found[0] + self._slope * found[1]

    def sample(self, n: int, rng: np.random.Generator) -> None:
        return None

    def _centre(self) -> float:
        """The part of h(x) = E[H | x] that doesn't depend on the label."""
        return self._offset + (self._slope * math.exp(self._size(1)) if self._slope else 0.0)

    def _size(self, p: float) -> float:
        return 0.0 if p == 0 else self._label.log_moments(p)

    def _affine(self, p: float, offset: float, sums: list[float]) -> float:
        """log E (offset + slope A)^p from log E A^j, by the binomial theorem."""
        if offset == 0:
            return p * _log(self._slope) + sums[int(p)] if self._slope else -math.inf
        terms = [
            _choose(int(p), j) + (p - j) * _log(offset) + (j * _log(self._slope) + sums[j] if j else 0.0)
            for j in range(int(p) + 1)
            if j == 0 or self._slope
        ]
        return _sum_logs(terms)

    def _between(self, p: float, integer_moment: Any, copies: int) -> float:
        """A non-integer moment: Minkowski's inequality, or log-convexity between the integers around it."""
        offset = self._offset if copies == 2 else self._centre()
        norm = offset + (copies * self._slope * math.exp(self._size(p) / p) if self._slope else 0.0)
        minkowski = p * _log(norm) if math.isfinite(norm) else math.inf
        low, high = math.floor(p), math.ceil(p)
        below = 0.0 if low == 0 else integer_moment(float(low))
        return min(minkowski, (high - p) * below + (p - low) * integer_moment(float(high)))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _choose(n: int, k: int) -> float:
    return math.log(math.comb(n, k))


def _sum_logs(terms: list[float]) -> float:
    return float(np.logaddexp.reduce(terms))
