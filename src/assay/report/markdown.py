"""Results as Markdown: the scoreboard that a README carries, and a folder of results per method."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from assay.errors import InputError
from assay.files import replacing_folder, write_text
from assay.report import numerals
from assay.report.figures import DrawnFigure, read_figures
from assay.report.intervals import holds_where
from assay.report.runs import OUTCOMES, ClaimRow, Run, Scoreboard, load_run, load_scoreboard, tally_words
from assay.report.templating import SIGNS

START, END = "<!-- assay:scoreboard -->", "<!-- /assay:scoreboard -->"
# Punctuation that both CommonMark and Python-Markdown take literally after a backslash.
_BACKSLASHED = re.compile(r"([\\`*_{}\[\]])")
# The rest has a meaning in at least one dialect: HTML, tables, mathematics, strikethrough, superscripts.
_ENTITIES = {character: f"&#{ord(character)};" for character in "|$~^"} | {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
}


class _Markup(str):
    """Text that is Markdown already."""


def write_markdown(runs: Path | str, target: Path | str) -> None:
    """Write the scoreboard over a folder of runs as Markdown: every claim with its verdict.

    Where `target` has the lines `<!-- assay:scoreboard -->` and `<!-- /assay:scoreboard -->`, only what
    stands between them is replaced, by a summary: a row per method, and the claims that fail. Links are
    relative to `target`. The text depends on the runs only, so that a check can compare it.

    Args:
        runs: a folder of run folders, or of folders written by `write_results`.
        target: the Markdown file.

    Raises:
        InputError: `runs` is not a folder, or `target` has one of the two lines without the other.
    """
    path = Path(target)
    scoreboard = load_scoreboard(runs)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    start, end = old.find(START), old.find(END)
    if not has_scoreboard(path):
        write_text(path, f"# Scoreboard\n\n{_scoreboard(scoreboard, path.parent)}\n")
        return
    if start < 0 or end < start or old.count(START) > 1 or old.count(END) > 1:
        raise InputError(f"{path} must have {START} once and {END} once after it; mend or remove these lines")
    write_text(path, f"{old[:start]}{START}\n{_summary(scoreboard, path.parent)}\n{old[end:]}")


def has_scoreboard(target: Path) -> bool:
    """Whether a Markdown file exists and has (one of) the two lines between which a scoreboard stands."""
    text = target.read_text(encoding="utf-8") if target.exists() else ""
    return START in text or END in text


def write_results(run: Path | str, folder: Path | str) -> Path:
    """Write what the documentation shows of a run: `index.md`, the figures, `study.json` and `verdicts.json`.

    The folder is replaced as a whole. A folder of such folders can be given to `write_markdown` as its runs.

    Args:
        run: a finished run folder with verdicts.
        folder: where to write, such as `docs/results/desi`.

    Returns:
        The path of `index.md`.

    Raises:
        InputError: the run has no verdicts or is not finished, or `folder` holds something else.
    """
    loaded = load_run(run)
    target = Path(folder)
    if loaded.without_verdicts or loaded.finished is None:
        why = loaded.without_verdicts or "the run is not finished"
        raise InputError(f"{loaded.path} has no results to publish: {why}")
    source, place = loaded.path.resolve(), target.resolve()
    if source == place or source in place.parents or place in source.parents:
        raise InputError(f"{target} and the run {loaded.path} lie in each other; choose another folder")
    if target.exists() and not _replaceable(target):
        raise InputError(f"{target} holds something else than results; choose a new or an empty folder")
    figures, _ = read_figures(loaded.path / "figures")
    with replacing_folder(target) as new:
        for name in ("study.json", "verdicts.json"):
            shutil.copyfile(loaded.path / name, new / name)
        for figure in figures:
            for file in (figure.light, figure.dark):
                (new / "figures").mkdir(exist_ok=True)
                shutil.copyfile(file, new / "figures" / file.name)
        write_text(new / "index.md", _results_page(loaded, figures))
    return target / "index.md"


def _replaceable(folder: Path) -> bool:
    """Whether a folder is empty or was written by `write_results`; a run folder has no `index.md`."""
    if not folder.is_dir():
        return False
    return not any(folder.iterdir()) or all((folder / name).is_file() for name in ("index.md", "study.json"))


def escape(text: object) -> str:
    """Text that Markdown shows as it is, on one line, inside and outside of a table's cell."""
    line = _BACKSLASHED.sub(r"\\\1", " ".join(str(text).split()))
    return "".join(_ENTITIES.get(character, character) for character in line)


