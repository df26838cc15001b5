"""Tiny random models, a tokenizer of bytes, and packed layers made by hand."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from assay.methods.proteus.config import ProteusConfig
from assay.methods.proteus.decoder import linear_modules, linear_weight
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.incoherence import signs, transform_for
from assay.methods.proteus.integration import kept_modules, mark_quantized, replace_module
from assay.methods.proteus.layer_quantization import QuantizedLayer, padded
from assay.methods.proteus.linear import ProteusLinear

_SHAPE = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 260}
_ROOMS = {"intermediate_size": 80, "num_key_value_heads": 4, "max_position_embeddings": 128}
_CONFIGS = {
    "llama": lambda: LlamaConfig(**_SHAPE, **_ROOMS, tie_word_embeddings=True),
    "untied": lambda: LlamaConfig(**_SHAPE, **_ROOMS, tie_word_embeddings=False),
    # 72 and 56 are not multiples of 16; queries, keys and values have biases.
    "qwen2": lambda: Qwen2Config(**{**_SHAPE, **_ROOMS, "hidden_size": 72, "intermediate_size": 56}),
    "gpt2": lambda: GPT2Config(n_embd=48, n_layer=2, n_head=4, vocab_size=260, n_positions=128),
}
GENERATOR = Generator(0x9E3779B1, shift=15)


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], PreTrainedModel]:
    """A model by name, the same weights every time."""

    def build(architecture: str = "llama") -> PreTrainedModel:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(_CONFIGS[architecture]())
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.data.normal_(0.0, 0.15)
        return model.eval()

    return build


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and `<s>`."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["<s>"] = 256
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.fixture(scope="session")
def random_layer() -> Callable[..., QuantizedLayer]:
    """A packed layer of random bits: every bit stream is a valid one."""

    def build(m: int, n: int, *, bits: int = 2, seed: int = 0, rht: str = "auto") -> QuantizedLayer:
        generator = torch.Generator().manual_seed(seed)
        tiles = (padded(m) // 16, padded(n) // 16, 32 * bits)
        scales = [1 + 0.1 * torch.randn(size, generator=generator) for size in (n, m)]
        return QuantizedLayer(
            torch.randint(256, tiles, generator=generator, dtype=torch.uint8),
            GENERATOR.record(),
            torch.tensor([0.02 / 147.8, 0.001]),
            (signs(n, seed=seed, name="in", side="input") * scales[0]).half(),
            (signs(m, seed=seed, name="out", side="output") * scales[1]).half(),
            transform_for(padded(n), rht, seed=1),
            transform_for(padded(m), rht, seed=1),
            (m, n),
        )

    return build


@pytest.fixture(scope="session")
def token_ids() -> Callable[..., torch.Tensor]:
    """Random tokens of the tiny models."""

    def draw(n: int, length: int, seed: int = 0) -> torch.Tensor:
        return torch.randint(0, 256, (n, length), generator=torch.Generator().manual_seed(seed))

    return draw


@pytest.fixture(scope="session")
def packed_model(tiny_model, random_layer) -> Callable[..., PreTrainedModel]:
    """A model whose linear layers are packed layers of random bits."""

    def build(architecture: str = "llama", *, bits: int = 2, rht: str = "auto") -> PreTrainedModel:
        model = tiny_model(architecture)
        kept = kept_modules(model)
        config = ProteusConfig(bits=bits, window=6, rht=rht, modules_to_not_convert=kept)
        for seed, (name, module) in enumerate(linear_modules(model).items()):
            if name in kept:
                continue
            rows, columns = linear_weight(module).shape
            layer = random_layer(rows, columns, bits=bits, seed=seed, rht=rht)
            transposed = not isinstance(module, torch.nn.Linear)
            packed = ProteusLinear.from_layer(layer, config, bias=module.bias, transposed=transposed)
            replace_module(model, name, packed.eval())
        mark_quantized(model, config)
        return model

    return build
