"""Real tables as finite populations: all rows are there, so that the risk of a model is known exactly.

Samples are drawn from the rows, moments are means over all rows or all pairs of rows, and the bounds'
constants (the largest norm of an input, for example) are facts and not assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from assay.data.tables import bikeshare, flights
from assay.errors import InputError
from assay.methods.lp_stability.analytic import PairFunction
from assay.methods.lp_stability.ball_ridge import ball_coefficients
from assay.methods.lp_stability.envelopes import DeclaredEnvelope

Pairs = Literal["independent", "distinct"]
ORDERS = (2, 3, 4, 5, 6, 8, 10, 12)
# Rows whose predictions for all samples fit into memory at once.
BLOCK = 20_000


@dataclass(frozen=True)
class Population:
    """N rows with ||x|| <= 1; the last column is constant.

    Attributes:
        X, y: the rows.
        unit: of the labels.
        weight_bound: radius of the ball for ridge regression on these rows.
    """

    X: Float[np.ndarray, "N d"]
    y: Float[np.ndarray, " N"]
    unit: str
    weight_bound: float

    def sample(self, samples: int, m: int, rng: np.random.Generator, pairs: Pairs) -> Int[np.ndarray, "B m"]:
        """Row numbers of `samples` independent samples, each drawn with ("independent") or without
        replacement."""
        if pairs == "independent":
            return rng.integers(len(self.y), size=(samples, m))
        return np.stack([rng.choice(len(self.y), size=m, replace=False) for _ in range(samples)])

    def ridge(
        self, rows: Int[np.ndarray, "B m"], strong_convexity: float
    ) -> tuple[Float[np.ndarray, "B d"], Float[np.ndarray, " B"]]:
        """Ridge in the ball for every sample: coefficients, and training risk under the absolute loss."""
        X, y = self.X[rows], self.y[rows]
        grams, moments = X.transpose(0, 2, 1) @ X, np.einsum("bmd,bm->bd", X, y)
        w, _ = ball_coefficients(grams, moments, strong_convexity * rows.shape[1], self.weight_bound)
        return w, np.abs(y - np.einsum("bmd,bd->bm", X, w)).mean(axis=1)

    def risk(self, w: Float[np.ndarray, "B d"]) -> Float[np.ndarray, " B"]:
        """Mean absolute loss of every coefficient vector over all rows."""
        total = np.zeros(len(w))
        for start in range(0, len(self.y), BLOCK):
            part = slice(start, start + BLOCK)
            total += np.abs(self.y[part, None] - self.X[part] @ w.T).sum(axis=0)
        return total / len(self.y)

    def constant_risk(self) -> float:
        """Mean absolute distance of the labels from their median."""
        return float(np.abs(self.y - np.median(self.y)).mean())

    def envelope(self, function: PairFunction, pairs: Pairs) -> DeclaredEnvelope:
        """The exact moments of a(z) + a(z'), which is at least the pair function, over all pairs of rows.

        Args:
            pairs: "independent" for pairs with replacement, "distinct" for two different rows, over which a
                mean is at most N / (N - 1) times that over independent pairs.
        """
        share = function.row_share(self.X, self.y)
        powers = [float(np.mean(share**j)) for j in range(max(ORDERS) + 1)]
        inflation = len(self.y) / (len(self.y) - 1) if pairs == "distinct" else 1.0

        def moment(p: int) -> float:
            return inflation * math.fsum(math.comb(p, j) * powers[j] * powers[p - j] for j in range(p + 1))

        conditional = {float(p): float(np.mean((share + powers[1]) ** p)) for p in ORDERS}
        return DeclaredEnvelope(
            {1.0: 2 * inflation * powers[1]} | {float(p): moment(p) for p in ORDERS},
            conditional if pairs == "independent" else None,
            bound=2 * float(share.max()),
        )


@lru_cache(maxsize=2)
def population(name: str) -> Population:
    """`"flight-delays"` or `"bikeshare"`.

    Raises:
        InputError: there is no such population.
    """
    builders: dict[str, Callable[[], Population]] = {
        "flight-delays": flight_delays,
        "bikeshare": hourly_rentals,
    }
    if name not in builders:
        raise InputError(f"there is no population {name!r}: choose one of {', '.join(builders)}")
    return builders[name]()


def flight_delays() -> Population:
    """Arrival delays in hours of the 327,346 flights of 2013 that arrived, given what the timetable says."""
    table: Any = flights().dropna(subset=["arr_delay"])
    hours = 2 * math.pi * (table["sched_dep_time"] // 100).to_numpy() / 24
    season = 2 * math.pi * table["month"].to_numpy() / 12
    columns = [np.sin(hours), np.cos(hours), np.sin(season), np.cos(season)]
    columns += [table["distance"].to_numpy() / table["distance"].max()]
    columns += [(table["origin"] == airport).to_numpy(float) for airport in ("EWR", "JFK")]
    return _population(columns, table["arr_delay"].to_numpy(float) / 60, "hour", 1.0)


def hourly_rentals() -> Population:
    """Hundreds of bicycles rented in each of 8,645 hours of 2011, given the weather and the calendar."""
    table: Any = bikeshare()
    hours = 2 * math.pi * table["hr"].to_numpy() / 24
    columns = [np.sin(hours), np.cos(hours), np.sin(2 * hours), np.cos(2 * hours)]
    columns += [table[name].to_numpy(float) for name in ("temp", "hum", "windspeed", "workingday")]
    return _population(columns, table["bikers"].to_numpy(float) / 100, "100 rentals", 4.0)


def _population(columns: list[np.ndarray], y: np.ndarray, unit: str, weight_bound: float) -> Population:
    X = np.column_stack([*columns, np.ones(len(y))])
    return Population(X / np.linalg.norm(X, axis=1).max(), y, unit, weight_bound)
