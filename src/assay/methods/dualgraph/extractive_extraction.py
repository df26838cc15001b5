"""Names and relations of evidence by rule: what the extractive model answers to the task `extract`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from assay.methods.dualgraph.gazetteer import (
    NO_VERB,
    Mention,
    candidates,
    key,
    keyphrases,
    mentions,
    relation,
)
from assay.methods.dualgraph.sentences import content_words, split_sentences, words

_NAMES_A_SENTENCE = 5


def extract(data: Mapping[str, Any]) -> dict[str, Any]:
    """Names and relations of a batch of evidence: names in one sentence, linked by the verb between them.

    Args:
        data: `question`; `core` (names); `nodes` ({name, is_core, aliases}); `batch` ({query, evidence: {id,
            title, content}}); `max_new_concepts`.

    Returns:
        `nodes` ({name, is_core}) that are new, `edges` ({source, target, relation, evidence}).
    """
    evidence = [item for entry in data["batch"] for item in entry["evidence"]]
    spelling: dict[str, str] = {}
    core: dict[str, None] = dict.fromkeys(data.get("core", ()))
    for node in data.get("nodes", ()):
        spelling |= {node["name"]: node["name"]} | dict.fromkeys(node.get("aliases", ()), node["name"])
        if node["is_core"]:
            core[node["name"]] = None
    spelling |= {name: name for name in core}
    fresh_core = [] if core else _core_names(data["question"], [item["content"] for item in evidence])
    core |= dict.fromkeys(fresh_core)
    spelling |= {name: name for name in fresh_core}
    fresh = _new_concepts(evidence, spelling, set(core), int(data["max_new_concepts"]))
    spelling |= {name: name for name in fresh}
    edges: dict[tuple[str, str, str], set[int]] = {}
    for item in evidence:
        for sentence in split_sentences(item["content"]):
            for source, target, verb in _relations(sentence.text, spelling, core):
                edges.setdefault((source, target, verb), set()).add(item["id"])
    nodes = [{"name": name, "is_core": True} for name in fresh_core]
    nodes += [{"name": name, "is_core": False} for name in fresh]
    listed = [
        {"source": source, "target": target, "relation": verb, "evidence": sorted(ids)}
        for (source, target, verb), ids in edges.items()
    ]
    return {"nodes": nodes, "edges": listed}


def _core_names(question: str, contents: Sequence[str]) -> list[str]:
    """The question's phrases that the evidence mentions; single words of it where no phrase is mentioned."""
    text = "\n\n".join(contents)
    phrases = [phrase for phrase in keyphrases(question) if mentions(text, [phrase])]
    if phrases:
        return phrases
    single = [
        word for word in dict.fromkeys(words(question)) if content_words(word) and mentions(text, [word])
    ]
    return sorted(single, key=lambda word: -len(mentions(text, [word])))[:3]


def _new_concepts(
    evidence: Sequence[Mapping[str, Any]], known: Mapping[str, str], core: set[str], limit: int
) -> list[str]:
    """The names that most often share a sentence with a known one, and most often with a core entity."""
    known_keys = {key(name) for name in known}
    weight: Counter[str] = Counter()
    spelt: dict[str, str] = {}
    for item in evidence:
        names = [name for name in candidates(item["content"], item["title"]) if key(name) not in known_keys]
        for sentence in split_sentences(item["content"]):
            near = {known[mention.name] for mention in mentions(sentence.text, known)}
            if near:
                for mention in mentions(sentence.text, names):
                    spelt.setdefault(key(mention.name), mention.name)
                    weight[key(mention.name)] += 2 if near & core else 1
    order = sorted(weight, key=lambda name: (-weight[name], name))
    return [spelt[name] for name in order[: max(0, limit)]]


def _relations(
    sentence: str, spelling: Mapping[str, str], core: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """(source, target, relation) of a sentence's names: neighbours, and every pair with a core entity."""
    found: list[Mention] = []
    for mention in mentions(sentence, spelling):
        if all(spelling[mention.name] != spelling[other.name] for other in found):
            found.append(mention)
    found = found[:_NAMES_A_SENTENCE]
    triples = []
    for i, left in enumerate(found):
        for j in range(i + 1, len(found)):
            source, target = spelling[left.name], spelling[found[j].name]
            if j == i + 1:
                triples.append((source, target, relation(sentence[left.end : found[j].start])))
            elif source in core or target in core:
                triples.append((source, target, NO_VERB))
    return triples
