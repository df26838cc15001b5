"""The engine for any module: Opacus's trajectory, exact folding, honest counting, refusals."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from scipy.stats import chi2
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from assay.errors import InputError
from assay.methods.cond_dp import (
    CondPrivacyEngine,
    LeakageError,
    NoisySteps,
    PublicConditioner,
    epsilon_spent,
    plain_state_dict,
)
from assay.methods.cond_dp.engine import BudgetExhaustedError, NonFiniteGradientError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
MODES = ["hooks", "functorch", "ghost"]


def rows(n=128, d=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=generator) * torch.tensor([3.0, 1, 0.5, 0.1, 0.05, 0.01])[:d]
    return X, X.sum(dim=1, keepdim=True)


def network(d=6, seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(d, 8), nn.ReLU(), nn.Linear(8, 1))


def loader(X, y, size=32, **options):
    return DataLoader(
        TensorDataset(X, y), batch_size=size, generator=torch.Generator().manual_seed(3), **options
    )


def prepared(
    engine, module, data, *, mode="hooks", kind=torch.optim.Adam, lr=0.01, seed=5, sigma=1.1, **options
):
    """The engine's module, optimizer and criterion for a module."""
    made = engine.make_private(
        module=module,
        optimizer=kind(module.parameters(), lr=lr),
        data_loader=data,
        criterion=nn.MSELoss(),
        noise_multiplier=sigma,
        max_grad_norm=0.5,
        grad_sample_mode=mode,
        noise_generator=torch.Generator().manual_seed(seed),
        **options,
    )
    criterion = made[2] if mode == "ghost" else nn.MSELoss()
    return made[0], made[1], criterion, made[-1]


