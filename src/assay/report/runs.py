"""Run folders as a report needs them: checked once, typed, and sorted into a scoreboard."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from assay.errors import InputError
from assay.study.claims import Outcome
from assay.study.run_folder import RunFolder
from assay.study.trials import Scale
from assay.study.verdicts import Verdict

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
SCALES: tuple[Scale, ...] = get_args(Scale)


@dataclass(frozen=True)
class ClaimRow:
    """A claim with its verdict, or without one (a smoke run, a run that is not finished).

    Args:
        region: the open interval of effects in which the claim holds; None where `study.json` does not tell.
    """

    id: str
    says: str
    paper: str
    verdict: Verdict | None
    treatment: str
    reference: str
    region: tuple[float, float] | None

    @property
    def anchor(self) -> str:
        """The `id` of the claim's row in the page: it holds no spaces."""
        return "claim-" + "".join(c if c.isalnum() or c in "-._" else "-" for c in self.id)


@dataclass(frozen=True)
class Run:
    """A run as the reports show it."""

    folder: RunFolder
    name: str
    method: str
    title: str
    question: str
    scale: Scale
    seeds: int | None
    started: datetime
    finished: datetime | None
    command: str
    environment: Mapping[str, Any]
    planned: int
    rows: tuple[ClaimRow, ...]

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def is_published(self) -> bool:
        """Whether this is what `write_results` made of a run: its results without its trials."""
        return (self.path / "index.md").is_file()

    @property
    def has_verdicts(self) -> bool:
        return any(row.verdict is not None for row in self.rows)

    @property
    def tally(self) -> dict[Outcome, int]:
        """How many claims hold, fail, ...; only what occurs, in the order of `OUTCOMES`."""
        found = Counter(row.verdict.verdict for row in self.rows if row.verdict is not None)
        return {outcome: found[outcome] for outcome in OUTCOMES if found[outcome]}

    @property
    def without_verdicts(self) -> str:
        """Why there are no verdicts; empty when there are."""
        if self.has_verdicts:
            return ""
        if self.scale == "smoke":
            return "a smoke run only checks that the code runs; it gives no verdicts"
        return (
            "no verdicts yet: the run is not finished" if self.finished is None else "the run has no verdicts"
        )


@dataclass(frozen=True)
class Scoreboard:
    """All runs of a folder.

    Args:
        leading: one run per method, by title: the latest finished one at the largest scale that gave
            verdicts, or the latest run where none did.
        older: every other run, latest first.
        unreadable: folder name and reason.
    """

    leading: tuple[Run, ...]
    older: tuple[Run, ...]
    unreadable: tuple[tuple[str, str], ...]

    @property
    def tally(self) -> dict[Outcome, int]:
        """The verdicts of the leading runs."""
        return {
            outcome: n
            for outcome in OUTCOMES
            if (n := sum(run.tally.get(outcome, 0) for run in self.leading))
        }


def tally_words(tally: Mapping[Outcome, int]) -> list[tuple[Outcome, str]]:
    """Each outcome with its count in words: `("holds", "3 hold")`."""
    plural: dict[Outcome, str] = {"holds": "hold", "fails": "fail"}
    return [
        (outcome, f"{n} {outcome if n == 1 else plural.get(outcome, outcome)}")
        for outcome, n in tally.items()
    ]


def load_run(path: Path | str) -> Run:
    """Read a run folder.

    Raises:
        InputError: `path` is not a run folder, or a file in it is broken; the message says which.
    """
    folder = RunFolder(path)
    study = folder.study
    try:
        scale = study["scale"]
        if scale not in SCALES:
            raise ValueError(f"unknown scale {scale!r}")
        if not str(study["method"]).isidentifier():
            raise ValueError(f"{study['method']!r} is not the name of a method")
        # A smoke run's claims are all "not testable" by definition, which would read like a finding.
        recorded = None if scale == "smoke" else folder.verdicts()
        verdicts = [_verdict(record) for record in recorded or ()]
        return Run(
            folder=folder,
            name=str(study["run"]),
            method=str(study["method"]),
            title=str(study["title"]),
            question=str(study["question"]),
            scale=scale,
            seeds=study["seeds"],
            started=_moment(study["started"]),
            finished=_moment(study["finished"]) if study["finished"] else None,
            command=str(study["command"]),
            environment=dict(study["environment"]),
            planned=len(study["trials"]),
            rows=_rows(study["claims"], verdicts),
        )
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{folder.path} cannot be reported: {what}") from error


