"""On what a run ran: versions, hardware, revision of the code."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

# Those whose version can change a number.
PACKAGES = (
    "numpy",
    "scipy",
    "scikit-learn",
    "torch",
    "numba",
    "pandas",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "diffusers",
    "opacus",
    "dp-accounting",
    "matplotlib",
    "ray",
)


def environment() -> dict[str, Any]:
    """Versions, platform, processor, memory, GPUs and the git revision, as JSON values."""
    import psutil

    return {
        "assay": installed_version("assay"),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := installed_version(name))},
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu_names(),
        "git_revision": git_revision(),
    }


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """The processor's marketing name where the system tells it, else its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpu_names() -> list[str]:
    """The NVIDIA GPUs that the driver lists; asking the driver spares the import of torch."""
    listed = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return listed.splitlines() if listed else []


def git_revision() -> str | None:
    """The commit of the checkout that assay runs from, `-dirty` where files differ; None for a wheel."""
    here = str(Path(__file__).parent)
    return _output("git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
