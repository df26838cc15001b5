"""The claims of the study of JEPA guidance; `study` says what the trials are.

Two encoders guide. The score of the *Gaussian* one has the paper's sign (low is rare), that of the
*invariant* one the reverse; both signs are measured. A seed is the independent unit: it trains its own
encoders. "At equal precision and recall" means: at the rarest point of an arm's path of strengths at which
recall and precision are both at least 80% of those of the unguided sampler. Metrics whose name starts with
`matched_` are those of that point.
"""

from __future__ import annotations

from typing import Literal

from assay.study import Claim, Difference, Invariance, Precondition, Rate, Trend

# Of the unguided sampler's recall and precision, what a set of samples must keep.
KEPT = 0.8
# Of LeJEPA's two terms, what the Gaussian one has; the agreement of views has the rest.
WEIGHTS = (0.2, 0.5, 0.99)
K, KS = 9, (3, 9, 15)
POWER_ITERS = (0, 1, 2, 4)
# 0.8 is the default, and the arm "base".
TAUS = (1.0, 0.4)
BOTH = ("digits", "mnist")
NO_CONDITION = {"part": "guidance", "condition": "none", "data": "digits"}

VALID = Precondition(
    says="the unguided sampler makes digits: at least 70% of its samples lie on the manifold of real ones",
    metric="matched_precision",
    arm="plain",
    at_least=0.7,
    where=NO_CONDITION,
)
DIVERSE = Precondition(
    says="the unguided sampler makes diverse digits: it has a recall of at least 0.2",
    metric="matched_recall",
    arm="plain",
    at_least=0.2,
    where={"part": "guidance", "condition": "none", "data": "mnist"},
)
KNOWS = Precondition(
    says="the guiding encoder's score says something: |rho| with the distance to the world is at least 0.2",
    metric="rho",
    arm="lejepa",
    at_least=0.2,
    where={"part": "calibration", "data": "digits", "weight": max(WEIGHTS)},
)


def _low_is_rare(claim: str, says: str, arm: str, **where: float) -> Rate:
    return Rate(
        id=claim,
        says=f"{says}: the rank correlation of the negative score with the distance to the world's images, "
        "over held-out images, is above 0.1.",
        metric="rho",
        arm=arm,
        at_least=0.1,
        interval="clustered",
        where={"part": "calibration", "data": BOTH} | where,
        paper="low JEPA-SCORE = rare (DINOv2, MetaCLIP)",
    )


CALIBRATION: tuple[Claim, ...] = (
    _low_is_rare(
        "C7-gaussian",
        "A low score means rare for LeJEPA with nearly all weight on the Gaussian term (0.99)",
        "lejepa",
        weight=0.99,
    ),
    _low_is_rare(
        "C7-invariance",
        "A low score means rare for LeJEPA with most weight on the agreement of views (0.2 on the Gaussian)",
        "lejepa",
        weight=0.2,
    ),
    _low_is_rare("C7-vicreg", "A low score means rare for a convolutional VICReg encoder", "vicreg"),
    _low_is_rare("C7-ijepa", "A low score means rare for an I-JEPA of patches", "ijepa"),
    Trend(
        id="C7-weight",
        says="The more weight the Gaussian term has (0.2, 0.5, 0.99), the more a low score means rare: rho "
        "rises by more than 0.5 per unit of weight.",
        metric="rho",
        arm="lejepa",
        over="weight",
        direction="increasing",
        margin=0.5,
        where={"part": "calibration", "data": BOTH},
    ),
)


def _rarer(
    claim: str, rival: str, whose: str, margin: float = 0.0, data: str = "digits", **more
) -> Difference:
    extent = f"at least {margin:.0%} " if margin else ""
    return Difference(
        id=claim,
        says=f"At equal precision and recall, JEPA guidance makes samples that are {extent}rarer in the "
        f"world than {whose} (kNN distance to the world's images, {data}).",
        metric="matched_knn_world",
        better="higher",
        treatment="jepa",
        reference=rival,
        relative=True,
        margin=margin,
        where=NO_CONDITION | {"data": data},
        preconditions=(VALID, KNOWS) if data == "digits" else (DIVERSE,),
        **more,
    )


