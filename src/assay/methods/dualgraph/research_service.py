"""Questions as they come in over a network: one run folder a question, so many at a time, answers kept."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.cache import content_hash
from assay.errors import InputError
from assay.methods.dualgraph.backends import open_backend
from assay.methods.dualgraph.citations import precision
from assay.methods.dualgraph.loop import Observer
from assay.methods.dualgraph.records import ChatModel, ResearchConfig
from assay.methods.dualgraph.research_run import ResearchRun, research
from assay.methods.dualgraph.state import config_values

LONGEST_QUESTION = 8000
_NAME = re.compile(r"[0-9a-f]{16}")


class Busy(RuntimeError):
    """As many questions as are allowed are being researched."""


@dataclass(frozen=True)
class Answer:
    """A finished run and the name under which it is kept."""

    name: str
    run: ResearchRun

    def summary(self) -> dict[str, Any]:
        """What clients are told beside the report, as JSON values."""
        share = precision(self.run.citations)
        return {
            "run": self.name,
            "status": self.run.status,
            "citations": len(self.run.citations),
            "citation_precision": None if share is None else round(share, 4),
            "evidence": len(self.run.evidence),
            "searches": len(self.run.queries),
            "usd": self.run.usd,
        }


class ResearchService:
    """Researches questions in the same places with the same model.

    The same question is answered from its finished run, or goes on where its run was stopped.

    Args:
        model: the chat model.
        search: names of search back ends, as `backends.open_backend` takes them.
        runs: the folder for the runs; made if needed.
        config: how to research.
        hosts: keyword arguments of `backends.open_backend` about hosts.
        at_once: questions under research at the same time.

    Raises:
        InputError: nothing to search in, a back end that does not exist, or `at_once` below 1.
    """

    def __init__(
        self,
        model: ChatModel,
        search: Sequence[str],
        runs: Path,
        *,
        config: ResearchConfig | None = None,
        hosts: Mapping[str, Any] | None = None,
        at_once: int = 2,
    ) -> None:
        if at_once < 1:
            raise InputError(f"at least 1 question has to be allowed at a time, got {at_once}")
        if not search:
            raise InputError("there is nothing to search in: pass --docs FOLDER or --search searxng:URL")
        self.model = model
        self.search = tuple(search)
        self.runs = runs
        self.config = config or ResearchConfig()
        self._hosts = dict(hosts or {})
        self._free = threading.BoundedSemaphore(at_once)
        # A mistake in a back end's name shows at the start and not with the first question.
        with ExitStack() as stack:
            self._open(stack)
        runs.mkdir(parents=True, exist_ok=True)

    def _open(self, stack: ExitStack) -> list[Any]:
        opened = []
        for spec in self.search:
            backend: Any = open_backend(spec, **self._hosts)
            if hasattr(backend, "close"):
                stack.callback(backend.close)
            opened.append(backend)
        return opened

    def answer(self, question: str, observer: Observer | None = None) -> Answer:
        """Research a question, or return the answer that is there.

        Raises:
            Busy: too many questions at a time.
            InputError: an empty or a very long question, or (`RunLocked`) one that is being researched.
            ServiceError: the search or the model failed; asking again goes on.
        """
        question = " ".join(question.split())
        if len(question) > LONGEST_QUESTION:
            raise InputError(
                f"the question has {len(question)} characters; at most {LONGEST_QUESTION} are taken"
            )
        if not self._free.acquire(blocking=False):
            raise Busy("as many questions as are allowed are being researched: ask again later")
        try:
            name = self.name_of(question)
            with ExitStack() as stack:
                run = research(
                    question,
                    llm=self.model,
                    search=self._open(stack),
                    config=self.config,
                    run_dir=self.runs / name,
                    observer=observer,
                )
            return Answer(name, run)
        finally:
            self._free.release()

    def name_of(self, question: str) -> str:
        """The name of a question's run: of everything that determines the answer."""
        return content_hash(
            {
                "question": question,
                "model": self.model.name,
                "search": list(self.search),
                "config": config_values(self.config),
            }
        )

    def folder(self, name: str) -> Path:
        """The folder of a run.

        Raises:
            InputError: no run has this name.
        """
        if not _NAME.fullmatch(name) or not (self.runs / name).is_dir():
            raise InputError(f"no run is called {name[:40]!r}")
        return self.runs / name

    def gaps(self, name: str, limit: int = 20) -> list[dict[str, Any]]:
        """The weak and missing relations of a run, best first, as JSON values."""
        if not 1 <= limit <= 60:
            raise InputError(f"limit must be from 1 to 60, got {limit}")
        found = ResearchRun.load(self.folder(name)).gaps(max(limit, 5))[:limit]
        return [
            {"type": gap.type, "between": list(gap.names), "reason": gap.reason, "known": gap.content}
            for gap in found
        ]

    def evidence(self, name: str, identifier: int) -> dict[str, Any]:
        """A piece of evidence of a run with its source, as JSON values.

        Raises:
            InputError: there is none with this id.
        """
        piece = ResearchRun.load(self.folder(name)).evidence.get(identifier)
        if piece is None:
            raise InputError(f"the run has no evidence {identifier}")
        return {
            "id": piece.id,
            "title": piece.source_title,
            "url": piece.source_url,
            "content": piece.content,
            "span": list(piece.span),
            "page": piece.page,
        }
