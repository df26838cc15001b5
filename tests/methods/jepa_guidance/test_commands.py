"""The verbs on a folder of real images of digits, as a user types them."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from PIL import Image
from sklearn.datasets import load_digits
from transformers import AutoModel

from assay.cli import main
from assay.methods.jepa_guidance.images import read_image
from assay.methods.jepa_guidance.scorer import JEPAScorer

ENCODER = ("--objective", "lejepa", "--arch", "mlp", "--dimension", "16", "--augmentation", "noise")
ENCODER += ("--gaussianity", "sliced-wasserstein", "--steps", "60", "--batch-size", "64", "--device", "cpu")
GENERATOR = ("--arch", "mlp", "--width", "64", "--steps", "80", "--batch-size", "64", "--device", "cpu")
GENERATOR += ("--learning-rate", "3e-3")


def run_main(*arguments):
    with pytest.raises(SystemExit) as end:
        main(list(map(str, ("jepa-guidance", *arguments))))
    return end.value.code or 0


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """260 real digits by class and a damaged file, an encoder, and a generator of the classes."""
    root = tmp_path_factory.mktemp("place")
    data = load_digits()
    for index in range(260):
        folder = root / "digits" / str(data.target[index])
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (data.images[index] / 16 * 255).round().astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:03d}.png")
    (root / "digits" / "3" / "broken.png").write_bytes(b"nothing")
    assert run_main("train-encoder", root / "digits", "--out", root / "encoder", *ENCODER, "--quiet") == 0
    options = ("--condition", "class", *GENERATOR, "--quiet")
    assert run_main("train-generator", root / "digits", "--out", root / "generator", *options) == 0
    # A hundredth of the usual number of images calibrates nothing; the sign is what the study measures.
    calibrated = {"sign": -1, "rho": -0.5, "rho_low": -0.6, "rho_high": -0.4, "images": 260, "neighbours": 5}
    calibrated |= {"auroc": None, "auroc_low": None, "auroc_high": None, "space": "pca"}
    calibrated |= {"include_prior": False, "image_size": 8}
    (root / "encoder" / "jepa_calibration.json").write_text(json.dumps(calibrated))
    return root


@pytest.fixture
def assay(place, tmp_path, monkeypatch, capsys):
    """Run a verb in the folder; returns what it printed, or its one line of complaint."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments, code=0):
        capsys.readouterr()
        assert run_main(*arguments) == code
        out, err = capsys.readouterr()
        if code == 2:
            assert err.count("\n") == 1, err
            assert err.startswith("assay: ")
        return err if code == 2 else out

    return run


def test_the_trained_models_open_in_their_own_libraries(place):
    encoder = AutoModel.from_pretrained(place / "encoder")
    assert encoder.config.hidden_size == 16
    assert encoder.config.num_channels == 1
    pipeline = DiffusionPipeline.from_pretrained(place / "generator")
    assert pipeline.config["class_names"] == [str(digit) for digit in range(10)]


def test_calibrate_says_what_the_score_is_worth_and_keeps_it(assay, place, tmp_path):
    printed = assay(
        "calibrate", "digits", "--encoder", "encoder", "--rare-class", 8, "--out", tmp_path, "--device", "cpu"
    )
    assert "skipped 3/broken.png" in printed
    assert "260 images: correlation of the negative score" in printed
    assert "ROC curve" in printed
    stored = json.loads((tmp_path / "jepa_calibration.json").read_text())
    assert stored["images"] == 260
    assert -1 <= stored["rho_low"] <= stored["rho"] <= stored["rho_high"] <= 1
    assert 0 <= stored["auroc"] <= 1
    further = assay(
        "calibrate", "digits/0", "--encoder", "encoder", "--rare", "digits/8", "--out", tmp_path,
        "--neighbours", 3, "--device", "cpu",
    )  # fmt: skip
    # 27 zeros, and 24 eights that are said to be rare.
    zeros, eights = (len(list((place / "digits" / name).iterdir())) for name in "08")
    assert f"{zeros + eights} images" in further


def test_score_lists_every_file_and_fails_for_the_damaged_one(assay, place, tmp_path):
    table, sheet = tmp_path / "scores.csv", tmp_path / "sheet.png"
    printed = assay(
        "score", "digits", "--encoder", "encoder", "--out", table, "--sheet", sheet, "--device", "cpu", code=1
    )
    assert "260 of 261 images scored" in printed
    with table.open() as file:
        rows = {row["filename"]: row for row in csv.DictReader(file)}
    assert len(rows) == 261
    assert rows["3/broken.png"]["jepa_score"] == ""
    assert "cannot be decoded" in rows["3/broken.png"]["error"]
    name = "0/000.png"
    image = torch.from_numpy(read_image(place / "digits" / name, channels=1)).float()[None] / 255
    expected = float(JEPAScorer.from_pretrained(place / "encoder", device="cpu").score(image))
    assert float(rows[name]["jepa_score"]) == pytest.approx(expected, abs=1e-4)
    assert Image.open(sheet).size[0] > 100
    assay("score", "digits/0", "--encoder", "encoder", "--out", table, "--method", "rsvd", "--k", 3)
    assert len(table.read_text().splitlines()) == 1 + len(list((place / "digits/0").iterdir()))


