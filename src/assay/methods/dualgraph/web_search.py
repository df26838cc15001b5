"""Search services of the web: SearXNG, Tavily, Serper, Brave and Bing, each in the format that it answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urldefrag

from assay.errors import InputError
from assay.methods.dualgraph.fetching import Fetcher
from assay.methods.dualgraph.records import AddressBlocked, Document, Hit, ServiceUnavailable
from assay.methods.dualgraph.safety import clean
from assay.methods.dualgraph.service_client import RateLimiter, ServiceClient

_LONGEST_QUERY = 400  # characters; the shortest limit among the services


@dataclass(frozen=True)
class Engine:
    """How a service is asked, and where its answer holds the results.

    Attributes:
        title: its name in messages.
        base_url: its address, "" where every user has an own one.
        key: the environment variable with the key, "" where none is needed.
        hint: what to do when the service refuses the key.
        headers: the key -> the headers of a request.
        request: (query, number of results) -> (method, path, parameters, body).
        results: the answer -> its results.
        fields: the names of title, address and extract in a result.
        most: results that one request can ask for.
        per_minute: requests a minute that every plan permits, None for no limit.
    """

    title: str
    base_url: str
    key: str
    hint: str
    headers: Callable[[str], dict[str, str]]
    request: Callable[[str, int], tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]]
    results: Callable[[Any], Sequence[Any]]
    fields: tuple[str, str, str]
    most: int
    per_minute: float | None = None


ENGINES: dict[str, Engine] = {
    "searxng": Engine(
        title="SearXNG",
        base_url="",
        key="",
        hint="the instance has to permit JSON: add json to search.formats in its settings.yml",
        headers=lambda key: {},
        request=lambda query, k: ("GET", "/search", {"q": query, "format": "json"}, None),
        results=lambda answer: answer["results"],
        fields=("title", "url", "content"),
        most=100,
    ),
    "tavily": Engine(
        title="Tavily",
        base_url="https://api.tavily.com",
        key="TAVILY_API_KEY",
        hint="set TAVILY_API_KEY to a valid key",
        headers=lambda key: {"authorization": f"Bearer {key}"},
        request=lambda query, k: ("POST", "/search", None, {"query": query, "max_results": k}),
        results=lambda answer: answer["results"],
        fields=("title", "url", "content"),
        most=20,
    ),
    "serper": Engine(
        title="Serper",
        base_url="https://google.serper.dev",
        key="SERPER_API_KEY",
        hint="set SERPER_API_KEY to a valid key",
        headers=lambda key: {"x-api-key": key},
        request=lambda query, k: ("POST", "/search", None, {"q": query, "num": k}),
        results=lambda answer: answer.get("organic", []),
        fields=("title", "link", "snippet"),
        most=100,
    ),
    "brave": Engine(
        title="Brave Search",
        base_url="https://api.search.brave.com/res/v1",
        key="BRAVE_API_KEY",
        hint="set BRAVE_API_KEY to a valid key",
        headers=lambda key: {"x-subscription-token": key},
        request=lambda query, k: (
            "GET",
            "/web/search",
            {"q": query, "count": k, "text_decorations": "0"},
            None,
        ),
        results=lambda answer: (answer.get("web") or {}).get("results", []),
        fields=("title", "url", "description"),
        most=20,
        per_minute=60,
    ),
    "bing": Engine(
        title="Bing Search",
        base_url="https://api.bing.microsoft.com/v7.0",
        key="BING_API_KEY",
        hint="set BING_API_KEY to a valid key",
        headers=lambda key: {"ocp-apim-subscription-key": key},
        request=lambda query, k: (
            "GET",
            "/search",
            {"q": query, "count": k, "responseFilter": "Webpages"},
            None,
        ),
        results=lambda answer: (answer.get("webPages") or {}).get("value", []),
        fields=("name", "url", "snippet"),
        most=50,
    ),
}


class WebBackend:
    """A search service together with a fetcher that reads the pages which it finds.

    Args:
        kind: a key of `ENGINES`.
        client: asks the service.
        fetcher: reads pages.
        name: how the user wrote it.
    """

    def __init__(self, kind: str, client: ServiceClient, fetcher: Fetcher, name: str = "") -> None:
        self.name = name or kind
        self._engine = ENGINES[kind]
        self._client = client
        self._fetcher = fetcher

    @classmethod
    def from_environment(
        cls,
        kind: str,
        address: str = "",
        *,
        fetcher: Fetcher | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> WebBackend:
        """A back end with the key from the environment.

        Args:
            kind: a key of `ENGINES`.
            address: replaces the service's own address; needed for SearXNG.
            fetcher: reads pages; one without lists of hosts when None.
            environment: where the key is; the process's environment when None.

        Raises:
            InputError: the key is not set, or the address is missing or not one.
        """
        engine = ENGINES[kind]
        base_url = address or engine.base_url
        if not base_url.startswith(("http://", "https://")):
            example = engine.base_url or "https://searx.example.org"
            raise InputError(f"{kind} needs an address that begins with https://; write {kind}:{example}")
        key = (os.environ if environment is None else environment).get(engine.key, "") if engine.key else ""
        if engine.key and not key.strip():
            raise InputError(f"{engine.title} needs a key: set the environment variable {engine.key}")
        client = ServiceClient(
            engine.title,
            base_url,
            headers={"accept": "application/json", **engine.headers(key.strip())},
            hint=engine.hint,
            limiter=RateLimiter(engine.per_minute) if engine.per_minute else None,
        )
        return cls(kind, client, fetcher or Fetcher(), f"{kind}:{address}" if address else kind)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
        self._fetcher.close()

    def search(self, query: str, k: int, *, exclude: Collection[str] = ()) -> list[Hit]:
        """The service's best `k` results, without those that may not be fetched anyway.

        Raises:
            InputError: `k` is not positive.
            AuthenticationFailed, RateLimited, ServiceUnavailable, ServiceError: the service failed.
        """
        if k < 1:
            raise InputError(f"the number of results must be at least 1, got {k}")
        query = " ".join(clean(query).split())
        if not query:
            return []
        # What is already known takes places in the answer, so ask for more.
        many = min(self._engine.most, k + min(len(exclude), 10))
        method, path, parameters, body = self._engine.request(query[:_LONGEST_QUERY], many)
        answer = self._client.request(method, path, params=parameters, body=body)
        try:
            rows = self._engine.results(answer)
            found = [self._hit(row, rank) for rank, row in enumerate(rows, 1)]
        except (AttributeError, KeyError, TypeError) as error:
            raise ServiceUnavailable(
                f"{self._engine.title} answered in an unknown format ({type(error).__name__}: {error})"
            ) from error
        hits: dict[str, Hit] = {}
        for hit in found:
            if hit is not None and hit.key not in exclude:
                hits.setdefault(hit.key, hit)
        return list(hits.values())[:k]

    def read(self, hit: Hit) -> Document:
        """The page of a result.

        Raises:
            ReadFailed: see `Fetcher.fetch`.
        """
        return self._fetcher.fetch(hit.url)

    def _hit(self, row: Mapping[str, Any], rank: int) -> Hit | None:
        """A result, or None for one without an address that may be fetched."""
        title, address, extract = (row.get(name) or "" for name in self._engine.fields)
        url = urldefrag(str(address)).url
        try:
            self._fetcher.check(url)
        except AddressBlocked:
            return None
        title = " ".join(clean(str(title)).split()) or url
        return Hit(title, url, " ".join(clean(str(extract)).split()), 1 / rank, backend=self.name)
