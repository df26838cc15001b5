"""What every language-model method needs: models, texts, scores, activations. Needs the extra `lm`."""

from assay.errors import require

require("torch", extra="lm")

from assay.lm.activations import capture, find_modules, patch  # noqa: E402
from assay.lm.calibration import calibration_batches  # noqa: E402
from assay.lm.loading import load  # noqa: E402
from assay.lm.scoring import choice_log_likelihoods, perplexity  # noqa: E402
from assay.lm.sentences import embed_texts, sentence_encoder  # noqa: E402
from assay.lm.texts import Text, text  # noqa: E402

__all__ = [
    "Text",
    "calibration_batches",
    "capture",
    "choice_log_likelihoods",
    "embed_texts",
    "find_modules",
    "load",
    "patch",
    "perplexity",
    "sentence_encoder",
    "text",
]
