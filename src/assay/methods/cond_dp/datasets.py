"""Regressions with public features and a private label: real tables, and designs with a known spectrum.

Every label has a declared range that follows from what it is, not from the rows at hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from assay.data.embedded import package_file
from assay.data.tables import bikeshare, flights, weather
from assay.errors import InputError, require

if TYPE_CHECKING:
    from pandas import DataFrame

Alignment = Literal["spread", "top"]
# Of a synthetic label with variance 1: the part that no feature explains.
NOISE_VARIANCE = 0.2
SYNTHETIC_RANGE = (-4.0, 4.0)
FLIGHT_ROWS = 10_000
MOST_ROWS = 10_000
TEST_SHARE = 0.2


@dataclass(frozen=True)
class Table:
    """Public features, private labels, and the range that is declared for them."""

    X: DataFrame
    y: Float[np.ndarray, " n"]
    y_range: tuple[float, float]


@dataclass(frozen=True)
class Split:
    """Rows to fit on and rows to measure the result on.

    Args:
        X, y, y_range: training rows, standing for what a user has.
        X_test, y_test: new rows.
        risk: (coef, intercept) -> mean squared error of a linear model on new rows, as a share of the label's
            variance: exact for a simulated design, else on the test rows.
    """

    X: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"]
    y_range: tuple[float, float]
    X_test: Float[np.ndarray, "m d"]
    y_test: Float[np.ndarray, " m"]
    risk: Callable[[Float[np.ndarray, " d"], float], float]


# Designs.


def decay_for_gain(gain: float, d: int) -> float:
    """The a with which singular values j^-a, j = 1..d, have a root mean square of s_1 / s_j of `gain`.

    That is the predicted gain of conditioning for a label that depends equally on all singular directions.

    Raises:
        InputError: `gain` is below 1.
    """
    if gain < 1:
        raise InputError(f"the predicted gain is {gain:g}: it is at least 1")
    if gain == 1:
        return 0.0
    j = np.arange(1, d + 1)
    root: Any = brentq(lambda a: math.log(np.mean(j ** (2.0 * a)) / gain**2), 0.0, 20.0)
    return float(root)


def spectrum_split(*, decay: float, rotated: bool, alignment: Alignment, n: int, d: int, seed: int) -> Split:
    """Normal features with singular values proportional to j^-decay, and a linear label with variance 1.

    Args:
        decay: a; 0 is a flat spectrum.
        rotated: in random directions, so that columns are correlated; else one column a direction.
        alignment: `"spread"`, the label depends on all singular directions (of variance 1) alike, with random
            signs; `"top"`, on the first one only.
        n: rows to fit on; a fifth of as many are added for testing.
        d: columns.
        seed: of everything.
    """
    rng = np.random.default_rng([7, seed])
    scales = np.arange(1, d + 1) ** -float(decay)
    signal = rng.choice([-1.0, 1.0], size=d) / math.sqrt(d)
    if alignment == "top":
        signal = np.eye(d)[0]
    signal = signal * math.sqrt(1 - NOISE_VARIANCE)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0] if rotated else np.eye(d)
    total = n + round(n * TEST_SHARE)
    latent = rng.standard_normal((total, d))
    X = (latent * scales) @ basis.T
    y = latent @ signal + math.sqrt(NOISE_VARIANCE) * rng.standard_normal(total)

    def risk(coef: Float[np.ndarray, " d"], intercept: float) -> float:
        error = scales * (basis.T @ coef) - signal
        return NOISE_VARIANCE + float(error @ error) + intercept**2

    return Split(X[:n], y[:n], SYNTHETIC_RANGE, X[n:], y[n:], risk)


# Real tables.


@lru_cache(maxsize=1)
def bikeshare_table() -> Table:
    """Hourly bicycle rentals, log(1 + count), from calendar and weather: 8,645 rows, 57 columns.

    Declared range: from no rental to e^7 = 1,100 of them.
    """
    rows = bikeshare()
    plain = ["holiday", "workingday", "temp", "atemp", "hum", "windspeed"]
    X = _indicators(rows, ["season", "mnth", "hr", "weekday", "weathersit"], plain)
    return Table(X, np.log1p(rows["bikers"].to_numpy(float)), (0.0, 7.0))


@lru_cache(maxsize=1)
def diamonds_table() -> Table:
    """Prices of diamonds, log dollars, from weight, sizes and grades: 53,940 rows, 26 columns.

    Declared range: from 100 to 20,000 dollars. Source: the data set diamonds of ggplot2 (MIT), as carried by
    the package plotnine (MIT).
    """
    pandas: Any = require("pandas", extra="studies")
    rows = pandas.read_csv(package_file("plotnine", "plotnine", "data", "diamonds.csv"))
    X = _indicators(rows, ["cut", "color", "clarity"], ["carat", "depth", "table", "x", "y", "z"])
    return Table(X, np.log(rows["price"].to_numpy(float)), (math.log(100), math.log(20_000)))


@lru_cache(maxsize=1)
def flights_table() -> Table:
    """Arrival delays in minutes from schedule, route and weather: 10,000 of 327,346 flights.

    Airport x hour, airline, month, weekday and destination are indicators; columns of few flights may be
    constant in a part of the rows. Declared range: delays are cut at an hour early and three hours late.
    """
    pandas: Any = require("pandas", extra="studies")
    columns = ["temp", "humid", "wind_speed", "precip", "visib"]
    rows = flights().dropna(subset=["arr_delay"]).sample(FLIGHT_ROWS, random_state=0)
    rows = rows.merge(weather()[["origin", "time_hour", *columns]], on=["origin", "time_hour"], how="left")
    rows[columns] = rows[columns].fillna(rows[columns].median())
    rows["weekday"] = pandas.to_datetime(rows["time_hour"]).dt.weekday
    rows["airport_hour"] = rows["origin"] + rows["hour"].astype(str)
    X = _indicators(rows, ["airport_hour", "carrier", "month", "weekday", "dest"], ["distance", *columns])
    return Table(X, rows["arr_delay"].clip(-60, 180).to_numpy(float), (-60.0, 180.0))


@lru_cache(maxsize=1)
def words_table() -> Table:
    """How one person rated the sentiment of a word, from -4 to 4; the word's embedding is public.

    7,230 words (those written in letters only), 384 columns. The first of a word's ten ratings is the label.

    Source: the VADER lexicon (Hutto and Gilbert, 2014; MIT), as carried by the package vaderSentiment; the
        embeddings are all-MiniLM-L6-v2's (Apache-2.0).
    """
    from assay.methods.cond_dp.embeddings import embeddings

    pandas: Any = require("pandas", extra="studies")
    path = package_file("vaderSentiment", "vaderSentiment", "vader_lexicon.txt")
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    kept = [parts for parts in lines if parts[0].replace("-", "").replace("'", "").isalpha()]
    words = [parts[0] for parts in kept if parts[0].isascii()]
    ratings = [float(json.loads(parts[3])[0]) for parts in kept if parts[0].isascii()]
    return Table(pandas.DataFrame(embeddings(words), index=words), np.array(ratings), (-4.0, 4.0))


@lru_cache(maxsize=1)
def diabetes_table() -> Table:
    """Progression of diabetes after a year: 442 rows, 10 columns, too few rows for small budgets.

    Declared range: 0 to 400. Source: Efron, Hastie, Johnstone and Tibshirani (2004), in scikit-learn.
    """
    from sklearn.datasets import load_diabetes

    loaded: Any = load_diabetes(as_frame=True, scaled=False)
    return Table(loaded.data.astype(float), loaded.target.to_numpy(float), (0.0, 400.0))


TABLES: dict[str, Callable[[], Table]] = {
    "bikeshare": bikeshare_table,
    "diamonds": diamonds_table,
    "flights": flights_table,
    "words": words_table,
    "diabetes": diabetes_table,
}


def real_split(name: str, seed: int) -> Split:
    """A random fifth of a table for testing, the rest for fitting; at most 10,000 rows in all.

    Raises:
        InputError: there is no such table.
    """
    if name not in TABLES:
        raise InputError(f"no data set {name!r}: choose one of {', '.join(TABLES)}")
    table = TABLES[name]()
    rows = np.random.default_rng([11, seed]).permutation(len(table.y))[:MOST_ROWS]
    n_test = round(TEST_SHARE * len(rows))
    X, y = table.X.to_numpy(float), table.y
    test, train = rows[:n_test], rows[n_test:]
    X_test, y_test = X[test], y[test]

    def risk(coef: Float[np.ndarray, " d"], intercept: float) -> float:
        return relative_error(X_test @ coef + intercept, y_test)

    return Split(X[train], y[train], table.y_range, X_test, y_test, risk)


def relative_error(predicted: Float[np.ndarray, " m"], y: Float[np.ndarray, " m"]) -> float:
    """Mean squared error as a share of the labels' variance: 1 - R^2."""
    return float(np.mean((predicted - y) ** 2) / np.var(y))


def _indicators(rows: Any, categorical: list[str], plain: list[str]) -> Any:
    """One column per category (all of them: nothing is dropped), then the plain columns."""
    pandas: Any = require("pandas", extra="studies")
    encoded = pandas.get_dummies(rows[categorical].astype(str), dtype=float)
    return pandas.concat([encoded, rows[plain].astype(float)], axis=1).reset_index(drop=True)
