"""The page of a run: one HTML file with the report, both graphs drawn, and the evidence behind every mark."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

import assay.report
from assay.files import write_text
from assay.methods.dualgraph.citations import effective, precision
from assay.methods.dualgraph.extractive import EXTRACTIVE
from assay.methods.dualgraph.graph_drawing import knowledge_drawing, outline_drawing
from assay.methods.dualgraph.pricing import PRICES_DATE
from assay.methods.dualgraph.references import (
    ListedReference,
    parse_report,
    readable_address,
    safe_link,
    written_address,
)
from assay.methods.dualgraph.report_html import report_html
from assay.methods.dualgraph.writing import ENDINGS, WARNINGS

if TYPE_CHECKING:
    from assay.methods.dualgraph.research_run import ResearchRun

_TEMPLATES = Path(__file__).parent / "templates"
_HOUSE = Path(assay.report.__file__).parent / "templates"

CHAIN_WORDS = {
    "enrich": "weak relation",
    "entity_concept": "entity and concept apart",
    "cross_community": "structural hole",
    "sbm_probability": "likely link",
    "sbm_entropy": "uncertain link",
    "random_pair": "random pair",
}


def write_page(run: ResearchRun, path: Path) -> None:
    """Write the page of a run, atomically. It loads nothing, and all that comes from outside is escaped."""
    write_text(path, page_html(run))


def page_html(run: ResearchRun) -> str:
    """The HTML of a run's page."""
    parsed = parse_report(run.report)
    body = re.sub(r"\A\s*# .*\n", "", parsed.body)
    cited = _cited_evidence(run)
    gaps = run.gaps(24) if run.kg.edges else []
    context: dict[str, Any] = {
        "question": run.question,
        "ending": ENDINGS.get(run.status, run.status.replace("_", " ")).replace("**", ""),
        "finished": run.status in ENDINGS and run.status != "budget",
        "facts": _facts(run),
        "extractive": any(row.model == EXTRACTIVE for row in run.ledger),
        "warnings": [
            (WARNINGS.get(name, name.replace("_", " ")), n) for name, n in sorted(run.warnings.items())
        ],
        "report": Markup(report_html(body, parsed.references, cited, run.citations)),
        "references": [_reference(reference, cited) for reference in parsed.references.values()],
        "graph": knowledge_drawing(run.kg, gaps),
        "outline": outline_drawing(run.question, run.outline),
        "nodes": _nodes(run),
        "pairs": _pairs(run),
        "evidence": _evidence(run),
        "gaps": [
            {"type": CHAIN_WORDS[gap.type], "names": gap.names, "reason": gap.reason, "known": gap.content}
            for gap in gaps
        ],
        "citations": run.citations,
        "checked": Counter(row.status for row in run.citations),
        "rounds": run.rounds,
        "queries": run.queries,
        "ledger": _ledger(run),
        "prices_date": PRICES_DATE,
        "config": run.config,
    }
    return _environment().get_template("run.html").render(context)


def _facts(run: ResearchRun) -> list[tuple[str, str]]:
    """What is shown at the top, as (label, value)."""
    share = precision(run.citations)
    sources = {piece.sha256 for piece in run.evidence.values()}
    money = "unknown" if run.usd is None else f"${run.usd:,.2f}"
    return [
        ("Searches", f"{len(run.queries):,}"),
        ("Pieces of evidence", f"{len(run.evidence):,}"),
        ("Sources", f"{len(sources):,}"),
        ("Entities", f"{len(run.kg.nodes):,}"),
        ("Relations", f"{len(run.kg.edges):,}"),
        ("Citations that hold", "none" if share is None else f"{share:.0%} of {len(run.citations):,}"),
        ("Distinct", f"{effective(run.citations):,}"),
        ("Tokens", f"{run.tokens:,}"),
        ("Cost", money),
    ]


def _cited_evidence(run: ResearchRun) -> dict[str, list[int]]:
    """The ids that the report cites, by address as the report writes it."""
    cited: dict[str, list[int]] = {}
    for row in run.citations:
        ids = cited.setdefault(written_address(row.url), [])
        if row.status == "supported" and row.evidence_id not in ids:
            ids.append(row.evidence_id)
    return cited


def _reference(reference: ListedReference, cited: dict[str, list[int]]) -> dict[str, Any]:
    return {
        "number": reference.number,
        "title": reference.title,
        "address": readable_address(reference.url),
        "link": safe_link(reference.url),
        "evidence": cited.get(reference.url, []),
    }


