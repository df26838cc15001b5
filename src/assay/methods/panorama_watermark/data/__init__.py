"""Real panoramas: 18 photographs of Poly Haven (CC0), 512 x 256 pixels; see SOURCE.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from assay.errors import InputError


def panorama_paths() -> dict[str, Path]:
    """The files of the panoramas by name, in alphabetical order."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.jpg"))}


def panoramas(names: list[str] | None = None) -> dict[str, UInt8[np.ndarray, "256 512 3"]]:
    """The panoramas as 8-bit sRGB arrays by name.

    Args:
        names: the ones wanted; all by default.

    Raises:
        InputError: there is none of a name.
    """
    from PIL import Image

    paths = panorama_paths()
    if unknown := set(names or ()) - set(paths):
        raise InputError(
            f"there are no panoramas {', '.join(sorted(unknown))}; choose from {', '.join(paths)}"
        )
    return {name: np.asarray(Image.open(paths[name]).convert("RGB")) for name in names or paths}
