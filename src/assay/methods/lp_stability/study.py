"""The study of L_p stability certificates: are the bounds valid, sharp, useful, and true as printed?

S1 holds radii against exact quantiles of means of Student variables. S2 trains ridge regression in a ball on
heavy-tailed labels, whose true risk is known, and on bounded labels, where classical bounds are at home. S3
does the same on real tables taken as finite populations. S4 checks the measurement of stability. S5 decides
by enumeration which theorems hold as printed.

A trial of S2 and S3 is a batch of 100 training samples. It counts as covered at 99% when none of the 100 true
risks exceeds its bound; a bound that covers 99% does that in at least 0.99^100 = 36.6% of all batches, and a
Clopper-Pearson interval over independent batches decides. Radii are deterministic: claims about them are
exact (`Invariance`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.methods.lp_stability.study_claims import CLAIMS
from assay.study import FinishedTrial, Panel, Scale, Study, Trial

ORDERED = ("optimised", "known-law", "paper", "rio", "chebyshev")
RIDGE = ("optimised", "known-law", "paper", "paper-3.4", "rio", "chebyshev", "hold-out")
BOUNDED = ("optimised", "paper", "bousquet-elisseeff", "log-stability", "log-free", "hold-out")
REAL = ("optimised", "paper", "rio", "chebyshev", "mcdiarmid", "hold-out")
INFINITE_VARIANCE = ("optimised", "known-law", "von-bahr-esseen", "paper-lowp")

Plan = list[tuple[tuple[str, ...], Mapping[str, Any], int]]


def trials(scale: Scale, seeds: int | None) -> Iterable[Trial]:
    """Every arm in every setting; deterministic settings have one seed."""
    plan = {"smoke": _smoke, "quick": _quick, "full": _full}[scale]()
    for arms, setting, own_seeds in plan:
        count = 1 if own_seeds == 1 else seeds or own_seeds
        yield from (Trial(arm, setting, seed) for seed in range(count) for arm in arms)


def _smoke() -> Plan:
    ridge = {"part": "ridge", "noise": "t5", "m": 200, "strong_convexity": 1.0}
    return [
        (("optimised", "paper"), {"part": "mean", "nu": 5.0, "n": 100, "delta": 0.01}, 1),
        (("optimised", "hold-out"), ridge, 2),
        (("printed", "corrected"), {"part": "witness", "theorem": "3.10"}, 1),
    ]


def _quick() -> Plan:
    plan = _means(sizes=(100, 1000, 10_000), deltas=(1e-1, 1e-2, 1e-3, 1e-4), extreme=(1e-6, 1e-8))
    plan += [
        (("simulation", "inversion"), {"part": "truth", "nu": nu, "n": n}, 20)
        for nu in (3.5, 5.0, 10.0)
        for n in (100, 1000, 10_000)
    ]
    plan += _ridges(m=1000, seeds=10) + _real(m=1000, seeds=10, plug_ins=10)
    plan += _checks(seeds=5, network_sizes=(50, 100, 200, 400, 800), copies=32, pairs=(200, 2000, 20_000))
    return plan


def _full() -> Plan:
    plan = _means(
        sizes=(100, 1000, 10_000, 100_000), deltas=(1e-1, 1e-2, 1e-3, 1e-4, 1e-5), extreme=(1e-6, 1e-7, 1e-8)
    )
    plan += [
        (("simulation", "inversion"), {"part": "truth", "nu": nu, "n": n}, 100)
        for nu in (3.5, 5.0, 10.0)
        for n in (100, 1000, 10_000, 100_000)
    ]
    for m in (200, 1000, 5000):
        plan += _ridges(m=m, seeds=100)
    for m in (1000, 4000):
        plan += _real(m=m, seeds=100, plug_ins=50)
    sizes, pairs = (50, 100, 200, 400, 800, 1600, 3200), (200, 2000, 20_000, 200_000)
    plan += _checks(seeds=50, network_sizes=sizes, copies=256, pairs=pairs)
    return plan


def _means(*, sizes: Sequence[int], deltas: Sequence[float], extreme: Sequence[float]) -> Plan:
    """S1: what can be calculated."""
    plan: Plan = []
    for nu in (3.5, 5.0, 10.0):
        cells = [(n, delta) for n in sizes for delta in deltas] + [(1000, delta) for delta in extreme]
        plan += [(ORDERED, {"part": "mean", "nu": nu, "n": n, "delta": delta}, 1) for n, delta in cells]
        plan += [(("optimised", "paper"), {"part": "rate", "nu": nu}, 1)]
    heavier = {"part": "mean", "nu": 1.5, "n": 1000}
    plan += [(INFINITE_VARIANCE, heavier | {"delta": delta}, 1) for delta in (1e-1, 1e-2, 1e-3)]
    jumping = ("optimised", "paper", "rio", "chebyshev")
    plan += [
        (jumping, {"part": "jump", "p": p, "z": z}, 1)
        for p in (3.0, 4.0, 6.0)
        for z in (30.0, 300.0, 3000.0, 30_000.0)
    ]
    plan += [(jumping, {"part": "growth", "p": p}, 1) for p in (3.0, 4.0, 6.0)]
    plan += [
        (("optimised", "mcdiarmid", "bousquet-elisseeff"), {"part": "gaussian", "m": m, "delta": delta}, 1)
        for m in (10, 100, 1000)
        for delta in (1e-1, 1e-2, 1e-3)
    ]
    return plan


def _ridges(*, m: int, seeds: int) -> Plan:
    """S2: constrained ridge on heavy-tailed labels, the bounded control, and one certificate taken apart."""
    plan: Plan = []
    for noise, strengths in (("t5", (0.1, 1.0, 5.0)), ("pareto", (1.0,))):
        for strength in strengths:
            setting = {"part": "ridge", "noise": noise, "m": m, "strong_convexity": strength}
            plan.append((RIDGE, setting, seeds))
    plan.append((BOUNDED, {"part": "ridge", "noise": "sign", "m": m, "strong_convexity": 1.0}, seeds))
    plan += [
        (BOUNDED, {"part": "slow", "m": size, "delta": 0.01}, 1)
        for size in (1000, 10_000, 100_000, 1_000_000, 10_000_000)
    ]
    plan += [
        (("certificate",), {"part": "certificate", "m": m, "strong_convexity": strength}, 1)
        for strength in (0.1, 1.0, 5.0)
    ]
    return plan


def _real(*, m: int, seeds: int, plug_ins: int) -> Plan:
    """S3: real tables as populations; rows drawn with and without replacement."""
    plan: Plan = [
        (REAL, {"part": "real", "data": data, "m": m, "strong_convexity": 1.0, "pairs": pairs}, seeds)
        for data in ("flight-delays", "bikeshare")
        for pairs in ("independent", "distinct")
    ]
    plan += [
        (("plug-in",), {"part": "estimate", "data": "bikeshare", "learner": learner, "m": 400}, plug_ins)
        for learner in ("ridge", "kernel-ridge", "neighbours")
    ]
    return plan


def _checks(*, seeds: int, network_sizes: Sequence[int], copies: int, pairs: Sequence[int]) -> Plan:
    """S4 and S5."""
    plan: Plan = [
        (("sgd",), {"part": "network", "m": m, "copies": copies, "epochs": 20}, seeds)
        for m in reversed(network_sizes)
    ]
    plan += [
        (("shortcut",), {"part": "shortcut", "learner": learner}, seeds)
        for learner in ("ridge", "ball-ridge", "kernel-ridge", "neighbours")
    ]
    plan += [(("measured",), {"part": "convergence", "pairs": count}, 4 * seeds) for count in pairs]
    plan += [
        (("measured",), {"part": "understated", "nu": 5.0, "p": p, "pairs": 200}, seeds) for p in (2.0, 4.0)
    ]
    both = ("printed", "corrected")
    plan += [(both, {"part": "witness", "theorem": theorem}, 1) for theorem in ("3.10", "3.14")]
    plan += [(both, {"part": "enumeration", "theorem": t}, seeds) for t in ("3.9", "3.10", "3.14")]
    return plan


def run(trial: Trial) -> dict[str, float]:
    """Calculate, simulate or enumerate, by the setting's `part`."""
    from assay.methods.lp_stability import exact_checks, experiments

    setting: dict[str, Any] = dict(trial.setting)
    match setting.pop("part"):
        case "mean":
            return experiments.student_mean(trial.arm, **setting)
        case "truth":
            return experiments.student_truth(trial.arm, **setting, seed=trial.seed)
        case "rate":
            return experiments.rate_in_n(trial.arm, **setting)
        case "jump":
            return experiments.one_large_jump(trial.arm, **setting)
        case "growth":
            return experiments.growth_with_jumps(trial.arm, **setting)
        case "gaussian":
            return experiments.gaussian_mean(trial.arm, **setting)
        case "ridge":
            return experiments.ball_ridge(trial.arm, **setting, seed=trial.seed)
        case "slow":
            return experiments.slow_stability(trial.arm, **setting)
        case "certificate":
            return experiments.certificate_parts(**setting, seed=trial.seed)
        case "real":
            return experiments.real_ridge(trial.arm, **setting, seed=trial.seed)
        case "estimate":
            return experiments.plug_in(**setting, draws=10, seed=trial.seed)
        case "shortcut":
            return exact_checks.shortcut_error(**setting, seed=trial.seed)
        case "convergence":
            return exact_checks.coefficient_error(**setting, seed=trial.seed)
        case "understated":
            return exact_checks.understated_moment(**setting, seed=trial.seed)
        case "witness":
            return exact_checks.witness_violation(trial.arm, **setting)
        case "enumeration":
            return exact_checks.enumerated_violation(trial.arm, **setting, seed=trial.seed)
        case "network":
            return exact_checks.network_change(**setting, seed=trial.seed)
        case part:
            raise ValueError(f"unknown part {part!r}")


def figures(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Radii against delta and n, coverage, tightness, parts of a certificate, real data, bounded losses."""
    from assay.methods.lp_stability.study_figures import panels

    return panels(finished)


STUDY = Study(
    method="lp_stability",
    question="Are the bounds for losses with finite moments valid, sharp and useful, and true as printed?",
    claims=CLAIMS,
    trials=trials,
    run=run,
    figures=figures,
)
