"""Numbers are written with the digits that their uncertainty allows."""

import math
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from assay.report import numerals


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (0.20314, "0.203"),
        (-0.0412, "−0.0412"),
        (0.99996, "1.00"),
        (1234.56, "1235"),
        (12.3456, "12.3"),
        (1.5e-7, "1.50 × 10⁻⁷"),
        (-2.5e12, "−2.50 × 10¹²"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "NaN"),
    ],
)
def test_numbers_keep_three_significant_digits(value, text):
    assert numerals.number(value) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((0.09812, 0.0723, 0.1239), "0.098 [0.072, 0.124]"),
        ((-0.0412, -0.0703, -0.0121), "−0.041 [−0.070, −0.012]"),
        ((12.34, 2.1, 22.6), "12 [2, 23]"),
        ((0.5, 0.2, math.inf), "0.500 [0.200, ∞]"),
        ((0.25, 0.25, 0.25), "0.250 [0.250, 0.250]"),
        ((3.2e-9, 1e-12, 3.2e-9), "3.2 [0.0, 3.2] × 10⁻⁹"),
        ((1234567.0, 1200000.0, 1269134.0), "1.235 [1.200, 1.269] × 10⁶"),
        ((0.0, 0.0, 0.0), "0 [0, 0]"),
        ((-0.0004, -0.1, 0.1), "0.00 [−0.10, 0.10]"),
        ((0.31, None, None), "0.310"),
        ((None, None, None), "–"),
    ],
)
def test_an_interval_has_one_precision(ends, text):
    assert numerals.interval(*ends) == text


@given(
    st.floats(-1e6, 1e6, allow_subnormal=False),
    st.floats(1e-6, 1e3),
    st.floats(1e-6, 1e3),
)
def test_an_interval_reads_back_within_its_own_precision(effect, below, above):
    low, high = effect - below, effect + above
    # A narrower interval is an exact number, shown with three digits.
    assume((high - low) / 2 > 1e-8 * max(abs(low), abs(high)))
    text = numerals.interval(effect, low, high).replace("−", "-")
    body, _, power = text.partition(" × 10")
    factor = 10.0 ** int(power.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-"))) if power else 1.0
    shown = [float(part.strip("[],")) * factor for part in body.split()]
    # Two digits of the half-width: nothing is off by more than a tenth of it.
    assert shown == pytest.approx([effect, low, high], abs=0.1 * (high - low) / 2 + 1e-9 * abs(effect))


@pytest.mark.parametrize(
    ("value", "text"), [(0.0004, "< 0.001"), (0.0123, "0.012"), (0.4, "0.40"), (1.0, "1"), (None, "–")]
)
def test_p_values(value, text):
    assert numerals.probability(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.95, "0.95"), (0.0, "0"), (-1e-8, "−1 × 10⁻⁸"), (1000.0, "1000"), (math.inf, "∞")]
)
def test_stated_numbers_get_no_new_digits(value, text):
    assert numerals.stated(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4213, "0.42 s"),
        (59.7, "1 min"),
        (192.0, "3 min 12 s"),
        (3599.9, "1 h"),
        (3900.0, "1 h 5 min"),
        (math.nan, "–"),
    ],
)
def test_durations(seconds, text):
    assert numerals.duration(seconds) == text


def test_times_are_shown_in_utc():
    time = datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert numerals.moment(time) == "2026-02-28 23:30 UTC"


def test_measurements_can_be_copied_into_other_programs():
    assert [numerals.measured(value) for value in (-0.123456, math.inf, math.nan, None)] == [
        "-0.1235",
        "inf",
        "nan",
        "",
    ]
    assert numerals.measured(math.nan, nan="") == ""


def test_percentages_and_counts():
    assert numerals.percent(0.9875) == "98.75 %"
    assert numerals.count(1, "trial") == "1 trial"
    assert numerals.count(0, "trial") == "0 trials"
