"""The claims of the study of the panorama watermark; `study` says what the trials are.

The unit of replication is the panorama: several keys, payloads and rotations of one panorama are averaged
before an interval is made. What is true of every field on a sphere is checked exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.study import Claim, Difference, Equivalence, Invariance, Precondition, Rate, Trend

ROTATED = {"part": "attack", "attack": "rotation"}
UNTOUCHED = {"part": "attack", "attack": "none"}
PAPER_INVARIANT = "strictly rotation-invariant third-order coefficients"
PAPER_ACCURACY = "near-perfect bit accuracy under arbitrary rotations, without rotation augmentation"
PAPER_PLANAR = "planar watermarks fail under rotations of the sphere"
PAPER_CAPACITY = "natural invariants of second order severely constrain capacity"


def _exact(claim: str, metric: str, tolerance: float, says: str, paper: str = "") -> Invariance:
    return Invariance(
        id=claim,
        says=says,
        metric=metric,
        arm="closed_form",
        tolerance=tolerance,
        where={"part": "invariance"},
        paper=paper,
    )


def _at_least(
    claim: str, metric: str, attack: str, bound: float, says: str, paper: str = "", arm: str = "closed_form"
) -> Rate:
    return Rate(
        id=claim,
        says=says,
        metric=metric,
        arm=arm,
        at_least=bound,
        interval="clustered",
        cluster="panorama",
        where={"part": "attack", "attack": attack},
        paper=paper,
    )


def _works_without_attack(arm: str) -> Precondition:
    return Precondition(
        says="without an attack the mark is read: bit accuracy of 0.9 at least",
        metric="bit_accuracy",
        arm=arm,
        at_least=0.9,
        where=UNTOUCHED,
    )


def _chance(claim: str, arm: str, attack: str, bound: float, says: str, paper: str = PAPER_PLANAR) -> Rate:
    return Rate(
        id=claim,
        says=says,
        metric="bit_accuracy",
        arm=arm,
        at_most=bound,
        interval="clustered",
        cluster="panorama",
        where={"part": "attack", "attack": attack},
        preconditions=(_works_without_attack(arm),),
        paper=paper,
    )


def _beats(
    claim: str,
    metric: str,
    reference: str,
    margin: float,
    where: Mapping[str, Any],
    says: str,
    paper: str = "",
) -> Difference:
    return Difference(
        id=claim,
        says=says,
        metric=metric,
        treatment="closed_form",
        reference=reference,
        better="higher",
        margin=margin,
        where=where,
        cluster="panorama",
        preconditions=(_works_without_attack(reference),),
        paper=paper,
    )


EXACTNESS = (
    _exact(
        "C1-soft-values",
        "change",
        1e-12,
        "A rotation of the coefficients changes no soft value by more than 1e-12 of the largest one.",
        PAPER_INVARIANT,
    ),
    _exact(
        "C1-bispectrum",
        "bispectrum_change",
        1e-12,
        "... and no bispectral number of 24 triples (sums even and odd) by more than 1e-12 of what its "
        "triple "
        "could be.",
        PAPER_INVARIANT,
    ),
    _exact(
        "C1-aliasing",
        "small_grid_invariant",
        0.0,
        "On a grid that is made for the payload's degree, too small for products of two fields, soft values "
        "change by more than 1e-6: exactness is a matter of the grid.",
    ),
)
ROTATION = (
    _at_least(
        "C2-bits",
        "bit_accuracy",
        "rotation",
        0.99,
        "After a random rotation of the pixels (bilinear, rounded to 8 bits) at least 99% of 127 channel "
        "bits "
        "are right, before error correction.",
        PAPER_ACCURACY,
    ),
    _at_least(
        "C2-bits-bicubic",
        "bit_accuracy",
        "rotation-bicubic",
        0.99,
        "... and after a rotation with bicubic interpolation.",
        PAPER_ACCURACY,
    ),
    _at_least(
        "C2-message-jpeg",
        "message",
        "rotation-jpeg50",
        0.99,
        "After a random rotation and JPEG of quality 50 the message is read in at least 99% of images.",
    ),
    _at_least(
        "C2-message-chain",
        "message",
        "chain",
        0.95,
        "... after JPEG 80, a random rotation, half the size and JPEG 70 in at least 95%.",
    ),
    _at_least(
        "C2-message-jpeg30",
        "message",
        "jpeg30",
        0.95,
        "... after JPEG of quality 30 alone in at least 95%.",
    ),
)
PLANAR = (
    Equivalence(
        id="C3-fidelity",
        says="The planar mark spends the same fidelity: its WS-PSNR equals ours within 0.1 dB.",
        metric="ws_psnr",
        treatment="planar",
        reference="closed_form",
        margin=0.1,
        where=UNTOUCHED,
        cluster="panorama",
    ),
    _at_least(
        "C3-planar-jpeg",
        "bit_accuracy",
        "jpeg50",
        0.95,
        "The planar mark is a good one: at least 95% of its bits survive JPEG of quality 50.",
        arm="planar",
    ),
    _beats(
        "C3-planar",
        "bit_accuracy",
        "planar",
        0.4,
        ROTATED,
        "At equal WS-PSNR, after a random rotation, the bit accuracy is more than 0.4 above that of a keyed "
        "planar spread spectrum.",
        PAPER_PLANAR,
    ),
    _chance(
        "C3-planar-chance",
        "planar",
        "rotation",
        0.55,
        "The planar mark is then at chance: bit accuracy of at most 0.55.",
    ),
    *(
        _chance(
            f"C3-{arm}",
            arm,
            "rotation",
            0.6,
            f"So is {label}, at the strength that it ships with: at most 0.6.",
        )
        for arm, label in (
            ("dwt-dct", "DWT-DCT (48 bits)"),
            ("dwt-dct-svd", "DWT-DCT-SVD (48 bits)"),
            ("rivagan", "RivaGAN, a learned mark (32 bits)"),
        )
    ),
    Rate(
        id="C3-search",
        says="Trying 256 rotations, 64 of them pure turns of the heading, finds the planar mark in at "
        "most 20% "
        "of randomly rotated images.",
        metric="found",
        arm="planar",
        at_most=0.2,
        interval="clustered",
        cluster="panorama",
        where={"part": "search", "attack": "rotation"},
        preconditions=(
            Precondition(
                says="where the heading alone was turned, the search finds the mark in at least 90%",
                metric="found",
                arm="planar",
                at_least=0.9,
                where={"part": "search", "attack": "yaw90"},
            ),
        ),
    ),
)
CAPACITY = (
    _at_least(
        "C4-second-order",
        "bit_accuracy",
        "rotation",
        0.95,
        "The power spectrum is invariant, too: at equal WS-PSNR at least 95% of its 24 bits are right "
        "after a "
        "random rotation.",
        arm="power-spectrum",
    ),
    _beats(
        "C4-information",
        "information",
        "power-spectrum",
        80.0,
        ROTATED,
        "But it offers one bit for a pair of degrees: through a random rotation, at equal WS-PSNR and in "
        "the same "
        "band, we carry at least 80 bits more (n (1 - h(error rate)), h the binary entropy).",
        PAPER_CAPACITY,
    ),
    Rate(
        id="C4-511",
        says="511 channel bits are read from the same 48 degrees after a random rotation: at least 99% right "
        "(margin 0.3, whatever fidelity that takes).",
        metric="bit_accuracy",
        arm="closed_form",
        at_least=0.99,
        interval="clustered",
        cluster="panorama",
        where={"part": "capacity", "bits": 511},
        paper=PAPER_CAPACITY,
    ),
    Trend(
        id="C4-price",
        says="Bits are paid for in fidelity: WS-PSNR falls with their number (127, 255, 511), by at least "
        "3 dB "
        "per e-fold.",
        metric="ws_psnr",
        arm="closed_form",
        over="bits",
        direction="decreasing",
        margin=3.0,
        log=True,
        where={"part": "capacity"},
        cluster="panorama",
    ),
)
FIDELITY = (
    _at_least(
        "C5-ws-psnr",
        "ws_psnr",
        "none",
        41.0,
        "WS-PSNR is at least 41 dB on average (512 x 256 pixels, 127 channel bits, default settings).",
        "high visual fidelity",
    ),
    _at_least("C5-ssim", "ssim", "none", 0.98, "SSIM is at least 0.98.", "high visual fidelity"),
)
CONSTRUCTION = (
    _beats(
        "C6-coupling",
        "bit_accuracy",
        "fixed-directions",
        0.4,
        ROTATED,
        "It is the coupling that withstands rotation: with the same band, program and fidelity, but keyed "
        "directions that are fixed instead of made from the image, bit accuracy after a rotation is more "
        "than 0.4 "
        "lower.",
        "by construction, no rotation augmentation",
    ),
    Rate(
        id="C6-learned",
        says="An engine that is trained end to end, without rotations among its distortions, reads at "
        "least 95% of "
        "127 bits after a random rotation of panoramas that it was not trained on.",
        metric="bit_accuracy",
        arm="learned",
        at_least=0.95,
        interval="clustered",
        cluster="panorama",
        where=ROTATED,
        preconditions=(_works_without_attack("learned"),),
        paper=PAPER_ACCURACY,
    ),
)
FALSE_POSITIVES = (
    *(
        Rate(
            id=f"C7-level-{arm}",
            says=f"{label}, the test for a known payload at level 5% is passed in at most 2 points more "
            f"than the "
            "exact 5% (120 keys a panorama).",
            metric="beyond_level",
            arm=arm,
            at_most=0.02,
            interval="clustered",
            cluster="panorama",
            where={"part": "keys"},
        )
        for arm, label in (
            ("original", "With keys that never touched the image"),
            ("other-key", "With wrong keys on marked images"),
        )
    ),
    *(
        Invariance(
            id=f"C7-blind-{arm}",
            says=f"No payload is read from {label}.",
            metric="found",
            arm=arm,
            tolerance=0.0,
            where={"part": "keys"},
        )
        for arm, label in (
            ("original", "unmarked panoramas"),
            ("other-key", "marked panoramas with a wrong key"),
        )
    ),
)
CLAIMS: tuple[Claim, ...] = (
    *EXACTNESS,
    *ROTATION,
    *PLANAR,
    *CAPACITY,
    *FIDELITY,
    *CONSTRUCTION,
    *FALSE_POSITIVES,
)
