from __future__ import annotations

import json
import struct
import unicodedata
from itertools import pairwise

import gguf
import numpy as np
import pytest
import regex
import torch
from gguf import GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from assay.errors import InputError
from assay.lm import load
from assay.lm.gguf_conversion import convert_gguf, rotate_half_order

# --- the tokenizer of the embedded model, against a byte-level BPE written from the GGUF's metadata alone


def spell_bytes() -> dict[int, str]:
    """The letter of each byte in a GPT-2 vocabulary: itself when printable, else the next after 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


class Oracle:
    def __init__(self, reader: GGUFReader) -> None:
        self.tokens = reader.fields["tokenizer.ggml.tokens"].contents()
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        types = reader.fields["tokenizer.ggml.token_type"].contents()
        self.special = [token for token, kind in zip(self.tokens, types, strict=True) if kind == 3]
        merges = reader.fields["tokenizer.ggml.merges"].contents()
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.letters = spell_bytes()
        self.words = regex.compile(
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
        )

    def encode(self, content: str) -> list[int]:
        ids = []
        pieces = regex.split("(" + "|".join(map(regex.escape, self.special)) + ")", content)
        for piece in pieces:
            if piece in self.special:
                ids.append(self.ids[piece])
                continue
            for run in regex.split(r"(\p{N})", piece):
                for word in self.words.findall(run):
                    ids.extend(self.merge(word))
        return ids

    def merge(self, word: str) -> list[int]:
        parts = [self.letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            ranked = [(self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(pairwise(parts))]
            rank, i = min(ranked)
            if rank == 1 << 30:
                break
            parts[i : i + 2] = ["".join(parts[i : i + 2])]
        return [self.ids[part] for part in parts]


@pytest.fixture(scope="session")
def oracle(gguf_reader) -> Oracle:
    assert gguf_reader.fields["tokenizer.ggml.model"].contents() == "gpt2"
    assert gguf_reader.fields["tokenizer.ggml.pre"].contents() == "smollm"
    return Oracle(gguf_reader)


SNIPPETS = [
    "Hello, world!",
    " leading and trailing ",
    "don't they'll WE'RE I'd it's 'tis",
    "In 1984 there were 12,345.67 of them; 2nd ½ ² Ⅷ ٣٤",
    "def f(x):\n\treturn x**2  # comment\n\n\n    y = [1, 2]\r\n",
    "   \n \n\t\t  x\u00a0y\u3000z\u2028w ",
    "naïve façade — “quoted” … Ünïcödé e\u0301",
    "日本語のテキスト 한국어 العربية हिन्दी ไทย",
    "👍🏽 👩‍👩‍👧‍👦 🏴\U000e0067\U000e0062\U000e007f 𝔘𝔫𝔦",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><repo_name>x<file_sep>",
    "<|im_start|> <|im_end |> <|IM_END|> <|im_start|><|im_start|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + " " * 40 + "!" * 20,
    "\x00\x01\x7f\x80\uffff\ufeff",
    "",
]
# What the model's vocabulary lacks: these control characters, and the bytes that start planes 4 to 11.
LACKING = "\x04\x06\x13\x14\x16\x1d"


@pytest.mark.parametrize("content", SNIPPETS)
def test_tokens_are_those_of_the_gguf(embedded, oracle, content):
    tokenizer = embedded[1]
    ids = tokenizer(content)["input_ids"]
    assert ids == oracle.encode(content)
    assert tokenizer.decode(ids) == content


# Characters whose category is that of Unicode 3.2: libraries with other versions of Unicode agree on them.
_STABLE = st.characters(exclude_categories=["Cs", "Cn"], exclude_characters=LACKING).filter(
    lambda c: unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c) and not 0x40000 <= ord(c) < 0xC0000
)
_TEXTS = st.lists(
    st.text(_STABLE, max_size=8)
    | st.text("aet hinos'\n\t 0123,.()_=", max_size=12)
    | st.sampled_from(["<|im_start|>", "<|im_end|>", " the", "  ", "\n\n", "'ll", "ing", "١", "é"]),
    max_size=8,
).map("".join)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(content=_TEXTS)
def test_tokens_of_any_text_are_those_of_the_gguf(embedded, oracle, content):
    tokenizer = embedded[1]
    ids = tokenizer(content)["input_ids"]
    assert ids == oracle.encode(content)
    assert tokenizer.decode(ids) == content


def test_bytes_without_a_token_are_dropped(embedded, oracle):
    tokenizer = embedded[1]
    assert [c for c in map(chr, range(128)) if oracle.letters[ord(c)] not in oracle.ids] == list(LACKING)
    assert tokenizer.decode(tokenizer(f"a {LACKING} b")["input_ids"]) == "a  b"


def test_vocabulary_and_special_tokens_are_those_of_the_gguf(embedded, gguf_reader, oracle):
    tokenizer = embedded[1]
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == oracle.tokens
    for role in ("bos", "eos", "pad", "unk"):
        key = {"pad": "padding", "unk": "unknown"}.get(role, role)
        stated = gguf_reader.fields[f"tokenizer.ggml.{key}_token_id"].contents()
        assert getattr(tokenizer, f"{role}_token_id") == stated
    assert sorted(tokenizer.all_special_tokens) == sorted(oracle.special)
    assert tokenizer.decode(tokenizer("a<|im_end|>b")["input_ids"], skip_special_tokens=True) == "ab"
    assert tokenizer.model_max_length == gguf_reader.fields["llama.context_length"].contents()


def test_chat_template_is_that_of_the_gguf(embedded, gguf_reader, oracle):
    tokenizer = embedded[1]
    assert tokenizer.chat_template == gguf_reader.fields["tokenizer.chat_template"].contents()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is 10 > 9?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nIs 10 > 9?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids == oracle.encode(expected)


# --- its weights


def test_a_block_of_four_bits_is_dequantised_by_hand(gguf_reader):
    # Q4_1: 32 weights as two float16, scale and minimum, then 16 bytes; byte j holds weights j and 16 + j.
    tensor = next(t for t in gguf_reader.tensors if t.name == "blk.3.ffn_down.weight")
    blocks = bytes(tensor.data[5])
    scale, minimum = struct.unpack("<ee", blocks[20:24])
    packed = blocks[24:40]
    expected = [scale * (byte & 15) + minimum for byte in packed] + [
        scale * (byte >> 4) + minimum for byte in packed
    ]
    dequantised = gguf.quants.dequantize(tensor.data, tensor.tensor_type)[5, 32:64]
    np.testing.assert_allclose(dequantised, np.float32(expected), rtol=1e-6)


def test_weights_are_the_dequantised_tensors_of_the_gguf(embedded, gguf_reader):
    weights = embedded[0].state_dict()
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "blk.17.attn_norm": "model.layers.17.input_layernorm",
        "blk.17.ffn_norm": "model.layers.17.post_attention_layernorm",
        "blk.29.attn_v": "model.layers.29.self_attn.v_proj",
        "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
        "blk.8.ffn_gate": "model.layers.8.mlp.gate_proj",
        "blk.8.ffn_up": "model.layers.8.mlp.up_proj",
        "blk.8.ffn_down": "model.layers.8.mlp.down_proj",
        "blk.5.attn_q": "model.layers.5.self_attn.q_proj",
        "blk.5.attn_k": "model.layers.5.self_attn.k_proj",
    }
    tensors = {tensor.name.removesuffix(".weight"): tensor for tensor in gguf_reader.tensors}
    for theirs, ours in names.items():
        expected = gguf.quants.dequantize(tensors[theirs].data, tensors[theirs].tensor_type)
        if theirs.endswith(("attn_q", "attn_k")):
            # Dimensions i and i + 32 of a head are rotated together; the file keeps them side by side.
            rows = [64 * (r // 64) + 2 * (r % 32) + (r % 64) // 32 for r in range(len(expected))]
            expected = expected[rows]
        np.testing.assert_array_equal(weights[f"{ours}.weight"].numpy(), expected, err_msg=ours)
    assert weights["lm_head.weight"].data_ptr() == weights["model.embed_tokens.weight"].data_ptr()
    assert len(weights) == len(tensors) + 1


def test_configuration_is_that_of_the_gguf(embedded, gguf_reader):
    config, fields = embedded[0].config, gguf_reader.fields
    stated = {
        "num_hidden_layers": "block_count",
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "rope.dimension_count",
        "max_position_embeddings": "context_length",
        "vocab_size": "vocab_size",
    }
    for ours, theirs in stated.items():
        assert getattr(config, ours) == fields[f"llama.{theirs}"].contents(), ours
    assert config.rms_norm_eps == 1e-5
    assert config.rms_norm_eps == pytest.approx(
        fields["llama.attention.layer_norm_rms_epsilon"].contents(), rel=1e-7
    )
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 100000.0}
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    assert config.tie_word_embeddings
    assert not config.attention_bias
    assert config.hidden_act == "silu"


def test_the_embedded_model_answers_in_english(embedded):
    model, tokenizer = embedded
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    output = model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(output) == "The capital of France is Paris.<|im_end|>"


# --- the converter on a GGUF written here


def test_row_order_against_its_definition():
    weight = np.arange(24, dtype=np.float32).reshape(12, 2)  # 2 heads of 6 rows
    expected = np.empty_like(weight)
    for head in range(2):
        for i in range(3):
            for j in range(2):
                expected[6 * head + i + 3 * j] = weight[6 * head + 2 * i + j]
    np.testing.assert_array_equal(rotate_half_order(weight, 2), expected)


TOKENS = ["<e>", *sorted(spell_bytes().values()), "th", "the"]


def write_gguf(
    path, model: LlamaForCausalLM, *, change=lambda writer: None, pre="smollm", architecture="llama"
):
    """The GGUF of a small Llama, its query and key rows put side by side as the format wants them."""
    config = model.config
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(500.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 1))
    writer.add_token_merges(["t h", "th e"])
    writer.add_eos_token_id(0)
    change(writer)
    renamed = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    renamed |= {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
    renamed |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    renamed |= {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    for name, tensor in model.state_dict().items():
        parts = name.split(".")
        values = tensor.numpy()
        if parts[-2] in ("q_proj", "k_proj"):
            rows, half = len(values), 8 // 2
            values = values[[8 * (r // 8) + half * (r % 2) + (r % 8) // 2 for r in range(rows)]]
        stem = renamed[parts[-2]]
        writer.add_tensor(f"blk.{parts[2]}.{stem}.weight" if "layers" in parts else f"{stem}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def small_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        rope_theta=500.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            parameter.data.normal_(0.1 if parameter.dim() == 1 else 0.0, 0.4)
    return model.eval()


def test_a_converted_model_computes_what_the_original_computes(small_llama, tmp_path):
    write_gguf(tmp_path / "small.gguf", small_llama)
    folder = tmp_path / "converted"
    folder.mkdir()
    convert_gguf(tmp_path / "small.gguf", folder)
    model, tokenizer = load(folder, device="cpu")
    ids = torch.randint(0, len(TOKENS), (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, converted = small_llama(ids).logits, model(ids).logits
    torch.testing.assert_close(converted, expected, rtol=0, atol=0)
    assert not model.config.tie_word_embeddings
    assert "lm_head.weight" in load_file(folder / "model.safetensors")
    assert tokenizer.tokenize("<e>the 10") == ["<e>", "the", "Ġ", "1", "0"]
    assert tokenizer.bos_token is None
    assert tokenizer.chat_template is None
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert (folder / "model.safetensors").stat().st_mode & 0o044 == (
        folder / "config.json"
    ).stat().st_mode & 0o044


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "gemma3"}, "architecture 'gemma3'; only 'llama' is converted"),
        ({"pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe'; only 'gpt2' with 'smollm'"),
        ({"change": lambda w: w.add_add_bos_token(True)}, "adds special tokens by itself"),
        ({"change": lambda w: w.add_string("llama.rope.scaling.type", "yarn")}, "with 'yarn' scaling"),
        (
            {"change": lambda w: w.add_tensor("rope_freqs.weight", np.ones(4, np.float32))},
            "a tensor 'rope_freqs.weight' that a Llama model does not have",
        ),
    ],
)
def test_what_the_converter_does_not_know_is_refused(small_llama, tmp_path, options, message):
    write_gguf(tmp_path / "odd.gguf", small_llama, **options)
    with pytest.raises(InputError, match=message):
        convert_gguf(tmp_path / "odd.gguf", tmp_path)