def _nodes(run: ResearchRun) -> list[dict[str, Any]]:
    """Every entity with the pairs that it is part of, core entities first, then by name."""
    neighbours = run.kg.neighbours()
    strength = run.kg.pair_evidence()
    said: dict[tuple[int, int], str] = {}
    for edge in sorted(run.kg.edges.values(), key=lambda edge: -len(edge.evidence)):
        low, high = sorted((edge.source, edge.target))
        said.setdefault((low, high), edge.relation)
    listed = []
    for node in sorted(run.kg.nodes.values(), key=lambda node: (not node.is_core, node.name.casefold())):
        pairs = []
        for other in sorted(neighbours.get(node.id, ()), key=lambda i: run.kg.nodes[i].name.casefold()):
            low, high = sorted((node.id, other))
            pairs.append(
                {
                    "key": f"{low}-{high}",
                    "name": run.kg.nodes[other].name,
                    "evidence": sorted(strength[low, high]),
                    "relation": said.get((low, high), ""),
                }
            )
        listed.append({"node": node, "pairs": pairs})
    return listed


def _pairs(run: ResearchRun) -> list[dict[str, Any]]:
    """Every pair of related entities with all its relations, in the order of names."""
    grouped: dict[tuple[int, int], list[Any]] = {}
    for edge in run.kg.edges.values():
        low, high = sorted((edge.source, edge.target))
        grouped.setdefault((low, high), []).append(edge)
    name = {node.id: node.name for node in run.kg.nodes.values()}
    pairs = []
    for (low, high), edges in grouped.items():
        pairs.append(
            {
                "key": f"{low}-{high}",
                "names": (name[low], name[high]),
                "relations": [
                    {
                        "source": name[edge.source],
                        "relation": edge.relation,
                        "target": name[edge.target],
                        "evidence": sorted(edge.evidence),
                        "supported": edge.status == "supported",
                    }
                    for edge in edges
                ],
            }
        )
    return sorted(pairs, key=lambda pair: tuple(part.casefold() for part in pair["names"]))


def _evidence(run: ResearchRun) -> list[dict[str, Any]]:
    queries = {query.id: query.text for query in run.queries}
    sentences: dict[int, list[str]] = {}
    for row in run.citations:
        if row.status == "supported" and row.sentence not in sentences.setdefault(row.evidence_id, []):
            sentences[row.evidence_id].append(row.sentence)
    return [
        {
            "piece": piece,
            "address": readable_address(piece.source_url),
            "link": safe_link(piece.source_url),
            "query": queries.get(piece.query_id, ""),
            "cited_in": sentences.get(piece.id, []),
        }
        for piece in sorted(run.evidence.values(), key=lambda piece: piece.id)
    ]


def _ledger(run: ResearchRun) -> list[dict[str, Any]]:
    """Calls, tokens, money and seconds by role and model, the dearest first; None for an unknown price."""
    total: dict[tuple[str, str], dict[str, Any]] = {}
    for row in run.ledger:
        entry = total.setdefault(
            (row.role, row.model),
            {
                "role": row.role,
                "model": row.model,
                "calls": 0,
                "sent": 0,
                "received": 0,
                "usd": 0.0,
                "seconds": 0.0,
            },
        )
        entry["calls"] += 1
        entry["sent"] += row.prompt_tokens
        entry["received"] += row.completion_tokens
        entry["seconds"] += row.seconds
        entry["usd"] = None if row.usd is None or entry["usd"] is None else entry["usd"] + row.usd
    return sorted(total.values(), key=lambda entry: (-entry["sent"] - entry["received"], entry["role"]))


@cache
def _environment() -> jinja2.Environment:
    """Templates of this method on top of the house's, with one script whose hash the page's policy allows."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_TEMPLATES, _HOUSE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    theme = (_HOUSE / "page.js").read_text(encoding="utf-8")
    script = f"{theme}\n{(_TEMPLATES / 'run.js').read_text(encoding='utf-8')}"
    style = (_HOUSE / "page.css").read_text(encoding="utf-8") + (_TEMPLATES / "run.css").read_text(
        encoding="utf-8"
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment.globals |= {
        "assay_version": importlib.metadata.version("assay"),
        "style": Markup(style),
        "script": Markup(script),
        "policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
    }
    environment.filters["ids"] = _ids
    return environment


def _ids(ids: Any) -> str:
    """Ids as the value of an attribute."""
    return " ".join(str(identifier) for identifier in ids)
