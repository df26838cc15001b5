"""Progress bars: ours, and silence for those of transformers and diffusers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(
    title: str, total: int, *, quiet: bool, done: int = 0, loss: bool = False
) -> Iterator[Callable[..., None]]:
    """A bar on stderr with the time left, if that is a terminal.

    Args:
        title: what is under way.
        total: of what is done.
        quiet: show nothing.
        done: how much is done already.
        loss: whether there is a loss to show.

    Yields:
        A function of how much more is done, and of the loss.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    if loss:
        columns.append(TextColumn("loss {task.fields[loss]}"))
    columns.append(TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(title, total=total, completed=done, loss="-")

        def advance(count: int, latest: float | None = None) -> None:
            bar.advance(task, count)
            if latest is not None:
                bar.update(task, loss=f"{latest:.4g}")

        yield advance


@contextmanager
def without_library_bars() -> Iterator[None]:
    """transformers and diffusers show no bars while the block runs."""
    import diffusers.utils.logging
    import transformers.utils.logging

    libraries: list[Any] = [transformers.utils.logging, diffusers.utils.logging]
    shown = [library for library in libraries if library.is_progress_bar_enabled()]
    for library in shown:
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library in shown:
            library.enable_progress_bar()
