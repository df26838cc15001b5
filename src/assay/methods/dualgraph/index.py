"""The index of a folder of documents: text in SQLite, words in FTS5, embeddings in an array beside them.

An index can always be made again from the folder, so it lives in the user's cache and never among the
documents. It is brought up to date by reading what has changed since, document by document: an interrupted
update loses nothing that was committed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.cache import cache_folder, content_hash
from assay.errors import InputError
from assay.methods.dualgraph.passages import passage_spans
from assay.methods.dualgraph.readers import MAX_BYTES, ReadFile, Unreadable, kind_of, read_file

if TYPE_CHECKING:
    from assay.methods.dualgraph.embeddings import Encoder

# Raise it when tables, tokens, readers or the cutting of passages change: the index is then built anew.
_VERSION = 1
_FILE = "index.sqlite"
_COMMIT_EVERY = 20_000  # passages
_SKIPPED_FOLDERS = ("__pycache__", "node_modules")
# The database of a run: its folder holds a report, which must not become its own source.
_RUN_FILE = "run.sqlite"

_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, modified INTEGER NOT NULL,
    sha256 TEXT NOT NULL, title TEXT NOT NULL, pages TEXT NOT NULL, text TEXT NOT NULL
);
CREATE TABLE skipped (
    path TEXT PRIMARY KEY, size INTEGER NOT NULL, modified INTEGER NOT NULL, reason TEXT NOT NULL
);
CREATE TABLE passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL REFERENCES documents (id),
    start INTEGER NOT NULL, stop INTEGER NOT NULL
);
CREATE INDEX passages_of_document ON passages (document);
CREATE VIRTUAL TABLE words USING fts5(
    title, body, letters, content='', tokenize='unicode61 remove_diacritics 2'
);
"""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class IndexReport:
    """What an update of an index found and did.

    Attributes:
        folder: the documents.
        place: the folder of the index.
        documents: readable documents now.
        passages: passages now.
        embedded: passages with an embedding now.
        added: documents that are new.
        changed: documents whose content is new.
        removed: documents that are gone.
        skipped: (path, reason) of every file that has no text for us.
    """

    folder: Path
    place: Path
    documents: int
    passages: int
    embedded: int
    added: int
    changed: int
    removed: int
    skipped: tuple[tuple[str, str], ...]


def index_place(folder: Path | str) -> Path:
    """Where the index of a folder lives: in the user's cache, by the folder's absolute path."""
    return cache_folder() / "dualgraph-index" / content_hash(str(Path(folder).expanduser().resolve()))


def update_index(
    folder: Path | str,
    place: Path | str | None = None,
    *,
    embeddings: bool | None = None,
    encoder: Encoder | None = None,
    rebuild: bool = False,
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> IndexReport:
    """Bring the index of a folder up to date; only new and changed files are read.

    Hidden files and folders, folders of runs, and links that lead out of the folder are left out.

    Args:
        folder: the documents, with all sub-folders.
        place: the folder of the index; by default in the user's cache.
        embeddings: True to embed every passage too, False to drop the embeddings; by default embeddings are
            kept up to date where there are some.
        encoder: what embeds; `default_encoder()` when None.
        rebuild: read everything again.
        max_bytes: larger files are skipped.
        progress: called with ("reading" or "embedding", done, total).

    Raises:
        InputError: the folder is missing or holds nothing that can be read (the message lists why), or the
            index is damaged.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        found = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(f"the folder of documents {folder} {found}; pass a folder")
    if max_bytes < 1:
        raise InputError(f"the largest file size must be at least 1 byte, got {max_bytes}")
    folder = folder.resolve()
    place = index_place(folder) if place is None else Path(place).expanduser()
    from filelock import FileLock

    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the index cannot be written to {place} ({error.strerror})") from error
    with FileLock(place / "lock"), damage_reported(place):
        if embeddings is None and rebuild:
            embeddings = any(place.glob("vectors-*.npy")) or None
        _discard(place, rebuild)
        with closing(_opened(place, folder)) as connection:
            files = dict(_scan(folder))
            counts = _update(connection, folder, files, max_bytes, progress or _silent)
            documents = connection.execute("SELECT count(*) FROM documents").fetchone()[0]
            skipped = connection.execute("SELECT path, reason FROM skipped ORDER BY path").fetchall()
            if not documents:
                raise InputError(_nothing_readable(folder, skipped))
            from assay.methods.dualgraph.vectors import update_vectors

            embedded = update_vectors(connection, place, embeddings, encoder, progress or _silent)
            passages = connection.execute("SELECT count(*) FROM passages").fetchone()[0]
    return IndexReport(
        folder, place, documents, passages, embedded, counts["added"], counts["changed"], counts["removed"],
        tuple(skipped),
    )  # fmt: skip


def open_database(place: Path) -> sqlite3.Connection:
    """A read-only connection to an index, for one thread at a time.

    Raises:
        InputError: there is no index, it is of another version, or it is damaged.
    """
    file = place / _FILE
    if not file.is_file():
        raise InputError(f"there is no index in {place}; make one with: assay dualgraph index FOLDER")
    with damage_reported(place):
        connection = sqlite3.connect(
            f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=60, check_same_thread=False
        )
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != _VERSION:
        connection.close()
        raise InputError(f"the index in {place} is of version {version}, not {_VERSION}; run: {_again()}")
    return connection


@contextmanager
def damage_reported(place: Path) -> Iterator[None]:
    """Turn SQLite's complaints about the file into an `InputError` that says what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise InputError(
            f"the index in {place} cannot be used ({error}); try again, or run: {_again()}"
        ) from error
    except sqlite3.DatabaseError as error:
        raise InputError(f"the index in {place} is damaged ({error}); run: {_again()}") from error


