"""The citations of a text: which sentence cites what, whether the source supports it, and their numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from assay.methods.dualgraph.checkers import Checker
from assay.methods.dualgraph.comparison import compare
from assay.methods.dualgraph.markers import (
    Marker,
    find_markers,
    without_emphasis,
    without_links,
)
from assay.methods.dualgraph.records import CitationRow, Evidence
from assay.methods.dualgraph.sentences import content_words, longest_quote, sentence_at, split_sentences

Status = Literal["supported", "unsupported", "dangling"]

# A part of a sentence before a marker is a claim of its own from so many content words on.
_LEAST_CLAIM = 2
_FENCE = re.compile(r"^\s*(```|~~~)")
_OWN_BLOCK = re.compile(r"^\s*(?:#{1,6}\s|[-*+]\s|\d+[.)]\s|\||>)")


@dataclass(frozen=True)
class Claim:
    """What a marker is said to support.

    Attributes:
        text: the words, without markers and markup: the sentence, or its part since the marker before.
        sentence: the whole sentence without markers and markup.
        ids: what the marker names.
        beside: the ids of all markers side by side with it, its own among them.
        marker: the characters of the marker in the text.
    """

    text: str
    sentence: str
    ids: tuple[int, ...]
    beside: tuple[int, ...]
    marker: tuple[int, int]


@dataclass(frozen=True)
class CheckedText:
    """A text whose markers were checked.

    Attributes:
        text: the text without the markers that failed.
        rows: one row for every id of every marker, in order.
    """

    text: str
    rows: list[CitationRow]


@dataclass(frozen=True)
class Reference:
    """A source in the list of references: every piece of evidence that a report cites from one address."""

    number: int
    title: str
    url: str
    evidence: tuple[int, ...]


@dataclass(frozen=True)
class Numbered:
    """A text whose markers are the numbers of its references."""

    text: str
    references: tuple[Reference, ...]


def claims(text: str) -> list[Claim]:
    """Every marker of a Markdown text with what it is said to support; code and headings are passed over.

    A marker belongs to the sentence that it stands in or follows. Where a sentence has several, each supports
    the words since the one before it, unless these are too few to say anything.
    """
    found: list[Claim] = []
    for start, end in _blocks(text):
        block = text[start:end]
        here = list(find_markers(block))
        if not here:
            continue
        # Blanks of the same length in place of the markers keep every character where it is.
        bare = list(block)
        for marker in here:
            bare[marker.start : marker.end] = " " * (marker.end - marker.start)
        blank = "".join(bare)
        sentences = split_sentences(blank)
        if not sentences:
            continue
        before: dict[int, int] = {}
        for run in _runs(here, blank):
            place = sentence_at(sentences, run[0].start)
            sentence = without_emphasis(_tidy(sentences[place].text))
            opening = max(before.get(place, sentences[place].start), sentences[place].start)
            part = without_emphasis(_tidy(blank[opening : min(run[0].start, sentences[place].end)]))
            alone = sum(sentence_at(sentences, marker.start) == place for marker in here) == len(run)
            whole = alone or len(content_words(part)) < _LEAST_CLAIM
            before[place] = run[-1].end
            beside = tuple(dict.fromkeys(i for marker in run for i in marker.ids))
            for marker in run:
                place_in_text = (start + marker.start, start + marker.end)
                found.append(Claim(sentence if whole else part, sentence, marker.ids, beside, place_in_text))
    return found


def _runs(here: Sequence[Marker], blank: str) -> Iterator[list[Marker]]:
    """Markers that stand side by side, as in `[3][7]`."""
    run: list[Marker] = []
    for marker in here:
        if run and blank[run[-1].end : marker.start].strip(" ,;"):
            yield run
            run = []
        run.append(marker)
    if run:
        yield run


def _tidy(text: str) -> str:
    return re.sub(r"\s+(?=[.,;:!?](?:\s|$))", "", " ".join(text.split()))


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """The character ranges of paragraphs, list items and table rows; no code, no headings."""
    start: int | None = None
    offset, fenced = 0, False
    for line in [*text.splitlines(keepends=True), ""]:
        fence = _FENCE.match(line)
        alone = _OWN_BLOCK.match(line)
        if start is not None and (not line.strip() or fence or alone):
            yield start, offset
            start = None
        fenced = not fenced if fence else fenced
        if (
            line.strip()
            and not fenced
            and not fence
            and not re.match(r"^\s{0,3}#{1,6}\s", line)
            and start is None
        ):
            start = offset
        offset += len(line)


def check_section(
    text: str,
    *,
    section: str,
    evidence: Mapping[int, Evidence],
    admissible: Collection[int],
    checker: Checker,
) -> CheckedText:
    """Check every citation of a section that a model wrote, and take out those that fail.

    Links, images and HTML are taken out too: a source comes from the search, never from a model's text.

    Args:
        text: Markdown with markers of evidence ids, `[3]` or `[3, 7]`.
        section: its number, for the rows.
        evidence: all evidence of the run.
        admissible: the ids that the model was given for this section.
        checker: decides between supported and unsupported.
    """
    text = without_links(text)
    found = claims(text)
    sources = {i: [evidence[i].content] for i in evidence if i in admissible}
    urls = {i: evidence[i].source_url for i in sources}
    rows = check_claims(found, sources, urls, checker=checker, section=section)
    kept = {claim.marker: [] for claim in found}
    at = 0
    for claim in found:
        for row in rows[at : at + len(claim.ids)]:
            if row.status == "supported" and row.evidence_id not in kept[claim.marker]:
                kept[claim.marker].append(row.evidence_id)
        at += len(claim.ids)
    return CheckedText(_rewritten(text, kept), rows)


def _rewritten(text: str, kept: Mapping[tuple[int, int], Sequence[int]]) -> str:
    """The text with other ids in its markers; a marker without any goes, and so do the blanks before it."""
    pieces, at = [], 0
    for marker in find_markers(text):
        place = (marker.start, marker.end)
        # A marker outside of sentences (in a heading) supports nothing.
        ids = kept.get(place, ())
        before = text[at : marker.start]
        if ids:
            pieces += [before, f"[{', '.join(str(i) for i in ids)}]"]
        else:
            pieces.append(before.rstrip(" \t"))
        at = marker.end
    return "".join([*pieces, text[at:]])


def check_claims(
    found: Sequence[Claim],
    sources: Mapping[int, Sequence[str]],
    urls: Mapping[int, str],
    *,
    checker: Checker,
    section: str = "",
) -> list[CitationRow]:
    """One row for every id of every claim.

    An id is supported when one of its texts supports the claim, or when the ids side by side support it
    together and no longer do without this one: several sources may share a sentence, and none is carried by
    the others.

    Args:
        found: the claims.
        sources: what an id stands for, one text or several; an id that isn't there dangles.
        urls: the address of every id.
        checker: gives the scores.
        section: for the rows.
    """
    jobs: list[tuple[int, Collection[int], str]] = []
    for i, claim in enumerate(found):
        known = [identifier for identifier in claim.beside if sources.get(identifier)]
        jobs += [(i, (identifier,), text) for identifier in known for text in sources[identifier]]
        if len(known) > 1:
            groups = [
                tuple(known),
                *(tuple(k for k in known if k != left) for left in known if len(known) > 2),
            ]
            jobs += [(i, group, _joint(claim.text, group, sources)) for group in groups]
    scores = checker.scores([found[i].text for i, _, _ in jobs], [text for _, _, text in jobs])
    best: dict[tuple[int, Collection[int]], tuple[float, str]] = {}
    for (i, group, text), score in zip(jobs, scores, strict=True):
        if (i, group) not in best or score > best[i, group][0]:
            best[i, group] = (float(score), text)

    def supports(i: int, group: tuple[int, ...]) -> bool:
        return best.get((i, group), (0.0, ""))[0] >= checker.threshold

    rows = []
    for i, claim in enumerate(found):
        known = tuple(identifier for identifier in claim.beside if sources.get(identifier))
        for identifier in claim.ids:
            if identifier not in known:
                rows.append(
                    CitationRow(section, claim.sentence, identifier, "", "dangling", checker=checker.name)
                )
                continue
            others = tuple(k for k in known if k != identifier)
            enough = supports(i, (identifier,)) or (supports(i, known) and not supports(i, others))
            score, text = best[i, (identifier,)]
            run, length = longest_quote(claim.text, text)
            rows.append(
                CitationRow(
                    section,
                    claim.sentence,
                    identifier,
                    urls.get(identifier, ""),
                    "supported" if enough else "unsupported",
                    round(run / length, 4) if length else 0.0,
                    round(score, 4),
                    checker.name,
                )
            )
    return rows


def _joint(claim: str, group: Sequence[int], sources: Mapping[int, Sequence[str]]) -> str:
    """The best windows of several sources as one sentence, so that a checker's window holds them all."""
    parts = []
    for identifier in group:
        text = max(sources[identifier], key=lambda text: compare(claim, text).recall)
        start, end = compare(claim, text).window
        parts.append(re.sub(r"[.!?…。！？]+(?=\s|$)|\n+", ";", text[start:end]))
    return " ".join(parts)


