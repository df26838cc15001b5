"""Texts from a model: replies, under steering or not, and pairs for a concept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from assay.errors import InputError
from assay.methods.crh.baselines import instructed
from assay.methods.crh.concepts import Concept
from assay.methods.crh.detectors import corruption
from assay.methods.crh.extraction import decoder_device
from assay.methods.crh.pairs import MINIMUM, ConceptPairs, Pair, PairsError
from assay.methods.crh.templates import encode_prompt, pad, padding_token

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# A cut at the last full stop must leave this much.
SHORTEST = 20
_END = re.compile(r"[.!?](?=\s|$)|```(?=\s|$)")
OnBatch = Callable[[int, int], None]


@torch.no_grad()
def replies(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    *,
    template: str = "chat",
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    seed: int = 0,
    batch_size: int = 16,
    on_batch: OnBatch = lambda done, total: None,
) -> list[str]:
    """The model's answers. Use it inside `steer` for steered ones.

    Prompts of a batch are padded on the left and the answer is what follows the padded prompt, so that no
    part of a prompt leaks into it.

    Args:
        template: see `prompt_text`.
        max_new_tokens: of each answer.
        temperature: 0 for greedy answers, which are the same every time; the paper samples at 0.1.
        seed: of the sampling; the state of torch's own generator is put back.
        batch_size: answers at once; under `steer` with a vector a row it must be their number.

    Raises:
        InputError: `max_new_tokens` is not positive or `temperature` negative.
    """
    if max_new_tokens < 1 or temperature < 0 or batch_size < 1:
        raise InputError(
            f"max_new_tokens {max_new_tokens} and batch_size {batch_size} must be at least 1 and "
            f"temperature {temperature} not negative"
        )
    encoded = [encode_prompt(tokenizer, template, question) for question in questions]
    device = decoder_device(model)
    generate: Any = model.generate
    padding = padding_token(tokenizer)
    options: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        options = {"do_sample": True, "temperature": temperature, "top_k": 0}
    found = []
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        for start in range(0, len(encoded), batch_size):
            ids, mask = pad(encoded[start : start + batch_size], padding, left=True)
            output = generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=max_new_tokens,
                pad_token_id=padding,
                **options,
            )
            new = output[:, ids.shape[1] :].tolist()
            texts: list[str] = tokenizer.batch_decode(new, skip_special_tokens=True)
            found += [text.strip() for text in texts]
            on_batch(min(start + batch_size, len(encoded)), len(encoded))
    return found


@dataclass(frozen=True)
class Generated:
    """Pairs that a model wrote.

    Attributes:
        pairs: those that passed every filter.
        rejected: how many questions failed each filter.
        asked: how many questions were asked.
    """

    pairs: ConceptPairs
    rejected: dict[str, int]
    asked: int


def generate_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    concept: Concept,
    questions: Sequence[str],
    *,
    wanted: int | None = None,
    template: str = "chat",
    max_new_tokens: int = 40,
    temperature: float = 0.0,
    seed: int = 0,
    batch_size: int = 16,
    on_batch: OnBatch = lambda done, total: None,
) -> Generated:
    """Let the model answer questions with and without the instruction for a concept, and keep good pairs.

    A pair is kept when the answer with the instruction shows the concept and the one without does not, both
    are readable, and they differ. Answers are cut at their last full stop.

    Args:
        concept: gives instruction and detector.
        questions: to ask.
        wanted: stop when so many pairs were kept; None asks all questions.
        on_batch: called with the questions asked so far and their number.

    Raises:
        PairsError: fewer than three pairs were kept; the message says why the others were not.
    """
    kept: list[Pair] = []
    rejected: Counter[str] = Counter()
    asked = 0
    options: dict[str, Any] = {
        "template": template,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
        "batch_size": batch_size,
    }
    for start in range(0, len(questions), batch_size):
        if wanted is not None and len(kept) >= wanted:
            break
        batch = list(questions[start : start + batch_size])
        plain = replies(model, tokenizer, batch, **options)
        asking = [instructed(question, concept.instruction) for question in batch]
        shown = replies(model, tokenizer, asking, **options)
        for number, question in enumerate(batch, start):
            without, present = _finished(plain[number - start]), _finished(shown[number - start])
            if reason := _reason(concept, without, present):
                rejected[reason] += 1
            else:
                kept.append(Pair(question, concept.id, without, present, f"q{number}", concept.id))
        asked += len(batch)
        on_batch(asked, len(questions))
    if len(kept) < MINIMUM:
        reasons = ", ".join(f"{count} {reason}" for reason, count in rejected.most_common()) or "none asked"
        raise PairsError(
            f"the model gave {len(kept)} usable pairs for {concept.id!r} in {asked} questions; {MINIMUM} are "
            f"needed ({reasons}). Try another concept, more questions or a larger model"
        )
    return Generated(ConceptPairs(tuple(kept[:wanted])), dict(rejected), asked)


def _reason(concept: Concept, without: str, present: str) -> str | None:
    if corruption(without) or corruption(present):
        return "unreadable"
    if without == present:
        return "identical"
    if not concept.detector(present):
        return "without the concept"
    if concept.detector(without):
        return "with the concept unasked"
    return None


def _finished(text: str) -> str:
    """The text up to its last full stop, so that no response ends in the middle of a sentence."""
    ends = [match.end() for match in _END.finditer(text)]
    if ends and ends[-1] >= SHORTEST:
        return text[: ends[-1]]
    return text
