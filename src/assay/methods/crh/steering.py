"""Add vectors to the output of a block while a model runs, at chosen tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from assay.errors import InputError
from assay.lm import patch
from assay.methods.crh.blocks import Decoder, find_decoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Position = Literal["all", "prompt", "last_prompt", "output"]
POSITIONS: tuple[Position, ...] = ("all", "prompt", "last_prompt", "output")
TokenEdit = Callable[
    [Float[Tensor, "rows tokens width"], Bool[Tensor, "rows tokens"]], Float[Tensor, "rows tokens width"]
]


@contextmanager
def steer(
    model: PreTrainedModel,
    vectors: Float[Tensor, "*rows width"],
    layer: int,
    *,
    position: Position = "all",
    prompt_lengths: int | Sequence[int] | None = None,
    module_path: str | None = None,
) -> Iterator[None]:
    """Add vectors to the residual stream after block `layer` while the `with` block runs.

    Works with `generate` (with and without a key-value cache), with plain forward calls and under autograd.
    Padding is never steered. The model is as it was afterwards, also after an error.

    Args:
        model: any decoder-only model of transformers, on one device or several.
        vectors: one vector for all rows, or a row of its own for every row of the batch.
        layer: the block, counted from 0; the vector is added to what it returns (after attention and MLP).
        position: `"all"` tokens; the tokens of the `"prompt"`; the `"last_prompt"` token; or the
            `"output"`: the last token of the prompt and everything generated after it.
        prompt_lengths: how many tokens of each row (without padding) are prompt. By default the first call
            without a past is the prompt; say it where a call holds prompt and response, or where `generate`
            runs without a cache.
        module_path: the path of the list of blocks (see `find_decoder`).

    Raises:
        InputError: a vector has another width than the model or is not finite, there is no such layer or
            position, or the batch has another number of rows than `vectors`.
    """
    decoder = find_decoder(model, module_path)
    if vectors.dim() not in (1, 2) or vectors.shape[-1] != decoder.width:
        raise InputError(
            f"vectors of shape {tuple(vectors.shape)} do not fit a model of width {decoder.width}; "
            "pass [width] or [rows, width]"
        )
    if not torch.isfinite(vectors).all():
        raise InputError("the steering vector holds NaN or infinity")

    def add(hidden: Tensor, selected: Tensor) -> Tensor:
        if vectors.dim() == 2 and len(vectors) != len(hidden):
            raise InputError(f"there are {len(vectors)} vectors for a batch of {len(hidden)} rows")
        shift = vectors.to(device=hidden.device, dtype=torch.promote_types(hidden.dtype, torch.float32))
        shift = shift if shift.dim() == 1 else shift.unsqueeze(1)
        return hidden + shift * selected.unsqueeze(-1)

    with editing(model, decoder, layer, add, position=position, prompt_lengths=prompt_lengths):
        yield


@contextmanager
def editing(
    model: PreTrainedModel, decoder: Decoder, layer: int, edit: TokenEdit, *,
    position: Position = "all", prompt_lengths: int | Sequence[int] | None = None,
) -> Iterator[None]:  # fmt: skip
    """Apply `edit(hidden, selected)` to the output of a block; `selected` marks the tokens to change.

    Raises:
        InputError: there is no such layer or position.
    """
    if position not in POSITIONS:
        raise InputError(f"position {position!r} is not known; use one of {', '.join(POSITIONS)}")
    tokens = _Tokens(decoder.stack, position, prompt_lengths)
    path = f"{decoder.path}.{decoder.layer(layer)}"
    handle = decoder.stack.register_forward_pre_hook(tokens.read, with_kwargs=True)
    try:
        with patch(model, {path: lambda hidden: edit(hidden, tokens.selected.to(hidden.device))}):
            yield
    finally:
        handle.remove()


class _Tokens:
    """Which tokens of the running call are steered, from what the stack of blocks is called with."""

    def __init__(
        self, stack: nn.Module, position: Position, prompt_lengths: int | Sequence[int] | None
    ) -> None:
        self._signature = inspect.signature(stack.forward)
        self._position: Position = position
        self._given = None if prompt_lengths is None else torch.as_tensor(prompt_lengths)
        self._lengths: Int[Tensor, " rows"] | None = None
        self.selected = torch.zeros(0, 0, dtype=torch.bool)

    def read(self, stack: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        bound = self._signature.bind_partial(*arguments).arguments
        named: Mapping[str, Any] = {**bound, **keywords}
        states = named.get("input_ids")
        if states is None:
            states = named["inputs_embeds"]
        rows, count = states.shape[:2]
        cache = named.get("cache")
        if cache is None:
            cache = named.get("past_key_values")
        past = 0 if cache is None else int(cache.get_seq_length())
        mask = named.get("attention_mask")
        if mask is None:
            real = torch.ones(rows, count, dtype=torch.bool, device=states.device)
            index = torch.arange(past, past + count, device=states.device).expand(rows, count)
        elif isinstance(mask, Tensor) and mask.dim() == 2:
            # The mask covers the past too, so counting it numbers the tokens of a row without its padding.
            real = mask[:, -count:].bool()
            index = (mask.long().cumsum(dim=1) - 1)[:, -count:]
        else:
            raise InputError(
                "steering needs the 2-D attention mask of the batch; static caches prepare another: "
                "use the default cache"
            )
        if past == 0 or self._lengths is None:
            self._lengths = (index.max(dim=1).values + 1) if self._given is None else self._given
        lengths = self._lengths.to(index.device).expand(rows).unsqueeze(1)
        self.selected = real & _chosen(self._position, index, lengths)


def _chosen(
    position: Position, index: Int[Tensor, "rows tokens"], lengths: Int[Tensor, "rows 1"]
) -> Bool[Tensor, "rows tokens"]:
    if position == "all":
        return torch.ones_like(index, dtype=torch.bool)
    if position == "prompt":
        return index < lengths
    if position == "last_prompt":
        return index == lengths - 1
    return index >= lengths - 1
