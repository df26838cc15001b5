"""Reading pages of the web without being sent elsewhere: into a private network, or to another scheme.

Addresses come from search results, which others write. Every connection is checked where it is made: the name
is resolved once, all its addresses have to be public, and the connection goes to the address that was
checked, so a name that resolves differently a moment later (DNS rebinding) gains nothing. Redirects are
followed by hand, and every one of them is checked like the first address.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
import threading
import time
import urllib.robotparser
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urljoin

import httpcore
import httpx

from assay.methods.dualgraph.readers import Unreadable, kind_of_page, read_bytes
from assay.methods.dualgraph.records import AddressBlocked, Document, ReadFailed
from assay.methods.dualgraph.service_client import tls_context

USER_AGENT = "assay-dualgraph (+https://pypi.org/project/assay/)"
_REDIRECTS = 5
_ATTEMPTS = 3
_ROBOTS_BYTES = 512 * 2**10

Resolver = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system finds them.

    Raises:
        OSError: the name is unknown.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, whatever it is wrapped in.

    IPv4 addresses inside IPv6 ones (mapped, 6to4, Teredo, NAT64) are judged by the inner address as well.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    wrapped = isinstance(ip, ipaddress.IPv6Address) and ip in _NAT64
    # NAT64 counts as global or not depending on the version of Python; its inner address decides below.
    if not wrapped and (not ip.is_global or ip.is_multicast or ip.is_reserved or ip.is_unspecified):
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
        if wrapped:
            inner.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
        return all(is_public(str(address)) for address in inner if address is not None)
    return True


_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Fetcher:
    """Reads pages by their address. Several threads may use one fetcher.

    Args:
        allow_hosts: only these hosts and their sub-domains, or all when empty.
        deny_hosts: never these hosts and their sub-domains.
        allow_private: hosts that may have private addresses, for example a wiki of the house.
        robots: ask for `robots.txt` and keep to it.
        max_bytes: the largest page, unpacked.
        timeout: seconds for connecting and for every read; a whole page may take four times as long.
        resolver: finds addresses; replaced in tests.
        network: makes connections; replaced in tests.
        sleep: waits between attempts.
    """

    def __init__(
        self,
        *,
        allow_hosts: Iterable[str] = (),
        deny_hosts: Iterable[str] = (),
        allow_private: Iterable[str] = (),
        robots: bool = True,
        max_bytes: int = 20 * 2**20,
        timeout: float = 15.0,
        resolver: Resolver = resolve,
        network: httpcore.NetworkBackend | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._allow = tuple(_plain(host) for host in allow_hosts)
        self._deny = tuple(_plain(host) for host in deny_hosts)
        self._robots = robots
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._sleep = sleep
        self._rules: dict[str, urllib.robotparser.RobotFileParser | None] = {}
        self._lock = threading.Lock()
        private = frozenset(_plain(host) for host in allow_private)
        guarded = _GuardedNetwork(network or httpcore.SyncBackend(), resolver, private)
        # No proxy of the environment: it would resolve names itself, past our check.
        self._client = httpx.Client(
            transport=_PoolTransport(guarded),
            headers={
                "user-agent": USER_AGENT,
                "accept": "text/html,text/plain,application/pdf;q=0.9,*/*;q=0.5",
            },
            timeout=timeout,
            follow_redirects=False,
            trust_env=False,
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def check(self, url: str) -> httpx.URL:
        """The parsed address, if it may be fetched as far as its text tells.

        Raises:
            AddressBlocked: not http(s), with a password in it, or a host outside the lists.
        """
        try:
            address = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise AddressBlocked(f"{url[:200]!r} is not an address ({error})") from error
        if address.scheme not in ("http", "https"):
            raise AddressBlocked(f"{url[:200]} is not an http or https address")
        if address.userinfo:
            raise AddressBlocked(f"an address with a name or password in it is not fetched ({address.host})")
        host = _plain(address.host)
        if not host or not 0 < (address.port or 80) < 2**16:
            raise AddressBlocked(f"{url[:200]} names no host, or a port that there is not")
        if _listed(host, self._deny):
            raise AddressBlocked(f"the host {host} is on the list of denied hosts")
        if self._allow and not _listed(host, self._allow):
            raise AddressBlocked(f"the host {host} is not on the list of allowed hosts")
        return address

    def fetch(self, url: str) -> Document:
        """Read a page: its text, its title, and where it was found in the end.

        Time-outs and answers of 5xx and 429 are tried again, with growing waits.

        Raises:
            AddressBlocked: the address, or one that it redirects to, must not be fetched.
            ReadFailed: it cannot be reached, answers with an error, is too large, or has no text.
        """
        failure = ReadFailed(f"{url} could not be read")
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._sleep(min(10.0, 0.5 * 2**attempt))
            try:
                address, headers, content = self._follow(url)
                break
            except _Temporary as error:
                failure = ReadFailed(str(error))
        else:
            raise failure
        charset = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", headers.get("content-type", ""), re.IGNORECASE)
        try:
            kind = kind_of_page(headers.get("content-type", ""), address)
            result = read_bytes(content, kind, charset=charset[1] if charset else None)
        except Unreadable as error:
            raise ReadFailed(f"{address} has no text for us: {error}") from error
        sha256 = hashlib.sha256(result.text.encode()).hexdigest()
        return Document(address, result.title or address, result.text, sha256, result.pages)

    def _follow(self, url: str) -> tuple[str, Mapping[str, str], bytes]:
        for _ in range(_REDIRECTS + 1):
            address = self.check(url)
            if self._robots and not self._permitted(address):
                raise AddressBlocked(f"robots.txt of {address.host} does not permit {address}")
            status, headers, content = self._get(address, self._max_bytes)
            if status in (301, 302, 303, 307, 308) and headers.get("location"):
                url = urljoin(str(address), headers["location"])
                continue
            if status in (408, 425, 429) or status >= 500:
                raise _Temporary(f"{address} answered {status}")
            if status != 200:
                raise ReadFailed(f"{address} answered {status}")
            return str(address), headers, content
        raise ReadFailed(f"{url} redirects more than {_REDIRECTS} times")

    def _get(self, address: httpx.URL, limit: int) -> tuple[int, Mapping[str, str], bytes]:
        """One request; the page is read as it comes, so that neither its size nor its pace can hold us."""
        deadline = time.monotonic() + 4 * self._timeout
        parts, size = [], 0
        try:
            with self._client.stream("GET", address) as response:
                if response.status_code == 200:
                    for part in response.iter_bytes(65_536):
                        size += len(part)
                        if size > limit:
                            raise ReadFailed(f"{address} is larger than {limit / 2**20:.3g} MB")
                        if time.monotonic() > deadline:
                            raise ReadFailed(f"{address} takes longer than {4 * self._timeout:.0f} s")
                        parts.append(part)
                return response.status_code, response.headers, b"".join(parts)
        except httpx.TimeoutException as error:
            raise _Temporary(f"{address} did not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _Temporary(f"{address} cannot be reached ({error or type(error).__name__})") from error

    def _permitted(self, address: httpx.URL) -> bool:
        """Whether the host's robots.txt lets us read this; without that file everything may be (RFC 9309)."""
        origin = str(address.copy_with(path="/robots.txt", query=None, fragment=None))
        with self._lock:
            known = origin in self._rules
        if not known:
            rules = self._read_robots(address.copy_with(path="/robots.txt", query=None, fragment=None))
            with self._lock:
                self._rules[origin] = rules
        rules = self._rules[origin]
        return rules is None or rules.can_fetch(USER_AGENT, str(address))

    def _read_robots(self, address: httpx.URL) -> urllib.robotparser.RobotFileParser | None:
        for _ in range(_REDIRECTS + 1):
            try:
                status, headers, content = self._get(address, _ROBOTS_BYTES)
            except AddressBlocked:
                raise
            except ReadFailed:
                return None
            if status in (301, 302, 303, 307, 308) and headers.get("location"):
                address = self.check(urljoin(str(address), headers["location"]))
                continue
            if status != 200:
                return None
            rules = urllib.robotparser.RobotFileParser()
            rules.parse(content.decode("utf-8", errors="replace").splitlines())
            return rules
        return None


