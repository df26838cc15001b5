"""Structural holes: nodes that stand for communities between which links are missing (paper, type 3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from jaxtyping import Bool, Int

from assay.methods.dualgraph.topology import Candidate, Topology

BRIDGES, HUBS = 3, 2


def cross_community(
    shape: Topology,
    forbidden: Int[np.ndarray, "m 2"],
    seen: Int[np.ndarray, "s 2"],
    allowed: Bool[np.ndarray, " n"],
    *,
    limit: int,
) -> list[Candidate]:
    """Structural holes: bridges and hubs of one community with the representative of another.

    Pairs of communities take turns, those with the most missing links first; chains that a pair has had in
    earlier rounds count as its turns.
    """
    leaders, representatives = _leaders(shape, allowed)
    present = np.array(sorted(representatives), dtype=np.int64)
    if len(present) < 2:
        return []
    sizes = shape.sizes
    links = shape.links(shape.pairs)
    first, second = (present[side] for side in np.triu_indices(len(present), 1))
    missing = sizes[first] * sizes[second] - links[first, second]
    turns = shape.links(seen)[first, second]
    order = np.lexsort((second, first, -missing))
    blocked = set(map(tuple, forbidden.tolist()))
    holes: dict[int, list[tuple[int, int]]] = {}
    found: list[Candidate] = []
    for level in range(int(turns.max()) + 2 * (BRIDGES + HUBS)):
        for i in order[turns[order] <= level]:
            if i not in holes:
                a, b = int(first[i]), int(second[i])
                holes[i] = _hole(shape, leaders, representatives, (a, b), blocked)
            rank = level - int(turns[i])
            if rank < len(holes[i]):
                u, v = holes[i][rank]
                found.append(Candidate(u, v, float(missing[i])))
                if len(found) == limit:
                    return found
    return found


def _leaders(shape: Topology, allowed: Bool[np.ndarray, " n"]) -> tuple[dict[int, list[int]], dict[int, int]]:
    """By community: its bridges and then its hubs, and its representative."""
    nodes = np.flatnonzero(allowed & (shape.community >= 0))
    by_cross = nodes[np.lexsort((nodes, -shape.degree[nodes], -shape.cross[nodes]))]
    by_within = nodes[np.lexsort((nodes, -shape.degree[nodes], -shape.within[nodes]))]
    leaders: dict[int, list[int]] = {}
    for node in by_cross[shape.cross[by_cross] > 0]:
        bridges = leaders.setdefault(int(shape.community[node]), [])
        if len(bridges) < BRIDGES:
            bridges.append(int(node))
    representatives: dict[int, int] = {}
    hubs: dict[int, int] = {}
    for node in by_within:
        community = int(shape.community[node])
        representatives.setdefault(community, int(node))
        chosen = leaders.setdefault(community, [])
        if hubs.get(community, 0) < HUBS and int(node) not in chosen:
            chosen.append(int(node))
            hubs[community] = hubs.get(community, 0) + 1
    return leaders, representatives


def _hole(
    shape: Topology,
    leaders: Mapping[int, list[int]],
    representatives: Mapping[int, int],
    between: tuple[int, int],
    blocked: Collection[tuple[int, int]],
) -> list[tuple[int, int]]:
    """The candidates between two communities: bridges by their share of cross links, then hubs."""
    a, b = between
    ends = [(node, representatives[b]) for node in leaders[a]]
    ends += [(node, representatives[a]) for node in leaders[b]]
    ends.sort(key=lambda pair: (-shape.cross[pair[0]], -shape.within[pair[0]], pair))
    pairs = dict.fromkeys((min(pair), max(pair)) for pair in ends)
    return [pair for pair in pairs if pair not in blocked]
