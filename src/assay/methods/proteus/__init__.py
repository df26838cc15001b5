"""Lookup-free trellis-coded quantization of language models: the format, the method, and its parts."""

from typing import TYPE_CHECKING

from assay.lazy import lazy_exports

if TYPE_CHECKING:
    from assay.methods.proteus.config import ProteusConfig
    from assay.methods.proteus.generators import Generator
    from assay.methods.proteus.layer_quantization import (
        LayerSettings,
        QuantizedLayer,
        dequantize,
        quantize_layer,
    )
    from assay.methods.proteus.linear import ProteusLinear
    from assay.methods.proteus.model_quantization import quantize_model
    from assay.methods.proteus.pool import POOL_V1
    from assay.methods.proteus.report import QuantReport
    from assay.methods.proteus.trellis import Trellis, decode_tiles, pack, unpack
    from assay.methods.proteus.vetting import score, search, vet_generator
    from assay.methods.proteus.viterbi import encode_tiles

__all__ = [
    "POOL_V1",
    "Generator",
    "LayerSettings",
    "ProteusConfig",
    "ProteusLinear",
    "QuantReport",
    "QuantizedLayer",
    "Trellis",
    "decode_tiles",
    "dequantize",
    "encode_tiles",
    "pack",
    "quantize_layer",
    "quantize_model",
    "score",
    "search",
    "unpack",
    "vet_generator",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "ProteusConfig": "config",
        "Generator": "generators",
        "ProteusLinear": "linear",
        "POOL_V1": "pool",
        "quantize_model": "model_quantization",
        "QuantReport": "report",
        "encode_tiles": "viterbi",
    }
    | dict.fromkeys(("LayerSettings", "QuantizedLayer", "dequantize", "quantize_layer"), "layer_quantization")
    | dict.fromkeys(("Trellis", "decode_tiles", "pack", "unpack"), "trellis")
    | dict.fromkeys(("score", "search", "vet_generator"), "vetting"),
    extra="lm",
)