def _scoreboard(scoreboard: Scoreboard, base: Path) -> str:
    parts = []
    if scoreboard.leading:
        parts.append(_tally(scoreboard))
        header = ("Method", "Claim", "Verdict", "Ours", "Paper")
        rows = [row for run in scoreboard.leading for row in _scoreboard_rows(run, base)]
        parts.append(_table(header, rows))
        parts.append(
            "Ours is the effect with its interval (corrected for the number of claims), measured by the "
            "command below; paper is the paper’s own number. A claim holds when its whole interval lies "
            "where the claim says, fails when it lies wholly outside on one side, and is inconclusive "
            "otherwise."
        )
        commands = [(escape(run.title), escape(run.scale), _code(run.command)) for run in scoreboard.leading]
        parts.append(
            _table(("Method", "Scale", "Command"), ([_Markup(cell) for cell in row] for row in commands))
        )
    else:
        parts.append("No run yet.")
    if scoreboard.unreadable:
        parts.append("\n".join(f"- Unreadable: {escape(f'{n}: {why}')}" for n, why in scoreboard.unreadable))
    return "\n\n".join(parts)


def _summary(scoreboard: Scoreboard, base: Path) -> str:
    if not scoreboard.leading:
        return "No run yet."
    rows = [
        [
            _Markup(_link(run, base)),
            *(str(run.tally.get(outcome, 0)) for outcome in OUTCOMES),
            _Markup(_code(run.command)),
        ]
        for run in scoreboard.leading
    ]
    parts = [_tally(scoreboard), _table(("Method", *OUTCOMES, "Command"), rows)]
    failing = [
        f"- {escape(run.title)}, {_code(row.id)}: {escape(row.says)} Measured: {escape(_ours(row))}"
        + (f"; paper: {escape(row.paper)}." if row.paper else ".")
        for run in scoreboard.leading
        for row in run.rows
        if row.verdict is not None and row.verdict.verdict == "fails"
    ]
    if failing:
        # Folded: the list grows with every method, and a reader of a README wants the methods first.
        claims = numerals.count(len(failing), "claim")
        heading = f"<summary>The {claims} that {'fails' if len(failing) == 1 else 'fail'}</summary>"
        parts.append("\n\n".join(["<details>", heading, "\n".join(failing), "</details>"]))
    return "\n\n".join(parts)


def _tally(scoreboard: Scoreboard) -> str:
    claims = sum(scoreboard.tally.values())
    counts = ", ".join(words for _, words in tally_words(scoreboard.tally))
    methods = numerals.count(len(scoreboard.leading), "method")
    return f"{methods}, {numerals.count(claims, 'claim')}" + (f": {counts}." if counts else ".")


def _scoreboard_rows(run: Run, base: Path) -> Iterable[tuple[str, ...]]:
    method = _Markup(_link(run, base))
    if not run.has_verdicts:
        yield method, _Markup(""), run.without_verdicts, numerals.NOTHING, numerals.NOTHING
        return
    for position, row in enumerate(run.rows):
        yield (
            method if position == 0 else _Markup(""),
            _Markup(f"{_code(row.id)} {escape(row.says)}"),
            _Markup(_verdict(row)),
            _ours(row),
            row.paper or numerals.NOTHING,
        )


def _link(run: Run, base: Path) -> str:
    for name in ("index.md", "report.html"):
        if (run.path / name).is_file():
            # The root may be given as another relative path than the target.
            address = os.path.relpath((run.path / name).resolve(), base.resolve())
            return f"[{escape(run.title)}]({quote(Path(address).as_posix())})"
    return escape(run.title)


