"""A research service for other programs: the OpenAI chat API over HTTP, and tools over MCP."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.errors import InputError, require
from assay.methods.dualgraph.loop import Progress
from assay.methods.dualgraph.records import RunLocked, ServiceError
from assay.methods.dualgraph.research_service import Answer, Busy, ResearchService

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MODEL = "dualgraph"
# Proxies close a connection that is silent for a minute.
_SILENCE = 15.0
_LARGEST_REQUEST = 2**20


class _Gone(RuntimeError):
    """The client has left: the run stops after its step, and goes on when it is asked for again."""


def mcp_server(service: ResearchService) -> MCPServer:
    """An MCP server with the tools `research`, `gaps` and `evidence`.

    Raises:
        MissingDependencyError: the package mcp is not installed.
    """
    require("mcp", extra="agents")
    import anyio
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server = MCPServer("dualgraph", instructions="Researches questions and answers with cited reports.")

    async def inside(work: Callable[[], Any]) -> Any:
        try:
            return await anyio.to_thread.run_sync(work)
        except (InputError, ServiceError, Busy) as error:
            raise ToolError(str(error)) from error

    # The annotation has to be there at run time: it tells the server to pass its context.
    async def research(question: str, context: Context) -> dict[str, Any]:
        """Research a question, which takes minutes; returns a Markdown report with checked citations."""

        def tell(progress: Progress) -> None:
            total = service.config.max_iter + 1
            report = partial(context.report_progress, progress.iteration, total, progress_line(progress))
            anyio.from_thread.run(report)

        answer: Answer = await inside(lambda: service.answer(question, tell))
        return {"report": answer.run.report, **answer.summary()}

    async def gaps(run: str, limit: int = 20) -> list[dict[str, Any]]:
        """The relations that a run's knowledge graph lacks or has little evidence for, best first."""
        return await inside(lambda: service.gaps(run, limit))

    async def evidence(run: str, evidence_id: int) -> dict[str, Any]:
        """The passage behind a piece of evidence of a run, with its source."""
        return await inside(lambda: service.evidence(run, evidence_id))

    # Strings as annotations would be looked up in this module, where Context is not.
    research.__annotations__["context"] = Context
    for tool in (research, gaps, evidence):
        server.add_tool(tool)
    return server


def http_app(service: ResearchService, *, host: str = "127.0.0.1", key: str | None = None) -> Starlette:
    """The ASGI application: `/v1/chat/completions`, `/v1/models`, the pages of `/runs/NAME`, MCP at `/mcp`.

    Args:
        service: researches.
        host: where it will listen. On the machine itself only requests that name the machine are answered, so
            that no web page can reach it by a name of its own.
        key: the bearer token that every request needs; required elsewhere.

    Raises:
        InputError: a host that others can reach, without a key.
        MissingDependencyError: the package mcp, which brings Starlette, is not installed.
    """
    if not is_loopback(host) and not key:
        raise InputError(
            f"others can reach {host}: set the environment variable ASSAY_DUALGRAPH_KEY to a key that "
            "clients have to send, or listen on 127.0.0.1"
        )
    server = mcp_server(service)
    endpoints = _Endpoints(service)
    server.custom_route("/v1/models", methods=["GET"])(endpoints.models)
    server.custom_route("/v1/chat/completions", methods=["POST"])(endpoints.chat)
    server.custom_route("/runs/{name}", methods=["GET"])(endpoints.page)
    app = server.streamable_http_app(host=host)
    app.add_middleware(_Guard, names=LOOPBACK if is_loopback(host) else None, key=key)
    return app


LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class _Guard:
    """Turns away requests for another host name and requests without the key, before anything else."""

    def __init__(self, app: Any, names: frozenset[str] | None, key: str | None) -> None:
        self._app = app
        self._names = names
        self._key = key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
            refusal = self._refusal(headers)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Mapping[bytes, str]) -> Response | None:
        name = headers.get(b"host", "").rsplit(":", 1)[0] if "]" not in headers.get(b"host", "") else "[::1]"
        if self._names is not None and name not in self._names:
            return _failure(421, "this service answers to localhost only", "invalid_request_error")
        if self._key is not None:
            given = headers.get(b"authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._key}".encode()):
                return _failure(
                    401, "a valid key is needed: Authorization: Bearer KEY", "authentication_error"
                )
        return None


