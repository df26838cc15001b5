"""Exports: other tools read them, hostile text in them does nothing."""

from __future__ import annotations

import csv
import json

import networkx

from assay.methods.dualgraph.exports import citations_csv, write_exports
from assay.methods.dualgraph.records import CitationRow
from assay.methods.dualgraph.research_run import ResearchRun


def test_all_files_are_written_and_read_back(made_run, tmp_path):
    made_run.kg.add_node("Kite\x0b\x00", aliases=("Milvus", "red kite"))
    files = write_exports(made_run, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in files)
    graph = networkx.node_link_graph(json.loads((tmp_path / "kg.json").read_text()), edges="edges")
    assert networkx.utils.graphs_equal(graph, made_run.kg.to_networkx())
    graphml = networkx.read_graphml(tmp_path / "kg.graphml", node_type=int, force_multigraph=True)
    assert set(graphml) == set(graph)
    assert graphml.number_of_edges() == graph.number_of_edges()
    kestrel = next(i for i, data in graphml.nodes(data=True) if data["label"] == "Kestrel")
    assert graphml.nodes[kestrel]["is_core"] is True
    weights = {data["label"]: data["weight"] for *_, data in graphml.edges(data=True)}
    assert weights["hunts"] == 2
    assert weights["competes with"] == 0


def test_the_outline_is_nested(made_run, tmp_path):
    write_exports(made_run, tmp_path)
    outline = json.loads((tmp_path / "outline.json").read_text())
    assert [section["title"] for section in outline["sections"]] == ["Kestrel", "Harrier"]
    assert outline["sections"][0]["points"][0] == {"text": "how it hunts", "evidence": [1, 2]}
    assert outline["sections"][0]["sections"][0]["number"] == "1.1"


def test_the_article_is_in_the_format_of_the_benchmark(made_run, tmp_path):
    write_exports(made_run, tmp_path)
    (line,) = (tmp_path / "fact.jsonl").read_text().splitlines()
    assert json.loads(line) == {"id": 0, "prompt": made_run.question, "article": made_run.report}


def test_citations_are_a_table(made_run, tmp_path):
    write_exports(made_run, tmp_path)
    with (tmp_path / "citations.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(made_run.citations)
    assert rows[1]["sentence"] == "It eats the Vole in 9 of 12 months."
    assert [row["status"] for row in rows].count("supported") == 4


def test_a_spreadsheet_runs_nothing():
    for sentence in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1"):
        text = citations_csv([CitationRow("1", sentence, 1, "=cmd()", "supported")])
        (row,) = list(csv.DictReader(text.splitlines()))
        assert row["sentence"].startswith("'")
        assert row["url"] == "'=cmd()"


def test_the_run_folder_has_them(finished):
    names = {path.name for path in finished.iterdir()}
    assert {
        "report.md",
        "report.html",
        "kg.graphml",
        "kg.json",
        "outline.json",
        "citations.csv",
        "fact.jsonl",
    } <= names
    run = ResearchRun.load(finished)
    graph = networkx.node_link_graph(json.loads((finished / "kg.json").read_text()), edges="edges")
    assert networkx.utils.graphs_equal(graph, run.kg.to_networkx())
