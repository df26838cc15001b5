"""Guidance and scoring of jepa_guidance beside what they replace, as ratios in one run.

OMP_NUM_THREADS=1 python -m benchmarks.jepa_guidance [--device cuda]

Every line is about one encoder and one batch. "One by one" makes the same exact products with one backward
pass for each direction; "as released" is the paper's published code rebuilt from its text: a loop over
directions with finite differences and a forward pass for each product.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import torch
from diffusers.models.unets.unet_2d import UNet2DModel
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from torch import Tensor, nn
from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

from assay.methods.jepa_guidance import JEPAGuidanceConfig, JEPAScorer, JEPAShift, guided_sample
from assay.methods.jepa_guidance.guidance_step import GuidanceStep
from assay.methods.jepa_guidance.jacobian import JacobianProducts, differentiable_encoder, full_jacobian
from assay.methods.jepa_guidance.randomised_svd import (
    leading_subspace,
    random_directions,
    score_from_rows,
    surrogate_reference,
    surrogate_with_gradient,
)

K, OVERSAMPLE, ITERATIONS = 9, 2, 2
RANK = K + OVERSAMPLE
STEPS = 10
# Of the guided step measured: the last one, whose image is not only noise.
GUIDED = JEPAGuidanceConfig(
    eta=0.05, k=K, oversample=OVERSAMPLE, power_iters=ITERATIONS, assume_sign=1, tau=0.1
)


def vision_transformer(width: int, depth: int, size: int) -> Dinov2WithRegistersModel:
    """A DINOv2 with registers and random weights."""
    torch.manual_seed(0)
    config = Dinov2WithRegistersConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // 16,
        image_size=size,
        patch_size=8,
        layerscale_value=0.5,
    )
    return Dinov2WithRegistersModel(config)


def denoiser(size: int) -> nn.Module:
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=size,
        block_out_channels=(32, 64, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )


class Clock:
    """The shortest of a few times: of the processor for the CPU, of the wall for a GPU."""

    def __init__(self, device: str, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def __call__(self, action: Callable[[], object]) -> float:
        action()
        return min(self._once(action) for _ in range(self.repeats))

    def _once(self, action: Callable[[], object]) -> float:
        if self.device == "cpu":
            start = time.process_time()
            action()
            return time.process_time() - start
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        return time.perf_counter() - start


def show(what: str, ours: float, peer: str, theirs: float, note: str = "") -> None:
    times = f"{1e3 * ours:>9.1f} ms  {peer:<38} {1e3 * theirs:>9.1f} ms  {theirs / ours:>6.2f}x"
    print(f"{what:<48} {times}  {note}", flush=True)


def one_by_one(encoder: Callable[[Tensor], Tensor], z: Tensor, directions: Tensor) -> Tensor:
    """The gradient by the same exact products, one direction after the other."""
    point = z.clone().requires_grad_()
    outputs = encoder(point)
    u = torch.zeros_like(outputs, requires_grad=True)
    (transposed,) = torch.autograd.grad(outputs, point, u, create_graph=True)

    def push(vectors: Tensor) -> Tensor:
        found = [torch.autograd.grad(transposed, u, v, retain_graph=True)[0] for v in vectors]
        return torch.linalg.qr(torch.stack(found).permute(1, 2, 0)).Q.permute(2, 0, 1)

    def pull(basis: Tensor, create_graph: bool) -> Tensor:
        return torch.stack([
            torch.autograd.grad(outputs, point, row, retain_graph=True, create_graph=create_graph)[0]
            for row in basis
        ])  # fmt: skip

    basis = push(directions)
    for _ in range(ITERATIONS):
        basis = push(pull(basis, False))
    values, _, _ = score_from_rows(pull(basis, True), K, 1e-8)
    return torch.autograd.grad(values.sum(), point)[0]


def exact_gradient(encoder: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """The gradient of the sum over the exact leading singular values (envelope theorem)."""
    jacobian = full_jacobian(encoder, z, copies=32)
    basis = torch.linalg.svd(jacobian.double(), full_matrices=False).U[:, :, :K].to(z.dtype)
    products = JacobianProducts(encoder, z, copies=K)
    values, _, _ = score_from_rows(products.rows(basis.permute(2, 0, 1)), K, 1e-8)
    return products.gradient(values.sum())


def cosine(found: Tensor, expected: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(found.flatten(1), expected.flatten(1)).mean())


def products(scorer: JEPAScorer, z: Tensor, name: str, clock: Clock) -> None:
    """The Jacobian products and the gradient of one guided step."""

    def ours() -> Tensor:
        return surrogate_with_gradient(
            scorer.encoder,
            z,
            k=K,
            oversample=OVERSAMPLE,
            power_iters=ITERATIONS,
            generator=torch.Generator().manual_seed(0),
        ).gradients

    directions = random_directions(RANK, z, torch.Generator().manual_seed(0))

    def released() -> Tensor:
        return surrogate_reference(
            scorer.encoder, z, k=K, power_iters=ITERATIONS, directions=directions, difference=1e-4
        )[1]

    with differentiable_encoder():
        exact = exact_gradient(scorer.encoder, z)
        batched = clock(ours)
        single = clock(lambda: one_by_one(scorer.encoder, z, directions))
        loop = clock(released)
        found, theirs = cosine(ours(), exact), cosine(released(), exact)
    show(f"surrogate gradient, {name}", batched, "one by one", single)
    note = f"cosine to the exact top-{K} gradient: ours {found:.4f}, as released {theirs:.4f}"
    show(f"surrogate gradient, {name}", batched, "as released", loop, note)


def scoring(scorer: JEPAScorer, images: Tensor, name: str, clock: Clock) -> None:
    """The exact score against autograd's Jacobian and a singular value decomposition."""
    z = scorer.preprocess(images)

    def plain() -> Tensor:
        rows = [torch.autograd.functional.jacobian(scorer.encoder, row[None]) for row in z]
        jacobian = torch.stack([torch.as_tensor(row).flatten(2)[0] for row in rows])
        return torch.linalg.svdvals(jacobian).clamp_min(1e-6).log().sum(dim=1)

    ours, theirs = clock(lambda: scorer.score(images)), clock(plain)
    difference = float((scorer.score(images) - plain()).abs().max())
    show(
        f"exact score, {name}",
        ours,
        "autograd.functional.jacobian, svdvals",
        theirs,
        f"{difference:.1e} nats",
    )


