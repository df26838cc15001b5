"""The embeddings of an index: an array on the disk beside the database, searched exactly (ours).

The array is float16, a row of length 1 a passage, and memory-mapped: a search reads it once from front to
back (768 bytes a passage), which is exact and fast enough up to a million passages.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float16, Int64

from assay.errors import InputError
from assay.files import replacing

if TYPE_CHECKING:
    from assay.methods.dualgraph.embeddings import Encoder
    from assay.methods.dualgraph.index import Progress

_SAVE_EVERY = 8192  # passages: what an interrupted embedding may lose
_CHUNK = 512
_BLOCK = 16_384


@dataclass(frozen=True)
class Vectors:
    """The embeddings of an index: whose, of which passages (ascending), and the rows."""

    encoder: str
    ids: Int64[np.ndarray, " n"]
    rows: Float16[np.ndarray, "n d"]

    def nearest(self, query: np.ndarray, k: int) -> list[tuple[int, float]]:
        """(passage, cosine) of the `k` passages closest to a query of length 1, closest first."""
        scores = np.empty(len(self.ids), dtype=np.float32)
        query = query.astype(np.float32)
        for start in range(0, len(scores), _BLOCK):
            block = self.rows[start : start + _BLOCK]
            scores[start : start + _BLOCK] = block.astype(np.float32) @ query
        k = min(k, len(scores))
        best = np.argpartition(-scores, k - 1)[:k] if k else np.empty(0, dtype=int)
        # Equal scores in the order of the passages, so that a search is the same every time.
        best = best[np.lexsort((best, -scores[best]))]
        return [(int(self.ids[i]), float(scores[i])) for i in best]


def open_vectors(connection: sqlite3.Connection, place: Path) -> Vectors | None:
    """The embeddings of an index, or None when it has none.

    Raises:
        InputError: they are damaged.
    """
    facts = _facts(connection)
    if facts is None:
        return None
    try:
        # A process that has just written new ones removes the old files.
        if not (place / f"vectors-{facts['number']}.npy").is_file():
            facts = _facts(connection) or facts
        ids = np.load(place / f"ids-{facts['number']}.npy", allow_pickle=False)
        rows = np.load(place / f"vectors-{facts['number']}.npy", mmap_mode="r", allow_pickle=False)
        if rows.shape != (facts["count"], facts["dimensions"]) or ids.shape != rows.shape[:1]:
            raise ValueError(f"shapes {ids.shape} and {rows.shape} instead of {facts['count']} rows")
    except (OSError, ValueError) as error:
        raise InputError(
            f"the embeddings in {place} are damaged ({error}); run: assay dualgraph index FOLDER --rebuild"
        ) from error
    return Vectors(facts["encoder"], ids, rows)


def update_vectors(
    connection: sqlite3.Connection,
    place: Path,
    wanted: bool | None,
    encoder: Encoder | None,
    progress: Progress,
) -> int:
    """Embed the passages that have no embedding yet, and drop the rows of those that are gone.

    Args:
        connection: to the index, writable.
        place: its folder.
        wanted: True to embed, False to drop all embeddings, None to embed only where there are embeddings.
        encoder: what embeds; `default_encoder()` when None.
        progress: called with ("embedding", done, total).

    Returns:
        The number of passages with an embedding.
    """
    old = open_vectors(connection, place)
    if wanted is False or (wanted is None and old is None):
        if old is not None:
            connection.execute("DELETE FROM facts WHERE name = 'vectors'")
            _tidy(place, None)
        return 0
    if encoder is None:
        from assay.methods.dualgraph.embeddings import default_encoder

        encoder = default_encoder()
    passages = np.array(
        [row[0] for row in connection.execute("SELECT id FROM passages ORDER BY id")], dtype=np.int64
    )
    if old is not None and old.encoder != encoder.name:
        old = None
    known = old.ids if old is not None else np.empty(0, dtype=np.int64)
    missing = np.setdiff1d(passages, known, assume_unique=True)
    kept = np.intersect1d(passages, known, assume_unique=True)
    if len(missing) == 0 and len(kept) == len(known) and old is not None:
        return len(known)
    ids, rows = kept, np.empty((len(kept), encoder.dimensions), dtype=np.float16)
    if old is not None:
        rows[:] = old.rows[np.searchsorted(old.ids, kept)]
    done = 0
    while done < len(missing):
        part = missing[done : done + _SAVE_EVERY]
        fresh = np.empty((len(part), encoder.dimensions), dtype=np.float16)
        for start in range(0, len(part), _CHUNK):
            progress("embedding", done + start, len(missing))
            chunk = part[start : start + _CHUNK]
            fresh[start : start + _CHUNK] = encoder.encode(_texts(connection, chunk))
        ids, rows = np.concatenate((ids, part)), np.concatenate((rows, fresh))
        done += len(part)
        order = np.argsort(ids)
        ids, rows = ids[order], rows[order]
        _save(connection, place, encoder, ids, rows)
    if not len(missing):
        _save(connection, place, encoder, ids, rows)
    progress("embedding", len(missing), len(missing))
    return len(ids)


def _texts(connection: sqlite3.Connection, passages: np.ndarray) -> list[str]:
    """The passages, each after the title of its document, which says what it is about."""
    texts: list[str] = []
    current, title, text = None, "", ""
    for passage in passages:
        document, start, stop = connection.execute(
            "SELECT document, start, stop FROM passages WHERE id = ?", (int(passage),)
        ).fetchone()
        # Passages of one document are neighbours: its text is fetched once.
        if document != current:
            current = document
            title, text = connection.execute(
                "SELECT title, text FROM documents WHERE id = ?", (document,)
            ).fetchone()
        texts.append(f"{title}\n{text[start:stop]}")
    return texts


def _save(
    connection: sqlite3.Connection, place: Path, encoder: Encoder, ids: np.ndarray, rows: np.ndarray
) -> None:
    """Write a new pair of files, then point the database at them: a reader sees the old pair or the new."""
    before = _facts(connection)
    number = before["number"] + 1 if before else 1
    for name, array in (("ids", ids), ("vectors", rows)):
        with replacing(place / f"{name}-{number}.npy") as file:
            np.save(file, array, allow_pickle=False)
    facts = {"number": number, "encoder": encoder.name, "count": len(ids), "dimensions": encoder.dimensions}
    connection.execute("INSERT OR REPLACE INTO facts VALUES ('vectors', ?)", (json.dumps(facts),))
    _tidy(place, number)


def _facts(connection: sqlite3.Connection) -> dict[str, Any] | None:
    row = connection.execute("SELECT value FROM facts WHERE name = 'vectors'").fetchone()
    return json.loads(row[0]) if row else None


def _tidy(place: Path, number: int | None) -> None:
    for name in ("ids", "vectors"):
        for file in place.glob(f"{name}-*.npy"):
            if file.name != f"{name}-{number}.npy":
                file.unlink(missing_ok=True)
