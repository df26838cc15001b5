"""A chat model behind any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.errors import InputError
from assay.methods.dualgraph.records import (
    ChatResult,
    ContextOverflow,
    ServiceError,
    ServiceUnavailable,
    Usage,
)
from assay.methods.dualgraph.service_client import RateLimiter, RetryPolicy, ServiceClient, ServiceRefused

OPENAI = "https://api.openai.com/v1"
# Tokens of a context about which nothing is known, and of hosted models that we know (their input limits).
_UNKNOWN_CONTEXT = 32_768
_CONTEXTS = {"gpt-5": 272_000, "gpt-4.1": 1_000_000, "gpt-4o": 128_000, "o3": 200_000, "o4-mini": 200_000}

_OVERFLOW = re.compile(
    r"context[ _](?:length|size|window)|maximum context|exceed_context|too many (?:input )?tokens"
    r"|max_model_len|prompt is too long|input is too long|reduce the length|longer than the maximum",
    re.IGNORECASE,
)
_LIMITS = (
    re.compile(r"maximum context length (?:is|of) (\d+)", re.IGNORECASE),
    re.compile(r"\"n_ctx\":\s*(\d+)"),
    re.compile(r"(?:context|limit|maximum|max)\D{0,40}?(\d{3,})", re.IGNORECASE),
)
_NEEDED = (
    re.compile(r"\"n_prompt_tokens\":\s*(\d+)"),
    re.compile(r"(?:resulted in|requested|contains|passed|has)\D{0,30}?(\d{3,})", re.IGNORECASE),
)


class OpenAIChat:
    """A model behind an OpenAI-compatible endpoint: OpenAI, Azure, vLLM, Ollama, llama.cpp and many others.

    What an endpoint turns out not to know (JSON schemas, `max_tokens`, temperatures) is left out or replaced
    in later calls too. Several threads may use one model.

    Args:
        model: the model's name there.
        base_url: the address before `/chat/completions`; a query (`?api-version=...`) is kept.
        headers: sent with every request.
        context_tokens: prompt and answer together; what is known of the model, or a guess, when None.
        concurrency: calls at a time.
        requests_per_minute: a limit to keep to.
        tokens_per_minute: a limit to keep to, on tokens sent and received (estimated before a call).
        timeout: seconds for one attempt.
        retry: how failed calls are repeated.
        hint: what to do when the key is refused.
        name: names the model in the ledger.
        sleep: waits; replaced in tests.
    """

    def __init__(
        self,
        model: str,
        base_url: str = OPENAI,
        *,
        headers: Mapping[str, str] | None = None,
        context_tokens: int | None = None,
        concurrency: int = 5,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        timeout: float = 600.0,
        retry: RetryPolicy | None = None,
        hint: str = "",
        name: str = "",
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        if context_tokens is not None and context_tokens < 1:
            raise InputError(f"the context must be at least 1 token, got {context_tokens}")
        self.name = name or (f"openai:{model}" if base_url == OPENAI else f"openai:{model}@{base_url}")
        self.concurrency = concurrency
        self._model = model
        self.context_tokens = context_tokens or _known_context(model)
        self._lock = threading.Lock()
        self._schemas = ["json_schema", "json_object", "none"]
        self._limit_name = "max_tokens"
        self._temperature = True
        waiting = {} if sleep is None else {"sleep": sleep}
        limiter = RateLimiter(requests_per_minute) if requests_per_minute else None
        self._client = ServiceClient(
            self.name, base_url, headers=headers, hint=hint, timeout=timeout, retry=retry, limiter=limiter,
            **waiting,
        )  # fmt: skip
        self._tokens = RateLimiter(tokens_per_minute, tokens_per_minute) if tokens_per_minute else None
        self._sleep = self._client.sleep

    def ask_context(self) -> None:
        """Take over the size of the context from an endpoint that says it, as vLLM and llama.cpp do."""
        try:
            rows = self._client.request("GET", "/models", attempts=1)["data"]
            row = next((row for row in rows if row.get("id") == self._model), rows[0])
            size = (
                row.get("max_model_len") or row.get("context_length") or (row.get("meta") or {}).get("n_ctx")
            )
        except (ServiceError, AttributeError, KeyError, IndexError, TypeError):
            # An endpoint need not list its models; if it is down, the first call will say so.
            return
        if isinstance(size, int) and size > 0:
            self.context_tokens = size

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

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
        """Answer `messages`.

        Raises:
            ContextOverflow: prompt and answer do not fit the context.
            AuthenticationFailed, RateLimited, ServiceUnavailable, ServiceError: the endpoint failed.
        """
        plain = [{"role": message["role"], "content": message["content"]} for message in messages]
        estimate = sum(estimated_tokens(message["content"]) + 4 for message in plain)
        if self._tokens is not None:
            self._sleep(self._tokens.reserve(estimate + max_tokens))
        # Each refusal below teaches one thing about the endpoint, of which there are few.
        for _ in range(5):
            body = self._body(plain, schema, temperature, max_tokens, role)
            try:
                answer = self._client.request("POST", "/chat/completions", body=body)
            except ServiceRefused as refusal:
                self._raise_overflow(refusal)
                if not self._learn(refusal, body):
                    raise
                continue
            return self._result(answer, estimate)
        raise ServiceUnavailable(f"{self.name} refuses every form of the request")

    def _body(
        self,
        messages: list[dict[str, str]],
        schema: Mapping[str, Any] | None,
        temperature: float,
        max_tokens: int,
        role: str,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            self._limit_name: max_tokens,
            "stream": False,
        }
        if self._temperature:
            body["temperature"] = temperature
        if schema is not None and self._schemas[0] == "json_schema":
            name = re.sub(r"\W", "_", role) or "answer"
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": name, "schema": dict(schema)},
            }
        elif schema is not None and self._schemas[0] == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body

    def _learn(self, refusal: ServiceRefused, body: Mapping[str, Any]) -> bool:
        """Give up what the endpoint does not know; False when nothing in its answer can be helped."""
        said = refusal.answer
        with self._lock:
            if "max_tokens" in said and "max_completion_tokens" in said and "max_tokens" in body:
                self._limit_name = "max_completion_tokens"
            elif re.search(r"\btemperature\b", said) and "temperature" in body:
                self._temperature = False
            elif "response_format" in body and re.search(
                r"response_format|json_schema|json_object|schema|grammar|structured", said, re.IGNORECASE
            ):
                kind = body["response_format"]["type"]
                self._schemas = ["json_object", "none"] if kind == "json_schema" else ["none"]
            else:
                return False
        return True

    def _raise_overflow(self, refusal: ServiceRefused) -> None:
        said = refusal.answer
        if refusal.status not in (400, 413, 422) or not _OVERFLOW.search(said):
            return
        limit, needed = _first_number(_LIMITS, said), _first_number(_NEEDED, said)
        if limit is not None and (needed is None or limit < needed):
            self.context_tokens = limit
        raise ContextOverflow(
            f"{self.name}: the messages do not fit its context"
            f"{f' of {limit} tokens' if limit else ''}{f' ({needed} are needed)' if needed else ''}",
            limit,
            needed,
        ) from refusal

    def _result(self, answer: Any, estimate: int) -> ChatResult:
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"] or ""
        except (KeyError, IndexError, TypeError) as error:
            raise ServiceUnavailable(
                f"{self.name} answered without a message ({type(error).__name__}: {error})"
            ) from error
        if isinstance(text, list):
            text = "".join(part.get("text", "") for part in text if isinstance(part, Mapping))
        # What models with visible reasoning put before their answer is no part of it.
        text = re.sub(r"\A\s*<think>.*?</think>\s*", "", text, flags=re.DOTALL)
        usage = answer.get("usage") or {}
        sent, received = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if isinstance(sent, int) and isinstance(received, int):
            return ChatResult(text, Usage(sent, received))
        return ChatResult(text, Usage(estimate, estimated_tokens(text), estimated=True))


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has: a quarter of its ASCII characters and all others, never too few."""
    ascii_characters = sum(map(str.isascii, text)) if not text.isascii() else len(text)
    return -(-ascii_characters // 4) + (len(text) - ascii_characters)


def _first_number(patterns: Sequence[re.Pattern[str]], text: str) -> int | None:
    for pattern in patterns:
        if found := pattern.search(text):
            return int(found[1])
    return None


def _known_context(model: str) -> int:
    found = [name for name in _CONTEXTS if model.startswith(name)]
    return _CONTEXTS[max(found, key=len)] if found else _UNKNOWN_CONTEXT
