"""Concepts that mean the same become one; concepts of one theme are marked as a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from assay.errors import require
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph, remap_visited
from assay.methods.dualgraph.model_calls import ModelCaller
from assay.methods.dualgraph.records import InvalidOutput
from assay.methods.dualgraph.state import RunState

CLUSTER_SIZE = 3
CONCEPTS_A_CALL = 200


def merge_concepts(state: RunState, caller: ModelCaller, *, step: str) -> dict[int, int]:
    """Let the model group equivalent concepts, and unite them; visited chains follow their nodes.

    Beyond two hundred concepts, several calls look at parts of them, similar names together.

    Returns:
        Removed id -> surviving id.
    """
    graph = state.graph
    concepts = [node for node in graph.nodes.values() if not node.is_core]
    concepts.sort(key=lambda node: (node.cluster_id is None, node.cluster_id or 0, node.id))
    groups: list[list[int]] = []
    names: dict[int, str] = {}
    for start in range(0, len(concepts), CONCEPTS_A_CALL):
        part = concepts[start : start + CONCEPTS_A_CALL]
        if len(part) < 2:
            continue
        values = [{"id": n.id, "name": n.name, "aliases": list(n.aliases)} for n in part]
        try:
            proposed = caller.ask("merge", {"concepts": values}, step=step)["groups"]
        except InvalidOutput:
            continue
        offered = {node.id for node in part}
        for group in proposed:
            members = [i for i in dict.fromkeys(group["ids"]) if i in offered]
            if len(members) >= 2:
                groups.append(members)
                names[members[0]] = group["name"]
    moved = graph.merge(groups, names)
    graph.remove_orphans()
    state.visited = remap_visited(state.visited, moved)
    return moved


def cluster_concepts(
    graph: KnowledgeGraph, encode: Callable[[Sequence[str]], Float[np.ndarray, "n d"]]
) -> None:
    """Mark concepts of one theme by HDBSCAN over cosine distances of their names; nothing else is changed.

    Args:
        graph: gets `cluster_id`, counted from 0; concepts outside of clusters and core entities have none.
        encode: names to vectors of length 1.

    Raises:
        MissingDependencyError: scikit-learn is not installed.
    """
    concepts = [node for node in sorted(graph.nodes.values(), key=lambda n: n.id) if not node.is_core]
    if len(concepts) < 2 * CLUSTER_SIZE:
        graph.set_clusters({})
        return
    cluster = require("sklearn.cluster", extra="agents")
    vectors = np.asarray(encode([node.name for node in concepts]), dtype=np.float64)
    # Rounding keeps the tree of distances from depending on the order of additions.
    distances = np.round(np.clip(1 - vectors @ vectors.T, 0, 2), 6)
    np.fill_diagonal(distances, 0)
    labels = cluster.HDBSCAN(min_cluster_size=CLUSTER_SIZE, metric="precomputed", copy=True).fit_predict(
        distances
    )
    graph.set_clusters(
        {node.id: int(label) for node, label in zip(concepts, labels, strict=True) if label >= 0}
    )
