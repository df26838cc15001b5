"""The configuration of the small encoders: what `config.json` of an encoder folder says."""

from __future__ import annotations

from transformers.configuration_utils import PretrainedConfig

from assay.errors import InputError

MODEL_TYPE = "assay_jepa"
ARCHITECTURES = ("conv", "vit", "mlp")


class JEPAEncoderConfig(PretrainedConfig):
    """The shape of an encoder, and the preprocessing that it was trained with.

    Args:
        arch: "conv" (convolutions that halve the grid), "vit" (a vision transformer) or "mlp" (for images of
            a few hundred pixels).
        image_size: height and width of the images, in pixels.
        num_channels: 1 for grey images, 3 for RGB.
        hidden_size: the dimension d of the embedding.
        width: channels of the first convolution, or the width of the transformer or of the MLP.
        depth: blocks of the transformer, or hidden layers of the MLP; convolutions follow from `image_size`.
        num_heads: attention heads of the transformer.
        patch_size: side of a patch of the transformer, in pixels.
        projection: whether a linear map follows the transformer's mean over patches; without it d is `width`.
        image_mean: subtracted from pixels in [0, 1], one value a channel.
        image_std: what the difference is divided by, one value a channel.
        objective: what the encoder was trained with.

    Raises:
        InputError: the values do not fit together.
    """

    model_type = MODEL_TYPE

    arch: str = "conv"
    image_size: int = 32
    num_channels: int = 3
    hidden_size: int = 32
    width: int = 32
    depth: int = 2
    num_heads: int = 4
    patch_size: int = 4
    projection: bool = True
    image_mean: list[float] | None = None
    image_std: list[float] | None = None
    objective: str | None = None

    def __post_init__(self, **kwargs):
        # [0, 1] becomes [-1, 1], the range of the generators.
        self.image_mean = self.image_mean or [0.5] * self.num_channels
        self.image_std = self.image_std or [0.5] * self.num_channels
        super().__post_init__(**kwargs)
        self._check()

    def _check(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise InputError(f"the architecture {self.arch!r} is none of {', '.join(ARCHITECTURES)}")
        for name in (
            "image_size",
            "num_channels",
            "hidden_size",
            "width",
            "depth",
            "num_heads",
            "patch_size",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.arch == "conv" and self.width % 8:
            raise InputError(f"the width of a convolutional encoder is a multiple of 8, got {self.width}")
        if self.arch == "vit":
            if self.image_size % self.patch_size:
                below = self.image_size // self.patch_size * self.patch_size
                near = [size for size in (below, below + self.patch_size) if size]
                raise InputError(
                    f"image size {self.image_size} is not a multiple of the patch size {self.patch_size}: "
                    f"use {' or '.join(map(str, near))}"
                )
            if self.width % self.num_heads:
                raise InputError(f"width {self.width} is not a multiple of its {self.num_heads} heads")
            if not self.projection and self.width != self.hidden_size:
                raise InputError(
                    f"without a projection the embedding has the width {self.width}, not {self.hidden_size}"
                )


def register() -> None:
    """Tell transformers' `AutoConfig` of the configuration.

    `import assay` lets this run once transformers' table has been imported (see `assay.plugins`).
    """
    from transformers.models.auto.configuration_auto import AutoConfig

    AutoConfig.register(MODEL_TYPE, JEPAEncoderConfig, exist_ok=True)


register()
