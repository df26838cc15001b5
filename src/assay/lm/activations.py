"""Read and replace hidden states of any `torch.nn.Module` model with plain forward hooks.

No wrapper class: the model is the user's own, and it is as it was when the `with` block ends, also after an
error.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.errors import InputError

Side = Literal["output", "input"]
Edit = Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]


@contextmanager
def capture(
    model: nn.Module,
    modules: str | Iterable[str],
    *,
    at: Side = "output",
    keep: Edit | None = None,
    detach: bool = True,
) -> Iterator[dict[str, list[Tensor]]]:
    """Record the hidden states that modules return or receive while the block runs.

    Args:
        model: any PyTorch model.
        modules: paths as in `model.named_modules()`, e.g. `"model.layers.3"`. `*`, `?` and `[...]` match
            within one part of a path: `"model.layers.*.mlp"` is the MLP of every layer.
        at: `"output"` records what a module returns (the first element of a tuple), `"input"` what it
            receives.
        keep: applied to each hidden state before it is stored, e.g. `lambda hidden: hidden[:, -1].cpu()`.
        detach: False keeps the computation graph, for gradients.

    Yields:
        A dictionary from module path to its hidden states, one tensor for every call of the module, in order.
        They are copies: later changes in place do not reach them.

    Raises:
        InputError: a path matches no module, or a module returns (or receives) no hidden state.
    """
    named = find_modules(model, modules)
    captured: dict[str, list[Tensor]] = {name: [] for name in named}

    def record(name: str, hidden: Tensor) -> None:
        kept = hidden.detach() if detach else hidden
        if keep is not None:
            kept = keep(kept)
        if kept.untyped_storage().data_ptr() == hidden.untyped_storage().data_ptr():
            kept = kept.clone()
        captured[name].append(kept)

    with _hooked(named, at, record):
        yield captured


@contextmanager
def patch(
    model: nn.Module, replacements: Mapping[str, Tensor | Edit], *, at: Side = "output"
) -> Iterator[None]:
    """Replace the hidden states that modules return or receive while the block runs.

    Args:
        model: any PyTorch model.
        replacements: from a module path or pattern (see `capture`) to a function of the hidden state, or to a
            tensor that is broadcast to its shape. Where two patterns match a module, both are applied, in
            order.
        at: `"output"` replaces what a module returns (the first element of a tuple), `"input"` what it
            receives.

    Raises:
        InputError: a path matches no module, a module returns (or receives) no hidden state, or a replacement
            has another shape than the hidden state.
    """
    with ExitStack() as stack:
        # Every path is looked up before the first hook is set.
        found = [(find_modules(model, pattern), new) for pattern, new in replacements.items()]
        for named, new in found:
            stack.enter_context(
                _hooked(named, at, lambda name, hidden, new=new: _replaced(name, hidden, new))
            )
        yield


def find_modules(model: nn.Module, patterns: str | Iterable[str]) -> dict[str, nn.Module]:
    """The modules whose path matches any of the patterns (see `capture`), by path, in the model's order.

    Raises:
        InputError: a pattern matches no module; the message names similar paths.
    """
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    named = {name: module for name, module in model.named_modules() if name}
    matched = set()
    for pattern in wanted:
        names = [name for name in named if _matches(name, pattern)]
        if not names:
            similar = difflib.get_close_matches(pattern, named, n=3) or list(named)[:3]
            raise InputError(
                f"the model has no module {pattern!r}; similar paths: {', '.join(map(repr, similar))}"
            )
        matched.update(names)
    return {name: module for name, module in named.items() if name in matched}


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


@contextmanager
def _hooked(
    named: Mapping[str, nn.Module], at: Side, act: Callable[[str, Tensor], Tensor | None]
) -> Iterator[None]:
    """Call `act(name, hidden)` at every module; a tensor that it returns replaces the hidden state."""
    if at not in ("output", "input"):
        raise InputError(f"at={at!r} is not a side of a module; use 'output' or 'input'")
    with ExitStack() as stack:
        for name, module in named.items():
            if at == "output":
                handle = module.register_forward_hook(_output_hook(name, act))
            else:
                handle = module.register_forward_pre_hook(_input_hook(name, act), with_kwargs=True)
            stack.callback(handle.remove)
        yield


def _output_hook(name: str, act: Callable[[str, Tensor], Tensor | None]) -> Callable[..., Any]:
    def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return act(name, output)
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            new = act(name, output[0])
            return None if new is None else (new, *output[1:])
        raise InputError(
            f"module {name!r} returns {type(output).__name__}, not a hidden state; "
            "name one of its sub-modules"
        )

    return hook


def _input_hook(name: str, act: Callable[[str, Tensor], Tensor | None]) -> Callable[..., Any]:
    def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if arguments and isinstance(arguments[0], Tensor):
            new = act(name, arguments[0])
            return None if new is None else ((new, *arguments[1:]), keywords)
        # Decoder layers of transformers hand the hidden state to attention by this keyword.
        if isinstance(keywords.get("hidden_states"), Tensor):
            new = act(name, keywords["hidden_states"])
            return None if new is None else (arguments, {**keywords, "hidden_states": new})
        raise InputError(f"module {name!r} receives no hidden state; name one of its sub-modules")

    return hook


def _replaced(name: str, hidden: Tensor, new: Tensor | Edit) -> Tensor:
    value = new if isinstance(new, Tensor) else new(hidden)
    if not isinstance(value, Tensor):
        raise InputError(f"the replacement at {name!r} returned {type(value).__name__}, not a tensor")
    shape = tuple(value.shape)
    if isinstance(new, Tensor):
        # A shape that cannot be broadcast is left as it is and reported below.
        with suppress(RuntimeError):
            value = torch.broadcast_to(value, hidden.shape).contiguous()
    if value.shape != hidden.shape:
        raise InputError(
            f"the replacement at {name!r} has shape {shape}, the hidden state there {tuple(hidden.shape)}"
        )
    return value.to(device=hidden.device, dtype=hidden.dtype)
