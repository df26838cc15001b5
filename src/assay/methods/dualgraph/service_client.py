"""Requests to the interface of a service: retries, rate limits, a circuit breaker, and telling errors."""

from __future__ import annotations

import functools
import json
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from assay.errors import require
from assay.methods.dualgraph.records import (
    AuthenticationFailed,
    RateLimited,
    ServiceError,
    ServiceUnavailable,
)

if TYPE_CHECKING:
    import httpx

_MAX_ANSWER = 32 * 2**20


class ServiceRefused(ServiceError):
    """The service understood the request and refused it (another 4xx); repeating it would not help.

    Attributes:
        status: the HTTP status.
        answer: the start of what the service said.
    """

    def __init__(self, message: str, status: int, answer: str) -> None:
        super().__init__(message)
        self.status = status
        self.answer = answer


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how late a failed request is repeated.

    The wait before repetition i is uniform between half and all of `base * 2^i`, at most `cap` seconds: many
    clients that failed together do not come back together. A wait that the service asks for is kept when it
    is at most `patience`.
    """

    attempts: int = 5
    base: float = 0.5
    cap: float = 10.0
    patience: float = 60.0

    def wait(self, repetition: int, fraction: float) -> float:
        """Seconds before repetition 0, 1, ...; `fraction` from 0 to 1 is the random part."""
        return min(self.cap, self.base * 2**repetition) * (0.5 + 0.5 * fraction)


class CircuitBreaker:
    """Stops asking a service that keeps failing.

    After `failures` calls in a row that failed for good, calls are refused at once for `pause` seconds; then
    one call may try, and its fate decides for the others.
    """

    def __init__(
        self, failures: int = 5, pause: float = 30.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = failures
        self._pause = pause
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = 0
        self._opened: float | None = None

    def check(self, name: str) -> None:
        """Let a call pass.

        Raises:
            ServiceUnavailable: the breaker is open.
        """
        with self._lock:
            if self._opened is None:
                return
            left = self._opened + self._pause - self._clock()
            if left > 0:
                raise ServiceUnavailable(
                    f"{name} failed {self._failed} times in a row; it is asked again in {left:.0f} s"
                )
            # This call tries; the others wait for another pause unless it succeeds.
            self._opened = self._clock()

    def report(self, success: bool) -> None:
        """Say how a call ended."""
        with self._lock:
            self._failed = 0 if success else self._failed + 1
            if success:
                self._opened = None
            elif self._failed >= self._limit:
                self._opened = self._clock()


class RateLimiter:
    """A token bucket: at most `per_minute` units a minute, in bursts of at most `burst`.

    A call that would exceed the rate is told how long to wait, and its units count as used at once, so that
    threads queue up behind each other.
    """

    def __init__(
        self, per_minute: float, burst: float | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = per_minute / 60
        self._size = max(1.0, per_minute / 60) if burst is None else burst
        self._clock = clock
        self._lock = threading.Lock()
        self._level = self._size
        self._at = clock()

    def reserve(self, units: float = 1.0) -> float:
        """Take `units` and return the seconds to wait before using them."""
        with self._lock:
            now = self._clock()
            self._level = min(self._size, self._level + (now - self._at) * self._rate) - units
            self._at = now
            return max(0.0, -self._level / self._rate)


class ServiceClient:
    """A service that answers JSON over HTTP. Several threads may use one client.

    Args:
        name: how messages call the service.
        base_url: the address that paths are appended to; its query is sent with every request.
        headers: sent with every request; keys in them never appear in messages.
        hint: appended to the message when the service refuses the key, for example where to get one.
        timeout: seconds for one attempt.
        retry: the retry policy.
        limiter: limits the rate of requests, repetitions included.
        sleep: waits; replaced in tests.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        hint: str = "",
        timeout: float = 30.0,
        retry: RetryPolicy | None = None,
        limiter: RateLimiter | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        httpx: Any = require("httpx", extra="agents")
        self.name = name
        self.retry = retry or RetryPolicy()
        self.breaker = CircuitBreaker()
        words = (word for value in (headers or {}).values() for word in value.split())
        self._secrets = [word for word in words if len(word) > 7]
        self._hint = hint
        self._limiter = limiter
        self.sleep = sleep
        self._random = random.Random()
        address = httpx.URL(base_url)
        self.address = str(address.copy_with(query=None, fragment=None)).rstrip("/")
        self._query = dict(address.params)
        # Redirects are not followed: they would carry the key to another host.
        self._client: httpx.Client = httpx.Client(
            headers=dict(headers or {}), timeout=timeout, verify=tls_context()
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def request(
        self,
        method: str,
        path: str = "",
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        attempts: int | None = None,
    ) -> Any:
        """The JSON value that the service answers.

        Args:
            method: GET or POST.
            path: appended to the address.
            params: the query.
            body: sent as JSON.
            attempts: at most so many, instead of the policy's number.

        Raises:
            AuthenticationFailed: 401 or 403.
            RateLimited: 429 after all repetitions, or with a longer wait than our patience.
            ServiceUnavailable: 5xx, time-outs, broken connections or unusable answers after all repetitions,
                or the circuit breaker is open.
            ServiceRefused: another 4xx.
        """
        self.breaker.check(self.name)
        failure: ServiceError | None = None
        for attempt in range(attempts or self.retry.attempts):
            if attempt:
                wait = self.retry.wait(attempt - 1, self._random.random())
                asked = failure.retry_after if isinstance(failure, RateLimited) else None
                if asked is not None and asked > self.retry.patience:
                    break
                self.sleep(max(wait, asked or 0.0))
            if self._limiter is not None:
                self.sleep(self._limiter.reserve())
            try:
                answer = self._attempt(method, path, params, body)
            except (RateLimited, ServiceUnavailable) as error:
                failure = error
                continue
            except ServiceError:
                # The service is there and answers: no reason to stop asking it.
                self.breaker.report(True)
                raise
            self.breaker.report(True)
            return answer
        self.breaker.report(False)
        assert failure is not None
        raise failure

    def _attempt(self, method: str, path: str, params: Mapping[str, Any] | None, body: Any) -> Any:
        httpx: Any = require("httpx", extra="agents")
        try:
            with self._client.stream(
                method, self.address + path, params={**self._query, **(params or {})}, json=body
            ) as response:
                parts, size = [], 0
                for part in response.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > _MAX_ANSWER:
                        raise ServiceUnavailable(f"{self.name} answered more than {_MAX_ANSWER // 2**20} MB")
                content = b"".join(parts)
        except httpx.TimeoutException as error:
            raise ServiceUnavailable(f"{self.name} did not answer in time ({self.address})") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = self._without_secrets(str(error) or type(error).__name__)
            raise ServiceUnavailable(f"{self.name} cannot be reached at {self.address} ({reason})") from error
        if response.is_success:
            try:
                return json.loads(content)
            except ValueError as error:
                raise ServiceUnavailable(f"{self.name} answered something that is not JSON") from error
        raise self._failure(response.status_code, response.headers, content)

    def _failure(self, status: int, headers: Mapping[str, str], content: bytes) -> ServiceError:
        said = self._without_secrets(said_in(content))
        message = f"{self.name} answered {status}{f': {said}' if said else ''}"
        if status in (401, 403):
            return AuthenticationFailed(f"{message}{f'; {self._hint}' if self._hint else ''}")
        if status == 429:
            return RateLimited(message, _retry_after(headers))
        if status >= 500 or status in (408, 425):
            return ServiceUnavailable(message)
        if 300 <= status < 400:
            message += f" (a redirect to {headers.get('location', 'nowhere')[:200]}); correct the address"
        return ServiceRefused(message, status, self._without_secrets(content[:5000].decode(errors="replace")))

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


@functools.cache
def tls_context() -> ssl.SSLContext:
    """The certificates that are trusted, read once."""
    httpx: Any = require("httpx", extra="agents")
    return httpx.create_ssl_context()


def said_in(content: bytes) -> str:
    """The message in a service's answer, in one line of at most 300 characters."""
    text = content[:4000].decode(errors="replace")
    try:
        value = json.loads(text)
    except ValueError:
        value = re.sub(r"<[^>]*>", " ", text)
    for _ in range(4):
        if isinstance(value, Mapping):
            found = [
                value[name] for name in ("message", "error", "detail", "msg", "title") if value.get(name)
            ]
            value = found[0] if found else json.dumps(value)
        elif isinstance(value, list) and value:
            value = value[0]
    return " ".join(str(value).split())[:300]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the service asks to wait: a number, or a date (RFC 9110)."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
