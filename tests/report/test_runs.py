"""Runs are checked when they are read, and the right one stands for its method."""

import json
import math

import pytest

from assay.errors import InputError
from assay.report.intervals import WIDTH, holds_where, strips
from assay.report.runs import load_run, load_scoreboard


def names(runs):
    return [run.name for run in runs]


def test_a_run_is_read(make_run, make_verdict):
    run = load_run(
        make_run(verdicts=[make_verdict("C1"), make_verdict("C2", "not testable"), make_verdict("C3")])
    )
    assert run.tally == {"holds": 2, "not testable": 1}
    assert run.planned == 24
    assert run.rows[0].region == (0.0, math.inf)
    assert run.without_verdicts == ""


def test_a_smoke_run_has_no_verdicts_whatever_its_file_says(make_run, make_verdict):
    run = load_run(make_run(scale="smoke", verdicts=[make_verdict("C1", "not testable")]))
    assert not run.has_verdicts
    assert "smoke" in run.without_verdicts


def test_infinite_ends_are_numbers(make_run, make_verdict):
    run = load_run(make_run(verdicts=[make_verdict("C1", high="inf")]))
    assert run.rows[0].verdict.high == math.inf


def test_the_region_agrees_with_the_claims_of_a_study(make_run):
    from assay.study import Difference, Equivalence, Invariance, Rate, Trend

    comparison = {"metric": "m", "treatment": "a", "reference": "b"}
    claims = [
        Difference(id="d", says="d", margin=0.1, **comparison),
        Equivalence(id="e", says="e", margin=0.2, **comparison),
        Rate(id="r", says="r", metric="m", arm="a", at_least=0.9),
        Rate(id="s", says="s", metric="m", arm="a", at_most=0.1),
        Invariance(id="i", says="i", metric="m", arm="a", tolerance=1e-6),
        Trend(id="t", says="t", metric="m", arm="a", over="n", direction="decreasing", margin=-0.1),
    ]
    run = load_run(make_run(claims=[claim.facts() for claim in claims], verdicts=[]))
    assert [row.region for row in run.rows] == [claim.region() for claim in claims]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": "huge"}, "unknown scale 'huge'"),
        ({"started": "yesterday"}, "yesterday"),
        ({"claims": [{"id": "C1"}]}, "'says' is missing"),
        ({"claims": None}, "cannot be reported"),
        ({"method": "../../etc"}, "not the name of a method"),
        ({"schema": 99}, "format version 99"),
        ({"claims": []}, "claims that study.json lacks: C1"),
    ],
)
def test_a_broken_run_is_refused_with_the_reason(make_run, make_verdict, changes, message):
    path = make_run(verdicts=[make_verdict("C1")], **changes)
    with pytest.raises(InputError, match=message):
        load_run(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "maybe"}, "unknown verdict 'maybe'"),
        ({"effect": "large"}, "large"),
        ({"effect": [1]}, "list"),
    ],
)
def test_a_broken_verdict_is_refused(make_run, make_verdict, changes, message):
    path = make_run(verdicts=[make_verdict("C1", **changes)])
    with pytest.raises(InputError, match=message):
        load_run(path)


def test_the_latest_finished_run_at_the_largest_scale_leads(make_run):
    late = {"started": "2026-05-01T00:00:00+00:00"}
    make_run("quick-old")
    make_run("quick-new", **late)
    make_run("full-old", scale="full", started="2025-01-01T00:00:00+00:00")
    make_run("full-new", scale="full")
    make_run("full-unfinished", scale="full", finished=None, **late)
    make_run("smoke", scale="smoke", **late)
    path = make_run("other-smoke", scale="smoke", method="other", title="Another")
    scoreboard = load_scoreboard(path.parent)
    assert names(scoreboard.leading) == ["other-smoke", "full-new"]
    assert set(names(scoreboard.older)) == {"quick-old", "quick-new", "full-old", "full-unfinished", "smoke"}
    assert names(scoreboard.older)[-1] == "full-old"
    assert scoreboard.tally == {"holds": 1, "fails": 1}


def test_times_with_and_without_a_zone_compare(make_run):
    make_run("zoned", started="2026-03-01T23:30:00-05:00")
    path = make_run("naive", started="2026-03-02T01:00:00")
    assert names(load_scoreboard(path.parent).leading) == ["zoned"]


def test_broken_folders_are_listed_and_others_passed_over(make_run):
    root = make_run("good").parent
    for name, content in {"torn": '{"schema": 1,', "list": "[]", "other": json.dumps({"schema": 1})}.items():
        (root / name).mkdir()
        (root / name / "study.json").write_text(content)
    (root / "headless").mkdir()
    (root / "headless" / "trials.jsonl").write_text("")
    (root / ".hidden-temporary").mkdir()
    (root / ".hidden-temporary" / "study.json").write_text("{")
    (root / "notes").mkdir()
    (root / "file.txt").write_text("")
    scoreboard = load_scoreboard(root)
    assert names(scoreboard.leading) == ["good"]
    assert [name for name, _ in scoreboard.unreadable] == ["headless", "list", "other", "torn"]
    assert all(str(root) not in reason for _, reason in scoreboard.unreadable)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="is not a folder of runs"):
        load_scoreboard(tmp_path / "nowhere")


def test_strips_of_one_unit_share_an_axis(make_run, make_verdict):
    verdicts = [
        make_verdict("a", effect=1.0, low=0.0, high=2.0),
        make_verdict("b", effect=3.0, low=2.0, high=4.0),
        make_verdict("c", unit="else", effect=1.0, low=0.5, high="inf"),
        make_verdict("d", "inconclusive", effect=None, low=None, high=None),
    ]
    drawn = strips(load_run(make_run(verdicts=verdicts)).rows)
    assert set(drawn) == {"a", "b", "c"}
    assert drawn["a"].high == drawn["b"].low
    assert drawn["a"].high - drawn["a"].low == drawn["b"].high - drawn["b"].low
    assert drawn["a"].band == (drawn["a"].low, WIDTH)
    assert drawn["c"].open_high
    assert drawn["c"].high == WIDTH
    assert drawn["c"].effect < WIDTH - 20
    assert drawn["a"].label == "1.0 [0.0, 2.0]; holds above 0"


def test_where_a_claim_holds_in_words():
    assert holds_where((0.95, math.inf)) == "holds above 0.95"
    assert holds_where((-math.inf, 0.1)) == "holds below 0.1"
    assert holds_where((-0.1, 0.1)) == "holds between −0.1 and 0.1"
