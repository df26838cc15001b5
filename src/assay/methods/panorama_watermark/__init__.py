"""A watermark for 360-degree images that no rotation removes, and the invariants it is made of."""

from typing import TYPE_CHECKING, Any

from assay.lazy import lazy_exports

if TYPE_CHECKING:
    from assay.methods.panorama_watermark.bispectral import bispectrum
    from assay.methods.panorama_watermark.harmonics import power_spectrum
    from assay.methods.panorama_watermark.keys import Key
    from assay.methods.panorama_watermark.learned import LearnedEngine
    from assay.methods.panorama_watermark.rotations import random_rotation, rotate_panorama, rotation_matrix
    from assay.methods.panorama_watermark.torch_invariants import BispectralInvariants, RandomRotate360
    from assay.methods.panorama_watermark.watermarker import Detection, EmbedResult, Watermarker

__all__ = [
    "BispectralInvariants",
    "Detection",
    "EmbedResult",
    "Key",
    "LearnedEngine",
    "RandomRotate360",
    "Watermarker",
    "bispectrum",
    "power_spectrum",
    "random_rotation",
    "rotate_panorama",
    "rotation_matrix",
]

# What brings torch and safetensors, which the default engine does without.
LEARNED_EXTRA = "sphere,lm"

_WITH_TORCH = {
    "BispectralInvariants": "torch_invariants",
    "LearnedEngine": "learned",
    "RandomRotate360": "torch_invariants",
}
_with_torch = lazy_exports(__name__, _WITH_TORCH, extra=LEARNED_EXTRA)
_without_torch = lazy_exports(
    __name__,
    {
        "Detection": "watermarker",
        "EmbedResult": "watermarker",
        "Key": "keys",
        "Watermarker": "watermarker",
        "bispectrum": "bispectral",
        "power_spectrum": "harmonics",
        "random_rotation": "rotations",
        "rotate_panorama": "rotations",
        "rotation_matrix": "rotations",
    },
    extra="sphere",
)


def __getattr__(name: str) -> Any:
    return (_with_torch if name in _WITH_TORCH else _without_torch)(name)
