"""The figures of Cond-DP's study."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.study import FinishedTrial, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {
    "dpsgd-raw": "DP-SGD, raw features",
    "dpsgd": "DP-SGD, standardised",
    "cond-raw": "Cond-DP, raw features",
    "cond": "Cond-DP",
    "label-ssp": "label-ssp, one shot",
    "rr-on-bins": "RR-on-Bins",
    "weighted-llp": "Weighted-LLP",
    "label-noise": "label noise",
    "adassp": "AdaSSP (whole rows)",
    "cond-damped": "Cond-DP, gamma 0.1",
    "cond-half": "Cond-DP, power 0.5",
    "mlp-dpsgd": "DP-SGD",
    "mlp-cond": "conditioned throughout",
    "mlp-switch": "Switch-Cond-DP",
}
# An arm keeps its colour in all figures.
COLOURS = {
    "cond": "C0",
    "dpsgd": "C1",
    "label-ssp": "C2",
    "dpsgd-raw": "C3",
    "rr-on-bins": "C4",
    "mlp-cond": "C0",
    "mlp-dpsgd": "C1",
    "mlp-switch": "C2",
}
DATA = {
    "rotated": "simulated, correlated",
    "axis": "simulated, uncorrelated",
    "words": "ratings of words",
    "bikeshare": "bicycle rentals",
    "diamonds": "prices of diamonds",
    "flights": "flight delays",
    "diabetes": "diabetes (354 rows)",
}
SHOWN = ("cond", "dpsgd", "dpsgd-raw", "label-ssp", "rr-on-bins")


def panels(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Every figure that the trials allow."""
    drawn: dict[str, Panel] = {}
    linear = [trial for trial in finished if "data" in trial.setting and "model" not in trial.setting]
    descent = [trial for trial in linear if trial.arm in SHOWN]
    if descent:
        drawn["error-against-epsilon"] = _errors(descent, linear)
        drawn["spectra"] = _spectra([name for name in DATA if _cell(descent, data=name)])
    if gains := [trial for trial in finished if trial.setting.get("data") == "spectrum"]:
        drawn["predicted-gain"] = _gains(gains)
    if networks := [trial for trial in finished if trial.setting.get("model") == "mlp"]:
        drawn["networks"] = _networks(networks)
    if variants := [t for t in linear if t.setting.get("data") == "rotated" and t.arm in NAMES]:
        drawn["variants"] = _variants(variants)
    return drawn


def _errors(rows: Sequence[FinishedTrial], all_rows: Sequence[FinishedTrial]) -> Panel:
    sets = [name for name in DATA if _cell(rows, data=name)]
    figure, axes = _subplots(len(sets), columns=4, size=(2.6, 2.6))
    for axis, name in zip(axes, sets, strict=True):
        for arm in SHOWN:
            _band(axis, [t for t in _cell(rows, data=name) if t.arm == arm], NAMES[arm], COLOURS[arm])
        floor = [t.measurements["error"] for t in _cell(all_rows, data=name) if t.arm == "ridge"]
        if floor:
            axis.axhline(float(np.mean(floor)), color="C5", linewidth=1, linestyle=":", label="no privacy")
        # Errors beyond that of the constant mean by far would flatten the others.
        top = max(t.measurements["error"] for t in _cell(rows, data=name))
        axis.set(title=DATA[name], xlabel="epsilon", ylim=(0, min(top * 1.05, 1.5)))
        axis.axhline(1, color="gray", linewidth=0.6)
    axes[0].set_ylabel("error / variance of the label")
    _legend(figure, axes)
    return Panel(
        figure,
        "Mean squared error of linear models as a share of the label's variance against epsilon (label "
        "privacy, delta 1e-6): means over seeds with their standard errors. The grey line is the constant "
        "mean, the dotted one ridge regression without privacy.",
    )


def _spectra(sets: Sequence[str]) -> Panel:
    figure, axes = _subplots(2, columns=2, size=(4.2, 3.2))
    for place, name in enumerate(sets):
        for axis, standardise in zip(axes, (False, True), strict=True):
            spectrum = _spectrum(name, standardise)
            style = ("-", "--")[place >= 6 or place % 2]
            axis.plot(
                np.arange(1, len(spectrum) + 1), spectrum, style, color=f"C{place % 6}", label=DATA[name]
            )
    for axis, title in zip(axes, ("features as they are", "standardised"), strict=True):
        axis.set(title=title, xscale="log", yscale="log", xlabel="direction", ylim=(1e-3, 1.5))
    axes[0].set_ylabel("singular value / largest")
    _legend(figure, axes)
    return Panel(
        figure,
        "The spectra that conditioning evens out, before and after standardising columns. Where the right "
        "curve is flat, standardising has done the work already (simulated, uncorrelated); where it falls, "
        "directions are left to gain.",
    )


def _gains(rows: Sequence[FinishedTrial]) -> Panel:
    figure, axes = _subplots(1, columns=1, size=(5, 4))
    axis = axes[0]
    for metric, label, colour in (
        ("log_excess_ratio_raw", "over DP-SGD, raw features", "C3"),
        ("log_excess_ratio_standardised", "over DP-SGD, standardised", "C1"),
    ):
        levels = sorted({float(t.setting["predicted_gain"]) for t in rows})
        cells = [[t.measurements[metric] for t in _cell(rows, predicted_gain=level)] for level in levels]
        means, errors = _means(cells)
        axis.plot(levels, np.exp(means), "o-", color=colour, label=label)
        axis.fill_between(levels, np.exp(means - errors), np.exp(means + errors), color=colour, alpha=0.2)
    axis.plot([1, 8], [1, 8], color="gray", linestyle=":", label="as predicted")
    axis.set(xscale="log", yscale="log", xlabel="predicted gain", ylabel="ratio of excess errors")
    axis.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axis.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axis.minorticks_off()
    axis.legend()
    return Panel(
        figure,
        "Measured against predicted gain at epsilon 0.25, for spectra chosen to have the predicted one: how "
        "many times larger DP-SGD's excess error is than Cond-DP's (geometric means, standard errors).",
    )


