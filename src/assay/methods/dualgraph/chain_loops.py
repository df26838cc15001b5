"""The rules of `chains.py` as plain loops over nodes and pairs: the documentation of the vectorised ones.

Both give the same candidates in the same order. `benchmarks/dualgraph.py` measures how much the arrays save.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import numpy as np
from jaxtyping import Float

from assay.methods.dualgraph.chains import STRONG, WEIGHTS, fill, quotas
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph, VisitedChain
from assay.methods.dualgraph.missing_links import SIMILARITY_DIGITS, SMOOTHING
from assay.methods.dualgraph.records import ChainType
from assay.methods.dualgraph.structural_holes import BRIDGES, HUBS
from assay.methods.dualgraph.topology import Candidate, seeded_order

Pair = tuple[int, int]


def propose_pairs_loops(
    graph: KnowledgeGraph,
    visited: Collection[VisitedChain] = (),
    *,
    vectors: Float[np.ndarray, "n d"] | None = None,
    total: int = 60,
    weights: Mapping[ChainType, int] = WEIGHTS,
    degree_corrected: bool = False,
    seed: int = 0,
) -> list[tuple[ChainType, Pair, float]]:
    """What `chains.propose_chains` proposes, in its order: type, ids of the nodes (smaller first), score.

    Args:
        graph: the graph, with communities stored in its nodes.
        visited: chains that were selected before.
        vectors: embeddings of the nodes' names by ascending id, of length 1.
        total: chains at most.
        weights: types to propose, with their shares.
        degree_corrected: rank block-model chains by B_ab (1 + d_u)(1 + d_v).
        seed: breaks the last ties.
    """
    rules = _Rules(graph, vectors, degree_corrected, seed)
    slots = quotas(total, weights)
    taken: set[Pair] = set()
    ranked: dict[ChainType, list[Candidate]] = {}
    for kind in weights:
        seen = {(u, v) for u, v, visited_kind in visited if visited_kind == kind}
        if kind == "enrich":
            found = rules.enrich(seen)[:total]
        else:
            found = rules.explore(kind, seen, taken, max(total // 3, slots[kind]))
        ranked[kind] = found
        taken.update((item.u, item.v) for item in found[: slots[kind]])
    chosen = fill(ranked, total, weights)
    if not chosen and "enrich" in weights:
        chosen = fill({"enrich": rules.enrich(set(), weak_only=False)[:total]}, total, {"enrich": 1})
    return [(kind, (item.u, item.v), item.score) for kind, item in chosen]


class _Rules:
    """The rules over one graph. Nodes are named by their ids."""

    def __init__(
        self,
        graph: KnowledgeGraph,
        vectors: Float[np.ndarray, "n d"] | None,
        degree_corrected: bool,
        seed: int,
    ) -> None:
        self.nodes = sorted(graph.nodes)
        self.core = {node for node in self.nodes if graph.nodes[node].is_core}
        self.community = {node: graph.nodes[node].community_id for node in self.nodes}
        self.neighbours = graph.neighbours()
        self.evidence = {pair: len(ids) for pair, ids in graph.pair_evidence().items()}
        self.degree_corrected = degree_corrected
        self.seed = seed
        self.vectors = {node: None if vectors is None else vectors[i] for i, node in enumerate(self.nodes)}
        near = {node for node in self.nodes if node in self.core or self.neighbours[node] & self.core}
        self.near = near if self.core else set(self.nodes)
        self.cross = {node: self._cross(node) for node in self.nodes}
        self.within = {
            node: sum(self.community[other] == self.community[node] for other in self.neighbours[node])
            for node in self.nodes
        }
        self.members: dict[int, list[int]] = {}
        for node in self.nodes:
            label = self.community[node]
            if label is not None:
                self.members.setdefault(label, []).append(node)

    def _cross(self, node: int) -> float:
        if self.community[node] is None:
            return 0.0
        others = self.neighbours[node]
        return sum(self.community[v] != self.community[node] for v in others) / max(len(others), 1)

    def similarity(self, u: int, v: int) -> float:
        first, second = self.vectors[u], self.vectors[v]
        if first is None or second is None:
            return 0.0
        return round(float(first @ second), SIMILARITY_DIGITS) + 0.0

    def tie(self, u: int, v: int) -> int:
        return int(seeded_order(self.seed, np.array([u]), np.array([v]))[0])

    def enrich(self, seen: set[Pair], *, weak_only: bool = True) -> list[Candidate]:
        found = []
        for pair in sorted(self.evidence):
            u, v = pair
            if pair in seen or (weak_only and self.evidence[pair] >= STRONG):
                continue
            importance = ((u in self.core) + (v in self.core)) / 2
            score = (1 + importance + (self.cross[u] + self.cross[v]) / 2) / (1 + self.evidence[pair])
            far = not (u in self.near and v in self.near)
            found.append((far, self.evidence[pair] > 0, -score, pair))
        return [Candidate(u, v, -score) for _, _, score, (u, v) in sorted(found)]

    def explore(self, kind: ChainType, seen: set[Pair], taken: set[Pair], limit: int) -> list[Candidate]:
        forbidden = set(self.evidence) | seen | taken
        found: list[Candidate] = []
        for allowed in (self.near, set(self.nodes)):
            blocked = forbidden | {(item.u, item.v) for item in found}
            if kind == "entity_concept":
                more = self.entity_concept(blocked, allowed)
            elif kind == "cross_community":
                more = self.cross_community(blocked, seen, allowed, limit - len(found))
            else:
                entropy = kind == "sbm_entropy"
                more = self.block_model(blocked, allowed, limit - len(found), entropy=entropy)
            found += more[: limit - len(found)]
        return found

    def entity_concept(self, blocked: set[Pair], allowed: set[int]) -> list[Candidate]:
        found = []
        for u in sorted(allowed & self.core):
            for v in sorted(allowed - self.core):
                pair = (min(u, v), max(u, v))
                if pair not in blocked:
                    found.append((-self.similarity(u, v), -self.tie(u, v), pair))
        return [Candidate(u, v, -similarity) for similarity, _, (u, v) in sorted(found)]

    def cross_community(
        self, blocked: set[Pair], seen: set[Pair], allowed: set[int], limit: int
    ) -> list[Candidate]:
        communities = [c for c in sorted(self.members) if set(self.members[c]) & allowed]
        holes: dict[Pair, list[Pair]] = {}
        missing: dict[Pair, int] = {}
        turns: dict[Pair, int] = {}
        for i, a in enumerate(communities):
            for b in communities[i + 1 :]:
                missing[a, b] = len(self.members[a]) * len(self.members[b]) - self._links(a, b, self.evidence)
                turns[a, b] = self._links(a, b, seen)
                ends = [(node, self._representative(b, allowed)) for node in self._leaders(a, allowed)]
                ends += [(node, self._representative(a, allowed)) for node in self._leaders(b, allowed)]
                ends.sort(key=lambda pair: (-self.cross[pair[0]], -self.within[pair[0]], pair))
                pairs = dict.fromkeys((min(pair), max(pair)) for pair in ends)
                holes[a, b] = [pair for pair in pairs if pair not in blocked]
        order = sorted(holes, key=lambda pair: (-missing[pair], pair))
        found: list[Candidate] = []
        for level in range(max(turns.values(), default=0) + 2 * (BRIDGES + HUBS)):
            for pair in order:
                rank = level - turns[pair]
                if 0 <= rank < len(holes[pair]) and len(found) < limit:
                    u, v = holes[pair][rank]
                    found.append(Candidate(u, v, float(missing[pair])))
        return found

    def _leaders(self, community: int, allowed: set[int]) -> list[int]:
        members = [node for node in self.members[community] if node in allowed]
        degree = {node: len(self.neighbours[node]) for node in members}
        bridges = [node for node in members if self.cross[node] > 0]
        bridges = sorted(bridges, key=lambda node: (-self.cross[node], -degree[node], node))[:BRIDGES]
        hubs = [node for node in members if node not in bridges]
        return bridges + sorted(hubs, key=lambda n: (-self.within[n], -degree[n], n))[:HUBS]

    def _representative(self, community: int, allowed: set[int]) -> int:
        members = [node for node in self.members[community] if node in allowed]
        return min(members, key=lambda node: (-self.within[node], -len(self.neighbours[node]), node))

    def _links(self, a: int, b: int, pairs: Iterable[Pair]) -> int:
        wanted = {a, b}
        return sum(
            self.community[u] != self.community[v] and {self.community[u], self.community[v]} == wanted
            for u, v in pairs
        )

    def block_model(
        self, blocked: set[Pair], allowed: set[int], limit: int, *, entropy: bool
    ) -> list[Candidate]:
        links: dict[tuple[int, int], int] = {}
        for u, v in self.evidence:
            a, b = sorted((self.community[u] or 0, self.community[v] or 0))
            if self.community[u] is not None and self.community[v] is not None:
                links[a, b] = links.get((a, b), 0) + 1
        nodes = [node for node in self.nodes if node in allowed and self.community[node] is not None]
        found = []
        for i, u in enumerate(nodes):
            for v in nodes[i + 1 :]:
                a, b = sorted((self.community[u] or 0, self.community[v] or 0))
                if a == b or (u, v) in blocked:
                    continue
                possible = len(self.members[a]) * len(self.members[b])
                score = (links.get((a, b), 0) + SMOOTHING) / (possible + 2 * SMOOTHING)
                if entropy:
                    score = -score * math.log2(score) - (1 - score) * math.log2(1 - score)
                if self.degree_corrected:
                    score *= (1 + len(self.neighbours[u])) * (1 + len(self.neighbours[v]))
                found.append((-score, u, v))
        return self._best(found, limit)

    def _best(self, found: list[tuple[float, int, int]], limit: int) -> list[Candidate]:
        """In falling order of the score; what it leaves tied, by similarity and then in seeded order."""
        # Only ties at the top matter: similarities of all pairs would cost far more than the rule itself.
        found.sort()
        best: list[Candidate] = []
        start = 0
        while start < len(found) and len(best) < limit:
            end = start
            while end < len(found) and math.isclose(found[end][0], found[start][0], rel_tol=1e-12):
                end += 1
            tied = [(-self.similarity(u, v), -self.tie(u, v), u, v) for _, u, v in found[start:end]]
            best += [Candidate(u, v, -found[start][0]) for _, _, u, v in sorted(tied)]
            start = end
        return best
