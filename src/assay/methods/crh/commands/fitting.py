"""`assay crh pairs` and `assay crh fit`: from a concept to a cylinder with measured strengths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from assay.errors import InputError
from assay.methods.crh.commands.parts import PAIRS, Flag, OptionalOut, Out, Position, saved_detector
from assay.methods.crh.printing import describe, list_concepts, progress, warnings_to

if TYPE_CHECKING:
    from assay.methods.crh.pairs import ConceptPairs

# Prompts on which strengths are measured: 19 are the fewest that bound a 90% interval.
PROMPTS = 20


def pairs(
    *,
    concept: Annotated[list[str], Parameter(consume_multiple=True)],
    out: OptionalOut = None,
    model: str = "embedded",
    written: Flag = False,
    concepts: Path | None = None,
    questions: Path | None = None,
    n: int = 24,
    template: str = "chat",
    max_new_tokens: int = 40,
    temperature: float = 0.0,
    seed: int = 0,
    device: str | None = None,
    quiet: Flag = False,
) -> None:
    """Make pairs of responses without and with a concept, which the model writes itself.

    Parameters
    ----------
    concept
        One or more concepts by id; "assay crh pairs --concept list" prints those that there are.
    out
        The file to write: JSON lines, or CSV where its name ends in .csv.
    model
        "embedded", a folder, or a model id.
    written
        Take the hand-written pairs (8 concepts, 24 questions) instead of asking a model.
    concepts
        A list of concepts of your own: CSV (id, instruction, pattern) or JSON.
    questions
        Questions of your own: one a line, or a JSON list.
    n
        Pairs to make for each concept.
    template
        chat, crh (the paper's "User: ... Assistant: ..."), or a text with {question} that ends in {response}.
    max_new_tokens
        The length of a response.
    temperature
        0 for greedy responses; the paper samples at 0.1.
    seed
        Of the sampling.
    device
        Where the model runs.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.crh.concepts import load_concepts, load_questions, written_concepts, written_pairs
    from assay.methods.crh.pairs import ConceptPairs

    console = Console(quiet=quiet, highlight=False)
    known = load_concepts(concepts)
    if concept == ["list"]:
        list_concepts(console, known, written_concepts())
        return
    if not concept:
        raise InputError("--concept names no concept; see: assay crh pairs --concept list")
    if out is None:
        raise InputError("--out is needed: the file for the pairs, such as -o pairs.jsonl")
    if n < 3:
        raise InputError(f"--n must be at least 3, got {n}")
    if written:
        found = written_pairs(concept)
        found.save(out)
        console.print(f"{len(found)} hand-written pairs in {out}", soft_wrap=True)
        return
    if unknown := [name for name in concept if name not in known]:
        raise InputError(
            f"there is no concept {', '.join(unknown)}; there are {', '.join(known)}. Add your own with "
            "--concepts"
        )
    from assay import lm
    from assay.methods.crh.generation import generate_pairs

    with console.status("Loading the model ..."):
        loaded, tokenizer = lm.load(model, device=device)
    rows: list[Any] = []
    with progress(console, quiet) as step:
        for name in concept:
            asked = load_questions(questions, kind=known[name].kind if questions is None else None)
            result = generate_pairs(
                loaded,
                tokenizer,
                known[name],
                asked,
                wanted=n,
                template=template,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                seed=seed,
                on_batch=lambda done, total, name=name: step(f"Writing pairs for {name}", done, total),
            )
            rows += result.pairs.rows
            reasons = ", ".join(f"{count} {reason}" for reason, count in result.rejected.items())
            console.print(
                f"{name}: {len(result.pairs)} pairs of {result.asked} questions"
                + (f" (left out: {reasons})" if reasons else "")
            )
            if len(result.pairs) < n:
                console.print(f"{name}: {n} pairs were asked for; add --questions", style="yellow")
    ConceptPairs(tuple(rows)).save(out)
    console.print(f"Saved to {out}; next: assay crh fit --pairs {out} -o cylinder", soft_wrap=True)


def fit(
    *,
    pairs: Path,
    out: Out,
    model: str = "embedded",
    concept: str | None = None,
    layer: str = "auto",
    axis: Literal["diffmean", "pca", "probe"] = "diffmean",
    rank: int | None = None,
    template: str = "chat",
    read: Literal["mean", "last"] = "mean",
    position: Position = "all",
    outcome: Literal["auto", "margin", "generation"] = "auto",
    pattern: str | None = None,
    questions: Path | None = None,
    m_tokens: int = 6,
    train_share: float = 0.67,
    s_max: float = 4.0,
    seed: int = 0,
    device: str | None = None,
    quiet: Flag = False,
) -> None:
    """Fit axis and plane of a concept, and measure how far other prompts must be pushed.

    Parameters
    ----------
    pairs
        JSONL or CSV with question, concept, resp_no_concept and resp_with_concept.
    out
        The folder to save the cylinder in.
    model
        "embedded", a folder, or a model id.
    concept
        Which concept, where the file has several.
    layer
        A block, counted from 0; several, as in 10,15,20, of which the best is taken; or auto: at 40%,
        50% and 67% of the depth.
    axis
        The mean difference, the first principal direction, or a logistic probe.
    rank
        Of the plane; by held-out likelihood when left out.
    template
        chat, crh (the paper's), or a text with {question} that ends in {response}.
    read
        Where activations are read: the mean over a response, or its last token as in the paper.
    position
        Which tokens are steered.
    outcome
        What counts as firing. generation: a readable answer that shows the concept; margin: the model prefers
        the response with the concept. auto is generation where the concept can be detected.
    pattern
        A regular expression that finds the concept, where it is none of ours.
    questions
        Prompts to measure strengths on, one a line, beside those of the pairs; by default questions of ours,
        up to 20 in all.
    m_tokens
        How many tokens of each response count in the margin.
    train_share
        The share of pairs for axis and plane; strengths are measured on the others.
    s_max
        The largest strength, in mean differences.
    seed
        Of the split.
    device
        Where the model runs.
    quiet
        Print nothing.
    """
    from dataclasses import replace

    from rich.console import Console

    from assay import lm
    from assay.methods.crh.artifact import save_cylinder
    from assay.methods.crh.calibration import FitOptions, fit_from_pairs
    from assay.methods.crh.pairs import load_pairs

    console = Console(quiet=quiet, highlight=False)
    rows = load_pairs(pairs)
    rows = rows.of_concept(concept) if concept is not None else rows
    if len(rows.concepts) > 1:
        raise InputError(
            f"{pairs} has several concepts; choose one with --concept: {', '.join(rows.concepts)}"
        )
    options = FitOptions(
        _layers(layer),
        axis,
        rank,
        template,
        read,
        position,
        m_tokens,
        train_share,
        outcome,
        s_max,
        seed=seed,
    )
    facts = _patterns(rows[0].concept, pattern)
    with console.status("Loading the model ..."):
        loaded, tokenizer = lm.load(model, device=device)
    with warnings_to(console), progress(console, quiet) as step:
        cylinder = fit_from_pairs(
            loaded,
            tokenizer,
            rows,
            options,
            detector=saved_detector(facts),
            prompts=_prompts(questions, rows, train_share),
            on_step=step,
        )
    cylinder = replace(cylinder, facts=cylinder.facts | {"model": model} | facts)
    save_cylinder(cylinder, out)
    rows.save(out / PAIRS)
    describe(console, cylinder)
    console.print(f'Saved to {out}; next: assay crh steer --cylinder {out} --prompt "..."', soft_wrap=True)


def _layers(text: str) -> tuple[int, ...] | None:
    if text == "auto":
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--layer {text!r} must be auto, a number, or numbers such as 10,15,20") from None


def _patterns(concept: str, pattern: str | None) -> dict[str, Any]:
    """What finds the concept, so that what is saved knows what to look for; empty where nothing does."""
    from assay.methods.crh.concepts import load_concepts
    from assay.methods.crh.detectors import Detector

    known = load_concepts()
    if pattern is not None:
        detector = Detector((pattern,))
    elif concept in known:
        detector = known[concept].detector
    else:
        return {}
    return {
        "patterns": list(detector.patterns),
        "at_least": detector.at_least,
        "ignore_case": detector.ignore_case,
    }


def _prompts(questions: Path | None, rows: ConceptPairs, train_share: float) -> list[str]:
    """Prompts beside those of the pairs on which strengths are measured."""
    from assay.methods.crh.concepts import load_questions

    if questions is not None:
        return load_questions(questions)
    used = {row.question for row in rows.rows}
    own = [question for question in load_questions(kind="text") if question not in used]
    return own[: max(0, PROMPTS - round(len(rows) * (1 - train_share)))]
