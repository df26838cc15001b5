"""The text that a model is quantized with, and the text that it is checked on: disjoint parts."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from assay.cache import cached
from assay.errors import InputError
from assay.lm import calibration_batches, text
from assay.lm.scoring import encode
from assay.methods.proteus.evaluation import windows
from assay.methods.proteus.plan import model_fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


# The source that stands for what the model writes itself.
GENERATED = "generated"
# Added to the seed of generated text that is held out.
_HELD_OUT_SEED = 1 << 20
# A small model drifts into nonsense at 1.
TEMPERATURE = 0.8


def calibration_tokens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    count: int,
    length: int,
    *,
    seed: int,
) -> Int[Tensor, "count length"]:
    """Sequences from the calibration parts of texts, an equal share from each, in random order.

    Args:
        model: the original; it writes the text of the source "generated".
        sources: names of embedded texts or paths (see `assay.lm.text`), or "generated".
        count: how many sequences.
        length: tokens in a sequence.
        seed: of the draw.

    Raises:
        InputError: a text does not exist, is not text, or is too short.
    """
    if not sources:
        raise InputError("no calibration text was named; pass a name such as python-docs, or a text file")
    if count < len(sources):
        raise InputError(
            f"{count} calibration sequences cannot come from {len(sources)} texts: "
            f"use at least {len(sources)}"
        )
    drawn = []
    for index, source in enumerate(sources):
        share = count // len(sources) + (index < count % len(sources))
        if source == GENERATED:
            drawn.append(_kept(model, tokenizer, share, length, seed))
            continue
        part = text(source).calibration
        try:
            drawn.append(calibration_batches(tokenizer, part, length, share, seed + index))
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    together = torch.cat(drawn)
    return together[torch.randperm(len(together), generator=torch.Generator().manual_seed(seed))]


def held_out_tokens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    count: int,
    length: int,
    *,
    seed: int = 0,
) -> Int[Tensor, "n length"]:
    """Windows from the evaluation parts of texts, an equal share from each.

    A text that has less than its share gives what it has.

    Raises:
        InputError: a text has fewer tokens than one window.
    """
    share = -(-count // len(sources))
    found = []
    for source in sources:
        if source == GENERATED:
            found.append(_kept(model, tokenizer, share, length, seed + _HELD_OUT_SEED))
            continue
        ids = encode(tokenizer, text(source).evaluation)
        try:
            found.append(windows(ids, length, share))
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    return torch.cat(found)


@torch.no_grad()
def generated_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int, length: int, *, seed: int
) -> Int[Tensor, "count length"]:
    """Sequences that a model writes itself: what it is used for shows in what it says.

    A chat model starts where a user's turn begins, invents the question and answers it; another model starts
    with its first token. Sampled at temperature 0.8 from the whole distribution.

    Args:
        count: how many sequences, all at once.
        length: tokens in a sequence.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    found = _opening(model, tokenizer).expand(count, -1)
    found = found[:, :length]
    # transformers renames the argument in 5.24, and drops the old name in 5.40.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache, fresh = None, found
    while found.shape[1] < length:
        output = model(input_ids=fresh.to(model.device), use_cache=True, **{name: cache})
        cache = getattr(output, name)
        chances = (output.logits[:, -1].float() / TEMPERATURE).softmax(-1).cpu()
        fresh = torch.multinomial(chances, 1, generator=generator)
        found = torch.cat([found, fresh], dim=1)
    return found


def _kept(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int, length: int, seed: int
) -> Int[Tensor, "count length"]:
    """Generated tokens from the cache: a job that is resumed must find the same ones, and at once."""
    from safetensors.torch import load_file, save_file

    opening = _opening(model, tokenizer)
    key = {
        "model": model_fingerprint(model),
        "opening": opening[0].tolist(),
        "count": count,
        "length": length,
        "seed": seed,
        "temperature": TEMPERATURE,
    }

    def build(folder: Path) -> None:
        ids = generated_tokens(model, tokenizer, count, length, seed=seed)
        save_file({"ids": ids.contiguous()}, folder / "tokens.safetensors")

    return load_file(cached("generated", key, build) / "tokens.safetensors")["ids"]


def _opening(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Int[Tensor, "1 tokens"]:
    """The tokens in front of a user's first word, or one token where there is no chat template."""
    if tokenizer.chat_template:
        mark = "0"
        turn = tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
        assert isinstance(turn, str)
        ids = tokenizer(turn[: turn.rindex(mark)], add_special_tokens=False)["input_ids"]
        if ids:
            return torch.tensor([ids], dtype=torch.long)
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else model.config.eos_token_id
    return torch.tensor([[first or 0]], dtype=torch.long)
