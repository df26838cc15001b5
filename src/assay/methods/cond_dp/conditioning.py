"""A conditioner in front of a layer of an `nn.Module`, and folding it into the layer's weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from assay.errors import InputError
from assay.methods.cond_dp.conditioner import WIDE, PublicConditioner

# Layers whose input can be conditioned.
FirstLayer = nn.Linear | nn.EmbeddingBag


class PublicConditioning(nn.Module):
    """x -> ratio * C ((x - mean) / scale) on the last axis, with buffers only: nothing here is trained.

    After `fold` it passes its input on unchanged.

    Args:
        conditioner: a fitted conditioner.
        bag: the input consists of indices of a bag (with offsets, as for `nn.EmbeddingBag`), which stand for
            the vector of their counts.
        dtype, device: of the buffers.
    """

    matrix: Tensor
    offset: Tensor
    components: Tensor
    gains: Tensor
    folded: Tensor

    def __init__(
        self,
        conditioner: PublicConditioner,
        *,
        bag: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.bag, self.n_features = bag, conditioner.n_features_in_
        ratio = 1.0 if conditioner.scale == "learned" else conditioner.ratio_
        inverse = torch.from_numpy(conditioner._inverse_scale())
        # Everything is computed in float64 and cast once.
        place: Any = {"dtype": dtype, "device": device}
        self.tail = conditioner.tail_gain_ * ratio
        self.wide = conditioner.n_features_in_ > WIDE
        components = torch.from_numpy(conditioner.components_) * inverse
        if self.wide:
            # C as identity plus low rank: the scale is one for such conditioners unless columns are constant.
            gains = torch.from_numpy((conditioner.gains_ - conditioner.tail_gain_) * ratio)
            if not bool(((inverse == 1) | (inverse == 0)).all()):
                raise InputError(f"standardize is not available in a module above {WIDE} columns")
            self.register_buffer("components", components.to(**place))
            self.register_buffer("gains", gains.to(**place))
            self.register_buffer("matrix", torch.zeros(0, **place))
            offset = torch.zeros(0)
        else:
            matrix = inverse[:, None] * torch.from_numpy(conditioner.matrix_) * ratio
            offset = torch.from_numpy(conditioner.mean_) @ matrix
            self.register_buffer("matrix", matrix.to(**place))
            self.register_buffer("components", torch.zeros(0, **place))
            self.register_buffer("gains", torch.zeros(0, **place))
        self.shifts = bool(offset.any())
        self.register_buffer("offset", offset.to(**place))
        self.register_buffer("folded", torch.tensor(False, device=device))

    def forward(self, x: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Map inputs (..., d), or bags of indices (batch, length) or with offsets, to (..., d)."""
        if self.bag:
            x = self._counts(x, offsets)
        if self.folded:
            return x
        mapped = self.apply_matrix(x)
        return mapped - self.offset if self.shifts else mapped

    def apply_matrix(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """x times the matrix, without the offset."""
        if not self.wide:
            return x @ self.matrix
        return self.tail * x + ((x @ self.components.T) * self.gains) @ self.components

    def apply_transposed(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """x times the transposed matrix, which is another one when columns are divided by their scale."""
        return self.apply_matrix(x) if self.wide else x @ self.matrix.T

    def _counts(self, indices: Tensor, offsets: Tensor | None) -> Tensor:
        if offsets is None:
            bags = torch.arange(len(indices), device=indices.device)[:, None].expand_as(indices)
            n_bags = len(indices)
        else:
            n_bags = len(offsets)
            positions = torch.arange(len(indices), device=indices.device)
            bags = torch.bucketize(positions, offsets, right=True) - 1
        counts = torch.zeros(n_bags, self.n_features, dtype=self.offset.dtype, device=indices.device)
        one = torch.ones((), dtype=counts.dtype, device=counts.device)
        return counts.index_put_((bags.reshape(-1), indices.reshape(-1)), one, accumulate=True)


class LearnedFactor(nn.Module):
    """x -> factor * x with one trained number."""

    def __init__(self, start: float, like: Tensor) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((1,), start, dtype=like.dtype, device=like.device))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class BagProjection(nn.Module):
    """counts -> counts @ weight: what an `nn.EmbeddingBag` that sums does to the counts of its indices."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, counts: Float[Tensor, "b d"]) -> Float[Tensor, "b k"]:
        return functional.linear(counts, self.weight.T)


class ConditionedLayer(nn.Module):
    """A layer whose input goes through a conditioner first. The layer's parameters are the caller's own."""

    def __init__(self, layer: FirstLayer, conditioner: PublicConditioner) -> None:
        super().__init__()
        weight: Any = layer.weight
        bag = isinstance(layer, nn.EmbeddingBag)
        self.conditioning = PublicConditioning(conditioner, bag=bag, dtype=weight.dtype, device=weight.device)
        learned = conditioner.scale == "learned"
        self.factor = LearnedFactor(conditioner.ratio_, weight) if learned else None
        self.layer = BagProjection(weight) if bag else layer
        if self.conditioning.shifts and getattr(self.layer, "bias", None) is None:
            raise InputError(
                "the conditioner subtracts means, which needs a bias in the first layer to be folded into: "
                "give "
                "it one, or fit the conditioner with standardize=False"
            )

    def forward(self, x: Tensor, *offsets: Tensor) -> Tensor:
        z = self.conditioning(x, *offsets)
        return self.layer(z if self.factor is None else self.factor(z))

    @torch.no_grad()
    def folded_parameters(self) -> dict[str, Tensor]:
        """Weight and bias of the plain layer that computes the same as this one."""
        weight, bias = self.layer.weight.detach().clone(), getattr(self.layer, "bias", None)
        result = {"weight": weight} | ({} if bias is None else {"bias": bias.detach().clone()})
        factor = 1.0 if self.factor is None else self.factor.factor.detach()
        if not self.conditioning.folded:
            bag = self.conditioning.bag
            if "bias" in result:
                offset = self.conditioning.offset if self.conditioning.shifts else torch.zeros_like(weight[0])
                result["bias"] -= (weight * factor) @ offset
            # A row of a Linear's weight, or a column of a bag's, is a vector over the features.
            turned = self.conditioning.apply_transposed(weight.T if bag else weight) * factor
            result["weight"] = turned.T.contiguous() if bag else turned
        return result

    @torch.no_grad()
    def fold(self) -> list[nn.Parameter]:
        """Fold C into the layer's own parameters, in place: the function stays, the geometry changes.

        Returns:
            The parameters that no longer mean what they meant: an optimiser must forget its moments of them.
        """
        if self.conditioning.folded:
            return []
        changed = []
        for name, value in self.folded_parameters().items():
            parameter = getattr(self.layer, name)
            if not torch.equal(parameter, value):
                changed.append(parameter)
            parameter.copy_(value)
        self.conditioning.folded.fill_(True)
        if self.factor is not None:
            self.factor.factor.fill_(1.0)
            self.factor.factor.requires_grad_(False)
            changed.append(self.factor.factor)
        return changed


def find_first_layer(module: nn.Module, name: Literal["auto"] | str, n_features: int) -> str:
    """The name of the layer to condition, "" for the module itself.

    Raises:
        InputError: there is no such layer, it is of a kind that cannot be conditioned, or it has another
            number of inputs.
    """
    if name == "auto":
        leaves = [(n, m) for n, m in module.named_modules() if any(True for _ in m.parameters(recurse=False))]
        if not leaves:
            raise InputError("the module has no parameters: there is nothing to train")
        name = leaves[0][0]
    layers = dict(module.named_modules())
    if name not in layers:
        raise InputError(
            f"first_layer {name!r} is not in the module; it has {', '.join(filter(None, layers))}"
        )
    layer = layers[name]
    if not isinstance(layer, FirstLayer):
        raise InputError(
            f"the first layer {name!r} is a {type(layer).__name__}, which has no input features to "
            "condition: name a "
            "Linear or EmbeddingBag with first_layer="
        )
    if isinstance(layer, nn.EmbeddingBag) and (
        layer.mode != "sum" or layer.padding_idx is not None or layer.max_norm is not None
    ):
        raise InputError(f"the EmbeddingBag {name!r} must have mode='sum', without padding_idx and max_norm")
    inputs = layer.in_features if isinstance(layer, nn.Linear) else layer.num_embeddings
    if inputs != n_features:
        raise InputError(
            f"the conditioner is for {n_features} features, but the first layer {name!r} takes {inputs}: "
            "fit it on "
            "the inputs of that layer"
        )
    return name


def insert_conditioning(
    module: nn.Module, conditioner: PublicConditioner, first_layer: Literal["auto"] | str = "auto"
) -> tuple[nn.Module, ConditionedLayer]:
    """Put a conditioner in front of a layer of `module`, in place.

    Returns:
        The module (another one only if it is the layer itself), and the conditioned layer in it.

    Raises:
        InputError: see `find_first_layer`; or the layer has no bias to fold the means into.
    """
    name = find_first_layer(module, first_layer, conditioner.n_features_in_)
    layer: Any = module.get_submodule(name)
    conditioned = ConditionedLayer(layer, conditioner)
    conditioned.train(layer.training)
    if not name:
        return conditioned, conditioned
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, conditioned)
    return module, conditioned


def plain_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """The state of the module as it was before conditioner and Opacus, with C folded into the first layer.

    A module of the original class loads it and computes the same; this one is not changed.
    """
    inner: Any = getattr(module, "_module", module)
    conditioned = {n: m for n, m in inner.named_modules() if isinstance(m, ConditionedLayer)}
    state = {}
    for name, value in inner.state_dict().items():
        if not any(name.startswith(f"{n}." if n else "") for n in conditioned):
            state[name] = value.detach().clone()
    for name, layer in conditioned.items():
        prefix = f"{name}." if name else ""
        state |= {prefix + key: value for key, value in layer.folded_parameters().items()}
    return state


def conditioned_layers(module: nn.Module) -> Iterator[ConditionedLayer]:
    """The conditioned layers in a module."""
    return (layer for layer in module.modules() if isinstance(layer, ConditionedLayer))
