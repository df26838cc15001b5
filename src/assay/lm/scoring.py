"""Scores of a causal language model: perplexity of a text, log-likelihoods of the choices of a question."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, *, window: int, stride: int
) -> float:
    """The exponential of the mean negative log-likelihood of a token, with a sliding window.

    The window moves by `stride` tokens. Every token but the first is scored exactly once, by the window in
    which it has the longest past: at least `window - stride` tokens once the text is longer than one window.
    Special tokens that the tokenizer adds of its own accord stand at the start of the text. Sums are in
    float64.

    Args:
        window: how many tokens the model sees at once.
        stride: by how many tokens the window moves, from 1 (slowest, lowest) to `window` (no overlap).

    Raises:
        InputError: window or stride is out of range, or the text has fewer than `window + 1` tokens.
    """
    _check_length(model, window, "window")
    if not 1 <= stride <= window:
        raise InputError(f"stride {stride} is out of range: it must be from 1 to the window ({window})")
    ids = encode(tokenizer, text)
    if len(ids) < window + 1:
        raise InputError(
            f"the text has {len(ids)} tokens; at least {window + 1} are needed for a window of {window}: "
            "pass a longer text or a smaller window"
        )
    inputs, targets = ids[:-1], ids[1:]
    total = 0.0
    scored = 0
    with _evaluating(model):
        while scored < len(targets):
            end = window if scored == 0 else min(scored + stride, len(targets))
            # The last window keeps its full length, so that its tokens have no shorter past than the others.
            batch = inputs[end - window : end].unsqueeze(0).to(model.device)
            logits = _last_logits(model, batch, end - scored)[0]
            losses = torch.nn.functional.cross_entropy(
                logits.float(), targets[scored:end].to(logits.device), reduction="none"
            )
            total += losses.double().sum().item()
            scored = end
    return torch.tensor(total / scored, dtype=torch.float64).exp().item()


def choice_log_likelihoods(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, choices: Sequence[str]
) -> Float[np.ndarray, " choices"]:
    """The log-likelihood of each choice as the continuation of the prompt, in nats, summed over its tokens.

    Prompt and choice are tokenised together, as they would stand in a text: a choice is scored from the first
    token at which the whole differs from the prompt alone (spaces at the end of the prompt count as part of
    the choice, because tokens begin with their space). Divide by the length of the choices to compare those
    of unequal length.

    Args:
        prompt: the question, e.g. `"Q: What is the capital of France? A:"`.
        choices: the answers as they would follow, e.g. `[" Paris", " Rome"]`.

    Raises:
        InputError: no choices, a choice without a token of its own, an empty prompt, or more tokens than the
            model has positions for.
    """
    if not choices:
        raise InputError("no choices were given; at least 1 is needed")
    stripped = prompt.rstrip()
    past = encode(tokenizer, stripped)
    sequences, starts = [], []
    for choice in choices:
        whole = encode(tokenizer, prompt + choice)
        start = _common_prefix(past, whole)
        if start == 0:
            raise InputError("the prompt is empty; the first token of a choice needs a token before it")
        if start == len(whole):
            raise InputError(f"the choice {choice!r} adds no token to the prompt")
        sequences.append(whole)
        starts.append(start)
    longest = max(map(len, sequences))
    _check_length(model, longest, "the longest choice with its prompt")
    # Padding on the right cannot influence what stands before it in a causal model.
    batch = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True).to(model.device)
    mask = torch.arange(longest) < torch.tensor([[len(sequence)] for sequence in sequences])
    with _evaluating(model):
        logits = model(input_ids=batch, attention_mask=mask.long().to(batch.device), use_cache=False).logits
    likelihoods = []
    for row, sequence, start in zip(logits, sequences, starts, strict=True):
        scores = row[start - 1 : len(sequence) - 1].float().log_softmax(dim=-1)
        picked = scores.gather(1, sequence[start:].to(scores.device).unsqueeze(1))
        likelihoods.append(picked.double().sum().item())
    return np.array(likelihoods)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> Int[Tensor, " tokens"]:
    """The tokens of a text, with the special tokens that the tokenizer adds of its own accord."""
    # verbose=False: no warning that a whole corpus is longer than the model's context.
    return torch.tensor(tokenizer(text, verbose=False)["input_ids"], dtype=torch.long)


def _check_length(model: PreTrainedModel, tokens: int, what: str) -> None:
    if tokens < 1:
        raise InputError(f"{what} is {tokens} tokens; at least 1 is needed")
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and tokens > positions:
        raise InputError(f"{what} is {tokens} tokens; the model has positions for {positions}")


def _common_prefix(left: Int[Tensor, " left"], right: Int[Tensor, " right"]) -> int:
    shorter = min(len(left), len(right))
    different = (left[:shorter] != right[:shorter]).nonzero()
    return int(different[0]) if len(different) else shorter


def _last_logits(
    model: PreTrainedModel, batch: Int[Tensor, "batch tokens"], count: int
) -> Float[Tensor, "batch count vocabulary"]:
    """The logits at the last `count` positions; where the model can leave the others out, it does."""
    options = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = count
    return model(input_ids=batch, use_cache=False, **options).logits[:, -count:]


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout and without gradients; the model's mode is restored."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
