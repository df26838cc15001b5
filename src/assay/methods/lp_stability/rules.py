"""Every concentration bound as a rule: when it applies, its radius, and its tail probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from assay.methods.lp_stability import closed_forms, fuk_nagaev, known_law, truncation
from assay.methods.lp_stability.truncation import Array, TruncationSums
from assay.methods.lp_stability.units import Units

Orders = tuple[float, ...]


class Distance(NamedTuple):
    """A radius with what it is made of."""

    value: float
    p: float | None = None
    y_star: float | None = None
    terms: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Rule:
    """One bound.

    Attributes:
        name: as the user selects it.
        pointwise: whether it needs an envelope for all values of the other units.
        obstacle: why the bound says nothing at this order; empty where it does.
        radius: the least over the orders at (units, delta, orders, sided).
        log_tail: the least over the orders at (units, z, orders, sided).
        lowest, highest: the moment orders that it takes, the highest one excluded; None where it takes no
            order.
        label: what it uses, where several rules share a name.
    """

    name: str
    pointwise: bool
    obstacle: Callable[[Units, float], str]
    radius: Callable[[Units, float, Orders, int], Distance]
    log_tail: Callable[[Units, float, Orders, int], float]
    lowest: float | None = None
    highest: float = math.inf
    label: str = ""

    @property
    def title(self) -> str:
        """The name, with what it uses where several rules share the name."""
        return f"{self.name} ({self.label})" if self.label else self.name

    def orders(self, units: Units, p: float | None) -> tuple[Orders, str]:
        """The orders at which the rule applies, p or all of the envelope's; and why there are none if so."""
        if self.pointwise and not units.envelope.pointwise:
            return (), "needs an envelope that holds pointwise; averaged stability bounds norms only"
        if self.lowest is None:
            candidates: Orders = (2.0,)
        else:
            wanted = units.envelope.orders if p is None else (p,)
            candidates = tuple(order for order in wanted if self.lowest <= order < self.highest)
            if not candidates:
                span = "p >= 2" if self.lowest == 2 else "1 < p < 2" if self.highest == 2 else "p > 1"
                return (), f"needs a moment of order {span}" + (f", p is {p:g}" if p else "; none is known")
        obstacles = [self.obstacle(units, order) for order in candidates]
        usable = tuple(order for order, why in zip(candidates, obstacles, strict=True) if not why)
        return usable, "" if usable else obstacles[0]


def _each_order(
    radius: Callable[[Units, float, float, int], Array], log_tail: Callable[[Units, float, float, int], Array]
) -> tuple[Callable[[Units, float, Orders, int], Distance], Callable[[Units, float, Orders, int], float]]:
    """The least over the orders of functions of one order."""

    def least_radius(units: Units, delta: float, orders: Orders, sided: int) -> Distance:
        return min(Distance(float(radius(units, delta, p, sided)), p) for p in orders)

    def least_log_tail(units: Units, z: float, orders: Orders, sided: int) -> float:
        return min(float(log_tail(units, z, p, sided)) for p in orders)

    return least_radius, least_log_tail


def _without_order(
    radius: Callable[[Units, float, int], Array], log_tail: Callable[[Units, float, int], Array]
) -> tuple[Callable[[Units, float, Orders, int], Distance], Callable[[Units, float, Orders, int], float]]:
    """Functions that take no order."""
    return (
        lambda units, delta, orders, sided: Distance(float(radius(units, delta, sided))),
        lambda units, z, orders, sided: float(log_tail(units, z, sided)),
    )


def _moment_obstacle(units: Units, p: float) -> str:
    if not units.log_moment_sum(p) < math.inf:
        return f"E H^{p:g} is infinite or unknown"
    return _variance_obstacle(units, p) if p >= 2 else ""


def _variance_obstacle(units: Units, p: float) -> str:
    return "" if units.variance < math.inf else "E H^2 is infinite or unknown"


def _missing(constant: str, meaning: str) -> Callable[[Units, float], str]:
    def obstacle(units: Units, p: float) -> str:
        return (
            f"no {meaning} of the envelope is known"
            if not getattr(units.envelope, constant) < math.inf
            else ""
        )

    return obstacle


def _sums(units: Units, orders: Orders) -> TruncationSums:
    log_sums = np.array([units.log_moment_sum(p) for p in orders])
    return TruncationSums(np.array(orders), log_sums, log_sums, units.variance)


def _moments_radius(units: Units, delta: float, orders: Orders, sided: int) -> Distance:
    values, levels = (
        np.atleast_1d(part) for part in fuk_nagaev.moment_radius(delta, _sums(units, orders), sided)
    )
    best = int(np.argmin(values))
    p, y = orders[best], float(levels[best])
    jump = math.exp(units.log_moment_sum(p) - p * math.log(y))
    terms = {"jump": jump, "exponential": delta - jump, "shift": jump * y, "variance": units.variance}
    return Distance(float(values[best]), p, y, terms)


def _law(units: Units) -> known_law.TruncationLaw:
    law = units.truncation_law
    assert law is not None, "the rule's obstacle lets only known laws through"
    return law


