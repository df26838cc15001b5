"""`assay dualgraph serve`: research for chat front ends and agents."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from assay.errors import InputError, require

Flag = Annotated[bool, Parameter(negative=())]
Many = Parameter(consume_multiple=True, negative=())
KEY = "ASSAY_DUALGRAPH_KEY"


def serve(
    *,
    runs: Path = Path("dualgraph-runs"),
    docs: Annotated[tuple[Path, ...], Many] = (),
    search: Annotated[tuple[str, ...], Many] = (),
    llm: str = "extractive",
    host: str = "127.0.0.1",
    port: int = 8321,
    stdio: Flag = False,
    at_once: int = 2,
    max_iter: int = 5,
    budget_usd: float | None = None,
    budget_seconds: float | None = None,
    allow_host: Annotated[tuple[str, ...], Many] = (),
    deny_host: Annotated[tuple[str, ...], Many] = (),
    allow_private: Annotated[tuple[str, ...], Many] = (),
) -> None:
    """Answer research questions over the OpenAI chat API and over MCP.

    Chat front ends use http://HOST:PORT/v1 with the model dualgraph; MCP clients http://HOST:PORT/mcp, or
    this command with --stdio. Other machines are let in only with the key in ASSAY_DUALGRAPH_KEY.

    Parameters
    ----------
    runs
        The folder for the runs; a question that was answered before is answered from it.
    docs
        Folders of documents to search.
    search
        Other places to search: searxng:URL, tavily, serper, brave, bing, mcp:COMMAND.
    llm
        The chat model: extractive, openai:MODEL, openai:MODEL@URL, llama_cpp:URL, transformers:ID.
    host
        The address to listen on.
    port
        The port to listen on; 0 takes a free one.
    stdio
        Speak MCP over standard input and output instead, for a client that starts this command.
    at_once
        Questions under research at the same time.
    max_iter
        Rounds a question at most.
    budget_usd
        US dollars a question at most.
    budget_seconds
        Seconds a question at most.
    allow_host
        Read pages of these hosts only.
    deny_host
        Never read pages of these hosts.
    allow_private
        Hosts with private addresses that may be read.
    """
    require("mcp", extra="agents")
    from assay.methods.dualgraph.chat_models import open_model
    from assay.methods.dualgraph.records import Budget, ResearchConfig
    from assay.methods.dualgraph.research_service import ResearchService
    from assay.methods.dualgraph.serving import http_app, mcp_server

    if not 0 <= port <= 65535:
        raise InputError(f"--port must be from 0 to 65535, got {port}")
    service = ResearchService(
        open_model(llm),
        [f"local:{folder}" for folder in docs] + list(search),
        runs,
        config=ResearchConfig(max_iter=max_iter, budget=Budget(usd=budget_usd, seconds=budget_seconds)),
        hosts={"allow_hosts": allow_host, "deny_hosts": deny_host, "allow_private": allow_private},
        at_once=at_once,
    )
    if stdio:
        mcp_server(service).run("stdio")
        return
    import uvicorn
    from rich.console import Console

    app = http_app(service, host=host, key=os.environ.get(KEY) or None)
    with _listening(host, port) as listener:
        taken = listener.getsockname()[1]
        Console(stderr=True, highlight=False).print(
            f"Listening on http://{host}:{taken}: chat at /v1, MCP at /mcp, runs in {runs}", markup=False
        )
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens on the address.

    Raises:
        InputError: the address is not this machine's, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot listen on {host}:{port} ({reason}): pass another --host or --port"
        ) from error
    return listener
