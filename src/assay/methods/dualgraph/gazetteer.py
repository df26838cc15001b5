"""Names and relations by rule: what the extractive model takes for an entity, and what links two."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.methods.dualgraph.lexicon import ABBREVIATIONS, ASKING, LINKS, NEGATIONS, STOP_WORDS, VALUES, VERBS
from assay.methods.dualgraph.sentences import (
    capitalised,
    content_words,
    identifiers,
    split_sentences,
    stem,
    words,
)

NO_VERB = "mentioned with"


_STEMS = frozenset(stem(verb) for verb in VERBS)
_CAPITAL_RUN = re.compile(
    r"(?<![\w.])[A-ZÀ-ÖØ-Þ][\w'’-]*\w(?:\s+(?:(?:of|for|de|van|von|la|le|du|der|and the|of the)\s+)?"
    r"[A-ZÀ-ÖØ-Þ0-9][\w'’-]*)*"
)


@dataclass(frozen=True)
class Mention:
    """A name in a sentence: `name` as it is known, and the characters that it covers."""

    name: str
    start: int
    end: int


def key(name: str) -> str:
    """What spellings of one name share: case, a call's brackets, inflection and punctuation don't count."""
    return " ".join(stem(word) for word in words(name.removesuffix("()").replace("-", " ")))


def keyphrases(question: str, limit: int = 6) -> list[str]:
    """What a question is about: its names and the runs of its other content words, in order."""
    named = _without_parts(_names_in(question))
    rest = question
    for name in named:
        rest = re.sub(rf"(?<!\w){re.escape(name)}(?:\(\))?(?!\w)", " | ", rest)
    tokens = re.findall(r"[^\W_][\w'’-]*|[^\w\s]", rest)
    runs: list[list[str]] = [[]]
    for i, token in enumerate(tokens):
        if not _says_something(token):
            runs.append([])
        elif not (i and tokens[i - 1] == "|" and _is_verb(token, tokens[i + 1 : i + 2])):
            runs[-1].append(token)
    phrases = [" ".join(run[:4]) for run in runs if run]
    found = {key(phrase): phrase for phrase in reversed([*named, *phrases]) if key(phrase)}
    ordered = sorted(found.values(), key=lambda phrase: question.casefold().find(phrase.casefold()))
    return ordered[:limit]


def _says_something(token: str) -> bool:
    folded = token.casefold()
    return folded[0].isalnum() and folded not in STOP_WORDS | NEGATIONS | ASKING


def _is_verb(token: str, following: Sequence[str]) -> bool:
    """Whether a word right after a name is what the question asks of it: "does find_package locate packages",
    "how do Kestrel and Harrier hunt?"."""
    alone = token.islower() and not (following and _says_something(following[0]))
    return alone or stem(token.casefold()) in _STEMS


def _names_in(text: str) -> list[str]:
    """Identifiers and runs of capitalised words, without a sentence's ordinary first word."""
    found = list(identifiers(text))
    certain = set(capitalised(text))
    for sentence in split_sentences(text):
        for match in _CAPITAL_RUN.finditer(sentence.text):
            run = match[0].split()
            opening = not re.search(r"\w", sentence.text[: match.start()])
            # "The Paris Agreement", "When Boeing": the capital of the first word is the sentence's.
            while run and (run[0].casefold() in STOP_WORDS | NEGATIONS | LINKS):
                run, opening = run[1:], False
            while run and run[-1].casefold() in STOP_WORDS:
                run.pop()
            if not run or (len(run) == 1 and len(run[0]) < 2):
                continue
            if opening and len(run) == 1 and run[0] not in certain and run[0] not in found:
                continue
            found.append(" ".join(run))
    return list(dict.fromkeys(found))


def _without_parts(found: Sequence[str]) -> list[str]:
    """Names that aren't a part of a longer one."""
    folded = [f" {name.casefold()} " for name in found]
    return [
        name for i, name in enumerate(found) if not any(folded[i] in other != folded[i] for other in folded)
    ]


