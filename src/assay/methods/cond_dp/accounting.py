"""What a run costs: closed forms, dp-accounting's privacy loss distributions, and the report of a model.

A noise multiplier `sigma` is always in units of the clipping norm R: the noise on a sum of clipped gradients
has the standard deviation sigma R. Its sensitivity is R when a row is added or removed, and 2 R when a row,
or only its label, is replaced: two clipped gradients may point in opposite directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from scipy.optimize import brentq
from scipy.special import log_ndtr

from assay.errors import InputError, require
from assay.files import as_json

Adjacency = Literal["replace_label", "add_remove", "semi_sensitive"]
Sampling = Literal["full", "poisson"]

# In units of the clipping norm.
SENSITIVITY: Mapping[Adjacency, float] = {"replace_label": 2.0, "semi_sensitive": 2.0, "add_remove": 1.0}
WHAT_CHANGES: Mapping[Adjacency, str] = {
    "replace_label": "replacing ONE LABEL",
    "semi_sensitive": "replacing the private features and the label of ONE ROW",
    "add_remove": "adding or removing ONE ROW",
}
# Privacy losses are rounded up to multiples of this: the larger it is, the larger (never smaller) epsilon.
LOSS_INTERVAL = 1e-4
COARSE_INTERVAL = 1e-3
RELATIVE_TOLERANCE = 1e-4
LARGEST_SIGMA = 1e8


def check_budget(epsilon: float, delta: float) -> None:
    """Raise an InputError unless epsilon > 0 (infinity means no noise) and 0 < delta < 1."""
    if not (_is_number(epsilon) and epsilon > 0):
        raise InputError(f"epsilon is {epsilon!r}: pass a number above 0 (infinity for no privacy)")
    if not (_is_number(delta) and 0 < delta < 1):
        raise InputError(f"delta is {delta!r}: pass a number between 0 and 1, well below 1 / rows")


def check_adjacency(adjacency: str) -> None:
    """Raise an InputError unless it is one of the neighbour relations."""
    if adjacency not in get_args(Adjacency):
        raise InputError(f"adjacency is {adjacency!r}: choose one of {', '.join(get_args(Adjacency))}")


def check_sampling(sampling: str, sample_rate: float) -> None:
    """Raise an InputError unless the sampling is one that can be accounted for at this rate."""
    if sampling not in get_args(Sampling):
        raise InputError(
            f"sampling is {sampling!r}: choose full or poisson (shuffled batches of a fixed size have no "
            "amplification that could be accounted for)"
        )
    if not (_is_number(sample_rate) and 0 < sample_rate <= 1):
        raise InputError(f"sample_rate is {sample_rate!r}: pass a number above 0, at most 1")
    if sampling == "full" and sample_rate != 1:
        raise InputError(f"sampling 'full' uses every row in every step, but sample_rate is {sample_rate}")


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The smallest delta at which a mechanism with mu-Gaussian differential privacy has this epsilon.

    Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2).

    Source: Balle and Wang (2018), Theorem 8; Dong, Roth and Su (2022), Corollary 2.13.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    first = log_ndtr(-epsilon / mu + mu / 2)
    second = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return float(math.exp(first) * -math.expm1(min(second - first, 0.0)))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of a Gaussian mechanism that spends exactly (epsilon, delta).

    One release of a statistic with sensitivity s needs noise of standard deviation s / mu; T releases need
    s sqrt(T) / mu. An infinite epsilon gives an infinite mu: no noise.

    Raises:
        InputError: epsilon or delta is out of range.
    """
    check_budget(epsilon, delta)
    if math.isinf(epsilon):
        return math.inf

    def excess(log_mu: float) -> float:
        return gaussian_delta(epsilon, math.exp(log_mu)) - delta

    low, high = -30.0, 1.0
    while excess(high) < 0:
        high += 1.0
    # A little less than the root: rounding must not spend more than was asked for.
    return math.exp(brentq(excess, low, high, xtol=1e-13)) * (1 - 1e-10)  # pyright: ignore[reportOperatorIssue, reportArgumentType]


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The epsilon of a mechanism with mu-Gaussian differential privacy at this delta: `gaussian_mu`
    undone."""
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, mu) > delta:
        high *= 2
    root: Any = brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, high, xtol=1e-13)
    return float(root)


def gaussian_epsilon(sigma: float, steps: int, delta: float, *, sensitivity: float = 1.0) -> float:
    """The exact epsilon of `steps` Gaussian releases of all rows (no sampling).

    Args:
        sigma: the noise's standard deviation in units of the clipping norm.
        steps: the number of releases.
        delta: the failure probability.
        sensitivity: in units of the clipping norm: 1 for adding or removing a row, 2 for replacing one.

    Raises:
        InputError: an argument is out of range.

    Source: composition of Gaussian mechanisms (Dong, Roth and Su, 2022, Corollary 3.3) and `gaussian_delta`.
    """
    check_budget(1.0, delta)
    _check_noise(sigma, steps)
    return epsilon_of_mu(_mu_of(sigma, steps, sensitivity), delta)


@dataclass(frozen=True)
class NoisySteps:
    """A number of equal steps of DP-SGD: what an accountant's history consists of.

    Args:
        sigma: noise multiplier, in units of the clipping norm.
        sample_rate: probability of a row to be in a step's batch; 1 for all rows.
        steps: how many such steps.
    """

    sigma: float
    sample_rate: float
    steps: int


def epsilon_spent(
    history: Sequence[NoisySteps],
    delta: float,
    adjacency: Adjacency,
    *,
    sensitivity: float | None = None,
    loss_interval: float = LOSS_INTERVAL,
) -> float:
    """The epsilon that a history of steps has cost for a neighbour relation.

    Steps over all rows are composed exactly; as soon as one step samples, dp-accounting composes the privacy
    loss distributions of all of them, with REPLACE_ONE for the relations that replace.

    Args:
        history: the steps, in any order.
        delta: the failure probability.
        adjacency: what changes between neighbours.
        sensitivity: of steps over all rows, in units of the clipping norm; None for that of the relation. A
            smaller one must be proven (`linear.label_sensitivity`).
        loss_interval: the discretisation of privacy losses; rounding is upwards.

    Raises:
        InputError: an argument is out of range.
    """
    check_adjacency(adjacency)
    check_budget(1.0, delta)
    history = [entry for entry in history if entry.steps > 0]
    for entry in history:
        _check_noise(entry.sigma, entry.steps)
        check_sampling("poisson", entry.sample_rate)
    if not history:
        return 0.0
    if any(entry.sigma == 0 for entry in history):
        return math.inf
    if all(entry.sample_rate == 1 for entry in history):
        s = SENSITIVITY[adjacency] if sensitivity is None else sensitivity
        return epsilon_of_mu(math.sqrt(sum(_mu_of(e.sigma, e.steps, s) ** 2 for e in history)), delta)
    return _sampled_epsilon(history, delta, adjacency, loss_interval)


def calibrate(
    epsilon: float,
    delta: float,
    steps: int,
    *,
    adjacency: Adjacency = "replace_label",
    sampling: Sampling = "full",
    sample_rate: float = 1.0,
    sensitivity: float | None = None,
) -> float:
    """The smallest noise multiplier with which `steps` steps cost at most (epsilon, delta).

    Args:
        epsilon: the budget; infinity gives 0.
        delta: the failure probability.
        steps: steps of the optimiser, all of which are counted.
        adjacency: what changes between neighbours.
        sampling: `"full"`, every row in every step; `"poisson"`, every row with probability `sample_rate`.
        sample_rate: see `sampling`.
        sensitivity: see `epsilon_spent`.

    Returns:
        sigma, in units of the clipping norm. Exact for full batches, within 0.01% above for sampled ones.

    Raises:
        InputError: an argument is out of range.
    """
    check_budget(epsilon, delta)
    check_adjacency(adjacency)
    check_sampling(sampling, sample_rate)
    _check_noise(1.0, steps)
    if math.isinf(epsilon):
        return 0.0
    s = SENSITIVITY[adjacency] if sensitivity is None else sensitivity
    exact = math.sqrt(steps) * s / gaussian_mu(epsilon, delta)
    if sampling == "full" or sample_rate == 1:
        return exact

    def cost(sigma: float, interval: float) -> float:
        return epsilon_spent(
            [NoisySteps(sigma, sample_rate, steps)], delta, adjacency, loss_interval=interval
        )

    # Sampling never costs more than using all rows, so `exact` is enough; halve until it is not.
    high, interval = exact, min(COARSE_INTERVAL, epsilon / 100)
    low = high / 2
    while cost(low, interval) <= epsilon:
        high, low = low, low / 2
    while high / low > 1 + RELATIVE_TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle, interval) <= epsilon else (middle, high)
    # The search ran on a coarse grid; what counts is the cost that will be reported.
    while cost(high, LOSS_INTERVAL) > epsilon:
        high *= 1 + RELATIVE_TOLERANCE
    return high


@dataclass(frozen=True)
class PrivacyReport:
    """What a private model guarantees, in numbers and in a sentence. It holds nothing computed from labels.

    Args:
        mechanism: what was done, e.g. "64 steps of DP-Adam on all rows".
        adjacency: the neighbour relation for which the guarantee is meant.
        epsilon: the cost for each neighbour relation that can be stated; at least for `adjacency`.
        delta: the failure probability; 0 for pure differential privacy.
        public: what the guarantee treats as public knowledge, as noun phrases.
        sigma: noise multiplier in units of the clipping norm; None where there is no such thing.
        clip: the clipping norm.
        steps: number of releases.
        sampling: how the rows of a step are chosen.
        sample_rate: the probability of a row to be in a step.
        sensitivity: of one step in units of the clipping norm.
        notes: further sentences that a reader must know.
    """

    mechanism: str
    adjacency: Adjacency
    epsilon: Mapping[Adjacency, float]
    delta: float
    public: tuple[str, ...]
    sigma: float | None = None
    clip: float | None = None
    steps: int = 1
    sampling: Sampling = "full"
    sample_rate: float = 1.0
    sensitivity: float | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        if self.adjacency not in self.epsilon:
            raise InputError(f"the report states no epsilon for its own adjacency {self.adjacency!r}")

    @property
    def statement(self) -> str:
        """The guarantee as a paragraph."""
        epsilon = self.epsilon[self.adjacency]
        if math.isinf(epsilon):
            first = "NOT PRIVATE: no noise was added (epsilon is infinite)."
        else:
            first = (
                f"({_rounded_up(epsilon)}, {self.delta:g})-DP with respect to "
                f"{WHAT_CHANGES[self.adjacency]}; "
                f"{_listed(self.public)} are treated as public."
            )
        return " ".join([first, f"Mechanism: {self.mechanism}.", *self.notes])

    def to_json(self) -> dict[str, Any]:
        """The report as strict JSON values, with the statement."""
        names = tuple(name for name in self.__dataclass_fields__)
        return {"statement": self.statement} | as_json({name: getattr(self, name) for name in names})

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PrivacyReport:
        """Read what `to_json` wrote.

        Raises:
            InputError: a field is missing or unknown.
        """
        values = {name: value for name, value in document.items() if name != "statement"}
        try:
            values["epsilon"] = {name: float(value) for name, value in values["epsilon"].items()}
            values |= {name: tuple(values[name]) for name in ("public", "notes")}
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"not a privacy report ({type(error).__name__}: {error})") from error


def replacement_epsilons(
    history: Sequence[NoisySteps], delta: float, adjacency: Adjacency, sensitivity: float | None = None
) -> dict[Adjacency, float]:
    """The cost for the relation that is meant, and the add-or-remove figure that other software prints."""
    costs: dict[Adjacency, float] = {
        adjacency: epsilon_spent(history, delta, adjacency, sensitivity=sensitivity)
    }
    costs.setdefault("add_remove", epsilon_spent(history, delta, "add_remove"))
    return costs


def _sampled_epsilon(
    history: Sequence[NoisySteps], delta: float, adjacency: Adjacency, interval: float
) -> float:
    pld: Any = require("dp_accounting.pld.privacy_loss_distribution", extra="privacy")
    relations: Any = require("dp_accounting", extra="privacy").NeighboringRelation
    relation = relations.ADD_OR_REMOVE_ONE if adjacency == "add_remove" else relations.REPLACE_ONE
    total: Any = None
    for entry in history:
        steps = pld.from_gaussian_mechanism(
            entry.sigma,
            sampling_prob=entry.sample_rate,
            neighboring_relation=relation,
            value_discretization_interval=interval,
        ).self_compose(entry.steps)
        total = steps if total is None else total.compose(steps)
    return float(total.get_epsilon_for_delta(delta))


def _mu_of(sigma: float, steps: int, sensitivity: float) -> float:
    return math.inf if sigma == 0 else math.sqrt(steps) * sensitivity / sigma


def _check_noise(sigma: float, steps: int) -> None:
    if not (_is_number(sigma) and 0 <= sigma <= LARGEST_SIGMA):
        raise InputError(f"sigma is {sigma!r}: pass a noise multiplier from 0 to {LARGEST_SIGMA:g}")
    if not (isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1):
        raise InputError(f"steps is {steps!r}: pass a whole number >= 1")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _rounded_up(epsilon: float) -> str:
    """Four significant digits, never below the value; a calibrated budget is written as it was asked for."""
    digits = 3 - math.floor(math.log10(epsilon)) if epsilon > 0 else 3
    # The root-finding's own tolerance is no reason to print 1.001 for a budget of 1.
    return f"{math.ceil(epsilon * 10**digits * (1 - 1e-9)) / 10**digits:g}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
