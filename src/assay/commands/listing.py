"""`assay list` and `assay show`: what there is and what is known about it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.registry import Card, cards, find_card

if TYPE_CHECKING:
    from assay.study import RunFolder


def list_methods(
    *, runs: Path = Path("runs"), as_json: Annotated[bool, Parameter(name="--json", negative=())] = False
) -> None:
    """List the methods with their latest verdicts.

    Parameters
    ----------
    runs
        Where to look for the latest run of each method.
    as_json
        Print JSON: a list with one object per method (`docs/command-line.md` describes the fields).
    """
    latest = _latest_runs(runs)
    if as_json:
        print(json.dumps([_facts(card, latest.get(card.name)) for card in cards().values()], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("method", "area", "what it does", "interface", "verdicts"):
        table.add_column(column, overflow="fold")
    for card in cards().values():
        name = f"{card.command} (preview)" if card.preview else card.command
        table.add_row(name, card.area, card.summary, card.interface, _tally(latest.get(card.name)))
    Console().print(table)


def show(
    name: str,
    *,
    runs: Path = Path("runs"),
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Show a method: its card, its claims with the paper's numbers, and the latest verdicts.

    Parameters
    ----------
    name
        The method.
    runs
        Where to look for its latest run.
    as_json
        Print the object that `assay list --json` prints for the method.
    """
    card = find_card(name)
    run = _latest_runs(runs).get(card.name)
    if as_json:
        print(json.dumps(_facts(card, run), indent=2))
        return
    from rich.console import Console

    from assay.commands.verdict_table import verdict_table

    console = Console()
    console.print(f"[bold]{card.title}[/bold] ({card.command})")
    console.print(card.summary, markup=False)
    for label, value in (
        ("paper", f"{card.paper}, arXiv {card.arxiv}" if card.arxiv else card.paper),
        ("area", card.area),
        ("interface", card.interface),
        ("verbs", ", ".join(f"assay {card.command} {verb}" for verb in card.verbs)),
        ("needs", f"pip install '{card.distribution}[{card.extra}]'"),
    ):
        console.print(f"  {label + ':':<11}{value}", markup=False, highlight=False)
    if missing := card.missing_packages():
        console.print(f"  not installed: {', '.join(missing)}", style="yellow")
    claims = [claim.facts() for claim in card.load_study().claims]
    console.print(verdict_table(claims, (run.verdicts() or []) if run else []))
    if run:
        console.print(f"Verdicts of {run.path} ({run.study['scale']} scale)", soft_wrap=True, highlight=False)
    else:
        console.print(f"No run below {runs}: assay study {card.command} gives verdicts", highlight=False)


def _latest_runs(runs: Path) -> dict[str, RunFolder]:
    """The run whose verdicts count for each method; none where there is no folder of runs."""
    if not runs.is_dir():
        return {}
    from assay.report.runs import load_scoreboard

    return {run.method: run.folder for run in load_scoreboard(runs).leading if run.has_verdicts}


def _facts(card: Card, run: RunFolder | None) -> dict[str, Any]:
    verdicts = {verdict["claim"]: verdict for verdict in (run.verdicts() or [])} if run else {}
    keys = ("verdict", "effect", "low", "high", "level", "n", "reason")
    return {
        "name": card.name,
        "command": card.command,
        "title": card.title,
        "paper": card.paper,
        "arxiv": card.arxiv,
        "area": card.area,
        "summary": card.summary,
        "preview": card.preview,
        "interface": card.interface,
        "extra": card.extra,
        "missing_packages": card.missing_packages(),
        "verbs": list(card.verbs),
        "run": str(run.path) if run else None,
        "scale": run.study["scale"] if run else None,
        "claims": [
            {"id": claim.id, "says": claim.says, "paper": claim.paper}
            | {key: verdicts[claim.id][key] if claim.id in verdicts else None for key in keys}
            for claim in card.load_study().claims
        ],
    }


def _tally(run: RunFolder | None) -> str:
    if run is None:
        return "not run"
    counts = Counter(verdict["verdict"] for verdict in run.verdicts() or [])
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
