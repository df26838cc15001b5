"""Deep single-index Fréchet regression: the estimator, its metric spaces, and what it is compared with."""

from typing import TYPE_CHECKING

from assay.lazy import lazy_exports

if TYPE_CHECKING:
    from assay.methods.desi.baselines import (
        E2M,
        DeepFrechet,
        FrechetForest,
        FrechetKNN,
        FrechetMean,
        FrechetSingleIndex,
        GlobalFrechet,
        IndexFrechet,
        LocalFrechet,
    )
    from assay.methods.desi.regressor import DeSIRegressor
    from assay.methods.desi.spaces import (
        SPD,
        Composition,
        Euclidean,
        GraphLaplacian,
        MetricSpace,
        Sphere,
        Wasserstein1D,
        from_geomstats,
        quantiles_from_density,
        quantiles_from_histogram,
        quantiles_from_quantiles,
        quantiles_from_samples,
        space_from_spec,
    )

_BASELINES = (
    "E2M",
    "DeepFrechet",
    "FrechetForest",
    "FrechetKNN",
    "FrechetMean",
    "FrechetSingleIndex",
    "GlobalFrechet",
    "IndexFrechet",
    "LocalFrechet",
)
_SPACES = (
    "SPD",
    "Composition",
    "Euclidean",
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
)

__all__ = [
    "E2M",
    "SPD",
    "Composition",
    "DeSIRegressor",
    "DeepFrechet",
    "Euclidean",
    "FrechetForest",
    "FrechetKNN",
    "FrechetMean",
    "FrechetSingleIndex",
    "GlobalFrechet",
    "GraphLaplacian",
    "IndexFrechet",
    "LocalFrechet",
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

__getattr__ = lazy_exports(
    __name__,
    {"DeSIRegressor": "regressor"}
    | dict.fromkeys(_BASELINES, "baselines")
    | dict.fromkeys(_SPACES, "spaces"),
    extra="regression",
)
