"""Run every benchmark on one thread and print Markdown: `python -m benchmarks > docs/benchmarks.md`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from assay.registry import cards
from assay.study.environment import cpu_name, installed_version
from assay.study.worker import WORKER_ENVIRONMENT


def main() -> None:
    print("# Benchmarks\n")
    print(
        "Speed beside a peer or a general solver, as ratios measured in one run. This command printed it:\n"
    )
    print("```bash\npython -m benchmarks > docs/benchmarks.md\n```\n")
    versions = ", ".join(f"{name} {installed_version(name)}" for name in ("numpy", "scipy", "torch", "numba"))
    print(f"On {cpu_name()}, one thread; {versions}.")
    previews = {card.name for card in cards().values() if card.preview}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        # What is measured of a method in preview is published with its study.
        if path.stem in previews:
            continue
        command = [sys.executable, "-m", f"benchmarks.{path.stem}"]
        done = subprocess.run(
            command, env=os.environ | WORKER_ENVIRONMENT, capture_output=True, text=True, check=True
        )
        print(f"\n## `python -m benchmarks.{path.stem}`\n\n```text\n{done.stdout.rstrip()}\n```")


if __name__ == "__main__":
    main()
