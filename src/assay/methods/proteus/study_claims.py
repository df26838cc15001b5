"""The claims of the study of proteus; `study` says what the trials are.

Codes are compared on a Gaussian source, with the seed as the unit; layers by their error for held-out text,
with the layer as the unit (two seeds each); whole models by nats a token on held-out text, with the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.study import Claim, Difference, Equivalence, Invariance, Precondition, Rate

# Windows at which codes differ, and one at which they no longer should.
SMALL_WINDOWS = (8, 10)
LARGE_WINDOW = 14
LAYER_WINDOW = 12
MODEL_WINDOW = 10

_LAYERS = {"part": "layer"}
_MODELS = {"part": "model"}


def _gaussian(claim: str, window: int, reference: str, says: str, margin: float = 0.0) -> Difference:
    return Difference(
        id=claim,
        says=says,
        metric="mse",
        treatment="proteus",
        reference=reference,
        relative=True,
        margin=margin,
        where={"part": "gaussian", "window": window},
    )


def _layer(
    claim: str, treatment: str, reference: str, says: str, margin: float, paper: str = ""
) -> Difference:
    return Difference(
        id=claim,
        says=says,
        metric="held_out_error",
        treatment=treatment,
        reference=reference,
        relative=True,
        margin=margin,
        where=_LAYERS,
        cluster="layer",
        paper=paper,
    )


def _model(
    claim: str,
    treatment: str,
    reference: str,
    says: str,
    margin: float,
    metric: str = "nats",
    paper: str = "",
) -> Difference:
    usable = Precondition(
        says="the unquantized model reads the text: at most 4 nats a token",
        metric="nats",
        arm="original",
        at_most=4.0,
        where=_MODELS,
    )
    return Difference(
        id=claim,
        says=says,
        metric=metric,
        treatment=treatment,
        reference=reference,
        margin=margin,
        where=_MODELS,
        preconditions=(usable,),
        paper=paper,
    )


def _predicts(claim: str, window: int) -> Rate:
    return Rate(
        id=claim,
        says=f"Over 40 random generators of equal mean and variance, branch coverage ranks them as their "
        f"error does "
        f"(window of {window} bits): Spearman's correlation is above 0.5.",
        metric="spearman",
        arm="branch-coverage",
        at_least=0.5,
        interval="clustered",
        where={"part": "vetting", "window": window},
        paper="incoherence does not guarantee overlap-local joint geometry",
    )


def _exact(claim: str, metric: str, where: Mapping[str, Any], says: str, paper: str = "") -> Invariance:
    return Invariance(
        id=claim, says=says, metric=metric, arm="proteus", tolerance=0.0, where=where, paper=paper
    )


LOOKUP_FREE = (
    _exact(
        "C1-no-table",
        "bytes_that_grow",
        {"part": "format"},
        "What is stored of a quantized layer has the same size at windows of 8, 12 and 16 bits (256 times "
        "as many "
        "states): there is no table.",
        "zero runtime table loads",
    ),
    Rate(
        id="C6-decode",
        says="A matrix-vector product with the computed code is at least 3 times as fast as with a table "
        "of the same "
        "trellis (CPU time, one thread, both kernels of equal make).",
        metric="speed_of_table",
        arm="proteus",
        at_least=3.0,
        interval="clustered",
        cluster="shape",
        where={"part": "decode", "window": 16},
    ),
    *(
        Rate(
            id=f"C6-{name}",
            says=f"{what} for a token, HYB (QTIP's code for GPUs, a table of 2 KB a layer) needs at least "
            "1.37 times the bytes of proteus.",
            metric=metric,
            arm="proteus",
            at_least=1020 / 740,
            interval="clustered",
            cluster="model",
            where={"part": "bytes"},
            paper="1020 against 740 GB/s at 70 billion parameters",
        )
        for name, metric, what in (
            ("memory", "bytes_of_table_code", "Counting what main memory delivers"),
            ("reads", "reads_of_table_code", "Counting also every read of the table, wherever it is served,"),
        )
    ),
)
CODES = (
    Rate(
        id="C2-gaussian-12",
        says="A Gaussian source at 2 bits costs a mean squared error of at most 0.075 at a window of 12 bits "
        "(rate-distortion limit 0.0625, best scalar code 0.1175).",
        metric="mse",
        arm="proteus",
        at_most=0.075,
        interval="clustered",
        where={"part": "gaussian", "window": 12},
    ),
    Rate(
        id="C2-gaussian-16",
        says="... of at most 0.071 at a window of 16 bits.",
        metric="mse",
        arm="proteus",
        at_most=0.071,
        interval="clustered",
        where={"part": "gaussian", "window": 16},
    ),
    *(
        _gaussian(
            f"C2-gaussian-{name}-{window}",
            window,
            arm,
            f"At a window of {window} bits the Gaussian error is below that of QTIP's {label}.",
        )
        for window in SMALL_WINDOWS
        for name, arm, label in (("1mad", "1mad", "1MAD"), ("3inst", "3inst", "3INST"))
    ),
    *(
        Equivalence(
            id=f"C2-gaussian-{arm}-{LARGE_WINDOW}",
            says=f"At a window of {LARGE_WINDOW} bits the Gaussian error equals {label}'s within 2%.",
            metric="mse",
            treatment="proteus",
            reference=arm,
            relative=True,
            margin=0.02,
            where={"part": "gaussian", "window": LARGE_WINDOW},
        )
        for arm, label in (("1mad", "1MAD"), ("3inst", "3INST"))
    ),
    Rate(
        id="C3-gaussian-values",
        says="The values of a generator of the pool are within 0.03 of a standard Gaussian in "
        "Wasserstein-1 distance "
        "(all 8 of the pool, window of 12 bits).",
        metric="wasserstein",
        arm="proteus",
        at_most=0.03,
        interval="clustered",
        where={"part": "marginal"},
        paper="an affine Gaussianizer per layer",
    ),
    *(_predicts(f"C4-predicts-{window}", window) for window in (8, 10, 12)),
    Difference(
        id="C4-marginal",
        says="Branch coverage predicts the error better than the distance of the values to a Gaussian does.",
        metric="spearman",
        better="higher",
        treatment="branch-coverage",
        reference="wasserstein",
        where={"part": "vetting"},
        paper="incoherence improves global Gaussianity but does not guarantee overlap-local joint geometry",
    ),
    *(
        Difference(
            id=f"C4-tail-{window}",
            says="The worst generator of the vetted pool has a lower error than the 90th percentile of "
            f"random generators (window of {window} bits).",
            metric="tail",
            treatment="pool",
            reference="random",
            relative=True,
            where={"part": "vetting", "window": window},
        )
        for window in SMALL_WINDOWS
    ),
)
LAYERS = (
    _layer(
        "C2-layer-rtn",
        "proteus",
        "rtn",
        "On layers of a real model the error is more than 50% below that of "
        "rounding to the nearest (2.5 bits a weight).",
        0.5,
    ),
    _layer(
        "C2-layer-gptq", "proteus", "gptq", "... more than 25% below GPTQ's (groups of 64, 2.5 bits).", 0.25
    ),
    _layer(
        "C2-layer-scalar",
        "proteus",
        "ldlq-scalar",
        "... more than 25% below that of the best scalar code with the "
        "same transform and the same feedback (2 bits).",
        0.25,
    ),
    *(
        _layer(
            f"C2-layer-{arm}",
            "proteus-plain",
            arm,
            f"Without compensation the error is at most 2% above that of {label}, with the same encoder "
            f"and the same "
            "Hessians.",
            -0.02,
            "quality at least that of strong trellis codes",
        )
        for arm, label in (
            ("1mad", "QTIP's 1MAD"),
            ("3inst", "QTIP's 3INST"),
            ("hyb", "QTIP's HYB, which needs a table"),
            ("mul1", "EXL3's mul1"),
        )
    ),
    *(
        _layer(
            f"C2-layer-beats-{arm}",
            "proteus",
            arm,
            f"With compensation the error is below that of {label}.",
            0.0,
        )
        for arm, label in (("1mad", "1MAD"), ("hyb", "HYB"), ("mul1", "mul1"))
    ),
    _layer(
        "C5-compensation",
        "proteus",
        "proteus-plain",
        "Channel scales, fitted after the indices are fixed, lower the error on text that they were not "
        "fitted to.",
        0.0,
        "lightweight channel compensation",
    ),
    _exact(
        "C5-indices",
        "bytes_changed",
        _LAYERS,
        "Compensation leaves every byte of the packed indices as it was.",
        "tunes only per-layer affine statistics",
    ),
    _layer(
        "C7-pool",
        "proteus-plain",
        "proteus-single",
        "Choosing a generator per layer from the pool of 8 gives a lower error than always taking the "
        "pool's first.",
        0.0,
        "selecting from a tiny, pre-vetted candidate pool",
    ),
)
MODELS = (
    _model(
        "C2-model-scalar",
        "proteus-plain",
        "ldlq-scalar",
        "On held-out text, a whole model quantized at a window "
        f"of {MODEL_WINDOW} bits loses at least 0.2 nats a token less than with the best scalar code.",
        0.2,
    ),
    _model(
        "C2-model-gptq",
        "proteus-plain",
        "gptq",
        "... at least 0.2 nats a token less than with GPTQ (2.5 bits).",
        0.2,
    ),
    _model(
        "C2-model-1mad",
        "proteus-plain",
        "1mad",
        "... at most 0.05 nats a token more than with QTIP's 1MAD.",
        -0.05,
        paper="quality at least that of strong trellis codes",
    ),
    _model(
        "C5-model-compensation",
        "proteus-compensated",
        "proteus-plain",
        "Compensation alone lowers the divergence from the original model.",
        0.0,
        "kl",
        "lightweight channel compensation",
    ),
    _model(
        "C5-model-distillation",
        "proteus",
        "proteus-compensated",
        "Distillation of affine statistics lowers the divergence from the original model on held-out text.",
        0.0,
        "kl",
        "optional few-shot distillation",
    ),
    _model(
        "C2-model-best",
        "proteus",
        "1mad",
        "With compensation and distillation a token costs fewer nats than with "
        "the best un-finetuned trellis code, 1MAD.",
        0.0,
    ),
)
CLAIMS: tuple[Claim, ...] = (*LOOKUP_FREE, *CODES, *LAYERS, *MODELS)
