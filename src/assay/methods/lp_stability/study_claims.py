"""The claims of the study of L_p stability certificates; `study` says what the trials are.

A claim whose effect is exact has no interval: radii are calculated, and small problems enumerated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.study import Claim, Difference, Equivalence, Invariance, Rate, Trend

# A bound that covers 99 % is without an exceedance in this share of batches of 100 samples, at least.
COVERED = 0.99**100
ROUNDING = 1e-12
MEANS = {"part": "mean", "nu": (3.5, 5.0, 10.0)}
T5 = {"part": "ridge", "noise": "t5", "m": 1000, "strong_convexity": 1.0}
BATCHES = "at least 36.6% (= 0.99^100) of batches of 100 training samples are without an exceedance"


def _exact(
    claim: str, arm: str, metric: str, where: Mapping[str, Any], says: str, paper: str = ""
) -> Invariance:
    return Invariance(
        id=claim, says=says, metric=metric, arm=arm, tolerance=ROUNDING, where=where, paper=paper
    )


def _covers(claim: str, arm: str, where: Mapping[str, Any], what: str, paper: str = "") -> Rate:
    """A 99 % bound covers: see the module's docstring."""
    says = f"{what} covers the true risk in 99% of samples: {BATCHES}."
    return Rate(
        id=claim, says=says, metric="covered@0.01", arm=arm, at_least=COVERED, where=where, paper=paper
    )


def _beaten(claim: str, where: Mapping[str, Any], what: str, margin: float = 0.05) -> Difference:
    return Difference(
        id=claim,
        says=f"{what}, a hold-out of 20% of the rows gives a 90% bound of the risk that is more than "
        f"{margin:.0%} below the optimised stability bound from all rows.",
        metric="upper@0.1",
        treatment="hold-out",
        reference="optimised",
        relative=True,
        margin=margin,
        where=where,
    )


def _informative(claim: str, arm: str, where: Mapping[str, Any], what: str) -> Invariance:
    return _exact(
        claim,
        arm,
        "beyond@0.1",
        where,
        f"{what} the 90% bound of ridge's risk is at most twice the risk of the best constant predictor "
        "(m = 1000, lambda = 1); the effect is what it is beyond that, as a share.",
    )


INFORMATIVE = {"part": ("ridge", "real"), "m": 1000, "strong_convexity": 1.0}
VALID = "For means of t variables (3.5, 5, 10 degrees of freedom), all n and delta"
CALCULATORS = (
    Equivalence(
        id="S1-truth",
        says="Simulated means exceed the exact 90% quantile in 10% of draws, within 0.5 points.",
        metric="exceedance",
        treatment="simulation",
        reference="inversion",
        margin=0.005,
        where={"part": "truth"},
    ),
    _exact(
        "C1-valid-printed",
        "paper",
        "excess",
        MEANS,
        f"{VALID}, the true probability beyond the radius of Theorem 2.2 as printed is at most delta.",
        "Theorem 2.2: P(|f - Ef| > z) <= c1 M_p / z^p + 2 exp(-c2 z² / M_2)",
    ),
    _exact("C1-valid-optimised", "optimised", "excess", MEANS, f"{VALID}, ... with optimised constants."),
    _exact("C1-valid-law", "known-law", "excess", MEANS, f"{VALID}, ... with the law of the swap effect."),
    _exact(
        "C1-valid-infinite-variance",
        "paper-lowp",
        "excess",
        {"part": "mean", "nu": 1.5},
        "For t with 1.5 degrees of freedom, which has no variance, Theorem 2.6's radius is valid as well.",
        "Theorem 2.6, 1 < p < 2",
    ),
    *(
        Invariance(
            id=f"C1-order-{short}",
            says=f"Where one large jump makes the tail, the ratio of bound to true tail stays bounded "
            f"for z from 10^4 to 10^8: it grows at most as z^0.01 ({what}).",
            metric="growth",
            arm=arm,
            tolerance=0.01,
            where={"part": "growth"},
            paper=paper,
        )
        for short, arm, what, paper in (
            ("printed", "paper", "Theorem 2.2 as printed", "sharp concentration under L_p constraints"),
            ("optimised", "optimised", "optimised constants", ""),
        )
    ),
    _exact(
        "C1-order-chebyshev",
        "chebyshev",
        "short_of_one",
        {"part": "growth"},
        "There the ratio of Chebyshev's bound, which is not of this order, grows as z or faster.",
    ),
    *(
        Invariance(
            id=f"C1-tight-{short}",
            says=f"{VALID}, {what} is at most {factor:g} times the exact quantile.",
            metric="ratio",
            arm=arm,
            tolerance=factor,
            where=MEANS,
            paper=paper,
        )
        for short, arm, what, factor, paper in (
            ("printed", "paper", "the radius with the printed constants", 10.0, "sharp concentration"),
            ("optimised", "optimised", "the optimised radius from moments", 2.5, ""),
            ("law", "known-law", "the optimised radius from the law", 2.5, ""),
        )
    ),
    *(
        Invariance(
            id=f"C1-rate-{arm}",
            says=f"At delta = 0.01 the {what} radius of a mean falls as n^(-1/2) for n from 10^4 to 10^6, "
            "within 0.05 of the exponent.",
            metric="distance",
            arm=arm,
            tolerance=0.05,
            where={"part": "rate"},
            paper="order n^(-1/2) at fixed delta" if arm == "paper" else "",
        )
        for arm, what in (("paper", "printed"), ("optimised", "optimised"))
    ),
    _exact(
        "C2-finite",
        "optimised",
        "infinite",
        {"part": "gaussian"},
        "For the mean of m normal numbers, which has no uniform stability, the L_p radius is finite.",
        "weaker assumptions: finite L_p moments in place of bounded differences",
    ),
    _exact("C2-valid", "optimised", "short", {"part": "gaussian"}, "... and not below the exact quantile."),
    *(
        _exact(
            f"C2-{arm}",
            arm,
            "finite",
            {"part": "gaussian"},
            f"For the mean of m normal numbers {name} says nothing: its bound is infinite.",
        )
        for arm, name in (("mcdiarmid", "McDiarmid"), ("bousquet-elisseeff", "uniform stability"))
    ),
)

