"""Sequences of tokens from a text, for methods that look at activations before they change weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from assay.errors import InputError
from assay.lm.scoring import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def calibration_batches(
    tokenizer: PreTrainedTokenizerBase, text: str, sequence_length: int, n: int, seed: int
) -> Int[Tensor, "n sequence_length"]:
    """Random stretches of a text that do not overlap, each `sequence_length` tokens long.

    The text is cut into consecutive stretches from a random first token on, and `n` of them are drawn without
    replacement. Use `.split(batch_size)` for batches.

    Args:
        text: the text to draw from, e.g. `assay.lm.text("python-docs").calibration`.
        sequence_length: tokens in a sequence.
        n: how many sequences.
        seed: of the random draw; the same seed gives the same sequences.

    Raises:
        InputError: the text is too short for `n` sequences, or `sequence_length` or `n` is not positive.
    """
    if sequence_length < 1 or n < 1:
        raise InputError(f"sequence_length {sequence_length} and n {n} must be at least 1")
    ids = encode(tokenizer, text)
    if len(ids) < n * sequence_length:
        raise InputError(
            f"the calibration text has {len(ids)} tokens; at least {n} x {sequence_length} "
            f"({n * sequence_length}) are needed: "
            "pass a longer text, fewer sequences or a smaller sequence length"
        )
    generator = torch.Generator().manual_seed(seed)
    # The first token may move only as far as the text has tokens to spare.
    slack = min(sequence_length - 1, len(ids) - n * sequence_length)
    first = int(torch.randint(slack + 1, (1,), generator=generator))
    stretches = ids[first : first + (len(ids) - first) // sequence_length * sequence_length].view(
        -1, sequence_length
    )
    return stretches[torch.randperm(len(stretches), generator=generator)[:n]]
