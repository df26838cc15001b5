"""Every kind of claim: when it holds, fails, stays open, and when it cannot be tested."""

import dataclasses
import math

import numpy as np
import pytest

from assay.study import (
    Difference,
    Equivalence,
    FinishedTrial,
    Invariance,
    Precondition,
    Rate,
    Trend,
    Trial,
    judge,
)


def finished(values, setting=None, arm="method", metric="error"):
    """One finished trial per seed."""
    return [
        FinishedTrial(Trial(arm, setting or {}, seed), "ok", {metric: float(value)})
        for seed, value in enumerate(values)
    ]


def verdict(claim, rows, *, planned=None, scale="quick"):
    (found,) = judge([claim], planned or [row.trial for row in rows], rows, scale)
    return found


def difference(**changes):
    return Difference(
        **{"id": "C", "says": "better", "metric": "error", "treatment": "method", "reference": "baseline"}
        | changes
    )


NOISE = np.array([0.03, -0.02, 0.05, -0.04, 0.01, -0.03])


@pytest.mark.parametrize(
    ("shift", "margin", "outcome"),
    [(1.0, 0.5, "holds"), (0.1, 0.5, "fails"), (0.5, 0.5, "inconclusive"), (-1.0, 0.0, "fails")],
)
def test_difference_is_judged_against_its_margin(shift, margin, outcome):
    rows = finished(2 - shift + NOISE) + finished(2 + NOISE[::-1], arm="baseline")
    found = verdict(difference(margin=margin), rows)
    assert found.verdict == outcome
    assert found.effect == pytest.approx(shift, abs=0.02)
    assert found.n == found.rows == 6
    assert (found.treatment_mean, found.reference_mean) == pytest.approx((2 - shift, 2), abs=0.01)


def test_difference_pairs_by_seed_and_setting():
    # Seeds differ far more than arms: only pairing can see the effect.
    seeds = np.array([1.0, 50.0, 100.0, 200.0, 400.0])
    rows = finished(seeds - 0.5) + list(reversed(finished(seeds + 1e-3 * np.arange(5), arm="baseline")))
    assert verdict(difference(), rows).verdict == "holds"


def test_higher_is_better_turns_the_sign():
    rows = finished(1 + NOISE) + finished(2 + NOISE[::-1], arm="baseline")
    assert verdict(difference(better="higher"), rows).verdict == "fails"
    assert verdict(difference(better="lower"), rows).verdict == "holds"


def test_relative_difference_is_a_share_of_the_reference():
    rows = finished([0.7, 7.1, 69]) + finished([1, 10, 100], arm="baseline")
    found = verdict(difference(relative=True, margin=0.25), rows)
    assert found.effect == pytest.approx(0.3, abs=0.01)
    assert found.verdict == "holds"
    zero = finished([0.0, 0.0]) + finished([0.0, 0.0], arm="baseline")
    assert "zero" in verdict(difference(relative=True), zero).reason


def test_rows_of_a_cluster_count_once():
    rows = []
    for link in ("linear", "quadratic"):
        rows += finished(1 + NOISE, {"link": link}) + finished(
            2 + NOISE[::-1], {"link": link}, arm="baseline"
        )
    by_seed = verdict(difference(), rows)
    assert (by_seed.n, by_seed.rows) == (6, 12)
    by_link = verdict(difference(cluster="link"), rows)
    assert by_link.n == 2


def test_where_selects_settings():
    rows = finished(1 + NOISE, {"n": 200}) + finished(2 + NOISE[::-1], {"n": 200}, arm="baseline")
    rows += finished(9 + NOISE, {"n": 500}) + finished(2 + NOISE[::-1], {"n": 500}, arm="baseline")
    assert verdict(difference(where={"n": 200}), rows).verdict == "holds"
    assert verdict(difference(where={"n": 500}), rows).verdict == "fails"
    assert verdict(difference(where={"n": (200, 500)}), rows).rows == 12
    none = verdict(difference(where={"n": 1000}), rows)
    assert (none.verdict, none.effect) == ("not testable", None)


