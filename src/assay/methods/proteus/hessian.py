"""Second moments of the inputs of a model's linear modules, one decoder block at a time.

Only one block's hidden states and moments are in memory. Modules that receive the very same tensor (queries,
keys and values; gate and up projections) share one moment; that is seen from the tensors, not from names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.proteus.decoder import (
    BlockCall,
    decoder_blocks,
    device_of,
    first_inputs,
    linear_modules,
    linear_weight,
)

Propagate = Literal["quantized", "original"]

# Products are formed in the activations' precision (float32 at least) over so many tokens, and added up in
# float64.
TOKENS_AT_ONCE = 2048
# Below so many tokens a channel the second moment is poorly determined.
RECOMMENDED_TOKENS = 4


class SecondMoment:
    """E[x x^T] and E[x] of the inputs of one module, or of several that receive the same tensor.

    Attributes:
        group: the path of the first module of those that share it.
        channels: n.
        tokens: how many inputs have been seen.
    """

    def __init__(self, group: str, channels: int, device: torch.device | str = "cpu") -> None:
        self.group = group
        self.channels = channels
        self.tokens = 0
        self._products = torch.zeros(channels, channels, dtype=torch.float64, device=device)
        self._sum = torch.zeros(channels, dtype=torch.float64, device=device)

    @property
    def hessian(self) -> Float[Tensor, "n n"]:
        """E[x x^T], float64; zero when nothing has been seen."""
        return self._products / max(self.tokens, 1)

    @property
    def mean(self) -> Float[Tensor, " n"]:
        """E[x], float64."""
        return self._sum / max(self.tokens, 1)

    def add(self, x: Float[Tensor, "... n"]) -> None:
        """Count inputs."""
        for part in x.detach().reshape(-1, self.channels).split(TOKENS_AT_ONCE):
            part = part if part.dtype == torch.float64 else part.float()
            self._products += part.T @ part
            self._sum += part.sum(0, dtype=torch.float64)
            self.tokens += len(part)

    def copy(self, group: str) -> SecondMoment:
        """The same moments under another name."""
        other = SecondMoment(group, self.channels, self._products.device)
        other.tokens = self.tokens
        other._products.copy_(self._products)
        other._sum.copy_(self._sum)
        return other

    def warnings(self) -> tuple[str, ...]:
        """What a user should know about them."""
        if self.tokens == 0:
            return (f"no calibration token reached {self.group}",)
        if self.tokens < self.channels:
            wanted = RECOMMENDED_TOKENS * self.channels
            return (
                f"{self.tokens} tokens for {self.channels} channels of {self.group}: "
                f"at least {wanted} are recommended",
            )
        return ()


class Block:
    """One decoder block with its calibration inputs.

    Attributes:
        index: its place among the blocks.
        name: its path, e.g. "model.layers.3".
        inputs: the hidden states that enter it, batch by batch, on the CPU.
    """

    def __init__(
        self,
        index: int,
        name: str,
        blocks: nn.ModuleList,
        inputs: list[Float[Tensor, "b s d"]],
        calls: list[BlockCall],
        wanted: Callable[[str], bool],
        propagate: Propagate,
    ) -> None:
        self.index = index
        self.name = name
        self.inputs = inputs
        self._blocks = blocks
        self._calls = calls
        self._wanted = wanted
        self._propagate = propagate
        self._original_outputs: list[Tensor] | None = None
        self._outputs: list[Tensor] | None = None

    @property
    def module(self) -> nn.Module:
        """The block as it is in the model now."""
        return self._blocks[self.index]

    @torch.no_grad()
    def forward(self, batch: int, module: nn.Module | None = None) -> Float[Tensor, "b s d"]:
        """The hidden states that leave the block for a batch, without gradients, on the block's device.

        Args:
            batch: the batch's index.
            module: another block to run on the same inputs, e.g. a copy of the original.
        """
        return self.call(batch, self.inputs[batch], module)

    def call(
        self, batch: int, hidden: Float[Tensor, "b s d"], module: nn.Module | None = None
    ) -> Float[Tensor, "b s d"]:
        """The block on given hidden states with the other arguments of a batch; differentiable."""
        return self._calls[batch].run(module or self.module, hidden)

    @cached_property
    def moments(self) -> dict[str, SecondMoment]:
        """The second moments of the inputs of the block's linear modules, by the modules' paths.

        They are measured when first asked for, so ask before a module is replaced. Modules that receive the
        same tensors share one object.

        Raises:
            InputError: inputs of a module are not finite.
        """
        linear = {
            name: module
            for name, module in linear_modules(self.module, self.name).items()
            if self._wanted(name)
        }
        measured = _Measurement(linear)
        outputs = []
        if linear:
            with measured:
                for batch in range(len(self.inputs)):
                    output = self.forward(batch)
                    measured.count()
                    if self._propagate == "original":
                        outputs.append(output.cpu())
        if outputs:
            self._original_outputs = outputs
        for name, moment in measured.moments.items():
            if not bool(torch.isfinite(moment.hessian).all()):
                raise InputError(
                    f"the inputs of {name} are not finite on the calibration text: "
                    "use dtype float32, or look for damaged weights"
                )
        return measured.moments

    def advance(self) -> None:
        """Compute what enters the next block: call it when the block's modules have been replaced.

        With `propagate="original"` it is what the block returned when its moments were measured, or returns
        now if they never were.
        """
        if self._original_outputs is not None:
            self._outputs = self._original_outputs
        elif self.index + 1 < len(self._blocks):
            self._outputs = [self.forward(batch).cpu() for batch in range(len(self.inputs))]
        else:
            self._outputs = []

    @property
    def outputs(self) -> list[Float[Tensor, "b s d"]] | None:
        """What enters the next block; None before `advance`, empty for the last block."""
        return self._outputs


def walk_blocks(
    model: nn.Module,
    batches: Iterable[Int[Tensor, "b s"]],
    *,
    propagate: Propagate = "quantized",
    wanted: Callable[[str], bool] = lambda name: True,
) -> Iterator[Block]:
    """The decoder blocks of a causal language model from the first to the last, with their inputs.

        for block in walk_blocks(model, batches):
            for path, moment in block.moments.items():
                ...                                  # quantize, and replace the module in the model
            block.advance()

    A block that has not been advanced is when the next one is asked for. A block may be moved to another
    device while it is worked on; hidden states are kept on the CPU, and follow it.

    Args:
        model: it is put into evaluation mode.
        batches: sequences of tokens.
        propagate: what enters a block: the outputs of the preceding blocks as they are after the loop's body
            ("quantized"), or as they were before ("original").
        wanted: which linear modules, by path, moments are measured for.

    Raises:
        InputError: the model has no decoder blocks, there is no batch, or `propagate` is something else.
    """
    if propagate not in ("quantized", "original"):
        raise InputError(f"propagate={propagate!r} is unknown; use 'quantized' or 'original'")
    path, blocks = decoder_blocks(model)
    model.eval()
    hidden, calls = first_inputs(model, blocks, batches)
    for index in range(len(blocks)):
        block = Block(
            index, f"{path}.{index}", blocks, hidden, [batch[index] for batch in calls], wanted, propagate
        )
        yield block
        if block.outputs is None:
            block.advance()
        hidden = block.outputs or []


class _Measurement:
    """Hooks that see the inputs of linear modules, and count every tensor once."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._modules = modules
        self._seen: dict[str, list[tuple[Tensor, int]]] = {name: [] for name in modules}
        self._hooks = ExitStack()
        self.moments: dict[str, SecondMoment] = {}

    def __enter__(self) -> _Measurement:
        for name, module in self._modules.items():
            self._hooks.callback(module.register_forward_pre_hook(self._hook(name), with_kwargs=True).remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def count(self) -> None:
        """Count what one run of the block has shown."""
        for name, tensors in self._seen.items():
            if any(tensor._version != version for tensor, version in tensors):
                raise InputError(
                    f"the model overwrites the input of {name}, so that its second moment cannot be "
                    "measured: leave this module out"
                )
        # The tensors of a run are all alive until here: equal identity means the same tensor.
        keys = {name: tuple(id(tensor) for tensor, _ in tensors) for name, tensors in self._seen.items()}
        if not self.moments:
            self._share(keys)
        sharing: dict[SecondMoment, list[str]] = {}
        for name, moment in self.moments.items():
            sharing.setdefault(moment, []).append(name)
        for moment, names in sharing.items():
            by_key: dict[tuple[int, ...], list[str]] = {}
            for name in names:
                by_key.setdefault(keys[name], []).append(name)
            # Modules that shared their inputs so far and no longer do go on separately.
            own = [moment, *(moment.copy(members[0]) for members in list(by_key.values())[1:])]
            for share, members in zip(own, by_key.values(), strict=True):
                for tensor, _ in self._seen[members[0]]:
                    share.add(tensor)
                for name in members:
                    self.moments[name] = share
        for tensors in self._seen.values():
            tensors.clear()

    def _share(self, keys: dict[str, tuple[int, ...]]) -> None:
        """One moment for all modules that have received the same tensors in the first run."""
        owners: dict[tuple[Any, ...], SecondMoment] = {}
        for name, module in self._modules.items():
            # A module that was not reached shares with nobody.
            key = keys[name] or (name,)
            if key not in owners:
                owners[key] = SecondMoment(name, linear_weight(module).shape[1], device_of(module))
            self.moments[name] = owners[key]

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            tensor = arguments[0] if arguments else keywords["input"]
            self._seen[name].append((tensor, tensor._version))

        return hook
