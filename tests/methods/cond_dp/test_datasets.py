"""Data: what tables become, declared ranges, and designs whose spectrum and risk are known."""

import numpy as np
import pytest

from assay.data.tables import bikeshare, flights
from assay.errors import InputError
from assay.methods.cond_dp import datasets
from assay.methods.cond_dp.datasets import decay_for_gain, real_split, spectrum_split

SHAPES = {"bikeshare": (8645, 57), "diamonds": (53_940, 26), "flights": (10_000, 191), "diabetes": (442, 10)}


@pytest.mark.parametrize("name", SHAPES)
def test_tables_have_the_stated_size_and_keep_to_their_range(name):
    table = datasets.TABLES[name]()
    assert table.X.shape == SHAPES[name]
    assert np.isfinite(table.X.to_numpy()).all()
    assert table.y_range[0] <= table.y.min()
    assert table.y.max() <= table.y_range[1]


def test_rentals_are_the_logarithm_of_counts_and_every_hour_has_one_indicator():
    table = datasets.bikeshare_table()
    raw = bikeshare()
    np.testing.assert_allclose(np.expm1(table.y), raw["bikers"], atol=1e-9)
    hours = [f"hr_{h}" for h in range(24)]
    assert (table.X[hours].sum(axis=1) == 1).all()
    assert (table.X["hr_13"] == (raw["hr"] == 13)).all()
    # Labels never come back as features.
    assert not {"bikers", "casual", "registered"} & set(table.X.columns)


def test_delays_are_cut_at_the_declared_range_and_nothing_known_after_departure_is_a_feature():
    table = datasets.flights_table()
    assert table.y.min() == -60.0
    assert table.y.max() == 180.0
    assert not [name for name in table.X.columns if "delay" in name or "time" in name]
    arrived = flights()["arr_delay"].dropna()
    assert np.mean(table.y) == pytest.approx(arrived.clip(-60, 180).mean(), abs=1.5)


@pytest.mark.slow
def test_ratings_are_single_answers_and_embeddings_have_length_one():
    table = datasets.words_table()
    assert table.X.shape[1] == 384
    assert set(np.unique(table.y)) <= set(range(-4, 5))
    np.testing.assert_allclose(np.linalg.norm(table.X, axis=1), 1, atol=1e-5)
    assert table.y[list(table.X.index).index("foolishly")] == -1.0
    nearest = table.X.to_numpy() @ table.X.loc["happy"].to_numpy()
    assert {"happy", "happier", "happiness"} <= set(table.X.index[np.argsort(nearest)[-12:]])


def test_a_split_is_a_fifth_for_testing_and_differs_by_seed():
    first, again, other = real_split("bikeshare", 1), real_split("bikeshare", 1), real_split("bikeshare", 2)
    assert len(first.y_test) == 1729
    assert len(first.y) == 6916
    np.testing.assert_array_equal(first.X, again.X)
    assert not np.array_equal(first.y, other.y)
    # No row is on both sides: together they are the table.
    table = datasets.bikeshare_table()
    both = np.sort(np.concatenate([first.y, first.y_test]))
    np.testing.assert_array_equal(both, np.sort(table.y))


def test_large_tables_are_cut():
    split = real_split("diamonds", 3)
    assert (len(split.y), len(split.y_test)) == (8000, 2000)


def test_the_risk_of_the_constant_mean_is_about_one():
    split = real_split("bikeshare", 4)
    assert split.risk(np.zeros(57), float(split.y.mean())) == pytest.approx(1, abs=0.02)
    assert split.risk(np.zeros(57), 0.0) > 5


def test_an_unknown_table_is_named():
    with pytest.raises(InputError, match="no data set 'wine': choose one of bikeshare"):
        real_split("wine", 0)


# Designs.


@pytest.mark.parametrize("gain", [1.0, 2.0, 8.0])
def test_the_decay_has_the_wanted_gain(gain):
    decay = decay_for_gain(gain, 50)
    singular = np.arange(1, 51) ** -decay
    assert np.sqrt(np.mean((singular[0] / singular) ** 2)) == pytest.approx(gain)


def test_a_gain_below_one_is_refused():
    with pytest.raises(InputError, match=r"0\.5: it is at least 1"):
        decay_for_gain(0.5, 10)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("alignment", ["spread", "top"])
def test_the_exact_risk_is_what_new_rows_show(rotated, alignment):
    split = spectrum_split(decay=1.0, rotated=rotated, alignment=alignment, n=60_000, d=6, seed=5)
    exact = np.linalg.lstsq(split.X, split.y, rcond=None)[0]
    assert split.risk(exact, 0.0) == pytest.approx(0.2, abs=1e-3)
    rng = np.random.default_rng(0)
    guess, intercept = exact + rng.normal(size=6), 0.3
    measured = np.mean((split.X_test @ guess + intercept - split.y_test) ** 2)
    assert split.risk(guess, intercept) == pytest.approx(measured, rel=0.05)
    assert split.risk(np.zeros(6), 0.0) == pytest.approx(1.0)


def test_a_design_has_its_spectrum_and_a_rotation_correlates_columns():
    plain = spectrum_split(decay=1.0, rotated=False, alignment="spread", n=40_000, d=5, seed=1).X
    turned = spectrum_split(decay=1.0, rotated=True, alignment="spread", n=40_000, d=5, seed=1).X
    for X in (plain, turned):
        np.testing.assert_allclose(np.linalg.svd(X, compute_uv=False) / 200, 1 / np.arange(1, 6), rtol=0.03)
    assert np.abs(np.corrcoef(plain.T) - np.eye(5)).max() < 0.02
    assert np.abs(np.corrcoef(turned.T) - np.eye(5)).max() > 0.2
