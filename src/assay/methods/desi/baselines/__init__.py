"""What DeSI is compared with: the other ways to regress points of a metric space on predictors."""

from assay.methods.desi.baselines.averaging import FrechetForest, FrechetKNN, FrechetMean
from assay.methods.desi.baselines.deep import E2M, DeepFrechet
from assay.methods.desi.baselines.frechet import GlobalFrechet, LocalFrechet
from assay.methods.desi.baselines.single_index import FrechetSingleIndex, IndexFrechet

__all__ = [
    "E2M",
    "DeepFrechet",
    "FrechetForest",
    "FrechetKNN",
    "FrechetMean",
    "FrechetSingleIndex",
    "GlobalFrechet",
    "IndexFrechet",
    "LocalFrechet",
]
