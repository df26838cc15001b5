"""The run's database: SQLite in WAL mode, one transaction a step, and a cache of the model's answers."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.errors import InputError
from assay.methods.dualgraph import schema
from assay.methods.dualgraph.records import ChatResult, CorruptRun, LedgerRow, Usage
from assay.methods.dualgraph.state import RunState
from assay.methods.dualgraph.tables import RUN, dump, read_state, snapshot, write_state

DATABASE = "run.sqlite"


class RunStore:
    """The database of one run.

    Every step is committed together with all that it changed, under its (iteration, name, key): after a kill
    at any moment the state is that of the last finished step, and finished steps are not done again. Answers
    of models are kept apart, as they come, so that a repeated step does not ask again.

    Args:
        path: the database file; None keeps everything in memory.

    Raises:
        CorruptRun: the file is no database, is damaged, or has another version's tables.
        InputError: the file can't be opened or written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._saved: RunState | None = None
        try:
            self._db = sqlite3.connect(
                ":memory:" if path is None else path, isolation_level=None, check_same_thread=False
            )
            self._prepare()
        except sqlite3.OperationalError as error:
            raise InputError(f"{path} cannot be opened as a database: {error}") from error
        except sqlite3.DatabaseError as error:
            raise CorruptRun(
                f"{path} cannot be read as a run ({error}); it is left as it is: "
                "resume from a round's copy with --from-iteration"
            ) from error

    def _prepare(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and version != schema.VERSION:
            self._db.close()
            raise CorruptRun(
                f"{self.path} has tables of version {version}, this program reads version {schema.VERSION}: "
                "use the program that wrote it, or start a new run"
            )
        problem = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(problem)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        if not tables:
            with self.transaction():
                for statement in schema.TABLES.split(";"):
                    if statement.strip():
                        self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={schema.VERSION}")

    def close(self) -> None:
        """Close the database; the write-ahead log is folded in."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    # Steps

    def payload(self, iteration: int, name: str, key: str = "") -> Any:
        """What a finished step left; None if it is not finished."""
        with self._lock:
            row = self._db.execute(
                "SELECT payload FROM steps WHERE run=? AND iteration=? AND name=? AND key=?",
                (RUN, iteration, name, key),
            ).fetchone()
        return None if row is None else json.loads(row[0])

    def commit(
        self, state: RunState, iteration: int, name: str, key: str = "", *, payload: Any, seconds: float
    ) -> None:
        """Finish a step: write what has changed in `state` since the last step, and the step's payload.

        Args:
            state: the whole state.
            iteration: the round.
            name: the step.
            key: which of several steps of that name.
            payload: what the step leaves, as strict JSON values but null.
            seconds: how long it took.
        """
        if payload is None:
            raise ValueError("a step's payload can't be null, which means that it is not finished")
        with self.transaction() as db:
            write_state(db, state, self._saved)
            db.execute(
                "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?)",
                (RUN, iteration, name, key, dump(payload), seconds),
            )
            db.execute("UPDATE runs SET seconds = seconds + ?", (seconds,))
        self._saved = snapshot(state)

    def save(self, state: RunState) -> None:
        """Write what has changed in `state` without finishing a step: a new run, or its end."""
        with self.transaction() as db:
            write_state(db, state, self._saved)
        self._saved = snapshot(state)

    def reopen(self, last: int) -> RunState:
        """Forget how a finished run ended and what was written, so that it can go on.

        Args:
            last: the iteration under which the end and the report are kept.

        Raises:
            InputError: there is no run.
        """
        with self.transaction() as db:
            db.execute("DELETE FROM steps WHERE iteration >= ?", (last,))
            db.execute("DELETE FROM report_sections")
            db.execute("DELETE FROM citations")
            db.execute("UPDATE runs SET status = 'running'")
        state = self.load()
        if state is None:
            raise InputError(f"{self.path} has no run to go on with")
        return state

    def seconds(self) -> float:
        """Seconds that the finished steps took, over all sessions."""
        row = self._db.execute("SELECT seconds FROM runs").fetchone()
        return 0.0 if row is None else row[0]

    def backup(self, target: Path) -> None:
        """Copy the database to a file that is complete or not there."""
        temporary = target.with_name(f".{target.name}")
        temporary.unlink(missing_ok=True)
        copy = sqlite3.connect(temporary)
        try:
            with self._lock:
                self._db.backup(copy)
        finally:
            copy.close()
        temporary.replace(target)

    # Answers of models

    def answer(self, call: str) -> ChatResult | None:
        """The stored answer to a call, by its hash."""
        with self._lock:
            row = self._db.execute(
                "SELECT answer, prompt_tokens, completion_tokens, estimated FROM llm_calls WHERE hash=?",
                (call,),
            ).fetchone()
        return None if row is None else ChatResult(row[0], Usage(row[1], row[2], bool(row[3])))

    def keep_answer(self, call: str, result: ChatResult, row: LedgerRow) -> None:
        """Store an answer at once, in a transaction of its own."""
        usage = result.usage
        values = (call, row.step, row.role, row.model, result.text, usage.prompt_tokens)
        values += (usage.completion_tokens, int(usage.estimated), row.usd, row.seconds)
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO llm_calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def ledger(self) -> list[LedgerRow]:
        """All calls in the order in which they were answered."""
        with self._lock:
            rows = self._db.execute(
                "SELECT step, role, model, prompt_tokens, completion_tokens, usd, seconds FROM llm_calls "
                "ORDER BY rowid"
            ).fetchall()
        return [LedgerRow(*row) for row in rows]

    # The whole state

    def load(self) -> RunState | None:
        """The state after the last finished step; None before `save` was called for the first time.

        Raises:
            CorruptRun: the content of the database does not make sense.
        """
        try:
            run = self._db.execute(
                "SELECT question, config, status, nonce, bound, used_nodes, used_edges FROM runs"
            ).fetchone()
            state = None if run is None else read_state(self._db, run)
        except (sqlite3.DatabaseError, InputError, KeyError, TypeError, ValueError) as error:
            raise CorruptRun(
                f"{self.path} cannot be read as a run ({error}); it is left as it is: "
                "resume from a round's copy with --from-iteration"
            ) from error
        self._saved = None if state is None else snapshot(state)
        return state

    def digest(self) -> str:
        """SHA-256 of all tables without times and random marks: equal for runs that did the same."""
        found = hashlib.sha256()
        names = [row[0] for row in self._db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        for table in sorted(names):
            columns = [row[1] for row in self._db.execute(f"PRAGMA table_info({table})")]
            left = [name for name in columns if name not in schema.NOT_REPEATABLE.get(table, ())]
            rows = self._db.execute(f"SELECT {', '.join(left)} FROM {table}").fetchall()
            found.update(f"{table}\n".encode())
            for row in sorted(map(dump, rows)):
                found.update(row.encode() + b"\n")
        return found.hexdigest()
