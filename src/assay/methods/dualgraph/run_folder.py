"""The folder of a run: its files, its lock, and the copies that its rounds leave."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from assay.errors import InputError
from assay.files import write_text
from assay.methods.dualgraph.records import RunLocked
from assay.methods.dualgraph.store import DATABASE

REPORT = "report.md"
ROUNDS = "rounds"
_LOCK, _PID = "run.lock", "run.pid"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder; the system lets go of the lock when this process ends.

    Raises:
        RunLocked: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / _LOCK, timeout=0):
            write_text(folder / _PID, f"{os.getpid()}\n")
            try:
                yield
            finally:
                (folder / _PID).unlink(missing_ok=True)
    except Timeout as error:
        owner = folder / _PID
        pid = owner.read_text().strip() if owner.is_file() else "unknown"
        raise RunLocked(
            f"process {pid} is working on {folder}: wait for it to end, or choose another folder"
        ) from error


def round_copy(folder: Path, iteration: int) -> Path:
    """Where the copy of the database after a round lies."""
    return folder / ROUNDS / f"iteration-{iteration}.sqlite"


def restore_round(folder: Path, iteration: int) -> None:
    """Put the copy that a round left in the place of the database, which is kept under another name.

    Raises:
        InputError: there is no copy of that round.
        RunLocked: another process works on the run.
    """
    copy = round_copy(folder, iteration)
    if not copy.is_file():
        found = sorted(path.stem.removeprefix("iteration-") for path in (folder / ROUNDS).glob("*.sqlite"))
        have = f"there are copies of {', '.join(found)}" if found else "no round has left one"
        raise InputError(f"{folder} has no copy of iteration {iteration}: {have}")
    with locked(folder):
        for suffix in ("", "-wal", "-shm"):
            old = folder / (DATABASE + suffix)
            if old.exists():
                old.replace(folder / f"set-aside-{old.name}")
        temporary = folder / f".{DATABASE}"
        shutil.copyfile(copy, temporary)
        temporary.replace(folder / DATABASE)


def forget_rounds(folder: Path) -> None:
    """Remove the copies: the report is there."""
    shutil.rmtree(folder / ROUNDS, ignore_errors=True)
