"""Few-shot distillation of a quantized model: alpha, beta, su and sv learn, the packed codes stay.

The block stage fits one decoder block to what the original model has behind that block, given what the
quantized model has in front of it. The end-to-end stage fits the logits of the whole model to the original's
(Kullback-Leibler divergence). Both keep the best state on held-out sequences, and change nothing when nothing
got better.

Source: the paper's abstract (distillation that tunes only per-layer affine statistics); stages and settings
are ours, after QTIP (Tseng et al. 2024).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.linear import ProteusLinear, Scales, proteus_layers

# Values outside this range are not normal numbers in float16.
HALF_RANGE = (2.0**-14, 65504.0)
# So often the learning rate is halved after a loss that is not finite, before the stage is given up.
RETRIES = 3


@dataclass(frozen=True)
class TuningSettings:
    """How one stage trains.

    Attributes:
        learning_rate: of Adam, on the logarithms of the scales.
        epochs: passes over the training sequences, at most.
        batch: sequences a step.
        held_out: share of the sequences that choose the best state.
        patience: epochs without an improvement after which the stage ends.
    """

    learning_rate: float
    epochs: int
    batch: int = 4
    held_out: float = 0.2
    patience: int = 2


BLOCK = TuningSettings(learning_rate=1e-3, epochs=3, batch=1)
END_TO_END = TuningSettings(learning_rate=2e-3, epochs=3, batch=2)


@dataclass(frozen=True)
class TuningReport:
    """What a stage achieved on the held-out sequences.

    Attributes:
        before: the loss at the start.
        after: the loss of the state that was kept.
        epochs: how many were trained.
        status: "improved", "unchanged" (nothing was better, all is as before), or "aborted" (the loss was not
            finite, in spite of smaller steps; the best finite state was kept).
    """

    before: float
    after: float
    epochs: int
    status: str


class Tuning:
    """Trainable scales for packed layers, as changes of what the layers hold.

    Multiplicative changes are trained by their logarithm, so that signs cannot flip; beta's change is
    measured in units of the layer's standard deviation.
    """

    def __init__(self, layers: Mapping[str, ProteusLinear]) -> None:
        self._layers = list(layers.values())
        self._bases = [layer.scales() for layer in self._layers]
        self._spreads = [
            float(Generator.from_record(layer.gen.cpu()).table(layer.window).double().std())
            for layer in self._layers
        ]
        self._changes = [
            [torch.zeros_like(part, requires_grad=True) for part in (base.alpha, base.beta, base.su, base.sv)]
            for base in self._bases
        ]

    @property
    def parameters(self) -> list[Tensor]:
        """Everything that learns."""
        return [change for changes in self._changes for change in changes]

    def scales(self, index: int) -> Scales:
        """The scales of a layer at the moment, differentiable."""
        base = self._bases[index]
        alpha, beta, su, sv = self._changes[index]
        return Scales(
            base.alpha * alpha.exp(),
            base.beta + base.alpha * self._spreads[index] * beta,
            base.su * su.exp(),
            base.sv * sv.exp(),
        )

    def state(self) -> list[Tensor]:
        """A copy of everything that learns."""
        return [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def restore(self, state: list[Tensor]) -> None:
        """Go back to a state."""
        for parameter, value in zip(self.parameters, state, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def store(self) -> None:
        """Write the scales into the layers' buffers: su and sv in float16 where their values fit."""
        for index, layer in enumerate(self._layers):
            scales = self.scales(index)
            layer.affine = torch.stack([scales.alpha, scales.beta])
            layer.su, layer.sv = _storable(scales.su), _storable(scales.sv)


@contextmanager
def tuning(layers: Mapping[str, ProteusLinear]) -> Iterator[Tuning]:
    """Let the layers compute with trainable scales, and with their codes decoded once, while the block runs.

    The dense codes take 4 bytes a weight of these layers for so long.
    """
    trained = Tuning(layers)
    try:
        for index, layer in enumerate(layers.values()):
            layer.decoded = layer.codes()
            layer.tuned = lambda index=index: trained.scales(index)
        yield trained
    finally:
        for layer in layers.values():
            layer.decoded = layer.tuned = None