def renumber(text: str, evidence: Mapping[int, Evidence]) -> Numbered:
    """Markers of evidence ids become numbers of references: by first appearance, one for each address.

    Ids without evidence are taken out; a number that markers side by side would repeat appears once.
    """
    numbers: dict[str, int] = {}
    cited: dict[str, list[int]] = {}
    kept: dict[tuple[int, int], list[int]] = {}
    last_end, last_ids = -1, set()
    for marker in find_markers(text):
        side_by_side = last_end >= 0 and not text[last_end : marker.start].strip(" ")
        shown = last_ids if side_by_side else set()
        ids: list[int] = []
        for identifier in marker.ids:
            if identifier not in evidence:
                continue
            url = evidence[identifier].source_url
            number = numbers.setdefault(url, len(numbers) + 1)
            if identifier not in cited.setdefault(url, []):
                cited[url].append(identifier)
            if number not in shown:
                shown.add(number)
                ids.append(number)
        kept[marker.start, marker.end] = ids
        last_end, last_ids = marker.end, shown
    references = tuple(
        Reference(number, evidence[cited[url][0]].source_title, url, tuple(cited[url]))
        for url, number in numbers.items()
    )
    return Numbered(_rewritten(text, kept), references)


def precision(rows: Sequence[CitationRow]) -> float | None:
    """The share of citations that are supported; None for a text that cites nothing."""
    return sum(row.status == "supported" for row in rows) / len(rows) if rows else None


def effective(rows: Sequence[CitationRow]) -> int:
    """Supported citations, each pair of an address and a sentence once (FACT's effective citations)."""
    return len({(row.url, row.sentence) for row in rows if row.status == "supported"})
