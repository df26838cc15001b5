"""A disk cache for what is costly and reproducible: converted weights, trained substrates, Hessians.

An entry is a folder named by a hash of everything that determines its content. Two processes that need the
same entry at the same time build it once: the second waits for the lock of the first.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from assay.files import replacing_folder


def content_hash(value: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of `value` written as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Where cached entries live: `$ASSAY_CACHE`, or the user's cache folder of the operating system."""
    if configured := os.environ.get("ASSAY_CACHE"):
        return Path(configured)
    import platformdirs

    return Path(platformdirs.user_cache_dir("assay"))


def cached(kind: str, key: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """The folder of the entry `(kind, key)`; `build(folder)` fills it when it does not exist yet.

    Args:
        kind: a short name that keeps entries of one sort together, e.g. `"lm"`.
        key: everything that determines the content (sources, checksums, versions, settings), as JSON values.
        build: fills the empty folder that it is given. If it raises, the cache is left without the entry.
    """
    from filelock import FileLock

    entry = cache_folder() / kind / content_hash(key)
    if entry.is_dir():
        return entry
    entry.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(entry.with_suffix(".lock")):
        if not entry.is_dir():
            with replacing_folder(entry) as folder:
                build(folder)
                (folder / "cache-key.json").write_text(json.dumps(dict(key), indent=2, sort_keys=True))
    return entry
