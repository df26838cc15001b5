"""A linear layer whose weights stay packed: 2 bits a weight in memory, decoded on the way through.

    y = sv * A_m^T (alpha Z x~ + beta sum(x~)) + b,    x~ = A_n (su * x),

where Z holds the integers that the packed tiles stand for, alpha and beta are the layer's two affine numbers,
su and sv its channel scales (with the random signs in them), and A_n, A_m fast orthogonal transforms. The
affine map is applied after the product, so that the inner loop sees integers only (ours; incoherence
processing as in QuIP#, Tseng et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.methods.proteus import kernels
from assay.methods.proteus.config import TILE, ProteusConfig
from assay.methods.proteus.incoherence import Transform, transform_for
from assay.methods.proteus.layer_quantization import padded

if TYPE_CHECKING:
    from assay.methods.proteus.layer_quantization import QuantizedLayer

# The decoded weights of a half-precision product exist for so many elements at a time.
DECODED_ELEMENTS = 1 << 24
_KEPT_PRECISION = ("affine", "su", "sv", "matrix_in", "matrix_out")


@dataclass
class Scales:
    """What a layer's affine statistics are at the moment: buffers, or functions of what is being trained."""

    alpha: Float[Tensor, ""]
    beta: Float[Tensor, ""]
    su: Float[Tensor, " n"]
    sv: Float[Tensor, " m"]


