"""Trials of the whole loop: what policies cost and cite, and whether a killed run ends as an unbroken one.

The loop is that of a real run, with the extractive model, so prose is not judged. It searches the passages of
CMake's documentation; names and sentences are compared by hashed words, so that a run takes seconds.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Collection
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from assay.methods.dualgraph.checkers import load_checker
from assay.methods.dualgraph.corpora import Corpus, pair
from assay.methods.dualgraph.embeddings import HashedWords
from assay.methods.dualgraph.extractive import ExtractiveModel
from assay.methods.dualgraph.records import Budget, Document, Hit, ResearchConfig
from assay.methods.dualgraph.research_run import ResearchRun, research
from assay.methods.dualgraph.simulation import PassageSearch

_WORD = re.compile(r"\w+")


class CorpusBackend:
    """A search back end over the passages of a corpus; every passage is a document of its own."""

    name = "corpus"

    def __init__(self, corpus: Corpus, search: PassageSearch) -> None:
        self._corpus = corpus
        self._search = search

    def search(self, query: str, k: int, *, exclude: Collection[str] = ()) -> list[Hit]:
        """The best `k` passages that are not excluded, best first."""
        seen = {int(key.rpartition("/")[2]) for key in exclude}
        found = self._search.search(query, k, seen)
        return [self._hit(number, rank) for rank, number in enumerate(found)]

    def _hit(self, number: int, rank: int) -> Hit:
        passage = self._corpus.passages[number]
        return Hit(
            passage.title, f"https://corpus.invalid/{number}", passage.text, 1 / (1 + rank), backend=self.name
        )

    def read(self, hit: Hit) -> Document:
        """The passage."""
        text = self._corpus.passages[int(hit.url.rpartition("/")[2])].text
        return Document(hit.url, hit.title, text, hashlib.sha256(text.encode()).hexdigest())


def loop_config(
    config: ResearchConfig, *, rounds: int, per_round: int, tokens: int | None = None
) -> ResearchConfig:
    """Equal limits for all policies: rounds, queries in each, and tokens in all."""
    from_graph = per_round // 2 if config.policy in ("dualgraph", "random_pair") else 0
    return replace(
        config,
        kg_queries=from_graph,
        og_queries=per_round - from_graph,
        max_iter=rounds,
        budget=Budget(tokens=tokens),
        results_per_query=3,
        early_stop=False,
        checker="lexical",
        concurrency=1,
    )


def run_loop(corpus: Corpus, search: PassageSearch, config: ResearchConfig) -> dict[str, float]:
    """One question, researched to the end: tokens, queries, citations, the graph, and the relations found.

    `effective` counts supported citations, equal sentences of one source once; `recall` is the share of gold
    relations whose names the text of some evidence mentions together.
    """
    run = _research(corpus, search, config)
    supported = {(row.url, row.sentence) for row in run.citations if row.status == "supported"}
    names = {name for two in corpus.gold for name in two}
    mentioned = [names & set(_WORD.findall(item.content)) for item in run.evidence.values()]
    related = {pair(*two) for group in mentioned for two in combinations(sorted(group), 2)}
    return {
        "tokens": float(run.tokens),
        "queries": float(len(run.queries)),
        "evidence": float(len(run.evidence)),
        "nodes": float(len(run.kg.nodes)),
        "edges": float(len(run.kg.edges)),
        "strong": float(run.kg.strong_pairs()),
        "effective": float(len(supported)),
        "precision": len([r for r in run.citations if r.status == "supported"]) / max(len(run.citations), 1),
        "recall": sum(two in related for two in corpus.gold) / len(corpus.gold),
    }


def _research(
    corpus: Corpus, search: PassageSearch, config: ResearchConfig, folder: Path | None = None, observer=None
) -> ResearchRun:
    encoder = HashedWords()
    return research(
        corpus.question,
        llm=ExtractiveModel(encoder),
        search=[CorpusBackend(corpus, search)],
        config=config,
        run_dir=folder,
        encoder=encoder,
        checker=load_checker("lexical"),
        observer=observer,
    )


class _Killed(BaseException):
    """Stands for the end of the process: nothing may catch it."""


def run_resume(corpus: Corpus, search: PassageSearch, config: ResearchConfig) -> dict[str, float]:
    """Stop a run after each of its committed steps in turn and resume it.

    `different` counts the steps after which the report, the graph, the outline, the queries or the citations
    differ from those of the unbroken run; `extra_calls` is the largest number of model calls beyond its own.
    """
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        steps: list[object] = []
        unbroken = _research(corpus, search, config, base / "unbroken", steps.append)
        different, extra = 0, 0
        for stop in range(1, len(steps)):
            folder = base / str(stop)
            _stopped_after(corpus, search, config, folder, stop)
            resumed = _research(corpus, search, config, folder)
            different += resumed.report != unbroken.report or _graph(resumed) != _graph(unbroken)
            extra = max(extra, len(resumed.ledger) - len(unbroken.ledger))
    return {"different": float(different), "extra_calls": float(extra), "steps": float(len(steps))}


def _graph(run: ResearchRun) -> tuple[object, ...]:
    return run.kg.nodes, run.kg.edges, run.outline.render(), run.citations, [q.text for q in run.queries]


def _stopped_after(
    corpus: Corpus, search: PassageSearch, config: ResearchConfig, folder: Path, stop: int
) -> None:
    seen = 0

    def observer(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == stop:
            raise _Killed

    try:
        _research(corpus, search, config, folder, observer)
    except _Killed:
        return
    raise RuntimeError(f"the run ended before its step {stop}")
