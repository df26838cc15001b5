"""Concentration and generalization bounds under L_p stability, and certificates of risk that rest on them."""

from typing import TYPE_CHECKING

from assay.lazy import lazy_exports

if TYPE_CHECKING:
    from assay.methods.lp_stability.assumptions import Assumptions
    from assay.methods.lp_stability.ball_ridge import BallRidge
    from assay.methods.lp_stability.certificate import certify
    from assay.methods.lp_stability.concentration import Radius, radii, radius, radius_table, tail
    from assay.methods.lp_stability.coupled_descent import coupled_sgd
    from assay.methods.lp_stability.envelopes import AssumptionViolated, DeclaredEnvelope, Envelope
    from assay.methods.lp_stability.estimators import CertifiedRegressor, StabilityEstimator
    from assay.methods.lp_stability.moments import MomentWarning
    from assay.methods.lp_stability.statements import Certificate, Estimate

__all__ = [
    "AssumptionViolated",
    "Assumptions",
    "BallRidge",
    "Certificate",
    "CertifiedRegressor",
    "DeclaredEnvelope",
    "Envelope",
    "Estimate",
    "MomentWarning",
    "Radius",
    "StabilityEstimator",
    "certify",
    "coupled_sgd",
    "radii",
    "radius",
    "radius_table",
    "tail",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "Assumptions": "assumptions",
        "BallRidge": "ball_ridge",
        "MomentWarning": "moments",
        "certify": "certificate",
        "coupled_sgd": "coupled_descent",
    }
    | dict.fromkeys(("Radius", "radii", "radius", "radius_table", "tail"), "concentration")
    | dict.fromkeys(("AssumptionViolated", "DeclaredEnvelope", "Envelope"), "envelopes")
    | dict.fromkeys(("CertifiedRegressor", "StabilityEstimator"), "estimators")
    | dict.fromkeys(("Certificate", "Estimate"), "statements"),
    extra="regression",
)
