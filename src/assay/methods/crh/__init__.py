"""Cylinders of steering: fit them, measure along and around them, and say what they predict."""

from typing import TYPE_CHECKING

from assay.lazy import lazy_exports

if TYPE_CHECKING:
    from assay.methods.crh.artifact import (
        load_cylinder,
        save_cylinder,
    )
    from assay.methods.crh.baselines import (
        angular_steer,
        baseline_directions,
        instructed,
        rotation_plane,
    )
    from assay.methods.crh.calibration import (
        FitOptions,
        fit_from_pairs,
        measure_strengths,
    )
    from assay.methods.crh.concepts import (
        Concept,
        load_concepts,
        load_questions,
        written_concepts,
        written_detector,
        written_pairs,
    )
    from assay.methods.crh.cylinder import (
        Coordinates,
        Cylinder,
        SampleGeometry,
        fit_cylinder,
    )
    from assay.methods.crh.detectors import (
        Detector,
        corruption,
        label,
        lexicon,
    )
    from assay.methods.crh.export import (
        from_steering_vector,
        read_gguf,
        to_steering_vector,
        write_gguf,
        write_layers,
        write_safetensors,
    )
    from assay.methods.crh.extraction import (
        DifferenceSet,
        extract_differences,
    )
    from assay.methods.crh.generation import (
        Generated,
        generate_pairs,
        replies,
    )
    from assay.methods.crh.helix import (
        Helix,
        HelixGrid,
        Swap,
        fit_helix,
        steering_path,
    )
    from assay.methods.crh.judge import (
        Judge,
    )
    from assay.methods.crh.margin import (
        ConceptMargin,
    )
    from assay.methods.crh.pairs import (
        ConceptPairs,
        Pair,
        PairsError,
        load_pairs,
    )
    from assay.methods.crh.plane import (
        plane_test,
    )
    from assay.methods.crh.sector_prediction import (
        predict_sectors,
        sector_test,
    )
    from assay.methods.crh.sectors import (
        SectorEffects,
        SectorMap,
        sector_map,
        sweep_sectors,
    )
    from assay.methods.crh.steering import (
        steer,
    )
    from assay.methods.crh.strength import (
        AcceleratedModel,
        Recommendation,
        Strengths,
        conformal_interval,
        fit_accelerated,
        recommend,
    )
    from assay.methods.crh.threshold import (
        MinimalStrength,
        minimal_strength,
    )
    from assay.methods.crh.trigonometric import (
        SearchGrid,
        TrigonometricLaw,
        fit_trigonometric_law,
    )
    from assay.methods.crh.verdict import (
        PredictabilityReport,
        predictability,
        sector_data,
        sensitivity,
    )

_EXPORTS = {
    "load_cylinder": "artifact",
    "save_cylinder": "artifact",
    "angular_steer": "baselines",
    "baseline_directions": "baselines",
    "instructed": "baselines",
    "rotation_plane": "baselines",
    "FitOptions": "calibration",
    "fit_from_pairs": "calibration",
    "measure_strengths": "calibration",
    "Concept": "concepts",
    "load_concepts": "concepts",
    "load_questions": "concepts",
    "written_concepts": "concepts",
    "written_detector": "concepts",
    "written_pairs": "concepts",
    "Coordinates": "cylinder",
    "Cylinder": "cylinder",
    "SampleGeometry": "cylinder",
    "fit_cylinder": "cylinder",
    "Detector": "detectors",
    "corruption": "detectors",
    "label": "detectors",
    "lexicon": "detectors",
    "from_steering_vector": "export",
    "read_gguf": "export",
    "to_steering_vector": "export",
    "write_gguf": "export",
    "write_layers": "export",
    "write_safetensors": "export",
    "DifferenceSet": "extraction",
    "extract_differences": "extraction",
    "Generated": "generation",
    "generate_pairs": "generation",
    "replies": "generation",
    "Helix": "helix",
    "HelixGrid": "helix",
    "Swap": "helix",
    "fit_helix": "helix",
    "steering_path": "helix",
    "Judge": "judge",
    "ConceptMargin": "margin",
    "MinimalStrength": "threshold",
    "minimal_strength": "threshold",
    "ConceptPairs": "pairs",
    "Pair": "pairs",
    "PairsError": "pairs",
    "load_pairs": "pairs",
    "PredictabilityReport": "verdict",
    "plane_test": "plane",
    "predict_sectors": "sector_prediction",
    "predictability": "verdict",
    "sector_data": "verdict",
    "sector_test": "sector_prediction",
    "sensitivity": "verdict",
    "SectorEffects": "sectors",
    "SectorMap": "sectors",
    "sector_map": "sectors",
    "sweep_sectors": "sectors",
    "steer": "steering",
    "AcceleratedModel": "strength",
    "Recommendation": "strength",
    "Strengths": "strength",
    "conformal_interval": "strength",
    "fit_accelerated": "strength",
    "recommend": "strength",
    "SearchGrid": "trigonometric",
    "TrigonometricLaw": "trigonometric",
    "fit_trigonometric_law": "trigonometric",
}

__all__ = [
    "AcceleratedModel",
    "Concept",
    "ConceptMargin",
    "ConceptPairs",
    "Coordinates",
    "Cylinder",
    "Detector",
    "DifferenceSet",
    "FitOptions",
    "Generated",
    "Helix",
    "HelixGrid",
    "Judge",
    "MinimalStrength",
    "Pair",
    "PairsError",
    "PredictabilityReport",
    "Recommendation",
    "SampleGeometry",
    "SearchGrid",
    "SectorEffects",
    "SectorMap",
    "Strengths",
    "Swap",
    "TrigonometricLaw",
    "angular_steer",
    "baseline_directions",
    "conformal_interval",
    "corruption",
    "extract_differences",
    "fit_accelerated",
    "fit_cylinder",
    "fit_from_pairs",
    "fit_helix",
    "fit_trigonometric_law",
    "from_steering_vector",
    "generate_pairs",
    "instructed",
    "label",
    "lexicon",
    "load_concepts",
    "load_cylinder",
    "load_pairs",
    "load_questions",
    "measure_strengths",
    "minimal_strength",
    "plane_test",
    "predict_sectors",
    "predictability",
    "read_gguf",
    "recommend",
    "replies",
    "rotation_plane",
    "save_cylinder",
    "sector_data",
    "sector_map",
    "sector_test",
    "sensitivity",
    "steer",
    "steering_path",
    "sweep_sectors",
    "to_steering_vector",
    "write_gguf",
    "write_layers",
    "write_safetensors",
    "written_concepts",
    "written_detector",
    "written_pairs",
]

__getattr__ = lazy_exports(__name__, _EXPORTS, extra="lm")