def train(module, optimizer, criterion, batches, epochs=2):
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [32, 1])
def test_the_identity_gives_opacus_bit_by_bit(mode, size):
    """Also with an expected batch of one row, where a third of the batches are empty."""
    X, y = rows(n=32 if size == 1 else 128)
    theirs = prepared(PrivacyEngine(), network(), loader(X, y, size), mode=mode)
    train(*theirs)
    engine = CondPrivacyEngine()
    ours = prepared(
        engine, network(), loader(X, y, size), mode=mode, conditioner=PublicConditioner.identity(6)
    )
    train(*ours)
    for ours_p, theirs_p in zip(ours[0].parameters(), theirs[0].parameters(), strict=True):
        assert torch.equal(ours_p, theirs_p)
    assert engine.accountant.history == [(1.1, size / len(X), 2 * len(X) // size)]


@pytest.mark.parametrize("mode", MODES)
def test_a_matrix_of_ones_on_the_diagonal_gives_opacus_bit_by_bit(mode):
    X, y = rows()
    theirs = prepared(PrivacyEngine(), network(), loader(X, y), mode=mode)
    train(*theirs)
    unit = PublicConditioner.from_matrix(np.eye(6))
    ours = prepared(CondPrivacyEngine(), network(), loader(X, y), mode=mode, conditioner=unit)
    train(*ours)
    state = plain_state_dict(ours[0])
    for name, value in theirs[0]._module.state_dict().items():
        assert torch.equal(state[name], value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{}, {"standardize": True}, {"scale": "learned", "standardize": True}])
def test_switching_keeps_the_function(mode, options):
    X, y = rows()
    engine = CondPrivacyEngine()
    conditioner = PublicConditioner(**options).fit(X.numpy())
    module, optimizer, criterion, batches = prepared(
        engine, network(), loader(X, y), mode=mode, conditioner=conditioner
    )
    train(module, optimizer, criterion, batches)
    module.eval()
    before = module(X).detach()
    plain = network(seed=9)
    plain.load_state_dict(plain_state_dict(module))
    torch.testing.assert_close(plain(X), before, atol=1e-6, rtol=1e-5)
    assert not engine.switched
    engine.switch(lr=0.002, max_grad_norm=0.25)
    assert engine.switched
    torch.testing.assert_close(module(X), before, atol=1e-6, rtol=1e-5)
    first = module._module[0].layer
    assert first.weight not in optimizer.original_optimizer.state
    assert module._module[2].weight in optimizer.original_optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.002
    assert optimizer.max_grad_norm == 0.25
    module.train()
    train(module, optimizer, criterion, batches)
    assert len(engine.accountant) == 16
    plain.load_state_dict(plain_state_dict(module))
    module.eval()
    torch.testing.assert_close(plain(X), module(X).detach())


def test_the_switch_comes_by_itself():
    X, y = rows()
    engine = CondPrivacyEngine()
    conditioner = PublicConditioner().fit(X.numpy())
    private = prepared(engine, network(), loader(X, y), conditioner=conditioner, switch_epoch=1)
    train(*private, epochs=1)
    assert not engine.switched
    train(*private, epochs=1)
    assert engine.switched
    # From then on it is plain DP-SGD: nothing is mapped any more.
    layer = private[0]._module[0]
    torch.testing.assert_close(layer(X), layer.layer(X), rtol=0, atol=0)


def test_conditioning_acts_before_clipping():
    """The first step of a linear layer equals that of a layer whose inputs were conditioned beforehand."""
    X, y = rows()
    conditioner = PublicConditioner(standardize=True).fit(X.numpy())

    def linear():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 1))

    ours = prepared(CondPrivacyEngine(), linear(), loader(X, y), conditioner=conditioner)
    Z = torch.from_numpy(conditioner.transform(X.numpy())).float()
    theirs = prepared(PrivacyEngine(), linear(), loader(Z, y))
    train(*ours)
    train(*theirs)
    torch.testing.assert_close(
        ours[0]._module[0].layer.weight, theirs[0]._module[0].weight, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("seed", range(5))
def test_clipped_gradients_and_the_effect_of_a_label(seed):
    """Norms stay below R for random conditioners; a label moves the sum by up to 2R, here by more than R."""
    X, y = rows(seed=seed)
    A = np.random.default_rng(seed).normal(size=(6, 6)) * 3
    engine = CondPrivacyEngine()
    module, optimizer, criterion, _ = prepared(
        engine,
        network(),
        loader(X, y, 128),
        conditioner=PublicConditioner.from_matrix(A @ A.T),
        sampling="full",
        sigma=0.0,
    )

    def clipped_sum(labels, kept):
        optimizer.zero_grad()
        criterion(module(X[kept]), labels[kept]).backward()
        optimizer.clip_and_accumulate()
        return torch.cat([p.summed_grad.flatten() for p in optimizer.params])

    everything = slice(None)
    norms = [float(clipped_sum(y, slice(i, i + 1)).norm()) for i in range(10)]
    assert max(norms) <= 0.5 * (1 + 1e-6)
    changes = []
    for i in range(10):
        high, low = y.clone(), y.clone()
        high[i], low[i] = 1e4, -1e4
        changes.append(float((clipped_sum(high, everything) - clipped_sum(low, everything)).norm()))
    assert max(changes) <= 2 * 0.5 * (1 + 1e-4)
    assert max(changes) > 1.9 * 0.5


def test_the_noise_is_that_of_the_multiplier():
    X, _ = rows(n=4)
    module = nn.Sequential(nn.Linear(6, 500))
    with torch.no_grad():
        module[0].weight.zero_()
        module[0].bias.zero_()
    conditioner = PublicConditioner().fit(rows()[0].numpy())
    private, optimizer, criterion, _ = prepared(
        CondPrivacyEngine(),
        module,
        loader(X, torch.zeros(4, 500), 4),
        conditioner=conditioner,
        sampling="full",
        kind=torch.optim.SGD,
        lr=1.0,
        sigma=3.0,
    )
    train(private, optimizer, criterion, [(X, torch.zeros(4, 500))], epochs=1)
    # Without signal the weights are the noise, divided by the number of rows.
    noise = torch.cat([p.detach().flatten() for p in private.parameters()]).double() * 4 / (3.0 * 0.5)
    low, high = chi2.ppf([5e-4, 1 - 5e-4], noise.numel())
    assert low < float((noise**2).sum()) < high


def test_the_denominator_is_never_rounded():
    X, y = rows(n=100)
    engine = CondPrivacyEngine()
    _, optimizer, _, _ = prepared(
        engine, network(), loader(X, y, 30), conditioner=PublicConditioner.identity(6)
    )
    assert optimizer.expected_batch_size == 100 / 4


@pytest.mark.parametrize(("sampling", "size"), [("full", 128), ("poisson", 32)])
@pytest.mark.parametrize("adjacency", ["replace_label", "add_remove"])
def test_the_budget_is_met_and_then_refused(sampling, size, adjacency):
    X, y = rows()
    engine = CondPrivacyEngine()
    module, optimizer = _with_budget(engine, X, y, size, adjacency, sampling)
    train(module, optimizer, nn.MSELoss(), [(X, y)], epochs=3 * 128 // size)
    spent = engine.get_epsilon(1e-5)
    assert 1.9 <= spent <= 2.0
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(BudgetExhaustedError, match="the step was not taken"):
        train(module, optimizer, nn.MSELoss(), [(X, y)], epochs=1)
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True))
    assert all(p.grad is None for p in module.parameters())
    assert engine.get_epsilon(1e-5) == spent
    report = engine.privacy_report(1e-5)
    assert report.epsilon[adjacency] == spent
    assert report.epsilon["add_remove"] <= spent
    assert report.statement.startswith(f"({math.ceil(spent * 1e3 - 1e-6) / 1e3:g}, 1e-05)-DP")


