"""Scores of quantized models, the texts behind them, and what is acceptable."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch

from assay import lm
from assay.errors import InputError
from assay.lm.scoring import encode
from assay.methods.proteus.calibration import calibration_tokens, generated_tokens, held_out_tokens
from assay.methods.proteus.evaluation import Comparison, compare, windows
from assay.methods.proteus.report import Acceptable, fingerprint, read_report


@pytest.fixture
def sources(tmp_path):
    """Two texts of numbered lines; which text and which line a token is from can be told."""
    for letter in "ab":
        lines = [f"{letter}{letter}{letter} {i:03d}" for i in range(100)]
        (tmp_path / f"{letter}.txt").write_text("\n".join(lines))
    return [str(tmp_path / f"{letter}.txt") for letter in "ab"]


def test_a_model_is_nothing_apart_from_itself(tiny_model, token_ids):
    comparison = compare(tiny_model(), tiny_model(), token_ids(3, 20))
    assert comparison.divergence == pytest.approx(0, abs=1e-12)
    assert comparison.agreement == 1
    assert comparison.ratio == 1
    assert comparison.tokens == 3 * 19


def test_perplexity_is_that_of_assay_lm(tiny_model, byte_tokenizer):
    model = tiny_model()
    content = "In the beginning was the word, and the word was a token of 8 bits."
    ids = encode(byte_tokenizer, content)
    expected = lm.perplexity(model, byte_tokenizer, content, window=len(ids) - 1, stride=1)
    assert compare(model, None, ids[None]).perplexity == pytest.approx(expected, rel=1e-5)


def test_divergence_against_its_definition(tiny_model, token_ids):
    student, teacher, ids = tiny_model(), tiny_model("untied"), token_ids(2, 16)
    found = compare(student, teacher, ids)
    with torch.no_grad():
        p, q = (model(ids).logits[:, :-1].double().softmax(-1) for model in (teacher, student))
    gaps = (p * (p / q).log()).sum(-1)
    assert found.divergence == pytest.approx(float(gaps.mean()), rel=1e-5)
    assert found.largest_divergence == pytest.approx(float(gaps.mean(-1).max()), rel=1e-5)
    assert found.agreement == pytest.approx(float((p.argmax(-1) == q.argmax(-1)).double().mean()))


def test_calibration_and_held_out_tokens_are_disjoint_and_come_from_all_texts(byte_tokenizer, sources):
    calibration = calibration_tokens(None, byte_tokenizer, sources, 9, 24, seed=0)
    held_out = held_out_tokens(None, byte_tokenizer, sources, 4, 24)
    assert calibration.shape == (9, 24)
    assert held_out.shape == (4, 24)
    texts = [byte_tokenizer.decode(row) for row in calibration]
    assert sum("aaa" in text for text in texts) == 5
    assert sum("bbb" in text for text in texts) == 4
    seen = {line for text in texts for line in text.split("\n")[1:-1]}
    kept = {line for row in held_out for line in byte_tokenizer.decode(row).split("\n")[1:-1]}
    assert seen
    assert kept
    assert not seen & kept
    assert torch.equal(calibration, calibration_tokens(None, byte_tokenizer, sources, 9, 24, seed=0))
    assert not torch.equal(calibration, calibration_tokens(None, byte_tokenizer, sources, 9, 24, seed=1))


def test_a_model_writes_its_own_text(tiny_model, byte_tokenizer, monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    model = tiny_model()
    drawn = generated_tokens(model, byte_tokenizer, 3, 12, seed=0)
    assert drawn.shape == (3, 12)
    assert drawn[:, 0].tolist() == [256] * 3
    assert torch.equal(drawn, generated_tokens(model, byte_tokenizer, 3, 12, seed=0))
    assert not torch.equal(drawn, generated_tokens(model, byte_tokenizer, 3, 12, seed=1))
    mixed = calibration_tokens(model, byte_tokenizer, ["generated"], 3, 12, seed=0)
    assert sorted(mixed.tolist()) == sorted(drawn.tolist())
    monkeypatch.setattr("assay.methods.proteus.calibration.generated_tokens", lambda *a, **k: 1 / 0)
    assert torch.equal(mixed, calibration_tokens(model, byte_tokenizer, ["generated"], 3, 12, seed=0))
    monkeypatch.undo()
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    held_out = held_out_tokens(model, byte_tokenizer, ["generated"], 3, 12)
    assert held_out.shape == (3, 12)
    assert not set(map(tuple, held_out.tolist())) & set(map(tuple, drawn.tolist()))


def test_generation_samples_what_the_model_predicts(tiny_model, byte_tokenizer):
    # With one token certain after another, sampling has no choice: 256, 0, 1, 2, ...
    model = tiny_model()

    class Counter(torch.nn.Module):
        config, device = model.config, torch.device("cpu")

        def forward(self, input_ids, past_key_values, use_cache):
            following = (input_ids + 1) % 257
            logits = 100.0 * torch.nn.functional.one_hot(following, 260).float()
            return SimpleNamespace(logits=logits, past_key_values=None)

    assert generated_tokens(Counter(), byte_tokenizer, 1, 5, seed=0).tolist() == [[256, 0, 1, 2, 3]]


def test_a_chat_model_starts_with_a_turn_of_the_user(tiny_model, byte_tokenizer):
    tokenizer = copy.deepcopy(byte_tokenizer)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}.{% endfor %}"
    drawn = generated_tokens(tiny_model(), tokenizer, 2, 10, seed=0)
    assert [tokenizer.decode(row[:6]) for row in drawn] == ["[user]", "[user]"]


def test_texts_that_are_too_short_are_named(byte_tokenizer, sources):
    with pytest.raises(InputError, match=r"a\.txt: the calibration text has 639 tokens; at least 1 x 2000"):
        calibration_tokens(None, byte_tokenizer, sources[:1], 1, 2000, seed=0)
    with pytest.raises(
        InputError, match=r"a\.txt: the evaluation text has 159 tokens; at least 500 are needed"
    ):
        held_out_tokens(None, byte_tokenizer, sources, 4, 500)
    with pytest.raises(InputError, match="1 calibration sequences cannot come from 2 texts: use at least 2"):
        calibration_tokens(None, byte_tokenizer, sources, 1, 8, seed=0)
    with pytest.raises(InputError, match="no calibration text was named"):
        calibration_tokens(None, byte_tokenizer, [], 1, 8, seed=0)


def test_windows():
    assert windows(torch.arange(10), 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert windows(torch.arange(10), 4, 1).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("perplexity", "divergence", "complaint"),
    [
        (20.0, 0.5, ""),
        (31.0, 0.5, "perplexity 31 is 3.1 times the original's (10); 3 times is accepted"),
        (20.0, 2.5, "the divergence from the original is 2.5 nats a token; 2 is accepted"),
        (float("nan"), 0.5, "perplexity nan is nan times the original's (10); 3 times is accepted"),
        (float("inf"), float("nan"), "perplexity inf is inf times"),
    ],
)
def test_what_is_acceptable(perplexity, divergence, complaint):
    found = Acceptable().complaint(Comparison(100, perplexity, 10.0, divergence))
    assert found.startswith(complaint)
    assert bool(found) == bool(complaint)


def test_fingerprints_see_every_bit():
    tensors = {"a": torch.arange(6, dtype=torch.bfloat16), "b": torch.tensor(1.0)}
    same = {name: tensor.clone() for name, tensor in reversed(tensors.items())}
    assert fingerprint(tensors) == fingerprint(same)
    for other in (
        {"a": tensors["a"]},
        tensors | {"b": torch.tensor(-1.0)},
        tensors | {"a": tensors["a"].view(2, 3)},
    ):
        assert fingerprint(other) != fingerprint(tensors)


def test_reports_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="has no proteus-report"):
        read_report(tmp_path)
    (tmp_path / "proteus-report.json").write_text("[]")
    with pytest.raises(InputError, match="is damaged: quantize the model again"):
        read_report(tmp_path)
