"""The figures of a run: drawn once for light and once for dark paper, as SVG files beside the run.

The files are self-contained (text is drawn as outlines, nothing is linked) and equal for equal trials. The
page shows them through `<img>`, which keeps every figure in a document of its own: no identifier of one can
collide with another's, and nothing in them can run.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay.files import replacing_folder, write_json
from assay.study.trials import FinishedTrial

if TYPE_CHECKING:
    from assay.study.study import Panel

Theme = Literal["light", "dark"]

logger = logging.getLogger(__name__)

# Blue, rust, teal, purple, ochre, ink. Every colour has a contrast of at least 3:1 with the paper of its
# theme, and every pair differs by at least 0.1 in Oklab under normal vision and full protanopia, deuteranopia
# and tritanopia. The dark theme has the same hues in the same order, so that a caption may name one.
PALETTE: Mapping[Theme, tuple[str, ...]] = {
    "light": ("#4967c8", "#8c2f06", "#0aa293", "#60167d", "#bd7a00", "#242120"),
    "dark": ("#5980ea", "#dd6b1e", "#61b7a3", "#b4559e", "#deb80e", "#dbd6d6"),
}
PAPER: Mapping[Theme, str] = {"light": "#fdfcf9", "dark": "#16181b"}
_INK: Mapping[Theme, str] = {"light": "#242120", "dark": "#dbd6d6"}
_RULE: Mapping[Theme, str] = {"light": "#d9d6cf", "dark": "#3a3d42"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# The key in errors.json for a failure of the function that draws all figures.
ALL = "*"


@dataclass(frozen=True)
class DrawnFigure:
    """A figure as it lies in a run folder: its two SVG files."""

    name: str
    caption: str
    light: Path
    dark: Path

    def data_uri(self, theme: Theme) -> str:
        """The SVG as a `data:` address, for a page that loads nothing."""
        content = (self.light if theme == "light" else self.dark).read_bytes()
        return "data:image/svg+xml;base64," + base64.b64encode(content).decode("ascii")


def render_figures(
    figures: Callable[[Sequence[FinishedTrial]], Mapping[str, Panel]],
    trials: Sequence[FinishedTrial],
    folder: Path | str,
) -> dict[str, str]:
    """Draw a study's figures into `folder`, once per theme, replacing what was there.

    Writes `<name>.light.svg`, `<name>.dark.svg`, `captions.json` (name -> caption) and, when something could
    not be drawn, `errors.json` (name -> traceback). A figure that raises costs that figure only. `figures`
    gets the trials that
    finished well, under matplotlib settings for the theme: colours `C0` to `C5`, a transparent background,
        constrained layout.

    Args:
        figures: the study's function; names are letters, digits, `-` and `_`.
        trials: the finished trials of the run, failed ones included.
        folder: usually `RUN/figures`.

    Returns:
        What failed: figure name -> traceback, with `"*"` for `figures` itself. Empty when all is well.
    """
    successful = [trial for trial in trials if trial.ok]
    captions: dict[str, str] = {}
    errors: dict[str, str] = {}
    with replacing_folder(folder) as new:
        for theme in PALETTE:
            captions |= _draw_theme(figures, successful, new, theme, errors)
        for name in errors:
            captions.pop(name, None)
            for theme in PALETTE:
                (new / _file_name(name, theme)).unlink(missing_ok=True)
        write_json(new / "captions.json", captions)
        if errors:
            write_json(new / "errors.json", errors)
    for name, error in errors.items():
        what = "the figures" if name == ALL else f"figure {name!r}"
        logger.warning("%s could not be drawn: %s", what, error.strip().rpartition("\n")[2])
    return errors


def read_figures(folder: Path) -> tuple[list[DrawnFigure], dict[str, str]]:
    """The figures that `render_figures` wrote, in their order, and what failed (name -> traceback)."""
    if not (folder / "captions.json").exists():
        return [], {}
    try:
        captions = dict(json.loads((folder / "captions.json").read_text(encoding="utf-8")))
        errors_file = folder / "errors.json"
        errors = dict(json.loads(errors_file.read_text(encoding="utf-8"))) if errors_file.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        # The rest of the report is worth having without them.
        return [], {ALL: f"{folder.name} cannot be read: {error}"}
    drawn = []
    for name, caption in captions.items():
        light, dark = (folder / _file_name(name, theme) for theme in PALETTE)
        if not _NAME.fullmatch(name) or not (light.is_file() and dark.is_file()):
            errors.setdefault(name, f"{light.name} or {dark.name} is missing")
            continue
        drawn.append(DrawnFigure(name, caption, light, dark))
    return drawn, errors


def _file_name(name: str, theme: Theme) -> str:
    return f"{name}.{theme}.svg"


def _draw_theme(
    figures: Callable[[Sequence[FinishedTrial]], Mapping[str, Panel]],
    trials: Sequence[FinishedTrial],
    folder: Path,
    theme: Theme,
    errors: dict[str, str],
) -> dict[str, str]:
    """Write every figure in one theme; returns the captions and adds to `errors`."""
    captions: dict[str, str] = {}
    with _drawing(theme):
        try:
            panels = dict(figures(trials))
        except Exception:
            errors.setdefault(ALL, traceback.format_exc())
            return captions
        for name, panel in panels.items():
            try:
                if not _NAME.fullmatch(name):
                    raise ValueError(f"figure name {name!r}: use letters, digits, '-' and '_' only")
                _save(panel.figure, folder / _file_name(name, theme), salt=f"assay-{name}-{theme}")
                captions[name] = str(panel.caption)
            except Exception:
                errors.setdefault(name, traceback.format_exc())
    return captions


def _save(figure: Any, path: Path, salt: str) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": salt}):
        # Neither date nor version: a figure changes only when what it shows does.
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


@contextmanager
def _drawing(theme: Theme) -> Iterator[None]:
    """Matplotlib without a display and with the theme's settings; closes what is opened inside."""
    import matplotlib

    backend = matplotlib.get_backend()
    matplotlib.use("Agg")
    from matplotlib import pyplot

    before = set(pyplot.get_fignums())
    try:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_settings(theme))
            yield
    finally:
        for number in set(pyplot.get_fignums()) - before:
            pyplot.close(number)
        # A backend that needs a display, named in the environment, cannot come back on a machine without one.
        matplotlib.use(backend, force=False)