def load_scoreboard(runs: Path | str) -> Scoreboard:
    """Read every run folder in `runs`; one that cannot be read is listed, another folder is passed over.

    Raises:
        InputError: `runs` is not a folder.
    """
    root = Path(runs)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder of runs; make a run with `assay study METHOD` first")
    found: list[Run] = []
    unreadable: list[tuple[str, str]] = []
    for path in sorted(path for path in root.iterdir() if _is_run(path)):
        try:
            found.append(load_run(path))
        except (InputError, OSError) as error:
            # Relative to the folder of runs, so that a published list tells nothing of the machine.
            unreadable.append((path.name, str(error).replace(f"{root}{os.sep}", "")))
    by_method: dict[str, list[Run]] = {}
    for run in sorted(found, key=precedence, reverse=True):
        by_method.setdefault(run.method, []).append(run)
    leading = sorted(
        (runs[0] for runs in by_method.values()), key=lambda run: (run.title.casefold(), run.method)
    )
    older = sorted(
        (run for runs in by_method.values() for run in runs[1:]), key=lambda run: run.started, reverse=True
    )
    return Scoreboard(tuple(leading), tuple(older), tuple(unreadable))


def precedence(run: Run) -> tuple[bool, int, datetime]:
    """Larger for the run that stands for its method: with verdicts, at the larger scale, later."""
    decided = run.finished is not None and run.has_verdicts
    return decided, SCALES.index(run.scale) if decided else 0, run.started


def _is_run(path: Path) -> bool:
    """Whether a folder is a run, perhaps a broken one; a temporary folder of a write in progress is not."""
    if path.name.startswith(".") or not path.is_dir():
        return False
    return any((path / name).exists() for name in ("study.json", "trials.jsonl", "verdicts.json"))


def _rows(claims: Sequence[Mapping[str, Any]], verdicts: Sequence[Verdict]) -> tuple[ClaimRow, ...]:
    by_claim = {verdict.claim: verdict for verdict in verdicts}
    rows = [
        ClaimRow(
            id=str(claim["id"]),
            says=str(claim["says"]),
            paper=str(claim.get("paper") or ""),
            verdict=by_claim.get(claim["id"]),
            treatment=str(claim.get("treatment") or claim.get("arm") or ""),
            reference=str(claim.get("reference") or ""),
            region=_region(claim),
        )
        for claim in claims
    ]
    if unknown := set(by_claim) - {row.id for row in rows}:
        raise ValueError(
            f"verdicts.json speaks of claims that study.json lacks: {', '.join(sorted(unknown))}"
        )
    return tuple(rows)


def _region(claim: Mapping[str, Any]) -> tuple[float, float] | None:
    """The open interval of effects in which the claim holds."""
    region = claim.get("region")
    return None if region is None else (float(region[0]), float(region[1]))


def _verdict(record: Mapping[str, Any]) -> Verdict:
    known = {field.name for field in dataclasses.fields(Verdict)}
    values = {name: value for name, value in record.items() if name in known}
    if values["verdict"] not in OUTCOMES:
        raise ValueError(f"unknown verdict {values['verdict']!r}")
    conditions = tuple(dict(condition) for condition in values.get("preconditions") or ())
    for condition in conditions:
        if condition["value"] is not None:
            condition["value"] = float(condition["value"])
    return Verdict(**values | {"paper": values.get("paper") or "", "preconditions": conditions})


def _moment(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
