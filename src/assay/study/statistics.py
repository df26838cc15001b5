"""The statistics behind a verdict: intervals with the p-values that belong to them, clusters, Holm's
correction.

An estimate offers `interval(alpha)` and `p_value(boundary)`, and the two agree: the interval of level 1 -
alpha excludes `boundary` exactly when `p_value(boundary) < alpha`. That is what lets Holm's step-down
procedure, which is stated for p-values, widen the intervals that readers look at.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from scipy import stats


class Estimate(Protocol):
    """A number with its sampling uncertainty."""

    @property
    def value(self) -> float:
        """The point estimate."""
        ...

    @property
    def n(self) -> int:
        """The number of independent units that it rests on."""
        ...

    def interval(self, alpha: float) -> tuple[float, float]:
        """The two-sided interval of level 1 - alpha."""
        ...

    def p_value(self, boundary: float) -> float:
        """The two-sided p-value of the hypothesis that the truth is `boundary`."""
        ...


@dataclass(frozen=True)
class MeanEstimate:
    """Student's t for the mean of independent units.

    Student's t and not a bootstrap, because studies here have 4 to 20 units: at that size bootstrap intervals
    cover less than they say (percentile and BCa alike), and the t-interval is exact for normal units and
    close for others.

    Args:
        units: one number per independent unit.
        overlap: n_test / n_train when the units are random splits of one data set. Such splits share rows, so
            their differences are correlated and the variance of the mean is taken as (1/n + overlap) s^2
            (Nadeau and Bengio, "Inference for the Generalization Error", Machine Learning 52, 2003).
    """

    units: tuple[float, ...]
    overlap: float = 0.0

    @property
    def value(self) -> float:
        return math.fsum(self.units) / len(self.units)

    @property
    def n(self) -> int:
        return len(self.units)

    @property
    def deviation(self) -> float:
        """The standard deviation of the units."""
        return float(np.std(self.units, ddof=1))

    @property
    def _standard_error(self) -> float:
        return self.deviation * math.sqrt(1 / self.n + self.overlap)

    def interval(self, alpha: float) -> tuple[float, float]:
        half = float(stats.t.isf(alpha / 2, self.n - 1)) * self._standard_error
        return self.value - half, self.value + half

    def p_value(self, boundary: float) -> float:
        distance = abs(self.value - boundary)
        if distance == 0:
            return 1.0
        if self._standard_error == 0:
            return 0.0
        return float(2 * stats.t.sf(distance / self._standard_error, self.n - 1))


@dataclass(frozen=True)
class ProportionEstimate:
    """A proportion of independent successes, with Clopper and Pearson's exact interval or Wilson's."""

    successes: int
    n: int
    method: Literal["clopper-pearson", "wilson"] = "clopper-pearson"

    @property
    def value(self) -> float:
        return self.successes / self.n

    def interval(self, alpha: float) -> tuple[float, float]:
        name = "exact" if self.method == "clopper-pearson" else "wilson"
        found = stats.binomtest(self.successes, self.n).proportion_ci(1 - alpha, method=name)
        return float(found.low), float(found.high)

    def p_value(self, boundary: float) -> float:
        if self.method == "wilson":
            deviation = math.sqrt(boundary * (1 - boundary) / self.n)
            if deviation == 0:
                return 1.0 if self.value == boundary else 0.0
            return float(2 * stats.norm.sf(abs(self.value - boundary) / deviation))
        below = float(stats.binom.cdf(self.successes, self.n, boundary))
        above = float(stats.binom.sf(self.successes - 1, self.n, boundary))
        return min(1.0, 2 * min(below, above))


def cluster_means(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[float, ...]:
    """The mean of every cluster, in the order in which the clusters first appear.

    Rows of one cluster (a seed, a series, a concept) are not independent; their means are.
    """
    members: dict[Hashable, list[float]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        members[cluster].append(value)
    return tuple(math.fsum(rows) / len(rows) for rows in members.values())


def standardised_effect(estimate: MeanEstimate, null: float = 0.0) -> float | None:
    """Cohen's d_z of paired units with Hedges' small-sample factor; None when the units do not vary."""
    if estimate.n < 2 or estimate.deviation == 0:
        return None
    freedom = estimate.n - 1
    return (estimate.value - null) / estimate.deviation * (1 - 3 / (4 * freedom - 1) if freedom > 1 else 1.0)


def holm_levels(p_values: Sequence[float], alpha: float) -> list[tuple[float, float]]:
    """Holm's step-down procedure as `(alpha_i, adjusted p_i)` for every p-value.

    `p_i < alpha_i` exactly when Holm rejects hypothesis i at family-wise error `alpha`, so an interval of
    level 1 - alpha_i shows the corrected decision (Holm, Scandinavian Journal of Statistics 6, 1979).
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    levels: list[tuple[float, float]] = [(alpha, 1.0)] * len(p_values)
    level, adjusted, rejecting = alpha, 0.0, True
    for rank, i in enumerate(order):
        remaining = len(p_values) - rank
        if rejecting:
            level = alpha / remaining
        rejecting = rejecting and p_values[i] < level
        adjusted = min(1.0, max(adjusted, remaining * p_values[i]))
        levels[i] = (level, adjusted)
    return levels
