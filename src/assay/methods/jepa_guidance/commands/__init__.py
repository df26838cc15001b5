"""The verbs of `assay jepa-guidance`: calibrating, scoring, training, sampling, augmenting."""

from assay.methods.jepa_guidance.commands.augmenting import augment
from assay.methods.jepa_guidance.commands.sampling import sample
from assay.methods.jepa_guidance.commands.scoring import calibrate, score
from assay.methods.jepa_guidance.commands.training import train_encoder, train_generator

__all__ = ["augment", "calibrate", "sample", "score", "train_encoder", "train_generator"]
