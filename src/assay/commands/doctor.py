"""`assay doctor`: what is installed, what is missing, and the command that mends it."""

from __future__ import annotations

import json
import platform
import shutil
from typing import Annotated, Any

from cyclopts import Parameter

import assay


def doctor(*, as_json: Annotated[bool, Parameter(name="--json", negative=())] = False) -> None:
    """Say what is installed, what is missing and how to get it.

    Parameters
    ----------
    as_json
        Print JSON (`docs/command-line.md` describes the fields).
    """
    facts = examine()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    machine = facts["machine"]
    console.print(f"[bold]assay {facts['assay']}[/], Python {facts['python']}, {machine['platform']}")
    memory = f"{machine['memory_available_gib']} of {machine['memory_gib']} GiB of memory free"
    console.print(f"{machine['cpu']}, {machine['cores']} cores, {memory}", markup=False)
    console.print("GPU: " + (", ".join(machine["gpu"]) or "none"), markup=False)
    console.print(
        f"Cache: {facts['cache']['path']}, {facts['cache']['free_gib']} GiB free on the disk", markup=False
    )
    extras = Table("extra", "used by", "missing", "get it with")
    for extra in facts["extras"]:
        state = escape(", ".join(extra["missing"])) or "[green]nothing[/]"
        extras.add_row(
            extra["name"], ", ".join(extra["used_by"]) or "—", state, escape(extra["install"] or "")
        )
    console.print(extras)
    embedded = Table("embedded package", "carries", "licence", "state")
    for package in facts["embedded"]:
        state = (
            "[green]present[/]" if package["present"] else f"[yellow]missing[/]: {escape(package['install'])}"
        )
        embedded.add_row(package["distribution"], package["carries"], package["licence"], state)
    console.print(embedded)
    console.print(
        "Everything is here."
        if facts["complete"]
        else "Something is missing; methods that do not need it work all the same."
    )


def examine() -> dict[str, Any]:
    """The facts that `assay doctor` prints, as JSON values."""
    import psutil

    from assay.cache import cache_folder
    from assay.data.embedded import embedded_status
    from assay.registry import cards, extras, missing_packages
    from assay.study.environment import cpu_name, gpu_names, installed_version

    used_by: dict[str, list[str]] = {}
    for card in cards().values():
        used_by.setdefault(card.extra, []).append(card.command)
    listed = []
    for name in extras():
        missing = missing_packages("assay", name)
        install = f"pip install 'assay[{name}]'" if missing else None
        listed.append(
            {"name": name, "used_by": used_by.get(name, []), "missing": missing, "install": install}
        )
    embedded = [
        {
            "distribution": status.package.distribution,
            "version": status.package.version,
            "carries": status.package.carries,
            "licence": status.package.licence,
            "installed_version": status.installed_version,
            "present": status.usable,
            "install": None if status.usable else status.package.install,
        }
        for status in embedded_status()
    ]
    cache = cache_folder()
    nearest = next(folder for folder in (cache, *cache.parents) if folder.exists())
    memory = psutil.virtual_memory()
    return {
        "assay": assay.__version__,
        "python": platform.python_version(),
        "torch": installed_version("torch"),
        "machine": {
            "platform": platform.platform(),
            "cpu": cpu_name(),
            "cores": psutil.cpu_count(),
            "memory_gib": round(memory.total / 2**30, 1),
            "memory_available_gib": round(memory.available / 2**30, 1),
            "gpu": gpu_names(),
        },
        "cache": {"path": str(cache), "free_gib": round(shutil.disk_usage(nearest).free / 2**30, 1)},
        "extras": listed,
        "embedded": embedded,
        "complete": not any(extra["missing"] for extra in listed if extra["used_by"])
        and all(package["present"] for package in embedded),
    }
