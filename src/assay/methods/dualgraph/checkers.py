"""Whether a source supports a claim: by words and facts, by embeddings, by entailment, or by asking a model.

The paper's benchmark judges citations with a model (FACT). The rules here are ours: they cost nothing, never
vary, and see what an embedding cannot, a changed number or name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from assay.errors import InputError, require
from assay.methods.dualgraph.comparison import closest_by_words, compare
from assay.methods.dualgraph.embeddings import Encoder, default_encoder
from assay.methods.dualgraph.records import ChatModel, InvalidOutput
from assay.methods.dualgraph.safety import DATA_RULE, delimited

_CHECK_SCHEMA = {
    "type": "object",
    "properties": {"supported": {"type": "boolean"}, "score": {"type": "number", "minimum": 0, "maximum": 1}},
    "required": ["supported", "score"],
}


class Checker(Protocol):
    """What says how far a source supports a claim.

    Attributes:
        name: as the user writes it.
        threshold: the score from which a claim counts as supported.
    """

    name: str
    threshold: float

    def scores(self, claims: Sequence[str], sources: Sequence[str]) -> Float[np.ndarray, " n"]:
        """A score from 0 to 1 for every pair of a claim and a source; `len(sources) == len(claims)`."""
        ...

    def score(self, claim: str, source: str) -> float:
        """The score of one pair."""
        ...


class _Scoring:
    """The score of one pair, from those of many."""

    def scores(self, claims: Sequence[str], sources: Sequence[str]) -> Float[np.ndarray, " n"]:
        raise NotImplementedError

    def score(self, claim: str, source: str) -> float:
        return float(self.scores([claim], [source])[0])


class LexicalChecker(_Scoring):
    """Recall of the claim's content words in the best window, halved or less when a fact is missing."""

    name = "lexical"
    threshold = 0.55

    def scores(self, claims: Sequence[str], sources: Sequence[str]) -> Float[np.ndarray, " n"]:
        """See `Checker.scores`."""
        pairs = _paired(claims, sources)
        return np.array([compare(*pair).support for pair in pairs], dtype=np.float64)


class EmbeddingChecker(_Scoring):
    """Cosine of the claim and the closest sentence of the source, or the closest two neighbours.

    It sees what a claim is about, and not whether its numbers are right: they change it by little.
    """

    name = "embedding"
    threshold = 0.6

    def __init__(self, encoder: Encoder | None = None) -> None:
        self._encoder = encoder

    def scores(self, claims: Sequence[str], sources: Sequence[str]) -> Float[np.ndarray, " n"]:
        """See `Checker.scores`."""
        pairs = _paired(claims, sources)
        options = [closest_by_words(claim, source) for claim, source in pairs]
        texts = list(dict.fromkeys([*claims, *(text for option in options for text in option)]))
        if not texts:
            return np.zeros(0)
        encoder = self._encoder or default_encoder()
        place = {text: i for i, text in enumerate(texts)}
        rows = encoder.encode(texts)
        best = [
            max((float(rows[place[claim]] @ rows[place[text]]) for text in option), default=0.0)
            for claim, option in zip(claims, options, strict=True)
        ]
        return np.clip(np.array(best, dtype=np.float64), 0.0, 1.0)


class CombinedChecker(_Scoring):
    """The mean of word recall and cosine, at most halved when a number or a name of the claim is missing."""

    name = "combined"
    threshold = 0.55

    def __init__(self, encoder: Encoder | None = None) -> None:
        self._embedding = EmbeddingChecker(encoder)

    def scores(self, claims: Sequence[str], sources: Sequence[str]) -> Float[np.ndarray, " n"]:
        """See `Checker.scores`."""
        compared = [compare(*pair) for pair in _paired(claims, sources)]
        support = np.array([c.support for c in compared], dtype=np.float64)
        # What halves the support halves the cosine too: an embedding does not see it.
        gate = np.array([1.0 if c.facts_hold else 0.5 / (len(c.missing) + c.denied) for c in compared])
        return (support + gate * self._embedding.scores(claims, sources)) / 2


def _paired(claims: Sequence[str], sources: Sequence[str]) -> list[tuple[str, str]]:
    if len(claims) != len(sources):
        raise InputError(f"every claim needs a source: got {len(claims)} claims and {len(sources)} sources")
    return list(zip(claims, sources, strict=True))


