"""Search through a server of the Model Context Protocol that offers a search tool, and perhaps a fetch tool.

What deep-research connectors agree on is understood: `search(query)` answers results with id, title, url and
text, `fetch(id)` answers one document. Servers that answer plain text are understood too: the text is the
document. Nothing that a server sends is ever run or opened here; ids are sent back to it, and that is all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

from assay.errors import InputError, require
from assay.methods.dualgraph.records import Document, Hit, ReadFailed, ServiceError, ServiceUnavailable
from assay.methods.dualgraph.safety import clean

_TIMEOUT = 60.0
_MAX_CHARACTERS = 20 * 2**20
_SNIPPET = 500
_PASSED_ON = re.compile(r"([A-Za-z_]\w*)=(.*)")
_QUERY_NAMES = ("query", "q", "question", "search_query", "keywords", "text", "input")
_COUNT_NAMES = ("max_results", "num_results", "limit", "count", "k", "top_k", "num", "size")
_ID_NAMES = ("id", "url", "uri", "document_id", "doc_id", "path", "link")
_TITLE_NAMES = ("title", "name")
_TEXT_NAMES = ("text", "content", "snippet", "description", "body", "summary")


class McpBackend:
    """A server of the Model Context Protocol as a search back end. Several threads may use it.

    Args:
        server: an address of a streamable HTTP server, or a command line that is started and spoken to over
            its standard streams. A command sees none of our environment but the usual (`PATH`, `HOME`, ...);
            variables that it needs are named before it: `BRAVE_API_KEY= npx -y some-search-server`.
        timeout: seconds for one call.

    Raises:
        InputError: the command is empty, cannot be started, names a variable that is not set, or the server
            offers no search tool.
        ServiceUnavailable: the server does not answer.
    """

    def __init__(self, server: str, *, timeout: float = _TIMEOUT) -> None:
        require("mcp", extra="agents")
        from_thread: Any = require("anyio.from_thread", extra="agents")
        self.name = f"mcp:{server}"
        self._timeout = timeout
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, Any]] = {}
        self._stack = ExitStack()
        try:
            # The server's complaints go to a file: they are shown when it fails, and not in between.
            complaints = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed by the stack)
            self._complaints = self._stack.enter_context(complaints)
            client = self._client(server)
            self._portal = self._stack.enter_context(from_thread.start_blocking_portal())
            self._session = self._stack.enter_context(self._portal.wrap_async_context_manager(client))
            tools = {tool.name: tool for tool in self._portal.call(self._session.list_tools).tools}
            self._search = _chosen(tools, ("search",))
            self._fetch = _chosen(tools, ("fetch", "read", "get_document", "get"))
            if self._search is None:
                raise InputError(f"{self.name} offers no search tool, only: {', '.join(tools) or 'nothing'}")
        except (OSError, ValueError) as error:
            self.close()
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.name} cannot be started ({error})") from error
        except BaseException as error:
            failure = self._failure(error) if isinstance(error, Exception) else None
            self.close()
            if failure is None:
                raise
            raise failure from error

    def close(self) -> None:
        """End the connection, and the server if it was started here."""
        self._stack.close()

    def search(self, query: str, k: int, *, exclude: Collection[str] = ()) -> list[Hit]:
        """The server's results for a query.

        Raises:
            InputError: `k` is not positive.
            ServiceUnavailable, ServiceError: the server does not answer, or its tool failed.
        """
        if k < 1:
            raise InputError(f"the number of results must be at least 1, got {k}")
        assert self._search is not None
        arguments: dict[str, Any] = {_parameter(self._search, _QUERY_NAMES) or "query": query}
        if count := _parameter(self._search, _COUNT_NAMES):
            arguments[count] = k + min(len(exclude), 10)
        answer = self._call(self._search.name, arguments)
        rows = _results(answer)
        if rows is None:
            # Plain text: it is itself the one document.
            text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
            rows = [{"id": hashlib.sha256(text.encode()).hexdigest()[:16], "title": query, "text": text}]
        hits = {}
        for rank, row in enumerate(rows, 1):
            identity = _first(row, _ID_NAMES)
            if not identity:
                continue
            address = str(row.get("url") or row.get("uri") or row.get("link") or "")
            url = address if re.match(r"https?://", address) else f"mcp:{quote(identity, safe='/:')}"
            text = clean(_first(row, _TEXT_NAMES))
            title = " ".join(clean(_first(row, _TITLE_NAMES)).split()) or identity
            hit = Hit(title, url, " ".join(text.split())[:_SNIPPET], 1 / rank, backend=self.name)
            with self._lock:
                self._found[url] = {"id": identity, "title": title, "text": text}
            if hit.key not in exclude:
                hits.setdefault(hit.key, hit)
        return list(hits.values())[:k]

    def read(self, hit: Hit) -> Document:
        """The document of a result: from the fetch tool, else the text that came with the result.

        Raises:
            ReadFailed: there is no text for it.
        """
        with self._lock:
            known = self._found.get(
                hit.url, {"id": hit.url.removeprefix("mcp:"), "title": hit.title, "text": ""}
            )
        title, text = known["title"], known["text"]
        if self._fetch is not None:
            name = _parameter(self._fetch, _ID_NAMES) or "id"
            # A tool that wants an address gets the address that the search gave, never another.
            wanted = hit.url if name in ("url", "uri", "link") else known["id"]
            try:
                answer = self._call(self._fetch.name, {name: wanted})
            except ServiceError as error:
                raise ReadFailed(f"{hit.url} could not be read: {error}") from error
            row = answer if isinstance(answer, Mapping) else {"text": answer}
            text = clean(_first(row, _TEXT_NAMES)) or text
            title = " ".join(clean(_first(row, _TITLE_NAMES)).split()) or title
        if not re.search(r"\w", text):
            raise ReadFailed(f"{self.name} has no text for {hit.url}")
        return Document(hit.url, title, text, hashlib.sha256(text.encode()).hexdigest())

    def _client(self, server: str) -> Any:
        mcp: Any = require("mcp", extra="agents")
        if re.match(r"https?://", server):
            return mcp.Client(server, read_timeout_seconds=self._timeout)
        words = shlex.split(server)
        environment = {}
        while words and (named := _PASSED_ON.fullmatch(words[0])):
            if named[2]:
                raise InputError(
                    f"write {named[1]}= without its value: it is taken from the environment, and never stored"
                )
            if named[1] not in os.environ:
                raise InputError(f"the environment variable {named[1]}, which the server needs, is not set")
            environment[named[1]] = os.environ[named[1]]
            words.pop(0)
        if not words:
            raise InputError("the MCP back end needs a command or an address: mcp:COMMAND or mcp:https://...")
        parameters = mcp.StdioServerParameters(command=words[0], args=words[1:], env=environment or None)
        transport = mcp.stdio_client(parameters, errlog=self._complaints)
        return mcp.Client(transport, read_timeout_seconds=self._timeout)

    def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """The answer of a tool: its structured content, else the JSON or the text of its content."""
        try:
            result = self._portal.call(self._session.call_tool, tool, arguments)
        # The kinds of errors of a server's process, its stream and its protocol have no common base.
        except Exception as error:
            raise self._failure(error) from error
        text = "\n".join(block.text for block in result.content if getattr(block, "type", "") == "text")
        if result.is_error:
            raise ServiceError(f"{self.name}: {tool} failed: {' '.join(text.split())[:300]}")
        if len(text) > _MAX_CHARACTERS:
            raise ServiceUnavailable(f"{self.name} answered more than {_MAX_CHARACTERS} characters")
        if result.structured_content is not None:
            content = result.structured_content
            # What a tool returns besides an object is wrapped into one under the name "result".
            return content["result"] if isinstance(content, dict) and set(content) == {"result"} else content
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _failure(self, error: BaseException) -> ServiceError:
        while isinstance(error, BaseExceptionGroup) and error.exceptions:
            error = error.exceptions[0]
        self._complaints.seek(0)
        lines = self._complaints.read().strip().splitlines()
        reason = " ".join(f"{error or type(error).__name__}".split())[:300]
        said = f"; it said: {lines[-1][:300]}" if lines else ""
        return ServiceUnavailable(f"{self.name} does not answer ({reason}{said})")


def _chosen(tools: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The tool with one of the names, else the first whose name has one of them as a part."""
    for name in names:
        if name in tools:
            return tools[name]
    for name in names:
        for other, tool in tools.items():
            if name in re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", other).lower()):
                return tool
    return None


def _parameter(tool: Any, names: tuple[str, ...]) -> str | None:
    """The name of the tool's parameter for something: a known one, else the only required one."""
    schema = tool.input_schema or {}
    properties = schema.get("properties", {})
    for name in names:
        if name in properties:
            return name
    required = [
        name for name in schema.get("required", []) if properties.get(name, {}).get("type") == "string"
    ]
    return required[0] if names is not _COUNT_NAMES and len(required) == 1 else None


def _results(answer: Any) -> list[Mapping[str, Any]] | None:
    """The results in an answer, None for an answer that holds no list of them."""
    if isinstance(answer, Mapping):
        for name in ("results", "items", "documents", "hits", "data", "organic", "result"):
            if isinstance(answer.get(name), list):
                answer = answer[name]
                break
    if isinstance(answer, list) and all(isinstance(row, Mapping) for row in answer):
        return answer
    return None


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((str(row[name]) for name in names if isinstance(row.get(name), (str, int)) and row[name]), "")