def _results_page(run: Run, figures: Sequence[DrawnFigure]) -> str:
    parts = [
        f"# {escape(run.title)}: results",
        escape(run.question),
        f"{run.scale.capitalize()} scale, {numerals.moment(run.started)}, "
        f"{numerals.count(run.planned, 'trial')}. Every number here was written by this command:",
        _block(run.command),
        "## Claims and verdicts",
        _table(
            ("Claim", "Verdict", "Ours", "Holds", "n", "Missing trials", "Effect size", "Paper"),
            [_result_row(row) for row in run.rows],
        ),
        *_notes(run),
        *_preconditions(run),
    ]
    if figures:
        parts.append("## Figures")
    for number, figure in enumerate(figures, start=1):
        images = ((figure.light, "only-light"), (figure.dark, "only-dark"))
        parts.append("\n".join(f"![Figure {number}](figures/{file.name}#{theme})" for file, theme in images))
        parts.append(f"**Figure {number}.** {escape(figure.caption)}")
    parts += ["## Environment", _environment(run)]
    return "\n\n".join(parts) + "\n"


def _result_row(row: ClaimRow) -> list[str]:
    verdict = row.verdict
    nothing = numerals.NOTHING
    size = numerals.number(verdict.effect_size, 2) if verdict else nothing
    return [
        _Markup(f"{_code(row.id)} {escape(row.says)}"),
        _Markup(_verdict(row)),
        _ours(row),
        holds_where(row.region).removeprefix("holds ") or nothing,
        str(verdict.n) if verdict else nothing,
        str(verdict.missing) if verdict else nothing,
        size,
        row.paper or nothing,
    ]


def _notes(run: Run) -> Iterable[str]:
    """What each effect is, the level of its interval and the means behind it: too long for a cell."""
    lines = []
    for row in run.rows:
        if (verdict := row.verdict) is None or verdict.effect is None:
            continue
        said = verdict.unit
        if verdict.level is not None:
            said += (
                " (exact check)" if verdict.level >= 1 else f" ({numerals.percent(verdict.level)} interval)"
            )
        if verdict.treatment_mean is not None and verdict.reference_mean is not None:
            said += f"; means: {row.treatment or 'treatment'} {numerals.number(verdict.treatment_mean)}, "
            said += f"{row.reference or 'reference'} {numerals.number(verdict.reference_mean)}"
        lines.append(f"- {_code(row.id)}: {escape(said)}")
    if lines:
        yield "\n".join(lines)


def _preconditions(run: Run) -> Iterable[str]:
    rows = [
        [
            _Markup(_code(row.id)),
            condition["says"],
            numerals.number(condition["value"]),
            condition["threshold"],
            "met" if condition["met"] else "not met",
        ]
        for row in run.rows
        if row.verdict is not None
        for condition in row.verdict.preconditions
    ]
    if rows:
        yield "## Preconditions"
        yield _table(("Claim", "Precondition", "Measured", "Needed", ""), rows)


def _environment(run: Run) -> str:
    facts = dict(run.environment)
    packages = facts.pop("packages", None) or {}
    rows = []
    for name, value in (*facts.items(), *packages.items()):
        if isinstance(value, (list, tuple)):
            value = ", ".join(map(str, value))
        rows.append([name.replace("_", " "), "none" if value in (None, "") else value])
    return _table(("What", "Value"), rows)


def _verdict(row: ClaimRow) -> str:
    if row.verdict is None:
        return "no verdict"
    reason = f": {escape(row.verdict.reason)}" if row.verdict.reason else ""
    return f"{SIGNS[row.verdict.verdict]} {row.verdict.verdict}{reason}"


def _ours(row: ClaimRow) -> str:
    verdict = row.verdict
    return (
        numerals.NOTHING if verdict is None else numerals.interval(verdict.effect, verdict.low, verdict.high)
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header)]
    lines += [[cell if isinstance(cell, _Markup) else escape(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _code(text: str) -> str:
    """A code span for a cell. A pipe would end the cell even there, so text with one is escaped instead."""
    line = " ".join(text.split())
    if "|" in line or "<!--" in line:
        return escape(line)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}" if line else ""


def _block(text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}bash\n{text}\n{fence}"
