"""`assay panorama-watermark attack`: what others may do to a panorama, for one's own tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from assay.errors import InputError
from assay.methods.panorama_watermark.commands.parts import (
    Flag,
    Out,
    Sources,
    check_targets,
    follow,
    raise_failures,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from assay.methods.panorama_watermark.batch import Outcome
    from assay.methods.panorama_watermark.picture import Picture


def attack(
    sources: Sources,
    *,
    out: Out,
    yaw: float = 0.0,
    pitch: float = 0.0,
    roll: float = 0.0,
    random: int | None = None,
    order: Literal["bilinear", "bicubic"] = "bilinear",
    resize: float | None = None,
    gamma: float | None = None,
    noise: float | None = None,
    flip: Flag = False,
    jpeg: int | None = None,
    quiet: Flag = False,
) -> None:
    """Do to panoramas what others may: turn, resize, brighten, add noise, mirror, re-encode.

    Parameters
    ----------
    sources
        Panoramas or folders of them.
    out
        The folder to write to.
    yaw
        Degrees about the vertical.
    pitch
        Degrees about the horizontal y axis.
    roll
        Degrees about the x axis.
    random
        A random rotation with this seed instead (the next file gets the next seed).
    order
        Interpolation of the rotation.
    resize
        Factor of both sides.
    gamma
        Exponent of display values; below 1 brightens.
    noise
        Deviation of white noise, in grey levels.
    flip
        Mirror.
    jpeg
        Write JPEG files of this quality (4:2:0); the source's format by default.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.panorama_watermark.batch import attempt, image_files
    from assay.methods.panorama_watermark.rotations import random_rotation, rotation_matrix

    if random is not None and (yaw or pitch or roll):
        raise InputError("--random and --yaw, --pitch, --roll exclude each other")
    fixed = rotation_matrix(yaw, pitch, roll) if yaw or pitch or roll else None
    files = []
    for source, relative in image_files(sources):
        target = out / relative
        files.append((source, target if jpeg is None else target.with_suffix(".jpg")))
    check_targets(files)

    def outcomes() -> Iterator[Outcome]:
        for number, (source, target) in enumerate(files):
            rotation = fixed if random is None else random_rotation(random + number)
            chain = {
                "rotation": rotation, "order": 3 if order == "bicubic" else 1, "scale": resize,
                "exponent": gamma, "deviation": noise, "mirrored": flip, "seed": number,
            }  # fmt: skip
            yield attempt(_attack_file, source, target, (chain, jpeg))

    console = Console(quiet=quiet, highlight=False)
    done = follow(outcomes(), len(files), "Attacking", console)
    for outcome in done:
        if outcome.error is None:
            console.print(outcome.report["output"], soft_wrap=True)
    raise_failures(done)


def _attack_file(source: Path, target: Path, how: tuple[dict[str, Any], int | None]) -> dict[str, Any]:
    """Attack one file: `how` is a chain of `attacks.attack`, and the quality of the JPEG that is wanted."""
    from assay.methods.panorama_watermark.images import read_image, write_image

    chain, quality = how
    attacked = _attacked(read_image(source), chain, to_jpeg=quality is not None)
    write_image(target, attacked, quality=quality)
    return {"output": str(target)}


def _attacked(picture: Picture, chain: dict[str, Any], *, to_jpeg: bool) -> Picture:
    """The picture after a chain of `attacks.attack`, with metadata of its new size, as a JPEG if wanted."""
    from assay.methods.panorama_watermark import attacks, gpano

    moves = chain["rotation"] is not None or chain["scale"] is not None or chain["mirrored"]
    if picture.place is not None and moves:
        raise InputError("a partial panorama can only be re-encoded, brightened or given noise")
    pixels = attacks.attack(picture.pixels, **chain)
    if to_jpeg and (picture.hdr or pixels.dtype != "uint8" or pixels.shape[2:] in ((2,), (4,))):
        raise InputError("only 8-bit images without alpha can become JPEG files")
    rows, columns = picture.pixels.shape[:2]
    xmp = picture.xmp
    if chain["scale"] is not None:
        xmp = gpano.resized(xmp, pixels.shape[1] / columns, pixels.shape[0] / rows)
    changed = replace(picture, pixels=pixels, shown=None, xmp=xmp)
    return replace(changed, format="JPEG", settings={"subsampling": 2}) if to_jpeg else changed
