"""When to stop: the rubric for the outline, and saturation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.methods.dualgraph.model_calls import ModelCaller
from assay.methods.dualgraph.prompts import RUBRIC
from assay.methods.dualgraph.records import InvalidOutput, RoundRow, Rubric
from assay.methods.dualgraph.state import RunState

PASS: Mapping[Rubric, Mapping[str, float]] = {
    "low": {"instruction": 8, "depth": 8, "balance": 8, "breadth": 8, "support": 5, "insight": 8},
    "high": {"instruction": 9, "depth": 9, "balance": 9, "breadth": 9, "support": 5, "insight": 8},
}
"""What an outline has to reach in everything (published code)."""

IDLE_ROUNDS = 2


def judge(state: RunState, caller: ModelCaller, *, iteration: int) -> dict[str, float]:
    """The outline's scores from 0 to 10; zeros, which mean going on, if the model can't be understood."""
    outline = state.outline
    sections = []
    for section in outline.sections:
        lines = [line for line in outline.lines() if line.section == section.id and line.place >= 0]
        evidence = {cited for line in lines for cited in line.evidence} | set(section.evidence)
        sections.append(
            {
                "number": section.number,
                "title": section.title,
                "lines": len(lines),
                "cited": sum(bool(line.evidence) for line in lines),
                "evidence": len(evidence),
            }
        )
    data: dict[str, Any] = {
        "question": state.question,
        "outline": outline.render(),
        "sections": sections,
        "counts": {
            "nodes": len(state.graph.nodes),
            "edges": len(state.graph.edges),
            "strong_edges": state.graph.strong_pairs(),
            "evidence": len(state.evidence),
            "iteration": iteration,
        },
    }
    try:
        answer = caller.ask("judge", data, step=f"{iteration}/judge")
    except InvalidOutput:
        return dict.fromkeys(RUBRIC, 0.0)
    return {name: min(10.0, max(0.0, float(answer[name]))) for name in RUBRIC}


def passed(scores: Mapping[str, float], rubric: Rubric) -> bool:
    """Whether every score reaches the rubric."""
    return all(scores.get(name, 0.0) >= least for name, least in PASS[rubric].items())


def saturated(rounds: Sequence[RoundRow]) -> bool:
    """Whether two rounds in a row brought nothing (ours).

    With a knowledge graph: no node, and no pair raised to two pieces of evidence. Without: no evidence.
    """
    if len(rounds) <= IDLE_ROUNDS:
        return False
    before, now = rounds[-1 - IDLE_ROUNDS], rounds[-1]
    if now.nodes:
        return now.nodes <= before.nodes and now.strong_edges <= before.strong_edges
    return now.evidence <= before.evidence
