"""Products with the Jacobians of an encoder, for many directions and samples in one call.

The encoder maps every sample of a batch on its own, so the Jacobian of a batch is one small matrix J a sample
(d outputs, n inputs). Copies of the samples along the batch axis give every direction a row of its own: one
backward pass then serves all of them. That needs no batching rule of `torch.func.vmap`, and on the CPU it is
faster (`python -m benchmarks.jepa_guidance`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.errors import InputError

Encoder = Callable[[Float[Tensor, "batch ..."]], Float[Tensor, "batch d"]]
ForwardProduct = Literal["double", "forward", "difference"]
FORWARD_PRODUCTS: tuple[ForwardProduct, ...] = ("double", "forward", "difference")

# Step of a finite difference as a share of |x| / |v|: a shorter one drowns in the rounding of float32.
_DIFFERENCE = 1e-3


@contextmanager
def differentiable_encoder() -> Iterator[None]:
    """Gradients on, inference mode off, and attention kernels that can be differentiated twice.

    The fused attention kernels of PyTorch have neither a second derivative nor forward mode. All settings are
    as they were afterwards.
    """
    with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        yield


class JacobianProducts:
    """The Jacobians of `encoder` at `x`: products from the left and from the right.

    Use it inside `differentiable_encoder()`.

    Args:
        encoder: maps each sample of the batch on its own to d numbers.
        x: the samples.
        copies: how many directions a call handles at once; more are handled in turns.
        forward_products: the way in which J v is computed: `"double"`, two reverse passes (the derivative of
            u -> J^T u, which is linear, along v: exact, and its first pass serves all calls); `"forward"`,
            forward mode (exact); `"difference"`, a finite difference.

    Raises:
        InputError: the encoder's output does not depend on its input.
    """

    def __init__(
        self,
        encoder: Encoder,
        x: Float[Tensor, "batch ..."],
        *,
        copies: int,
        forward_products: ForwardProduct = "double",
    ) -> None:
        self._encoder = encoder
        self._x = x.detach()
        self._copies = copies
        self._points = self._copied(copies).requires_grad_()
        self._outputs = encoder(self._points)
        # A view made under no_grad claims to require a gradient, and has no function to compute it.
        if not self._outputs.requires_grad or self._outputs.grad_fn is None:
            raise InputError(
                "the encoder's output is detached from its input: it runs under no_grad, or it is quantised"
            )
        self._width = self._outputs.shape[1]
        self._transposed: tuple[Tensor, Tensor] | None = None
        self.forward_products: ForwardProduct = forward_products

    @property
    def width(self) -> int:
        """d, the number of outputs of a sample."""
        return self._width

    def vjp(self, u: Float[Tensor, "directions batch d"]) -> Float[Tensor, "directions batch ..."]:
        """J^T u for each direction of each sample."""
        return torch.cat([self._pull(part) for part in u.split(self._copies)])

    def jvp(self, v: Float[Tensor, "directions batch ..."]) -> Float[Tensor, "directions batch d"]:
        """J v for each direction of each sample.

        An encoder with an operation that does not support the way asked for is handled by the next one of
        `FORWARD_PRODUCTS`, with a warning; `forward_products` then names it.
        """
        ways = FORWARD_PRODUCTS[FORWARD_PRODUCTS.index(self.forward_products) :]
        for way in ways:
            try:
                product = torch.cat([self._push(part, way) for part in v.split(self._copies)])
            except (NotImplementedError, RuntimeError) as error:
                if isinstance(error, torch.OutOfMemoryError) or way == ways[-1]:
                    raise
                following = FORWARD_PRODUCTS[FORWARD_PRODUCTS.index(way) + 1]
                warnings.warn(
                    f"the encoder has no {way} products ({_first_line(error)}); using {following}",
                    stacklevel=2,
                )
                self.forward_products = following
            else:
                return product
        raise AssertionError("the last way either returns or raises")

    def rows(self, u: Float[Tensor, "copies batch d"]) -> Float[Tensor, "copies batch ..."]:
        """J^T u with its graph: `gradient` differentiates what is made of it.

        Raises:
            InputError: an operation of the encoder has no second derivative.
        """
        try:
            return self._pull(u, create_graph=True)
        except (NotImplementedError, RuntimeError) as error:
            raise no_second_derivative(error) from error

    def gradient(self, value: Float[Tensor, ""]) -> Float[Tensor, "batch ..."]:
        """The gradient at x of a number that was made of `rows`; zeros where it does not depend on x.

        Raises:
            InputError: an operation of the encoder has no second derivative.
        """
        if not value.requires_grad:
            return torch.zeros_like(self._x)
        try:
            (gradient,) = torch.autograd.grad(value, self._points, allow_unused=True)
        except (NotImplementedError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise no_second_derivative(error) from error
        if gradient is None:
            return torch.zeros_like(self._x)
        return gradient.unflatten(0, (self._copies, len(self._x))).sum(dim=0)

    def _copied(self, copies: int) -> Tensor:
        return self._x.repeat(copies, *[1] * (self._x.dim() - 1))

    def _graph(self, copies: int) -> tuple[Tensor, Tensor]:
        """Points and outputs for so many copies; the last part of a split has fewer than the others."""
        if copies == self._copies:
            return self._points, self._outputs
        points = self._copied(copies).requires_grad_()
        return points, self._encoder(points)

    def _pull(self, u: Tensor, *, create_graph: bool = False) -> Tensor:
        points, outputs = self._graph(len(u))
        (product,) = torch.autograd.grad(
            outputs, points, u.flatten(0, 1), create_graph=create_graph, retain_graph=True
        )
        return product.unflatten(0, u.shape[:2])

    def _push(self, v: Tensor, way: ForwardProduct) -> Tensor:
        flat = v.flatten(0, 1)
        if way == "double":
            product = self._push_by_double_backward(flat, len(v))
        elif way == "forward":
            with torch.no_grad(), forward_ad.dual_level():
                dual = self._encoder(forward_ad.make_dual(self._copied(len(v)), flat))
                tangent = forward_ad.unpack_dual(dual).tangent
            product = torch.zeros_like(dual) if tangent is None else tangent
        else:
            product = self._push_by_difference(flat, len(v))
        return product.unflatten(0, v.shape[:2])

    def _push_by_double_backward(self, flat: Tensor, copies: int) -> Tensor:
        """The derivative of the linear map u -> J^T u along v is J v."""
        if copies != self._copies or self._transposed is None:
            points, outputs = self._graph(copies)
            u = torch.zeros_like(outputs, requires_grad=True)
            (pulled,) = torch.autograd.grad(outputs, points, u, create_graph=True)
            if copies == self._copies:
                self._transposed = u, pulled
        else:
            u, pulled = self._transposed
        (product,) = torch.autograd.grad(pulled, u, flat, retain_graph=True)
        return product

    @torch.no_grad()
    def _push_by_difference(self, flat: Tensor, copies: int) -> Tensor:
        x = self._copied(copies)
        lengths = flat.flatten(1).norm(dim=1).clamp_min(torch.finfo(flat.dtype).tiny)
        sizes = x.flatten(1).norm(dim=1).clamp_min(1.0)
        step = (_DIFFERENCE * sizes / lengths).view(-1, *[1] * (flat.dim() - 1))
        ahead, behind = self._encoder(x + step * flat), self._encoder(x - step * flat)
        return (ahead - behind) / (2 * step.flatten(1))


def full_jacobian(
    encoder: Encoder,
    x: Float[Tensor, "batch ..."],
    *,
    copies: int,
) -> Float[Tensor, "batch d n"]:
    """The Jacobian of each sample, row by row, without a graph.

    Args:
        encoder: maps each sample of the batch on its own to d numbers.
        x: the samples.
        copies: how many rows are computed at once.

    Raises:
        InputError: the encoder's output does not depend on its input.
    """
    with differentiable_encoder():
        products = JacobianProducts(encoder, x, copies=copies)
        units = torch.eye(products.width, dtype=x.dtype, device=x.device)
        rows = products.vjp(units.unsqueeze(1).expand(-1, len(x), -1))
    return rows.flatten(2).transpose(0, 1)


def no_second_derivative(error: Exception) -> InputError:
    """The error for an encoder that cannot be differentiated twice."""
    return InputError(
        f"the encoder cannot be differentiated twice: {_first_line(error)}. Attention must run on PyTorch's "
        "math kernel: load the model with attn_implementation='eager' or 'sdpa' and without xformers"
    )


@contextmanager
def naming_module(encoder: nn.Module) -> Iterator[None]:
    """Let an error of a second derivative also name the module whose operation has none.

    The inputs of the encoder's modules are recorded in the block; after an error each innermost module is
    differentiated twice on its own.
    """
    inputs: dict[str, tuple[Tensor, ...]] = {}

    def recording(name: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
        def hook(module: nn.Module, arguments: tuple[object, ...]) -> None:
            tensors = tuple(a.detach() for a in arguments if isinstance(a, Tensor))
            if len(tensors) == len(arguments) and tensors and tensors[0].is_floating_point():
                inputs.setdefault(name, tensors)

        return hook

    handles = [
        module.register_forward_pre_hook(recording(name)) for name, module in encoder.named_modules() if name
    ]
    try:
        yield
    except InputError as error:
        for handle in handles:
            handle.remove()
        handles.clear()
        culprit = _first_without_second_derivative(encoder, inputs)
        if culprit is None:
            raise
        raise InputError(f"{error} (in module {culprit})") from error
    finally:
        for handle in handles:
            handle.remove()


def _first_without_second_derivative(encoder: nn.Module, inputs: dict[str, tuple[Tensor, ...]]) -> str | None:
    modules = dict(encoder.named_modules())
    # Innermost first: an outer module fails whenever one inside it does.
    for name in sorted(inputs, key=lambda name: -name.count(".")):
        first, *others = inputs[name]
        point = first.clone().requires_grad_()
        try:
            output = modules[name](point, *others)
            if not isinstance(output, Tensor):
                continue
            (gradient,) = torch.autograd.grad(output.sum(), point, create_graph=True)
            if gradient.requires_grad:
                torch.autograd.grad(gradient.square().sum(), point, allow_unused=True)
        except (NotImplementedError, RuntimeError):
            return name
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
