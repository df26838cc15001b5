"""Search through a server of the Model Context Protocol, started as a program."""

import sys

import pytest

from assay.errors import InputError
from assay.methods.dualgraph.backends import open_backend
from assay.methods.dualgraph.mcp_search import McpBackend
from assay.methods.dualgraph.records import Hit, ReadFailed, SearchBackend, ServiceError, ServiceUnavailable

CONNECTOR = """
import os, sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("connector")
pages = {f"doc-{i}": f"Page {i} about cats.\\u200b" for i in range(1, 6)}
print("a server's chatter", file=sys.stderr)

@server.tool()
def search(query: str, max_results: int = 10) -> dict:
    if query == "fail":
        raise ValueError("the index is closed")
    rows = [{"id": i, "title": f"Title {i}", "url": f"https://x.example/{i}", "text": p[:6]}
            for i, p in pages.items()]
    rows[1].pop("url")
    return {"results": rows[:max_results]}

@server.tool()
def fetch(id: str) -> dict:
    text = pages[id] + os.environ.get("SHOWN", "") + os.environ.get("HIDDEN", "")
    return {"id": id, "title": "Full " + id, "text": text}

server.run()
"""
# The least that a server has to say, without the package: it starts in no time.
SMALL = """
import json, sys
tools = {tools}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method, result, error = request["method"], None, None
    if method == "initialize":
        result = {{"protocolVersion": request["params"]["protocolVersion"], "capabilities": {{"tools": {{}}}},
                   "serverInfo": {{"name": "small", "version": "1"}}}}
    elif method == "tools/list":
        result = {{"tools": tools}}
    elif method == "tools/call":
        arguments = request["params"]["arguments"]
        if arguments.get("q") == "die":
            print("out of memory", file=sys.stderr)
            raise SystemExit(3)
        text = "What is known about %s: they purr." % arguments["q"]
        result = {{"content": [{{"type": "text", "text": text}}]}}
    else:
        error = {{"code": -32601, "message": "no such method"}}
    answer = {{"error": error}} if error else {{"result": result}}
    print(json.dumps({{"jsonrpc": "2.0", "id": request["id"], **answer}}), flush=True)
"""


def small(*names: str) -> str:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    return SMALL.format(tools=[{"name": name, "inputSchema": schema} for name in names])


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    texts = {"connector": CONNECTOR, "plain": small("deleteAll", "webSearch"), "useless": small("add")}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "broken.py").write_text("raise SystemExit('no key given')")
    return lambda name: f"'{sys.executable}' '{folder / f'{name}.py'}'"


@pytest.fixture(scope="module")
def connector(programs):
    patch = pytest.MonkeyPatch()
    patch.setenv("SHOWN", " shown")
    patch.setenv("HIDDEN", " hidden")
    backend = open_backend(f"mcp:SHOWN= {programs('connector')}")
    yield backend
    backend.close()
    patch.undo()


def test_a_connector_is_searched_and_read(connector):
    assert isinstance(connector, SearchBackend)
    hits = connector.search("cats", 3)
    assert [(hit.title, hit.url) for hit in hits] == [
        ("Title doc-1", "https://x.example/doc-1"),
        ("Title doc-2", "mcp:doc-2"),
        ("Title doc-3", "https://x.example/doc-3"),
    ]
    assert {hit.backend for hit in hits} == {connector.name}
    document = connector.read(hits[1])
    assert (document.title, document.url) == ("Full doc-2", "mcp:doc-2")
    # Cleaned, and with the one variable that was named.
    assert document.text == "Page 2 about cats. shown"
    assert connector.search("cats", 2, exclude={hits[0].key, hits[1].key})[0].key == hits[2].key
    with pytest.raises(InputError, match="at least 1"):
        connector.search("cats", 0)


def test_a_result_of_an_earlier_run_is_read_by_its_id(connector):
    assert connector.read(Hit("t", "mcp:doc-5", "")).text.startswith("Page 5")
    with pytest.raises(ReadFailed):
        connector.read(Hit("t", "https://evil.example/", ""))


def test_a_failing_tool_is_told(connector):
    with pytest.raises(ServiceError, match="search failed: Error executing tool search"):
        connector.search("fail", 3)
    assert len(connector.search("cats", 3)) == 3


def test_a_server_that_answers_plain_text(programs):
    backend = McpBackend(programs("plain"))
    (hit,) = backend.search("cats", 3)
    document = backend.read(hit)
    assert document.text == "What is known about cats: they purr."
    assert hit.url.startswith("mcp:")
    assert hit.title == "cats"
    backend.close()


def test_servers_that_do_not_serve(programs, tmp_path):
    with pytest.raises(InputError, match="offers no search tool, only: add"):
        McpBackend(programs("useless"))
    with pytest.raises(InputError, match="cannot be started"):
        McpBackend(str(tmp_path / "no-such-program"))
    with pytest.raises(ServiceUnavailable, match="it said: no key given"):
        McpBackend(programs("broken"), timeout=10)
    with pytest.raises(InputError, match="needs a command or an address"):
        McpBackend(" ")
    with pytest.raises(InputError, match="KEY= without its value"):
        McpBackend("KEY=secret program")
    with pytest.raises(InputError, match="NO_SUCH_VARIABLE, which the server needs, is not set"):
        McpBackend("NO_SUCH_VARIABLE= program")
    with pytest.raises(ServiceUnavailable, match="does not answer"):
        McpBackend("http://127.0.0.1:1/mcp", timeout=10)


def test_a_server_that_dies_is_told(programs):
    backend = McpBackend(programs("plain"), timeout=10)
    with pytest.raises(ServiceUnavailable, match=r"does not answer.*out of memory"):
        backend.search("die", 3)
    backend.close()
