"""How far a statistic of independent units strays from its mean: radii and tail probabilities.

`radius` answers for one statistic with everything that is known of its envelope, `radii` for arrays of error
probabilities, sample sizes and moments at once. `tail` is the inverse of `radius`. Radii are deterministic
functions of the declared quantities, so the least of several ("best") costs no union bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.lp_stability import closed_forms, fuk_nagaev, truncation
from assay.methods.lp_stability.envelopes import Envelope, Provenance, as_envelope
from assay.methods.lp_stability.rules import CLASSICAL, OPTIMISED, Distance, Rule
from assay.methods.lp_stability.units import Units

Bound = Literal[
    "best",
    "optimised",
    "paper",
    "paper-lowp",
    "rio",
    "chebyshev",
    "von-bahr-esseen",
    "mcdiarmid",
    "subgaussian",
    "subexponential",
]
Level = Literal["auto", "moments", "tail", "bounded"]
ArrayBound = Literal["best", "optimised", "paper", "rio", "chebyshev"]


@dataclass(frozen=True)
class Radius:
    """P(f - Ef >= value) <= delta (one-sided) or P(|f - Ef| >= value) <= delta (two-sided).

    Attributes:
        value: the radius, in the units of f; infinite where no bound is valid.
        bound: the bound that gave it.
        p: the moment order that it used, where it uses one.
        y_star: its truncation level, in the units of f.
        terms: what delta and the radius are made of: "jump" T(y), "bennett" the exponential term, "shift"
            b(y), "variance" V; "polynomial" and "gaussian" for the printed theorem.
        sided: 1 or 2.
        provenance: of the envelope; a radius from an "estimated" one is an estimate, not a guarantee.
        reason: why the value is infinite; empty where it is finite.
    """

    value: float
    bound: str
    p: float | None = None
    y_star: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    sided: int = 1
    provenance: Provenance = "analytic"
    reason: str = ""


def check_delta(delta: float, name: str = "delta") -> float:
    """`delta` itself.

    Raises:
        InputError: it is not strictly between 0 and 1.
    """
    if not (isinstance(delta, int | float | np.floating) and 0 < delta < 1):
        raise InputError(f"{name} is {delta!r}; an error probability lies strictly between 0 and 1")
    return float(delta)


def radius(
    envelope: Envelope | Mapping[float, float],
    n: int,
    delta: float,
    *,
    p: float | Literal["auto"] = "auto",
    bound: Bound = "best",
    sided: Literal[1, 2] = 1,
    level: Level = "auto",
    scales: Float[np.ndarray, " n"] | None = None,
) -> Radius:
    """The radius at confidence 1 - delta.

    Args:
        envelope: of one unit; a mapping {p: E H^p} stands for stated moments.
        n: number of independent units.
        delta: error probability.
        p: moment order, above 1; "auto" takes the best of the envelope's orders.
        bound: "best" is the least of all that apply; "optimised" the truncation bound with optimised
            constants; "paper" Theorem 2.2 and "paper-lowp" Theorem 2.6 with the printed constants;
            "chebyshev" is Cantelli's inequality when one-sided.
        sided: 1 for f - Ef, 2 for |f - Ef|. Rio, von Bahr-Esseen and the printed theorems are two-sided
            anyway.
        level: what the optimised bound may use: the moments, the known law of h ("tail"), the almost sure
            bound ("bounded"), or the best of what there is ("auto").
        scales: unit i has the envelope scales[i] H; all ones if not given.

    Returns:
        The radius; infinite, with the reason, where no selected bound applies.

    Raises:
        InputError: a value is out of range; the message names it.
    """
    units, order = _checked(envelope, n, p, sided, scales)
    delta = check_delta(delta)
    provenance = units.envelope.provenance
    if units.constant:
        return Radius(0.0, bound, sided=sided, provenance=provenance)
    best, name, reasons = Distance(math.inf), bound, []
    for rule in _selected(bound, level):
        orders, why_not = rule.orders(units, order)
        found = rule.radius(units, delta, orders, sided) if orders else Distance(math.inf)
        if found.value < best.value:
            best, name = found, rule.name
        elif found.value == math.inf:
            reasons.append(f"{rule.title}: {why_not or 'no finite radius at this delta'}")
    if best.value == math.inf:
        return Radius(math.inf, bound, sided=sided, provenance=provenance, reason="; ".join(reasons))
    return Radius(best.value, name, best.p, best.y_star, best.terms, sided, provenance)


def tail(
    z: float,
    envelope: Envelope | Mapping[float, float],
    n: int,
    *,
    p: float | Literal["auto"] = "auto",
    bound: Bound = "best",
    sided: Literal[1, 2] = 1,
    level: Level = "auto",
    scales: Float[np.ndarray, " n"] | None = None,
) -> float:
    """An upper bound of P(f - Ef >= z), or of P(|f - Ef| >= z) when two-sided: the inverse of `radius`.

    Args:
        z: distance, above 0, in the units of f. The rest as in `radius`.

    Returns:
        A probability; 1 where no selected bound says anything.

    Raises:
        InputError: a value is out of range; the message names it.
    """
    units, order = _checked(envelope, n, p, sided, scales)
    if not (isinstance(z, int | float | np.floating) and 0 < z < math.inf):
        raise InputError(f"z is {z!r}; the distance is a positive finite number")
    if units.constant:
        return 0.0
    least = 0.0
    for rule in _selected(bound, level):
        orders, _ = rule.orders(units, order)
        if orders:
            least = min(least, rule.log_tail(units, float(z), orders, sided))
    return math.exp(least)


def radius_table(
    envelope: Envelope | Mapping[float, float],
    n: int,
    delta: float,
    *,
    p: float | Literal["auto"] = "auto",
    sided: Literal[1, 2] = 1,
    scales: Float[np.ndarray, " n"] | None = None,
) -> dict[str, Radius]:
    """The radius of every bound by its name, "best" last; infinite with a reason where a bound does not
    apply."""
    names: Iterable[Bound] = [name for name in get_args(Bound) if name != "best"] + ["best"]
    return {name: radius(envelope, n, delta, p=p, bound=name, sided=sided, scales=scales) for name in names}


def radii(
    delta: Float[np.ndarray, "*batch"] | float,
    n: Float[np.ndarray, "*batch"] | int,
    *,
    p: Float[np.ndarray, "*batch"] | float,
    moment_p: Float[np.ndarray, "*batch"] | float,
    moment_2: Float[np.ndarray, "*batch"] | float = math.inf,
    bound: ArrayBound = "best",
    sided: Literal[1, 2] = 1,
) -> Float[np.ndarray, "*batch"]:
    """Radii from stated moments, for arrays that broadcast against each other, in one vectorised call.

    Args:
        delta: error probabilities.
        n: numbers of independent units.
        p: moment orders, above 1.
        moment_p: E H^p of one unit.
        moment_2: E H^2 of one unit. Either moment gives way to what the one of higher order implies where
            that is less.
        bound: "best" is the least of the others.
        sided: 1 for f - Ef, 2 for |f - Ef|.

    Returns:
        Radii of the broadcast shape; infinite where the bound needs p >= 2 or a second moment that is not
        there.

    Raises:
        InputError: a value is out of range; the message names it.
    """
    if bound not in get_args(ArrayBound):
        raise InputError(f"bound is {bound!r}; radii takes one of {', '.join(get_args(ArrayBound))}")
    _check_sided(sided)
    arrays = [np.asarray(part, dtype=float) for part in (delta, n, p, moment_p, moment_2)]
    delta, n, p, moment_p, moment_2 = np.broadcast_arrays(*arrays)
    for name, values, valid, rule in (
        ("delta", delta, (delta > 0) & (delta < 1), "lies strictly between 0 and 1"),
        ("n", n, (n >= 1) & (n == np.floor(n)) & np.isfinite(n), "is an integer >= 1"),
        ("p", p, (p > 1) & np.isfinite(p), "is finite and above 1"),
        ("moment_p", moment_p, moment_p >= 0, "is >= 0"),
        ("moment_2", moment_2, moment_2 >= 0, "is >= 0"),
    ):
        if not valid.all():
            raise InputError(f"{name} is {values[~valid].flat[0]!r}; every {name} {rule}")
    # Jensen's inequality, from the higher of the two orders to the lower.
    with np.errstate(divide="ignore", over="ignore"):
        implied_2 = np.where(p >= 2, moment_p ** (2 / p), np.inf)
        implied_p = np.where(p <= 2, moment_2 ** (p / 2), np.inf)
        log_mp = np.log(n) + np.log(np.minimum(moment_p, implied_p))
    m2 = n * np.minimum(moment_2, implied_2)
    second_order = p >= 2
    functions = {
        "optimised": lambda: fuk_nagaev.moment_radius(
            delta, truncation.TruncationSums(p, log_mp, log_mp, m2 / 2), sided
        )[0],
        "paper": lambda: np.where(
            second_order, closed_forms.paper_radius(delta, np.maximum(p, 2), log_mp, m2), np.inf
        ),
        "rio": lambda: np.where(
            second_order,
            closed_forms.rio_radius(delta, np.maximum(p, 2), np.log(n) + 2 / p * (log_mp - np.log(n))),
            np.inf,
        ),
        "chebyshev": lambda: closed_forms.chebyshev_radius(delta, m2 / 2, sided),
    }
    if bound != "best":
        return functions[bound]()
    return np.minimum.reduce([function() for function in functions.values()])


def _selected(bound: Bound, level: Level) -> list[Rule]:
    if bound not in get_args(Bound):
        raise InputError(f"bound is {bound!r}; choose one of {', '.join(get_args(Bound))}")
    if level not in get_args(Level):
        raise InputError(f"level is {level!r}; choose one of {', '.join(get_args(Level))}")
    optimised = list(OPTIMISED.values()) if level == "auto" else [OPTIMISED[level]]
    if bound == "best":
        return [*optimised, *CLASSICAL.values()]
    return optimised if bound == "optimised" else [CLASSICAL[bound]]


def _check_sided(sided: int) -> None:
    if sided not in (1, 2):
        raise InputError(f"sided is {sided!r}; 1 bounds f - Ef, 2 bounds |f - Ef|")


def _checked(
    envelope: Envelope | Mapping[float, float],
    n: int,
    p: float | Literal["auto"],
    sided: int,
    scales: Float[np.ndarray, " n"] | None,
) -> tuple[Units, float | None]:
    _check_sided(sided)
    if p != "auto" and not (isinstance(p, int | float | np.floating) and 1 < p < math.inf):
        raise InputError(f'p is {p!r}; the moment order is a finite number above 1, or "auto"')
    return Units(as_envelope(envelope), n, scales), None if p == "auto" else float(p)
