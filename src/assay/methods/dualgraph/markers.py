"""Markdown of reports: citation markers, and quoted text that must not act as markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# [7], [3, 7], [id_7], 【7】 of some models; not \[7\], not the text of a link or of a reference definition.
_IDS = r"(?:\^|id_)?\d{1,9}(?:\s*[,;]\s*(?:\^|id_)?\d{1,9})*"
_MARKER = re.compile(rf"(?<!\\)[\[【]\s*({_IDS})\s*[\]】](?![(:])")
_BRACKETED = re.compile(rf"(?<!\\)[\[【](\s*{_IDS}\s*)[\]】]")
_CITATION_TAG = re.compile(r"\s*<citation>.*?</citation>", re.IGNORECASE | re.DOTALL)
_IMAGE = re.compile(r"(?<!\\)!\[((?:\\.|[^\]\\])*)\](?:\([^)]*\)|\[[^\]]*\])?")
_LINK = re.compile(r"(?<![\\!])\[((?:\\.|[^\]\\\[])*)\]\([^)\n]*\)")
_DEFINITION = re.compile(r"^ {0,3}\[(?:\\.|[^\]\\\n])+\]:\s.*$", re.MULTILINE)
_QUOTED_DEFINITION = re.compile(r"^([ \t>*+\-\d.)]*)\[(?=(?:\\.|[^\]\\\n])+\]:\s)", re.MULTILINE)
_AUTOLINK = re.compile(r"(?<!\\)<(?:[a-z][a-z0-9+.-]{1,31}:|[^\s<>@]+@)[^>\s]*>", re.IGNORECASE)
_TAG = re.compile(r"(?<!\\)<(?=[A-Za-z/!?])")
# Only what every reader takes for code: fences at the margin, spans within a line and a cell of a table.
_CODE = re.compile(
    r"^(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})[^\n]*\n.*?(?:^[ \t]*(?P=fence)|\Z)"
    r"|(?<![`\\])(?P<ticks>`+)(?!`)[^\n|]+?(?<!`)(?P=ticks)(?!`)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Marker:
    """A citation marker: the ids that it names, and the characters that it covers."""

    ids: tuple[int, ...]
    start: int
    end: int


def find_markers(text: str) -> Iterator[Marker]:
    """The citation markers of a text, in order; `argv[1]` in code is none."""
    code = [match.span() for match in _CODE.finditer(text)]
    for match in _MARKER.finditer(text):
        if not any(start <= match.start() < end for start, end in code):
            ids = tuple(int(number) for number in re.findall(r"\d+", match[1]))
            yield Marker(ids, match.start(), match.end())


def without_markers(text: str) -> str:
    """The text without citation markers and citation tags, and without the blanks before them."""
    text = _CITATION_TAG.sub("", text)
    pieces, at = [], 0
    for marker in find_markers(text):
        before = text[at : marker.start]
        pieces.append(before.rstrip(" \t") if before.strip() else "")
        at = marker.end
    return "".join([*pieces, text[at:]])


def plain_sentence(sentence: str) -> str:
    """A quoted sentence on one line, in which nothing acts as Markdown, as HTML or as a citation of ours."""
    text = " ".join(sentence.split())
    text = re.sub(r"^(?:[-*+•>#|]+\s+|\d+[.)]\s+)+", "", text)
    if text.count("`") % 2:
        # One tick alone would turn what follows the sentence into code.
        text = text.replace("`", "")
    text = _outside_code(text, _inert)
    return text if re.search(r"[.!?…。！？:][)\]\"'’”»]*$", text) else f"{text}."


def _inert(text: str) -> str:
    text = _BRACKETED.sub(r"\\[\1\\]", text)
    text = re.sub(r"(?<!\\)!\[", r"!\\[", text)
    text = re.sub(r"(?<!\\)\](?=[(\[:])", r"\\]", text)
    return _TAG.sub(r"\\<", text)


def without_links(text: str) -> str:
    """A model's Markdown without links, images, HTML and reference definitions.

    Sources come from the search only. The words of a link stay, its address goes; so nothing that a hostile
    page got a model to write can be loaded or clicked. Code stays as it is, because nothing in it acts.
    """
    return _outside_code(text, _linkless)


def _linkless(text: str) -> str:
    text = _DEFINITION.sub("", text)
    text = _IMAGE.sub(r"\1", text)
    text = _LINK.sub(r"\1", text)
    text = _AUTOLINK.sub("", text)
    # What is left of links with brackets in their words, and of definitions in quotes and lists.
    text = _QUOTED_DEFINITION.sub(r"\1\\[", text)
    text = re.sub(r"(?<!\\)\](?=\()", r"\\]", text)
    return _TAG.sub(r"\\<", text)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    pieces, at = [], 0
    for match in _CODE.finditer(text):
        pieces += [change(text[at : match.start()]), match[0]]
        at = match.end()
    return "".join([*pieces, change(text[at:])])


def without_emphasis(text: str) -> str:
    """A Markdown sentence as its reader sees it: no emphasis, code ticks, list bullets or escapes."""
    text = re.sub(r"^\s*(?:[-*+>|]+\s+|\d+[.)]\s+|#+\s+)+", "", text)
    text = re.sub(r"(?<!\\)(?:\*\*|`)", "", text)
    text = re.sub(r"(?<![\\*\w])\*(?=\S)|(?<=[^\s\\*])\*(?![*\w])", "", text)
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text).strip()
