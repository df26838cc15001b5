"""How the study's hyper-parameters were chosen: the best of a small grid on seed 0, which no claim uses.

python -m assay.methods.cond_dp.study_tuning

Every arm of gradient descent gets the same grid. The choice looks at test rows, so it is optimistic for all
arms alike, and it is not private: the study compares methods at their best, and says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from assay.files import write_json

SEED = 0
ADAM = [{"lr": lr, "clip": clip} for lr in (0.003, 0.01, 0.03, 0.1, 0.3) for clip in (0.03, 0.3, 3.0)]
# Where rows are clipped, only the product of learning rate and clipping norm matters.
SGD = [
    {"optimizer": "sgd", "lr": lr, "clip": clip}
    for clip, rates in ((0.1, (0.1, 0.3, 1.0, 3.0, 10.0)), (3.0, (0.03, 0.1, 0.3)))
    for lr in rates
]
DESCENT = ADAM + SGD
NETWORK = [{"lr": lr, "clip": clip} for lr in (0.001, 0.003, 0.01) for clip in (0.1, 0.3, 1.0)]
SWITCH = [
    {"lr": lr, "clip": clip, "lr_after": after, "switch_at": share}
    for lr in (0.003, 0.01)
    for clip in (0.1, 0.3)
    for after in (0.001, 0.003)
    for share in (0.125, 0.25, 0.5)
]
GRIDS: dict[str, Sequence[dict[str, Any]]] = {
    "rr-on-bins": [{"debias": False}, {"debias": True}],
    "weighted-llp": [{"bag_size": size} for size in (2, 8, 32)],
    "mlp-switch": SWITCH,
}
GRADIENT_ARMS = ("dpsgd-raw", "dpsgd", "cond-raw", "cond", "cond-damped", "cond-half")


def grid(arm: str) -> Sequence[dict[str, Any]]:
    """The hyper-parameters that are tried for an arm; none for arms without."""
    if arm in GRADIENT_ARMS:
        return DESCENT
    return GRIDS.get(arm, NETWORK if arm.startswith(("mlp", "fm")) else [])


def cells() -> list[tuple[str, dict[str, Any]]]:
    """Every arm and setting of the quick study that has hyper-parameters, the slow ones first."""
    from assay.methods.cond_dp.experiments import cell
    from assay.methods.cond_dp.study import trials

    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for trial in trials("quick", 1):
        arms: Iterable[str] = ("cond", "dpsgd", "dpsgd-raw") if trial.arm == "gain" else (trial.arm,)
        for arm in arms:
            if grid(arm):
                found[cell(arm, **trial.setting)] = (arm, dict(trial.setting))
    return list(found.values())


def best(arm: str, setting: dict[str, Any]) -> dict[str, Any]:
    """The hyper-parameters with the least error on the tuning seed."""
    from assay.methods.cond_dp import experiments
    from assay.methods.cond_dp.linear import DivergedError

    def error(choice: dict[str, Any]) -> float:
        measure = experiments.network_error if "model" in setting else experiments.fitted_error
        try:
            return measure(arm, choice, seed=SEED, **setting)
        except DivergedError:
            return float("inf")

    return min(grid(arm), key=error)


def main() -> None:
    """Tune every cell in processes of one thread, and write `tuned.json` beside this file."""
    from assay.methods.cond_dp.experiments import cell
    from assay.study.worker import WORKER_ENVIRONMENT

    os.environ |= WORKER_ENVIRONMENT
    arms, settings = zip(*cells(), strict=True)
    with ProcessPoolExecutor() as pool:
        chosen = list(pool.map(best, arms, settings))
    choices = {
        cell(arm, **setting): choice for arm, setting, choice in zip(arms, settings, chosen, strict=True)
    }
    path = Path(__file__).with_name("tuned.json")
    write_json(path, {"seed": SEED, "choices": dict(sorted(choices.items()))})
    print(f"{len(choices)} choices written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
