"""What Cond-DP is compared with, beside DP-SGD itself: one-shot releases and private labels."""

from assay.methods.cond_dp.baselines.noisy_labels import (
    GaussianLabelNoiseRegressor,
    RROnBinsRegressor,
    WeightedLLPRegressor,
)
from assay.methods.cond_dp.baselines.one_shot import AdaSSPRegressor, LabelSSPRegressor

__all__ = [
    "AdaSSPRegressor",
    "GaussianLabelNoiseRegressor",
    "LabelSSPRegressor",
    "RROnBinsRegressor",
    "WeightedLLPRegressor",
]
