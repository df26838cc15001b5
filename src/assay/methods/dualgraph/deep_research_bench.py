"""DeepResearch Bench with any judge: its RACE and FACT protocols (arXiv 2506.11763).

RACE: a judge gives a report and a reference report 0 to 10 points for every criterion of the task; a
dimension is the weighted mean of its criteria, a total the weighted mean of the four dimensions, and a report
scores 100 · own / (own + reference). A judge favours a position, so every repetition asks in both orders
(ours: the original asks once). FACT: statements with their addresses are extracted from the report, equal
ones united, the pages read, and each statement judged supported or not; accuracy is the share of supported
ones among those that could be judged, effective citations are how many are supported.

The tasks are not part of this package: `load_tasks` reads a copy of the repository
github.com/Ayanami0730/deep_research_bench. Prompts are ours, so scores compare arms, not leaderboards.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from assay.cache import content_hash
from assay.errors import InputError
from assay.methods.dualgraph.records import ChatModel, InvalidOutput
from assay.methods.dualgraph.safety import DATA_RULE, delimited

T = TypeVar("T")
Dimension = Literal["comprehensiveness", "insight", "instruction_following", "readability"]
DIMENSIONS: tuple[Dimension, ...] = ("comprehensiveness", "insight", "instruction_following", "readability")
QUERIES = "data/prompt_data/query.jsonl"
CRITERIA = "data/criteria_data/criteria.jsonl"
REFERENCES = "data/test_data/cleaned_data/reference.jsonl"
REPOSITORY = "https://github.com/Ayanami0730/deep_research_bench"
ATTEMPTS = 3
# Characters of a page that a judge is shown; a longer page is cut.
PAGE_CHARACTERS = 60_000

_REFERENCE_HEADING = re.compile(
    r"^#{1,6}\s*(references|sources|works cited|bibliography|参考文献|参考资料|引用)\s*$.*",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_MARKER = re.compile(r"\s*\[\^?\d+(?:\s*[,;]\s*\d+)*\](?!\()")


@dataclass(frozen=True)
class Criterion:
    """What one dimension of a report is judged by, and how much it counts within the dimension."""

    title: str
    explanation: str
    weight: float


@dataclass(frozen=True)
class Task:
    """One of the 100 questions.

    Args:
        reference: the report that RACE compares with.
        weights: of the dimensions; they sum to about 1.
        criteria: of every dimension.
    """

    id: int
    language: str
    prompt: str
    reference: str
    weights: Mapping[str, float]
    criteria: Mapping[str, tuple[Criterion, ...]]


@dataclass(frozen=True)
class RaceScore:
    """RACE scores of a report, 0 to 100; 50 is as good as the reference."""

    overall: float
    comprehensiveness: float
    insight: float
    instruction_following: float
    readability: float


@dataclass(frozen=True)
class FactScore:
    """FACT scores of a report.

    Args:
        accuracy: supported / judged, from 0 to 1; NaN when no citation could be judged.
        effective: supported citations.
        judged: citations whose page could be read.
        unknown: citations whose page could not be read or said nothing.
    """

    accuracy: float
    effective: int
    judged: int
    unknown: int


def load_tasks(folder: Path | str) -> list[Task]:
    """The tasks of a copy of the benchmark's repository, in the order of their ids.

    Raises:
        InputError: a file is missing or is no JSON Lines, or a task has no criteria or no reference.
    """
    base = Path(folder)
    queries, criteria, references = (
        {row["id"]: row for row in _rows(base / name)} for name in (QUERIES, CRITERIA, REFERENCES)
    )
    tasks = []
    for number, query in sorted(queries.items()):
        if number not in criteria or number not in references:
            raise InputError(
                f"task {number} of {base} has no criteria or no reference; get {REPOSITORY} again"
            )
        judged = criteria[number]
        tasks.append(
            Task(
                id=number,
                language=query["language"],
                prompt=query["prompt"],
                reference=references[number]["article"],
                weights={name: float(judged["dimension_weight"][name]) for name in DIMENSIONS},
                criteria={
                    name: tuple(
                        Criterion(row["criterion"], row["explanation"], float(row["weight"]))
                        for row in judged["criterions"][name]
                    )
                    for name in DIMENSIONS
                },
            )
        )
    return tasks


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.strip()]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; clone {REPOSITORY} and name its folder") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is no file of JSON lines ({error}); get {REPOSITORY} again") from None


def without_citations(article: str) -> str:
    """The report without markers and reference list: RACE judges the text alone."""
    return _MARKER.sub("", _REFERENCE_HEADING.sub("", article)).strip()


_RACE_SYSTEM = (
    "You compare two research reports on the same task. For every criterion give each report a score from 0 "
    "(does not meet it at all) to 10 (meets it outstandingly), judging only what the criterion asks. Use the "
    "whole range, and different scores where the reports differ. Length alone is no merit. " + DATA_RULE
)
_RACE_SCHEMA = {
    "type": "object",
    "required": ["scores"],
    "properties": {
        "scores": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["criterion", "first", "second"],
                "properties": {
                    "criterion": {"type": "integer"},
                    "first": {"type": "number", "minimum": 0, "maximum": 10},
                    "second": {"type": "number", "minimum": 0, "maximum": 10},
                },
            },
        }
    },
}


def race(task: Task, article: str, judge: ChatModel, *, repeats: int = 1) -> RaceScore:
    """Judge a report beside the reference, in both orders, `repeats` times.

    Raises:
        InputError: the report is empty, or `repeats` is below 1.
        InvalidOutput: the judge gave no usable answer in three attempts.
        ServiceError: the judge cannot be reached.
    """
    if not article.strip():
        raise InputError(f"the report on task {task.id} is empty; there is nothing to judge")
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, got {repeats}")
    own, reference = without_citations(article), without_citations(task.reference)
    criteria = [(name, criterion) for name in DIMENSIONS for criterion in task.criteria[name]]
    sums = np.zeros((2, len(criteria)))
    for repeat in range(repeats):
        for swapped in (False, True):
            first, second = (reference, own) if swapped else (own, reference)
            scores = _race_scores(task, first, second, criteria, judge, repeat)
            sums += scores[::-1] if swapped else scores
    return _race_score(task, criteria, sums / (2 * repeats))


def _race_scores(
    task: Task,
    first: str,
    second: str,
    criteria: Sequence[tuple[str, Criterion]],
    judge: ChatModel,
    repeat: int,
) -> np.ndarray:
    """Points by report (2) and criterion, as one call gives them."""
    nonce = content_hash([task.id, repeat, first, second])
    listed = "\n".join(
        f"{number}. [{name}] {criterion.title}: {criterion.explanation}"
        for number, (name, criterion) in enumerate(criteria, start=1)
    )
    asked = (
        f"The task:\n{delimited(task.prompt, nonce)}\n\nThe first report:\n{delimited(first, nonce)}\n\n"
        f"The second report:\n{delimited(second, nonce)}\n\nThe criteria:\n{listed}\n\n"
        'Answer with JSON alone: {"scores": [{"criterion": <number>, "first": <0 to 10>, "second": '
        f"<0 to 10>}}, ...]}}, one entry for each of the {len(criteria)} criteria."
    )

    def read(answer: Any) -> np.ndarray:
        scores = np.full((2, len(criteria)), np.nan)
        for row in answer["scores"]:
            place = int(row["criterion"]) - 1
            if not 0 <= place < len(criteria):
                raise ValueError(f"there is no criterion {row['criterion']}")
            scores[:, place] = float(row["first"]), float(row["second"])
        missing = np.flatnonzero(np.isnan(scores[0])) + 1
        if missing.size:
            raise ValueError(f"criteria {', '.join(map(str, missing))} have no scores")
        if scores.min() < 0 or scores.max() > 10:
            raise ValueError("scores must be from 0 to 10")
        return scores

    return _ask(judge, _RACE_SYSTEM, asked, _RACE_SCHEMA, read, role="race")


def _race_score(task: Task, criteria: Sequence[tuple[str, Criterion]], points: np.ndarray) -> RaceScore:
    shares, totals = {}, np.zeros(2)
    for name in DIMENSIONS:
        places = [i for i, (dimension, _) in enumerate(criteria) if dimension == name]
        weights = np.array([criteria[i][1].weight for i in places])
        means = points[:, places] @ weights / weights.sum()
        shares[name] = _share(means)
        totals += task.weights[name] * means
    return RaceScore(overall=_share(totals), **shares)


def _share(points: np.ndarray) -> float:
    """100 · own / (own + reference); 0 when neither has a point, as in the original."""
    return 100 * float(points[0] / points.sum()) if points.sum() > 0 else 0.0


_EXTRACT_SYSTEM = (
    "You list the statements of a report that cite a web address, each with that address. Make every "
    "statement complete in itself (replace pronouns by what they stand for), keep its numbers and names, and "
    "unite statements that say the same and cite the same address. Leave out statements without an address. "
    + DATA_RULE
)
_EXTRACT_SCHEMA = {
    "type": "object",
    "required": ["citations"],
    "properties": {
        "citations": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["statement", "url"],
                "properties": {"statement": {"type": "string"}, "url": {"type": "string"}},
            },
        }
    },
}
_SUPPORT_SYSTEM = (
    "You decide for each statement whether a page supports it. If the page has no usable content (an error "
    "page, an empty page), every statement is 'unknown'. Else a statement is 'supported' when the facts or "
    "numbers in it are found on the page, in full or in part (rounded numbers count), and 'unsupported' when "
    "none are. " + DATA_RULE
)
_SUPPORT_SCHEMA = {
    "type": "object",
    "required": ["results"],
    "properties": {
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["statement", "result"],
                "properties": {
                    "statement": {"type": "integer"},
                    "result": {"enum": ["supported", "unsupported", "unknown"]},
                },
            },
        }
    },
}


def fact(task: Task, article: str, judge: ChatModel, read: Callable[[str], str | None]) -> FactScore:
    """Extract the citations of a report, read their pages and judge the support of each.

    Args:
        read: address -> the text of its page, or None when it cannot be read.

    Raises:
        InvalidOutput: the judge gave no usable answer in three attempts.
        ServiceError: the judge cannot be reached.
    """
    citations = extract_citations(article, judge)
    by_page: dict[str, list[str]] = defaultdict(list)
    for statement, url in citations:
        by_page[url].append(statement)
    results: list[str] = []
    for url, statements in by_page.items():
        page = read(url)
        results += _support(statements, page, judge) if page else ["unknown"] * len(statements)
    supported, judged = results.count("supported"), len(results) - results.count("unknown")
    accuracy = supported / judged if judged else float("nan")
    return FactScore(accuracy, supported, judged, len(results) - judged)


def extract_citations(article: str, judge: ChatModel) -> list[tuple[str, str]]:
    """(statement, address) for every citation of a report; addresses that the report lacks are left out."""
    asked = (
        f"The report:\n{delimited(article, content_hash(article))}\n\n"
        'Answer with JSON alone: {"citations": [{"statement": "...", "url": "..."}, ...]}.'
    )

    def read(answer: Any) -> list[tuple[str, str]]:
        rows = ((str(row["statement"]).strip(), str(row["url"]).strip()) for row in answer["citations"])
        # A judge may invent addresses; only those of the report can be cited by it.
        kept = {(" ".join(what.casefold().split()), url): (what, url) for what, url in rows if url in article}
        return [found for found in kept.values() if all(found)]

    return _ask(judge, _EXTRACT_SYSTEM, asked, _EXTRACT_SCHEMA, read, role="fact_extract")


def _support(statements: Sequence[str], page: str, judge: ChatModel) -> list[str]:
    nonce = content_hash([page, *statements])
    listed = "\n".join(f"{number}. {statement}" for number, statement in enumerate(statements, start=1))
    asked = (
        f"The page:\n{delimited(page[:PAGE_CHARACTERS], nonce)}\n\nThe statements:\n"
        f"{delimited(listed, nonce)}"
        '\n\nAnswer with JSON alone: {"results": [{"statement": <number>, "result": "supported" | '
        '"unsupported" | "unknown"}, ...]}, one entry a statement.'
    )

    def read(answer: Any) -> list[str]:
        found = {int(row["statement"]): str(row["result"]) for row in answer["results"]}
        if set(found) != set(range(1, len(statements) + 1)):
            raise ValueError(f"results must name the statements 1 to {len(statements)} once each")
        if other := set(found.values()) - {"supported", "unsupported", "unknown"}:
            raise ValueError(f"there is no result {sorted(other)[0]!r}")
        return [found[number] for number in sorted(found)]

    return _ask(judge, _SUPPORT_SYSTEM, asked, _SUPPORT_SCHEMA, read, role="fact_support")


def _ask(
    judge: ChatModel,
    system: str,
    asked: str,
    schema: Mapping[str, Any],
    read: Callable[[Any], T],
    *,
    role: str,
) -> T:
    """What `read` makes of the judge's JSON; a complaint of `read` is fed back, in three attempts."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
    complaint = ""
    for _ in range(ATTEMPTS):
        answer = judge.chat(
            messages,
            schema=schema,
            temperature=0.0,
            max_tokens=16_384,
            role=role,
            data={"messages": messages},
        ).text
        try:
            return read(_outermost_json(answer))
        except (KeyError, TypeError, ValueError) as error:
            complaint = f"{type(error).__name__}: {error}"
        messages = [
            *messages[:2],
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"This cannot be used ({complaint}). Answer again, with JSON alone."},
        ]
    raise InvalidOutput(f"{judge.name} gave no usable answer to {role} in {ATTEMPTS} attempts ({complaint})")


def _outermost_json(text: str) -> Any:
    """The object between the first brace and the last: models put fences and words around it."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        raise ValueError("there is no JSON object in the answer")
    return json.loads(text[start : end + 1])
