"""A study whose trials do what a test asks of them. Workers import it by name."""

import dataclasses
import os
import signal
from pathlib import Path

import numpy as np

from assay.study import Difference, Panel, Precondition, Study, Trial

ERRORS = {"method": 1.0, "baseline": 2.0, "twin": 1.0}


def run(trial: Trial) -> dict[str, float]:
    match trial.arm:
        case "raises":
            raise ValueError("<script>alert('from a trial')</script>")
        case "out of memory":
            raise MemoryError("cannot allocate")
        case "exits":
            os._exit(3)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits once":
            marker = Path(str(trial.setting["marker"]))
            if not marker.exists():
                marker.touch()
                os._exit(3)
        case "raises once":
            marker = Path(str(trial.setting["marker"]))
            if not marker.exists():
                marker.touch()
                raise OSError("no space left")
        case "kills the run once":
            marker = Path(str(trial.setting["marker"]))
            if not marker.exists():
                marker.touch()
                os.kill(os.getppid(), signal.SIGKILL)
        case "interrupts the run":
            os.killpg(os.getpgrp(), signal.SIGINT)
        case "threads":
            return {name: float(os.environ[name]) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
        case "allocates":
            block = np.ones(int(trial.setting["mebibytes"]) * 2**17)
            return {"sum": float(block.sum())}
        case "offline":
            return {"offline": float(os.environ.get("HF_HUB_OFFLINE", "0"))}
    noise = np.random.default_rng(trial.seed).normal(scale=0.1)
    own = np.random.default_rng(trial.seed + 1000).normal(scale=0.05)
    return {"error": ERRORS.get(trial.arm, 1.0) + noise + own, "process": float(os.getpid())}


def trials(scale, seeds):
    count = seeds or {"smoke": 1, "quick": 6, "full": 20}[scale]
    return [Trial(arm, {"n": 10}, seed) for seed in range(count) for arm in ("method", "baseline")]


def figures(finished):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 3))
    axes = figure.subplots()
    for arm in ("method", "baseline"):
        rows = [trial for trial in finished if trial.arm == arm]
        axes.plot([row.seed for row in rows], [row.measurements["error"] for row in rows], "o", label=arm)
    axes.set(xlabel="seed", ylabel="error")
    axes.legend()
    return {"errors": Panel(figure, "The error of every seed.")}


CLAIMS = (
    Difference(
        id="C1",
        says="The method's error is below the baseline's by more than a half.",
        metric="error",
        treatment="method",
        reference="baseline",
        margin=0.5,
        paper="1.0 against 2.0",
    ),
    Difference(
        id="C2",
        says="The baseline's error is below the method's.",
        metric="error",
        treatment="baseline",
        reference="method",
        preconditions=(
            Precondition(says="the baseline learns", metric="error", arm="baseline", at_most=3.0),
        ),
    ),
)

STUDY = Study(
    method="example_method",
    question="Is the method better than the baseline?",
    claims=CLAIMS,
    trials=trials,
    run=run,
    figures=figures,
)


def interrupted_trials(scale, seeds):
    """The usual trials, one that kills the whole run the first time, and some more."""
    marker = os.environ["EXAMPLE_MARKER"]
    more = [Trial("method", {"n": 11}, seed) for seed in range(4)]
    return [*trials(scale, seeds), Trial("kills the run once", {"marker": marker}, 0), *more]


def mixed_trials(scale, seeds):
    """The usual trials among some that die or fail."""
    return [*(Trial(arm, {}, 0) for arm in ("exits", "raises", "threads")), *trials(scale, seeds)]


def ctrl_c_trials(scale, seeds):
    """The usual trials, and one that sends to all processes of the run what Ctrl-C sends."""
    return [*trials(scale, seeds), Trial("interrupts the run", {}, 0)]


CTRL_C = dataclasses.replace(STUDY, trials=ctrl_c_trials)
INTERRUPTED = dataclasses.replace(STUDY, trials=interrupted_trials)
MIXED = dataclasses.replace(STUDY, trials=mixed_trials)
