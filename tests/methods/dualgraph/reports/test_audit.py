"""The audit of finished reports, and the verbs `verify` and `show`."""

from __future__ import annotations

import csv
import re
import shutil

import pytest

from assay.cli import main
from assay.errors import InputError
from assay.methods.dualgraph.audit import audit_report, audit_run
from assay.methods.dualgraph.checkers import CombinedChecker, LexicalChecker
from assay.methods.dualgraph.embeddings import HashedWords
from assay.methods.dualgraph.records import Document, ReadFailed

CHECKERS = [LexicalChecker(), CombinedChecker(HashedWords())]


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def edit(run, change):
    path = run / "report.md"
    text = path.read_text()
    changed = change(text)
    assert changed != text
    path.write_text(changed)


def cited(run) -> list[str]:
    """The sentences of the report, each with its marker."""
    return re.findall(r"[^.\n]+\. \[\d+\]", (run / "report.md").read_text())


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda checker: checker.name)
def test_an_untouched_report_has_precision_1(run, checker):
    """Acceptance check 10, first half."""
    audit = audit_run(run, checker)
    assert audit.precision == 1.0
    assert len(audit.rows) >= 5
    assert audit.faults == []
    assert audit.unchecked == 0
    assert 0 < audit.effective <= len(audit.rows)


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda checker: checker.name)
def test_planted_faults_are_found(run, checker):
    """Acceptance check 10: a dangling id, an altered number, and sources that were exchanged."""
    sound = audit_run(run, checker).rows
    assert "in 9 of 12 months" in (run / "report.md").read_text()
    edit(run, lambda text: text.replace("in 9 of 12 months", "in 7 of 12 months"))
    (fault,) = audit_run(run, checker).faults
    assert (fault.status, "7 of 12" in fault.sentence) == ("unsupported", True)
    first = next(sentence for sentence in cited(run) if "of 12" not in sentence)
    edit(run, lambda text: text.replace(first, re.sub(r"\d+\]", "99]", first)))
    faults = audit_run(run, checker).faults
    assert sorted(fault.status for fault in faults) == ["dangling", "unsupported"]
    assert [fault.evidence_id for fault in faults if fault.status == "dangling"] == [99]
    # The list of references, rotated: every number now names another page.
    shutil.copy(run / "report.html", run / "unused")

    def rotate(text):
        body, listed = text.split("## References")
        urls = re.findall(r"<(file:[^>]+)>", listed)
        for url, other in zip(urls, urls[1:] + urls[:1], strict=True):
            listed = listed.replace(f"<{url}>", f"<{other}@>")
        return f"{body}## References{listed.replace('@>', '>')}"

    edit(run, rotate)
    rotated = audit_run(run, checker)
    assert len(rotated.rows) == len(sound)
    # Sentences that two pages have may hold by chance; the texts here share none.
    assert rotated.precision == 0.0


def test_the_section_of_a_citation_is_its_heading(run):
    sections = {row.section for row in audit_run(run, LexicalChecker()).rows}
    assert sections <= set(re.findall(r"^#+ (.+)$", (run / "report.md").read_text(), re.MULTILINE))


def foreign(tmp_path, text: str):
    path = tmp_path / "report.md"
    path.write_text(text)
    return path


def test_any_report_is_checked_against_files(tmp_path, library):
    report = foreign(
        tmp_path,
        "The Kestrel eats the Vole in 9 of 12 months [1]. The Marsh floods in autumn [2].\n"
        "The [Owl competes with the Harrier at dusk](https://owls.example).\n\n"
        "## Sources\n1. kestrel.txt\n2. marsh.txt\n",
    )
    audit = audit_report(report, LexicalChecker(), docs=[library])
    assert [(row.evidence_id, row.status) for row in audit.rows] == [(1, "supported"), (2, "unsupported")]
    assert audit.unchecked == 1
    assert "only when asked for" in audit.unread[3]


def test_pages_are_fetched_only_when_asked_for(tmp_path):
    report = foreign(
        tmp_path, "Owls hunt by night [here](https://a.example), foxes too ([x](https://b.example)).\n"
    )
    asked = []

    def fetch(url):
        asked.append(url)
        if "b.example" in url:
            raise ReadFailed("https://b.example answered 404")
        return Document(url, "t", "Owls hunt by night, here in the woods.", "0")

    audit = audit_report(report, LexicalChecker(), fetch=fetch)
    assert asked == ["https://a.example", "https://b.example"]
    assert [(row.evidence_id, row.status) for row in audit.rows] == [(1, "supported")]
    assert audit.unread == {2: "https://b.example answered 404"}


