"""Research as a service: the chat API over HTTP, tools over MCP, and who is let in."""

from __future__ import annotations

import json
import socket
import threading

import anyio
import httpx
import mcp
import pytest
import uvicorn

from assay.cli import main
from assay.errors import InputError
from assay.methods.dualgraph.embeddings import HashedWords
from assay.methods.dualgraph.extractive import ExtractiveModel
from assay.methods.dualgraph.records import ResearchConfig, RunLocked, SearchFailed
from assay.methods.dualgraph.research_service import Busy, ResearchService
from assay.methods.dualgraph.serving import http_app, is_loopback, mcp_server

QUESTION = "How do Kestrel and Harrier hunt?"


@pytest.fixture
def service(library, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    config = ResearchConfig(kg_queries=2, og_queries=2, max_iter=1, checker="lexical")
    return ResearchService(
        ExtractiveModel(HashedWords()), [f"local:{library}"], tmp_path / "runs", config=config, at_once=1
    )


class Listening:
    """An application on a free port of this machine, in a thread."""

    def __init__(self, app) -> None:
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()


@pytest.fixture
def listen():
    opened: list[Listening] = []

    def start(app) -> str:
        opened.append(Listening(app))
        return opened[-1].url

    yield start
    for server in opened:
        server.close()


def ask(url: str, content=QUESTION, **more) -> httpx.Response:
    body = {"model": "dualgraph", "messages": [{"role": "user", "content": content}]} | more
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def test_a_chat_completion_is_the_report(service, listen):
    url = listen(http_app(service))
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "dualgraph"
    answer = ask(url)
    assert answer.status_code == 200
    got = answer.json()
    assert got["object"] == "chat.completion"
    (choice,) = got["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["role"] == "assistant"
    assert "## References" in choice["message"]["content"]
    assert (
        got["usage"]["total_tokens"] == got["usage"]["prompt_tokens"] + got["usage"]["completion_tokens"] > 0
    )
    assert got["dualgraph"]["citation_precision"] == 1.0
    page = httpx.get(url + got["dualgraph"]["page"])
    assert page.text.startswith("<!doctype html>")
    # The same question in parts, after another turn, is answered from the same run.
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "something else"},
        {"role": "assistant", "content": "..."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "How do Kestrel"},
                {"type": "text", "text": "and Harrier hunt?"},
            ],
        },
    ]
    again = httpx.post(f"{url}/v1/chat/completions", json={"messages": messages}, timeout=60).json()
    assert again["dualgraph"]["run"] == got["dualgraph"]["run"]
    assert again["choices"][0]["message"] == choice["message"]


def test_a_stream_tells_of_progress_and_ends(service, listen):
    url = listen(http_app(service))
    body = {"model": "dualgraph", "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    comments = [line for line in lines if line.startswith(":")]
    assert any("pieces of evidence" in line for line in comments)
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    chunks = [json.loads(line) for line in data[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == ask(url).json()["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_an_error_in_a_stream_is_an_event(service, listen):
    url = listen(http_app(service))
    lines = ask(url, "the of and", stream=True).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "no word to search for" in events[-1]["error"]["message"]
    assert lines[-2] == "data: [DONE]"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"\xff", "not JSON"),
        (b"{}", "no list of messages"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "no message of the user"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "no message of the user"),
        (b'{"messages": ["x"]}', "no message of the user"),
        (b'{"model": "gpt-9", "messages": []}', "no model 'gpt-9'"),
        (b'{"messages": [{"role": "user", "content": "the of"}]}', "no word to search for"),
        (b'{"messages": [{"role": "user", "content": "' + b"kestrel " * 2000 + b'"}]}', "at most 8000"),
        (b'{"x": "' + b"y" * 2**20 + b'"}', "larger than"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_bad_requests(service, listen, body, message):
    url = listen(http_app(service))
    answer = httpx.post(
        f"{url}/v1/chat/completions", content=body, headers={"content-type": "application/json"}, timeout=60
    )
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_web_page_cannot_ask(service, listen):
    url = listen(http_app(service))
    simple = httpx.post(f"{url}/v1/chat/completions", content="{}", headers={"content-type": "text/plain"})
    assert simple.status_code == 400
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        rebound = httpx.get(f"{url}/v1/models", headers={"host": host})
        assert rebound.status_code in (400, 421), host
    assert httpx.post(f"{url}/mcp", json={}, headers={"host": "evil.example"}).status_code == 421
    assert httpx.get(f"{url}/v1/models", headers={"host": "localhost:9"}).status_code == 200


def test_a_key_is_asked_for_everywhere(service, listen):
    url = listen(http_app(service, key="s3cret"))
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
        for path in ("/v1/models", "/mcp", "/runs/0123456789abcdef"):
            assert httpx.get(url + path, headers=headers).status_code == 401
    assert httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer s3cret"}).status_code == 200
    with pytest.raises(InputError, match="ASSAY_DUALGRAPH_KEY"):
        http_app(service, host="0.0.0.0")
    assert http_app(service, host="0.0.0.0", key="k") is not None
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "localhost", "10.0.0.1", "a.example")] == [
        True, True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["..", "0123456789abcdef", "%2e%2e%2fsecret", "ABCDEF0123456789", "x"])
def test_only_runs_are_shown(service, listen, name):
    assert httpx.get(f"{listen(http_app(service))}/runs/{name}").status_code == 404


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Busy("busy"), 429),
        (RunLocked("locked"), 409),
        (SearchFailed("all failed"), 502),
        (InputError("bad"), 400),
    ],
)
def test_the_status_says_what_went_wrong(service, listen, monkeypatch, error, status):
    def fail(question, observer=None):
        raise error

    monkeypatch.setattr(service, "answer", fail)
    answer = ask(listen(http_app(service)))
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert ("retry-after" in answer.headers) == (status in (409, 429))


