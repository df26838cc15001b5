"""The files of a run that other tools read: the graph, the outline, the checked citations, the article."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.files import replacing, write_json, write_text
from assay.methods.dualgraph.records import CitationRow

if TYPE_CHECKING:
    import networkx

    from assay.methods.dualgraph.outline import OutlineGraph
    from assay.methods.dualgraph.research_run import ResearchRun

GRAPHML, NODE_LINK, OUTLINE = "kg.graphml", "kg.json", "outline.json"
CITATIONS, FACT = "citations.csv", "fact.jsonl"

# What XML 1.0 has no way to write.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def write_exports(run: ResearchRun, folder: Path) -> list[Path]:
    """Write all exports of a run to a folder, each atomically.

    Returns:
        The files: `kg.graphml` (Gephi, Neo4j), `kg.json` (`networkx.node_link_graph`), `outline.json`,
        `citations.csv`, and `fact.jsonl` in the raw format of DeepResearch Bench.
    """
    import networkx

    graph = run.kg.to_networkx()
    with replacing(folder / GRAPHML) as temporary:
        networkx.write_graphml_xml(graphml(graph), temporary)
    write_json(folder / NODE_LINK, networkx.node_link_data(graph, edges="edges"))
    write_json(folder / OUTLINE, outline_tree(run.question, run.outline))
    write_text(folder / CITATIONS, citations_csv(run.citations))
    write_text(folder / FACT, fact_line(run.question, run.report))
    return [folder / name for name in (GRAPHML, NODE_LINK, OUTLINE, CITATIONS, FACT)]


def graphml(graph: networkx.MultiDiGraph) -> networkx.MultiDiGraph:
    """The graph with attributes that GraphML can hold: no lists, no None, no control characters.

    Lists become text with `; ` between the items. Nodes get `label` and edges `label` and `weight` (pieces of
    evidence), which Gephi shows by themselves.
    """
    import networkx

    plain = networkx.MultiDiGraph()
    for node, attributes in graph.nodes(data=True):
        plain.add_node(node, label=_xml(attributes["name"]), **_flat(attributes))
    for source, target, key, attributes in graph.edges(keys=True, data=True):
        weight = len(attributes["evidence"])
        label = _xml(attributes["relation"])
        plain.add_edge(source, target, key=key, label=label, weight=weight, **_flat(attributes))
    return plain


def _flat(attributes: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, list):
            value = "; ".join(str(item) for item in value)
        if value is not None:
            flat[name] = _xml(value) if isinstance(value, str) else value
    return flat


def _xml(text: str) -> str:
    return _NOT_XML.sub("", text)


def outline_tree(question: str, outline: OutlineGraph) -> dict[str, Any]:
    """The outline as nested JSON values: number, title, evidence, points and sections of every section."""
    made: dict[int | None, list[dict[str, Any]]] = {None: []}
    for section in outline.sections:
        made[section.id] = []
        made[section.parent].append(
            {
                "number": section.number,
                "title": section.title,
                "evidence": list(section.evidence),
                "points": [
                    {"text": point.text, "evidence": list(point.evidence)} for point in section.points
                ],
                "sections": made[section.id],
            }
        )
    return {"question": question, "sections": made[None]}


def citations_csv(rows: list[CitationRow]) -> str:
    """One line a citation with its status and scores, for spreadsheets.

    A sentence or an address that a spreadsheet would run as a formula gets an apostrophe in front.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["section", "sentence", "evidence", "url", "status", "quote_overlap", "score", "checker"])
    for row in rows:
        cells = [row.section, _inert(row.sentence), row.evidence_id, _inert(row.url), row.status]
        writer.writerow([*cells, row.quote_overlap, row.score, row.checker])
    return text.getvalue()


def _inert(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def fact_line(question: str, article: str, *, identifier: int | str = 0) -> str:
    """A line of DeepResearch Bench's raw data: `id`, `prompt` and `article` as JSON."""
    return json.dumps({"id": identifier, "prompt": question, "article": article}, ensure_ascii=False) + "\n"
