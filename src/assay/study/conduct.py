"""Conducting a study from its first trial to its verdicts: `run_study`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from assay.errors import InputError
from assay.study.environment import environment
from assay.study.run_folder import RunFolder
from assay.study.runner import LocalWorkers, RayWorkers, Workers, available_cores, run_trials
from assay.study.study import Study
from assay.study.trials import FinishedTrial, Scale, Trial
from assay.study.verdicts import judge

# Given the number of trials that are already there and of all trials; returns what is called after every
# trial.
Progress = Callable[[int, int], Callable[[FinishedTrial], None]]


def start_run(
    study: Study, scale: Scale, *, seeds: int | None, out: Path, command: str, title: str
) -> RunFolder:
    """A new run folder below `out`, with the claims as they stand before any trial.

    Args:
        seeds: how many seeds to use; None for the scale's own number.
        command: the command line that repeats the run.
        title: the method's name for people.
    """
    started = datetime.now(UTC)
    base = f"{study.method}-{scale}-{started:%Y%m%d-%H%M%S}"
    name, count = base, 1
    while (out / name).exists():
        count += 1
        name = f"{base}-{count}"
    return RunFolder.create(
        out / name,
        {
            "run": name,
            "method": study.method,
            "title": title,
            "question": study.question,
            "scale": scale,
            "seeds": seeds,
            "started": started.isoformat(timespec="seconds"),
            "finished": None,
            "command": command,
            "environment": environment(),
            "claims": [claim.facts() for claim in study.claims],
            "trials": [trial.id for trial in plan(study, scale, seeds)],
        },
    )


def run_study(
    study: Study,
    folder: RunFolder,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> RunFolder:
    """Run the trials that `folder` lacks and write its verdicts.

    Args:
        jobs: trials under way at once; by default one per core of the machine or CPU of the cluster.
        cluster: the address of a Ray cluster, or `"local"` for Ray on this machine; None for processes here.
        progress: told of every finished trial.

    Raises:
        InputError: the study has changed since the folder was made, or another process is running it.
    """
    scale: Scale = folder.study["scale"]
    trials = plan(study, scale, folder.study["seeds"])
    _check_unchanged(study, trials, folder)
    with folder.writing():
        folder.drop_torn_line()
        # A trial that failed is tried again: whatever stopped it (memory, a missing package) may have been
        # mended.
        there = {trial.trial.id for trial in folder.trials() if trial.ok}
        lacking = [trial for trial in trials if trial.id not in there]
        report = progress(len(there), len(trials)) if progress else None

        def finish(trial: FinishedTrial) -> None:
            folder.append(trial)
            if report:
                report(trial)

        if lacking:
            run_trials(study.run, lacking, _workers(scale, jobs, cluster, len(lacking)), finish)
        folder.write_verdicts(judge(study.claims, trials, folder.trials(), scale))
        if lacking or not folder.study["finished"]:
            folder.update(finished=datetime.now(UTC).isoformat(timespec="seconds"))
    return folder


def plan(study: Study, scale: Scale, seeds: int | None) -> list[Trial]:
    """The trials of a study, each once.

    Raises:
        InputError: the study has no trials at this scale, or `seeds` is not positive.
    """
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {seeds}")
    trials = list({trial.id: trial for trial in study.trials(scale, seeds)}.values())
    if not trials:
        raise InputError(f"the study of {study.method} has no trials at scale {scale!r}")
    return trials


def _workers(scale: Scale, jobs: int | None, cluster: str | None, trials: int) -> Workers:
    # Up to the quick scale a study stands on what is installed: a missing cache fails at once and waits for
    # no network.
    variables = {} if scale == "full" else {"HF_HUB_OFFLINE": "1"}
    if cluster is not None:
        return RayWorkers(cluster, jobs, variables)
    return LocalWorkers(min(jobs or available_cores(), trials), variables)


def _check_unchanged(study: Study, trials: Sequence[Trial], folder: RunFolder) -> None:
    changed = [
        name
        for name, now in (
            ("method", study.method),
            ("claims", [claim.facts() for claim in study.claims]),
            ("trials", [trial.id for trial in trials]),
        )
        if folder.study[name] != now
    ]
    if changed:
        raise InputError(
            f"{folder.path}: the study's {' and '.join(changed)} changed since the run began; start a new run"
        )
