"""All reports in one call, as `assay report` writes them."""

import pytest

from assay.errors import InputError
from assay.report import write_everything
from assay.report.markdown import END, START


def test_pages_and_scoreboard(make_run):
    first, second = make_run("one"), make_run("two", method="other")
    written = write_everything(first.parent)
    assert written == [
        first / "report.html",
        second / "report.html",
        first.parent / "index.html",
    ] or written == [
        second / "report.html",
        first / "report.html",
        first.parent / "index.html",
    ]
    assert all(path.is_file() for path in written)


def test_a_run_with_broken_trials_costs_only_its_page(make_run, caplog):
    good, bad = make_run("good"), make_run("bad", method="other")
    (bad / "trials.jsonl").write_text("not a trial\n")
    written = write_everything(good.parent)
    assert good / "report.html" in written
    assert good.parent / "index.html" in written
    assert not (bad / "report.html").exists()
    assert "no page for bad" in caplog.text


def test_results_are_published_and_the_readme_follows_from_them(make_run, tmp_path):
    runs = make_run("old", started="2026-01-01T00:00:00+00:00").parent
    make_run("new")
    make_run("smoke", scale="smoke", method="other")
    results = tmp_path / "docs" / "results"
    write_everything(runs, results / "index.md")
    assert '"run": "new"' in (results / "toy" / "study.json").read_text()
    assert not (results / "other").exists()
    assert "[Toy regression](toy/index.md)" in (results / "index.md").read_text()
    readme = tmp_path / "README.md"
    readme.write_text(f"# Mine\n{START}\n{END}\n")
    written = write_everything(results, readme)
    assert written == [readme]
    assert "(docs/results/toy/index.md)" in readme.read_text()
    assert not list(results.rglob("*.html"))


def test_results_do_not_go_among_the_runs(make_run):
    root = make_run("one").parent
    with pytest.raises(InputError, match="another folder"):
        write_everything(root, root / "scoreboard.md")
    assert [path.name for path in root.iterdir()] == ["one"]


def test_publishing_again_updates_and_keeps_what_is_better_or_not_rerun(make_run, tmp_path):
    results = tmp_path / "results"
    runs = make_run("full", scale="full").parent
    make_run("other", method="other", title="Other")
    write_everything(runs, results / "index.md")
    again = make_run("../later/quick", run="quick", started="2026-06-01T00:00:00+00:00", title="Later").parent
    write_everything(again, results / "index.md")
    assert '"run": "full"' in (results / "toy" / "study.json").read_text()
    text = (results / "index.md").read_text()
    assert "[Other](other/index.md)" in text
    make_run(
        "../later/full", run="later-full", scale="full", started="2026-06-02T00:00:00+00:00", title="Later"
    )
    write_everything(again, results / "index.md")
    assert '"run": "later-full"' in (results / "toy" / "study.json").read_text()
    assert "[Later](toy/index.md)" in (results / "index.md").read_text()
