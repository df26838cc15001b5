"""The verbs of `assay proteus`, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from assay.cli import main
from assay.methods.proteus.linear import proteus_layers


def quantize(*more, **changes):
    """The command that quantizes the tiny model, some of its options changed."""
    options = {"-o": "q", "--window": 6, "--calib": "text.txt", "--calib-seqs": 12, "--seq-len": 32} | changes
    return ("proteus", "quantize", "model", *more, *(part for option in options.items() for part in option))


QUANTIZE = quantize()
PLAIN = quantize("--quiet", **{"--distill": "none"})


@pytest.fixture
def assay(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder of its own; what it printed, or its one line of complaint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        assert (end.value.code or 0) == code, err
        if code == 2:
            assert err.count("\n") == 1, err
            return err
        return out

    return run


@pytest.fixture
def model(tiny_model, byte_tokenizer, tmp_path):
    """A folder with a tiny model, a calibration text, and a quantized copy of another."""
    tiny_model("untied").save_pretrained(tmp_path / "model")
    byte_tokenizer.save_pretrained(tmp_path / "model")
    lines = [f"Line {i}: {i * i} is the square of {i}, and {i + 1} comes next." for i in range(120)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    return tmp_path / "model"


@pytest.fixture
def packed(packed_model, byte_tokenizer, tmp_path):
    packed_model("untied").save_pretrained(tmp_path / "packed")
    byte_tokenizer.save_pretrained(tmp_path / "packed")
    return tmp_path / "packed"


def test_the_verbs_are_imported_without_heavy_libraries():
    statement = "import sys, assay.methods.proteus, assay.methods.proteus.commands"
    script = f"{statement}; print({{'torch', 'numpy', 'transformers'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_quantize_inspect_eval_export(assay, model, tmp_path):
    printed = assay(*QUANTIZE)
    assert "14 modules" in printed
    assert "Saved to q; next: assay proteus inspect q" in printed
    assert "the original's is" in printed
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "q")
    assert len(proteus_layers(loaded)) == 14

    table = assay("proteus", "inspect", "q", "--verify")
    assert "q_proj" in table
    assert "All 14 packed modules are what was written." in table
    assert assay("proteus", "inspect", "q", "--all").count("model.layers.1") == 7
    facts = json.loads(assay("proteus", "inspect", "q", "--json"))
    assert facts["packed_weights"] == 2 * (4 * 48 * 48 + 3 * 48 * 80)
    assert 2 < facts["bits_per_weight"] < 3

    scores = json.loads(
        assay("proteus", "eval", "q", "--text", "text.txt", "--teacher", "model", "--window", 64, "--json")
    )
    assert scores["tokens"] % 63 == 0
    assert 0 < scores["divergence"] < 2
    alone = assay("proteus", "eval", "q", "--text", "text.txt", "--window", 64)
    assert f"perplexity {scores['perplexity']:.4g}" in alone

    assert "Dense model in dense" in assay(
        "proteus", "export-dense", "q", "-o", "dense", "--dtype", "float32"
    )
    dense = AutoModelForCausalLM.from_pretrained(tmp_path / "dense")
    ids = torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(dense(ids).logits, loaded(ids).logits, rtol=1e-3, atol=1e-3)
    assert "name a folder that does not" in assay("proteus", "export-dense", "q", "-o", "dense", code=2)


def test_quantize_without_distillation_and_compensation(assay, model):
    assay(*PLAIN, "--no-compensate", "--pool", "single")
    facts = json.loads(assay("proteus", "inspect", "q", "--json"))
    assert facts["config"]["distill"] is None
    assert facts["config"]["compensate"] is False
    assert {module["candidate"] for module in facts["modules"]} == {0}


def test_a_bad_result_ends_with_another_exit_code(assay, model, tmp_path):
    limits = ("--accept-divergence", 1e-6, "--accept-perplexity-ratio", 1e-6)
    printed = assay(*QUANTIZE, "--distill", "none", *limits, code=3)
    assert "Not acceptable: perplexity" in printed
    assert "The model is in q.suspect" in printed
    assert not (tmp_path / "q").exists()
    assert "Not acceptable when it was made" in assay("proteus", "inspect", "q.suspect")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--calib", "no-such.txt", "no-such.txt is no file; pass a text file or one of"),
        ("--calib", "model/model.safetensors", "is not UTF-8 text"),
        ("--calib", "short.txt", "short.txt: the calibration text has"),
        ("--calib-seqs", 0, "0 calibration sequences cannot come from 1 texts"),
        ("--seq-len", 200, "calibration sequences of 200 tokens are longer than the model's 128 positions"),
        ("--window", 20, "window=20 is not supported; use 4 to 16 bits"),
        ("--damp", 2, "damp=2.0 is out of range"),
        ("--workers", 0, "--workers 0: at least 1 is needed"),
        ("--keep", "router", "names 'router', which the model does not have"),
        ("--bits", 5, "--bits"),
        ("-o", "text.txt", "text.txt is a file; name a folder"),
        ("-o", "model", "model exists and was not written by assay"),
    ],
)
def test_mistakes_end_in_one_line(assay, model, option, value, message, tmp_path):
    (tmp_path / "short.txt").write_text("Too short.\n\nMuch too short.\n")
    assert message in assay(*quantize(**{option: value}), code=2)
    assert not (tmp_path / "q").exists()


def test_models_that_are_none(assay, tmp_path):
    assert "does not exist" in assay("proteus", "quantize", "no/such/model", "-o", "q", code=2)
    (tmp_path / "empty").mkdir()
    assert "no causal language model can be loaded" in assay(
        "proteus", "quantize", "empty", "-o", "q", code=2
    )


def test_folders_that_are_not_ours(assay, model, tmp_path):
    for verb in (("inspect", "model"), ("bench", "model"), ("eval", "model", "--text", "text.txt")):
        assert "model is not quantized by proteus (quant_method None)" in assay("proteus", *verb, code=2)
    assert "has no config.json" in assay("proteus", "inspect", tmp_path, code=2)


def test_inspect_works_without_a_report(assay, packed):
    table = assay("proteus", "inspect", "packed")
    assert "not known" in table
    assert "packed has no checksums" in assay("proteus", "inspect", "packed", "--verify", code=2)


def test_flipped_bits_are_found(assay, model, tmp_path):
    assay(*PLAIN)
    path = tmp_path / "q" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.up_proj.qweight"][0, 0, 0] ^= 4
    save_file(tensors, path, metadata={"format": "pt"})
    complaint = assay("proteus", "inspect", "q", "--verify", code=2)
    assert "1 packed modules of q are not what was written, first model.layers.1.mlp.up_proj" in complaint
    del tensors["model.layers.1.mlp.up_proj.qweight"]
    save_file(tensors, path, metadata={"format": "pt"})
    assert "q lacks model.layers.1.mlp.up_proj" in assay("proteus", "inspect", "q", code=2)
    path.write_bytes(path.read_bytes()[:200])
    assert "is damaged or not complete" in assay("proteus", "inspect", "q", code=2)
    (tmp_path / "q" / "proteus-report.json").write_text("{}")
    assert "damaged" in assay("proteus", "inspect", "q", code=2)


def test_bench(assay, packed):
    printed = assay("proteus", "bench", "packed", "--tokens", 2, "--repetitions", 2)
    assert "80 x 48" in printed
    assert "tokens a second" in printed
    facts = json.loads(assay("proteus", "bench", "packed", "--tokens", 2, "--repetitions", 2, "--json"))
    assert facts["layers"][0]["dense_bytes"] == 4 * 48 * 48
    assert facts["tokens_per_second"] > 0
    assert "must be at least 1" in assay("proteus", "bench", "packed", "--tokens", 0, code=2)


def test_eval_refuses_another_vocabulary(assay, model, packed, tiny_model, tmp_path):
    tokenizer = tmp_path / "packed" / "tokenizer.json"
    other = tmp_path / "other"
    tiny_model("untied").save_pretrained(other)
    for path in (tmp_path / "packed").glob("tokenizer*"):
        (other / path.name).write_text(path.read_text().replace("<s>", "<t>"))
    assert tokenizer.exists()
    arguments = ("proteus", "eval", "packed", "--text", "text.txt", "--window", 32, "--teacher", "other")
    assert "other has another tokenizer than packed" in assay(*arguments, code=2)
    assert "at least 2 tokens" in assay(
        "proteus", "eval", "packed", "--text", "text.txt", "--window", 1, code=2
    )


@pytest.mark.slow
def test_vet_generators(assay, tmp_path):
    printed = assay("proteus", "vet-generators", "--window", 6, "--candidates", 30, "-o", "report.json")
    assert "of 30 candidates passed the thresholds" in printed
    assert json.loads((tmp_path / "report.json").read_text())["window"] == 6


@pytest.mark.slow
def test_the_embedded_model_speaks_english_in_2_bits(assay, tmp_path):
    assay("proteus", "quantize", "embedded", "-o", "q", "--quiet")
    scores = json.loads(assay("proteus", "inspect", "q", "--json"))["comparison"]
    assert scores["perplexity"] < 3 * scores["reference_perplexity"]
