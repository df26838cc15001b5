"""Figures of a cylinder: the polar map of sectors, and captured energy against rank."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.files import replacing
from assay.methods.crh.plane import PlaneTest
from assay.methods.crh.sectors import SectorMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRIPS = 16


def draw_sector_map(found: SectorMap, *, unit: float, title: str) -> Figure:
    """The map around the axis, beside it the same map in a random plane, below both as profiles.

    Args:
        unit: the length of the mean difference; radii are in such units.
        title: above the figure.
    """
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke

    figure = Figure(figsize=(11, 4), layout="constrained")
    planes = [("this plane", found.margins)]
    if len(found.controls):
        planes.append(("a random plane", found.controls[0]))
    gain = [values - found.axis_only for _, values in planes]
    limit = max(float(np.abs(values).max()) for values in gain) or 1.0
    norm = TwoSlopeNorm(0.0, -limit, limit)
    grid = figure.add_gridspec(1, len(planes) + 1, width_ratios=[*[1.0] * len(planes), 1.2])
    turn = 2 * math.pi / len(found.angles)
    # Every sector is drawn in narrow strips, so that its rim is round.
    edges = np.linspace(-turn / 2, 2 * math.pi - turn / 2, STRIPS * len(found.angles) + 1)
    radii = _edges(found.strengths / unit)
    for column, ((name, _), values) in enumerate(zip(planes, gain, strict=True)):
        axes: Any = figure.add_subplot(grid[column], projection="polar")
        mesh = axes.pcolormesh(
            edges, radii, np.repeat(values, STRIPS, axis=0).T, cmap="RdBu", norm=norm, shading="flat"
        )
        axes.set_title(name)
        # Between two sectors, with a light rim, so that numbers can be read on dark cells.
        axes.set_rlabel_position(90 + math.degrees(turn) / 2)
        for text in axes.get_yticklabels():
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
        axes.set_xlabel("radius: strength in mean differences")
        axes.grid(False)
        if column == len(planes) - 1:
            figure.colorbar(mesh, ax=axes, shrink=0.7, label="margin minus axis only (nats per token)")
    axes = figure.add_subplot(grid[len(planes)])
    degrees = np.degrees(found.angles)
    for control in found.controls:
        axes.plot(degrees, control.mean(axis=1), color="0.7", linewidth=1)
    axes.plot(degrees, found.profile, marker="o", color="tab:blue", label="this plane")
    if len(found.controls):
        axes.plot([], [], color="0.7", label="random planes")
    axes.axhline(float(found.axis_only.mean()), color="tab:orange", linestyle="--", label="axis only")
    axes.set_xlabel("sector (degrees)")
    axes.set_ylabel("margin, mean over strengths")
    axes.legend(fontsize="small")
    figure.suptitle(title)
    return figure


def draw_energy(planes: Sequence[PlaneTest], width: int) -> Figure:
    """Captured energy of held-out gradients against the rank of the plane, with the band of chance.

    Args:
        width: of the residual stream.
    """
    from matplotlib.figure import Figure
    from scipy import stats

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    ranks = np.array([test.k for test in planes])
    n = max(1, len(planes[0].captured)) if planes else 1
    for test in planes:
        axes.plot([test.k] * len(test.captured), test.captured, ".", color="0.6", markersize=4)
    axes.plot(ranks, [test.mean for test in planes], marker="o", label=f"mean of {n} held-out prompts")
    if planes and planes[0].others:
        mean = [float(np.mean(list(test.others.values()))) for test in planes if test.others]
        axes.plot(ranks[: len(mean)], mean, marker="s", linestyle=":", label="planes of other concepts")
    freedom = width - 1
    law = stats.beta(ranks / 2, (freedom - ranks) / 2)
    axes.fill_between(ranks, law.ppf(0.025), law.ppf(0.975), alpha=0.2, label="one random direction, 95%")
    axes.plot(ranks, ranks / freedom, linestyle="--", color="tab:orange", label="chance")
    axes.set_xlabel("rank of the plane")
    axes.set_ylabel("share of the gradient's energy")
    axes.legend(fontsize="small")
    return figure


def save_png(figure: Figure, path: Path | str) -> None:
    """Write a figure as PNG, whole or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    with replacing(path) as temporary:
        temporary.write_bytes(buffer.getvalue())


def _edges(values: np.ndarray) -> np.ndarray:
    """The borders of rings around radii."""
    middle = (values[1:] + values[:-1]) / 2
    last = values[-1] + (values[-1] - middle[-1] if len(middle) else values[-1] / 2)
    return np.concatenate([[0.0], middle, [last]])