def _with_budget(engine, X, y, size, adjacency, sampling):
    module = network()
    return engine.make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=loader(X, y, size),
        target_epsilon=2.0,
        target_delta=1e-5,
        epochs=3,
        max_grad_norm=0.5,
        conditioner=PublicConditioner.identity(6),
        adjacency=adjacency,
        sampling=sampling,
    )[:2]


def test_a_budget_for_a_given_noise():
    X, y = rows()
    engine = CondPrivacyEngine()
    private = prepared(
        engine,
        network(),
        loader(X, y, 128),
        sigma=20.0,
        sampling="full",
        conditioner=PublicConditioner.identity(6),
        budget=(1.0, 1e-5),
    )
    with pytest.raises(BudgetExhaustedError):
        train(*private[:3], [(X, y)], epochs=1000)
    taken = len(engine.accountant)
    assert engine.get_epsilon(1e-5) <= 1.0
    assert epsilon_spent([NoisySteps(20.0, 1.0, taken + 1)], 1e-5, "replace_label") > 1.0
    # More noise makes steps cheaper, and the rest of the budget is worth more of them.
    private[1].noise_multiplier = 200.0
    train(*private[:3], [(X, y)], epochs=1)
    assert [entry[0] for entry in engine.accountant.history] == [20.0, 200.0]


