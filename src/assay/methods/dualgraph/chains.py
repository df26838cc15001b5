"""Gaps of the knowledge graph: five rules propose pairs of nodes to ask about (paper, gap detection).

`chain_loops.py` states the same rules as plain loops; a test compares the two. Where both follow the authors'
published code, and where they correct it, is listed in the method card.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph, VisitedChain
from assay.methods.dualgraph.missing_links import block_model, entity_concept
from assay.methods.dualgraph.records import Chain, ChainType, Edge
from assay.methods.dualgraph.structural_holes import cross_community
from assay.methods.dualgraph.topology import Candidate, Topology, topology, visited_pairs

WEIGHTS: Mapping[ChainType, int] = {
    "enrich": 2,
    "entity_concept": 2,
    "cross_community": 2,
    "sbm_probability": 1,
    "sbm_entropy": 1,
}
"""Shares of the budget; their order is that of left-over slots."""

STRONG = 2
"""A pair with so many pieces of evidence is not weak any more."""


def quotas(total: int, weights: Mapping[ChainType, int] = WEIGHTS) -> dict[ChainType, int]:
    """Slots by type: shares rounded down, and what is left over to the first type.

    Args:
        total: slots in all.
        weights: shares, in the order in which left-over slots are offered.
    """
    whole = sum(weights.values())
    slots: dict[ChainType, int] = {kind: total * weight // whole for kind, weight in weights.items()}
    if slots:
        slots[next(iter(slots))] += total - sum(slots.values())
    return slots


def propose_chains(
    graph: KnowledgeGraph,
    visited: Collection[VisitedChain] = (),
    *,
    vectors: Float[np.ndarray, "n d"] | None = None,
    total: int = 60,
    weights: Mapping[ChainType, int] = WEIGHTS,
    degree_corrected: bool = False,
    with_communities: bool = True,
    seed: int = 0,
) -> list[Chain]:
    """The pairs that are worth a question, of all types in turn by their shares, best first within a type.

    A pair is proposed once, by the first type that ranks it. Pairs of nodes that are on topic (core entities
    and their neighbours) come before all others of their type. Without any candidate, every relation is
    proposed for enrichment again, if that is one of the types.

    Args:
        graph: the graph, with communities stored in its nodes.
        visited: chains that were selected before.
        vectors: embeddings of the nodes' names by ascending id, of length 1; None ranks all names alike.
        total: chains at most.
        weights: types to propose, with their shares.
        degree_corrected: rank block-model chains by B_ab (1 + d_u)(1 + d_v).
        with_communities: False ignores communities.
        seed: breaks the last ties.
    """
    shape = topology(graph, with_communities=with_communities)
    if vectors is None:
        vectors = np.zeros((len(shape.ids), 1), dtype=np.float32)
    taken: set[tuple[int, int]] = set()
    ranked: dict[ChainType, list[Candidate]] = {}
    slots = quotas(total, weights)
    for kind in weights:
        seen = shape.numbers(visited_pairs(visited, kind))
        if kind == "enrich":
            found = enrich(shape, seen, limit=total)
        else:
            forbidden = _unique(shape.pairs, seen, np.array(sorted(taken), dtype=np.int64).reshape(-1, 2))
            limit = max(total // 3, slots[kind])
            found = _explore(kind, shape, vectors, forbidden, seen, limit, degree_corrected, seed)
        ranked[kind] = found
        taken.update((item.u, item.v) for item in found[: slots[kind]])
    chosen = fill(ranked, total, weights)
    if not chosen and "enrich" in weights:
        chosen = fill(
            {"enrich": enrich(shape, shape.pairs[:0], limit=total, weak_only=False)}, total, {"enrich": 1}
        )
    known = {(min(u, v), max(u, v), kind) for u, v, kind in visited}
    relations = _relations(graph)
    return [
        _chain(graph, shape, kind, item, rank, known, relations)
        for rank, (kind, item) in enumerate(chosen, start=1)
    ]


def fill(
    ranked: Mapping[ChainType, list[Candidate]], total: int, weights: Mapping[ChainType, int]
) -> list[tuple[ChainType, Candidate]]:
    """Share out the slots, then order the chains so that types take turns in proportion to their weights.

    Types that have fewer candidates than slots leave them to the others, in the order of `weights`. A pair
    that an earlier type has taken is passed over.
    """
    slots = quotas(total, weights)
    chosen: dict[ChainType, list[Candidate]] = {kind: [] for kind in weights}
    rest: dict[ChainType, Iterator[Candidate]] = {kind: iter(ranked.get(kind, ())) for kind in weights}
    taken: set[tuple[int, int]] = set()

    def take(kind: ChainType, count: int) -> int:
        while count > 0 and (item := next(rest[kind], None)) is not None:
            if (item.u, item.v) not in taken:
                taken.add((item.u, item.v))
                chosen[kind].append(item)
                count -= 1
        return count

    left = sum(take(kind, slots[kind]) for kind in weights)
    for kind in weights:
        left = take(kind, left)
    return _in_turns(chosen, weights)


def _in_turns(
    chosen: Mapping[ChainType, list[Candidate]], weights: Mapping[ChainType, int]
) -> list[tuple[ChainType, Candidate]]:
    """Smooth weighted round robin: every prefix holds the types in proportion to their weights."""
    waiting: dict[ChainType, list[Candidate]] = {
        kind: list(reversed(items)) for kind, items in chosen.items() if items
    }
    credit: dict[ChainType, int] = dict.fromkeys(waiting, 0)
    ordered: list[tuple[ChainType, Candidate]] = []
    while waiting:
        for kind in waiting:
            credit[kind] += weights[kind]
        best = max(waiting, key=lambda kind: credit[kind])
        credit[best] -= sum(weights[kind] for kind in waiting)
        ordered.append((best, waiting[best].pop()))
        if not waiting[best]:
            del waiting[best], credit[best]
    return ordered


def enrich(
    shape: Topology, seen: Int[np.ndarray, "m 2"], *, limit: int, weak_only: bool = True
) -> list[Candidate]:
    """Connected pairs with fewer than two pieces of evidence, those without any first.

    The score is s(u, v) = (1 + imp + (cross(u) + cross(v)) / 2) / (1 + evidence), where imp is 1 for two core
    entities and 0.5 for one.
    """
    u, v = shape.pairs.T
    importance = (shape.core[u].astype(float) + shape.core[v]) / 2
    score = (1 + importance + (shape.cross[u] + shape.cross[v]) / 2) / (1 + shape.evidence)
    wanted = ~_contained(shape.pairs, seen, len(shape.ids))
    if weak_only:
        wanted &= shape.evidence < STRONG
    places = np.flatnonzero(wanted)
    near = shape.near[u] & shape.near[v]
    order = np.lexsort((-score[places], shape.evidence[places] > 0, ~near[places]))[:limit]
    return [Candidate(int(u[i]), int(v[i]), float(score[i])) for i in places[order]]


def _explore(
    kind: ChainType,
    shape: Topology,
    vectors: Float[np.ndarray, "n d"],
    forbidden: Int[np.ndarray, "m 2"],
    seen: Int[np.ndarray, "s 2"],
    limit: int,
    degree_corrected: bool,
    seed: int,
) -> list[Candidate]:
    """The unconnected pairs of one rule: first among the nodes on topic, then among all."""

    def among(allowed: Bool[np.ndarray, " n"], taken: Int[np.ndarray, "t 2"], left: int) -> list[Candidate]:
        if kind == "entity_concept":
            return entity_concept(shape, vectors, taken, allowed, limit=left, seed=seed)
        if kind == "cross_community":
            return cross_community(shape, taken, seen, allowed, limit=left)
        entropy = kind == "sbm_entropy"
        options = {"entropy": entropy, "degree_corrected": degree_corrected, "seed": seed}
        return block_model(shape, vectors, taken, allowed, limit=left, **options)

    found = among(shape.near, forbidden, limit)
    if len(found) < limit and not shape.near.all():
        more = np.array([item[:2] for item in found], dtype=np.int64).reshape(-1, 2)
        everywhere = np.ones(len(shape.ids), dtype=bool)
        found += among(everywhere, _unique(forbidden, more), limit - len(found))
    return found


def _contained(pairs: Int[np.ndarray, "p 2"], some: Int[np.ndarray, "m 2"], n: int) -> Bool[np.ndarray, " p"]:
    return np.isin(pairs[:, 0] * n + pairs[:, 1], some[:, 0] * n + some[:, 1])


def _unique(*parts: Int[np.ndarray, "m 2"]) -> Int[np.ndarray, "u 2"]:
    return np.unique(np.concatenate(parts), axis=0)


_REASONS: Mapping[ChainType, str] = {
    "enrich": "{0} and {1} are linked by {n} of the two pieces of evidence that a firm statement needs.",
    "entity_concept": "{0} and {1} are close in meaning, but nothing found so far links them.",
    "cross_community": "{0} and {1} stand for two groups of the graph between which links are missing.",
    "sbm_probability": "The groups of {0} and {1} are linked elsewhere, so a link between the two is likely.",
    "sbm_entropy": "Whether {0} and {1} are linked is uncertain, given how their groups are linked.",
}


def _relations(graph: KnowledgeGraph) -> dict[tuple[int, int], list[Edge]]:
    """All relations of an unordered pair of ids, oldest first."""
    found: dict[tuple[int, int], list[Edge]] = {}
    for edge in graph.edges.values():
        found.setdefault((min(edge.source, edge.target), max(edge.source, edge.target)), []).append(edge)
    return found


def _chain(
    graph: KnowledgeGraph,
    shape: Topology,
    kind: ChainType,
    item: Candidate,
    rank: int,
    visited: Collection[VisitedChain],
    relations: Mapping[tuple[int, int], list[Edge]],
) -> Chain:
    u, v = int(shape.ids[item.u]), int(shape.ids[item.v])
    content, count = "", 0
    if kind == "enrich":
        oldest = min(relations[u, v], key=lambda edge: edge.id)
        count = len(frozenset().union(*(edge.evidence for edge in relations[u, v])))
        name = {node: graph.nodes[node].name for node in (u, v)}
        content = "; ".join(
            f"{name[edge.source]} {edge.relation} {name[edge.target]}" for edge in relations[u, v]
        )
        first, second = oldest.source, oldest.target
    else:
        first, second = u, v
    names = (graph.nodes[first].name, graph.nodes[second].name)
    return Chain(
        id=rank,
        type=kind,
        nodes=(first, second),
        names=names,
        score=item.score,
        reason=_REASONS[kind].format(*names, n=count),
        content=content,
        visited=(u, v, kind) in visited,
        on_topic=bool(shape.near[item.u] and shape.near[item.v]),
    )