def test_sample_writes_images_scores_and_manifest_and_goes_on(assay, tmp_path):
    out = tmp_path / "samples"
    options = ("--encoder", "encoder", "--class", 3, "--class", 5, "--steps", 5, "--out", out)
    printed = assay("sample", "--model", "generator", *options, "--n", 5, "--seed", 7, "--device", "cpu")
    # Steps 1 to 4 of 5 are guided.
    assert "guided 20 steps of single images" in printed
    names = [f"seed-{seed:06d}.png" for seed in range(7, 12)]
    files = ["contact-sheet.png", "manifest.parquet", "scores.csv", *names, "settings.json"]
    assert sorted(path.name for path in out.iterdir()) == sorted(files)
    scores = pd.read_csv(out / "scores.csv")
    manifest = pd.read_parquet(out / "manifest.parquet")
    assert list(scores.columns) == ["filename", "jepa_score"]
    assert list(scores.filename) == list(manifest.filename) == names
    assert list(manifest["class"]) == [3, 5, 3, 5, 3]
    assert np.isfinite(scores.jepa_score).all()
    before = {name: (out / name).read_bytes() for name in names}
    again = assay("sample", "--model", "generator", *options, "--n", 6, "--seed", 7, "--device", "cpu")
    assert "6 images" in again
    assert before == {name: (out / name).read_bytes() for name in names}
    error = assay("sample", "--model", "generator", *options, "--n", 6, "--seed", 7, "--eta", 0.5, code=2)
    assert "another config" in error


def test_sample_without_an_encoder_guides_nothing(assay, tmp_path):
    out = tmp_path / "plain"
    options = ("--n", 2, "--steps", 3, "--out", out, "--dtype", "bfloat16")
    printed = assay("sample", "--model", "generator", *options)
    assert "guided" not in printed
    assert not (out / "scores.csv").exists()
    assert len(pd.read_parquet(out / "manifest.parquet")) == 2


