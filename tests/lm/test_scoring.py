from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutput

from assay.errors import InputError
from assay.lm import choice_log_likelihoods, perplexity

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom."


class Bigram(nn.Module):
    """A model whose next token depends on the last one only, so that no window can change a score."""

    config = PreTrainedConfig()
    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(260, 260, generator=torch.Generator().manual_seed(3)))

    def forward(self, input_ids, use_cache):
        return CausalLMOutput(logits=self.table[input_ids])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), length=st.integers(2, 60), bos=st.booleans())
def test_every_token_but_the_first_is_scored_once(byte_tokenizer, data, length, bos):
    tokenizer, model = byte_tokenizer(bos=bos), Bigram()
    ids = tokenizer(TEXT[:length])["input_ids"]
    assert len(ids) == length + bos
    window = data.draw(st.integers(1, len(ids) - 1))
    stride = data.draw(st.integers(1, window))
    scores = model.table.detach().double().log_softmax(-1)
    expected = -sum(scores[a, b].item() for a, b in pairwise(ids)) / (len(ids) - 1)
    measured = perplexity(model, tokenizer, TEXT[:length], window=window, stride=stride)
    assert measured == pytest.approx(math.exp(expected), rel=1e-6)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize(("window", "stride"), [(20, 20), (20, 7), (20, 1), (50, 25), (62, 3)])
def test_perplexity_is_that_of_each_token_given_its_own_past(
    tiny_model, byte_tokenizer, architecture, window, stride
):
    # One forward pass a token, on exactly the past that the protocol grants it.
    model, tokenizer, text = tiny_model(architecture), byte_tokenizer(), TEXT[:70]
    ids = torch.tensor(tokenizer(text)["input_ids"])
    losses = []
    for target in range(1, len(ids)):
        end = window if target <= window else window + math.ceil((target - window) / stride) * stride
        start = min(end, len(ids) - 1) - window
        with torch.no_grad():
            logits = model(ids[None, start:target]).logits[0, -1].double()
        losses.append(-logits.log_softmax(-1)[ids[target]].item())
    measured = perplexity(model, tokenizer, text, window=window, stride=stride)
    assert measured == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)


def test_perplexity_of_one_window_is_a_single_pass(tiny_model, byte_tokenizer):
    model, tokenizer = tiny_model("qwen2"), byte_tokenizer(bos=True)
    ids = torch.tensor(tokenizer(TEXT[:40])["input_ids"])
    assert ids[0] == 256
    with torch.no_grad():
        loss = model(ids[None], labels=ids[None]).loss.item()
    assert perplexity(model, tokenizer, TEXT[:40], window=40, stride=40) == pytest.approx(
        math.exp(loss), rel=1e-5
    )


def test_dropout_is_off_while_scoring_and_the_mode_is_restored(tiny_model, byte_tokenizer):
    model = tiny_model("gpt2").train()  # GPT-2's configuration has dropout
    scores = [perplexity(model, byte_tokenizer(), TEXT, window=16, stride=16) for _ in range(2)]
    assert scores[0] == scores[1]
    assert model.training
    with pytest.raises(IndexError):
        perplexity(
            model,
            byte_tokenizer([("t", "h"), ("th", "e"), ("a", "g"), ("b", "e")]),
            TEXT,
            window=16,
            stride=16,
        )
    assert model.training


def test_perplexity_refuses_what_it_cannot_score(tiny_model, byte_tokenizer):
    model, tokenizer = tiny_model("llama"), byte_tokenizer()
    with pytest.raises(InputError, match="the text has 20 tokens; at least 33 are needed for a window of 32"):
        perplexity(model, tokenizer, TEXT[:20], window=32, stride=8)
    with pytest.raises(InputError, match="window is 65 tokens; the model has positions for 64"):
        perplexity(model, tokenizer, TEXT, window=65, stride=8)
    with pytest.raises(InputError, match="window is 0 tokens"):
        perplexity(model, tokenizer, TEXT, window=0, stride=0)
    for stride in (0, 33):
        with pytest.raises(InputError, match=rf"stride {stride} is out of range: .* to the window \(32\)"):
            perplexity(model, tokenizer, TEXT, window=32, stride=stride)


