"""The page of a run: self-contained, escaped, complete."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from assay.errors import InputError
from assay.report import write_report
from assay.report.page import group_failures, tabulate
from assay.study import Difference, FinishedTrial, Invariance, Rate, RunFolder, Trial, judge
from assay.study.environment import environment

# Elements that have no end tag.
VOID = {"meta", "link", "img", "input", "br", "rect", "line", "path", "circle"}


class Page(HTMLParser):
    """Identifiers, addresses, scripts and text of a page; raises where tags do not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.addresses, self.scripts, self.text = [], [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attributes)
        assert not any(name.startswith("on") for name in values)
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[name] for name in ("src", "href") if name in values]
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif not self.open or self.open[-1] != "style":
            self.text += data


def read(path):
    return path.read_text(encoding="utf-8")


def words(page):
    return " ".join(page.text.split())


def test_the_page_says_what_was_found(make_run, make_verdict):
    condition = {"says": "The model has learnt", "value": 0.4123, "threshold": "≥ 0.5", "met": False}
    verdicts = [
        make_verdict("C1"),
        make_verdict(
            "C2",
            "not testable",
            reason="not met: The model has learnt",
            effect=None,
            low=None,
            high=None,
            preconditions=[condition],
        ),
        make_verdict("C3", "inconclusive", reason="the interval contains the margin", missing=2),
    ]
    path = write_report(make_run(verdicts=verdicts))
    assert path.name == "report.html"
    text = words(Page(read(path)))
    for wanted in (
        "Toy regression",
        "Is the method better than the baseline?",
        "1 holds",
        "1 inconclusive",
        "1 not testable",
        "0.098 [0.072, 0.124]",
        "98.75 % interval; holds above 0",
        "means: method 0.203, baseline 0.301",
        "0.20 against 0.31",
        "not met: The model has learnt",
        "The model has learnt 0.412 ≥ 0.5 ✗ not met",
        "24 of 24, 3 failed",
        "Equal in all trials: data = bikes, noise = 0.5.",
        "RuntimeError: singular matrix",
        "assay study toy --scale quick",
        "0123456789ab",
        "numpy2.4.0",
    ):
        assert wanted in text, wanted


def test_ours_and_the_papers_numbers_have_columns_of_their_own(make_run, make_verdict):
    page = read(write_report(make_run(verdicts=[make_verdict("C1", paper="paper says 7.77")])))
    cells = re.findall(
        r'<td role="cell" class="(\w+)[^"]*" data-label="(?:Ours|Paper)">(.*?)</td>', page, re.S
    )
    by_column = dict(cells)
    assert "paper says 7.77" in by_column["paper"]
    assert "7.77" not in by_column["ours"]
    assert "0.098" not in by_column["paper"]


def test_nothing_is_loaded_and_only_our_script_may_run(make_run):
    text = read(write_report(make_run()))
    page = Page(text)
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert "@import" not in text
    assert "url(" not in text
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in text
    assert "default-src &#39;none&#39;" in text


def test_identifiers_are_unique_with_two_figures(make_run):
    page = Page(read(write_report(make_run())))
    assert len(page.ids) == len(set(page.ids))
    assert sum(address.startswith("data:image/svg+xml") for address in page.addresses) == 4


def test_hostile_text_stays_text_everywhere(make_run, make_verdict, make_claim, hostile):
    condition = {"says": hostile, "value": None, "threshold": hostile, "met": False}
    verdicts = [
        make_verdict(
            hostile, says=hostile, paper=hostile, reason=hostile, unit=hostile, preconditions=[condition]
        )
    ]
    trial = Trial(hostile, {hostile: hostile, "n": 1}, seed=0)
    records = [
        FinishedTrial(trial, "error", {}, hostile, hostile),
        FinishedTrial(Trial(hostile, {hostile: 1, "n": 2}, 0), "ok", {hostile: 1.0}),
    ]
    path = make_run(
        verdicts=verdicts,
        claims=[make_claim(hostile, says=hostile, paper=hostile, treatment=hostile, reference=hostile)],
        finished_trials=records,
        title=hostile,
        question=hostile,
        command=hostile,
        environment={"assay": hostile, "packages": {hostile: hostile}, "gpu": [hostile]},
    )
    (path / "figures" / "captions.json").write_text('{"errors": "</figcaption><script>x</script>"}')
    text = read(write_report(path))
    page = Page(text)
    assert len(page.scripts) == 1
    assert text.count("<script") == 1
    assert page.text.count(hostile) > 15


