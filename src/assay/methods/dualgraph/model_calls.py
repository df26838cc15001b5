"""Asking a model: cached, counted, within the budget, repaired when the answer is not what was asked for."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.errors import InputError
from assay.methods.dualgraph.concurrency import concurrent_map
from assay.methods.dualgraph.json_answers import read_answer
from assay.methods.dualgraph.pricing import price
from assay.methods.dualgraph.prompts import ROLES
from assay.methods.dualgraph.records import (
    ChatModel,
    ChatResult,
    ContextOverflow,
    InvalidOutput,
    LedgerRow,
    Usage,
)
from assay.methods.dualgraph.state import RunState
from assay.methods.dualgraph.store import RunStore
from assay.methods.dualgraph.truncation import shortened

REPAIRS = 3

Accept = Callable[[Any], Any]
"""Turns a valid answer into what is wanted, or raises InvalidOutput or InputError with what is wrong."""


class BudgetSpent(Exception):
    """A limit of the budget is reached; the message says which."""


class ModelCaller:
    """The only way from the loop to a model.

    Args:
        model: the chat model.
        store: keeps answers, so that a repeated step does not ask again.
        state: its warnings are counted up, its nonce marks retrieved text.

    Attributes:
        unlimited: the budget is not looked at any more: what was found is being written down.
        calls: answered by the model in this session, not from the store.
    """

    def __init__(self, model: ChatModel, store: RunStore, state: RunState) -> None:
        self.model = model
        self.store = store
        self.state = state
        self.unlimited = False
        self.calls = 0
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._seconds_before = store.seconds()
        ledger = store.ledger()
        self.tokens = sum(row.prompt_tokens + row.completion_tokens for row in ledger)
        self.usd: float | None = sum_known([row.usd for row in ledger])
        if state.config.budget.usd is not None and price(model.name, Usage()) is None:
            raise InputError(
                f"no price is known for {model.name}, so money can't be limited: use a budget of tokens"
            )

    def ask(self, role: str, data: Mapping[str, Any], *, step: str, accept: Accept | None = None) -> Any:
        """The answer to a task, as the JSON value that its schema describes, or what `accept` makes of it.

        Args:
            role: a task among `prompts.ROLES`.
            data: its input.
            step: names the step in the ledger.
            accept: looks at a valid answer; what it complains about is told to the model.

        Raises:
            InvalidOutput: the answer is still wrong after three repairs.
            BudgetSpent: a limit was reached before the call.
            ServiceError: the service failed.
        """
        task, config = ROLES[role], self.state.config
        messages = task.messages(data, self.state.nonce)
        problem = InvalidOutput("no attempt was made")
        attempts = 0
        while attempts <= REPAIRS:
            try:
                result = self.complete(
                    messages,
                    role=role,
                    data=data,
                    schema=task.schema,
                    temperature=config.merge_temperature if role == "merge" else config.temperature,
                    max_tokens=task.max_tokens,
                    step=step,
                )
            except ContextOverflow as overflow:
                smaller = shortened(data, overflow)
                if smaller is None:
                    raise
                self.warn("context_truncated")
                data = smaller
                messages = task.messages(data, self.state.nonce)
                continue
            attempts += 1
            try:
                value = read_answer(result.text, task.schema)
                return value if accept is None else accept(value)
            except (InvalidOutput, InputError) as error:
                self.warn("invalid_answers")
                problem = InvalidOutput(f"{role}: {error}")
                complaint = f"That can't be used: {error}. Answer again, with the JSON object only."
                messages = [
                    *messages,
                    {"role": "assistant", "content": result.text},
                    {"role": "user", "content": complaint},
                ]
        self.warn(f"failed_{role}")
        raise problem

    def ask_many(
        self,
        role: str,
        inputs: Sequence[Mapping[str, Any]],
        *,
        step: str,
    ) -> list[Any]:
        """The answers to many inputs of one task, in order; InvalidOutput stands where an answer failed.

        As many calls are under way at once as the model takes.

        Raises:
            BudgetSpent, ServiceError: as `ask` does; answers that came before are kept in the store.
        """

        def one(data: Mapping[str, Any]) -> Any:
            try:
                return self.ask(role, data, step=step)
            except InvalidOutput as error:
                return error

        limit = min(self.model.concurrency, self.state.config.concurrency)
        if limit <= 1:
            return [one(data) for data in inputs]
        answers = concurrent_map(one, list(inputs), limit)
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, InvalidOutput):
                raise answer
        return answers

    def warn(self, name: str, count: int = 1) -> None:
        """Count something that went wrong and did not stop the run."""
        with self._lock:
            self.state.warnings[name] += count

    def elapsed(self) -> float:
        """Seconds over all sessions of the run."""
        return self._seconds_before + time.monotonic() - self._started

    def check_budget(self) -> None:
        """Raise BudgetSpent if a limit of tokens, money or time is reached."""
        budget = self.state.config.budget
        spent = {"tokens": self.tokens, "usd": self.usd, "seconds": self.elapsed()}
        for name, value in spent.items():
            limit = getattr(budget, name)
            if limit is not None and value is not None and value >= limit and not self.unlimited:
                raise BudgetSpent(f"the budget of {limit} {name} is spent")

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        role: str,
        data: Mapping[str, Any] | None,
        schema: Mapping[str, Any] | None,
        temperature: float,
        max_tokens: int,
        step: str,
        attempt: int = 0,
    ) -> ChatResult:
        """One answer, as the model gave it: from the store, or asked for, counted and kept.

        Args:
            messages, role, data, schema, temperature, max_tokens: as `ChatModel.chat` takes them.
            step: names the step in the ledger.
            attempt: tells calls apart that are equal otherwise.

        Raises:
            BudgetSpent: a limit was reached before the call.
            ServiceError: the service failed.
        """
        call = _call_hash(self.model.name, role, messages, temperature, max_tokens, attempt)
        known = self.store.answer(call)
        if known is not None:
            return known
        self.check_budget()
        started = time.perf_counter()
        result = self.model.chat(
            messages,
            schema=schema,
            temperature=temperature,
            max_tokens=min(max_tokens, max(64, self.model.context_tokens // 2)),
            role=role,
            data=data,
        )
        row = LedgerRow(
            step=step,
            role=role,
            model=self.model.name,
            prompt_tokens=result.usage.prompt_tokens,
            completion_tokens=result.usage.completion_tokens,
            usd=price(self.model.name, result.usage),
            seconds=time.perf_counter() - started,
        )
        self.store.keep_answer(call, result, row)
        with self._lock:
            self.calls += 1
            self.tokens += row.prompt_tokens + row.completion_tokens
            self.usd = sum_known([self.usd, row.usd])
        return result


class CountedModel:
    """A chat model whose calls are cached and counted like those of the loop, once `caller` is set.

    The checker of citations gets it, so that a judge's calls are in the ledger too.

    Args:
        model: the model that answers.
    """

    def __init__(self, model: ChatModel) -> None:
        self.name = model.name
        self.context_tokens = model.context_tokens
        self.concurrency = model.concurrency
        self.caller: ModelCaller | None = None
        self._model = model
        self._asked: Counter[str] = Counter()

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
        """See `ChatModel.chat`; asked again for the same, it asks the model again."""
        if self.caller is None:
            return self._model.chat(
                messages, schema=schema, temperature=temperature, max_tokens=max_tokens, role=role, data=data
            )
        same = _call_hash(self.name, role, messages, temperature, max_tokens, 0)
        self._asked[same] += 1
        return self.caller.complete(
            messages,
            role=role,
            data=data,
            schema=schema,
            temperature=temperature,
            max_tokens=max_tokens,
            step=role,
            attempt=self._asked[same],
        )


def sum_known(amounts: Sequence[float | None]) -> float | None:
    """The sum, or None if a part is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _call_hash(
    model: str,
    role: str,
    messages: Sequence[Mapping[str, str]],
    temperature: float,
    max_tokens: int,
    attempt: int,
) -> str:
    parts = [model, role, list(map(dict, messages)), temperature, max_tokens, attempt]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
