"""Small encoders of images, as transformers models: convolutions, a vision transformer, and an MLP.

They are built so that the Jacobian of the embedding can be differentiated: smooth activations, no batch
normalisation (a batch mate must not change an embedding), no dropout, and attention in plain matrix products,
because fused attention has neither forward-mode nor second derivatives.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.modeling_utils import PreTrainedModel

from assay.errors import InputError
from assay.methods.jepa_guidance.encoder_config import JEPAEncoderConfig

# A convolutional encoder halves the grid until its side is at most this; the rest is flattened, so that the
# position of strokes survives.
_LAST_GRID = 4
_GROUPS = 8


class JEPAEncoder(PreTrainedModel):
    """An encoder of images; `AutoModel.from_pretrained` loads its folder after `import assay`.

    Args:
        config: shape and preprocessing.
    """

    config_class = JEPAEncoderConfig
    base_model_prefix = "encoder"
    main_input_name = "pixel_values"

    def __init__(self, config: JEPAEncoderConfig) -> None:
        super().__init__(config)
        bodies = {"conv": _Convolutions, "vit": VisionTransformer, "mlp": _Perceptron}
        self.body = bodies[config.arch](config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Leave layers as they initialise themselves; the few bare parameters are set where they are made."""

    def forward(
        self, pixel_values: Float[Tensor, "batch channels height width"], return_dict: bool | None = None
    ) -> BaseModelOutputWithPooling | tuple[Tensor, Tensor]:
        """Embed images.

        Args:
            pixel_values: images normalised with the configuration's `image_mean` and `image_std`.
            return_dict: False returns the plain pair (features, embedding).

        Returns:
            `last_hidden_state`, features by place (batch, places, channels), and `pooler_output`, the
            embedding (batch, d).

        Raises:
            InputError: the images do not have the size and the channels that the encoder was made for.
        """
        config = self.config
        expected = (config.num_channels, config.image_size, config.image_size)
        if pixel_values.ndim != 4 or tuple(pixel_values.shape[1:]) != expected:
            raise InputError(
                f"the encoder takes images of shape (batch, {', '.join(map(str, expected))}), "
                f"got {tuple(pixel_values.shape)}"
            )
        features, embedding = self.body(pixel_values)
        if return_dict is False:
            return features, embedding
        return BaseModelOutputWithPooling(last_hidden_state=features, pooler_output=embedding)

    def embed(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch d"]:
        """The embedding of images in [0, 1] of the encoder's size: normalisation and forward pass."""
        return self(self.normalise(images)).pooler_output

    def normalise(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Images in [0, 1] less the configuration's mean, divided by its deviation."""
        mean = images.new_tensor(self.config.image_mean)[:, None, None]
        std = images.new_tensor(self.config.image_std)[:, None, None]
        return (images - mean) / std


class _Convolutions(nn.Module):
    """3x3 convolutions; each but the first halves the grid and doubles the channels (up to eight times)."""

    def __init__(self, config: JEPAEncoderConfig) -> None:
        super().__init__()
        channels, side = config.width, config.image_size
        layers: list[nn.Module] = [nn.Conv2d(config.num_channels, channels, 3, padding=1)]
        while side > _LAST_GRID:
            wider = min(2 * channels, 8 * config.width)
            layers += [
                nn.GroupNorm(_GROUPS, channels),
                nn.GELU(),
                nn.Conv2d(channels, wider, 3, stride=2, padding=1),
            ]
            channels, side = wider, (side + 1) // 2
        layers += [nn.GroupNorm(_GROUPS, channels), nn.GELU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels * side * side, config.hidden_size)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        grid = self.layers(pixels)
        return grid.flatten(2).transpose(1, 2), self.head(grid.flatten(1))


class _Perceptron(nn.Module):
    """Hidden layers of GELU on the flattened image."""

    def __init__(self, config: JEPAEncoderConfig) -> None:
        super().__init__()
        width = config.num_channels * config.image_size**2
        layers: list[nn.Module] = []
        for _ in range(config.depth):
            layers += [nn.Linear(width, config.width), nn.GELU()]
            width = config.width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, config.hidden_size)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.layers(pixels.flatten(1))
        return hidden[:, None], self.head(hidden)


class VisionTransformer(nn.Module):
    """A pre-norm transformer over patches; the embedding is the mean over patches.

    Positions start as sines and cosines: as small random vectors, short trainings would not learn them.
    """

    def __init__(self, config: JEPAEncoderConfig) -> None:
        super().__init__()
        self.patches = nn.Conv2d(
            config.num_channels, config.width, config.patch_size, stride=config.patch_size
        )
        grid = config.image_size // config.patch_size
        self.positions = nn.Parameter(grid_positions(grid, config.width)[None])
        self.blocks = nn.ModuleList(Block(config.width, config.num_heads) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.hidden_size) if config.projection else nn.Identity()

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.encode(pixels)
        return tokens, self.head(tokens.mean(1))

    def encode(
        self,
        pixels: Float[Tensor, "batch channels height width"],
        kept: Int[Tensor, "batch kept"] | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """Features of all patches, or of those whose indices are in `kept`: the others are never seen."""
        tokens = self.patches(pixels).flatten(2).transpose(1, 2) + self.positions
        if kept is not None:
            tokens = take_tokens(tokens, kept)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and added to its input.

    Args:
        width: of the tokens.
        num_heads: attention heads.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        tokens = tokens + self.output(self._attention(self.before_attention(tokens)))
        return tokens + self.mlp(self.before_mlp(tokens))

    def _attention(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        split = self.queries_keys_values(tokens).view(batch, length, 3, self.num_heads, -1)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        weights = functional.softmax(queries @ keys.transpose(-2, -1) / queries.shape[-1] ** 0.5, dim=-1)
        return (weights @ values).transpose(1, 2).reshape(batch, length, width)


def grid_positions(grid: int, width: int) -> Float[Tensor, "places width"]:
    """Sines and cosines of rows and columns of a square grid, at frequencies from 1 to 1/10000.

    Args:
        grid: places along a side.
        width: of a position's vector; what four does not divide is filled with zeros.
    """
    count = width // 4
    frequencies = 10000.0 ** -(torch.arange(count) / max(1, count))
    angles = torch.arange(grid)[:, None] * frequencies
    line = torch.cat([angles.sin(), angles.cos()], dim=1)
    rows = line[:, None].expand(grid, grid, -1)
    columns = line[None].expand(grid, grid, -1)
    places = torch.cat([rows, columns], dim=2).flatten(0, 1)
    return functional.pad(places, (0, width - places.shape[1]))


def take_tokens(
    tokens: Float[Tensor, "batch tokens width"], indices: Int[Tensor, "batch kept"]
) -> Float[Tensor, "batch kept width"]:
    """The tokens at the given indices of each row; one row of tokens serves all rows of indices."""
    tokens = tokens.expand(indices.shape[0], -1, -1)
    return tokens.gather(1, indices[..., None].expand(-1, -1, tokens.shape[-1]))


def register() -> None:
    """Tell transformers' `AutoModel` of the encoders.

    `import assay` lets this run once transformers' table has been imported (see `assay.plugins`).
    """
    from transformers.models.auto.modeling_auto import AutoModel

    AutoModel.register(JEPAEncoderConfig, JEPAEncoder, exist_ok=True)


register()
