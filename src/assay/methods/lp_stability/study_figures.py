"""The figures of the study of L_p stability certificates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from assay.study import FinishedTrial, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {
    "optimised": "optimised constants",
    "known-law": "optimised, known law",
    "paper": "printed constants",
    "paper-3.4": "printed, Theorem 3.4",
    "rio": "Rio's moment bound",
    "chebyshev": "Chebyshev",
    "mcdiarmid": "McDiarmid",
    "hold-out": "hold-out",
    "bousquet-elisseeff": "Bousquet-Elisseeff",
    "log-stability": "with log m",
    "log-free": "without log m",
}
# A bound keeps its colour in all figures; those that meet in none share one.
COLOURS = {
    "optimised": "C0",
    "paper": "C1",
    "paper-3.4": "C1",
    "chebyshev": "C2",
    "bousquet-elisseeff": "C2",
    "rio": "C3",
    "log-stability": "C3",
    "known-law": "C4",
    "log-free": "C4",
    "mcdiarmid": "C4",
    "hold-out": "C5",
}
SETTINGS = {
    "t5": "t5 noise",
    "pareto": "Pareto noise",
    "sign": "bounded labels",
    "flight-delays": "flight delays",
    "bikeshare": "rentals",
}


def panels(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Every figure that the trials allow."""
    drawn: dict[str, Panel] = {}
    means = [trial for trial in _part(finished, "mean") if float(trial.setting["nu"]) > 2]
    truths = _part(finished, "truth")
    if len({trial.setting["delta"] for trial in means}) > 1:
        drawn["radius-against-delta"] = _radii(means, truths, "delta", "n", 1000)
        drawn["radius-against-n"] = _radii(means, truths, "n", "delta", 0.01)
    builders = {
        "jump": ("one-large-jump", _jumps),
        "ridge": ("tightness", _tightness),
        "certificate": ("certificate-parts", _certificates),
        "real": ("real-data", _real),
        "slow": ("bounded-losses", _bounded),
        "estimate": ("plug-in-estimates", _estimates),
        "network": ("network-stability", _network),
    }
    for part, (name, build) in builders.items():
        if rows := _part(finished, part):
            drawn[name] = build(rows)
    if rows := _part(finished, "ridge") + _part(finished, "real"):
        drawn["coverage"] = _coverage(rows)
    return drawn


def _radii(
    means: Sequence[FinishedTrial], truths: Sequence[FinishedTrial], over: str, held: str, value: float
) -> Panel:
    tails = sorted({trial.setting["nu"] for trial in means})
    figure, axes = _subplots(len(tails), figsize=(10, 3.8), sharey=True)
    for axis, nu in zip(axes, tails, strict=True):
        cell = [trial for trial in means if trial.setting["nu"] == nu and trial.setting[held] == value]
        for arm in ("paper", "chebyshev", "rio", "optimised", "known-law"):
            _line(axis, _levels(cell, arm, over, "radius"), arm)
        exact = _levels(cell, "optimised", over, "truth")
        axis.plot(*exact, color="C5", linewidth=2, label="exact quantile")
        simulated = _simulated([trial for trial in truths if trial.setting["nu"] == nu], over, value)
        if simulated:
            axis.plot(*np.array(simulated).T, "x", color="C5", markersize=7, label="simulated quantile")
        axis.set(title=f"t, {nu:g} degrees of freedom", xlabel=over, xscale="log", yscale="log")
    axes[0].set(ylabel="distance from the mean")
    _legend(figure, axes, columns=4)
    what = {
        "delta": "against the error probability delta, n = 1000. Rare failures are on the left.",
        "n": "against the number of variables n, at delta = 0.01.",
    }[over]
    return Panel(
        figure,
        f"How far a mean of n variables may be from zero: two-sided radii of every bound {what} A radius is "
        "valid above the thick line, the exact quantile (crosses: simulated), and better the closer it is.",
    )


def _simulated(truths: Sequence[FinishedTrial], over: str, held: float) -> list[tuple[float, float]]:
    """(level, mean simulated quantile) at the points that a panel shows."""
    rows = [trial for trial in truths if trial.arm == "simulation"]
    if over == "n":
        sizes = sorted({int(trial.setting["n"]) for trial in rows})
        cells = [(n, [t for t in rows if t.setting["n"] == n], f"quantile@{held:g}") for n in sizes]
    else:
        same = [trial for trial in rows if trial.setting["n"] == held]
        cells = [(delta, same, f"quantile@{delta:g}") for delta in (0.1, 0.01)] if same else []
    return [(level, float(np.mean([t.measurements[name] for t in cell]))) for level, cell, name in cells]