class _Temporary(ReadFailed):
    """A failure that another attempt may not have."""


class _GuardedNetwork(httpcore.NetworkBackend):
    """Makes connections to public addresses only, and exactly to the address that was checked."""

    def __init__(self, network: httpcore.NetworkBackend, resolver: Resolver, private: frozenset[str]) -> None:
        self._network = network
        self._resolver = resolver
        self._private = private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            addresses = self._resolver(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"the name {host} is unknown") from error
        if not addresses:
            raise httpcore.ConnectError(f"the name {host} has no address")
        if _plain(host) not in self._private:
            for address in addresses:
                if not is_public(address):
                    raise AddressBlocked(f"{host} is in a private network ({address})")
        failure: Exception = httpcore.ConnectError(f"{host} cannot be reached")
        for address in addresses[:4]:
            try:
                return self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        raise AddressBlocked("a socket of this machine is not fetched")

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)


class _PoolTransport(httpx.BaseTransport):
    """httpcore's connection pool as a transport of httpx, with our own way of making connections."""

    def __init__(self, network: httpcore.NetworkBackend) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls_context(), max_connections=20, network_backend=network
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        inner = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            response = self._pool.handle_request(inner)
        except httpcore.TimeoutException as error:
            raise httpx.ReadTimeout(str(error), request=request) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
            raise httpx.TransportError(str(error), request=request) from error
        return httpx.Response(
            response.status, headers=response.headers, stream=_Body(response), extensions=response.extensions
        )

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self):
        try:
            yield from self._response.iter_stream()
        except httpcore.TimeoutException as error:
            raise httpx.ReadTimeout(str(error)) from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise httpx.TransportError(str(error)) from error

    def close(self) -> None:
        self._response.close()


def _plain(host: str) -> str:
    return host.strip().rstrip(".").lower().removeprefix("[").removesuffix("]")


def _listed(host: str, hosts: Sequence[str]) -> bool:
    return any(host == listed or host.endswith(f".{listed}") for listed in hosts)
