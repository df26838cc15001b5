"""The study of Cond-DP: does conditioning by public features help private regression, and when is it needed?

Errors are mean squared errors as a share of the label's variance (1 is the constant mean). Every method
protects the replacement of one label, at the same epsilon and delta = 1e-6, except AdaSSP, which protects
whole rows. Simulated designs have 8,000 rows and 50 columns and an exact risk; tables are split at random
into four fifths and one fifth. Learning rates and the like were chosen on seed 0 (`study_tuning`), which no
claim uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.methods.cond_dp.study_claims import ALL, CLAIMS, SMALL
from assay.study import FinishedTrial, Panel, Scale, Study, Trial

DESCENT = ("dpsgd-raw", "dpsgd", "cond-raw", "cond")
ONE_SHOT = ("label-ssp", "rr-on-bins", "weighted-llp", "label-noise", "adassp")
NETWORKS = ("mlp-dpsgd", "mlp-cond", "mlp-switch")
PREDICTED_GAINS = (1.0, 2.0, 4.0, 8.0)
AUDITS = ("audit", "audit-as-published")
# Seed 0 chose the hyper-parameters.
FIRST_SEED = 1

Plan = list[tuple[tuple[str, ...], Mapping[str, Any], int]]


def trials(scale: Scale, seeds: int | None) -> Iterable[Trial]:
    """Every arm in every setting, seed by seed."""
    plan = {"smoke": _smoke, "quick": _quick, "full": _full}[scale]()
    for arms, setting, own_seeds in plan:
        numbers = range(FIRST_SEED, FIRST_SEED + (seeds or own_seeds))
        yield from (Trial(arm, setting, seed) for seed in numbers for arm in arms)


def _smoke() -> Plan:
    return [
        (("dpsgd", "cond", "label-ssp"), {"data": "diabetes", "epsilon": 1.0}, 1),
        (("ridge",), {"data": "diabetes"}, 1),
        (("identity",), {"check": "identity"}, 1),
        (("audit",), {"check": "audit", "runs": 20}, 1),
    ]


def _quick() -> Plan:
    plan: Plan = [
        (NETWORKS, {"data": data, "model": "mlp", "epsilon": epsilon}, 10)
        for data in ("bikeshare", "rotated")
        for epsilon in (1.0, 4.0)
    ]
    plan += [(AUDITS, {"check": "audit", "runs": 500}, 6)]
    plan += [(("fm-dpsgd", "fm-cond"), {"data": "bikeshare", "model": "fm", "epsilon": 1.0}, 10)]
    plan += _linear(seeds=12, wide_seeds=10)
    return plan


def _full() -> Plan:
    plan: Plan = [
        (NETWORKS, {"data": data, "model": "mlp", "epsilon": epsilon}, 50)
        for data in ("bikeshare", "rotated", "diamonds", "flights", "words")
        for epsilon in ALL
    ]
    plan += [(AUDITS, {"check": "audit", "runs": 5000}, 20)]
    plan += [
        (("fm-dpsgd", "fm-cond"), {"data": data, "model": "fm", "epsilon": epsilon}, 50)
        for data in ("bikeshare", "flights")
        for epsilon in ALL
    ]
    plan += _linear(seeds=100, wide_seeds=100)
    return plan


def _linear(*, seeds: int, wide_seeds: int) -> Plan:
    """Linear models on every data set; wide tables at small epsilon only, where they cost least."""
    variants = ("cond-damped", "cond-half")
    plan: Plan = [
        ((*DESCENT, *ONE_SHOT, *variants), {"data": "rotated", "epsilon": epsilon}, seeds) for epsilon in ALL
    ]
    plan += [((*DESCENT, "label-ssp"), {"data": "axis", "epsilon": epsilon}, seeds) for epsilon in ALL]
    plan += [((*DESCENT, *ONE_SHOT), {"data": "bikeshare", "epsilon": epsilon}, seeds) for epsilon in ALL]
    plan += [((*DESCENT, *ONE_SHOT), {"data": "diamonds", "epsilon": epsilon}, seeds) for epsilon in ALL]
    plan += [
        ((*DESCENT, "label-ssp", "rr-on-bins"), {"data": data, "epsilon": epsilon}, wide_seeds)
        for data in ("words", "flights")
        for epsilon in SMALL
    ]
    plan += [
        (("dpsgd", "cond", "label-ssp"), {"data": "diabetes", "epsilon": epsilon}, seeds) for epsilon in ALL
    ]
    plan += [
        (("ridge",), {"data": data}, seeds)
        for data in ("rotated", "axis", "bikeshare", "diamonds", "words", "flights", "diabetes")
    ]
    plan += [(("dpsgd-raw", "cond-raw"), {"data": "aligned", "epsilon": 0.25}, seeds)]
    plan += [(("gain",), {"data": "rotated", "epsilon": epsilon}, seeds) for epsilon in ALL]
    plan += [
        (("gain",), {"data": "spectrum", "predicted_gain": gain, "epsilon": 0.25}, seeds)
        for gain in PREDICTED_GAINS
    ]
    plan += [(("identity",), {"check": "identity"}, 3)]
    plan += [
        (("prediction",), {"check": "prediction", "data": data}, 4)
        for data in ("rotated", "aligned", "axis", "words", "bikeshare", "diamonds", "flights")
    ]
    return plan


def run(trial: Trial) -> dict[str, float]:
    """Fit and measure, by what the setting and the arm ask for."""
    import warnings

    from assay.methods.cond_dp import experiments

    setting: dict[str, Any] = dict(trial.setting)
    with warnings.catch_warnings():
        # Constant indicator columns, and delta beside 442 rows, are part of the experiment.
        warnings.simplefilter("ignore", UserWarning)
        match setting.pop("check", "model" if "model" in setting else trial.arm):
            case "identity":
                return experiments.identity(seed=trial.seed)
            case "prediction":
                return experiments.prediction(seed=trial.seed, **setting)
            case "audit":
                return experiments.audit(trial.arm, seed=trial.seed, **setting)
            case "model":
                return experiments.network(trial.arm, seed=trial.seed, **setting)
            case "gain":
                return experiments.gain(seed=trial.seed, **setting)
        return experiments.linear(trial.arm, seed=trial.seed, **setting)


def figures(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Error against epsilon, spectra, predicted against measured gain, networks."""
    from assay.methods.cond_dp.study_figures import panels

    return panels(finished)


STUDY = Study(
    method="cond_dp",
    question="Does conditioning by public features help private regression, beyond standardising them?",
    claims=CLAIMS,
    trials=trials,
    run=run,
    figures=figures,
)