def test_the_ledger_is_ahead_of_the_step(tmp_path):
    X, y = rows()
    ledger = tmp_path / "ledger.json"
    engine = CondPrivacyEngine(ledger=ledger)
    module, optimizer, criterion, _ = prepared(
        engine, network(), loader(X, y), conditioner=PublicConditioner.identity(6)
    )
    before = [p.detach().clone() for p in module.parameters()]

    def crash():
        raise KeyboardInterrupt

    optimizer.original_optimizer.step = crash
    with pytest.raises(KeyboardInterrupt):
        train(module, optimizer, criterion, [(X, y)], epochs=1)
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True))
    # The step was not taken, but it counts, also for the next engine.
    again = CondPrivacyEngine(ledger=ledger)
    prepared(again, network(), loader(X, y), conditioner=PublicConditioner.identity(6))
    assert again.accountant.history == [(1.1, 0.25, 1)]
    with pytest.raises(InputError, match="holds 1 steps already"):
        _with_budget(CondPrivacyEngine(ledger=ledger), X, y, 32, "replace_label", "poisson")
    with pytest.raises(InputError, match="kept for adjacency 'replace_label'"):
        prepared(
            CondPrivacyEngine(ledger=ledger),
            network(),
            loader(X, y),
            conditioner=PublicConditioner.identity(6),
            adjacency="semi_sensitive",
        )
    ledger.write_text("{}")
    with pytest.raises(InputError, match="not a privacy ledger"):
        prepared(
            CondPrivacyEngine(ledger=ledger),
            network(),
            loader(X, y),
            conditioner=PublicConditioner.identity(6),
        )


def test_a_loss_that_overflows_stops_the_run_and_keeps_the_count():
    X, y = rows()
    engine = CondPrivacyEngine()
    module, optimizer, criterion, _ = prepared(
        engine, network(), loader(X, y), conditioner=PublicConditioner.identity(6)
    )
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(NonFiniteGradientError, match="counts as spent"):
        train(module, optimizer, criterion, [(X, y * math.inf)], epochs=1)
    assert len(engine.accountant) == 1
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True))


def test_gradients_must_not_be_accumulated():
    X, y = rows()
    module, _, criterion, _ = prepared(
        CondPrivacyEngine(),
        network(),
        loader(X, y, 128),
        conditioner=PublicConditioner.identity(6),
        sampling="full",
    )
    criterion(module(X), y).backward()
    with pytest.raises(ValueError, match="grad accumulation"):
        criterion(module(X), y).backward()


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("make", "sampling", "words"),
    [
        (
            lambda data: DataLoader(data, 32, sampler=WeightedRandomSampler([1.0] * 128, 128)),
            "poisson",
            "Weighted",
        ),
        (
            lambda data: DataLoader(data, 32, sampler=RandomSampler(data, replacement=True)),
            "poisson",
            "unknown",
        ),
        (
            lambda data: DataLoader(data, 32, sampler=RandomSampler(data, num_samples=64)),
            "poisson",
            "unknown",
        ),
        (lambda data: DataLoader(data, batch_sampler=[[0, 1]]), "poisson", "unknown"),
        (lambda data: DataLoader(data, 32, shuffle=True), "full", "4 batches"),
        (lambda data: DataLoader(data, 128, drop_last=True), "full", "drop_last=False"),
        (lambda data: DataLoader(Endless()), "poisson", "IterableDataset"),
        (lambda data: DataLoader(data, 32), "shuffle", "no amplification"),
    ],
)
def test_loaders_that_cannot_be_accounted_for(make, sampling, words):
    X, y = rows()
    with pytest.raises(InputError, match=words):
        prepared(
            CondPrivacyEngine(),
            network(),
            make(TensorDataset(X, y)),
            conditioner=PublicConditioner.identity(6),
            sampling=sampling,
        )


def test_a_shuffled_loader_is_replaced_by_poisson_samples():
    X, y = rows()
    data = DataLoader(TensorDataset(X, y), 32, shuffle=True)
    _, _, _, batches = prepared(
        CondPrivacyEngine(), network(), data, conditioner=PublicConditioner.identity(6)
    )
    sizes = [len(x) for _ in range(10) for x, _ in batches]
    assert len(set(sizes)) > 5
    # The samples are not drawn from the global generator, which others may have seeded.
    assert batches.batch_sampler.generator is not None


