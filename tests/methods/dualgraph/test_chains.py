"""Gap detection: known answers, properties, and the loops that the arrays must agree with."""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.methods.dualgraph.chain_loops import propose_pairs_loops
from assay.methods.dualgraph.chains import WEIGHTS, enrich, fill, propose_chains, quotas
from assay.methods.dualgraph.communities import detect_communities
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph, remap_visited
from assay.methods.dualgraph.missing_links import block_entropies, block_probabilities
from assay.methods.dualgraph.policies import chain_key
from assay.methods.dualgraph.structural_holes import cross_community
from assay.methods.dualgraph.topology import Candidate, seeded_order, topology

EXPLORE = ("entity_concept", "cross_community", "sbm_probability", "sbm_entropy")


def random_graph(
    nodes: int, edges: int, *, communities: int = 4, core: int = 3, seed: int = 0, detect: bool = True
) -> KnowledgeGraph:
    """A graph with denser communities, 0 to 2 pieces of evidence a relation, and communities stored."""
    rng = np.random.default_rng(seed)
    graph = KnowledgeGraph()
    for i in range(nodes):
        graph.add_node(f"node {i}", is_core=i < core)
    label = rng.integers(communities, size=nodes)
    for _ in range(20 * edges):
        if len(graph.edges) >= edges:
            break
        u, v = (int(i) for i in rng.choice(nodes, size=2, replace=False))
        if label[u] != label[v] and rng.random() < 0.8:
            continue
        cited = rng.integers(1, 100, size=int(rng.integers(0, 3))).tolist()
        graph.add_edge(u + 1, v + 1, f"relation {int(rng.integers(2))}", cited)
    graph.remove_orphans()
    if detect:
        graph.set_communities(detect_communities(graph, seed=seed))
    return graph


