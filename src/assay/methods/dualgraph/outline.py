"""The outline as a tree of sections whose lines are bound to evidence, and its text form for prompts.

The text form is that of the paper's prompts: numbered headings of up to three levels, lines below them, and
citations at the end of a line as `<citation>id_4, id_7</citation>`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from assay.errors import InputError
from assay.methods.dualgraph.records import Point, Section

MAX_LEVEL = 3
SAME_MEANING = 0.6
"""Share of matching characters above which a rewritten line counts as the old one."""

_CITATION = re.compile(r"<citation>(.*?)</citation>", re.IGNORECASE | re.DOTALL)
_STRAY_TAG = re.compile(r"</?citation>", re.IGNORECASE)
_HEADING = re.compile(r"(?:#{1,6}\s*)?(\d+(?:\.\d+){0,2})(?:[.)]|(?=\s))\s*(.*)")
_POINT = re.compile(r"(?:[-*•+]|[a-zA-Z][.)])\s+(.*)")


@dataclass(frozen=True, slots=True)
class Line:
    """A heading or a line below one.

    Attributes:
        section: id of its section.
        place: position among the section's points; -1 for the heading.
        text: its words.
        evidence: what it cites.
    """

    section: int
    place: int
    text: str
    evidence: tuple[int, ...]


class OutlineGraph:
    """A tree of sections, in reading order.

    Ids and numbers follow from the order and the levels: sections that are passed in are numbered anew.

    Args:
        sections: in reading order; `level` says how deep each is, at most one deeper than the one before.

    Raises:
        InputError: the first section is not at the top, or a level is skipped.
    """

    def __init__(self, sections: Iterable[Section] = ()) -> None:
        self.sections: tuple[Section, ...] = _numbered([(s.level, s) for s in sections])

    @classmethod
    def parse(cls, text: str) -> OutlineGraph:
        """Read the text form. Lines before the first heading and empty lines are left out.

        Numbers only give the levels: a model that counts wrongly is put right, and a level that is skipped is
        closed up.

        Raises:
            InputError: there is no numbered heading.
        """
        found: list[tuple[int, Section]] = []
        for raw in text.splitlines():
            words, evidence = _split_citations(raw)
            if heading := _HEADING.fullmatch(words):
                title = _plain(heading[2]) or "Untitled"
                level = heading[1].count(".") + 1
                level = min(level, found[-1][0] + 1 if found else 1, MAX_LEVEL)
                found.append((level, Section(0, "1", title, evidence=evidence)))
            elif words and found:
                point = _POINT.fullmatch(words)
                line = Point(_plain(point[1] if point else words), evidence)
                if line.text:
                    level, section = found[-1]
                    found[-1] = level, replace(section, points=(*section.points, line))
        if not found:
            raise InputError("an outline needs a numbered heading such as '1. Title', got none")
        outline = cls()
        outline.sections = _numbered(found)
        return outline

    @classmethod
    def from_subtree(cls, sections: Sequence[Section]) -> OutlineGraph:
        """An outline of a section and all below it (`subtree`), raised to the top level."""
        depth = sections[0].level - 1
        outline = cls()
        outline.sections = _numbered([(section.level - depth, section) for section in sections])
        return outline

    def render(self) -> str:
        """The text form; `parse` reads it back unchanged."""
        lines: list[str] = []
        for section in self.sections:
            lines.append(f"{section.number}. {section.title}{_citation(section.evidence)}")
            lines += [f"- {point.text}{_citation(point.evidence)}" for point in section.points]
        return "\n".join(lines)

    def lines(self) -> list[Line]:
        """All headings and points in reading order."""
        found: list[Line] = []
        for section in self.sections:
            found.append(Line(section.id, -1, section.title, section.evidence))
            found += [Line(section.id, i, p.text, p.evidence) for i, p in enumerate(section.points)]
        return found

    def uncited(self) -> list[Line]:
        """The lines that a search should serve: points without citations, and headings of bare sections."""
        parents = {section.parent for section in self.sections}
        bare = {
            section.id
            for section in self.sections
            if not section.points and not section.evidence and section.id not in parents
        }
        return [
            line for line in self.lines() if not line.evidence and (line.place >= 0 or line.section in bare)
        ]

    def top_level(self) -> list[Section]:
        """The sections that the report is written by."""
        return [section for section in self.sections if section.level == 1]

    def subtree(self, section_id: int) -> list[Section]:
        """A section and all below it, in reading order.

        Raises:
            InputError: there is no such section.
        """
        head = next((section for section in self.sections if section.id == section_id), None)
        if head is None:
            raise InputError(f"the outline has no section {section_id}")
        return [s for s in self.sections if s is head or s.number.startswith(f"{head.number}.")]

    def evidence(self, sections: Sequence[Section] | None = None) -> set[int]:
        """What the sections cite; all sections by default."""
        chosen = self.sections if sections is None else sections
        return {
            cited
            for section in chosen
            for ids in (section.evidence, *(point.evidence for point in section.points))
            for cited in ids
        }

    def update(self, proposed: OutlineGraph, known: Collection[int]) -> tuple[OutlineGraph, int]:
        """Take over a proposed outline, and put back what it may not lose.

        A line that carries citations keeps its meaning and its ids: where the proposal has lost ids of a
        line, they are put back on the line if it is still there or was only reworded, and else the line
        itself is put back below the heading that it stood under. Ids that nobody knows are removed.

        Args:
            proposed: the outline that a model wants.
            known: ids of all evidence.

        Returns:
            The repaired outline, and how many repairs it took.
        """
        sections, repairs = _only_known(proposed.sections, set(known))
        result = OutlineGraph(sections)
        headings = {section.id: section for section in self.sections}
        for line in self.lines():
            lost = set(line.evidence) - result.evidence()
            kept = _counterpart(result, line)
            if kept is not None and _folded(kept.text) == _folded(line.text):
                lost = set(line.evidence) - set(kept.evidence)
            if lost:
                repairs += 1
                result = result._with(kept, line, headings[line.section], tuple(sorted(lost)))
        return result, repairs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutlineGraph) and self.sections == other.sections

    __hash__ = None  # type: ignore[assignment]

    def _with(self, kept: Line | None, line: Line, heading: Section, lost: tuple[int, ...]) -> OutlineGraph:
        """This outline with lost ids on `kept`, or with the line itself under its old heading."""
        sections = list(self.sections)
        if kept is not None:
            place = kept.section - 1
            section = sections[place]
            if kept.place < 0:
                sections[place] = replace(section, evidence=(*section.evidence, *lost))
            else:
                points = list(section.points)
                point = points[kept.place]
                points[kept.place] = replace(point, evidence=(*point.evidence, *lost))
                sections[place] = replace(section, points=tuple(points))
            return OutlineGraph(sections)
        point = Point(line.text, line.evidence)
        home = [i for i, section in enumerate(sections) if _folded(section.title) == _folded(heading.title)]
        if home:
            section = sections[home[0]]
            sections[home[0]] = replace(section, points=(*section.points, point))
        else:
            points = (point,) if line.place >= 0 else ()
            sections.append(Section(0, "1", heading.title, points=points, evidence=heading.evidence))
        return OutlineGraph(sections)


def _numbered(leveled: Sequence[tuple[int, Section]]) -> tuple[Section, ...]:
    counters = [0] * MAX_LEVEL
    open_ids: list[int] = []
    result: list[Section] = []
    for identifier, (level, section) in enumerate(leveled, start=1):
        if level > len(open_ids) + 1 or level > MAX_LEVEL:
            raise InputError(f"section {section.title!r} is at level {level} below level {len(open_ids)}")
        counters[level - 1] += 1
        counters[level:] = [0] * (MAX_LEVEL - level)
        del open_ids[level - 1 :]
        points = tuple(
            Point(_plain(p.text), tuple(dict.fromkeys(p.evidence))) for p in section.points if _plain(p.text)
        )
        result.append(
            Section(
                id=identifier,
                number=".".join(map(str, counters[:level])),
                title=_plain(section.title) or "Untitled",
                parent=open_ids[-1] if open_ids else None,
                points=points,
                evidence=tuple(dict.fromkeys(section.evidence)),
            )
        )
        open_ids.append(identifier)
    return tuple(result)


def _only_known(sections: Sequence[Section], known: set[int]) -> tuple[list[Section], int]:
    """The sections without unknown ids, and how many citations were removed."""
    removed = 0

    def clean(evidence: tuple[int, ...]) -> tuple[int, ...]:
        nonlocal removed
        kept = tuple(cited for cited in evidence if cited in known)
        removed += len(evidence) - len(kept)
        return kept

    cleaned = [
        replace(
            section,
            evidence=clean(section.evidence),
            points=tuple(replace(point, evidence=clean(point.evidence)) for point in section.points),
        )
        for section in sections
    ]
    return cleaned, removed


def _counterpart(outline: OutlineGraph, line: Line) -> Line | None:
    """The line of the outline that says the same, or nearly; of several, the one that shares most ids."""
    wanted = _folded(line.text)
    same = [other for other in outline.lines() if _folded(other.text) == wanted]
    if same:
        return max(same, key=lambda other: len(set(line.evidence) & set(other.evidence)))
    best, best_share = None, SAME_MEANING
    for other in outline.lines():
        matcher = difflib.SequenceMatcher(None, wanted, _folded(other.text), autojunk=False)
        if matcher.real_quick_ratio() >= best_share and matcher.quick_ratio() >= best_share:
            share = matcher.ratio()
            if share >= best_share:
                best, best_share = other, share
    return best


def _split_citations(raw: str) -> tuple[str, tuple[int, ...]]:
    ids = [int(number) for part in _CITATION.findall(raw) for number in re.findall(r"\d{1,9}", part)]
    return _STRAY_TAG.sub("", _CITATION.sub(" ", raw)).strip(), tuple(dict.fromkeys(ids))


def _citation(evidence: Sequence[int]) -> str:
    return f" <citation>{', '.join(f'id_{cited}' for cited in evidence)}</citation>" if evidence else ""


def _plain(text: str) -> str:
    """One line without citation tags and without emphasis around the whole."""
    text = " ".join(_STRAY_TAG.sub("", _CITATION.sub(" ", text)).split())
    while len(text) > 4 and text[:2] == text[-2:] == "**":
        text = text[2:-2].strip()
    return text


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
