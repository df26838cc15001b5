"""Recording what searches and models answer, and answering from the record: the same run again, offline.

A record is a file of JSON lines that is only ever appended to. A line that a killed process left torn is
dropped when the file is read.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.cache import content_hash
from assay.errors import InputError
from assay.methods.dualgraph.records import (
    ChatModel,
    ChatResult,
    Document,
    Hit,
    ReadFailed,
    SearchBackend,
    ServiceUnavailable,
    Usage,
)

# A recorded search holds more results than were asked for, so that a replay can leave some out.
_MORE = 20


class RecordingBackend:
    """Searches and reads with another back end, and records what it answers.

    Args:
        inner: the back end that is asked.
        file: the record, appended to; made when missing.
    """

    def __init__(self, inner: SearchBackend, file: Path | str) -> None:
        self.name = inner.name
        self._inner = inner
        self._record = _Record(Path(file))

    def search(self, query: str, k: int, *, exclude: Collection[str] = ()) -> list[Hit]:
        """See `SearchBackend.search`; errors are not recorded."""
        hits = self._inner.search(query, k + _MORE)
        kept = [hit for hit in hits if hit.key not in exclude][:k]
        if len(kept) < k and exclude:
            kept = self._inner.search(query, k, exclude=exclude)
            hits += [hit for hit in kept if hit not in hits]
        self._record.append({"query": query, "hits": [dataclasses.asdict(hit) for hit in hits]})
        return kept

    def read(self, hit: Hit) -> Document:
        """See `SearchBackend.read`; a page that could not be read is recorded as such."""
        try:
            document = self._inner.read(hit)
        except ReadFailed as error:
            self._record.append({"url": hit.url, "failed": str(error)})
            raise
        self._record.append({"url": hit.url, "document": dataclasses.asdict(document)})
        return document


class ReplayBackend:
    """Answers searches and reads from a record, by the text of the query and by the address.

    A query that was recorded several times has the results of all its recordings, the latest first.

    Args:
        file: the record.

    Raises:
        InputError: the file is missing, holds a line that is no record, or holds none at all.
    """

    def __init__(self, file: Path | str) -> None:
        self.name = f"fixture:{file}"
        self._hits: dict[str, dict[str, Hit]] = {}
        self._documents: dict[str, Document | str] = {}
        for number, row in _rows(Path(file)):
            try:
                self._take(row)
            except (AttributeError, KeyError, TypeError) as error:
                raise InputError(f"line {number} of {file} is damaged ({error!r})") from error
        if not self._hits:
            raise InputError(f"{file} holds no recorded search")

    def search(self, query: str, k: int, *, exclude: Collection[str] = ()) -> list[Hit]:
        """The recorded results.

        Raises:
            InputError: `k` is not positive.
            ServiceUnavailable: the query was not recorded.
        """
        if k < 1:
            raise InputError(f"the number of results must be at least 1, got {k}")
        if query not in self._hits:
            raise ServiceUnavailable(f"{self.name} holds no answer to {query[:200]!r}")
        return [hit for key, hit in self._hits[query].items() if key not in exclude][:k]

    def read(self, hit: Hit) -> Document:
        """The recorded page.

        Raises:
            ReadFailed: it was not recorded, or could not be read then.
        """
        found = self._documents.get(hit.url, f"{self.name} does not hold {hit.url}")
        if isinstance(found, str):
            raise ReadFailed(found)
        return found

    def _take(self, row: Mapping[str, Any]) -> None:
        if "query" in row:
            # The new answer leads; what only older answers hold follows.
            newest = {hit.key: hit for hit in (self._hit(values) for values in row["hits"])}
            older = self._hits.get(row["query"], {})
            self._hits[row["query"]] = newest | {key: hit for key, hit in older.items() if key not in newest}
        elif "document" in row:
            values = row["document"]
            self._documents[row["url"]] = Document(**(values | {"pages": tuple(values["pages"])}))
        elif "failed" in row:
            self._documents[row["url"]] = str(row["failed"])

    def _hit(self, values: Mapping[str, Any]) -> Hit:
        span = values.get("span")
        return Hit(**(dict(values) | {"span": tuple(span) if span else None, "backend": self.name}))


class RecordingChat:
    """Answers with another model, and records its answers.

    Args:
        inner: the model that is asked.
        file: the record, appended to; made when missing.
    """

    def __init__(self, inner: ChatModel, file: Path | str) -> None:
        self.name = inner.name
        self.context_tokens = inner.context_tokens
        self.concurrency = inner.concurrency
        self._inner = inner
        self._record = _Record(Path(file))

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.7,
        max_tokens: int = 4096,
        role: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> ChatResult:
        """See `ChatModel.chat`; errors are not recorded."""
        result = self._inner.chat(
            messages, schema=schema, temperature=temperature, max_tokens=max_tokens, role=role, data=data
        )
        key = _call_key(messages, role, data)
        usage = dataclasses.asdict(result.usage)
        self._record.append({"call": key, "role": role, "text": result.text, "usage": usage})
        return result


class ReplayChat:
    """Answers calls from a record, by their role and data (by their messages when they have neither).

    Answers to the same call are given in the order of their recording, the last one again and again.

    Args:
        file: the record.
        context_tokens: what to claim as the context.

    Raises:
        InputError: the file is missing, holds a line that is no record, or holds none at all.
    """

    concurrency = 1

    def __init__(self, file: Path | str, *, context_tokens: int = 128_000) -> None:
        self.name = f"replay:{file}"
        self.context_tokens = context_tokens
        self._lock = threading.Lock()
        self._answers: dict[str, list[ChatResult]] = {}
        for number, row in _rows(Path(file)):
            if "call" not in row:
                continue
            try:
                result = ChatResult(row["text"], Usage(**row["usage"]))
            except (KeyError, TypeError) as error:
                raise InputError(f"line {number} of {file} is damaged ({error!r})") from error
            self._answers.setdefault(row["call"], []).append(result)
        if not self._answers:
            raise InputError(f"{file} holds no recorded answer of a model")

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.7,
        max_tokens: int = 4096,
        role: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> ChatResult:
        """The recorded answer.

        Raises:
            ServiceUnavailable: the call was not recorded.
        """
        with self._lock:
            answers = self._answers.get(_call_key(messages, role, data))
            if answers is None:
                raise ServiceUnavailable(f"{self.name} holds no answer to this call of the role {role!r}")
            return answers.pop(0) if len(answers) > 1 else answers[0]


class _Record:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab+") as end:
                # What a killed process left of a line must not swallow ours.
                if end.tell():
                    end.seek(-1, 2)
                    if end.read(1) != b"\n":
                        end.write(b"\n")
        except OSError as error:
            raise InputError(f"the record {file} cannot be written ({error.strerror})") from error

    def append(self, row: Mapping[str, Any]) -> None:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write(line)


def _rows(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """The lines of a record with their numbers; lines that a killed process left torn are dropped."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"the record {file} cannot be read ({error.strerror})") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            continue
        known = isinstance(row, dict) and ("query" in row or "url" in row or "call" in row)
        if not known:
            raise InputError(f"line {number} of {file} is not a recorded search or answer")
        rows.append((number, row))
    return rows


def _call_key(messages: Sequence[Mapping[str, str]], role: str, data: Mapping[str, Any] | None) -> str:
    if role or data is not None:
        return content_hash({"role": role, "data": data})
    return content_hash({"messages": [dict(message) for message in messages]})