def candidates(text: str, title: str = "") -> list[str]:
    """Names that a passage introduces, the most frequent first; `title` counts where the passage repeats it.

    An opening capitalised word counts where the passage also has it elsewhere in a sentence.
    """
    found = _without_parts(_names_in(text))
    title = title.removesuffix("()").strip()
    if title and len(words(title)) <= 5 and mentions(text, [title]):
        found.insert(0, title)
    distinct = {key(name): name for name in reversed(found) if key(name) and not _is_ordinary(name)}
    count = {name: len(mentions(text, [name])) for name in distinct.values()}
    return sorted(count, key=lambda name: (-count[name], -len(name), name))


def _is_ordinary(name: str) -> bool:
    """Whether a word in capitals or with dots is no name: a value, an abbreviation, a number, half a page."""
    folded = name.casefold().rstrip(".")
    ordinary = folded in ASKING or folded in VALUES or folded in ABBREVIATIONS
    return ordinary or len(name) > 80 or not any(letter.isalpha() for letter in name)


def mentions(sentence: str, known: Iterable[str]) -> list[Mention]:
    """Where known names stand in a sentence, in order; of two that overlap the longer one counts."""
    found: list[Mention] = []
    for name in known:
        bare = name.removesuffix("()")
        if not bare:
            continue
        if bare[-1] == "s" and bare.isascii() and bare.islower() and len(bare) > 3:
            bare = bare[:-1]
        body = r"[\s_-]+".join(re.escape(part) for part in bare.split())
        pattern = rf"(?<![\w]){body}(?:'s|’s|s|es)?(?:\(\))?(?![\w])"
        found += [Mention(name, m.start(), m.end()) for m in re.finditer(pattern, sentence, re.IGNORECASE)]
    found.sort(key=lambda mention: (mention.start - mention.end, mention.start, mention.name))
    kept: list[Mention] = []
    for mention in found:
        if all(mention.end <= other.start or mention.start >= other.end for other in kept):
            kept.append(mention)
    return sorted(kept, key=lambda mention: mention.start)


def relation(between: str) -> str:
    """The verb phrase between two names, at most five words; `mentioned with` where there is none.

    It begins with a known verb, or it is the only word that says something and looks like a verb ("hunts").
    """
    tokens = re.findall(r"[^\W\d_][\w'’-]*|[^\w\s]", between)
    start = next((i for i, token in enumerate(tokens[:12]) if stem(token.casefold()) in _STEMS), None)
    if start is None:
        said = [token for token in tokens if token.casefold() not in STOP_WORDS]
        alone = len(said) == 1 and said[0].islower() and said[0].endswith(("s", "ed"))
        return said[0] if alone else NO_VERB
    first = start - 1 if start and tokens[start - 1].casefold() in NEGATIONS else start
    phrase: list[str] = []
    for token in tokens[first : start + 5]:
        if not token[0].isalpha():
            break
        phrase.append(token.casefold())
    while len(phrase) > 1 and phrase[-1] in ("a", "an", "the", "its", "their", "this", "that"):
        phrase.pop()
    return " ".join(phrase)


def same_names(named: Sequence[tuple[int, str]]) -> list[list[int]]:
    """Groups of ids whose names are one name: equal but for inflection, or an acronym and its words."""
    groups: dict[str, list[int]] = {}
    for identifier, name in named:
        groups.setdefault(key(name), []).append(identifier)
    acronyms = {
        name.casefold(): key(name) for _, name in named if name.isupper() and name.isalpha() and len(name) > 2
    }
    for _, name in named:
        parts = [part for part in words(name) if part not in LINKS]
        spelt = "".join(part[0] for part in parts)
        own = key(name)
        if len(parts) > 2 and spelt in acronyms and acronyms[spelt] in groups and own in groups:
            short = acronyms[spelt]
            if short != own:
                groups[own] += groups.pop(short)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def overlap(text: str, other: str) -> float:
    """The share of the distinct content words of `other` that `text` has; 0 where `other` has none."""
    asked = set(content_words(other))
    return len(asked & set(content_words(text))) / len(asked) if asked else 0.0
