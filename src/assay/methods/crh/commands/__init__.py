"""The verbs `assay crh pairs`, `fit`, `map`, `predict`, `steer` and `export`."""

from assay.methods.crh.commands.applying import export, steer
from assay.methods.crh.commands.fitting import fit, pairs
from assay.methods.crh.commands.measuring import map_sectors, predict

__all__ = ["export", "fit", "map_sectors", "pairs", "predict", "steer"]
