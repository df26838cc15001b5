"""`assay dualgraph index`: the index of a folder of documents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from assay.methods.dualgraph.index import IndexReport

Flag = Annotated[bool, Parameter(negative=())]


def index(
    folder: Path,
    *,
    embeddings: bool | None = None,
    place: Path | None = None,
    rebuild: Flag = False,
    max_megabytes: float = 50.0,
    show_skipped: Flag = False,
    quiet: Flag = False,
) -> None:
    """Index a folder of documents, or bring its index up to date; only what has changed is read.

    `assay dualgraph run --docs FOLDER` does the same by itself; a separate run is of use for embeddings,
    which take some 25 milliseconds a passage, and to see what cannot be read.

    Parameters
    ----------
    folder
        Text, Markdown, reStructuredText, HTML, PDF, Word and source code, with all sub-folders.
    embeddings
        Also embed every passage, so that it is found by its meaning; --no-embeddings drops the embeddings. By
        default embeddings are kept up to date where there are some.
    place
        Where to keep the index; by default in the user's cache.
    rebuild
        Read everything again.
    max_megabytes
        Larger files are skipped.
    show_skipped
        List every file that was skipped, and why.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.dualgraph.index import update_index

    if not 0 < max_megabytes < 2**20:
        raise InputError(f"--max-megabytes must be a positive number below 2^20, got {max_megabytes}")
    console = Console(quiet=quiet, highlight=False)
    with IndexBar(console, quiet) as bar:
        report = update_index(
            folder,
            place,
            embeddings=embeddings,
            rebuild=rebuild,
            max_bytes=max(1, int(max_megabytes * 2**20)),
            progress=bar.show,
        )
    _print(console, report, show_skipped)


class IndexBar:
    """A progress bar with a task a stage, for `update_index` and `LocalBackend`."""

    def __init__(self, console: Console, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # What is not a terminal would get an empty line for every bar.
        hidden = quiet or not console.is_terminal
        self._progress = Progress(*columns, console=console, disable=hidden, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> IndexBar:
        self._progress.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._progress.stop()

    def show(self, stage: str, done: int, total: int) -> None:
        """Show how far a stage is."""
        if stage not in self._tasks and total:
            self._tasks[stage] = self._progress.add_task(stage.capitalize(), total=total)
        if stage in self._tasks:
            self._progress.update(self._tasks[stage], completed=done)


def _print(console: Console, report: IndexReport, show_skipped: bool) -> None:
    console.print(
        f"{report.documents} documents, {report.passages} passages "
        f"({report.added} added, {report.changed} changed, {report.removed} removed)"
    )
    if report.embedded:
        console.print(f"{report.embedded} passages have embeddings")
    if report.skipped:
        reasons = Counter(reason for _, reason in report.skipped)
        shown = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(5))
        console.print(
            f"{len(report.skipped)} files skipped: {shown}", style="yellow", markup=False, soft_wrap=True
        )
    if show_skipped:
        for path, reason in report.skipped:
            console.print(f"  {path}: {reason}", markup=False, soft_wrap=True)
    console.print(f"The index is in {report.place}", markup=False, soft_wrap=True)