def exact_vectors(graph: KnowledgeGraph, *, seed: int = 0) -> np.ndarray:
    """Vectors whose products are exact in float32, so that every order of additions gives the same ties."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-4, 5, size=(len(graph.nodes), 8)) / 8).astype(np.float32)


def two_cliques(size: int = 6) -> KnowledgeGraph:
    """Two cliques that nothing joins, without core entities; all pairs have two pieces of evidence."""
    graph = KnowledgeGraph()
    groups = [[graph.add_node(f"{name}{i}") for i in range(size)] for name in "ab"]
    for group in groups:
        for i, u in enumerate(group):
            for v in group[i + 1 :]:
                graph.add_edge(u, v, "is linked with", [1, 2])
    graph.set_communities({node: part for part, group in enumerate(groups) for node in group})
    return graph


def graph_with_cross(core: tuple[bool, bool], evidence: list[int]) -> KnowledgeGraph:
    """u has two neighbours, one of them in another community (cross 0.5); v only u (cross 0)."""
    graph = KnowledgeGraph()
    u = graph.add_node("u", core[0])
    v = graph.add_node("v", core[1])
    w = graph.add_node("w")
    graph.add_edge(u, v, "knows", evidence)
    graph.add_edge(u, w, "knows", [1, 2])
    graph.set_communities({u: 0, v: 0, w: 1})
    return graph


class TestEnrich:
    @pytest.mark.parametrize(
        ("core", "evidence", "score"), [((True, False), [5], 0.875), ((True, True), [], 2.25)]
    )
    def test_known_scores(self, core, evidence, score):
        shape = topology(graph_with_cross(core, evidence))
        assert shape.cross[:2].tolist() == [0.5, 0.0]
        (found,) = enrich(shape, shape.pairs[:0], limit=10)
        assert (found.u, found.v) == (0, 1)
        assert found.score == pytest.approx(score, abs=1e-12)

    def test_no_evidence_comes_before_any_score(self):
        graph = KnowledgeGraph()
        core = [graph.add_node(f"core {i}", True) for i in range(2)]
        plain = [graph.add_node(f"plain {i}") for i in range(2)]
        graph.add_edge(core[0], core[1], "meets", [1])
        graph.add_edge(core[0], plain[0], "meets", [1, 2])
        graph.add_edge(core[0], plain[1], "meets", [1, 2])
        graph.add_edge(plain[0], plain[1], "meets", [])
        kinds = [chain.names for chain in propose_chains(graph) if chain.type == "enrich"]
        assert kinds == [("plain 0", "plain 1"), ("core 0", "core 1")]

    def test_parallel_and_opposite_relations_are_one_pair(self):
        graph = KnowledgeGraph()
        u, v = graph.add_node("u", True), graph.add_node("v")
        graph.add_edge(u, v, "causes", [1])
        graph.add_edge(v, u, "follows", [2])
        assert [chain.type for chain in propose_chains(graph)] == ["enrich"]
        # Two pieces of evidence in all: not weak, and only proposed because nothing else is left.
        assert topology(graph).evidence.tolist() == [2]
        w = graph.add_node("w")
        graph.add_edge(u, w, "causes", [3])
        weak = [chain.names for chain in propose_chains(graph) if chain.type == "enrich"]
        assert weak == [("u", "w")]

    def test_content_shows_every_relation_of_the_pair(self):
        graph = KnowledgeGraph()
        u, v = graph.add_node("u", True), graph.add_node("v")
        graph.add_edge(u, v, "causes", [1])
        graph.add_edge(v, u, "follows", [1])
        (chain,) = propose_chains(graph)
        assert chain.content == "u causes v; v follows u"
        assert "1 of the two" in chain.reason

    def test_unsupported_relations_are_first(self):
        graph = random_graph(20, 40, seed=3)
        scores = [chain for chain in propose_chains(graph, weights={"enrich": 1}) if chain.on_topic]
        evidence = [bool(graph.pair_evidence()[tuple(sorted(chain.nodes))]) for chain in scores]
        assert evidence == sorted(evidence)

    def test_when_nothing_is_left_every_relation_is_proposed(self):
        graph = two_cliques(3)
        graph.set_communities({})
        chains = propose_chains(graph, weights={"enrich": 2})
        assert len(chains) == 6
        assert {chain.type for chain in chains} == {"enrich"}


class TestBlockModel:
    def test_known_probability_and_entropy(self):
        graph = KnowledgeGraph()
        a = [graph.add_node(f"a{i}") for i in range(4)]
        b = [graph.add_node(f"b{i}") for i in range(5)]
        c = [graph.add_node(f"c{i}") for i in range(4)]
        graph.add_edge(a[0], b[0], "r", [1, 2])
        graph.add_edge(b[1], a[1], "r", [1, 2])
        graph.add_edge(a[1], b[1], "r", [3])
        graph.set_communities({**dict.fromkeys(a, 0), **dict.fromkeys(b, 1), **dict.fromkeys(c, 2)})
        probabilities = block_probabilities(topology(graph))
        assert probabilities[0, 1] == pytest.approx(2.1 / 20.2)
        assert probabilities[0, 1] == pytest.approx(0.10396, abs=1e-5)
        assert probabilities[1, 2] == pytest.approx(0.00495, abs=1e-5)
        assert probabilities[0, 0] == pytest.approx(0.1 / 6.2)
        assert block_entropies(probabilities)[0, 1] == pytest.approx(0.4813, abs=1e-3)

    def test_ties_in_a_block_go_by_similarity_of_names(self):
        graph = KnowledgeGraph()
        a = [graph.add_node(f"a{i}") for i in range(3)]
        b = [graph.add_node(f"b{i}") for i in range(3)]
        for group in (a, b):
            for u, v in itertools.pairwise(group):
                graph.add_edge(u, v, "r", [1, 2])
        graph.set_communities(dict.fromkeys(a, 0) | dict.fromkeys(b, 1))
        vectors = np.zeros((6, 2), dtype=np.float32)
        vectors[[2, 4]] = [1, 0]
        first = propose_chains(graph, vectors=vectors, weights={"sbm_probability": 1})[0]
        assert set(first.names) == {"a2", "b1"}

    def test_remaining_ties_do_not_follow_insertion_and_depend_on_the_seed(self):
        graph = two_cliques(6)
        orders = []
        for seed in range(3):
            chains = propose_chains(graph, weights={"sbm_probability": 1}, seed=seed)
            orders.append([chain.nodes for chain in chains])
        assert orders[0] != orders[1] != orders[2]
        assert all(order != sorted(order) for order in orders)
        repeated = propose_chains(graph, weights={"sbm_probability": 1}, seed=1)
        assert [chain.nodes for chain in repeated] == orders[1]

    def test_degree_correction_prefers_hubs(self):
        graph = KnowledgeGraph()
        a = [graph.add_node(f"a{i}") for i in range(5)]
        b = [graph.add_node(f"b{i}") for i in range(5)]
        for group in (a, b):
            for leaf in group[1:]:
                graph.add_edge(group[0], leaf, "r", [1, 2])
        graph.set_communities(dict.fromkeys(a, 0) | dict.fromkeys(b, 1))
        first = propose_chains(graph, weights={"sbm_probability": 1}, degree_corrected=True)[0]
        assert set(first.names) == {"a0", "b0"}
        assert first.score == pytest.approx(0.1 / 25.2 * 25)


class TestQuotas:
    def test_sixty_slots(self):
        assert list(quotas(60).values()) == [16, 15, 15, 7, 7]

    @settings(derandomize=True)
    @given(st.integers(1, 500))
    def test_all_slots_are_given(self, total):
        slots = quotas(total)
        assert sum(slots.values()) == total
        assert slots["entity_concept"] == slots["cross_community"] <= slots["enrich"]

    def test_left_over_slots_go_to_enrich_first(self):
        ranked = {
            kind: [Candidate(i, 100 * n + i + 1, 0.0) for i in range(40)] for n, kind in enumerate(WEIGHTS)
        }
        ranked["sbm_entropy"] = []
        counts = Counter(kind for kind, _ in fill(ranked, 60, WEIGHTS))
        assert counts == {"enrich": 23, "entity_concept": 15, "cross_community": 15, "sbm_probability": 7}

    def test_every_prefix_keeps_the_proportions(self):
        ranked = {
            kind: [Candidate(i, 100 * n + i + 1, 0.0) for i in range(40)] for n, kind in enumerate(WEIGHTS)
        }
        kinds = [kind for kind, _ in fill(ranked, 40, WEIGHTS)]
        for length in range(1, 41):
            counts = Counter(kinds[:length])
            for kind, weight in WEIGHTS.items():
                assert abs(counts[kind] - length * weight / 8) <= 1.5

    def test_order_within_a_type_is_kept(self):
        graph = random_graph(40, 90, seed=5)
        scores = [
            c.score for c in propose_chains(graph, vectors=exact_vectors(graph)) if c.type == "sbm_entropy"
        ]
        assert scores == sorted(scores, reverse=True)


class TestStructuralHoles:
    def test_two_cliques(self):
        graph = two_cliques()
        chains = [chain for chain in propose_chains(graph) if chain.type == "cross_community"]
        assert chains
        assert all({name[0] for name in chain.names} == {"a", "b"} for chain in chains)
        joined = chains[0]
        graph.add_edge(*joined.nodes, "meets", [7, 8])
        again = propose_chains(graph)
        assert {chain_key(joined)[:2]}.isdisjoint({chain_key(chain)[:2] for chain in again})

    def ten_communities(self) -> KnowledgeGraph:
        graph = KnowledgeGraph()
        labels = {}
        for part in range(10):
            nodes = [graph.add_node(f"n{part}-{i}") for i in range(3 + part % 3)]
            for u, v in itertools.combinations(nodes, 2):
                graph.add_edge(u, v, "r", [1, 2])
            labels |= dict.fromkeys(nodes, part)
        graph.set_communities(labels)
        return graph

    def test_every_pair_of_communities_gets_a_turn_before_any_gets_a_second(self):
        graph = self.ten_communities()
        shape = topology(graph)
        everywhere = np.ones(len(shape.ids), dtype=bool)
        found = cross_community(shape, shape.pairs, shape.pairs[:0], everywhere, limit=100)
        pairs = [frozenset(shape.community[[item.u, item.v]].tolist()) for item in found]
        assert len(set(pairs[:45])) == 45
        assert len(set(pairs[45:90])) == 45

    def test_turns_are_remembered_over_rounds(self):
        graph = self.ten_communities()
        visited = set()
        community = {node.id: node.community_id for node in graph.nodes.values()}
        seen: list[frozenset] = []
        for _ in range(3):
            chains = propose_chains(graph, visited, weights={"cross_community": 1}, total=15)
            seen += [frozenset(community[node] for node in chain.nodes) for chain in chains]
            visited |= {chain_key(chain) for chain in chains}
        assert len(seen) == len(set(seen)) == 45

    def test_bridges_go_before_hubs(self):
        graph = two_cliques()
        bridge, leaf = graph.add_node("bridge"), graph.add_node("leaf")
        for u, v in ((bridge, 1), (bridge, 8), (leaf, 7)):
            graph.add_edge(u, v, "r", [1, 2])
        graph.set_communities({node: 0 if node <= 6 or node == bridge else 1 for node in graph.nodes})
        chains = [c for c in propose_chains(graph) if c.type == "cross_community"]
        # b0 (id 7) stands for its clique because only it knows the leaf.
        assert set(chains[0].names) == {"bridge", "b0"}


@st.composite
def graphs(draw):
    """A random graph, exact vectors, and some chains that were visited."""
    nodes = draw(st.integers(2, 24))
    graph = random_graph(
        nodes,
        draw(st.integers(1, 50)),
        communities=draw(st.integers(1, 5)),
        core=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 10_000)),
    )
    visited = set()
    ids = sorted(graph.nodes)
    if len(ids) >= 2:
        for _ in range(draw(st.integers(0, 12))):
            u, v = sorted(draw(st.lists(st.sampled_from(ids), min_size=2, max_size=2, unique=True)))
            visited.add((u, v, draw(st.sampled_from(list(WEIGHTS)))))
    return graph, exact_vectors(graph, seed=nodes), visited


class TestProperties:
    @settings(max_examples=120, deadline=None, derandomize=True)
    @given(graphs())
    def test_explore_never_proposes_what_exists_or_was_visited(self, drawn):
        graph, vectors, visited = drawn
        existing = set(graph.pair_evidence())
        chains = propose_chains(graph, visited, vectors=vectors)
        keys = [chain_key(chain) for chain in chains]
        for chain, key in zip(chains, keys, strict=True):
            assert (key[:2] in existing) == (chain.type == "enrich")
        weak = {pair for pair, evidence in graph.pair_evidence().items() if len(evidence) < 2}
        fallback = all(chain.type == "enrich" for chain in chains) and all(
            (*pair, "enrich") in visited for pair in weak
        )
        assert fallback or not set(keys) & visited
        assert len({key[:2] for key in keys}) == len(keys)
        assert [chain.id for chain in chains] == list(range(1, len(chains) + 1))

    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(graphs(), st.integers(5, 60), st.booleans(), st.integers(0, 3))
    def test_arrays_agree_with_loops(self, drawn, total, degree_corrected, seed):
        graph, vectors, visited = drawn
        options = {"vectors": vectors, "total": total, "degree_corrected": degree_corrected, "seed": seed}
        chains = propose_chains(graph, visited, **options)
        plain = propose_pairs_loops(graph, visited, **options)
        assert [(c.type, chain_key(c)[:2]) for c in chains] == [(kind, pair) for kind, pair, _ in plain]
        assert [c.score for c in chains] == pytest.approx([score for _, _, score in plain], abs=1e-5)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(graphs(), st.data())
    def test_visited_chains_follow_merges(self, drawn, data):
        graph, vectors, _ = drawn
        chains = propose_chains(graph, vectors=vectors)
        visited = {chain_key(chain) for chain in chains[:6]}
        concepts = [node.id for node in graph.nodes.values() if not node.is_core]
        if len(concepts) < 2:
            return
        group = data.draw(st.lists(st.sampled_from(concepts), min_size=2, max_size=4, unique=True))
        moved = graph.merge([group])
        remapped = remap_visited(visited, moved)
        for u, v, kind in visited:
            ends = sorted((moved.get(u, u), moved.get(v, v)))
            assert ((*ends, kind) in remapped) == (ends[0] != ends[1])
        assert all(u in graph.nodes and v in graph.nodes and u < v for u, v, _ in remapped)

    def test_nodes_without_community_take_no_part_in_blocks(self):
        graph = random_graph(30, 60, seed=2, detect=False)
        kinds = {chain.type for chain in propose_chains(graph)}
        assert kinds <= {"enrich", "entity_concept"}

    def test_on_topic_chains_come_first_within_a_type(self):
        graph = random_graph(60, 120, core=2, seed=8)
        for kind in WEIGHTS:
            flags = [c.on_topic for c in propose_chains(graph, weights={kind: 1}, total=30)]
            assert flags == sorted(flags, reverse=True), kind

    def test_chunks_do_not_matter(self, monkeypatch):
        from assay.methods.dualgraph import missing_links

        graph = random_graph(60, 150, seed=4)
        vectors = exact_vectors(graph)
        whole = propose_chains(graph, vectors=vectors)
        monkeypatch.setattr(missing_links, "_CHUNK", 64)
        assert propose_chains(graph, vectors=vectors) == whole

    def test_an_empty_graph_has_no_chains(self):
        assert propose_chains(KnowledgeGraph()) == []


class TestSeededOrder:
    def test_is_symmetric_and_unlike_for_seeds(self):
        u, v = np.arange(50), np.arange(50) + 7
        assert (seeded_order(3, u, v) == seeded_order(3, v, u)).all()
        assert (seeded_order(3, u, v) != seeded_order(4, u, v)).all()
        assert len(set(seeded_order(3, u, v).tolist())) == 50


LEIDEN = pytest.param(
    "leiden",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("leidenalg") is None or importlib.util.find_spec("igraph") is None,
        reason="GPL: Leiden communities are for those who have installed them",
    ),
)


@pytest.mark.parametrize("method", ["louvain", LEIDEN])
class TestEitherMethod:
    def test_isolated_nodes_are_counted_wherever_they_are(self, method):
        graph = two_cliques(4)
        last = graph.add_node("alone", is_core=True)
        found = detect_communities(graph, method=method, seed=1)
        assert set(found) == set(graph.nodes)
        assert sum(label == found[last] for label in found.values()) == 1
        assert len(set(found.values())) == 3

    def test_seeded_and_numbered_by_the_smallest_node(self, method):
        graph = random_graph(60, 150, seed=1)
        first = detect_communities(graph, method=method, seed=5)
        assert first == detect_communities(graph, method=method, seed=5)
        labels = list(dict.fromkeys(first[node] for node in sorted(first)))
        assert labels == list(range(len(labels)))

    def test_empty(self, method):
        assert detect_communities(KnowledgeGraph(), method=method) == {}


class TestCommunities:
    def test_leiden_needs_its_packages(self, monkeypatch):
        from assay.errors import MissingDependencyError

        def missing(name):
            raise ModuleNotFoundError(name=name)

        monkeypatch.setattr(importlib, "import_module", missing)
        with pytest.raises(MissingDependencyError, match="pip install leidenalg igraph"):
            detect_communities(two_cliques(), method="leiden")
