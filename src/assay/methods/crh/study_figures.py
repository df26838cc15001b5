"""The figures of the study of crh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.study import FinishedTrial, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[FinishedTrial]
# A direction, plane or predictor keeps its colour in all figures.
AXES = {
    "diffmean": ("mean difference", "C0", "o-"),
    "pca": ("principal direction", "C1", "s-"),
    "probe": ("probe", "C2", "^-"),
    "random": ("random direction", "C3", "v-"),
    "other-concept": ("another concept's axis", "C4", "D-"),
    "own-direction": ("the sample's own (oracle)", "C5", "o--"),
    "angular": ("angular steering", "C2", "x:"),
}
STEERED = {
    "none": ("unsteered", "C4"),
    "random": ("random direction", "C3"),
    "axis": ("axis", "C0"),
    "own-sector": ("own sector (oracle)", "C5"),
    "opposite-sector": ("opposite sector", "C1"),
    "angular": ("angular steering", "C2"),
    "instruction": ("asked in words", "0.5"),
}
PLANES = {
    "own-normal": "the sample's own normal (oracle)",
    "fitted": "fitted plane",
    "random": "random planes",
}
# Standard errors between 0 and an effect that is detected with 80% power at 5%, two-sided.
POWER = 1.96 + 0.84


def panels(finished: Rows) -> dict[str, Panel]:
    """Every figure that the trials allow."""
    drawn = {
        "cylinder": (_cylinder, "samples"),
        "axes": (_axes, "axis"),
        "sectors": (_sectors, "map"),
        "penalty": (_penalty, "penalty"),
        "answers": (_answers, "answers"),
        "energy": (_energy, "plane"),
        "prediction": (_prediction, "sector"),
    }
    made: dict[str, Panel] = {}
    for name, (draw, part) in drawn.items():
        rows = [trial for trial in finished if trial.setting["part"] == part]
        if rows:
            made[name] = draw(rows)
    return made


def _cylinder(rows: Rows) -> Panel:
    figure, (axes,) = _subplots(1, figsize=(7, 4.4))
    points = np.array(
        [
            [row.measurements[f"{name}:{k}"] for name in ("z", "r", "onset")]
            for row in rows
            for k in range(_count(row, "z"))
        ]
    )
    fires = np.isfinite(points[:, 2])
    axes.plot(*points[~fires, :2].T, "x", color="0.6", label="never fires")
    mesh = axes.scatter(*points[fires, :2].T, c=points[fires, 2], cmap="viridis", s=22, label="fires")
    axes.figure.colorbar(mesh, ax=axes, label="onset (mean differences)")
    axes.axvline(1, color="gray", linestyle="--", linewidth=0.8)
    axes.set(
        xlabel="along the axis (mean differences)",
        ylabel="distance from the axis (mean differences)",
        ylim=(0, None),
    )
    axes.legend()
    return Panel(
        figure,
        f"The differences of {len(points)} held-out samples in the coordinates of their concept's "
        f"cylinder. Colour: how far "
        "along the axis the sample must be pushed until the model prefers the response with the concept. "
        "Most "
        "of a difference lies off the axis.",
    )


def _axes(rows: Rows) -> Panel:
    figure, (axes,) = _subplots(1, figsize=(7, 4.4))
    strengths = sorted({float(row.setting["strength"]) for row in rows})
    for arm, (name, colour, style) in AXES.items():
        cells = [_values(rows, "gain", arm, strength=strength) for strength in strengths]
        if all(cells):
            axes.errorbar(strengths, *_mean_and_error(cells), fmt=style, capsize=3, color=colour, label=name)
    if words := _values(rows, "gain", "instruction"):
        axes.axhline(
            float(np.mean(words)), color="gray", linestyle="--", linewidth=0.8, label="asked in words"
        )
    axes.set(xlabel="length (mean differences)", ylabel="gain of the margin (nats per token)")
    axes.set_xticks(strengths)
    axes.legend(fontsize="small")
    return Panel(
        figure,
        "What a push of given length adds to the margin of held-out samples: means over concepts with "
        "their standard "
        "errors. Angular steering has angles in place of lengths: 60, 30 and 0 degrees from the axis, at "
        "all tokens.",
    )


def _sectors(rows: Rows) -> Panel:
    import matplotlib.pyplot as plt

    shown = [arm for arm in PLANES if any(row.arm == arm for row in rows)]
    maps = {}
    for arm in shown:
        cells = [_grid(row) for row in rows if row.arm == arm]
        maps[arm] = np.mean(cells, axis=0)
    limit = max(float(np.abs(values).max()) for values in maps.values()) or 1.0
    figure, all_axes = plt.subplots(
        1,
        len(shown),
        squeeze=False,
        figsize=(10, 4),
        subplot_kw={"projection": "polar"},
        layout="constrained",
    )
    mesh: Any = None
    for axes, arm in zip(all_axes[0], shown, strict=True):
        values = maps[arm]
        edges = (np.arange(len(values) + 1) - 0.5) * (2 * math.pi / len(values))
        radii = np.arange(values.shape[1] + 1) + 0.5
        mesh = axes.pcolormesh(edges, radii, values.T, cmap="RdBu", vmin=-limit, vmax=limit)
        axes.set_title(PLANES[arm], fontsize="medium")
        axes.set_yticks([])
        axes.set_ylim(0, None)
        axes.grid(False)
    figure.colorbar(mesh, ax=list(all_axes[0]), shrink=0.75, label="margin minus that of the axial push")
    ranges = ", ".join(f"{PLANES[arm]} {np.mean(_values(rows, 'range', arm)):.2f}" for arm in shown)
    return Panel(
        figure,
        "Equal pushes along the axis, turned around it at 60 degrees; the radius is the length. Blue "
        "sectors facilitate, "
        "red ones suppress; means over concepts and samples. On the left, 0 degrees is the sample's own "
        "normal, for which "
        f"its response with the concept must be known. Range over sectors, in nats per token: {ranges}.",
    )


def _penalty(rows: Rows) -> Panel:
    figure, (left, right) = _subplots(2, figsize=(10, 3.8))
    penalties = sorted({float(row.setting["penalty"]) for row in rows})
    for place, concept in enumerate(_concepts(rows)):
        values = [
            float(np.mean(_values(rows, "onset", "own-direction", penalty=p, concept=concept)))
            for p in penalties
        ]
        left.plot(penalties, values, "-", color="0.75", linewidth=1, label="concepts" if place == 0 else None)
    for axes, metric in ((left, "onset"), (right, "never")):
        cells = [_values(rows, metric, "own-direction", penalty=p) for p in penalties]
        axes.errorbar(penalties, *_mean_and_error(cells), fmt="o-", capsize=3, color="C0", label="mean")
        axes.set(xlabel="penalty p on the normal part")
    left.set(ylabel="onset (mean differences)")
    left.legend()
    right.set(ylabel="share of samples that never fire", ylim=(-0.02, 1.02))
    return Panel(
        figure,
        "A sample's own direction (p = 0) with its normal part shrunk until only the axial part is left "
        "(p = 1). The push "
        "along the axis is the same for all p. Left: the length at which the margin reaches zero, with 5 "
        "for samples "
        "that never fire. Means over concepts with their standard errors.",
    )


def _answers(rows: Rows) -> Panel:
    figure, (axes,) = _subplots(1, figsize=(7.5, 4))
    shown = [arm for arm in STEERED if any(row.arm == arm for row in rows)]
    pushes = sorted({float(row.setting["push"]) for row in rows})
    for offset, push in zip(np.linspace(-0.2, 0.2, len(pushes)), pushes, strict=True):
        for place, arm in enumerate(shown):
            present, broken = (
                np.mean(_values(rows, metric, arm, push=push)) for metric in ("shown", "corrupted")
            )
            colour = STEERED[arm][1]
            axes.bar(place + offset, present, 0.36, color=colour, edgecolor="white")
            axes.bar(
                place + offset, broken, 0.36, bottom=present, facecolor="none", edgecolor=colour, hatch="////"
            )
    axes.set_xticks(range(len(shown)), [STEERED[arm][0].replace(" (", "\n(") for arm in shown], rotation=20)
    axes.set(ylabel="share of answers", ylim=(0, 1))
    lengths = " and ".join(f"{push:g}" for push in pushes)
    return Panel(
        figure,
        f"Greedy answers to held-out questions, pushed {lengths} mean differences along the axis (left "
        f"and right bar). "
        "Filled: readable and with the concept, by its lexicon. Hatched: no longer language. Unsteered "
        "and asked answers "
        "have no push.",
    )


def _energy(rows: Rows) -> Panel:
    from scipy import stats

    figure, (left, right) = _subplots(2, figsize=(10, 4))
    ranks = sorted({int(row.setting["rank"]) for row in rows})
    freedom = next(row.measurements["width"] for row in rows) - 1
    chance = np.array(ranks) / freedom
    law = stats.beta(np.array(ranks) / 2, (freedom - np.array(ranks)) / 2)
    for axes, metric, what in (
        (left, "ratio", "gradients"),
        (right, "normal_ratio", "normals of differences"),
    ):
        for arm, name, colour in (("own", "own plane", "C0"), ("others", "planes of other concepts", "C4")):
            cells = [
                [value * c for value in _values(rows, metric, arm, rank=k)]
                for k, c in zip(ranks, chance, strict=True)
            ]
            axes.errorbar(ranks, *_mean_and_error(cells), fmt="o-", capsize=3, color=colour, label=name)
        axes.fill_between(
            ranks, law.ppf(0.025), law.ppf(0.975), color="0.85", label="one random direction, 95%"
        )
        axes.plot(ranks, chance, "--", color="gray", linewidth=0.8, label="chance")
        axes.set(
            xlabel="rank of the plane", ylabel="share of energy in the plane", title=what, ylim=(0, None)
        )
    left.legend(fontsize="small")
    return Panel(
        figure,
        "How much of what is held out lies in the plane fitted to other samples of the concept. Left: "
        "gradients of the "
        "margin, what the model is sensitive to. Right: the normals of the differences themselves. Means "
        "over concepts and "
        "folds with their standard errors; the band is the exact Beta law of one random direction.",
    )


def _prediction(rows: Rows) -> Panel:
    titles = {
        "own": "from each sample's own normal",
        "shared": "in the fitted plane",
        "planted": "planted (control)",
    }
    frames = [name for name in titles if any(row.setting["frame"] == name for row in rows)]
    figure, all_axes = _subplots(len(frames), figsize=(10, 4.2), sharex=True, sharey=True)
    notes, held_out = [], 0
    for axes, frame in zip(all_axes, frames, strict=True):
        chosen = [row for row in rows if row.arm == "ridge" and row.setting["frame"] == frame]
        angles = np.degrees(
            [
                [row.measurements[f"{name}:{k}"] for name in ("true", "predicted")]
                for row in chosen
                for k in range(_count(row, "true"))
            ]
        )
        held_out = len(angles)
        wrapped = (angles + 180) % 360 - 180
        axes.plot([-180, 180], [-180, 180], "--", color="gray", linewidth=0.8)
        axes.plot(*wrapped.T, "o", markersize=3.5, alpha=0.6, color="C0")
        scores = {
            arm: float(np.mean(_values(rows, "score", arm, frame=frame)))
            for arm in ("constant", "nearest", "ridge")
        }
        axes.set(xlabel="true sector (degrees)", title=titles[frame], aspect="equal")
        axes.set_xticks([-180, -90, 0, 90, 180])
        axes.set_yticks([-180, -90, 0, 90, 180])
        notes.append(f"{titles[frame]}: " + ", ".join(f"{arm} {score:.2f}" for arm, score in scores.items()))
    all_axes[0].set(ylabel="predicted sector (degrees)")
    detectable = POWER * math.sqrt(0.5 / held_out)
    return Panel(
        figure,
        "The sector to which a held-out sample is most sensitive, and what a ridge regression on its "
        "difference "
        f"predicts. Scores, mean cos(predicted - true): {'; '.join(notes)}. With {held_out} independent "
        f"samples a score of "
        f"{detectable:.2f} would be detected with 80% power.",
    )


def _subplots(count: int, **options: Any) -> tuple[Any, list[Axes]]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, squeeze=False, layout="constrained", **options)
    return figure, list(axes[0])


def _count(row: FinishedTrial, name: str) -> int:
    """How many numbered measurements of a name a trial has."""
    return sum(key.startswith(f"{name}:") for key in row.measurements)


def _grid(row: FinishedTrial) -> np.ndarray:
    places = [tuple(map(int, key.split(":")[1:])) for key in row.measurements if key.startswith("gain:")]
    values = np.zeros(np.max(places, axis=0) + 1)
    for phi, s in places:
        values[phi, s] = row.measurements[f"gain:{phi}:{s}"]
    return values


def _concepts(rows: Rows) -> list[str]:
    return list(dict.fromkeys(str(row.setting["concept"]) for row in rows))


def _values(rows: Rows, metric: str, arm: str, **setting: object) -> list[float]:
    """Means by concept, the independent unit."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.arm == arm and all(row.setting[name] == value for name, value in setting.items()):
            found.setdefault(str(row.setting["concept"]), []).append(row.measurements[metric])
    return [float(np.mean(values)) for values in found.values()]


def _mean_and_error(cells: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    errors = [float(np.std(cell, ddof=1) / math.sqrt(len(cell))) if len(cell) > 1 else 0.0 for cell in cells]
    return [float(np.mean(cell)) for cell in cells], errors
