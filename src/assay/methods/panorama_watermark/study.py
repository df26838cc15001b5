"""The study of the panorama watermark: what does a third-order mark survive, and what does it cost?

- `attack`: a marked panorama is attacked and read; every arm sees the same rotation and noise. Our two
  engines, the planar spread spectrum, the power spectrum and fixed directions spend the same WS-PSNR on each
  image; the three marks of `invisible-watermark` have the strength that they ship with.
- `invariance`: rotations of coefficients, where nothing is resampled.
- `capacity`: 127, 255 and 511 channel bits at one margin.
- `keys`: keys that never touched an image, and wrong ones on marked images.
- `search`: a planar mark, with the search for the rotation that a reader of it would need.
- `alignment`: how near that search must come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.methods.panorama_watermark.study_claims import CLAIMS
from assay.study import FinishedTrial, Panel, Scale, Study, Trial

PANORAMAS = (
    "apartment",
    "bridge",
    "city",
    "dawn",
    "esplanade",
    "forest",
    "hall",
    "lab",
    "lobby",
    "night",
    "park",
    "sky",
    "studio",
    "sunrise",
    "sunset",
    "venice",
    "warehouse",
    "workshop",
)
ATTACKS = (
    "none",
    "rotation",
    "rotation-bicubic",
    "yaw90",
    "rotation-jpeg50",
    "jpeg80",
    "jpeg50",
    "jpeg30",
    "half-size",
    "noise10",
    "gamma0.7",
    "mirror",
    "nadir",
    "chain",
)
# The learned engine is trained on every second panorama and tried on the others.
TRAINING = PANORAMAS[::2]
# RivaGAN takes a second of CPU to read one image.
FEW_ATTACKS = ("none", "rotation", "yaw90", "jpeg50")
# Arms whose keys, payloads and rotations are drawn several times, and arms with one draw a panorama.
MAIN_ARMS = ("closed_form", "planar")
OTHER_ARMS = (
    "learned",
    "fixed-directions",
    "power-spectrum",
    "dwt-dct-svd",
    "dwt-dct",
    "rivagan",
)
ANGLES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


def trials(scale: Scale, seeds: int | None) -> Iterable[Trial]:
    """Every arm under every attack; trials that mark an image come before those that only read it."""
    if scale == "smoke":
        yield from _trials(PANORAMAS[:1], ATTACKS[:2], seeds or 1, MAIN_ARMS, OTHER_ARMS[1:3], 8)
        return
    amount = (seeds or 3, 256) if scale == "quick" else (seeds or 20, 4096)
    yield from _trials(PANORAMAS, ATTACKS, amount[0], MAIN_ARMS, OTHER_ARMS, amount[1])


def _trials(
    panoramas: Sequence[str],
    attacks: Sequence[str],
    seeds: int,
    main_arms: Sequence[str],
    other_arms: Sequence[str],
    rotations: int,
) -> Iterable[Trial]:
    few = 1 if seeds <= 3 else seeds
    for bits in (511, 255, 127):
        for panorama in panoramas:
            yield Trial("closed_form", {"part": "capacity", "bits": bits, "panorama": panorama}, 0)
    for attack in attacks:
        for arm in (*main_arms, *other_arms):
            if arm == "rivagan" and attack not in FEW_ATTACKS:
                continue
            for panorama in panoramas:
                if arm == "learned" and panorama in TRAINING:
                    continue
                setting = {"part": "attack", "attack": attack, "panorama": panorama}
                for seed in range(seeds if arm in MAIN_ARMS else few):
                    yield Trial(arm, setting, seed)
    for panorama in panoramas:
        for attack in ("rotation", "yaw90"):
            setting: dict[str, Any] = {"part": "search", "attack": attack, "panorama": panorama}
            yield Trial("planar", setting | {"rotations": rotations}, 0)
        for seed in range(seeds):
            for arm in ("original", "other-key"):
                yield Trial(arm, {"part": "keys", "panorama": panorama}, seed)
            yield Trial("closed_form", {"part": "invariance", "panorama": panorama}, seed)
        for angle in ANGLES:
            for arm in MAIN_ARMS:
                yield Trial(arm, {"part": "alignment", "angle": angle, "panorama": panorama}, 0)


def run(trial: Trial) -> dict[str, float]:
    """Mark, attack and read; a marked image is made once and cached."""
    from assay.methods.panorama_watermark import experiments

    return experiments.PARTS[str(trial.setting["part"])](trial)


def figures(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """A marked image, its spectrum, attacks, detection, false positives, capacity and the search."""
    from assay.methods.panorama_watermark.study_figures import panels

    return panels(finished)


STUDY = Study(
    method="panorama_watermark",
    question="Does a mark in third-order invariants survive every rotation of a panorama, and at what cost?",
    claims=CLAIMS,
    trials=trials,
    run=run,
    figures=figures,
)
