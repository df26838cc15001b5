"""What calls cost."""

import datetime

import pytest

from assay.methods.dualgraph.pricing import PRICES, PRICES_DATE, price
from assay.methods.dualgraph.records import Usage

MILLION = Usage(1_000_000, 1_000_000)


@pytest.mark.parametrize(
    "model",
    [
        "gpt-4.1",
        "openai:gpt-4.1",
        "openai:gpt-4.1@https://x.example/v1",
        "openai/gpt-4.1",
        "gpt-4.1-2025-04-14",
    ],
)
def test_names_of_one_model(model):
    assert price(model, MILLION) == 2.0 + 8.0
    assert price(model, Usage(1500, 500)) == pytest.approx(0.007)


@pytest.mark.parametrize("model", ["extractive", "transformers:x/y", "llama_cpp:a.gguf", "replay:a.jsonl"])
def test_models_of_our_own_are_free(model):
    assert price(model, MILLION) == 0.0


@pytest.mark.parametrize(
    "model", ["", "gpt-4.1-turbo", "llama-3-70b", "openai:qwen3@http://127.0.0.1:8000/v1"]
)
def test_models_that_are_not_listed_have_no_price(model):
    assert price(model, MILLION) is None


def test_the_table_is_dated_and_sane():
    assert datetime.date.fromisoformat(PRICES_DATE) >= datetime.date(2026, 1, 1)
    assert all(0 < sent < received for sent, received in PRICES.values())
