"""Keys: the frozen derivation, files, and that the secret is never shown."""

import base64
import json
import logging
import pickle
import stat
import traceback

import numpy as np
import pytest

from assay.errors import InputError
from assay.methods.panorama_watermark.batch import Settings
from assay.methods.panorama_watermark.keys import Key, as_key
from assay.methods.panorama_watermark.schedule import (
    BANDS,
    Band,
    band_for_height,
    find_band,
    key_schedule,
)
from assay.methods.panorama_watermark.watermarker import Watermarker

KEY = Key(bytes(range(16)))


def test_hkdf_of_rfc_5869():
    """The derivation is RFC 5869's: its first steps repeated here by hand for our salt."""
    import hashlib
    import hmac

    extracted = hmac.new(b"assay.panorama_watermark.v1", bytes(range(16)), hashlib.sha256).digest()
    expected = hmac.new(extracted, b"purpose\x01", hashlib.sha256).digest()
    assert KEY.derive("purpose") == expected
    assert KEY.stream("purpose", 5) == hashlib.shake_256(expected).digest(5)


VECTORS = {
    "low": ("+---++--", "-----++-", "-++-++++", [7, 6, 0, 3, 2, 5, 6, 2], [1, 0, 0, 1, 0, 1, 1, 0]),
    "mid": ("+---+-++", "-+-+-+-+", "+++++-+-", [0, 1, 7, 6, 2, 5, 2, 6], [1, 0, 1, 1, 1, 0, 1, 1]),
    "high": ("+-++---+", "++-+-+--", "+++++--+", [5, 3, 3, 0, 5, 7, 7, 5], [0, 0, 1, 1, 1, 0, 1, 1]),
}


@pytest.mark.parametrize("name", list(VECTORS))
def test_frozen_schedule(name):
    """Changing any of these orphans every image that is marked already."""
    schedule = key_schedule(KEY, BANDS[name], 127)
    signs = [
        "".join("+" if x > 0 else "-" for x in part.ravel()[:8])
        for part in (schedule.first_filters, schedule.second_filters, schedule.payload_filters)
    ]
    seen = (*signs, schedule.payload_choice[:8].tolist(), schedule.whitening[:8].tolist())
    assert seen == VECTORS[name]


def test_frozen_key_id_and_passphrase():
    assert KEY.id == "a4dc8eb7"
    assert Key.from_passphrase("correct horse battery").id == "0ef2b715"


def test_schedules_differ_between_bands_and_keys():
    mid, high = (key_schedule(KEY, BANDS[name], 127) for name in ("mid", "high"))
    other = key_schedule(Key(bytes(range(1, 17))), BANDS["mid"], 127)
    assert abs(np.mean(mid.whitening == other.whitening) - 0.5) < 0.2
    assert not np.array_equal(mid.whitening, high.whitening)
    assert set(np.unique(mid.first_filters)) == {-1.0, 1.0}
    assert len(key_schedule(KEY, BANDS["mid"], 255).first_filters) == 32


def test_bands():
    assert [band_for_height(h).name for h in (200, 239, 240, 799, 800, 5000)] == [
        "low", "low", "mid", "mid", "high", "high",
    ]  # fmt: skip
    with pytest.raises(InputError, match="at least 200"):
        band_for_height(199)
    with pytest.raises(InputError, match="choose from"):
        find_band("middle")
    with pytest.raises(InputError, match="degree 40"):
        Band("bad", (8, 20), (21, 60), (0, 1))


def test_key_files(tmp_path):
    key = Key.generate()
    key.write(tmp_path / "key.pem")
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    assert Key.read(tmp_path / "key.pem") == key
    assert (tmp_path / "key.pem").read_text().startswith("-----BEGIN ASSAY WATERMARK KEY-----\n")
    with pytest.raises(InputError, match="exists"):
        Key.generate().write(tmp_path / "key.pem")


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff\xfe\x00secret", b"-----BEGIN RSA KEY-----\nabc\n"])
def test_files_that_are_no_keys(tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InputError, match="not a key file"):
        Key.read(tmp_path / "key")


def test_damaged_and_missing_key_files(tmp_path):
    text = "-----BEGIN ASSAY WATERMARK KEY-----\nSECRET*?\n-----END ASSAY WATERMARK KEY-----\n"
    (tmp_path / "key").write_text(text)
    with pytest.raises(InputError, match="damaged") as caught:
        Key.read(tmp_path / "key")
    assert "SECRET" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        Key.read(tmp_path / "none")


def test_short_keys_and_passphrases():
    with pytest.raises(InputError, match="15 bytes"):
        Key(bytes(15))
    with pytest.raises(InputError, match="from_passphrase"):
        Key("a phrase of some length")
    with pytest.raises(InputError, match="at least 12"):
        Key.from_passphrase("short")
    assert as_key("a phrase of some length") == Key.from_passphrase("a phrase of some length")
    assert as_key(KEY) is KEY


def test_the_secret_is_never_shown(caplog):
    """Neither in text forms, nor in logs, nor in tracebacks with local variables, nor in JSON errors."""
    secret = b"only-for-the-eyes-of-nobody"
    key = Key(secret)
    marker, settings = Watermarker(key), Settings(key, b"x")
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("assay").info("%s %r %s %r", key, key, marker, settings)
    shown = [caplog.text, f"{key} {key!r} {marker} {settings} {[key]} {vars(marker)}"]
    flat = np.zeros((200, 400), np.uint8)
    for fail in (lambda: marker.embed(flat, b"x"), lambda: Key.from_passphrase(key), lambda: int(settings)):
        with pytest.raises(Exception) as caught:
            fail()
        stack = traceback.StackSummary.extract(traceback.walk_tb(caught.tb), capture_locals=True)
        shown += [str(frame.locals) for frame in stack if "/assay/" in frame.filename]
        shown.append(str(caught.value))
    assert sum("embed_bits" in text or "schedule" in text for text in shown) > 0
    with pytest.raises(TypeError) as caught:
        json.dumps(key)
    shown.append(str(caught.value))
    for text in shown:
        assert "eyes-of-nobody" not in text
        assert secret.hex() not in text
        assert base64.b64encode(secret).decode() not in text
        assert "filters" not in text  # what is derived from the secret is as secret
    assert not hasattr(key, "__dict__")
    assert key.id in repr(key)


def test_keys_travel_to_worker_processes():
    assert pickle.loads(pickle.dumps(KEY)) == KEY
    assert len({KEY, Key(bytes(range(16)))}) == 1
