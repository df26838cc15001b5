"""A scripted web server on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest


@dataclass
class Request:
    """What a server was asked."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """What a server answers; a value that is neither bytes nor text is sent as JSON."""

    body: Any = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left early is what some tests are about."""


class Web:
    """A server whose answers a test decides: `answer` maps a request to an `Answer` (or to its body)."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Any] = lambda request: Answer(status=404)
        self._lock = threading.Lock()
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _serve(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers.get("content-length", 0)))
                request = Request(self.command, parts.path, query, headers, body)
                with web._lock:
                    web.requests.append(request)
                answer = web.answer(request)
                if not isinstance(answer, Answer):
                    answer = Answer(answer)
                content, kind = answer.body, "text/html; charset=utf-8"
                if isinstance(content, str):
                    content = content.encode()
                elif not isinstance(content, bytes):
                    content, kind = json.dumps(content).encode(), "application/json"
                self.send_response(answer.status)
                for name, value in ({"content-type": kind} | answer.headers).items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _serve

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def in_turn(self, *answers: Any) -> None:
        """Give these answers one after the other, the last one again and again."""
        left = list(answers)

        def answer(request: Request) -> Any:
            with self._lock:
                return left.pop(0) if len(left) > 1 else left[0]

        self.answer = answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def web():
    """A server on 127.0.0.1 that answers 404 until a test says otherwise."""
    server = Web()
    yield server
    server.close()


@pytest.fixture
def answering():
    """The class of answers with a status or headers of their own."""
    return Answer


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ASSAY_CACHE", str(folder))
    return folder
