"""Chat models by the names that users give them: `openai:gpt-4.1`, `llama_cpp:model.gguf`, `extractive`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from assay.errors import InputError
from assay.methods.dualgraph.openai_chat import OPENAI, OpenAIChat
from assay.methods.dualgraph.records import ChatModel

KINDS = (
    "openai:MODEL",
    "openai:MODEL@BASE_URL",
    "llama_cpp:URL or llama_cpp:FILE.gguf",
    "transformers:FOLDER, a hub id or embedded",
    "extractive",
    "replay:FILE.jsonl",
)


def open_model(spec: str, *, environment: Mapping[str, str] | None = None) -> ChatModel:
    """The model that `spec` names.

    The key for `openai:` is read from the environment: `OPENAI_API_KEY` for OpenAI's own address and for the
    one in `OPENAI_BASE_URL`, `AZURE_OPENAI_API_KEY` for Azure, `ASSAY_LLM_API_KEY` for every other address,
    so that no key is sent to a host that it was not meant for.

    Args:
        spec: one of the kinds in `KINDS`.
        environment: where keys are looked up; the process's environment when None.

    Raises:
        InputError: an unknown kind, a missing part or key, or a model that cannot be loaded.
    """
    kind, _, rest = spec.partition(":")
    variables = os.environ if environment is None else environment
    makers: dict[str, Callable[[], ChatModel]] = {
        "openai": lambda: _open_openai(rest, variables),
        "llama_cpp": lambda: _open_llama_cpp(rest, variables),
        "transformers": lambda: _open_transformers(rest),
        "replay": lambda: _open_replay(rest),
    }
    if spec == "extractive":
        from assay.methods.dualgraph.extractive import ExtractiveModel

        return ExtractiveModel()
    if kind not in makers:
        raise InputError(f"unknown chat model {spec!r}; choose from {', '.join(KINDS)}")
    if not rest.strip():
        wanted = next(name for name in KINDS if name.startswith(kind))
        raise InputError(f"the chat model {spec!r} lacks a part; write {wanted}")
    return makers[kind]()


def _open_openai(rest: str, variables: Mapping[str, str]) -> ChatModel:
    model, _, base_url = rest.partition("@")
    base_url = base_url or variables.get("OPENAI_BASE_URL") or OPENAI
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            f"{base_url!r} is not the address of an endpoint; write openai:MODEL@https://host/v1"
        )
    if not model.strip():
        raise InputError(f"openai:{rest} names no model; write openai:MODEL@BASE_URL")
    host = parts.hostname
    if host.endswith(".azure.com"):
        variable, header = "AZURE_OPENAI_API_KEY", "api-key"
    elif host in (urlsplit(OPENAI).hostname, urlsplit(variables.get("OPENAI_BASE_URL", "")).hostname):
        variable, header = "OPENAI_API_KEY", "authorization"
    else:
        variable, header = "ASSAY_LLM_API_KEY", "authorization"
    key = variables.get(variable, "").strip()
    if not key and host == urlsplit(OPENAI).hostname:
        raise InputError("OpenAI needs a key: set the environment variable OPENAI_API_KEY")
    headers = {header: key if header == "api-key" else f"Bearer {key}"} if key else {}
    opened = OpenAIChat(model, base_url, headers=headers, hint=f"set {variable} to a valid key")
    if host != urlsplit(OPENAI).hostname:
        opened.ask_context()
    return opened


def _open_llama_cpp(rest: str, variables: Mapping[str, str]) -> ChatModel:
    from assay.methods.dualgraph.llama_server import LlamaServerChat

    if rest.startswith(("http://", "https://")):
        base_url = rest.rstrip("/")
        key = variables.get("ASSAY_LLM_API_KEY", "").strip()
        opened = OpenAIChat(
            "default",
            base_url if base_url.endswith("/v1") else f"{base_url}/v1",
            headers={"authorization": f"Bearer {key}"} if key else None,
            hint="set ASSAY_LLM_API_KEY to the server's key",
            name=f"llama_cpp:{rest}",
            concurrency=1,
        )
        opened.ask_context()
        return opened
    return LlamaServerChat(Path(rest).expanduser())


def _open_transformers(rest: str) -> ChatModel:
    from assay.methods.dualgraph.transformers_chat import TransformersChat

    return TransformersChat(rest)


def _open_replay(rest: str) -> ChatModel:
    from assay.methods.dualgraph.recording import ReplayChat

    return ReplayChat(Path(rest).expanduser())
