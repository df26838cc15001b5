"""The claims of the study of crh; `study` says what the trials are.

The concept is the independent unit throughout: questions of one concept share its axis. The body of the paper
was not available to us, only its abstract, first page and code, so no claim has a number of the paper's.
"""

from __future__ import annotations

from assay.study import Claim, Difference, Invariance, Precondition, Rate, Trend

# The rank of the plane that claims are about; the other ranks are in the figure.
RANK = 8
# The largest score of a sector predictor that still counts as "not inferable": mean cos(predicted - true).
INFERABLE = 0.2
NOT_AVAILABLE = "not available"

AXIS = (
    Difference(
        id="C1-axis",
        says="Pushed 1 to 3 mean differences along the axis, the margin gains at least 0.1 nats a token more "
        "than along a random direction of equal length.",
        metric="gain",
        better="higher",
        treatment="diffmean",
        reference="random",
        margin=0.1,
        where={"part": "axis"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
    Difference(
        id="C1-pca",
        says="The mean difference is a better axis than the first principal direction of the differences: "
        "the margin gains more.",
        metric="gain",
        better="higher",
        treatment="diffmean",
        reference="pca",
        where={"part": "axis"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
    Trend(
        id="C1-monotone",
        says="The margin rises with the push along the axis (1, 2 and 3 mean differences).",
        metric="gain",
        arm="diffmean",
        over="strength",
        direction="increasing",
        where={"part": "axis"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
    Difference(
        id="C1-answers",
        says="Pushed 2 and 3 mean differences along the axis, readable answers show the concept at least 10 "
        "percentage points more often than with a random direction.",
        metric="shown",
        better="higher",
        treatment="axis",
        reference="random",
        margin=0.1,
        where={"part": "answers"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
)
NORMAL = (
    Trend(
        id="C2-onset",
        says="The more the normal part of a sample's own direction is shrunk, at equal push along the axis, "
        "the later the margin reaches zero (onset at most 5 mean differences; samples that never fire count "
        "as 5).",
        metric="onset",
        arm="own-direction",
        over="penalty",
        direction="increasing",
        where={"part": "penalty"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
    Difference(
        id="C2-own-plane",
        says="Turned around the axis in the plane of the sample's own normal (an oracle), the margin moves "
        "by at least 25% more than in random planes.",
        metric="range",
        better="higher",
        treatment="own-normal",
        reference="random",
        relative=True,
        margin=0.25,
        where={"part": "map"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
    Difference(
        id="C2-fitted-plane",
        says="Turned around the axis in the plane fitted to other samples, the margin moves by at least 25% "
        "more than in random planes.",
        metric="range",
        better="higher",
        treatment="fitted",
        reference="random",
        relative=True,
        margin=0.25,
        where={"part": "map"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
)
SECTORS = (
    Rate(
        id="C3-shares",
        says="In the plane of the sample's own normal, more than a tenth of the sectors facilitate (the "
        "margin is above that of the axial push alone) and more than a tenth suppress: the smaller share is "
        "above 0.1.",
        metric="smaller_share",
        arm="own-normal",
        at_least=0.1,
        interval="clustered",
        where={"part": "map"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
    Difference(
        id="C3-answers",
        says="At equal push along the axis, answers show the concept more often in the sector of the "
        "sample's own normal than in the opposite one.",
        metric="shown",
        better="higher",
        treatment="own-sector",
        reference="opposite-sector",
        where={"part": "answers"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
)
PLANE = (
    Difference(
        id="C4-normals",
        says="The normals of held-out differences lie more in the plane of their own concept than in those "
        f"of other concepts (share of energy at rank {RANK}, in multiples of chance).",
        metric="normal_ratio",
        better="higher",
        treatment="own",
        reference="others",
        where={"part": "plane", "rank": RANK},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
    Rate(
        id="C4-gradients",
        says="What held-out prompts are sensitive to, the gradient orthogonal to the axis, lies in the "
        f"fitted plane of rank {RANK} more than a random direction does: the ratio to chance is above 1.",
        metric="ratio",
        arm="own",
        at_least=1.0,
        interval="clustered",
        where={"part": "plane", "rank": RANK},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
    Difference(
        id="C4-specific",
        says=f"Held-out gradients lie more in the plane of their own concept (rank {RANK}) than in those of "
        "other concepts.",
        metric="ratio",
        better="higher",
        treatment="own",
        reference="others",
        where={"part": "plane", "rank": RANK},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
)


def _not_inferable(predictor: str, frame: str, says: str) -> Rate:
    control = Precondition(
        says=f"the {predictor} predictor finds planted sectors with 30 degrees of noise: a score of at least "
        "0.5",
        metric="score",
        arm=predictor,
        at_least=0.5,
        where={"part": "sector", "frame": "planted"},
    )
    return Rate(
        id=f"C5-{predictor}" if frame == "own" else f"C5-{predictor}-{frame}",
        says=f"{says}: the mean of cos(predicted - true) over held-out samples is below {INFERABLE}.",
        metric="score",
        arm=predictor,
        at_most=INFERABLE,
        interval="clustered",
        where={"part": "sector", "frame": frame},
        cluster="concept",
        preconditions=(control,),
        paper=NOT_AVAILABLE,
    )


UNPREDICTABLE = (
    _not_inferable(
        "constant",
        "own",
        "The sector to which a sample is sensitive, counted from its own normal, is not the mean sector of "
        "the training samples",
    ),
    _not_inferable(
        "nearest",
        "own",
        "The sector to which a sample is sensitive, counted from its own normal, is not that of the most "
        "similar difference",
    ),
    _not_inferable(
        "ridge",
        "own",
        "The sector to which a sample is sensitive, counted from its own normal, is not found by a ridge "
        "regression on the difference",
    ),
    _not_inferable(
        "ridge",
        "shared",
        "Counted in the fitted plane, the same for all samples, the sector to which a sample is sensitive is "
        "not found by a ridge regression on the difference",
    ),
    Rate(
        id="C5-onsets",
        says="Samples with similar differences have no more similar onsets: the correlation of cosine and "
        "distance of onsets, within a concept, is above -0.2.",
        metric="correlation",
        arm="axis",
        at_least=-0.2,
        interval="clustered",
        where={"part": "samples"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
)
LAW = (
    Invariance(
        id="C6-law",
        says="The trigonometric law fits better than the same search does with steerabilities exchanged "
        "between concepts: permutation p at most 0.05.",
        metric="p_value",
        arm="law",
        tolerance=0.05,
        where={"part": "law"},
        paper=NOT_AVAILABLE,
    ),
    Invariance(
        id="C6-prediction",
        says="The law predicts the steerability of left-out concepts better than the mean of the others "
        "does: relative squared error at most 1.",
        metric="relative_error",
        arm="law",
        tolerance=1.0,
        where={"part": "law"},
        paper=NOT_AVAILABLE,
    ),
)
TRANSFER = (
    Rate(
        id="C7-cells",
        says="At another layer, read at the last token, with a principal or probe axis, and with all tokens "
        "steered, the margin in a sample's own sector is above that of the axis, and that of the opposite "
        "sector below, in at least 80% of cells.",
        metric="agrees",
        arm="cylinder",
        at_least=0.8,
        interval="clustered",
        where={"part": "cells"},
        cluster="concept",
        paper=NOT_AVAILABLE,
    ),
)
HELIX = (
    Invariance(
        id="C8-null",
        says="On one prompt, the path of optimised vectors fits a helix better than random walks of the same "
        "steps and than a line with its deviations shuffled: the larger p is at most 0.05.",
        metric="p_value",
        arm="helix",
        tolerance=0.05,
        where={"part": "helix"},
        paper=NOT_AVAILABLE,
    ),
    Invariance(
        id="C8-restore",
        says="On that prompt, vectors restored from the helix have, on average over the path, no higher loss "
        "than random ones and than reconstructions from 5 principal components: the larger ratio is at most "
        "1.",
        metric="loss_ratio",
        arm="helix",
        tolerance=1.0,
        where={"part": "helix"},
        paper=NOT_AVAILABLE,
    ),
)
STRENGTH = (
    Rate(
        id="R-coverage",
        says="The 80% interval for the strength of a new prompt that fires (split conformal, those of 16 "
        "prompts that fire) covers its onset in at least 80% of held-out prompts that fire. (Ours.)",
        metric="covered",
        arm="axis",
        at_least=0.8,
        interval="clustered",
        where={"part": "samples"},
        cluster="concept",
        preconditions=(
            Precondition(
                says="the intervals say something: at least 9 in 10 are bounded above",
                metric="bounded",
                arm="axis",
                at_least=0.9,
                where={"part": "samples"},
            ),
        ),
        paper=NOT_AVAILABLE,
    ),
)
CLAIMS: tuple[Claim, ...] = (
    AXIS + NORMAL + SECTORS + PLANE + UNPREDICTABLE + LAW + TRANSFER + HELIX + STRENGTH
)