def test_no_file_outside_of_the_folders_is_opened(tmp_path, library):
    secret = tmp_path / "secret.txt"
    secret.write_text("The code of the safe is 4711.")
    inside = tmp_path / "docs"
    inside.mkdir()
    (inside / "link.txt").symlink_to(secret)
    folder = tmp_path / "reports"
    folder.mkdir()
    report = foreign(
        folder,
        "The code of the safe is 4711 [1]. The code of the safe is 4711 [2]. The code of the safe is 4711 "
        "[3].\n\n"
        f"## References\n[1] a <file://{secret}>\n\n[2] ../secret.txt\n\n[3] link.txt\n",
    )
    audit = audit_report(report, LexicalChecker(), docs=[inside])
    assert audit.rows == []
    assert set(audit.unread) == {1, 2, 3}


def test_unreadable_input(tmp_path, library):
    with pytest.raises(InputError, match="not a folder"):
        audit_report(foreign(tmp_path, "x"), LexicalChecker(), docs=[tmp_path / "no"])
    (tmp_path / "latin.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text in UTF-8"):
        audit_report(tmp_path / "latin.md", LexicalChecker())
    with pytest.raises(InputError, match="holds no run"):
        audit_run(tmp_path, LexicalChecker())
    report = foreign(
        tmp_path, "One fact here [1]. Two facts here [2].\n\n## References\n[1] no.txt\n\n[2] A book\n"
    )
    audit = audit_report(report, LexicalChecker(), docs=[library])
    assert audit.precision is None
    assert audit.unread[2] == "the reference has no address"


def command(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["dualgraph", *map(str, arguments)])
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


def test_verify_says_by_its_exit_code_whether_enough_holds(run, capsys, tmp_path):
    code, out, _ = command(capsys, "verify", run, "--checker", "lexical", "--out", tmp_path / "rows.csv")
    assert code == 0
    assert "(100.0%)" in out
    with (tmp_path / "rows.csv").open() as file:
        assert all(row["status"] == "supported" for row in csv.DictReader(file))
    edit(
        run,
        lambda text: (
            re.sub(r"\[1\]", "[99]", text.split("## References")[0])
            + "## References"
            + text.split("## References")[1]
        ),
    )
    code, out, _ = command(capsys, "verify", run, "--checker", "lexical", "--min-precision", "0.99")
    assert code == 1
    assert "no such source" in out
    assert "below --min-precision 0.99" in out
    assert command(capsys, "verify", run, "--checker", "lexical", "--min-precision", "0", "--quiet")[:2] == (
        0,
        "",
    )


def test_verify_of_a_report_that_cites_nothing(tmp_path, capsys):
    code, out, _ = command(capsys, "verify", foreign(tmp_path, "Nothing."), "--checker", "lexical")
    assert code == 1
    assert "cites nothing" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "{tmp}/missing"], "does not exist"),
        (["verify", "{tmp}"], "holds no run"),
        (["verify", "{run}", "--min-precision", "1.5"], "--min-precision must be from 0 to 1"),
        (["verify", "{run}", "--min-precision", "nan"], "--min-precision must be from 0 to 1"),
        (["verify", "{run}", "--checker", "magic"], "no checker is called"),
        (["verify", "{run}", "--checker", "llm"], "--llm"),
        (["verify", "{run}", "--llm", "extractive"], "--llm is for --checker llm"),
        (["verify", "{run}", "--docs", "{tmp}"], "leave out --docs"),
        (["verify", "{tmp}/report.md", "--checker", "lexical"], "no source of"),
        (["show", "{tmp}"], "holds no run"),
        (["show", "{run}", "--out", "x.html"], "pass --html"),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, capsys, arguments, message):
    foreign(tmp_path, "A fact is here [1].\n\n## References\n[1] gone.txt\n")
    code, _, err = command(capsys, *(a.format(run=run, tmp=tmp_path) for a in arguments))
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_show(run, capsys, tmp_path):
    code, out, _ = command(capsys, "show", run)
    assert code == 0
    assert "How do Kestrel and Harrier hunt?" in out
    assert "pieces of evidence" in out
    assert "References" in out
    (run / "report.html").unlink()
    code, out, _ = command(capsys, "show", run, "--html")
    assert code == 0
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    command(capsys, "show", run, "--html", "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").is_file()


def test_verify_asks_the_extractive_model_as_a_judge(run, capsys):
    code, out, _ = command(capsys, "verify", run, "--checker", "llm", "--llm", "extractive")
    assert code == 0
    assert "(100.0%)" in out
