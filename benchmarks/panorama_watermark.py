"""The panorama watermark's transform beside pyshtools, and what marking and detecting cost.

OMP_NUM_THREADS=1 python -m benchmarks.panorama_watermark
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from pyshtools import backends, expand

from assay.methods.panorama_watermark import Key, Watermarker, random_rotation, rotate_panorama
from assay.methods.panorama_watermark.data import panoramas
from assay.methods.panorama_watermark.harmonics import (
    analyse,
    coefficient_count,
    degrees_and_orders,
    image_grid,
    synthesise,
)
from assay.methods.panorama_watermark.schedule import BANDS

PAYLOAD = b"assay"


def seconds(action: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of a few CPU times; one call before them compiles and warms up."""
    action()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def show(what: str, ours: float, peer: str, theirs: float, note: str) -> None:
    print(f"{what:<50} {ours:>8.3f} s  {peer:<32} {theirs:>8.3f} s  {theirs / ours:>6.1f}x  {note}")


def analysis(height: int, lmax: int) -> None:
    """The same field, on our grid and on pyshtools' (whose first row is the pole), to the same degree."""
    rng = np.random.default_rng(0)
    degrees, orders = degrees_and_orders(lmax)
    coefficients = rng.normal(size=coefficient_count(lmax)) + 1j * rng.normal(size=coefficient_count(lmax))
    coefficients[orders == 0] = coefficients[orders == 0].real
    grid = image_grid(height)
    ours_map = synthesise(coefficients, grid, lmax)
    theirs = np.zeros((2, lmax + 1, lmax + 1))
    # Their real coefficients of cos m phi and sin m phi, orthonormal.
    factor = np.where(orders > 0, np.sqrt(2.0), 1.0)
    theirs[0, degrees, orders] = coefficients.real * factor
    theirs[1, degrees, orders] = -coefficients.imag * factor
    theirs_map = expand.MakeGridDH(
        theirs, lmax=height // 2 - 1, norm=4, csphase=-1, sampling=2, lmax_calc=lmax, extend=False
    )
    assert theirs_map.shape == ours_map.shape

    def with_pyshtools() -> np.ndarray:
        return expand.SHExpandDH(theirs_map, norm=4, csphase=-1, sampling=2, lmax_calc=lmax)

    difference = float(np.abs(analyse(ours_map, grid, lmax) - coefficients).max())
    peer_difference = float(np.abs(with_pyshtools() - theirs).max())
    show(
        f"analysis to degree {lmax}, {2 * height} x {height}",
        seconds(lambda: analyse(ours_map, grid, lmax)),
        "pyshtools SHExpandDH (Fortran)",
        seconds(with_pyshtools, repeats=3),
        f"errors {difference:.0e}, {peer_difference:.0e}",
    )


def enlarged(height: int) -> np.ndarray:
    """A real panorama, enlarged: what is in it doesn't matter for the time."""
    small = Image.fromarray(panoramas(["venice"])["venice"])
    return np.array(small.resize((2 * height, height), Image.Resampling.BICUBIC))


def embedding(height: int) -> None:
    image, watermarker = enlarged(height), Watermarker(Key(bytes(range(32))))
    spent = seconds(lambda: watermarker.embed(image, PAYLOAD), repeats=3)
    result = watermarker.embed(image, PAYLOAD)
    print(
        f"{f'embedding, {2 * height} x {height}':<50} {spent:>8.3f} s  WS-PSNR {result.ws_psnr:.1f} dB, "
        f"{result.iterations} iterations"
    )


def detection(height: int) -> None:
    watermarker = Watermarker(Key(bytes(range(32))))
    marked = watermarker.embed(enlarged(height), PAYLOAD).image
    turned = rotate_panorama(marked, random_rotation(0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "turned.jpg"
        Image.fromarray(turned).save(path, quality=90)
        decoding = seconds(lambda: np.asarray(Image.open(path)))
        pixels = np.asarray(Image.open(path))
        spent = seconds(lambda: watermarker.detect(pixels))
        whole = seconds(lambda: watermarker.detect(path))
        found = watermarker.detect(path)
    print(
        f"{f'detection after rotation and JPEG, {2 * height} x {height}':<50} {spent:>8.3f} s  beyond "
        f"decoding "
        f"the file ({decoding:.3f} s; {whole:.3f} s in all), {len(BANDS)} bands; read: "
        f"{found.payload == PAYLOAD}"
    )


def main() -> None:
    backends.select_preferred_backend("shtools")
    print("CPU seconds of one thread.")
    for height, lmax in ((256, 112), (1024, 160), (2048, 160)):
        analysis(height, lmax)
    for height in (512, 1024):
        embedding(height)
    for height in (256, 1024, 2048):
        detection(height)


if __name__ == "__main__":
    main()
