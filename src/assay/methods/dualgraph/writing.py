"""The report: written by section from its evidence, every citation checked, references numbered."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from assay.methods.dualgraph.checkers import Checker, LexicalChecker
from assay.methods.dualgraph.citations import check_section, effective, precision, renumber
from assay.methods.dualgraph.gathering import evidence_values, usable
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph
from assay.methods.dualgraph.markers import without_links, without_markers
from assay.methods.dualgraph.model_calls import ModelCaller
from assay.methods.dualgraph.outline import OutlineGraph
from assay.methods.dualgraph.records import CitationRow, InvalidOutput, Section
from assay.methods.dualgraph.state import RunState, WrittenSection

NO_EVIDENCE = "No evidence was found for this section."

CHARS_A_TOKEN = 4
DIGEST_TOKENS = 800

ENDINGS: Mapping[str, str] = {
    "passed": "the outline passed the rubric",
    "saturated": "two rounds in a row found nothing new",
    "max_iter": "the last round was reached",
    "budget": "**the budget was spent before the research was finished**",
}
"""Why a run ended, for its readers."""

WARNINGS: Mapping[str, str] = {
    "failed_searches": "searches failed",
    "unread_pages": "results could not be read",
    "failed_reads": "results could not be fetched",
    "duplicate_pages": "pages were copies of others",
    "suspect_passages": "passages looked like instructions to a model",
    "quotes_not_verbatim": "quotes of the model were not in the page",
    "dropped_relations": "extracted relations were unusable",
    "dropped_attributions": "attributions named evidence that does not mention both ends",
    "outline_repairs": "citations of the outline were put back or removed",
    "unknown_chains": "chosen chains did not exist",
    "unknown_results": "chosen results did not exist",
    "invalid_answers": "answers of the model could not be used at first",
    "context_truncated": "inputs were cut to fit the model's context",
}
"""What is counted during a run, for its readers."""


def write_section(
    state: RunState, caller: ModelCaller, section: Section, checker: Checker, *, step: str
) -> tuple[WrittenSection, list[CitationRow]]:
    """One top-level section, from what its outline cites, with its citations checked.

    A section whose outline cites nothing says so and is not written by a model.
    """
    # A heading comes from a model, too: nothing in it may look like a link or a citation.
    title = without_markers(without_links(section.title))
    sections = state.outline.subtree(section.id)
    allowed = usable(state)
    cited = {i: allowed[i] for i in sorted(state.outline.evidence(sections)) if i in allowed}
    if not cited:
        return WrittenSection(section.number, title, NO_EVIDENCE), []
    data = {
        "question": state.question,
        "language": state.config.language,
        "section": {
            "number": section.number,
            "title": section.title,
            "outline": OutlineGraph.from_subtree(sections).render(),
        },
        "lines": _lines(sections, cited),
        "evidence": [
            value | {"url": cited[value["id"]].source_url} for value in evidence_values(cited.values())
        ],
        "relations": relation_values(state.graph, cited),
        "previous": _previous(state, caller, step),
    }
    try:
        text = caller.ask("write", data, step=step)["text"]
    except InvalidOutput:
        text = _quoted(data)
    options = {"section": section.number, "evidence": state.evidence, "admissible": set(cited)}
    try:
        checked = check_section(text, checker=checker, **options)
    except InvalidOutput:
        caller.warn("failed_check")
        checked = check_section(text, checker=LexicalChecker(), **options)
    return WrittenSection(section.number, title, checked.text.strip()), checked.rows


def report(state: RunState) -> str:
    """The whole report in Markdown: title, how the run ended, sections, references."""
    parts = [f"# {' '.join(state.question.split())}", _summary(state)]
    body = "\n\n".join(f"## {s.number}. {s.title}\n\n{s.text}" for s in state.sections)
    numbered = renumber(body, usable(state))
    parts.append(numbered.text)
    if numbered.references:
        lines = []
        for reference in numbered.references:
            found = {state.evidence[i].page for i in reference.evidence}
            pages = ", ".join(str(page) for page in sorted(page for page in found if page is not None))
            where = f" (p. {pages})" if pages else ""
            title = re.sub(r"([\\`<>\[\]])", r"\\\1", " ".join(reference.title.split())) or "Untitled"
            address = reference.url.replace("<", "%3C").replace(">", "%3E").replace(" ", "%20")
            lines.append(f"[{reference.number}] {title}{where}. <{address}>")
        parts.append("## References\n\n" + "\n\n".join(lines))
    return "\n\n".join(parts) + "\n"


def relation_values(graph: KnowledgeGraph, evidence: Collection[int]) -> list[dict[str, Any]]:
    """The relations that some of the evidence supports, as the tasks of `prompts.ROLES` take them."""
    allowed = set(evidence)
    return [
        {
            "source": graph.nodes[edge.source].name,
            "relation": edge.relation,
            "target": graph.nodes[edge.target].name,
            "evidence": sorted(edge.evidence & allowed),
        }
        for edge in graph.edges.values()
        if edge.evidence & allowed
    ]


def _lines(sections: list[Section], cited: Collection[int]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for section in sections:
        heading = [i for i in section.evidence if i in cited]
        level = section.level
        lines.append({"text": section.title, "evidence": heading, "heading": True, "level": level})
        for point in section.points:
            ids = [i for i in point.evidence if i in cited]
            lines.append({"text": point.text, "evidence": ids, "heading": False, "level": level})
    return lines


def _previous(state: RunState, caller: ModelCaller, step: str) -> str:
    """What is written already; a digest of it once it would fill half of the model's context."""
    text = "\n\n".join(f"## {s.number}. {s.title}\n\n{s.text}" for s in state.sections)
    if len(text) <= caller.model.context_tokens // 2 * CHARS_A_TOKEN:
        return text
    try:
        return caller.ask("digest", {"text": text, "limit": DIGEST_TOKENS}, step=step)["text"]
    except InvalidOutput:
        return text[-DIGEST_TOKENS * CHARS_A_TOKEN :]


