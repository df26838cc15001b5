"""A claim beside its source: shared words, and the numbers and names of the claim that the source lacks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from assay.methods.dualgraph.lexicon import NUMBER_WORDS, STOP_WORDS, VERBS
from assay.methods.dualgraph.sentences import (
    capitalised,
    content_words,
    identifiers,
    negations,
    numbers,
    split_sentences,
    stem,
    words,
)

# Beyond this share of common words a claim repeats its source, and its first word should be there too.
_NEARLY_VERBATIM = 0.6
_LEAST_VERBATIM = 3
_SUBJECT = re.compile(r"\W*([A-ZÀ-ÖØ-Þ][\w'’-]+)\s+([a-z]+)")
_VERB_STEMS = frozenset(stem(verb) for verb in VERBS)
# Sentences of a source that are offered as the closest ones to a claim.
_CLOSEST = 8


@dataclass(frozen=True)
class Comparison:
    """A claim beside the best window of its source.

    Attributes:
        recall: the share of the claim's distinct content words that the window has, from 0 to 1.
        words: how many distinct content words the claim has.
        missing: numbers and names of the claim that the window lacks.
        denied: the claim repeats a sentence of the window nearly word for word, but for a negation.
        window: (start, end) characters of the window in the source.
    """

    recall: float
    words: int
    missing: tuple[str, ...]
    denied: bool
    window: tuple[int, int]

    @property
    def support(self) -> float:
        """How far the window supports the claim: recall, less half a word if a word is missing.

        In a sentence of three words one other word makes another claim; in a long one it rewords it. A
        missing number or name, or a denial, leaves less than a half.
        """
        covered = self.recall if self.recall == 1.0 else max(0.0, self.recall - 0.5 / max(1, self.words))
        return covered if self.facts_hold else 0.5 * covered / (len(self.missing) + self.denied)

    @property
    def facts_hold(self) -> bool:
        """No number or name is missing and nothing is denied."""
        return not self.missing and not self.denied


@dataclass(frozen=True)
class _Read:
    """A sentence of a source, as the comparison needs it."""

    text: str
    start: int
    end: int
    content: frozenset[str]


@lru_cache(maxsize=4096)
def _read(source: str) -> tuple[_Read, ...]:
    return tuple(
        _Read(s.text, s.start, s.end, frozenset(content_words(s.text))) for s in split_sentences(source)
    )


def compare(claim: str, source: str) -> Comparison:
    """The claim beside the window of its source that has most of its content words.

    A window is as many neighbouring sentences as the claim has, and one more. Every number and every name
    (identifiers, and capitalised words beyond the first) of the claim has to be in it. A claim that the
    source has word for word is compared no further.
    """
    said = frozenset(content_words(claim))
    sentences = _read(source)
    if verbatim := _verbatim(claim, source):
        return Comparison(1.0, len(said), (), False, verbatim)
    if not said or not sentences:
        return Comparison(0.0, len(said), tuple(numbers(claim)), False, (0, 0))
    size = min(len(split_sentences(claim)) + 1, len(sentences))
    best, recall = 0, -1.0
    for first in range(len(sentences) - size + 1):
        found = frozenset().union(*(s.content for s in sentences[first : first + size]))
        share = len(said & found) / len(said)
        if share > recall:
            best, recall = first, share
    window = sentences[best : best + size]
    text = source[window[0].start : window[-1].end]
    missing = _missing_facts(claim, text, recall)
    closest = max(window, key=lambda sentence: len(said & sentence.content))
    repeated = len(said & closest.content) >= 0.8 * max(len(said), len(closest.content))
    denied = repeated and negations(claim) % 2 != negations(closest.text) % 2
    return Comparison(recall, len(said), missing, denied, (window[0].start, window[-1].end))


def _verbatim(claim: str, source: str) -> tuple[int, int] | None:
    """Where the source has the whole claim word for word, white space and the final stop apart."""
    pieces = claim.strip().rstrip(".").split()
    if len(pieces) < _LEAST_VERBATIM:
        return None
    pattern = r"\s+".join(re.escape(piece) for piece in pieces)
    # Neither the start nor the end may be inside of a word or a number: -3 and 3.5 are not 3.
    match = re.search(rf"(?<![\w−-])(?<!\d[.,]){pattern}(?!\w|%|[.,]\d)", source, re.IGNORECASE)
    return match.span() if match else None


def _missing_facts(claim: str, window: str, recall: float) -> tuple[str, ...]:
    there = {_amount(number) for number in numbers(window)}
    there |= {NUMBER_WORDS[word] for word in words(window) if word in NUMBER_WORDS}
    missing = [number for number in numbers(claim) if _amount(number) not in there]
    stems = {stem(word) for word in words(window)}
    for name in dict.fromkeys((*identifiers(claim), *capitalised(claim))):
        bare = re.sub(r"['’]s?$", "", name)
        if (
            not re.search(rf"(?<!\w){re.escape(bare)}(?!\w)", window, re.IGNORECASE)
            and not _stems(bare) <= stems
        ):
            missing.append(name)
    # A sentence's first word has a capital anyway. It counts as a name where the rest was taken over, a verb
    # follows, and the source lacks it: "Geneva is the seat of" beside "Zurich is the seat of".
    if recall >= _NEARLY_VERBATIM:
        for sentence in split_sentences(claim):
            subject = _SUBJECT.match(sentence.text)
            if (
                subject
                and stem(subject[2].casefold()) in _VERB_STEMS
                and subject[1].casefold() not in STOP_WORDS
            ):
                missing += [] if _stems(subject[1]) <= stems else [subject[1]]
    return tuple(dict.fromkeys(missing))


def _stems(name: str) -> set[str]:
    return {stem(part) for word in words(name) for part in word.split("'")[:1]}


def _amount(number: str) -> str:
    """One spelling of a number: 5.0 is 5, 12% is 12; versions (3.10, 1.2.3) keep their digits."""
    bare = number.removesuffix("%")
    if bare.count(".") == 1 and bare.endswith(".0"):
        return bare[:-2]
    return bare


def closest_by_words(claim: str, source: str) -> list[str]:
    """The sentences that share most words with the claim, alone and with their follower."""
    said = frozenset(content_words(claim))
    sentences = _read(source)
    order = sorted(range(len(sentences)), key=lambda i: (-len(said & sentences[i].content), i))
    options: list[str] = []
    for i in order[:_CLOSEST]:
        options.append(sentences[i].text)
        if i + 1 < len(sentences):
            options.append(f"{sentences[i].text} {sentences[i + 1].text}")
    return options
