"""What the trials of the study measure. A marked image is made once for an arm, a panorama and a seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import UInt8

from assay.cache import cached, content_hash
from assay.methods.panorama_watermark import attacks
from assay.methods.panorama_watermark.baselines import (
    FixedDirections,
    LibraryMark,
    Mark,
    PlanarSpectrum,
    PowerSpectrumMark,
)
from assay.methods.panorama_watermark.bch import CODES, find_code
from assay.methods.panorama_watermark.bispectral import bispectrum
from assay.methods.panorama_watermark.carriers import soft_values
from assay.methods.panorama_watermark.data import panoramas
from assay.methods.panorama_watermark.frames import frame_bits, match_p_value, read_frame
from assay.methods.panorama_watermark.harmonics import Grid, power_spectrum, rotate_coefficients
from assay.methods.panorama_watermark.keys import Key
from assay.methods.panorama_watermark.luma import luma_coefficients, pixel_scale
from assay.methods.panorama_watermark.quality import psnr, ssim, ws_psnr
from assay.methods.panorama_watermark.rotation_search import rotation_candidates, search_rotation
from assay.methods.panorama_watermark.rotations import random_rotation, rotate_panorama, rotation_matrix
from assay.methods.panorama_watermark.schedule import BANDS, band_for_height, key_schedule
from assay.methods.panorama_watermark.study import TRAINING
from assay.methods.panorama_watermark.watermarker import KNOWN_PAYLOAD_LEVEL, Watermarker
from assay.study import Trial

if TYPE_CHECKING:
    from assay.methods.panorama_watermark.learned import LearnedEngine

Measured = dict[str, float]
Image = UInt8[np.ndarray, "rows columns 3"]

CODE = "bch127_64"
PAYLOAD_BYTES = 5
CAPACITY_MARGIN = 0.3
TRAINING_STEPS = 1500
# Our two engines, which share the public interface.
OURS = ("closed_form", "learned")
KEYS = 40
# Marks of invisible-watermark: the method and its bits.
LIBRARY: dict[str, tuple[Literal["dwtDct", "dwtDctSvd", "rivaGan"], int]] = {
    "dwt-dct": ("dwtDct", 48),
    "dwt-dct-svd": ("dwtDctSvd", 48),
    "rivagan": ("rivaGan", 32),
}
# Raised whenever the same trial would mark differently.
_VERSION = 2


# ----------------------------------------------------------------------------------- keys, payloads and marks


def panorama(name: str) -> Image:
    """A panorama of the study."""
    return panoramas([name])[name]


def _randomness(purpose: str, name: str, seed: int) -> np.random.Generator:
    """Random numbers for a panorama and a seed: the same for all arms."""
    return np.random.default_rng(int(content_hash([purpose, name, seed]), 16))


def key_for(arm: str, name: str, seed: int) -> Key:
    """The key of an arm: a learned engine has one for all images, the others have one an image and seed."""
    return _engine_key() if arm == "learned" else key_of(name, seed)


def key_of(name: str, seed: int, purpose: str = "key") -> Key:
    """The key of a panorama and a seed. It protects nothing."""
    return Key(_randomness(purpose, name, seed).bytes(32))


def payload_of(name: str, seed: int) -> bytes:
    """The payload of a panorama and a seed."""
    return _randomness("payload", name, seed).bytes(PAYLOAD_BYTES)


def baseline(arm: str, name: str, seed: int) -> tuple[Mark, np.ndarray]:
    """The mark of an arm that isn't ours, and the word that it writes."""
    key, image = key_of(name, seed), panorama(name)
    height, band = len(image), band_for_height(len(image))
    if arm == "planar":
        # The same error correction as ours.
        return PlanarSpectrum(key, height), frame_bits(payload_of(name, seed), key, find_code(CODE))
    if arm == "fixed-directions":
        return FixedDirections(key, band), frame_bits(payload_of(name, seed), key, find_code(CODE))
    mark = PowerSpectrumMark(key, band) if arm == "power-spectrum" else LibraryMark(*LIBRARY[arm], height)
    return mark, _randomness("word", name, seed).integers(0, 2, mark.bits).astype(np.uint8)


