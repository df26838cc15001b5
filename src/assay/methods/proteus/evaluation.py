"""How far a quantized model is from the original on text that neither was calibrated on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.errors import InputError


@dataclass(frozen=True)
class Comparison:
    """Scores on held-out tokens.

    Attributes:
        tokens: how many were predicted.
        perplexity: of the quantized model.
        reference_perplexity: of the original; None without one.
        divergence: KL(original || quantized), nats a token.
        largest_divergence: the largest mean over a window.
        agreement: share of tokens for which both find the same one most likely.
    """

    tokens: int
    perplexity: float
    reference_perplexity: float | None = None
    divergence: float | None = None
    largest_divergence: float | None = None
    agreement: float | None = None

    @property
    def ratio(self) -> float | None:
        """Perplexity relative to the original's."""
        return None if self.reference_perplexity is None else self.perplexity / self.reference_perplexity


def windows(ids: Int[Tensor, " tokens"], length: int, count: int | None = None) -> Int[Tensor, "n length"]:
    """Consecutive stretches of a text, without overlap.

    Args:
        ids: the tokens of the text.
        length: tokens in a window.
        count: how many windows at most; all when None.

    Raises:
        InputError: the text is shorter than one window.
    """
    if len(ids) < length:
        raise InputError(
            f"the evaluation text has {len(ids)} tokens; at least {length} are needed: pass a longer text"
        )
    found = ids[: len(ids) // length * length].view(-1, length)
    return found if count is None else found[:count]


@torch.no_grad()
def compare(student: nn.Module, teacher: nn.Module | None, stretches: Int[Tensor, "n length"]) -> Comparison:
    """Perplexity and, beside the original, divergence: a window at a time, so that memory stays small.

    Args:
        student: the quantized model.
        teacher: the original, with the same vocabulary.
        stretches: windows of tokens; each is scored from its second token on.
    """
    loss = reference = divergence = agreement = 0.0
    largest = 0.0
    count = len(stretches) * (stretches.shape[1] - 1)
    for stretch in stretches:
        found = _log_probabilities(student, stretch)
        loss += _negative_log_likelihood(found, stretch)
        if teacher is not None:
            wanted = _log_probabilities(teacher, stretch)
            if wanted.shape != found.shape:
                raise InputError(
                    f"the two models have vocabularies of {found.shape[1]} and {wanted.shape[1]} tokens: "
                    "they cannot be compared"
                )
            reference += _negative_log_likelihood(wanted, stretch)
            # Position by position in float64: sums over a large vocabulary lose digits in float32.
            gap = (wanted.double().exp() * (wanted.double() - found.double())).sum(-1)
            divergence += float(gap.sum())
            largest = max(largest, float(gap.mean()))
            agreement += float((wanted.argmax(-1) == found.argmax(-1)).sum())
    if teacher is None:
        return Comparison(count, _perplexity(loss, count))
    return Comparison(
        count,
        _perplexity(loss, count),
        _perplexity(reference, count),
        divergence / count,
        largest,
        agreement / count,
    )


def _log_probabilities(model: nn.Module, stretch: Int[Tensor, " length"]) -> Float[Tensor, "length-1 v"]:
    device = next(model.parameters()).device
    logits = model(input_ids=stretch[None].to(device), use_cache=False).logits
    return logits[0, :-1].float().log_softmax(-1).cpu()


def _negative_log_likelihood(
    log_probabilities: Float[Tensor, "length-1 v"], stretch: Int[Tensor, " length"]
) -> float:
    return -float(log_probabilities.gather(1, stretch[1:, None].cpu()).double().sum())


def _perplexity(loss: float, count: int) -> float:
    return float(torch.tensor(loss / count, dtype=torch.float64).exp())