def _jumps(rows: Sequence[FinishedTrial]) -> Panel:
    orders = sorted({trial.setting["p"] for trial in rows})
    figure, axes = _subplots(len(orders), figsize=(10, 3.4), sharey=True)
    for axis, p in zip(axes, orders, strict=True):
        cell = [trial for trial in rows if trial.setting["p"] == p]
        for arm in ("paper", "chebyshev", "rio", "optimised"):
            _line(axis, _levels(cell, arm, "z", "ratio"), arm)
        axis.axhline(1, linewidth=0.8, linestyle="--", color="gray")
        axis.set(title=f"p = {p:g}", xlabel="distance z", xscale="log", yscale="log")
    axes[0].set(ylabel="bound / true tail")
    _legend(figure, axes, columns=4)
    return Panel(
        figure,
        "A law with one rare, large jump, for which the p-th moment is just enough: bound of the tail over "
        "the true tail. A bound of the right order is a flat line; its height is the price of constants.",
    )


def _coverage(rows: Sequence[FinishedTrial]) -> Panel:
    groups: dict[str, list[FinishedTrial]] = {}
    for trial in rows:
        if trial.arm in ("optimised", "known-law", "paper", "hold-out"):
            groups.setdefault(f"{_setting(trial)}: {NAMES[trial.arm]}", []).append(trial)
    labels = sorted(groups, reverse=True)
    figure, axes = _subplots(2, figsize=(10, 1.2 + 0.21 * len(labels)), sharey=True)
    for axis, delta in zip(axes, (0.1, 0.01), strict=True):
        for place, label in enumerate(labels):
            cell = groups[label]
            samples = 100 * len(cell)
            covered = samples - round(sum(trial.measurements[f"exceeded@{delta:g}"] for trial in cell))
            interval = stats.binomtest(covered, samples).proportion_ci(0.95)
            axis.plot([interval.low, interval.high], [place, place], color="C0", linewidth=2)
            axis.plot(covered / samples, place, "o", color="C0", markersize=4)
        axis.axvline(1 - delta, linestyle="--", linewidth=1, color="C1")
        axis.set(title=f"wanted: {1 - delta:.0%}", xlabel="share of samples below the bound")
        axis.set_xlim(1 - 1.1 * delta, 1 + 0.05 * delta)
    axes[0].set_yticks(range(len(labels)), labels)
    return Panel(
        figure,
        "Coverage: the share of training samples whose true risk is below the bound, with 95% intervals "
        "(Clopper-Pearson, over all samples). Right of the dashed line is valid; at 100% is conservative.",
    )


def _tightness(rows: Sequence[FinishedTrial]) -> Panel:
    rows = [trial for trial in rows if trial.setting["noise"] != "sign"] or list(rows)
    keys = sorted({(_setting(trial), float(trial.setting["strong_convexity"])) for trial in rows})
    arms = ("hold-out", "known-law", "optimised", "chebyshev", "rio", "paper", "paper-3.4")
    figure, axes = _subplots(len(keys), figsize=(11, 3.6), sharey=True)
    for axis, (what, strength) in zip(axes, keys, strict=True):
        cell = [t for t in rows if (_setting(t), float(t.setting["strong_convexity"])) == (what, strength)]
        present = [arm for arm in arms if any(trial.arm == arm for trial in cell)]
        for place, arm in enumerate(present):
            for delta, marker in ((0.1, "o"), (0.01, "s")):
                values = [t.measurements[f"upper@{delta:g}"] for t in cell if t.arm == arm]
                axis.plot(np.mean(values), place, marker, color=COLOURS[arm], markersize=6)
        risk = np.mean([trial.measurements["risk"] for trial in cell])
        constant = np.mean([trial.measurements["constant"] for trial in cell])
        axis.axvline(float(risk), color="C5", linewidth=2)
        axis.axvline(float(2 * constant), linestyle="--", linewidth=1, color="gray")
        axis.set_yticks(range(len(present)), [NAMES[arm] for arm in present])
        axis.set(title=what.replace(", lambda", "\nlambda"), xlabel="upper bound of the risk", xscale="log")
    return Panel(
        figure,
        "Upper bounds of the risk of ridge in a ball, m = 1000, at 90% (dots) and 99% (squares), on a "
        "logarithmic scale. Thick line: the true risk. Right of the dashed line, twice the risk of the best "
        "constant, a bound is vacuous.",
    )


