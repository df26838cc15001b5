"""The figures of the study that show images and classes; the samples are those that the trials measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from assay.study import FinishedTrial, Panel

if TYPE_CHECKING:
    from assay.methods.jepa_guidance.study_material import Bench

COLUMNS = 20
# Rows of the galleries: arm and index of the strength on its path.
DIGITS = (
    ("plain", "no guidance", 0),
    ("jepa", "JEPA, Gaussian encoder", 3),
    ("jepa-reversed", "Gaussian, turned round", 2),
    ("random", "random shifts", 3),
    ("self-guided", "self-guided (SGMS)", 2),
    ("minority", "minority guidance", 3),
    ("boost-and-skip", "Boost-and-Skip", 3),
    ("temperature", "temperature 1.3", 3),
    ("neighbours", "pixel neighbours", 2),
    ("jepa-invariance", "JEPA, invariant encoder", 3),
    ("jepa-invariance", "invariant, too strong", 4),
)
MNIST = (
    ("none", "plain", "no guidance", 0),
    ("none", "jepa", "JEPA, Gaussian encoder", 2),
    ("none", "jepa", "the same, stronger", 4),
    ("none", "self-guided", "self-guided (SGMS)", 2),
    ("text", "plain", "captions, plain", 0),
    ("text", "jepa", "captions, JEPA", 2),
    ("text", "minority-prompt", "MinorityPrompt", 2),
    ("text", "cads", "CADS", 2),
)
SHARES = (
    ("plain", "no guidance", 0),
    ("jepa", "JEPA, Gaussian encoder", 3),
    ("self-guided", "self-guided (SGMS)", 2),
    ("jepa-invariance", "JEPA, invariant encoder, too strong", 4),
)

Rows = Sequence[FinishedTrial]


def galleries(rows: Rows) -> dict[str, Panel | None]:
    """Images of digits and of MNIST, and class histograms, for the first seed that was measured."""
    digits = [row for row in rows if row.setting["data"] == "digits" and row.setting["condition"] == "none"]
    mnist = [row for row in rows if row.setting["data"] == "mnist"]
    return {"images": _digits(digits), "mnist": _mnist(mnist), "classes": _classes(digits)}


def _digits(rows: Rows) -> Panel | None:
    bench = _first_bench(rows)
    if bench is None:
        return None
    shown = [(name, _images(bench, "none", arm, place)) for arm, name, place in DIGITS if _has(rows, arm)]
    images = bench.images
    rare = images.held_out.images[np.isin(images.held_out.labels, images.world_rare)]
    real = ("real, rare in the world", rare[: max(COLUMNS, 1)])
    return Panel(
        _grid([real, *shown]),
        "Samples of one seed. A column starts from one noise in all rows (Boost-and-Skip and the real images "
        "excepted), so that columns show what a guidance changes. Rare in the world are 5 to 9. Each arm is "
        "shown at a fixed strength of its path, not at its best one. The score of the Gaussian encoder has "
        "the paper's sign, that of the invariant one the reverse; the last row is a collapse onto few "
        "digits.",
    )


def _mnist(rows: Rows) -> Panel | None:
    bench = _first_bench(rows)
    if bench is None:
        return None
    shown = [
        (name, _images(bench, condition, arm, place))
        for condition, arm, name, place in MNIST
        if _has([row for row in rows if row.setting["condition"] == condition], arm)
    ]
    return Panel(
        _grid(shown),
        "MNIST at 12 x 12 pixels, one seed; a column starts from one noise. Captions ask for 0, 1, ..., 9 in "
        "turn, in four wordings, with a guidance scale of 1.5.",
    )


def _classes(rows: Rows) -> Panel | None:
    from assay.methods.jepa_guidance.metrics import class_entropy, class_shares

    bench = _first_bench(rows)
    if bench is None:
        return None
    shown = [
        (name, bench.judge.classes(_images(bench, "none", arm, place)))
        for arm, name, place in SHARES
        if _has(rows, arm)
    ]
    bars = [
        ("the world's images", bench.images.world.labels),
        ("the generator's images", bench.images.generator.labels),
    ]
    bars += shown
    figure, axes = _subplots(2, -(-len(bars) // 2), (10, 4.6))
    for axis, (name, labels) in zip(axes.flat, bars, strict=False):
        shares = class_shares(labels, 10)
        colours = ["C1" if digit in bench.images.world_rare else "C0" for digit in range(10)]
        axis.bar(range(10), shares, color=colours)
        axis.set_title(f"{name} ({class_entropy(shares):.2f})", fontsize="small")
        axis.set_xticks(range(10))
        axis.set_ylim(0, 0.5)
    for axis in axes.flat[len(bars) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("share")
    return Panel(
        figure,
        "Shares of the digits among samples of one seed, by a support-vector machine; digits that are rare "
        "in the world in the second colour. In brackets the entropy, 1 for equal shares. The bars of a "
        "collapse are cut off at one half.",
    )


def _first_bench(rows: Rows) -> Bench | None:
    if not rows:
        return None
    from assay.methods.jepa_guidance.study_material import Bench

    return Bench.of(min(rows, key=lambda row: row.seed).trial)


def _has(rows: Rows, arm: str) -> bool:
    first = min(row.seed for row in rows) if rows else None
    return any(row.arm == arm and row.seed == first for row in rows)


def _images(bench: Bench, condition: str, arm: str, place: int) -> Float[np.ndarray, "n 1 h w"]:
    """The samples of a point of a path; point 0 is the unguided sampler."""
    from assay.methods.jepa_guidance.experiments import samples
    from assay.methods.jepa_guidance.study import STRENGTHS

    if place == 0 or arm == "plain":
        return samples(bench, condition, "plain")
    return samples(bench, condition, arm, STRENGTHS[arm][place - 1])


def _grid(rows: Sequence[tuple[str, Float[np.ndarray, "n 1 h w"]]]) -> Any:
    import matplotlib.pyplot as plt

    # Room for the names of rows, which the automatic layout does not leave beside images of fixed shape.
    room = {"left": 0.2, "right": 0.995, "bottom": 0.01, "top": 0.99, "hspace": 0.1}
    size = (10, 0.42 * len(rows))
    figure, axes = plt.subplots(len(rows), 1, squeeze=False, figsize=size, layout="none", gridspec_kw=room)
    for axis, (name, images) in zip(axes.flat, rows, strict=True):
        strip = images[:COLUMNS, 0]
        # A line of paper between two images.
        padded = np.pad(strip, ((0, 0), (0, 0), (0, 1)), constant_values=np.nan)
        axis.imshow(
            np.concatenate(list(padded), axis=1), cmap="gray", vmin=0, vmax=1, interpolation="nearest"
        )
        axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize="small")
        axis.set_xticks([])
        axis.set_yticks([])
        for spine in axis.spines.values():
            spine.set_visible(False)
    return figure


def _subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, squeeze=False, figsize=size, layout="constrained")
