"""Reading and writing the state of a run in its tables; only what has changed is written."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph
from assay.methods.dualgraph.outline import OutlineGraph
from assay.methods.dualgraph.records import (
    Chain,
    CitationRow,
    Document,
    Edge,
    Evidence,
    Node,
    Point,
    QueryRow,
    RoundRow,
    Section,
)
from assay.methods.dualgraph.state import RunState, WrittenSection, config_from, config_values

RUN = 1
"""A folder holds one run."""

dump: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True).encode
"""Canonical JSON."""


def write_state(db: sqlite3.Connection, state: RunState, old: RunState | None) -> None:
    """Write what differs between `state` and `old`, which the database holds."""
    _write_run(db, state, old)
    _write_material(db, state, old)
    _write_graph(db, state.graph, None if old is None else old.graph)
    if old is None or state.outline is not old.outline:
        _write_outline(db, state.outline)
    _write_report(db, state, old)


def read_state(db: sqlite3.Connection, run: tuple[str, str, str, str, int, int, int]) -> RunState:
    """The state in the database, given the row of the run, as `RunStore.load` reads it."""
    state = RunState(run[0], config_from(json.loads(run[1])), run[2], run[3], bound=run[4])
    for row in db.execute("SELECT * FROM queries ORDER BY id"):
        state.queries.append(QueryRow(*row[:6], errors=tuple(json.loads(row[6]))))
    state.seen = {row[0] for row in db.execute("SELECT key FROM seen")}
    for sha256, url, title, text, pages in db.execute("SELECT * FROM documents ORDER BY rowid"):
        state.documents[sha256] = Document(url, title, text, sha256, tuple(json.loads(pages)))
    for row in db.execute("SELECT * FROM evidence ORDER BY id"):
        state.evidence[row[0]] = _evidence(*row)
    state.graph = _read_graph(db, (run[5], run[6]))
    state.outline = _read_outline(db)
    state.visited = {(u, v, kind) for u, v, kind in db.execute("SELECT u, v, type FROM visited")}
    for row in db.execute("SELECT * FROM chains ORDER BY rowid"):
        state.chains.append((row[0], _chain(*row[1:])))
    for iteration, numbers in db.execute("SELECT * FROM rounds ORDER BY iteration"):
        state.rounds.append(RoundRow(iteration, **json.loads(numbers)))
    for row in db.execute("SELECT number, title, text FROM report_sections ORDER BY rowid"):
        state.sections.append(WrittenSection(*row))
    for row in db.execute("SELECT * FROM citations ORDER BY id"):
        state.citations.append(CitationRow(*row[1:]))
    state.warnings = Counter(dict(db.execute("SELECT name, count FROM warnings").fetchall()))
    return state


def _write_run(db: sqlite3.Connection, state: RunState, old: RunState | None) -> None:
    if old is None:
        config = dump(config_values(state.config))
        db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (RUN, state.question, config, state.status, state.nonce, state.bound, *state.graph.used),
        )
        return
    if state.status != old.status:
        db.execute("UPDATE runs SET status=?", (state.status,))
    if state.graph.used != old.graph.used:
        db.execute("UPDATE runs SET used_nodes=?, used_edges=?", state.graph.used)
    if state.bound != old.bound:
        db.execute("UPDATE runs SET bound=?", (state.bound,))
    if state.config != old.config:
        db.execute("UPDATE runs SET config=?", (dump(config_values(state.config)),))


def _write_material(db: sqlite3.Connection, state: RunState, old: RunState | None) -> None:
    """Queries, results, documents and evidence, which are only ever added."""
    queries = state.queries[len(old.queries) if old else 0 :]
    _insert(
        db,
        "queries",
        ((q.id, q.iteration, q.text, q.origin, q.hits, q.evidence, dump(q.errors)) for q in queries),
    )
    _insert(db, "seen", ((key,) for key in state.seen - (old.seen if old else set())))
    documents = [d for sha, d in state.documents.items() if old is None or sha not in old.documents]
    _insert(db, "documents", ((d.sha256, d.url, d.title, d.text, dump(d.pages)) for d in documents))
    evidence = [e for i, e in state.evidence.items() if old is None or i not in old.evidence]
    _insert(
        db,
        "evidence",
        (
            (e.id, e.source_title, e.source_url, e.content, *e.span, e.sha256, e.query_id, e.page, e.suspect)
            for e in evidence
        ),
    )


def _write_graph(db: sqlite3.Connection, graph: KnowledgeGraph, old: KnowledgeGraph | None) -> None:
    """Only what has changed: a step touches few of thousands of relations."""
    nodes, edges = ({}, {}) if old is None else (old.nodes, old.edges)
    for node in nodes.keys() - graph.nodes.keys():
        db.execute("DELETE FROM nodes WHERE id=?", (node,))
    for edge in edges.keys() - graph.edges.keys():
        db.execute("DELETE FROM edges WHERE id=?", (edge,))
        db.execute("DELETE FROM edge_evidence WHERE edge=?", (edge,))
    changed_nodes = [node for i, node in graph.nodes.items() if nodes.get(i) is not node]
    _insert(
        db,
        "nodes",
        ((n.id, n.name, n.is_core, dump(n.aliases), n.community_id, n.cluster_id) for n in changed_nodes),
    )
    changed = [edge for i, edge in graph.edges.items() if edges.get(i) is not edge]
    _insert(db, "edges", ((e.id, e.source, e.target, e.relation) for e in changed))
    _insert(db, "edge_evidence", ((e.id, cited) for e in changed for cited in sorted(e.evidence)))


def _read_graph(db: sqlite3.Connection, used: tuple[int, int]) -> KnowledgeGraph:
    cited: dict[int, list[int]] = {}
    for edge, evidence in db.execute("SELECT edge, evidence FROM edge_evidence"):
        cited.setdefault(edge, []).append(evidence)
    nodes = [
        Node(row[0], row[1], bool(row[2]), tuple(json.loads(row[3])), row[4], row[5])
        for row in db.execute("SELECT * FROM nodes ORDER BY id")
    ]
    edges = [
        Edge(identifier, source, target, relation, frozenset(cited.get(identifier, ())))
        for identifier, source, target, relation in db.execute("SELECT * FROM edges ORDER BY id")
    ]
    return KnowledgeGraph(nodes, edges, used)


def _write_outline(db: sqlite3.Connection, outline: OutlineGraph) -> None:
    db.execute("DELETE FROM sections")
    db.execute("DELETE FROM section_evidence")
    _insert(
        db,
        "sections",
        ((s.id, s.number, s.title, s.parent, dump([p.text for p in s.points])) for s in outline.sections),
    )
    _insert(
        db,
        "section_evidence",
        (
            (line.section, line.place, rank, cited)
            for line in outline.lines()
            for rank, cited in enumerate(line.evidence)
        ),
    )


def _read_outline(db: sqlite3.Connection) -> OutlineGraph:
    cited: dict[tuple[int, int], list[int]] = {}
    for section, place, evidence in db.execute(
        "SELECT section, place, evidence FROM section_evidence ORDER BY section, place, rank"
    ):
        cited.setdefault((section, place), []).append(evidence)
    sections = []
    for identifier, number, title, parent, points in db.execute("SELECT * FROM sections ORDER BY id"):
        lines = [
            Point(text, tuple(cited.get((identifier, i), ()))) for i, text in enumerate(json.loads(points))
        ]
        heading = tuple(cited.get((identifier, -1), ()))
        sections.append(Section(identifier, number, title, parent, tuple(lines), heading))
    return OutlineGraph(sections)


def _write_report(db: sqlite3.Connection, state: RunState, old: RunState | None) -> None:
    """Chains, rounds, written sections, checked citations and warnings."""
    before = old.visited if old else set()
    for chain in before - state.visited:
        db.execute("DELETE FROM visited WHERE u=? AND v=? AND type=?", chain)
    _insert(db, "visited", state.visited - before)
    chains = state.chains[len(old.chains) if old else 0 :]
    for iteration, c in chains:
        row = (iteration, c.id, c.type, *c.nodes, *c.names, c.score, c.reason, c.content)
        _insert(db, "chains", [(*row, c.on_topic)])
    for row in state.rounds[len(old.rounds) if old else 0 :]:
        numbers = {name: getattr(row, name) for name in RoundRow.__slots__ if name != "iteration"}
        numbers["scores"] = dict(row.scores)
        _insert(db, "rounds", [(row.iteration, dump(numbers))])
    sections = state.sections[len(old.sections) if old else 0 :]
    _insert(db, "report_sections", ((s.number, s.title, s.text) for s in sections))
    first = len(old.citations) if old else 0
    _insert(
        db,
        "citations",
        (
            (i, c.section, c.sentence, c.evidence_id, c.url, c.status, c.quote_overlap, c.score, c.checker)
            for i, c in enumerate(state.citations[first:], start=first + 1)
        ),
    )
    warnings = old.warnings if old else Counter()
    _insert(db, "warnings", (item for item in state.warnings.items() if warnings[item[0]] != item[1]))


def _evidence(identifier: int, title: str, url: str, content: str, *rest: Any) -> Evidence:
    start, end, sha256, query, page, suspect = rest
    return Evidence(identifier, title, url, content, (start, end), sha256, query, page, bool(suspect))


def _chain(
    rank: int,
    kind: Any,
    u: int,
    v: int,
    u_name: str,
    v_name: str,
    *rest: Any,
) -> Chain:
    score, reason, content, on_topic = rest
    return Chain(rank, kind, (u, v), (u_name, v_name), score, reason, content, True, bool(on_topic))


def _insert(db: sqlite3.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    for row in rows:
        db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def snapshot(state: RunState) -> RunState:
    """What is needed to see later what has changed: shallow copies, because records are immutable."""
    graph = KnowledgeGraph.__new__(KnowledgeGraph)
    graph.nodes, graph.edges = dict(state.graph.nodes), dict(state.graph.edges)
    graph._next_node, graph._next_edge = (last + 1 for last in state.graph.used)
    return RunState(
        question=state.question,
        config=state.config,
        status=state.status,
        nonce=state.nonce,
        bound=state.bound,
        graph=graph,
        outline=state.outline,
        evidence=dict(state.evidence),
        documents=dict(state.documents),
        queries=list(state.queries),
        seen=set(state.seen),
        visited=set(state.visited),
        chains=list(state.chains),
        rounds=list(state.rounds),
        sections=list(state.sections),
        citations=list(state.citations),
        warnings=Counter(state.warnings),
    )
