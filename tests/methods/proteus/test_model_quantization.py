"""Whole (tiny) models: the artifact, resumption, workers, and everything that is refused before any work."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from assay.errors import InputError
from assay.lm import capture
from assay.methods.proteus import model_quantization as module
from assay.methods.proteus.compensation import proxy_error
from assay.methods.proteus.config import ProteusConfig
from assay.methods.proteus.decoder import linear_modules, linear_weight
from assay.methods.proteus.export import inspect_checkpoint
from assay.methods.proteus.job import job_folder, open_job
from assay.methods.proteus.linear import proteus_layers
from assay.methods.proteus.model_quantization import Conduct, quantize_model
from assay.methods.proteus.report import Acceptable, read_report

CONFIG = {"window": 6, "seed": 1}


@pytest.fixture
def quantized(tiny_model, token_ids, tmp_path):
    """Quantize a tiny model into a folder with a name, and return the folder and the report."""

    def run(
        name="q",
        architecture="llama",
        held_out=None,
        on_progress=None,
        acceptable=None,
        conduct=None,
        **config,
    ):
        report = quantize_model(
            tiny_model(architecture),
            None,
            ProteusConfig(**(CONFIG | config)),
            calibration=token_ids(8, 24),
            out=tmp_path / name,
            held_out=held_out,
            acceptable=acceptable,
            conduct=Conduct(**({"workers": 1} | (conduct or {}))),
            on_progress=on_progress,
        )
        return tmp_path / name, report

    return run


def packed_bytes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}


@pytest.mark.parametrize("architecture", ["llama", "untied", "qwen2", "gpt2"])
def test_a_quantized_model_is_near_the_original(quantized, tiny_model, token_ids, architecture):
    folder, report = quantized(architecture=architecture, bits=4, window=8, held_out=token_ids(2, 24, seed=9))
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    original = tiny_model(architecture)
    layers = proteus_layers(loaded)
    assert len(layers) == len(report.modules) == len(linear_modules(original)) - 1
    # 4 bits leave about a sixteenth of a percent of a Gaussian's variance; these layers are tiny.
    for name, layer in layers.items():
        weight = linear_weight(original.get_submodule(name)).detach()
        assert proxy_error(weight, layer.dequantize(), torch.eye(weight.shape[1])) < 0.05, name
    assert report.comparison.divergence < 0.1
    ids = token_ids(1, 24, seed=3)
    with torch.no_grad():
        found, expected = loaded(ids).logits, original(ids).logits
    assert (found - expected).norm() < 0.35 * expected.norm()


def test_a_bias_that_is_there_keeps_the_mean_output(quantized, tiny_model, token_ids):
    folder, _ = quantized("q", "qwen2")
    path = "model.layers.0.self_attn.q_proj"
    means = []
    for model in (tiny_model("qwen2"), AutoModelForCausalLM.from_pretrained(folder)):
        with capture(model, path) as outputs, torch.no_grad():
            model(token_ids(8, 24))
        means.append(outputs[path][0].flatten(0, 1).mean(0))
    assert (means[0] - means[1]).norm() < 2e-3 * means[0].norm()


def test_the_original_is_not_changed(quantized, tiny_model, token_ids):
    model = tiny_model("qwen2")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modules = dict(model.named_modules())
    quantized(architecture="qwen2", distill="both")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert dict(model.named_modules()) == modules
    assert not hasattr(model.config, "quantization_config")


def test_the_report(quantized, token_ids):
    seen = []
    folder, report = quantized(
        held_out=token_ids(2, 24, seed=9), on_progress=lambda *event: seen.append(event)
    )
    facts = read_report(folder)
    assert facts["config"]["window"] == 6
    assert facts["calibration"] == {"sequences": 8, "tokens": 192}
    assert facts["skipped"] == {"lm_head": "outside the decoder blocks"}
    assert facts["weights"] == seen[-1][0] == seen[-1][1] == report.weights
    assert len(seen) == len(facts["modules"]) == 14
    for record in facts["modules"]:
        assert 0 < record["proxy_error_compensated"] <= record["proxy_error"] < 0.3
        assert 0 <= record["candidate"] < 8
        assert record["flags"] == []
    assert facts["comparison"]["tokens"] == 46
    assert facts["bits_per_weight"] == pytest.approx(inspect_checkpoint(folder)["bits_per_weight"])
    assert not job_folder(folder).exists()


def test_bits_a_weight_from_the_file_size(tmp_path, token_ids):
    # Acceptance check 12: within one percent of 2 + 16 (m + n) / mn + 320 / mn, everything else subtracted.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {
            "hidden_size": 192,
            "intermediate_size": 192,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        }
        config = LlamaConfig(**shape, num_hidden_layers=1, vocab_size=256, tie_word_embeddings=True)
        model = AutoModelForCausalLM.from_config(config).eval()
    quantize_model(model, None, ProteusConfig(window=4), calibration=token_ids(4, 64), out=tmp_path / "q")
    size = (tmp_path / "q" / "model.safetensors").stat().st_size
    rest = 4 * sum(p.numel() for name, p in model.named_parameters() if "proj" not in name)
    with (tmp_path / "q" / "model.safetensors").open("rb") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
    weights = 7 * 192 * 192
    formula = 2 + 16 * 384 / 192**2 + 320 / 192**2
    assert 8 * (size - rest - header) / weights == pytest.approx(formula, rel=0.01)


def test_the_result_does_not_depend_on_the_workers(quantized):
    # Acceptance check 15.
    first, _ = quantized("one", distill="block")
    second, _ = quantized("two", distill="block", conduct={"workers": 2})
    assert packed_bytes(first) == packed_bytes(second)


def test_another_seed_gives_another_artifact(quantized):
    first, _ = quantized("one")
    second, _ = quantized("two", seed=2)
    assert packed_bytes(first) != packed_bytes(second)


@pytest.mark.slow
def test_ray_gives_the_same_bytes(quantized):
    pytest.importorskip("ray")
    first, _ = quantized("one", distill="block")
    second, _ = quantized("two", distill="block", conduct={"cluster": "local", "workers": 2})
    assert packed_bytes(first) == packed_bytes(second)


def test_a_bad_cluster_address_is_refused(quantized):
    pytest.importorskip("ray")
    with pytest.raises(InputError, match="no Ray cluster at 'nowhere'"):
        quantized(conduct={"cluster": "nowhere"})


class _Killed(Exception):
    pass


@pytest.mark.parametrize("finished", [1, 7, 9])
def test_a_killed_run_goes_on_to_the_same_bytes(quantized, monkeypatch, finished):
    whole, _ = quantized("whole", distill="block")
    done = []

    def kill(*event):
        done.append(event)
        if len(done) == finished:
            raise _Killed

    with pytest.raises(_Killed):
        quantized("parts", distill="block", on_progress=kill)
    folder = whole.with_name("parts")
    assert not folder.exists()
    with pytest.raises(InputError, match=r"parts\.job holds an unfinished job: go on with --resume"):
        quantized("parts", distill="block")
    encoded = []
    original = module.quantize_layer

    def counting(*arguments, **keywords):
        encoded.append(keywords["name"])
        return original(*arguments, **keywords)

    monkeypatch.setattr(module, "quantize_layer", counting)
    _, report = quantized("parts", distill="block", conduct={"resume": True})
    assert len(encoded) == 14 - finished
    assert len(report.modules) == 14
    assert packed_bytes(folder) == packed_bytes(whole)
    assert not job_folder(folder).exists()


def test_a_killed_distillation_is_resumed(quantized, monkeypatch):
    whole, _ = quantized("whole", distill="block")
    tune, calls = module.distill_block, []

    def kill(*arguments, **keywords):
        calls.append(keywords)
        if len(calls) == 2:
            raise _Killed
        return tune(*arguments, **keywords)

    monkeypatch.setattr(module, "distill_block", kill)
    with pytest.raises(_Killed):
        quantized("parts", distill="block")
    folder, report = quantized("parts", distill="block", conduct={"resume": True})
    assert len(calls) == 3
    assert [stage["stage"] for stage in report.distillation] == ["model.layers.0", "model.layers.1"]
    assert packed_bytes(folder) == packed_bytes(whole)


@pytest.fixture
def interrupted(quantized, tmp_path):
    """A job that was killed after three modules."""

    def kill(done, total, name):
        if name.endswith("down_proj"):
            raise _Killed

    with pytest.raises(_Killed):
        quantized(on_progress=kill)
    return job_folder(tmp_path / "q")


def test_resuming_with_another_configuration_is_refused(quantized, interrupted):
    with pytest.raises(InputError, match=r"q\.job is a job with another config: repeat the first command"):
        quantized(bits=3, conduct={"resume": True})
    with pytest.raises(InputError, match="another model, conduct"):
        quantized(architecture="untied", conduct={"resume": True, "batch": 2})
    assert len(list((interrupted / "modules").glob("*.safetensors"))) == 3


def test_a_changed_module_of_a_job_is_noticed(quantized, interrupted):
    path = next((interrupted / "modules").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(
        InputError, match="is missing or has changed since it was written: delete it and its line"
    ):
        quantized(conduct={"resume": True})


def test_a_torn_last_line_of_the_manifest_costs_one_module(quantized, interrupted, tmp_path):
    whole, _ = quantized("whole")
    manifest = interrupted / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-10])
    with open_job_of(interrupted) as job:
        assert len(job) == 2
    quantized(conduct={"resume": True})
    assert packed_bytes(tmp_path / "q") == packed_bytes(whole)


def open_job_of(folder):
    facts = json.loads((folder / "job.json").read_text())["facts"]
    return open_job(folder.with_suffix(""), facts, resume=True)


def test_two_processes_do_not_work_on_the_same_job(quantized, interrupted):
    with open_job_of(interrupted), pytest.raises(InputError, match=r"another process is at work on .*q\.job"):
        quantized(conduct={"resume": True})
    quantized(conduct={"resume": True})


def test_a_job_without_finished_modules_is_not_in_the_way(quantized, monkeypatch):
    monkeypatch.setattr(module, "walk_blocks", lambda *arguments, **keywords: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        quantized()
    monkeypatch.undo()
    quantized(bits=3)


def test_a_damaged_manifest_is_refused(quantized, interrupted):
    (interrupted / "manifest.jsonl").write_text('{"name": 1}\n')
    with pytest.raises(InputError, match=r"manifest\.jsonl is damaged: delete"):
        quantized(conduct={"resume": True})


def test_a_folder_that_only_looks_like_a_job_is_left_alone(quantized, tmp_path):
    job_folder(tmp_path / "q").mkdir()
    (job_folder(tmp_path / "q") / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"q\.job exists and is not an unfinished job: move it away"):
        quantized(conduct={"resume": True})
    assert (job_folder(tmp_path / "q") / "mine.txt").read_text() == "mine"


def test_a_folder_that_is_not_ours_is_left_alone(quantized, tmp_path):
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match=r"q exists and was not written by assay: name another folder"):
        quantized()
    assert [path.name for path in (tmp_path / "q").iterdir()] == ["thesis.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is a file"):
        quantized("file")


def test_an_earlier_result_is_replaced(quantized):
    folder, _ = quantized()
    before = packed_bytes(folder)
    quantized(bits=3)
    assert packed_bytes(folder) != before
    assert inspect_checkpoint(folder)["config"]["bits"] == 3


def test_a_full_disk_is_seen_before_any_work(quantized, monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(InputError, match=r"has 0\.00 GB free; 0\.03 GB are needed"):
        quantized()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_a_job_to_resume(quantized, monkeypatch, tmp_path):
    from transformers import PreTrainedModel

    whole, _ = quantized("whole")
    save = PreTrainedModel.save_pretrained

    def full(self, folder, **options):
        (folder / "model.safetensors").write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        quantized()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.job", "whole"]
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", save)
    folder, _ = quantized(conduct={"resume": True})
    assert packed_bytes(folder) == packed_bytes(whole)


def test_a_bad_result_is_kept_apart(quantized, token_ids, tmp_path):
    held_out = token_ids(2, 24, seed=9)
    folder, report = quantized(held_out=held_out, acceptable=Acceptable(perplexity_ratio=0.01))
    assert not folder.exists()
    assert report.folder == str(tmp_path / "q.suspect")
    assert "times the original's" in report.complaint
    assert read_report(tmp_path / "q.suspect")["complaint"] == report.complaint
    _, report = quantized(held_out=held_out, acceptable=Acceptable(divergence=0.0))
    assert "nats a token; 0 is accepted" in report.complaint


@pytest.mark.parametrize("position", ["embedded", "block"])
def test_weights_that_are_not_finite_are_refused_before_any_work(tiny_model, token_ids, tmp_path, position):
    model = tiny_model()
    name = "model.layers.1.mlp.up_proj"
    if position == "block":
        model.get_submodule(name).weight.data[3, 4:6] = float("nan")
        message = rf"the weight of {name} has 2 NaN or infinite entries"
    else:
        model.get_input_embeddings().weight.data[:] = float("inf")
        message = "not finite"
    with pytest.raises(InputError, match=message):
        quantize_model(model, None, ProteusConfig(window=4), calibration=token_ids(2, 8), out=tmp_path / "q")
    assert not (tmp_path / "q").exists()


def test_models_without_anything_to_quantize_are_refused(token_ids, tmp_path):
    class Nothing(nn.Module):
        config = LlamaConfig()

        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

    with pytest.raises(InputError, match="Nothing has no list of blocks with linear modules to quantize"):
        quantize_model(Nothing(), None, calibration=token_ids(2, 8), out=tmp_path / "q")


def test_modules_can_be_kept(quantized, tiny_model):
    folder, report = quantized(modules_to_not_convert=["down_proj", "model.layers.0.self_attn.q_proj"])
    assert len(report.modules) == 11
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    kept = loaded.get_submodule("model.layers.1.mlp.down_proj")
    assert torch.equal(kept.weight, tiny_model().get_submodule("model.layers.1.mlp.down_proj").weight)
    with pytest.raises(
        InputError, match="modules_to_not_convert names 'router', which the model does not have"
    ):
        quantized(modules_to_not_convert=["router"])
    with pytest.raises(
        InputError, match=r"has no linear module to quantize \(named in modules_to_not_convert"
    ):
        quantized(modules_to_not_convert=["mlp", "self_attn"])


def test_small_modules_are_skipped_with_a_reason(token_ids, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
        }
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(**shape, num_hidden_layers=1, vocab_size=256)
        ).eval()
    report = quantize_model(
        model, None, ProteusConfig(window=4), calibration=token_ids(4, 16), out=tmp_path / "q"
    )
    assert report.skipped["model.layers.0.self_attn.k_proj"] == "8 x 32: smaller than 32 x 32"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "q")
    assert isinstance(loaded.get_submodule("model.layers.0.self_attn.k_proj"), nn.Linear)


def test_a_quantized_model_is_refused(packed_model, token_ids, tmp_path):
    with pytest.raises(InputError, match=r"the model is quantized already \(proteus\): load the original"):
        quantize_model(packed_model(), None, calibration=token_ids(2, 8), out=tmp_path / "q")


def test_a_dequantized_gguf_is_an_ordinary_model(tiny_model, token_ids, tmp_path):
    model = tiny_model()
    model.config.quantization_config = {"quant_method": "gguf"}
    model.is_quantized = True
    quantize_model(model, None, ProteusConfig(window=4), calibration=token_ids(4, 16), out=tmp_path / "q")
    assert (
        json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]["quant_method"]
        == "proteus"
    )
    assert model.config.quantization_config == {"quant_method": "gguf"}


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        (torch.zeros(0, 8, dtype=torch.long), "calibration must be integers of shape"),
        (torch.zeros(2, 8), "calibration must be integers of shape"),
        (torch.zeros(2, 200, dtype=torch.long), "of 200 tokens are longer than the model's 128 positions"),
        (torch.full((2, 8), 999), "the calibration has token 999; the model's vocabulary has 260"),
    ],
)
def test_calibration_that_does_not_fit_is_refused(tiny_model, tmp_path, calibration, message):
    with pytest.raises(InputError, match=message):
        quantize_model(tiny_model(), None, calibration=calibration, out=tmp_path / "q")


def test_few_tokens_are_remarked(tiny_model, token_ids, tmp_path):
    report = quantize_model(
        tiny_model(), None, ProteusConfig(window=4), calibration=token_ids(2, 8), out=tmp_path / "q"
    )
    assert "16 tokens for 48 channels" in report.modules[0]["flags"][0]


def test_shards_are_written(tiny_model, token_ids, tmp_path):
    quantize_model(
        tiny_model("untied"),
        None,
        ProteusConfig(window=4),
        calibration=token_ids(2, 16),
        out=tmp_path / "q",
        conduct=Conduct(max_shard_size="30KB"),
    )
    assert len(list((tmp_path / "q").glob("*.safetensors"))) > 2
    assert inspect_checkpoint(tmp_path / "q", verify=True)["verified"]


def test_calibrating_on_the_original_prefix_gives_other_codes(quantized):
    first, _ = quantized("one")
    second, _ = quantized("two", conduct={"propagate": "original"})
    one, two = (load_file(folder / "model.safetensors") for folder in (first, second))
    same = {name for name in one if torch.equal(one[name], two[name])}
    assert "model.layers.0.mlp.up_proj.qweight" in same
    assert "model.layers.1.mlp.up_proj.qweight" not in same
