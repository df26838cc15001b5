"""Problems whose true tails and risks are known, so that bounds can be held against the truth.

- Means of Student variables: the law of the mean by inversion of its characteristic function.
- Ridge regression in a ball with heavy-tailed labels: the risk of every coefficient vector in closed form, up
  to one quadrature in one dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy import optimize, special, stats

from assay.methods.lp_stability.analytic import (
    PairFunction,
    constrained_ridge,
    loss_sensitivity,
)
from assay.methods.lp_stability.ball_ridge import ball_coefficients
from assay.methods.lp_stability.envelopes import Array1, Provenance
from assay.methods.lp_stability.generalization import gap_function
from assay.methods.lp_stability.label_envelope import DeclaredLaw, LabelEnvelope

# Orders that are tried for a Student law, as far as they are below its tail index.
ORDERS = (1.2, 1.4, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
# |characteristic function|^n below exp of this is nothing.
LEAST_LOG = -45.0
# Radians over the whole range of frequencies; 600 panels of 16 nodes resolve them.
FASTEST_OSCILLATION = 600 * 6 * math.pi


def _panels(edges: Float[np.ndarray, " k"]) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"]]:
    """Gauss-Legendre nodes and weights on consecutive panels."""
    half = np.diff(edges)[:, None] / 2
    return ((edges[:-1, None] + half) + half * NODES).ravel(), (half * WEIGHTS).ravel()


def _log_characteristic(u: Array1, nu: float) -> Array1:
    """log of the characteristic function of Student's t at u > 0."""
    x = math.sqrt(nu) * u
    log_bessel = np.log(special.kve(nu / 2, x)) - x
    return log_bessel + nu / 2 * np.log(x) - math.lgamma(nu / 2) - (nu / 2 - 1) * math.log(2)


@lru_cache(maxsize=64)
def _inversion(nu: float, n: int) -> tuple[Array1, Array1]:
    """Frequencies u, and weight * phi(u)^n * 2 / (pi u), for the sum of n Student variables."""
    last = optimize.brentq(
        lambda log_u: n * float(_log_characteristic(np.exp(log_u), nu)) - LEAST_LOG, -40.0, 8.0
    )
    end = math.exp(float(np.asarray(last)))
    edges = np.union1d(np.geomspace(1e-10, 1.0, 300), np.linspace(0.0, 1.0, 600)) * end
    u, weights = _panels(edges)
    return u, weights * np.exp(n * _log_characteristic(u, nu)) * 2 / (math.pi * u)


def mean_tail(z: float, nu: float, n: int) -> float:
    """P(|mean of n independent t_nu variables| > z), by the inversion formula of Gil-Pelaez (1951).

    The absolute error is below 1e-10 for n up to 10^5. Where z is too large for the integrand's oscillation
    to be resolved, the probability at a smaller z, which is larger, stands in.
    """
    u, weights = _inversion(nu, n)
    z = min(z, FASTEST_OSCILLATION / (n * float(u[-1])))
    return float(max(0.0, 1 - weights @ np.sin(n * z * u)))


def mean_quantile(delta: float, nu: float, n: int) -> float:
    """The z with `mean_tail(z) = delta`."""
    spread = math.sqrt(nu / (nu - 2) / n) if nu > 2 else n ** (1 / nu - 1)
    low, high = math.log(1e-2 * spread), math.log(spread)
    while mean_tail(math.exp(high), nu, n) > delta:
        high += 0.5
    root = optimize.brentq(lambda log_z: mean_tail(math.exp(log_z), nu, n) - delta, low, high, xtol=1e-10)
    return math.exp(float(np.asarray(root)))


