"""From a question and a response to tokens: the tokenizer's chat template, the paper's, or the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from assay.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CRH = "User: {question}\nAssistant: {response}"


def prompt_text(tokenizer: PreTrainedTokenizerBase, template: str, question: str) -> str:
    """What the model reads before it answers `question`.

    Args:
        template: `"chat"` for the tokenizer's chat template, `"crh"` for the paper's
            `User: ... Assistant: ...`, or a text of your own with `{question}` and, at its end, `{response}`.

    Raises:
        InputError: the tokenizer has no chat template, or a template of your own lacks a part.
    """
    if template == "chat":
        if not getattr(tokenizer, "chat_template", None):
            raise InputError("the tokenizer has no chat template; pass template='crh' or one of your own")
        messages = [{"role": "user", "content": question}]
        return cast(str, tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    pattern = CRH if template == "crh" else template
    if "{question}" not in pattern or not pattern.endswith("{response}"):
        raise InputError(
            f"template {template!r} must be 'chat', 'crh', or a text with {{question}} that ends in "
            "{response}"
        )
    return pattern.removesuffix("{response}").replace("{question}", question)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, template: str, question: str) -> list[int]:
    """The tokens of a prompt, without spaces at its end (they belong to the first word of a response)."""
    return _tokens(tokenizer, template, prompt_text(tokenizer, template, question).rstrip(" "))


def encode_response(
    tokenizer: PreTrainedTokenizerBase, template: str, question: str, response: str
) -> tuple[list[int], list[int]]:
    """The tokens of a prompt and those that the response adds to it.

    Raises:
        InputError: the response merges with the end of the prompt, or adds no token.
    """
    text = prompt_text(tokenizer, template, question)
    prompt = _tokens(tokenizer, template, text.rstrip(" "))
    whole = _tokens(tokenizer, template, text + response)
    if whole[: len(prompt)] != prompt:
        raise InputError(
            f"the response {response[:40]!r} merges with the end of the prompt of {question[:40]!r}: its "
            "first token cannot be told apart; end the template in a line break or a space"
        )
    if len(whole) == len(prompt):
        raise InputError(f"the response {response!r} to {question[:40]!r} adds no token to the prompt")
    return prompt, whole[len(prompt) :]


def _tokens(tokenizer: PreTrainedTokenizerBase, template: str, text: str) -> list[int]:
    # A chat template writes its special tokens itself.
    options: dict[str, Any] = {"add_special_tokens": template != "chat", "verbose": False}
    return list(cast(Any, tokenizer(text, **options))["input_ids"])


def pad(
    sequences: Sequence[Sequence[int]], padding: int, *, left: bool
) -> tuple[Int[Tensor, "rows tokens"], Int[Tensor, "rows tokens"]]:
    """Token ids of equal length and their attention mask."""
    longest = max(map(len, sequences))
    ids = torch.full((len(sequences), longest), padding, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        place = slice(longest - len(sequence), longest) if left else slice(0, len(sequence))
        ids[row, place] = torch.tensor(sequence, dtype=torch.long)
        mask[row, place] = 1
    return ids, mask


def padding_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that fills rows; any will do, because the attention mask hides it."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(token, int):
            return token
    return 0
