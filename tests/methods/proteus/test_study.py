"""The study measures what it says, on a tiny random model where the real one would take minutes."""

import subprocess
import sys

import matplotlib.pyplot as plt
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from assay.methods.proteus import experiments, kernels
from assay.methods.proteus.study import LAYER_ARMS, MODEL_ARMS, STUDY, run
from assay.methods.proteus.study_figures import panels
from assay.study import FinishedTrial, Trial

LAYER = "model.layers.3.self_attn.q_proj"
TEXT = " ".join(f"Line {i} of a text that nobody has to read, with a number {i * i}.\n\n" for i in range(400))


def trial(arm, seed=0, **setting):
    return Trial(arm, setting, seed)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory, byte_tokenizer):
    """A model with the layers' names and a tokenizer, as `lm.load` reads them."""
    folder = tmp_path_factory.mktemp("tiny")
    rooms = {"hidden_size": 48, "intermediate_size": 64, "vocab_size": 260, "max_position_embeddings": 512}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**rooms, num_hidden_layers=4, num_attention_heads=3))
    model.save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    (folder / "text.txt").write_text(TEXT)
    return folder


@pytest.fixture
def small(monkeypatch, tiny_folder, tmp_path_factory):
    """Little text, few tokens, and a cache of its own, but not for the compiled kernels."""
    kernels.backend()
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path_factory.getbasetemp() / "proteus-study"))
    monkeypatch.setattr(experiments, "TEXTS", (str(tiny_folder / "text.txt"),))
    for name, value in (
        ("CALIBRATION_SEQUENCES", 4),
        ("HELD_OUT_SEQUENCES", 4),
        ("SEQUENCE_LENGTH", 64),
        ("DISTILLATION_SEQUENCES", 4),
        ("DISTILLATION_LENGTH", 16),
        ("EVALUATION_WINDOWS", 2),
        ("EVALUATION_LENGTH", 32),
    ):
        monkeypatch.setattr(experiments, name, value)
    return str(tiny_folder)


def test_importing_the_study_loads_no_heavy_library():
    code = (
        "import sys; from assay.methods.proteus.study import STUDY; list(STUDY.trials('quick', None)); "
        "sys.exit(bool({'torch', 'transformers', 'numba', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_claim_has_trials_at_the_quick_scale():
    planned = list(STUDY.trials("quick", None))
    for claim in STUDY.claims:
        found = claim.evidence(planned, {})
        assert found.rows + found.missing > 0, claim.id
    assert len({one.id for one in planned}) == len(planned)


def test_smoke_trials_run():
    measured = {one: run(one) for one in STUDY.trials("smoke", None)}
    errors = {one.arm: found["mse"] for one, found in measured.items() if "mse" in found}
    assert 1 / 16 < errors["proteus"] < errors["1mad"] < errors["lloyd-max"] < 0.125
    assert all(found["bytes_that_grow"] == 0 for one, found in measured.items() if "mse" not in found)


def test_the_scalar_code_has_its_known_error():
    errors = [run(trial("lloyd-max", seed, part="gaussian", window=8))["mse"] for seed in range(4)]
    assert sum(errors) / 4 == pytest.approx(0.1175, abs=0.001)


def test_random_generators_are_ranked_by_the_same_errors_in_every_arm():
    arms = ("branch-coverage", "wasserstein")
    first, second = (run(trial(arm, part="vetting", window=8)) for arm in arms)
    shared = [name for name in first if name.startswith("mse:")]
    assert len(shared) == experiments.RANDOM_GENERATORS
    assert all(first[name] == second[name] for name in shared)
    assert first["score:0"] != second["score:0"]
    random, pool = (run(trial(arm, part="vetting", window=8))["tail"] for arm in ("random", "pool"))
    assert sorted(first[name] for name in shared)[-1] >= random > pool


@pytest.mark.parametrize("arm", LAYER_ARMS)
def test_a_layer_by_every_method(small, arm):
    measured = run(trial(arm, part="layer", model=small, layer=LAYER, window=6))
    assert 0 < measured["error"] < 0.5
    # Groups of 64 columns are wider than this layer: a grid a row.
    assert 2 < measured["bits_per_weight"] < (20 if arm in ("hyb", "table") else 3.5)
    assert measured.get("bytes_changed", 0) == 0


def test_held_out_error_is_that_of_other_text(small):
    measured = run(trial("rtn", part="layer", model=small, layer=LAYER, window=6))
    both = [experiments.hessians(small, part)[LAYER][0] for part in ("calibration", "held-out")]
    assert not torch.equal(*both)
    assert measured["error"] != measured["held_out_error"]


def test_a_model_by_every_method(small):
    setting = {"part": "model", "model": small, "window": 6}
    found = {arm: run(Trial(arm, setting, 0)) for arm in MODEL_ARMS}
    assert found["original"]["kl"] == pytest.approx(0, abs=1e-9)
    assert all(found[arm]["kl"] > 0 for arm in MODEL_ARMS if arm != "original")
    assert found["proteus"]["bits_per_weight"] == found["proteus-compensated"]["bits_per_weight"] < 4
    # Repeated in another order, from the cache, it is the same.
    assert run(Trial("proteus-compensated", setting, 0)) == found["proteus-compensated"]


def test_bytes_are_counted_from_the_format():
    measured = run(trial("proteus", part="bytes", model="Llama-2-7b"))
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    scales = 32 * 2 * (4 * 8192 + 3 * (4096 + 11008))
    assert measured["bf16_stored"] == 2 * weights
    assert measured["proteus_stored"] == weights / 4 + scales + 32 * 7 * 40
    assert measured["hyb_stored"] - measured["proteus_stored"] == 32 * 7 * (2048 - 40)
    assert measured["reads_of_table_code"] > 2 * 4


def test_figures_are_drawn_from_whatever_finished(small):
    model = {"part": "model", "model": small, "window": 6}
    layer = {"part": "layer", "model": small, "layer": LAYER, "window": 6}
    trials = [
        *(trial(arm, part="gaussian", window=window) for arm in ("proteus", "1mad") for window in (6, 8)),
        *(trial(arm, part="vetting", window=10) for arm in ("branch-coverage", "wasserstein")),
        *(Trial(arm, layer, 0) for arm in ("proteus", "proteus-plain", "ldlq-scalar")),
        *(Trial(arm, model, 0) for arm in ("original", "1mad")),
        trial("proteus", part="bytes", model="SmolLM2-135M"),
    ]
    finished = [FinishedTrial(one, "ok", run(one)) for one in trials]
    decoded = {f"speed_of_{peer}": 2.0 for peer in ("table", "float32", "bfloat16")}
    finished.append(FinishedTrial(trial("proteus", part="decode", shape="64x64", window=16), "ok", decoded))
    drawn = panels(finished)
    assert set(drawn) == {"codes", "overlap", "layers", "compensation", "models", "bytes", "decode"}
    for panel in drawn.values():
        panel.figure.canvas.draw()
    plt.close("all")
    assert panels(finished[:1]).keys() == {"codes"}
    assert panels([]) == {}
    plt.close("all")
