"""A cache entry is built once, whoever asks, and only when it is built whole."""

import subprocess
import sys

import pytest

from assay.cache import cached, content_hash


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))


BUILD = """
import sys
from assay.cache import cached

def build(folder):
    with open(sys.argv[1], "a") as log:
        log.write("built\\n")
    (folder / "sum").write_text(str(sum(range(3_000_000))))

print((cached("test", {"what": "a sum"}, build) / "sum").read_text())
"""


def test_processes_that_ask_together_build_once(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", BUILD, str(log)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    results = [process.communicate()[0].strip() for process in processes]
    assert results == ["4499998500000"] * 4
    assert log.read_text() == "built\n"


def test_a_build_that_fails_leaves_no_entry():
    def fail(folder):
        (folder / "half").touch()
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        cached("test", {"n": 1}, fail)
    entry = cached("test", {"n": 1}, lambda folder: (folder / "whole").touch())
    assert (entry / "whole").exists()
    assert not (entry / "half").exists()


def test_the_key_determines_the_entry():
    first = cached("test", {"a": 1, "b": 2}, lambda folder: None)
    assert cached("test", {"b": 2, "a": 1}, lambda folder: pytest.fail("built again")) == first
    assert cached("test", {"a": 1, "b": 3}, lambda folder: None) != first


def test_content_hash_is_stable():
    # A known value: were it to change, finished trials and cached weights would be orphaned.
    assert content_hash({"arm": "desi", "setting": {"n": 200}, "seed": 0}) == "234ad856a64db6a7"
