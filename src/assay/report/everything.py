"""All reports over a folder of runs in one call."""

from __future__ import annotations

import logging
from pathlib import Path

from assay.errors import InputError
from assay.report.index import write_index
from assay.report.markdown import has_scoreboard, write_markdown, write_results
from assay.report.page import write_report
from assay.report.runs import Run, Scoreboard, load_run, load_scoreboard, precedence

logger = logging.getLogger(__name__)


def write_everything(runs: Path | str, markdown: Path | str | None = None) -> list[Path]:
    """Write every run's page anew and the scoreboard over them, and on demand both as Markdown.

    Where `markdown` already has the two lines of a scoreboard (see `write_markdown`), the scoreboard between
    them is replaced. Otherwise each method's results go into a folder beside `markdown` that is named after
    the method, and `markdown` becomes the scoreboard over these folders. Results at a larger scale that are
    already there stay.

    Where `runs` holds only folders that `write_results` made, no page is written: these have no trials.

    Args:
        runs: a folder of run folders.
        markdown: the Markdown file; None for pages only.

    Returns:
        The files written, the scoreboards last. A run whose page cannot be written is logged and left out.

    Raises:
        InputError: `runs` is not a folder, `markdown` lies in it, or a folder beside `markdown` holds
            something else than results.
    """
    root = Path(runs)
    scoreboard = load_scoreboard(root)
    target = Path(markdown) if markdown is not None else None
    replaces = target is not None and has_scoreboard(target)
    written: list[Path] = []
    paged = [run for run in (*scoreboard.leading, *scoreboard.older) if not run.is_published]
    if target is not None and not replaces and paged and target.parent.resolve() == root.resolve():
        raise InputError(f"{target} would put results among the runs; name a file in another folder")
    for run in paged:
        try:
            written.append(write_report(run.path))
        except InputError as error:
            logger.warning("no page for %s: %s", run.name, error)
    if paged or not scoreboard.leading:
        written.append(write_index(root))
    if target is not None:
        if replaces:
            write_markdown(root, target)
        else:
            written += _publish(scoreboard, target.parent)
            write_markdown(target.parent, target)
        written.append(target)
    return written


def _publish(scoreboard: Scoreboard, folder: Path) -> list[Path]:
    """Write the results of every method that has any, unless better ones are there."""
    wanted = [run for run in scoreboard.leading if run.has_verdicts and run.finished is not None]
    return [
        write_results(run.path, folder / run.method)
        for run in wanted
        if not run.is_published and not _has_better(folder / run.method, run)
    ]


def _has_better(folder: Path, run: Run) -> bool:
    try:
        return precedence(load_run(folder)) > precedence(run)
    except InputError:
        return False