def test_a_run_that_is_not_finished(make_run, finished):
    path = make_run(finished=None, trials=[trial.trial.id for trial in finished] + ["one", "two"])
    text = words(Page(read(write_report(path))))
    assert "This run is not finished: 2 trials of 26 are still to come." in text
    assert "no verdict" in text
    assert "24 of 26" in text


def test_trials_without_a_record_are_counted(make_run, finished):
    path = make_run(trials=[trial.trial.id for trial in finished] + ["lost"])
    assert "1 planned trial left no record." in words(Page(read(write_report(path))))


def test_a_smoke_run_says_that_it_gives_no_verdicts(make_run):
    text = words(Page(read(write_report(make_run(scale="smoke")))))
    assert "A smoke run only checks that the code runs; it gives no verdicts." in text
    assert "1 holds" not in text


def test_a_run_without_trials_or_figures(make_run):
    path = make_run(finished_trials=[], finished=None, trials=["a"])
    for file in (path / "figures").iterdir():
        file.unlink()
    text = words(Page(read(write_report(path))))
    assert "No trial has finished yet." in text
    assert "Figures" not in text


def test_a_figure_that_could_not_be_drawn_is_named(make_run):
    path = make_run()
    (path / "figures" / "errors.json").write_text(
        '{"curve": "Traceback\\nValueError: no <data>", "*": "KeyError: x"}'
    )
    text = words(Page(read(write_report(path))))
    assert "Figure “curve” could not be drawn: ValueError: no <data>" in text
    assert "The figures could not be drawn: KeyError: x" in text


def test_a_run_that_a_study_wrote(tmp_path):
    claims = [
        Difference(id="D", says="a is better", metric="m", treatment="a", reference="b", paper="1 against 2"),
        Invariance(id="I", says="a is exact", metric="gap", arm="a", tolerance=1e-8),
        Rate(id="R", says="a covers", metric="hit", arm="a", at_least=0.5),
    ]
    trials = [Trial(arm, {"n": 10}, seed) for arm in "ab" for seed in range(8)]
    folder = RunFolder.create(
        tmp_path / "toy-quick-20260301-093000",
        {
            "run": "toy-quick-20260301-093000",
            "method": "toy",
            "title": "Toy",
            "question": "Is a better?",
            "scale": "quick",
            "seeds": 8,
            "started": "2026-03-01T09:30:00+00:00",
            "finished": None,
            "command": "assay study toy",
            "environment": environment(),
            "claims": [claim.facts() for claim in claims],
            "trials": [trial.id for trial in trials],
        },
    )
    for trial in trials:
        values = {"m": 1.0 + (trial.arm == "b") + 0.01 * trial.seed, "gap": 1e-9 * trial.seed, "hit": 1.0}
        folder.append(FinishedTrial(trial, "ok", values, wall_seconds=1.0))
    folder.write_verdicts(judge(claims, trials, folder.trials(), "quick"))
    folder.update(finished="2026-03-01T09:31:00+00:00")
    text = words(Page(read(write_report(folder.path))))
    assert "3 hold" in text
    assert "m, improvement of a over b" in text
    assert "7.0 [0.0, 7.0] × 10⁻⁹" in text
    assert "16 of 16" in text


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(InputError, match=r"it has no study\.json"):
        write_report(tmp_path)


def test_columns_are_what_differs():
    trials = [
        FinishedTrial(Trial("a", {"n": 1, "flag": True, "only": "x"}, 0), "ok", {"m": 1.0, "curve:3": 2.0}),
        FinishedTrial(Trial("b", {"n": 1, "flag": 1}, 0), "died", {}),
    ]
    table = tabulate(trials)
    assert table.common == {"n": 1}
    assert table.settings == ("flag", "only")
    assert (table.arms, table.statuses, table.metrics) == (("a", "b"), ("ok", "died"), ("m",))
    assert table.series == 1


def test_failures_are_grouped_by_error(finished):
    failed = [
        FinishedTrial(Trial("a", {}, seed), "error", {}, "ValueError: x", f"traceback {seed}")
        for seed in range(3)
    ]
    groups = group_failures([*finished, *failed])
    assert [len(group.trials) for group in groups] == [3, 1, 1, 1]
    assert groups[0].traceback == "traceback 0"
