"""What the drawings of the two graphs consist of: pills, links and gaps; leaves and branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from assay.methods.dualgraph.layout import (
    WIDTH,
    Pill,
    communities_by_size,
    link_width,
    make_pill,
    place_outline,
    place_pills,
    text_width,
)
from assay.methods.dualgraph.records import Chain

if TYPE_CHECKING:
    from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph
    from assay.methods.dualgraph.outline import OutlineGraph

# More nodes than this cannot be read in one drawing; the rest is in the list below it and in the exports.
MOST_DRAWN = 80
MOST_GAPS = 10
# Colours that the style sheet has; communities beyond share the last one.
COLOURS = 8


def knowledge_drawing(graph: KnowledgeGraph, gaps: Sequence[Chain]) -> dict[str, Any]:
    """The drawing of a knowledge graph.

    Returns:
        `pills` ({pill, colour, name, degree}), `links` and `gaps` ({key, u, v, names, path, kind, width,
        evidence}), `width`, `height`, `hidden` (nodes that are left out), `communities` (colours in use).
    """
    strength = graph.pair_evidence()
    neighbours = graph.neighbours()
    weight = {
        node: sum(1 + len(strength[_pair(node, other)]) for other in near)
        for node, near in neighbours.items()
    }
    order = sorted(
        graph.nodes.values(), key=lambda node: (not node.is_core, -weight.get(node.id, 0), node.id)
    )
    drawn = order[:MOST_DRAWN]
    ids = {node.id for node in drawn}
    linked = [pair for pair in sorted(strength) if ids.issuperset(pair)]
    colour = communities_by_size({node.id: node.community_id for node in drawn})
    pills, height = place_pills(
        [make_pill(node.id, node.name, node.is_core, node.community_id) for node in drawn], linked
    )
    at = {pill.id: pill for pill in pills}
    links = []
    for pair in linked:
        count = len(strength[pair])
        kind = "strong" if count > 1 else "weak" if count else "bare"
        links.append(
            _link(at, graph, pair, kind) | {"width": link_width(count), "evidence": sorted(strength[pair])}
        )
    missing = dict.fromkeys(
        _pair(*gap.nodes) for gap in gaps if ids.issuperset(gap.nodes) and _pair(*gap.nodes) not in strength
    )
    return {
        "pills": [
            {
                "pill": pill,
                "name": graph.nodes[pill.id].name,
                "colour": -1 if pill.community not in colour else min(colour[pill.community], COLOURS - 1),
                "degree": len(neighbours.get(pill.id, ())),
            }
            for pill in pills
        ],
        "links": sorted(links, key=lambda link: link["width"]),
        "gaps": [_link(at, graph, pair, "gap") for pair in list(missing)[:MOST_GAPS]],
        "width": WIDTH,
        "height": height,
        "hidden": len(order) - len(drawn),
        "communities": min(COLOURS, len(colour)),
    }


def _pair(u: int, v: int) -> tuple[int, int]:
    return (u, v) if u < v else (v, u)


def _link(at: dict[int, Pill], graph: KnowledgeGraph, pair: tuple[int, int], kind: str) -> dict[str, Any]:
    """A slightly bent line between the middles of two pills, which are drawn over its ends."""
    u, v = at[pair[0]], at[pair[1]]
    # The bend keeps lines apart that would run through the same middle.
    bend = 0.07 if (u.id + v.id) % 2 else -0.07
    middle = ((u.x + v.x) / 2 + bend * (v.y - u.y), (u.y + v.y) / 2 - bend * (v.x - u.x))
    return {
        "key": f"{pair[0]}-{pair[1]}",
        "u": pair[0],
        "v": pair[1],
        "names": (graph.nodes[pair[0]].name, graph.nodes[pair[1]].name),
        "path": f"M{u.x:.1f} {u.y:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {v.x:.1f} {v.y:.1f}",
        "kind": kind,
    }


def outline_drawing(question: str, outline: OutlineGraph) -> dict[str, Any]:
    """The drawing of an outline: `leaves`, `branches` (paths from parent to child), `width`, `height`."""
    number = {section.id: section.number for section in outline.sections}
    leaves, height = place_outline(
        question,
        [
            (
                section.number,
                section.title,
                None if section.parent is None else number[section.parent],
                section.evidence,
                [(point.text, point.evidence) for point in section.points],
            )
            for section in outline.sections
        ],
    )
    at = {leaf.key: leaf for leaf in leaves}
    branches = []
    for leaf in leaves:
        if leaf.parent is None:
            continue
        top = at[leaf.parent]
        # From the end of the parent's words to a spine left of its children, down, and across to the dot.
        start = top.x + 22.0 + text_width(top.label[0], 13.5)
        spine = leaf.x - 20.0
        if leaf.y - top.y < 1.0:
            branches.append(f"M{start:.1f} {top.y:.1f}H{leaf.x:.1f}")
        else:
            branches.append(
                f"M{min(start, spine - 8):.1f} {top.y:.1f}H{spine - 8:.1f}"
                f"Q{spine:.1f} {top.y:.1f} {spine:.1f} {top.y + 8:.1f}"
                f"V{leaf.y - 8:.1f}Q{spine:.1f} {leaf.y:.1f} {spine + 8:.1f} {leaf.y:.1f}H{leaf.x:.1f}"
            )
    return {"leaves": leaves, "branches": branches, "width": WIDTH, "height": height}
