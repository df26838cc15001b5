"""What JEPA guidance is compared with: other ways to sample what is rare, and controls.

Guidances are callables that `guided_sample(..., guidance=...)` takes in place of JEPA's own. The reversed
sign is no class of its own: it is `JEPAGuidanceConfig(direction="common")`.
"""

from assay.methods.jepa_guidance.baselines.controls import NeighbourGuidance, RandomDirection
from assay.methods.jepa_guidance.baselines.minority_classifier import (
    MinorityClassifier,
    MinorityGuidance,
    train_minority_classifier,
)
from assay.methods.jepa_guidance.baselines.minority_prompt import MinorityPrompt
from assay.methods.jepa_guidance.baselines.noise_and_condition import CADS, BoostAndSkip
from assay.methods.jepa_guidance.baselines.self_guided import SelfGuidedMinority

__all__ = [
    "CADS",
    "BoostAndSkip",
    "MinorityClassifier",
    "MinorityGuidance",
    "MinorityPrompt",
    "NeighbourGuidance",
    "RandomDirection",
    "SelfGuidedMinority",
    "train_minority_classifier",
]