def test_so_many_questions_at_a_time(service):
    entered, go_on = threading.Event(), threading.Event()

    def wait(progress):
        entered.set()
        go_on.wait(30)

    first = threading.Thread(target=service.answer, args=(QUESTION, wait))
    first.start()
    assert entered.wait(30)
    with pytest.raises(Busy):
        service.answer("What does the Owl hunt?")
    go_on.set()
    first.join()
    assert service.answer("What does the Owl hunt?").run.status != "running"


def test_a_client_that_leaves_stops_the_run_and_may_come_back(service, listen):
    url = listen(http_app(service))
    body = {"messages": [{"role": "user", "content": QUESTION}], "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
        next(line for line in answer.iter_lines() if "searches" in line)
    # Only one question is allowed at a time: it is free again as soon as the run has stopped.
    for _ in range(100):
        again = ask(url)
        if again.status_code != 429:
            break
        threading.Event().wait(0.05)
    assert again.status_code == 200
    assert "## References" in again.json()["choices"][0]["message"]["content"]


def test_mcp_tools(service):
    async def use():
        told = []

        async def note(progress, total, message):
            told.append((progress, total, message))

        async with mcp.Client(mcp_server(service)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            asked = await client.call_tool("research", {"question": QUESTION}, progress_callback=note)
            run = asked.structured_content["run"]
            gaps = await client.call_tool("gaps", {"run": run, "limit": 3})
            piece = await client.call_tool("evidence", {"run": run, "evidence_id": 1})
            wrong = [
                await client.call_tool("evidence", {"run": run, "evidence_id": 999}),
                await client.call_tool("gaps", {"run": "../../etc", "limit": 3}),
                await client.call_tool("gaps", {"run": run, "limit": 0}),
                await client.call_tool("research", {"question": "of the"}),
            ]
        return tools, told, asked, gaps, piece, wrong

    tools, told, asked, gaps, piece, wrong = anyio.run(use)
    assert set(tools) == {"research", "gaps", "evidence"}
    assert list(tools["research"].input_schema["properties"]) == ["question"]
    assert "## References" in asked.structured_content["report"]
    assert asked.structured_content["citation_precision"] == 1.0
    assert told
    assert "pieces of evidence" in told[0][2]
    assert len(gaps.structured_content["result"]) <= 3
    assert (
        "Kestrel" in piece.structured_content["content"] or "Harrier" in piece.structured_content["content"]
    )
    assert all(result.is_error for result in wrong)
    assert "no evidence 999" in wrong[0].content[0].text
    assert "no run is called" in wrong[1].content[0].text


def test_mcp_over_http(service, listen):
    url = listen(http_app(service))

    async def use():
        async with mcp.Client(f"{url}/mcp") as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    assert anyio.run(use) == ["research", "gaps", "evidence"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to search in"),
        (["--docs", "{library}", "--port", "70000"], "--port must be from 0 to 65535"),
        (["--docs", "{library}", "--at-once", "0"], "at least 1 question"),
        (["--docs", "{library}", "--host", "0.0.0.0"], "ASSAY_DUALGRAPH_KEY"),
        (["--docs", "{library}", "--host", "no.such.host.invalid"], "ASSAY_DUALGRAPH_KEY"),
        (["--docs", "{library}", "--port", "{taken}"], "cannot listen on 127.0.0.1"),
        (["--docs", "{tmp}/missing"], "missing"),
        (["--docs", "{library}", "--max-iter", "0"], "max_iter must be at least 1"),
        (["--docs", "{library}", "--budget-usd", "-1"], "budget of usd"),
    ],
)
def test_mistakes_are_one_line(library, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.delenv("ASSAY_DUALGRAPH_KEY", raising=False)
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        values = {"library": library, "tmp": tmp_path, "taken": other.getsockname()[1]}
        filled = [argument.format(**values) for argument in arguments]
        with pytest.raises(SystemExit) as ended:
            main(["dualgraph", "serve", "--runs", str(tmp_path / "runs"), *filled])
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert message in printed.err
    assert printed.err.count("\n") == 1
