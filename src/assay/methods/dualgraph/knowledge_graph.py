"""The knowledge graph: entities, concepts, and relations that are bound to evidence."""

from __future__ import annotations

import functools
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from assay.errors import InputError
from assay.methods.dualgraph.records import Edge, Evidence, Node

if TYPE_CHECKING:
    import networkx

VisitedChain = tuple[int, int, str]
"""(smaller node id, larger node id, type of the chain)."""

_SPACES = re.compile(r"\s+")


class KnowledgeGraph:
    """Nodes and directed edges in words. Ids count up from 1 and are never used again.

    Nodes are unique by name and alias (letter case apart), edges by source, target and relation (likewise).
    Core entities, which the question asks about, are never merged and never removed.

    Args:
        nodes: nodes to start with.
        edges: relations to start with.
        used: the largest ids of nodes and of edges that were ever given, where some were removed since.

    Attributes:
        nodes: id -> node.
        edges: id -> edge.
    """

    def __init__(
        self, nodes: Iterable[Node] = (), edges: Iterable[Edge] = (), used: tuple[int, int] = (0, 0)
    ) -> None:
        self.nodes: dict[int, Node] = {node.id: node for node in nodes}
        self.edges: dict[int, Edge] = {edge.id: edge for edge in edges}
        self._by_name: dict[str, int] = {}
        self._by_key: dict[tuple[int, int, str], int] = {_key(edge): edge.id for edge in self.edges.values()}
        self._next_node = max([*self.nodes, used[0]]) + 1
        self._next_edge = max([*self.edges, used[1]]) + 1
        for node in self.nodes.values():
            self._index(node)

    @property
    def used(self) -> tuple[int, int]:
        """The largest ids of nodes and of edges that were ever given."""
        return self._next_node - 1, self._next_edge - 1

    def find(self, name: str) -> int | None:
        """Id of the node with this name or alias, letter case and spaces apart."""
        return self._by_name.get(_fold(name))

    def add_node(self, name: str, is_core: bool = False, aliases: Sequence[str] = ()) -> int:
        """Add a node or recognise it; core stays core, new aliases are added. Returns its id.

        Raises:
            InputError: the name is empty.
        """
        name = _SPACES.sub(" ", name).strip()
        if not name:
            raise InputError("a node needs a name, got an empty one")
        known = self.find(name)
        if known is None:
            known = self._next_node
            self._next_node += 1
            self.nodes[known] = Node(known, name, is_core)
            self._by_name[_fold(name)] = known
        node = self.nodes[known]
        # An alias that already names another node stays with that node.
        new = [alias for alias in aliases if alias.strip() and self.find(alias) is None]
        if new or (is_core and not node.is_core):
            self._replace(
                replace(node, is_core=node.is_core or is_core, aliases=(*node.aliases, *dict.fromkeys(new)))
            )
        return known

    def add_edge(self, source: int, target: int, relation: str, evidence: Iterable[int] = ()) -> int:
        """Add a relation, or more evidence to a known one. Returns its id.

        Raises:
            InputError: an end is unknown, both ends are the same, or the relation is empty.
        """
        relation = _SPACES.sub(" ", relation).strip()
        if source not in self.nodes or target not in self.nodes:
            raise InputError(f"an edge needs two known nodes, got {source} and {target}")
        if source == target:
            raise InputError(f"an edge needs two different nodes, got {source} twice")
        if not relation:
            raise InputError("an edge needs a relation in words, got none")
        key = (source, target, relation.casefold())
        known = self._by_key.get(key)
        if known is None:
            known = self._next_edge
            self._next_edge += 1
            self._by_key[key] = known
            self.edges[known] = Edge(known, source, target, relation, frozenset(evidence))
            return known
        edge = self.edges[known]
        added = frozenset(evidence)
        if not added <= edge.evidence:
            self.edges[known] = replace(edge, evidence=edge.evidence | added)
        return known

    def merge(
        self, groups: Iterable[Sequence[int]], names: Mapping[int, str] | None = None
    ) -> dict[int, int]:
        """Unite concepts that mean the same.

        Core entities and unknown ids in a group are ignored; groups that share a concept are one group. The
        smallest id survives and takes the other names as aliases; parallel edges are united with all their
        evidence, and edges inside a group disappear.

        Args:
            groups: ids of equivalent concepts.
            names: surviving name by any id of its group, where it should change.

        Returns:
            Removed id -> surviving id.
        """
        leader: dict[int, int] = {}

        def find(node: int) -> int:
            while leader.get(node, node) != node:
                node = leader[node]
            return node

        for group in groups:
            members = [node for node in group if node in self.nodes and not self.nodes[node].is_core]
            for other in members[1:]:
                first, second = sorted((find(members[0]), find(other)))
                leader[second] = first
        moved = {node: find(node) for node in leader if find(node) != node}
        for old, new in sorted(moved.items()):
            self._absorb(old, new)
        for member, name in (names or {}).items():
            survivor = moved.get(member, member)
            if survivor in moved.values():
                self._rename(survivor, name)
        self._remap_edges(moved)
        return moved

    def remove_orphans(self) -> list[int]:
        """Remove concepts that have no edge; returns their ids."""
        connected = {end for edge in self.edges.values() for end in (edge.source, edge.target)}
        orphans = [node.id for node in self.nodes.values() if not node.is_core and node.id not in connected]
        for orphan in orphans:
            self._forget(self.nodes.pop(orphan))
        return orphans

    def set_communities(self, communities: Mapping[int, int]) -> None:
        """Store the community of every node; nodes that are not named have none afterwards."""
        for node in list(self.nodes.values()):
            if node.community_id != communities.get(node.id):
                self.nodes[node.id] = replace(node, community_id=communities.get(node.id))

    def set_clusters(self, clusters: Mapping[int, int]) -> None:
        """Store the semantic cluster of every node; nodes that are not named have none afterwards."""
        for node in list(self.nodes.values()):
            if node.cluster_id != clusters.get(node.id):
                self.nodes[node.id] = replace(node, cluster_id=clusters.get(node.id))

    def neighbours(self) -> dict[int, set[int]]:
        """Undirected, simple adjacency: node id -> ids of its neighbours (empty for isolated nodes)."""
        found: dict[int, set[int]] = {node: set() for node in self.nodes}
        for edge in self.edges.values():
            found[edge.source].add(edge.target)
            found[edge.target].add(edge.source)
        return found

    def pair_evidence(self) -> dict[tuple[int, int], frozenset[int]]:
        """All evidence of an unordered pair (smaller id first), over its relations in both directions."""
        found: dict[tuple[int, int], frozenset[int]] = defaultdict(frozenset)
        for edge in self.edges.values():
            pair = (min(edge.source, edge.target), max(edge.source, edge.target))
            found[pair] |= edge.evidence
        return dict(found)

    def strong_pairs(self) -> int:
        """How many pairs of nodes are bound by at least two pieces of evidence."""
        return sum(len(evidence) >= 2 for evidence in self.pair_evidence().values())

    def core_distance(self) -> dict[int, int]:
        """Steps from the nearest core entity; nodes out of reach are missing."""
        adjacency = self.neighbours()
        distance = {node.id: 0 for node in self.nodes.values() if node.is_core}
        queue = deque(distance)
        while queue:
            node = queue.popleft()
            for other in sorted(adjacency[node]):
                if other not in distance:
                    distance[other] = distance[node] + 1
                    queue.append(other)
        return distance

    def on_topic(self) -> set[int]:
        """Core entities and their neighbours; all nodes of a graph without core entities."""
        near = {node for node, steps in self.core_distance().items() if steps <= 1}
        return near or set(self.nodes)

    def compact(self, max_chars: int | None = None) -> str:
        """The graph as text for a prompt: a line of names, then a line a relation, nearest to the core first.

        Args:
            max_chars: leave out what is farthest from the core entities beyond so many characters.
        """
        distance = self.core_distance()
        far = len(self.nodes)

        def near_first(edge: Edge) -> tuple[int, int]:
            return distance.get(edge.source, far) + distance.get(edge.target, far), edge.id

        core = "; ".join(node.name for node in self.nodes.values() if node.is_core)
        lines = [f"Core entities: {core or 'none'}"]
        size = len(lines[0])
        for edge in sorted(self.edges.values(), key=near_first):
            ends = self.nodes[edge.source].name, self.nodes[edge.target].name
            cited = ",".join(map(str, sorted(edge.evidence))) or "unsupported"
            line = f"{ends[0]} | {edge.relation} | {ends[1]} {{{cited}}}"
            size += len(line) + 1
            if max_chars is not None and size > max_chars:
                lines.append(f"({len(self.edges) - len(lines) + 1} relations left out)")
                break
            lines.append(line)
        return "\n".join(lines)

    def to_networkx(self) -> networkx.MultiDiGraph:
        """A directed multigraph with all attributes, in the order of ids."""
        import networkx

        graph = networkx.MultiDiGraph()
        for node in sorted(self.nodes.values(), key=lambda node: node.id):
            graph.add_node(
                node.id,
                name=node.name,
                is_core=node.is_core,
                aliases=list(node.aliases),
                community=node.community_id,
                cluster=node.cluster_id,
            )
        for edge in sorted(self.edges.values(), key=lambda edge: edge.id):
            graph.add_edge(
                edge.source,
                edge.target,
                key=edge.id,
                relation=edge.relation,
                evidence=sorted(edge.evidence),
                status=edge.status,
            )
        return graph

    def _index(self, node: Node) -> None:
        for name in (node.name, *node.aliases):
            self._by_name.setdefault(_fold(name), node.id)

    def _forget(self, node: Node) -> None:
        for name in (node.name, *node.aliases):
            if self._by_name.get(_fold(name)) == node.id:
                del self._by_name[_fold(name)]

    def _replace(self, node: Node) -> None:
        self.nodes[node.id] = node
        self._index(node)

    def _absorb(self, old: int, new: int) -> None:
        gone, kept = self.nodes.pop(old), self.nodes[new]
        self._forget(gone)
        names = [name for name in (gone.name, *gone.aliases) if _fold(name) != _fold(kept.name)]
        self._replace(replace(kept, aliases=tuple(dict.fromkeys((*kept.aliases, *names)))))

    def _rename(self, node_id: int, name: str) -> None:
        """Give a merged concept another of its names, or a new one that nobody has."""
        node, name = self.nodes[node_id], _SPACES.sub(" ", name).strip()
        if not name or _fold(name) == _fold(node.name) or self.find(name) not in (None, node_id):
            return
        aliases = [node.name, *(alias for alias in node.aliases if _fold(alias) != _fold(name))]
        self._replace(replace(node, name=name, aliases=tuple(aliases)))

    def _remap_edges(self, moved: Mapping[int, int]) -> None:
        if not moved:
            return
        kept: dict[int, Edge] = {}
        self._by_key = {}
        for edge in self.edges.values():
            source, target = moved.get(edge.source, edge.source), moved.get(edge.target, edge.target)
            if source == target:
                continue
            if (source, target) != (edge.source, edge.target):
                edge = replace(edge, source=source, target=target)
            twin = self._by_key.setdefault(_key(edge), edge.id)
            if twin == edge.id:
                kept[edge.id] = edge
            else:
                kept[twin] = replace(kept[twin], evidence=kept[twin].evidence | edge.evidence)
        self.edges = kept


