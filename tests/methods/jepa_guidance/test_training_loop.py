"""The loop: batches by number, resuming bit for bit, and what it refuses."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from assay.errors import InputError
from assay.methods.jepa_guidance.training_loop import (
    CHECKPOINT,
    ArrayImages,
    Objective,
    Optimisation,
    SeededBatches,
    run_training,
    seeded_weights,
    step_seed,
)

FAST = {"steps": 30, "batch_size": 8, "checkpoint_every": 10}


class Fit(Objective):
    """A linear layer that finds the noisy mean of pixels; it counts its steps in a buffer."""

    def __init__(self, stop_at=None):
        super().__init__()
        with seeded_weights(0):
            self.layer = nn.Linear(16, 1)
        self.register_buffer("steps", torch.zeros(()))
        self.stop_at = stop_at

    def forward(self, batch, generator):
        if self.stop_at is not None and self.steps >= self.stop_at:
            raise KeyboardInterrupt
        pixels = batch["images"].flatten(1)
        noise = 0.1 * torch.randn(len(pixels), 1, generator=generator)
        return (self.layer(pixels) - pixels.mean(1, keepdim=True) + noise).square().mean()

    def after_step(self, progress):
        self.steps += 1


@pytest.fixture
def dataset():
    return ArrayImages(torch.rand(50, 1, 4, 4, generator=torch.Generator().manual_seed(0)))


def train(objective, dataset, out=None, *, identity=None, **changes):
    optimisation = Optimisation(**FAST | changes)
    return run_training(
        objective, dataset, optimisation, seed=3, identity=identity or {"a": 1}, out=out, device="cpu"
    )


def test_training_finds_the_answer_and_logs_its_loss(dataset):
    objective = Fit()
    history = train(objective, dataset, steps=400, learning_rate=0.02)
    assert history[-1]["loss"] < 0.03 < history[0]["loss"]
    torch.testing.assert_close(objective.layer.weight, torch.full((1, 16), 1 / 16), atol=0.05, rtol=0)
    assert [row["step"] for row in history[:3]] == [1, 10, 20]
    # Warm-up, then the cosine down to almost nothing.
    assert history[0]["learning_rate"] == pytest.approx(0.02 / 20)
    assert max(row["learning_rate"] for row in history) == pytest.approx(0.02, rel=0.01)
    assert history[-1]["learning_rate"] < 1e-5
    assert not objective.training


@pytest.mark.parametrize("stop_at", [10, 17])
def test_a_resumed_run_gives_the_same_weights_bit_for_bit(dataset, tmp_path, stop_at):
    whole = Fit()
    expected = train(whole, dataset)
    with pytest.raises(KeyboardInterrupt):
        train(Fit(stop_at), dataset, tmp_path)
    assert json.loads((tmp_path / CHECKPOINT / "state.json").read_text())["step"] == 10
    resumed = Fit()
    assert train(resumed, dataset, tmp_path) == expected
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_run_depends_on_its_seed_and_touches_no_global_generator(dataset):
    state = torch.random.get_rng_state()
    first, again = Fit(), Fit()
    train(first, dataset)
    train(again, dataset)
    assert torch.equal(first.layer.weight, again.layer.weight)
    other = Fit()
    run_training(other, dataset, Optimisation(**FAST), seed=4, identity={}, device="cpu")
    assert not torch.equal(first.layer.weight, other.layer.weight)
    assert torch.equal(state, torch.random.get_rng_state())


def test_processes_that_read_change_nothing(dataset):
    alone, helped = Fit(), Fit()
    assert train(alone, dataset) == train(helped, dataset, workers=1)
    assert torch.equal(alone.layer.weight, helped.layer.weight)


def test_a_checkpoint_of_another_run_is_refused_by_name(dataset, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(Fit(15), dataset, tmp_path)
    with pytest.raises(InputError, match="another a, b"):
        train(Fit(), dataset, tmp_path, identity={"a": 2, "b": 0})


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_a_damaged_checkpoint_is_named(dataset, tmp_path, name):
    with pytest.raises(KeyboardInterrupt):
        train(Fit(15), dataset, tmp_path)
    path = tmp_path / CHECKPOINT / name
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InputError, match="damaged"):
        train(Fit(), dataset, tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run(dataset, tmp_path):
    class Broken(Fit):
        def forward(self, batch, generator):
            loss = super().forward(batch, generator)
            return loss / 0 if self.steps == 14 else loss

    with pytest.raises(InputError, match=r"not finite at step 20.*smaller learning rate"):
        train(Broken(), dataset, tmp_path)
    assert json.loads((tmp_path / CHECKPOINT / "state.json").read_text())["step"] == 10


def test_the_objective_may_stop_at_a_checkpoint(dataset):
    class Refusing(Fit):
        def check(self, progress):
            if progress > 0.5:
                raise InputError(f"collapsed at {progress:.2f}")

    with pytest.raises(InputError, match=r"collapsed at 0\.67"):
        train(Refusing(), dataset)


@settings(max_examples=50, deadline=None)
@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    first=st.integers(0, 30),
    count=st.integers(0, 20),
    seed=st.integers(0, 2**31),
)
def test_batches_depend_on_their_number_alone(size, batch_size, first, count, seed):
    whole = list(SeededBatches(size, batch_size, seed, 0, first + count))
    part = SeededBatches(size, batch_size, seed, first, first + count)
    assert len(part) == count
    assert list(part) == whole[first:]
    for batch in whole:
        assert len(batch) == min(batch_size, size) == len(set(batch))
        assert 0 <= min(batch) <= max(batch) < size


def test_a_pass_shows_every_image_once():
    batches = list(SeededBatches(24, 6, 1, 0, 8))
    for start in (0, 4):
        assert sorted(index for batch in batches[start : start + 4] for index in batch) == list(range(24))
    assert batches[:4] != batches[4:]


def test_step_seeds_differ():
    seeds = {step_seed(a, b, 0) for a in range(20) for b in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_images_of_eight_bits_are_scaled_and_rows_stay_together():
    images = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1) * 51
    rows = ArrayImages(images, labels=torch.arange(6))
    batch = rows.__getitems__([5, 2])
    assert batch["images"].flatten().tolist() == pytest.approx([1.0, 0.4])
    assert batch["labels"].tolist() == [5, 2]
    assert rows[1]["images"].shape == (1, 1, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"learning_rate": 0}, "learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"warm_up": 1}, "warm_up"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"precision": "fp8"}, "precision is no or bf16"),
    ],
)
def test_bad_settings_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        Optimisation(**values)


def test_a_device_that_is_not_there_is_refused(dataset):
    with pytest.raises(InputError, match="auto, cpu or cuda"):
        run_training(Fit(), dataset, Optimisation(**FAST), seed=0, identity={}, device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no CUDA device"):
            run_training(Fit(), dataset, Optimisation(**FAST), seed=0, identity={}, device="cuda")