class _Endpoints:
    """The handlers of the HTTP routes."""

    def __init__(self, service: ResearchService) -> None:
        self._service = service

    async def models(self, request: Request) -> Response:
        """The one model that there is."""
        from starlette.responses import JSONResponse

        listed = {"id": MODEL, "object": "model", "created": 0, "owned_by": "assay"}
        return JSONResponse({"object": "list", "data": [listed]})

    async def page(self, request: Request) -> Response:
        """The page of a finished run."""
        from starlette.responses import HTMLResponse

        try:
            path = self._service.folder(request.path_params["name"]) / "report.html"
            return HTMLResponse(
                path.read_text(encoding="utf-8"), headers={"x-content-type-options": "nosniff"}
            )
        except (InputError, FileNotFoundError):
            return _failure(404, "there is no such page", "invalid_request_error")

    async def chat(self, request: Request) -> Response:
        """A chat completion: the report on the last message of the user."""
        from starlette.responses import JSONResponse, StreamingResponse

        try:
            question, stream = await _asked(request)
        except InputError as error:
            return _failure(400, str(error), "invalid_request_error")
        if stream:
            return StreamingResponse(self._stream(question), media_type="text/event-stream")
        try:
            answer = await asyncio.to_thread(self._service.answer, question)
        except (InputError, ServiceError, Busy) as error:
            return _failure(*_kind(error))
        message = {"role": "assistant", "content": answer.run.report}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(_completion("chat.completion", choice) | _outcome(answer))

    async def _stream(self, question: str) -> AsyncIterator[str]:
        """Server-sent events: progress as comments, then the report, then the end."""
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[str] = asyncio.Queue()
        gone = False

        def tell(progress: Progress) -> None:
            if gone:
                raise _Gone
            loop.call_soon_threadsafe(lines.put_nowait, progress_line(progress))

        work = asyncio.create_task(asyncio.to_thread(partial(self._service.answer, question, tell)))
        work.add_done_callback(lambda _: lines.put_nowait(""))
        head = _completion("chat.completion.chunk", {})
        try:
            yield _event(_chunk(head, {"role": "assistant", "content": ""}))
            while not work.done():
                try:
                    line = await asyncio.wait_for(lines.get(), _SILENCE)
                except TimeoutError:
                    line = "working"
                if line:
                    yield f": {line}\n\n"
            try:
                answer = work.result()
            except (InputError, ServiceError, Busy) as error:
                _, message, kind = _kind(error)
                yield _event({"error": {"message": message, "type": kind}})
            else:
                yield _event(_chunk(head, {"content": answer.run.report}))
                yield _event(_chunk(head, {}, "stop") | _outcome(answer))
            yield "data: [DONE]\n\n"
        finally:
            gone = True
            # What the run raises after its client has left is nobody's.
            work.add_done_callback(lambda task: task.cancelled() or task.exception())


def progress_line(progress: Progress) -> str:
    """Where a run is, in one line."""
    return (
        f"round {progress.iteration}, {progress.step}: {progress.queries} searches, "
        f"{progress.evidence} pieces of evidence, {progress.nodes} entities, {progress.edges} relations"
    )


async def _asked(request: Request) -> tuple[str, bool]:
    """The question of a request, and whether its answer is to be streamed.

    Raises:
        InputError: no JSON, too large, another model, or no message of the user.
    """
    # Only a page of the same origin can send JSON without being asked first.
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise InputError("the request must have the content type application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_REQUEST:
            raise InputError(f"the request is larger than {_LARGEST_REQUEST // 2**20} MiB")
    try:
        asked = json.loads(body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("the request is not JSON") from error
    if not isinstance(asked, dict):
        raise InputError("the request must be a JSON object")
    if asked.get("model", MODEL) != MODEL:
        raise InputError(f"there is no model {str(asked['model'])[:80]!r} here, only {MODEL!r}")
    messages = asked.get("messages")
    if not isinstance(messages, list):
        raise InputError("the request has no list of messages")
    said = [message for message in messages if isinstance(message, dict) and message.get("role") == "user"]
    question = _words(said[-1].get("content")) if said else ""
    if not question.strip():
        raise InputError("the request has no message of the user with text")
    return question, asked.get("stream") is True


def _words(content: Any) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


def _completion(kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": MODEL,
        "choices": [choice],
    }


def _chunk(head: Mapping[str, Any], delta: Mapping[str, str], finish: str | None = None) -> dict[str, Any]:
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _outcome(answer: Answer) -> dict[str, Any]:
    sent = sum(row.prompt_tokens for row in answer.run.ledger)
    received = sum(row.completion_tokens for row in answer.run.ledger)
    usage = {"prompt_tokens": sent, "completion_tokens": received, "total_tokens": sent + received}
    return {"usage": usage, "dualgraph": answer.summary() | {"page": f"/runs/{answer.name}"}}


def _kind(error: Exception) -> tuple[int, str, str]:
    """The status, the message and the type of an error."""
    if isinstance(error, Busy):
        return 429, str(error), "rate_limit_error"
    if isinstance(error, RunLocked):
        return 409, "this question is being researched: ask again later", "rate_limit_error"
    if isinstance(error, ServiceError):
        return 502, str(error), "api_error"
    return 400, str(error), "invalid_request_error"


def _failure(status: int, message: str, kind: str) -> Response:
    from starlette.responses import JSONResponse

    headers = {"retry-after": "60"} if status in (409, 429) else None
    body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return JSONResponse(body, status_code=status, headers=headers)
