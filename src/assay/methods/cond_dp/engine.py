"""Opacus's engine with a conditioner in front of the model and accounting for the right neighbour
relation."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch import nn, optim
from torch.utils.data import DataLoader

from assay.errors import InputError
from assay.files import write_json
from assay.methods.cond_dp.accountant import AdjacencyAccountant
from assay.methods.cond_dp.accounting import (
    COARSE_INTERVAL,
    SENSITIVITY,
    Adjacency,
    NoisySteps,
    PrivacyReport,
    Sampling,
    calibrate,
    check_adjacency,
    check_budget,
    epsilon_spent,
    replacement_epsilons,
)
from assay.methods.cond_dp.adam_correction import correct_bias
from assay.methods.cond_dp.conditioner import PublicConditioner
from assay.methods.cond_dp.conditioning import ConditionedLayer, insert_conditioning
from assay.methods.cond_dp.requirements import check_conditioner, check_loader, check_module
from assay.methods.cond_dp.validation import SEED_NOTE


class BudgetExhaustedError(InputError):
    """One more step would cost more than the budget; it was not taken."""


class NonFiniteGradientError(InputError):
    """A noisy gradient is not finite. The step was not taken, but it counts."""


class CondPrivacyEngine(PrivacyEngine):
    """`opacus.PrivacyEngine` for models whose public inputs are conditioned.

    `make_private` and `make_private_with_epsilon` take Opacus's arguments and a conditioner, and return
    Opacus's own module, optimizer (criterion with ghost clipping) and data loader. Beyond Opacus, the engine

    - counts what replacing a label (or a row) costs, which is about twice what adding or removing one does;
    - divides by a constant, the expected batch size, that is never rounded;
    - refuses samplers whose sampling it cannot account for;
    - records a step before it is taken, also on disk, and refuses steps beyond the budget.

    Args:
        ledger: a JSON file that holds the accountant's history and is written before every step; None for
            none. An engine that starts with an existing ledger continues its count.
        secure_mode: as in Opacus, draw noise from a cryptographic generator (needs torchcsprng).

    Raises:
        InputError: the ledger exists and is not one.
    """

    accountant: AdjacencyAccountant

    def __init__(self, *, ledger: Path | str | None = None, secure_mode: bool = False) -> None:
        super().__init__(secure_mode=secure_mode)
        self.accountant = AdjacencyAccountant()
        self.ledger = None if ledger is None else Path(ledger)
        self._prepared = False

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: optim.Optimizer,
        data_loader: DataLoader,
        noise_multiplier: float,
        max_grad_norm: float,
        conditioner: PublicConditioner,
        first_layer: Literal["auto"] | str = "auto",
        adjacency: Adjacency = "replace_label",
        sampling: Sampling = "poisson",
        switch_epoch: int | None = None,
        budget: tuple[float, float] | None = None,
        bias_correction: bool = False,
        noise_generator: torch.Generator | None = None,
        **opacus: Any,
    ) -> Any:
        """Make training private.

        Args:
            module, optimizer, data_loader, noise_multiplier, max_grad_norm: as in Opacus. Batches of the
                loader are replaced by Poisson samples of the same expected size, unless `sampling` is "full".
            conditioner: fitted on the public inputs of the first layer.
            first_layer: the Linear or EmbeddingBag to condition; "auto" is the first layer with parameters.
            adjacency: what may change without being noticed.
            sampling: "poisson", or "full" for a loader whose one batch is the whole data set.
            switch_epoch: after so many epochs C is folded into the layer and training goes on without it
                (`switch`); None for never.
            budget: (epsilon, delta) that steps must not exceed.
            bias_correction: subtract the noise's share from Adam's second moment (DP-AdamBC).
            noise_generator: the source of noise. None: a new one, seeded by the operating system.
            opacus: further arguments of Opacus: criterion, grad_sample_mode, loss_reduction, batch_first,
                wrap_model, rand_on_empty.

        Raises:
            LeakageError: the conditioner was computed from rows that are to be protected.
            InputError: an argument is invalid, or something cannot be accounted for.

        Source: section 3; the switch after `switch_epoch` is Switch-Cond-DP.
        """
        if self._prepared:
            raise InputError("this engine has a model already: use a new engine, or the costs would mix")
        if budget is not None:
            check_budget(*budget)
        if opacus.get("clipping", "flat") != "flat":
            raise InputError(
                f"clipping is {opacus['clipping']!r}: only 'flat' clipping is accounted for here"
            )
        if switch_epoch is not None and switch_epoch < 0:
            raise InputError(f"switch_epoch is {switch_epoch!r}: pass a whole number >= 0, or None")
        check_adjacency(adjacency)
        check_loader(data_loader, sampling)
        check_module(module)
        check_conditioner(conditioner, adjacency, data_loader)
        self.accountant.adjacency = adjacency
        self._read_ledger()
        module, self._layer = _with_conditioner(module, conditioner, first_layer, optimizer)
        self.sampling: Sampling = sampling
        self.budget, self._bias_correction = budget, bias_correction
        self._allowed: dict[tuple[float, float], int] = {}
        seeded = noise_generator is not None
        if noise_generator is None and not self.secure_mode:
            device = next(module.parameters()).device
            noise_generator = torch.Generator(device).manual_seed(secrets.randbits(63))
        self._seeded, self.generator = seeded, noise_generator
        made = super().make_private(
            module=module,
            optimizer=optimizer,
            data_loader=data_loader,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            poisson_sampling=sampling == "poisson",
            noise_generator=noise_generator,
            **opacus,
        )
        self.module, self.optimizer, self.data_loader = made[0], made[1], made[-1]
        self.n_rows = len(data_loader.dataset)  # pyright: ignore[reportArgumentType]
        # Opacus's own sampling: one over the number of batches.
        self.sample_rate = 1 / len(data_loader)
        # Not rounded down, as Opacus does: the constant must not depend on a row more or less.
        self.optimizer.expected_batch_size = self.n_rows * self.sample_rate  # pyright: ignore[reportAttributeAccessIssue]
        self.module.forbid_grad_accumulation()
        self.optimizer.attach_step_hook(self._before_step)
        self._steps_per_epoch, self._switch_epoch = len(data_loader), switch_epoch
        inner: Any = getattr(self.module, "_module", self.module)
        if switch_epoch is not None and isinstance(inner, nn.Module):
            inner.register_forward_pre_hook(self._maybe_switch)
        self._prepared = True
        return made

    def make_private_with_epsilon(
        self,
        *,
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        data_loader: DataLoader,
        adjacency: Adjacency = "replace_label",
        sampling: Sampling = "poisson",
        **arguments: Any,
    ) -> Any:
        """`make_private` with the noise that makes `epochs` epochs cost (target_epsilon, target_delta).

        The target is also the budget: a step beyond it is refused.

        Args:
            target_epsilon, target_delta: the budget for `adjacency`.
            epochs: how often the loader will be gone through.
            data_loader, adjacency, sampling, arguments: as in `make_private`.

        Raises:
            InputError: see `make_private`; or the ledger holds steps already.
        """
        check_budget(target_epsilon, target_delta)
        check_adjacency(adjacency)
        check_loader(data_loader, sampling)
        self._read_ledger()
        if len(self.accountant):
            raise InputError(
                f"{self.ledger} holds {len(self.accountant)} steps already: continue with load_checkpoint, "
                "or start "
                "with a new ledger and add up both costs"
            )
        sigma = calibrate(
            target_epsilon,
            target_delta,
            epochs * len(data_loader),
            adjacency=adjacency,
            sampling=sampling,
            sample_rate=1 / len(data_loader),
        )
        made = self.make_private(
            data_loader=data_loader,
            noise_multiplier=sigma,
            adjacency=adjacency,
            sampling=sampling,
            budget=(target_epsilon, target_delta),
            **arguments,
        )
        # Calibrated for exactly so many; rounding must not refuse the last one.
        self._allowed[(float(sigma), self.sample_rate)] = epochs * len(data_loader)
        return made

    def switch(self, *, lr: float | None = None, max_grad_norm: float | None = None) -> None:
        """Fold C into the first layer and go on without it; the function of the model stays the same.

        The optimizer forgets its moments of the layer, which belong to another geometry. The accountant goes
        on: noise multiplier and sampling are as before.

        Args:
            lr: learning rate from here on; None for the old one.
            max_grad_norm: clipping norm from here on; None for the old one.

        Source: Switch-Cond-DP, section 3; the exact fold and the reset are ours.
        """
        self._require_model()
        state = self.optimizer.original_optimizer.state
        for parameter in [] if self._layer is None else self._layer.fold():
            state.pop(parameter, None)
        hooks: Any = self.module
        if hasattr(hooks, "trainable_parameters"):
            hooks.trainable_parameters = [p for p in hooks.trainable_parameters if p.requires_grad]
        if lr is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
        if max_grad_norm is not None:
            self.optimizer.max_grad_norm = max_grad_norm
            if hasattr(hooks, "max_grad_norm"):
                hooks.max_grad_norm = max_grad_norm

    @property
    def switched(self) -> bool:
        """Whether C is folded into the layer."""
        return self._layer is None or bool(self._layer.conditioning.folded)

    def privacy_report(self, delta: float) -> PrivacyReport:
        """What the steps until now guarantee."""
        self._require_model()
        history = self.accountant.steps()
        adjacency, clip = self.accountant.adjacency, float(self.optimizer.max_grad_norm)
        rows = (
            "on all rows" if self.sampling == "full" else f"on Poisson samples of rate {self.sample_rate:.4g}"
        )
        kind = "DP-Adam" if isinstance(self.optimizer.original_optimizer, optim.Adam) else "DP-SGD"
        features = {
            "replace_label": "features of the training rows",
            "semi_sensitive": "the public features of the training rows",
            "add_remove": "the conditioner",
        }[adjacency]
        return PrivacyReport(
            mechanism=f"{len(self.accountant)} steps of {kind} {rows}, clipping norm {clip:g}",
            adjacency=adjacency,
            epsilon=replacement_epsilons(history, delta, adjacency),
            delta=delta,
            public=(features, f"the number of rows ({self.n_rows})", "the hyper-parameters"),
            sigma=history[-1].sigma if history else float(self.optimizer.noise_multiplier),
            clip=clip,
            steps=len(self.accountant),
            sampling=self.sampling,
            sample_rate=self.sample_rate,
            sensitivity=SENSITIVITY[adjacency],
            notes=(SEED_NOTE,) if self._seeded else (),
        )

    def save_checkpoint(self, *, path: Path | str, **_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write model, optimizer, accountant and noise generator to a folder
        (`checkpoints.save_checkpoint`)."""
        from assay.methods.cond_dp.checkpoints import save_checkpoint

        self._require_model()
        save_checkpoint(self, Path(path))

    def load_checkpoint(self, *, path: Path | str, **_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Continue from a folder that `save_checkpoint` wrote (`checkpoints.load_checkpoint`)."""
        from assay.methods.cond_dp.checkpoints import load_checkpoint

        self._require_model()
        load_checkpoint(self, Path(path))

    def adopt_history(self, history: Sequence[tuple[float, float, int]]) -> bool:
        """Take over a history unless the own one is longer: a count never goes down.

        Returns:
            Whether both were the same.
        """
        known = self.accountant.history
        same = [tuple(entry) for entry in history] == [tuple(entry) for entry in known]
        if sum(entry[2] for entry in history) > len(self.accountant):
            self.accountant.history = [(float(s), float(q), int(n)) for s, q, n in history]
        self._allowed = {}
        self._write_ledger()
        return same

    def _before_step(self, optimizer: DPOptimizer) -> None:
        """Called by the optimizer after the noise and before the step."""
        if optimizer.accumulated_iterations != 1:
            raise InputError(
                "gradients of several batches were accumulated: call optimizer.zero_grad() after steps"
            )
        sigma = float(optimizer.noise_multiplier)
        self._check_budget(sigma)
        self.accountant.step(noise_multiplier=sigma, sample_rate=self.sample_rate)
        self._write_ledger()
        for parameter in optimizer.params:
            if not bool(torch.isfinite(parameter.grad).all()):  # pyright: ignore[reportArgumentType]
                raise NonFiniteGradientError(
                    f"the gradient of step {len(self.accountant)} is not finite: the loss has overflowed; "
                    "lower the "
                    "learning rate. The step was not taken, but counts as spent"
                )

    def _check_budget(self, sigma: float) -> None:
        if self.budget is None:
            return
        epsilon, delta = self.budget
        key = (sigma, self.sample_rate)
        if key not in self._allowed:
            self._allowed[key] = self._affordable(sigma, epsilon, delta)
        if self._allowed[key] <= 0:
            for parameter in self.optimizer.params:
                # A noisy gradient is a release too, and this one is not paid for.
                parameter.grad = None
            raise BudgetExhaustedError(
                f"after {len(self.accountant)} steps one more would cost more than epsilon = {epsilon:g} at "
                "delta = "
                f"{delta:g}: the step was not taken; stop here"
            )
        self._allowed = {key: self._allowed[key] - 1}

    def _affordable(self, sigma: float, epsilon: float, delta: float) -> int:
        """How many more steps at this noise stay within the budget."""

        def fits(steps: int) -> bool:
            history = [*self.accountant.steps(), NoisySteps(sigma, self.sample_rate, steps)]
            cost = epsilon_spent(history, delta, self.accountant.adjacency, loss_interval=COARSE_INTERVAL)
            return cost <= epsilon

        if epsilon == float("inf"):
            return 2**62
        if not fits(1):
            return 0
        low, high = 1, 2
        while fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _maybe_switch(self, module: nn.Module, _: Any) -> None:
        due = (
            self._switch_epoch is not None
            and len(self.accountant) >= self._switch_epoch * self._steps_per_epoch
        )
        if due and module.training and not self.switched:
            self.switch()

    def _read_ledger(self) -> None:
        if self.ledger is None or not self.ledger.exists() or len(self.accountant):
            return
        from assay.methods.cond_dp.checkpoints import read_ledger

        self.accountant.history = read_ledger(self.ledger, self.accountant.adjacency)

    def _write_ledger(self) -> None:
        if self.ledger is not None:
            write_json(
                self.ledger,
                {
                    "adjacency": self.accountant.adjacency,
                    "history": [list(e) for e in self.accountant.history],
                },
            )

    def _require_model(self) -> None:
        if not self._prepared:
            raise InputError("the engine has no model yet: call make_private first")

    def _prepare_data_loader(self, data_loader: DataLoader, **arguments: Any) -> DataLoader:
        if not arguments["poisson_sampling"]:
            # Every batch is the whole data set: there is nothing to draw.
            return data_loader
        prepared = super()._prepare_data_loader(data_loader, **arguments)
        sampler: Any = prepared.batch_sampler
        if isinstance(prepared, DPDataLoader) and sampler.generator is None:
            # Amplification by sampling assumes that nobody can predict the samples, so not the global
            # generator.
            sampler.generator = torch.Generator().manual_seed(secrets.randbits(63))
        return prepared

    def _prepare_optimizer(self, *, optimizer: optim.Optimizer, **arguments: Any) -> DPOptimizer:
        private = super()._prepare_optimizer(optimizer=optimizer, **arguments)
        if self._bias_correction:
            correct_bias(private)
        return private


def _with_conditioner(
    module: nn.Module, conditioner: PublicConditioner, first_layer: str, optimizer: optim.Optimizer
) -> tuple[nn.Module, ConditionedLayer | None]:
    plain = conditioner.is_identity_ and not conditioner.mean_.any() and (conditioner.scale_ == 1).all()
    if plain and conditioner.scale != "learned":
        return module, None
    module, layer = insert_conditioning(module, conditioner, first_layer)
    if layer.factor is not None:
        optimizer.add_param_group({"params": [layer.factor.factor]})
    return module, layer
