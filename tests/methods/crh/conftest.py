"""Tiny random models of four families, a tokenizer of bytes, and pairs for them."""

from __future__ import annotations

import os

# Before anything imports huggingface_hub: a missing file must fail at once instead of waiting for a network.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from assay.methods.crh import load_pairs

WIDTH, DEPTH = 32, 4
_SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": 4, "vocab_size": 260}
_ROOMS = {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 96}
_ENDS = {"bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 259}
CONFIGS = {
    "llama": lambda: LlamaConfig(**_SHAPE, **_ROOMS, **_ENDS),
    "qwen2": lambda: Qwen2Config(**_SHAPE, **_ROOMS, **_ENDS),
    "gemma": lambda: GemmaConfig(**_SHAPE, **_ROOMS, **_ENDS, head_dim=8),
    "gpt2": lambda: GPT2Config(
        n_embd=WIDTH, n_layer=DEPTH, n_head=4, vocab_size=260, n_positions=96, **_ENDS
    ),
}
FAMILIES = tuple(CONFIGS)
CHAT = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)


def build(family: str, seed: int = 0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIGS[family]())
        # Weights large enough that the position and the past of a token matter.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0.0, 0.25)
    return model.eval()


@pytest.fixture(scope="session")
def models_by_family():
    return {family: build(family) for family in FAMILIES}


@pytest.fixture
def model(models_by_family):
    return models_by_family["llama"]


@pytest.fixture(scope="session")
def tokenizer():
    """One token a byte, with a chat template."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {"<s>": 257, "</s>": 258, "<pad>": 259}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    made.chat_template = CHAT
    return made


def records(n: int = 12) -> list[dict[str, str]]:
    names = ["red", "old", "wet", "big", "shy", "odd", "new", "raw", "dry", "hot", "sad", "low", "fat", "mad"]
    return [
        {
            "question": f"Q{i} {names[i % len(names)]}?",
            "concept": "dogs",
            "resp_no_concept": f"It is {names[(3 * i + 1) % len(names)]}.",
            "resp_with_concept": f"Dogs {names[(5 * i + 2) % len(names)]} run {i}!",
        }
        for i in range(n)
    ]


@pytest.fixture
def pairs():
    return load_pairs(records())


@pytest.fixture(scope="session")
def hooks():
    def count(model) -> int:
        """Hooks and replaced forwards of a model, without those that transformers sets for itself."""
        found = sum("forward" in part.__dict__ for part in model.modules())
        for part in model.modules():
            for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values()):
                found += not hook.__module__.startswith("transformers")
        return found

    return count
