"""Does a text show a concept, and is it still language? Rules that anyone can check."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from assay.errors import InputError

NORMAL, CONCEPT, CORRUPTED = 1, 2, 3
Label = Literal[1, 2, 3]

# A word is a run of letters, digits and apostrophes, in any script.
_WORD = re.compile(r"[\w']+")
_SYMBOL_RUN = re.compile(r"([^\w\s])\1{6,}")


@dataclass(frozen=True)
class Detector:
    """Counts what matches any of some regular expressions.

    Args:
        patterns: regular expressions; `^` and `$` match at lines.
        at_least: how many matches, over all patterns, make the concept present.
        ignore_case: whether capitals are the same as small letters.

    Raises:
        InputError: a pattern is not a regular expression, or there is none.
    """

    patterns: tuple[str, ...]
    at_least: int = 1
    ignore_case: bool = True
    _compiled: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.patterns or self.at_least < 1:
            raise InputError("a detector needs at least one pattern and at_least must be 1 or more")
        flags = re.MULTILINE | (re.IGNORECASE if self.ignore_case else 0)
        compiled = []
        for pattern in self.patterns:
            try:
                compiled.append(re.compile(pattern, flags))
            except re.error as error:
                raise InputError(f"{pattern!r} is not a regular expression: {error}") from None
        object.__setattr__(self, "_compiled", tuple(compiled))

    def count(self, text: str) -> int:
        """How many matches of all patterns the text holds."""
        return sum(1 for pattern in self._compiled for _ in pattern.finditer(text))

    def __call__(self, text: str) -> bool:
        """Whether the concept is present."""
        return self.count(text) >= self.at_least


def lexicon(words: Sequence[str], *, at_least: int = 1) -> Detector:
    """A detector of whole words, with the plural and possessive of each.

    Raises:
        InputError: no words were given.
    """
    cleaned = [word.strip() for word in words if word.strip()]
    if not cleaned:
        raise InputError("a lexicon needs at least one word")
    alternatives = "|".join(sorted(map(re.escape, cleaned), key=len, reverse=True))
    return Detector((rf"\b(?:{alternatives})(?:e?s|'s)?\b",), at_least)


def corruption(text: str) -> str | None:
    """The rule by which a text is gibberish, or None.

    The rules are those of the paper's code with its two slips mended: its repetition rules and its exception
    for spaces are written with doubled backslashes in raw strings and never match.

    Returns:
        `"empty"`; `"symbols"` (20 characters or more, of which more than 40% are neither letters, digits nor
        spaces); `"few words"` (6 words or more, of which at most a quarter differ or one makes up 40%);
        `"repeated word"` (4 times in a row); `"repeated symbol"` (7 times in a row); or None.
    """
    stripped = text.strip()
    if not stripped:
        return "empty"
    if len(stripped) >= 20:
        symbols = sum(not character.isalnum() and not character.isspace() for character in stripped)
        if symbols / len(stripped) > 0.4:
            return "symbols"
    words = [word.lower() for word in _WORD.findall(stripped)]
    if _longest_run(words) >= 4:
        return "repeated word"
    if len(words) >= 6:
        counts = Counter(words)
        if len(counts) / len(words) <= 0.25 or max(counts.values()) / len(words) >= 0.4:
            return "few words"
    if _SYMBOL_RUN.search(stripped):
        return "repeated symbol"
    return None


def _longest_run(words: Sequence[str]) -> int:
    longest = run = 0
    previous = None
    for word in words:
        run = run + 1 if word == previous else 1
        longest, previous = max(longest, run), word
    return longest


def label(text: str, detector: Detector) -> Label:
    """3 for a corrupted text, else 2 where the concept is present, else 1 (the paper's labels)."""
    if corruption(text) is not None:
        return CORRUPTED
    return CONCEPT if detector(text) else NORMAL
