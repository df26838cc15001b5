"""Activations of responses without and with a concept, and their differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.errors import InputError
from assay.lm import capture
from assay.methods.crh.blocks import Decoder, find_decoder
from assay.methods.crh.pairs import ConceptPairs, PairsError
from assay.methods.crh.templates import encode_response, pad, padding_token

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Site = Literal["last", "mean"]


@dataclass(frozen=True)
class DifferenceSet:
    """Activations of n pairs at some layers.

    Attributes:
        with_concept, without_concept: the activations, float32.
        layers: the layer of each slice.
        template, position: how they were read.
        concepts: the concept of each pair.
    """

    with_concept: Float[Tensor, "n layers width"]
    without_concept: Float[Tensor, "n layers width"]
    layers: tuple[int, ...]
    template: str
    position: Site
    concepts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.with_concept)

    def at(self, layer: int) -> tuple[Float[Tensor, "n width"], Float[Tensor, "n width"]]:
        """Activations with and without the concept at one layer, float64.

        Raises:
            InputError: that layer was not read.
        """
        if layer not in self.layers:
            raise InputError(f"layer {layer} was not read; there are {', '.join(map(str, self.layers))}")
        index = self.layers.index(layer)
        return self.with_concept[:, index].double(), self.without_concept[:, index].double()

    def differences(self, layer: int) -> Float[Tensor, "n width"]:
        """`a+ - a-` of every pair at one layer, float64 and not normalised."""
        present, absent = self.at(layer)
        return present - absent

    def subset(self, indices: Iterable[int]) -> DifferenceSet:
        """The pairs at `indices`, in that order."""
        chosen = list(indices)
        return replace(
            self,
            with_concept=self.with_concept[chosen],
            without_concept=self.without_concept[chosen],
            concepts=tuple(self.concepts[i] for i in chosen),
        )


def extract_differences(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: ConceptPairs,
    layers: Sequence[int] | None = None,
    *,
    template: str = "chat",
    position: Site = "last",
    batch_size: int = 16,
    on_batch: Callable[[int, int], None] = lambda done, total: None,
) -> DifferenceSet:
    """Read the residual stream of every pair at several layers in one pass.

    A text that several pairs share is read once; texts are batched by length; blocks above the highest layer
    are not computed. Activations are kept in float32 whatever the model's own precision.

    Args:
        pairs: the pairs, of one concept or several.
        layers: the blocks whose output is read; one half and three quarters of the depth by default.
        template: see `prompt_text`.
        position: `"last"` for the last token of the response, as in the paper, or `"mean"` over its tokens.
        batch_size: texts in a batch.
        on_batch: called after every batch with the texts done and their number.

    Raises:
        InputError: a layer does not exist, an activation is NaN or infinite (the message names layer and
            pair), or a text is longer than the model's context.
        PairsError: there are no pairs.
    """
    if len(pairs) == 0:
        raise PairsError("there are no pairs to read activations of")
    if position not in ("last", "mean"):
        raise InputError(f"position {position!r} is not known; use 'last' or 'mean'")
    decoder = find_decoder(model)
    wanted = decoder.default_layers() if layers is None else tuple(dict.fromkeys(layers))
    for layer in wanted:
        decoder.layer(layer)
    texts: dict[tuple[str, str], int] = {}
    rows = []
    for row in pairs.rows:
        keys = [(row.question, row.resp_with_concept), (row.question, row.resp_no_concept)]
        rows.append([texts.setdefault(key, len(texts)) for key in keys])
    encoded = [encode_response(tokenizer, template, *text) for text in texts]
    _check_lengths(model, encoded)
    states = _read(model, decoder, encoded, wanted, position, padding_token(tokenizer), batch_size, on_batch)
    index = torch.tensor(rows)
    found = DifferenceSet(
        states[index[:, 0]],
        states[index[:, 1]],
        wanted,
        template,
        position,
        tuple(row.concept for row in pairs.rows),
    )
    _check_finite(found)
    return found


class _Enough(Exception):
    """Raised after the highest layer that is read."""


@torch.no_grad()
def _read(
    model: PreTrainedModel, decoder: Decoder, encoded: Sequence[tuple[list[int], list[int]]],
    layers: Sequence[int], position: Site, padding: int, batch_size: int,
    on_batch: Callable[[int, int], None],
) -> Float[Tensor, "texts layers width"]:  # fmt: skip
    result = torch.empty(len(encoded), len(layers), decoder.width)
    order = sorted(range(len(encoded)), key=lambda i: sum(map(len, encoded[i])))
    device = decoder_device(model)

    def stop(module: nn.Module, arguments: object, output: object) -> None:
        raise _Enough

    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        sequences = [encoded[i][0] + encoded[i][1] for i in chosen]
        # Padding on the right cannot influence what stands before it in a causal model.
        ids, mask = pad(sequences, padding, left=False)
        counted = _counted(mask, [len(encoded[i][0]) for i in chosen], position)

        def keep(hidden: Tensor, weights: Tensor = counted) -> Tensor:
            # Selected, not multiplied: a weight of zero would not hide a NaN at another token.
            values = hidden.float().masked_fill(~weights.bool().to(hidden.device).unsqueeze(-1), 0.0)
            return (values.sum(dim=1) / weights.sum(dim=1, keepdim=True).to(values.device)).cpu()

        paths = {layer: f"{decoder.path}.{layer}" for layer in layers}
        with capture(model, paths.values(), keep=keep) as states:
            # Registered after the capture, so that it runs after it.
            handle = decoder.blocks[max(layers)].register_forward_hook(stop)
            try:
                model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False)
            except _Enough:
                pass
            finally:
                handle.remove()
        for column, layer in enumerate(layers):
            result[chosen, column] = states[paths[layer]][0]
        on_batch(start + len(chosen), len(order))
    return result


def _counted(mask: Tensor, prompts: Sequence[int], position: Site) -> Float[Tensor, "rows tokens"]:
    """One where a token's activation counts, else zero."""
    index = torch.arange(mask.shape[1]).expand_as(mask)
    lengths = mask.sum(dim=1, keepdim=True)
    if position == "last":
        return (index == lengths - 1).float()
    return ((index >= torch.tensor(prompts).unsqueeze(1)) & (index < lengths)).float()


def decoder_device(model: PreTrainedModel) -> torch.device:
    """Where token ids go: the device of the embedding, also where a model is spread over several."""
    embedding: Any = model.get_input_embeddings()
    device = embedding.weight.device
    # Offloaded weights are on the meta device; the model then says where it computes.
    return model.device if device.type == "meta" else device


def _check_lengths(model: PreTrainedModel, encoded: Sequence[tuple[list[int], list[int]]]) -> None:
    rooms = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    longest = max(len(prompt) + len(response) for prompt, response in encoded)
    if rooms is not None and longest > rooms:
        raise InputError(f"a pair has {longest} tokens; the model has positions for {rooms}: shorten it")


def _check_finite(found: DifferenceSet) -> None:
    for name, states in (("with", found.with_concept), ("without", found.without_concept)):
        wrong = (~torch.isfinite(states).all(dim=-1)).nonzero()
        if len(wrong):
            pair, column = wrong[0].tolist()
            raise InputError(
                f"the activation of pair {pair} ({name} the concept) at layer {found.layers[column]} is NaN "
                "or infinite; load the model in bfloat16 or float32"
            )
