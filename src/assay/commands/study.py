"""`assay study`: run studies, judge their claims, write their pages."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from assay.errors import InputError
from assay.registry import Card, cards, find_card

if TYPE_CHECKING:
    from assay.study import FinishedTrial, RunFolder


def study(
    *names: str,
    every: Annotated[bool, Parameter(name="--all", negative=())] = False,
    scale: Literal["smoke", "quick", "full"] = "quick",
    seeds: int | None = None,
    out: Path = Path("runs"),
    jobs: int | None = None,
    cluster: str | None = None,
    resume: Path | None = None,
    quiet: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run the study of one or more methods, judge their claims and write a page for each.

    The exit code is 0 when every trial finished and 1 when some failed; verdicts do not change it.

    Parameters
    ----------
    names
        The methods to study.
    every
        Study every method.
    scale
        smoke takes seconds and gives no verdicts; quick takes minutes on two cores and needs no network; full
        is the scale of the paper.
    seeds
        The number of seeds; by default the scale's own.
    out
        The folder in which every run gets a folder of its own.
    jobs
        Trials under way at once; by default one per core.
    cluster
        Run the trials as Ray tasks: the address of a cluster ("auto", "ray://HOST:PORT"), or "local" to start
            Ray here.
    resume
        A run folder to finish: only the trials that it lacks are run.
    quiet
        Show no progress and no tables.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}")
    if resume is not None:
        folders = [_resumed(resume, names, every)]
    else:
        folders = _started(names, every, scale, seeds, out)
    failed = 0
    for card, folder in folders:
        failed += _conduct(card, folder, jobs, cluster, quiet)
    return 1 if failed else 0


def _resumed(resume: Path, names: tuple[str, ...], every: bool) -> tuple[Card, RunFolder]:
    from assay.study import RunFolder

    folder = RunFolder(resume)
    card = find_card(folder.study["method"])
    if every or any(find_card(name) != card for name in names):
        raise InputError(f"{resume} is a run of {card.command}; give --resume no other method")
    card.check_installed()
    return card, folder


def _started(
    names: tuple[str, ...],
    every: bool,
    scale: Literal["smoke", "quick", "full"],
    seeds: int | None,
    out: Path,
) -> list[tuple[Card, RunFolder]]:
    if every == bool(names):
        raise InputError("name the methods to study, or pass --all (`assay list` shows them)")
    wanted = list(cards().values()) if every else list({name: find_card(name) for name in names}.values())
    for card in wanted:
        card.check_installed()
    from assay.study import start_run

    command = shlex.join(["assay", *sys.argv[1:]])
    return [
        (card, start_run(card.load_study(), scale, seeds=seeds, out=out, command=command, title=card.title))
        for card in wanted
    ]


def _conduct(card: Card, folder: RunFolder, jobs: int | None, cluster: str | None, quiet: bool) -> int:
    """Run one study to its page; the number of trials that failed."""
    from rich.console import Console

    from assay.report import render_figures, write_index, write_report
    from assay.study import run_study

    console = Console(quiet=quiet)
    console.print(f"[bold]{card.title}[/bold]: {folder.study['question']}")
    method_study = card.load_study()
    with _progress(console, f"{card.command} ({folder.study['scale']})", quiet) as progress:
        try:
            run_study(method_study, folder, jobs=jobs, cluster=cluster, progress=progress)
        except KeyboardInterrupt:
            print(f"assay: go on with: assay study --resume {shlex.quote(str(folder.path))}", file=sys.stderr)
            raise
    trials = folder.trials()
    render_figures(method_study.figures, [trial for trial in trials if trial.ok], folder.path / "figures")
    page = write_report(folder.path)
    index = write_index(folder.path.parent)
    _print_outcome(console, folder, trials)
    console.print(f"Page: {page}\nScoreboard: {index}", soft_wrap=True, highlight=False)
    return sum(not trial.ok for trial in trials)


def _print_outcome(console, folder: RunFolder, trials: list[FinishedTrial]) -> None:
    from assay.commands.verdict_table import verdict_table

    if folder.study["scale"] == "smoke":
        console.print("The smoke scale checks that the code runs; it gives no verdicts.")
    else:
        console.print(verdict_table(folder.study["claims"], folder.verdicts() or []))
    failures = [trial for trial in trials if not trial.ok]
    if failures:
        console.print(f"{len(failures)} of {len(trials)} trials failed, for example:", style="red")
        console.print(f"  {failures[0].trial}: {failures[0].error}", markup=False)


class _progress:
    """A progress bar with the time left; a context manager that gives `run_study` what it calls."""

    def __init__(self, console, description: str, quiet: bool) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._description = description
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            # Trials differ in length, so the estimate looks back over all of them and not only over the last
            # seconds.
            TimeRemainingColumn(),
            console=console,
            disable=quiet,
            speed_estimate_period=3600,
        )

    def __enter__(self) -> Callable[[int, int], Callable[[FinishedTrial], None]]:
        self._bar.start()
        return self._begin

    def _begin(self, done: int, total: int) -> Callable[[FinishedTrial], None]:
        task = self._bar.add_task(self._description, total=total, completed=done)

        def advance(trial: FinishedTrial) -> None:
            if not trial.ok:
                self._bar.console.print(f"failed: {trial.trial}: {trial.error}", markup=False, style="red")
            self._bar.advance(task)

        return advance

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()