class ProteusLinear(nn.Module):
    """A linear layer with trellis-coded weights.

    Args:
        in_features, out_features: n and m.
        bias: whether there is a bias; it stays in the model's floating-point type.
        config: bits, window and kind of transform.
        transposed: the layer replaces a `Conv1D` of transformers, which stores its weight as (n, m).
        scale_types: the types of su and sv; float16, or float32 where float16 would overflow.

    The buffers are `qweight` (uint8, a row of tiles after the other), `gen` (the generator's record),
    `affine` (alpha, beta), `su`, `sv`, and `matrix_in` or `matrix_out` where a dimension needs a random
    orthogonal matrix. Moving the layer to another floating-point type leaves them as they are.
    """

    qweight: Tensor
    gen: Tensor
    affine: Tensor
    su: Tensor
    sv: Tensor
    matrix_in: Tensor | None
    matrix_out: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        config: ProteusConfig,
        transposed: bool = False,
        scale_types: tuple[torch.dtype, torch.dtype] = (torch.float16, torch.float16),
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.bits = config.bits
        self.window = config.window
        self.transposed = transposed
        self.activations: Literal["float", "int8"] = "float"
        # Set while the layer is being distilled: the integers of the tiles, and the scales as functions.
        self.decoded: Float[Tensor, "m n"] | None = None
        self.tuned: Callable[[], Scales] | None = None
        tiles = (padded(out_features) // TILE, padded(in_features) // TILE)
        self.register_buffer("qweight", torch.zeros(*tiles, TILE * TILE * self.bits // 8, dtype=torch.uint8))
        self.register_buffer("gen", torch.zeros(8, dtype=torch.int32))
        self.register_buffer("affine", torch.zeros(2, dtype=torch.float32))
        self.register_buffer("su", torch.ones(in_features, dtype=scale_types[0]))
        self.register_buffer("sv", torch.ones(out_features, dtype=scale_types[1]))
        # A model under construction may live on the meta device; the transforms do not.
        with torch.device("cpu"):
            self._transform_in = transform_for(padded(in_features), config.rht)
            self._transform_out = transform_for(padded(out_features), config.rht)
        self._register_matrix("matrix_in", self._transform_in)
        self._register_matrix("matrix_out", self._transform_out)
        self.bias = nn.Parameter(torch.zeros(out_features), requires_grad=False) if bias else None

    @classmethod
    def from_layer(
        cls,
        layer: QuantizedLayer,
        config: ProteusConfig,
        *,
        bias: Float[Tensor, " m"] | None = None,
        transposed: bool = False,
    ) -> ProteusLinear:
        """The module of a layer that `quantize_layer` made."""
        rows, columns = layer.shape
        module = cls(
            columns,
            rows,
            bias=bias is not None,
            config=config,
            transposed=transposed,
            scale_types=(layer.su.dtype, layer.sv.dtype),
        )
        module.load_layer(layer)
        if bias is not None:
            module.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
        return module

    def load_layer(self, layer: QuantizedLayer) -> None:
        """Take over the tensors of a layer that `quantize_layer` made; bits and window must be its own."""
        self.qweight = layer.qweight
        self.gen = layer.record.to(torch.int32)
        self.affine = layer.affine.float()
        self.su, self.sv = layer.su, layer.sv
        self.matrix_in, self.matrix_out = layer.input_transform.matrix, layer.output_transform.matrix

    @property
    def bits_per_weight(self) -> float:
        """Bytes of everything but the bias, in bits, over the number of weights."""
        stored = sum(buffer.numel() * buffer.element_size() for buffer in self.buffers())
        return 8 * stored / (self.in_features * self.out_features)

    @property
    def weight(self) -> Tensor:
        """The dense weight as the replaced module had it, decoded anew whenever somebody asks.

        Some models look at a weight's type, or initialise it where they hold it for missing.
        """
        shape = (self.out_features, self.in_features)
        dense = torch.empty(shape, device="meta") if self.qweight.is_meta else self.dequantize()
        dense = dense.T if self.transposed else dense
        dense._is_hf_initialized = True  # pyright: ignore[reportAttributeAccessIssue]
        return dense

    def scales(self) -> Scales:
        """alpha, beta, su and sv in float32."""
        if self.tuned is not None:
            return self.tuned()
        return Scales(self.affine[0], self.affine[1], self.su.float(), self.sv.float())

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The layer's output, in the type of `x`."""
        scales = self.scales()
        rows = x.reshape(-1, self.in_features)
        mixed = self._mix(rows.float() * scales.su)
        if self._in_half(rows):
            product = self._half_product(mixed, scales, x.dtype)
        else:
            product = scales.alpha * self._product(mixed) + scales.beta * mixed.sum(-1, keepdim=True)
        output = (self._unmix(product) * scales.sv).to(x.dtype)
        if self.bias is not None:
            output = output + self.bias.to(x.dtype)
        return output.reshape(*x.shape[:-1], self.out_features)

    def codes(self, rows: slice = slice(None)) -> Float[Tensor, "m n"]:
        """The integers Z of some rows of tiles, as float32, padding included."""
        return kernels.unpack_codes(self.qweight[rows].contiguous(), self.gen, self.window, self.bits).float()

    @torch.no_grad()
    def dequantize(self) -> Float[Tensor, "m n"]:
        """The dense weight that the layer stands for, float32: `forward(x)` is `x @ dequantize().T + b`."""
        scales = self.scales()
        dense = scales.alpha * self.codes() + scales.beta
        dense = self._transform("in").inverse(dense)[:, : self.in_features]
        dense = self._transform("out").inverse(dense.T.contiguous())[:, : self.out_features].T
        return scales.sv[:, None] * dense * scales.su

    def to_dense(self, dtype: torch.dtype) -> nn.Module:
        """The ordinary module that this one replaced, with the dequantized weight."""
        from transformers.pytorch_utils import Conv1D

        weight = self.dequantize().to(dtype)
        if self.transposed:
            dense: nn.Module = Conv1D(self.out_features, self.in_features)
            dense.weight = nn.Parameter(weight.T.contiguous())
        else:
            dense = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
            dense.weight = nn.Parameter(weight)
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().to(dtype))
        return dense

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, bits={self.bits}, window={self.window}"
        )

    def _register_matrix(self, name: str, transform: Transform) -> None:
        matrix = transform.matrix
        self.register_buffer(name, None if matrix is None else torch.empty(matrix.shape))

    def _transform(self, side: Literal["in", "out"]) -> Transform:
        transform = self._transform_in if side == "in" else self._transform_out
        matrix = self.matrix_in if side == "in" else self.matrix_out
        if matrix is None:
            return transform
        return Transform(transform.kind, transform.size, transform.orders, matrix)

    def _mix(self, x: Float[Tensor, "rows n"]) -> Float[Tensor, "rows padded"]:
        return self._transform("in").apply(_with_zeros(x, padded(self.in_features)))

    def _unmix(self, product: Float[Tensor, "rows padded"]) -> Float[Tensor, "rows m"]:
        return self._transform("out").inverse(product)[:, : self.out_features]

    def _product(self, mixed: Float[Tensor, "rows n"]) -> Float[Tensor, "rows m"]:
        if self.decoded is not None:
            return mixed @ self.decoded.T
        return kernels.matvec(
            self.qweight, self.gen, self.window, self.bits, mixed, activations=self.activations
        )

    def _in_half(self, rows: Float[Tensor, "rows n"]) -> bool:
        """Whether a product is large enough for a GPU's half-precision units."""
        half = rows.dtype in (torch.float16, torch.bfloat16)
        return half and rows.is_cuda and len(rows) >= kernels.DENSE_ROWS and self.decoded is None

    def _half_product(
        self, mixed: Float[Tensor, "rows n"], scales: Scales, dtype: torch.dtype
    ) -> Float[Tensor, "rows m"]:
        """alpha Z x + beta sum(x) in the model's own half precision, decoding a few rows of tiles at a time.

        alpha Z + beta is rounded, and not Z, which has more digits than bfloat16.
        """
        mixed = mixed.to(dtype)
        parts = []
        at_once = max(1, DECODED_ELEMENTS // (TILE * mixed.shape[-1]))
        for start in range(0, len(self.qweight), at_once):
            codes = self.codes(slice(start, start + at_once))
            parts.append(mixed @ (scales.alpha * codes + scales.beta).to(dtype).T)
        return torch.cat(parts, dim=-1).float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ProteusLinear:
        """Move the layer, but keep the precision of its scales whatever the model is cast to."""
        kept = {
            name: getattr(self, name) for name in _KEPT_PRECISION if getattr(self, name, None) is not None
        }
        super()._apply(fn, recurse)
        for name, before in kept.items():
            after = getattr(self, name)
            if after.dtype != before.dtype:
                setattr(self, name, before.to(device=after.device))
        return self


def _with_zeros(x: Float[Tensor, "rows n"], size: int) -> Float[Tensor, "rows padded"]:
    missing = size - x.shape[-1]
    return nn.functional.pad(x, (0, missing)) if missing else x


def proteus_layers(model: nn.Module) -> dict[str, ProteusLinear]:
    """The quantized layers of a model by path, in the model's order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, ProteusLinear)}
