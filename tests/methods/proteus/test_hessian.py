"""Second moments block by block, against hooks on the whole model at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    Qwen2Config,
)

from assay.errors import InputError
from assay.methods.proteus import hessian
from assay.methods.proteus.decoder import decoder_blocks, first_inputs, linear_modules, linear_weight
from assay.methods.proteus.hessian import SecondMoment, walk_blocks

SHAPE = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
HEADS = {"intermediate_size": 48, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE, **HEADS),
    "qwen2": lambda: Qwen2Config(**SHAPE, **HEADS),
    # Masks and position embeddings that differ from block to block.
    "gemma3": lambda: Gemma3TextConfig(
        **SHAPE, **HEADS, head_dim=8, sliding_window=4, layer_types=LAYER_TYPES
    ),
    "gpt2": lambda: GPT2Config(vocab_size=50, n_embd=32, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2),
    "opt": lambda: OPTConfig(**SHAPE, ffn_dim=48, word_embed_proj_dim=32),
}


def tiny(architecture: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIGS[architecture]())
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0.0, 0.3)
    return model.double()


def tokens(n: int = 6, length: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 50, (n, length), generator=torch.Generator().manual_seed(seed))


def measured_at_once(model: nn.Module, ids: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """E[x x^T] and E[x] of every linear module from one run of the whole model."""
    path, blocks = decoder_blocks(model)
    seen: dict[str, torch.Tensor] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, arguments, name=name: seen.__setitem__(name, arguments[0].detach().flatten(0, -2))
        )
        for name, module in linear_modules(blocks, path).items()
    ]
    with torch.no_grad():
        model.eval()(ids)
    for hook in hooks:
        hook.remove()
    return {name: (x.T @ x / len(x), x.mean(0)) for name, x in seen.items()}


@pytest.mark.parametrize("propagate", ["quantized", "original"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_streaming_equals_hooks_on_the_whole_model(architecture, propagate):
    model, ids = tiny(architecture), tokens()
    expected = measured_at_once(model, ids)
    found = {}
    # The last batch is smaller.
    for block in walk_blocks(model, ids.split(4), propagate=propagate):
        found |= block.moments
    assert set(found) == set(expected)
    for name, moment in found.items():
        assert moment.tokens == ids.numel()
        torch.testing.assert_close(moment.hessian, expected[name][0], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(moment.mean, expected[name][1], rtol=1e-12, atol=1e-13)
    assert all("forward" not in block.__dict__ for block in decoder_blocks(model)[1])


def test_modules_with_the_same_input_share_one_moment():
    model = tiny("llama")
    block = next(iter(walk_blocks(model, [tokens()])))
    groups = {name.split(".")[-1]: moment.group for name, moment in block.moments.items()}
    attention, mlp = "model.layers.0.self_attn", "model.layers.0.mlp"
    assert groups == {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj"), f"{attention}.q_proj"),
        "o_proj": f"{attention}.o_proj",
        **dict.fromkeys(("gate_proj", "up_proj"), f"{mlp}.gate_proj"),
        "down_proj": f"{mlp}.down_proj",
    }
    q, k = (block.moments[f"{attention}.{name}"] for name in ("q_proj", "k_proj"))
    assert q is k


def damage(block: nn.Module) -> None:
    for module in linear_modules(block).values():
        linear_weight(module).data.mul_(0.5)


def test_quantized_outputs_feed_the_next_block():
    ids = tokens()
    walked, altered = tiny("llama"), tiny("llama")
    moments = {}
    for block in walk_blocks(walked, ids.split(3)):
        moments |= block.moments
        if block.index == 0:
            damage(block.module)
            block.advance()
    damage(decoder_blocks(altered)[1][0])
    expected = measured_at_once(altered, ids)
    for name, moment in moments.items():
        if ".layers.0." not in name:
            torch.testing.assert_close(moment.hessian, expected[name][0], rtol=1e-12, atol=1e-13)


def test_original_outputs_ignore_what_happens_to_a_block():
    ids = tokens()
    model = tiny("llama")
    expected = measured_at_once(model, ids)
    for block in walk_blocks(model, ids.split(3), propagate="original"):
        for name, moment in block.moments.items():
            torch.testing.assert_close(moment.hessian, expected[name][0], rtol=1e-12, atol=1e-13)
        damage(block.module)


def test_blocks_can_be_passed_without_measuring():
    ids = tokens()
    model = tiny("llama")
    expected = measured_at_once(model, ids)
    for propagate in ("quantized", "original"):
        *_, last = walk_blocks(model, ids.split(3), propagate=propagate)
        for name, moment in last.moments.items():
            torch.testing.assert_close(moment.hessian, expected[name][0], rtol=1e-12, atol=1e-13)


def test_only_wanted_modules_are_measured():
    walk = walk_blocks(tiny("llama"), [tokens()], wanted=lambda name: name.endswith("down_proj"))
    assert list(next(walk).moments) == ["model.layers.0.mlp.down_proj"]


def test_a_block_runs_on_its_inputs():
    model, ids = tiny("gemma3"), tokens()
    hidden = []
    hook = decoder_blocks(model)[1][1].register_forward_hook(lambda *run: hidden.append(run[2]))
    with torch.no_grad():
        model.eval()(ids)
    hook.remove()
    walk = walk_blocks(model, ids.split(4))
    next(walk)
    second = next(walk)
    found = torch.cat([second.forward(batch) for batch in range(2)])
    torch.testing.assert_close(found, hidden[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(second.forward(1, decoder_blocks(model)[1][2]).shape, found[4:].shape)
    assert second.call(0, second.inputs[0]).requires_grad


def test_equal_masks_are_kept_once():
    model = tiny("gemma3")
    _, calls = first_inputs(model, decoder_blocks(model)[1], tokens(8).split(2))
    masks = {id(call.keyword["attention_mask"]) for batch in calls for call in batch}
    # One for sliding and one for full attention, whatever the number of batches.
    assert len(masks) == 2


def test_products_are_formed_over_parts(monkeypatch):
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    whole = SecondMoment("a", 6)
    whole.add(x)
    monkeypatch.setattr(hessian, "TOKENS_AT_ONCE", 7)
    parts = SecondMoment("a", 6)
    parts.add(x.to(torch.float32).view(2, 25, 6))
    assert parts.tokens == whole.tokens == 50
    torch.testing.assert_close(parts.hessian, whole.hessian, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole.hessian, (x.T @ x).double() / 50, rtol=1e-5, atol=1e-6)
    assert whole.hessian.dtype == torch.float64


def test_few_tokens_are_warned_about():
    moment = SecondMoment("mlp.down_proj", 12)
    assert moment.warnings() == ("no calibration token reached mlp.down_proj",)
    assert float(moment.hessian.abs().max()) == 0
    moment.add(torch.ones(5, 12))
    assert moment.warnings() == ("5 tokens for 12 channels of mlp.down_proj: at least 48 are recommended",)
    moment.add(torch.ones(7, 12))
    assert moment.warnings() == ()


# --- models that are made by hand


class HandMade(nn.Module):
    """A causal model of given blocks."""

    def __init__(self, blocks: list[nn.Module], *, first_of_tuple: bool = False, by_keyword: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList(blocks)
        self.first_of_tuple = first_of_tuple
        self.by_keyword = by_keyword
        self.config = SimpleNamespace(is_encoder_decoder=False)

    def forward(self, ids, use_cache):
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden_states=hidden) if self.by_keyword else block(hidden)
            hidden = hidden[0] if self.first_of_tuple else hidden
        return hidden


class Returning(nn.Module):
    """A block that returns its hidden states in a tuple."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden_states):
        return (hidden_states + self.linear(hidden_states), "something else")


