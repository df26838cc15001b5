"""Drawings: nothing overlaps, neighbours are near, and the same graph is drawn the same."""

from __future__ import annotations

import math
from itertools import pairwise

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.methods.dualgraph.graph_drawing import MOST_DRAWN, knowledge_drawing, outline_drawing
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph
from assay.methods.dualgraph.layout import (
    WIDTH,
    communities_by_size,
    link_width,
    make_pill,
    place_outline,
    place_pills,
    shortened,
    text_width,
    wrapped,
)
from assay.methods.dualgraph.outline import OutlineGraph


def overlapping(pills) -> list[tuple[int, int]]:
    return [
        (a.id, b.id)
        for i, a in enumerate(pills)
        for b in pills[:i]
        if abs(a.x - b.x) < (a.width + b.width) / 2 and abs(a.y - b.y) < (a.height + b.height) / 2
    ]


def drawn(graph: networkx.Graph, name=lambda node: f"Node {node}"):
    pills = [make_pill(node, name(node), node % 7 == 0, node % 3) for node in graph]
    return place_pills(pills, sorted(tuple(sorted(edge)) for edge in graph.edges))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.floats(0, 0.5), st.integers(0, 50), st.integers(1, 60))
def test_no_two_nodes_overlap_and_all_are_inside(count, density, seed, length):
    graph = networkx.gnp_random_graph(count, density, seed=seed)
    pills, height = drawn(graph, lambda node: "x" * (1 + (node * 13) % length))
    assert overlapping(pills) == []
    for pill in pills:
        assert pill.width / 2 <= pill.x <= WIDTH - pill.width / 2
        assert pill.height / 2 <= pill.y <= height - pill.height / 2


def test_the_largest_drawing_works():
    pills, _ = drawn(
        networkx.barabasi_albert_graph(MOST_DRAWN, 3, seed=1),
        lambda node: "a name of some length"[: 5 + node % 15],
    )
    assert len(pills) == MOST_DRAWN
    assert overlapping(pills) == []


def test_linked_nodes_are_nearer_than_others():
    graph = networkx.connected_caveman_graph(4, 6)
    pills, _ = drawn(graph)
    at = {pill.id: (pill.x, pill.y) for pill in pills}
    linked = [math.dist(at[u], at[v]) for u, v in graph.edges]
    other = [math.dist(at[u], at[v]) for u in graph for v in graph if u < v and not graph.has_edge(u, v)]
    assert sum(linked) / len(linked) < 0.5 * sum(other) / len(other)


def test_the_same_graph_is_drawn_the_same():
    graph = networkx.cycle_graph(9)
    assert drawn(graph) == drawn(graph)
    assert place_pills([], []) == ([], 0.0)


def test_texts():
    assert shortened("abcdef", 4) == "abc…"
    assert shortened("a  b", 4) == "a b"
    assert text_width("WWW", 10) > text_width("iii", 10)
    assert text_width("深度", 10) > text_width("ab", 10)
    lines = wrapped("some words that go over a few lines of this width " * 3, 120, 3)
    assert len(lines) == 3
    assert lines[-1].endswith("…")
    assert all(text_width(line, 12.5) <= 132 for line in lines)
    assert "".join(wrapped("x" * 90, 100, 20)) == "x" * 90
    assert wrapped("", 100, 2) == ("",)
    assert make_pill(1, "y" * 99, False, None).label == "y" * 29 + "…"


def test_communities_are_numbered_by_size_and_single_nodes_have_none():
    assert communities_by_size({1: 5, 2: 5, 3: 9, 4: 9, 5: 9, 6: 1, 7: None}) == {9: 0, 5: 1}
    assert link_width(1) < link_width(2) < link_width(8) <= 5.0
    assert link_width(0) == link_width(1)


@pytest.fixture
def big():
    graph = KnowledgeGraph()
    for i in range(MOST_DRAWN + 20):
        graph.add_node(f"N{i}", is_core=i == MOST_DRAWN + 19)
    for i in range(1, MOST_DRAWN + 20):
        graph.add_edge(1 + i // 2, 1 + i, "r", {i})
    return graph


def test_a_large_graph_is_drawn_in_part(big):
    drawing = knowledge_drawing(big, [])
    assert len(drawing["pills"]) == MOST_DRAWN
    assert drawing["hidden"] == 20
    assert any(entry["pill"].is_core for entry in drawing["pills"])
    shown = {entry["pill"].id for entry in drawing["pills"]}
    assert all(link["u"] in shown and link["v"] in shown for link in drawing["links"])


def test_kinds_of_links(made_run):
    drawing = knowledge_drawing(made_run.kg, made_run.gaps(20))
    kinds = {link["names"]: link["kind"] for link in drawing["links"]}
    assert kinds["Kestrel", "Vole"] == "strong"
    assert kinds["Kestrel", "Meadow"] == "weak"
    assert kinds["Harrier", "Owl"] == "bare"
    linked = {(link["u"], link["v"]) for link in drawing["links"]}
    assert drawing["gaps"]
    assert not linked & {(gap["u"], gap["v"]) for gap in drawing["gaps"]}


def test_the_outline_is_a_tree():
    outline = OutlineGraph.parse(
        "1. A\n- one <citation>id_3</citation>\n- two\n1.1. B\n1.1.1. C\n"
        "- three <citation>id_4, id_3</citation>\n2. D"
    )
    drawing = outline_drawing("Why?", outline)
    leaves = {leaf.key: leaf for leaf in drawing["leaves"]}
    assert list(leaves) == ["", "1", "1/0", "1/1", "1.1", "1.1.1", "1.1.1/0", "2"]
    assert leaves[""].evidence == (3, 4)
    assert leaves["1/1"].evidence == ()
    assert len(drawing["branches"]) == len(leaves) - 1
    for leaf in leaves.values():
        assert 0 < leaf.y < drawing["height"]
        if leaf.parent is not None:
            assert leaves[leaf.parent].x < leaf.x
    for column in {leaf.x for leaf in leaves.values()}:
        places = sorted(leaf.y for leaf in leaves.values() if leaf.x == column)
        assert all(b - a >= 20 for a, b in pairwise(places))


def test_an_empty_outline_is_only_the_question():
    leaves, height = place_outline("Why " * 40, [])
    assert len(leaves) == 1
    assert height > 16 * len(leaves[0].label)
