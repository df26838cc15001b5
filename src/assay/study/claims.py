"""Claims: sentences about arms and a metric that can be false, stated before the run.

Every kind of claim reduces its trials to an estimate and splits the real line into a region where the claim
holds and one where it fails. `assay.study.verdicts.judge` corrects for the number of claims and says on which
side the interval lies.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from assay.cache import content_hash
from assay.files import as_json
from assay.study.statistics import (
    Estimate,
    MeanEstimate,
    ProportionEstimate,
    cluster_means,
    standardised_effect,
)
from assay.study.trials import FinishedTrial, Scalar, Trial

Where = Mapping[str, Scalar | Collection[Scalar]]
Outcome = Literal["holds", "fails", "inconclusive", "not testable"]


def matches(trial: Trial, where: Where) -> bool:
    """Whether the trial's setting has the wanted value, or one of them, for every name in `where`."""
    for name, wanted in where.items():
        if name not in trial.setting:
            return False
        value = trial.setting[name]
        if isinstance(wanted, Collection) and not isinstance(wanted, str):
            if value not in wanted:
                return False
        elif value != wanted:
            return False
    return True


@dataclass(frozen=True, kw_only=True)
class Precondition:
    """What must be true for a claim to be testable at all, measured in the same run.

    Exactly one of `at_least` and `at_most` bounds the mean of `metric` over the trials of `arm` that match
    `where`.
    """

    says: str
    metric: str
    arm: str
    at_least: float | None = None
    at_most: float | None = None
    where: Where = field(default_factory=dict)

    def __post_init__(self) -> None:
        _exactly_one_bound(self)

    def measure(self, finished: Iterable[FinishedTrial]) -> tuple[float | None, bool]:
        """The measured mean (None without trials) and whether it is within the bound."""
        values = [
            trial.measurements[self.metric]
            for trial in finished
            if trial.arm == self.arm
            and matches(trial.trial, self.where)
            and self.metric in trial.measurements
        ]
        if not values:
            return None, False
        mean = float(np.mean(values))
        return mean, mean >= self.at_least if self.at_least is not None else mean <= (self.at_most or 0.0)

    @property
    def threshold(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


@dataclass(frozen=True)
class Evidence:
    """What the trials say about one claim, before any correction.

    Args:
        estimate: None when the trials give none; `reason` then says why.
        unit: what the estimate is, in words and the metric's unit.
        rows: the trials, or pairs of trials, behind the estimate; `missing` of the planned ones are lacking.
        exact: the outcome of a check without sampling error (`Invariance`), which needs no interval.
    """

    rows: int
    missing: int
    unit: str
    estimate: Estimate | None = None
    reason: str = ""
    effect_size: float | None = None
    treatment_mean: float | None = None
    reference_mean: float | None = None
    exact: tuple[Outcome, float, float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Claim(ABC):
    """What all claims state.

    Args:
        id: a short identifier, unique in its study.
        says: the claim as a sentence that can be false.
        metric: the measurement that it is about.
        where: the settings that it speaks of: name -> value or a collection of values.
        paper: the paper's own number, as text; it is shown beside ours and never mixed with it.
        preconditions: what makes the claim testable at all.
        cluster: the setting whose value names the independent unit of a trial, or `"seed"`.
    """

    kind: ClassVar[str]

    id: str
    says: str
    metric: str
    where: Where = field(default_factory=dict)
    paper: str = ""
    preconditions: Sequence[Precondition] = ()
    cluster: str = "seed"

    @abstractmethod
    def arms(self) -> tuple[str, ...]:
        """The arms that the claim speaks of."""

    @abstractmethod
    def evidence(self, planned: Sequence[Trial], finished: Mapping[str, FinishedTrial]) -> Evidence:
        """Reduce the trials of this claim to an estimate. `finished` holds the successful trials by id."""

    @abstractmethod
    def region(self) -> tuple[float, float]:
        """The open interval of effects in which the claim holds; ends may be infinite."""

    def decide(self, low: float, high: float) -> Outcome:
        """The outcome for an interval [low, high] of the effect."""
        left, right = self.region()
        if left < low and high < right:
            return "holds"
        if high < left or low > right:
            return "fails"
        return "inconclusive"

    def decisive_p(self, estimate: Estimate) -> float:
        """The smallest alpha whose interval decides the claim one way or the other."""
        left, right = self.region()
        if left <= estimate.value <= right:
            return max(estimate.p_value(end) for end in (left, right) if math.isfinite(end))
        return estimate.p_value(left if estimate.value < left else right)

    def facts(self) -> dict[str, Any]:
        """The claim as JSON values, as written into `study.json` before the run."""
        facts = {"kind": self.kind} | {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        facts["region"] = self.region()
        facts["preconditions"] = [dataclasses.asdict(condition) for condition in self.preconditions]
        return as_json(facts)

    def _unit_of(self, trial: Trial) -> Scalar:
        return trial.seed if self.cluster == "seed" else trial.setting[self.cluster]

    def _measured(
        self, arm: str, planned: Sequence[Trial], finished: Mapping[str, FinishedTrial]
    ) -> tuple[list[FinishedTrial], int]:
        """The trials of one arm that have the metric, and how many planned ones lack it."""
        wanted = [trial for trial in planned if trial.arm == arm and matches(trial, self.where)]
        rows = [
            finished[trial.id]
            for trial in wanted
            if trial.id in finished and self.metric in finished[trial.id].measurements
        ]
        return rows, len(wanted) - len(rows)


class _Pair(NamedTuple):
    trial: Trial
    treated: float
    reference: float


@dataclass(frozen=True, kw_only=True)
class _Comparison(Claim):
    """Two arms on equal settings and seeds."""

    treatment: str
    reference: str
    better: Literal["lower", "higher"] = "lower"
    margin: float = 0.0
    relative: bool = False
    overlap: float = 0.0

    def arms(self) -> tuple[str, ...]:
        return self.treatment, self.reference

    def evidence(self, planned: Sequence[Trial], finished: Mapping[str, FinishedTrial]) -> Evidence:
        pairs, missing = self._pairs(planned, finished)
        unit = f"{self.metric}, improvement of {self.treatment} over {self.reference}"
        unit += ", as a share of the reference" if self.relative else ""
        treated, reference = ([getattr(pair, side) for pair in pairs] for side in ("treated", "reference"))
        reason = _no_estimate([*treated, *reference], len(pairs))
        if not reason and self.relative and 0 in reference:
            reason = "the reference is zero, so no share of it exists"
        if reason:
            return Evidence(len(pairs), missing, unit, reason=reason)
        means = Evidence(
            len(pairs),
            missing,
            unit,
            treatment_mean=float(np.mean(treated)),
            reference_mean=float(np.mean(reference)),
        )
        sign = 1 if self.better == "higher" else -1
        effects = [
            sign * (ours - theirs) / (abs(theirs) if self.relative else 1.0)
            for ours, theirs in zip(treated, reference, strict=True)
        ]
        units = cluster_means(effects, [self._unit_of(pair.trial) for pair in pairs])
        if len(units) < 2:
            return dataclasses.replace(means, reason="one unit has no interval; more seeds are needed")
        estimate = MeanEstimate(units, self.overlap)
        return dataclasses.replace(means, estimate=estimate, effect_size=standardised_effect(estimate))

    def _pairs(
        self, planned: Sequence[Trial], finished: Mapping[str, FinishedTrial]
    ) -> tuple[list[_Pair], int]:
        """What was measured in both arms, and how many of the planned pairs were not."""
        treated, reference = (
            {
                (content_hash(dict(trial.setting)), trial.seed): trial
                for trial in planned
                if trial.arm == arm and matches(trial, self.where)
            }
            for arm in self.arms()
        )
        pairs, missing = [], 0
        for cell in [cell for cell in treated if cell in reference]:
            both = [finished.get(side[cell].id) for side in (treated, reference)]
            values = [
                trial.measurements[self.metric]
                for trial in both
                if trial and self.metric in trial.measurements
            ]
            if len(values) == 2:
                pairs.append(_Pair(treated[cell], *values))
            else:
                missing += 1
        return pairs, missing


@dataclass(frozen=True, kw_only=True)
class Difference(_Comparison):
    """The treatment is better than the reference by more than a margin (paired over settings and seeds).

    Args:
        better: which direction of the metric is better.
        margin: the smallest improvement that matters, in the metric's unit, or as a share of the reference's
            value with `relative`. Negative for a claim of non-inferiority.
        overlap: n_test / n_train when seeds are random splits of one data set (see `MeanEstimate`).
    """

    kind = "difference"

    def region(self) -> tuple[float, float]:
        return self.margin, math.inf


@dataclass(frozen=True, kw_only=True)
class Equivalence(_Comparison):
    """The treatment equals the reference within a margin (the whole interval lies within +- margin)."""

    kind = "equivalence"

    def __post_init__(self) -> None:
        if self.margin <= 0:
            raise ValueError(f"claim {self.id}: equivalence needs a margin above 0, got {self.margin}")

    def region(self) -> tuple[float, float]:
        return -self.margin, self.margin


@dataclass(frozen=True, kw_only=True)
class Rate(Claim):
    """A rate is at least, or at most, a value: coverage, false positives, success.

    Args:
        arm: whose rate.
        interval: for a metric that is 0 or 1 in each independent trial, Clopper-Pearson's or Wilson's
            interval. `"clustered"` takes Student's t over the means of the clusters, for rates and for rows
            that share one.
    """

    kind = "rate"

    arm: str
    at_least: float | None = None
    at_most: float | None = None
    interval: Literal["clopper-pearson", "wilson", "clustered"] = "clopper-pearson"

    def __post_init__(self) -> None:
        _exactly_one_bound(self)

    def arms(self) -> tuple[str, ...]:
        return (self.arm,)

    def region(self) -> tuple[float, float]:
        return (self.at_least, math.inf) if self.at_least is not None else (-math.inf, self.at_most or 0.0)

    def decide(self, low: float, high: float) -> Outcome:
        # "At least" includes its bound: a coverage that is exactly the nominal one is enough.
        left, right = self.region()
        if left <= low and high <= right:
            return "holds"
        return super().decide(low, high)

    def evidence(self, planned: Sequence[Trial], finished: Mapping[str, FinishedTrial]) -> Evidence:
        rows, missing = self._measured(self.arm, planned, finished)
        unit = f"rate of {self.metric}"
        values = [row.measurements[self.metric] for row in rows]
        if reason := _no_estimate(values, len(rows)):
            return Evidence(len(rows), missing, unit, reason=reason)
        mean = float(np.mean(values))
        if self.interval == "clustered":
            units = cluster_means(values, [self._unit_of(row.trial) for row in rows])
            if len(units) < 2:
                return Evidence(
                    len(rows), missing, unit, reason="one cluster has no interval; more are needed"
                )
            return Evidence(len(rows), missing, unit, MeanEstimate(units), treatment_mean=mean)
        if any(value not in (0.0, 1.0) for value in values):
            reason = f"{self.metric} is not 0 or 1 in every trial; state the claim with interval='clustered'"
            return Evidence(len(rows), missing, unit, reason=reason)
        estimate = ProportionEstimate(int(sum(values)), len(values), self.interval)
        return Evidence(len(rows), missing, unit, estimate, treatment_mean=mean)


@dataclass(frozen=True, kw_only=True)
class Invariance(Claim):
    """A deviation is zero within a numerical tolerance in every trial; there is no sampling error."""

    kind = "invariance"

    arm: str
    tolerance: float

    def arms(self) -> tuple[str, ...]:
        return (self.arm,)

    def region(self) -> tuple[float, float]:
        # Not the negation: -0.0 would be shown as a number below zero.
        return 0.0 - self.tolerance, self.tolerance

    def evidence(self, planned: Sequence[Trial], finished: Mapping[str, FinishedTrial]) -> Evidence:
        rows, missing = self._measured(self.arm, planned, finished)
        unit = f"largest |{self.metric}|"
        if not rows:
            return Evidence(0, missing, unit, reason="no trial finished")
        sizes = [abs(row.measurements[self.metric]) for row in rows]
        # A NaN deviation is no deviation within the tolerance: `<=` is false for it.
        outcome: Outcome = "holds" if all(size <= self.tolerance for size in sizes) else "fails"
        exact = (outcome, float(np.max(sizes)), float(np.min(sizes)), float(np.max(sizes)))
        return Evidence(len(rows), missing, unit, exact=exact, treatment_mean=float(np.mean(sizes)))


@dataclass(frozen=True, kw_only=True)
class Trend(Claim):
    """A metric rises, or falls, monotonically in a setting.

    The effect is the least-squares slope within each cluster, in the stated direction. With a margin of at
    least 0 the means of the levels must also be monotone for the claim to hold. A negative margin states slow
    change against the direction: `direction="decreasing", margin=-0.1` says that the metric grows by less
        than 0.1 per unit.

    Args:
        over: the setting, a number.
        log: take the slope per e-fold of `over` and not per unit.
    """

    kind = "trend"

    arm: str
    over: str
    direction: Literal["increasing", "decreasing"]
    margin: float = 0.0
    log: bool = False

    def arms(self) -> tuple[str, ...]:
        return (self.arm,)

    def region(self) -> tuple[float, float]:
        return self.margin, math.inf

    def evidence(self, planned: Sequence[Trial], finished: Mapping[str, FinishedTrial]) -> Evidence:
        rows, missing = self._measured(self.arm, planned, finished)
        sign = 1 if self.direction == "increasing" else -1
        unit = (
            f"slope of {self.metric} per {'e-fold' if self.log else 'unit'} of {self.over}, {self.direction}"
        )
        if reason := _no_estimate([row.measurements[self.metric] for row in rows], len(rows)):
            return Evidence(len(rows), missing, unit, reason=reason)
        clusters: dict[Scalar, list[tuple[float, float]]] = {}
        levels: dict[float, list[float]] = {}
        for row in rows:
            level, value = float(row.setting[self.over]), row.measurements[self.metric]
            clusters.setdefault(self._unit_of(row.trial), []).append((level, value))
            levels.setdefault(level, []).append(value)
        slopes = [
            sign * _slope(points, self.log)
            for points in clusters.values()
            if len({level for level, _ in points}) > 1
        ]
        if len(slopes) < 2:
            return Evidence(len(rows), missing, unit, reason="fewer than two clusters have two levels each")
        estimate = MeanEstimate(tuple(slopes))
        reason = ""
        means = [float(np.mean(levels[level])) for level in sorted(levels)]
        if self.margin >= 0 and any(sign * (after - before) < 0 for before, after in pairwise(means)):
            reason = "the means of the levels are not monotone: " + ", ".join(f"{mean:.4g}" for mean in means)
        return Evidence(
            len(rows), missing, unit, estimate, reason, standardised_effect(estimate), float(np.mean(means))
        )


def _no_estimate(values: Sequence[float], rows: int) -> str:
    """Why these measurements give no estimate, or an empty string."""
    if rows == 0:
        return "no trial finished"
    broken = sum(not math.isfinite(value) for value in values)
    return f"{broken} of {len(values)} measurements are not finite" if broken else ""


def _slope(points: Sequence[tuple[float, float]], log: bool) -> float:
    x, y = np.array(points).T
    return float(np.polyfit(np.log(x) if log else x, y, 1)[0])


def _exactly_one_bound(bounded: Precondition | Rate) -> None:
    if (bounded.at_least is None) == (bounded.at_most is None):
        raise ValueError(f"{bounded.says!r}: give exactly one of at_least and at_most")
