"""Search in an indexed folder: BM25 over words, and cosine over embeddings where there are some."""

from __future__ import annotations

import re
import sqlite3
import threading
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from assay.errors import InputError
from assay.methods.dualgraph.index import (
    UNSPACED,
    damage_reported,
    index_place,
    letters,
    open_database,
    update_index,
)
from assay.methods.dualgraph.records import Document, Hit, ReadFailed
from assay.methods.dualgraph.sentences import STOP_WORDS
from assay.methods.dualgraph.vectors import Vectors, open_vectors

if TYPE_CHECKING:
    from assay.methods.dualgraph.embeddings import Encoder
    from assay.methods.dualgraph.index import Progress

_FUSION = 60  # reciprocal rank fusion: 1 / (60 + rank), the usual constant
_CANDIDATES = 100
_RANK = "bm25(3.0, 1.0, 1.0)"  # a word of the title counts three times

_QUOTED = re.compile(r"[\"“”]([^\"“”]+)[\"“”]")
_TERM = re.compile(r"\w+(?:[-_.:/+']+\w+)*\+{0,2}")


class LocalBackend:
    """The search back end of a folder of documents.

    Results are passages. Several results can come from one document; their `key` tells them apart. Several
    threads may use it.

    Args:
        folder: the documents.
        place: the folder of the index; by default in the user's cache.
        refresh: bring the index up to date first (only changed files are read).
        encoder: embeds queries where the index has embeddings; `default_encoder()` when None.
        progress: see `update_index`.

    Raises:
        InputError: the folder or its index is missing or unusable.
    """

    def __init__(
        self,
        folder: Path | str,
        place: Path | str | None = None,
        *,
        refresh: bool = True,
        encoder: Encoder | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.name = f"local:{folder}"
        self.folder = Path(folder).expanduser().resolve()
        if refresh:
            self.place = update_index(folder, place, encoder=encoder, progress=progress).place
        else:
            self.place = index_place(folder) if place is None else Path(place).expanduser()
        self._encoder = encoder
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        with self._connection() as connection:
            owner = connection.execute("SELECT value FROM facts WHERE name = 'folder'").fetchone()
            if owner is None or owner[0] != str(self.folder):
                raise InputError(f"{self.place} does not hold the index of {self.folder}")
            self._vectors: Vectors | None = open_vectors(connection, self.place)

    def close(self) -> None:
        """Close all connections; a later search opens new ones."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def search(self, query: str, k: int, *, exclude: Collection[str] = ()) -> list[Hit]:
        """The best `k` passages for a query, best first; none for a query without a word.

        Passages with the same text in copies of one document count once.

        Raises:
            InputError: `k` is not positive.
        """
        if k < 1:
            raise InputError(f"the number of results must be at least 1, got {k}")
        with self._connection() as connection:
            many = k + len(exclude) + _CANDIDATES
            ranked = _by_words(connection, query, many)
            if self._vectors is not None and ranked is not None:
                ranked = _fused(ranked, self._by_meaning(query, many))
            return self._hits(connection, ranked or [], k, exclude)

    def read(self, hit: Hit) -> Document:
        """The snapshot of a result's document, as it was indexed.

        Raises:
            ReadFailed: the address is not one of this index.
        """
        path = self._relative(hit.url)
        with self._connection() as connection:
            row = connection.execute(
                "SELECT title, text, sha256, pages FROM documents WHERE path = ?", (path,)
            ).fetchone()
        if not row:
            raise ReadFailed(f"{hit.url} is not a document of {self.folder}, or it is gone")
        title, text, sha256, pages = row
        return Document(hit.url, title, text, sha256, tuple(int(page) for page in re.findall(r"\d+", pages)))

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that no other thread uses meanwhile."""
        with damage_reported(self.place):
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or open_database(self.place)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            with self._lock:
                self._idle.append(connection)

    def _by_meaning(self, query: str, many: int) -> list[tuple[int, float]]:
        if self._encoder is None:
            from assay.methods.dualgraph.embeddings import default_encoder

            self._encoder = default_encoder()
        vectors = self._vectors
        assert vectors is not None
        if vectors.encoder != self._encoder.name:
            raise InputError(
                f"the index in {self.place} was embedded by {vectors.encoder}, and the query would be by "
                f"{self._encoder.name}; run: assay dualgraph index FOLDER --embeddings"
            )
        # The encoder remembers what it has seen, which is no business of two threads at once.
        with self._lock:
            row = self._encoder.encode([query])[0]
        return vectors.nearest(row, many)

    def _hits(
        self,
        connection: sqlite3.Connection,
        ranked: Iterable[tuple[int, float]],
        k: int,
        exclude: Collection[str],
    ) -> list[Hit]:
        hits: list[Hit] = []
        seen = set()
        for passage, score in ranked:
            row = connection.execute(
                "SELECT document, path, title, sha256, start, stop FROM passages "
                "JOIN documents ON documents.id = document WHERE passages.id = ?",
                (passage,),
            ).fetchone()
            if row is None:
                continue
            document, path, title, sha256, start, stop = row
            url = (self.folder / path).as_uri()
            hit = Hit(title, url, "", float(score), (start, stop), self.name)
            if hit.key in exclude or (sha256, start) in seen:
                continue
            seen.add((sha256, start))
            # Texts are fetched for what is returned only: much may be left out before it.
            text = connection.execute("SELECT text FROM documents WHERE id = ?", (document,)).fetchone()[0]
            hits.append(replace(hit, snippet=" ".join(text[start:stop].split())))
            if len(hits) == k:
                break
        return hits

    def _relative(self, url: str) -> str | None:
        """The path of a document of this folder, as the index knows it."""
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            return None
        path = Path(url2pathname(unquote(parts.path) if "%" in parts.path else parts.path))
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else None


def match_expression(query: str) -> str | None:
    """A query in the language of FTS5: any of its words, what is quoted as a phrase; None without a word.

    Stop words are left out unless nothing else is left. A name like `os.path` or `CMAKE_BUILD_TYPE` becomes
    the phrase of its parts, and scripts without spaces become pairs of letters.
    """
    query = unicodedata.normalize("NFKC", query)
    phrases = [phrase for phrase in _QUOTED.findall(query) if re.search(r"\w", phrase)]
    terms = _TERM.findall(_QUOTED.sub(" ", query))
    telling = [term for term in terms if term.casefold() not in STOP_WORDS]
    parts: list[str] = []
    for term in (*phrases, *(telling or (() if phrases else terms))):
        pairs = letters(term).split()
        parts += [f'letters : "{pair}"' for pair in pairs]
        if rest := UNSPACED.sub(" ", term).strip(" -_.:/+'"):
            parts.append('"' + rest.replace('"', " ") + '"')
    return " OR ".join(dict.fromkeys(parts)) or None


def _by_words(connection: sqlite3.Connection, query: str, many: int) -> list[tuple[int, float]] | None:
    """(passage, score) by BM25; None for a query without a word."""
    expression = match_expression(query)
    if expression is None:
        return None
    rows = connection.execute(
        "SELECT rowid, -rank FROM words WHERE words MATCH ? AND rank MATCH ? ORDER BY rank, rowid LIMIT ?",
        (expression, _RANK, many),
    )
    return rows.fetchall()


def _fused(*rankings: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Reciprocal rank fusion: what several rankings have near their top comes first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (passage, _) in enumerate(ranking, 1):
            scores[passage] = scores.get(passage, 0.0) + 1 / (_FUSION + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
