"""Every concentration bound as a rule: when it applies, its radius, and its tail probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from assay.methods.lp_stability import closed_forms, truncation
from assay.methods.lp_stability.units import Units


class Distance(NamedTuple):
    """A radius with what it is made of."""

    value: float
    y_star: float | None = None
    terms: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Rule:
    """One bound.

    Attributes:
        name: as the user selects it.
        lowest, highest: the moment orders it takes, the highest one excluded; None where it takes no order.
        pointwise: whether it needs an envelope for all values of the other units.
        obstacle: why the bound says nothing about these units at this order; empty where it does.
        radius: of units at (delta, p, sided).
        log_tail: of units at (z, p, sided).
    """

    name: str
    pointwise: bool
    obstacle: Callable[[Units, float], str]
    radius: Callable[[Units, float, float, int], Distance]
    log_tail: Callable[[Units, float, float, int], float]
    lowest: float | None = None
    highest: float = math.inf
    label: str = ""

    @property
    def title(self) -> str:
        """The name, with what it uses where several rules share the name."""
        return f"{self.name} ({self.label})" if self.label else self.name

    def orders(self, units: Units, p: float | None) -> tuple[float, ...]:
        """The orders to try: p itself, or all orders of the envelope that the rule takes."""
        if self.lowest is None:
            return (2.0,)
        candidates = units.envelope.orders if p is None else (p,)
        return tuple(order for order in candidates if self.lowest <= order < self.highest)

    def refusal(self, units: Units, p: float | None) -> str:
        """Why the rule cannot be tried at all; empty where it can."""
        if self.pointwise and not units.envelope.pointwise:
            return "needs an envelope that holds pointwise; averaged stability bounds norms only"
        if not self.orders(units, p):
            span = (
                f"p >= {self.lowest:g}"
                if self.highest == math.inf
                else f"{self.lowest:g} <= p < {self.highest:g}"
            )
            return f"needs a moment of order {span}" + (
                f", p is {p:g}" if p is not None else "; none is known"
            )
        return ""


def _moment_obstacle(units: Units, p: float) -> str:
    if not units.log_moment_sum(p) < math.inf:
        return f"E H^{p:g} is infinite or unknown"
    if p >= 2 and not units.variance < math.inf:
        return "E H^2 is infinite or unknown"
    return ""


def _moments_radius(units: Units, delta: float, p: float, sided: int) -> Distance:
    value, level = truncation.moment_radius(delta, units.truncation_sums(p), sided)
    level = float(level)
    log_sum = units.log_moment_sum(p)
    exceedance = math.exp(log_sum - p * math.log(level))
    variance = (
        units.variance if p >= 2 else min(units.variance, math.exp(log_sum + (2 - p) * math.log(level)))
    )
    terms = {
        "jump": exceedance,
        "bennett": delta - exceedance,
        "shift": exceedance * level,
        "variance": variance,
    }
    return Distance(float(value), level, terms)


def _law_obstacle(units: Units, p: float) -> str:
    return "the law of the envelope is unknown" if units.truncation_law is None else ""


def _law_radius(units: Units, delta: float, p: float, sided: int) -> Distance:
    law = units.truncation_law
    assert law is not None
    value, position = truncation.law_radius(delta, law, sided)
    if position is None:
        return Distance(math.inf)
    y, exceedance, shift, variance = (float(part[position]) for part in law)
    return Distance(
        value, y, {"jump": exceedance, "bennett": delta - exceedance, "shift": shift, "variance": variance}
    )


def _law_log_tail(units: Units, z: float, p: float, sided: int) -> float:
    law = units.truncation_law
    assert law is not None
    probability = truncation.law_tail(z, law, sided)
    return math.log(probability) if probability > 0 else -math.inf


def _largest(units: Units) -> float:
    return units.largest_scale * units.envelope.bound


def _bennett_radius(units: Units, delta: float, p: float, sided: int) -> Distance:
    value = float(truncation.bennett_radius(delta, _largest(units), units.variance, sided))
    return Distance(value, _largest(units), {"bennett": delta, "variance": units.variance})


def _paper_radius(units: Units, delta: float, p: float, sided: int) -> Distance:
    log_mp, m2 = _printed_sums(units, p)
    value = float(closed_forms.paper_radius(delta, p, log_mp, m2))
    log_c1, _ = closed_forms.paper_constants(p)
    polynomial = math.exp(min(log_c1 + log_mp - p * math.log(value), 0.0))
    return Distance(value, None, {"polynomial": polynomial, "gaussian": delta - polynomial})


def _printed_sums(units: Units, p: float) -> tuple[float, float]:
    """log M_p and M_2 as the theorem prints them, of H itself; of h, through which its proof passes, where
    only the law of h is known."""
    log_mp = units.log_scale_sum(p) + units.envelope.log_moments(p)
    m2 = math.exp(units.log_pair_square_sum) if units.log_pair_square_sum < 700 else 2 * units.variance
    return (log_mp if log_mp < math.inf else units.log_moment_sum(p)), m2


def _log_norms(units: Units, p: float) -> float:
    return units.log_scale_sum(2) + 2 / p * units.envelope.log_conditional_moments(p)


def _squares(units: Units, constant: float) -> float:
    return math.exp(units.log_scale_sum(2)) * constant**2


def _missing(constant: str, meaning: str) -> Callable[[Units, float], str]:
    def obstacle(units: Units, p: float) -> str:
        return (
            f"no {meaning} of the envelope is known"
            if not getattr(units.envelope, constant) < math.inf
            else ""
        )

    return obstacle


def _bernstein(units: Units) -> tuple[float, float]:
    scale = units.envelope.subexponential
    return _squares(units, scale), units.largest_scale * scale


OPTIMISED = {
    "moments": Rule(
        "optimised",
        True,
        _moment_obstacle,
        _moments_radius,
        lambda units, z, p, sided: float(truncation.moment_log_tail(z, units.truncation_sums(p), sided)[0]),
        lowest=1.0,
        label="moments",
    ),
    "tail": Rule("optimised", True, _law_obstacle, _law_radius, _law_log_tail, label="known law"),
    "bounded": Rule(
        "optimised",
        True,
        _missing("bound", "almost sure bound"),
        _bennett_radius,
        lambda units, z, p, sided: float(
            np.log(truncation.bennett_tail(z, _largest(units), units.variance, sided))
        ),
        label="almost sure bound",
    ),
}

CLASSICAL = {
    "paper": Rule(
        "paper",
        True,
        _moment_obstacle,
        _paper_radius,
        lambda units, z, p, sided: float(closed_forms.paper_log_tail(z, p, *_printed_sums(units, p))),
        lowest=2.0,
    ),
    "paper-lowp": Rule(
        "paper-lowp",
        True,
        _moment_obstacle,
        lambda units, delta, p, sided: Distance(
            float(closed_forms.low_p_radius(delta, p, units.log_moment_sum(p)))
        ),
        lambda units, z, p, sided: float(closed_forms.low_p_log_tail(z, p, units.log_moment_sum(p))),
        lowest=1.0,
        highest=2.0,
    ),
    "rio": Rule(
        "rio",
        False,
        lambda units, p: "" if _log_norms(units, p) < math.inf else f"E H^{p:g} is infinite or unknown",
        lambda units, delta, p, sided: Distance(
            float(closed_forms.rio_radius(delta, p, _log_norms(units, p)))
        ),
        lambda units, z, p, sided: float(closed_forms.rio_log_tail(z, p, _log_norms(units, p))),
        lowest=2.0,
    ),
    "chebyshev": Rule(
        "chebyshev",
        False,
        lambda units, p: "" if units.variance < math.inf else "E H^2 is infinite or unknown",
        lambda units, delta, p, sided: Distance(
            float(closed_forms.chebyshev_radius(delta, units.variance, sided)),
            None,
            {"variance": units.variance},
        ),
        lambda units, z, p, sided: float(closed_forms.chebyshev_log_tail(z, units.variance, sided)),
    ),
    "von-bahr-esseen": Rule(
        "von-bahr-esseen",
        False,
        lambda units, p: "" if units.log_moment_sum(p) < math.inf else f"E H^{p:g} is infinite or unknown",
        lambda units, delta, p, sided: Distance(
            float(closed_forms.von_bahr_esseen_radius(delta, p, units.log_moment_sum(p)))
        ),
        lambda units, z, p, sided: float(
            closed_forms.von_bahr_esseen_log_tail(z, p, units.log_moment_sum(p))
        ),
        lowest=1.0,
        highest=2.0,
    ),
    "mcdiarmid": Rule(
        "mcdiarmid",
        True,
        _missing("bound", "almost sure bound"),
        lambda units, delta, p, sided: Distance(
            float(closed_forms.mcdiarmid_radius(delta, _squares(units, units.envelope.bound), sided))
        ),
        lambda units, z, p, sided: float(
            closed_forms.mcdiarmid_log_tail(z, _squares(units, units.envelope.bound), sided)
        ),
    ),
    "subgaussian": Rule(
        "subgaussian",
        True,
        _missing("subgaussian", "sub-Gaussian diameter"),
        lambda units, delta, p, sided: Distance(
            float(closed_forms.subgaussian_radius(delta, _squares(units, units.envelope.subgaussian), sided))
        ),
        lambda units, z, p, sided: float(
            closed_forms.subgaussian_log_tail(z, _squares(units, units.envelope.subgaussian), sided)
        ),
    ),
    "subexponential": Rule(
        "subexponential",
        True,
        _missing("subexponential", "psi_1 norm"),
        lambda units, delta, p, sided: Distance(
            float(closed_forms.subexponential_radius(delta, *_bernstein(units), sided))
        ),
        lambda units, z, p, sided: float(closed_forms.subexponential_log_tail(z, *_bernstein(units), sided)),
    ),
}