def _law_radius(units: Units, delta: float, orders: Orders, sided: int) -> Distance:
    law = _law(units)
    value, position = known_law.radius(delta, law, sided)
    if position is None:
        return Distance(math.inf)
    jump = float(law.exceedance[position])
    terms = {
        "jump": jump,
        "exponential": delta - jump,
        "shift": float(law.shift[position]),
        "variance": units.variance,
    }
    return Distance(value, None, float(law.y[position]), terms)


def _largest(units: Units) -> float:
    return units.largest_scale * units.envelope.bound


def _bennett_radius(units: Units, delta: float, orders: Orders, sided: int) -> Distance:
    value = float(truncation.bennett_radius(delta, _largest(units), units.variance, sided))
    return Distance(value, None, _largest(units), {"exponential": delta, "variance": units.variance})


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


def _bernstein(units: Units) -> tuple[float, float]:
    scale = units.envelope.subexponential
    return _squares(units, scale), units.largest_scale * scale


OPTIMISED = {
    "moments": Rule(
        "optimised",
        True,
        _moment_obstacle,
        _moments_radius,
        lambda units, z, orders, sided: fuk_nagaev.moment_log_tail(z, _sums(units, orders), sided),
        lowest=1.0,
        label="moments",
    ),
    "tail": Rule(
        "optimised",
        True,
        lambda units, p: "the law of the envelope is unknown" if units.truncation_law is None else "",
        _law_radius,
        lambda units, z, orders, sided: known_law.log_tail(z, _law(units), sided),
        label="known law",
    ),
    "bounded": Rule(
        "optimised",
        True,
        _missing("bound", "almost sure bound"),
        _bennett_radius,
        lambda units, z, orders, sided: float(
            truncation.bennett_log_tail(z, _largest(units), units.variance, sided)
        ),
        label="almost sure bound",
    ),
}

CLASSICAL = {
    "paper": Rule(
        "paper",
        True,
        _moment_obstacle,
        *_each_order(
            lambda units, delta, p, sided: closed_forms.paper_radius(delta, p, *_printed_sums(units, p)),
            lambda units, z, p, sided: closed_forms.paper_log_tail(z, p, *_printed_sums(units, p)),
        ),
        lowest=2.0,
    ),
    "paper-lowp": Rule(
        "paper-lowp",
        True,
        _moment_obstacle,
        *_each_order(
            lambda units, delta, p, sided: closed_forms.low_p_radius(delta, p, units.log_moment_sum(p)),
            lambda units, z, p, sided: closed_forms.low_p_log_tail(z, p, units.log_moment_sum(p)),
        ),
        lowest=1.0,
        highest=2.0,
    ),
    "rio": Rule(
        "rio",
        False,
        _moment_obstacle,
        *_each_order(
            lambda units, delta, p, sided: closed_forms.rio_radius(delta, p, _log_norms(units, p)),
            lambda units, z, p, sided: closed_forms.rio_log_tail(z, p, _log_norms(units, p)),
        ),
        lowest=2.0,
    ),
    "chebyshev": Rule(
        "chebyshev",
        False,
        _variance_obstacle,
        *_without_order(
            lambda units, delta, sided: closed_forms.chebyshev_radius(delta, units.variance, sided),
            lambda units, z, sided: closed_forms.chebyshev_log_tail(z, units.variance, sided),
        ),
    ),
    "von-bahr-esseen": Rule(
        "von-bahr-esseen",
        False,
        _moment_obstacle,
        *_each_order(
            lambda units, delta, p, sided: closed_forms.von_bahr_esseen_radius(
                delta, p, units.log_moment_sum(p)
            ),
            lambda units, z, p, sided: closed_forms.von_bahr_esseen_log_tail(z, p, units.log_moment_sum(p)),
        ),
        lowest=1.0,
        highest=2.0,
    ),
    "mcdiarmid": Rule(
        "mcdiarmid",
        True,
        _missing("bound", "almost sure bound"),
        *_without_order(
            lambda units, delta, sided: closed_forms.mcdiarmid_radius(
                delta, _squares(units, units.envelope.bound), sided
            ),
            lambda units, z, sided: closed_forms.mcdiarmid_log_tail(
                z, _squares(units, units.envelope.bound), sided
            ),
        ),
    ),
    "subgaussian": Rule(
        "subgaussian",
        True,
        _missing("subgaussian", "sub-Gaussian diameter"),
        *_without_order(
            lambda units, delta, sided: closed_forms.subgaussian_radius(
                delta, _squares(units, units.envelope.subgaussian), sided
            ),
            lambda units, z, sided: closed_forms.subgaussian_log_tail(
                z, _squares(units, units.envelope.subgaussian), sided
            ),
        ),
    ),
    "subexponential": Rule(
        "subexponential",
        True,
        _missing("subexponential", "psi_1 norm"),
        *_without_order(
            lambda units, delta, sided: closed_forms.subexponential_radius(delta, *_bernstein(units), sided),
            lambda units, z, sided: closed_forms.subexponential_log_tail(z, *_bernstein(units), sided),
        ),
    ),
}
