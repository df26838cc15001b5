"""Steering diffusion models towards images that are rare under a self-supervised encoder."""

from typing import TYPE_CHECKING

from assay.lazy import lazy_exports

if TYPE_CHECKING:
    from assay.methods.jepa_guidance.calibration import Calibration
    from assay.methods.jepa_guidance.error_bound import ErrorBound
    from assay.methods.jepa_guidance.guidance import JEPAGuidance
    from assay.methods.jepa_guidance.guidance_config import JEPAGuidanceConfig
    from assay.methods.jepa_guidance.guidance_step import GuidanceStep
    from assay.methods.jepa_guidance.guided_sampling import guided_sample
    from assay.methods.jepa_guidance.jepa_shift import GuidanceReport, JEPAShift
    from assay.methods.jepa_guidance.scorer import JEPAScorer

__all__ = [
    "Calibration",
    "ErrorBound",
    "GuidanceReport",
    "GuidanceStep",
    "JEPAGuidance",
    "JEPAGuidanceConfig",
    "JEPAScorer",
    "JEPAShift",
    "guided_sample",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "Calibration": "calibration",
        "ErrorBound": "error_bound",
        "GuidanceReport": "jepa_shift",
        "GuidanceStep": "guidance_step",
        "JEPAGuidance": "guidance",
        "JEPAGuidanceConfig": "guidance_config",
        "JEPAScorer": "scorer",
        "JEPAShift": "jepa_shift",
        "guided_sample": "guided_sampling",
    },
    extra="diffusion",
)
