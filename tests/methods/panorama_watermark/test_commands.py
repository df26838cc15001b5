"""`assay panorama-watermark keygen`, `embed`, `attack`, `detect` on files, as a user types them."""

import json
import random
import stat
import sys

import numpy as np
import pytest
from PIL import Image

from assay.cli import main
from assay.methods.panorama_watermark.data import panorama_paths


@pytest.fixture
def assay(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder of its own; returns what it printed, or its one line of complaint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "in").mkdir()
    for name in ("venice", "city"):
        # The smallest that can be marked.
        Image.open(panorama_paths()[name]).resize((400, 200)).save(tmp_path / f"in/{name}.jpg", quality=95)

    def run(*arguments, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["panorama-watermark", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert (end.value.code or 0) == code, err
        if code == 2:
            assert err.count("\n") == 1, err
        return err if code == 2 else out

    # The same keys every time: how much a small image withstands depends on the key.
    monkeypatch.setattr("secrets.token_bytes", random.Random(0).randbytes)
    run("keygen", "key.pem")
    return run


KEY = ("--key-file", "key.pem")


def test_keygen_embed_attack_detect(assay, tmp_path):
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    assert "42.0 dB" in assay("embed", "in", "-o", "out", *KEY, "--payload", "tour1", "--c2pa")
    report = json.loads((tmp_path / "out/city.jpg.report.json").read_text())
    assert report["payload"] == b"tour1".hex()
    assert report["verified_bit_errors"] == 0
    binding = json.loads((tmp_path / "out/city.jpg.c2pa.json").read_text())["assertions"][0]
    assert binding["label"] == "c2pa.soft-binding"
    assert binding["data"]["blocks"][0]["value"] == b"tour1".hex()
    secret = (tmp_path / "key.pem").read_text().split("\n")[1]
    assert all(secret not in path.read_text() for path in (tmp_path / "out").glob("*.json"))

    assay("attack", "out", "-o", "turned", "--random", 3, "--jpeg", 90)
    lines = assay("detect", "turned", *KEY, "--json").splitlines()
    found = [json.loads(line) for line in lines]
    assert [line["text"] for line in found] == ["tour1", "tour1"]
    assert all(line["false_positive_rate"] < 1e-7 for line in found)
    assert "payload 'tour1'" in assay("detect", "turned", *KEY)
    assert "not found" in assay("detect", "in", "out", *KEY, code=1)
    assert assay("detect", "turned/city.jpg", *KEY, "--payload", "tour1", "--quiet") == ""
    assay("detect", "turned/city.jpg", *KEY, "--payload", "other", code=1)

    # A second run leaves finished files alone; another payload doesn't.
    before = (tmp_path / "out/city.jpg").stat().st_mtime_ns
    (tmp_path / "out/city.jpg.c2pa.json").unlink()
    assert "already marked" in assay("embed", "in", "-o", "out", *KEY, "--payload", "tour1", "--c2pa")
    assert (tmp_path / "out/city.jpg.c2pa.json").exists()
    assert (tmp_path / "out/city.jpg").stat().st_mtime_ns == before
    (tmp_path / "in/venice.jpg").unlink()
    assert "dB WS-PSNR" in assay("embed", "in", "-o", "out", *KEY, "--payload", "616263", "--hex")
    assert "payload 'abc'" in assay("detect", "out/city.jpg", *KEY)


def test_a_folder_with_a_damaged_image_goes_on(assay, tmp_path):
    (tmp_path / "in/broken.jpg").write_bytes((tmp_path / "in/city.jpg").read_bytes()[:5000])
    message = assay("embed", "in", "-o", "out", *KEY, "--payload", "x", "--jobs", 2, code=2)
    assert "1 of 3 images failed: " in message
    assert "broken.jpg" in message
    assert sorted(path.name for path in (tmp_path / "out").glob("*.jpg")) == ["city.jpg", "venice.jpg"]
    assert not list((tmp_path / "out").glob(".*"))
    message = assay("attack", "in", "-o", "turned", "--yaw", 30, code=2)
    assert "1 of 3 images failed: " in message
    assert sorted(path.name for path in (tmp_path / "turned").iterdir()) == ["city.jpg", "venice.jpg"]


def test_partial_panoramas(assay, tmp_path):
    pixels = np.asarray(Image.open(tmp_path / "in/city.jpg"))[:176]
    Image.fromarray(pixels).save(tmp_path / "cut.png")
    assert "--cropped-area" in assay("embed", "cut.png", "-o", "out", *KEY, "--payload", "x", code=2)
    area = ("--cropped-area", "0,0,400,200")
    assay("embed", "cut.png", "-o", "out", *KEY, "--payload", "x", *area)
    assert Image.open(tmp_path / "out/cut.png").size == (400, 176)
    assert "payload 'x'" in assay("detect", "out/cut.png", *KEY, *area)
    assert "got '1,2'" in assay(
        "embed", "cut.png", "-o", "o", *KEY, "--payload", "x", "--cropped-area", "1,2", code=2
    )


def test_passphrases(assay, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("a phrase of some length\n"))
    assay("embed", "in/city.jpg", "-o", "out", "--passphrase", "--payload", "x")
    monkeypatch.setattr("sys.stdin", io.StringIO("a phrase of some length\n"))
    assert "payload 'x'" in assay("detect", "out/city.jpg", "--passphrase")


def test_complaints(assay, tmp_path):
    for words, message in {
        ("embed", "in", "-o", "out", "--payload", "x"): "--key-file FILE or --passphrase",
        ("embed", "in", "-o", "out", *KEY, "--payload", "too long"): "holds 5",
        ("embed", "in", "-o", "out", *KEY, "--payload", "xyz", "--hex"): "hexadecimal",
        ("embed", "in", "-o", "out", *KEY, "--payload", ""): "empty",
        ("embed", "in", "-o", "out", *KEY, "--payload", "x", "--quality", "20"): "at least 30, or --force",
        ("embed", "in", "-o", "out", *KEY, "--payload", "x", "--jobs", "0"): "--jobs",
        ("embed", "in", "-o", "out", *KEY, "--payload", "x", "--psnr", "99"): "psnr",
        ("embed", "in", "-o", "in", *KEY, "--payload", "x"): "would be overwritten",
        ("embed", "nothing", "-o", "out", *KEY, "--payload", "x"): "doesn't exist",
        ("embed", "in", "in", "-o", "out", *KEY, "--payload", "x"): "two inputs",
        ("detect", "in", "--key-file", "none.pem"): "cannot be read",
        ("detect", ".git", *KEY): "doesn't exist",
        ("keygen", "key.pem"): "exists",
        ("attack", "in", "-o", "o", "--random", "1", "--yaw", "3"): "exclude each other",
        ("attack", "in/city.jpg", "-o", "o", "--jpeg", "0"): "1 to 100",
        ("attack", "in", "-o", "in", "--flip"): "would be overwritten",
        ("embed", "in/city.jpg", "-o", "key.pem", *KEY, "--payload", "x"): "key.pem",
    }.items():
        assert message in assay(*words, code=2), words
    (tmp_path / "empty").mkdir()
    assert "no images" in assay("detect", "empty", *KEY, code=2)


def test_attack_keeps_sizes_in_metadata_fresh(assay, tmp_path):
    from assay.methods.panorama_watermark.gpano import gpano_values
    from assay.methods.panorama_watermark.images import read_image

    assay("embed", "in/city.jpg", "-o", "out", *KEY, "--payload", "x")
    assay("attack", "out/city.jpg", "-o", "small", "--resize", 0.5, "--noise", 2, "--gamma", 0.9, "--flip")
    picture = read_image(tmp_path / "small/city.jpg")
    assert picture.pixels.shape == (100, 200, 3)
    assert gpano_values(picture.xmp)["FullPanoWidthPixels"] == "200"
    assay("detect", "small", *KEY)


def test_training_and_using_a_learned_engine(assay, tmp_path):
    options = ("--steps", 10, "--batch", 2, "--band", "low", "--quiet")
    assay("train", "in", "-o", "engine", *KEY, *options)
    assert {path.name for path in (tmp_path / "engine").iterdir()} == {"config.json", "engine.safetensors"}
    secret = (tmp_path / "key.pem").read_text().split("\n")[1]
    assert secret not in (tmp_path / "engine/config.json").read_text()
    assay("keygen", "other.pem")
    message = assay("detect", "in", "--key-file", "other.pem", "--engine", "engine", code=2)
    assert "trained for the key" in message
    assay("detect", "in", *KEY, "--engine", "engine", code=1)
    assert "not an engine" in assay("detect", "in", *KEY, "--engine", "in", code=2)


@pytest.mark.parametrize("missing", ["torch", "safetensors"])
def test_learned_engines_without_their_libraries(assay, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    for words in (("train", "in", "-o", "engine", *KEY), ("detect", "in", *KEY, "--engine", "engine")):
        message = assay(*words, code=2)
        assert message.count(missing) == 1
        assert "pip install 'assay[sphere,lm]'" in message
