"""`assay report`: the scoreboard over all runs of a folder."""

from __future__ import annotations

from pathlib import Path

from assay.errors import InputError


def report(runs: Path = Path("runs"), *, markdown: Path | None = None) -> None:
    """Write the scoreboard `index.html` over all runs of a folder, and every run's page anew.

    Parameters
    ----------
    runs
        The folder of runs.
    markdown
        Also write the scoreboard as Markdown into this file, and each method's latest results (verdicts,
        figures, the command) into a folder beside it that is named after the method. Between the lines
        `<!-- assay:scoreboard -->` and `<!-- /assay:scoreboard -->` of an existing file only the scoreboard
        is replaced, and no folders are written.
    """
    if not runs.is_dir():
        raise InputError(f"{runs} is not a folder of runs; `assay study NAME --out {runs}` makes one")
    from assay.report import write_everything

    for path in write_everything(runs, markdown):
        print(path)
