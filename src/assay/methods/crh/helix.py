"""Is a path of steering vectors a helix? A probe with the nulls that such a question needs.

Principal components of any smooth path look like sines and cosines of rising frequency, so a good fit of a
helix proves nothing by itself. It is compared with random walks of the same step lengths and with a straight
line whose deviations come in another order; for both the whole search is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.crh.blocks import find_decoder
from assay.methods.crh.extraction import decoder_device
from assay.methods.crh.steering import steer
from assay.methods.crh.templates import encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class HelixGrid:
    """Helices that are tried: turns R over the path, and the growth of the radius, `1 + growth t`.

    The paper searches radius and growth of the radius by the error of the fit, which falls with the radius
    and so always picks the smallest one. The share of explained variance depends on their ratio alone: here
    that is the parameter.
    """

    turns: tuple[float, ...] = tuple(round(0.6 + 0.1 * k, 1) for k in range(7))
    growth: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 2.0)

    def __post_init__(self) -> None:
        if not self.turns or not self.growth or min(self.turns) <= 0 or min(self.growth) <= -1:
            raise InputError("turns must be positive and growth above -1, and neither may be empty")


@dataclass(frozen=True)
class Helix:
    """A fitted helix.

    Attributes:
        vectors: the path, one vector a row.
        components: principal directions.
        turns, growth: of the best helix.
        r2: the share of the variance of its two circular coordinates that the components explain.
        walk_p: that a random walk with the same step lengths fits as well.
        line_p: that a straight line with the same deviations in another order fits as well.
        explained: the share of the path's variance in the components.
        projection: from components to the helix, rows `(t, r cos, r sin)`.
    """

    vectors: Float[np.ndarray, "n width"]
    components: Float[np.ndarray, "k width"]
    turns: float
    growth: float
    r2: float
    walk_p: float
    line_p: float
    explained: float
    projection: Float[np.ndarray, "3 k"] = field(repr=False)

    @property
    def supported(self) -> bool:
        """Whether both nulls are rejected at 5%."""
        return self.walk_p < 0.05 and self.line_p < 0.05

    def restore(self, j: int) -> Float[np.ndarray, " width"]:
        """The vector at index `j` as the helix alone describes it, without the mean (paper's intervention).

        Raises:
            InputError: there is no such index.
        """
        self._check(j)
        target = _helix(len(self.vectors), self.turns, self.growth)[j]
        return (np.linalg.pinv(self.projection) @ target) @ self.components

    def principal_reconstruction(self, j: int) -> Float[np.ndarray, " width"]:
        """The vector at index `j` from all its principal coordinates, without the mean.

        Raises:
            InputError: there is no such index.
        """
        self._check(j)
        centred = self.vectors[j] - self.vectors.mean(axis=0)
        return (self.components @ centred) @ self.components

    def random_vector(self, j: int, seed: int) -> Float[np.ndarray, " width"]:
        """A random vector as long as the path's own at index `j`."""
        self._check(j)
        drawn = np.random.default_rng(seed).standard_normal(self.vectors.shape[1])
        return drawn * (np.linalg.norm(self.vectors[j]) / np.linalg.norm(drawn))

    def _check(self, j: int) -> None:
        if not 0 <= j < len(self.vectors):
            raise InputError(f"the path has indices 0 to {len(self.vectors) - 1}, not {j}")


def fit_helix(
    vectors: Float[np.ndarray, "n width"] | Float[Tensor, "n width"],
    k: int = 5,
    *,
    grid: HelixGrid | None = None,
    n_null: int = 199,
    seed: int = 0,
) -> Helix:
    """Fit a helix to a path of vectors in its principal components and test it.

    Args:
        vectors: in the order of the path, at even steps.
        k: principal components.
        grid: the helices that are tried.
        n_null: paths of each null.
        seed: of the nulls.

    Raises:
        InputError: fewer than k + 3 vectors, vectors that are not finite or all the same.
    """
    path = np.asarray(vectors, dtype=float)
    if path.ndim != 2 or not np.isfinite(path).all():
        raise InputError(f"a path needs finite vectors, one a row; got an array of shape {path.shape}")
    if k < 2 or len(path) < k + 3:
        raise InputError(f"{len(path)} vectors are too few for {k} components; at least {k + 3} are needed")
    if n_null < 19:
        raise InputError(f"n_null must be at least 19 to reject at 5%, got {n_null}")
    steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
    if not steps.any():
        raise InputError("all vectors of the path are the same")
    chosen = grid or HelixGrid()
    targets = _Targets(len(path), chosen)
    r2, best = targets.best(path, k)
    generator = np.random.default_rng(seed)
    walks = [targets.best(_walk(steps, path.shape[1], generator), k)[0] for _ in range(n_null)]
    line, deviations = _line(path)
    # What is left of a straight path is rounding, in which any order is as good as another.
    straight = np.linalg.norm(deviations) <= 1e-9 * np.linalg.norm(path - path.mean(axis=0))
    lines = [
        r2 if straight else targets.best(line + deviations[generator.permutation(len(path))], k)[0]
        for _ in range(n_null)
    ]
    turns, growth = best
    centred = path - path.mean(axis=0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    components = directions[:k]
    helix = _helix(len(path), turns, growth)
    projection = np.linalg.lstsq(centred @ components.T, helix, rcond=1e-10)[0].T
    return Helix(
        path,
        components,
        turns,
        growth,
        r2,
        _rank_p(r2, walks),
        _rank_p(r2, lines),
        float((values[:k] ** 2).sum() / (values**2).sum()),
        projection,
    )


def _rank_p(value: float, null: Sequence[float]) -> float:
    return (1 + sum(other >= value - 1e-12 for other in null)) / (1 + len(null))


def _helix(n: int, turns: float, growth: float) -> Float[np.ndarray, "n 3"]:
    t = np.linspace(0, 1, n)
    radius, angle = 1 + growth * t, 2 * np.pi * turns * t
    return np.column_stack([t, radius * np.cos(angle), radius * np.sin(angle)])


class _Targets:
    """The circular coordinates of all helices of a grid, centred and of unit length."""

    def __init__(self, n: int, grid: HelixGrid) -> None:
        self._settings = [(turns, growth) for turns in grid.turns for growth in grid.growth]
        circular = np.stack([_helix(n, *setting)[:, 1:] for setting in self._settings])
        circular = circular - circular.mean(axis=1, keepdims=True)
        # Both coordinates count by their variance, as in an R-squared over the two.
        self._values = circular / np.sqrt((circular**2).sum(axis=(1, 2), keepdims=True))

    def best(self, path: np.ndarray, k: int) -> tuple[float, tuple[float, float]]:
        """The highest R-squared of a regression on k principal components, and its helix."""
        centred = path - path.mean(axis=0)
        # The left singular vectors of an n x d path come from its n x n Gram matrix.
        energies, vectors = np.linalg.eigh(centred @ centred.T)
        kept = energies[-k:] > 1e-14 * energies[-1]
        coordinates = vectors[:, -k:][:, kept]
        explained = np.einsum("nk,gnc->gkc", coordinates, self._values)
        scores = (explained**2).sum(axis=(1, 2))
        best = int(scores.argmax())
        return float(scores[best]), self._settings[best]


def _walk(steps: np.ndarray, width: int, generator: np.random.Generator) -> np.ndarray:
    directions = generator.standard_normal((len(steps), width))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return np.vstack([np.zeros(width), np.cumsum(directions * steps[:, None], axis=0)])


def _line(path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best straight line at even steps and the deviations from it."""
    design = np.column_stack([np.ones(len(path)), np.linspace(0, 1, len(path))])
    line = design @ np.linalg.lstsq(design, path, rcond=None)[0]
    return line, path - line


@dataclass(frozen=True)
class Swap:
    """Two prompts that differ, and the tokens that tell them apart.

    Attributes:
        original, target: the prompts; the first is steered.
        source, destination: what should become unlikely and likely as the next token, as text.
    """

    original: str
    target: str
    source: str
    destination: str


def steering_path(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    swap: Swap,
    layer: int,
    lengths: Sequence[float] = tuple(np.arange(0.1, 3.01, 0.1).round(2)),
    *,
    template: str = "chat",
    steps: int = 20,
    rate: float = 0.1,
    coldness: float = 0.7,
    on_length: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Float[np.ndarray, "n width"], Float[np.ndarray, " n"]]:
    """Vectors of growing length, each optimised to turn one prompt's next token into another's.

    The unit of length is the distance of the two prompts' activations at the first prompt token that differs.
    Each vector starts from the one before; its length is restored after every step of Adam.

    Args:
        swap: the prompts and tokens.
        layer: the block, counted from 0; vectors are added to all tokens of the prompt.
        lengths: ascending, in units of that distance.
        steps, rate: of Adam.
        coldness: the temperature of the softmax in the loss.

    Returns:
        The vectors and the loss of each.

    Raises:
        InputError: the prompts do not differ, or a token or length is unusable.
    """
    decoder = find_decoder(model)
    decoder.layer(layer)
    ordered = [float(length) for length in lengths]
    if not ordered or ordered[0] <= 0 or sorted(ordered) != ordered:
        raise InputError(f"lengths must be positive and ascending, got {ordered}")
    loss = SwapLoss(model, tokenizer, swap, layer, template=template, coldness=coldness)
    unit, start = _distance(model, tokenizer, swap, layer, template, f"{decoder.path}.{layer}")
    direction = start / start.norm()
    vectors, losses = [], []
    for done, length in enumerate(ordered, 1):
        point = (direction * length * unit).clone().requires_grad_(True)
        optimizer = torch.optim.Adam([point], lr=rate)
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.enable_grad():
                value = loss(point)
            (point.grad,) = torch.autograd.grad(value, point)
            optimizer.step()
            with torch.no_grad():
                point.mul_(length * unit / point.norm())
        direction = (point / point.norm()).detach()
        vectors.append(point.detach().numpy().astype(float))
        with torch.no_grad():
            losses.append(float(loss(point)))
        on_length(done, len(ordered))
    return np.stack(vectors), np.array(losses)


class SwapLoss:
    """`-log p(destination) - log(1 - p(source))` of the next token under a steering vector (paper's code).

    Raises:
        InputError: source and destination begin with the same token.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, swap: Swap, layer: int, *,
        template: str = "chat", coldness: float = 0.7, floor: float = 1e-6,
    ) -> None:  # fmt: skip
        self._model, self._layer, self._coldness, self._floor = model, layer, coldness, floor
        prompt = encode_prompt(tokenizer, template, swap.original)
        self._ids = torch.tensor([prompt], device=decoder_device(model))
        first = [
            tokenizer(text, add_special_tokens=False)["input_ids"][:1]  # pyright: ignore[reportIndexIssue]
            for text in (swap.source, swap.destination)
        ]
        if not first[0] or not first[1] or first[0] == first[1]:
            raise InputError(
                f"{swap.source!r} and {swap.destination!r} must begin with different tokens to be told apart"
            )
        self._source, self._destination = first[0][0], first[1][0]

    def __call__(self, vector: Float[Tensor, " width"]) -> Float[Tensor, ""]:
        with steer(self._model, vector, self._layer, position="prompt"):
            logits = self._model(input_ids=self._ids, use_cache=False).logits[0, -1]
        probability = (logits.float() / self._coldness).softmax(dim=-1)
        wanted = probability[self._destination] + self._floor
        rest = 1 - probability[self._source] + self._floor
        return -wanted.log() - rest.log()


@torch.no_grad()
def _distance(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, swap: Swap, layer: int, template: str,
    path: str,
) -> tuple[float, Float[Tensor, " width"]]:  # fmt: skip
    from assay.lm import capture

    prompts = [encode_prompt(tokenizer, template, text) for text in (swap.original, swap.target)]
    shorter = min(map(len, prompts))
    place = next((k for k in range(shorter) if prompts[0][k] != prompts[1][k]), None)
    if place is None:
        raise InputError("the two prompts do not differ in a token that both have")
    states = []
    for prompt in prompts:
        with capture(model, path) as captured:
            model(input_ids=torch.tensor([prompt], device=decoder_device(model)), use_cache=False)
        states.append(captured[path][0][0, place].float().cpu())
    difference = states[1] - states[0]
    if float(difference.norm()) == 0:
        raise InputError(f"the two prompts have the same activation at layer {layer}")
    return float(difference.norm()), difference
