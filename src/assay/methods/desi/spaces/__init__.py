"""Metric spaces for Fréchet regression, and conversions into them."""

from assay.methods.desi.spaces.catalogue import SPACES, space_from_spec
from assay.methods.desi.spaces.composition import Composition
from assay.methods.desi.spaces.conversions import (
    quantiles_from_density,
    quantiles_from_histogram,
    quantiles_from_quantiles,
    quantiles_from_samples,
)
from assay.methods.desi.spaces.euclidean import Euclidean
from assay.methods.desi.spaces.geomstats_adapter import GeomstatsSpace, from_geomstats
from assay.methods.desi.spaces.laplacian import GraphLaplacian
from assay.methods.desi.spaces.space import MetricSpace
from assay.methods.desi.spaces.spd import SPD
from assay.methods.desi.spaces.sphere import Sphere
from assay.methods.desi.spaces.wasserstein import Wasserstein1D

__all__ = [
    "SPACES",
    "SPD",
    "Composition",
    "Euclidean",
    "GeomstatsSpace",
    "GraphLaplacian",
    "MetricSpace",
    "Sphere",
    "Wasserstein1D",
    "from_geomstats",
    "quantiles_from_density",
    "quantiles_from_histogram",
    "quantiles_from_quantiles",
    "quantiles_from_samples",
    "space_from_spec",
]