def _certificates(rows: Sequence[FinishedTrial]) -> Panel:
    rows = sorted(rows, key=lambda trial: float(trial.setting["strong_convexity"]))
    figure, axes = _subplots(1, figsize=(8, 4))
    places = np.arange(len(rows), dtype=float)
    values = {name: np.array([t.measurements[name] for t in rows]) for name in rows[0].measurements}
    below = np.zeros(len(rows))
    for name, colour in (("training_risk", "C0"), ("bias", "C2"), ("radius", "C1")):
        label = {"training_risk": "training risk", "bias": "bias", "radius": "radius of both parts"}[name]
        axes[0].bar(places - 0.25, values[name], 0.3, bottom=below, color=colour, label=label)
        below = below + values[name]
    axes[0].bar(
        places + 0.05, values["stability"], 0.2, color="C3", label="radius of the stability part alone"
    )
    axes[0].bar(places + 0.28, values["sampling"], 0.2, color="C4", label="radius of the sampling part alone")
    axes[0].plot(places - 0.25, values["hold_out"], "_", color="C5", markersize=28, markeredgewidth=3)
    axes[0].plot([], [], "_", color="C5", markersize=12, markeredgewidth=3, label="bound of the hold-out")
    axes[0].axhline(2 * float(values["constant"].mean()), linestyle="--", linewidth=1, color="gray")
    axes[0].set_xticks(places, [f"lambda = {float(t.setting['strong_convexity']):g}" for t in rows])
    axes[0].set(ylabel="absolute loss")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return Panel(
        figure,
        "What a 90% certificate of ridge in a ball is made of (1000 rows of t_5 data, 200 of them held out). "
        "The stacked bars are the upper bound of the risk; the thin ones what the radius would be if only "
        "the learner's instability, or only the sampling of the training losses, mattered. Above the dashed "
        "line a certificate is vacuous.",
    )


def _real(rows: Sequence[FinishedTrial]) -> Panel:
    sets = sorted({(str(t.setting["data"]), str(t.setting["pairs"])) for t in rows}, reverse=True)
    arms = ("hold-out", "optimised", "chebyshev", "rio", "mcdiarmid", "paper")
    figure, axes = _subplots(len(sets), figsize=(11, 3.4), sharey=True)
    for axis, (data, pairs) in zip(axes, sets, strict=True):
        cell = [t for t in rows if (t.setting["data"], t.setting["pairs"]) == (data, pairs)]
        present = [arm for arm in arms if any(trial.arm == arm for trial in cell)]
        for place, arm in enumerate(present):
            for delta, marker in ((0.1, "o"), (0.01, "s")):
                values = [t.measurements[f"upper@{delta:g}"] for t in cell if t.arm == arm]
                axis.plot(np.mean(values), place, marker, color=COLOURS[arm], markersize=6)
        axis.axvline(float(np.mean([t.measurements["risk"] for t in cell])), color="C5", linewidth=2)
        constant = np.mean([t.measurements["constant"] for t in cell])
        axis.axvline(float(2 * constant), linestyle="--", linewidth=1, color="gray")
        axis.set_yticks(range(len(present)), [NAMES[arm] for arm in present])
        drawn = "with replacement" if pairs == "independent" else "without replacement"
        unit = "hours" if data == "flight-delays" else "100 rentals"
        axis.set(title=f"{SETTINGS[data]}\n{drawn}", xlabel=f"upper bound ({unit})", xscale="log")
    return Panel(
        figure,
        "Real tables as populations, samples of 1000 rows: upper bounds of the mean absolute error at 90% "
        "(dots) and 99% (squares), on a logarithmic scale. Thick line: the true risk; right of the dashed "
        "line a bound is vacuous. Without replacement the bounds are the transductive ones.",
    )


def _bounded(rows: Sequence[FinishedTrial]) -> Panel:
    figure, axes = _subplots(1, figsize=(7.5, 4))
    for arm in ("paper", "optimised", "bousquet-elisseeff", "log-stability", "log-free", "hold-out"):
        _line(axes[0], _levels(rows, arm, "m", "gap"), arm)
    axes[0].axhline(2, linestyle="--", linewidth=1, color="gray")
    axes[0].set(xlabel="training rows m", ylabel="bound of risk - training risk", xscale="log", yscale="log")
    _legend(figure, axes, columns=3)
    return Panel(
        figure,
        "A loss in [0, 2] whose uniform stability is only m^(-1/2): bounds of the gap at 99%. Above the "
        "dashed line they say nothing. Bounds of McDiarmid's type, the L_p bounds among them, never fall; "
        "those that are linear in the stability do.",
    )


