"""What the verbs share: types of options, and the way from a folder back to cylinder, pairs and model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from assay.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from assay.methods.crh.cylinder import Cylinder
    from assay.methods.crh.detectors import Detector
    from assay.methods.crh.pairs import ConceptPairs

Flag = Annotated[bool, Parameter(negative=())]
Out = Annotated[Path, Parameter(name=["--out", "-o"])]
OptionalOut = Annotated[Path | None, Parameter(name=["--out", "-o"])]
Folder = Annotated[Path, Parameter(name="--cylinder")]
Position = Literal["all", "prompt", "last_prompt", "output"]
# The name under which a cylinder's folder keeps the pairs that it was fitted to.
PAIRS = "pairs.jsonl"
# What a cylinder must say for the verbs that run its model.
FACTS = (
    "model",
    "model_fingerprint",
    "template",
    "position",
    "steered",
    "m_tokens",
    "pairs",
    "train",
    "calibration",
)


def read_fit(folder: Path) -> Cylinder:
    """The cylinder in a folder, with all that the verbs need to know about it.

    Raises:
        InputError: there is none, or `assay crh fit` did not write it.
    """
    from assay.methods.crh.artifact import load_cylinder

    fitted = load_cylinder(folder)
    if missing := [name for name in FACTS if name not in fitted.facts]:
        raise InputError(
            f"{folder} does not say {', '.join(missing)}: assay crh fit did not save it; fit it again"
        )
    return fitted


def read_run(folder: Path) -> tuple[Cylinder, ConceptPairs]:
    """The cylinder in a folder and the pairs that it was fitted to.

    Raises:
        InputError: see `read_fit`; or the pairs are others.
    """
    from assay.methods.crh.pairs import load_pairs

    fitted = read_fit(folder)
    rows = load_pairs(folder / PAIRS)
    if rows.digest() != fitted.facts.get("pairs"):
        raise InputError(f"{folder / PAIRS} is not what the cylinder was fitted to; fit it again")
    return fitted, rows


def load_model(console: Console, fitted: Cylinder, model: str | None, device: str | None) -> tuple[Any, Any]:
    """The cylinder's model, from where it was or from another place, and its tokenizer."""
    from assay import lm

    with console.status("Loading the model ..."):
        return lm.load(model or str(fitted.facts["model"]), device=device)


def saved_detector(facts: dict[str, Any]) -> Detector | None:
    """The detector whose patterns the facts hold; None where they hold none."""
    from assay.methods.crh.detectors import Detector

    if "patterns" not in facts:
        return None
    return Detector(tuple(facts["patterns"]), facts["at_least"], facts["ignore_case"])
