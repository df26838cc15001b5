"""From pairs to a cylinder with measured strengths: what `assay crh fit` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from assay.errors import InputError
from assay.methods.crh.artifact import model_fingerprint
from assay.methods.crh.blocks import find_decoder
from assay.methods.crh.cylinder import Axis, Cylinder, fit_cylinder
from assay.methods.crh.detectors import CONCEPT, CORRUPTED, Detector, label
from assay.methods.crh.extraction import DifferenceSet, Site, extract_differences
from assay.methods.crh.generation import replies
from assay.methods.crh.margin import ConceptMargin
from assay.methods.crh.pairs import ConceptPairs, PairsError
from assay.methods.crh.steering import Position, steer
from assay.methods.crh.strength import Outcome, Strengths
from assay.methods.crh.threshold import MarginFunction, MinimalStrength, minimal_strength

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OnStep = Callable[[str, int, int], None]
OnCount = Callable[[int, int], None]
# Training prompts that decide between layers.
PROBED = 3
# Strengths at which answers are generated, in mean differences.
GRID = (1.0, 1.5, 2.0, 3.0, 4.0)
# Candidate layers, as shares of the depth: the paper's two lie at 1/2 and 3/4; small models steer best below.
DEPTHS = (0.4, 0.5, 0.67)
ROWS = 32


@dataclass(frozen=True)
class FitOptions:
    """How a cylinder is fitted and calibrated.

    Args:
        layers: candidates; 40%, 50% and 67% of the depth when None.
        axis, rank: see `fit_cylinder`.
        template: see `prompt_text`.
        read: where activations are read: `"mean"` over the tokens of a response or, as in the paper, at its
            `"last"` token. On short responses that end in a full stop the last token says little.
        position: which tokens are steered when strengths are measured.
        m_tokens: see `ConceptMargin`.
        train_share: of pairs, for axis and plane; strengths are measured on the others.
        outcome: what counts as firing (see `Strengths`); `"auto"` is generation where there is a detector.
        s_max: the largest strength, in mean differences.
        max_new_tokens: of generated answers.
        seed: of the split.
    """

    layers: tuple[int, ...] | None = None
    axis: Axis = "diffmean"
    rank: int | None = None
    template: str = "chat"
    read: Site = "mean"
    position: Position = "all"
    m_tokens: int = 6
    train_share: float = 0.67
    outcome: Outcome | Literal["auto"] = "auto"
    s_max: float = 4.0
    max_new_tokens: int = 20
    seed: int = 0


def fit_from_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: ConceptPairs,
    options: FitOptions | None = None,
    *,
    detector: Detector | None = None,
    prompts: Sequence[str] = (),
    on_step: OnStep = lambda what, done, total: None,
) -> Cylinder:
    """Fit a cylinder to some pairs and measure minimal strengths on prompts that it has not seen.

    The axis comes from the training pairs; so does the choice among layers, by the share of answers that show
    the concept (or, without a detector, by what one mean difference adds to the margin). Strengths come from
    the other pairs' prompts, which are therefore exchangeable with new ones of the same kind.

    Args:
        pairs: of one concept, at least 5.
        detector: finds the concept in generated answers.
        prompts: further prompts on which strengths are measured by generation.
        on_step: called with what is being done, how much of it is done and how much there is.

    Raises:
        PairsError: pairs of several concepts, or too few.
        InputError: generation is asked for without a detector; see also `FitOptions` and what it refers to.
    """
    chosen = options or FitOptions()
    train, rest = _split(pairs, chosen)
    if chosen.outcome == "generation" and detector is None:
        raise InputError("strengths by generation need a detector of the concept; use the outcome 'margin'")
    generating = detector if chosen.outcome != "margin" else None
    depth = len(find_decoder(model).blocks)
    differences = extract_differences(
        model,
        tokenizer,
        pairs,
        sorted({int(share * depth) for share in DEPTHS}) if chosen.layers is None else chosen.layers,
        template=chosen.template,
        position=chosen.read,
        on_batch=lambda done, total: on_step("Reading activations", done, total),
    )
    cylinders = [
        fit_cylinder(
            differences.subset(train),
            layer,
            chosen.rank,
            chosen.axis,
            seed=chosen.seed,
            facts=_facts(model, pairs, chosen, train, rest),
        )
        for layer in differences.layers
    ]
    best = 0
    if len(cylinders) > 1:
        scores = []
        for done, cylinder in enumerate(cylinders, 1):
            scores.append(_layer_score(model, tokenizer, pairs, cylinder, train[:PROBED], chosen, generating))
            on_step("Comparing layers", done, len(cylinders))
        best = int(np.argmax(scores))
    cylinder = cylinders[best]

    def step(done: int, total: int) -> None:
        on_step("Measuring strengths", done, total)

    if generating is None:
        margin = margin_of(model, tokenizer, pairs, cylinder)
        return cylinder.with_strengths(
            measure_strengths(margin, cylinder, rest, s_max=chosen.s_max, on_sample=step)
        )
    asked = list(dict.fromkeys([pairs[i].question for i in rest] + list(prompts)))
    grid = [factor * chosen.s_max / max(GRID) for factor in GRID]
    return cylinder.with_strengths(
        generated_strengths(
            model, tokenizer, cylinder, asked, generating, grid, template=chosen.template,
            position=chosen.position, max_new_tokens=chosen.max_new_tokens, on_rows=step,
        )
    )  # fmt: skip


def measure_strengths(
    margin: MarginFunction,
    cylinder: Cylinder,
    samples: Sequence[int],
    *,
    s_max: float = 3.0,
    steps: int = 25,
    on_sample: OnCount = lambda done, total: None,
) -> Strengths:
    """The minimal strengths of samples along the axis, by the margin.

    Args:
        s_max: the largest strength, in mean differences.
        steps: of the grid (see `minimal_strength`).
    """
    found: list[MinimalStrength] = []
    for done, i in enumerate(samples, 1):
        found.append(minimal_strength(margin, i, cylinder.axis, s_max * cylinder.axis_norm, steps=steps))
        on_sample(done, len(samples))
    return Strengths(
        np.array([strength.value for strength in found]),
        np.array([strength.censored for strength in found]),
        s_max * cylinder.axis_norm,
    )


def generated_strengths(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    cylinder: Cylinder,
    prompts: Sequence[str],
    detector: Detector,
    grid: Sequence[float] = GRID,
    *,
    template: str = "chat",
    position: Position = "output",
    max_new_tokens: int = 24,
    on_rows: OnCount = lambda done, total: None,
) -> Strengths:
    """The smallest strength of a grid at which a readable answer shows the concept.

    Prompts and strengths are steered together, a vector a row.

    Args:
        grid: strengths in mean differences, ascending.
        on_rows: called with the answers that are there and their number.

    Raises:
        InputError: there are no prompts or the grid is not positive and ascending.
    """
    if not prompts or not grid or grid[0] <= 0 or sorted(grid) != list(grid):
        raise InputError(f"{len(prompts)} prompts and the strengths {list(grid)} cannot be measured")
    # Without steering too: what shows the concept by itself needs a strength of zero.
    cells = [(question, factor) for question in prompts for factor in (0.0, *grid)]
    labels: list[int] = []
    for start in range(0, len(cells), ROWS):
        part = cells[start : start + ROWS]
        factors = torch.tensor([factor for _, factor in part], dtype=torch.float64)
        vectors = (factors * cylinder.axis_norm).unsqueeze(1) * cylinder.axis
        with steer(model, vectors, cylinder.layer, position=position):
            texts = replies(
                model,
                tokenizer,
                [question for question, _ in part],
                template=template,
                max_new_tokens=max_new_tokens,
                batch_size=len(part),
            )
        labels += [label(text, detector) for text in texts]
        on_rows(start + len(part), len(cells))
    table = np.array(labels).reshape(len(prompts), 1 + len(grid))
    fires = table == CONCEPT
    strengths = np.array([0.0, *grid]) * cylinder.axis_norm
    return Strengths(
        np.where(fires.any(axis=1), strengths[fires.argmax(axis=1)], strengths[-1]),
        ~fires.any(axis=1),
        float(strengths[-1]),
        "generation",
        tuple(map(float, strengths[1:])),
        tuple(map(float, fires[:, 1:].mean(axis=0))),
        tuple(map(float, (table == CORRUPTED)[:, 1:].mean(axis=0))),
    )


def margin_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: ConceptPairs,
    cylinder: Cylinder,
    *,
    position: Position | None = None,
) -> ConceptMargin:
    """The margin that belongs to a cylinder: its layer, template, steered tokens and number of tokens.

    Args:
        position: other tokens than those for which the strengths were measured.

    Raises:
        InputError: the model is not the one that the cylinder was fitted to.
    """
    check_model(model, cylinder)
    return ConceptMargin(
        model,
        tokenizer,
        pairs,
        cylinder.layer,
        m_tokens=int(cylinder.facts["m_tokens"]),
        template=cylinder.facts["template"],
        position=position or cylinder.facts["steered"],
    )


def differences_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: ConceptPairs,
    cylinder: Cylinder,
    *,
    on_batch: OnCount = lambda done, total: None,
) -> DifferenceSet:
    """The differences of pairs, read as the cylinder's were.

    Raises:
        InputError: the model is not the one that the cylinder was fitted to.
    """
    check_model(model, cylinder)
    return extract_differences(
        model,
        tokenizer,
        pairs,
        [cylinder.layer],
        template=cylinder.facts["template"],
        position=cylinder.facts["position"],
        on_batch=on_batch,
    )


def check_model(model: PreTrainedModel, cylinder: Cylinder) -> None:
    """Raise `InputError` when a cylinder was fitted to another model."""
    recorded = cylinder.facts.get("model_fingerprint")
    if recorded is not None and recorded != model_fingerprint(model):
        raise InputError(
            f"the cylinder was fitted to {cylinder.facts.get('model', 'another model')} "
            f"({cylinder.facts.get('model_type')}, width {cylinder.width}); this model has another "
            "configuration"
        )


def _split(pairs: ConceptPairs, options: FitOptions) -> tuple[list[int], list[int]]:
    if len(pairs.concepts) != 1:
        raise PairsError(f"the pairs are of several concepts ({', '.join(pairs.concepts)}); choose one")
    if not 0 < options.train_share < 1 or not 0 < options.s_max < math.inf:
        raise InputError(
            f"train_share {options.train_share} must be between 0 and 1, s_max {options.s_max} positive and "
            "finite"
        )
    if len(pairs) < 5:
        raise PairsError(f"{len(pairs)} pairs are too few: 3 for the axis and 2 for strengths are needed")
    n_train = min(max(3, round(len(pairs) * options.train_share)), len(pairs) - 2)
    return pairs.split(n_train, options.seed)


def _layer_score(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: ConceptPairs, cylinder: Cylinder,
    samples: Sequence[int], options: FitOptions, detector: Detector | None,
) -> float:  # fmt: skip
    """How well a layer's axis steers the training prompts."""
    if detector is not None:
        strengths = generated_strengths(
            model, tokenizer, cylinder, [pairs[i].question for i in samples], detector,
            [factor * options.s_max / max(GRID) for factor in GRID[1:]], template=options.template,
            position=options.position, max_new_tokens=options.max_new_tokens,
        )  # fmt: skip
        return float(np.mean(strengths.success))
    margin = margin_of(model, tokenizer, pairs, cylinder)
    push = torch.stack([torch.zeros_like(cylinder.axis), cylinder.axis_norm * cylinder.axis])
    gains = [margin(i, push).diff() for i in samples]
    return float(torch.cat(gains).mean())


def _facts(
    model: PreTrainedModel, pairs: ConceptPairs, options: FitOptions, train: list[int], rest: list[int]
) -> dict[str, Any]:
    return {
        "model_type": model.config.model_type,
        "model_fingerprint": model_fingerprint(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "steered": options.position,
        "m_tokens": options.m_tokens,
        "pairs": pairs.digest(),
        "train": train,
        "calibration": rest,
    }
