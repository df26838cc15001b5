"""Concentration and generalization bounds under L_p stability, and certificates of risk that rest on them.

The names below are imported when they are first used, so that the command line stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.methods.lp_stability.assumptions import Assumptions as Assumptions
    from assay.methods.lp_stability.ball_ridge import BallRidge as BallRidge
    from assay.methods.lp_stability.certificate import certify as certify
    from assay.methods.lp_stability.concentration import Radius as Radius
    from assay.methods.lp_stability.concentration import radii as radii
    from assay.methods.lp_stability.concentration import radius as radius
    from assay.methods.lp_stability.concentration import radius_table as radius_table
    from assay.methods.lp_stability.concentration import tail as tail
    from assay.methods.lp_stability.coupled_sgd import coupled_sgd as coupled_sgd
    from assay.methods.lp_stability.envelopes import AssumptionViolated as AssumptionViolated
    from assay.methods.lp_stability.envelopes import DeclaredEnvelope as DeclaredEnvelope
    from assay.methods.lp_stability.envelopes import Envelope as Envelope
    from assay.methods.lp_stability.estimators import CertifiedRegressor as CertifiedRegressor
    from assay.methods.lp_stability.estimators import StabilityEstimator as StabilityEstimator
    from assay.methods.lp_stability.moments import MomentWarning as MomentWarning
    from assay.methods.lp_stability.statements import Certificate as Certificate
    from assay.methods.lp_stability.statements import Estimate as Estimate

_HOMES = {
    "Assumptions": "assumptions",
    "AssumptionViolated": "envelopes",
    "BallRidge": "ball_ridge",
    "Certificate": "statements",
    "CertifiedRegressor": "estimators",
    "DeclaredEnvelope": "envelopes",
    "Envelope": "envelopes",
    "Estimate": "statements",
    "MomentWarning": "moments",
    "Radius": "concentration",
    "StabilityEstimator": "estimators",
    "certify": "certificate",
    "coupled_sgd": "coupled_sgd",
    "radii": "concentration",
    "radius": "concentration",
    "radius_table": "concentration",
    "tail": "concentration",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
