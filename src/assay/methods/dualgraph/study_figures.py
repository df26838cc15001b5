"""The figures of the study of dualgraph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.study import FinishedTrial, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[FinishedTrial]
# An arm keeps its colour, marker and name in all figures; a variant of dualgraph shares its colour.
ARMS = {
    "linear": ("rewording the question", "0.5", "x:"),
    "outline": ("outline alone", "C1", "s-"),
    "random-pair": ("random pairs", "C3", "v-"),
    "dualgraph": ("dualgraph", "C0", "o-"),
    "no-enrich": ("without enrich", "C2", "^--"),
    "no-explore": ("without explore", "C4", "D--"),
    "no-communities": ("without communities", "C5", "P--"),
    "degree-corrected": ("degree-corrected", "C0", "*--"),
}
FOUR = ("linear", "outline", "random-pair", "dualgraph")
CHECKERS = {
    "lexical": ("words and facts", "C1"),
    "embedding": ("embeddings", "C3"),
    "combined": ("combined", "C0"),
}
FAULTS = {"source": "another source", "number": "a number altered", "name": "a name altered"}


def panels(finished: Rows) -> dict[str, Panel]:
    """Every figure that the trials allow."""
    drawn = {
        "docs": (_docs, "docs", {}),
        "bridges": (_bridges, "planted", {"concentration": 1.0}),
        "concentration": (_concentration, "planted", {"share": "all"}),
        "evidence": (_evidence, "planted", {"concentration": 1.0, "share": "half"}),
        "loop": (_loop, "loop", {}),
        "checkers": (_checkers, "citations", {}),
    }
    made: dict[str, Panel] = {}
    for name, (draw, part, setting) in drawn.items():
        rows = _where(finished, part=part, **setting)
        if rows:
            made[name] = draw(rows)
    return made


def _docs(rows: Rows) -> Panel:
    figure, (left, right) = _subplots(2)
    for arm in (*FOUR, "no-enrich", "no-explore"):
        _curve(left, rows, arm, "recall")
    left.set(xlabel="queries", ylabel="share of true relations found", ylim=(0, 1))
    left.legend(fontsize="small", loc="lower right")
    for arm in FOUR:
        _curve(right, rows, arm, "edges")
    right.set(xlabel="queries", ylabel="relations in the graph", ylim=(0, None))
    return Panel(
        figure,
        f"Questions about CMake's documentation ({_units(rows)} questions, means with 95% intervals). Left: "
        "cross-referenced pairs around the question's three names that were read together. Right: all pairs "
        "in the graph, true relations of the question or not. The first round is the same for all.",
    )


def _bridges(rows: Rows) -> Panel:
    shares = [share for share in ("half", "all") if _where(rows, share=share)]
    figure, all_axes = _subplots(len(shares))
    for axes, share in zip(all_axes, shares, strict=True):
        some = _where(rows, share=share)
        for arm in ARMS:
            _curve(axes, some, arm, "bridge")
        axes.set(xlabel="queries", ylabel="share of bridges found", ylim=(0, None))
        axes.set_title(
            "half of the queries from the graph" if share == "half" else "all queries from the graph"
        )
    all_axes[0].legend(fontsize="small", loc="upper left")
    _same_height(all_axes)
    return Panel(
        figure,
        f"Planted corpora whose bridges lie between few groups ({_units(rows)} corpora, means with 95% "
        "intervals): bridges found by queries. What random pairs find is owed to asking about pairs, what "
        "is above them to topology.",
    )


def _concentration(rows: Rows) -> Panel:
    figure, (left, right) = _subplots(2)
    levels = sorted({float(row.setting["concentration"]) for row in rows})
    last = _last(rows, "bridge")
    for arm in ("outline", "random-pair", "dualgraph", "no-enrich", "no-explore"):
        name, colour, style = ARMS[arm]
        cells = [_by_seed(_where(rows, concentration=level), arm, f"bridge:{last}") for level in levels]
        if not all(cells):
            continue
        means, errors = _means([list(cell.values()) for cell in cells])
        left.errorbar(levels, means, errors, fmt=style, color=colour, capsize=3, label=name)
        control = [
            _by_seed(_where(rows, concentration=level), "random-pair", f"bridge:{last}") for level in levels
        ]
        if arm in ("dualgraph", "no-enrich") and all(control):
            gains = [
                [cell[seed] - other[seed] for seed in cell if seed in other]
                for cell, other in zip(cells, control, strict=True)
            ]
            means, errors = _means(gains)
            right.errorbar(levels, means, errors, fmt=style, color=colour, capsize=3, label=name)
    right.axhline(0, color=ARMS["random-pair"][1], linewidth=0.8)
    left.set(ylabel="share of bridges found", ylim=(0, None))
    right.set(ylabel="bridges found beyond random pairs")
    for axes in (left, right):
        axes.set_xlabel("share of bridges between few groups")
    left.legend(fontsize="small")
    return Panel(
        figure,
        f"From bridges anywhere (0) to bridges between few groups only (1): what {last} queries find, all of "
        "them from the graph. Means with 95% intervals; right: paired with random pairs. A policy that reads "
        "topology can only gain where bridges cluster.",
    )


def _evidence(rows: Rows) -> Panel:
    figure, (left, right) = _subplots(2)
    for arm in ("outline", "random-pair", "dualgraph", "no-enrich", "no-explore"):
        _curve(left, rows, arm, "twice")
        _curve(right, rows, arm, "intra")
    left.set(xlabel="queries", ylabel="share of relations with two passages", ylim=(0, 1))
    right.set(xlabel="queries", ylabel="share of relations within groups found", ylim=(0, 1))
    right.legend(fontsize="small", loc="lower right")
    return Panel(
        figure,
        f"Planted corpora, half of the queries from the graph ({_units(rows)} corpora, means with 95% "
        "intervals). Enrich chains buy second evidence, explore chains other relations, and both cost "
        "queries.",
    )


def _loop(rows: Rows) -> Panel:
    import matplotlib

    limits = [limit for limit in ("rounds", "tokens") if _where(rows, limit=limit)]
    metrics = (
        ("effective", "effective citations"),
        ("recall", "share of true relations in evidence"),
        ("tokens", "tokens"),
    )
    figure, all_axes = _subplots(len(metrics), width=3.6)
    ink = matplotlib.rcParams["text.color"]
    for axes, (metric, label) in zip(all_axes, metrics, strict=True):
        for place, limit in enumerate(limits):
            for i, arm in enumerate(FOUR):
                values = _values(_where(rows, limit=limit), arm, metric)
                if values:
                    name, colour, _ = ARMS[arm]
                    mean, error = _means([values])
                    where = place * (len(FOUR) + 1) + i
                    axes.bar(
                        where,
                        mean,
                        yerr=error,
                        color=colour,
                        ecolor=ink,
                        capsize=3,
                        label=name if place == 0 else None,
                    )
        middles = [place * (len(FOUR) + 1) + (len(FOUR) - 1) / 2 for place in range(len(limits))]
        axes.set_xticks(middles, [f"equal {limit}" for limit in limits])
        axes.set_ylabel(label)
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize="small", loc="outside lower center", ncols=len(FOUR))
    return Panel(
        figure,
        f"The whole loop with the extractive model ({_units(rows)} questions, means with 95% intervals), "
        "within equal rounds and within equal tokens. Effective citations are supported ones, equal "
        "sentences of a source counted once.",
    )


def _checkers(rows: Rows) -> Panel:
    faults = [fault for fault in FAULTS if _where(rows, fault=fault)]
    figure, all_axes = _subplots(len(faults), width=3.6)
    for axes, fault in zip(all_axes, faults, strict=True):
        for wording, style in (("verbatim", ":"), ("reworded", "-")):
            for checker, (name, colour) in CHECKERS.items():
                some = [row for row in _where(rows, fault=fault, wording=wording) if row.arm == checker]
                if some:
                    shares = sorted(_grid(some[0]))
                    curve = [np.mean([row.measurements[f"roc:{share}"] for row in some]) for share in shares]
                    area = np.mean([row.measurements["auc"] for row in some])
                    label = f"{name}: {area:.3f}" if wording == "reworded" else None
                    axes.plot([0.0, *shares], [0.0, *map(float, curve)], style, color=colour, label=label)
        axes.plot([0, 1], [0, 1], color="gray", linewidth=0.6)
        axes.set(title=FAULTS[fault], xlabel="wrong citations accepted", ylabel="right citations kept")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small", loc="lower right", title="area, reworded", title_fontsize="small")
    return Panel(
        figure,
        "Right citations against the same with one fault: the share of right ones kept at every share of "
        f"wrong ones accepted (sentences of CMake's documentation, means of {_units(rows)} draws). Solid: "
        "the sentence is reworded; dotted: verbatim. An embedding hardly sees an altered number.",
    )


def _curve(axes: Axes, rows: Rows, arm: str, metric: str) -> None:
    """Means with 95% intervals of `metric:q` against q."""
    some = [row for row in rows if row.arm == arm]
    if not some:
        return
    name, colour, style = ARMS[arm]
    queries = _checkpoints(some[0], metric)
    cells = [[row.measurements[f"{metric}:{q}"] for row in some] for q in queries]
    mean, error = _means(cells)
    axes.plot(queries, mean, style, color=colour, markersize=4, label=name)
    axes.fill_between(queries, mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)


def _checkpoints(row: FinishedTrial, metric: str) -> list[int]:
    return sorted(int(key.split(":")[1]) for key in row.measurements if key.startswith(f"{metric}:"))


def _last(rows: Rows, metric: str) -> int:
    return _checkpoints(rows[0], metric)[-1]


def _grid(row: FinishedTrial) -> list[float]:
    return [float(key.split(":")[1]) for key in row.measurements if key.startswith("roc:")]


def _where(rows: Rows, **setting: Any) -> list[FinishedTrial]:
    return [row for row in rows if all(row.setting.get(name) == value for name, value in setting.items())]


def _values(rows: Iterable[FinishedTrial], arm: str, metric: str) -> list[float]:
    return [row.measurements[metric] for row in rows if row.arm == arm]


def _by_seed(rows: Iterable[FinishedTrial], arm: str, metric: str) -> dict[int, float]:
    return {row.seed: row.measurements[metric] for row in rows if row.arm == arm}


def _units(rows: Rows) -> int:
    return len({row.seed for row in rows})


def _means(cells: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Means, and half the width of their 95% intervals (Student's t); 0 for a single value."""
    from scipy.stats import t

    means = np.array([np.mean(cell) for cell in cells])
    errors = [
        float(t.ppf(0.975, len(cell) - 1)) * float(np.std(cell, ddof=1)) / len(cell) ** 0.5
        if len(cell) > 1
        else 0.0
        for cell in cells
    ]
    return means, np.array(errors)


def _same_height(all_axes: Sequence[Axes]) -> None:
    top = max(axes.get_ylim()[1] for axes in all_axes)
    for axes in all_axes:
        axes.set_ylim(0, top)


def _subplots(columns: int, width: float = 4.6) -> tuple[Any, Sequence[Axes]]:
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        1, columns, figsize=(width * columns, 3.8), layout="constrained", squeeze=False
    )
    return figure, list(grid[0])