def _engine_key() -> Key:
    return key_of("all", 0, "learned engine")


@lru_cache(maxsize=1)
def learned_engine(steps: int) -> LearnedEngine:
    """An engine that was trained on every second panorama; trained once, then cached."""
    from assay.methods.panorama_watermark.learned import LearnedEngine, train_engine

    def build(folder: Path) -> None:
        images = list(panoramas(list(TRAINING)).values())
        engine, _ = train_engine(images, _engine_key(), code=CODE, band="mid", steps=steps)
        engine.save(folder / "engine")

    key = {"panoramas": list(TRAINING), "code": CODE, "steps": steps, "version": _VERSION}
    return LearnedEngine.load(cached("panorama-learned", key, build) / "engine")


def watermarker(arm: str, name: str, seed: int, **options: Any) -> Watermarker:
    """The watermarker of one of our two engines."""
    engine = learned_engine(TRAINING_STEPS) if arm == "learned" else "closed_form"
    return Watermarker(key_for(arm, name, seed), engine=engine, code=CODE, **options)


def marked(arm: str, name: str, seed: int) -> tuple[Image, Measured]:
    """A panorama with an arm's mark, and how far it is from the original."""

    def build(folder: Path) -> None:
        image = panorama(name)
        facts: Measured = {}
        if arm in OURS:
            spent = {} if arm == "closed_form" else {"psnr": marked("closed_form", name, seed)[1]["ws_psnr"]}
            result = watermarker(arm, name, seed, **spent).embed(image, payload_of(name, seed))
            made = result.image
            facts = {
                "min_margin": result.min_margin,
                "dropped": float(result.dropped),
                "iterations": float(result.iterations),
            }
        else:
            mark, word = baseline(arm, name, seed)
            made = mark.embed(image, word, marked("closed_form", name, seed)[1]["ws_psnr"])
        scale = pixel_scale(image)
        facts |= {
            "psnr": psnr(image, made),
            "ws_psnr": ws_psnr(image, made),
            "ssim": ssim(scale.luma(image), scale.luma(made)),
        }
        np.savez(folder / "image.npz", image=made)
        (folder / "facts.json").write_text(json.dumps(facts))

    key = {"arm": arm, "panorama": name, "seed": seed, "code": CODE, "version": _VERSION}
    folder = cached("panorama-marked", key, build)
    with np.load(folder / "image.npz", allow_pickle=False) as stored:
        return stored["image"], json.loads((folder / "facts.json").read_text())


# -------------------------------------------------------------------------------------------------- attacks


def _turned(image: Image, rng: np.random.Generator, order: int = 1) -> Image:
    return rotate_panorama(image, random_rotation(rng), order=order)


def _chain(image: Image, rng: np.random.Generator) -> Image:
    turned = _turned(attacks.jpeg(image, 80), rng)
    return attacks.jpeg(attacks.resize(turned, 0.5), 70)


ATTACKS: Mapping[str, Callable[[Image, np.random.Generator], Image]] = {
    "none": lambda image, rng: image,
    "rotation": _turned,
    "rotation-bicubic": lambda image, rng: _turned(image, rng, order=3),
    "yaw90": lambda image, rng: rotate_panorama(image, rotation_matrix(yaw=90.0)),
    "rotation-jpeg50": lambda image, rng: attacks.jpeg(_turned(image, rng), 50),
    "jpeg80": lambda image, rng: attacks.jpeg(image, 80),
    "jpeg50": lambda image, rng: attacks.jpeg(image, 50),
    "jpeg30": lambda image, rng: attacks.jpeg(image, 30),
    "half-size": lambda image, rng: attacks.resize(image, 0.5),
    "noise10": lambda image, rng: attacks.noise(image, 10.0, rng),
    "gamma0.7": lambda image, rng: attacks.gamma(image, 0.7),
    "mirror": lambda image, rng: attacks.flip(image),
    "nadir": lambda image, rng: attacks.cover_pole(image, 18.0),
    "chain": _chain,
}


