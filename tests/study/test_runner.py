"""No trial is lost: deaths, errors, kills, resumption, and the same measurements on Ray."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from assay.errors import InputError
from assay.study import RunFolder, Trial, run_study, start_run
from assay.study.runner import LocalWorkers, RayWorkers, run_trials


def run_all(example, trials, workers=None):
    """The finished trials by arm."""
    found = []
    run_trials(example.run, trials, workers or LocalWorkers(2), found.append)
    assert len({trial.trial.id for trial in found}) == len(found), "a trial was finished twice"
    return {trial.arm if trial.seed == 0 else f"{trial.arm} {trial.seed}": trial for trial in found}


def test_deaths_and_errors_concern_only_their_own_trials(example):
    bad = ["raises", "out of memory", "exits", "killed"]
    trials = [Trial(arm, {}, 0) for arm in ("method", *bad, "baseline", "twin")]
    found = run_all(example, trials)
    assert {arm: trial.status for arm, trial in found.items()} == {
        "method": "ok",
        "raises": "error",
        "out of memory": "error",
        "exits": "died",
        "killed": "died",
        "baseline": "ok",
        "twin": "ok",
    }
    assert found["raises"].error == "ValueError: <script>alert('from a trial')</script>"
    assert "in run" in found["raises"].traceback
    assert found["out of memory"].error == "MemoryError: cannot allocate"
    assert "worker process died" in found["killed"].error


def test_a_trial_whose_worker_dies_gets_a_second_chance_alone(example, tmp_path):
    trials = [Trial("exits once", {"marker": str(tmp_path / "marker")}, 0)]
    trials += [Trial("method", {}, seed) for seed in range(6)]
    assert {trial.status for trial in run_all(example, trials).values()} == {"ok"}


def test_workers_have_one_thread_and_leave_the_environment_of_the_parent(example, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    found = run_all(example, [Trial("threads", {}, 0)])
    assert found["threads"].measurements == {"OMP_NUM_THREADS": 1.0, "NUMBA_NUM_THREADS": 1.0}
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_time_and_peak_memory_are_those_of_the_trial(example):
    large = Trial("allocates", {"mebibytes": 256}, 0)
    small = Trial("allocates", {"mebibytes": 1}, 1)
    found = run_all(example, [large, small], LocalWorkers(1))
    # Both ran in one process, the large one first: without a reset the small one would show its peak.
    assert found["allocates"].peak_mebibytes > 256
    assert found["allocates 1"].peak_mebibytes < found["allocates"].peak_mebibytes - 200
    assert found["allocates"].wall_seconds > 0
    assert found["allocates"].cpu_seconds > 0


def test_a_trial_is_a_pure_function_of_arm_setting_and_seed(example):
    trials = [Trial(arm, {}, seed) for seed in range(3) for arm in ("method", "baseline")]
    forwards = run_all(example, trials, LocalWorkers(1))
    backwards = run_all(example, trials[::-1], LocalWorkers(2))
    for name, trial in forwards.items():
        assert trial.measurements["error"] == backwards[name].measurements["error"]


def begin(study, out, scale="quick", seeds=None):
    return start_run(study, scale, seeds=seeds, out=out, command="assay study example", title="Example")


def test_run_leaves_claims_environment_and_verdicts(example, tmp_path):
    folder = run_study(example.STUDY, begin(example.STUDY, tmp_path), jobs=2)
    study = json.loads((folder.path / "study.json").read_text())
    assert [claim["id"] for claim in study["claims"]] == ["C1", "C2"]
    assert study["claims"][0]["margin"] == 0.5
    assert study["environment"]["packages"]["numpy"]
    assert study["finished"]
    assert [row["verdict"] for row in folder.verdicts()] == ["holds", "fails"]
    assert len(folder.trials()) == 12


def test_quick_runs_offline_and_full_runs_may_use_the_network(example, tmp_path):
    for scale, offline in (("quick", 1.0), ("full", 0.0)):
        study = dataclasses.replace(
            example.STUDY, claims=(), trials=lambda scale, seeds: [Trial("offline", {}, 0)]
        )
        folder = begin(study, tmp_path, scale)
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("HF_HUB_OFFLINE", raising=False)
            run_study(study, folder)
        assert folder.trials()[0].measurements == {"offline": offline}


CHILD = """
import sys
from pathlib import Path
from example_study import INTERRUPTED
from assay.study import run_study, start_run
folder = start_run(INTERRUPTED, "quick", seeds=None, out=Path(sys.argv[1]), command="x", title="x")
run_study(INTERRUPTED, folder, jobs=1)
"""


def test_resume_after_kill_repeats_only_what_is_missing(example, tmp_path, monkeypatch):
    """A child process that runs the study is killed for real by one of its trials, then the run goes on."""
    monkeypatch.setenv("EXAMPLE_MARKER", str(tmp_path / "marker"))
    monkeypatch.setenv("PYTHONPATH", str(Path(example.__file__).parent))
    command = [sys.executable, "-c", CHILD, str(tmp_path / "runs")]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (path,) = (tmp_path / "runs").iterdir()
    folder = RunFolder(path)
    before = (path / "trials.jsonl").read_text()
    assert len(before.splitlines()) == 12
    assert folder.verdicts() is None
    # A kill in the middle of a write leaves a torn line.
    with (path / "trials.jsonl").open("a") as file:
        file.write(before.splitlines()[0][:40])

    run_study(example.INTERRUPTED, folder, jobs=1)
    after = (path / "trials.jsonl").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 17
    whole = run_study(example.INTERRUPTED, begin(example.INTERRUPTED, tmp_path / "whole"), jobs=2)
    assert (path / "verdicts.json").read_bytes() == (whole.path / "verdicts.json").read_bytes()


CTRL_C_CHILD = """
import sys
from pathlib import Path
from example_study import CTRL_C
from assay.study import run_study, start_run
folder = start_run(CTRL_C, "quick", seeds=None, out=Path(sys.argv[1]), command="x", title="x")
try:
    run_study(CTRL_C, folder, jobs=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_ends_the_run_quietly_and_keeps_what_is_finished(example, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(example.__file__).parent))
    command = [sys.executable, "-c", CTRL_C_CHILD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    assert (done.returncode, done.stderr) == (130, "")
    (path,) = tmp_path.iterdir()
    # The second worker may still have been at its last trial.
    assert len(RunFolder(path).trials()) >= 11


def test_failed_trials_are_tried_again_on_resume(example, tmp_path):
    setting = {"marker": str(tmp_path / "marker")}
    study = dataclasses.replace(example.STUDY, trials=lambda scale, seeds: [Trial("raises once", setting, 0)])
    folder = run_study(study, begin(study, tmp_path), jobs=1)
    assert [trial.status for trial in folder.trials()] == ["error"]
    run_study(study, folder, jobs=1)
    assert [trial.status for trial in folder.trials()] == ["ok"]


def test_resume_refuses_a_study_that_changed(example, tmp_path):
    folder = begin(example.STUDY, tmp_path)
    changed = dataclasses.replace(example.STUDY, claims=example.CLAIMS[:1])
    with pytest.raises(InputError, match="claims changed since the run began"):
        run_study(changed, folder)


def test_two_processes_cannot_write_into_one_run(example, tmp_path):
    folder = begin(example.STUDY, tmp_path)
    with folder.writing(), pytest.raises(InputError, match="being run by another process"):
        run_study(example.STUDY, RunFolder(folder.path))


def test_run_folder_says_what_is_wrong_with_it(example, tmp_path):
    with pytest.raises(InputError, match=r"is not a run folder: it has no study\.json"):
        RunFolder(tmp_path)
    (tmp_path / "study.json").write_text('{"schema": 99}')
    with pytest.raises(InputError, match="format version 99"):
        RunFolder(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        RunFolder(tmp_path)
    folder = begin(example.STUDY, tmp_path)
    (folder.path / "trials.jsonl").write_text("not a trial\n")
    with pytest.raises(InputError, match="line 1 is not a trial"):
        folder.trials()


def test_seeds_must_be_positive(example, tmp_path):
    with pytest.raises(InputError, match="--seeds must be at least 1, got 0"):
        begin(example.STUDY, tmp_path, seeds=0)
    assert not list(tmp_path.iterdir())


def test_ray_gives_the_same_measurements_and_survives_a_death(example, tmp_path):
    folders = {
        cluster: run_study(
            example.MIXED, begin(example.MIXED, tmp_path / str(cluster)), jobs=2, cluster=cluster
        )
        for cluster in (None, "local")
    }
    here, there = (folder.trials() for folder in folders.values())
    assert [trial.status for trial in there[:3]] == ["died", "error", "ok"]
    for mine, theirs in zip(here, there, strict=True):
        assert mine.status == theirs.status
        without_process = [
            {name: value for name, value in trial.measurements.items() if name != "process"}
            for trial in (mine, theirs)
        ]
        assert without_process[0] == without_process[1]
    here, there = ((folder.path / "verdicts.json").read_bytes() for folder in folders.values())
    assert here == there


def test_an_unreachable_cluster_is_one_line(example):
    with pytest.raises(InputError, match="no Ray cluster at 'auto'"):
        RayWorkers("auto")
