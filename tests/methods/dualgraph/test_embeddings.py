"""Encoders: unit vectors, the same whatever stands beside a text, close for close meanings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.dualgraph.embeddings import HashedWords, MiniLM, default_encoder

TEXTS = ["The cat sat on the mat.", "A cat was sitting on a rug.", "Shares fell on the stock market.", "cat"]


@pytest.fixture(scope="module")
def minilm():
    return MiniLM()


def test_minilm_knows_meanings(minilm):
    rows = minilm.encode(TEXTS)
    assert rows.shape == (4, 384)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    cosine = rows @ rows.T
    assert cosine[0, 1] > 0.6
    assert cosine[0, 2] < 0.2


def test_minilm_is_the_plain_model_whatever_the_batch(minilm):
    import torch

    tokenizer, model = minilm._loaded
    tokens = tokenizer([TEXTS[1]], return_tensors="pt")
    with torch.inference_mode():
        plain = model(**tokens).last_hidden_state[0].mean(0)
    plain = (plain / plain.norm()).numpy()
    np.testing.assert_allclose(MiniLM().encode([TEXTS[1] * 30, TEXTS[1], ""])[1], plain, atol=1e-5)
    np.testing.assert_allclose(minilm.encode([TEXTS[1]])[0], plain, atol=1e-5)


def test_minilm_remembers_the_latest(minilm):
    encoder = MiniLM(memory=2)
    encoder.__dict__["_loaded"] = minilm._loaded
    first = encoder.encode(["a", "b", "c", "a"])
    assert list(encoder._seen) == ["b", "c"]
    np.testing.assert_array_equal(first[0], first[3])
    np.testing.assert_allclose(encoder.encode(["a"])[0], first[0], atol=1e-6)
    assert encoder.encode([]).shape == (0, 384)
    with pytest.raises(InputError, match="memory"):
        MiniLM(memory=-1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=5))
def test_hashed_words_are_unit_vectors_and_do_not_depend_on_neighbours(texts):
    rows = HashedWords().encode(texts)
    assert rows.shape == (len(texts), 512)
    for text, row in zip(texts, rows, strict=True):
        length = float(np.linalg.norm(row))
        assert length == pytest.approx(1.0, abs=1e-5) or length == 0.0
        np.testing.assert_array_equal(row, HashedWords().encode([text])[0])


def test_hashed_words_see_shared_words_and_letters():
    rows = HashedWords().encode(["toolchain file", "toolchain files", "stock market", "..."])
    cosine = rows @ rows.T
    assert cosine[0, 1] > 0.6 > cosine[0, 2]
    assert not rows[3].any()
    with pytest.raises(InputError, match="dimensions"):
        HashedWords(4)


def test_the_default_is_shared():
    assert default_encoder() is default_encoder()
    assert default_encoder().name == "all-MiniLM-L6-v2"
