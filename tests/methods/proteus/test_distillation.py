"""Distillation: only affine statistics learn, nothing gets worse, packed codes stay."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from assay.errors import InputError
from assay.methods.proteus.config import ProteusConfig
from assay.methods.proteus.distillation import (
    RETRIES,
    Tuning,
    TuningSettings,
    distill_block,
    distill_model,
    tune,
    tuning,
)
from assay.methods.proteus.linear import ProteusLinear, proteus_layers
from assay.methods.proteus.report import fingerprint

FAST = TuningSettings(learning_rate=5e-3, epochs=4, batch=2)


@pytest.fixture
def layer(random_layer) -> ProteusLinear:
    return ProteusLinear.from_layer(random_layer(48, 64), ProteusConfig(window=6), bias=torch.ones(48))


def off(layer):
    """The layer with scales that are wrong by a few percent: something to learn."""
    wrong = copy.deepcopy(layer)
    generator = torch.Generator().manual_seed(1)
    wrong.sv = (wrong.sv.float() * (1 + 0.1 * torch.randn(48, generator=generator))).half()
    wrong.su = (wrong.su.float() * (1 + 0.1 * torch.randn(64, generator=generator))).half()
    wrong.affine = wrong.affine * torch.tensor([1.2, 0.5])
    return wrong


def examples(count=20):
    x = torch.randn(count, 8, 64, generator=torch.Generator().manual_seed(2))
    return list(x.split(2))


def codes(model):
    return {
        name: fingerprint(layer.state_dict(), ("gen", "qweight"))
        for name, layer in proteus_layers(model).items()
    }


def relearn(layer, settings=FAST):
    wrong = nn.Sequential(off(layer))
    inputs = examples()
    with torch.no_grad():
        targets = [layer(x) for x in inputs]
    report = distill_block(wrong, lambda index, hidden: wrong(hidden), inputs, targets, settings, seed=0)
    return wrong, report, inputs, targets


def test_wrong_scales_are_learnt_again(layer):
    wrong, report, inputs, targets = relearn(
        layer, TuningSettings(learning_rate=2e-2, epochs=30, batch=2, patience=30)
    )
    assert report.status == "improved"
    assert report.after < 0.02 * report.before
    with torch.no_grad():
        assert (wrong(inputs[0]) - targets[0]).norm() < 0.15 * targets[0].norm()


def test_the_packed_bytes_do_not_change(layer):
    # Acceptance check 14.
    wrong, report, *_ = relearn(layer)
    before, after = codes(nn.Sequential(layer)), codes(wrong)
    assert before == after
    assert report.status == "improved"
    assert fingerprint(wrong[0].state_dict()) != fingerprint(off(layer).state_dict())
    assert torch.equal(wrong[0].bias, layer.bias)
    assert wrong[0].su.dtype == wrong[0].sv.dtype == torch.float16


def test_the_stored_layer_has_the_reported_loss(layer):
    wrong, report, inputs, targets = relearn(layer)
    held = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[:2]
    with torch.no_grad():
        losses = [
            ((wrong(inputs[i]) - targets[i]).square().mean(-1) / targets[i].square().mean(-1)).mean()
            for i in held
        ]
    assert float(torch.stack(losses).mean()) == pytest.approx(report.after, rel=1e-5)


def test_a_perfect_layer_is_left_alone(layer):
    same = nn.Sequential(copy.deepcopy(layer))
    inputs = examples()
    with torch.no_grad():
        targets = [layer(x) for x in inputs]
    before = fingerprint(same[0].state_dict())
    report = distill_block(same, lambda index, hidden: same(hidden), inputs, targets, FAST, seed=0)
    assert report.status == "unchanged"
    assert report.before == report.after
    assert fingerprint(same[0].state_dict()) == before


def test_training_starts_at_the_stored_scales(layer):
    x = examples()[0]
    with torch.no_grad():
        expected = layer(x)
        with tuning({"layer": layer}):
            torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    assert layer.tuned is None
    assert layer.decoded is None


def test_gradients_are_those_of_finite_differences(layer):
    x = examples()[0][0, 0]
    direction = torch.randn(48, generator=torch.Generator().manual_seed(3))
    with tuning({"layer": layer}) as trained:
        (layer(x) @ direction).backward()
        for index, parameter in enumerate(trained.parameters):
            flat = parameter.detach().view(-1)
            for position in {0, len(flat) - 1}:
                values = []
                for step in (1e-2, -1e-2):
                    flat[position] += step
                    with torch.no_grad():
                        values.append(float(layer(x) @ direction))
                    flat[position] -= step
                slope = (values[0] - values[1]) / 2e-2
                assert float(parameter.grad.view(-1)[position]) == pytest.approx(slope, rel=2e-2, abs=2e-3), (
                    index
                )


@pytest.mark.parametrize("fails", ["always", "at first"])
def test_losses_that_are_not_finite_end_in_the_best_state(layer, fails):
    wrong = off(layer)
    before = fingerprint(wrong.state_dict())
    inputs, calls = examples(), []
    with torch.no_grad():
        targets = [layer(x) for x in inputs]

    def loss(batch):
        value = torch.stack([(wrong(inputs[i]) - targets[i]).square().mean() for i in batch]).mean()
        if torch.is_grad_enabled():
            calls.append(batch)
            if fails == "always" or len(calls) == 1:
                return value * float("nan")
        return value

    if fails == "always":
        with pytest.warns(UserWarning, match="distillation was given up: its loss was not finite"):
            report = tune({"layer": wrong}, loss, len(inputs), FAST, seed=0)
        assert report.status == "aborted"
        assert len(calls) == RETRIES + 1
        assert fingerprint(wrong.state_dict()) == before
    else:
        report = tune({"layer": wrong}, loss, len(inputs), FAST, seed=0)
        assert report.status == "improved"


def test_an_error_leaves_ordinary_layers(layer):
    def loss(batch):
        raise KeyError("no")

    with pytest.raises(KeyError):
        tune({"layer": layer}, loss, 4, FAST, seed=0)
    assert layer.tuned is None
    layer(examples()[0])


def test_scales_that_leave_half_precision_are_stored_in_float32(layer):
    trained = Tuning({"layer": layer})
    trained.parameters[3].data.fill_(12.0)
    trained.store()
    assert layer.sv.dtype == torch.float32
    assert layer.su.dtype == torch.float16


def test_the_seed_decides(layer):
    first, second = relearn(layer)[0], relearn(layer)[0]
    assert fingerprint(first[0].state_dict()) == fingerprint(second[0].state_dict())


def test_end_to_end(packed_model, token_ids):
    teacher, student = packed_model(), packed_model()
    for seed, layer in enumerate(proteus_layers(student).values()):
        noise = torch.randn(len(layer.sv), generator=torch.Generator().manual_seed(seed))
        layer.sv = (layer.sv.float() * (1 + 0.2 * noise)).half()
    before = codes(student)
    rest = {name: p.clone() for name, p in student.named_parameters()}
    blocks = list(student.model.layers)
    report = distill_model(student, teacher, token_ids(12, 16), FAST, blocks=blocks, seed=0)
    assert report.status == "improved"
    assert report.after < 0.8 * report.before
    assert codes(student) == before
    assert all(torch.equal(rest[name], p) for name, p in student.named_parameters())
    assert all("forward" not in block.__dict__ for block in blocks)


def test_recomputing_blocks_does_not_change_what_is_learnt(packed_model, token_ids):
    results = []
    for recompute in (False, True):
        teacher, student = packed_model("gpt2"), packed_model("gpt2")
        for layer in proteus_layers(student).values():
            layer.affine = layer.affine * 1.1
        blocks = list(student.transformer.h) if recompute else []
        results.append(distill_model(student, teacher, token_ids(6, 12), FAST, blocks=blocks, seed=0))
    assert results[0].after == pytest.approx(results[1].after, rel=1e-4)


def test_bad_input(layer, tiny_model, token_ids):
    with pytest.raises(InputError, match="needs at least 2 sequences, one of them held out; there are 1"):
        tune({"layer": layer}, lambda batch: torch.zeros(()), 1, FAST, seed=0)
    with pytest.raises(InputError, match="the model has no proteus layers to distill"):
        distill_model(tiny_model(), tiny_model(), token_ids(4, 8))
    block = nn.Sequential(nn.Linear(4, 4))
    assert distill_block(block, lambda index, hidden: block(hidden), [], []) is None