@pytest.mark.parametrize(
    ("shift", "outcome"), [(0.0, "holds"), (1.0, "fails"), (-1.0, "fails"), (0.2, "inconclusive")]
)
def test_equivalence_within_a_margin(shift, outcome):
    claim = Equivalence(
        id="C", says="equal", metric="error", treatment="method", reference="baseline", margin=0.2
    )
    rows = finished(2 + shift + NOISE) + finished(2 + NOISE[::-1], arm="baseline")
    assert verdict(claim, rows).verdict == outcome


def test_equivalence_without_a_margin_is_refused():
    with pytest.raises(ValueError, match="margin above 0, got 0"):
        Equivalence(id="C", says="equal", metric="error", treatment="a", reference="b")


def rate(**changes):
    return Rate(
        **{"id": "C", "says": "covers", "metric": "covered", "arm": "method", "at_least": 0.8} | changes
    )


@pytest.mark.parametrize(("successes", "outcome"), [(100, "holds"), (50, "fails"), (82, "inconclusive")])
@pytest.mark.parametrize("interval", ["clopper-pearson", "wilson"])
def test_rate_of_independent_trials(successes, outcome, interval):
    rows = finished([1] * successes + [0] * (100 - successes), metric="covered")
    assert verdict(rate(interval=interval), rows).verdict == outcome


def test_rate_at_most():
    rows = finished([0] * 100, metric="covered")
    assert verdict(rate(at_least=None, at_most=0.1), rows).verdict == "holds"
    assert verdict(rate(at_least=None, at_most=0.01), rows).verdict == "inconclusive"


def test_rate_refuses_what_is_not_binary_and_takes_clusters():
    rows = finished([0.9, 0.92, 0.95, 0.97], metric="covered")
    assert "interval='clustered'" in verdict(rate(), rows).reason
    assert verdict(rate(interval="clustered"), rows).verdict == "holds"


def test_rate_needs_exactly_one_bound():
    with pytest.raises(ValueError, match="exactly one of at_least and at_most"):
        rate(at_most=0.9)


def test_invariance_must_hold_in_every_trial():
    claim = Invariance(id="C", says="exact", metric="error", arm="method", tolerance=1e-9)
    assert verdict(claim, finished([0, 1e-12, -1e-10])).verdict == "holds"
    broken = verdict(claim, finished([0, 1e-12, -1e-3]))
    assert (broken.verdict, broken.effect) == ("fails", pytest.approx(1e-3))
    assert verdict(claim, finished([0, math.nan])).verdict == "fails"
    rows = finished([0.0] * 10)
    short = verdict(claim, rows[:9], planned=[row.trial for row in rows])
    assert (short.verdict, short.missing) == ("inconclusive", 1)


def trend_rows(means):
    return [row for n, mean in means.items() for row in finished(mean + NOISE * (1 + n / 1000), {"n": n})]


def trend(**changes):
    return Trend(
        **{
            "id": "C",
            "says": "falls",
            "metric": "error",
            "arm": "method",
            "over": "n",
            "direction": "decreasing",
        }
        | changes
    )


def test_trend_is_the_slope_in_the_stated_direction():
    rows = trend_rows({100: 3.0, 200: 2.0, 400: 1.0})
    found = verdict(trend(log=True), rows)
    assert found.verdict == "holds"
    assert found.effect == pytest.approx(1 / math.log(2), rel=0.02)
    assert verdict(trend(direction="increasing", log=True), rows).verdict == "fails"


def test_trend_that_turns_back_does_not_hold():
    found = verdict(trend(log=True), trend_rows({100: 3.0, 200: 0.5, 400: 1.0}))
    assert found.verdict == "inconclusive"
    assert "not monotone" in found.reason


def test_trend_with_a_negative_margin_states_slow_growth():
    rows = trend_rows({100: 1.0, 200: 1.02, 400: 1.05})
    assert verdict(trend(margin=-0.3, log=True), rows).verdict == "holds"
    assert verdict(trend(margin=0.0, log=True), rows).verdict == "fails"


def test_unmet_precondition_makes_a_claim_untestable():
    rows = finished(1 + NOISE) + finished(2 + NOISE[::-1], arm="baseline")
    learns = Precondition(says="the baseline learns", metric="error", arm="baseline", at_most=1.5)
    found = verdict(difference(preconditions=(learns,)), rows)
    assert found.verdict == "not testable"
    assert found.preconditions[0]["value"] == pytest.approx(2.0, abs=0.01)
    assert "the baseline learns" in found.reason
    met = dataclasses.replace(learns, at_most=2.5)
    assert verdict(difference(preconditions=(met,)), rows).verdict == "holds"
    # A control that was never measured supports nothing.
    absent = dataclasses.replace(learns, arm="control")
    assert verdict(difference(preconditions=(absent,)), rows).verdict == "not testable"


