"""Envelopes whose only random part is the size of a label: offset + slope (|y| + |y'|).

With bounded predictors the analytic envelopes of a linear learner are at most of this form, so that a
declared law, or declared moments, of the label alone settle them, without simulation.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from assay.errors import InputError
from assay.methods.lp_stability.envelopes import Provenance

HIGHEST_ORDER = 12
# Gauss-Legendre panels in log |y|, from and to these logarithms relative to a typical size.
LOG_RANGE = (-30.0, 300.0)
PANEL_WIDTH = 0.05
NODES, WEIGHTS = np.polynomial.legendre.leggauss(4)
SMALLEST_PROBABILITY = 1e-280
# Relative margin of every integral; the quadrature is more accurate, also where a density has a kink.
QUADRATURE_ERROR = 1e-5


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
        edges = typical * np.exp(np.arange(*LOG_RANGE, PANEL_WIDTH))
        # Where the support ends the survival function has a kink, which must not lie inside a panel.
        edges = np.union1d(edges[edges < self.bound], [end for end in ends if 0 < end < math.inf])
        if math.isinf(self.bound):
            # Near underflow a probability is noise, and hides how fast the tail falls.
            edges = edges[self._above(edges) > SMALLEST_PROBABILITY]
        logs, half = np.log(edges), np.diff(np.log(edges)) / 2
        self._edges = edges
        self._nodes = (logs[:-1] + half)[:, None] + half[:, None] * NODES
        with np.errstate(divide="ignore"):
            self._logs = np.log(self._above(np.exp(self._nodes))) + np.log(half[:, None] * WEIGHTS)
        self._tail_index = math.inf if math.isfinite(self.bound) else self._slope_at_the_end()
        self._log_moments: dict[float, float] = {}
        # The integral of the survival function from every edge on.
        panels = np.exp(self._logs + self._nodes).sum(1)
        self._area = (1 + QUADRATURE_ERROR) * np.append(np.cumsum(panels[::-1])[::-1], 0.0)

    def log_moments(self, p: float) -> float:
        # Above the tail index a moment is infinite, however finite the quadrature looks.
        if p >= 0.999 * self._tail_index:
            return math.inf
        if p not in self._log_moments:
            integral: Any = logsumexp(self._logs + p * self._nodes)
            self._log_moments[p] = math.log(p) + float(integral) + QUADRATURE_ERROR
        return self._log_moments[p]

    def tail(self, y: Float[np.ndarray, " k"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        # E[|Y|; |Y| > y] = y P(|Y| > y) + the integral from y on. The integral is convex in y, so that
        # interpolation between grid points bounds it from above.
        y = np.maximum(y, 0.0)
        above = self._above(y)
        return above, y * above + np.interp(y, self._edges, self._area, right=0.0)

    def _above(self, t: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        with np.errstate(all="ignore"):
            return self._law.sf(t) + self._law.cdf(-t)

    def _slope_at_the_end(self) -> float:
        """-d log P(|Y| > t) / d log t far out: the tail index of a law with a power tail."""
        last, before = self._edges[-1], self._edges[-1 - round(1 / PANEL_WIDTH)]
        survival = self._above(np.array([before, last]))
        return float(np.log(survival[0] / survival[1]) / np.log(last / before))


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
        self._log_moments: dict[tuple[float, bool], float] = {}
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
        return self._known(p, conditional=False)

    def log_conditional_moments(self, p: float) -> float:
        return min(self._known(p, conditional=True), self.log_moments(p))

    def _known(self, p: float, conditional: bool) -> float:
        if (p, conditional) not in self._log_moments:
            if float(p).is_integer():
                moment = self._conditional_moment if conditional else self._pair_moment
                self._log_moments[p, conditional] = moment(int(p))
            else:
                self._log_moments[p, conditional] = self._between(p, conditional)
        return self._log_moments[p, conditional]

    def _pair_moment(self, p: int) -> float:
        sums = [
            _sum_logs([_choose(j, i) + self._product(i, j - i) for i in range(j + 1)]) for j in range(p + 1)
        ]
        if self._difference and p >= 2:
            # Independent copies: E (y - y')^2 = 2 Var(y) <= 2 E y^2.
            sums[2] = min(sums[2], math.log(2) + self._size(2))
        return self._affine(p, self._offset, sums)

    def _conditional_moment(self, p: int) -> float:
        return self._affine(p, self._centre(), [self._size(j) for j in range(p + 1)])

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

    def _product(self, i: int, j: int) -> float:
        """log E|y|^i E|y'|^j; a label that is zero makes it zero, whatever is unknown of the other factor."""
        sizes = self._size(i), self._size(j)
        return -math.inf if -math.inf in sizes else sum(sizes)

    def _size(self, p: float) -> float:
        return 0.0 if p == 0 else self._label.log_moments(p)

    def _affine(self, p: int, offset: float, sums: list[float]) -> float:
        """log E (offset + slope A)^p from log E A^j, by the binomial theorem."""
        if offset == 0:
            return p * _log(self._slope) + sums[p] if self._slope else -math.inf
        terms = [
            _choose(p, j) + (p - j) * _log(offset) + (j * _log(self._slope) + sums[j] if j else 0.0)
            for j in range(p + 1)
            if j == 0 or self._slope
        ]
        return _sum_logs(terms)

    def _between(self, p: float, conditional: bool) -> float:
        """A non-integer moment: Minkowski's inequality, or log-convexity between the integers around it."""
        offset, copies = (self._centre(), 1) if conditional else (self._offset, 2)
        norm = offset + (copies * self._slope * math.exp(self._size(p) / p) if self._slope else 0.0)
        minkowski = p * _log(norm) if math.isfinite(norm) else math.inf
        low, high = math.floor(p), math.ceil(p)
        below = 0.0 if low == 0 else self._known(float(low), conditional)
        return min(minkowski, (high - p) * below + (p - low) * self._known(float(high), conditional))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _choose(n: int, k: int) -> float:
    return math.log(math.comb(n, k))


def _sum_logs(terms: list[float]) -> float:
    """log of the sum of exponentials, also of infinite ones."""
    largest = max(terms)
    if math.isinf(largest):
        return largest
    return largest + math.log(sum(math.exp(term - largest) for term in terms))
