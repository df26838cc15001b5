"""Where a decoder keeps its blocks, and how to start it in the middle.

Transformers' decoders differ in their names but not in their shape: a module holds a list of blocks and sends
one hidden state through them. Everything here rests on that, so that it works for any family.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from assay.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SUPPORTED = "model.layers (Llama, Qwen, Gemma, ...), transformer.h (GPT-2, ...), gpt_neox.layers"


@dataclass(frozen=True)
class Decoder:
    """The parts of a causal language model that steering touches.

    Attributes:
        stack: the module that sends the hidden state through the blocks.
        path: the path of the list of blocks, e.g. `"model.layers"`.
        blocks: the blocks; "layer l" (counted from 0) always means the output of `blocks[l]`.
        width: the width d of the hidden state.
    """

    stack: nn.Module
    path: str
    blocks: nn.ModuleList
    width: int

    def layer(self, layer: int) -> int:
        """`layer`, if there is such a block.

        Raises:
            InputError: there is none.
        """
        if not 0 <= layer < len(self.blocks):
            raise InputError(
                f"layer {layer} does not exist; the model has layers 0 to {len(self.blocks) - 1}"
            )
        return layer

    def default_layers(self) -> tuple[int, ...]:
        """The layers at one half and three quarters of the depth (the paper's code)."""
        depth = len(self.blocks)
        return tuple(sorted({min(int(depth * share), depth - 1) for share in (0.5, 0.75)}))


def find_decoder(model: PreTrainedModel, path: str | None = None) -> Decoder:
    """Find the blocks of a decoder of any family.

    Args:
        model: a causal language model.
        path: the path of the list of blocks, for a module tree that is not recognised.

    Raises:
        InputError: the model is an encoder-decoder, or its blocks cannot be found (or not at `path`).
    """
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"{type(model).__name__} is an encoder-decoder; steering needs a decoder-only model")
    text = config.get_text_config()
    depth = getattr(text, "num_hidden_layers", None)
    lists = {name: part for name, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    if path is None:
        fitting = [name for name, part in lists.items() if len(part) == depth]
        if not fitting:
            raise InputError(
                f"the blocks of {type(model).__name__} were not found; supported layouts: {SUPPORTED}. Pass "
                f"the path of the list of blocks; the model's lists: {', '.join(lists) or 'none'}"
            )
        path = min(fitting, key=lambda name: (name.count("."), len(name)))
    elif path not in lists:
        raise InputError(f"{path!r} is no list of blocks; the model's lists: {', '.join(lists) or 'none'}")
    stack = model.get_submodule(path.rpartition(".")[0])
    return Decoder(stack, path, lists[path], int(text.hidden_size))


def cache_keyword(model: nn.Module) -> str:
    """How the model's `forward` names its key-value cache; releases of transformers differ."""
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


@contextmanager
def skipping(blocks: Sequence[nn.Module], hidden: Tensor, *, as_tuple: bool) -> Iterator[None]:
    """While the `with` block runs, `blocks` compute nothing and hand `hidden` on, whatever they receive.

    The model's own code still makes masks and positions, normalises and predicts: this is a run from the
    middle for every family. The blocks' `forward` is replaced and put back, also after an error.

    Args:
        blocks: the first blocks of a decoder.
        hidden: what the last of them shall return.
        as_tuple: whether blocks of this family return the hidden state in a tuple.
    """
    result: Any = (hidden,) if as_tuple else hidden

    def forward(*arguments: Any, **keywords: Any) -> Any:
        return result

    # A `forward` on the instance is there where accelerate dispatched the model; it is put back as it was.
    before = [block.__dict__.get("forward") for block in blocks]
    try:
        for block in blocks:
            block.forward = forward
        yield
    finally:
        for block, old in zip(blocks, before, strict=True):
            if old is None:
                block.__dict__.pop("forward", None)
            else:
                block.forward = old
