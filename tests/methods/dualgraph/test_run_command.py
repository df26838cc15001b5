"""`assay dualgraph run` and `gaps` on files, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from assay.cli import main
from assay.methods.dualgraph.embeddings import HashedWords

QUESTION = "How do Kestrel and Harrier differ in hunting?"
PAGES = {
    "kestrel.md": "# Kestrel\n\nKestrel hovers over Meadow before it strikes. Kestrel eats Vole.\n",
    "harrier.txt": "Harrier glides low over Marsh while hunting. Harrier eats Vole and Frog.\n",
    "vole.rst": "Vole\n====\n\nVole lives in Meadow. Kestrel and Harrier both hunt Vole.\n",
    "marsh.html": "<html><body><p>Marsh shelters Frog and Heron. Harrier nests in Marsh.</p></body></html>",
}
SHORT = ("--max-iter", "1", "--kg-queries", "3", "--og-queries", "4", "--checker", "lexical")


@pytest.fixture
def assay(tmp_path, monkeypatch, capsys, own_cache):
    """Run the command line in a folder of its own; returns what it printed, or its one line of complaint."""
    from assay.methods.dualgraph import extractive, research_run

    for module in (extractive, research_run):
        monkeypatch.setattr(module, "default_encoder", HashedWords)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, text in PAGES.items():
        (folder / name).write_text(text)

    def run(*arguments, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["dualgraph", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert (end.value.code or 0) == code, err
        if code == 2:
            assert err.count("\n") == 1, err
        assert "Traceback" not in err
        return err if code else out

    return run


def test_a_report_on_a_folder(assay, tmp_path):
    out = assay("run", QUESTION, "--docs", "docs", "--out", "found", *SHORT)
    assert "round 1/1:" in out
    assert "citations hold" in out
    assert "found/report.md" in out
    report = (tmp_path / "found/report.md").read_text()
    assert "## References" in report
    assert "file://" in report
    again = assay("run", QUESTION, "--docs", "docs", "--out", "found", "--resume", *SHORT)
    assert "round 1/1:" not in again
    assert (tmp_path / "found/report.md").read_text() == report

    shown = assay("gaps", "found", "--limit", 3)
    assert "enrich" in shown
    lines = assay("gaps", "found", "--limit", 3, "--as-json").splitlines()
    assert len(lines) == 3
    assert set(json.loads(lines[0])) == {"type", "nodes", "score", "reason"}
    assert "Ignore" not in shown


def test_quiet_prints_nothing(assay):
    assert assay("run", QUESTION, "--docs", "docs", "-o", "found", *SHORT, "--quiet") == ""


def test_a_recorded_run_is_repeated_without_the_folder(assay, tmp_path):
    assay("run", QUESTION, "--docs", "docs", "--out", "first", *SHORT, "--record", "kept")
    (tmp_path / "docs").rename(tmp_path / "gone")
    assay(
        "run", QUESTION, "--search", "fixture:kept/search.jsonl", "--llm", "replay:kept/chat.jsonl",
        "--out", "second", *SHORT,
    )  # fmt: skip
    first, second = (tmp_path / name / "report.md" for name in ("first", "second"))
    assert second.read_text() == first.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "of the", "--docs", "docs", "--out", "x"), "no word to search for"),
        (("run", QUESTION, "--out", "x"), "pass --docs FOLDER"),
        (("run", QUESTION, "--docs", "missing", "--out", "x"), "missing"),
        (("run", QUESTION, "--search", "altavista", "--out", "x"), "altavista"),
        (("run", QUESTION, "--docs", "docs", "--llm", "oracle", "--out", "x"), "oracle"),
        (("run", QUESTION, "--docs", "docs", "--out", "docs/vole.rst"), "is a file"),
        (("run", QUESTION, "--docs", "docs", "--out", "x", "--max-iter", 0), "max_iter must be at least 1"),
        (("run", QUESTION, "--docs", "docs", "--out", "x", "--budget-usd", -1), "budget of usd"),
        (("run", QUESTION, "--docs", "docs", "--out", "x", "--checker", "oracle"), "oracle"),
        (("run", QUESTION, "--docs", "docs", "--out", "x", "--resume"), "no run to go on with"),
        (
            ("run", QUESTION, "--docs", "docs", "--out", "docs", "--from-iteration", 2),
            "no copy of iteration 2",
        ),
        (("run", QUESTION, "--docs", "docs", "--docs", "docs", "--out", "x"), "named twice"),
        (("gaps", "missing"), "holds no run"),
        (("gaps", "docs", "--limit", 0), "--limit"),
    ],
)
def test_mistakes_are_one_line(assay, arguments, complaint):
    assert complaint in assay(*arguments, code=2)


def test_ctrl_c_twice_and_resume(assay, monkeypatch, tmp_path):
    from assay.methods.dualgraph.extractive import ExtractiveModel

    whole, left = ExtractiveModel.chat, [3]

    def interrupted(self, messages, **options):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return whole(self, messages, **options)

    arguments = ("run", QUESTION, "--docs", "docs", *SHORT)
    assay(*arguments, "--out", "whole")
    monkeypatch.setattr(ExtractiveModel, "chat", interrupted)
    assay(*arguments, "--out", "found", code=130)
    left[0] = 6
    assay(*arguments, "--out", "found", "--resume", code=130)
    assert not (tmp_path / "found/report.md").exists()
    assay(*arguments, "--out", "found", "--resume")
    assert (tmp_path / "found/report.md").read_text() == (tmp_path / "whole/report.md").read_text()


def test_a_run_is_not_overwritten(assay):
    assay("run", QUESTION, "--docs", "docs", "--out", "found", *SHORT)
    assert "--resume" in assay("run", QUESTION, "--docs", "docs", "--out", "found", *SHORT, code=2)
    other = assay("run", "Where is Heron?", "--docs", "docs", "--out", "found", *SHORT, "--resume", code=2)
    assert "another question" in other


def test_a_dead_service_is_one_line_and_resumable(assay, tmp_path):
    (tmp_path / "empty.jsonl").write_text('{"query": "unrelated", "hits": []}\n')
    line = assay("run", QUESTION, "--search", "fixture:empty.jsonl", "--out", "found", *SHORT, code=2)
    assert "queries of this round failed" in line
    assert "--resume" in line
    assert not (tmp_path / "found/report.md").exists()


@pytest.mark.slow
def test_kill_minus_nine_and_resume_give_the_same_report(tmp_path):
    """Three processes of a slow run are killed by the system at different moments."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, text in PAGES.items():
        (folder / name).write_text(text)
    script = textwrap.dedent(
        """
        import os, signal, sys
        from assay.methods.dualgraph.checkers import LexicalChecker
        from assay.methods.dualgraph.embeddings import HashedWords
        from assay.methods.dualgraph.extractive import ExtractiveModel
        from assay.methods.dualgraph.records import ResearchConfig
        from assay.methods.dualgraph.research_run import research

        left = int(sys.argv[2])

        class Mortal(ExtractiveModel):
            def chat(self, messages, **options):
                global left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().chat(messages, **options)

        research(
            sys.argv[3], llm=Mortal(HashedWords()), search=["local:docs"], run_dir=sys.argv[1],
            config=ResearchConfig(max_iter=2, early_stop=False), encoder=HashedWords(),
            checker=LexicalChecker(),
        )
        """
    )

    def process(out: str, life: int) -> int:
        environment = os.environ | {"ASSAY_CACHE": str(tmp_path / "cache")}
        command = [sys.executable, "-c", script, out, str(life), QUESTION]
        return subprocess.run(command, cwd=tmp_path, env=environment, timeout=120, check=False).returncode

    assert process("whole", 10**9) == 0
    for life in (2, 8, 16):
        out = f"killed-{life}"
        assert process(out, life) == -signal.SIGKILL
        assert not (tmp_path / out / "report.md").exists()
        assert process(out, 10**9) == 0
        assert (tmp_path / out / "report.md").read_bytes() == (tmp_path / "whole/report.md").read_bytes()
