"""Small denoisers of pixels, as diffusers models: a U-Net or an MLP, conditioned on classes or on text.

They predict the noise or the velocity, as the scheduler's `prediction_type` says. The condition is a class
(`class_labels`), a sentence embedding (`encoder_hidden_states`), or neither. No condition is a condition too:
the class `num_classes`, or an embedding of zeros; both are what classifier-free guidance compares with.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.embeddings import get_timestep_embedding
from diffusers.models.modeling_utils import ModelMixin
from diffusers.models.unets.unet_2d import UNet2DModel, UNet2DOutput
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.errors import InputError

# Width of the embedding of time and condition in the MLP.
_EMBEDDING = 64


class Condition(nn.Module):
    """The embedding of a condition, added to the embedding of the time.

    Args:
        width: of the embedding.
        num_classes: classes 0, 1, ...; None for no classes.
        text_dim: width of the sentence embeddings; None for no text.
    """

    def __init__(self, width: int, num_classes: int | None, text_dim: int | None) -> None:
        super().__init__()
        if num_classes is not None and text_dim is not None:
            raise InputError("a denoiser is conditioned on classes or on text, not on both")
        self.width, self.num_classes, self.text_dim = width, num_classes, text_dim
        self.classes = nn.Embedding(num_classes + 1, width) if num_classes is not None else None
        self.text = nn.Linear(text_dim, width) if text_dim is not None else None

    def forward(
        self, batch: int, class_labels: Tensor | None, encoder_hidden_states: Tensor | None
    ) -> Float[Tensor, "batch width"] | float:
        """The embedding, or 0.0 for a denoiser without conditions.

        Raises:
            InputError: a condition that the denoiser was not trained with, or a class that does not exist.
        """
        if class_labels is not None and self.num_classes is None:
            raise InputError("class labels were given to a denoiser that knows no classes")
        if encoder_hidden_states is not None and self.text_dim is None:
            raise InputError("text was given to a denoiser that was not trained with text")
        if self.classes is not None and self.num_classes is not None:
            weight = self.classes.weight
            if class_labels is None:
                class_labels = torch.full((batch,), self.num_classes, device=weight.device)
            elif int(class_labels.min()) < 0 or int(class_labels.max()) > self.num_classes:
                raise InputError(
                    f"class labels must be from 0 to {self.num_classes} (the last for no class), "
                    f"got {int(class_labels.min())} to {int(class_labels.max())}"
                )
            return self.classes(class_labels.long().expand(batch))
        if self.text is not None:
            weight = self.text.weight
            if encoder_hidden_states is None:
                encoder_hidden_states = weight.new_zeros(batch, self.text.in_features)
            elif encoder_hidden_states.ndim == 3:
                encoder_hidden_states = encoder_hidden_states.mean(1)
            return self.text(encoder_hidden_states.to(weight.dtype))
        return 0.0


class PixelUNet(ModelMixin, ConfigMixin):
    """diffusers' `UNet2DModel` with a condition.

    Args:
        sample_size: height and width of the images.
        in_channels: channels of the images.
        block_out_channels: channels at each resolution; the last resolution has attention.
        num_classes: classes 0, 1, ...; None for no classes.
        text_dim: width of the sentence embeddings; None for no text.
    """

    @register_to_config
    def __init__(
        self,
        sample_size: int = 32,
        in_channels: int = 3,
        block_out_channels: tuple[int, ...] = (32, 64, 64),
        num_classes: int | None = None,
        text_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.unet = make_unet(sample_size, in_channels, block_out_channels, class_embed_type="identity")
        self.condition = Condition(4 * block_out_channels[0], num_classes, text_dim)

    def forward(
        self,
        sample: Float[Tensor, "batch channels height width"],
        timestep: Int[Tensor, " batch"] | Tensor | float | int,
        class_labels: Int[Tensor, " batch"] | None = None,
        encoder_hidden_states: Tensor | None = None,
        return_dict: bool = True,
    ) -> UNet2DOutput | tuple[Tensor]:
        """The prediction for `sample` at the time steps; see `Condition` for the conditions."""
        condition = self.condition(len(sample), class_labels, encoder_hidden_states)
        if isinstance(condition, float):
            condition = sample.new_zeros(len(sample), self.condition.width)
        return self.unet(sample, timestep, class_labels=condition, return_dict=return_dict)


class PixelMLP(ModelMixin, ConfigMixin):
    """Residual blocks on the flattened image, modulated by time and condition; for images of 8 or 16 pixels.

    Args:
        sample_size: height and width of the images.
        in_channels: channels of the images.
        width: of the hidden layers.
        depth: residual blocks.
        num_classes: classes 0, 1, ...; None for no classes.
        text_dim: width of the sentence embeddings; None for no text.
    """

    @register_to_config
    def __init__(
        self,
        sample_size: int = 8,
        in_channels: int = 1,
        width: int = 256,
        depth: int = 3,
        num_classes: int | None = None,
        text_dim: int | None = None,
    ) -> None:
        super().__init__()
        pixels = in_channels * sample_size**2
        self.time = nn.Sequential(
            nn.Linear(_EMBEDDING, _EMBEDDING), nn.SiLU(), nn.Linear(_EMBEDDING, _EMBEDDING)
        )
        self.condition = Condition(_EMBEDDING, num_classes, text_dim)
        self.first = nn.Linear(pixels, width)
        self.blocks = nn.ModuleList(_ModulatedBlock(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.last = nn.Linear(width, pixels)

    def forward(
        self,
        sample: Float[Tensor, "batch channels height width"],
        timestep: Int[Tensor, " batch"] | Tensor | float | int,
        class_labels: Int[Tensor, " batch"] | None = None,
        encoder_hidden_states: Tensor | None = None,
        return_dict: bool = True,
    ) -> UNet2DOutput | tuple[Tensor]:
        """The prediction for `sample` at the time steps; see `Condition` for the conditions."""
        batch = len(sample)
        times = torch.as_tensor(timestep, device=sample.device).reshape(-1).expand(batch)
        embedding = self.time(get_timestep_embedding(times, _EMBEDDING).to(sample.dtype))
        embedding = embedding + self.condition(batch, class_labels, encoder_hidden_states)
        hidden = self.first(sample.flatten(1))
        for block in self.blocks:
            hidden = block(hidden, embedding)
        predicted = self.last(self.norm(hidden)).view_as(sample)
        return UNet2DOutput(sample=predicted) if return_dict else (predicted,)


class _ModulatedBlock(nn.Module):
    """A residual block; the embedding of time and condition scales and shifts its normalised input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # The modulation scales and shifts, so the norm need not.
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(_EMBEDDING, 2 * width))
        self.layers = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        scale, shift = self.modulation(embedding).chunk(2, dim=-1)
        return hidden + self.layers(self.norm(hidden) * (1 + scale) + shift)


