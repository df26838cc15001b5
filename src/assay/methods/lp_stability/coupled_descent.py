"""Stochastic gradient descent on a sample and on its swapped copies, driven by the same random stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxtyping import Float, Int

from assay.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def coupled_sgd(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    sample: tuple[Float[Tensor, "m ..."], Float[Tensor, "m ..."]],
    rows: Int[Tensor, " K"],
    swapped_in: tuple[Float[Tensor, "K ..."], Float[Tensor, "K ..."]],
    *,
    steps: Sequence[float],
    batch_size: int = 1,
    seed: int = 0,
) -> dict[str, Float[Tensor, "K1 ..."]]:
    """Train K + 1 copies of a model that differ in one training row and in nothing else.

    All copies start from the parameters of `model` and see the same batches in the same order, so that the
    distance between copy 0 (the sample itself) and copy k is the effect of the swapped row alone. The copies
    are one batched computation.

    Args:
        model: any module without random layers; it is not changed.
        loss: `(predictions, labels) -> scalar`, the mean over a batch.
        sample: predictors and labels.
        rows: the row that is swapped in copy k.
        swapped_in: the rows that come in.
        steps: the step size of every step; its length is the number of steps.
        batch_size: rows in a batch; batches run through a new permutation of the rows in every epoch.
        seed: of the permutations.

    Returns:
        The parameters of all copies by name, copy 0 first.

    Raises:
        InputError: the batch size does not fit the sample, or a row index is out of range.

    Source: the coupling of Hardt, Recht and Singer (2016).
    """
    import torch
    from torch.func import functional_call, grad, vmap

    X, y = sample
    m, copies = len(X), len(rows) + 1
    if not 1 <= batch_size <= m:
        raise InputError(f"batch_size is {batch_size}: pass a number from 1 to the {m} rows")
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < m):
        raise InputError(f"rows must lie between 0 and {m - 1}, got {int(rows.min())} to {int(rows.max())}")

    def objective(parameters, X_batch, y_batch):
        return loss(functional_call(model, parameters, (X_batch,)), y_batch)

    gradient = vmap(grad(objective))
    parameters = {
        name: value.detach().expand(copies, *value.shape).clone() for name, value in model.named_parameters()
    }
    batches = _batches(m, batch_size, torch.Generator().manual_seed(seed))
    for step in steps:
        batch = next(batches).to(X.device)
        X_batch, y_batch = (
            _with_swaps(X, rows, swapped_in[0], batch),
            _with_swaps(y, rows, swapped_in[1], batch),
        )
        gradients = gradient(parameters, X_batch, y_batch)
        parameters = {name: value - step * gradients[name] for name, value in parameters.items()}
    return parameters


def _batches(m: int, batch_size: int, generator: torch.Generator):
    import torch

    while True:
        order = torch.randperm(m, generator=generator)
        yield from order[: m - m % batch_size].split(batch_size)


def _with_swaps(
    values: Float[Tensor, "m ..."],
    rows: Int[Tensor, " K"],
    swapped_in: Float[Tensor, "K ..."],
    batch: Int[Tensor, " b"],
) -> Float[Tensor, "K1 b ..."]:
    """The batch as every copy sees it."""
    copies = values[batch].expand(len(rows) + 1, len(batch), *values.shape[1:]).clone()
    copy, place = (rows[:, None] == batch[None, :]).nonzero(as_tuple=True)
    copies[copy + 1, place] = swapped_in[copy]
    return copies
