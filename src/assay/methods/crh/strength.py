"""How far must one push? Minimal strengths of calibration prompts, and what they say about a new prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy import optimize, special

from assay.errors import InputError
from assay.study.statistics import ProportionEstimate

Outcome = Literal["margin", "generation"]


@dataclass(frozen=True)
class Strengths:
    """Minimal strengths of samples, in the units of the residual stream.

    Attributes:
        values: the smallest strength at which a sample fires; `s_max` where it never did.
        censored: True where a sample did not fire up to `s_max`. Such samples are kept as what they are:
            "more than s_max".
        s_max: the largest strength that was tried.
        outcome: `"margin"`: a sample fires when the model prefers the concept; `"generation"`: when a
            detector finds it in a readable answer.
        grid: strengths at which answers were generated, ascending.
        success, corrupted: the shares of answers at each of them that showed the concept and that were
            gibberish.
    """

    values: Float[np.ndarray, " n"]
    censored: Bool[np.ndarray, " n"]
    s_max: float
    outcome: Outcome = "margin"
    grid: tuple[float, ...] = ()
    success: tuple[float, ...] = ()
    corrupted: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.values) != len(self.censored):
            raise InputError(f"{len(self.values)} strengths but {len(self.censored)} censoring marks")
        if not np.isfinite(self.values).all() or (np.asarray(self.values) < 0).any():
            raise InputError("strengths must be finite and not negative; mark what never fires as censored")


@dataclass(frozen=True)
class Recommendation:
    """A strength for a new prompt of the same kind.

    Whether a prompt fires at all and how far it must be pushed if it does are two answers: an interval over
    both would be unbounded as soon as a few prompts never fire.

    Attributes:
        median: of the calibration samples that fire; infinite when none does.
        low, high: the split-conformal interval for the minimal strength of a new prompt that fires up to
            `s_max`; `high` is infinite where too few samples fire to bound it.
        coverage: what the interval was asked to cover.
        p_never: the share of calibration samples that never fire up to `s_max`.
        p_never_interval: its exact 95% interval (Clopper and Pearson).
        n: calibration samples.
        s_max: the largest strength that was tried.
        best: the gentlest strength at which (within one standard error) most generated answers showed the
            concept; None where none did or none were generated.
        advice: what to do when the measurement was too narrow; empty otherwise.
    """

    median: float
    low: float
    high: float
    coverage: float
    p_never: float
    p_never_interval: tuple[float, float]
    n: int
    s_max: float
    best: float | None
    advice: str

    def strength(self) -> float:
        """The strength to use: the best one by generated answers, else the median, at most `s_max`."""
        return min(self.median, self.s_max) if self.best is None else self.best

    def __str__(self) -> str:
        if math.isinf(self.median):
            return f"strength more than {self.s_max:.3g}; {self.p_never:.0%} of prompts never fire"
        high = "unbounded" if math.isinf(self.high) else f"{self.high:.3g}"
        return (
            f"strength {self.median:.3g} [{self.low:.3g}, {high}]; {self.p_never:.0%} of prompts never fire"
        )


def conformal_interval(values: Sequence[float] | np.ndarray, coverage: float) -> tuple[float, float]:
    """An interval that holds the next exchangeable draw with at least the given probability.

    The order statistics with ranks `floor((n + 1) a / 2)` and `ceil((n + 1) (1 - a / 2))`, a = 1 - coverage
    (Vovk, Gammerman and Shafer, *Algorithmic Learning in a Random World*, 2005). A rank of 0 is the bound 0
    and a rank above n is infinity, so few samples give a wide interval and never a wrong one.

    Args:
        values: not negative; infinite where an event never happened.
        coverage: between 0 and 1.

    Raises:
        InputError: `coverage` is not between 0 and 1, or there are no values.
    """
    if not 0 < coverage < 1:
        raise InputError(f"coverage must be between 0 and 1, got {coverage}")
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    if n == 0:
        raise InputError("there are no calibration samples")
    # Rounding must not move (n + 1) a / 2 across an integer.
    below = math.floor((n + 1) * (1 - coverage) / 2 + 1e-9)
    above = math.ceil((n + 1) * (1 + coverage) / 2 - 1e-9)
    low = 0.0 if below == 0 else float(ordered[below - 1])
    high = math.inf if above > n else float(ordered[above - 1])
    return low, high


def recommend(strengths: Strengths, coverage: float = 0.9) -> Recommendation:
    """The recommendation for a new prompt, exchangeable with the calibration samples.

    The interval is calibrated on the samples that fire. Given that a new prompt fires, it is exchangeable
    with those, so the interval covers its strength with at least the asked probability.

    Raises:
        InputError: see `conformal_interval`.
    """
    fired = np.sort(strengths.values[~strengths.censored])
    n, never = len(strengths.values), int(strengths.censored.sum())
    if never == n > 0:
        low = high = median = math.inf
    else:
        low, high = conformal_interval(fired, coverage)
        # The lower middle value, so that the median is a strength that was measured.
        median = float(fired[(len(fired) - 1) // 2])
    advice = ""
    if never == n:
        advice = f"no sample fires up to {strengths.s_max:.3g}: raise s_max, or choose another layer"
    elif (early := int((strengths.values == 0).sum())) * 2 >= n:
        advice = f"{early} of {n} samples prefer the concept without steering, so their strength is 0"
    elif math.isinf(high):
        needed = math.ceil(2 / (1 - coverage) - 1e-9) - 1
        advice = f"{len(fired)} samples that fire cannot bound a {coverage:.0%} interval; {needed} can"
    interval = ProportionEstimate(never, n).interval(0.05)
    best = _best(strengths)
    return Recommendation(median, low, high, coverage, never / n, interval, n, strengths.s_max, best, advice)


def _best(strengths: Strengths) -> float | None:
    """The smallest strength whose share of successes is within one standard error of the highest.

    Long answers break sooner than the short ones that were tried, so of equals the gentlest is right.
    """
    success, n = np.array(strengths.success), len(strengths.values)
    if len(success) == 0 or success.max() == 0:
        return None
    # The share is shrunk as by one success and one failure, so that an error of zero is never claimed.
    share = (success.max() * n + 1) / (n + 2)
    error = math.sqrt(share * (1 - share) / n)
    return strengths.grid[int(np.argmax(success >= success.max() - error))]


@dataclass(frozen=True)
class AcceleratedModel:
    """`log s* = intercept + features . slopes + scale * noise`, noise standard normal, with censoring.

    For users who have a difference vector for each prompt: its angle to the axis and its length then say more
    than the pooled distribution. Features are standardised with `centre` and `spread`.

    Attributes:
        scores: calibration residuals in units of `scale`, for the conformal interval; infinite above where
            the sample never fired, which can only widen the interval.
    """

    intercept: float
    slopes: Float[np.ndarray, " features"]
    scale: float
    centre: Float[np.ndarray, " features"]
    spread: Float[np.ndarray, " features"]
    scores: Float[np.ndarray, " m"]
    scores_low: Float[np.ndarray, " m"]

    def median(self, features: Float[np.ndarray, "n features"]) -> Float[np.ndarray, " n"]:
        """The median minimal strength of samples."""
        return np.exp(self._location(features))

    def interval(
        self, features: Float[np.ndarray, "n features"], coverage: float = 0.9
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Split-conformal intervals for the minimal strengths of samples."""
        tail = (1 - coverage) / 2
        m = len(self.scores)
        below = math.floor((m + 1) * tail + 1e-9)
        above = math.ceil((m + 1) * (1 - tail) - 1e-9)
        low = -math.inf if below == 0 else float(np.sort(self.scores_low)[below - 1])
        high = math.inf if above > m else float(np.sort(self.scores)[above - 1])
        location = self._location(features)
        with np.errstate(over="ignore"):
            return np.exp(location + self.scale * low), np.exp(location + self.scale * high)

    def _location(self, features: Float[np.ndarray, "n features"]) -> Float[np.ndarray, " n"]:
        standard = (np.asarray(features, dtype=float) - self.centre) / self.spread
        return self.intercept + standard @ self.slopes


