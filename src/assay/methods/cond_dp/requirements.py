"""What the engine asks of loaders, modules and conditioners, because it could not account for anything
else."""

from __future__ import annotations

from typing import Any

from opacus.data_loader import DPDataLoader
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from opacus.validators.errors import UnsupportedModuleError
from opacus.validators.module_validator import ModuleValidator
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from assay.errors import InputError
from assay.methods.cond_dp.accounting import Adjacency, Sampling, check_sampling
from assay.methods.cond_dp.conditioner import PublicConditioner
from assay.methods.cond_dp.validation import LeakageError


def check_loader(loader: DataLoader, sampling: Sampling) -> None:
    check_sampling(sampling, 1.0)
    if isinstance(loader.dataset, IterableDataset):
        raise InputError("an IterableDataset cannot be sampled: load the rows into a map-style data set")
    if isinstance(loader, DPDataLoader):
        if sampling != "poisson":
            raise InputError("a DPDataLoader samples: pass sampling='poisson', or a plain DataLoader")
        return
    sampler = loader.sampler
    plain = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(loader.dataset)  # pyright: ignore[reportArgumentType]
    )
    if not plain or type(loader.batch_sampler) is not BatchSampler:
        names = f"{type(sampler).__name__} with {type(loader.batch_sampler).__name__}"
        raise InputError(
            f"the loader draws batches by {names}, whose probabilities are unknown to the accountant: pass a "
            "DataLoader with batch_size= and shuffle= only"
        )
    if sampling == "full" and len(loader) != 1:
        raise InputError(
            f"sampling is 'full', but an epoch has {len(loader)} batches: pass batch_size=len(dataset), or "
            "sampling='poisson' (shuffled batches of a fixed size have no amplification to account for)"
        )
    if loader.drop_last and sampling == "full":
        raise InputError("sampling is 'full', but the loader may drop rows: pass drop_last=False")


def check_module(module: nn.Module) -> None:
    if isinstance(module, nn.parallel.DistributedDataParallel | DPDDP):
        raise InputError("distributed modules are not supported: train on one device")
    try:
        ModuleValidator.validate(module, strict=True)
    except (UnsupportedModuleError, NotImplementedError) as error:
        causes = error.args[0] if error.args and isinstance(error.args[0], list) else [error]
        raise InputError(f"the module cannot be trained privately: {causes[0]}") from error


def check_conditioner(conditioner: Any, adjacency: Adjacency, loader: DataLoader) -> None:
    if not isinstance(conditioner, PublicConditioner) or not hasattr(conditioner, "gains_"):
        raise InputError(
            "conditioner must be a fitted PublicConditioner (PublicConditioner.identity for none)"
        )
    dataset = loader.dataset
    if adjacency == "add_remove" and isinstance(dataset, TensorDataset):
        features = dataset.tensors[0]
        if features.ndim == 2 and conditioner.saw_rows_of(features.detach().cpu().double().numpy()):
            raise LeakageError("the conditioner was fitted on the rows that adjacency 'add_remove' protects")
