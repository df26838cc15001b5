"""Intervals and p-values against closed forms, published numbers and each other."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.study.statistics import (
    MeanEstimate,
    ProportionEstimate,
    cluster_means,
    holm_levels,
    standardised_effect,
)


def test_mean_estimate_is_students_t():
    units = (1.2, 0.7, 1.9, 1.1, 0.4)
    reference = stats.ttest_1samp(units, popmean=0.3)
    estimate = MeanEstimate(units)
    assert estimate.p_value(0.3) == pytest.approx(reference.pvalue, rel=1e-12)
    expected = reference.confidence_interval(0.99)
    assert estimate.interval(0.01) == pytest.approx((expected.low, expected.high), rel=1e-12)


def test_overlapping_splits_widen_the_interval_as_nadeau_and_bengio_say():
    units = tuple(np.random.default_rng(0).normal(size=10))
    plain, corrected = MeanEstimate(units), MeanEstimate(units, overlap=0.25)
    width = [np.ptp(estimate.interval(0.05)) for estimate in (plain, corrected)]
    assert width[1] / width[0] == pytest.approx(math.sqrt((1 / 10 + 0.25) / (1 / 10)), rel=1e-12)


def test_units_without_spread_decide_by_their_value():
    estimate = MeanEstimate((0.5, 0.5, 0.5))
    assert estimate.interval(0.05) == (0.5, 0.5)
    assert (estimate.p_value(0.5), estimate.p_value(0.4)) == (1.0, 0.0)
    assert standardised_effect(estimate) is None


def test_clopper_pearson_of_no_success_in_ten():
    # 1 - (alpha/2)^(1/10), the closed form for zero successes.
    assert ProportionEstimate(0, 10).interval(0.05) == pytest.approx((0.0, 1 - 0.025**0.1), abs=1e-12)


def test_wilson_interval_by_its_formula():
    n, k, z = 40, 31, stats.norm.isf(0.025)
    share = k / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    assert ProportionEstimate(k, n, "wilson").interval(0.05) == pytest.approx((centre - half, centre + half))


estimates = st.one_of(
    st.lists(st.floats(-5, 5), min_size=2, max_size=9).map(lambda units: MeanEstimate(tuple(units))),
    st.tuples(st.integers(1, 30), st.floats(0, 1), st.sampled_from(["clopper-pearson", "wilson"])).map(
        lambda drawn: ProportionEstimate(round(drawn[0] * drawn[1]), drawn[0], drawn[2])
    ),
)


@given(estimates, st.floats(0.02, 0.98), st.floats(1e-4, 0.4))
def test_interval_and_p_value_agree(estimate, boundary, alpha):
    low, high = estimate.interval(alpha)
    p = estimate.p_value(boundary)
    if abs(p - alpha) < 1e-6 or min(abs(low - boundary), abs(high - boundary)) < 1e-6:
        return  # on the edge, rounding decides
    assert (p < alpha) == (not low <= boundary <= high)


def test_holm_on_the_textbook_example():
    levels = holm_levels([0.01, 0.04, 0.03, 0.005], alpha=0.05)
    assert [adjusted for _, adjusted in levels] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # 0.005 is compared with 0.05/4, 0.01 with 0.05/3, and 0.03 stops the procedure at 0.05/2.
    assert [level for level, _ in levels] == pytest.approx([0.05 / 3, 0.05 / 2, 0.05 / 2, 0.05 / 4])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_levels_show_the_decision_of_the_adjusted_p(p_values):
    for p, (level, adjusted) in zip(p_values, holm_levels(p_values, alpha=0.05), strict=True):
        if abs(adjusted - 0.05) > 1e-9:
            assert (p < level) == (adjusted < 0.05)


def test_cluster_means_weigh_clusters_equally():
    assert cluster_means([1, 3, 10], ["a", "a", "b"]) == (2.0, 10.0)


def test_standardised_effect_is_hedges_corrected():
    units = (1.0, 2.0, 3.0, 4.0, 5.0)
    plain = 3.0 / np.std(units, ddof=1)
    assert standardised_effect(MeanEstimate(units)) == pytest.approx(plain * (1 - 3 / 15))