GUIDANCE: tuple[Claim, ...] = (
    _rarer("C1-plain", "plain", "the unguided sampler's", 0.05, paper="CelebA cFID 8.50 against 12.11"),
    _rarer("C1-random", "random", "those of random shifts of equal length", 0.05),
    _rarer(
        "C1-sgms", "self-guided", "self-guided minority sampling's", paper="CelebA cFID 8.50 against 61.76"
    ),
    _rarer("C1-minority", "minority", "minority guidance's"),
    _rarer("C1-bns", "boost-and-skip", "Boost-and-Skip's", paper="ImageNet cFID 18.33 against 32.01"),
    _rarer("C1-temperature", "temperature", "those of a higher temperature"),
    _rarer("C1-neighbours", "neighbours", "those of guidance by neighbours in pixels, without any encoder"),
    _rarer("C1-mnist-plain", "plain", "the unguided sampler's", 0.05, "mnist"),
    _rarer("C1-mnist-sgms", "self-guided", "self-guided minority sampling's", data="mnist"),
    Difference(
        id="C1-fidelity",
        says="At equal precision and recall, its samples are closer to real held-out images of the world's "
        "rare classes (Frechet distance) than the unguided sampler's.",
        metric="matched_frechet_rare",
        better="lower",
        treatment="jepa",
        reference="plain",
        relative=True,
        where=NO_CONDITION,
        paper="CelebA cFID 8.50 against 12.11",
        preconditions=(VALID, KNOWS),
    ),
    Difference(
        id="C1-second",
        says="At equal precision and recall, a second encoder, trained from another seed in another size, "
        "gives its samples a lower score than the unguided sampler's, by at least 0.5 nats.",
        metric="matched_second_score",
        better="lower",
        treatment="jepa",
        reference="plain",
        margin=0.5,
        where=NO_CONDITION,
        paper="CelebA JS -300.79 against -221.67 (one encoder guides and judges)",
        preconditions=(VALID, KNOWS),
    ),
    Difference(
        id="C1-reversed",
        says="A control: turned round, the guidance makes samples commoner in the world (at the strongest "
        "guidance, kNN distance at least 5% lower than the random shifts').",
        metric="strongest_knn_world",
        better="lower",
        treatment="jepa-reversed",
        reference="random",
        relative=True,
        margin=0.05,
        where=NO_CONDITION,
        preconditions=(VALID, KNOWS),
    ),
    Difference(
        id="C7-uncalibrated",
        says="With an encoder that the agreement of views dominates, the paper's direction makes samples "
        "commoner, and only the calibrated one makes them rarer (by at least 5%, at equal precision and "
        "recall).",
        metric="matched_knn_world",
        better="higher",
        treatment="jepa-invariance",
        reference="jepa-uncalibrated",
        relative=True,
        margin=0.05,
        where=NO_CONDITION,
        preconditions=(VALID,),
    ),
    Rate(
        id="T-collapse",
        says="A warning, not the paper's: with that encoder, strong guidance (sum of shifts 1.6) costs more "
        "than half of the recall.",
        metric="strongest_recall",
        arm="jepa-invariance",
        at_most=0.5,
        interval="clustered",
        where=NO_CONDITION,
        preconditions=(VALID,),
    ),
)


def _invariant(claim: str, says: str, metric: str, better: Literal["lower", "higher"], **more) -> Difference:
    return Difference(
        id=claim,
        says=says,
        metric=metric,
        better=better,
        treatment="jepa-invariance",
        where=NO_CONDITION,
        preconditions=(VALID,),
        **more,
    )


INVARIANT: tuple[Claim, ...] = (
    _invariant(
        "C1-invariant-plain",
        "At equal precision and recall, guidance by the invariant encoder, in the calibrated direction, "
        "makes samples that are at least 5% rarer in the world than the unguided sampler's.",
        "matched_knn_world",
        "higher",
        reference="plain",
        relative=True,
        margin=0.05,
    ),
    _invariant(
        "C1-invariant-fidelity",
        "They are closer to real held-out images of the world's rare classes (Frechet distance) than the "
        "unguided sampler's.",
        "matched_frechet_rare",
        "lower",
        reference="plain",
        relative=True,
    ),
    _invariant(
        "C6-invariant-world",
        "Their share of the world's rare classes is at least 5 percentage points above the unguided "
        "sampler's.",
        "matched_world_rare",
        "higher",
        reference="plain",
        margin=0.05,
    ),
    _invariant(
        "C6-invariant-preference",
        "The invariant encoder, whose score follows the distance to the world more closely (though with the "
        "reverse sign), prefers the world's rare classes to the generator's more than the Gaussian one does.",
        "preference",
        "higher",
        reference="jepa",
    ),
)
WORLD: tuple[Claim, ...] = (
    Difference(
        id="C6-world",
        says="At equal precision and recall, the share of the world's rare classes is at least 5 percentage "
        "points above the unguided sampler's.",
        metric="matched_world_rare",
        better="higher",
        treatment="jepa",
        reference="plain",
        margin=0.05,
        where=NO_CONDITION,
        preconditions=(VALID, KNOWS),
    ),
    Rate(
        id="C6-preference",
        says="JEPA guidance raises the share of the world's rare classes more than that of the generator's "
        "(difference of the two changes above 0).",
        metric="preference",
        arm="jepa",
        at_least=0.0,
        interval="clustered",
        where=NO_CONDITION,
        preconditions=(VALID, KNOWS),
    ),
    Difference(
        id="C6-sgms",
        says="That preference is higher than self-guided minority sampling's, which follows the generator.",
        metric="preference",
        better="higher",
        treatment="jepa",
        reference="self-guided",
        where=NO_CONDITION,
        preconditions=(VALID, KNOWS),
    ),
)


