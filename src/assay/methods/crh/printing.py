"""What the commands print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from assay.methods.crh.concepts import Concept
    from assay.methods.crh.cylinder import Cylinder
    from assay.methods.crh.detectors import Detector
    from assay.methods.crh.strength import Recommendation
    from assay.methods.crh.verdict import PredictabilityReport

Progress = Callable[[str, int, int], None]


@contextmanager
def progress(console: Console, quiet: bool) -> Iterator[Progress]:
    """A progress bar with the time left; yields what moves it: what is done, how much of it, of how much."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, Any] = {}
    with Bars(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:

        def step(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield step


@contextmanager
def warnings_to(console: Console) -> Iterator[None]:
    """Print the package's own warnings as lines instead of Python's."""
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        console.print(message, style="yellow", soft_wrap=True)


def list_concepts(console: Console, known: Mapping[str, Concept], written: Sequence[str]) -> None:
    from rich.table import Table

    table = Table("concept", "kind", "instruction", "hand-written pairs")
    for name, concept in known.items():
        table.add_row(name, concept.kind, concept.instruction, "yes" if name in written else "")
    console.print(table)


def verdict(detector: Detector | None, text: str) -> str:
    from assay.methods.crh.detectors import corruption

    if rule := corruption(text):
        return f" (corrupted: {rule})"
    if detector is None:
        return ""
    return " (shows the concept)" if detector(text) else " (does not show the concept)"


def plain(text: str) -> str:
    """Text of a user or model, in which rich shall find no mark-up."""
    from rich.markup import escape

    return escape(" ".join(text.split()))


def describe_strength(console: Console, recommendation: Recommendation, cylinder: Cylinder) -> None:
    low, high = recommendation.p_never_interval
    console.print(
        f"minimal {plain(str(recommendation))} ({low:.0%} to {high:.0%}); one mean difference is "
        f"{cylinder.axis_norm:.3g}; recommended: {recommendation.strength():.3g}",
        soft_wrap=True,
    )
    if recommendation.advice:
        console.print(recommendation.advice, style="yellow", soft_wrap=True)


def describe_report(console: Console, report: PredictabilityReport) -> None:
    from rich.table import Table

    table = Table("rank", "energy", "chance", "ratio", "p", "other concepts")
    for test in report.planes:
        other = sum(test.others.values()) / len(test.others) if test.others else None
        table.add_row(
            str(test.k),
            f"{test.mean:.4f}",
            f"{test.chance:.4f}",
            f"{test.ratio:.2f}",
            f"{test.p_value:.2g}",
            "" if other is None else f"{other:.4f}",
        )
    console.print(table)
    if report.sector is not None:
        sectors = Table("predictor of the sector", "score", "interval", "p")
        for name, score in report.sector.scores.items():
            low, high = score.interval
            sectors.add_row(name, f"{score.score:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{score.p_value:.2g}")
        console.print(sectors)
        console.print(
            f"{report.sector.n} held-out prompts: a score below {report.sector.detectable:.2f} would be "
            "missed",
            soft_wrap=True,
        )
    said = {True: "predictable", False: "not shown to be predictable", None: "undefined"}
    console.print(
        f"plane {said[report.plane_predictable]}, sector {said[report.sector_predictable]}: {report.kind}"
    )


def describe(console: Console, cylinder: Cylinder) -> None:
    facts = cylinder.facts
    console.print(
        f"concept {facts['concept']}, layer {cylinder.layer}, {cylinder.n_train} pairs for the axis, "
        f"{len(facts['calibration'])} for strengths",
        soft_wrap=True,
    )
    console.print(
        f"mean difference {cylinder.axis_norm:.3g}, mean cosine to it {cylinder.mean_cosine:.3f}, plane of "
        f"rank {cylinder.rank}",
        soft_wrap=True,
    )
    if not cylinder.usable:
        console.print("no usable axis: the differences hardly agree on a direction", style="yellow")
    describe_strength(console, cylinder.recommend_strength(), cylinder)
