"""What a trial of the study measures. Heavy imports happen inside the functions; `study` lists the trials."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from assay.methods.dualgraph import citation_faults
from assay.methods.dualgraph.checkers import load_checker
from assay.methods.dualgraph.cmake_documentation import documentation, question_about
from assay.methods.dualgraph.corpora import Corpus, PlantedDesign, planted
from assay.methods.dualgraph.embeddings import HashedWords, default_encoder
from assay.methods.dualgraph.records import ResearchConfig
from assay.methods.dualgraph.simulation import Checkpoint, PassageSearch, Plan, Simulation
from assay.study import Trial

# Queries from the graph: half of a round's, as in the paper's loop, or all of them.
PLANTED_PLANS = {
    "half": Plan(queries=180, per_round=10, from_graph=5),
    "all": Plan(queries=180, per_round=10, from_graph=10),
}
DOCS_PLAN = Plan(queries=80, per_round=10, from_graph=5)
# Rounds are counted until this share of all relations is found.
REACHED = 0.75
CLAIMS_A_TRIAL = 40
# The checks were developed on sentences that smaller seeds draw.
FIRST_FRESH_SEED = 10_000
LOOP_ROUNDS, LOOP_TOKENS = 4, 60_000
RESUME_ROUNDS = 2
ROC_GRID = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def config_of(arm: str, seed: int) -> ResearchConfig:
    """The policy and its ablation that an arm stands for."""
    match arm:
        case "linear" | "outline":
            return ResearchConfig(policy=arm, seed=seed)
        case "random-pair":
            return ResearchConfig(policy="random_pair", seed=seed)
        case "dualgraph":
            return ResearchConfig(seed=seed)
        case "no-enrich" | "no-explore" | "no-communities":
            return ResearchConfig(without=(arm.removeprefix("no-"),), seed=seed)
        case "degree-corrected":
            return ResearchConfig(degree_corrected=True, seed=seed)
    raise ValueError(f"unknown arm {arm!r}")


@functools.lru_cache(maxsize=4)
def _planted(concentration: float, seed: int) -> tuple[Corpus, PassageSearch]:
    corpus = planted(PlantedDesign(concentration=concentration), seed)
    return corpus, PassageSearch(corpus.passages)


@functools.cache
def _documentation_search() -> PassageSearch:
    return PassageSearch(documentation().passages)


def run_planted(trial: Trial) -> dict[str, float]:
    """One policy on one planted corpus."""
    corpus, search = _planted(float(trial.setting["concentration"]), trial.seed)
    plan = PLANTED_PLANS[str(trial.setting["share"])]
    # Made-up names have no meaning that a language model could compare.
    encode = HashedWords().encode
    simulation = Simulation(corpus, search, config_of(trial.arm, trial.seed), encode, plan)
    return _measured(corpus, search, list(simulation.run()), plan)


def run_docs(trial: Trial) -> dict[str, float]:
    """One policy on one question about CMake; a seed is a question."""
    corpus = question_about(documentation(), trial.seed)
    search = _documentation_search()
    simulation = Simulation(
        corpus, search, config_of(trial.arm, trial.seed), default_encoder().encode, DOCS_PLAN
    )
    return _measured(corpus, search, list(simulation.run()), DOCS_PLAN)


def _measured(
    corpus: Corpus, search: PassageSearch, rounds: list[Checkpoint], plan: Plan
) -> dict[str, float]:
    """Recall by kind of relation after every round, and what follows from it.

    `recall:q` and its like are the points of curves, `recall@q` those that claims are about. `twice` is the
    share of all gold relations that two passages state, `rounds` the round in which `REACHED` of the
    relations are found (one more than there are if never), `growth` the recall gained after the second
    round, `reachable` the share of hidden relations that a query for both names would find.
    """
    kinds = sorted(set(corpus.gold.values()))
    totals = {kind: sum(value == kind for value in corpus.gold.values()) for kind in kinds}
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for state in rounds:
        known = {
            "recall": len(state.found) / len(corpus.gold),
            "twice": sum(n >= 2 for n in state.found.values()) / len(corpus.gold),
            "nodes": float(state.nodes),
            "edges": float(state.edges),
        }
        if len(kinds) > 1:
            for kind in kinds:
                known[kind] = sum(corpus.gold[two] == kind for two in state.found) / totals[kind]
        for name, value in known.items():
            curves[name][state.queries] = value
    first, second, last = rounds[0].queries, rounds[1].queries, rounds[-1].queries
    measured = {f"{name}:{q}": value for name, curve in curves.items() for q, value in curve.items()}
    for name in [name for name in curves if name not in ("nodes", "edges")]:
        measured |= {f"{name}@{q}": curves[name][q] for q in (second, 4 * first, last) if q in curves[name]}
    reached = [q // first for q, recall in curves["recall"].items() if recall >= REACHED]
    measured["rounds"] = float(reached[0] if reached else len(rounds) + 1)
    measured["growth"] = curves["recall"][last] - curves["recall"][second]
    measured["false_edges"] = float(rounds[-1].edges - len(rounds[-1].found))
    if "bridge" in kinds:
        measured["bridge_lead"] = curves["bridge"][last] - curves["intra"][last]
        measured["bridge_growth"] = curves["bridge"][last] - curves["bridge"][second]
    hidden = [two for two, kind in corpus.gold.items() if kind in ("bridge", "linked")]
    measured["reachable"] = float(
        np.mean([_answers(corpus, search.search(" ".join(two), plan.results, ()), two) for two in hidden])
    )
    return measured


def _answers(corpus: Corpus, results: list[int], two: tuple[str, str]) -> bool:
    return any(set(two) <= group for number in results for group in corpus.passages[number].mentions)


def run_loop(trial: Trial) -> dict[str, float]:
    """The whole loop on one question, within equal rounds or equal tokens."""
    from assay.methods.dualgraph import loop_trials

    limits = {"rounds": (LOOP_ROUNDS, None), "tokens": (10 * LOOP_ROUNDS, LOOP_TOKENS)}
    rounds, tokens = limits[str(trial.setting["limit"])]
    config = loop_trials.loop_config(
        config_of(trial.arm, trial.seed), rounds=rounds, per_round=10, tokens=tokens
    )
    return loop_trials.run_loop(question_about(documentation(), trial.seed), _documentation_search(), config)


def run_resume(trial: Trial) -> dict[str, float]:
    """A run stopped after every step in turn, and resumed."""
    from assay.methods.dualgraph import loop_trials

    config = loop_trials.loop_config(config_of(trial.arm, trial.seed), rounds=RESUME_ROUNDS, per_round=4)
    return loop_trials.run_resume(
        question_about(documentation(), trial.seed), _documentation_search(), config
    )


def run_citations(trial: Trial) -> dict[str, float]:
    """One checker on right citations and on the same ones with a fault."""
    fault, wording = str(trial.setting["fault"]), str(trial.setting["wording"])
    if fault not in citation_faults.FAULTS or wording not in citation_faults.WORDINGS:
        raise ValueError(f"unknown fault {fault!r} or wording {wording!r}")
    documented = documentation()
    seed = FIRST_FRESH_SEED + trial.seed
    right = citation_faults.cited_claims(documented, CLAIMS_A_TRIAL, seed, fault=fault)
    wrong = citation_faults.with_fault(right, documented, fault, seed)
    checker = load_checker(trial.arm)
    rewrite: Callable[[str], str] = citation_faults.reworded if wording == "reworded" else str
    of_right, of_wrong = (
        checker.scores([rewrite(claim.claim) for claim in claims], [claim.source for claim in claims])
        for claims in (right, wrong)
    )
    measured = {
        "auc": citation_faults.area_under_roc(of_right, of_wrong),
        "precision95": citation_faults.precision_at_recall(of_right, of_wrong),
        "kept": float(np.mean(of_right >= checker.threshold)),
        "missed": float(np.mean(of_wrong >= checker.threshold)),
    }
    points = citation_faults.roc_points(of_right, of_wrong, ROC_GRID)
    return measured | {f"roc:{share}": kept for share, kept in zip(ROC_GRID, points, strict=True)}


def run_bench(trial: Trial) -> dict[str, float]:
    """One task of DeepResearch Bench, researched and judged by hosted models (full scale)."""
    from assay.methods.dualgraph import bench_trials

    return bench_trials.run(trial)


PARTS: Mapping[str, Callable[[Trial], dict[str, float]]] = {
    "planted": run_planted,
    "docs": run_docs,
    "citations": run_citations,
    "loop": run_loop,
    "resume": run_resume,
    "bench": run_bench,
}
