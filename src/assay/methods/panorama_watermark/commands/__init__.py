"""The verbs `assay panorama-watermark keygen`, `embed`, `detect`, `attack` and `train`."""

from assay.methods.panorama_watermark.commands.attacking import attack
from assay.methods.panorama_watermark.commands.marking import detect, embed, keygen
from assay.methods.panorama_watermark.commands.training import train

__all__ = ["attack", "detect", "embed", "keygen", "train"]
