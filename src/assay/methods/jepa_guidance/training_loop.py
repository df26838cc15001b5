"""The loop that trains encoders and generators: Accelerate, checkpoints that resume, and progress.

The batch and the noise of a step are functions of the seed and of the step's number alone. A checkpoint
therefore needs no state of random generators, and a resumed run gives the same weights as one that was never
interrupted, bit for bit on a CPU.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from assay.errors import InputError, require
from assay.files import replacing_folder, write_json
from assay.methods.jepa_guidance.progress_bars import progress_bar

CHECKPOINT = "checkpoint"
_LOG_EVERY = 10


@dataclass(frozen=True)
class Optimisation:
    """How a model is optimised: AdamW with a linear warm-up and a cosine decay to zero.

    Args:
        steps: optimiser steps.
        batch_size: images a step and a process.
        learning_rate: the highest.
        weight_decay: of AdamW.
        warm_up: part of the steps that the warm-up takes.
        clip_norm: gradients are scaled down to this norm.
        checkpoint_every: steps between checkpoints.
        precision: "no" for float32 or "bf16" for bfloat16 where autocast allows it.
        workers: processes that read images.

    Raises:
        InputError: a value is out of range.
    """

    steps: int = 2000
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    warm_up: float = 0.05
    clip_norm: float = 1.0
    checkpoint_every: int = 500
    precision: str = "no"
    workers: int = 0

    def __post_init__(self) -> None:
        for name, lowest in (("steps", 1), ("batch_size", 2), ("checkpoint_every", 1), ("workers", 0)):
            if getattr(self, name) < lowest:
                raise InputError(f"{name} must be at least {lowest}, got {getattr(self, name)}")
        for name in ("learning_rate", "clip_norm"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise InputError(f"{name} must be above 0, got {getattr(self, name)}")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise InputError(f"weight_decay must be at least 0, got {self.weight_decay}")
        if not 0 <= self.warm_up < 1:
            raise InputError(f"warm_up must be from 0 to below 1, got {self.warm_up}")
        if self.precision not in ("no", "bf16"):
            raise InputError(f"precision is no or bf16, got {self.precision!r}")


class Objective(nn.Module):
    """What is trained: a module whose forward pass is the loss, so that Accelerate can wrap it whole."""

    def forward(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> Float[Tensor, ""]:
        """The loss of a batch; all randomness comes from the generator."""
        raise NotImplementedError

    def after_step(self, progress: float) -> None:
        """Follow the optimiser, for instance with a moving average; `progress` grows from 0 to 1."""

    def check(self, progress: float) -> None:
        """Raise `InputError` when training went wrong; called at checkpoints and at the end."""


class ArrayImages(Dataset[dict[str, Tensor]]):
    """Images in memory, with labels or sentence embeddings if there are any.

    Args:
        images: (n, channels, height, width), in [0, 1] or of 8 bits.
        extras: further tensors with n rows each, e.g. `labels`.
    """

    def __init__(self, images: Tensor, **extras: Tensor) -> None:
        self.images = images
        self.extras = extras

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: rows[0] for name, rows in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """A whole batch at once: one row at a time costs more than a small model's step."""
        rows = torch.as_tensor(indices)
        images = self.images[rows]
        if images.dtype == torch.uint8:
            images = images.float() / 255
        return {"images": images} | {name: values[rows] for name, values in self.extras.items()}


