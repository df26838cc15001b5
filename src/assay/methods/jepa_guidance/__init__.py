"""Steering diffusion models towards images that are rare under a self-supervised encoder."""

from typing import TYPE_CHECKING

from assay.lazy import lazy_exports

if TYPE_CHECKING:
    from assay.methods.jepa_guidance.augmentations import Augmentation
    from assay.methods.jepa_guidance.baselines import (
        CADS,
        BoostAndSkip,
        MinorityClassifier,
        MinorityGuidance,
        MinorityPrompt,
        NeighbourGuidance,
        RandomDirection,
        SelfGuidedMinority,
        train_minority_classifier,
    )
    from assay.methods.jepa_guidance.calibration import Calibration
    from assay.methods.jepa_guidance.encoder_config import JEPAEncoderConfig
    from assay.methods.jepa_guidance.encoder_model import JEPAEncoder
    from assay.methods.jepa_guidance.encoder_training import EncoderTraining, train_encoder
    from assay.methods.jepa_guidance.error_bound import ErrorBound
    from assay.methods.jepa_guidance.generator_model import PixelMLP, PixelUNet
    from assay.methods.jepa_guidance.generator_pipeline import PixelDiffusionPipeline, load_generator
    from assay.methods.jepa_guidance.generator_training import (
        GeneratorTraining,
        make_pipeline,
        make_scheduler,
        train_generator,
    )
    from assay.methods.jepa_guidance.guidance import JEPAGuidance
    from assay.methods.jepa_guidance.guidance_config import JEPAGuidanceConfig
    from assay.methods.jepa_guidance.guidance_step import GuidanceStep
    from assay.methods.jepa_guidance.guided_sampling import guided_sample
    from assay.methods.jepa_guidance.images import contact_sheet, read_images, write_png
    from assay.methods.jepa_guidance.jepa_shift import GuidanceReport, JEPAShift
    from assay.methods.jepa_guidance.metrics import (
        ImageJudge,
        ManifoldMetrics,
        average_knn_distance,
        class_entropy,
        class_shares,
        frechet_distance,
        jensen_shannon,
        local_outlier_factor,
        manifold_metrics,
        rarity_score,
    )
    from assay.methods.jepa_guidance.sampling_job import SamplingJob, run_job
    from assay.methods.jepa_guidance.scorer import JEPAScorer
    from assay.methods.jepa_guidance.training_loop import Optimisation

_EXPORTS = {
    "augmentations": ("Augmentation",),
    "baselines": (
        "CADS",
        "BoostAndSkip",
        "MinorityClassifier",
        "MinorityGuidance",
        "MinorityPrompt",
        "NeighbourGuidance",
        "RandomDirection",
        "SelfGuidedMinority",
        "train_minority_classifier",
    ),
    "calibration": ("Calibration",),
    "encoder_config": ("JEPAEncoderConfig",),
    "encoder_model": ("JEPAEncoder",),
    "encoder_training": (
        "EncoderTraining",
        "train_encoder",
    ),
    "error_bound": ("ErrorBound",),
    "generator_model": (
        "PixelMLP",
        "PixelUNet",
    ),
    "generator_pipeline": (
        "PixelDiffusionPipeline",
        "load_generator",
    ),
    "generator_training": (
        "GeneratorTraining",
        "make_pipeline",
        "make_scheduler",
        "train_generator",
    ),
    "guidance": ("JEPAGuidance",),
    "guidance_config": ("JEPAGuidanceConfig",),
    "guidance_step": ("GuidanceStep",),
    "guided_sampling": ("guided_sample",),
    "images": (
        "contact_sheet",
        "read_images",
        "write_png",
    ),
    "jepa_shift": (
        "GuidanceReport",
        "JEPAShift",
    ),
    "metrics": (
        "ImageJudge",
        "ManifoldMetrics",
        "average_knn_distance",
        "class_entropy",
        "class_shares",
        "frechet_distance",
        "jensen_shannon",
        "local_outlier_factor",
        "manifold_metrics",
        "rarity_score",
    ),
    "sampling_job": (
        "SamplingJob",
        "run_job",
    ),
    "scorer": ("JEPAScorer",),
    "training_loop": ("Optimisation",),
}

__all__ = [
    "CADS",
    "Augmentation",
    "BoostAndSkip",
    "Calibration",
    "EncoderTraining",
    "ErrorBound",
    "GeneratorTraining",
    "GuidanceReport",
    "GuidanceStep",
    "ImageJudge",
    "JEPAEncoder",
    "JEPAEncoderConfig",
    "JEPAGuidance",
    "JEPAGuidanceConfig",
    "JEPAScorer",
    "JEPAShift",
    "ManifoldMetrics",
    "MinorityClassifier",
    "MinorityGuidance",
    "MinorityPrompt",
    "NeighbourGuidance",
    "Optimisation",
    "PixelDiffusionPipeline",
    "PixelMLP",
    "PixelUNet",
    "RandomDirection",
    "SamplingJob",
    "SelfGuidedMinority",
    "average_knn_distance",
    "class_entropy",
    "class_shares",
    "contact_sheet",
    "frechet_distance",
    "guided_sample",
    "jensen_shannon",
    "load_generator",
    "local_outlier_factor",
    "make_pipeline",
    "make_scheduler",
    "manifold_metrics",
    "rarity_score",
    "read_images",
    "run_job",
    "train_encoder",
    "train_generator",
    "train_minority_classifier",
    "write_png",
]

__getattr__ = lazy_exports(
    __name__,
    {name: module for module, names in _EXPORTS.items() for name in names},
    extra="diffusion",
)
