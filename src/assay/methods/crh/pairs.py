"""Pairs of responses to one question, without and with a concept: what a cylinder is fitted to."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.cache import content_hash
from assay.errors import InputError
from assay.files import write_text

REQUIRED = ("question", "concept", "resp_no_concept", "resp_with_concept")
MINIMUM = 3


class PairsError(InputError):
    """Pairs that nothing can be fitted to; the message names the row and the column."""


@dataclass(frozen=True)
class Pair:
    """One question with its two responses. The names are those of the paper's data files."""

    question: str
    concept: str
    resp_no_concept: str
    resp_with_concept: str
    qid: str = ""
    cid: str = ""


@dataclass(frozen=True)
class ConceptPairs:
    """A sequence of pairs, of one concept or of several."""

    rows: tuple[Pair, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Pair:
        return self.rows[index]

    @property
    def concepts(self) -> tuple[str, ...]:
        """The concepts in the order of their first pair."""
        return tuple(dict.fromkeys(row.concept for row in self.rows))

    def subset(self, indices: Iterable[int]) -> ConceptPairs:
        """The pairs at `indices`, in that order."""
        return ConceptPairs(tuple(self.rows[i] for i in indices))

    def of_concept(self, concept: str) -> ConceptPairs:
        """The pairs of one concept.

        Raises:
            PairsError: there are none.
        """
        rows = tuple(row for row in self.rows if row.concept == concept)
        if not rows:
            raise PairsError(f"there are no pairs of the concept {concept!r}; there are {self.concepts}")
        return ConceptPairs(rows)

    def split(self, n_train: int, seed: int) -> tuple[list[int], list[int]]:
        """Indices of a random training set of `n_train` pairs and of the rest.

        Questions that occur twice stay on one side, so that no text is in both.

        Raises:
            PairsError: a side would have fewer than one pair, or the first fewer than three.
        """
        if not MINIMUM <= n_train < len(self):
            raise PairsError(
                f"{n_train} of {len(self)} pairs cannot be for training; {MINIMUM} to {len(self) - 1} can"
            )
        questions = list(dict.fromkeys(row.question for row in self.rows))
        order = np.random.default_rng(seed).permutation(len(questions))
        train: list[int] = []
        rest: list[int] = []
        for question in (questions[i] for i in order):
            rows = [i for i, row in enumerate(self.rows) if row.question == question]
            (train if len(train) + len(rows) <= n_train else rest).extend(rows)
        if len(train) < MINIMUM or not rest:
            raise PairsError(f"the {len(questions)} different questions are too few for a split; add some")
        return sorted(train), sorted(rest)

    def digest(self) -> str:
        """A hash of the content, by which results name the pairs that they came from."""
        return content_hash([asdict(row) for row in self.rows])

    def save(self, path: Path | str) -> None:
        """Write JSON lines, or CSV where the name ends in `.csv`."""
        rows = [asdict(row) for row in self.rows]
        if Path(path).suffix == ".csv":
            target = io.StringIO()
            writer = csv.DictWriter(target, list(asdict(self.rows[0])))
            writer.writeheader()
            writer.writerows(rows)
            write_text(path, target.getvalue())
        else:
            write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def load_pairs(source: Path | str | Sequence[Mapping[str, Any]], *, minimum: int = MINIMUM) -> ConceptPairs:
    """Pairs from a JSONL or CSV file, or from dictionaries.

    Args:
        source: rows with the columns `question`, `concept`, `resp_no_concept`, `resp_with_concept` and,
            optionally, `qid` and `cid`; other columns are ignored.
        minimum: how many different pairs must be there.

    Raises:
        PairsError: a column is missing, a value is empty, the two responses of a row are the same, or there
            are too few pairs.
    """
    if isinstance(source, (str, Path)):
        path = Path(source)
        where, rows = str(path), _read(path)
    else:
        where, rows = "the pairs", list(enumerate(source, 1))
    pairs = [_pair(where, number, row) for number, row in rows]
    distinct = list(dict.fromkeys(pairs))
    if len(distinct) < minimum:
        raise PairsError(f"{where}: at least {minimum} distinct pairs are needed (got {len(distinct)})")
    return ConceptPairs(tuple(distinct))


def _read(path: Path) -> list[tuple[int, Any]]:
    """The rows of a file with the line that each begins in."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PairsError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    if path.suffix == ".csv":
        reader = csv.DictReader(io.StringIO(text, newline=""))
        return [(reader.line_num, row) for row in reader]
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except ValueError as error:
                raise PairsError(f"{path}: line {number} is not JSON ({error})") from None
    return rows


def _pair(where: str, number: int, row: Any) -> Pair:
    if not isinstance(row, Mapping):
        raise PairsError(f"{where}: row {number} is no record of named values")
    if missing := [name for name in REQUIRED if name not in row]:
        raise PairsError(f"{where}: row {number} lacks the column {', '.join(missing)}")
    values: dict[str, str] = {}
    for name in REQUIRED:
        value = row[name]
        if not isinstance(value, str) or not value.strip():
            raise PairsError(f"{where}: row {number} has an empty {name}; remove the row or fill it in")
        values[name] = value
    if values["resp_no_concept"].strip() == values["resp_with_concept"].strip():
        raise PairsError(f"{where}: row {number} has the same response with and without the concept")
    for name in ("qid", "cid"):
        values[name] = "" if row.get(name) is None else str(row[name])
    return Pair(**values)