class EntailmentChecker(_Scoring):
    """The probability that a window of the source entails the claim, by any NLI model of the hub or a folder.

    Args:
        model: a hub id or a folder of a sequence classifier in safetensors with a label "entailment".
        batch: pairs a forward pass.

    Raises:
        InputError: the model cannot be loaded, or has no label that begins with "entail".
        MissingDependencyError: torch or transformers is not installed.
    """

    threshold = 0.5

    def __init__(self, model: str, *, batch: int = 16) -> None:
        self._torch: Any = require("torch", extra="agents")
        transformers: Any = require("transformers", extra="agents")
        self.name = f"nli:{model}"
        self._batch = batch
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            self._model = transformers.AutoModelForSequenceClassification.from_pretrained(
                model, use_safetensors=True
            ).eval()
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"the NLI model {model} cannot be loaded: {str(error).splitlines()[0]}"
            ) from error
        labels = {int(i): str(label) for i, label in self._model.config.id2label.items()}
        entailed = [i for i, label in labels.items() if label.casefold().startswith("entail")]
        if not entailed:
            raise InputError(
                f"{model} has no label for entailment (its labels: {', '.join(labels.values())}); "
                "pass a model trained on natural-language inference"
            )
        self._entailed = entailed[0]

    def scores(self, claims: Sequence[str], sources: Sequence[str]) -> Float[np.ndarray, " n"]:
        """See `Checker.scores`: the best of the windows that share most words with the claim."""
        pairs: list[tuple[int, str, str]] = []
        for i, (claim, source) in enumerate(_paired(claims, sources)):
            start, end = compare(claim, source).window
            premises = [source[start:end], *closest_by_words(claim, source)[:4]]
            pairs += [(i, premise, claim) for premise in dict.fromkeys(premises) if premise]
        best = np.zeros(len(claims))
        with self._torch.inference_mode():
            for first in range(0, len(pairs), self._batch):
                part = pairs[first : first + self._batch]
                tokens = self._tokenizer(
                    [premise for _, premise, _ in part],
                    [claim for _, _, claim in part],
                    truncation="only_first",
                    max_length=min(512, self._model.config.max_position_embeddings - 2),
                    padding=True,
                    return_tensors="pt",
                )
                chances = self._model(**tokens).logits.softmax(-1)[:, self._entailed].tolist()
                for (i, _, _), chance in zip(part, chances, strict=True):
                    best[i] = max(best[i], chance)
        return best


class ModelChecker(_Scoring):
    """A chat model's judgement of each pair (the question that FACT asks), as validated JSON.

    Args:
        model: the judge.
        attempts: answers asked for until one can be read.
    """

    name = "llm"
    threshold = 0.5

    def __init__(self, model: ChatModel, *, attempts: int = 3) -> None:
        self._model = model
        self._attempts = attempts

    def scores(self, claims: Sequence[str], sources: Sequence[str]) -> Float[np.ndarray, " n"]:
        """See `Checker.scores`.

        Raises:
            InvalidOutput: the model gave no readable judgement of a pair.
        """
        return np.array([self._judge(*pair) for pair in _paired(claims, sources)], dtype=np.float64)

    def _judge(self, claim: str, source: str) -> float:
        messages = [
            {
                "role": "system",
                "content": "You check citations. Say whether the source states the claim, with every number "
                "and every name in it. General knowledge does not count. Answer with JSON: "
                '{"supported": true or false, "score": from 0 (contradicted or absent) to 1 (stated)}. '
                + DATA_RULE,
            },
            {
                "role": "user",
                "content": f"Claim:\n{delimited(claim, 'claim')}\n\nSource:\n{delimited(source, 'source')}",
            },
        ]
        answer = ""
        for _ in range(self._attempts):
            answer = self._model.chat(
                messages,
                schema=_CHECK_SCHEMA,
                temperature=0.0,
                max_tokens=256,
                role="check",
                data={"claim": claim, "source": source},
            ).text
            score = _readable(answer)
            if score is not None:
                return score
        raise InvalidOutput(f"{self._model.name} gave no readable judgement of a citation: {answer[:80]!r}")


def _readable(answer: str) -> float | None:
    """The score of a judgement; None when it is no JSON object with both fields, or contradicts itself."""
    try:
        judged: Any = json.loads(answer[answer.index("{") : answer.rindex("}") + 1])
    except ValueError:
        return None
    if not isinstance(judged, Mapping) or not isinstance(judged.get("supported"), bool):
        return None
    score = judged.get("score", float(judged["supported"]))
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        return None
    # A word decides over a number that disagrees with it.
    return max(score, 0.5) if judged["supported"] else min(score, 0.49)


def load_checker(name: str, *, model: ChatModel | None = None, encoder: Encoder | None = None) -> Checker:
    """The checker of a name.

    Args:
        name: "lexical", "embedding", "combined", "llm", or "nli:" and a model's hub id or folder.
        model: the judge of "llm".
        encoder: compares sentences; the shared default if None.

    Raises:
        InputError: an unknown name, "llm" without a model that can judge, or an NLI model that does not load.
    """
    if name == "lexical":
        return LexicalChecker()
    if name == "embedding":
        return EmbeddingChecker(encoder)
    if name == "combined":
        return CombinedChecker(encoder)
    if name == "llm":
        if model is None:
            raise InputError("the checker llm needs a chat model: pass --llm, for example openai:gpt-4.1")
        return ModelChecker(model)
    kind, _, which = name.partition(":")
    if kind == "nli" and which:
        return EntailmentChecker(which)
    raise InputError(f"no checker is called {name!r}: use lexical, embedding, combined, llm or nli:MODEL")