def _settings(theme: Theme) -> Any:
    from cycler import cycler

    ink, rule = _INK[theme], _RULE[theme]
    coloured = [
        "text.color",
        "axes.labelcolor",
        "axes.titlecolor",
        "axes.edgecolor",
        "xtick.color",
        "ytick.color",
        "patch.edgecolor",
        "hatch.color",
        "boxplot.boxprops.color",
        "boxplot.capprops.color",
        "boxplot.flierprops.color",
        "boxplot.flierprops.markeredgecolor",
        "boxplot.whiskerprops.color",
    ]
    return dict.fromkeys(coloured, ink) | {
        "axes.prop_cycle": cycler(color=PALETTE[theme]),
        "figure.facecolor": PAPER[theme],
        "axes.facecolor": PAPER[theme],
        "legend.facecolor": PAPER[theme],
        "legend.edgecolor": rule,
        "legend.framealpha": 0.85,
        "legend.fancybox": False,
        "grid.color": rule,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.8,
        "axes.titlesize": "medium",
        "axes.titlelocation": "left",
        "axes.unicode_minus": True,
        "errorbar.capsize": 2.5,
        "figure.figsize": (6.8, 3.9),
        "figure.constrained_layout.use": True,
        "font.family": ["DejaVu Sans"],
        "font.size": 9.5,
        "image.cmap": "cividis",
        "lines.linewidth": 1.6,
        "lines.markersize": 5,
        # Outlines, because a reader's machine need not have the font that the layout was made for.
        "svg.fonttype": "path",
    }
