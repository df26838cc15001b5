"""What a study runs: trials, and what it keeps of them: finished trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from assay.cache import content_hash
from assay.files import as_json

Scalar = str | int | float | bool
Scale = Literal["smoke", "quick", "full"]
Status = Literal["ok", "error", "died"]


@dataclass(frozen=True)
class Trial:
    """One arm x one setting x one seed. What a trial measures is a pure function of these three.

    Args:
        arm: what is compared: the method, an ablation of it, or a baseline.
        setting: what is held equal between arms, as JSON scalars.
        seed: the only source of randomness of the trial.
    """

    arm: str
    setting: Mapping[str, Scalar]
    seed: int

    @cached_property
    def id(self) -> str:
        """The content hash of arm, setting and seed: equal trials have equal ids, on every machine."""
        return content_hash({"arm": self.arm, "setting": dict(self.setting), "seed": self.seed})

    def __hash__(self) -> int:
        # The mapping has no hash of its own.
        return hash(self.id)

    def __str__(self) -> str:
        setting = " ".join(f"{name}={value}" for name, value in self.setting.items())
        return f"{self.arm} [{setting}] seed {self.seed}"


@dataclass(frozen=True)
class FinishedTrial:
    """A trial with what came of it.

    Args:
        status: `"ok"`; `"error"` when `run` raised; `"died"` when its worker process was lost.
        measurements: metric name -> value; empty unless `status` is `"ok"`. Infinite values are allowed.
        error: the last line of the traceback, or how the worker died; empty when `status` is `"ok"`.
        traceback: the whole traceback of a trial that raised.
        wall_seconds: what the trial took on the clock.
        cpu_seconds: what it took of the processor.
        peak_mebibytes: the largest resident memory of the worker during the trial.
    """

    trial: Trial
    status: Status
    measurements: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    traceback: str = ""
    wall_seconds: float = math.nan
    cpu_seconds: float = math.nan
    peak_mebibytes: float = math.nan

    @property
    def arm(self) -> str:
        return self.trial.arm

    @property
    def setting(self) -> Mapping[str, Scalar]:
        return self.trial.setting

    @property
    def seed(self) -> int:
        return self.trial.seed

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def to_json(self) -> dict[str, Any]:
        """A dictionary of strict JSON values."""
        return as_json(
            {
                "id": self.trial.id,
                "arm": self.arm,
                "setting": self.setting,
                "seed": self.seed,
                "status": self.status,
                "measurements": self.measurements,
                "error": self.error,
                "traceback": self.traceback,
                "wall_seconds": self.wall_seconds,
                "cpu_seconds": self.cpu_seconds,
                "peak_mebibytes": self.peak_mebibytes,
            }
        )

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> FinishedTrial:
        """The inverse of `to_json`."""
        return cls(
            trial=Trial(record["arm"], record["setting"], record["seed"]),
            status=record["status"],
            measurements={name: float(value) for name, value in record["measurements"].items()},
            error=record["error"],
            traceback=record["traceback"],
            wall_seconds=float(record["wall_seconds"]),
            cpu_seconds=float(record["cpu_seconds"]),
            peak_mebibytes=float(record["peak_mebibytes"]),
        )
