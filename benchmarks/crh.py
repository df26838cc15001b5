"""Steering maps and extraction of crh beside plain forward passes, as ratios in one run.

OMP_NUM_THREADS=1 python -m benchmarks.crh
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from assay import lm
from assay.methods.crh import (
    ConceptMargin,
    DifferenceSet,
    extract_differences,
    fit_cylinder,
    sector_map,
    written_pairs,
)
from assay.methods.crh.templates import encode_response, pad, padding_token

LAYER = 15
TRAINING = 16
# Cells of a map: 8 sectors at 25 strengths, as in the paper's grids.
SECTORS, STRENGTHS = 8, 25
# So many cells are measured one by one, and the time of all is extrapolated.
FEW = 12


def seconds(action: Callable[[], object], repeats: int = 2) -> float:
    """The shortest of a few processor times: other processes disturb the clock more."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def show(what: str, ours: float, peer: str, theirs: float, difference: float) -> None:
    print(f"{what:<40} {ours:>8.2f} s  {peer:<38} {theirs:>8.2f} s  {theirs / ours:>6.2f}x  {difference:.1e}")


def maps(margin: ConceptMargin, differences: DifferenceSet) -> None:
    """A sector map through the shared prefix against one whole forward pass for every cell and response."""
    cylinder = fit_cylinder(differences.subset(range(TRAINING)), LAYER)
    lengths = (np.linspace(0.1, 2.5, STRENGTHS) * cylinder.axis_norm).tolist()
    sample = TRAINING
    asked: list[Tensor] = []

    def watched(i: int, vectors: Tensor) -> Tensor:
        asked.append(vectors)
        # Made anew each time, so that the preparation of the sample counts.
        fresh = ConceptMargin(margin.model, margin.tokenizer, margin.pairs, LAYER, path="suffix")
        return fresh(i, vectors)

    def draw() -> object:
        return sector_map(watched, cylinder, sample, n_phi=SECTORS, strengths=lengths, n_controls=0)

    ours = seconds(draw)
    few = asked[-1][:: len(asked[-1]) // FEW][:FEW]
    single = seconds(lambda: margin.reference(sample, few), repeats=1) / len(few) * len(asked[-1])
    difference = (margin(sample, few) - margin.reference(sample, few)).abs().max()
    name = f"sector map, {SECTORS} x {STRENGTHS} cells"
    show(name, ours, "one full forward a cell and response", single, float(difference))
    whole = ConceptMargin(margin.model, margin.tokenizer, margin.pairs, LAYER, path="full")
    batched = seconds(lambda: whole(sample, asked[-1]), repeats=1)
    difference = (margin(sample, few) - whole(sample, few)).abs().max()
    show(name, ours, "full forwards, in batches", batched, float(difference))


@torch.no_grad()
def extraction(margin: ConceptMargin, layers: Sequence[int]) -> None:
    """Differences of all pairs against the forward passes that they need, and against whole ones."""
    model, tokenizer, pairs = margin.model, margin.tokenizer, margin.pairs
    texts = dict.fromkeys(
        (row.question, response)
        for row in pairs.rows
        for response in (row.resp_with_concept, row.resp_no_concept)
    )
    encoded = sorted((_tokens(tokenizer, *text) for text in texts), key=len)
    stack, blocks = margin.decoder.stack, margin.decoder.blocks

    def bare() -> None:
        for start in range(0, len(encoded), 16):
            ids, mask = pad(encoded[start : start + 16], padding_token(tokenizer), left=False)
            stack(input_ids=ids, attention_mask=mask, use_cache=False)

    def needed() -> None:
        """Only the blocks up to the highest layer that is read."""
        kept = list(blocks)
        del blocks[max(layers) + 1 :]
        try:
            bare()
        finally:
            blocks.extend(kept[max(layers) + 1 :])

    found: list[DifferenceSet] = []
    ours = seconds(lambda: found.append(extract_differences(model, tokenizer, pairs, layers)))
    # The layer from transformers' own hidden states, text by text.
    states = []
    for row in pairs.rows[:4]:
        for response in (row.resp_with_concept, row.resp_no_concept):
            ids = torch.tensor([_tokens(tokenizer, row.question, response)])
            hidden = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
            states.append(hidden[layers[0] + 1][0, -1])
    plain = torch.stack(states[::2]) - torch.stack(states[1::2])
    difference = float((found[-1].differences(layers[0])[:4] - plain).abs().max())
    name = f"extraction, {len(texts)} texts, layers {' and '.join(map(str, layers))}"
    show(name, ours, "bare passes through the blocks it needs", seconds(needed), difference)
    show(name, ours, "bare passes through all blocks", seconds(bare), difference)


def _tokens(tokenizer: PreTrainedTokenizerBase, question: str, response: str) -> list[int]:
    prompt, answer = encode_response(tokenizer, "chat", question, response)
    return prompt + answer


def main() -> None:
    torch.set_num_threads(1)
    model, tokenizer = lm.load("embedded", dtype="float32", device="cpu")
    pairs = written_pairs(["dogs"])
    margin = ConceptMargin(model, tokenizer, pairs, LAYER)
    print(f"{'SmolLM2-135M':<40} {'ours':>10}  {'peer':<38} {'peer':>10}  {'ratio':>7}  difference")
    maps(margin, extract_differences(model, tokenizer, pairs, [LAYER]))
    extraction(margin, (15, 22))


if __name__ == "__main__":
    main()
