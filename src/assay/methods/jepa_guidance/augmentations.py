"""Random changes of images that leave what they show: the views that self-supervised training compares.

All randomness comes from the generator that is passed, and the changes are drawn per image, so a batch is
reproduced by its seed alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from assay.errors import InputError


@dataclass(frozen=True)
class Augmentation:
    """How strongly images are changed; zero leaves a change out.

    Args:
        rotation: largest angle, in degrees.
        shift: largest shift, as a part of the side.
        scale: largest relative change of size: a factor between 1 - scale and 1 + scale.
        shear: largest shear.
        crop: smallest area of a random crop, as a part of the image; 1 crops nothing.
        flip: probability of mirroring left and right.
        brightness: largest factor by which brightness is changed: between 1 - brightness and 1 + brightness.
        contrast: the same of contrast.
        saturation: the same of colour; grey images have none.
        grey: probability of dropping the colour.
        blur: largest standard deviation of a Gaussian blur, as a part of the side.
        noise: standard deviation of Gaussian noise added to pixels in [0, 1]; the result is not clipped.

    Raises:
        InputError: a strength is out of range.
    """

    rotation: float = 0.0
    shift: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    crop: float = 1.0
    flip: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    grey: float = 0.0
    blur: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        limits = {"rotation": 180.0, "noise": math.inf, "shear": math.inf, "blur": 0.5}
        for name, value in vars(self).items():
            if not 0 <= value <= limits.get(name, 1.0):
                raise InputError(f"{name} must be from 0 to {limits.get(name, 1.0):g}, got {value}")
        if self.crop == 0 or self.scale == 1:
            raise InputError("crop must be above 0 and scale below 1")


PRESETS = {
    # Things whose orientation matters (digits, letters, parts): small movements only.
    "geometric": Augmentation(rotation=15, shift=0.1, scale=0.15, shear=0.15, brightness=0.1, noise=0.02),
    # The invariance is that of additive noise.
    "noise": Augmentation(noise=0.15),
    # Photographs: the usual crop, mirror, colour and blur.
    "photo": Augmentation(
        crop=0.3, flip=0.5, brightness=0.4, contrast=0.4, saturation=0.2, grey=0.2, blur=0.02
    ),
    "none": Augmentation(),
}


def augment_images(
    images: Float[Tensor, "batch channels height width"],
    augmentation: Augmentation,
    generator: torch.Generator,
) -> Float[Tensor, "batch channels height width"]:
    """Change images at random, each in its own way.

    Args:
        images: pixels in [0, 1].
        augmentation: the strengths.
        generator: on the device of the images.
    """
    images = _warp(images, augmentation, generator)
    images = _recolour(images, augmentation, generator)
    if augmentation.blur:
        images = _blur(images, augmentation.blur, generator)
    if augmentation.noise:
        noise = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        images = images + augmentation.noise * noise
    return images


def _uniform(
    images: Tensor, low: float, high: float, generator: torch.Generator, count: int = 1
) -> Float[Tensor, "count batch"]:
    size = (count, len(images))
    unit = torch.rand(size, generator=generator, device=images.device, dtype=images.dtype)
    return low + (high - low) * unit


def _warp(images: Tensor, strength: Augmentation, generator: torch.Generator) -> Tensor:
    """Rotate, scale, shear, shift, crop and mirror in one interpolation; outside is what the edge shows."""
    if not any((strength.rotation, strength.shift, strength.scale, strength.shear, strength.flip)) and (
        strength.crop == 1
    ):
        return images
    (angle,) = _uniform(images, -1, 1, generator) * math.radians(strength.rotation)
    (size,) = 1 + _uniform(images, -1, 1, generator) * strength.scale
    (shear,) = _uniform(images, -1, 1, generator) * strength.shear
    # grid_sample's coordinates run from -1 to 1, so a shift by the whole side is 2.
    shift = 2 * strength.shift * _uniform(images, -1, 1, generator, count=2)
    (side,) = _uniform(images, strength.crop, 1, generator).sqrt()
    shift = shift + (1 - side) * _uniform(images, -1, 1, generator, count=2)
    (mirrored,) = _uniform(images, 0, 1, generator) < strength.flip
    zoom = side / size
    across = torch.where(mirrored, -zoom, zoom)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    rows = [
        torch.stack([across * cosine, zoom * (shear * cosine - sine), shift[0]], dim=1),
        torch.stack([across * sine, zoom * (shear * sine + cosine), shift[1]], dim=1),
    ]
    grid = functional.affine_grid(torch.stack(rows, dim=1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _recolour(images: Tensor, strength: Augmentation, generator: torch.Generator) -> Tensor:
    def factor(largest: float) -> Tensor:
        return 1 + _uniform(images, -1, 1, generator)[0, :, None, None, None] * largest

    if strength.brightness:
        images = images * factor(strength.brightness)
    if strength.contrast:
        mean = images.mean((1, 2, 3), keepdim=True)
        images = mean + (images - mean) * factor(strength.contrast)
    if images.shape[1] == 3 and (strength.saturation or strength.grey):
        weights = images.new_tensor([0.299, 0.587, 0.114])[:, None, None]
        grey = (weights * images).sum(1, keepdim=True)
        colour = factor(strength.saturation)
        dropped = _uniform(images, 0, 1, generator)[0, :, None, None, None] < strength.grey
        images = grey + (images - grey) * torch.where(dropped, torch.zeros_like(colour), colour)
    if strength.brightness or strength.contrast or strength.saturation:
        images = images.clamp(0, 1)
    return images


def _blur(images: Tensor, largest: float, generator: torch.Generator) -> Tensor:
    """A Gaussian blur of random width, by rows and by columns."""
    channels, side = images.shape[1], images.shape[-1]
    radius = max(1, math.ceil(2 * largest * side))
    (width,) = _uniform(images, 0, 1, generator) * largest * side
    steps = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    kernels = torch.exp(-0.5 * (steps / width[:, None].clamp(min=1e-3)) ** 2)
    kernels = (kernels / kernels.sum(1, keepdim=True)).repeat_interleave(channels, 0)
    planes = images.flatten(0, 1)[None]
    for shape, padding in (((1, -1), (radius, radius, 0, 0)), ((-1, 1), (0, 0, radius, radius))):
        padded = functional.pad(planes, padding, mode="replicate")
        planes = functional.conv2d(padded, kernels.view(len(kernels), 1, *shape), groups=planes.shape[1])
    return planes[0].view_as(images)
