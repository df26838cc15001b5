"""JEPA-SCORE of images: the log volume factor of an encoder (Balestriero et al. 2025, arXiv 2510.05949)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.jepa_guidance.calibration import FILE_NAME, Calibration, Space, calibrate_scores
from assay.methods.jepa_guidance.encoders import EmbeddingEncoder, Pooling, load_encoder
from assay.methods.jepa_guidance.error_bound import ErrorBound, surrogate_error
from assay.methods.jepa_guidance.jacobian import differentiable_encoder, full_jacobian, naming_module
from assay.methods.jepa_guidance.preprocessing import Preprocessing, check_images, patch_size_of
from assay.methods.jepa_guidance.randomised_svd import (
    SCORE_FLOOR,
    Surrogate,
    score_with_gradient,
    surrogate_with_gradient,
    with_redraws,
)
from assay.methods.jepa_guidance.singular_values import singular_values

ScoreMethod = Literal["exact", "rsvd", "auto"]

# "auto": up to these sizes the whole Jacobian costs less than the randomised SVD.
_EXACT_PIXELS, _EXACT_WIDTH = 4096, 64
# Numbers in the copies of the images that one pass holds, when no chunk is given.
_AUTOMATIC_CHUNK = 2**22
# Numbers in the Jacobians that are held at once.
_JACOBIAN_NUMBERS = 2**27
# Rows of a Jacobian that are at least worth computing at once.
_LEAST_ROWS = 8
_REDRAWS = 3


class JEPAScorer:
    """Scores images by the singular values of an encoder's Jacobian.

    The score is JS(x) = sum_i log max(s_i, 1e-6) over the singular values of the Jacobian of the embedding
    with respect to the normalised pixels (equation 3 of the score's paper; the floor is the released code's).
    Scores are comparable only between images scored by one encoder with the same preprocessing. Whether a
    low score means rare must be calibrated (`calibrate`) for all but the published encoders.

    The encoder is put into evaluation mode, its parameters are frozen, and half precision becomes float32.

    Args:
        encoder: any module that maps a batch of normalised images to one vector each (see
            `EmbeddingEncoder` for what it may return). A sample's vector must not depend on its batch mates.
        mean: subtracted from values in [0, 1], one for each channel; one number for grey images.
        std: what the difference is divided by.
        image_size: side in pixels to which images are resized (bilinear).
        device: where the encoder runs; `"auto"`: where it is, or the GPU if there is one.
        chunk: how many copies of images one pass holds; None: as many as suit the size of the images.
        pooling: how an output with one vector a patch becomes one vector (see `EmbeddingEncoder`).
        calibration: what an earlier `calibrate` found.
        published: whether the paper's direction (low scores are rare) is known to hold for this encoder.

    Raises:
        InputError: a value is out of range, or the image size does not fit the patches of the encoder.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        image_size: int,
        device: str | torch.device = "auto",
        chunk: int | None = None,
        pooling: Pooling = "auto",
        calibration: Calibration | None = None,
        published: bool = False,
    ) -> None:
        if chunk is not None and chunk < 1:
            raise InputError(f"chunk is {chunk}; at least 1 image must fit")
        self.encoder = EmbeddingEncoder(encoder, pooling).eval().requires_grad_(False)
        self.preprocessing = Preprocessing(mean, std, image_size, patch_size_of(encoder))
        self.device = self._placed(device)
        self.chunk = chunk
        self.calibration = calibration
        self.published = published
        self._width: int | None = None
        self._twice_differentiable = False

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        device: str | torch.device = "auto",
        chunk: int | None = None,
        image_size: int | None = None,
        pooling: Pooling = "auto",
    ) -> JEPAScorer:
        """A scorer for an encoder of transformers (a folder or a hub id) or of timm (`timm/NAME`).

        Mean, standard deviation and image size come with the encoder, and so does a calibration in its
        folder.

        Args:
            name_or_path: folder or hub id.
            device: see the class.
            chunk: see the class.
            image_size: another side than the encoder's.
            pooling: see the class.

        Raises:
            InputError: there is no such encoder, or the calibration in its folder is broken.
            MissingDependencyError: the encoder is of timm, and timm is not installed.
        """
        loaded = load_encoder(name_or_path)
        folder = loaded.folder
        calibrated = folder is not None and (folder / FILE_NAME).is_file()
        return cls(
            loaded.model,
            mean=loaded.mean,
            std=loaded.std,
            image_size=loaded.image_size if image_size is None else image_size,
            device=device,
            chunk=chunk,
            pooling=pooling,
            calibration=Calibration.load(folder) if calibrated and folder is not None else None,
            published=loaded.published,
        )

    @property
    def channels(self) -> int:
        """Channels of the images that the encoder takes."""
        return self.preprocessing.channels

    @property
    def image_size(self) -> int:
        """Side in pixels at which the encoder sees images."""
        return self.preprocessing.image_size

    @property
    def dtype(self) -> torch.dtype:
        """The encoder's floating-point type."""
        tensors = chain(self.encoder.parameters(), self.encoder.buffers())
        return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)

    def preprocess(
        self, images: Float[Tensor, "batch channels height width"], image_size: int | None = None
    ) -> Float[Tensor, "batch channels size size"]:
        """Images in [0, 1] as the encoder takes them: channels, size and normalisation. Differentiable.

        Raises:
            InputError: the images have another shape, or another number of channels than 1 or the encoder's.
        """
        return self.preprocessing(images.to(device=self.device, dtype=self.dtype), image_size)

    @torch.no_grad()
    def embed(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch d"]:
        """The encoder's embedding of images in [0, 1]."""
        check_images(images)
        return torch.cat([self.encoder(self.preprocess(part)) for part in self._parts(images)])

    def score(
        self,
        images: Float[Tensor, "batch channels height width"],
        method: ScoreMethod = "exact",
        k: int = 9,
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Float[Tensor, " batch"]:
        """JEPA-SCORE of images in [0, 1], in nats.

        Args:
            images: the images.
            method: `"exact"`, all singular values; `"rsvd"`, the k leading ones by the randomised SVD (not
                comparable with the exact score); `"auto"`, exact for small images and encoders.
            k: how many singular values `"rsvd"` sums.
            on_progress: called with the number of images finished since the last call.

        Raises:
            InputError: the images or the arguments are out of range.
        """
        _check_choice("method", method, get_args(ScoreMethod))
        if self.resolved_method(method) == "rsvd":
            check_images(images)
            values = []
            for part in self._parts(images):
                found, _ = self.surrogate_gradient(self.preprocess(part), k=k, differentiate=False)
                values.append(found.values)
                _report(on_progress, part)
            return torch.cat(values)
        spectrum = self.spectrum(images, on_progress=on_progress)
        return spectrum.clamp_min(SCORE_FLOOR).log().sum(dim=1)

    def spectrum(
        self,
        images: Float[Tensor, "batch channels height width"],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Float[Tensor, "batch rank"]:
        """All singular values of the Jacobian at images in [0, 1], largest first (rank = min(d, n)).

        Raises:
            InputError: the images are out of range, or the encoder is detached.
        """
        check_images(images)
        values = []
        for part, jacobian in self._jacobians(images):
            values.append(singular_values(jacobian).to(self.dtype))
            _report(on_progress, part)
        return torch.cat(values)

    def surrogate(
        self,
        images: Float[Tensor, "batch channels height width"],
        k: int = 9,
        oversample: int = 2,
        power_iters: int = 2,
        seed: int = 0,
    ) -> Float[Tensor, " batch"]:
        """The randomised-SVD surrogate JS_k, once differentiable with respect to the images.

        Args:
            images: images in [0, 1].
            k: how many singular values are summed.
            oversample: additional random directions.
            power_iters: power iterations.
            seed: of the random directions.

        Raises:
            InputError: the arguments are out of range, or the encoder cannot be differentiated twice.
        """
        with differentiable_encoder():
            z = self.preprocess(images)
            found, _ = self.surrogate_gradient(
                z, k=k, oversample=oversample, power_iters=power_iters, seed=seed
            )
            # The value, with the gradient that was computed for it.
            linear = ((z - z.detach()) * found.gradients).flatten(1).sum(dim=1)
            return found.values + linear

    def surrogate_gradient(
        self,
        z: Float[Tensor, "batch channels size size"],
        *,
        k: int = 9,
        oversample: int = 2,
        power_iters: int = 2,
        seed: int = 0,
        step: int = 0,
        start: Float[Tensor, "batch d rank"] | None = None,
        method: Literal["rsvd", "exact"] = "rsvd",
        differentiate: bool = True,
    ) -> tuple[Surrogate, int]:
        """The surrogate (or the full score) of preprocessed images, and its gradient with respect to them.

        A sample for which a value is not finite gets up to three other sets of random directions.

        Args:
            z: what `preprocess` returned.
            k: how many singular values are summed.
            oversample: additional random directions.
            power_iters: power iterations.
            seed: of the random directions.
            step: makes the directions of several calls with one seed differ.
            start: subspace to start from instead.
            method: `"exact"`: the full score through the full Jacobian.
            differentiate: False leaves the gradient of `"rsvd"` 0, and needs no second derivative.

        Returns:
            The surrogate, and how often a sample was repeated.

        Raises:
            InputError: k + oversample is more than the rank of a Jacobian, or the encoder is detached or
                cannot be differentiated twice.
        """

        def attempt(index: Int[Tensor, " some"], number: int) -> Surrogate:
            points = z.detach()[index.to(z.device)]
            basis = None if start is None or number else start[index.to(start.device)]
            found = []
            width = self.width if method == "exact" else k + oversample
            for part in torch.arange(len(points)).split(max(1, self._copies(z[0].numel()) // width)):
                if method == "exact":
                    found.append(score_with_gradient(self.encoder, points[part], width))
                    continue
                generator = torch.Generator().manual_seed(directions_seed(seed, step, number))
                found.append(
                    surrogate_with_gradient(
                        self.encoder,
                        points[part],
                        k=k,
                        oversample=oversample,
                        power_iters=power_iters,
                        generator=generator,
                        start=None if basis is None else basis[part],
                        differentiate=differentiate,
                    )
                )
            return Surrogate(*(torch.cat(values) for values in zip(*found, strict=True)))

        naming = nullcontext() if self._twice_differentiable else naming_module(self.encoder)
        with differentiable_encoder(), naming:
            result = with_redraws(attempt, len(z), 0 if method == "exact" else _REDRAWS)
        self._twice_differentiable = self._twice_differentiable or differentiate
        return result

    def error_bound(
        self,
        images: Float[Tensor, "batch channels height width"],
        k: int = 9,
        p: int = 2,
        q: int = 2,
        seed: int = 0,
    ) -> ErrorBound:
        """How far the surrogate is from the score, and why (paper, proposition 4.1).

        Args:
            images: images in [0, 1].
            k: how many singular values the surrogate sums.
            p: additional random directions.
            q: power iterations.
            seed: of the random directions.

        Raises:
            InputError: the images are out of range, or k + p is more than the rank of a Jacobian.
        """
        check_images(images)
        found = [
            surrogate_error(jacobian, z, k=k, oversample=p, power_iters=q, seed=seed)
            for z, jacobian in self._jacobians(images)
        ]
        return ErrorBound(*(torch.cat(values) for values in zip(*found, strict=True)))

    def calibrate(
        self,
        reference: Float[Tensor, "images channels height width"],
        labels_rare: Bool[Tensor, " images"] | None = None,
        *,
        k: int = 5,
        space: Space = "pca",
        include_prior: bool = False,
        seed: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> Calibration:
        """Measure whether a low score means rare on images of one's own, and keep the result.

        Args:
            reference: images in [0, 1] like those that the score will be used for, at least 30.
            labels_rare: which of them are known to be rare, if that is known.
            k: neighbours whose mean distance says how rare an image is.
            space: where distances are taken: `"pca"` of the pixels, or a function from images to vectors.
            include_prior: add the log density of the embedding under a standard normal, the factor of the
                change of variables that the score leaves out; guidance does not use such a calibration.
            seed: of the bootstrap.
            on_progress: called with the number of images finished since the last call.

        Raises:
            InputError: too few images, or images from which nothing can be learnt.
        """
        scores = self.score(reference, on_progress=on_progress).double()
        if include_prior:
            embeddings = self.embed(reference).double()
            normal = torch.distributions.Normal(0.0, 1.0)
            scores = scores + normal.log_prob(embeddings).sum(dim=1)
        calibration = calibrate_scores(
            scores,
            reference,
            labels_rare,
            k=k,
            space=space,
            seed=seed,
            include_prior=include_prior,
            image_size=self.image_size,
        )
        if not include_prior:
            self.calibration = calibration
        return calibration

    def rare_sign(self, assume_sign: int | None = None) -> int:
        """+1 if low scores are rare (the paper's direction), -1 if high ones are.

        Args:
            assume_sign: the answer, if the user insists.

        Raises:
            InputError: nobody knows: the encoder is not calibrated and not a published one, or its
                calibration found no direction.
        """
        if assume_sign is not None:
            return assume_sign
        if self.calibration is not None:
            return self.calibration.usable_sign()
        if self.published:
            return 1
        raise InputError(
            "this encoder is not calibrated, so that nobody knows whether a low score means rare: call "
            "scorer.calibrate(images) (`assay jepa-guidance calibrate`), or pass assume_sign=1 for an "
            "encoder like those of the paper"
        )

    def resolved_method(self, method: ScoreMethod) -> Literal["exact", "rsvd"]:
        """`"auto"` resolved: exact if image and embedding are small."""
        if method != "auto":
            return method
        small = self.preprocessing.pixels <= _EXACT_PIXELS and self.width <= _EXACT_WIDTH
        return "exact" if small else "rsvd"

    @property
    def width(self) -> int:
        """d, the number of values of an embedding."""
        if self._width is None:
            blank = self.preprocess(torch.zeros(1, self.channels, self.image_size, self.image_size))
            with torch.no_grad():
                embedding = self.encoder(blank)
            self._width = int(embedding.shape[1])
        return self._width

    def _jacobians(
        self, images: Tensor
    ) -> Iterator[tuple[Float[Tensor, "batch channels size size"], Float[Tensor, "batch d n"]]]:
        """Groups of preprocessed images with their Jacobians."""
        pixels = self.preprocessing.pixels
        group = max(1, min(self._copies(pixels), _JACOBIAN_NUMBERS // (pixels * self.width)))
        for part in images.split(group):
            z = self.preprocess(part).detach()
            # Copies share one forward pass, which costs about half of a row's backward pass.
            copies = max(1, min(self._copies(pixels) // len(z), max(_LEAST_ROWS, self.width // 4)))
            yield z, full_jacobian(self.encoder, z, copies=copies)

    def _copies(self, pixels: int) -> int:
        """How many copies of an image of so many numbers one pass holds."""
        return self.chunk or max(1, _AUTOMATIC_CHUNK // pixels)

    def _parts(self, images: Tensor) -> Sequence[Tensor]:
        """The images in groups that fit into one pass."""
        return images.split(self._copies(self.preprocessing.pixels))

    def _placed(self, device: str | torch.device) -> torch.device:
        if device == "auto":
            home = next((p.device for p in self.encoder.parameters()), torch.device("cpu"))
            device = "cuda" if home.type == "cpu" and torch.cuda.is_available() else home
        half = self.dtype in (torch.float16, torch.bfloat16)
        self.encoder.to(device=device, dtype=torch.float32 if half else None)
        return torch.device(device)


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; use one of {', '.join(allowed)}")


def _report(on_progress: Callable[[int], None] | None, part: Tensor) -> None:
    if on_progress is not None:
        on_progress(len(part))


def directions_seed(seed: int, step: int, number: int) -> int:
    """The seed of the random directions of a step and of an attempt at it."""
    return (seed * 1_000_003 + step * 101 + number) % 2**63
