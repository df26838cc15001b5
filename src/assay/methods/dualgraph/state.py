"""The state of a run: everything that a step may change, and that the store keeps."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from assay.errors import InputError
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph, VisitedChain
from assay.methods.dualgraph.outline import OutlineGraph
from assay.methods.dualgraph.records import (
    Budget,
    Chain,
    CitationRow,
    Document,
    Evidence,
    QueryRow,
    ResearchConfig,
    RoundRow,
)


@dataclass(frozen=True, slots=True)
class WrittenSection:
    """A top-level section of the report, with markers `[evidence id]`, after the check of its citations."""

    number: str
    title: str
    text: str


@dataclass
class RunState:
    """What a run knows.

    Attributes:
        question: what is researched.
        config: how.
        status: why the run ended, "running" before.
        nonce: marks retrieved text in prompts; random, so that no page can imitate the mark.
        graph: the knowledge graph.
        outline: the outline.
        bound: the largest id of evidence that the outline was offered.
        evidence: by id; never removed.
        documents: snapshots by SHA-256.
        queries: executed ones, in order.
        seen: keys of search results that were read or offered.
        visited: chains that were selected.
        chains: selected chains with the iteration that selected them.
        rounds: a row a finished round.
        sections: what is written of the report.
        citations: the check of every marker.
        warnings: how often something went wrong that did not stop the run.
    """

    question: str
    config: ResearchConfig
    status: str = "running"
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    graph: KnowledgeGraph = field(default_factory=KnowledgeGraph)
    outline: OutlineGraph = field(default_factory=OutlineGraph)
    bound: int = 0
    evidence: dict[int, Evidence] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    queries: list[QueryRow] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    visited: set[VisitedChain] = field(default_factory=set)
    chains: list[tuple[int, Chain]] = field(default_factory=list)
    rounds: list[RoundRow] = field(default_factory=list)
    sections: list[WrittenSection] = field(default_factory=list)
    citations: list[CitationRow] = field(default_factory=list)
    warnings: Counter[str] = field(default_factory=Counter)

    def executed(self) -> list[str]:
        """The executed queries in words, in order."""
        return [query.text for query in self.queries]


def config_values(config: ResearchConfig) -> dict[str, Any]:
    """The configuration as strict JSON values."""
    return asdict(config) | {"without": list(config.without)}


def config_from(values: Mapping[str, Any]) -> ResearchConfig:
    """The configuration behind `config_values`.

    Raises:
        InputError: an unknown setting, or a value outside its range.
    """
    given = dict(values)
    try:
        budget = Budget(**given.pop("budget", {}))
        return ResearchConfig(**given | {"budget": budget, "without": tuple(given.get("without", ()))})
    except TypeError as error:
        raise InputError(f"the stored configuration is of another version: {error}") from error