RISKS = (
    _covers(
        "C3-printed",
        "paper-3.4",
        T5,
        "Ridge in a ball, t_5 noise: Theorem 3.4 with the constants that its proof gives",
        "Theorem 3.4",
    ),
    _covers("C3-optimised", "optimised", T5, "Ridge in a ball, t_5 noise: the optimised bound"),
    _covers("C3-law", "known-law", T5, "Ridge in a ball, t_5 noise: the bound from the declared law"),
    _covers(
        "C3-pareto",
        "optimised",
        T5 | {"noise": "pareto"},
        "Ridge in a ball, Pareto noise: the optimised bound",
    ),
    _covers(
        "C3-flights",
        "optimised",
        {"data": "flight-delays", "pairs": "independent"},
        "Arrival delays of flights (rows drawn with replacement): the optimised bound",
    ),
    _covers(
        "C3-bikeshare",
        "optimised",
        {"data": "bikeshare", "pairs": "independent"},
        "Bicycle rentals (rows drawn with replacement): the optimised bound",
    ),
    _covers(
        "C4-flights",
        "optimised",
        {"data": "flight-delays", "pairs": "distinct"},
        "Arrival delays (drawn without replacement, judged on the rest): the corrected transductive bound",
        "Theorem 3.10",
    ),
    _covers(
        "C4-bikeshare",
        "optimised",
        {"data": "bikeshare", "pairs": "distinct"},
        "Bicycle rentals (drawn without replacement, judged on the rest): the corrected transductive bound",
        "Theorem 3.10",
    ),
    _informative("C6-printed-informative", "paper", INFORMATIVE, "With the printed constants, on all data,"),
    _informative("C6-optimised-t5", "optimised", T5, "With optimised constants, on t_5 noise,"),
    _informative(
        "C6-optimised-flights", "optimised", {"data": "flight-delays"}, "With optimised constants, on delays,"
    ),
    _informative(
        "C6-optimised-bikeshare", "optimised", {"data": "bikeshare"}, "With optimised constants, on rentals,"
    ),
    _exact(
        "C6-printed-chebyshev",
        "paper",
        "over_chebyshev",
        MEANS | {"delta": (1e-1, 1e-2, 1e-3, 1e-4)},
        "For delta from 0.1 to 10^-4 the printed radius of a mean is not above Chebyshev's.",
    ),
    _exact(
        "C6-printed-rare",
        "paper",
        "over_chebyshev",
        MEANS | {"delta": (1e-6, 1e-8)},
        "For delta of 10^-6 and below it is not above Chebyshev's (n = 1000).",
    ),
    _exact(
        "C6-optimised-chebyshev",
        "optimised",
        "over_chebyshev",
        MEANS | {"delta": (1e-2, 1e-3, 1e-4, 1e-6, 1e-8)},
        "For delta of 0.01 and below the optimised radius of a mean is not above Chebyshev's.",
    ),
    _exact(
        "C6-optimised-moderate",
        "optimised",
        "over_chebyshev",
        MEANS | {"delta": 0.1},
        "At delta = 0.1 the optimised radius of a mean is not above Chebyshev's.",
    ),
    _beaten("C6-hold-out-t5", T5, "Ridge in a ball on t_5 noise"),
    _beaten(
        "C6-hold-out-strong",
        T5 | {"strong_convexity": 5.0},
        "Where ridge is regularised so much that it hardly learns (t_5 noise, lambda = 5)",
    ),
    _beaten("C6-hold-out-flights", {"data": "flight-delays", "pairs": "independent"}, "Arrival delays"),
    _beaten("C6-hold-out-bikeshare", {"data": "bikeshare", "pairs": "independent"}, "Bicycle rentals"),
    _exact(
        "C7-bounded",
        "bousquet-elisseeff",
        "over_lp",
        {"part": "slow"},
        "For a loss in [0, 2] whose stability is m^(-1/2), Bousquet and Elisseeff's bound is not above the "
        "optimised L_p bound, at m from 10^3 to 10^7.",
    ),
    _exact(
        "C7-log-free",
        "log-free",
        "over_lp",
        {"part": "slow", "m": (100_000, 1_000_000, 10_000_000)},
        "... nor is the bound without a logarithm of m, at m from 10^5 to 10^7.",
    ),
)