def _quoted(data: Mapping[str, Any]) -> str:
    """When the model can't write: the evidence itself, line by line of the outline."""
    content = {item["id"]: " ".join(item["content"].split()) for item in data["evidence"]}
    blocks: list[str] = []
    for line in data["lines"][1:]:
        if line["heading"]:
            blocks.append(f"{'#' * min(6, line['level'] + 1)} {line['text']}")
        blocks += [f"- {content[i]} [{i}]" for i in line["evidence"]]
    used = {i for line in data["lines"][1:] for i in line["evidence"]}
    blocks += [f"- {text} [{i}]" for i, text in content.items() if i not in used]
    return "\n\n".join(blocks)


def _summary(state: RunState) -> str:
    """A paragraph on how the report came about, with all that went wrong."""
    rows = state.citations
    share = precision(rows)
    removed = sum(row.status != "supported" for row in rows)
    lines = [
        f"Research ended because {ENDINGS.get(state.status, state.status)}; "
        f"{len(state.queries)} searches in {len(state.documents)} documents gave {len(usable(state))} pieces "
        f"of evidence."
    ]
    if share is not None:
        checked = (
            f"{len(rows)} citations were checked ({rows[0].checker}): {effective(rows)} distinct ones hold"
        )
        lines.append(checked + (f"; removed because they do not: {removed}." if removed else "."))
    problems = [
        f"{count} {WARNINGS[name]}" for name, count in sorted(state.warnings.items()) if name in WARNINGS
    ]
    failed = {
        name.removeprefix("failed_"): count
        for name, count in sorted(state.warnings.items())
        if name.startswith("failed_") and name not in WARNINGS
    }
    problems += [f"{count} tasks of the kind {role} fell back to a rule" for role, count in failed.items()]
    if problems:
        lines.append(f"Of note: {'; '.join(problems)}.")
    return "\n".join(f"> {line}" for line in lines)
