"""Sentence embeddings: those of the plain model, whatever stands beside a text in a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.lm import embed_texts, sentence_encoder

TEXTS = ["The cat sat on the mat.", "A cat was sitting on a rug.", "Shares fell on the market.", "cat", ""]


@pytest.fixture(scope="module")
def encoder():
    return sentence_encoder()


def test_rows_are_means_over_tokens_of_length_one(encoder):
    tokenizer, model = encoder
    rows = embed_texts(tokenizer, model, TEXTS)
    assert rows.shape == (5, 384)
    for text, row in zip(TEXTS, rows, strict=True):
        with torch.inference_mode():
            states = model(**tokenizer([text], return_tensors="pt")).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(row, (states / states.norm()).numpy(), atol=1e-5)
    assert rows[0] @ rows[1] > 0.6 > 0.2 > rows[0] @ rows[2]


def test_batches_change_nothing(encoder):
    rows = embed_texts(*encoder, TEXTS)
    np.testing.assert_allclose(embed_texts(*encoder, TEXTS, batch_tokens=1), rows, atol=1e-5)
    assert embed_texts(*encoder, []).shape == (0, 384)


def test_long_texts_are_cut(encoder):
    long = "a mat and a cat " * 200
    rows = embed_texts(*encoder, [long, long + "and shares"], max_tokens=32)
    np.testing.assert_array_equal(rows[0], rows[1])
