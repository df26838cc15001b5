"""The plug-in for transformers: loading, saving, refusing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM

from assay import lm
from assay.errors import InputError
from assay.methods.proteus.config import ProteusConfig
from assay.methods.proteus.integration import register
from assay.methods.proteus.linear import ProteusLinear, proteus_layers

ARCHITECTURES = ("llama", "untied", "qwen2", "gpt2")
# What an own process must do to load a checkpoint: import assay, and nothing of proteus by name.
SCRIPT = """
import sys, torch, assay
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
ids = torch.load(sys.argv[2], weights_only=True)
with torch.no_grad():
    torch.save({"logits": model(ids).logits, "tokens": model.generate(ids, max_new_tokens=4,
    do_sample=False)}, sys.argv[3])
"""


def load(folder, **options):
    return AutoModelForCausalLM.from_pretrained(folder, **options)


@pytest.fixture
def saved(packed_model, tmp_path):
    """A folder with a packed model, and the logits that it had."""

    def save(architecture="llama", **options):
        model = packed_model(architecture, **options)
        folder = tmp_path / architecture
        model.save_pretrained(folder)
        return folder, model

    return save


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"].update(changes)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loading_gives_identical_logits(saved, token_ids, architecture):
    folder, model = saved(architecture)
    loaded = load(folder)
    ids = token_ids(2, 9)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert list(proteus_layers(loaded)) == list(proteus_layers(model))
    assert isinstance(loaded.get_output_embeddings(), nn.Linear)
    assert not loaded.training


@pytest.mark.parametrize(
    "importing", ["import assay\nimport transformers", "import transformers\nimport assay"]
)
def test_a_fresh_process_needs_one_import(saved, token_ids, tmp_path, importing):
    folder, model = saved()
    ids = token_ids(1, 7)
    torch.save(ids, tmp_path / "ids.pt")
    script = importing + SCRIPT
    command = [sys.executable, "-c", script, str(folder), str(tmp_path / "ids.pt"), str(tmp_path / "out.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    with torch.no_grad():
        assert torch.equal(found["logits"], model(ids).logits)
        assert torch.equal(found["tokens"], model.generate(ids, max_new_tokens=4, do_sample=False))


def test_saving_again_gives_the_same_files(saved, tmp_path):
    folder, _ = saved()
    load(folder).save_pretrained(tmp_path / "again")
    first, second = (
        load_file(folder / "model.safetensors"),
        load_file(tmp_path / "again" / "model.safetensors"),
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert json.loads((folder / "config.json").read_text()) == json.loads(
        (tmp_path / "again" / "config.json").read_text()
    )


def test_the_configuration_says_what_the_format_is(saved):
    folder, _ = saved(bits=3)
    facts = json.loads((folder / "config.json").read_text())["quantization_config"]
    expected = {"quant_method": "proteus", "format": 1, "bits": 3, "window": 6, "tile": [16, 16]}
    assert expected.items() <= facts.items()
    assert facts["layout"] == "le-window"
    assert facts["generator"] == "mulbal-v1"
    assert facts["modules_to_not_convert"] == ["lm_head"]


def test_shards(packed_model, token_ids, tmp_path):
    model = packed_model("untied")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(token_ids(1, 5)).logits, model(token_ids(1, 5)).logits)


@pytest.mark.parametrize("device_map", ["auto", "cpu", {"": "cpu"}])
def test_device_map(saved, token_ids, device_map):
    folder, model = saved()
    loaded = load(folder, device_map=device_map)
    ids = token_ids(1, 5)
    with torch.no_grad():
        found = loaded(ids.to(loaded.device)).logits.cpu()
    torch.testing.assert_close(found, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_model_keeps_its_scales(saved, token_ids, dtype):
    folder, model = saved("qwen2")
    loaded = load(folder, dtype=dtype)
    layer = next(iter(proteus_layers(loaded).values()))
    assert (layer.affine.dtype, layer.su.dtype, layer.bias.dtype) == (torch.float32, torch.float16, dtype)
    with torch.no_grad():
        found, expected = loaded(token_ids(1, 6)).logits.float(), model(token_ids(1, 6)).logits
    assert (found - expected).norm() < 0.05 * expected.norm()


def test_scales_in_float32_stay_so(packed_model, tmp_path):
    model = packed_model()
    layer = next(iter(proteus_layers(model).values()))
    layer.sv = layer.sv.float() * 1e6
    model.save_pretrained(tmp_path)
    loaded = next(iter(proteus_layers(load(tmp_path, dtype=torch.bfloat16)).values()))
    assert loaded.sv.dtype == torch.float32
    assert torch.equal(loaded.sv, layer.sv)


def test_random_orthogonal_transforms_are_loaded(saved, token_ids):
    folder, model = saved(rht="orthogonal")
    with torch.no_grad():
        assert torch.equal(load(folder)(token_ids(1, 5)).logits, model(token_ids(1, 5)).logits)


def test_the_base_model_can_be_loaded_alone(saved, token_ids):
    folder, model = saved()
    base = AutoModel.from_pretrained(folder)
    assert len(proteus_layers(base)) == len(proteus_layers(model))
    with torch.no_grad():
        found = base(token_ids(1, 5)).last_hidden_state
        assert torch.equal(found, model.model(token_ids(1, 5)).last_hidden_state)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_dequantize_gives_an_ordinary_model(saved, token_ids, tmp_path, architecture):
    folder, model = saved(architecture)
    dense = load(folder).dequantize()
    assert not proteus_layers(dense)
    dense.save_pretrained(tmp_path / "dense")
    assert "quantization_config" not in json.loads((tmp_path / "dense" / "config.json").read_text())
    ids = token_ids(1, 6)
    with torch.no_grad():
        torch.testing.assert_close(
            load(tmp_path / "dense")(ids).logits, model(ids).logits, rtol=1e-3, atol=1e-3
        )


def test_packed_layers_take_a_quarter_byte_a_weight(saved):
    folder, model = saved("untied")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        for name, layer in proteus_layers(model).items():
            stored = [file.get_tensor(f"{name}.{key}") for key in layer.state_dict()]
            bits = 8 * sum(tensor.numel() * tensor.element_size() for tensor in stored)
            m, n = layer.out_features, layer.in_features
            assert bits / (m * n) == pytest.approx(2 + 16 * (m + n) / (m * n) + 320 / (m * n))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, r"has proteus format 2; this assay reads format 1: upgrade assay"),
        ({"generator": "mulbal-v9"}, r"uses generators 'mulbal-v9'; this assay knows 'mulbal-v1'"),
        ({"layout": "be"}, r"layout 'be' are not supported"),
        ({"bits": 5}, r"bits=5 is not supported; use 2, 3, 4"),
        ({"window": 40}, r"window=40 is not supported; use 4 to 16 bits"),
        ({"window": "many"}, r"window='many' is not a whole number"),
        ({"rht": "fourier"}, r"rht='fourier' is not a kind of transform"),
        ({"novelty": 1}, r"has unknown fields novelty"),
        ({"bits": 3}, r"q_proj\.qweight has shape \[3, 3, 64\] in the checkpoint, not \[3, 3, 96\]"),
        ({"modules_to_not_convert": []}, r"the checkpoint lacks lm_head\.qweight"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(saved, changes, message):
    folder, _ = saved("untied")
    edit_config(folder, **changes)
    with pytest.raises(InputError, match=message):
        load(folder)


def test_a_truncated_file_is_refused(saved):
    folder, _ = saved()
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"model\.safetensors is damaged or not complete .*: copy it again"):
        load(folder)


@pytest.mark.parametrize("change", ["shape", "type", "missing"])
def test_damaged_tensors_are_refused(saved, change):
    folder, _ = saved()
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("qweight"))
    if change == "missing":
        del tensors[name]
        message = "the checkpoint lacks"
    elif change == "shape":
        tensors[name] = tensors[name][:, :, :-1].contiguous()
        message = "has shape"
    else:
        tensors[name] = tensors[name].to(torch.int32)
        message = "is of type torch.int32 in the checkpoint, not torch.uint8"
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=message):
        load(folder)


def test_quantizing_while_loading_is_refused(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="does require the model to be pre-quantized"):
        load(tmp_path, quantization_config=ProteusConfig())


def test_registering_twice_does_nothing():
    register()
    register()


def test_assay_lm_loads_it(saved, byte_tokenizer):
    folder, _ = saved()
    byte_tokenizer.save_pretrained(folder)
    model, _ = lm.load(folder, device="cpu")
    assert any(isinstance(module, ProteusLinear) for module in model.modules())
