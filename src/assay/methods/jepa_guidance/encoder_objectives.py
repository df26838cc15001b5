"""What makes two views of an image agree while all images together do not collapse: VICReg, SimCLR, LeJEPA.

The losses act on the embedding itself unless a projector is asked for: JEPA-SCORE reads a density off the
embedding, and a projector would take the anti-collapse term away from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from assay.errors import InputError
from assay.methods.jepa_guidance.augmentations import Augmentation, augment_images
from assay.methods.jepa_guidance.encoder_model import JEPAEncoder
from assay.methods.jepa_guidance.training_loop import Objective

COLLAPSED = 0.05


def vicreg_loss(first: Float[Tensor, "batch d"], second: Float[Tensor, "batch d"]) -> Float[Tensor, ""]:
    """Invariance, variance and covariance with the weights 25, 25 and 1 (Bardes, Ponce, LeCun 2022, eq. 6).

    Args:
        first: embeddings of one view.
        second: embeddings of the other view.
    """
    invariance = functional.mse_loss(first, second)
    variance = covariance = first.new_zeros(())
    for view in (first, second):
        centred = view - view.mean(0)
        variance = variance + functional.relu(1 - (centred.var(0) + 1e-4).sqrt()).mean() / 2
        matrix = centred.T @ centred / (len(view) - 1)
        # The paper divides by d and adds the two views.
        covariance = covariance + (matrix.square().sum() - matrix.diagonal().square().sum()) / view.shape[1]
    return 25 * invariance + 25 * variance + covariance


def simclr_loss(
    first: Float[Tensor, "batch d"], second: Float[Tensor, "batch d"], temperature: float
) -> Float[Tensor, ""]:
    """The normalised temperature-scaled cross-entropy over all views (Chen et al. 2020, eq. 1).

    Args:
        first: embeddings of one view.
        second: embeddings of the other view.
        temperature: what cosines are divided by.
    """
    views = functional.normalize(torch.cat([first, second]), dim=1)
    similarity = (views @ views.T / temperature).fill_diagonal_(-math.inf)
    partner = torch.arange(len(views), device=views.device).roll(len(first))
    return functional.cross_entropy(similarity, partner)


def epps_pulley(
    embeddings: Float[Tensor, "batch d"], generator: torch.Generator, directions: int = 256
) -> Float[Tensor, ""]:
    """How far random one-dimensional projections are from N(0, 1), by characteristic functions.

    The Epps-Pulley statistic averaged over directions, the regulariser of LeJEPA (Balestriero and LeCun
    2025): n times the integral over t of |empirical - exp(-t^2 / 2)|^2 exp(-t^2 / 2), by the trapezoidal rule
    on [-5, 5]. The integrand is even, so half of it is summed.

    Args:
        embeddings: the batch.
        generator: draws the directions.
        directions: how many.
    """
    projected = _project(embeddings, generator, directions)
    points = torch.linspace(0, 5, 17, device=embeddings.device, dtype=embeddings.dtype)
    target = torch.exp(-(points**2) / 2)
    angles = projected[..., None] * points
    squared = (angles.cos().mean(0) - target) ** 2 + angles.sin().mean(0) ** 2
    return len(embeddings) * 2 * torch.trapezoid(squared * target, points, dim=-1).mean()


def sliced_wasserstein(
    embeddings: Float[Tensor, "batch d"], generator: torch.Generator, directions: int = 256
) -> Float[Tensor, ""]:
    """The mean squared Wasserstein-2 distance of random one-dimensional projections to N(0, 1).

    Args:
        embeddings: the batch.
        generator: draws the directions.
        directions: how many.
    """
    projected = _project(embeddings, generator, directions).sort(0).values
    size = len(embeddings)
    levels = (torch.arange(size, device=embeddings.device, dtype=embeddings.dtype) + 0.5) / size
    quantiles = math.sqrt(2) * torch.erfinv(2 * levels - 1)
    return (projected - quantiles[:, None]).square().mean()


def _project(embeddings: Tensor, generator: torch.Generator, directions: int) -> Tensor:
    size = (embeddings.shape[1], directions)
    drawn = torch.randn(size, generator=generator, device=embeddings.device, dtype=embeddings.dtype)
    return embeddings @ functional.normalize(drawn, dim=0)


class TwoViews(Objective):
    """Two augmented views of every image through one encoder.

    Args:
        encoder: what is trained.
        name: "vicreg", "simclr" or "lejepa".
        augmentation: makes the views.
        projector: hidden width of a perceptron between embedding and loss; 0 for none.
        temperature: of SimCLR.
        gaussianity: LeJEPA's regulariser, "epps-pulley" or "sliced-wasserstein".
        gaussian_weight: its weight; the agreement of the views has the rest up to 1.
    """

    def __init__(
        self,
        encoder: JEPAEncoder,
        name: str,
        augmentation: Augmentation,
        *,
        projector: int,
        temperature: float,
        gaussianity: str,
        gaussian_weight: float,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.name, self.augmentation = name, augmentation
        self.temperature, self.gaussianity, self.gaussian_weight = temperature, gaussianity, gaussian_weight
        size = encoder.config.hidden_size
        self.projector = (
            nn.Sequential(nn.Linear(size, projector), nn.GELU(), nn.Linear(projector, projector))
            if projector
            else nn.Identity()
        )
        self.latest: Tensor | None = None

    def forward(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> Float[Tensor, ""]:
        images = batch["images"]
        views = torch.cat([augment_images(images, self.augmentation, generator) for _ in range(2)])
        embeddings = self.encoder.embed(views)
        self.latest = embeddings.detach()
        first, second = self.projector(embeddings).float().chunk(2)
        if self.name == "vicreg":
            return vicreg_loss(first, second)
        if self.name == "simclr":
            return simclr_loss(first, second, self.temperature)
        # Every view is compared with the mean of the views, which for two is half of their difference.
        agreement = ((first - second) / 2).square().mean()
        measure = epps_pulley if self.gaussianity == "epps-pulley" else sliced_wasserstein
        gaussian = (measure(first, generator) + measure(second, generator)) / 2
        return (1 - self.gaussian_weight) * agreement + self.gaussian_weight * gaussian

    def check(self, progress: float) -> None:
        if self.latest is not None and progress >= 0.5:
            check_collapse(self.latest, absolute=self.name != "simclr")


def embedding_std(embeddings: Float[Tensor, "batch d"], *, absolute: bool) -> float:
    """The standard deviation over images, averaged over dimensions.

    Args:
        embeddings: one row an image.
        absolute: in the embedding's own units; else relative to the root mean square, for objectives that
            leave the scale of the embedding open.
    """
    embeddings = embeddings.float()
    scale = 1.0 if absolute else float(embeddings.square().mean().sqrt()) or 1.0
    return float(embeddings.std(0).mean()) / scale


def check_collapse(embeddings: Float[Tensor, "batch d"], *, absolute: bool) -> None:
    """Raise when all images have nearly the same embedding.

    Args:
        embeddings: one row an image.
        absolute: see `embedding_std`.

    Raises:
        InputError: the standard deviation is below 0.05.
    """
    std = embedding_std(embeddings, absolute=absolute)
    if not std >= COLLAPSED:
        raise InputError(
            f"the encoder has collapsed: the embedding's standard deviation is {std:.4f}, below {COLLAPSED}; "
            "use a smaller learning rate, a larger batch or another objective"
        )
