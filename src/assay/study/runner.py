"""Running trials so that none is lost: in spawned processes here, or as Ray tasks on a cluster.

Both kinds of workers hand out `concurrent.futures` futures, so that one loop (`run_trials`) serves both.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol

from assay.errors import InputError, require
from assay.study.trials import FinishedTrial, Trial
from assay.study.worker import WORKER_ENVIRONMENT, Run, measure, start_local_worker


class Workers(Protocol):
    """Something that runs trials elsewhere."""

    window: int
    """How many trials may be under way at once."""

    def submit(self, run: Run, trial: Trial) -> Future[FinishedTrial]: ...

    def died(self, error: BaseException) -> str:
        """How the worker died, if `error` tells of a death; else an empty string."""
        ...

    def restart(self) -> None:
        """Replace what broke; afterwards the futures that were lost with it are done."""
        ...

    def close(self) -> None: ...


class LocalWorkers:
    """Spawned processes on this machine, one thread each."""

    def __init__(self, jobs: int, environment: Mapping[str, str] | None = None) -> None:
        self.window = jobs
        self._environment = WORKER_ENVIRONMENT | dict(environment or {})
        self._others = set(multiprocessing.active_children())
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.window, mp_context=context, initializer=start_local_worker)

    def submit(self, run: Run, trial: Trial) -> Future[FinishedTrial]:
        # Processes start inside `submit`, and a spawned process inherits the environment of that moment.
        with _environment(self._environment), _interrupts_blocked():
            try:
                return self._pool.submit(measure, run, trial)
            except BrokenProcessPool:
                # A worker died since the last submission. The futures of the broken pool tell of it
                # themselves.
                self._pool = self._new_pool()
                return self._pool.submit(measure, run, trial)

    def died(self, error: BaseException) -> str:
        if isinstance(error, BrokenProcessPool):
            return "the worker process died (killed, out of memory, or a crash in native code)"
        return ""

    def restart(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._new_pool()

    def close(self) -> None:
        # Trials are under way only when the study is being abandoned; they would keep us waiting until they
        # end.
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - self._others:
            process.terminate()
            process.join()


class RayWorkers:
    """Tasks on a Ray cluster, one CPU each. Ray isolates workers: a death concerns its own trial alone.

    Args:
        address: `"local"` starts Ray on this machine; `"auto"` or `ray://HOST:PORT` joins a running cluster.
        jobs: how many trials may be under way; by default as many as the cluster has CPUs.
    """

    def __init__(
        self, address: str, jobs: int | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._ray: Any = require("ray", extra="cluster")
        variables = WORKER_ENVIRONMENT | dict(environment or {})
        start: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        # A driver's own import path reaches the workers only when it is passed on.
        variables["PYTHONPATH"] = os.pathsep.join(
            filter(None, [os.environ.get("PYTHONPATH"), *_extra_paths()])
        )
        start["runtime_env"] = {"env_vars": variables}
        if address == "local":
            start |= {"num_cpus": jobs or available_cores(), "include_dashboard": False}
        try:
            self._ray.init(address=address, **start)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise InputError(f"no Ray cluster at {address!r}: {first_line}") from error
        self.window = jobs or int(self._ray.cluster_resources().get("CPU", 1))
        self._measure = self._ray.remote(num_cpus=1, max_retries=0)(measure)

    def submit(self, run: Run, trial: Trial) -> Future[FinishedTrial]:
        return self._measure.remote(run, trial).future()

    def died(self, error: BaseException) -> str:
        exceptions = self._ray.exceptions
        fatal = (
            exceptions.WorkerCrashedError,
            exceptions.OutOfMemoryError,
            exceptions.NodeDiedError,
            exceptions.LocalRayletDiedError,
        )
        return f"the Ray worker died ({type(error).__name__})" if isinstance(error, fatal) else ""

    def restart(self) -> None:
        return None

    def close(self) -> None:
        self._ray.shutdown()


def run_trials(
    run: Run, trials: Iterable[Trial], workers: Workers, finish: Callable[[FinishedTrial], None]
) -> None:
    """Run every trial and pass it to `finish` as soon as it is there; the workers are closed at the end.

    A trial that raises is finished with status `"error"`. When a worker dies, everything that was lost with
    it
    is suspected and run again, one trial at a time with nothing beside it: a trial whose worker dies then is
    finished with status `"died"`, and the others finish as if nothing had happened.
    """
    waiting, suspects = deque(trials), deque[Trial]()
    running: dict[Future[FinishedTrial], Trial] = {}
    accused: Trial | None = None
    try:
        while waiting or suspects or running:
            if suspects and not running:
                accused = suspects.popleft()
                running[workers.submit(run, accused)] = accused
            while waiting and not suspects and accused is None and len(running) < workers.window:
                trial = waiting.popleft()
                running[workers.submit(run, trial)] = trial
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            deaths = _collect(done, running, workers, finish)
            if deaths:
                workers.restart()
                # Futures of a broken pool are done by now; those of other workers go on.
                deaths |= _collect({future for future in running if future.done()}, running, workers, finish)
            for trial, cause in deaths.items():
                if trial is accused:
                    finish(FinishedTrial(trial, "died", error=cause))
                else:
                    suspects.append(trial)
            if not running:
                accused = None
    finally:
        workers.close()


def _collect(
    done: Iterable[Future[FinishedTrial]],
    running: dict[Future[FinishedTrial], Trial],
    workers: Workers,
    finish: Callable[[FinishedTrial], None],
) -> dict[Trial, str]:
    """Take the futures that are done out of `running`; the trials whose workers died, with how they died."""
    deaths = {}
    for future in done:
        trial = running.pop(future)
        if future.cancelled():
            deaths[trial] = "its worker was stopped"
        elif (error := future.exception()) is None:
            finish(future.result())
        elif cause := workers.died(error):
            deaths[trial] = cause
        else:
            # Not the trial's own error (`measure` records those) but, say, one of sending it to the worker.
            finish(FinishedTrial(trial, "error", error=f"{type(error).__name__}: {error}"))
    return deaths


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _extra_paths() -> list[str]:
    """Folders that this process imports from and that a fresh interpreter would not search."""
    own = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [
        path for path in sys.path if path and path not in own and not path.endswith((".zip", "lib-dynload"))
    ]


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT for a moment: processes that start meanwhile inherit the mask and leave Ctrl-C to us.

    A worker that set it up for itself would still be interrupted while it starts.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