MEASUREMENT = (
    Rate(
        id="S3-plug-in",
        says="The plug-in value at 90% of an estimate, no guarantee, is above the true risk on rentals for "
        "ridge, kernel ridge and nearest neighbours: at least 34.9% (= 0.9^10) of batches of 10 samples are "
        "without an exception.",
        metric="covered",
        arm="plug-in",
        at_least=0.9**10,
        where={"part": "estimate"},
    ),
    Invariance(
        id="S4-shortcut",
        says="Replaced and left-out fits by shortcut equal fits to the changed rows within 10^-9.",
        metric="difference",
        arm="shortcut",
        tolerance=1e-9,
        where={"part": "shortcut"},
    ),
    Trend(
        id="S4-convergence",
        says="The error of a measured L_2 coefficient whose value is known falls with the number of swaps.",
        metric="log_error",
        arm="measured",
        over="pairs",
        log=True,
        direction="decreasing",
        where={"part": "convergence"},
    ),
    Rate(
        id="S4-understated",
        says="The fourth moment of a swap effect with tail index 5, measured on 200 swaps, is below the true "
        "one in at least 70% of samples.",
        metric="below",
        arm="measured",
        at_least=0.7,
        interval="clustered",
        where={"part": "understated", "p": 4.0},
    ),
    Trend(
        id="S4-network",
        says="The L_2 effect of swapping a row of a small network trained by SGD falls faster than m^(-1/2), "
        "as every bound of this kind needs.",
        metric="log_change",
        arm="sgd",
        over="m",
        log=True,
        direction="decreasing",
        margin=0.5,
        where={"part": "network"},
    ),
)

COUNTEREXAMPLES = (
    _exact(
        "C4-printed",
        "printed",
        "violation",
        {"part": "witness", "theorem": "3.10"},
        "Theorem 3.10 as printed holds for two points, the constant predictor 0 and the squared loss.",
        "Theorem 3.10: swap envelope 2 beta H + |1/u - 1/m| beta' G",
    ),
    _exact(
        "C4-printed-envelope",
        "printed",
        "beyond_envelope",
        {"part": ("witness", "enumeration"), "theorem": "3.10"},
        "No swap changes test minus training risk by more than the envelope printed in Theorem 3.10.",
        "Theorem 3.10: swap envelope 2 beta H + |1/u - 1/m| beta' G",
    ),
    _exact(
        "C4-corrected",
        "corrected",
        "violation",
        {"part": ("witness", "enumeration"), "theorem": "3.10"},
        "With (1/u + 1/m) in the place of |1/u - 1/m| it holds there, and on enumerated random problems.",
    ),
    _exact(
        "C4-corrected-envelope",
        "corrected",
        "beyond_envelope",
        {"part": ("witness", "enumeration"), "theorem": "3.10"},
        "No swap changes test minus training risk by more than the corrected envelope.",
    ),
    *(
        _exact(
            f"C4-concentration-{arm}",
            arm,
            "violation",
            {"part": "enumeration", "theorem": "3.9"},
            f"Theorem 3.9 {how} is not violated on enumerated random problems (4 of 8 points).",
            "Theorem 3.9" if arm == "printed" else "",
        )
        for arm, how in (("printed", "as printed"), ("corrected", "with the conditional variance"))
    ),
    _exact(
        "C5-printed",
        "printed",
        "violation",
        {"part": ("witness", "enumeration"), "theorem": "3.14"},
        "Theorem 3.14 as printed, for a change of one observation within a task, holds for tasks that are "
        "point masses.",
        "Theorem 3.14",
    ),
    _exact(
        "C5-corrected",
        "corrected",
        "violation",
        {"part": ("witness", "enumeration"), "theorem": "3.14"},
        "With whole tasks as the independent units it holds there, and on enumerated random problems.",
    ),
)


CLAIMS: tuple[Claim, ...] = (*CALCULATORS, *RISKS, *MEASUREMENT, *COUNTEREXAMPLES)
