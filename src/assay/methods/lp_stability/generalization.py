"""From concentration to learning: the gap between risk and what was measured on the training rows.

With beta H the change of the loss at any point when one training row is swapped, and beta' G the change of
the loss of one model between two points, f = R - Remp has the envelope 2 beta H + beta' G / m, and
|E f| <= beta E H:

- R moves by beta H; in Remp each of the m - 1 other terms by beta H / m, the swapped row's by
  (beta H + beta' G) / m;
- E f = E[l(A_S, z') - l(A_S, z_i)] = E[l(A_S, z') - l(A_(S^i), z')] after renaming z_i and its copy.

The moments are those of the combined envelope. Bounding the two parts apart, as Theorem 3.4 of Lei,
Bonnerjee, Han and Wu (2026) does, costs a factor of up to 2^(2p-1) in the polynomial term
(`decoupled_erm_tail`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.lp_stability import closed_forms
from assay.methods.lp_stability.analytic import PairFunction
from assay.methods.lp_stability.concentration import Bound, Level, Radius, radius
from assay.methods.lp_stability.envelopes import DeclaredEnvelope, Envelope

Target = Literal["training risk", "leave-one-out risk", "training part", "mean training risk of the tasks"]


@dataclass(frozen=True)
class GapBound:
    """With probability at least 1 - delta over `over`: risk <= measured risk + value.

    Attributes:
        value: radius.value + bias; infinite where no bound is valid.
        radius: of the gap around its mean.
        bias: bound of the mean of the gap.
        target: the measured risk.
        over: the randomness that the probability speaks of.
        reason: why the value is infinite; empty where it is finite.
    """

    value: float
    radius: Radius
    bias: float
    target: Target
    over: str
    reason: str = ""


def gap_function(stability: PairFunction, sensitivity: PairFunction, m: int) -> PairFunction:
    """2 beta H + beta' G / m, the envelope of R - Remp, from beta H and beta' G.

    R - Rloo, with the leave-one-out risk, has the same envelope where the learner is as stable at m - 1 rows
    as (m / (m - 1)) beta H says: R moves by beta H, each of m - 1 terms of Rloo by beta H m / (m - 1) / m,
    and the term of the swapped row, whose model stays, by beta' G / m.
    """
    return 2 * stability + sensitivity / m


def training_gap(
    gap: Envelope | Mapping[float, float],
    m: int,
    delta: float,
    *,
    bias: float,
    p: float | Literal["auto"] = "auto",
    bound: Bound = "best",
    level: Level = "auto",
    scales: Float[np.ndarray, " m"] | None = None,
) -> GapBound:
    """Bound of R - Remp (Theorem 3.4 with the combined envelope).

    Args:
        gap: envelope of R - Remp for one row, see `gap_function`.
        m: training size.
        delta: error probability.
        bias: bound of E[R - Remp]: beta E H.
        p, bound, level, scales: as in `radius`.

    Raises:
        InputError: a value is out of range.
    """
    found = radius(gap, m, delta, p=p, bound=bound, level=level, scales=scales)
    return combine(found, bias, "bias", "training risk", f"draw of the {m} training rows")


def leave_one_out_gap(
    gap: Envelope | Mapping[float, float],
    m: int,
    delta: float,
    *,
    size_gap: float | None,
    p: float | Literal["auto"] = "auto",
    bound: Bound = "best",
    level: Level = "auto",
    scales: Float[np.ndarray, " m"] | None = None,
) -> GapBound:
    """Bound of R - Rloo: E[R - Rloo] is R_m - R_(m-1), the expected risks with m and with m - 1 rows.

    Args:
        size_gap: bound of R_m - R_(m-1): zero where more rows are declared not to hurt. Stability under
            replacement alone does not bound it (the learner may do something else altogether with fewer
            rows). For regularised minimisers, constrained or not, beta E H does: leaving z_i out changes the
            objective's gradient by (1/m)(gradient at z_i - mean of the others), at most (a(z_i) + mean of a)
            / m. None if unknown.
        gap, m, delta, p, bound, level, scales: as in `training_gap`; the learner must be as stable with m - 1
            rows as `gap_function` says.

    Returns:
        The bound; infinite where `size_gap` is None.

    Raises:
        InputError: a value is out of range.
    """
    found = radius(gap, m, delta, p=p, bound=bound, level=level, scales=scales)
    over = f"draw of the {m} training rows"
    if size_gap is None:
        reason = (
            "the difference between the expected risks with m and m - 1 rows is unknown; declare size_gap"
        )
        return GapBound(math.inf, found, math.inf, "leave-one-out risk", over, reason)
    return combine(found, size_gap, "size_gap", "leave-one-out risk", over)


def combine(found: Radius, bias: float, name: str, target: Target, over: str) -> GapBound:
    """The bound from its radius and the bound of the mean.

    Raises:
        InputError: the bias is negative or not a number; the message calls it `name`.
    """
    if not bias >= 0:
        raise InputError(f"{name} is {bias!r}; the bound of a mean gap is a number >= 0")
    reason = found.reason or ("" if bias < math.inf else f"{name} is infinite")
    return GapBound(found.value + bias, found, bias, target, over, reason)


def mean_of(envelope: Envelope | Mapping[float, float]) -> float:
    """E H, or the best known bound of it: the bias where `envelope` is that of beta H."""
    stated = DeclaredEnvelope(envelope) if isinstance(envelope, Mapping) else envelope
    log_mean = stated.log_moments(1.0)
    return math.exp(log_mean) if log_mean < 700 else math.inf


def decoupled_erm_tail(
    z: float,
    m: int,
    p: float,
    *,
    stability: Mapping[float, float],
    sensitivity: Mapping[float, float],
) -> float:
    """Theorem 3.4 as printed, with the constants that its proof admits: P(|R - Remp| > z + beta E H) is at
    most

    c1' (m beta^p E H^p + beta'^p E G^p / m^(p-1)) / z^p + 2 exp(-c2' z^2 / (m beta^2 E H^2 + beta'^2 E G^2 /
    m)),

    c1' = 2^(2p-1) c1 and c2' = c2 / 8, from (a + b)^q <= 2^(q-1) (a^q + b^q) with a = 2 beta H.

    Args:
        z: distance, positive.
        m: training size.
        p: order, at least 2.
        stability: {2: E (beta H)^2, p: E (beta H)^p}.
        sensitivity: {2: E (beta' G)^2, p: E (beta' G)^p}.

    Raises:
        InputError: an order is missing or a value out of range.
    """
    if not (p >= 2 and z > 0 and m >= 1):
        raise InputError(f"p is {p!r}, z {z!r} and m {m!r}; p is at least 2, z positive and m at least 1")
    sums = {}
    for q in (2.0, float(p)):
        terms = [DeclaredEnvelope(part).log_moments(q) for part in (stability, sensitivity)]
        if math.inf in terms:
            raise InputError(f"a moment of order {q:g} is missing; both stability and sensitivity need it")
        sums[q] = np.logaddexp(math.log(m) + terms[0], terms[1] - (q - 1) * math.log(m))
    decoupling = math.log(2) * (2 * p - 1)
    log_tail = closed_forms.paper_log_tail(z, p, sums[float(p)] + decoupling, 8 * math.exp(sums[2.0]))
    return float(np.exp(log_tail))
