"""The page of pages: the scoreboard over a folder of runs."""

from __future__ import annotations

from pathlib import Path

from assay.files import write_text
from assay.report.intervals import strips
from assay.report.runs import load_scoreboard
from assay.report.templating import render


def write_index(runs: Path | str) -> Path:
    """Write `RUNS/index.html`: every method and claim with its verdict, linked to the run's page.

    A method stands there with its latest finished run at the largest scale; its other runs are listed below.
    Folders that cannot be read are listed with the reason.

    Args:
        runs: a folder of run folders.

    Returns:
        The path of the page.

    Raises:
        InputError: `runs` is not a folder.
    """
    root = Path(runs)
    scoreboard = load_scoreboard(root)
    everything = (*scoreboard.leading, *scoreboard.older)
    text = render(
        "index.html",
        scoreboard=scoreboard,
        strips={run.path: strips(run.rows) for run in scoreboard.leading},
        # The page of a run, relative to this one, where it has been written.
        pages={
            run.path: f"{run.path.name}/report.html"
            for run in everything
            if (run.path / "report.html").is_file()
        },
    )
    page = root / "index.html"
    write_text(page, text)
    return page
