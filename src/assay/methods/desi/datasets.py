"""Real metric-valued outcomes: from embedded tables, and readers for public files that a user downloads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from assay.data.tables import bikeshare, flights, weather
from assay.errors import InputError, require
from assay.methods.desi.spaces import (
    Composition,
    GraphLaplacian,
    MetricSpace,
    Wasserstein1D,
    quantiles_from_density,
    quantiles_from_samples,
)

if TYPE_CHECKING:
    from pandas import DataFrame

# A day with fewer recorded hours says too little about how its rentals are spread.
FEWEST_HOURS = 22
DAY_PARTS = {"night": range(6), "morning": range(6, 12), "midday": range(12, 18), "evening": range(18, 24)}


@dataclass(frozen=True)
class Outcomes:
    """Predictors with metric-valued outcomes.

    Args:
        X: one row per observation, with named columns.
        Y: the outcomes, one point of `space` per row.
        space: the metric space of the outcomes.
        unit: what a distance of 1 means.
    """

    X: DataFrame
    Y: Float[np.ndarray, "n ..."]
    space: MetricSpace
    unit: str


def bikeshare_rentals(grid_size: int = 100) -> Outcomes:
    """The distribution of a day's hourly rentals, for 359 days of 2011, given ten predictors.

    Distances are in hundreds of rentals per hour.
    """
    days = _bikeshare_days()
    samples = [day["bikers"].to_numpy() / 100 for _, day in days]
    Y = quantiles_from_samples(samples, grid_size)
    return Outcomes(
        _bikeshare_predictors(days), Y, Wasserstein1D(grid_size, lower=0.0), "100 rentals per hour"
    )


def bikeshare_day_parts() -> Outcomes:
    """How a day's rentals divide between night, morning, midday and evening, given ten predictors.

    A composition of four parts. Distances are angles in radians between the square roots of compositions.
    """
    days = _bikeshare_days()
    totals = [
        [day.loc[day["hr"].isin(hours), "bikers"].sum() for hours in DAY_PARTS.values()] for _, day in days
    ]
    Y = np.array(totals, dtype=float)
    return Outcomes(_bikeshare_predictors(days), Y / Y.sum(axis=1, keepdims=True), Composition(), "radian")


def flight_delays(grid_size: int = 100) -> Outcomes:
    """The distribution of a day's arrival delays at New York City, 2013, given the weather and the calendar.

    Distances are in minutes.
    """
    pandas: Any = require("pandas", extra="studies")
    conditions: Any = weather()
    # One anemometer reading of 1,048 mph is a transcription error of the source.
    conditions.loc[conditions["wind_speed"] > 200, "wind_speed"] = np.nan
    by_day = conditions.groupby(["month", "day"])
    X: Any = by_day[["temp", "humid", "wind_speed", "pressure", "visib"]].mean()
    X.columns = ["temperature", "humidity", "wind", "pressure", "visibility"]
    X["precipitation"] = 24 * by_day["precip"].mean()
    planned: Any = flights()
    # Planned flights: how many were cancelled is not known before the day.
    X = X.assign(flights=planned.groupby(["month", "day"]).size()).dropna()
    days = planned.dropna(subset=["arr_delay"]).groupby(["month", "day"])["arr_delay"]
    dates = pandas.to_datetime([f"2013-{month}-{day}" for month, day in X.index])
    X["weekend"] = (dates.dayofweek >= 5).astype(float)
    X["summer"] = dates.month.isin([6, 7, 8]).astype(float)
    Y = quantiles_from_samples([days.get_group(day).to_numpy() for day in X.index], grid_size)
    return Outcomes(X.astype(float).reset_index(drop=True), Y, Wasserstein1D(grid_size), "minute")


def read_mortality(path: Path | str, grid_size: int = 100) -> Outcomes:
    """Age-at-death distributions of 162 countries given nine predictors, from the file `mortality.RData`.

    The file is published with the code of the E2M method (UN World Population Prospects and World Bank data);
    it is an R list of `pred` (countries x predictors) and `density` (per country `x`, ages, and `y`,
    densities). Distances are in years of age.

    Raises:
        InputError: the file is not such a list.
    """
    content = _read_r_list(path, ("pred", "density"))
    try:
        X = _frame(content["pred"])
        curves = [
            (np.asarray(curve["x"], float), np.asarray(curve["y"], float)) for curve in content["density"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: `density` must be a list of x and y per country ({error})") from None
    if len(curves) != len(X):
        raise InputError(f"{path}: {len(curves)} densities for {len(X)} rows of predictors")
    Y = np.concatenate([quantiles_from_density(ages, density[None], grid_size) for ages, density in curves])
    return Outcomes(X, Y, Wasserstein1D(grid_size, lower=0.0), "year")


def read_taxi(path: Path | str) -> Outcomes:
    """Daily networks of taxi trips between 13 zones of Manhattan, as graph Laplacians, from the file
    `taxi_data.RData`.

    The file is published with the code of the E2M method (NYC Taxi and Limousine Commission); it is an R list
    of `x_pred` (days x predictors) and `taxigl` (a Laplacian per day). Distances are Frobenius norms.

    Raises:
        InputError: the file is not such a list.
    """
    content = _read_r_list(path, ("x_pred", "taxigl"))
    X = _frame(content["x_pred"])
    space = GraphLaplacian()
    Y = space.check(np.stack([np.asarray(matrix, dtype=float) for matrix in content["taxigl"]]))
    if len(Y) != len(X):
        raise InputError(f"{path}: {len(Y)} networks for {len(X)} rows of predictors")
    return Outcomes(X, Y, space, "Frobenius norm of trips")


def read_moods(path: Path | str, predictors: list[str]) -> Outcomes:
    """Shares of time in four moods, from a CSV of the Survey of Unemployed Workers in New Jersey.

    The survey (Krueger and Mueller) is distributed by Princeton University's Office of Population Research to
    registered users, so it cannot be shipped. Its columns b2_1 to b2_4 are percentages of time. Rows with a
    missing answer are left out. Distances are angles in radians between the square roots of compositions.

    Args:
        path: the CSV file.
        predictors: the names of the columns to predict from.

    Raises:
        InputError: a column is missing, or an answer is negative or does not sum to 100 (+- 1).
    """
    table: Any = require("pandas", extra="regression").read_csv(path)
    moods = [f"b2_{part}" for part in range(1, 5)]
    if missing := [name for name in [*moods, *predictors] if name not in table.columns]:
        raise InputError(f"{path} has no column {', '.join(missing)}")
    table = table.dropna(subset=[*moods, *predictors])
    shares = table[moods].to_numpy(float)
    wrong = (shares < 0).any(axis=1) | (np.abs(shares.sum(axis=1) - 100) > 1)
    if wrong.any():
        row = int(table.index[np.argmax(wrong)])
        raise InputError(f"{path}: row {row}: {', '.join(moods)} must be percentages that sum to 100")
    X = table[list(predictors)].astype(float).reset_index(drop=True)
    return Outcomes(X, shares / shares.sum(axis=1, keepdims=True), Composition(), "radian")


def _bikeshare_days() -> list[tuple[int, Any]]:
    hours: Any = bikeshare()
    return [(number, day) for number, day in hours.groupby("day") if len(day) >= FEWEST_HOURS]


def _bikeshare_predictors(days: list[tuple[int, Any]]) -> DataFrame:
    rows = [
        {
            "temperature": day["temp"].mean(),
            "humidity": day["hum"].mean(),
            "wind": day["windspeed"].mean(),
            "trend": number / 365,
            "working_day": day["workingday"].iloc[0],
            "holiday": day["holiday"].iloc[0],
            "misty": (day["weathersit"] == "cloudy/misty").mean(),
            "rain": day["weathersit"].isin(["light rain/snow", "heavy rain/snow"]).mean(),
            "winter": float(day["season"].iloc[0] == 1),
            "summer": float(day["season"].iloc[0] == 3),
        }
        for number, day in days
    ]
    return require("pandas", extra="studies").DataFrame(rows).astype(float)


def _read_r_list(path: Path | str, names: tuple[str, ...]) -> dict[str, Any]:
    """An R list with these names; `rdata` parses the format and runs nothing."""
    rdata = require("rdata", extra="studies")
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist")
    try:
        content = rdata.read_rds(path)
    except Exception as error:
        # The parser raises whatever a broken byte leads it to.
        raise InputError(f"{path} is not an R data file: {error}") from None
    if not isinstance(content, dict) or not set(names) <= set(content):
        raise InputError(f"{path} must hold an R list with the names {' and '.join(names)}")
    return content


def _frame(table: Any) -> DataFrame:
    """Predictors as a data frame, whether R kept them as one or as a matrix."""
    pandas: Any = require("pandas", extra="regression")
    if not isinstance(table, pandas.DataFrame):
        values = np.asarray(table, dtype=float)
        # A matrix with row and column names arrives as an xarray.DataArray.
        names = getattr(table, "coords", {})
        columns = [str(name) for name in np.asarray(names["dim_1"])] if "dim_1" in names else None
        table = pandas.DataFrame(values, columns=columns or [f"x{i}" for i in range(values.shape[1])])
    return table.astype(float).reset_index(drop=True)
