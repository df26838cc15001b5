"""The study of dualgraph: does a knowledge graph ask better questions than an outline, and at what cost?

Without a hosted model the comparison is of *query policies*: who asks what next. Every arm starts with the
same queries, asks equally many, reads equally many passages a query, and has the same rule for what is on
topic.

- `planted`: corpora of made-up names with known relations. Relations within a group are easy; bridges between
  groups are only found by a query for both names. `concentration` goes from bridges anywhere (which no
  topology can foresee) to bridges between few groups; `share` is how many of a round's queries come from the
  graph (half, as in the paper's loop, or all).
- `docs`: questions about CMake's documentation; gold: its cross-references. A seed is a question.
- `loop`: the whole loop with the extractive model on such questions, within equal rounds or equal tokens.
- `citations`: right citations against the same with a fault, for each checker.
- `resume`: a run stopped after every step in turn.
- `bench`: DeepResearch Bench with hosted models, within the paper's rounds, and with as many tokens for the
  outline alone as dualgraph has spent; only at full scale.

`random-pair` isn't in the paper. It asks for as many pairs of known names, drawn at random: only what beats
it is owed to topology.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.methods.dualgraph.study_claims import CLAIMS
from assay.study import FinishedTrial, Panel, Scale, Study, Trial

POLICIES = ("linear", "outline", "random-pair", "dualgraph")
ABLATIONS = ("no-enrich", "no-explore", "no-communities", "degree-corrected")
SWEPT = ("outline", "random-pair", "dualgraph", "no-enrich", "no-explore")
CONCENTRATIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
CHECKERS = ("lexical", "embedding", "combined")
FAULTS = ("source", "number", "name")
WORDINGS = ("verbatim", "reworded")
BENCH_TASKS = 100


def trials(scale: Scale, seeds: int | None) -> Iterable[Trial]:
    """Every part; arms vary fastest, so that neighbours share a corpus and the embeddings of sentences."""
    if scale == "smoke":
        yield from _planted(seeds or 1, SWEPT[:3], (1.0,), ("half",))
        yield from _each("docs", {}, POLICIES[1:], seeds or 1)
        yield from _each("loop", {"limit": "rounds"}, ("outline", "dualgraph"), seeds or 1)
        yield from _each("citations", {"fault": "number", "wording": "verbatim"}, CHECKERS[:1], seeds or 1)
        return
    many = scale == "full"
    if many:
        for task in range(1, BENCH_TASKS + 1):
            yield from _each(
                "bench", {"task": task, "limit": "rounds"}, ("linear", "outline", "dualgraph"), 1
            )
            yield from _each("bench", {"task": task, "limit": "tokens"}, ("outline", "dualgraph"), 1)
    yield from _each("resume", {}, ("dualgraph",), seeds or (10 if many else 2))
    for fault in FAULTS:
        for seed in range(seeds or (40 if many else 8)):
            for wording in WORDINGS:
                setting = {"part": "citations", "fault": fault, "wording": wording}
                yield from (Trial(arm, setting, seed) for arm in reversed(CHECKERS))
    yield from _planted(seeds or (200 if many else 64), POLICIES + ABLATIONS, (1.0,), ("half", "all"))
    yield from _planted(seeds or (200 if many else 32), SWEPT, CONCENTRATIONS[:-1], ("all",))
    yield from _each("docs", {}, POLICIES + ABLATIONS, seeds or (200 if many else 120))
    for limit in ("rounds", "tokens"):
        yield from _each("loop", {"limit": limit}, POLICIES, seeds or (100 if many else 48))


def _planted(
    seeds: int, arms: Sequence[str], concentrations: Sequence[float], shares: Sequence[str]
) -> Iterable[Trial]:
    for concentration in concentrations:
        for seed in range(seeds):
            for share in shares:
                setting = {"part": "planted", "concentration": concentration, "share": share}
                yield from (Trial(arm, setting, seed) for arm in arms)


def _each(part: str, setting: Mapping[str, Any], arms: Sequence[str], seeds: int) -> Iterable[Trial]:
    for seed in range(seeds):
        yield from (Trial(arm, {"part": part, **setting}, seed) for arm in arms)


def run(trial: Trial) -> dict[str, float]:
    """One policy on one corpus or question, one checker on one set of citations, or one run."""
    from assay.methods.dualgraph import experiments

    return experiments.PARTS[str(trial.setting["part"])](trial)


def figures(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Recall against queries, the sweep of the concentration, growth of the graph, costs, and ROC curves."""
    from assay.methods.dualgraph.study_figures import panels

    return panels(finished)


STUDY = Study(
    method="dualgraph",
    question="Do questions read off a knowledge graph find more than those of an outline, and at what cost?",
    claims=CLAIMS,
    trials=trials,
    run=run,
    figures=figures,
)
