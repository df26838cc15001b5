"""How fast a quantized model decodes here, beside the same model with dense weights."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from assay.methods.proteus.linear import ProteusLinear, proteus_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROMPT = 8


@dataclass(frozen=True)
class LayerSpeed:
    """Products of one vector with layers of one shape, median milliseconds.

    Attributes:
        shape: (m, n).
        layers: how many layers of the model have it.
        packed: with float32 activations.
        packed_int8: with activations rounded to 8 bits.
        dense: `nn.Linear` in the model's type.
        packed_bytes: what a packed layer reads.
        dense_bytes: what a dense one reads.
    """

    shape: tuple[int, int]
    layers: int
    packed: float
    packed_int8: float
    dense: float
    packed_bytes: int
    dense_bytes: int


@torch.no_grad()
def layer_speeds(model: PreTrainedModel, repetitions: int) -> list[LayerSpeed]:
    """Measure a layer of every shape; all take turns, so that a busy machine is unfair to none."""
    by_shape: dict[tuple[int, int], list[ProteusLinear]] = {}
    for layer in proteus_layers(model).values():
        by_shape.setdefault((layer.out_features, layer.in_features), []).append(layer)
    found = []
    for shape, layers in by_shape.items():
        layer, dense = layers[0], layers[0].to_dense(model.dtype).to(layers[0].qweight.device)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1, shape[1], generator=generator).to(layer.qweight.device, model.dtype)
        contestants = [partial(layer, x), partial(_with_int8, layer, x), partial(dense, x)]
        medians = _take_turns(contestants, x.device, repetitions)
        weight = dense.weight
        assert isinstance(weight, Tensor)
        packed = sum(buffer.numel() * buffer.element_size() for buffer in layer.buffers())
        dense_bytes = weight.numel() * weight.element_size()
        found.append(LayerSpeed(shape, len(layers), *medians, packed, dense_bytes))
    return found


@torch.no_grad()
def tokens_per_second(model: PreTrainedModel, tokens: int) -> float:
    """Greedy generation of one sequence, without the prompt's share."""
    prompt = torch.arange(_PROMPT)[None].to(model.device)
    options = {"do_sample": False, "pad_token_id": 0}
    times = []
    for count in (1, tokens + 1):
        started = time.perf_counter()
        model.generate(prompt, max_new_tokens=count, min_new_tokens=count, **options)  # pyright: ignore[reportCallIssue]
        _wait(model.device)
        times.append(time.perf_counter() - started)
    return tokens / max(times[1] - times[0], 1e-9)


def _with_int8(layer: ProteusLinear, x: Tensor) -> Tensor:
    layer.activations = "int8"
    try:
        return layer(x)
    finally:
        layer.activations = "float"


def _take_turns(
    calls: list[Callable[[], Tensor]], device: torch.device, repetitions: int
) -> tuple[float, float, float]:
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repetitions + 1):
        for index, call in enumerate(calls):
            started = time.perf_counter()
            call()
            _wait(device)
            # The first turn compiles and fills caches.
            if turn:
                times[index].append(1e3 * (time.perf_counter() - started))
    first, second, third = (statistics.median(own) for own in times)
    return first, second, third


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def dense_twin(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with dense weights; the model itself stays packed."""
    from assay.methods.proteus.integration import replace_module
    from assay.methods.proteus.plan import sharing_copy

    twin = sharing_copy(model)
    for name, layer in proteus_layers(twin).items():
        replace_module(twin, name, layer.to_dense(model.dtype).to(layer.qweight.device))
    return twin
