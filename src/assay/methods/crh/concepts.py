"""Our own concepts, questions and hand-written pairs, and concept lists of users."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from assay.errors import InputError
from assay.methods.crh.detectors import Detector
from assay.methods.crh.pairs import ConceptPairs, Pair, PairsError

KINDS = ("text", "code", "math")


@dataclass(frozen=True)
class Concept:
    """Something that an answer can show, and how to see that it does.

    Attributes:
        id: a short name without spaces.
        kind: `"text"`, `"code"` or `"math"`.
        name: for people.
        instruction: what asks a model for it.
        detector: whether a text shows it.
    """

    id: str
    kind: str
    name: str
    instruction: str
    detector: Detector


def load_concepts(path: Path | str | None = None) -> dict[str, Concept]:
    """Concepts by id: our own, or those of a JSON or CSV file.

    A CSV file has the columns `id`, `instruction` and `pattern` (a regular expression) and, optionally,
    `kind`, `name` and `at_least`. A JSON file looks as ours does.

    Raises:
        PairsError: the file holds no concepts, or one lacks a field; the message names both.
    """
    if path is None:
        records = _packaged("concepts.json")["concepts"]
        where = "concepts.json"
    else:
        source = Path(path)
        where = str(source)
        records = _csv(source) if source.suffix == ".csv" else _json(source, "concepts")
    found: dict[str, Concept] = {}
    for number, record in enumerate(records, 1):
        concept = _concept(where, number, record)
        if concept.id in found:
            raise PairsError(f"{where}: the concept {concept.id!r} is there twice")
        found[concept.id] = concept
    if not found:
        raise PairsError(f"{where} holds no concepts")
    return found


def load_questions(path: Path | str | None = None, *, kind: str | None = None) -> list[str]:
    """Questions: our own, or those of a file (a JSON list, or one question a line).

    Args:
        kind: of our own questions: those for everyone and those of this kind. None for all.

    Raises:
        PairsError: the file holds no questions.
    """
    if path is None:
        records = _packaged("questions.json")["questions"]
        return [record["question"] for record in records if kind in (None, record["kind"])]
    source = Path(path)
    questions: list[Any]
    if source.suffix == ".json":
        questions = _json(source, "questions")
    else:
        questions = source.read_text(encoding="utf-8").splitlines()
    kept = [question.strip() for question in questions if isinstance(question, str) and question.strip()]
    if not kept:
        raise PairsError(f"{source} holds no questions; it should be a JSON list or have one a line")
    return list(dict.fromkeys(kept))


def written_concepts() -> tuple[str, ...]:
    """The concepts for which there are hand-written pairs."""
    return tuple(record["id"] for record in _packaged("concepts_quick.json")["concepts"])


def written_pairs(concepts: Sequence[str] | None = None) -> ConceptPairs:
    """Hand-written pairs: 24 questions for each of 8 concepts, no sentence twice within a side.

    The neutral responses are shared by all concepts.

    Raises:
        PairsError: there are none for a concept.
    """
    data = _packaged("concepts_quick.json")
    responses = {record["id"]: record["responses"] for record in data["concepts"]}
    rows = []
    for concept in responses if concepts is None else concepts:
        if concept not in responses:
            raise PairsError(f"there are no written pairs for {concept!r}; there are {', '.join(responses)}")
        for number, texts in enumerate(
            zip(data["questions"], data["neutral"], responses[concept], strict=True)
        ):
            rows.append(Pair(texts[0], concept, texts[1], texts[2], f"q{number}", concept))
    return ConceptPairs(tuple(rows))


def written_detector(concept: str) -> Detector:
    """The lexicon of a concept with hand-written pairs.

    Raises:
        PairsError: there is none.
    """
    for record in _packaged("concepts_quick.json")["concepts"]:
        if record["id"] == concept:
            return Detector(tuple(record["patterns"]))
    raise PairsError(f"there is no lexicon for {concept!r}; there are {', '.join(written_concepts())}")


def _packaged(name: str) -> Any:
    source = resources.files("assay.methods.crh") / "data" / name
    return json.loads(source.read_text(encoding="utf-8"))


def _json(source: Path, name: str) -> list[Any]:
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PairsError(f"{source} is not JSON: {error}") from None
    records = content.get(name) if isinstance(content, dict) else content
    if not isinstance(records, list):
        raise PairsError(f"{source} holds no list of {name}")
    return records


def _csv(source: Path) -> list[dict[str, Any]]:
    rows = list(csv.DictReader(io.StringIO(source.read_text(encoding="utf-8-sig"), newline="")))
    return [{**row, "patterns": [row["pattern"]] if row.get("pattern") else None} for row in rows]


def _concept(where: str, number: int, record: Any) -> Concept:
    if not isinstance(record, dict):
        raise PairsError(f"{where}: concept {number} is no record of named values")
    for name in ("id", "instruction", "patterns"):
        if not record.get(name):
            raise PairsError(f"{where}: concept {number} lacks {'pattern' if name == 'patterns' else name}")
    kind = record.get("kind") or "text"
    if kind not in KINDS:
        raise PairsError(f"{where}: concept {record['id']!r} has the kind {kind!r}; use {', '.join(KINDS)}")
    try:
        detector = Detector(
            tuple(record["patterns"]), int(record.get("at_least") or 1), bool(record.get("ignore_case", True))
        )
    except (InputError, TypeError) as error:
        raise PairsError(f"{where}: concept {record['id']!r}: {error}") from None
    except ValueError:
        raise PairsError(f"{where}: concept {record['id']!r}: at_least must be a whole number") from None
    return Concept(
        str(record["id"]), kind, str(record.get("name") or record["id"]), str(record["instruction"]), detector
    )
