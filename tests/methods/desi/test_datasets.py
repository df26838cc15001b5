"""Real outcomes: what the embedded tables become, and readers that check a user's file."""

import numpy as np
import pandas as pd
import pytest
import rdata

from assay.data.tables import bikeshare, flights
from assay.errors import InputError
from assay.methods.desi.datasets import (
    bikeshare_day_parts,
    bikeshare_rentals,
    flight_delays,
    read_moods,
    read_mortality,
    read_taxi,
)


def test_a_day_of_rentals_has_the_quantiles_of_its_hours():
    found = bikeshare_rentals(grid_size=9)
    assert found.X.shape == (359, 10)
    table = bikeshare()
    hours = table.loc[table["day"] == 1, "bikers"] / 100
    np.testing.assert_allclose(found.Y[0], np.quantile(hours, np.arange(1, 10) / 10))
    np.testing.assert_allclose(found.X["temperature"].iloc[0], table.loc[table["day"] == 1, "temp"].mean())


def test_day_parts_are_shares_of_the_day():
    found = bikeshare_day_parts()
    assert found.Y.shape == (359, 4)
    table = bikeshare()
    day = table[table["day"] == 1]
    morning = day.loc[day["hr"].between(6, 11), "bikers"].sum() / day["bikers"].sum()
    assert found.Y[0, 1] == pytest.approx(morning)
    found.space.check(found.Y)


def test_delays_are_those_of_the_day_and_predictors_are_known_before_it():
    found = flight_delays(grid_size=9)
    assert found.X.shape == (364, 9)
    assert np.isfinite(found.X.to_numpy()).all()
    table = flights()
    first = table[(table["month"] == 1) & (table["day"] == 1)]
    np.testing.assert_allclose(found.Y[0], np.quantile(first["arr_delay"].dropna(), np.arange(1, 10) / 10))
    assert found.X["flights"].iloc[0] == len(first)
    assert found.X["wind"].max() < 60


def test_mortality_file(tmp_path):
    ages = np.linspace(0, 100, 201)
    means = [50.0, 60.0, 70.0]
    density = [{"x": ages, "y": np.exp(-((ages - mean) ** 2) / 50) / np.sqrt(50 * np.pi)} for mean in means]
    predictors = pd.DataFrame({"gdp": [1.0, 2.0, 3.0], "cpi": [0.1, 0.2, 0.4]})
    path = tmp_path / "mortality.RData"
    rdata.write_rds(path, {"pred": predictors, "density": density})
    found = read_mortality(path, grid_size=99)
    assert list(found.X.columns) == ["gdp", "cpi"]
    # The median of a normal is its mean.
    np.testing.assert_allclose(found.Y[:, 49], means, atol=0.05)
    rdata.write_rds(path, {"pred": predictors, "density": density[:2]})
    with pytest.raises(InputError, match="2 densities for 3 rows"):
        read_mortality(path)


def test_taxi_file(tmp_path):
    weights = np.array([[0.0, 2.0, 1.0], [2.0, 0.0, 3.0], [1.0, 3.0, 0.0]])
    laplacian = np.diag(weights.sum(1)) - weights
    path = tmp_path / "taxi_data.RData"
    rdata.write_rds(path, {"x_pred": np.ones((2, 4)), "taxigl": [laplacian, 2 * laplacian]})
    found = read_taxi(path)
    assert found.X.shape == (2, 4)
    np.testing.assert_array_equal(found.Y[1], 2 * laplacian)
    rdata.write_rds(path, {"x_pred": np.ones((1, 4)), "taxigl": [weights]})
    with pytest.raises(InputError, match="row"):
        read_taxi(path)


def test_files_that_are_something_else(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_mortality(tmp_path / "mortality.RData")
    (tmp_path / "broken.RData").write_bytes(b"not R")
    with pytest.raises(InputError, match="is not an R data file"):
        read_mortality(tmp_path / "broken.RData")
    rdata.write_rds(tmp_path / "other.RData", {"a": np.ones(3)})
    with pytest.raises(InputError, match="x_pred and taxigl"):
        read_taxi(tmp_path / "other.RData")


def test_moods(tmp_path):
    path = tmp_path / "survey.csv"
    table = pd.DataFrame(
        {
            "b2_1": [40, 10, np.nan],
            "b2_2": [30, 20, 1],
            "b2_3": [20, 30, 1],
            "b2_4": [10, 40, 1],
            "age": [30, 40, 50],
        }
    )
    table.to_csv(path, index=False)
    found = read_moods(path, ["age"])
    np.testing.assert_allclose(found.Y, [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    assert list(found.X["age"]) == [30, 40]
    with pytest.raises(InputError, match="has no column income"):
        read_moods(path, ["income"])
    table.assign(b2_1=[80, 10, np.nan]).to_csv(path, index=False)
    with pytest.raises(InputError, match=r"row 0: .* must be percentages that sum to 100"):
        read_moods(path, ["age"])
