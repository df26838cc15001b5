from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.lm import calibration_batches

# Random letters, so that a few of them say where they stand.
TEXT = "".join(np.random.default_rng(0).choice(list("abcdefghijklmnopqrstuvwxyz"), 600))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), length=st.integers(8, 200), seed=st.integers(0, 2**40))
def test_sequences_are_stretches_of_the_text_that_do_not_overlap(byte_tokenizer, data, length, seed):
    n = data.draw(st.integers(1, len(TEXT) // length))
    tokenizer = byte_tokenizer()
    batches = calibration_batches(tokenizer, TEXT, length, n, seed)
    assert batches.shape == (n, length)
    assert batches.dtype == torch.long
    whole = tokenizer(TEXT)["input_ids"]
    taken: set[int] = set()
    for row in batches.tolist():
        (start,) = (i for i in range(len(whole) - length + 1) if whole[i : i + length] == row)
        taken.update(range(start, start + length))
    assert len(taken) == n * length


def test_the_seed_alone_decides(byte_tokenizer):
    tokenizer = byte_tokenizer()
    torch.manual_seed(1)
    one = calibration_batches(tokenizer, TEXT, 16, 8, seed=5)
    torch.manual_seed(2)
    assert torch.equal(one, calibration_batches(tokenizer, TEXT, 16, 8, seed=5))
    assert not torch.equal(one, calibration_batches(tokenizer, TEXT, 16, 8, seed=6))


def test_the_whole_text_is_within_reach(byte_tokenizer):
    tokenizer = byte_tokenizer()
    starts = {tuple(calibration_batches(tokenizer, TEXT[:40], 8, 1, seed)[0].tolist()) for seed in range(400)}
    assert len(starts) == 40 - 8 + 1


def test_all_of_a_text_that_is_just_long_enough(byte_tokenizer):
    batches = calibration_batches(byte_tokenizer(), TEXT[:24], 8, 3, seed=0)
    assert sorted(batches.flatten().tolist()) == sorted(byte_tokenizer()(TEXT[:24])["input_ids"])


def test_a_short_text_is_refused_with_the_numbers(byte_tokenizer):
    with pytest.raises(
        InputError, match=r"has 37 tokens; at least 2 x 128 \(256\) are needed: pass a longer text"
    ):
        calibration_batches(byte_tokenizer(), TEXT[:37], 128, 2, seed=0)
    with pytest.raises(InputError, match="sequence_length 0 and n 4 must be at least 1"):
        calibration_batches(byte_tokenizer(), TEXT, 0, 4, seed=0)
