"""Checkpoints: a resumed run is the uninterrupted one, and its count never goes down."""

import json
import stat

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from assay.errors import InputError
from assay.methods.cond_dp import CondPrivacyEngine, PublicConditioner

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(dim=1, keepdim=True)


def start(ledger=None, mode="hooks", seed=5, scale="fixed", **options):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    engine = CondPrivacyEngine(ledger=ledger)
    made = engine.make_private(
        module=module,
        optimizer=torch.optim.Adam(module.parameters(), lr=0.01),
        data_loader=DataLoader(
            TensorDataset(X, Y), batch_size=16, generator=torch.Generator().manual_seed(3)
        ),
        criterion=nn.MSELoss(),
        noise_multiplier=1.1,
        max_grad_norm=0.5,
        grad_sample_mode=mode,
        conditioner=PublicConditioner(standardize=True, scale=scale).fit(X.numpy()),
        noise_generator=torch.Generator().manual_seed(seed),
        **options,
    )
    return engine, made[0], made[1], made[2] if mode == "ghost" else nn.MSELoss(), made[-1]


def epoch(run, epochs=1):
    _, module, optimizer, criterion, batches = run
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()


def parameters(run):
    return [p.detach().clone() for p in run[1].parameters()]


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("switch_epoch", [None, 1])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, mode, switch_epoch):
    whole = start(mode=mode, switch_epoch=switch_epoch, scale="learned")
    epoch(whole, 4)
    first = start(mode=mode, switch_epoch=switch_epoch, scale="learned")
    epoch(first, 2)
    first[0].save_checkpoint(path=tmp_path / "checkpoint")
    second = start(mode=mode, switch_epoch=switch_epoch, scale="learned", seed=99)
    second[0].load_checkpoint(path=tmp_path / "checkpoint")
    assert second[0].switched == (switch_epoch == 1)
    epoch(second, 2)
    assert second[0].accountant.history == whole[0].accountant.history
    for ours, theirs in zip(parameters(second), parameters(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_nobody_else_can_read_a_checkpoint(tmp_path):
    run = start()
    run[0].save_checkpoint(path=tmp_path / "checkpoint")
    for name in ("state.json", "state.safetensors"):
        assert stat.S_IMODE((tmp_path / "checkpoint" / name).stat().st_mode) == 0o600


def test_steps_after_the_checkpoint_still_count_and_their_noise_is_not_used_again(tmp_path):
    run = start(ledger=tmp_path / "ledger.json")
    epoch(run)
    run[0].save_checkpoint(path=tmp_path / "checkpoint")
    epoch(run)
    after_crash = start(ledger=tmp_path / "ledger.json")
    after_crash[0].load_checkpoint(path=tmp_path / "checkpoint")
    assert len(after_crash[0].accountant) == 8
    # The generator of the checkpoint would repeat the noise of the lost steps.
    saved = start()
    saved[0].load_checkpoint(path=tmp_path / "checkpoint")
    assert not torch.equal(after_crash[0].generator.get_state(), saved[0].generator.get_state())
    epoch(after_crash)
    assert json.loads((tmp_path / "ledger.json").read_text())["history"] == [[1.1, 0.25, 12]]


def test_a_checkpoint_raises_the_count_of_a_ledger_that_is_behind(tmp_path):
    run = start()
    epoch(run, 2)
    run[0].save_checkpoint(path=tmp_path / "checkpoint")
    resumed = start(ledger=tmp_path / "ledger.json")
    resumed[0].load_checkpoint(path=tmp_path / "checkpoint")
    assert len(resumed[0].accountant) == 8
    assert json.loads((tmp_path / "ledger.json").read_text())["history"] == [[1.1, 0.25, 8]]


def change(folder, **changes):
    document = json.loads((folder / "state.json").read_text())
    for name, value in changes.items():
        if value is None:
            del document[name]
        else:
            document[name] = value
    (folder / "state.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"history": None}, "no privacy history"),
        ({"history": "none"}, "no readable privacy history"),
        ({"history": [[1.0, 2.0, 3]]}, "impossible entries"),
        ({"history": [[1.0, 0.5, -3]]}, "impossible entries"),
        ({"adjacency": "add_remove"}, "trained for adjacency 'add_remove'"),
        ({"format": "other"}, "not a checkpoint of CondPrivacyEngine"),
        ({"format_version": 99}, "format version 99"),
    ],
)
def test_checkpoints_that_must_not_be_resumed(tmp_path, changes, words):
    run = start()
    epoch(run)
    run[0].save_checkpoint(path=tmp_path / "checkpoint")
    change(tmp_path / "checkpoint", **changes)
    with pytest.raises(InputError, match=words):
        start()[0].load_checkpoint(path=tmp_path / "checkpoint")


def test_damaged_checkpoints(tmp_path):
    with pytest.raises(InputError, match="not a checkpoint that can be read"):
        start()[0].load_checkpoint(path=tmp_path / "none")
    run = start()
    epoch(run)
    run[0].save_checkpoint(path=tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "state.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(InputError, match="not a checkpoint that can be read"):
        start()[0].load_checkpoint(path=tmp_path / "checkpoint")


def test_a_checkpoint_of_another_model_keeps_the_count(tmp_path):
    run = start(scale="learned")
    epoch(run)
    run[0].save_checkpoint(path=tmp_path / "checkpoint")
    other = start()
    with pytest.raises(InputError, match="does not fit"):
        other[0].load_checkpoint(path=tmp_path / "checkpoint")
    assert len(other[0].accountant) == 4
