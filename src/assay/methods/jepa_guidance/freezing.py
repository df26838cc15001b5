"""Modules through which a gradient flows to their input and not to their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from assay.errors import InputError


@contextmanager
def frozen(module: nn.Module, *, checkpoint: bool = False) -> Iterator[None]:
    """Evaluation mode and frozen parameters while the block runs: there is less to keep for a backward pass.

    The module is as it was afterwards.

    Args:
        module: the module.
        checkpoint: also recompute activations in the backward pass, for modules of diffusers.

    Raises:
        InputError: the module does not offer checkpointing.
    """
    modes = {part: part.training for part in module.modules()}
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    model: Any = module
    switched = checkpoint and not getattr(module, "is_gradient_checkpointing", False)
    if switched:
        if not getattr(module, "_supports_gradient_checkpointing", False):
            raise InputError(f"{type(module).__name__} offers no checkpointing: use checkpoint=False")
        model.enable_gradient_checkpointing()
    module.eval()
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        for parameter in trainable:
            parameter.requires_grad_(True)
        if switched:
            model.disable_gradient_checkpointing()