class SeededBatches:
    """The indices of batches `first`, ... of endless shuffled passes; batch k depends on k.

    Args:
        size: rows of the data set.
        batch_size: indices a batch.
        seed: of the shuffles.
        first: the first batch.
        last: the batch before which to stop.
    """

    drop_last = True

    def __init__(self, size: int, batch_size: int, seed: int, first: int, last: int) -> None:
        self.size, self.seed, self.first, self.last = size, seed, first, last
        self.batch_size = min(batch_size, size)

    def __len__(self) -> int:
        return self.last - self.first

    def __iter__(self) -> Iterator[list[int]]:
        # The remainder of a pass that no whole batch fits in is left out; the next pass is shuffled anew.
        per_pass = self.size // self.batch_size
        shuffled, order = -1, np.empty(0, dtype=np.int64)
        for batch in range(self.first, self.last):
            number, place = divmod(batch, per_pass)
            if number != shuffled:
                shuffled, order = number, np.random.default_rng([self.seed, number]).permutation(self.size)
            yield order[place * self.batch_size : (place + 1) * self.batch_size].tolist()


def step_seed(*numbers: int) -> int:
    """A seed for `torch.Generator` that depends on all of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Layers made inside have weights that depend on the seed alone; torch's global generator is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def run_training(
    objective: Objective,
    dataset: Dataset[dict[str, Tensor]],
    optimisation: Optimisation,
    *,
    seed: int,
    identity: Mapping[str, Any],
    out: Path | None = None,
    device: str = "auto",
    quiet: bool = True,
    title: str = "Training",
) -> list[dict[str, float]]:
    """Train `objective` in place; a checkpoint in `out` is continued.

    Args:
        objective: moved to the device for the training and back to the CPU afterwards, in evaluation mode.
        dataset: its items are dictionaries of tensors with `images`; `__getitems__` may give a batch at once.
        optimisation: steps, rates, checkpoints.
        seed: of the batches and of what the objective draws.
        identity: what makes this run this run; a checkpoint of another identity is refused.
        out: where `checkpoint/` is kept while the training lasts; None keeps none.
        device: "auto" takes a GPU if there is one; "cpu" or "cuda".
        quiet: no progress bar.
        title: of the progress bar.

    Returns:
        The mean loss of every ten steps: `step`, `loss`, `learning_rate`.

    Raises:
        InputError: the loss is not finite, or the checkpoint belongs to another run.
    """
    accelerator = _accelerator(device, optimisation.precision)
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, optimisation.learning_rate, weight_decay=optimisation.weight_decay)
    objective.train()
    prepared, prepared_optimiser = accelerator.prepare(objective, optimiser)
    history, done = _resume(out, objective, optimiser, identity)
    loader = _loader(accelerator, dataset, optimisation, seed, done)
    total, losses = optimisation.steps, []
    hidden = quiet or not accelerator.is_main_process
    with progress_bar(title, total, quiet=hidden, done=done, loss=True) as advance:
        for step, batch in enumerate(loader, start=done):
            rate = _rate(optimisation, step)
            for group in optimiser.param_groups:
                group["lr"] = rate
            generator = torch.Generator(accelerator.device)
            generator.manual_seed(step_seed(seed, step, accelerator.process_index))
            with accelerator.autocast():
                loss = prepared(batch, generator)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(trained, optimisation.clip_norm)
            prepared_optimiser.step()
            prepared_optimiser.zero_grad()
            done = step + 1
            objective.after_step(done / total)
            losses.append(loss.detach())
            advance(1)
            if done % _LOG_EVERY == 0 or done in (1, total) or done % optimisation.checkpoint_every == 0:
                history.append({"step": done, "loss": _mean(losses, done), "learning_rate": rate})
                losses = []
                advance(0, history[-1]["loss"])
            if done % optimisation.checkpoint_every == 0 and done < total:
                objective.check(done / total)
                _save(out, accelerator, objective, optimiser, identity, history, done)
    objective.check(1.0)
    objective.to("cpu").eval()
    return history


def _accelerator(device: str, precision: str) -> Any:
    accelerate: Any = require("accelerate", extra="diffusion")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"the device is auto, cpu or cuda, not {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here: use --device cpu")
    try:
        accelerator = accelerate.Accelerator(cpu=device == "cpu", mixed_precision=precision, rng_types=[])
    except ValueError as error:
        # Accelerate keeps the first choice of a process for all later ones.
        raise InputError(f"this process has set up Accelerate in another way already: {error}") from None
    if device == "cuda" and accelerator.device.type != "cuda":
        raise InputError("this process has trained on the CPU already: train on the GPU in a new one")
    return accelerator


def in_main_process() -> bool:
    """Whether this is the process that writes: true but for the others of `accelerate launch`."""
    accelerate: Any = require("accelerate", extra="diffusion")
    return accelerate.PartialState().is_main_process


def wait_for_others() -> None:
    """Let the processes of `accelerate launch` go on together."""
    accelerate: Any = require("accelerate", extra="diffusion")
    accelerate.PartialState().wait_for_everyone()


def _loader(
    accelerator: Any, dataset: Dataset[Any], optimisation: Optimisation, seed: int, done: int
) -> DataLoader[Any]:
    processes = accelerator.num_processes
    batches = SeededBatches(
        len(dataset),  # pyright: ignore[reportArgumentType]
        optimisation.batch_size,
        seed,
        done * processes,
        optimisation.steps * processes,
    )
    # A generator of its own: otherwise each pass would draw from torch's global one.
    own = torch.Generator().manual_seed(seed)
    collate = None
    if hasattr(dataset, "__getitems__"):
        collate = _as_it_is
    return accelerator.prepare_data_loader(
        DataLoader(
            dataset,
            batch_sampler=batches,  # pyright: ignore[reportArgumentType]
            num_workers=optimisation.workers,
            collate_fn=collate,
            generator=own,
        )
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _rate(optimisation: Optimisation, step: int) -> float:
    warm = max(1, round(optimisation.warm_up * optimisation.steps))
    if step < warm:
        return optimisation.learning_rate * (step + 1) / warm
    part = (step - warm) / max(1, optimisation.steps - warm)
    return optimisation.learning_rate * 0.5 * (1 + math.cos(math.pi * part))


def _mean(losses: list[Tensor], step: int) -> float:
    mean = float(torch.stack(losses).float().mean())
    if not math.isfinite(mean):
        raise InputError(f"the loss is not finite at step {step}: use a smaller learning rate")
    return mean


def _save(
    out: Path | None,
    accelerator: Any,
    objective: Objective,
    optimiser: torch.optim.Optimizer,
    identity: Mapping[str, Any],
    history: list[dict[str, float]],
    done: int,
) -> None:
    if out is None or not accelerator.is_main_process:
        return
    from safetensors.torch import save_file

    tensors = {f"model.{name}": value for name, value in objective.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    tensors = {name: value.detach().cpu().clone() for name, value in tensors.items()}
    with replacing_folder(out / CHECKPOINT) as folder:
        save_file(tensors, folder / "state.safetensors")
        write_json(folder / "state.json", {"identity": dict(identity), "step": done, "history": history})


def _resume(
    out: Path | None, objective: Objective, optimiser: torch.optim.Optimizer, identity: Mapping[str, Any]
) -> tuple[list[dict[str, float]], int]:
    """Load the checkpoint of `out`, if there is one; the history and the steps that are done."""
    if out is None or not (out / CHECKPOINT / "state.json").is_file():
        return [], 0
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = out / CHECKPOINT
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "state.safetensors")
        stored, done, history = state["identity"], state["step"], state["history"]
    except (ValueError, KeyError, TypeError, OSError, SafetensorError):
        raise InputError(f"{folder} is damaged: remove it to start anew") from None
    differing = sorted(name for name in {*stored, *identity} if stored.get(name) != identity.get(name))
    if differing:
        raise InputError(
            f"{folder} belongs to a run with another {', '.join(differing)}: repeat the settings of that "
            "run, or choose another folder"
        )
    model = {name[6:]: value for name, value in tensors.items() if name.startswith("model.")}
    objective.load_state_dict(model)
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".")
            states.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})
    return history, done
