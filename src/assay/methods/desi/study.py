"""The study of DeSI: a learnt single index beside Fréchet regressions without one.

Simulations measure the mean distance to the true conditional Fréchet mean (`mpe`), which is known there; half
of a sample is for fitting, as in the authors' experiments. Real data are cross-validated and measure the mean
squared distance to held-out outcomes (`mspe`); the intervals allow for the rows that training sets share.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.study import Difference, FinishedTrial, Panel, Precondition, Scale, Study, Trend, Trial

if TYPE_CHECKING:
    from assay.methods.desi.base import FrechetRegressor
    from assay.methods.desi.spaces import MetricSpace

RIVALS = (
    "global-frechet",
    "local-frechet",
    "frechet-single-index",
    "index-frechet",
    "deep-frechet",
    "e2m",
    "frechet-forest",
)
EVERYTHING = ("desi", "desi-deep", "desi-as-published", *RIVALS, "frechet-knn", "mean")
# Real data are cross-validated; a further round of seeds shuffles the rows anew.
FOLDS = 8
DISTRIBUTIONS = {"design": "distributions", "link": "quadratic", "n": 200, "p": 4}


def estimator(arm: str, space: MetricSpace, seed: int) -> FrechetRegressor:
    """The estimator that an arm stands for, with its defaults."""
    from assay.methods.desi import baselines
    from assay.methods.desi.regressor import DeSIRegressor

    match arm:
        case "desi":
            return DeSIRegressor(space, n_restarts=2, random_state=seed)
        case "desi-deep":
            return DeSIRegressor(space, mode="deep_shared", n_restarts=2, random_state=seed)
        case "desi-as-published":
            return DeSIRegressor(space, mode="per_sample", random_state=seed)
        case "global-frechet":
            return baselines.GlobalFrechet(space)
        case "local-frechet":
            return baselines.LocalFrechet(space)
        case "frechet-single-index":
            return baselines.FrechetSingleIndex(space, random_state=seed)
        case "index-frechet":
            return baselines.IndexFrechet(space, random_state=seed)
        case "deep-frechet":
            return baselines.DeepFrechet(space, random_state=seed)
        case "e2m":
            return baselines.E2M(space, random_state=seed)
        case "frechet-forest":
            return baselines.FrechetForest(space, random_state=seed)
        case "frechet-knn":
            return baselines.FrechetKNN(space)
        case "mean":
            return baselines.FrechetMean(space)
    raise ValueError(f"unknown arm {arm!r}")


def trials(scale: Scale, seeds: int | None) -> Iterable[Trial]:
    """Simulations over spaces, sample sizes and numbers of predictors, and the real data sets."""
    if scale == "smoke":
        small = {"design": "distributions", "link": "quadratic", "n": 60, "p": 3}
        arms = ("desi", "global-frechet", "mean")
        yield from (Trial(arm, small, seed) for seed in range(seeds or 1) for arm in arms)
        return
    plan = _quick_plan() if scale == "quick" else _full_plan()
    for setting, arms, default_seeds in plan:
        yield from (Trial(arm, setting, seed) for seed in range(seeds or default_seeds) for arm in arms)


Plan = list[tuple[Mapping[str, str | int], tuple[str, ...], int]]


def _quick_plan() -> Plan:
    few = ("desi", "desi-as-published", "global-frechet", "frechet-forest", "mean")
    flexible = ("desi", "global-frechet", "frechet-forest", "mean")
    cheap = tuple(arm for arm in EVERYTHING if arm != "e2m")
    # The longest trials come first, so that no core waits for the other at the end.
    plan: Plan = [({"data": "bikeshare-day-parts"}, few, FOLDS), (DISTRIBUTIONS, ("e2m",), 8)]
    plan += [({"data": data}, few, FOLDS) for data in ("bikeshare-rentals", "flight-delays")]
    plan += [(DISTRIBUTIONS | {"n": n}, flexible, seeds) for n, seeds in ((1000, 8), (500, 12))]
    plan += [(DISTRIBUTIONS | {"n": 500, "p": p}, flexible, 12) for p in (10, 20)]
    plan += [({"design": design, "n": 200, "p": 4}, few, 6) for design in ("sphere", "networks", "spd")]
    plan += [(DISTRIBUTIONS, cheap, 16)]
    return plan


def _full_plan() -> Plan:
    plan: Plan = []
    for n in (200, 500, 1000):
        for p in (4, 10, 20, 50):
            # A product kernel in more than a handful of dimensions has no neighbours left.
            arms = EVERYTHING if p == 4 else tuple(arm for arm in EVERYTHING if arm != "local-frechet")
            designs = [
                {"design": "distributions", "link": link} for link in ("linear", "quadratic", "exponential")
            ]
            designs += [{"design": design} for design in ("networks", "spd", "sphere")]
            plan += [(design | {"n": n, "p": p}, arms, 500) for design in designs]
    real = tuple(arm for arm in EVERYTHING if arm != "local-frechet")
    plan += [
        ({"data": data}, real, 100 * FOLDS)
        for data in ("bikeshare-rentals", "bikeshare-day-parts", "flight-delays")
    ]
    return plan


def run(trial: Trial) -> dict[str, float]:
    """Fit one arm to one sample, or one split of real data, and measure its predictions."""
    with warnings.catch_warnings():
        # Small samples and early stopping are part of the experiment.
        warnings.simplefilter("ignore")
        return _run_on_data(trial) if "data" in trial.setting else _run_on_simulation(trial)


def _run_on_simulation(trial: Trial) -> dict[str, float]:
    from assay.methods.desi.metrics import angle, mpe
    from assay.methods.desi.simulate import simulate

    setting: Any = dict(trial.setting)
    sample = simulate(**setting, seed=trial.seed)
    half = len(sample.X) // 2
    fitted: Any = estimator(trial.arm, sample.space, trial.seed).fit(sample.X[:half], sample.Y[:half])
    measured = {"mpe": mpe(sample.space, sample.truth[half:], fitted.predict(sample.X[half:]))}
    if hasattr(fitted, "direction_"):
        # The direction belongs to standardised predictors, the truth to predictors in their own units.
        measured["angle"] = angle(getattr(fitted, "coef_", fitted.direction_), sample.direction)
    return measured


def _run_on_data(trial: Trial) -> dict[str, float]:
    import numpy as np

    from assay.methods.desi import datasets
    from assay.methods.desi.metrics import frechet_r2, mspe

    outcomes = {
        "bikeshare-rentals": datasets.bikeshare_rentals,
        "bikeshare-day-parts": datasets.bikeshare_day_parts,
        "flight-delays": datasets.flight_delays,
    }[str(trial.setting["data"])]()
    repetition, fold = divmod(trial.seed, FOLDS)
    folds = np.array_split(np.random.default_rng(repetition).permutation(len(outcomes.X)), FOLDS)
    test, train = folds[fold], np.concatenate(folds[:fold] + folds[fold + 1 :])
    fitted: Any = estimator(trial.arm, outcomes.space, trial.seed).fit(
        outcomes.X.iloc[train], outcomes.Y[train]
    )
    predicted = fitted.predict(outcomes.X.iloc[test])
    measured = {
        "mspe": mspe(outcomes.space, outcomes.Y[test], predicted),
        "frechet_r2": frechet_r2(outcomes.space, outcomes.Y[test], predicted),
    }
    if trial.arm == "desi":
        names = (f"direction:{name}" for name in outcomes.X.columns)
        measured |= dict(zip(names, map(float, fitted.direction_), strict=True))
    return measured


LEARNABLE = Precondition(
    says="the predictors predict something: local Fréchet regression beats the constant mean (error 0.27)",
    metric="mpe",
    arm="local-frechet",
    at_most=0.25,
    where=DISTRIBUTIONS,
)


def _simulated(
    claim: str, rival: str, says: str, where: Mapping[str, str | int] = DISTRIBUTIONS, **more
) -> Difference:
    """DeSI's error is below a rival's by more than 5% of it."""
    return Difference(
        id=claim,
        says=says,
        metric="mpe",
        treatment="desi",
        reference=rival,
        relative=True,
        margin=0.05,
        where=where,
        **more,
    )


def _real(claim: str, rival: str, says: str, data: str, **more) -> Difference:
    """DeSI's squared error on held-out rows is below a rival's; folds share their training rows."""
    predictable = Precondition(
        says="the predictors predict something: a Fréchet forest's R² is at least 0.2",
        metric="frechet_r2",
        arm="frechet-forest",
        at_least=0.2,
        where={"data": data},
    )
    return Difference(
        id=claim,
        says=says,
        metric="mspe",
        treatment="desi",
        reference=rival,
        relative=True,
        where={"data": data},
        overlap=1 / (FOLDS - 1),
        preconditions=(predictable,),
        **more,
    )


_SETTING = "On simulated distributions (quadratic link, 200 rows, 4 predictors)"
CLAIMS = (
    _simulated(
        "C1-global",
        "global-frechet",
        f"{_SETTING}, DeSI's error is more than 5% below global Fréchet regression's.",
        paper="MPE .2031 (.0668) for DeSI",
        preconditions=(LEARNABLE,),
    ),
    _simulated("C1-local", "local-frechet", f"{_SETTING}, ... below local Fréchet regression's."),
    _simulated("C1-fsi", "frechet-single-index", f"{_SETTING}, ... below the Fréchet single-index model's."),
    _simulated("C1-ifr", "index-frechet", f"{_SETTING}, ... below index Fréchet regression's."),
    _simulated("C1-dfr", "deep-frechet", f"{_SETTING}, ... below deep Fréchet regression's."),
    _simulated("C1-e2m", "e2m", f"{_SETTING}, ... below end-to-end metric regression's (E2M)."),
    _simulated("C1-forest", "frechet-forest", f"{_SETTING}, ... below a Fréchet forest's."),
    *(
        _simulated(
            f"C1-{design}",
            "global-frechet",
            f"On {what} (simulated), DeSI's error is more than 5% below global Fréchet regression's.",
            {"design": design, "n": 200, "p": 4},
        )
        for design, what in (
            ("networks", "network Laplacians"),
            ("spd", "covariance matrices"),
            ("sphere", "points of a sphere"),
        )
    ),
    Trend(
        id="C2-direction",
        says="The angle between the learnt and the true direction falls as rows are added (200, 500, 1000).",
        metric="angle",
        arm="desi",
        over="n",
        direction="decreasing",
        log=True,
        where={"design": "distributions", "link": "quadratic", "p": 4},
    ),
    Trend(
        id="C3-growth",
        says="From 4 to 20 predictors (500 rows), DeSI's error grows by less than 0.05 per e-fold.",
        metric="mpe",
        arm="desi",
        over="p",
        direction="decreasing",
        margin=-0.05,
        log=True,
        where={"design": "distributions", "link": "quadratic", "n": 500},
    ),
    _simulated(
        "C3-forest",
        "frechet-forest",
        "With 20 predictors (500 rows), DeSI's error is more than 5% below a Fréchet forest's.",
        {"design": "distributions", "link": "quadratic", "n": 500, "p": 20},
    ),
    *(
        _real(f"C4-{data}-{short}", rival, f"On {what}, DeSI's squared error is below {whose}.", data)
        for data, what in (
            ("bikeshare-rentals", "distributions of hourly bicycle rentals"),
            ("bikeshare-day-parts", "compositions of daily rentals (in place of the paper's mood data)"),
            ("flight-delays", "distributions of daily flight delays"),
        )
        for short, rival, whose in (
            ("global", "global-frechet", "global Fréchet regression's"),
            ("forest", "frechet-forest", "a Fréchet forest's"),
        )
    ),
    Difference(
        id="C5-published",
        says=f"{_SETTING}, the algorithm as published (a direction per row) beats global Fréchet regression.",
        metric="mpe",
        treatment="desi-as-published",
        reference="global-frechet",
        relative=True,
        where=DISTRIBUTIONS,
        paper="MPE .2031 (.0668)",
        preconditions=(LEARNABLE,),
    ),
    Difference(
        id="C6-network",
        says=f"{_SETTING}, a network finds the direction better than a free vector does.",
        metric="mpe",
        treatment="desi-deep",
        reference="desi",
        relative=True,
        where=DISTRIBUTIONS,
    ),
)


def figures(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Errors by arm, by sample size, by dimension and by space; real data; the direction and what it does."""
    from assay.methods.desi.study_figures import panels

    return panels(finished)


STUDY = Study(
    method="desi",
    question="Does a learnt single index predict metric-valued outcomes better than regressions without one?",
    claims=CLAIMS,
    trials=trials,
    run=run,
    figures=figures,
)
