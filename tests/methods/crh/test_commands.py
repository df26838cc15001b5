"""`assay crh` as a user types it, on a tiny model in a folder, and fits and texts behind it."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest

from assay.cli import main
from assay.errors import InputError
from assay.methods.crh import (
    ConceptPairs,
    FitOptions,
    PairsError,
    fit_from_pairs,
    generate_pairs,
    lexicon,
    load_concepts,
    load_cylinder,
    load_pairs,
    read_gguf,
    replies,
    save_cylinder,
)
from assay.methods.crh.concepts import Concept
from assay.methods.crh.detectors import Detector
from assay.methods.crh.generation import _finished


@pytest.fixture
def assay(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder of its own; returns what it printed, or its one line of complaint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["crh", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert (end.value.code or 0) == code, err
        if code:
            assert err.count("\n") == 1, err
        return err if code else out

    return run


@pytest.fixture
def folder(tmp_path, model, tokenizer, pairs):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    pairs.save(tmp_path / "pairs.jsonl")
    return tmp_path


FIT = ("fit", "--pairs", "pairs.jsonl", "--model", "model", "-o", "run", "--outcome", "margin", "--s-max", 3)


def test_the_whole_way(assay, folder):
    printed = assay(*FIT)
    assert "8 pairs for the axis, 4 for strengths" in printed
    assert "of prompts never fire" in printed
    cylinder = load_cylinder(folder / "run")
    assert cylinder.layer in (1, 2)
    assert cylinder.facts["model"] == "model"
    assert sorted(cylinder.facts["train"] + cylinder.facts["calibration"]) == list(range(12))

    first = cylinder.facts["calibration"][0]
    small = ("map", "--cylinder", "run", "--sectors", 4, "--strengths", 3)
    printed = assay(*small)
    assert f"pair {first}:" in printed
    assert (folder / "run" / "maps" / f"sample-{first}-own.png").read_bytes().startswith(b"\x89PNG")
    before = {path: path.stat().st_mtime_ns for path in (folder / "run" / "maps").glob("*.npz")}
    assert len(before) == 1
    assay(*small, "--index", first, 0)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert len(list((folder / "run" / "maps").glob("*.npz"))) == 2
    assay(*small, "--frame", "fitted", "--quiet")

    printed = assay("predict", "--cylinder", "run", "--permutations", 19, "--others", "run")
    assert "plane" in printed
    report = json.loads((folder / "run" / "predictability.json").read_text())
    assert report["kind"] in ("cylinder", "both", "sector only", "neither")
    assert (folder / "run" / "captured-energy.png").read_bytes().startswith(b"\x89PNG")

    printed = assay(
        "steer",
        "--cylinder",
        "run",
        "--prompt",
        "Hi?",
        "Who [is] it?",
        "--strength",
        "2x",
        "--max-new-tokens",
        4,
    )
    assert printed.count("unsteered") == 2
    assert "Who [is] it?" in printed
    assert "2.00 mean differences" in printed

    for kind, name in [
        ("gguf", "v.gguf"),
        ("safetensors", "v.safetensors"),
        ("steering-vectors", "l.safetensors"),
    ]:
        assert name in assay("export", "--cylinder", "run", "--format", kind, "-o", name, "--strength", 2.5)
        assert (folder / name).stat().st_size > 100
    vector = read_gguf(folder / "v.gguf")
    assert vector.model_hint == "llama"
    assert np.linalg.norm(vector.directions[cylinder.layer]) == pytest.approx(2.5, rel=1e-5)


def test_a_fit_by_generation_is_the_same_again(assay, folder):
    (folder / "q.txt").write_text("Why?\nHow?\n")
    arguments = (
        "fit", "--pairs", "pairs.jsonl", "--model", "model", "--pattern", "[a-m]",
        "--questions", "q.txt", "--layer", 1,
    )  # fmt: skip
    assay(*arguments, "-o", "one", "--quiet")
    assay(*arguments, "-o", "two", "--quiet")
    one, two = load_cylinder(folder / "one"), load_cylinder(folder / "two")
    assert one.strengths.outcome == "generation"
    assert len(one.strengths.values) == 4 + 2
    assert len(one.strengths.grid) == len(one.strengths.success) == len(one.strengths.corrupted)
    assert (folder / "one" / "cylinder.safetensors").read_bytes() == (
        folder / "two" / "cylinder.safetensors"
    ).read_bytes()
    assert two.recommend_strength() == one.recommend_strength()
    assert "concept" in assay("steer", "--cylinder", "one", "--prompt", "Hi?", "--max-new-tokens", 3)


def test_written_pairs_and_the_list_of_concepts(assay, tmp_path):
    assert "python-function" in assay("pairs", "--concept", "list")
    assay("pairs", "--concept", "dogs", "ocean", "--written", "-o", "p.csv")
    assert load_pairs(tmp_path / "p.csv").concepts == ("dogs", "ocean")
    assert "several concepts" in assay("fit", "--pairs", "p.csv", "-o", "run", "--model", "none", code=2)


def test_mistakes_are_one_line(assay, folder):
    assert "no concept cats" in assay("pairs", "--concept", "cats", "-o", "p.jsonl", code=2)
    assert "names no concept" in assay("pairs", "--concept", "-o", "p.jsonl", code=2)
    assert "--out is needed" in assay("pairs", "--concept", "dogs", code=2)
    assert "--n must be" in assay("pairs", "--concept", "dogs", "-o", "p.jsonl", "--n", 1, code=2)
    assert "none.jsonl" in assay("fit", "--pairs", "none.jsonl", "-o", "run", code=2)
    assert "10,15,20" in assay(*FIT, "--layer", "middle", code=2)
    assert "layer 9" in assay(*FIT, "--layer", "9", code=2)
    assert "holds no cylinder" in assay("steer", "--cylinder", "run", "--prompt", "Hi?", code=2)
    assay(*FIT, "--layer", "1", "--quiet")
    assert "there is no pair 12" in assay("map", "--cylinder", "run", "--index", "12", code=2)
    for strength in ("lots", "nan", "infx"):
        message = assay("steer", "--cylinder", "run", "--prompt", "Hi?", "--strength", strength, code=2)
        assert f"--strength '{strength}'" in message
    assert "no prompt" in assay("steer", "--cylinder", "run", "--prompt", code=2)
    assert "--s-max" in assay("map", "--cylinder", "run", "--s-max", "nan", code=2)
    assert "at least 19" in assay("predict", "--cylinder", "run", "--permutations", 3, code=2)
    rows = (folder / "run" / "pairs.jsonl").read_text().splitlines()
    (folder / "run" / "pairs.jsonl").write_text("\n".join(rows[:-1]))
    assert "not what the cylinder was fitted to" in assay("map", "--cylinder", "run", code=2)


def test_a_concept_without_an_axis_and_a_rank_above_the_pairs(assay, folder, pairs):
    # Every pair and its mirror image: the mean difference is zero whatever the model reads.
    turned = [
        replace(row, resp_no_concept=row.resp_with_concept, resp_with_concept=row.resp_no_concept)
        for row in pairs.rows
    ]
    ConceptPairs(pairs.rows + tuple(turned)).save(folder / "mirrored.jsonl")
    mirrored = ("fit", "--pairs", "mirrored.jsonl", "--model", "model", "-o", "run", "--layer", 1)
    assert "length zero" in assay(*mirrored, "--train-share", 0.5, code=2)
    assert "rank 30 was asked for, but 8 pairs span 7" in assay(*FIT, "--layer", 1, "--rank", 30)
    assert load_cylinder(folder / "run").rank == 7


def test_activations_that_overflow_are_one_line(assay, folder, tokenizer, models_by_family):
    broken = copy.deepcopy(models_by_family["llama"])
    token = tokenizer("!")["input_ids"][-1]
    broken.model.embed_tokens.weight.data[token] = float("inf")
    broken.save_pretrained(folder / "model")
    message = assay(*FIT, "--layer", 1, code=2)
    assert "with the concept) at layer 1 is NaN or infinite; load the model in bfloat16 or float32" in message


def test_a_cylinder_that_the_command_did_not_save(assay, folder):
    assay(*FIT, "--layer", "1", "--quiet")
    cylinder = load_cylinder(folder / "run")
    facts = {name: value for name, value in cylinder.facts.items() if name not in ("model", "steered")}
    save_cylinder(replace(cylinder, facts=facts), folder / "bare")
    message = assay("steer", "--cylinder", "bare", "--prompt", "Hi?", code=2)
    assert "does not say model, steered" in message


def test_another_model_is_refused(assay, folder, models_by_family, tokenizer):
    assay(*FIT, "--layer", "1", "--quiet")
    models_by_family["gpt2"].save_pretrained(folder / "other")
    tokenizer.save_pretrained(folder / "other")
    for command in (("map",), ("predict",), ("steer", "--prompt", "Hi?")):
        message = assay(*command, "--cylinder", "run", "--model", "other", code=2)
        assert "another configuration" in message


def test_fits_that_cannot_be(model, tokenizer, pairs):
    with pytest.raises(InputError, match="need a detector"):
        fit_from_pairs(model, tokenizer, pairs, FitOptions(outcome="generation"))
    with pytest.raises(PairsError, match="4 pairs are too few"):
        fit_from_pairs(model, tokenizer, pairs.subset(range(4)))
    for wrong in ({"train_share": 1.0}, {"s_max": 0.0}, {"s_max": float("nan")}):
        with pytest.raises(InputError, match="train_share"):
            fit_from_pairs(model, tokenizer, pairs, FitOptions(**wrong))


def test_the_axis_raises_the_margin_that_it_was_fitted_for(model, tokenizer, pairs):
    steps = []
    options = FitOptions(outcome="margin", position="output", layers=(1, 2))
    fitted = fit_from_pairs(model, tokenizer, pairs, options, on_step=lambda *a: steps.append(a))
    assert {what for what, _, _ in steps} == {
        "Reading activations",
        "Comparing layers",
        "Measuring strengths",
    }
    assert len(fitted.strengths.values) == 4
    assert fitted.strengths.s_max == pytest.approx(4 * fitted.axis_norm)


def test_replies_hold_nothing_of_the_prompt_and_sampling_keeps_the_generator(model, tokenizer):
    import torch

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one = replies(
        model, tokenizer, ["Hi?", "A longer question, is it?"], max_new_tokens=5, temperature=1.0, seed=1
    )
    assert torch.equal(torch.rand(1), expected)
    assert one == replies(
        model, tokenizer, ["Hi?", "A longer question, is it?"], max_new_tokens=5, temperature=1.0, seed=1
    )
    assert all("user" not in text for text in one)
    with pytest.raises(InputError, match="temperature"):
        replies(model, tokenizer, ["Hi?"], temperature=-1.0)


def test_pairs_that_a_model_writes_pass_every_filter(tokenizer, monkeypatch):
    from assay.methods.crh import generation

    def answers(model, tokenizer, questions, **options):
        said = []
        for question in questions:
            number = int(question.split("?")[0])
            asked = "Talk" in question
            said.append({
                0: "A dog barks loudly here. Then" if asked else "A cat sleeps all day here. And",
                1: "Nothing to see in here." if asked else "Nothing at all in here.",
                2: "A dog runs." if asked else "My dog sleeps.",
                3: "dog dog dog dog dog" if asked else "A cat.",
                4: "Just the same dogless.",
            }.get(number, f"Dogs {number} run." if asked else f"Cats {number} sit."))  # fmt: skip
        return said

    monkeypatch.setattr(generation, "replies", answers)
    concept = load_concepts()["dogs"]
    found = generate_pairs(None, tokenizer, concept, [f"{i}?" for i in range(12)], batch_size=5)
    assert found.asked == 12
    assert len(found.pairs) == 8
    assert found.pairs[0].resp_with_concept == "A dog barks loudly here."
    assert found.rejected == {
        "without the concept": 1, "with the concept unasked": 1, "unreadable": 1, "identical": 1,
    }  # fmt: skip
    assert len(generate_pairs(None, tokenizer, concept, [f"{i}?" for i in range(12)], wanted=3).pairs) == 3
    never = Concept("x", "text", "x", "Talk about x.", lexicon(["unicorn"]))
    with pytest.raises(PairsError, match=r"0 usable pairs for 'x' in 12 questions.*without the concept"):
        generate_pairs(None, tokenizer, never, [f"{i}?" for i in range(12)])


def test_texts_are_cut_at_their_last_full_stop():
    assert _finished("The cat sat on the mat. It then") == "The cat sat on the mat."
    assert _finished("No. But this goes on") == "No. But this goes on"
    assert _finished("Version 2.5 of this is out now and") == "Version 2.5 of this is out now and"
    assert Detector(("a",))("a")


@pytest.mark.slow
def test_the_embedded_model_is_steered_visibly():
    from assay import lm
    from assay.methods.crh import (
        ConceptMargin,
        extract_differences,
        fit_cylinder,
        steer,
        written_detector,
        written_pairs,
    )

    model, tokenizer = lm.load("embedded", device="cpu")
    pairs = written_pairs(["ocean"])
    differences = extract_differences(model, tokenizer, pairs, [15], position="mean")
    cylinder = fit_cylinder(differences.subset(range(16)))
    questions = ["How can I relax after a long day?", "Tell me about your favourite city."]
    options = {"max_new_tokens": 20}
    detector = written_detector("ocean")
    assert not any(map(detector, replies(model, tokenizer, questions, **options)))
    with steer(model, 2 * cylinder.axis_norm * cylinder.axis, 15):
        assert all(map(detector, replies(model, tokenizer, questions, **options)))
    margin = ConceptMargin(model, tokenizer, pairs, 15)
    assert margin.path == "suffix"
    vectors = cylinder.axis_norm * np.linspace(0.5, 2, 3)[:, None] * cylinder.axis.numpy()
    import torch

    rows = torch.tensor(vectors)
    torch.testing.assert_close(margin(20, rows), margin.reference(20, rows), rtol=0, atol=1e-4)