def test_missing_trials_are_counted_and_too_many_decide_nothing():
    rows = finished([1.0 + 0.01 * (seed % 3) for seed in range(10)])
    rows += finished([2.0] * 10, arm="baseline")
    planned = [row.trial for row in rows]
    few = verdict(difference(), rows[1:], planned=planned)
    assert (few.verdict, few.missing, few.n) == ("holds", 1, 9)
    many = verdict(difference(), rows[3:], planned=planned)
    assert (many.verdict, many.missing) == ("inconclusive", 3)
    assert "3 of 10 trials are missing" in many.reason


def test_failed_trials_are_missing():
    rows = finished(1 + NOISE) + finished(2 + NOISE[::-1], arm="baseline")
    failed = dataclasses.replace(rows[0], status="error", measurements={})
    assert verdict(difference(), [failed, *rows[1:]]).missing == 1


def test_non_finite_measurements_decide_nothing():
    rows = finished([1.0, math.inf, 1.0]) + finished([2.0, 2.0, 2.0], arm="baseline")
    found = verdict(difference(), rows)
    assert found.verdict == "inconclusive"
    assert "not finite" in found.reason


def test_one_seed_is_inconclusive():
    rows = finished([1.0]) + finished([2.0], arm="baseline")
    assert verdict(difference(), rows).verdict == "inconclusive"


def test_smoke_scale_gives_no_verdicts():
    rows = finished(1 + NOISE) + finished(2 + NOISE[::-1], arm="baseline")
    assert verdict(difference(), rows, scale="smoke").verdict == "not testable"


def test_more_claims_widen_every_interval():
    rows = finished(1.88 + 4 * NOISE) + finished(2 + 4 * NOISE[::-1], arm="baseline")
    planned = [row.trial for row in rows]
    alone = judge([difference()], planned, rows, "quick")[0]
    among = judge([difference(id=f"C{i}") for i in range(20)], planned, rows, "quick")[0]
    assert alone.level == pytest.approx(0.95)
    assert among.level == pytest.approx(1 - 0.05 / 20)
    assert among.low < alone.low
    assert among.p_holm == pytest.approx(min(1, 20 * alone.p))


def test_verdicts_do_not_depend_on_the_order_in_which_trials_finish():
    rows = finished(1 + NOISE) + finished(2 + NOISE[::-1], arm="baseline")
    planned = [row.trial for row in rows]
    assert judge([difference()], planned, rows, "quick") == judge(
        [difference()], planned, rows[::-1], "quick"
    )


def holds_share(studies, seeds, draw):
    """The share of simulated studies of 4 claims in which one holds although the truth is at the margin."""
    arms = [(f"method{i}", f"baseline{i}") for i in range(4)]
    claims = [difference(id=f"C{i}", treatment=a, reference=b, margin=0.1) for i, (a, b) in enumerate(arms)]
    planned = {(arm, seed): Trial(arm, {}, seed) for pair in arms for arm in pair for seed in range(seeds)}
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(studies):
        rows = [
            FinishedTrial(trial, "ok", {"error": float(value) + 0.1 * arm.startswith("baseline")})
            for (arm, _), trial, value in zip(planned, planned.values(), draw(rng, len(planned)), strict=True)
        ]
        wrong += any(
            found.verdict == "holds" for found in judge(claims, list(planned.values()), rows, "quick")
        )
    return wrong / studies


def test_holds_is_wrong_in_at_most_five_percent_of_studies_at_the_null():
    share = holds_share(2000, 6, lambda rng, n: rng.normal(size=n))
    # Two-sided intervals: 2.5% is expected on this side, and none would mean that nothing can ever hold.
    assert 0.01 < share <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["exponential", "standard_cauchy"])
def test_holds_is_rarely_wrong_for_heavy_tails(draw):
    assert holds_share(10_000, 5, lambda rng, n: getattr(rng, draw)(size=n)) <= 0.05
