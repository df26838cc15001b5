"""What a fitted model says: its direction, and the outcomes along the index, as tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from assay.methods.desi.regressor import DeSIRegressor


def direction_rows(model: DeSIRegressor) -> list[dict[str, Any]]:
    """Predictors with their coordinates of the direction, the largest first; intervals after a bootstrap."""
    names = getattr(model, "feature_names_in_", None)
    labels = [f"x{i + 1}" for i in range(len(model.direction_))] if names is None else list(names)
    spread = getattr(model, "direction_ci_", None)
    rows = []
    for i in np.argsort(-np.abs(model.direction_), kind="stable"):
        row = {"predictor": labels[i], "direction": float(model.direction_[i])}
        if spread is not None:
            row |= {"low": float(spread.lower[i]), "high": float(spread.upper[i])}
        rows.append(row)
    return rows


def write_explanation(model: DeSIRegressor, folder: Path) -> list[Path]:
    """Write `direction.csv`, `direction.png` and `along-index.png` into a folder; the paths written."""
    import pandas

    paths = [folder / name for name in ("direction.csv", "direction.png", "along-index.png")]
    with replacing(paths[0]) as temporary:
        pandas.DataFrame(direction_rows(model)).to_csv(temporary, index=False)
    for path, draw in zip(paths[1:], (draw_direction, draw_along_index), strict=True):
        with replacing(path) as temporary:
            draw(model).savefig(temporary, dpi=150)
    return paths


def draw_direction(model: DeSIRegressor) -> Figure:
    """The coordinates of the direction as dots, with bootstrap intervals where there are any."""
    from matplotlib.figure import Figure

    rows = direction_rows(model)[::-1]
    figure = Figure(figsize=(6, 1.2 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    positions = range(len(rows))
    if "low" in rows[0]:
        axes.hlines(
            positions, [row["low"] for row in rows], [row["high"] for row in rows], linewidth=3, alpha=0.4
        )
    axes.plot([row["direction"] for row in rows], positions, "o")
    axes.axvline(0, linewidth=0.8, color="gray")
    axes.set(
        yticks=positions, yticklabels=[row["predictor"] for row in rows], xlabel="coordinate of the direction"
    )
    return figure


def draw_along_index(model: DeSIRegressor, n_points: int = 9) -> Figure:
    """The predicted outcome at `n_points` values of the index, between its 2.5% and 97.5% quantiles."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    low, high = np.quantile(model.smoother_.z, [0.025, 0.975])
    z = np.linspace(low, high, n_points)
    outcomes = model.smoother_.predict(z)
    if outcomes.ndim == 3:
        _draw_matrices(figure, z, outcomes)
    elif model.space.name == "wasserstein":
        _draw_quantiles(figure, z, outcomes)
    else:
        _draw_coordinates(figure.subplots(), z, outcomes, stacked=model.space.name == "composition")
    return figure


def _draw_quantiles(figure: Figure, z: np.ndarray, outcomes: np.ndarray) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    axes = figure.subplots()
    levels = np.arange(1, outcomes.shape[1] + 1) / (outcomes.shape[1] + 1)
    scale = Normalize(z[0], z[-1])
    for value, quantiles in zip(z, outcomes, strict=True):
        axes.plot(levels, quantiles, color=colormaps["viridis"](scale(value)))
    axes.set(xlabel="level", ylabel="quantile of the outcome")
    figure.colorbar(ScalarMappable(scale, "viridis"), ax=axes, label="index")


def _draw_coordinates(axes: Axes, z: np.ndarray, outcomes: np.ndarray, stacked: bool) -> None:
    labels = [f"{'part' if stacked else 'coordinate'} {i + 1}" for i in range(outcomes.shape[1])]
    if stacked:
        axes.stackplot(z, outcomes.T, labels=labels)
    else:
        axes.plot(z, outcomes, label=labels)
    axes.set(xlabel="index", ylabel="predicted outcome")
    if len(labels) <= 12:
        axes.legend(fontsize="small", ncols=2)


def _draw_matrices(figure: Figure, z: np.ndarray, outcomes: np.ndarray) -> None:
    shown = np.linspace(0, len(z) - 1, 5).astype(int)
    panels = np.atleast_1d(figure.subplots(1, len(shown)))
    largest = np.abs(outcomes).max()
    image = None
    for panel, i in zip(panels, shown, strict=True):
        image = panel.imshow(outcomes[i], cmap="RdBu", vmin=-largest, vmax=largest)
        panel.set(xticks=[], yticks=[], title=f"index {z[i]:.2f}")
    if image is not None:
        figure.colorbar(image, ax=panels, shrink=0.6)
