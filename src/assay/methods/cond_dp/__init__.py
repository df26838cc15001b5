"""Private regression conditioned by public features, with accounting for the neighbour relation that
matters."""

from typing import TYPE_CHECKING

from assay.lazy import lazy_exports

if TYPE_CHECKING:
    from assay.methods.cond_dp.accountant import AdjacencyAccountant
    from assay.methods.cond_dp.accounting import (
        NoisySteps,
        PrivacyReport,
        calibrate,
        epsilon_spent,
        gaussian_epsilon,
        gaussian_mu,
    )
    from assay.methods.cond_dp.audit import LabelAudit, audit_label_privacy
    from assay.methods.cond_dp.baselines import (
        AdaSSPRegressor,
        GaussianLabelNoiseRegressor,
        LabelSSPRegressor,
        RROnBinsRegressor,
        WeightedLLPRegressor,
    )
    from assay.methods.cond_dp.conditioner import PublicConditioner
    from assay.methods.cond_dp.conditioning import PublicConditioning, plain_state_dict
    from assay.methods.cond_dp.engine import CondPrivacyEngine
    from assay.methods.cond_dp.gain import PredictedGain, predicted_gain
    from assay.methods.cond_dp.model_file import load_model, read_privacy, save_model
    from assay.methods.cond_dp.models import FactorizationMachine, MultilayerPerceptron
    from assay.methods.cond_dp.networks import CondDPNetworkRegressor
    from assay.methods.cond_dp.regressors import CondDPRegressor, DPSGDRegressor
    from assay.methods.cond_dp.tuning import Tuning, fit_tuned
    from assay.methods.cond_dp.validation import LeakageError

__all__ = [
    "AdaSSPRegressor",
    "AdjacencyAccountant",
    "CondDPNetworkRegressor",
    "CondDPRegressor",
    "CondPrivacyEngine",
    "DPSGDRegressor",
    "FactorizationMachine",
    "GaussianLabelNoiseRegressor",
    "LabelAudit",
    "LabelSSPRegressor",
    "LeakageError",
    "MultilayerPerceptron",
    "NoisySteps",
    "PredictedGain",
    "PrivacyReport",
    "PublicConditioner",
    "PublicConditioning",
    "RROnBinsRegressor",
    "Tuning",
    "WeightedLLPRegressor",
    "audit_label_privacy",
    "calibrate",
    "epsilon_spent",
    "fit_tuned",
    "gaussian_epsilon",
    "gaussian_mu",
    "load_model",
    "plain_state_dict",
    "predicted_gain",
    "read_privacy",
    "save_model",
]

_EXPORTS = {
    "accountant": ("AdjacencyAccountant",),
    "accounting": (
        "NoisySteps",
        "PrivacyReport",
        "calibrate",
        "epsilon_spent",
        "gaussian_epsilon",
        "gaussian_mu",
    ),
    "audit": ("LabelAudit", "audit_label_privacy"),
    "baselines": (
        "AdaSSPRegressor",
        "GaussianLabelNoiseRegressor",
        "LabelSSPRegressor",
        "RROnBinsRegressor",
        "WeightedLLPRegressor",
    ),
    "conditioner": ("PublicConditioner",),
    "conditioning": ("PublicConditioning", "plain_state_dict"),
    "engine": ("CondPrivacyEngine",),
    "gain": ("PredictedGain", "predicted_gain"),
    "model_file": ("load_model", "read_privacy", "save_model"),
    "models": ("FactorizationMachine", "MultilayerPerceptron"),
    "networks": ("CondDPNetworkRegressor",),
    "regressors": ("CondDPRegressor", "DPSGDRegressor"),
    "tuning": ("Tuning", "fit_tuned"),
    "validation": ("LeakageError",),
}

__getattr__ = lazy_exports(
    __name__, {name: module for module, names in _EXPORTS.items() for name in names}, extra="privacy"
)
