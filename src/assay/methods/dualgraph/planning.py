"""The next round's queries: from the outline, from the knowledge graph, or from the question alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from assay.methods.dualgraph.gathering import evidence_values, usable
from assay.methods.dualgraph.model_calls import ModelCaller
from assay.methods.dualgraph.outline import OutlineGraph
from assay.methods.dualgraph.policies import Similarity, chain_key, plan_chains
from assay.methods.dualgraph.records import Chain, InvalidOutput
from assay.methods.dualgraph.state import RunState

GRAPH_CHARS = 60_000
RECENT = 20


def first_outline(state: RunState, caller: ModelCaller) -> OutlineGraph:
    """The outline from the question alone, without citations; one heading if the model can't make one."""
    data = {"question": state.question, "language": state.config.language}

    def accept(answer: dict[str, Any]) -> OutlineGraph:
        return OutlineGraph.parse(answer["outline"])

    try:
        proposed = caller.ask("outline_init", data, step="0/outline_init", accept=accept)
    except InvalidOutput:
        return OutlineGraph.parse(f"1. {' '.join(state.question.split())}")
    # Nothing was found yet, so whatever is cited is invented.
    return OutlineGraph().update(proposed, known=())[0]


def improved_outline(state: RunState, caller: ModelCaller, new: Iterable[int], *, step: str) -> OutlineGraph:
    """The outline with new evidence bound to it; what it may not lose is put back, and counted."""
    allowed = usable(state)
    evidence = [allowed[i] for i in new if i in allowed]
    if not evidence:
        return state.outline
    data = {
        "question": state.question,
        "language": state.config.language,
        "outline": state.outline.render(),
        "evidence": evidence_values(evidence),
        "graph": _graph_values(state),
    }

    def accept(answer: dict[str, Any]) -> OutlineGraph:
        return OutlineGraph.parse(answer["outline"])

    try:
        proposed = caller.ask("outline_update", data, step=step, accept=accept)
    except InvalidOutput:
        return state.outline
    outline, repairs = state.outline.update(proposed, known=allowed)
    if repairs:
        caller.warn("outline_repairs", repairs)
    return outline


def outline_queries(state: RunState, caller: ModelCaller, pending: Sequence[str], *, step: str) -> list[str]:
    """Queries for the lines that have no evidence yet, beside those that are planned already."""
    outline, config = state.outline, state.config
    uncited = [line.text for line in outline.uncited()]
    if not uncited or not config.og_queries:
        return []
    data = {
        "question": state.question,
        "language": config.language,
        "outline": outline.render(),
        "uncited": uncited,
        "executed": state.executed(),
        "pending": list(pending),
        "limit": config.og_queries,
    }
    try:
        queries = caller.ask("outline_queries", data, step=step)["queries"]
    except InvalidOutput:
        queries = uncited
    return fresh_queries(queries, state.executed())[: config.og_queries]


def graph_queries(
    state: RunState, caller: ModelCaller, similarity: Similarity, *, iteration: int
) -> list[str]:
    """Queries for the chains that the model chooses among those that the policy offers.

    The chosen chains are noted as visited. If the model can't choose, the first chains are asked about.
    """
    config, graph = state.config, state.graph
    chains = plan_chains(graph, state.visited, config=config, similarity=similarity, iteration=iteration)
    if not chains or not config.kg_queries:
        return []
    data = {
        "question": state.question,
        "language": config.language,
        "outline": state.outline.render(),
        "core": [node.name for node in graph.nodes.values() if node.is_core],
        "graph": graph.compact(GRAPH_CHARS),
        "executed": state.executed(),
        "limit": config.kg_queries,
        "chains": [_chain_values(chain) for chain in chains],
    }
    try:
        answer = caller.ask("kg_queries", data, step=f"{iteration}/kg_queries")
    except InvalidOutput:
        near = [chain for chain in chains if chain.on_topic][: config.kg_queries]
        answer = {"chains": [c.id for c in near], "queries": [" ".join(c.names) for c in near]}
    known = {chain.id: chain for chain in chains}
    wanted = list(dict.fromkeys(answer["chains"]))
    chosen = [known[i] for i in wanted if i in known][: config.kg_queries]
    if len(wanted) > len([i for i in wanted if i in known]):
        caller.warn("unknown_chains", sum(i not in known for i in wanted))
    state.chains += [(iteration, replace(chain, visited=True)) for chain in chosen]
    state.visited |= {chain_key(chain) for chain in chosen}
    return fresh_queries(answer["queries"], state.executed())[: config.kg_queries]


def linear_queries(state: RunState, caller: ModelCaller, *, step: str) -> list[str]:
    """New wordings of the question, given what was found lately: search without a plan."""
    config = state.config
    recent = list(usable(state).values())[-RECENT:]
    data = {
        "question": state.question,
        "language": config.language,
        "executed": state.executed(),
        "limit": config.og_queries,
        "evidence": evidence_values(recent),
    }
    try:
        queries = caller.ask("linear_queries", data, step=step)["queries"]
    except InvalidOutput:
        queries = [state.question]
    return fresh_queries(queries, state.executed())[: config.og_queries]


def fresh_queries(queries: Iterable[str], executed: Iterable[str]) -> list[str]:
    """Queries in order, each once, without empty and executed ones; letter case and spaces don't count."""
    seen = {_folded(query) for query in executed}
    fresh: list[str] = []
    for query in queries:
        query = " ".join(query.split())
        if query and _folded(query) not in seen:
            seen.add(_folded(query))
            fresh.append(query)
    return fresh


def _chain_values(chain: Chain) -> dict[str, Any]:
    return {
        "id": chain.id,
        "type": chain.type,
        "u": chain.names[0],
        "v": chain.names[1],
        "reason": chain.reason,
        "content": chain.content,
        "on_topic": chain.on_topic,
    }


def _graph_values(state: RunState) -> dict[str, Any]:
    """The graph as JSON values, relations near the core entities first."""
    graph = state.graph
    distance = graph.core_distance()
    far = len(graph.nodes)
    edges = sorted(
        graph.edges.values(),
        key=lambda edge: (distance.get(edge.source, far) + distance.get(edge.target, far), edge.id),
    )
    return {
        "nodes": [{"name": node.name, "is_core": node.is_core} for node in graph.nodes.values()],
        "edges": [
            {
                "source": graph.nodes[edge.source].name,
                "relation": edge.relation,
                "target": graph.nodes[edge.target].name,
                "evidence": sorted(edge.evidence),
            }
            for edge in edges
        ],
    }


def _folded(query: str) -> str:
    return " ".join(query.casefold().split())
