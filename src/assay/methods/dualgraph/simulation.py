"""Query policies on a corpus whose relations are known: what is found after how many queries.

The comparison is exact and cheap because nothing writes prose: an extractor reads every retrieved passage
by rule, the knowledge graph, the communities and the chains are those of a real run (`policies.plan_chains`),
and a search returns the best passages that were not read yet. Every arm starts with the same queries, asks
equally many in a round and reads equally many passages a query. It says nothing about the quality of reports.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from assay.errors import InputError
from assay.methods.dualgraph.corpora import Corpus, Pair, Passage, pair
from assay.methods.dualgraph.extractive import chain_query, take_turns
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph
from assay.methods.dualgraph.policies import Similarity, chain_key, plan_chains, update_communities
from assay.methods.dualgraph.records import Chain, ResearchConfig

# What an outline asks about every heading. The words are in no planted passage: what is retrieved depends on
# the name, and a further facet reads on where the last one stopped.
FACETS = (
    "overview", "definition", "relations", "examples", "usage", "limits", "causes", "effects", "history",
    "comparison", "evidence", "outlook", "criticism", "measurement", "variants", "context",
)  # fmt: skip
_TOKEN = re.compile(r"\w+")


def _facets() -> Iterator[str]:
    """The facets, then two at a time: nobody runs out of wordings."""
    yield from FACETS
    yield from (" ".join(two) for two in combinations(FACETS, 2))


class PassageSearch:
    """BM25 over passages (SQLite FTS5), in memory; a passage mentions any word of the query.

    Args:
        passages: what is indexed; a result is the number of a passage.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._base = sqlite3.connect(":memory:")
        # An identifier is one word.
        self._base.execute("CREATE VIRTUAL TABLE p USING fts5(text, tokenize=\"unicode61 tokenchars '_'\")")
        rows = ((number, passage.text) for number, passage in enumerate(passages))
        self._base.executemany("INSERT INTO p (rowid, text) VALUES (?, ?)", rows)

    def search(self, query: str, k: int, seen: Collection[int]) -> list[int]:
        """The best `k` passages that are not in `seen`, best first; ties in the order of the corpus."""
        words = dict.fromkeys(word.casefold() for word in _TOKEN.findall(query))
        if not words:
            return []
        matched = self._base.execute(
            "SELECT rowid FROM p WHERE p MATCH ? ORDER BY bm25(p), rowid",
            (" OR ".join(f'"{word}"' for word in words),),
        )
        return list(islice((row for (row,) in matched if row not in seen), k))


@dataclass(frozen=True)
class Plan:
    """What all arms have in common.

    Args:
        queries: asked in all, the initial ones included.
        per_round: asked in a round.
        from_graph: of these, how many an arm with a knowledge graph asks from it at most; the outline asks
            the others, as it asks all of them in an arm without one.
        results: passages read a query.
    """

    queries: int = 120
    per_round: int = 10
    from_graph: int = 5
    results: int = 3

    def __post_init__(self) -> None:
        if self.queries < 2 * self.per_round or self.queries % self.per_round:
            raise InputError(f"{self.queries} queries are not two or more whole rounds of {self.per_round}")
        if not 1 <= self.from_graph <= self.per_round:
            raise InputError(f"from_graph must be from 1 to {self.per_round}, got {self.from_graph}")


@dataclass(frozen=True)
class Checkpoint:
    """What is known after a round.

    Args:
        queries: asked so far.
        found: related pairs of the corpus that the graph has an edge for -> how many passages state it.
        nodes, edges: of the knowledge graph, pairs that are no gold relation included.
        read: passages read.
    """

    queries: int
    found: dict[Pair, int]
    nodes: int
    edges: int
    read: int


@dataclass
class Simulation:
    """One policy on one corpus.

    Args:
        config: the policy ("dualgraph", "outline", "linear", "random_pair"), its ablations and its seed.
        similarity: names -> unit vectors.
    """

    corpus: Corpus
    search: PassageSearch
    config: ResearchConfig
    similarity: Similarity
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        self.graph = KnowledgeGraph()
        self._ids = {name: self.graph.add_node(name, is_core=True) for name in self.corpus.core}
        self._evidence: dict[Pair, set[int]] = {}
        self._edges: dict[Pair, int] = {}
        self._seen: set[int] = set()
        self._asked: set[str] = set()
        self._visited: set[tuple[int, int, str]] = set()

    def run(self) -> Iterator[Checkpoint]:
        """Ask round by round; the first round is the same for every policy."""
        for round_number in range(self.plan.queries // self.plan.per_round):
            for query in self._queries(round_number):
                self._asked.add(query)
                for number in self.search.search(query, self.plan.results, self._seen):
                    self._read(number)
            yield self._checkpoint((round_number + 1) * self.plan.per_round)

    def _queries(self, round_number: int) -> list[str]:
        limit = self.plan.per_round
        if round_number == 0 or self.config.policy == "linear":
            return self._outline_queries(self.corpus.core, limit)
        queries: list[str] = []
        if self.config.policy != "outline":
            queries = self._graph_queries(round_number, self.plan.from_graph)
        return queries + self._outline_queries(self._headings(), limit - len(queries))

    def _headings(self) -> list[str]:
        """Core entities and what one edge joins to them, in the order of discovery: what is on topic."""
        core = set(self.corpus.core)
        near = {name for two in self._evidence if core & set(two) for name in two}
        return [name for name in self._ids if name in core | near]

    def _outline_queries(self, headings: Sequence[str], limit: int) -> list[str]:
        """The next lines of the outline that nothing was asked for: all headings' first facet comes first."""
        lines = (f"{name} {facet}" for facet in _facets() for name in headings)
        return list(islice((line for line in lines if line not in self._asked), limit))

    def _graph_queries(self, round_number: int, limit: int) -> list[str]:
        update_communities(self.graph, self.config)
        chains = plan_chains(
            self.graph,
            self._visited,
            config=self.config,
            similarity=self.similarity,
            iteration=round_number,
        )
        queries: dict[str, None] = {}
        for chain in choose(chains):
            query = chain_query(*chain.names)
            if query in self._asked or query in queries:
                continue
            self._visited.add(chain_key(chain))
            queries[query] = None
            if len(queries) == limit:
                break
        return list(queries)

    def _read(self, number: int) -> None:
        """Extract what a passage says: every two names that it mentions together are related."""
        self._seen.add(number)
        for group in self.corpus.passages[number].mentions:
            for two in combinations(sorted(group), 2):
                for name in two:
                    if name not in self._ids:
                        self._ids[name] = self.graph.add_node(name)
                # Adding an edge again attaches the further evidence to it.
                first, second = (self._ids[name] for name in two)
                self.graph.add_edge(first, second, "mentioned with", evidence=(number + 1,))
                self._evidence.setdefault(pair(*two), set()).add(number)

    def _checkpoint(self, queries: int) -> Checkpoint:
        gold = self.corpus.gold
        found = {two: len(passages) for two, passages in self._evidence.items() if two in gold}
        return Checkpoint(queries, found, len(self._ids), len(self._evidence), len(self._seen))


def choose(chains: Sequence[Chain]) -> list[Chain]:
    """Chains on the topic, types taking turns: the choice of the extractive model, without a limit."""
    near = [chain for chain in chains if chain.on_topic]
    return [near[place] for place in take_turns([chain.type for chain in near], len(near))]
