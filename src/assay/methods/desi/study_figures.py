"""The figures of DeSI's study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.study import FinishedTrial, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.methods.desi.regressor import DeSIRegressor

NAMES = {
    "desi": "DeSI",
    "desi-deep": "DeSI, network",
    "desi-as-published": "DeSI as published",
    "global-frechet": "global Fréchet",
    "local-frechet": "local Fréchet",
    "frechet-single-index": "Fréchet single index",
    "index-frechet": "index Fréchet",
    "deep-frechet": "deep Fréchet",
    "e2m": "E2M",
    "frechet-forest": "Fréchet forest",
    "frechet-knn": "Fréchet kNN",
    "mean": "constant mean",
}
# An arm keeps its colour in all figures.
COLOURS = {
    "desi": "C0",
    "global-frechet": "C1",
    "frechet-forest": "C2",
    "desi-as-published": "C3",
    "mean": "C4",
}
DATA = {
    "bikeshare-rentals": "hourly rentals",
    "bikeshare-day-parts": "parts of the day",
    "flight-delays": "flight delays",
}


def panels(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Every figure that the trials allow."""
    drawn: dict[str, Panel] = {}
    base = [trial for trial in finished if trial.setting.get("n") == 200 and trial.setting.get("link")]
    if base:
        drawn["arms"] = _arms(base)
    for over, name, held in (("n", "sample-size", {"p": 4}), ("p", "dimension", {"n": 500})):
        rows = [t for t in finished if t.setting.get("link") and _has(t, held)]
        if len({t.setting[over] for t in rows}) > 1:
            drawn[name] = _against(rows, over)
    spaces = [trial for trial in finished if "design" in trial.setting and _has(trial, {"n": 200, "p": 4})]
    if len({trial.setting["design"] for trial in spaces}) > 1:
        drawn["spaces"] = _spaces(spaces)
    real = [trial for trial in finished if "data" in trial.setting]
    if real:
        drawn["real-data"] = _real(real)
        drawn["real-directions"] = _directions([trial for trial in real if trial.arm == "desi"])
    if any(trial.setting.get("data") == "bikeshare-rentals" for trial in real):
        drawn["rentals-along-index"] = _along_index()
    return drawn


def _arms(rows: Sequence[FinishedTrial]) -> Panel:
    figure, axes = _subplots(1, figsize=(7, 4.5))
    groups = _by_arm(rows, "mpe")
    order = sorted(groups, key=lambda arm: np.mean(groups[arm]))[::-1]
    _strip(axes[0], {NAMES[arm]: groups[arm] for arm in order})
    axes[0].set(xlabel="mean Wasserstein distance to the true conditional mean")
    return Panel(
        figure, "Simulated distributions, 200 rows: a dot per data set, a bar at the mean. Left is better."
    )


def _against(rows: Sequence[FinishedTrial], over: str) -> Panel:
    metrics = {"mpe": "error", "angle": "angle to the true direction (degrees)"}
    figure, axes = _subplots(2, figsize=(8, 3.6))
    for axis, (metric, label) in zip(axes, metrics.items(), strict=True):
        for arm in ("desi", "global-frechet", "frechet-forest", "mean"):
            levels = sorted({t.setting[over] for t in rows if t.arm == arm and metric in t.measurements})
            if levels:
                cells = [[t for t in rows if t.arm == arm and t.setting[over] == level] for level in levels]
                _line(axis, levels, [[t.measurements[metric] for t in cell] for cell in cells], arm)
        axis.set(xlabel={"n": "rows", "p": "predictors"}[over], ylabel=label, ylim=(0, None))
        axis.set_xticks(sorted({t.setting[over] for t in rows}))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    what = "the sample grows (half of the rows are for fitting)" if over == "n" else "predictors are added"
    return Panel(figure, f"What happens as {what}: means over data sets with their standard errors.")


def _spaces(rows: Sequence[FinishedTrial]) -> Panel:
    designs = [name for name in ("distributions", "networks", "spd", "sphere") if _cell(rows, "design", name)]
    figure, axes = _subplots(1, figsize=(7, 3.8))
    arms = ("desi", "desi-as-published", "global-frechet", "frechet-forest")
    for i, arm in enumerate(arms):
        shares = []
        for design in designs:
            groups = _by_arm(_cell(rows, "design", design), "mpe")
            shares.append(np.mean(groups.get(arm, [np.nan])) / np.mean(groups.get("mean", [np.nan])))
        places = np.arange(len(designs)) + (i - 1.5) * 0.2
        axes[0].bar(places, shares, 0.18, label=NAMES[arm], color=COLOURS[arm])
    axes[0].axhline(1, linewidth=0.8, linestyle="--", color="gray")
    axes[0].set(ylabel="error as a share of the constant mean's")
    axes[0].set_xticks(range(len(designs)), designs)
    axes[0].legend(ncols=2)
    return Panel(figure, "Four metric spaces, 200 rows each. Below the dashed line is better than the mean.")