def tune(
    layers: Mapping[str, ProteusLinear],
    loss: Callable[[Int[Tensor, " batch"]], Float[Tensor, ""]],
    examples: int,
    settings: TuningSettings,
    *,
    seed: int,
) -> TuningReport:
    """Train the scales of layers, and keep what is best on held-out examples.

    Args:
        layers: the packed layers that learn.
        loss: of the examples with the given indices, a mean over them.
        examples: how many there are; a share of them is held out.
        settings: see `TuningSettings`.
        seed: of the split and of the order of examples.

    Raises:
        InputError: there are fewer than two examples.
    """
    if examples < 2:
        raise InputError(
            f"distillation needs at least 2 sequences, one of them held out; there are {examples}"
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(examples, generator=generator)
    held = min(examples - 1, max(1, round(settings.held_out * examples)))
    held_out, training = order[:held], order[held:]

    @torch.no_grad()
    def validation() -> float:
        parts = [float(loss(batch)) * len(batch) for batch in held_out.split(settings.batch)]
        return sum(parts) / held

    unchanged = {name: _buffers(layer) for name, layer in layers.items()}
    with tuning(layers) as trained:
        before = validation()
        best, kept = before, trained.state()
        epochs, failures, waited, rate = 0, 0, 0, settings.learning_rate
        optimizer = torch.optim.Adam(trained.parameters, lr=rate)
        while epochs < settings.epochs and waited < settings.patience and failures <= RETRIES:
            shuffled = training[torch.randperm(len(training), generator=generator)]
            finite = all(_step(loss(batch), optimizer) for batch in shuffled.split(settings.batch))
            score = validation() if finite else math.nan
            if not math.isfinite(score):
                failures, rate = failures + 1, rate / 2
                trained.restore(kept)
                optimizer = torch.optim.Adam(trained.parameters, lr=rate)
                continue
            epochs += 1
            if score < best:
                best, kept, waited = score, trained.state(), 0
            else:
                waited += 1
        trained.restore(kept)
        if best < before:
            trained.store()
    # The stored scales are rounded; what counts is what they do. The unrounded ones are gone from here on.
    after = validation() if best < before else before
    if failures > RETRIES:
        warnings.warn(
            "distillation was given up: its loss was not finite, also with smaller steps; "
            "the best state is kept",
            stacklevel=2,
        )
    if not after < before:
        for name, layer in layers.items():
            layer.affine, layer.su, layer.sv = unchanged[name]
        after = before
    status = "aborted" if failures > RETRIES else "improved" if after < before else "unchanged"
    return TuningReport(before, after, epochs, status)


def distill_block(
    block: nn.Module,
    call: Callable[[int, Float[Tensor, "b s d"]], Float[Tensor, "b s d"]],
    inputs: Sequence[Float[Tensor, "b s d"]],
    targets: Sequence[Float[Tensor, "b s d"]],
    settings: TuningSettings = BLOCK,
    *,
    seed: int = 0,
) -> TuningReport | None:
    """Fit a quantized block to the original's hidden states.

    The loss of a token is the squared error relative to the mean square of its target: a few tokens of a
        language
    model have hidden states a hundred times as large as the rest, and would be all that counts.

    Args:
        block: the module whose packed layers learn.
        call: runs the block on hidden states with the other arguments of a batch; see `Block.call`.
        inputs: what the quantized model has in front of the block, batch by batch.
        targets: what the original model has behind it.
        settings: an example is a batch here.

    Returns:
        The report; None when the block has no packed layers.
    """
    layers = proteus_layers(block)
    if not layers:
        return None

    def loss(batch: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
        parts = []
        for index in batch.tolist():
            found = call(index, inputs[index]).float()
            wanted = targets[index].to(found.device).float()
            scale = wanted.square().mean(-1).clamp_min(1e-12)
            parts.append(((found - wanted).square().mean(-1) / scale).mean())
        return torch.stack(parts).mean()

    return tune(layers, loss, len(inputs), settings, seed=seed)


def distill_model(
    student: nn.Module,
    teacher: nn.Module,
    tokens: Int[Tensor, "n length"],
    settings: TuningSettings = END_TO_END,
    *,
    blocks: Sequence[nn.Module] = (),
    seed: int = 0,
) -> TuningReport:
    """Fit the logits of a quantized model to the original's: KL(original || quantized), a mean over tokens.

    Args:
        student: the model whose packed layers learn.
        teacher: the original.
        tokens: sequences to learn from.
        blocks: sub-modules whose activations are computed again on the way back instead of being kept.

    Raises:
        InputError: the model has no packed layers, or there are fewer than two sequences.
    """
    layers = proteus_layers(student)
    if not layers:
        raise InputError("the model has no proteus layers to distill")
    device = next(iter(layers.values())).qweight.device

    def loss(batch: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
        ids = tokens[batch].to(device)
        with torch.no_grad():
            wanted = teacher(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        found = student(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        return nn.functional.kl_div(found, wanted, log_target=True, reduction="sum") / ids.numel()

    with _recomputed(blocks):
        return tune(layers, loss, len(tokens), settings, seed=seed)


def _step(loss: Float[Tensor, ""], optimizer: torch.optim.Optimizer) -> bool:
    """One step of the optimizer; False, and no step, where the loss or its gradient is not finite."""
    optimizer.zero_grad()
    if not bool(loss.isfinite()):
        return False
    loss.backward()
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        return False
    optimizer.step()
    return True


@contextmanager
def _recomputed(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Keep only the inputs of blocks for the backward pass, and run the blocks again in it."""
    from torch.utils.checkpoint import checkpoint

    def recomputing(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*arguments, **keywords)
            return checkpoint(forward, *arguments, use_reentrant=False, **keywords)

        return run

    try:
        for block in blocks:
            block.forward = recomputing(block.forward)
        yield
    finally:
        for block in blocks:
            # The instance's attribute goes; the class's method is there again.
            block.__dict__.pop("forward", None)


def _buffers(layer: ProteusLinear) -> tuple[Tensor, Tensor, Tensor]:
    return layer.affine.clone(), layer.su.clone(), layer.sv.clone()


def _storable(scales: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    magnitude = scales.abs()
    low, high = HALF_RANGE
    return scales.half() if bool(((magnitude >= low) & (magnitude <= high)).all()) else scales.clone()
