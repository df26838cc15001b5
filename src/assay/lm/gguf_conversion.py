"""Write a Llama-architecture GGUF file as the folder that `from_pretrained` reads.

A GGUF holds the weights in quantised blocks, with the rows of the query and key projections in another order,
and describes the tokenizer by its tokens, merges and the name of a pre-tokenizer. All three are undone here;
the layout is that of the GGUF specification and of llama.cpp's converter from Hugging Face checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from assay.errors import InputError, require
from assay.files import replacing

if TYPE_CHECKING:
    from gguf import GGUFReader
    from tokenizers import Tokenizer
    from transformers import LlamaConfig, PreTrainedTokenizerFast

# Names of the GGUF, then of transformers; `blk.3.attn_q` is `model.layers.3.self_attn.q_proj`.
_GLOBAL_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3  # the token type of special tokens such as <|im_start|>
_NORMAL = 1


def convert_gguf(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file into `folder` as float32 safetensors with its config and tokenizer.

    The weights are the exact values that the quantised blocks stand for, so nothing is lost beyond what the
    quantisation already lost.

    Args:
        path: a GGUF of the `llama` architecture with a byte-level BPE tokenizer of the `smollm` kind.
        folder: an existing folder.

    Raises:
        InputError: the file describes another architecture, tokenizer, or something that this reader does not
            know.
    """
    gguf = require("gguf", extra="lm")
    reader = gguf.GGUFReader(path)
    architecture = _value(reader, "general.architecture")
    if architecture != "llama":
        raise InputError(f"{path} holds a model of architecture {architecture!r}; only 'llama' is converted")
    config = llama_config(reader)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    build_tokenizer(reader).save_pretrained(folder)

    from safetensors.numpy import save_file

    heads = config.num_attention_heads
    tensors = dequantized_tensors(reader, heads, config.num_key_value_heads or heads)
    # `replacing` for the file's mode: safetensors makes files that only their owner reads.
    with replacing(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})


def llama_config(reader: GGUFReader) -> LlamaConfig:
    """The transformers configuration that the metadata of a Llama GGUF states."""
    from transformers import LlamaConfig

    scaling = _value(reader, "llama.rope.scaling.type", "none")
    if scaling != "none":
        raise InputError(
            f"the GGUF asks for rotary embeddings with {scaling!r} scaling, which is not converted"
        )
    heads = _value(reader, "llama.attention.head_count")
    width = _value(reader, "llama.embedding_length")
    names = {tensor.name for tensor in reader.tensors}
    facts: dict[str, Any] = {
        "vocab_size": len(_value(reader, "tokenizer.ggml.tokens")),
        "hidden_size": width,
        "intermediate_size": _value(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _value(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _value(reader, "llama.attention.head_count_kv", heads),
        "head_dim": _value(reader, "llama.rope.dimension_count", width // heads),
        "max_position_embeddings": _value(reader, "llama.context_length"),
        "rope_theta": _decimal(_value(reader, "llama.rope.freq_base", 10000.0)),
        "rms_norm_eps": _decimal(_value(reader, "llama.attention.layer_norm_rms_epsilon")),
        # The output matrix is written only when it is not the embedding matrix.
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": _value(reader, "tokenizer.ggml.bos_token_id", None),
        "eos_token_id": _value(reader, "tokenizer.ggml.eos_token_id", None),
        "pad_token_id": _value(reader, "tokenizer.ggml.padding_token_id", None),
        "dtype": "float32",
    }
    return LlamaConfig(**facts)


def dequantized_tensors(reader: GGUFReader, heads: int, key_value_heads: int) -> dict[str, np.ndarray]:
    """Every tensor of a Llama GGUF in float32, by name and with the row order of transformers."""
    from gguf.quants import dequantize

    tensors = {}
    for tensor in reader.tensors:
        name = _tensor_name(tensor.name)
        # A copy, because float32 tensors are views of the memory-mapped file.
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if name.endswith("q_proj.weight"):
            values = rotate_half_order(values, heads)
        elif name.endswith("k_proj.weight"):
            values = rotate_half_order(values, key_value_heads)
        tensors[name] = np.ascontiguousarray(values)
    return tensors


def rotate_half_order(
    weight: Float[np.ndarray, "rows columns"], heads: int
) -> Float[np.ndarray, "rows columns"]:
    """Rows of a query or key projection, from the order of a GGUF to that of transformers.

    A GGUF of this architecture rotates neighbouring dimensions (2i, 2i+1) of a head; transformers rotates i
    with i + d/2. Row 2i + j of a head, for j in {0, 1}, therefore becomes row i + j d/2.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def build_tokenizer(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """The byte-level BPE tokenizer that the metadata of a GGUF describes.

    It is built piece by piece, because a GGUF only names its pre-tokenizer and transformers' own reader does
    not know this name: it would split fractions and the spaces before a number in another way.
    """
    from transformers import PreTrainedTokenizerFast

    tokens = _value(reader, "tokenizer.ggml.tokens")
    special = {}
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = _value(reader, f"tokenizer.ggml.{key}_token_id", None)
        if index is not None:
            special[f"{role}_token"] = tokens[index]
    types = _value(reader, "tokenizer.ggml.token_type")
    controls = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_bpe(reader, tokens, types, controls),
        additional_special_tokens=[token for token in controls if token not in special.values()],
        model_max_length=_value(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )
    tokenizer.chat_template = _value(reader, "tokenizer.chat_template", None)
    if len(tokenizer) != len(tokens):
        raise InputError(
            f"the GGUF's tokenizer came out with {len(tokenizer)} tokens instead of {len(tokens)}"
        )
    return tokenizer


def _byte_level_bpe(
    reader: GGUFReader, tokens: list[str], types: list[int], controls: list[str]
) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    model = _value(reader, "tokenizer.ggml.model")
    kind = _value(reader, "tokenizer.ggml.pre", None)
    if (model, kind) != ("gpt2", "smollm"):
        raise InputError(
            f"the GGUF has a {model!r} tokenizer with pre-tokenizer {kind!r}; "
            "only 'gpt2' with 'smollm' is converted"
        )
    if any(_value(reader, f"tokenizer.ggml.add_{end}_token", False) for end in ("bos", "eos")):
        raise InputError("the GGUF's tokenizer adds special tokens by itself, which is not converted")
    if unknown := sorted(set(types) - {_NORMAL, _CONTROL}):
        raise InputError(
            f"the GGUF's tokenizer has tokens of type {unknown}; only normal and control are converted"
        )
    merges = [tuple(merge.split(" ")) for merge in _value(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    # "smollm": every numeral (Unicode category N) stands alone, then the pattern of GPT-2.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in controls])
    return tokenizer


def _tensor_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if kind == "weight" and stem in _GLOBAL_TENSORS:
        return f"{_GLOBAL_TENSORS[stem]}.weight"
    block, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if kind == "weight" and block == "blk" and part in _LAYER_TENSORS:
        return f"model.layers.{layer}.{_LAYER_TENSORS[part]}.weight"
    raise InputError(f"the GGUF holds a tensor {name!r} that a Llama model does not have")


_REQUIRED: Any = object()


def _value(reader: GGUFReader, key: str, default: Any = _REQUIRED) -> Any:
    field = reader.fields.get(key)
    if field is not None:
        return field.contents()
    if default is _REQUIRED:
        raise InputError(f"the GGUF lacks the metadata {key!r}")
    return default


def _decimal(value: float) -> float:
    """The shortest decimal number that a float32 stands for: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))
