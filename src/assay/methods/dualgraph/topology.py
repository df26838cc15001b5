"""What the rules that find gaps need to know of a knowledge graph, as arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph, VisitedChain

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class Candidate(NamedTuple):
    """A pair of node numbers (smaller first) and what its rule ranks it by."""

    u: int
    v: int
    score: float


@dataclass(frozen=True)
class Topology:
    """The simple undirected graph behind the relations. Nodes are numbered by ascending id.

    Attributes:
        ids: the nodes' ids.
        core: which nodes are core entities.
        near: which nodes are on topic: core or one step from core; all, where nothing is core.
        community: number of a node's community from 0; -1 for none.
        pairs: connected pairs, smaller number first, in ascending order.
        evidence: distinct pieces of evidence of a pair, over all its relations.
        degree: neighbours of a node.
        within: neighbours of a node in its own community.
        cross: share of a node's neighbours that belong to another community; 0 without community.
    """

    ids: Int[np.ndarray, " n"]
    core: Bool[np.ndarray, " n"]
    near: Bool[np.ndarray, " n"]
    community: Int[np.ndarray, " n"]
    pairs: Int[np.ndarray, "p 2"]
    evidence: Int[np.ndarray, " p"]
    degree: Int[np.ndarray, " n"]
    within: Int[np.ndarray, " n"]
    cross: Float[np.ndarray, " n"]

    @property
    def communities(self) -> int:
        """How many communities there are."""
        return int(self.community.max(initial=-1)) + 1

    @property
    def sizes(self) -> Int[np.ndarray, " c"]:
        """Sizes of the communities by number."""
        return np.bincount(self.community[self.community >= 0], minlength=self.communities)

    def links(self, pairs: Int[np.ndarray, "m 2"]) -> Int[np.ndarray, "c c"]:
        """How many of the pairs lie between two communities (symmetric; inside one on the diagonal)."""
        ends = np.sort(self.community[pairs], axis=1) if len(pairs) else pairs
        ends = ends[(ends >= 0).all(axis=1)]
        size = self.communities
        counts = np.bincount(ends[:, 0] * size + ends[:, 1], minlength=size * size).reshape(size, size)
        return counts + np.triu(counts, 1).T

    def numbers(self, pairs: Iterable[tuple[int, int]]) -> Int[np.ndarray, "m 2"]:
        """Pairs of ids as sorted pairs of numbers; pairs with an unknown node are left out."""
        wanted = np.array(sorted({(min(pair), max(pair)) for pair in pairs}), dtype=np.int64).reshape(-1, 2)
        if not len(self.ids) or not len(wanted):
            return np.empty((0, 2), dtype=np.int64)
        places = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        return places[(self.ids[places] == wanted).all(axis=1)]


def topology(graph: KnowledgeGraph, *, with_communities: bool = True) -> Topology:
    """The arrays of a knowledge graph.

    Args:
        graph: the graph, with communities stored in its nodes.
        with_communities: False treats every node as one without community.
    """
    ids = np.array(sorted(graph.nodes), dtype=np.int64)
    place = {int(node): i for i, node in enumerate(ids)}
    nodes = [graph.nodes[int(node)] for node in ids]
    core = np.array([node.is_core for node in nodes], dtype=bool)
    labels = [node.community_id if with_communities else None for node in nodes]
    community = np.array([-1 if label is None else label for label in labels], dtype=np.int64)
    known = community >= 0
    # Removed nodes may have left gaps in the numbers.
    community[known] = np.unique(community[known], return_inverse=True)[1]

    found: dict[tuple[int, int], frozenset[int]] = {}
    for edge in graph.edges.values():
        u, v = place[edge.source], place[edge.target]
        pair = (u, v) if u < v else (v, u)
        evidence = found.get(pair)
        found[pair] = evidence | edge.evidence if evidence else edge.evidence
    ordered = sorted(found)
    pairs = np.array(ordered, dtype=np.int64).reshape(-1, 2)
    n = len(ids)
    degree = np.bincount(pairs.ravel(), minlength=n)
    same = (community[pairs[:, 0]] == community[pairs[:, 1]]) if len(pairs) else np.empty(0, dtype=bool)
    within = np.bincount(pairs[same].ravel(), minlength=n)
    cross = np.where(known, (degree - within) / np.maximum(degree, 1), 0.0)
    near = core.copy()
    if len(pairs):
        near[pairs[core[pairs[:, 0]], 1]] = True
        near[pairs[core[pairs[:, 1]], 0]] = True
    return Topology(
        ids=ids,
        core=core,
        near=near if core.any() else np.ones(n, dtype=bool),
        community=community,
        pairs=pairs,
        evidence=np.array([len(found[pair]) for pair in ordered], dtype=np.int64),
        degree=degree,
        within=within,
        cross=cross,
    )


def visited_pairs(visited: Collection[VisitedChain], kind: str) -> set[tuple[int, int]]:
    """The pairs of ids that were visited by chains of one type."""
    return {(u, v) for u, v, visited_kind in visited if visited_kind == kind}


def seeded_order(
    seed: int, first: Int[np.ndarray, " m"], second: Int[np.ndarray, " m"]
) -> Int[np.ndarray, " m"]:
    """A number per unordered pair of ids that looks random and depends on nothing else: breaks the last ties.

    It is the finaliser of SplitMix64, applied to the seed and to both ids in turn.
    """
    low, high = np.minimum(first, second), np.maximum(first, second)
    state = np.full(low.shape, seed % 2**64, dtype=np.uint64)
    for part in (low, high):
        state = state + (part.astype(np.uint64) + np.uint64(1)) * np.uint64(_MIX[0])
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX[1])
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX[2])
        state ^= state >> np.uint64(31)
    return state
