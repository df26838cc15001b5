"""Bispectral invariants and random rotations of panoramas as PyTorch modules, for one's own networks."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.panorama_watermark.harmonics import (
    Grid,
    degrees_and_orders,
    image_grid,
    legendre_functions,
    product_grid,
)


def _square_table(grid: Grid, lmax: int) -> Tensor:
    """Legendre functions as (orders, degrees, rings), zero where l < m."""
    degrees, orders = degrees_and_orders(lmax)
    table = np.zeros((lmax + 1, lmax + 1, grid.rings))
    table[orders, degrees] = legendre_functions(grid.colatitudes, lmax)
    return torch.from_numpy(table)


class BispectralInvariants(nn.Module):
    """Random third-order invariants of panoramas, differentiable in the pixels.

    Each is the integral over the sphere of the product of three filtered copies of the image: a weighted sum
    of bispectral numbers, unchanged by every rotation.

    Args:
        height: of the images, in pixels; at least `lmax` + 1.
        lmax: the highest degree that is looked at.
        count: how many invariants.
        seed: of the filters, whose entries are +1 and -1.
        dtype: of the arithmetic.

    Raises:
        InputError: the height is too small for the degree.
    """

    analysis: Tensor
    synthesis: Tensor
    filters: Tensor
    phases: Tensor
    weights: Tensor

    def __init__(
        self, height: int, lmax: int, count: int, *, seed: int = 0, dtype: torch.dtype = torch.float32
    ):
        super().__init__()
        if height <= lmax:
            raise InputError(f"degree {lmax} needs images of at least {lmax + 1} rows, got {height}")
        self.height, self.lmax = height, lmax
        grid, self.grid = image_grid(height), product_grid(lmax, lmax, lmax)
        generator = torch.Generator().manual_seed(seed)
        signs = torch.randint(2, (3, count, lmax + 1), generator=generator).to(dtype) * 2 - 1
        signs[..., 0] = 0.0
        table = _square_table(grid, lmax) * torch.from_numpy(np.array(grid.weights))
        angles = torch.arange(lmax + 1, dtype=torch.float64) * grid.first_longitude
        self.register_buffer("analysis", table.to(dtype))
        self.register_buffer("synthesis", _square_table(self.grid, lmax).to(dtype))
        self.register_buffer("filters", signs)
        self.register_buffer("phases", torch.exp(-1j * angles).to(dtype.to_complex()))
        self.register_buffer("weights", torch.from_numpy(np.array(self.grid.weights)).to(dtype))

    def coefficients(self, images: Float[Tensor, "*batch rows columns"]) -> Tensor:
        """Complex coefficients, (..., orders, degrees)."""
        if images.shape[-2:] != (self.height, 2 * self.height):
            raise InputError(
                f"images of {self.height} x {2 * self.height} are needed, got {images.shape[-2:]}"
            )
        spectra = torch.fft.rfft(images.to(self.analysis.dtype))[..., : self.lmax + 1] * self.phases
        parts = torch.view_as_real(spectra)
        return torch.view_as_complex(torch.einsum("mlr,...rmc->...mlc", self.analysis, parts).contiguous())

    def forward(self, images: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch count"]:
        """The invariants of images.

        Raises:
            InputError: the images have another size.
        """
        coefficients = self.coefficients(images)
        # (..., 3, count, orders, degrees), then the fields on the product grid.
        filtered = (
            torch.view_as_real(coefficients)[..., None, None, :, :, :] * self.filters[:, :, None, :, None]
        )
        spectra = torch.einsum("mlr,...mlc->...rmc", self.synthesis, filtered)
        fields = torch.fft.irfft(
            torch.view_as_complex(spectra.contiguous()), n=self.grid.columns, norm="forward"
        )
        return (fields.prod(dim=-4) * self.weights[:, None]).sum(dim=(-2, -1))


class RandomRotate360(nn.Module):
    """Turn panoramas by rotations that are uniform over SO(3), with bilinear interpolation.

    Args:
        seed: of the rotations; every call continues the stream.
    """

    def __init__(self, seed: int = 0):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, images: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch rows columns"]:
        """All images of a call turn alike.

        Raises:
            InputError: the images aren't twice as wide as high.
        """
        rows, columns = images.shape[-2:]
        if columns != 2 * rows:
            raise InputError(f"panoramas of H x 2H pixels are needed, got {columns} x {rows}")
        w, x, y, z = nn.functional.normalize(
            torch.randn(4, generator=self.generator, dtype=torch.float64), dim=0
        ).tolist()
        rotation = torch.tensor(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
                [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
                [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
            ],
            dtype=torch.float64,
        )
        return rotate_tensor(images, rotation)


def rotate_tensor(
    images: Float[Tensor, "*batch rows columns"], rotation: Float[Tensor, "3 3"]
) -> Float[Tensor, "*batch rows columns"]:
    """Panoramas under a rotation, bilinear, differentiable in the pixels; see `rotations.rotate_panorama`."""
    rows, columns = images.shape[-2:]
    theta = (torch.arange(rows, dtype=torch.float64) + 0.5) * math.pi / rows
    phi = (torch.arange(columns, dtype=torch.float64) + 0.5) * 2 * math.pi / columns
    up = torch.cos(theta)[:, None].expand(rows, columns)
    around = torch.sin(theta)[:, None]
    points = torch.stack([around * torch.cos(phi), around * torch.sin(phi), up], dim=-1) @ rotation
    row = torch.atan2(points[..., :2].norm(dim=-1), points[..., 2]) * rows / math.pi - 0.5
    column = (
        torch.atan2(points[..., 1], points[..., 0]).remainder(2 * math.pi) * columns / (2 * math.pi) - 0.5
    )
    # A row beyond each pole (half a turn away) and a column beyond each end make the image seamless.
    rolled = images.roll(columns // 2, dims=-1)
    tall = torch.cat([rolled[..., :1, :], images, rolled[..., -1:, :]], dim=-2)
    wide = torch.cat([tall[..., -1:], tall, tall[..., :1]], dim=-1)
    grid = torch.stack(
        [(column + 1) * 2 / (columns + 1) - 1, (row + 1) * 2 / (rows + 1) - 1], dim=-1
    )  # align_corners: -1 and 1 are the centres of the outermost pixels
    flat = wide.reshape(1, -1, rows + 2, columns + 2)
    sampled = nn.functional.grid_sample(
        flat, grid[None].to(images), mode="bilinear", padding_mode="border", align_corners=True
    )
    return sampled.reshape(images.shape)
