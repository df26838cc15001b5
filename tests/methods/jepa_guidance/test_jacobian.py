"""Products with Jacobians against the Jacobian itself, and what happens where a derivative is missing."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from assay.errors import InputError
from assay.methods.jepa_guidance.jacobian import (
    FORWARD_PRODUCTS,
    JacobianProducts,
    differentiable_encoder,
    full_jacobian,
    naming_module,
)


def encoder(pixels: int = 12, width: int = 5) -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 9), nn.GELU(), nn.Linear(9, width), nn.Tanh())
    return net.double().eval().requires_grad_(False)


def images(batch: int = 3) -> Tensor:
    return torch.randn(batch, 1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def true_jacobian(f, x: Tensor) -> Tensor:
    return torch.stack([torch.autograd.functional.jacobian(f, row[None])[0, :, 0].flatten(1) for row in x])


@pytest.mark.parametrize("copies", [1, 2, 5, 7])
def test_the_full_jacobian_is_autograds(copies):
    f, x = encoder(), images()
    torch.testing.assert_close(full_jacobian(f, x, copies=copies), true_jacobian(f, x))


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 4),
    directions=st.integers(1, 6),
    copies=st.integers(1, 4),
    way=st.sampled_from(FORWARD_PRODUCTS),
    seed=st.integers(0, 99),
)
def test_products_are_those_of_the_jacobian(batch, directions, copies, way, seed):
    f, x = encoder(), images(batch)
    jacobian = true_jacobian(f, x)
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(directions, *x.shape, dtype=x.dtype, generator=generator)
    u = torch.randn(directions, batch, 5, dtype=x.dtype, generator=generator)
    with differentiable_encoder():
        products = JacobianProducts(f, x, copies=copies, forward_products=way)
        pushed, pulled = products.jvp(v), products.vjp(u)
    exact = way != "difference"
    torch.testing.assert_close(
        pushed,
        torch.einsum("bdn,rbn->rbd", jacobian, v.flatten(2)),
        rtol=1e-9 if exact else 1e-5,
        atol=1e-10 if exact else 1e-5,
    )
    torch.testing.assert_close(pulled.flatten(2), torch.einsum("bdn,rbd->rbn", jacobian, u))


def test_a_batch_mate_changes_no_product():
    f, x = encoder(), images(3)
    u = torch.randn(4, 3, 5, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    with differentiable_encoder():
        together = JacobianProducts(f, x, copies=4).vjp(u)
        alone = JacobianProducts(f, x[1:2], copies=4).vjp(u[:, 1:2])
    torch.testing.assert_close(together[:, 1:2], alone)


def test_a_difference_in_float32_does_not_drown_in_rounding():
    f, x = encoder().float(), images().float()
    v = torch.randn(6, *x.shape, generator=torch.Generator().manual_seed(4))
    v = v / v.flatten(2).norm(dim=2).view(6, 3, 1, 1, 1)
    with differentiable_encoder():
        exact = JacobianProducts(f, x, copies=6).jvp(v)
        ours = JacobianProducts(f, x, copies=6, forward_products="difference").jvp(v)
    # The step of the released code, for comparison.
    released = torch.stack([(f(x + 1e-4 * d) - f(x)) / 1e-4 for d in v])
    assert (ours - exact).norm() < 1e-3 * exact.norm()
    assert (released - exact).norm() > 1e-3 * exact.norm()


def test_gradients_are_on_within_no_grad_and_inference_mode_and_off_again():
    f, x = encoder(), images()
    expected = true_jacobian(f, x)
    with torch.no_grad():
        torch.testing.assert_close(full_jacobian(f, x, copies=5), expected)
        assert not torch.is_grad_enabled()
    before = torch.backends.cuda.flash_sdp_enabled()
    with torch.inference_mode():
        torch.testing.assert_close(full_jacobian(f, x.clone(), copies=5), expected)
        assert torch.is_inference_mode_enabled()
    assert torch.backends.cuda.flash_sdp_enabled() == before


class Attention(nn.Module):
    """One fused attention over rows, as transformers calls it."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1).unflatten(1, (1, 3, 4))
        return functional.scaled_dot_product_attention(rows, rows, rows).flatten(1)


def test_fused_attention_is_differentiated_twice_under_the_math_kernel():
    f, x = Attention(), images(2).float()
    with differentiable_encoder():
        products = JacobianProducts(f, x, copies=3)
        rows = products.rows(torch.randn(3, 2, 12, generator=torch.Generator().manual_seed(5)))
        gradient = products.gradient(rows.square().sum())
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


class Once(torch.autograd.Function):
    """A kernel with a first derivative only, like a fused one."""

    @staticmethod
    def forward(ctx, x):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


class Fused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Once.apply(x)  # pyright: ignore[reportReturnType]


class ForwardOnly(torch.autograd.Function):
    """A kernel with a first derivative and forward mode, without a second derivative."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x):  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return gradient * x.cos()

    @staticmethod
    def jvp(ctx, tangent):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return tangent * x.cos()


class Forwardable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ForwardOnly.apply(x)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(("kernel", "way"), [(Forwardable(), "forward"), (Fused(), "difference")])
def test_what_has_no_second_derivative_falls_back(kernel, way):
    f = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), kernel).double().requires_grad_(False)
    x = images()
    v = torch.randn(2, *x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(6))
    with differentiable_encoder():
        products = JacobianProducts(f, x, copies=2)
        with pytest.warns(UserWarning, match=f"using {way}"):
            pushed = products.jvp(v)
        assert products.forward_products == way
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            products.jvp(v)
    expected = torch.einsum("bdn,rbn->rbd", true_jacobian(f, x), v.flatten(2))
    torch.testing.assert_close(pushed, expected, rtol=1e-5, atol=1e-5)


class FusedAttention(nn.Module):
    """PyTorch's own fused attention kernel for the CPU, called directly."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.unflatten(1, (1, 3, 4))
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(rows, rows, rows)[0].flatten(1)


def test_the_module_without_a_second_derivative_is_named():
    f = nn.Sequential(nn.Flatten(), nn.Linear(12, 12), nn.Sequential(FusedAttention(), nn.Linear(12, 5)))
    f = f.requires_grad_(False)
    with (
        pytest.raises(InputError, match=r"cannot be differentiated twice.*\(in module 2\.0\)"),
        differentiable_encoder(),
        naming_module(f),
    ):
        products = JacobianProducts(f, images().float(), copies=2)
        rows = products.rows(torch.ones(2, 3, 5))
        products.gradient(rows.square().sum())
    assert not any(module._forward_pre_hooks for module in f.modules())


def test_a_detached_encoder_is_refused():
    class Detached(nn.Module):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).sin()

    for f in (Detached(), nn.Sequential(Detached()), lambda x: x.detach().flatten(1)):
        with pytest.raises(InputError, match="detached"):
            full_jacobian(f, images(), copies=2)


def test_a_constant_jacobian_has_the_gradient_zero():
    f = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double().requires_grad_(False)
    with differentiable_encoder():
        products = JacobianProducts(f, images(), copies=2)
        rows = products.rows(torch.ones(2, 3, 5, dtype=torch.float64))
        assert not products.gradient(rows.square().sum()).any()