def _again() -> str:
    return "assay dualgraph index FOLDER --rebuild"


def letters(text: str) -> str:
    """The pairs of neighbouring letters of scripts that are written without spaces, separated by spaces.

    FTS5 takes a run of Chinese for one word, and its trigrams cannot find the commonest words, which have two
    letters. Pairs can. Empty for other scripts.
    """
    if text.isascii():
        return ""
    pairs = []
    for run in UNSPACED.findall(text):
        pairs += [run[i : i + 2] for i in range(len(run) - 1)] or [run]
    return " ".join(pairs)


# Chinese, Japanese (kana and Chinese), Thai, Lao, Burmese, Khmer; Korean, whose words carry their endings.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-"
    "\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]+"
)


def _silent(stage: str, done: int, total: int) -> None:
    pass


def _discard(place: Path, rebuild: bool) -> None:
    """Remove an index that is to be built anew, or that another version of this program wrote."""
    file = place / _FILE
    if file.is_file() and not rebuild:
        with closing(sqlite3.connect(file, timeout=60)) as connection:
            rebuild = connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION
    if rebuild:
        for old in (*place.glob(f"{_FILE}*"), *place.glob("*.npy")):
            old.unlink(missing_ok=True)


def _opened(place: Path, folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(place / _FILE, timeout=60, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -65536")
    if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
        # One transaction: a killed process must not leave half a schema that claims a version.
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    owner = connection.execute("SELECT value FROM facts WHERE name = 'folder'").fetchone()
    if owner is None:
        connection.execute("INSERT INTO facts VALUES ('folder', ?)", (str(folder),))
    elif owner[0] != str(folder):
        connection.close()
        raise InputError(
            f"{place} holds the index of {owner[0]}, not of {folder}; pass another folder for it"
        )
    return connection


def _scan(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """(relative path, (size, time of modification)) of every file, in a fixed order."""
    for root, names, files in os.walk(folder):
        at = Path(root)
        if _RUN_FILE in files:
            names.clear()
            continue
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            if name.startswith("."):
                continue
            path = at / name
            try:
                # A link may lead anywhere; what it shows has to be part of the folder.
                if path.is_symlink() and not path.resolve().is_relative_to(folder):
                    yield path.relative_to(folder).as_posix(), (-1, -1)
                    continue
                status = path.stat()
            except OSError:
                yield path.relative_to(folder).as_posix(), (-2, -2)
                continue
            yield path.relative_to(folder).as_posix(), (status.st_size, status.st_mtime_ns)


def _update(
    connection: sqlite3.Connection,
    folder: Path,
    files: dict[str, tuple[int, int]],
    max_bytes: int,
    progress: Progress,
) -> Counter[str]:
    counts: Counter[str] = Counter()
    rows = connection.execute(
        "SELECT path, size, modified FROM documents UNION ALL SELECT path, size, modified FROM skipped"
    )
    known = {path: (size, modified) for path, size, modified in rows}
    limit = connection.execute("SELECT value FROM facts WHERE name = 'max_bytes'").fetchone()
    if limit is not None and int(limit[0]) != max_bytes:
        # Another limit may change what is skipped: look at every file that was.
        for (path,) in connection.execute("SELECT path FROM skipped"):
            known[path] = (-3, -3)
    fresh = [path for path, status in files.items() if known.get(path) != status]
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("INSERT OR REPLACE INTO facts VALUES ('max_bytes', ?)", (str(max_bytes),))
        for path in known.keys() - files.keys():
            counts["removed"] += _remove(connection, path)
            connection.execute("DELETE FROM skipped WHERE path = ?", (path,))
        pending = 0
        for done, path in enumerate(fresh):
            progress("reading", done, len(fresh))
            pending += _add(connection, folder, path, files[path], max_bytes, counts)
            if pending >= _COMMIT_EVERY:
                pending = 0
                connection.execute("COMMIT")
                connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    progress("reading", len(fresh), len(fresh))
    return counts


def _add(
    connection: sqlite3.Connection,
    folder: Path,
    path: str,
    status: tuple[int, int],
    max_bytes: int,
    counts: Counter[str],
) -> int:
    """Read one file into the index; returns the number of its passages."""
    try:
        result = _read(folder / path, status, max_bytes)
    except Unreadable as error:
        counts["removed"] += _remove(connection, path)
        connection.execute("INSERT OR REPLACE INTO skipped VALUES (?, ?, ?, ?)", (path, *status, str(error)))
        return 0
    connection.execute("DELETE FROM skipped WHERE path = ?", (path,))
    sha256 = hashlib.sha256(result.text.encode()).hexdigest()
    title = " ".join(result.title.split()) or Path(path).stem
    old = connection.execute("SELECT id, sha256, title FROM documents WHERE path = ?", (path,)).fetchone()
    if old is not None and old[1:] == (sha256, title):
        connection.execute("UPDATE documents SET size = ?, modified = ? WHERE id = ?", (*status, old[0]))
        return 0
    counts["added" if old is None else "changed"] += 1
    _remove(connection, path)
    document = connection.execute(
        "INSERT INTO documents (path, size, modified, sha256, title, pages, text) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (path, *status, sha256, title, json.dumps(result.pages), result.text),
    ).lastrowid
    spans = passage_spans(result.text)
    first = connection.execute(
        "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'passages'"
    ).fetchone()[0]
    connection.executemany(
        "INSERT INTO passages VALUES (?, ?, ?, ?)",
        [(first + i, document, start, stop) for i, (start, stop) in enumerate(spans, 1)],
    )
    connection.executemany(
        "INSERT INTO words (rowid, title, body, letters) VALUES (?, ?, ?, ?)",
        [(first + i, *row) for i, row in enumerate(_rows(title, result.text, spans), 1)],
    )
    return len(spans)


def _read(path: Path, status: tuple[int, int], max_bytes: int) -> ReadFile:
    if status[0] < 0:
        raise Unreadable("a link that leads out of the folder" if status[0] == -1 else "cannot be read")
    if kind_of(path) is not None and status[0] > max_bytes:
        raise Unreadable(f"larger than {max_bytes / 2**20:.3g} MB")
    return read_file(path, max_bytes=max_bytes)


def _rows(title: str, text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[str, str, str]]:
    """What FTS5 is given of every passage."""
    bodies = [text[start:stop] for start, stop in spans]
    return [(title, body, letters(f"{title} {body}")) for body in bodies]


def _remove(connection: sqlite3.Connection, path: str) -> int:
    """Remove a document; returns how many there were (0 or 1)."""
    row = connection.execute("SELECT id, title, text FROM documents WHERE path = ?", (path,)).fetchone()
    if row is None:
        return 0
    document, title, text = row
    passages = connection.execute(
        "SELECT id, start, stop FROM passages WHERE document = ?", (document,)
    ).fetchall()
    rows = _rows(title, text, [(start, stop) for _, start, stop in passages])
    # A table without content has to be told what it forgets.
    connection.executemany(
        "INSERT INTO words (words, rowid, title, body, letters) VALUES ('delete', ?, ?, ?, ?)",
        [(passage[0], *row) for passage, row in zip(passages, rows, strict=True)],
    )
    connection.execute("DELETE FROM passages WHERE document = ?", (document,))
    connection.execute("DELETE FROM documents WHERE id = ?", (document,))
    return 1


def _nothing_readable(folder: Path, skipped: Sequence[tuple[str, str]]) -> str:
    if not skipped:
        return f"there are no files in {folder}; pass a folder of txt, md, rst, html, pdf, docx or code"
    reasons = Counter(reason for _, reason in skipped)
    shown = "; ".join(
        f"{count} x {reason} (e.g. {next(path for path, why in skipped if why == reason)})"
        for reason, count in reasons.most_common(5)
    )
    return f"nothing in {folder} can be read: {len(skipped)} files skipped: {shown}"
