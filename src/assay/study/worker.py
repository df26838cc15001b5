"""What happens inside a worker process: one trial is run, measured, and turned into a `FinishedTrial`."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from assay.study.trials import FinishedTrial, Trial

# Two workers with as many threads as there are cores would fight for them, so every worker gets one thread.
# The variables are read when numpy, torch and numba are first imported, so they must be set before a worker
# starts.
WORKER_ENVIRONMENT = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    ),
    "1",
)

Run = Callable[[Trial], Mapping[str, float]]


def measure(run: Run, trial: Trial) -> FinishedTrial:
    """Run one trial; whatever it raises becomes part of the record."""
    _forget_peak_memory()
    wall, cpu = time.perf_counter(), time.process_time()
    measurements: dict[str, float] = {}
    error = text = ""
    try:
        measurements = {name: float(value) for name, value in run(trial).items()}
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}".strip().splitlines()[0]
        text = traceback.format_exc()
    return FinishedTrial(
        trial=trial,
        status="error" if error else "ok",
        measurements=measurements,
        error=error,
        traceback=text,
        wall_seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time() - cpu,
        peak_mebibytes=_peak_memory(),
    )


def start_local_worker() -> None:
    """Initialise a local worker: it ends when its parent is gone."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def end_with_parent() -> None:
        # A parent that was killed cannot shut its pool down, and its workers would wait for work for ever.
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _forget_peak_memory() -> None:
    """Reset the kernel's high-water mark, where it can be reset (Linux), so that it tells of one trial."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_memory() -> float:
    """The largest resident memory in MiB since the last reset, or of the whole process without one."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