def attacked(image: Image, attack: str, name: str, seed: int) -> Image:
    """An image after an attack; rotations and noise are the same for all arms."""
    return ATTACKS[attack](image, _randomness("attack", name, seed))


def attack(trial: Trial) -> Measured:
    """How much of a mark is left after an attack."""
    name, seed = str(trial.setting["panorama"]), trial.seed
    image, facts = marked(trial.arm, name, seed)
    seen = attacked(image, str(trial.setting["attack"]), name, seed)
    if trial.arm in OURS:
        return facts | _read_ours(watermarker(trial.arm, name, seed), seen, name, seed)
    mark, word = baseline(trial.arm, name, seed)
    soft = mark.soft_values(seen)
    measured = facts | _bits(soft, word)
    if len(word) == find_code(CODE).n:
        read = read_frame(soft, key_of(name, seed), find_code(CODE))
        measured["message"] = float(read is not None and read.payload == payload_of(name, seed))
    return measured


def _read_ours(reader: Watermarker, image: Image, name: str, seed: int) -> Measured:
    """Read by the public interface, which tries all bands, and count bits in the band of the original."""
    payload = payload_of(name, seed)
    band = band_for_height(len(panorama(name)))
    soft = reader.soft_bits(image, band.name)
    measured = _bits(soft, reader.channel_bits(payload), len(BANDS))
    found = reader.detect(image)
    return measured | {"message": float(found.payload == payload), "wrong_message": float(
        found.payload is not None and found.payload != payload)}  # fmt: skip


def _bits(soft: np.ndarray, word: np.ndarray, tries: int = 1) -> Measured:
    matches = int(np.count_nonzero((soft < 0) == word))
    error = 1 - matches / len(word)
    p_value = match_p_value(matches, len(word), tries)
    return {
        "bits": float(len(word)),
        "bit_accuracy": matches / len(word),
        "information": len(word) * (1 - _binary_entropy(min(error, 0.5))),
        "log10_p": math.log10(max(p_value, 1e-300)),
        "found": float(p_value <= KNOWN_PAYLOAD_LEVEL),
    }


def _binary_entropy(p: float) -> float:
    return 0.0 if p in (0.0, 1.0) else -p * math.log2(p) - (1 - p) * math.log2(1 - p)


# ------------------------------------------------------------------------- exactness, capacity and other keys


def invariance(trial: Trial) -> Measured:
    """Rotate coefficients, exactly, and see what changes; on the right grid and on one that is too small."""
    name, seed = str(trial.setting["panorama"]), trial.seed
    image, _ = marked(trial.arm, name, seed)
    band = band_for_height(len(image))
    schedule = key_schedule(key_of(name, seed), band, find_code(CODE).n)
    coefficients = luma_coefficients(pixel_scale(image).luma(image), band.lmax)
    rng = _randomness("rotation", name, seed)
    turned = rotate_coefficients(coefficients, random_rotation(rng), band.lmax)

    def change(grid: Grid | None) -> float:
        before, after = (soft_values(one, schedule, grid) for one in (coefficients, turned))
        return float(np.abs(after - before).max() / np.abs(before).max())

    # Exact for two fields of the payload's degree, and so too small for three fields.
    small = change(Grid("gauss", band.lmax + 1, 2 * band.lmax + 2))
    triples = _triples(rng, band.lmax)
    before, after = (bispectrum(one, triples, band.lmax) for one in (coefficients, turned))
    # |b| is at most the product of the norms of the three degrees.
    norms = np.sqrt(power_spectrum(coefficients, band.lmax))
    largest = np.array([norms[l1] * norms[l2] * norms[degree] for l1, l2, degree in triples])
    return {
        "change": change(None),
        "small_grid_change": small,
        "small_grid_invariant": float(small < 1e-6),
        "bispectrum_change": float((np.abs(after - before) / largest).max()),
    }


def _triples(rng: np.random.Generator, lmax: int) -> list[tuple[int, int, int]]:
    """24 triples that keep the triangle rule."""
    triples = []
    while len(triples) < 24:
        l1, l2, degree = (int(one) for one in rng.integers(2, lmax + 1, 3))
        if abs(l1 - l2) <= degree <= l1 + l2:
            triples.append((l1, l2, degree))
    return triples