def remap_visited(visited: Iterable[VisitedChain], moved: Mapping[int, int]) -> set[VisitedChain]:
    """Visited chains after a merge; chains whose ends became one node are dropped.

    Args:
        visited: chains by the ids of their nodes and their type.
        moved: removed id -> surviving id, from `KnowledgeGraph.merge`.
    """
    result: set[VisitedChain] = set()
    for first, second, kind in visited:
        u, v = sorted((moved.get(first, first), moved.get(second, second)))
        if u != v:
            result.add((u, v, kind))
    return result


def mentions_both(evidence: Evidence, first: Node, second: Node) -> bool:
    """Whether the passage names both nodes, by name or alias, as whole words and in any letter case."""
    return mentions(evidence.content, first) and mentions(evidence.content, second)


def mentions(text: str, node: Node) -> bool:
    """Whether `text` names the node, by name or alias, as whole words and in any letter case.

    A plural s and the spelling of spaces, hyphens and underscores make no difference.
    """
    return any(_pattern(name).search(text) for name in (node.name, *node.aliases))


@functools.lru_cache(maxsize=20_000)
def _pattern(name: str) -> re.Pattern[str]:
    words = [re.escape(word) for word in re.split(r"[\s_\-]+", name) if word]
    # Between two words there may be any separator; a boundary only makes sense beside a letter or a digit.
    body = r"[\s_\-]+".join(words)
    start = r"(?<!\w)" if name[:1].isalnum() else ""
    end = r"(?:s|es)?(?!\w)" if name[-1:].isalnum() else ""
    return re.compile(start + body + end, re.IGNORECASE)


def _key(edge: Edge) -> tuple[int, int, str]:
    return edge.source, edge.target, edge.relation.casefold()


def _fold(name: str) -> str:
    return _SPACES.sub(" ", name).strip().casefold()