def _real(rows: Sequence[FinishedTrial]) -> Panel:
    sets = [name for name in DATA if _cell(rows, "data", name)]
    figure, axes = _subplots(len(sets), figsize=(9, 3.2), sharey=True)
    for axis, name in zip(axes, sets, strict=True):
        groups = _by_arm(_cell(rows, "data", name), "frechet_r2")
        arms = ("desi-as-published", "global-frechet", "desi", "frechet-forest")
        _strip(axis, {NAMES[arm]: groups.get(arm, []) for arm in arms})
        axis.set(title=DATA[name], xlabel="Fréchet R²")
        # The published algorithm can be far below zero; the figure is about the others.
        low = min(min(groups.get(arm, [0])) for arm in arms[1:])
        axis.set_xlim(min(low - 0.1, 0), 1)
    return Panel(
        figure,
        "Held-out rows of real data: a dot per fold, a bar at the mean. 1 is perfect, 0 is the "
        "constant mean; dots left of the frame are not shown.",
    )


def _directions(rows: Sequence[FinishedTrial]) -> Panel:
    sets = [name for name in DATA if _cell(rows, "data", name)]
    figure, axes = _subplots(len(sets), figsize=(10, 3.6))
    for axis, name in zip(axes, sets, strict=True):
        cell = _cell(rows, "data", name)
        labels = [key.split(":")[1] for key in cell[0].measurements if key.startswith("direction:")]
        directions = np.array(
            [[trial.measurements[f"direction:{label}"] for label in labels] for trial in cell]
        )
        # A direction and its opposite are the same; show all on one side.
        signs = np.sign(directions @ directions[0])
        directions *= signs[:, None]
        order = np.argsort(np.abs(directions.mean(0)))
        _strip(axis, {labels[i]: directions[:, i].tolist() for i in order})
        axis.axvline(0, linewidth=0.8, color="gray")
        axis.set(title=DATA[name], xlabel="coordinate of the direction")
    return Panel(
        figure,
        "The learnt direction for standardised predictors, a dot per fold: where dots scatter over "
        "both sides of zero, the data do not determine the coordinate.",
    )


def _along_index() -> Panel:
    from matplotlib import colormaps

    model, outcomes, index = _rentals_model()
    figure, axes = _subplots(2, figsize=(9, 3.6))
    axes[0].scatter(index, outcomes.mean(axis=1), s=8, alpha=0.5, color="C0")
    z = np.linspace(index.min(), index.max(), 60)
    curves = model.smoother_.predict(z)
    axes[0].plot(z, curves.mean(axis=1), color="C1", linewidth=2)
    axes[0].set(xlabel="index of the day", ylabel="mean rentals per hour (hundreds)")
    levels = np.arange(1, curves.shape[1] + 1) / (curves.shape[1] + 1)
    first, last = np.searchsorted(z, np.quantile(index, [0.05, 0.95]))
    shown = np.linspace(first, last, 5).astype(int)
    for place, i in zip(np.linspace(0, 0.9, len(shown)), shown, strict=True):
        axes[1].plot(levels, curves[i], color=colormaps["viridis"](place), label=f"index {z[i]:.1f}")
    axes[1].set(xlabel="level", ylabel="quantile of hourly rentals (hundreds)")
    axes[1].legend()
    return Panel(
        figure,
        "Bicycle rentals along the learnt index, all 359 days. Left: the mean of each day (dots) and of the "
        "fitted distribution (line). Right: fitted quantile functions at five values of the index.",
    )


@cache
def _rentals_model() -> tuple[DeSIRegressor, np.ndarray, np.ndarray]:
    from assay.methods.desi.datasets import bikeshare_rentals
    from assay.methods.desi.regressor import DeSIRegressor

    data = bikeshare_rentals()
    model = DeSIRegressor(data.space, n_restarts=2, random_state=0).fit(data.X, data.Y)
    return model, data.Y, model.predict_index(data.X)


def _subplots(count: int, **options: Any) -> tuple[Any, list[Axes]]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, squeeze=False, **options)
    return figure, list(axes[0])


def _strip(axis: Axes, groups: Mapping[str, Sequence[float]]) -> None:
    """A row of dots per group, spread a little so that they do not hide each other, and a bar at the mean."""
    for place, values in enumerate(groups.values()):
        spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(len(values))
        axis.plot(values, place + spread, "o", color="C0", markersize=4, alpha=0.7)
        if len(values):
            axis.plot([np.mean(values)] * 2, [place - 0.3, place + 0.3], color="C1", linewidth=2)
    axis.set_yticks(range(len(groups)), list(groups))
    axis.set_ylim(-0.6, len(groups) - 0.4)


def _line(axis: Axes, levels: Sequence[Any], cells: Sequence[Sequence[float]], arm: str) -> None:
    errors = [np.std(cell, ddof=1) / np.sqrt(len(cell)) if len(cell) > 1 else 0.0 for cell in cells]
    means = [np.mean(cell) for cell in cells]
    axis.errorbar(levels, means, errors, marker="o", capsize=3, label=NAMES[arm], color=COLOURS[arm])


def _by_arm(rows: Sequence[FinishedTrial], metric: str) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for row in rows:
        if metric in row.measurements:
            groups.setdefault(row.arm, []).append(row.measurements[metric])
    return groups


def _cell(rows: Sequence[FinishedTrial], name: str, value: str) -> list[FinishedTrial]:
    return [row for row in rows if row.setting.get(name) == value]


def _has(trial: FinishedTrial, values: Mapping[str, int]) -> bool:
    return all(trial.setting.get(name) == value for name, value in values.items())
