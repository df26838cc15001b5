from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from assay.errors import InputError
from assay.lm import capture, find_modules, patch

LAYERS = {
    "llama": "model.layers",
    "qwen2": "model.layers",
    "gemma": "model.layers",
    "gpt2": "transformer.h",
}
PARTS = {"llama": ("self_attn", "mlp"), "qwen2": ("self_attn", "mlp"), "gemma": ("self_attn", "mlp")}
PARTS["gpt2"] = ("attn", "mlp")
OUTPUT_PROJECTION = {"llama": "self_attn.o_proj", "qwen2": "self_attn.o_proj", "gemma": "self_attn.o_proj"}
OUTPUT_PROJECTION["gpt2"] = "attn.c_proj"
ALL = pytest.mark.parametrize("architecture", LAYERS)


def tokens(seed: int, batch: int = 2, length: int = 7) -> torch.Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(seed))


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@ALL
def test_captured_layers_are_the_hidden_states_that_transformers_reports(tiny_model, architecture):
    model, path = tiny_model(architecture), LAYERS[architecture]
    with capture(model, f"{path}.*") as outputs, capture(model, f"{path}.*", at="input") as inputs:
        reported = model(tokens(1), output_hidden_states=True).hidden_states
    assert list(outputs) == list(inputs) == [f"{path}.{i}" for i in range(3)]
    for layer in range(3):
        torch.testing.assert_close(inputs[f"{path}.{layer}"][0], reported[layer], rtol=0, atol=0)
    for layer in range(2):  # transformers reports the last one after the final norm
        torch.testing.assert_close(outputs[f"{path}.{layer}"][0], reported[layer + 1], rtol=0, atol=0)


@ALL
def test_patching_a_layer_with_the_state_of_another_prompt_gives_its_logits(tiny_model, architecture):
    model, layer = tiny_model(architecture), f"{LAYERS[architecture]}.1"
    with torch.no_grad():
        here, there = model(tokens(1)).logits, model(tokens(2)).logits
        with capture(model, layer) as states:
            model(tokens(2))
        with patch(model, {layer: states[layer][0]}):
            patched = model(tokens(1)).logits
        after = model(tokens(1)).logits
    assert (here - there).abs().max() > 0.1
    torch.testing.assert_close(patched, there, rtol=0, atol=1e-6)
    torch.testing.assert_close(after, here, rtol=0, atol=0)


@ALL
def test_blocks_add_what_their_attention_and_mlp_return(tiny_model, architecture):
    # Attention returns a tuple: only its first element is the hidden state, and only that one is replaced.
    model, layer = tiny_model(architecture), f"{LAYERS[architecture]}.0"
    parts = [f"{layer}.{part}" for part in PARTS[architecture]]
    with (
        torch.no_grad(),
        capture(model, [layer, *parts]) as seen,
        capture(model, layer, at="input") as before,
    ):
        model(tokens(1))
        expected = before[layer][0] + sum(seen[part][0] for part in parts)
        torch.testing.assert_close(seen[layer][0], expected, rtol=0, atol=1e-5)
        with patch(model, dict.fromkeys(parts, torch.zeros(32))):
            model(tokens(1))
    torch.testing.assert_close(seen[layer][1], before[layer][1], rtol=0, atol=0)


