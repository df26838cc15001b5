"""Envelopes with a known continuous law, and what only the law of H says of h.

The conditional mean h = E[H | X] is what the truncation bound needs the tail of. Where only the law of H is
known, h is below H in convex order, so that for every t < y

    P(h > y) <= E(H - t)_+ / (y - t)   and   E[h; h > y] <= E(H - y)_+ + y P(h > y).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats
from scipy.special import logsumexp

from assay.errors import InputError
from assay.methods.lp_stability.envelopes import Array1, Provenance

ORDERS = (1.1, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0)

# Gauss-Legendre panels in log y: survival functions are smooth there, and eight nodes a panel of width 0.05
# are far beyond double precision.
PANEL_WIDTH = 0.05
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)
# A log-integrand that falls more slowly than this per unit of log y does not give a moment that one can
# trust.
SLOWEST_DECAY = 0.05
# Many of scipy's log-survival functions are logarithms of survival functions, which underflow about here.
LEAST_LOG_SURVIVAL = -690.0


def stop_loss_tail(
    y: Array1, levels: Array1, stop_loss: Array1
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Bounds of P(h > y) and E[h; h > y] for every h below H in convex order.

    Args:
        y: levels asked for.
        levels: increasing levels t >= 0 at which the stop-loss transform is known; the first is 0.
        stop_loss: E(H - t)_+ at those levels, or upper bounds. Linear interpolation between them is an upper
            bound, because the transform is convex.
    """
    y = np.asarray(y, dtype=float)
    exceedance = np.ones(y.shape)
    # Any t will do; the bound is flat in t around the best one.
    candidates, losses = levels[::4], stop_loss[::4]
    for block in np.array_split(np.arange(y.size), max(1, y.size * candidates.size // 2_000_000)):
        gap = y[block, None] - candidates[None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(gap > 0, losses[None, :] / gap, np.inf)
        exceedance[block] = np.minimum(1.0, ratio.min(axis=1))
    return exceedance, np.interp(y, levels, stop_loss) + y * exceedance


class _ContinuousLaw:
    """Moments and stop-loss transform of a frozen continuous scipy distribution on [0, infinity)."""

    def __init__(self, distribution: Any, field: str) -> None:
        if not isinstance(getattr(distribution, "dist", None), stats.rv_continuous):
            raise InputError(
                f"{field} is a {type(distribution).__name__}; pass a frozen continuous scipy distribution, "
                "such as scipy.stats.halfnorm(scale=0.01)"
            )
        lower, upper = map(float, distribution.support())
        if not lower >= 0:
            raise InputError(f"{field} has support from {lower}; an envelope is never negative")
        self.distribution, self.upper = distribution, upper
        centre = math.log(float(distribution.median()))
        last = math.log(upper) if math.isfinite(upper) else centre + 300.0
        edges = np.linspace(centre - 40.0, last, math.ceil((last - centre + 40.0) / PANEL_WIDTH) + 1)
        # The survival function has a kink where the support begins.
        if lower > 0:
            edges = np.unique(np.append(edges, math.log(lower)))
        half = 0.5 * np.diff(edges)
        self.edges = edges
        self.nodes = (edges[:-1] + half)[:, None] + half[:, None] * NODES
        self.log_weights = np.log(half)[:, None] + np.log(WEIGHTS)
        with np.errstate(all="ignore"):
            log_survival = np.asarray(distribution.logsf(np.exp(self.nodes)), dtype=float)
        self.log_survival = np.where(log_survival > LEAST_LOG_SURVIVAL, log_survival, -math.inf)

    def log_moment(self, p: float) -> float:
        """log of p times the integral of exp(p t) P(H > exp(t)) over t; infinite where it diverges."""
        integrand = p * self.nodes + self.log_survival
        total = float(np.asarray(logsumexp(integrand + self.log_weights)))
        if math.isfinite(self.upper):
            return float(math.log(p) + total)
        flat, nodes = integrand.ravel(), self.nodes.ravel()
        last = int(np.flatnonzero(np.isfinite(flat))[-1])
        # Beyond the last usable value the decay is taken to go on as it was.
        before = max(0, last - 80)
        decay = (flat[before] - flat[last]) / (nodes[last] - nodes[before])
        if not decay > SLOWEST_DECAY:
            return math.inf
        return float(math.log(p) + np.logaddexp(total, flat[last] - math.log(decay)))

    @cached_property
    def stop_loss(self) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        """Levels, from 0, and E(H - t)_+ at them."""
        pieces = np.sum(np.exp(self.nodes + self.log_survival + self.log_weights), axis=1)
        beyond = np.exp(self.log_moment(1.0)) - np.sum(pieces)
        transform = np.concatenate([np.cumsum(pieces[::-1])[::-1], [0.0]]) + max(beyond, 0.0)
        return np.concatenate([[0.0], np.exp(self.edges)]), np.concatenate([[transform[0]], transform])

    def tail(self, y: Array1) -> tuple[Array1, Array1]:
        """P(H > y) and E[H; H > y]."""
        exceedance = np.asarray(self.distribution.sf(y), dtype=float)
        levels, transform = self.stop_loss
        return exceedance, np.interp(y, levels, transform) + y * exceedance


@dataclass(frozen=True)
class LawEnvelope:
    """An envelope with a continuous law.

    Attributes:
        pair: frozen scipy distribution of H, or None.
        conditional: frozen scipy distribution of h, or None; with both, each serves where it is sharper.
        subgaussian, subexponential: constants of H where they are known (see `Envelope`).

    Raises:
        InputError: neither is given, or one is no continuous distribution on [0, infinity).
    """

    pair: Any = None
    conditional: Any = None
    subgaussian: float = math.inf
    subexponential: float = math.inf
    pointwise: bool = True
    provenance: Provenance = "declared-law"

    def __post_init__(self) -> None:
        if self.pair is None and self.conditional is None:
            raise InputError("pair and conditional are both None; give the distribution of H or of h")
        laws = {
            field: _ContinuousLaw(getattr(self, field), field)
            for field in ("pair", "conditional")
            if getattr(self, field) is not None
        }
        object.__setattr__(self, "_laws", laws)
        object.__setattr__(self, "_log_moments", {})

    def _log_moment(self, field: str, p: float) -> float:
        laws, known = self.__dict__["_laws"], self.__dict__["_log_moments"]
        if field not in laws:
            return math.inf
        if (field, p) not in known:
            known[field, p] = laws[field].log_moment(p)
        return known[field, p]

    @property
    def orders(self) -> tuple[float, ...]:
        """The orders of a fixed ladder at which the moment is finite."""
        return tuple(p for p in ORDERS if self.log_conditional_moments(p) < math.inf)

    @property
    def bound(self) -> float:
        laws = self.__dict__["_laws"]
        return laws["pair"].upper if "pair" in laws else math.inf

    def log_moments(self, p: float) -> float:
        return self._log_moment("pair", p)

    def log_conditional_moments(self, p: float) -> float:
        return min(self._log_moment("pair", p), self._log_moment("conditional", p))

    def tail(self, y: Array1) -> tuple[Array1, Array1]:
        laws = self.__dict__["_laws"]
        if "conditional" in laws:
            return laws["conditional"].tail(y)
        return stop_loss_tail(y, *laws["pair"].stop_loss)

    def sample(self, n: int, rng: np.random.Generator) -> Float[np.ndarray, " n"] | None:
        return None if self.pair is None else np.asarray(self.pair.rvs(size=n, random_state=rng))
