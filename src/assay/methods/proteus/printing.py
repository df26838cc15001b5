"""What the verbs print: a progress bar, tables and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from assay.methods.proteus.report import QuantReport


@contextmanager
def progress(console: Console, label: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar that counts weights, with the time that is left."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn(label),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeElapsedColumn(),
        # The steps are blocks of very different kinds of work: look far back for the speed.
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[module]}"),
    )
    with Progress(*columns, console=console, speed_estimate_period=300, transient=True) as bar:
        task = bar.add_task(label, total=None, module="")

        def report(done: int, total: int, module: str) -> None:
            bar.update(task, completed=done, total=total, module=module)

        yield report


def print_result(console: Console, report: QuantReport) -> None:
    errors = [module["proxy_error_compensated"] for module in report.modules]
    console.print(
        f"{len(report.modules)} modules, {report.weights / 1e6:.1f} million weights at "
        f"{report.bits_per_weight:.3f} bits; mean error {sum(errors) / len(errors):.4f}"
    )
    flagged = [module for module in report.modules if module["flags"]]
    if flagged:
        console.print(
            f"{len(flagged)} modules have remarks, first {flagged[0]['name']}: {flagged[0]['flags'][0]}",
            style="yellow",
            soft_wrap=True,
        )
    if report.comparison is not None:
        print_comparison(console, asdict(report.comparison))
    if report.complaint:
        console.print(f"Not acceptable: {report.complaint}", style="red", soft_wrap=True)
        console.print(
            f"The model is in {report.folder}; --accept-perplexity-ratio and --accept-divergence set the "
            "limits",
            soft_wrap=True,
        )
    else:
        console.print(
            f"Saved to {report.folder}; next: assay proteus inspect {report.folder}", soft_wrap=True
        )


def print_comparison(console: Console, comparison: dict[str, Any]) -> None:
    line = f"perplexity {comparison['perplexity']:.4g} on {comparison['tokens']} held-out tokens"
    if comparison["reference_perplexity"] is not None:
        line += (
            f"; the original's is {comparison['reference_perplexity']:.4g}. Divergence from it: "
            f"{comparison['divergence']:.3f} nats a token, at most "
            f"{comparison['largest_divergence']:.3f} in a window; "
            f"same first choice for {comparison['agreement']:.0%}"
        )
    console.print(line, soft_wrap=True)


def grouped(modules: list[dict[str, Any]], every: bool) -> Iterator[list[dict[str, Any]]]:
    """Every module alone, or those of one kind (the last part of the path) together."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for module in modules:
        key = module["name"] if every else f"{module['name'].rpartition('.')[2]} {module['shape']}"
        groups.setdefault(key, []).append(module)
    yield from groups.values()


def module_cells(rows: list[dict[str, Any]]) -> list[str]:
    name = rows[0]["name"] if len(rows) == 1 else rows[0]["name"].rpartition(".")[2]
    weights = [row["shape"][0] * row["shape"][1] for row in rows]
    bits = sum(row["bits_per_weight"] * size for row, size in zip(rows, weights, strict=True)) / sum(weights)
    cells = [name, f"{rows[0]['shape'][0]} x {rows[0]['shape'][1]}", str(len(rows)), f"{bits:.3f}"]
    for key in ("proxy_error", "proxy_error_compensated"):
        values = [row[key] for row in rows if key in row]
        cells.append(f"{sum(values) / len(values):.4f}" if values else "not known")
    return [*cells, f"{sum(row['bytes'] for row in rows) / 1e3:.0f}"]


def generator_cells(entry: dict[str, Any]) -> list[str]:
    facts = entry["generator"]
    signs = "".join("+" if sign > 0 else "-" for sign in facts["signs"])
    words = (f"{facts[key]:#010x}" for key in ("multiplier", "addend"))
    return [*words, str(facts["shift"]), signs, f"{entry['error']['mean']:.5f}"]
