"""Run folders for the tests, written as the study writes them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.report import render_figures
from assay.study import FinishedTrial, Panel, Trial

HOSTILE = "<script>document.title='broken'</script> | a`b* \"q\" & $x$"

MakeRun = Callable[..., Path]
MakeRecord = Callable[..., dict[str, Any]]


def claim(identifier: str, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "difference",
        "id": identifier,
        "says": f"Claim {identifier}: the method's error is below the baseline's.",
        "metric": "error",
        "paper": "0.20 against 0.31",
        "treatment": "method",
        "reference": "baseline",
        "margin": 0.0,
        "region": [0.0, "inf"],
    } | changes


def verdict(identifier: str, outcome: str = "holds", **changes: Any) -> dict[str, Any]:
    return {
        "claim": identifier,
        "says": f"Claim {identifier}: the method's error is below the baseline's.",
        "paper": "0.20 against 0.31",
        "verdict": outcome,
        "reason": "",
        "unit": "error, improvement of method over baseline",
        "effect": 0.0981,
        "low": 0.0723,
        "high": 0.1239,
        "level": 0.9875,
        "p": 0.00012,
        "p_holm": 0.0005,
        "n": 20,
        "rows": 20,
        "missing": 0,
        "effect_size": 1.93,
        "treatment_mean": 0.2031,
        "reference_mean": 0.3012,
        "preconditions": [],
    } | changes


def trials() -> list[FinishedTrial]:
    """24 trials, of which two raised (one with hostile text) and one died; one measured infinity."""
    finished = []
    for number in range(24):
        arm = ("method", "baseline", "ablation")[number % 3]
        trial = Trial(
            arm, {"data": "bikes", "n": 100 * (1 + number // 12), "noise": 0.5}, seed=number // 3 % 4
        )
        measurements = {"error": 0.2 + 0.05 * (number % 3) + 0.001 * number, "angle": float(number) ** 2}
        if number == 7:
            measurements = {"error": math.inf}
        record = FinishedTrial(trial, "ok", measurements, wall_seconds=1.5 + number, peak_mebibytes=120.0)
        if number in (3, 4):
            error = f"ValueError: {HOSTILE}" if number == 3 else "RuntimeError: singular matrix"
            record = FinishedTrial(
                trial, "error", {}, error, f"Traceback:\n  File x\n{error}", wall_seconds=0.5
            )
        if number == 5:
            record = FinishedTrial(trial, "died", {}, "the worker was killed by signal 9")
        finished.append(record)
    return finished


def figures(finished: Sequence[FinishedTrial]) -> dict[str, Panel]:
    from matplotlib import pyplot

    first, axes = pyplot.subplots()
    for arm in ("method", "baseline", "ablation"):
        own = [trial for trial in finished if trial.arm == arm and math.isfinite(trial.measurements["error"])]
        axes.plot(
            [trial.seed for trial in own], [trial.measurements["error"] for trial in own], "o", label=arm
        )
    axes.set(xlabel="seed", ylabel="error")
    axes.grid(axis="y")
    axes.legend()
    second, axes = pyplot.subplots()
    axes.hist(
        [trial.measurements["error"] for trial in finished if math.isfinite(trial.measurements["error"])]
    )
    axes.set(xlabel="error", ylabel="trials", title="All arms")
    return {
        "errors": Panel(first, "The error of each arm by seed. Lower is better."),
        "histogram": Panel(second, "How the errors are spread <over> all arms & seeds."),
    }


@pytest.fixture
def hostile() -> str:
    """Text that breaks HTML, Markdown and scripts that are put together without care."""
    return HOSTILE


@pytest.fixture
def make_claim() -> MakeRecord:
    return claim


@pytest.fixture
def make_verdict() -> MakeRecord:
    return verdict


@pytest.fixture
def finished() -> list[FinishedTrial]:
    return trials()


@pytest.fixture
def draw() -> Callable[[Sequence[FinishedTrial]], dict[str, Panel]]:
    return figures


@pytest.fixture(scope="session")
def drawn_figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn") / "figures"
    assert render_figures(figures, trials(), folder) == {}
    return folder


@pytest.fixture
def make_run(tmp_path: Path, drawn_figures: Path) -> MakeRun:
    """`make_run(name, verdicts=[...], **changes of study.json)` writes RUNS/name and returns its path."""
    return lambda name="toy-quick", **changes: write_run(tmp_path / "runs" / name, drawn_figures, **changes)


def write_run(
    path: Path,
    drawn: Path | None,
    *,
    verdicts: list[dict[str, Any]] | None = None,
    finished_trials: list[FinishedTrial] | None = None,
    **changes: Any,
) -> Path:
    recorded = trials() if finished_trials is None else finished_trials
    verdicts = [verdict("C1"), verdict("C2", "fails")] if verdicts is None else verdicts
    study = {
        "schema": 1,
        "run": path.name,
        "method": "toy",
        "title": "Toy regression",
        "question": "Is the method better than the baseline?",
        "scale": "quick",
        "seeds": None,
        "started": "2026-03-01T09:30:00+00:00",
        "finished": "2026-03-01T09:42:10+00:00",
        "command": "assay study toy --scale quick",
        "environment": {
            "assay": "0.1.0",
            "python": "3.11.9",
            "packages": {"numpy": "2.4.0", "scipy": "1.17.0"},
            "platform": "Linux-6.1-x86_64",
            "cpu": "A processor",
            "cores": 2,
            "memory_gib": 7.8,
            "gpu": [],
            "git_revision": "0123456789ab",
        },
        "claims": [claim(record["claim"], says=record["says"], paper=record["paper"]) for record in verdicts],
        "trials": [trial.trial.id for trial in recorded],
    } | changes
    path.mkdir(parents=True)
    (path / "study.json").write_text(json.dumps(study))
    (path / "trials.jsonl").write_text("".join(json.dumps(trial.to_json()) + "\n" for trial in recorded))
    if study["finished"]:
        content = {"schema": 1, "method": study["method"], "scale": study["scale"], "verdicts": verdicts}
        (path / "verdicts.json").write_text(json.dumps(content))
    if drawn:
        shutil.copytree(drawn, path / "figures")
    return path
