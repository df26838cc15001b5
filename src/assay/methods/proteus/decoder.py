"""The parts of a causal language model that quantization walks over: its decoder blocks and linear modules.

Nothing depends on an architecture's names: the blocks are found by structure, and what a model passes to its
blocks is recorded from a run of the model in which the blocks do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.errors import InputError


@dataclass(frozen=True)
class BlockCall:
    """What a model passes to one block for one batch, besides the hidden states.

    Attributes:
        positional: arguments after the hidden states.
        keyword: keyword arguments: masks, position embeddings, and so on.
        as_keyword: the hidden states are passed as the keyword `hidden_states`.
    """

    positional: tuple[Any, ...]
    keyword: dict[str, Any]
    as_keyword: bool

    def run(self, block: nn.Module, hidden: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        """The hidden states that the block returns, on the block's device."""
        device = device_of(block)
        move = _mover(device)
        positional = pytree.tree_map(move, self.positional)
        keyword = pytree.tree_map(move, self.keyword)
        hidden = move(hidden)
        if self.as_keyword:
            output = block(hidden_states=hidden, **keyword)
        else:
            output = block(hidden, *positional, **keyword)
        return output[0] if isinstance(output, tuple) else output


def decoder_blocks(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The list of a model's decoder blocks, and its path.

    It is the list of modules, not within another such list, that holds the most parameters.

    Raises:
        InputError: the model has no list of blocks with linear modules, or is an encoder-decoder.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise InputError(f"{type(model).__name__} is an encoder-decoder; only causal decoders are supported")
    outermost: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{other}.") for other in outermost)
        if isinstance(module, nn.ModuleList) and not inside and linear_modules(module):
            outermost[name] = module
    if not outermost:
        raise InputError(f"{type(model).__name__} has no list of blocks with linear modules to quantize")
    largest = max(outermost, key=lambda name: sum(p.numel() for p in outermost[name].parameters()))
    return largest, outermost[largest]


def linear_modules(root: nn.Module, prefix: str = "") -> dict[str, nn.Module]:
    """All `nn.Linear` and transformers' `Conv1D` modules below `root`, by path, in the model's order."""
    from transformers.pytorch_utils import Conv1D

    return {
        f"{prefix}.{name}" if prefix else name: module
        for name, module in root.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }


def linear_weight(module: nn.Module) -> Float[Tensor, "out in"]:
    """The weight of a linear module as (out, in); `Conv1D` stores it the other way round."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight if isinstance(module, nn.Linear) else weight.T


def device_of(module: nn.Module) -> torch.device:
    """Where a module's first parameter or buffer is; the CPU for a module without any."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


@torch.no_grad()
def first_inputs(
    model: nn.Module, blocks: nn.ModuleList, batches: Iterable[Int[Tensor, "b s"]]
) -> tuple[list[Float[Tensor, "b s d"]], list[list[BlockCall]]]:
    """The hidden states that enter the first block, and what each block is passed besides, batch by batch.

    Only the embeddings and what the model computes outside its blocks is run. Everything is kept on the CPU;
    tensors that are equal to those of the first batch are kept once.

    Raises:
        InputError: there is no batch, or the model does not hand hidden states from block to block.
    """
    hidden, calls = [], []
    known: list[Tensor] = []
    device = device_of(model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else model)  # pyright: ignore[reportCallIssue]
    for batch in batches:
        try:
            first, called = _record(model, blocks, batch.to(device), as_tuple=False)
        except _NotATensor:
            first, called = _record(model, blocks, batch.to(device), as_tuple=True)
        hidden.append(first.cpu())
        calls.append([_on_cpu(call, known, remember=len(calls) == 0) for call in called])
    if not hidden:
        raise InputError("there is no calibration batch: pass at least one sequence of tokens")
    return hidden, calls


class _Finished(Exception):
    """All blocks have been called: the rest of the model need not run."""


class _NotATensor(Exception):
    """The model takes the first element of what a block returns."""


def _record(
    model: nn.Module, blocks: nn.ModuleList, batch: Int[Tensor, "b s"], *, as_tuple: bool
) -> tuple[Tensor, list[BlockCall]]:
    """Run a model whose blocks hand on what they receive, and record what that is."""
    calls: list[BlockCall] = []
    entered: list[Tensor] = []

    def stub(*positional: Any, **keyword: Any) -> Any:
        as_keyword = "hidden_states" in keyword
        if not as_keyword and not (positional and isinstance(positional[0], Tensor)):
            raise InputError(f"{type(model).__name__} does not pass hidden states to its blocks")
        hidden = keyword.pop("hidden_states") if as_keyword else positional[0]
        if not entered:
            entered.append(hidden)
        elif hidden.shape != entered[0].shape:
            raise _NotATensor
        calls.append(BlockCall(positional if as_keyword else positional[1:], keyword, as_keyword))
        if len(calls) == len(blocks):
            raise _Finished
        return (hidden,) if as_tuple else hidden

    with _forward_replaced(blocks, stub):
        try:
            model(batch, use_cache=False)
        except _Finished:
            return entered[0], calls
    raise InputError(f"{type(model).__name__} called {len(calls)} of its {len(blocks)} blocks")


@contextmanager
def _forward_replaced(blocks: nn.ModuleList, forward: Callable[..., Any]) -> Iterator[None]:
    # An attribute of the instance hides the method of the class, and takes nothing else from the block.
    before = [block.__dict__.get("forward") for block in blocks]
    for block in blocks:
        block.forward = forward
    try:
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            if own is None:
                del block.forward
            else:
                block.forward = own


def _on_cpu(call: BlockCall, known: list[Tensor], *, remember: bool) -> BlockCall:
    """The call with its tensors on the CPU, each replaced by an equal one that is already known."""

    def keep(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.cpu()
        for other in known:
            if other is leaf or (
                other.shape == leaf.shape and other.dtype == leaf.dtype and torch.equal(other, leaf)
            ):
                return other
        if remember:
            known.append(leaf)
        return leaf

    return BlockCall(
        pytree.tree_map(keep, call.positional), pytree.tree_map(keep, call.keyword), call.as_keyword
    )


def _mover(device: torch.device) -> Callable[[Any], Any]:
    return lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf
