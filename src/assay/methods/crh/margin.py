"""The concept margin: how much more likely a model finds the response with the concept, under steering."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.errors import InputError
from assay.lm import capture
from assay.methods.crh.blocks import cache_keyword, find_decoder, skipping
from assay.methods.crh.extraction import decoder_device
from assay.methods.crh.pairs import ConceptPairs
from assay.methods.crh.steering import POSITIONS, Position, steer
from assay.methods.crh.templates import encode_response, pad, padding_token

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Path = Literal["auto", "suffix", "full"]
# Samples whose prefix is kept; maps, thresholds and gradients of one sample follow each other.
KEPT = 4
# How far the two paths may differ, in nats per token, before the short one is distrusted.
AGREEMENT = 1e-3


@dataclass(frozen=True)
class _Sample:
    """What does not change while one sample is steered in many ways.

    Attributes:
        ids: the tokens from the first steered one on, for the response with and the one without the concept.
        targets, scored: what must be predicted at each of the last tokens, and which of them count.
        steered: which tokens get the vector.
        hidden: the output of the steered layer without a vector.
        cache: keys and values of the tokens before; None where there are none.
        start: how many those are.
    """

    ids: Int[Tensor, "2 tokens"]
    targets: Int[Tensor, "2 scored"]
    scored: Bool[Tensor, "2 scored"]
    steered: Bool[Tensor, " tokens"]
    hidden: Float[Tensor, "2 tokens width"]
    cache: Any
    start: int
    as_tuple: bool


class ConceptMargin:
    """`M_i(v)`: the mean log-probability of the first tokens of the response with the concept minus that of
    the response without it, when `v` is added to the residual stream. In nats per token.

    It needs no judge and has a gradient. `M >= 0` means that the model prefers the concept. Tokens with which
    both responses begin are read but not counted: what models write often starts in the same way.

    For many vectors on one sample, what does not depend on the vector is computed once: keys and values of
    the tokens before the first steered one, and the residual stream up to the steered layer. Only the blocks
    above it run, on the tokens from the first steered one on, all vectors in one batch.

    Args:
        model: a decoder-only model.
        tokenizer: its tokenizer.
        pairs: the samples.
        layer: the block, counted from 0, whose output is steered.
        m_tokens: how many tokens of each response count, from the first in which the two differ.
        template: see `prompt_text`.
        position: which tokens are steered (see `steer`); `"output"` shares the most.
        path: `"suffix"` as described, `"full"` for whole forward passes, or `"auto"`: the first, if it agrees
            with the second on the first sample (it may not for models with per-layer inputs or states).
        max_logits: the size of a batch, in logits.

    Raises:
        InputError: an argument is out of range, or `path="suffix"` fails for this model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        pairs: ConceptPairs,
        layer: int,
        *,
        m_tokens: int = 6,
        template: str = "chat",
        position: Position = "output",
        path: Path = "auto",
        max_logits: int = 2**25,
    ) -> None:
        if m_tokens < 1:
            raise InputError(f"m_tokens must be at least 1, got {m_tokens}")
        if position not in POSITIONS:
            raise InputError(f"position {position!r} is not known; use one of {', '.join(POSITIONS)}")
        if path not in ("auto", "suffix", "full"):
            raise InputError(f"path {path!r} is not known; use auto, suffix or full")
        self.model = model
        self.tokenizer = tokenizer
        self.pairs = pairs
        self.decoder = find_decoder(model)
        self.layer = self.decoder.layer(layer)
        self.m_tokens = m_tokens
        self.template = template
        self.position: Position = position
        self.max_logits = max_logits
        self._samples: OrderedDict[int, _Sample] = OrderedDict()
        self._keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.path = path if path != "auto" else self._chosen_path()

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def width(self) -> int:
        """The width of the residual stream."""
        return self.decoder.width

    @torch.no_grad()
    def __call__(self, i: int, vectors: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows"]:
        """Margins of sample `i` for every vector, float32 on the CPU.

        Raises:
            InputError: there is no such sample, the vectors have another width, or a margin is not finite.
        """
        rows = self._checked(vectors)
        margins = torch.cat([self._margins(i, part) for part in rows.split(self._rows(i))])
        if not torch.isfinite(margins).all():
            raise InputError(
                f"the margin of sample {i} at layer {self.layer} is NaN or infinite; load the model in "
                "bfloat16 or float32, or lower the strength"
            )
        return margins if vectors.dim() == 2 else margins[0]

    def grad(self, i: int, vectors: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """The gradient of the margin with respect to each vector, at that vector; float32 on the CPU.

        Raises:
            InputError: see `__call__`.
        """
        rows = self._checked(vectors)
        gradients = []
        for part in rows.split(self._rows(i)):
            point = part.detach().clone().requires_grad_(True)
            with torch.enable_grad():
                total = self._margins(i, point).sum()
            gradients.append(torch.autograd.grad(total, point)[0])
        result = torch.cat(gradients)
        if not torch.isfinite(result).all():
            raise InputError(f"the gradient of sample {i} at layer {self.layer} is NaN or infinite")
        return result if vectors.dim() == 2 else result[0]

    @torch.no_grad()
    def reference(self, i: int, vectors: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows"]:
        """The same margins by one full forward pass for every vector and response, through `steer`.

        Slow and plain: what the fast path is compared with.
        """
        rows = self._checked(vectors)
        margins = []
        for row in rows:
            scores = []
            for response in range(2):
                scores.append(self._full(i, row.unsqueeze(0), [response])[0])
            margins.append(scores[0] - scores[1])
        result = torch.stack(margins)
        return result if vectors.dim() == 2 else result[0]

    def _chosen_path(self) -> Literal["suffix", "full"]:
        if len(self.pairs) == 0:
            return "full"
        generator = torch.Generator().manual_seed(0)
        probe = torch.randn(1, self.width, generator=generator) * 0.1
        self.path = "suffix"
        with torch.no_grad():
            try:
                short = self._margins(0, probe)
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
                # Whatever the family's code does not stand: whole passes work for every model.
                self._samples.clear()
                return "full"
            whole = self._full(0, probe, [0, 1])
        if float((short - (whole[0] - whole[1])).abs().max()) <= AGREEMENT * (
            1 if self.model.dtype == torch.float32 else 100
        ):
            return "suffix"
        self._samples.clear()
        return "full"

    def _margins(self, i: int, vectors: Float[Tensor, "rows width"]) -> Float[Tensor, " rows"]:
        if self.path == "full":
            scores = self._full(i, vectors, [0, 1])
            return scores[: len(vectors)] - scores[len(vectors) :]
        sample = self._sample(i)
        rows = len(vectors)
        shift = vectors.to(sample.hidden.device).unsqueeze(1) * sample.steered.unsqueeze(-1)
        hidden = torch.cat([state + shift for state in sample.hidden.float()]).to(sample.hidden.dtype)
        ids = sample.ids.repeat_interleave(rows, dim=0)
        options: dict[str, Any] = {"use_cache": sample.cache is not None}
        if sample.cache is not None:
            options[cache_keyword(self.model)] = _expanded(sample.cache, 2 * rows)
        positions = torch.arange(sample.start, sample.start + ids.shape[1], device=ids.device)
        options["position_ids"] = positions.unsqueeze(0)
        blocks = list(self.decoder.blocks[: self.layer + 1])
        with skipping(blocks, hidden, as_tuple=sample.as_tuple):
            logits = self._logits(ids, sample.targets.shape[1], **options)
        scores = _scores(
            logits,
            sample.targets.repeat_interleave(rows, dim=0),
            sample.scored.repeat_interleave(rows, dim=0),
        )
        return scores[:rows] - scores[rows:]

    def _full(
        self, i: int, vectors: Float[Tensor, "rows width"], responses: list[int]
    ) -> Float[Tensor, " scores"]:
        """Mean log-probabilities of the responses by whole forward passes, vectors varying fastest."""
        prompt, tokens = self._tokens(i)
        sequences = [prompt + tokens[response][:-1] for response in responses]
        ids, _ = pad(sequences, padding_token(self.tokenizer), left=False)
        targets, scored = self._targets([tokens[response] for response in responses], _shared(tokens))
        device = decoder_device(self.model)
        rows = len(vectors)
        repeated = [part.repeat_interleave(rows, dim=0).to(device) for part in (ids, targets, scored)]
        with steer(
            self.model,
            vectors.repeat(len(responses), 1),
            self.layer,
            position=self.position,
            prompt_lengths=len(prompt),
        ):
            logits = self._logits(repeated[0], targets.shape[1], use_cache=False)
        return _scores(logits, repeated[1], repeated[2].bool())

    def _logits(self, ids: Tensor, count: int, **options: Any) -> Float[Tensor, "rows count vocabulary"]:
        """The logits at the last `count` tokens; where the model can leave the others out, it does."""
        if self._keep:
            options["logits_to_keep"] = count
        return self.model(input_ids=ids, **options).logits[:, -count:]

    def _tokens(self, i: int) -> tuple[list[int], list[list[int]]]:
        if not 0 <= i < len(self.pairs):
            raise InputError(f"there is no sample {i}; there are samples 0 to {len(self.pairs) - 1}")
        row = self.pairs[i]
        responses = []
        prompt: list[int] = []
        for text in (row.resp_with_concept, row.resp_no_concept):
            prompt, response = encode_response(self.tokenizer, self.template, row.question, text)
            responses.append(response)
        read = _shared(responses) + self.m_tokens
        return prompt, [response[:read] for response in responses]

    def _targets(
        self, responses: list[list[int]], shared: int
    ) -> tuple[Int[Tensor, "rows scored"], Int[Tensor, "rows scored"]]:
        """What is predicted from the first token that counts on, and which tokens count."""
        return pad([response[shared:] for response in responses], 0, left=False)

    def _sample(self, i: int) -> _Sample:
        if i in self._samples:
            self._samples.move_to_end(i)
        else:
            self._samples[i] = self._prepare(i)
            while len(self._samples) > KEPT:
                self._samples.popitem(last=False)
        return self._samples[i]

    @torch.no_grad()
    def _prepare(self, i: int) -> _Sample:
        prompt, responses = self._tokens(i)
        start = len(prompt) - 1 if self.position in ("output", "last_prompt") else 0
        device = decoder_device(self.model)
        ids, _ = pad(
            [prompt + response[:-1] for response in responses], padding_token(self.tokenizer), left=False
        )
        targets, scored = self._targets(responses, _shared(responses))
        index = torch.arange(start, ids.shape[1])
        steered = {
            "all": torch.ones_like(index, dtype=torch.bool),
            "prompt": index < len(prompt),
            "last_prompt": index == len(prompt) - 1,
            "output": index >= len(prompt) - 1,
        }[self.position]
        path = f"{self.decoder.path}.{self.layer}"
        kinds: list[bool] = []
        handle = self.decoder.blocks[self.layer].register_forward_hook(
            lambda module, arguments, output: kinds.append(isinstance(output, tuple))
        )
        try:
            with capture(self.model, path) as states:
                self._logits(ids.to(device), 1, use_cache=False)
        finally:
            handle.remove()
        hidden = states[path][0][:, start:]
        return _Sample(
            ids[:, start:].to(device),
            targets.to(device),
            scored.bool().to(device),
            steered.to(hidden.device),
            hidden,
            self._prefix(ids[:1, :start].to(device)) if start else None,
            start,
            kinds[0],
        )

    def _prefix(self, ids: Int[Tensor, "1 tokens"]) -> Any:
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        self._logits(ids, 1, use_cache=True, **{cache_keyword(self.model): cache})
        return cache

    def _rows(self, i: int) -> int:
        """Vectors in one batch, so that its logits stay within `max_logits`."""
        vocabulary = int(self.model.config.get_text_config().vocab_size)
        return max(1, self.max_logits // (2 * self.m_tokens * vocabulary))

    def _checked(self, vectors: Float[Tensor, "*rows width"]) -> Float[Tensor, "rows width"]:
        if vectors.dim() not in (1, 2) or vectors.shape[-1] != self.width:
            raise InputError(
                f"vectors of shape {tuple(vectors.shape)} do not fit a model of width {self.width}; pass "
                "[width] or [rows, width]"
            )
        if vectors.dim() == 2 and len(vectors) == 0:
            raise InputError("there are no vectors to evaluate")
        return vectors.detach().float().reshape(-1, self.width)


def _shared(responses: list[list[int]]) -> int:
    """How many first tokens two responses have in common; one token of each is always left."""
    shorter = min(map(len, responses))
    first, second = responses
    common = next((k for k in range(shorter) if first[k] != second[k]), shorter)
    return min(common, shorter - 1)


def _expanded(cache: Any, rows: int) -> Any:
    """The cache of one row for many rows, without copying it: what a layer appends goes to a new tensor."""
    result = copy(cache)
    result.layers = []
    for layer in cache.layers:
        twin = copy(layer)
        if getattr(layer, "keys", None) is not None:
            twin.keys = layer.keys.expand(rows, *layer.keys.shape[1:])
            twin.values = layer.values.expand(rows, *layer.values.shape[1:])
        result.layers.append(twin)
    return result


def _scores(
    logits: Float[Tensor, "rows tokens vocabulary"],
    targets: Int[Tensor, "rows tokens"],
    scored: Bool[Tensor, "rows tokens"],
) -> Float[Tensor, " rows"]:
    """Mean log-probabilities in float32, without a float32 copy of all log-probabilities."""
    targets, scored = targets.to(logits.device), scored.to(logits.device)
    picked = logits.gather(2, targets.unsqueeze(-1)).squeeze(-1).float()
    log_probability = picked - torch.logsumexp(logits.float(), dim=-1)
    return ((log_probability * scored).sum(dim=1) / scored.sum(dim=1)).cpu()
