"""The outline by rule: facets of the question's phrases, evidence to the closest line, scores by coverage."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.methods.dualgraph.embeddings import Encoder
from assay.methods.dualgraph.gazetteer import NO_VERB, key, keyphrases, mentions
from assay.methods.dualgraph.markers import without_markers
from assay.methods.dualgraph.sentences import content_words

_FACETS = ("purpose of {}", "behaviour of {}", "requirements of {}", "limits and problems of {}")
_TAG = re.compile(r"<citation>(.*?)</citation>", re.IGNORECASE | re.DOTALL)
_HEADING = re.compile(r"^\s*(\d+(?:\.\d+){0,2})\.?\s+(\S.*)$")

_CLOSE_ENOUGH = 0.3
_NAMED = 0.5
_IDS_A_LINE = 8
_PAIRS = 6
_NEW_SECTIONS = 3
_EDGES_FOR_A_SECTION = 2
_NEW_POINTS = 6
RELATIONS_TITLE = "How they relate"


@dataclass
class _Line:
    """A line of an outline's text: a heading (with its number) or a point, and the ids that it cites."""

    text: str
    number: str = ""
    ids: list[int] = field(default_factory=list)

    def render(self) -> str:
        tag = f" <citation>{', '.join(f'id_{i}' for i in self.ids)}</citation>" if self.ids else ""
        return f"{self.number}. {self.text}{tag}" if self.number else f"{self.text}{tag}"


def starting_outline(question: str, language: str) -> str:
    """A section for every phrase of the question, a line for every facet of it; then one for relations.

    The facets are English; an outline in another language has the phrases alone.
    """
    subjects = keyphrases(question, limit=5) or [question.strip()]
    english = language.casefold().split("-")[0] == "en"
    lines = []
    for i, subject in enumerate(subjects, 1):
        lines.append(f"{i}. {subject}")
        lines += [f"- {facet.format(subject)}" for facet in _FACETS] if english else [f"- {subject}"]
    if len(subjects) > 1:
        pairs = [(a, b) for i, a in enumerate(subjects) for b in subjects[i + 1 :]][:_PAIRS]
        lines.append(f"{len(subjects) + 1}. {RELATIONS_TITLE if english else ' – '.join(subjects[:3])}")
        lines += [f"- {a} and {b}" if english else f"- {a} – {b}" for a, b in pairs]
    return "\n".join(lines)


def in_turn(outline: str, uncited: Sequence[str]) -> list[str]:
    """Lines without a citation, bare, the first of every section before the second of any."""
    turn: dict[str, int] = {}
    place = 0
    for line in outline.splitlines():
        parsed = _parsed(line)
        place = 0 if parsed.number else place + 1
        turn.setdefault(_bare(parsed.text), place)
    bare = list(dict.fromkeys(_bare(_parsed(line).text) for line in uncited))
    return sorted(bare, key=lambda text: turn.get(text, len(turn)))


def _bare(text: str) -> str:
    return re.sub(r"^\s*(?:[-*]|[a-z]\.)\s+", "", text).strip()


def updated_outline(
    outline: str, evidence: Sequence[Mapping[str, Any]], graph: Mapping[str, Any], encoder: Encoder
) -> str:
    """The outline with new evidence bound to its lines, and new lines and sections from the graph.

    No line changes its words and no line loses an id. A piece of evidence goes to the closest line; entities
    of the graph that several pieces tie to a section become a section below it; relations between entities of
    the question become lines.

    Args:
        outline: numbered text with citation tags.
        evidence: the new pieces, {id, title, content}.
        graph: `nodes` ({name, is_core}) and `edges` ({source, relation, target, evidence}).
        encoder: compares evidence with lines.
    """
    lines = [_parsed(line) for line in outline.splitlines() if line.strip()]
    if not lines:
        return outline
    _bind(lines, evidence, encoder)
    _add_relations(lines, graph)
    _add_sections(lines, graph)
    return "\n".join(line.render() for line in lines)


def _parsed(line: str) -> _Line:
    ids = [int(number) for tag in _TAG.findall(line) for number in re.findall(r"\d+", tag)]
    text = without_markers(line).rstrip()
    heading = _HEADING.match(text)
    if heading:
        return _Line(heading[2].strip(), heading[1], ids)
    return _Line(text, "", ids)


def _bind(lines: list[_Line], evidence: Sequence[Mapping[str, Any]], encoder: Encoder) -> None:
    """Every piece to the point that is closest in meaning, of those with room, if it is close enough."""
    points = [(i, title) for i, title in _points(lines)]
    if not points or not evidence:
        return
    about = [f"{title}: {_bare(lines[i].text)}" for i, title in points]
    subjects = [line.text for line in lines if line.number]
    named = [{m.name for m in mentions(text, subjects)} for text in about]
    rows = encoder.encode([*about, *(f"{item['title']}: {item['content']}" for item in evidence)])
    cosine = rows[len(about) :] @ rows[: len(about)].T
    for row, item in zip(cosine, evidence, strict=True):
        # The names that a piece mentions tie it to a line more than the sound of its sentences does.
        there = {m.name for m in mentions(f"{item['title']}: {item['content']}", subjects)}
        ties = np.array([len(wanted & there) / len(wanted) if wanted else 0.5 for wanted in named])
        closeness = row + _NAMED * (ties - 0.5)
        for place in np.argsort(-closeness, kind="stable"):
            line = lines[points[int(place)][0]]
            if closeness[place] < _CLOSE_ENOUGH:
                break
            if item["id"] in line.ids or len(line.ids) < _IDS_A_LINE:
                line.ids = list(dict.fromkeys([*line.ids, item["id"]]))
                break


