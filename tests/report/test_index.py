"""The scoreboard page over a folder of runs."""

import re
from urllib.parse import unquote

import pytest

from assay.errors import InputError
from assay.report import write_index, write_report


def text_of(page):
    return " ".join(
        re.sub(r"<[^>]+>", " ", re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)).split()
    )


def test_every_verdict_links_to_its_claim_in_the_page_of_its_run(make_run, make_verdict):
    path = make_run("a run#1", verdicts=[make_verdict("C1"), make_verdict("C 2", "inconclusive")])
    report = write_report(path).read_text()
    page = write_index(path.parent).read_text()
    links = re.findall(r'<a class="verdict ([\w-]+)" href="([^"#]+)#([^"]+)"', page)
    assert [outcome for outcome, _, _ in links] == ["holds", "inconclusive"]
    for _, address, anchor in links:
        assert (path.parent / unquote(address)).samefile(path / "report.html")
        assert f'id="{anchor}"' in report


def test_a_verdict_is_a_word_and_a_sign_and_not_only_a_colour(make_run):
    page = text_of(write_index(make_run().parent).read_text())
    assert "✓ C1 : holds" in page
    assert "✗ C2 : fails" in page


def test_runs_without_a_page_are_not_linked(make_run):
    page = write_index(make_run().parent).read_text()
    assert "report.html" not in page
    assert "Toy regression" in page


def test_older_smoke_unfinished_and_unreadable_runs_are_listed(make_run):
    root = make_run("leading", started="2026-03-05T00:00:00+00:00").parent
    make_run("older")
    make_run("smoke", scale="smoke")
    make_run("open", finished=None)
    (root / "broken").mkdir()
    (root / "broken" / "study.json").write_text("not <json>")
    page = text_of(write_index(root).read_text())
    assert "a smoke run only checks that the code runs; it gives no verdicts" in page
    assert "no verdicts yet: the run is not finished" in page
    assert "1 hold" in page
    assert "broken : broken/study.json cannot be read" in page
    other_runs = page[page.index("Other runs") :]
    assert all(name in other_runs for name in ("older", "smoke", "open"))
    assert "leading" not in other_runs


def test_a_method_with_only_a_smoke_run_is_there_without_verdicts(make_run):
    page = write_index(make_run(scale="smoke").parent).read_text()
    assert '<a class="verdict' not in page
    assert "Toy regression" in page


def test_hostile_text_stays_text(make_run, make_verdict, make_claim, hostile):
    path = make_run(
        verdicts=[make_verdict(hostile, says=hostile, paper=hostile, reason=hostile, unit=hostile)],
        claims=[make_claim(hostile, says=hostile, paper=hostile)],
        title=hostile,
        question=hostile,
        command=hostile,
        run=hostile,
    )
    write_report(path)
    assert write_index(path.parent).read_text().count("<script") == 1


def test_no_runs(tmp_path):
    assert "There is no run here yet" in text_of(write_index(tmp_path).read_text())
    with pytest.raises(InputError, match="not a folder of runs"):
        write_index(tmp_path / "nowhere")
