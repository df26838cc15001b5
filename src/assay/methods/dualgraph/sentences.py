"""What the rules need to know of text: sentences with their places, content words, numbers, names, quotes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from assay.methods.dualgraph.lexicon import ABBREVIATIONS, NEGATIONS, STOP_WORDS

_WORD = re.compile(r"[^\W_]+(?:[_'’][^\W_]+)*_?", re.UNICODE)
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
# A version (3.11.2), an amount (1,000.5), a percentage; never a part of a word or of a longer number.
_NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)*%?(?![\w])")
# A word with a capital or a digit inside, an underscore, a dot, a double colon or a call's brackets.
_IDENTIFIER = re.compile(
    r"(?<![\w.:/])(?:[^\W\d_]+\(\)"
    r"|[A-Za-z_]\w*(?:(?:\.|::)[A-Za-z_]\w*)+(?:\(\))?"
    r"|[A-Za-z]+_\w+(?:\(\))?"
    r"|[a-z]+[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*|[A-Z]{2,}\w*|[A-Za-z]+\d\w*)"
)
_CAPITALISED = re.compile(r"(?<![\w.])[A-ZÀ-ÖØ-Þ][\w'’-]*\w")
_END = re.compile(
    r"[.!?…]+[)\]\"'’”»]*(?=\s|$)|[。！？]+[」』”）]*|\n[ \t]*\n|\n(?=[ \t]*(?:[-*+•]|\d+[.)])\s)"
)


@dataclass(frozen=True)
class Sentence:
    """A sentence and its place: `text` is `whole[start:end]` without the white space around it."""

    text: str
    start: int
    end: int


def split_sentences(text: str) -> list[Sentence]:
    """Sentences in order, with character offsets into `text`; a blank line or a list item ends one too.

    Abbreviations, initials, decimal numbers and dotted identifiers don't end a sentence.
    """
    sentences: list[Sentence] = []
    start = 0
    for match in _END.finditer(text):
        if match[0][0] == "." and _is_abbreviation(text, match.start()):
            continue
        _append(sentences, text, start, match.end())
        start = match.end()
    _append(sentences, text, start, len(text))
    return sentences


def _append(sentences: list[Sentence], text: str, start: int, end: int) -> None:
    piece = text[start:end]
    if stripped := piece.strip():
        first = start + len(piece) - len(piece.lstrip())
        sentences.append(Sentence(stripped, first, first + len(stripped)))


def _is_abbreviation(text: str, dot: int) -> bool:
    before = re.search(r"(\S+)$", text[max(0, dot - 20) : dot])
    if before is None:
        return False
    word = before[1].lstrip("([\"'“‘").casefold()
    after = text[dot + 1 :].lstrip()[:1]
    # "J. Smith": an initial; "approx. 5": what follows isn't the start of a sentence.
    initial = len(word) == 1 and word.isalpha() and before[1][-1].isupper()
    return word in ABBREVIATIONS or initial or (after.islower() and "\n" not in text[dot + 1 : dot + 2])


def words(text: str) -> list[str]:
    """Words in lower case, in order; Chinese, Japanese and Korean text as pairs of neighbouring letters."""
    found: list[str] = []
    for word in _WORD.findall(text):
        folded = word.casefold().replace("’", "'")
        if _CJK.search(folded):
            found += [folded[i : i + 2] for i in range(max(1, len(folded) - 1))]
        else:
            found.append(folded)
    return found


def content_words(text: str) -> list[str]:
    """The stems of the words that carry meaning, in order."""
    return [
        stem(part)
        for word in words(text)
        for part in word.split("'")[:1]
        if part not in STOP_WORDS and part not in NEGATIONS and (len(part) > 1 or part.isdigit())
    ]


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """A word without its English inflection, so that "targets" meets "target"; names of code stay whole."""
    if len(word) < 4 or not word.isalpha() or not word.isascii():
        return word
    for ending, replacement, least in (
        ("ies", "y", 5), ("sses", "ss", 5), ("ches", "ch", 6), ("shes", "sh", 6), ("xes", "x", 5),
        ("ing", "", 6), ("ied", "y", 5), ("ed", "", 5),
    ):  # fmt: skip
        if word.endswith(ending) and len(word) >= least:
            return _unify(word[: len(word) - len(ending)] + replacement)
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return _unify(word)


def _unify(word: str) -> str:
    """Linked, linking and link; configured, configuring and configure; planned and plan."""
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiosl":
        return word[:-1]
    return word.removesuffix("e") if len(word) > 4 else word


def numbers(text: str) -> list[str]:
    """Numbers as written, without signs of thousands: `1,000.5`, `3.11.2` and `12%` are one each.

    Digits inside a word (`x86_64`, `CMP0048`) belong to a name.
    """
    return [
        match[0].replace(",", "").replace("−", "-").lstrip("+").removesuffix(".")
        for match in _NUMBER.finditer(text)
    ]


def identifiers(text: str) -> list[str]:
    """Names of code and acronyms: `os.path`, `find_package()`, `CMAKE_BUILD_TYPE`, `GitHub`, `HTTP`."""
    return [match[0].removesuffix("()") for match in _IDENTIFIER.finditer(text)]


def capitalised(text: str, *, initial: bool = False) -> list[str]:
    """Capitalised words that aren't stop words; the first of a sentence only where `initial`."""
    found = []
    for sentence in split_sentences(text):
        for match in _CAPITALISED.finditer(sentence.text):
            first = not re.search(r"\w", sentence.text[: match.start()])
            if (initial or not first) and match[0].casefold() not in STOP_WORDS:
                found.append(match[0])
    return found


def names(text: str) -> list[str]:
    """Identifiers and capitalised words in lower case, each once, in order of kind and place."""
    return list(dict.fromkeys(name.casefold() for name in (*identifiers(text), *capitalised(text))))


def negations(text: str) -> int:
    """How many words of the text deny something ("not", "never", "doesn't", "without")."""
    return sum(word in NEGATIONS or word.endswith("n't") for word in words(text.replace("’", "'")))


def longest_quote(claim: str, source: str) -> tuple[int, int]:
    """The longest run of words that both share, and the number of words of the claim."""
    said, given = words(claim), words(source)
    match = SequenceMatcher(None, said, given, autojunk=False).find_longest_match()
    return match.size, len(said)


def windows(sentences: Sequence[Sentence], size: int) -> list[tuple[int, int]]:
    """Every run of `size` neighbouring sentences as (first, last + 1); one run when there are fewer."""
    return [(i, i + size) for i in range(max(1, len(sentences) - size + 1))] if sentences else []


def sentence_at(sentences: Sequence[Sentence], offset: int) -> int:
    """The number of the sentence that holds a character, or of the one before it; 0 before the first."""
    return max(0, bisect_right([sentence.start for sentence in sentences], offset) - 1)