def direct_log_likelihood(model, tokenizer, prompt: str, choice: str) -> float:
    past = tokenizer(prompt)["input_ids"]
    total = 0.0
    for token in tokenizer(choice)["input_ids"]:
        with torch.no_grad():
            scores = model(torch.tensor([past])).logits[0, -1].double().log_softmax(-1)
        total += scores[token].item()
        past = [*past, token]
    return total


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma", "gpt2"])
def test_choices_are_scored_as_one_by_one(tiny_model, byte_tokenizer, architecture):
    model, tokenizer = tiny_model(architecture), byte_tokenizer()
    choices = [" yes", " no", " perhaps, who knows", " a"]
    measured = choice_log_likelihoods(model, tokenizer, "Is it?", choices)
    expected = [direct_log_likelihood(model, tokenizer, "Is it?", choice) for choice in choices]
    assert measured.dtype == np.float64
    np.testing.assert_allclose(measured, expected, rtol=1e-5)


def test_spaces_at_the_end_of_the_prompt_belong_to_the_choice(tiny_model, byte_tokenizer):
    model, tokenizer = tiny_model("llama"), byte_tokenizer()
    one = choice_log_likelihoods(model, tokenizer, "Is it? ", ["yes", "no"])
    other = choice_log_likelihoods(model, tokenizer, "Is it?", [" yes", " no"])
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_merge_across_the_border_is_scored_from_the_token_that_it_makes(tiny_model, byte_tokenizer):
    model, tokenizer = tiny_model("llama"), byte_tokenizer(merges=[("b", "c")])
    past, merged = tokenizer("xa")["input_ids"], tokenizer("bc")["input_ids"]
    assert tokenizer("xabc")["input_ids"] == [*past, *merged]
    with torch.no_grad():
        expected = model(torch.tensor([past])).logits[0, -1].log_softmax(-1)[merged[0]].item()
    assert choice_log_likelihoods(model, tokenizer, "xab", ["c"]) == pytest.approx([expected], rel=1e-5)


def test_an_empty_prompt_needs_a_token_to_begin_with(tiny_model, byte_tokenizer):
    model = tiny_model("llama")
    with pytest.raises(InputError, match="the prompt is empty"):
        choice_log_likelihoods(model, byte_tokenizer(), "", ["yes"])
    with_start = choice_log_likelihoods(model, byte_tokenizer(bos=True), "", ["yes"])
    tokens = byte_tokenizer(bos=True)("yes")["input_ids"]
    with torch.no_grad():
        scores = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert with_start == pytest.approx([sum(scores[i, t].item() for i, t in enumerate(tokens[1:]))], rel=1e-5)


def test_bad_choices_are_refused(tiny_model, byte_tokenizer):
    model, tokenizer = tiny_model("llama"), byte_tokenizer()
    with pytest.raises(InputError, match="no choices were given"):
        choice_log_likelihoods(model, tokenizer, "Is it?", [])
    with pytest.raises(InputError, match="the choice '' adds no token"):
        choice_log_likelihoods(model, tokenizer, "Is it?", [" yes", ""])
    with pytest.raises(InputError, match="is 76 tokens; the model has positions for 64"):
        choice_log_likelihoods(model, tokenizer, "Is it?", ["x" * 70])


def test_the_embedded_model_reads_english_and_knows_the_capital_of_france(embedded):
    model, tokenizer = embedded
    passage = (
        "The water cycle describes how water moves through the environment. The sun heats the surface of the "
        "sea, and some of the water evaporates into the air. As the vapour rises it cools and condenses into "
        "tiny drops that form clouds. When the drops grow heavy enough, they fall back to the ground as rain."
    )
    shuffled = " ".join(np.random.default_rng(0).permutation(passage.split()))
    assert 3 < perplexity(model, tokenizer, passage, window=48, stride=24) < 20
    assert perplexity(model, tokenizer, shuffled, window=48, stride=24) > 100
    scores = choice_log_likelihoods(
        model, tokenizer, "Question: What is the capital of France?\nAnswer:", [" Paris", " Rome", " Banana"]
    )
    assert list(np.argsort(-scores)) == [0, 1, 2]