def _networks(rows: Sequence[FinishedTrial]) -> Panel:
    cells = [
        (name, epsilon)
        for name in DATA
        for epsilon in sorted({float(t.setting["epsilon"]) for t in rows})
        if _cell(rows, data=name, epsilon=epsilon)
    ]
    figure, axes = _subplots(len(cells), columns=4, size=(2.5, 2.8))
    arms = ("mlp-dpsgd", "mlp-switch", "mlp-cond")
    for axis, (name, epsilon) in zip(axes, cells, strict=True):
        for place, arm in enumerate(arms):
            values = [
                t.measurements["error"] for t in _cell(rows, data=name, epsilon=epsilon) if t.arm == arm
            ]
            spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(len(values))
            axis.plot(place + spread, values, "o", color=COLOURS[arm], markersize=4, alpha=0.6)
            if values:
                axis.plot([place - 0.3, place + 0.3], [np.mean(values)] * 2, color=COLOURS[arm], linewidth=2)
        axis.set(title=f"{DATA[name]}\nepsilon {epsilon:g}")
        axis.set_ylim(0, 1.05 * max(t.measurements["error"] for t in _cell(rows, data=name, epsilon=epsilon)))
        axis.set_xticks(range(len(arms)), ["DP-SGD", "switch", "conditioned"], rotation=30)
    axes[0].set_ylabel("error / variance of the label")
    return Panel(
        figure,
        "Networks (64 and 32 units, 256 steps on all rows): plain, conditioned until a switch, conditioned "
        "throughout. A dot per seed, a bar at the mean.",
    )


def _variants(rows: Sequence[FinishedTrial]) -> Panel:
    levels = sorted({float(t.setting["epsilon"]) for t in rows})
    arms = [arm for arm in NAMES if any(t.arm == arm for t in rows)]
    figure, axes = _subplots(len(levels), columns=len(levels), size=(3.4, 3.6), sharey=True)
    for axis, epsilon in zip(axes, levels, strict=True):
        cells = [
            [t.measurements["error"] for t in _cell(rows, epsilon=epsilon) if t.arm == arm] for arm in arms
        ]
        means, errors = _means(cells)
        axis.errorbar(means, range(len(arms)), xerr=errors, fmt="o", color="C0", capsize=3)
        axis.axvline(1, color="gray", linewidth=0.6)
        axis.set(title=f"epsilon {epsilon:g}", xlabel="error / variance", xlim=(0, 1.5))
        axis.set_yticks(range(len(arms)), [NAMES[arm] for arm in arms])
    axes[0].invert_yaxis()
    return Panel(
        figure,
        "Every method on the simulated, correlated features: means with standard errors (0.2 is the noise of "
        "the label, 1 the constant mean). AdaSSP protects whole rows and pays for it.",
    )


@cache
def _spectrum(name: str, standardise: bool) -> np.ndarray:
    from assay.methods.cond_dp.conditioner import PublicConditioner
    from assay.methods.cond_dp.experiments import split

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fitted = PublicConditioner(power=0.0, standardize=standardise).fit(split(name, 1).X)
    return fitted.spectrum_ / fitted.spectrum_[0]


def _band(axis: Axes, rows: Sequence[FinishedTrial], label: str, colour: str) -> None:
    levels = sorted({float(t.setting["epsilon"]) for t in rows})
    if not levels:
        return
    means, errors = _means(
        [[t.measurements["error"] for t in _cell(rows, epsilon=level)] for level in levels]
    )
    axis.plot(levels, means, "o-", color=colour, label=label, markersize=4)
    axis.fill_between(levels, means - errors, means + errors, color=colour, alpha=0.2)
    axis.set_xscale("log")
    axis.set_xticks(levels, [f"{level:g}" for level in levels])
    axis.minorticks_off()


def _means(cells: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Means and their standard errors."""
    means = np.array([np.mean(cell) if cell else np.nan for cell in cells])
    errors = [np.std(cell, ddof=1) / np.sqrt(len(cell)) if len(cell) > 1 else 0.0 for cell in cells]
    return means, np.array(errors)


def _legend(figure: Any, axes: Sequence[Axes]) -> None:
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=4)


def _subplots(
    count: int, *, columns: int, size: tuple[float, float], **options: Any
) -> tuple[Any, list[Axes]]:
    import matplotlib.pyplot as plt

    columns = min(columns, count)
    lines = -(-count // columns)
    figure, axes = plt.subplots(
        lines,
        columns,
        squeeze=False,
        figsize=(size[0] * columns, size[1] * lines),
        layout="constrained",
        **options,
    )
    flat = list(axes.ravel())
    for spare in flat[count:]:
        spare.set_axis_off()
    return figure, flat[:count]


def _cell(rows: Sequence[FinishedTrial], **setting: Any) -> list[FinishedTrial]:
    return [row for row in rows if all(row.setting.get(name) == value for name, value in setting.items())]
