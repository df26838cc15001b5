"""Images in [0, 1] as an encoder takes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from assay.errors import InputError

# Images of eight bits lie in [0, 1] exactly; resizing filters overshoot a little.
_RANGE_TOLERANCE = 0.02


class Preprocessing:
    """Channels, size and normalisation; differentiable.

    Args:
        mean: subtracted from values in [0, 1], one for each channel; one number for grey images.
        std: what the difference is divided by.
        image_size: side in pixels.
        patch_size: what the side must be a multiple of; None: anything goes.

    Raises:
        InputError: a value is out of range, or the size does not fit the patches.
    """

    def __init__(
        self,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        image_size: int,
        patch_size: int | None = None,
    ) -> None:
        self.mean = tuple(mean) if isinstance(mean, Sequence) else (float(mean),)
        self.std = tuple(std) if isinstance(std, Sequence) else (float(std),)
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0:
            raise InputError(
                f"mean {self.mean} and std {self.std} must have a number for each channel, std above 0"
            )
        self._patch_size = patch_size
        self.image_size = self._fitting(image_size)

    @property
    def channels(self) -> int:
        """Channels of the images that the encoder takes."""
        return len(self.mean)

    @property
    def pixels(self) -> int:
        """Numbers in an image."""
        return self.channels * self.image_size**2

    def __call__(
        self, images: Float[Tensor, "batch channels height width"], image_size: int | None = None
    ) -> Float[Tensor, "batch channels size size"]:
        """Images in [0, 1], normalised; resized bilinearly without antialiasing, as in the released code.

        Args:
            images: the images, with the encoder's channels or with one, which is repeated.
            image_size: another side in pixels.

        Raises:
            InputError: the images have another shape or number of channels.
        """
        if images.dim() != 4:
            raise InputError(f"images of shape {tuple(images.shape)}; pass (batch, channels, height, width)")
        if images.shape[1] != self.channels:
            if images.shape[1] != 1:
                raise InputError(
                    f"images have {images.shape[1]} channels, the encoder takes {self.channels}: convert them"
                )
            images = images.expand(-1, self.channels, -1, -1)
        size = self.image_size if image_size is None else self._fitting(image_size)
        if images.shape[-2:] != (size, size):
            images = functional.interpolate(images, (size, size), mode="bilinear", align_corners=False)
        mean, std = (torch.tensor(v, dtype=images.dtype, device=images.device) for v in (self.mean, self.std))
        return (images - mean[:, None, None]) / std[:, None, None]

    def _fitting(self, size: int) -> int:
        if size < 1:
            raise InputError(f"image_size is {size}; it must be at least 1 pixel")
        patch = self._patch_size
        if patch is not None and size % patch:
            near = [n for n in (size // patch * patch, (size // patch + 1) * patch) if n]
            raise InputError(
                f"image_size {size} is not a multiple of the encoder's patch size {patch}: "
                f"use {' or '.join(map(str, near))}"
            )
        return size


def patch_size_of(encoder: nn.Module) -> int | None:
    """The patch size that an encoder's configuration names."""
    size = getattr(getattr(encoder, "config", None), "patch_size", None)
    return size if isinstance(size, int) else None


def check_images(images: Tensor) -> None:
    """Refuse what cannot be images in [0, 1].

    Raises:
        InputError: there are none, or values are not finite, not of floating-point type, or out of range.
    """
    if not images.is_floating_point() or not torch.isfinite(images).all():
        raise InputError(f"images of type {images.dtype} must be finite floating-point values in [0, 1]")
    if images.numel() == 0:
        raise InputError("there are no images")
    low, high = float(images.min()), float(images.max())
    if low < -_RANGE_TOLERANCE or high > 1 + _RANGE_TOLERANCE:
        raise InputError(f"images have values from {low:.3g} to {high:.3g}; scale them to [0, 1]")