def capacity(trial: Trial) -> Measured:
    """Another code at one margin, after a random rotation."""
    name, seed = str(trial.setting["panorama"]), trial.seed
    # Of codes of one length, the one with the longest messages.
    code = max(
        (one for one in CODES.values() if one.n == int(trial.setting["bits"])), key=lambda one: one.k
    ).name
    image = panorama(name)
    writer = Watermarker(key_of(name, seed), code=code, margin=CAPACITY_MARGIN, allow_weak=True)
    result = writer.embed(image, payload_of(name, seed))
    facts = {"ws_psnr": result.ws_psnr, "ssim": result.ssim, "min_margin": result.min_margin}
    return facts | _read_ours(writer, attacked(result.image, "rotation", name, seed), name, seed)


def keys(trial: Trial) -> Measured:
    """Keys that have nothing to do with an image: bits that match a payload, and payloads that are read."""
    name, seed = str(trial.setting["panorama"]), trial.seed
    image = panorama(name) if trial.arm == "original" else marked("closed_form", name, seed)[0]
    band, code = band_for_height(len(image)), find_code(CODE)
    coefficients = luma_coefficients(pixel_scale(image).luma(image), band.lmax)
    payload = payload_of(name, seed)
    matches, found = [], 0
    for number in range(KEYS):
        key = key_of(name, seed, f"{trial.arm} {number}")
        schedule = key_schedule(key, band, code.n)
        soft = soft_values(coefficients, schedule) * (1.0 - 2.0 * schedule.whitening)
        matches.append(int(np.count_nonzero((soft < 0) == frame_bits(payload, key, code))))
        found += read_frame(soft, key, code) is not None
    counts = np.bincount(matches, minlength=code.n + 1)
    passed = float(np.mean([match_p_value(count, code.n) <= 0.05 for count in matches]))
    measured = {
        "beyond_level": passed - 0.05,
        "found": float(found),
        "mean_matches": float(np.mean(matches)),
        "keys": float(KEYS),
    }
    return measured | {f"matches:{count}": float(counts[count]) for count in np.flatnonzero(counts)}


# ------------------------------------------------------------------------------------ search for the rotation


def search(trial: Trial) -> Measured:
    """Look for a planar mark at many rotations."""
    name, seed = str(trial.setting["panorama"]), trial.seed
    mark, word = baseline(trial.arm, name, seed)
    seen = attacked(marked(trial.arm, name, seed)[0], str(trial.setting["attack"]), name, seed)
    found = search_rotation(mark, seen, word, _candidates(int(trial.setting["rotations"])))
    return {
        "found": float(found.p_value <= KNOWN_PAYLOAD_LEVEL),
        "bit_accuracy": found.matches / mark.bits,
        "log10_p": math.log10(max(found.p_value, 1e-300)),
    }


@lru_cache(maxsize=2)
def _candidates(count: int) -> np.ndarray:
    return rotation_candidates(count)


def alignment(trial: Trial) -> Measured:
    """Turn an image and turn it back, but for a small angle about a random axis."""
    from scipy.spatial.transform import Rotation

    name, seed = str(trial.setting["panorama"]), trial.seed
    rng = _randomness("alignment", name, seed)
    rotation, axis = random_rotation(rng), rng.normal(size=3)
    axis *= math.radians(float(trial.setting["angle"])) / np.linalg.norm(axis)
    back = Rotation.from_rotvec(axis).as_matrix() @ rotation.T
    seen = rotate_panorama(rotate_panorama(marked(trial.arm, name, seed)[0], rotation), back)
    if trial.arm == "closed_form":
        return _read_ours(watermarker(trial.arm, name, seed), seen, name, seed)
    mark, word = baseline(trial.arm, name, seed)
    return _bits(mark.soft_values(seen), word)


PARTS: dict[str, Callable[[Trial], Measured]] = {
    "attack": attack,
    "invariance": invariance,
    "capacity": capacity,
    "keys": keys,
    "search": search,
    "alignment": alignment,
}
