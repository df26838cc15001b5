"""Search back ends by the names that users give them: `local:./papers`, `searxng:https://...`, `tavily`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from assay.errors import InputError, require
from assay.methods.dualgraph.records import SearchBackend

KINDS = (
    "local:FOLDER",
    "searxng:URL",
    "tavily",
    "serper",
    "brave",
    "bing",
    "mcp:COMMAND or mcp:URL",
    "fixture:FILE.jsonl",
)


def open_backend(
    spec: str,
    *,
    allow_hosts: tuple[str, ...] = (),
    deny_hosts: tuple[str, ...] = (),
    allow_private: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> SearchBackend:
    """The back end that `spec` names.

    Keys of search services are read from the environment (`TAVILY_API_KEY`, `SERPER_API_KEY`,
    `BRAVE_API_KEY`, `BING_API_KEY`); an address after the name (`tavily:https://proxy.example/v1`) replaces
    the service's own.

    Args:
        spec: one of the kinds in `KINDS`.
        allow_hosts: read pages of these hosts and their sub-domains only; of all when empty.
        deny_hosts: never read pages of these hosts and their sub-domains.
        allow_private: hosts that may have private addresses, for example a wiki of the house.
        environment: where keys are looked up; the process's environment when None.
        progress: told how far the indexing of a folder is; see `update_index`.

    Raises:
        InputError: an unknown kind, a missing part, a key that is not set, or what the back end itself finds.
    """
    kind, _, rest = spec.partition(":")
    makers: dict[str, Callable[[str], SearchBackend]] = {
        "local": lambda folder: _local(folder, progress),
        "fixture": _fixture,
        "mcp": _mcp,
    }
    if kind in makers:
        if not rest.strip():
            wanted = next(name for name in KINDS if name.startswith(kind))
            raise InputError(f"the search back end {spec!r} lacks a part; write {wanted}")
        return makers[kind](rest)
    require("httpx", extra="agents")
    from assay.methods.dualgraph.fetching import Fetcher
    from assay.methods.dualgraph.web_search import ENGINES, WebBackend

    if kind not in ENGINES:
        raise InputError(f"unknown search back end {spec!r}; choose from {', '.join(KINDS)}")
    fetcher = Fetcher(allow_hosts=allow_hosts, deny_hosts=deny_hosts, allow_private=allow_private)
    return WebBackend.from_environment(kind, rest, fetcher=fetcher, environment=environment)


def _local(folder: str, progress: Callable[[str, int, int], None] | None) -> SearchBackend:
    from assay.methods.dualgraph.local_search import LocalBackend

    return LocalBackend(folder, progress=progress)


def _fixture(file: str) -> SearchBackend:
    from assay.methods.dualgraph.recording import ReplayBackend

    return ReplayBackend(Path(file).expanduser())


def _mcp(server: str) -> SearchBackend:
    from assay.methods.dualgraph.mcp_search import McpBackend

    return McpBackend(server)
