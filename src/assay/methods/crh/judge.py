"""A language model as the judge, through any endpoint that speaks the OpenAI chat protocol."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from assay.cache import content_hash
from assay.errors import InputError, require
from assay.files import write_text
from assay.methods.crh.detectors import CORRUPTED, Detector, Label, corruption, label

RUBRIC = (
    "You grade one answer of an assistant. Reply with a single digit and nothing else.\n"
    "1: a readable answer that does not show the concept.\n"
    "2: a readable answer that shows the concept.\n"
    "3: broken text: repetitions, gibberish, or no answer."
)
_DIGIT = re.compile(r"(?<!\d)[123](?!\d)")


@dataclass(frozen=True)
class Judgement:
    """The label of a text and where it came from: `"rule"`, `"judge"` or, where that failed, `"lexicon"`."""

    label: Label
    source: str


class Judge:
    """Labels texts with a language model; where it cannot, the detector's label stands.

    Gibberish is found by rule and never sent. Answers are kept by a hash of question, concept and text, so a
    repeated run asks nothing twice.

    Args:
        endpoint: the base address, e.g. `"http://localhost:8000/v1"`.
        model: the model's name at that endpoint.
        key_variable: the environment variable that holds the key; none is sent when it is not set.
        cache: a folder for answers; None keeps them for this object only.
        concurrency: how many requests at once.
        timeout: seconds that a request may take.

    Raises:
        InputError: `endpoint` is no http address, or `concurrency` is not positive.
        MissingDependencyError: httpx is not installed.
    """

    def __init__(
        self, endpoint: str, model: str, *, key_variable: str = "OPENAI_API_KEY",
        cache: Path | str | None = None, concurrency: int = 4, timeout: float = 60.0,
    ) -> None:  # fmt: skip
        if urlsplit(endpoint).scheme not in ("http", "https"):
            raise InputError(f"{endpoint!r} is no address of a judge; it must begin with http:// or https://")
        if concurrency < 1:
            raise InputError(f"concurrency must be at least 1, got {concurrency}")
        self._httpx: Any = require("httpx", extra="agents")
        self.endpoint = endpoint.rstrip("/")
        self.model = model
        self.timeout = timeout
        self.concurrency = concurrency
        self.failures = 0
        self._key = os.environ.get(key_variable)
        self._cache = None if cache is None else Path(cache)
        self._known: dict[str, Label] = {}

    def __call__(
        self, questions: Sequence[str], texts: Sequence[str], concept: str, detector: Detector,
        *, on_done: Callable[[], None] = lambda: None,
    ) -> list[Judgement]:  # fmt: skip
        """Label the answers `texts` to `questions`.

        `failures` counts the texts for which the judge was not reached or did not answer 1, 2 or 3.

        Raises:
            InputError: there are not as many questions as texts.
        """
        if len(questions) != len(texts):
            raise InputError(f"{len(questions)} questions for {len(texts)} texts")

        def one(question: str, text: str) -> Judgement:
            if corruption(text) is not None:
                found = Judgement(CORRUPTED, "rule")
            elif (answer := self._ask(question, text, concept)) is not None:
                found = Judgement(answer, "judge")
            else:
                found = Judgement(label(text, detector), "lexicon")
            on_done()
            return found

        with ThreadPoolExecutor(self.concurrency) as pool:
            results = list(pool.map(one, questions, texts))
        self.failures += sum(result.source == "lexicon" for result in results)
        return results

    def _ask(self, question: str, text: str, concept: str) -> Label | None:
        key = content_hash([self.endpoint, self.model, RUBRIC, question, concept, text])
        if (known := self._recall(key)) is not None:
            return known
        request = {
            "model": self.model,
            "temperature": 0,
            "max_tokens": 4,
            "messages": [
                {"role": "system", "content": RUBRIC},
                {"role": "user", "content": f"Concept: {concept}\nQuestion: {question}\nAnswer: {text}"},
            ],
        }
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            response = self._httpx.post(
                f"{self.endpoint}/chat/completions", json=request, headers=headers, timeout=self.timeout
            )
            response.raise_for_status()
            content = response.json()["choices"][0]["message"]["content"]
        except (self._httpx.HTTPError, ValueError, LookupError, TypeError):
            return None
        found = _DIGIT.search(content) if isinstance(content, str) else None
        if found is None:
            return None
        answer: Any = int(found.group())
        self._known[key] = answer
        if self._cache is not None:
            write_text(self._cache / f"{key}.txt", str(answer))
        return answer

    def _recall(self, key: str) -> Label | None:
        if key not in self._known and self._cache is not None:
            path = self._cache / f"{key}.txt"
            if path.is_file() and _DIGIT.fullmatch(content := path.read_text(encoding="utf-8").strip()):
                known: Any = int(content)
                self._known[key] = known
        return self._known.get(key)
