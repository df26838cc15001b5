"""Cutting a text into passages: what is indexed, found and read as one piece (ours)."""

from __future__ import annotations

import re

# Characters; about 200 tokens, so that a sentence encoder of 256 tokens sees the whole passage.
LENGTH = 900
_SHORT = 120

_GAP = re.compile(r"\n[ \t]*\n\s*|\Z")
_LINE = re.compile(r"\n")
_SENTENCE = re.compile(r"(?<=[.!?;])\s|(?<=[。！？；])")
_WORD = re.compile(r"\s")


def passage_spans(text: str, length: int = LENGTH) -> list[tuple[int, int]]:
    """Where the passages of `text` begin and end: (start, end) offsets in order, without overlap.

    A passage is a paragraph. Short ones (headings above all) join what follows, as long as both fit into
    `length` characters; longer ones are cut at the end of a line or of a sentence, else between words. Only
    white space lies between passages.

    Args:
        text: the whole text.
        length: the most characters of a passage.

    Raises:
        ValueError: `length` is not positive.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1 character, got {length}")
    spans: list[tuple[int, int]] = []
    open_start = start = len(text) - len(text.lstrip())
    open_end = open_start  # what is still open lies between open_start and open_end
    for gap in _GAP.finditer(text, start):
        end = gap.start()
        while end > start and text[end - 1].isspace():
            end -= 1
        if end == start:
            continue
        if open_end > open_start and end - open_start > length:
            spans.append((open_start, open_end))
            open_start = start
        open_end = end
        if open_end - open_start > length:
            spans.extend(_cut(text, open_start, open_end, length))
            open_start = open_end = gap.end()
        elif end - start >= _SHORT:
            spans.append((open_start, open_end))
            open_start = open_end = gap.end()
        start = gap.end()
    if open_end > open_start:
        spans.append((open_start, open_end))
    return spans


def _cut(text: str, start: int, end: int, length: int) -> list[tuple[int, int]]:
    """A long paragraph in pieces of at most `length` characters."""
    pieces = []
    while end - start > length:
        at = start + length
        for separator in (_LINE, _SENTENCE, _WORD):
            # The last separator in the second half of what fits.
            found = [match.start() for match in separator.finditer(text, start + length // 2 + 1, at + 1)]
            fitting = [place for place in found if place <= at]
            if fitting:
                at = fitting[-1]
                break
        pieces.append((start, start + len(text[start:at].rstrip())))
        start = at
        while start < end and text[start].isspace():
            start += 1
    return [*pieces, (start, end)] if start < end else pieces
