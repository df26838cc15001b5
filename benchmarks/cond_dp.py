"""Private linear regression, conditioning and Gram matrices beside Opacus and NumPy, as ratios in one run.

OMP_NUM_THREADS=1 python -m benchmarks.cond_dp
"""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from assay.methods.cond_dp.conditioner import PublicConditioner
from assay.methods.cond_dp.engine import CondPrivacyEngine
from assay.methods.cond_dp.ghost_training import Network, NetworkTraining, train_network
from assay.methods.cond_dp.linear import LinearTraining, train_linear
from assay.methods.cond_dp.models import MultilayerPerceptron

ROWS, COLUMNS, STEPS = 8000, 57, 64
SIGMA, CLIP, LR = 30.0, 0.3, 0.05
BATCH, BATCHES, WIDTHS = 256, 20, (64, 32)
GRAM_ROWS, GRAM_COLUMNS = 1_000_000, 100


def seconds(action: Callable[[], object], repeats: int = 3) -> float:
    """The shortest of a few processor times (one thread); one call before them warms up.

    Not the clock's: other programs on the machine would count.
    """
    return alternating(action, repeats=repeats)[0]


def alternating(*actions: Callable[[], object], repeats: int = 7) -> list[float]:
    """The shortest processor time of each, in turns, so that all see the same neighbours on the machine."""
    for action in actions:
        action()
    return [
        min(times)
        for times in zip(*([seconds_once(a) for a in actions] for _ in range(repeats)), strict=True)
    ]


def seconds_once(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def show(what: str, ours: float, peer: str, theirs: float, note: str) -> None:
    print(f"{what:<46} {ours:>9.3f} s  {peer:<32} {theirs:>9.3f} s  {theirs / ours:>7.2f}x  {note}")


def full_batch_descent(module: nn.Module, X: np.ndarray, t: np.ndarray, steps: int) -> nn.Module:
    """DP-Adam by Opacus (hooks) on all rows, with noise from a seeded generator."""
    rows = TensorDataset(torch.from_numpy(X), torch.from_numpy(t))
    made: Any = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.Adam(module.parameters(), lr=LR),
        data_loader=DataLoader(rows, batch_size=len(X)),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        poisson_sampling=False,
        noise_generator=torch.Generator().manual_seed(0),
    )
    private, optimizer, _ = made
    inputs, labels = torch.from_numpy(X), torch.from_numpy(t)
    for _ in range(steps):
        optimizer.zero_grad()
        ((private(inputs).reshape(-1) - labels) ** 2).mean().backward()
        optimizer.step()
    return module


def opacus_normals(dtype: torch.dtype) -> Callable[..., np.ndarray]:
    """Opacus's own noise for seed 0, in units of its deviation."""
    generator = torch.Generator().manual_seed(0)
    scale = SIGMA * CLIP

    def draw(shape: int | tuple[int, ...]) -> np.ndarray:
        size = (shape,) if isinstance(shape, int) else shape
        return torch.normal(0.0, scale, size, generator=generator, dtype=dtype).numpy() / scale

    return draw


def linear(rng: np.random.Generator) -> None:
    X = rng.standard_normal((ROWS, COLUMNS))
    t = np.tanh(X @ rng.standard_normal(COLUMNS) / 8)
    training = LinearTraining(STEPS, LR, CLIP, SIGMA)

    def ours() -> tuple[np.ndarray, float]:
        return train_linear(X, t, training, rng.standard_normal, rng)

    def theirs(dtype: type) -> nn.Module:
        module = nn.Linear(COLUMNS, 1).to(torch.from_numpy(np.empty(0, dtype)).dtype)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        return full_batch_descent(module, X.astype(dtype), t.astype(dtype), STEPS)

    weights, intercept = train_linear(X, t, training, opacus_normals(torch.float64), rng)
    parameters = [parameter.detach().numpy() for parameter in theirs(np.float64).parameters()]
    apart = max(np.abs(parameters[0][0] - weights).max(), abs(float(parameters[1][0]) - intercept))
    best, single, double = alternating(ours, lambda: theirs(np.float32), lambda: theirs(np.float64))
    what = f"linear path, n = {ROWS}, d = {COLUMNS}, {STEPS} steps"
    show(what, best, "Opacus, hooks, float32 (default)", single, "(target: 20x)")
    note = f"same noise: weights differ by {apart:.0e}"
    show("", best, "Opacus, hooks, float64", double, note)


def network(rng: np.random.Generator) -> None:
    X = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    t = np.tanh(X[:, 0] * X[:, 1]).astype(np.float32)
    steps = 8

    def ours() -> None:
        made = Network.initialised([COLUMNS, *WIDTHS, 1], np.random.default_rng(0))
        train_network(made, X, t, NetworkTraining(steps, LR, CLIP, SIGMA), opacus_normals(torch.float32))

    show(
        f"network, full batch, n = {ROWS}, {steps} steps",
        seconds(ours),
        "Opacus, per-sample gradients",
        seconds(lambda: full_batch_descent(MultilayerPerceptron(COLUMNS, hidden=WIDTHS), X, t, steps), 1),
        "",
    )


def conditioning(rng: np.random.Generator) -> None:
    X = rng.standard_normal((BATCH * BATCHES, COLUMNS)).astype(np.float32)
    rows = TensorDataset(torch.from_numpy(X), torch.from_numpy(np.tanh(X[:, 0])))
    fitted = PublicConditioner(standardize=True).fit(X)

    def epoch(conditioned: bool) -> Callable[[], None]:
        module = MultilayerPerceptron(COLUMNS, hidden=WIDTHS)
        arguments: dict[str, Any] = {
            "module": module,
            "optimizer": torch.optim.Adam(module.parameters(), lr=LR),
            "data_loader": DataLoader(rows, batch_size=BATCH),
            "noise_multiplier": 1.0,
            "max_grad_norm": CLIP,
        }
        made: Any = (
            CondPrivacyEngine().make_private(**arguments, conditioner=fitted)
            if conditioned
            else PrivacyEngine().make_private(**arguments)
        )
        private, optimizer, loader = made

        def run() -> None:
            for inputs, labels in loader:
                optimizer.zero_grad()
                ((private(inputs) - labels) ** 2).mean().backward()
                optimizer.step()

        return run

    best = alternating(epoch(True), epoch(False), repeats=15)
    show(
        f"epoch of {BATCHES} batches of {BATCH}, conditioned",
        best[0],
        "Opacus without conditioner",
        best[1],
        f"overhead {best[0] / best[1] - 1:+.1%} (target: at most 5%)",
    )


def gram(rng: np.random.Generator) -> None:
    X = rng.standard_normal((GRAM_ROWS, GRAM_COLUMNS), dtype=np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    PublicConditioner(standardize=True).fit(X)
    ours = time.process_time() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    theirs = seconds(lambda: X.T @ X, repeats=1)
    show(
        f"conditioner of {GRAM_ROWS:,} x {GRAM_COLUMNS} (float64 sums)",
        ours,
        "one float32 product",
        theirs,
        f"{(after - before) / 1024:.0f} MiB beyond the {X.nbytes / 2**20:.0f} MiB of features (target: 5 s)",
    )


def main() -> None:
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    print(f"{'what':<46} {'ours':>11}  {'peer':<32} {'peer':>11}  {'ratio':>8}")
    gram(rng)
    linear(rng)
    network(rng)
    conditioning(rng)


if __name__ == "__main__":
    main()