class Alternating(nn.Module):
    """Two linear modules that receive the same tensor in the first run only."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = (nn.Linear(8, 8) for _ in range(3))
        self.runs = 0

    def forward(self, hidden):
        other = hidden if self.runs == 0 else 2 * hidden
        self.runs += 1
        return self.first(hidden) + self.second(other)


class Overwriting(nn.Module):
    """A block that changes a tensor after a linear module has seen it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden):
        hidden = hidden + 0
        output = self.linear(hidden)
        hidden += output
        return hidden


@pytest.mark.parametrize("by_keyword", [False, True])
def test_blocks_may_return_tuples(by_keyword):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = HandMade([Returning() for _ in range(3)], first_of_tuple=True, by_keyword=by_keyword).double()
    ids = tokens(3)
    found = {}
    for block in walk_blocks(model, ids.split(1)):
        found |= block.moments
    hidden = model.embedding(ids)
    for number, block in enumerate(model.blocks):
        x = hidden.flatten(0, 1)
        torch.testing.assert_close(found[f"blocks.{number}.linear"].hessian, x.T @ x / len(x))
        hidden = block(hidden)[0]


def test_modules_that_stop_sharing_go_on_separately():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = HandMade([Alternating()])
    batches = [tokens(2, seed=seed) for seed in (0, 1)]
    block = next(iter(walk_blocks(model, batches)))
    hidden = [model.embedding(batch).flatten(0, 1).detach() for batch in batches]
    for name, factor in (("first", 1), ("second", 2)):
        x = torch.cat([hidden[0], factor * hidden[1]])
        moment = block.moments[f"blocks.0.{name}"]
        assert moment.group == f"blocks.0.{name}"
        torch.testing.assert_close(moment.hessian.float(), x.T @ x / len(x))
    unused = block.moments["blocks.0.unused"]
    assert unused.tokens == 0
    assert unused.warnings() == ("no calibration token reached blocks.0.unused",)


def test_overwritten_inputs_are_refused():
    block = next(iter(walk_blocks(HandMade([Overwriting()]), [tokens()])))
    with pytest.raises(InputError, match=r"overwrites the input of blocks\.0\.linear"):
        _ = block.moments


def test_inputs_that_are_not_finite_are_refused():
    model = tiny("llama")
    model.model.layers[1].mlp.down_proj.weight.data[0, 0] = torch.nan
    model.model.layers[1].self_attn.o_proj.weight.data[3, 3] = torch.inf
    walk = walk_blocks(model, [tokens()])
    assert next(walk).moments
    with pytest.raises(InputError, match=r"inputs of model\.layers\.1\.mlp\.gate_proj are not finite"):
        _ = next(walk).moments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: walk_blocks(nn.Linear(4, 4), [tokens()]), "no list of blocks"),
        (lambda: walk_blocks(HandMade([nn.Identity()]), [tokens()]), "no list of blocks"),
        (lambda: walk_blocks(tiny("llama"), []), "no calibration batch"),
        (lambda: walk_blocks(tiny("llama"), [tokens()], propagate="both"), "'both' is unknown"),
    ],
)
def test_bad_walks_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        next(iter(make()))


def test_encoder_decoders_are_refused():
    model = HandMade([nn.Linear(8, 8)])
    model.config.is_encoder_decoder = True
    with pytest.raises(InputError, match="encoder-decoder"):
        decoder_blocks(model)