def _estimates(rows: Sequence[FinishedTrial]) -> Panel:
    learners = sorted({str(trial.setting["learner"]) for trial in rows})
    figure, axes = _subplots(1, figsize=(7, 3))
    for place, learner in enumerate(learners):
        cell = [trial for trial in rows if trial.setting["learner"] == learner]
        spread = np.linspace(-0.15, 0.15, len(cell)) if len(cell) > 1 else np.zeros(1)
        for name, colour in (("risk", "C5"), ("plug_in", "C0")):
            values = [trial.measurements[name] for trial in cell]
            axes[0].plot(values, place + spread, "o", color=colour, markersize=4, alpha=0.8)
    for label, colour in (("true risk", "C5"), ("plug-in estimate at 90%", "C0")):
        axes[0].plot([], [], "o", color=colour, label=label)
    constant = np.mean([trial.measurements["constant"] for trial in rows])
    axes[0].axvline(float(constant), linestyle="--", linewidth=1, color="gray")
    axes[0].set_yticks(range(len(learners)), [name.replace("-", " ") for name in learners])
    axes[0].set(xlabel="mean absolute error (100 rentals)", ylim=(-0.5, len(learners) - 0.5))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return Panel(
        figure,
        "Learners that have no certificate: plug-in values from measured swaps (no guarantee) beside the "
        "true risk on rentals, a dot per batch of ten samples of 400 rows. Dashed: the best constant.",
    )


def _network(rows: Sequence[FinishedTrial]) -> Panel:
    figure, axes = _subplots(1, figsize=(6, 3.6))
    sizes = sorted({int(trial.setting["m"]) for trial in rows})
    cells = [[t.measurements["log_change"] for t in rows if t.setting["m"] == m] for m in sizes]
    for m, cell in zip(sizes, cells, strict=True):
        axes[0].plot([m] * len(cell), np.exp(cell), "o", color="C0", markersize=4, alpha=0.6)
    means = np.exp([np.mean(cell) for cell in cells])
    axes[0].plot(sizes, means, color="C0", label="measured")
    start = means[0]
    for power, style in ((0.5, "--"), (1.0, ":")):
        line = start * (np.array(sizes) / sizes[0]) ** -power
        axes[0].plot(sizes, line, style, color="C1", label=f"m^(-{power:g})")
    axes[0].set(xlabel="training rows m", ylabel="L2 norm of a swap's effect", xscale="log", yscale="log")
    axes[0].set_xticks(sizes, [str(m) for m in sizes])
    axes[0].minorticks_off()
    axes[0].legend()
    return Panel(
        figure,
        "How much one row matters to a small network trained by SGD (20 epochs): a dot per seed, the line at "
        "the geometric mean. Bounds of this kind shrink with m only if it falls faster than the dashed line.",
    )


def _part(finished: Sequence[FinishedTrial], part: str) -> list[FinishedTrial]:
    return [trial for trial in finished if trial.setting["part"] == part]


def _setting(trial: FinishedTrial) -> str:
    setting = trial.setting
    if setting["part"] == "real":
        drawn = "" if setting["pairs"] == "independent" else ", without replacement"
        return SETTINGS[str(setting["data"])] + drawn
    return f"{SETTINGS[str(setting['noise'])]}, lambda = {float(setting['strong_convexity']):g}"


def _levels(rows: Sequence[FinishedTrial], arm: str, over: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """The levels of a setting and the metric's mean at each."""
    levels: dict[float, list[float]] = {}
    for trial in rows:
        if trial.arm == arm:
            levels.setdefault(float(trial.setting[over]), []).append(trial.measurements[metric])
    ordered = sorted(levels)
    return np.array(ordered), np.array([np.mean(levels[level]) for level in ordered])


def _line(axis: Axes, points: tuple[np.ndarray, np.ndarray], arm: str) -> None:
    if len(points[0]):
        axis.plot(*points, marker="o", markersize=3, linewidth=1.2, label=NAMES[arm], color=COLOURS[arm])


def _legend(figure: Any, axes: Sequence[Axes], columns: int) -> None:
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=columns)


def _subplots(count: int, **options: Any) -> tuple[Any, list[Axes]]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, squeeze=False, **options)
    return figure, list(axes[0])
