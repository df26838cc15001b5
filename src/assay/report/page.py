"""The page of a run: one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.files import write_text
from assay.report.figures import read_figures
from assay.report.intervals import strips
from assay.report.runs import Run, load_run
from assay.report.templating import render
from assay.study.trials import FinishedTrial, Scalar


@dataclass(frozen=True)
class TrialTable:
    """The trials with what they have in common taken out.

    Args:
        common: settings that are equal in all trials.
        settings, metrics: the columns; a setting is a column when it differs between trials.
        series: how many measurements are points of a series (`name:point`). They have no column: thousands
            of trials with a curve each would make a page of tens of megabytes.
        arms, statuses: what the filters offer.
    """

    common: Mapping[str, Scalar]
    settings: tuple[str, ...]
    metrics: tuple[str, ...]
    series: int
    arms: tuple[str, ...]
    statuses: tuple[str, ...]
    trials: tuple[FinishedTrial, ...]


@dataclass(frozen=True)
class Failure:
    """Trials that ended with the same error, and the traceback of the first."""

    error: str
    traceback: str
    trials: tuple[FinishedTrial, ...]


def write_report(run: Path | str) -> Path:
    """Write `RUN/report.html`: one self-contained page with verdicts, figures, trials and failures.

    Args:
        run: a run folder.

    Returns:
        The path of the page.

    Raises:
        InputError: `run` is not a run folder, or a file in it is broken.
    """
    loaded = load_run(run)
    trials = loaded.folder.trials()
    figures, undrawn = read_figures(loaded.path / "figures")
    text = render(
        "report.html",
        run=loaded,
        strips=strips(loaded.rows),
        conditions=_conditions(loaded),
        joint_level=_joint_level(loaded),
        table=tabulate(trials),
        failures=group_failures(trials),
        figures=figures,
        undrawn=undrawn,
        busy_seconds=sum(trial.wall_seconds for trial in trials if trial.wall_seconds == trial.wall_seconds),
    )
    page = loaded.path / "report.html"
    write_text(page, text)
    return page


def tabulate(trials: Sequence[FinishedTrial]) -> TrialTable:
    """Columns in the order in which the trials first name them."""
    settings = tuple(dict.fromkeys(name for trial in trials for name in trial.setting))
    measured = tuple(dict.fromkeys(name for trial in trials for name in trial.measurements))
    metrics = tuple(name for name in measured if ":" not in name)
    absent = object()
    common = {
        name: trials[0].setting[name]
        for name in settings
        # Compared by repr, because True == 1 == 1.0 and they are different settings.
        if len({repr(trial.setting.get(name, absent)) for trial in trials}) == 1
    }
    return TrialTable(
        common=common,
        settings=tuple(name for name in settings if name not in common),
        metrics=metrics,
        series=len(measured) - len(metrics),
        arms=tuple(dict.fromkeys(trial.arm for trial in trials)),
        statuses=tuple(dict.fromkeys(trial.status for trial in trials)),
        trials=tuple(trials),
    )


def group_failures(trials: Sequence[FinishedTrial]) -> list[Failure]:
    """The trials that failed, by error, the most frequent first."""
    groups: dict[str, list[FinishedTrial]] = {}
    for trial in trials:
        if not trial.ok:
            groups.setdefault(trial.error or trial.status, []).append(trial)
    failures = [Failure(error, group[0].traceback, tuple(group)) for error, group in groups.items()]
    return sorted(failures, key=lambda failure: -len(failure.trials))


def _conditions(run: Run) -> list[tuple[str, dict]]:
    """Claim id and precondition, for every precondition that was measured."""
    return [
        (row.id, condition)
        for row in run.rows
        if row.verdict is not None
        for condition in row.verdict.preconditions
    ]


def _joint_level(run: Run) -> bool:
    """Whether any interval was widened because the study has several claims."""
    return any(row.verdict is not None and row.verdict.p_holm is not None for row in run.rows)
