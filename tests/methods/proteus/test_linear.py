"""The packed linear layer: its product, its dense weight, its types."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from assay.methods.proteus import kernels
from assay.methods.proteus.config import ProteusConfig
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.layer_quantization import dequantize
from assay.methods.proteus.linear import ProteusLinear
from assay.methods.proteus.trellis import Trellis, unpack


def module_of(layer, *, window=6, bits=2, rht="auto", bias=None, transposed=False) -> ProteusLinear:
    config = ProteusConfig(bits=bits, window=window, rht=rht)
    return ProteusLinear.from_layer(layer, config, bias=bias, transposed=transposed)


def inputs(rows, n, seed=5):
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("rows", [1, kernels.DENSE_ROWS + 3])
@pytest.mark.parametrize(("m", "n"), [(48, 64), (72, 40), (33, 100)])
def test_forward_is_the_product_with_the_dequantized_weight(random_layer, bits, rows, m, n):
    bias = inputs(1, m, seed=6)[0]
    module = module_of(random_layer(m, n, bits=bits), window=8, bits=bits, bias=bias)
    x = inputs(rows, n)
    expected = x @ module.dequantize().T + bias
    found = module(x)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_the_dense_weight_is_that_of_the_layer(random_layer):
    layer = random_layer(72, 40)
    module = module_of(layer, window=6)
    torch.testing.assert_close(module.dequantize(), dequantize(layer, 6, 2), rtol=1e-6, atol=1e-7)


def test_codes_come_from_the_packed_bits_alone(random_layer):
    # Acceptance check 11: the kernel, the torch reference and the definition agree on every integer.
    layer = random_layer(48, 32)
    module = module_of(layer, window=7)
    states = unpack(layer.qweight.flatten(0, 1), Trellis(7, 2)).flip(-1)
    z = Generator.from_record(layer.record).raw(states).view(3, 2, 16, 16).permute(0, 3, 1, 2)
    assert torch.equal(module.codes(), z.reshape(48, 32).float())
    assert torch.equal(kernels.unpack_codes(layer.qweight, layer.record, 7, 2).float(), module.codes())


def test_nothing_in_the_state_grows_with_the_number_of_states(random_layer):
    sizes = []
    for window in (6, 14):
        module = module_of(random_layer(48, 64), window=window)
        sizes.append({name: tensor.numel() for name, tensor in module.state_dict().items()})
    assert sizes[0] == sizes[1]
    assert sorted(sizes[0]) == ["affine", "gen", "qweight", "su", "sv"]


@hypothesis.given(
    m=st.integers(32, 90), n=st.integers(32, 90), rows=st.integers(0, 12), seed=st.integers(0, 99)
)
@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
def test_any_shape(random_layer, m, n, rows, seed):
    module = module_of(random_layer(m, n, seed=seed))
    x = inputs(rows, n, seed).reshape(rows, 1, n)
    expected = x @ module.dequantize().T
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-4)


def test_a_random_orthogonal_transform_is_part_of_the_state(random_layer):
    layer = random_layer(48, 80, rht="orthogonal")
    module = module_of(layer, rht="orthogonal")
    state = module.state_dict()
    assert tuple(state["matrix_in"].shape) == (5, 5)
    assert tuple(state["matrix_out"].shape) == (3, 3)
    other = module_of(random_layer(48, 80, seed=3, rht="orthogonal"), rht="orthogonal")
    other.load_state_dict(state)
    assert torch.equal(other(inputs(2, 80)), module(inputs(2, 80)))
    torch.testing.assert_close(module.dequantize(), dequantize(layer, 6, 2))


def test_half_precision_products_decode_a_part_at_a_time(random_layer, monkeypatch):
    module = module_of(random_layer(96, 64))
    mixed = inputs(5, 64)
    decoded = []
    unpack_codes = kernels.unpack_codes

    def counting(qweight, *arguments):
        decoded.append(len(qweight))
        return unpack_codes(qweight, *arguments)

    monkeypatch.setattr("assay.methods.proteus.linear.DECODED_ELEMENTS", 2 * 16 * 64)
    monkeypatch.setattr(kernels, "unpack_codes", counting)
    scales = module.scales()
    found = module._half_product(mixed, scales, torch.bfloat16)
    assert decoded == [2, 2, 2]
    expected = scales.alpha * module._product(mixed) + scales.beta * mixed.sum(-1, keepdim=True)
    assert (found - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casting_the_model_keeps_the_scales(random_layer, dtype):
    module = module_of(random_layer(48, 64), bias=torch.ones(48))
    before = module.dequantize()
    model = nn.Sequential(module).to(dtype)
    assert module.affine.dtype == torch.float32
    assert module.su.dtype == torch.float16
    assert module.bias.dtype == dtype
    assert torch.equal(module.dequantize(), before)
    assert model(inputs(2, 64).to(dtype)).dtype == dtype


def test_gradients_reach_the_input(random_layer):
    module = module_of(random_layer(48, 64))
    x = inputs(2, 64).requires_grad_()
    module(x).square().sum().backward()
    weight = module.dequantize()
    torch.testing.assert_close(x.grad, 2 * x.detach() @ weight.T @ weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_dense_module_computes_the_same(random_layer, transposed):
    module = module_of(random_layer(72, 40), bias=inputs(1, 72)[0], transposed=transposed)
    dense = module.to_dense(torch.float32)
    assert type(dense).__name__ == ("Conv1D" if transposed else "Linear")
    torch.testing.assert_close(dense(inputs(3, 40)), module(inputs(3, 40)), rtol=1e-4, atol=1e-5)


def test_bits_per_weight_are_what_is_stored(random_layer):
    module = module_of(random_layer(576, 576))
    assert module.bits_per_weight == pytest.approx(2 + 16 * (576 + 576) / 576**2 + (256 + 64) / 576**2)
    assert module.bits_per_weight == random_layer(576, 576).bits_per_weight


def test_integer_activations_are_near(random_layer):
    module = module_of(random_layer(96, 128))
    x = inputs(1, 128)
    exact = module(x)
    module.activations = "int8"
    assert (module(x) - exact).norm() < 0.02 * exact.norm()
