"""Corpora whose relations are known: planted ones of made-up names, and what a study needs to know of any.

A corpus is a list of passages and the set of name pairs that are truly related: a pair counts when some
passage mentions both names together. Whoever asks sees nothing but the passages that a search returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from assay.errors import InputError

Pair = tuple[str, str]


def pair(first: str, second: str) -> Pair:
    """The unordered pair of two names."""
    return (first, second) if first <= second else (second, first)


@dataclass(frozen=True)
class Passage:
    """A piece of text that a search returns as a whole.

    Args:
        title: where it is from.
        text: what is indexed and read.
        mentions: the groups of names that the extractor sees together, one group a sentence or paragraph.
    """

    title: str
    text: str
    mentions: tuple[frozenset[str], ...]


@dataclass(frozen=True)
class Corpus:
    """Passages, a question about a few of their names, and the relations that an answer should know.

    Args:
        question: names every core entity.
        core: the names that the question asks about.
        gold: related pair -> its kind: `"intra"` or `"bridge"` where relations are planted, else `"linked"`.
    """

    question: str
    core: tuple[str, ...]
    passages: tuple[Passage, ...]
    gold: Mapping[Pair, str]


_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "st",
    "t",
    "v",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "or", "en", "ul")
_ENDINGS = ("x", "n", "th", "m", "k", "s", "l", "r")
_VERBS = (
    "regulates",
    "activates",
    "inhibits",
    "depends on",
    "supplies",
    "replaces",
    "stabilises",
    "precedes",
    "competes with",
    "is derived from",
    "shares its substrate with",
    "is measured by",
)
_PROSE = """samples were kept cold before counting several groups report similar values under usual conditions
results varied between seasons and sites early work used other methods the protocol follows common
practice no effect of temperature was seen data are available on request costs fell over years while
demand rose in most regions"""
_FILLER = tuple(_PROSE.split())


@dataclass(frozen=True)
class PlantedDesign:
    """What a planted corpus looks like.

    Args:
        communities, members: groups of names, and names in each.
        density: the share of pairs within a group that are related, beside those with the group's core
            entity: that one is related to all.
        bridges: related pairs across groups.
        concentration: the chance that a bridge is drawn from the concentrated region (the first
            `bridging_members` of the groups of `bridged_pairs` pairs of groups); else it is drawn uniformly
            over all pairs across groups.
        documents: passages that state each relation, in different words.
        distractors: passages that mention a name and nothing else, for each name.
        dilution: filler words around the one relevant sentence of a bridge passage.
    """

    communities: int = 5
    members: int = 8
    density: float = 0.6
    bridges: int = 10
    concentration: float = 1.0
    bridged_pairs: int = 2
    bridging_members: int = 4
    documents: int = 2
    distractors: int = 20
    dilution: int = 24

    def __post_init__(self) -> None:
        if not 0 <= self.concentration <= 1:
            raise InputError(f"concentration must be between 0 and 1, got {self.concentration}")
        region = self.bridged_pairs * self.bridging_members**2
        if self.bridging_members > self.members or 2 * self.bridged_pairs > self.communities:
            raise InputError(
                f"{self.bridged_pairs} disjoint pairs of {self.communities} groups with "
                f"{self.bridging_members} of {self.members} names each do not exist"
            )
        if self.bridges > region:
            raise InputError(f"{self.bridges} bridges do not fit into {region} pairs of names")


def planted(design: PlantedDesign, seed: int) -> Corpus:
    """A corpus of made-up names with known relations; the same for the same design and seed.

    Relations within a group are easy (short passages), bridges are hidden: their passages are long, each of
    their names is mentioned in many passages that lead nowhere, so that only who asks for both names at once
    finds them. The question names one member of every group, its core entity.
    """
    rng = np.random.default_rng([seed, 62])
    names = _names(design.communities * design.members, rng)
    groups = [names[i :: design.communities] for i in range(design.communities)]
    core = tuple(group[int(rng.integers(design.members))] for group in groups)
    gold: dict[Pair, str] = {}
    for group, centre in zip(groups, core, strict=True):
        others = [name for name in group if name != centre]
        gold |= {pair(centre, name): "intra" for name in others}
        within = [pair(*two) for two in combinations(others, 2)]
        chosen = rng.permutation(len(within))[: round(design.density * len(within))]
        gold |= {within[i]: "intra" for i in chosen}
    gold |= dict.fromkeys(_bridges(groups, design, rng), "bridge")
    passages = [
        _statement(two, kind, design, rng) for two, kind in gold.items() for _ in range(design.documents)
    ]
    for name in names:
        passages += [_distractor(name, rng) for _ in range(design.distractors)]
    # A search breaks ties by the order of passages; no kind may come first.
    order = rng.permutation(len(passages))
    question = f"What is known about the relations of {', '.join(core[:-1])} and {core[-1]}?"
    return Corpus(question, core, tuple(passages[i] for i in order), gold)


def _one(options: Sequence[str], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]


def _names(count: int, rng: np.random.Generator) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        syllables = [_one(_ONSETS, rng) + _one(_VOWELS, rng) for _ in range(3)]
        found.setdefault(("".join(syllables) + _one(_ENDINGS, rng)).capitalize())
    return list(found)


def _bridges(groups: Sequence[Sequence[str]], design: PlantedDesign, rng: np.random.Generator) -> list[Pair]:
    """Distinct pairs across groups; each is drawn from the concentrated region with the design's chance."""
    bridged = [(2 * i, 2 * i + 1) for i in range(design.bridged_pairs)]
    few = design.bridging_members
    concentrated = [pair(u, v) for a, b in bridged for u in groups[a][:few] for v in groups[b][:few]]
    anywhere = [pair(u, v) for a, b in combinations(groups, 2) for u in a for v in b]
    chosen: dict[Pair, None] = {}
    while len(chosen) < design.bridges:
        pool = concentrated if rng.random() < design.concentration else anywhere
        chosen.setdefault(pool[int(rng.integers(len(pool)))])
    return list(chosen)


def _filler(words: int, rng: np.random.Generator) -> str:
    return " ".join(_FILLER[place] for place in rng.integers(len(_FILLER), size=words))


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


def _statement(two: Pair, kind: str, design: PlantedDesign, rng: np.random.Generator) -> Passage:
    first, second = two if rng.random() < 0.5 else two[::-1]
    stated = f"{first} {_one(_VERBS, rng)} {second} {_filler(4, rng)}."
    if kind == "intra":
        text = f"{stated} {_sentence(_filler(6, rng))}"
    else:
        before, after = (_sentence(_filler(design.dilution // 2, rng)) for _ in range(2))
        text = f"{before} {stated} {after}"
    return Passage("Finding", text, (frozenset(two),))


def _distractor(name: str, rng: np.random.Generator) -> Passage:
    text = f"{name} {_filler(8, rng)}. {_sentence(_filler(6, rng))}"
    return Passage("Note", text, (frozenset((name,)),))