@ALL
def test_patching_an_input_silences_one_head_as_zeroed_weights_do(tiny_model, architecture):
    model = tiny_model(architecture)
    path = f"{LAYERS[architecture]}.1.{OUTPUT_PROJECTION[architecture]}"

    def without_head(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.clone()
        hidden[..., 8:16] = 0
        return hidden

    with torch.no_grad():
        plain = model(tokens(1)).logits
        with patch(model, {path: without_head}, at="input"):
            patched = model(tokens(1)).logits
        weight = model.get_submodule(path).weight
        # GPT-2 stores its matrices with the inputs as rows.
        (weight[8:16] if architecture == "gpt2" else weight[:, 8:16]).zero_()
        expected = model(tokens(1)).logits
    assert (plain - expected).abs().max() > 1e-3
    torch.testing.assert_close(patched, expected, rtol=0, atol=1e-5)


def test_input_given_by_keyword_is_captured_and_patched(tiny_model):
    model, path = tiny_model("llama"), "model.layers.0.self_attn"  # called with hidden_states=...
    with torch.no_grad(), capture(model, path, at="input") as seen:
        model(tokens(1))
        with (
            patch(model, {path: lambda hidden: 2 * hidden}, at="input"),
            capture(model, path, at="input") as new,
        ):
            model(tokens(1))
    torch.testing.assert_close(new[path][0], 2 * seen[path][0])


def test_every_call_is_recorded_during_generation(tiny_model):
    model = tiny_model("llama")
    with capture(model, "model.layers.2", keep=lambda hidden: hidden[:, -1]) as seen:
        model.generate(tokens(1, batch=1, length=4), max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert [tuple(state.shape) for state in seen["model.layers.2"]] == [(1, 32)] * 3


def test_captured_states_are_copies_without_a_graph_unless_asked(tiny_model):
    model = tiny_model("llama")

    def spoil(hidden: torch.Tensor) -> torch.Tensor:
        return hidden.zero_()

    with torch.no_grad(), capture(model, "model.layers.0") as seen, patch(model, {"model.layers.0": spoil}):
        model(tokens(1))
    assert seen["model.layers.0"][0].abs().max() > 0
    with capture(model, "model.layers.0") as plain, capture(model, "model.layers.0", detach=False) as graph:
        model(tokens(1))
    assert not plain["model.layers.0"][0].requires_grad
    graph["model.layers.0"][0].sum().backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0


def test_gradients_flow_through_a_patch(tiny_model):
    model = tiny_model("gpt2").requires_grad_(False)
    steering = torch.zeros(32, requires_grad=True)
    with patch(model, {"transformer.h.1": lambda hidden: hidden + steering}):
        model(tokens(1)).logits.logsumexp(-1).sum().backward()
    assert steering.grad is not None
    assert steering.grad.abs().sum() > 0


def test_patches_on_the_same_module_are_applied_in_order(tiny_model):
    model = tiny_model("llama")
    edits = {"model.layers.*": lambda hidden: hidden + 1, "model.layers.2": torch.full((1, 1, 32), 5.0)}
    with torch.no_grad(), patch(model, edits), capture(model, "model.layers.2") as seen:
        model(tokens(1))
    assert seen["model.layers.2"][0].eq(5).all()
    with (
        torch.no_grad(),
        patch(model, dict(reversed(edits.items()))),
        capture(model, "model.layers.2") as seen,
    ):
        model(tokens(1))
    assert seen["model.layers.2"][0].eq(6).all()


def test_a_replacement_takes_the_dtype_of_the_model(tiny_model):
    model = tiny_model("llama").to(torch.bfloat16)
    with torch.no_grad(), patch(model, {"model.layers.0": lambda hidden: hidden.double()}):
        assert model(tokens(1)).logits.dtype == torch.bfloat16


def test_hooks_are_removed_after_an_error(tiny_model):
    model = tiny_model("llama")

    def fail(hidden: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with capture(model, "model.layers.*"), patch(model, {"model.layers.1": fail}, at="input"):
        assert hooks(model) == 4
        with pytest.raises(ZeroDivisionError):
            model(tokens(1))
    assert hooks(model) == 0
    with (
        pytest.raises(ZeroDivisionError),
        capture(model, "model.layers.*"),
        patch(model, {"model.layers.1": fail}),
    ):
        model(tokens(1))
    assert hooks(model) == 0
    with pytest.raises(InputError), patch(model, {"model.layers.0": fail, "model.layer.1": fail}):
        pass
    assert hooks(model) == 0


def test_patterns_match_one_part_of_a_path(tiny_model):
    model = tiny_model("llama")
    assert list(find_modules(model, "model.layers.[02]")) == ["model.layers.0", "model.layers.2"]
    assert list(find_modules(model, "model.*")) == [
        f"model.{name}" for name, _ in model.get_submodule("model").named_children()
    ]
    some = find_modules(model, ["model.layers.1.*.[qk]_proj", "model.layers.*.mlp", "model.layers.1.mlp"])
    assert list(some) == [
        "model.layers.0.mlp",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.self_attn.k_proj",
        "model.layers.1.mlp",
        "model.layers.2.mlp",
    ]


@pytest.mark.parametrize(
    ("pattern", "similar"),
    [
        ("model.layer.1", "model.layers.1"),
        ("transformer.h.0", "model"),
        ("", "model"),
        ("model.layers.7", ""),
    ],
)
def test_unknown_path_names_similar_ones(tiny_model, pattern, similar):
    with pytest.raises(
        InputError, match=rf"no module {re.escape(repr(pattern))}; similar paths: '.*{similar}"
    ):
        find_modules(tiny_model("llama"), pattern)


def test_bad_replacements_and_places_are_refused(tiny_model):
    model = tiny_model("llama")

    def run(replacements, at="output"):
        with torch.no_grad(), patch(model, replacements, at=at):
            model(tokens(1))

    with pytest.raises(
        InputError, match=r"'model.layers.0' has shape \(31,\), the hidden state there \(2, 7, 32\)"
    ):
        run({"model.layers.0": torch.zeros(31)})
    with pytest.raises(InputError, match=r"has shape \(3, 2, 7, 32\)"):
        run({"model.layers.0": torch.zeros(3, 2, 7, 32)})
    with pytest.raises(InputError, match=r"has shape \(2, 1, 32\)"):
        run({"model.layers.0": lambda hidden: hidden[:, :1]})
    with pytest.raises(InputError, match="returned NoneType, not a tensor"):
        run({"model.layers.0": lambda hidden: None})
    with pytest.raises(InputError, match="'model' returns BaseModelOutputWithPast, not a hidden state"):
        run({"model": torch.zeros(32)})
    with pytest.raises(InputError, match="'model' receives no hidden state"):
        run({"model": torch.zeros(32)}, at="input")
    with pytest.raises(InputError, match="at='middle'"):
        run({"model.layers.0": torch.zeros(32)}, at="middle")
    assert hooks(model) == 0