def guided_step(scorer: JEPAScorer, size: int, batch: int, name: str, clock: Clock) -> None:
    """A guided step against the denoiser and encoder passes that it consists of, each timed bare."""
    unet = denoiser(size).eval().requires_grad_(False)
    unet.to(device=scorer.device)
    steps: list[GuidanceStep] = []
    shift = JEPAShift(scorer, GUIDED)

    def watched(step: GuidanceStep) -> Tensor:
        steps.append(step)
        return shift(step)

    guided_sample(
        unet, DDPMScheduler(), config=GUIDED, guidance=watched, shape=(batch, 3, size, size),
        num_inference_steps=STEPS, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    step = steps[-1]

    def whole() -> None:
        moved = step.x_t + shift(step)
        with torch.no_grad():
            unet(moved, step.t)

    whole_time = clock(whole)
    x = step.x_t.clone().requires_grad_()
    predicted = step.predict(x)
    with torch.no_grad():
        forward = clock(lambda: unet(step.x_t, step.t))
    with_graph = clock(lambda: step.predict(x))
    backward = clock(lambda: torch.autograd.grad(predicted.sum(), x, retain_graph=True))
    passes = forward + with_graph + backward + encoder_passes(scorer, step, clock)
    note = f"{whole_time / passes:.2f} times its passes, {whole_time / forward:.1f} plain steps"
    show(f"guided step, {name}", whole_time, "its passes, each timed bare", passes, note)


def encoder_passes(scorer: JEPAScorer, step: GuidanceStep, clock: Clock) -> float:
    """The passes of the encoder in a guided step: RANK copies of each image at once."""
    grad = torch.autograd.grad
    with differentiable_encoder():
        z = scorer.preprocess(step.to_image(step.predict(step.x_t)).clamp(0, 1)).detach()
        points = z.repeat(RANK, 1, 1, 1).requires_grad_()
        outputs = scorer.encoder(points)
        u = torch.randn_like(outputs).requires_grad_()
        (transposed,) = grad(outputs, points, u, create_graph=True)
        v = torch.randn_like(points)
        (rows,) = grad(outputs, points, u.detach(), create_graph=True)
        squares = rows.square().sum()
        forward = clock(lambda: scorer.encoder(points))
        linear = clock(lambda: grad(outputs, points, u, create_graph=True))
        push = clock(lambda: grad(transposed, u, v, retain_graph=True))
        pull = clock(lambda: grad(outputs, points, u.detach(), retain_graph=True))
        twice = clock(lambda: grad(squares, points, retain_graph=True))
    return forward + 2 * linear + (ITERATIONS + 1) * push + ITERATIONS * pull + twice


def warm_start(scorer: JEPAScorer, z: Tensor, name: str, clock: Clock) -> None:
    """Fewer iterations from the subspace of a neighbouring point, against a cold start."""
    generator = torch.Generator().manual_seed(1)
    moved = z + 0.02 * torch.randn(z.shape, generator=generator).to(z)
    with differentiable_encoder():
        exact = torch.linalg.svd(full_jacobian(scorer.encoder, z, copies=32).double(), full_matrices=False).U
        exact = exact[:, :, :K]

        def basis(at: Tensor, iterations: int, start: Tensor | None) -> Tensor:
            made = JacobianProducts(scorer.encoder, at, copies=RANK)
            drawn = (
                None if start is not None else random_directions(RANK, at, torch.Generator().manual_seed(0))
            )
            return leading_subspace(made, iterations, directions=drawn, basis=start)

        before = basis(moved, ITERATIONS, None)
        cold, warm = (lambda: basis(z, ITERATIONS, None)), (lambda: basis(z, 1, before))

        def angle(found: Tensor) -> float:
            overlap = torch.linalg.svdvals(found.double().mT @ exact)[:, -1].clamp(max=1)
            return float(torch.rad2deg(torch.arccos(overlap)).mean())

        note = (
            f"largest angle to the exact subspace: warm {angle(warm()):.1f}, cold {angle(cold()):.1f} degrees"
        )
        show(f"subspace, {name}", clock(warm), "cold start, 2 iterations", clock(cold), note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    clock = Clock(arguments.device, arguments.repeats)
    cases = [("ViT 48 x 3, 32 px", 48, 3, 32, 1), ("ViT 48 x 3, 32 px", 48, 3, 32, 4)]
    cases += [("ViT 192 x 6, 64 px", 192, 6, 64, 1)]
    if arguments.device == "cuda":
        cases += [("ViT-S, 224 px", 384, 12, 224, 1), ("ViT-S, 224 px", 384, 12, 224, 4)]
    for name, width, depth, size, batch in cases:
        model = vision_transformer(width, depth, size)
        scorer = JEPAScorer(model, mean=[0.5] * 3, std=[0.25] * 3, image_size=size, device=arguments.device)
        images = torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(2))
        label = f"{name}, batch {batch}"
        z = scorer.preprocess(images)
        products(scorer, z, label, clock)
        scoring(scorer, images, label, clock)
        guided_step(scorer, size, batch, label, clock)
        warm_start(scorer, z, label, clock)


if __name__ == "__main__":
    main()