def _ablated(
    claim: str, says: str, metric: str, better, treatment: str, reference: str, paper: str
) -> Difference:
    return Difference(
        id=claim,
        says=says,
        metric=metric,
        better=better,
        treatment=treatment,
        reference=reference,
        where={"part": "ablation", "data": "digits"},
        paper=paper,
        preconditions=(VALID, KNOWS),
    )


ABLATION: tuple[Claim, ...] = (
    _ablated(
        "C3-tau",
        "Leaving the first fifth of the steps unguided (tau 0.8) keeps more precision than guiding all "
        "(tau 1).",
        "precision",
        "higher",
        "base",
        "tau-1",
        "PickScore 21.46 against 21.33",
    ),
    _ablated(
        "C3-k3",
        "With k = 9 the full score falls further than with k = 3.",
        "score",
        "lower",
        "base",
        "k-3",
        "JS -344.9 against -325.4",
    ),
    _ablated(
        "C3-k15",
        "With k = 9 the full score falls further than with k = 15.",
        "score",
        "lower",
        "base",
        "k-15",
        "JS -344.9 against -335.3",
    ),
)
SURROGATE: tuple[Claim, ...] = (
    Difference(
        id="C5-moves",
        says="Guided by the nine leading singular values, the full score falls by at least 1 nat more than "
        "under random shifts (each at its strongest; the random ones are twice as long).",
        metric="strongest_score_change",
        better="lower",
        treatment="jepa",
        reference="random",
        margin=1.0,
        where=NO_CONDITION,
        paper="JS -300.79 against -221.67 (CelebA)",
        preconditions=(VALID,),
    ),
    Rate(
        id="C5-gradient",
        says="The surrogate's gradient (k 9, q 2, p 2) has a cosine of at least 0.95 with the exact gradient "
        "of the nine leading singular values.",
        metric="cosine_leading",
        arm="surrogate",
        at_least=0.95,
        interval="clustered",
        where={"part": "surrogate", "k": K, "q": 2},
    ),
    Rate(
        id="C5-full",
        says="It has a cosine of at least 0.5 with the exact gradient of the full score.",
        metric="cosine_full",
        arm="surrogate",
        at_least=0.5,
        interval="clustered",
        where={"part": "surrogate", "k": K, "q": 2},
    ),
    Invariance(
        id="C5-interlacing",
        says="The surrogate never exceeds the sum that it approximates: its error is at least 0 in "
        "every image.",
        metric="negative_error",
        arm="surrogate",
        tolerance=1e-6,
        where={"part": "surrogate"},
    ),
    Rate(
        id="C5-bound",
        says="What the randomised subspace misses is, in the mean over images, within the bound of Halko, "
        "Martinsson and Tropp, in at least 90% of all cases (seeds, k and q).",
        metric="within_bound",
        arm="surrogate",
        at_least=0.9,
        interval="clustered",
        where={"part": "surrogate"},
        paper="Proposition 4.1",
    ),
    Trend(
        id="C5-power",
        says="The error of the surrogate falls with the number of power iterations (0, 1, 2, 4).",
        metric="e_rsvd",
        arm="surrogate",
        over="q",
        direction="decreasing",
        where={"part": "surrogate", "k": K},
    ),
)
TEXT: tuple[Claim, ...] = (
    Difference(
        id="C2-rarer",
        says="From captions (MNIST), at equal precision and recall, JEPA guidance makes samples that are "
        "rarer in the world than MinorityPrompt's.",
        metric="matched_knn_world",
        better="higher",
        treatment="jepa",
        reference="minority-prompt",
        relative=True,
        where={"part": "guidance", "condition": "text"},
        paper="JS -355.40 against -322.33 (Stable Diffusion 1.5)",
    ),
    Difference(
        id="C2-alignment",
        says="There they show the digit that the caption asks for nearly as often as without guidance: at "
        "most 5 percentage points less.",
        metric="matched_alignment",
        better="higher",
        treatment="jepa",
        reference="plain",
        margin=-0.05,
        where={"part": "guidance", "condition": "text"},
        paper="CLIPScore 31.46 against 31.52",
    ),
    Difference(
        id="C1-class",
        says="Conditioned on classes, too, JEPA guidance makes samples at equal precision and recall that "
        "are rarer in the world than self-guided minority sampling's.",
        metric="matched_knn_world",
        better="higher",
        treatment="jepa",
        reference="self-guided",
        relative=True,
        where={"part": "guidance", "condition": "class"},
        preconditions=(KNOWS,),
    ),
)
CLAIMS: tuple[Claim, ...] = (*CALIBRATION, *GUIDANCE, *INVARIANT, *WORLD, *ABLATION, *SURROGATE, *TEXT)
