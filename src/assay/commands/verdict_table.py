"""The verdicts of a run as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from assay.report.numerals import interval

STYLES = {"holds": "green", "fails": "red", "inconclusive": "yellow", "not testable": "dim"}


def verdict_table(claims: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]) -> Table:
    """Claims with their verdicts; a claim without one shows a dash.

    Args:
        claims: as in `study.json`.
        verdicts: as in `verdicts.json`; may be empty.
    """
    table = Table(show_lines=True)
    for column in ("claim", "verdict", "effect [interval]", "n", "the paper's number"):
        table.add_column(column, justify="right" if column == "n" else "left", overflow="fold")
    by_claim = {verdict["claim"]: verdict for verdict in verdicts}
    for claim in claims:
        found = by_claim.get(claim["id"])
        cells = ["—", "", ""] if found is None else _cells(found)
        table.add_row(escape(f"{claim['id']}: {claim['says']}"), *cells, escape(claim["paper"]) or "—")
    return table


def _cells(verdict: Mapping[str, Any]) -> list[str]:
    outcome = verdict["verdict"]
    text = f"[{STYLES[outcome]}]{outcome}[/]"
    if verdict["reason"]:
        text += f"\n[dim]{escape(verdict['reason'])}[/]"
    if verdict["effect"] is None:
        return [text, "", str(verdict["n"] or "")]
    effect = escape(interval(verdict["effect"], verdict["low"], verdict["high"]))
    return [text, f"{effect}\n[dim]{escape(verdict['unit'])}[/]", str(verdict["n"])]