@pytest.mark.parametrize(
    ("module", "options", "words"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), {}, "BatchNorm"),
        (nn.Sequential(nn.Conv1d(6, 4, 1), nn.Flatten(), nn.Linear(4, 1)), {}, "is a Conv1d"),
        (nn.Sequential(nn.Linear(7, 1)), {}, "for 6 features, but the first layer '0' takes 7"),
        (nn.Sequential(nn.Linear(6, 1)), {"first_layer": "head"}, "'head' is not in the module"),
        (nn.Sequential(nn.Linear(6, 1, bias=False)), {}, "needs a bias"),
        (nn.Sequential(nn.EmbeddingBag(6, 4), nn.Linear(4, 1)), {}, "must have mode='sum'"),
        (nn.Sequential(nn.ReLU()), {}, "no parameters"),
        (nn.Sequential(nn.Linear(6, 1)), {"clipping": "per_layer"}, "only 'flat'"),
        (nn.Sequential(nn.Linear(6, 1)), {"adjacency": "user"}, "adjacency is 'user'"),
        (nn.Sequential(nn.Linear(6, 1)), {"switch_epoch": -1}, "switch_epoch is -1"),
        (nn.Sequential(nn.Linear(6, 1)), {"budget": (0, 1e-6)}, "epsilon is 0"),
        (nn.Sequential(nn.Linear(6, 1)), {"conditioner": None}, "must be a fitted"),
        (
            nn.Sequential(nn.Linear(6, 1)),
            {"bias_correction": True, "kind": torch.optim.SGD},
            "torch.optim.Adam",
        ),
    ],
)
def test_what_cannot_be_trained(module, options, words):
    X, y = rows()
    conditioner = PublicConditioner(standardize=True).fit(X.numpy())
    kind = options.get("kind", torch.optim.SGD)
    optimizer_module = module if any(True for _ in module.parameters()) else nn.Linear(1, 1)
    with pytest.raises(InputError, match=words):
        CondPrivacyEngine().make_private(
            module=module,
            optimizer=kind(optimizer_module.parameters(), lr=0.1),
            data_loader=loader(X, y),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            **({"conditioner": conditioner} | {k: v for k, v in options.items() if k != "kind"}),
        )


def test_private_rows_must_not_make_the_conditioner():
    X, y = rows()
    with pytest.raises(LeakageError, match="fitted on the rows"):
        prepared(
            CondPrivacyEngine(),
            network(),
            loader(X, y),
            conditioner=PublicConditioner().fit(X.double().numpy()),
            adjacency="add_remove",
        )
    others = PublicConditioner().fit(rows(seed=4)[0].double().numpy())
    prepared(CondPrivacyEngine(), network(), loader(X, y), conditioner=others, adjacency="add_remove")


@pytest.mark.parametrize("sampling", ["full", "poisson"])
def test_secure_mode_is_that_of_opacus(monkeypatch, sampling):
    monkeypatch.setitem(sys.modules, "torchcsprng", None)
    with pytest.raises(ImportError, match="torchcsprng"):
        CondPrivacyEngine(secure_mode=True)
    secure = torch.Generator().manual_seed(1)
    package = SimpleNamespace(create_random_device_generator=lambda device: secure)
    monkeypatch.setitem(sys.modules, "torchcsprng", package)
    X, y = rows()
    engine = CondPrivacyEngine(secure_mode=True)
    module = network()
    made = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=loader(X, y, 128 if sampling == "full" else 32),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        conditioner=PublicConditioner.identity(6),
        sampling=sampling,
    )
    assert made[1].generator is secure
    assert made[1].secure_mode
    before = secure.get_state()
    train(made[0], made[1], nn.MSELoss(), made[2], epochs=1)
    assert not torch.equal(secure.get_state(), before)
    assert "seed" not in engine.privacy_report(1e-5).statement


def test_an_engine_serves_one_model():
    X, y = rows()
    engine = CondPrivacyEngine()
    with pytest.raises(InputError, match="call make_private first"):
        engine.switch()
    prepared(engine, network(), loader(X, y), conditioner=PublicConditioner.identity(6))
    with pytest.raises(InputError, match="use a new engine"):
        prepared(engine, network(), loader(X, y), conditioner=PublicConditioner.identity(6))