def _points(lines: Sequence[_Line]) -> list[tuple[int, str]]:
    """The points of an outline: the place of the line, and the heading that it stands below."""
    found, title = [], ""
    for i, line in enumerate(lines):
        if line.number:
            title = line.text
        else:
            found.append((i, title))
    return found


def _add_relations(lines: list[_Line], graph: Mapping[str, Any]) -> None:
    """A line for every stated relation of two entities of the question, below the section of relations."""
    core = {node["name"] for node in graph["nodes"] if node["is_core"]}
    place = next((i for i, line in enumerate(lines) if line.number and line.text == RELATIONS_TITLE), None)
    if place is None:
        return
    there = {content_key(line.text) for line in lines}
    fresh = []
    for edge in graph["edges"]:
        text = f"- {edge['source']} {edge['relation']} {edge['target']}"
        stated = edge["evidence"] and edge["relation"] != NO_VERB
        if stated and {edge["source"], edge["target"]} <= core and content_key(text) not in there:
            there.add(content_key(text))
            fresh.append(_Line(text, "", sorted(edge["evidence"])[:_IDS_A_LINE]))
    end = next((i for i in range(place + 1, len(lines)) if lines[i].number), len(lines))
    lines[end:end] = fresh[:_NEW_POINTS]


def _add_sections(lines: list[_Line], graph: Mapping[str, Any]) -> None:
    """A section for the entities that most evidence ties to a core entity with a section of its own."""
    tops = {key(line.text): line for line in lines if line.number.isdigit()}
    core = {node["name"] for node in graph["nodes"] if node["is_core"] and key(node["name"]) in tops}
    headed = {key(line.text) for line in lines if line.number}
    ties: dict[tuple[str, str], set[int]] = {}
    for edge in graph["edges"]:
        for subject, other in ((edge["source"], edge["target"]), (edge["target"], edge["source"])):
            if subject in core and other not in core and key(other) not in headed:
                ties.setdefault((other, subject), set()).update(edge["evidence"])
    strongest: dict[str, tuple[str, set[int]]] = {}
    for (other, subject), ids in sorted(ties.items(), key=lambda tie: (-len(tie[1]), tie[0])):
        if len(ids) >= _EDGES_FOR_A_SECTION:
            strongest.setdefault(other, (subject, ids))
    for other, (subject, ids) in list(strongest.items())[:_NEW_SECTIONS]:
        top = tops[key(subject)]
        place = lines.index(top)
        end = next((i for i in range(place + 1, len(lines)) if lines[i].number.isdigit()), len(lines))
        below = sum(line.number.count(".") == 1 for line in lines[place + 1 : end])
        lines[end:end] = [
            _Line(other, f"{top.number}.{below + 1}"),
            _Line(f"- {other} and {subject}", "", sorted(ids)[:_IDS_A_LINE]),
        ]


def content_key(text: str) -> str:
    """What two wordings of one line share."""
    return " ".join(content_words(text))


def judge_outline(data: Mapping[str, Any]) -> dict[str, float]:
    """The six scores of the rubric, 0 to 10 each, by what can be counted.

    instruction: the question's phrases that a heading or line names; depth: lines a section (4 are full
    marks); balance: evenness of the evidence over the sections; breadth: sections with evidence; support:
    lines with a citation; insight: relations with two pieces of evidence or more, relative to the sections.
    """
    tops = {section["number"].split(".")[0] for section in data["sections"]}
    counts = data["counts"]
    outline = content_key(data["outline"]).split()
    asked = [content_words(phrase) for phrase in keyphrases(data["question"], limit=5)]
    covered = [sum(word in outline for word in phrase) / len(phrase) for phrase in asked if phrase]
    lines = sum(section["lines"] for section in data["sections"])
    cited = sum(section["cited"] for section in data["sections"])
    evidence: Counter[str] = Counter()
    for section in data["sections"]:
        evidence[section["number"].split(".")[0]] += section["evidence"]
    total = sum(evidence.values())
    shares = np.array([count / total for count in evidence.values() if count]) if total else np.array([])
    evenness = float(-(shares * np.log(shares)).sum() / np.log(len(tops))) if len(tops) > 1 and total else 1.0
    scores = {
        "instruction": float(np.mean(covered)) if covered else 1.0,
        "depth": min(1.0, lines / max(1, 4 * len(tops))),
        "balance": evenness if total else 0.0,
        "breadth": sum(count > 0 for count in evidence.values()) / max(1, len(tops)),
        "support": cited / lines if lines else 0.0,
        "insight": min(1.0, counts["strong_edges"] / max(1, 2 * len(tops))),
    }
    return {name: round(10 * max(0.0, min(1.0, score)), 2) for name, score in scores.items()}
