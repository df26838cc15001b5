"""From evidence to the knowledge graph: what a model extracts is checked before it is taken in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.methods.dualgraph.checkers import Checker
from assay.methods.dualgraph.gathering import evidence_values
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph, mentions_both
from assay.methods.dualgraph.model_calls import ModelCaller
from assay.methods.dualgraph.records import Evidence, InvalidOutput, Node
from assay.methods.dualgraph.state import RunState

BATCH = 5
"""Queries whose evidence goes into one call."""

NEW_CONCEPTS = 3
"""New concepts that a model may make in one call."""

Supports = Callable[[Evidence, Node, Node, str], bool]
"""Whether evidence states a relation in words between two nodes, or at least is about both."""


def named(evidence: Evidence, source: Node, target: Node, relation: str) -> bool:
    """Whether the evidence mentions both nodes, whatever it says about them."""
    return mentions_both(evidence, source, target)


def named_or_entailed(checker: Checker) -> Supports:
    """Also takes evidence that does not name both nodes but, the checker says, states the relation.

    Only a checker that understands language can say so; the others compare words, as `named` does.
    """
    if not checker.name.startswith(("nli", "llm")):
        return named

    def supports(evidence: Evidence, source: Node, target: Node, relation: str) -> bool:
        if named(evidence, source, target, relation):
            return True
        claim = f"{source.name} {relation} {target.name}."
        try:
            return checker.score(claim, evidence.content) >= checker.threshold
        except InvalidOutput:
            return False

    return supports


def batches(found: Sequence[tuple[str, Sequence[int]]]) -> list[list[tuple[str, list[int]]]]:
    """Queries with evidence, five at a time."""
    useful = [(query, list(ids)) for query, ids in found if ids]
    return [useful[start : start + BATCH] for start in range(0, len(useful), BATCH)]


def extract(
    state: RunState,
    caller: ModelCaller,
    batch: Sequence[tuple[str, Sequence[int]]],
    *,
    step: str,
    supports: Supports = named,
) -> None:
    """Let the model extract nodes and relations from a batch, and take them into the graph."""
    graph = state.graph
    nodes = [graph.nodes[node] for node in sorted(graph.nodes)]
    data = {
        "question": state.question,
        "core": [node.name for node in nodes if node.is_core],
        "nodes": [{"name": n.name, "is_core": n.is_core, "aliases": list(n.aliases)} for n in nodes],
        "batch": [
            {"query": query, "evidence": evidence_values(state.evidence[i] for i in ids)}
            for query, ids in batch
        ],
        "max_new_concepts": NEW_CONCEPTS,
    }
    try:
        answer = caller.ask("extract", data, step=step)
    except InvalidOutput:
        return
    offered = {i: state.evidence[i] for _, ids in batch for i in ids}
    dropped = ingest(graph, answer["nodes"], answer["edges"], offered, supports=supports)
    for name, count in dropped.items():
        if count:
            caller.warn(name, count)


def ingest(
    graph: KnowledgeGraph,
    nodes: Sequence[Mapping[str, Any]],
    edges: Sequence[Mapping[str, Any]],
    evidence: Mapping[int, Evidence],
    *,
    supports: Supports = named,
) -> dict[str, int]:
    """Take extracted nodes and relations into the graph.

    Relations with an unknown end, with the same node twice, or without words are dropped. A piece of evidence
    stays on a relation only if it was offered and is about both ends; a relation that has none left is kept
    without ("unsupported"), so that it is looked for. Concepts without a relation are removed.

    Args:
        graph: is changed.
        nodes: name, is_core, and aliases if there are any.
        edges: source and target by name, relation, evidence by id.
        evidence: what the model was offered.
        supports: decides whether a piece of evidence stands for a relation.

    Returns:
        How many "dropped_relations" and "dropped_attributions" there were.
    """
    for node in nodes:
        if node["name"].strip():
            graph.add_node(node["name"], bool(node["is_core"]), tuple(node.get("aliases", ())))
    dropped = {"dropped_relations": 0, "dropped_attributions": 0}
    for edge in edges:
        source, target = graph.find(edge["source"]), graph.find(edge["target"])
        if source is None or target is None or source == target or not edge["relation"].strip():
            dropped["dropped_relations"] += 1
            continue
        ends = graph.nodes[source], graph.nodes[target]
        claimed = dict.fromkeys(edge["evidence"])
        cited = [i for i in claimed if i in evidence and supports(evidence[i], *ends, edge["relation"])]
        dropped["dropped_attributions"] += len(claimed) - len(cited)
        graph.add_edge(source, target, edge["relation"], cited)
    graph.remove_orphans()
    return dropped