def test_the_module_may_be_the_layer_itself():
    X, y = rows()
    conditioner = PublicConditioner(standardize=True).fit(X.numpy())
    private = prepared(CondPrivacyEngine(), nn.Linear(6, 1), loader(X, y), conditioner=conditioner)
    train(*private)
    plain = nn.Linear(6, 1)
    plain.load_state_dict(plain_state_dict(private[0]))
    torch.testing.assert_close(plain(X), private[0](X).detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_bags_of_indices(mode):
    """A bag's counts are conditioned; afterwards an ordinary EmbeddingBag computes the same."""
    generator = torch.Generator().manual_seed(0)
    bags = torch.randint(10, (64, 3), generator=generator)
    counts = torch.zeros(64, 10).scatter_add_(1, bags, torch.ones(64, 3))
    y = counts[:, :1]
    conditioner = PublicConditioner(gamma=0.05).fit(counts.numpy())

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.bag = nn.EmbeddingBag(10, 4, mode="sum")
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.bag(x))

    private = prepared(
        CondPrivacyEngine(), Bag(), loader(bags, y, 16), mode=mode, conditioner=conditioner, sigma=0.3
    )
    conditioned = private[0]._module.bag
    expected = torch.from_numpy(conditioner.transform(counts.numpy())).float() @ conditioned.layer.weight
    flat = bags.reshape(-1), torch.arange(0, 192, 3)
    with torch.no_grad():
        torch.testing.assert_close(conditioned(bags), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(conditioned(*flat), expected, atol=1e-5, rtol=1e-4)
    train(*private)
    private[0].eval()
    plain = Bag()
    plain.load_state_dict(plain_state_dict(private[0]))
    torch.testing.assert_close(plain(bags), private[0](bags).detach(), atol=1e-5, rtol=1e-4)
    before = private[0](bags).detach()
    conditioned.fold()
    torch.testing.assert_close(private[0](bags), before, atol=1e-5, rtol=1e-4)


def test_wide_conditioners_are_applied_in_parts(monkeypatch):
    from assay.methods.cond_dp import conditioner, conditioning

    monkeypatch.setattr(conditioner, "WIDE", 5)
    monkeypatch.setattr(conditioning, "WIDE", 5)
    X, _ = rows()
    wide = PublicConditioner(rank=3).fit(X.double().numpy())
    layer = conditioning.PublicConditioning(wide, dtype=torch.float64)
    torch.testing.assert_close(layer(X.double()), torch.from_numpy(wide.transform(X.double().numpy())))
    assert layer.matrix.numel() == 0


def test_bias_correction_is_that_of_the_linear_path():
    from assay.methods.cond_dp.linear import LinearTraining, train_linear

    X, y = (value.double() for value in rows(n=32))
    module = nn.Sequential(nn.Linear(6, 1, dtype=torch.float64))
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    private = prepared(
        CondPrivacyEngine(),
        module,
        loader(X, y, 32),
        conditioner=PublicConditioner.identity(6),
        sampling="full",
        bias_correction=True,
        sigma=4.0,
    )
    train(*private[:3], [(X, y)], epochs=10)
    generator = torch.Generator().manual_seed(5)

    def same_noise(size):
        return torch.normal(0.0, 1.0, (size,), generator=generator, dtype=torch.float64).numpy()

    training = LinearTraining(steps=10, lr=0.01, clip=0.5, sigma=4.0, bias_correction=True)
    weights, intercept = train_linear(
        X.numpy(), y.numpy()[:, 0], training, same_noise, np.random.default_rng(0)
    )
    np.testing.assert_allclose(module[0].weight.detach().numpy()[0], weights, atol=1e-6)
    assert float(module[0].bias) == pytest.approx(intercept, abs=1e-6)
