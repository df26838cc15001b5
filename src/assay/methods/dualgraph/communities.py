"""Communities of the knowledge graph: seeded, over all nodes, and with stable numbers."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Literal

import networkx

from assay.errors import MissingDependencyError
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph

RESOLUTION = 1.0
LEIDEN_ITERATIONS = 2


def detect_communities(
    graph: KnowledgeGraph, *, method: Literal["louvain", "leiden"] = "louvain", seed: int = 0
) -> dict[int, int]:
    """Partition the simple undirected graph behind the relations.

    Isolated nodes are communities of their own. The same graph and seed give the same numbers: communities
    are counted from 0 in the order of their smallest node id.

    Args:
        graph: the knowledge graph.
        method: "louvain", or "leiden" as in the authors' code (needs `leidenalg` and `igraph`; GPL).
        seed: of the heuristic's random order.

    Returns:
        Node id -> community.

    Raises:
        MissingDependencyError: leiden without its packages.
    """
    nodes = sorted(graph.nodes)
    pairs = sorted({(min(e.source, e.target), max(e.source, e.target)) for e in graph.edges.values()})
    groups = _leiden(nodes, pairs, seed) if method == "leiden" else _louvain(nodes, pairs, seed)
    ordered = sorted(groups, key=min)
    return {node: number for number, group in enumerate(ordered) for node in sorted(group)}


def _louvain(nodes: list[int], pairs: list[tuple[int, int]], seed: int) -> Iterable[set[int]]:
    simple = networkx.Graph()
    simple.add_nodes_from(nodes)
    simple.add_edges_from(pairs)
    return networkx.community.louvain_communities(simple, resolution=RESOLUTION, seed=seed)


def _leiden(nodes: list[int], pairs: list[tuple[int, int]], seed: int) -> Iterable[set[int]]:
    try:
        igraph = importlib.import_module("igraph")
        leidenalg = importlib.import_module("leidenalg")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "Leiden communities need two GPL packages: pip install leidenalg igraph; or use louvain"
        ) from error
    if not nodes:
        return []
    place = {node: i for i, node in enumerate(nodes)}
    # n is passed: from edges alone, isolated nodes after the last connected one would be missing.
    simple = igraph.Graph(n=len(nodes), edges=[(place[u], place[v]) for u, v in pairs])
    partition = leidenalg.find_partition(
        simple,
        leidenalg.RBConfigurationVertexPartition,
        resolution_parameter=RESOLUTION,
        n_iterations=LEIDEN_ITERATIONS,
        seed=seed,
    )
    return [{nodes[i] for i in group} for group in partition]
