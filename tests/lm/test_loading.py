from __future__ import annotations

import json

import pytest
import torch

from assay.errors import InputError
from assay.lm import load, loading


@pytest.fixture
def saved(tmp_path, tiny_model, byte_tokenizer):
    """A folder as `save_pretrained` writes it."""
    folder = tmp_path / "model"
    tiny_model("llama").save_pretrained(folder)
    byte_tokenizer(bos=True).save_pretrained(folder)
    return folder


def test_a_folder_gives_the_saved_model_and_tokenizer(saved, tiny_model):
    model, tokenizer = load(saved, device="cpu")
    ids = torch.tensor([tokenizer("A test.")["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, tiny_model("llama")(ids).logits, rtol=0, atol=0)
    assert not model.training
    assert tokenizer.decode(ids[0]) == "<s>A test."
    assert load(str(saved))[0].config.model_type == "llama"


def test_dtype_is_the_checkpoints_own_unless_given(saved, tiny_model):
    assert load(saved, device="cpu")[0].dtype == torch.float32
    assert load(saved, device="cpu", dtype="bfloat16")[0].dtype == torch.bfloat16
    assert load(saved, device="cpu", dtype=torch.float64)[0].dtype == torch.float64
    tiny_model("llama").half().save_pretrained(saved)
    assert load(saved, device="cpu")[0].dtype == torch.float16
    for wrong in ("float31", "int8", "nn", torch.int64):
        with pytest.raises(InputError, match="is not a floating-point type"):
            load(saved, dtype=wrong)


def test_device_must_exist(saved):
    for wrong in ("quantum", "cuda:99"):
        with pytest.raises(InputError, match=f"device '{wrong}' cannot be used here: [^\n]*$"):
            load(saved, device=wrong)


@pytest.mark.parametrize(
    "source", ["./no/such/folder", "/no/such", "no/such/folder", "~/no-such-folder", "a b"]
)
def test_a_path_that_does_not_exist(source):
    with pytest.raises(InputError, match=r"^[^\n]*does not exist; pass a folder[^\n]*'embedded'$"):
        load(source)


def test_a_path_that_is_a_file(tmp_path, monkeypatch):
    (tmp_path / "weights").write_text("no model")
    with pytest.raises(InputError, match="weights is a file; pass a folder"):
        load(tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="weights is a file; pass a folder"):
        load("weights")


@pytest.mark.parametrize("source", ["gpt2", "HuggingFaceTB/SmolLM2-135M"])
def test_a_hub_id_offline(source):
    with pytest.raises(
        InputError, match=rf"^{source} is neither a folder here nor in [^\n]*HF_HUB_OFFLINE is set"
    ):
        load(source)


def test_folders_that_hold_no_model(saved, tmp_path):
    with pytest.raises(InputError, match=r"no causal language model can be loaded from [^\n]*$"):
        load(tmp_path)
    (saved / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"not a valid JSON file[^\n]*$"):
        load(saved)


def test_pickled_weights_are_refused(saved, tiny_model):
    (saved / "model.safetensors").unlink()
    torch.save(tiny_model("llama").state_dict(), saved / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"no file named model\.safetensors"):
        load(saved)


def test_code_of_a_checkpoint_is_not_run(saved):
    config = json.loads((saved / "config.json").read_text())
    names = {"AutoConfig": "strange.Config", "AutoModelForCausalLM": "strange.Model"}
    (saved / "config.json").write_text(json.dumps(config | {"model_type": "strange", "auto_map": names}))
    (saved / "strange.py").write_text("raise SystemExit('executed')")
    with pytest.raises(InputError, match="no causal language model"):
        load(saved)


def test_damaged_and_incomplete_weights_are_refused(saved):
    from safetensors.torch import load_file, save_file

    path = saved / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(
        InputError, match=r"lack 1 tensors of the model, first model\.layers\.1\.mlp\.up_proj"
    ):
        load(saved)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="no causal language model can be loaded"):
        load(saved)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2", "gemma"])
def test_a_folder_without_tokenizer_is_refused(tmp_path, tiny_model, architecture):
    tiny_model(architecture).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"tokenizer"):
        load(tmp_path)


def test_a_converted_folder_that_was_changed_is_refused(saved, monkeypatch):
    record = {p.name: {"size": p.stat().st_size, "sha256": loading._sha256(p)} for p in saved.iterdir()}
    (saved / "checksums.json").write_text(json.dumps(record))
    monkeypatch.setattr(loading, "embedded_folder", lambda: saved)
    load("embedded", device="cpu")
    template = saved / "tokenizer_config.json"
    original = template.read_text()
    template.write_text(original.replace("s", "z", 1))
    with pytest.raises(
        InputError, match=r"is damaged \(the content of its tokenizer_config\.json .*delete that"
    ):
        load("embedded")
    template.write_text(original)
    with (saved / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match=r"its model\.safetensors has \d+ bytes instead of \d+"):
        load("embedded")
    (saved / "checksums.json").unlink()
    with pytest.raises(InputError, match="is damaged"):
        load("embedded")


def test_progress_bars_are_as_they_were(saved):
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    load(saved)
    assert logging.is_progress_bar_enabled() == enabled
