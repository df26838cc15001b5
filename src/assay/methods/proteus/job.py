"""The folder of a quantization under way: finished modules are on the disk, and a killed run goes on.

Beside `OUT` stands `OUT.job` with `job.json` (what is being made: a hash of the configuration, the weights
and the calibration tokens), a safetensors file for every finished module in `modules/`, and `manifest.jsonl`,
a line with the SHA-256 of each. A line is written and flushed after its file has been renamed into place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from assay.cache import content_hash
from assay.errors import InputError
from assay.files import as_json, replacing, write_json

# Left free on the disk beside what the estimate says.
SPARE_BYTES = 32 * 2**20
MARK = "proteus-report.json"


class Job:
    """The finished modules of a quantization, on the disk; a context manager that keeps others away.

    Args:
        folder: an existing folder with a `job.json`; see `open_job`.

    Raises:
        InputError: another process is at work on it, or its manifest is damaged.
    """

    def __init__(self, folder: Path) -> None:
        from filelock import FileLock, Timeout

        self.folder = folder
        self._lock = FileLock(folder / "lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"another process is at work on {folder}: wait for it, or stop it") from None
        self._manifest = folder / "manifest.jsonl"
        self._lines: dict[str, dict[str, Any]] = {line["name"]: line for line in self._read_manifest()}

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def write(self, name: str, tensors: Mapping[str, Tensor], report: Mapping[str, Any]) -> None:
        """Store a finished module: its file first, then its line in the manifest, both flushed to the disk.

        Args:
            name: the module's path, or another name that is unique in the job; a later write replaces an
                earlier one.
            tensors: what the module consists of.
            report: JSON values that belong to it.
        """
        from safetensors.torch import save_file

        path = self._path(name)
        with replacing(path) as temporary:
            save_file({key: tensor.detach().contiguous().cpu() for key, tensor in tensors.items()}, temporary)
            _flush(temporary)
        _flush(path.parent)
        line = {"name": name, "sha256": _sha256(path), "report": as_json(dict(report))}
        with self._manifest.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._lines[name] = line

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the report of a finished module.

        Raises:
            InputError: its file is missing, or is not what was written.
        """
        from safetensors.torch import load_file

        path = self._path(name)
        if not path.is_file() or _sha256(path) != self._lines[name]["sha256"]:
            raise InputError(
                f"{path} is missing or has changed since it was written: delete it and its line in "
                f"{self._manifest}, or delete {self.folder} and start again"
            )
        return load_file(path), self._lines[name]["report"]

    def remove(self) -> None:
        """Delete the folder: the result has been written."""
        shutil.rmtree(self.folder)

    def _path(self, name: str) -> Path:
        return self.folder / "modules" / f"{name}.safetensors"

    def _read_manifest(self) -> list[dict[str, Any]]:
        if not self._manifest.exists():
            return []
        content = self._manifest.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            # The run was killed while it wrote the last line; that module is done again.
            with replacing(self._manifest) as temporary:
                temporary.write_bytes(whole)
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            if all({"name", "sha256", "report"} <= set(line) for line in lines):
                return lines
        except (ValueError, TypeError):
            pass
        raise InputError(f"{self._manifest} is damaged: delete {self.folder} and start again")


def open_job(out: Path, facts: Mapping[str, Any], *, resume: bool) -> Job:
    """The job that makes `out`: a new one, or with `resume` the one that was interrupted.

    Args:
        out: the folder that will be made.
        facts: everything that determines the result, as JSON values; the interrupted job must have had the
            same.

    Raises:
        InputError: there is an interrupted job and `resume` is false, or it was of other facts; nothing is
            deleted.
    """
    folder = job_folder(out)
    record = folder / "job.json"
    if not folder.exists():
        (folder / "modules").mkdir(parents=True)
        write_json(record, {"hash": content_hash(facts), "facts": dict(facts)})
        return Job(folder)
    try:
        before = json.loads(record.read_text(encoding="utf-8"))
        known, facts_before = before["hash"], dict(before["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{folder} exists and is not an unfinished job: move it away first") from None
    if not resume and (folder / "manifest.jsonl").exists():
        raise InputError(
            f"{folder} holds an unfinished job: go on with --resume, or delete it to start again"
        )
    if not resume:
        # Nothing has been finished yet.
        write_json(record, {"hash": content_hash(facts), "facts": dict(facts)})
    elif known != content_hash(facts):
        changed = [key for key in facts if facts_before.get(key) != facts[key]]
        raise InputError(
            f"{folder} is a job with another {', '.join(changed) or 'configuration'}: repeat the first "
            "command with --resume, or delete the folder to start again"
        )
    return Job(folder)


def job_folder(out: Path) -> Path:
    """Where the job that makes `out` keeps its files."""
    return out.parent / f"{out.name}.job"


def check_output(out: Path, needed_bytes: int) -> None:
    """Refuse a folder that must not be overwritten, or a disk that is too small, before any work.

    Args:
        out: the folder that will be made. An earlier result of ours is replaced at the end.
        needed_bytes: the size of the finished modules and of the result together.

    Raises:
        InputError: `out` is a file or a folder that is not ours, or the disk has too little space.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder that does not exist yet")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise InputError(f"{out} exists and was not written by assay: name another folder, or move it away")
    parent = out.absolute().parent
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if free < needed_bytes + SPARE_BYTES:
        raise InputError(
            f"the disk of {parent} has {free / 1e9:.2f} GB free; {(needed_bytes + SPARE_BYTES) / 1e9:.2f} GB "
            "are needed for the quantized model and the finished modules: free some, or name another folder"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