def fit_accelerated(
    features: Float[np.ndarray, "n features"],
    strengths: Strengths,
    *,
    seed: int = 0,
    calibration_share: float = 0.5,
    ridge: float = 1.0,
) -> AcceleratedModel:
    """Fit the accelerated-failure-time model on one part of the samples and calibrate it on the other.

    Log-normal maximum likelihood: a sample that never fired contributes the probability of a strength above
    `s_max`, one that fired at once that of a strength below a thousandth of it.

    Args:
        features: e.g. the columns cosine, sine and length of `Cylinder.geometry`.
        strengths: of the same samples.
        seed: of the split.
        calibration_share: of samples, for the interval.
        ridge: precision of a normal prior on the standardised slopes; keeps few samples from separating.

    Raises:
        InputError: fewer than 6 samples, or features of another number of rows, or not finite.
    """
    X = np.asarray(features, dtype=float)
    n = len(strengths.values)
    if X.ndim != 2 or len(X) != n or not np.isfinite(X).all():
        raise InputError(f"features of shape {X.shape} do not describe {n} samples with finite numbers")
    if n < 6:
        raise InputError(f"{n} samples are too few to fit and calibrate; at least 6 are needed")
    order = np.random.default_rng(seed).permutation(n)
    held = max(2, round(n * calibration_share))
    calibration, training = order[:held], order[held:]
    centre = X[training].mean(axis=0)
    spread = X[training].std(axis=0)
    spread = np.where(spread > 1e-12, spread, 1.0)
    floor = strengths.s_max / 1000
    logs = np.log(np.maximum(strengths.values, floor))
    early = strengths.values <= floor
    standard = (X - centre) / spread

    def loss(parameters: np.ndarray) -> float:
        scale = math.exp(parameters[1])
        z = (logs - parameters[0] - standard @ parameters[2:])[training] / scale
        right, left = strengths.censored[training], early[training]
        terms = np.where(
            right, special.log_ndtr(-z), np.where(left, special.log_ndtr(z), -0.5 * z**2 - parameters[1])
        )
        return -float(terms.sum()) + 0.5 * ridge * float(parameters[2:] @ parameters[2:])

    start = np.concatenate(
        [[logs[training].mean(), math.log(logs[training].std() + 0.1)], np.zeros(X.shape[1])]
    )
    # The scale is bounded: with all samples on one side its likelihood has no maximum.
    bounds = [(None, None), (math.log(1e-3), math.log(10.0))] + [(None, None)] * X.shape[1]
    found = optimize.minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    scale = math.exp(found[1])
    residual = (logs - found[0] - standard @ found[2:])[calibration] / scale
    upper = np.where(strengths.censored[calibration], np.inf, residual)
    lower = np.where(early[calibration], -np.inf, residual)
    return AcceleratedModel(float(found[0]), found[2:], scale, centre, spread, upper, lower)
