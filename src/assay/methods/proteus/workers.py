"""Where the modules of a block are quantized: in threads of this process, or as tasks on a Ray cluster.

Both hand out `concurrent.futures` futures, and both compute with one torch thread a module, so that the
result does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from assay.errors import InputError, require

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Workers(Protocol):
    """Something that calls functions elsewhere."""

    def share(self, value: Any) -> Any:
        """A handle of a large argument that several calls have in common."""
        ...

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]: ...


class ThreadWorkers:
    """Threads of this process; numba and torch leave Python's lock while they compute."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def share(self, value: Any) -> Any:
        """The value itself."""
        return value

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call the function in a thread."""
        return self._pool.submit(function, *arguments)

    def close(self) -> None:
        """Wait for what is under way, and drop the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class RayWorkers:
    """Tasks on a Ray cluster, one CPU each. Ray repeats a task whose worker died.

    Args:
        address: `"local"` starts Ray on this machine; `"auto"` or `ray://HOST:PORT` joins a running cluster.
        count: CPUs of a local cluster.

    Raises:
        InputError: there is no cluster at the address.
        MissingDependencyError: Ray is not installed.
    """

    def __init__(self, address: str, count: int) -> None:
        self._ray: Any = require("ray", extra="cluster")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        options["runtime_env"] = {"env_vars": _ONE_THREAD}
        if address == "local":
            options |= {"num_cpus": count, "include_dashboard": False}
        try:
            self._ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise InputError(f"no Ray cluster at {address!r}: {first_line}") from error
        self._call = self._ray.remote(num_cpus=1)(_call)

    def share(self, value: Any) -> Any:
        """The value in the cluster's object store."""
        return self._ray.put(value)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call the function in a task."""
        return self._call.remote(function, *arguments).future()

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


@contextmanager
def workers(count: int, cluster: str | None = None) -> Iterator[Workers]:
    """Threads, or tasks where a cluster is named.

    Args:
        count: how many modules are quantized at once in this process, or CPUs of a local cluster.
        cluster: Ray's address, or None for threads.
    """
    found = RayWorkers(cluster, count) if cluster else ThreadWorkers(count)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """While workers are busy: one torch thread for each of them; afterwards as many as before for this one.

    The numeric libraries share a part of this setting between all threads, so that it must be undone here.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    torch.set_num_threads(1)
    return function(*arguments)
