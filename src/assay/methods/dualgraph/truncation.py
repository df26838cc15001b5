"""What is left out, and in which order, when a task does not fit a model's context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.methods.dualgraph.records import ContextOverflow

_SHORT_HISTORY = 20
_LEAST_CHARS = 400
_MARGIN = 0.9


def shortened(data: Mapping[str, Any], overflow: ContextOverflow) -> dict[str, Any] | None:
    """The input of a task, made smaller by one step; None if nothing is left to leave out.

    The order is fixed: the history of queries (first its beginning, then all), the text that is written
    already (likewise), half of the known concepts (the younger ones), relations far from the core entities
    (the farther half at a time), and at last the end of retrieved texts (to what the model said it can take,
    or by half).

    Args:
        data: the input.
        overflow: what the model said.
    """
    history = data.get("executed")
    if history:
        return {**data, "executed": history[-_SHORT_HISTORY:] if len(history) > _SHORT_HISTORY else []}
    previous = data.get("previous")
    if previous:
        return {**data, "previous": previous[-len(previous) // 4 :] if len(previous) > 4000 else ""}
    return _less_graph(data) or _less_text(data, overflow)


def _less_graph(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Without the half of the relations that is farther from the core entities."""
    names = data.get("nodes")
    if names and not all(node["is_core"] for node in names):
        concepts = [node for node in names if not node["is_core"]]
        left = concepts[: len(concepts) // 2]
        return {**data, "nodes": [node for node in names if node["is_core"] or node in left]}
    graph = data.get("graph")
    if isinstance(graph, str) and "\n" in graph:
        lines = graph.split("\n")
        return {**data, "graph": "\n".join(lines[: len(lines) // 2])}
    if isinstance(graph, Mapping) and graph.get("edges"):
        edges = graph["edges"][: len(graph["edges"]) // 2]
        ends = {name for edge in edges for name in (edge["source"], edge["target"])}
        nodes = [node for node in graph["nodes"] if node["is_core"] or node["name"] in ends]
        return {**data, "graph": {"nodes": nodes, "edges": edges}}
    return None


def _less_text(data: Mapping[str, Any], overflow: ContextOverflow) -> dict[str, Any] | None:
    """With shorter retrieved texts."""
    share = 0.5
    if overflow.limit and overflow.needed and overflow.needed > overflow.limit:
        share = max(0.05, _MARGIN * overflow.limit / overflow.needed)
    cut = False

    def less(text: str) -> str:
        nonlocal cut
        if len(text) <= _LEAST_CHARS:
            return text
        cut = True
        return text[: max(_LEAST_CHARS, int(len(text) * share))]

    def less_evidence(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**item, "content": less(item["content"])} for item in items]

    result = dict(data)
    if "text" in data:
        result["text"] = less(data["text"])
    if "evidence" in data:
        result["evidence"] = less_evidence(data["evidence"])
    if "batch" in data:
        result["batch"] = [{**item, "evidence": less_evidence(item["evidence"])} for item in data["batch"]]
    return result if cut else None