def make_unet(
    sample_size: int,
    in_channels: int,
    block_out_channels: tuple[int, ...],
    class_embed_type: str | None = None,
) -> UNet2DModel:
    """diffusers' U-Net for small images: attention at the lowest resolution, groups of eight channels."""
    lower = len(block_out_channels) - 1
    return UNet2DModel(
        sample_size=sample_size,
        in_channels=in_channels,
        out_channels=in_channels,
        layers_per_block=1,
        block_out_channels=tuple(block_out_channels),
        down_block_types=("DownBlock2D",) * lower + ("AttnDownBlock2D",),
        up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * lower,
        norm_num_groups=8,
        class_embed_type=class_embed_type,
    )


def make_denoiser(
    arch: str,
    *,
    image_size: int,
    num_channels: int,
    width: int,
    depth: int,
    num_classes: int | None = None,
    text_dim: int | None = None,
) -> UNet2DModel | PixelUNet | PixelMLP:
    """A denoiser with fresh weights. A U-Net without conditions is diffusers' own: it loads without assay.

    Args:
        arch: "unet" or "mlp".
        image_size: height and width of the images.
        num_channels: channels of the images.
        width: channels at the highest resolution, or the width of the MLP.
        depth: residual blocks of the MLP; the U-Net's resolutions follow from the image size.
        num_classes: classes; None for no classes.
        text_dim: width of sentence embeddings; None for no text.

    Raises:
        InputError: the values do not fit together.
    """
    if arch == "mlp":
        return PixelMLP(image_size, num_channels, width, depth, num_classes, text_dim)
    if arch != "unet":
        raise InputError(f"the architecture {arch!r} is neither unet nor mlp")
    if width % 8:
        raise InputError(f"the width of a U-Net is a multiple of 8, got {width}")
    channels = _channels(image_size, width)
    factor = 2 ** (len(channels) - 1)
    if image_size % factor:
        below = image_size // factor * factor
        raise InputError(
            f"a U-Net halves the image {len(channels) - 1} times: size {image_size} is not a multiple of "
            f"{factor}; use {below or factor} or {below + factor}"
        )
    if num_classes is None and text_dim is None:
        return make_unet(image_size, num_channels, channels)
    return PixelUNet(image_size, num_channels, channels, num_classes, text_dim)


def _channels(image_size: int, width: int) -> tuple[int, ...]:
    """Channels by resolution: the lowest resolution has 4 to 16 pixels a side."""
    if image_size <= 16:
        return (width, 2 * width)
    if image_size <= 64:
        return (width, 2 * width, 2 * width)
    return (width, width, 2 * width, 2 * width, 4 * width)
