"""The folder that a run leaves, and how it is written so that a killed run can go on.

```
RUN/study.json      what is run: claims as they stood before the run, planned trials, command, environment
RUN/trials.jsonl    a line per finished trial, flushed to the disk before the next one is counted
RUN/verdicts.json   a verdict per claim; it holds no times, so equal trials give equal bytes
RUN/figures/        NAME.light.svg, NAME.dark.svg, captions.json
RUN/report.html     the page
```
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.errors import InputError
from assay.files import write_json
from assay.study.trials import FinishedTrial
from assay.study.verdicts import Verdict

SCHEMA = 1
NUMBERS = {"effect", "low", "high", "level", "p", "p_holm", "effect_size", "treatment_mean", "reference_mean"}


class RunFolder:
    """A run folder on disk.

    Raises:
        InputError: the folder is not a run folder, or one of another format version.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.study: dict[str, Any] = _read_json(self.path / "study.json")

    @classmethod
    def create(cls, path: Path, study: Mapping[str, Any]) -> RunFolder:
        """Make the folder with its `study.json`."""
        path.mkdir(parents=True)
        write_json(path / "study.json", {"schema": SCHEMA} | dict(study))
        return cls(path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder against a second process that would run the same trials into it."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout:
            raise InputError(f"{self.path} is being run by another process; wait for it or stop it") from None

    def trials(self) -> list[FinishedTrial]:
        """The finished trials in the order of `study.json`, whatever order they finished in.

        A last line without its end, left by a killed process, is passed over: its trial is not finished.
        Where a trial was run again, its last record counts.
        """
        finished: dict[str, FinishedTrial] = {}
        for number, line in enumerate(self._whole_lines(), start=1):
            try:
                trial = FinishedTrial.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InputError(
                    f"{self.path / 'trials.jsonl'}: line {number} is not a trial; remove it to run it again"
                ) from None
            finished[trial.trial.id] = trial
        order = {trial_id: position for position, trial_id in enumerate(self.study["trials"])}
        return sorted(
            (trial for trial_id, trial in finished.items() if trial_id in order),
            key=lambda trial: order[trial.trial.id],
        )

    def append(self, trial: FinishedTrial) -> None:
        """Add a finished trial and wait until it is on the disk."""
        with (self.path / "trials.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(trial.to_json(), ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def drop_torn_line(self) -> None:
        """Cut off an unfinished last line, so that the next record starts on a line of its own."""
        path = self.path / "trials.jsonl"
        if path.exists():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                with path.open("r+b") as file:
                    file.truncate(len(whole))

    def verdicts(self) -> list[dict[str, Any]] | None:
        """The verdicts as JSON values, or None while the run has none."""
        path = self.path / "verdicts.json"
        if not path.exists():
            return None
        verdicts = _read_json(path)["verdicts"]
        # JSON has no infinity; `as_json` wrote it as a string.
        return [
            {
                name: float(value) if name in NUMBERS and value is not None else value
                for name, value in row.items()
            }
            for row in verdicts
        ]

    def write_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        write_json(
            self.path / "verdicts.json",
            {
                "schema": SCHEMA,
                "method": self.study["method"],
                "scale": self.study["scale"],
                "verdicts": [verdict.to_json() for verdict in verdicts],
            },
        )

    def update(self, **facts: Any) -> None:
        """Change facts in `study.json`."""
        self.study |= facts
        write_json(self.path / "study.json", self.study)

    def _whole_lines(self) -> list[str]:
        path = self.path / "trials.jsonl"
        if not path.exists():
            return []
        content = path.read_bytes()
        return content[: content.rfind(b"\n") + 1].decode("utf-8", errors="replace").splitlines()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.parent} is not a run folder: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    found = value.get("schema") if isinstance(value, dict) else None
    if found != SCHEMA:
        raise InputError(f"{path} has format version {found!r}; this assay reads version {SCHEMA}")
    return value