def test_augment_adds_rare_valid_images_to_the_data_set(assay, place, tmp_path):
    out = tmp_path / "augmented"
    options = ("--model", "generator", "--encoder", "encoder", "--steps", 4, "--eta-total", 0.1)
    options += ("--rare-fraction", 0.05, "--candidates", 3, "--batch-size", 48, "--device", "cpu")
    printed = assay("augment", "digits", *options, "--out", out)
    # 5% of the result: 260 x 0.05 / 0.95.
    added = 14
    assert "of 42 candidates lie within the data" in printed
    with (out / "dataset" / "metadata.csv").open() as file:
        rows = list(csv.DictReader(file))
    new = [row for row in rows if row["generated"] == "yes"]
    assert len(rows) - len(new) == 260
    assert 1 <= len(new) <= added
    for row in rows:
        path = out / "dataset" / row["file_name"]
        assert path.is_file()
        assert row["label"] == row["file_name"].split("/")[0]
    original = place / "digits" / rows[0]["file_name"]
    assert (out / "dataset" / rows[0]["file_name"]).read_bytes() == original.read_bytes()
    scores = [float(row["jepa_score"]) for row in new]
    # High scores are rare by this calibration.
    assert scores == sorted(scores, reverse=True)
    assert (out / "added.png").is_file()
    assert len(list((out / "candidates").glob("seed-*.png"))) == 42
    # Once more from the finished candidates.
    assert assay("augment", "digits", *options, "--out", out) == printed
    # The result is a data set for the next verb.
    assert "3/broken.png" not in assay(
        "score", out / "dataset", "--encoder", "encoder", "--out", tmp_path / "s"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("score", "absent", "--encoder", "encoder"), "absent is not a folder of images"),
        (("score", "digits", "--encoder", "digits"), "config.json is missing"),
        (("score", "digits", "--encoder", "no/where"), "no/where cannot be loaded"),
        (("score", "digits", "--encoder", "encoder", "--k", "0"), "k must be at least 1"),
        (("calibrate", "digits", "--encoder", "no/where"), "no/where is no folder"),
        (("calibrate", "digits", "--encoder", "encoder", "--rare-class", "x"), "no class 'x'"),
        (("train-encoder", "digits/3", "--out", "new"), "at least 200 images"),
        (("train-encoder", "digits", "--out", "digits"), "choose another folder"),
        (("train-encoder", "digits", "--out", "new", "--arch", "vit", "--patch-size", "3"), "use 6 or 9"),
        (("train-encoder", "digits", "--out", "new", "--objective", "ijepa"), "architecture vit"),
        (("train-encoder", "digits", "--out", "new", "--steps", "0"), "steps must be at least 1"),
        (("train-encoder", "digits", "--out", "new", "--image-size", "2"), "at least 4 pixels"),
        (("train-encoder", "digits", "--out", "new", "--noise", "-1"), "noise must be from 0"),
        (("train-encoder", "digits", "--out", "new", "--gaussian-weight", "1"), "between 0 and 1"),
        (("train-generator", "digits", "--out", "generator"), "choose another folder"),
        (("train-generator", "digits", "--out", "new", "--condition", "text"), "has no caption"),
        (("train-generator", "digits", "--out", "new", "--text-encoder", "x"), "--condition text"),
        (("train-generator", "digits", "--out", "new", "--width", "9"), "multiple of 8"),
        (("sample", "--model", "digits", "--out", "new"), "holds no generator"),
        (("sample", "--model", "generator", "--out", "new", "--eta", "1"), "pass --encoder"),
        (("sample", "--model", "generator", "--out", "new", "--tiny-decoder", "x"), "pass --encoder"),
        (("sample", "--model", "generator", "--out", "new", "--class", "cat"), "no class 'cat'"),
        (("sample", "--model", "generator", "--out", "new", "--prompt", "cat"), "takes no prompts"),
        (("sample", "--model", "generator", "--out", "new", "--n", "0"), "at least 1, got 0"),
        (("augment", "digits", "--out", "new", "--rare-fraction", "1"), "between 0 and 1, got 1"),
        (("augment", "digits", "--out", "new", "--candidates", "0.5"), "at least 1 candidate"),
        (("augment", "digits", "--out", "digits/new"), "lies in the data set"),
    ],
)
def test_mistakes_end_in_one_line(assay, place, arguments, message):
    if arguments[0] == "augment":
        arguments = (*arguments, "--model", "generator", "--encoder", "encoder")
    assert message in assay(*arguments, code=2)
    assert not (place / "new").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--eta", "-1"), "eta is -1"),
        (("--eta", "nan"), "eta is nan"),
        (("--eta", "5"), "more than the whole range of an image"),
        (("--tau", "0"), "tau is 0"),
        (("--interval", "0"), "interval is 0"),
        (("--k", "0"), "k is 0"),
        (("--k", "20"), "k"),
        (("--eta", "1", "--eta-total", "1"), "not both"),
        (("--steps", "0"), "steps must be at least 1"),
    ],
)
def test_guidance_out_of_range_ends_in_one_line(assay, tmp_path, options, message):
    arguments = ("sample", "--model", "generator", "--encoder", "encoder", "--n", 1, "--steps", 3)
    if options[0] == "--steps":
        arguments = arguments[:-2]
    assert message in assay(*arguments, "--out", tmp_path / "out", *options, code=2)


def test_an_encoder_that_is_not_calibrated_guides_nothing(assay, place, tmp_path):
    arguments = ("sample", "--model", "generator", "--n", 1, "--steps", 3, "--encoder", tmp_path / "encoder")
    (tmp_path / "encoder").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "encoder" / name).write_bytes((place / "encoder" / name).read_bytes())
    assert "not calibrated" in assay(*arguments, "--out", tmp_path / "out", code=2)
    stored = json.loads((place / "encoder" / "jepa_calibration.json").read_text())
    (tmp_path / "encoder" / "jepa_calibration.json").write_text(json.dumps(stored | {"sign": 0}))
    error = assay(*arguments, "--out", tmp_path / "out", code=2)
    assert "does not rank density on your data" in error
    assay(*arguments, "--out", tmp_path / "out", "--assume-sign", 1)


def test_a_generator_of_captions_takes_prompts(assay, place, tmp_path):
    rows = [f"{path.relative_to(place / 'digits').as_posix()},a handwritten {path.parent.name}"
            for path in sorted((place / "digits").rglob("*.png"))]  # fmt: skip
    metadata = place / "digits" / "metadata.csv"
    metadata.write_text("file_name,text\n" + "\n".join(rows) + "\n")
    try:
        out = tmp_path / "generator"
        options = ("--arch", "mlp", "--width", 32, "--steps", 3, "--batch-size", 8, "--device", "cpu")
        assay("train-generator", "digits", "--out", out, "--condition", "text", *options)
        assay("sample", "--model", out, "--prompt", "a handwritten 7", "--n", 2, "--steps", 2,
              "--out", tmp_path / "samples")  # fmt: skip
    finally:
        metadata.unlink()
    manifest = pd.read_parquet(tmp_path / "samples" / "manifest.parquet")
    assert list(manifest.prompt) == ["a handwritten 7"] * 2
