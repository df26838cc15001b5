"""The knowledge graph: recognition of names, merging, and what is about which node."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.dualgraph.checkers import LexicalChecker
from assay.methods.dualgraph.extraction import batches, ingest, named, named_or_entailed
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph, mentions, remap_visited
from assay.methods.dualgraph.records import Evidence, Node


def evidence(identifier: int, content: str) -> Evidence:
    return Evidence(identifier, "title", "file:///a", content, (0, len(content)), "0" * 64, 1)


class TestNames:
    def test_letter_case_spaces_and_aliases_name_the_same_node(self):
        graph = KnowledgeGraph()
        node = graph.add_node("Heat  Pump", aliases=["HP"])
        assert graph.add_node("heat pump") == node
        assert graph.add_node("hp", is_core=True) == node
        assert graph.nodes[node] == Node(node, "Heat Pump", True, ("HP",))

    def test_core_is_sticky(self):
        graph = KnowledgeGraph()
        node = graph.add_node("x", is_core=True)
        graph.add_node("x", is_core=False)
        assert graph.nodes[node].is_core

    def test_an_alias_of_another_node_stays_there(self):
        graph = KnowledgeGraph()
        first = graph.add_node("first", aliases=["shared"])
        second = graph.add_node("second", aliases=["shared", "own"])
        assert graph.find("shared") == first
        assert graph.nodes[second].aliases == ("own",)

    @pytest.mark.parametrize("name", ["", "  \n"])
    def test_empty_names_are_refused(self, name):
        with pytest.raises(InputError, match="name"):
            KnowledgeGraph().add_node(name)


class TestEdges:
    def test_same_relation_unites_evidence(self):
        graph = KnowledgeGraph()
        u, v = graph.add_node("u"), graph.add_node("v")
        first = graph.add_edge(u, v, "Causes", [1])
        assert graph.add_edge(u, v, "causes ", [2]) == first
        assert graph.edges[first].evidence == {1, 2}
        assert graph.add_edge(v, u, "causes", [3]) != first
        assert graph.pair_evidence() == {(u, v): {1, 2, 3}}
        assert graph.strong_pairs() == 1

    def test_without_evidence_it_is_unsupported(self):
        graph = KnowledgeGraph()
        u, v = graph.add_node("u"), graph.add_node("v")
        edge = graph.add_edge(u, v, "causes")
        assert graph.edges[edge].status == "unsupported"
        graph.add_edge(u, v, "causes", [4])
        assert graph.edges[edge].status == "supported"

    @pytest.mark.parametrize(("ends", "relation"), [((1, 9), "r"), ((1, 1), "r"), ((1, 2), " ")])
    def test_bad_edges_are_refused(self, ends, relation):
        graph = KnowledgeGraph()
        graph.add_node("u")
        graph.add_node("v")
        with pytest.raises(InputError):
            graph.add_edge(*ends, relation)

    def test_orphans_go_and_core_entities_stay(self):
        graph = KnowledgeGraph()
        core, u, v = graph.add_node("core", True), graph.add_node("u"), graph.add_node("v")
        orphan = graph.add_node("orphan", aliases=["lonely"])
        graph.add_edge(u, v, "r")
        assert graph.remove_orphans() == [orphan]
        assert set(graph.nodes) == {core, u, v}
        assert graph.find("lonely") is None
        assert graph.add_node("orphan") > orphan


class TestMerge:
    def test_parallel_relations_unite_their_evidence(self):
        graph = KnowledgeGraph()
        a, x, y = graph.add_node("A", True), graph.add_node("x"), graph.add_node("y", aliases=["why"])
        graph.add_edge(a, x, "r", [1])
        graph.add_edge(a, y, "r", [2])
        graph.add_edge(x, y, "equals", [3])
        moved = graph.merge([[x, y]])
        assert moved == {y: x}
        (edge,) = graph.edges.values()
        assert (edge.source, edge.target, edge.evidence) == (a, x, {1, 2})
        assert graph.nodes[x].aliases == ("y", "why")
        assert graph.find("why") == graph.find("Y") == x
        assert remap_visited({(a, y, "enrich"), (x, y, "enrich")}, moved) == {(a, x, "enrich")}

    def test_a_better_name_is_taken_unless_it_is_another_node(self):
        graph = KnowledgeGraph()
        nodes = [graph.add_node(name) for name in ("co2", "carbon dioxide", "oxygen")]
        graph.merge([nodes[:2]], {nodes[1]: "Carbon dioxide"})
        assert graph.nodes[nodes[0]] == Node(nodes[0], "Carbon dioxide", False, ("co2",))
        other = graph.add_node("O2")
        graph.merge([[nodes[2], other]], {other: "carbon dioxide"})
        assert graph.nodes[nodes[2]].name == "oxygen"

    def test_groups_that_overlap_are_one(self):
        graph = KnowledgeGraph()
        nodes = [graph.add_node(f"n{i}") for i in range(4)]
        assert graph.merge([nodes[2:4], [nodes[0], nodes[3]]]) == {nodes[2]: nodes[0], nodes[3]: nodes[0]}

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(
        nodes=st.integers(2, 12),
        core=st.sets(st.integers(1, 12), max_size=3),
        links=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 1)), max_size=40),
        groups=st.lists(st.lists(st.integers(1, 14), min_size=1, max_size=4), max_size=5),
    )
    def test_properties(self, nodes, core, links, groups):
        graph = KnowledgeGraph()
        for i in range(1, nodes + 1):
            graph.add_node(f"n{i}", i in core)
        for number, (u, v, relation) in enumerate(links):
            if u != v and u <= nodes and v <= nodes:
                graph.add_edge(u, v, f"r{relation}", [number])
        before = dict(graph.edges)
        moved = graph.merge(groups)
        assert {i for i in core if i <= nodes} <= {n.id for n in graph.nodes.values() if n.is_core}
        assert not any(old in core or new in core for old, new in moved.items())
        assert all(edge.source != edge.target for edge in graph.edges.values())
        keys = {(e.source, e.target, e.relation) for e in graph.edges.values()}
        assert len(keys) == len(graph.edges)
        for edge in before.values():
            ends = moved.get(edge.source, edge.source), moved.get(edge.target, edge.target)
            if ends[0] != ends[1]:
                (twin,) = [
                    e
                    for e in graph.edges.values()
                    if (e.source, e.target, e.relation) == (*ends, edge.relation)
                ]
                assert edge.evidence <= twin.evidence
        for old, new in moved.items():
            assert old not in graph.nodes
            assert graph.find(f"n{old}") == new
        # The index of relations is right too: adding one again makes none.
        for edge in list(graph.edges.values()):
            assert graph.add_edge(edge.source, edge.target, edge.relation) == edge.id


class TestText:
    def star(self) -> KnowledgeGraph:
        graph = KnowledgeGraph()
        names = [graph.add_node(name, name == "core") for name in ("core", "near", "far", "farther")]
        for (u, v), ids in zip([(2, 3), (1, 0), (0, 1)], [[], [2], [3, 1]], strict=True):
            graph.add_edge(names[u], names[v], "leads to", ids)
        return graph

    def test_nearest_relations_first(self):
        assert self.star().compact().splitlines() == [
            "Core entities: core",
            "near | leads to | core {2}",
            "core | leads to | near {1,3}",
            "far | leads to | farther {unsupported}",
        ]

    def test_what_is_farthest_is_left_out(self):
        lines = self.star().compact(60).splitlines()
        assert lines == ["Core entities: core", "near | leads to | core {2}", "(2 relations left out)"]

    def test_distances_and_topic(self):
        graph = self.star()
        assert graph.core_distance() == {1: 0, 2: 1}
        assert graph.on_topic() == {1, 2}
        without_core = KnowledgeGraph([Node(4, "a"), Node(7, "b")])
        assert without_core.on_topic() == {4, 7}
        assert without_core.add_node("c") == 8

    def test_networkx_has_everything(self):
        graph = self.star().to_networkx()
        assert isinstance(graph, networkx.MultiDiGraph)
        assert graph.nodes[1]["is_core"]
        assert graph.edges[1, 2, 3] == {"relation": "leads to", "evidence": [1, 3], "status": "supported"}


class TestMentions:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("Heat pumps are efficient", True),
            ("a HEAT-PUMP", True),
            ("a heat\npump.", True),
            ("see heat_pump()", True),
            ("heat pumping", False),
            ("wheat pump", False),
            ("The HP is", True),
        ],
    )
    def test_whole_words(self, text, found):
        assert mentions(text, Node(1, "heat pump", aliases=("HP",))) is found

    def test_names_that_start_or_end_with_signs(self):
        assert mentions("use C++ here", Node(1, "C++"))
        assert mentions("run --help now", Node(1, "--help"))


class TestIngest:
    def test_only_evidence_about_both_ends_stays(self):
        graph = KnowledgeGraph()
        nodes = [{"name": "Rust", "is_core": True}, {"name": "memory safety", "is_core": False}]
        edges = [
            {"source": "rust", "target": "memory safety", "relation": "gives", "evidence": [1, 2, 3, 1]},
            {"source": "rust", "target": "unknown", "relation": "gives", "evidence": [1]},
            {"source": "rust", "target": "RUST", "relation": "is", "evidence": [1]},
            {"source": "rust", "target": "memory safety", "relation": " ", "evidence": [1]},
        ]
        offered = {1: evidence(1, "Rust gives memory safety."), 2: evidence(2, "Rust is fast.")}
        dropped = ingest(graph, nodes, edges, offered)
        (edge,) = graph.edges.values()
        assert edge.evidence == {1}
        assert dropped == {"dropped_relations": 3, "dropped_attributions": 2}

    def test_a_relation_that_nothing_states_is_kept_to_be_looked_for(self):
        graph = KnowledgeGraph()
        nodes = [{"name": name, "is_core": False} for name in ("a1", "b1", "c1")]
        edges = [{"source": "a1", "target": "b1", "relation": "helps", "evidence": [1]}]
        ingest(graph, nodes, edges, {1: evidence(1, "a1 alone")})
        assert [edge.status for edge in graph.edges.values()] == ["unsupported"]
        assert sorted(node.name for node in graph.nodes.values()) == ["a1", "b1"]

    def test_batches_hold_five_queries_with_evidence(self):
        found = [(f"q{i}", [i] if i % 4 else []) for i in range(16)]
        parts = batches(found)
        assert [len(part) for part in parts] == [5, 5, 2]
        assert [query for part in parts for query, _ in part] == [f"q{i}" for i in range(16) if i % 4]

    def test_a_checker_that_understands_may_take_what_is_not_named(self):
        class Judge:
            name = "llm"
            threshold = 0.5

            def score(self, claim, source):
                assert claim == "Rust gives memory safety."
                return 1.0 if "borrow checker" in source else 0.0

        edges = [{"source": "Rust", "target": "memory safety", "relation": "gives", "evidence": [1, 2]}]
        nodes = [{"name": "Rust", "is_core": True}, {"name": "memory safety", "is_core": False}]
        offered = {1: evidence(1, "The borrow checker rejects dangling pointers."), 2: evidence(2, "Crabs.")}
        graph = KnowledgeGraph()
        ingest(graph, nodes, edges, offered, supports=named_or_entailed(Judge()))
        assert [edge.evidence for edge in graph.edges.values()] == [{1}]
        assert named_or_entailed(LexicalChecker()) is named