@dataclass(frozen=True)
class StudentSwap:
    """The envelope |Z - Z'| of a swap in a sum of t_nu variables; h(x) = E|x - Z'| is known in closed form.

    See `envelopes.Envelope`.
    """

    nu: float
    provenance: Provenance = "declared-law"
    pointwise: bool = True
    bound = math.inf
    subgaussian = math.inf
    subexponential = math.inf
    _known: dict[tuple[float, bool], float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def orders(self) -> tuple[float, ...]:
        return tuple(p for p in ORDERS if p < self.nu)

    def conditional(self, x: Array1) -> Array1:
        """h(x) = E|x - Z'|."""
        return np.abs(x) + 2 * student_excess(np.abs(x), self.nu)

    @cached_property
    def _grid(self) -> tuple[Array1, Array1]:
        """Points x and probabilities of a quadrature over the law."""
        # In s with x = sinh(s) the tail decays exponentially; 2 * nu^-1 * 40 reaches where it is 1e-17.
        edges = np.linspace(-1.0, 1.0, 161) * (40 / min(self.nu, 4.0) + 4)
        s, weights = _panels(edges)
        return np.sinh(s), weights * np.cosh(s) * stats.t.pdf(np.sinh(s), self.nu)

    def log_moments(self, p: float) -> float:
        if p >= self.nu:
            return math.inf
        if (p, False) not in self._known:
            x, weights = self._grid
            if p == 2:
                moment = 2 * self.nu / (self.nu - 2)
            else:
                moment = math.fsum(
                    weights[block] @ (np.abs(x[block, None] - x) ** p @ weights)
                    for block in np.array_split(np.arange(x.size), 16)
                )
            self._known[p, False] = math.log(moment)
        return self._known[p, False]

    def log_conditional_moments(self, p: float) -> float:
        if p >= self.nu:
            return math.inf
        if (p, True) not in self._known:
            x, weights = self._grid
            self._known[p, True] = math.log(weights @ self.conditional(x) ** p)
        return self._known[p, True]

    @cached_property
    def _levels(self) -> tuple[Array1, Array1, Array1]:
        """Values of h with P(h > .) and E[h; h > .] at points x >= 0."""
        grid = np.linspace(0.0, 38.0, 20_001)
        x = np.sinh(grid)
        nodes, weights = _panels(grid)
        density = 2 * stats.t.pdf(np.sinh(nodes), self.nu) * np.cosh(nodes) * self.conditional(np.sinh(nodes))
        pieces = (weights * density).reshape(-1, NODES.size).sum(axis=1)
        beyond = np.append(np.cumsum(pieces[::-1])[::-1], 0.0)
        return self.conditional(x), 2 * stats.t.sf(x, self.nu), beyond

    def tail(self, y: Array1) -> tuple[Array1, Array1]:
        levels, exceedance, beyond = self._levels
        # The level below y makes both an upper bound.
        below = np.maximum(np.searchsorted(levels, y, side="right") - 1, 0)
        return np.where(y < levels[0], 1.0, exceedance[below]), beyond[below]

    def sample(self, n: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
        return np.abs(rng.standard_t(self.nu, size=n) - rng.standard_t(self.nu, size=n))


def student_excess(a: Any, nu: float) -> Any:
    """E (T - a)_+ of Student's t, nu > 1."""
    return (nu + a**2) / (nu - 1) * stats.t.pdf(a, nu) - a * stats.t.sf(a, nu)


Noise = Literal["t5", "pareto", "sign"]
TAIL_INDEX = {"t5": 5.0, "pareto": 4.5}
NOISE_SCALE = 0.5


@dataclass(frozen=True)
class NoiseLaw:
    """Centred noise: t_5, or Pareto with tail index 4.5, both times 1/2."""

    name: Literal["t5", "pareto"]

    @property
    def frozen(self) -> Any:
        """The law as a frozen scipy distribution."""
        index = TAIL_INDEX[self.name]
        if self.name == "t5":
            return stats.t(index, scale=NOISE_SCALE)
        return stats.pareto(index, loc=-NOISE_SCALE * index / (index - 1), scale=NOISE_SCALE)

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        index = TAIL_INDEX[self.name]
        if self.name == "t5":
            return NOISE_SCALE * rng.standard_t(index, size=shape)
        return NOISE_SCALE * (1 + rng.pareto(index, size=shape) - index / (index - 1))

    def absolute_mean(self, a: np.ndarray) -> np.ndarray:
        """E|e - a| = 2 E(e - a)_+ + a, the mean of e being 0."""
        index = TAIL_INDEX[self.name]
        if self.name == "t5":
            return 2 * NOISE_SCALE * student_excess(a / NOISE_SCALE, index) + a
        level = a / NOISE_SCALE + index / (index - 1)
        excess = np.where(level >= 1, np.maximum(level, 1) ** (1 - index) / (index - 1), -a / NOISE_SCALE)
        return 2 * NOISE_SCALE * excess + a


class LabelLaw:
    """The law of y = x.w* + e with x uniform on the sphere: a mixture of shifted noise.

    It has what `label_envelope.DeclaredLaw` needs of a scipy distribution.
    """

    def __init__(self, shifts: Array1, weights: Array1, noise: Any) -> None:
        self._shifts, self._weights, self._noise = shifts, weights, noise

    def sf(self, y: Any) -> Any:
        return self._noise.sf(np.asarray(y)[..., None] - self._shifts) @ self._weights

    def cdf(self, y: Any) -> Any:
        return self._noise.cdf(np.asarray(y)[..., None] - self._shifts) @ self._weights

    def ppf(self, q: float) -> float:
        low, high = (self._noise.ppf(q) + end for end in (self._shifts.min(), self._shifts.max()))
        return float(np.asarray(optimize.brentq(lambda y: float(self.cdf(y)) - q, low, high)))

    def support(self) -> tuple[float, float]:
        low, high = self._noise.support()
        return low + self._shifts.min(), high + self._shifts.max()


@dataclass(frozen=True)
class RidgeDraws:
    """Ridge regressions on independent samples.

    Attributes:
        training_risk, risk: absolute loss on the training rows, and its true mean.
        held_out: mean loss on the held-out rows, NaN where there are none.
        constant_risk: training risk of the median, averaged over the samples.
    """

    training_risk: Float[np.ndarray, " B"]
    risk: Float[np.ndarray, " B"]
    held_out: Float[np.ndarray, " B"]
    constant_risk: float


@dataclass(frozen=True)
class BallRidgeProblem:
    """y = x.w* + e, x uniform on the unit sphere, ||w*|| = 1; ridge with ||w|| <= 1 and the absolute loss.

    `"sign"` noise gives the bounded problem y = +1 or -1 with P(y = 1) = (1 + x.w*) / 2.

    Attributes:
        noise: of the labels.
        m: training size.
        strong_convexity: lambda in (1/2m) sum (w.x - y)^2 + (lambda / 2) ||w||^2.
        dimension: of x, at least 3.
    """

    noise: Noise
    m: int
    strong_convexity: float
    dimension: int = 5

    @cached_property
    def stability(self) -> PairFunction:
        """beta H."""
        return constrained_ridge(
            x_bound=1.0, weight_bound=1.0, strong_convexity=self.strong_convexity, m=self.m
        )

    @cached_property
    def gap(self) -> PairFunction:
        """2 beta H + beta' G / m."""
        return gap_function(self.stability, loss_sensitivity(weight_bound=1.0), self.m)

    @cached_property
    def label_law(self) -> LabelLaw:
        if self.noise == "sign":
            raise ValueError("the labels +1 and -1 have no continuous law")
        cosines, weights = self._cosines
        return LabelLaw(cosines, weights, NoiseLaw(self.noise).frozen)

    @cached_property
    def label_size(self) -> DeclaredLaw:
        """Moments and tail of |y|."""
        return DeclaredLaw(self.label_law)

    def envelope(self, function: PairFunction) -> LabelEnvelope:
        """A pair function's envelope from the law of the label; every input has norm 1."""
        at_zero, at_one = function.row_share(np.eye(self.dimension)[:2], np.array([0.0, 1.0]))
        return LabelEnvelope(2 * at_zero, at_one - at_zero, self.label_size)

    def rows(
        self, samples: int, rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, "B m d"], Float[np.ndarray, "B m"]]:
        """Predictors and labels of independent samples."""
        X = rng.normal(size=(samples, self.m, self.dimension))
        X /= np.linalg.norm(X, axis=2, keepdims=True)
        signal = X[:, :, 0]
        if self.noise == "sign":
            return X, np.where(rng.random(signal.shape) < (1 + signal) / 2, 1.0, -1.0)
        return X, signal + NoiseLaw(self.noise).draw(signal.shape, rng)

    def draw(self, samples: int, seed: int, hold_out: float = 0.0) -> RidgeDraws:
        """Fit to `samples` independent samples at once.

        Args:
            hold_out: share of the m rows that is kept out of the fit.
        """
        X, y = self.rows(samples, np.random.default_rng(seed))
        k = self.m - round(hold_out * self.m)
        train, labels = X[:, :k], y[:, :k]
        grams = train.transpose(0, 2, 1) @ train
        moments = np.einsum("bmd,bm->bd", train, labels)
        w, _ = ball_coefficients(grams, moments, self.strong_convexity * k, 1.0)
        losses = np.abs(y - np.einsum("bmd,bd->bm", X, w))
        median = np.median(labels, axis=1, keepdims=True)
        return RidgeDraws(
            losses[:, :k].mean(axis=1),
            self.risk(w),
            losses[:, k:].mean(axis=1) if k < self.m else np.full(samples, np.nan),
            float(np.abs(labels - median).mean()),
        )

    def risk(self, w: Float[np.ndarray, "B d"]) -> Float[np.ndarray, " B"]:
        """E|y - w.x| of every coefficient vector."""
        cosines, weights = self._cosines
        if self.noise == "sign":
            # |w.x| <= 1 = |y|, so that |y - w.x| = 1 - y w.x, and E y w.x = w.w* / d.
            return 1 - w[:, 0] / self.dimension
        difference = w - np.eye(self.dimension)[0]
        arguments = np.linalg.norm(difference, axis=1)[:, None] * cosines
        return NoiseLaw(self.noise).absolute_mean(arguments) @ weights

    @cached_property
    def _cosines(self) -> tuple[Array1, Array1]:
        """Quadrature over one coordinate of a uniform point of the sphere."""
        nodes, weights = np.polynomial.legendre.leggauss(40)
        weights = weights * (1 - nodes**2) ** ((self.dimension - 3) / 2)
        return nodes, weights / weights.sum()
