"""Sentences with a source that states them, and the same with a planted fault: what a check must tell apart.

Sentences are taken from the documentation of CMake; their source is the paragraph that they stand in, between
its neighbours. A fault is one of three: a source from elsewhere, one number of the sentence altered, one name
altered. A *reworded* sentence says the same in other words (synonyms, moved clauses), as a writer would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from assay.methods.dualgraph.cmake_documentation import Documentation

Fault = Literal["source", "number", "name"]
Wording = Literal["verbatim", "reworded"]
FAULTS: tuple[Fault, ...] = ("source", "number", "name")
WORDINGS: tuple[Wording, ...] = ("verbatim", "reworded")

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)*(?![\w.]*\w)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_FEWEST_WORDS, _MOST_WORDS = 8, 40
# Words of technical prose and what may stand in their place.
_IN_OTHER_WORDS = """specify:state specifies:states specified:stated used:employed use:employ uses:employs
provide:offer provides:offers provided:offered create:make creates:makes created:made allow:permit
allows:permits allowed:permitted contain:hold contains:holds behavior:behaviour default:standard
option:setting options:settings given:supplied value:setting values:settings list:sequence directory:folder
directories:folders ignored:disregarded additional:further previous:earlier previously:earlier
prior:earlier when:whenever may:can only:solely also:too same:identical different:distinct
requires:needs require:need required:needed perform:do performs:does performed:done multiple:several
existing:present located:found name:label current:present affect:influence affects:influences
because:since see:consult"""
_SYNONYMS = {word: other for word, _, other in (swap.partition(":") for swap in _IN_OTHER_WORDS.split())}


@dataclass(frozen=True)
class CitedClaim:
    """A sentence, the text that it cites, and the documented names in the sentence."""

    claim: str
    source: str
    names: tuple[str, ...] = ()


def cited_claims(documented: Documentation, count: int, seed: int, *, fault: Fault) -> list[CitedClaim]:
    """`count` sentences that a fault of this kind can be planted in, each with its true source.

    Sentences have 8 to 40 words. They are drawn without repetition, at most one a paragraph.
    """
    rng = np.random.default_rng([seed, 63])
    passages = documented.passages
    chosen: list[CitedClaim] = []
    for number in rng.permutation(len(passages)):
        passage = passages[number]
        around = passages[max(0, number - 1) : number + 2]
        source = " ".join(near.text for near in around if near.title == passage.title)
        candidates = [
            CitedClaim(sentence, source, _whole_words(passage.mentions[0], sentence))
            for sentence in _SENTENCE_END.split(passage.text)
            if _FEWEST_WORDS <= len(sentence.split()) <= _MOST_WORDS and sentence.endswith(".")
        ]
        candidates = [claim for claim in candidates if _can_carry(claim, fault)]
        if candidates:
            chosen.append(candidates[int(rng.integers(len(candidates)))])
        if len(chosen) == count:
            break
    return chosen


def _whole_words(names: Iterable[str], text: str) -> tuple[str, ...]:
    return tuple(name for name in sorted(names) if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))


def _can_carry(claim: CitedClaim, fault: Fault) -> bool:
    if fault == "number":
        return bool(_NUMBER.search(claim.claim))
    return fault == "source" or bool(claim.names)


def with_fault(
    claims: Sequence[CitedClaim], documented: Documentation, fault: Fault, seed: int
) -> list[CitedClaim]:
    """The same claims, each with one fault."""
    rng = np.random.default_rng([seed, 64])
    if fault == "source":
        # A rotation of a random order leaves nobody with his own.
        order = rng.permutation(len(claims))
        sources = {
            int(own): claims[other].source for own, other in zip(order, np.roll(order, 1), strict=True)
        }
        return [CitedClaim(claim.claim, sources[i]) for i, claim in enumerate(claims)]
    if fault == "number":
        return [CitedClaim(_altered_number(claim, rng), claim.source) for claim in claims]
    names = sorted(documented.neighbours)
    return [CitedClaim(_altered_name(claim, names, rng), claim.source) for claim in claims]


def _altered_number(claim: CitedClaim, rng: np.random.Generator) -> str:
    """One number becomes another one that the source does not contain."""
    numbers = list(_NUMBER.finditer(claim.claim))
    match = numbers[int(rng.integers(len(numbers)))]
    present = set(_NUMBER.findall(claim.source))
    *before, last = match[0].split(".")
    while True:
        other = ".".join([*before, str(int(last) + int(rng.integers(1, 30)))])
        if other not in present:
            return claim.claim[: match.start()] + other + claim.claim[match.end() :]


def _altered_name(claim: CitedClaim, names: Sequence[str], rng: np.random.Generator) -> str:
    """One documented name becomes another one that the source does not contain."""
    chosen = claim.names[int(rng.integers(len(claim.names)))]
    while True:
        other = names[int(rng.integers(len(names)))]
        if other not in claim.source:
            return re.sub(rf"(?<!\w){re.escape(chosen)}(?!\w)", other, claim.claim)


def reworded(claim: str) -> str:
    """The sentence in other words: synonyms for common words, a leading condition moved to the end."""
    moved = re.fullmatch(r"((?:If|When|For|In|On|By|To)\b[^,]{8,}), (?!which )(.+)\.", claim)
    text = f"{moved[2]} {moved[1][0].lower()}{moved[1][1:]}." if moved else claim
    text = re.sub(r"(?<!\w)[A-Za-z][a-z]+(?!\w)", _in_other_words, text)
    return text[0].upper() + text[1:]


def _in_other_words(match: re.Match[str]) -> str:
    word = match[0]
    other = _SYNONYMS.get(word.lower(), word)
    return other.capitalize() if word[0].isupper() and other != word else other


def area_under_roc(right: Float[np.ndarray, " n"], wrong: Float[np.ndarray, " m"]) -> float:
    """The chance that a right citation scores above a wrong one; ties count half."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([right, wrong]))
    n, m = len(right), len(wrong)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def precision_at_recall(
    right: Float[np.ndarray, " n"], wrong: Float[np.ndarray, " m"], recall: float = 0.95
) -> float:
    """The precision of the highest threshold that keeps this share of the right citations; 0.5 is chance."""
    threshold = np.sort(right)[int(np.floor((1 - recall) * len(right) + 1e-9))]
    kept_right, kept_wrong = (float(np.mean(scores >= threshold)) for scores in (right, wrong))
    return kept_right / (kept_right + kept_wrong)


def roc_points(
    right: Float[np.ndarray, " n"], wrong: Float[np.ndarray, " m"], grid: Sequence[float]
) -> list[float]:
    """The share of right citations kept when at most the share `grid[i]` of the wrong ones is."""
    descending = np.sort(wrong)[::-1]
    kept = []
    for share in grid:
        allowed = int(np.floor(share * len(wrong) + 1e-9))
        # Everything above the first wrong score that must not be kept.
        threshold = descending[allowed] if allowed < len(wrong) else -np.inf
        kept.append(float(np.mean(right > threshold)))
    return kept
