"""A chat model without a language model: every role of the loop by rule, the same answer every time.

It makes the comparison of query policies exact, cheap and reproducible. It writes nothing of its own: a
report consists of sentences of the evidence, so it says nothing about the quality of prose. Ours; the paper
has no such model.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.dualgraph.checkers import load_checker
from assay.methods.dualgraph.embeddings import Encoder, default_encoder
from assay.methods.dualgraph.extractive_extraction import extract
from assay.methods.dualgraph.extractive_outline import (
    in_turn,
    judge_outline,
    starting_outline,
    updated_outline,
)
from assay.methods.dualgraph.gazetteer import (
    candidates,
    keyphrases,
    mentions,
    overlap,
    same_names,
)
from assay.methods.dualgraph.lexicon import POINTING
from assay.methods.dualgraph.markers import plain_sentence, without_markers
from assay.methods.dualgraph.records import ChatResult, Usage
from assay.methods.dualgraph.sentences import Sentence, content_words, split_sentences, words

EXTRACTIVE = "extractive"

# How often a type of chain gets its turn (the quotas of section 2.4).
SHARES = {"enrich": 2, "entity_concept": 2, "cross_community": 2, "sbm_probability": 1, "sbm_entropy": 1}
# Embedding costs milliseconds: only the sentences that share most words with the query are looked at.
_LOOKED_AT = 16
_QUOTES = 4
_LINE_SENTENCES = 2
_SECTION_SENTENCES = 14
_REFORMULATIONS = ("", "overview", "examples", "requirements and conditions", "limits and problems")


class ExtractiveModel:
    """Answers every role from its structured input (`data`); the messages are only counted.

    Args:
        encoder: what compares sentences; the shared default if None.
        diversity: how much of the choice of sentences is novelty (maximal marginal relevance), from 0 to 1.

    Raises:
        InputError: `diversity` is outside 0 to 1.
    """

    name = EXTRACTIVE
    context_tokens = 1_000_000
    concurrency = 1

    def __init__(self, encoder: Encoder | None = None, *, diversity: float = 0.3) -> None:
        if not 0 <= diversity <= 1:
            raise InputError(f"diversity must be from 0 to 1, got {diversity}")
        self._encoder = encoder
        self.diversity = diversity

    @property
    def encoder(self) -> Encoder:
        """What compares sentences."""
        return self._encoder or default_encoder()

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.7,
        max_tokens: int = 4096,
        role: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> ChatResult:
        """The rule's answer for a role, as JSON; tokens are estimated at four characters each.

        Raises:
            InputError: a role that has no rule, as in a chat without one.
        """
        if role not in ROLES or data is None:
            raise InputError(
                f"the extractive model has no rule for the role {role!r}: it answers only "
                f"{', '.join(ROLES)}; use a language model for anything else"
            )
        text = json.dumps(ROLES[role](self, data), ensure_ascii=False)
        sent = sum(len(message.get("content", "")) for message in messages)
        return ChatResult(text, Usage(sent // 4, len(text) // 4, estimated=True))

    # The roles, in the order of a run.

    def _outline_init(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"outline": starting_outline(data["question"], data.get("language", "en"))}

    def _outline_queries(self, data: Mapping[str, Any]) -> dict[str, Any]:
        asked = {_same(query) for query in (*data.get("executed", ()), *data.get("pending", ()))}
        queries: list[str] = []
        for line in in_turn(data["outline"], data["uncited"]):
            for wording in ("", *_REFORMULATIONS[1:3]):
                query = f"{line} {wording}".strip()
                if content_words(line) and _same(query) not in asked:
                    asked.add(_same(query))
                    queries.append(query)
                    break
        return {"queries": queries[: data["limit"]]}

    def _linear_queries(self, data: Mapping[str, Any]) -> dict[str, Any]:
        question = data["question"]
        asked = {_same(query) for query in data.get("executed", ())}
        phrases = keyphrases(question)
        proposed = [question, *phrases]
        proposed += [f"{phrase} {wording}" for wording in _REFORMULATIONS[1:] for phrase in phrases]
        found = Counter(
            name
            for item in data.get("evidence", ())
            for name in candidates(item["content"], item["title"])[:5]
        )
        proposed += [f"{phrases[0]} {name}" for name, _ in found.most_common() if phrases]
        queries: list[str] = []
        for query in proposed:
            if _same(query) and _same(query) not in asked:
                asked.add(_same(query))
                queries.append(query)
        return {"queries": queries[: data["limit"]]}

    def _select_urls(self, data: Mapping[str, Any]) -> dict[str, Any]:
        wanted = f"{data['query']} {data['question']}"
        scored = [(overlap(f"{hit['title']} {hit['snippet']}", wanted), hit["id"]) for hit in data["hits"]]
        order = sorted((i for i, (score, _) in enumerate(scored) if score > 0), key=lambda i: -scored[i][0])
        return {"ids": [scored[i][1] for i in order[: data["limit"]]]}

    def _summarise(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Up to four sentences, close to query and question and unlike each other, verbatim, in order."""
        text, query = data["text"], data["query"]
        sentences = split_sentences(text)
        wanted = f"{query} {data['question']}"
        shares = [
            overlap(s.text, query) + overlap(s.text, wanted) if _is_prose(s.text) else 0.0 for s in sentences
        ]
        places = sorted((i for i in range(len(sentences)) if shares[i] > 0), key=lambda i: (-shares[i], i))
        places = sorted(places[:_LOOKED_AT])
        if not places:
            return {"useful": False, "rationale": "no sentence shares a word", "evidence": [], "summary": ""}
        rows = self.encoder.encode([query, data["question"], *(sentences[i].text for i in places)])
        cosine = (rows[2:] @ rows[0] + rows[2:] @ rows[1]) / 2
        relevance = 0.6 * cosine + 0.2 * np.array([shares[i] for i in places])
        best = float(relevance.max())
        if best < 0.25:
            return {"useful": False, "rationale": "nothing is close enough", "evidence": [], "summary": ""}
        chosen = self._diverse(rows[2:], relevance, _QUOTES, floor=max(0.2, 0.6 * best))
        quotes = list(dict.fromkeys(_with_antecedent(text, sentences, places[i]) for i in sorted(chosen)))
        top = sentences[places[chosen[0]]].text
        return {
            "useful": True,
            "rationale": f"best relevance {best:.2f}",
            "evidence": quotes,
            "summary": " ".join(top.split()),
        }

    def _extract(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return extract(data)

    def _merge(self, data: Mapping[str, Any]) -> dict[str, Any]:
        named = {concept["id"]: concept["name"] for concept in data["concepts"]}
        groups = same_names(list(named.items()))
        return {"groups": [{"name": max((named[i] for i in ids), key=len), "ids": ids} for ids in groups]}

    def _outline_update(self, data: Mapping[str, Any]) -> dict[str, Any]:
        outline = updated_outline(data["outline"], data["evidence"], data["graph"], self.encoder)
        return {"outline": outline}

    def _kg_queries(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Chains on the topic with a pair not asked about yet, the types in turn; a query names both ends."""
        asked = {_same(query) for query in data.get("executed", ())}
        open_chains: dict[str, Mapping[str, Any]] = {}
        for chain in data["chains"]:
            query = chain_query(chain["u"], chain["v"])
            if chain.get("on_topic", True) and _same(query) not in asked:
                open_chains.setdefault(query, chain)
        queries = list(open_chains)
        chosen = take_turns([open_chains[query]["type"] for query in queries], data["limit"])
        return {
            "chains": [open_chains[queries[i]]["id"] for i in chosen],
            "queries": [queries[i] for i in chosen],
        }

    def _judge(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return judge_outline(data)

    def _write(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Per line of the section the closest sentences of its evidence, each with its citation."""
        content = {item["id"]: item["content"] for item in data["evidence"]}
        used = {
            _same(sentence.text) for sentence in split_sentences(without_markers(data.get("previous", "")))
        }
        linked = [(edge["source"], edge["target"]) for edge in data.get("relations", ())]
        blocks: list[str] = []
        left = _SECTION_SENTENCES
        for line in data["lines"]:
            title = without_markers(line["text"])
            chosen = self._sentences_for(
                f"{data['section']['title']}: {title}", line["evidence"], content, used, linked, left
            )
            left -= len(chosen)
            if line["heading"] and line["level"] > 1:
                blocks.append(f"{'#' * (line['level'] + 1)} {title}")
            if chosen:
                blocks.append(" ".join(f"{text} [{identifier}]" for text, identifier in chosen))
        kept = [
            block
            for i, block in enumerate(blocks)
            if not block.startswith("#") or (i + 1 < len(blocks) and _continues(block, blocks[i + 1]))
        ]
        return {"text": "\n\n".join(kept)}

    def _sentences_for(
        self,
        about: str,
        evidence: Iterable[int],
        content: Mapping[int, str],
        used: set[str],
        linked: Sequence[tuple[str, str]],
        limit: int,
    ) -> list[tuple[str, int]]:
        """The sentences to write about a line, with their evidence; `used` grows by them."""
        options: list[tuple[str, int]] = []
        for identifier in evidence:
            for sentence in split_sentences(content.get(identifier, "")):
                if _is_prose(sentence.text) and _same(sentence.text) not in used:
                    options.append((sentence.text, identifier))
        if not options or limit < 1:
            return []
        rows = self.encoder.encode([about, *(text for text, _ in options)])
        relevance = rows[1:] @ rows[0]
        relevance += [
            0.1 * any(len(mentions(text, pair)) > 1 for pair in linked) - 0.15 * _points_back(text)
            for text, _ in options
        ]
        chosen = self._diverse(rows[1:], relevance, min(_LINE_SENTENCES, limit), floor=0.2)
        picked: list[tuple[str, int]] = []
        for i in sorted(chosen):
            if _same(options[i][0]) not in used:
                used.add(_same(options[i][0]))
                picked.append((plain_sentence(options[i][0]), options[i][1]))
        return picked

    def _digest(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Sentences in order, the most central ones, within `limit` tokens."""
        sentences = [s.text for s in split_sentences(data["text"]) if _is_prose(s.text)]
        if not sentences:
            return {"text": ""}
        rows = self.encoder.encode(sentences)
        order = np.argsort(-(rows @ rows.mean(0)), kind="stable")
        room, kept = 4 * int(data["limit"]), set()
        for i in order:
            if len(sentences[i]) < room:
                kept.add(int(i))
                room -= len(sentences[i]) + 1
        return {"text": " ".join(sentences[i] for i in sorted(kept))}

    def _check(self, data: Mapping[str, Any]) -> dict[str, Any]:
        checker = load_checker("combined", encoder=self.encoder)
        score = float(checker.scores([data["claim"]], [data["source"]])[0])
        return {"supported": score >= checker.threshold, "score": round(score, 6)}

    def _diverse(
        self, rows: Float[np.ndarray, "n d"], relevance: Float[np.ndarray, " n"], count: int, *, floor: float
    ) -> list[int]:
        """Maximal marginal relevance (Carbonell and Goldstein, 1998), best first, none below `floor`."""
        chosen: list[int] = []
        closest = np.zeros(len(rows))
        for _ in range(min(count, len(rows))):
            marginal = (1 - self.diversity) * relevance - self.diversity * closest
            marginal[chosen] = -np.inf
            # What is nearly the same sentence adds nothing, however relevant it is.
            marginal[(closest > 0.95) | (relevance < floor)] = -np.inf
            best = int(np.argmax(marginal))
            if not np.isfinite(marginal[best]):
                break
            chosen.append(best)
            closest = np.maximum(closest, rows @ rows[best])
        return chosen


def chain_query(u: str, v: str) -> str:
    """The words that ask about a pair of nodes."""
    return f"{u} {v}"


def take_turns(types: Sequence[str], limit: int) -> list[int]:
    """Places in a ranked list of chains, so that every type gets its share of a short list.

    The first chains of the ranking are all of one type; taken in its order, they would use up every query of
    a round. Within a type the order stays; the shares are `SHARES`, those of the quotas.

    Args:
        types: the type of every chain, best first.
        limit: places to return at most.
    """
    waiting: dict[str, deque[int]] = {}
    for place, kind in enumerate(types):
        waiting.setdefault(kind, deque()).append(place)
    credit = dict.fromkeys(waiting, 0)
    taken: list[int] = []
    while waiting and len(taken) < limit:
        for kind in waiting:
            credit[kind] += SHARES.get(kind, 1)
        turn = max(waiting, key=lambda kind: (credit[kind], -waiting[kind][0]))
        credit[turn] -= sum(SHARES.get(kind, 1) for kind in waiting)
        taken.append(waiting[turn].popleft())
        if not waiting[turn]:
            del waiting[turn]
    return taken


def _is_prose(text: str) -> bool:
    """Whether a sentence says something: four words or more, mostly letters, no "see also", no "such as:"."""
    said = len(words(text))
    if (
        said < 4
        or len(text) > 700
        or text.endswith(":")
        or re.match(r"\W*see\b(?! how)", text, re.IGNORECASE)
    ):
        return False
    letters = sum(letter.isalpha() for letter in text)
    brackets = sum(text.count(bracket) for bracket in "<[{|")
    return letters >= 0.55 * len(re.sub(r"\s", "", text)) and brackets <= max(1, said // 6)


def _points_back(text: str) -> bool:
    """Whether a sentence opens with what the one before it named: "It is ...", "If that is set, ..."."""
    opening = words(text)[:3]
    return bool(POINTING.intersection(opening[:2])) or "this" in opening[2:]


def _with_antecedent(text: str, sentences: Sequence[Sentence], place: int) -> str:
    """A sentence verbatim, with the one before it when it opens with a word that points back."""
    first = place
    if (
        place
        and _points_back(sentences[place].text)
        and sentences[place].start - sentences[place - 1].end < 3
    ):
        first -= 1
    return text[sentences[first].start : sentences[place].end]


def _continues(heading: str, following: str) -> bool:
    """Whether what follows a heading belongs to it: text, or a heading below it."""
    depth = len(heading) - len(heading.lstrip("#"))
    return not following.startswith("#") or len(following) - len(following.lstrip("#")) > depth


def _same(text: str) -> str:
    return " ".join(words(text))


ROLES: dict[str, Callable[[ExtractiveModel, Mapping[str, Any]], dict[str, Any]]] = {
    "outline_init": ExtractiveModel._outline_init,
    "outline_queries": ExtractiveModel._outline_queries,
    "linear_queries": ExtractiveModel._linear_queries,
    "select_urls": ExtractiveModel._select_urls,
    "summarise": ExtractiveModel._summarise,
    "extract": ExtractiveModel._extract,
    "merge": ExtractiveModel._merge,
    "outline_update": ExtractiveModel._outline_update,
    "kg_queries": ExtractiveModel._kg_queries,
    "judge": ExtractiveModel._judge,
    "write": ExtractiveModel._write,
    "digest": ExtractiveModel._digest,
    "check": ExtractiveModel._check,
}
