"""I-JEPA: predict the features of hidden blocks of an image from the rest of it (Assran et al. 2023).

A context encoder sees part of the patches, a narrow predictor is asked for the features at the places of four
target blocks, and the answer is what a moving average of the context encoder says about the whole image. The
moving average is the encoder that is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from assay.errors import InputError
from assay.methods.jepa_guidance.augmentations import Augmentation, augment_images
from assay.methods.jepa_guidance.encoder_model import (
    Block,
    JEPAEncoder,
    VisionTransformer,
    grid_positions,
    take_tokens,
)
from assay.methods.jepa_guidance.encoder_objectives import check_collapse
from assay.methods.jepa_guidance.training_loop import Objective

TARGETS = 4
_TARGET_AREA = (0.15, 0.2)
_TARGET_ASPECT = (0.75, 1.5)
_CONTEXT_AREA = (0.85, 1.0)
_LEAST_GRID = 4
_FIRST_MOMENTUM = 0.996
_ATTEMPTS = 20


def block_masks(
    batch: int, grid: int, generator: torch.Generator, device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "batch kept"], Int[Tensor, "batch targets size"]]:
    """Which patches the context encoder sees, and which it is asked for.

    The sizes of the blocks are drawn for the batch and their places for each image. The context is a large
    block without the targets; all images keep as many patches as the one with the fewest, chosen at random.

    Args:
        batch: images.
        grid: patches along a side.
        generator: draws the blocks.
        device: of the result.

    Raises:
        InputError: the grid has fewer than 4 patches a side.
    """
    if grid < _LEAST_GRID:
        raise InputError(
            f"I-JEPA needs at least {_LEAST_GRID} patches a side, this image has {grid}: use smaller patches"
        )
    aspect = _between(*_TARGET_ASPECT, generator)
    target_height, target_width = _sides(grid, _between(*_TARGET_AREA, generator), aspect)
    context_sides = _sides(grid, _between(*_CONTEXT_AREA, generator), 1.0)
    targets = _places(batch * TARGETS, grid, target_height, target_width, generator)
    targets = targets.view(batch, TARGETS, grid * grid)
    context = _places(batch, grid, *context_sides, generator) & ~targets.any(1)
    for _ in range(_ATTEMPTS):
        # Overlapping little, four targets can leave nothing of a small image.
        empty = context.sum(1) < grid * grid // 8
        if not empty.any():
            break
        again = _places(int(empty.sum()) * TARGETS, grid, target_height, target_width, generator)
        targets[empty] = again.view(-1, TARGETS, grid * grid)
        context[empty] = ~targets[empty].any(1)
    kept = int(context.sum(1).min().clamp(min=1))
    order = torch.rand(context.shape, generator=generator, device=generator.device)
    chosen = (order + context).topk(kept, dim=1).indices.sort(1).values
    asked = targets.nonzero()[:, 2].view(batch, TARGETS, target_height * target_width)
    return chosen.to(device), asked.to(device)


def _between(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, device=generator.device))


def _sides(grid: int, area: float, aspect: float) -> tuple[int, int]:
    """Height and width, in patches, of a block with a part of the grid's area."""
    patches = area * grid * grid
    height, width = round((patches * aspect) ** 0.5), round((patches / aspect) ** 0.5)
    return min(max(height, 1), grid), min(max(width, 1), grid)


def _places(
    count: int, grid: int, height: int, width: int, generator: torch.Generator
) -> Bool[Tensor, "count patches"]:
    """Masks of blocks of one size at random places."""

    def inside(length: int) -> Bool[Tensor, "count grid"]:
        start = torch.randint(grid - length + 1, (count, 1), generator=generator, device=generator.device)
        steps = torch.arange(grid, device=generator.device)
        return (steps >= start) & (steps < start + length)

    return (inside(height)[:, :, None] & inside(width)[:, None, :]).flatten(1)


class Predictor(nn.Module):
    """A narrow transformer: features of the context and places to predict -> features at these places.

    Args:
        width: of the encoder's features.
        grid: patches along a side of the image.
        num_heads: attention heads.
        depth: blocks.
    """

    def __init__(self, width: int, grid: int, num_heads: int, depth: int) -> None:
        super().__init__()
        narrow = max(num_heads, width // 2 // num_heads * num_heads)
        self.enter = nn.Linear(width, narrow)
        self.positions = nn.Parameter(grid_positions(grid, narrow)[None])
        self.unknown = nn.Parameter(0.02 * torch.randn(1, 1, narrow))
        self.blocks = nn.ModuleList(Block(narrow, num_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(narrow)
        self.leave = nn.Linear(narrow, width)

    def forward(
        self,
        context: Float[Tensor, "batch kept width"],
        kept: Int[Tensor, "batch kept"],
        asked: Int[Tensor, "batch targets size"],
    ) -> Float[Tensor, "batch targets size width"]:
        """Predict each target block on its own."""
        batch, targets, size = asked.shape
        seen = self.enter(context) + take_tokens(self.positions, kept)
        seen = seen.repeat_interleave(targets, 0)
        unknown = self.unknown + take_tokens(self.positions, asked.flatten(0, 1))
        tokens = torch.cat([seen, unknown], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.leave(self.norm(tokens[:, -size:])).view(batch, targets, size, -1)


class LatentPrediction(Objective):
    """I-JEPA's loss: the smooth L1 distance of predictions to the target encoder's normalised features.

    Args:
        encoder: a vision transformer without projection; it becomes the moving average.
        augmentation: of the images, before anything is hidden.

    Raises:
        InputError: the encoder is no such transformer.
    """

    def __init__(self, encoder: JEPAEncoder, augmentation: Augmentation) -> None:
        super().__init__()
        config = encoder.config
        if not isinstance(encoder.body, VisionTransformer) or config.projection:
            raise InputError("I-JEPA trains vision transformers: use the architecture vit")
        self.encoder = encoder.requires_grad_(False)
        self.augmentation = augmentation
        self.grid = config.image_size // config.patch_size
        self.context = copy.deepcopy(encoder.body).requires_grad_(True)
        self.predictor = Predictor(config.width, self.grid, config.num_heads, max(2, config.depth // 2))
        self.latest: Tensor | None = None

    def forward(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> Float[Tensor, ""]:
        images = augment_images(batch["images"], self.augmentation, generator)
        pixels = self.encoder.normalise(images)
        kept, asked = block_masks(len(pixels), self.grid, generator, pixels.device)
        with torch.no_grad():
            tokens = self.encoder(pixels).last_hidden_state
            self.latest = tokens.flatten(1)
            answers = functional.layer_norm(tokens.float(), tokens.shape[-1:])
            answers = take_tokens(answers, asked.flatten(1)).view(*asked.shape, -1)
        predictions = self.predictor(self.context.encode(pixels, kept), kept, asked)
        return functional.smooth_l1_loss(predictions.float(), answers)

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Move the target encoder towards the context encoder, ever less: momentum 0.996 grows to 1."""
        rate = (1 - _FIRST_MOMENTUM) * (1 - progress)
        for kept, trained in zip(self.encoder.body.parameters(), self.context.parameters(), strict=True):
            kept.lerp_(trained, rate)

    def check(self, progress: float) -> None:
        if self.latest is not None and progress >= 0.5:
            check_collapse(self.latest, absolute=False)
