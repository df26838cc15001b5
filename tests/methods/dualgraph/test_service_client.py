"""Retries, rate limits, the circuit breaker, and what the errors of a service become."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.dualgraph.records import (
    AuthenticationFailed,
    RateLimited,
    ServiceError,
    ServiceUnavailable,
)
from assay.methods.dualgraph.service_client import (
    CircuitBreaker,
    RateLimiter,
    RetryPolicy,
    ServiceClient,
    ServiceRefused,
    said_in,
)


@pytest.fixture
def client(web):
    """A client of the test's server that notes its waits instead of waiting."""
    made = []

    def build(**options):
        waits = []
        made.append(ServiceClient("Service", web.url, **({"sleep": waits.append} | options)))
        made[-1].waits = waits
        return made[-1]

    yield build
    for one in made:
        one.close()


def test_a_request(web, client):
    web.answer = lambda request: {"x": [1, 2]}
    service = client(headers={"x-key": "secret"})
    assert service.request("POST", "/path", params={"a": "1"}, body={"b": 2}) == {"x": [1, 2]}
    request = web.requests[0]
    assert (request.method, request.path, request.query, request.json) == (
        "POST",
        "/path",
        {"a": "1"},
        {"b": 2},
    )
    assert request.headers["x-key"] == "secret"


def test_a_query_of_the_address_is_kept(web):
    web.answer = lambda request: {}
    service = ServiceClient("Service", f"{web.url}/base/?api-version=7")
    service.request("GET", "/path", params={"a": "1"})
    service.close()
    assert web.requests[0].path == "/base/path"
    assert web.requests[0].query == {"api-version": "7", "a": "1"}


def test_what_may_pass_is_tried_again(web, client, answering):
    web.in_turn(*(answering(status=status) for status in (500, 502, 503, 429)), answering({"ok": True}))
    service = client()
    assert service.request("GET") == {"ok": True}
    assert len(service.waits) == 4
    for i, wait in enumerate(service.waits):
        assert 0.25 * 2**i <= wait <= 0.5 * 2**i


@pytest.mark.parametrize(
    ("status", "error", "requests"),
    [
        (401, AuthenticationFailed, 1),
        (403, AuthenticationFailed, 1),
        (429, RateLimited, 5),
        (500, ServiceUnavailable, 5),
        (503, ServiceUnavailable, 5),
        (408, ServiceUnavailable, 5),
        (400, ServiceRefused, 1),
        (404, ServiceRefused, 1),
        (302, ServiceRefused, 1),
    ],
)
def test_statuses_become_errors(web, client, answering, status, error, requests):
    web.answer = lambda request: answering({"error": {"message": "because"}}, status=status)
    with pytest.raises(error, match=f"Service answered {status}: because") as raised:
        client(hint="buy a key").request("GET")
    assert len(web.requests) == requests
    assert ("buy a key" in str(raised.value)) == (error is AuthenticationFailed)
    assert isinstance(raised.value, InputError) == (error is AuthenticationFailed)


def test_redirects_are_not_followed(web, client, answering):
    web.answer = lambda request: answering(status=307, headers={"location": "https://evil.example/"})
    with pytest.raises(ServiceRefused, match=r"a redirect to https://evil\.example/"):
        client(headers={"authorization": "Bearer verysecret"}).request("GET")
    assert len(web.requests) == 1


def test_keys_never_appear_in_messages(web, client, answering):
    web.answer = lambda request: answering({"error": "the key sk-123456789 is wrong"}, status=401)
    with pytest.raises(AuthenticationFailed, match=r"the key \*\*\* is wrong"):
        client(headers={"authorization": "Bearer sk-123456789"}).request("GET")


def test_waits_that_the_service_asks_for_are_kept(web, client, answering):
    web.in_turn(answering(status=429, headers={"retry-after": "17"}), answering({}))
    service = client()
    service.request("GET")
    assert service.waits == [17.0]
    moment = datetime.now(UTC) + timedelta(seconds=30)
    web.in_turn(answering(status=429, headers={"retry-after": format_datetime(moment)}), answering({}))
    service = client()
    service.request("GET")
    assert 20 < service.waits[0] <= 30


def test_a_wait_beyond_our_patience_is_an_error_at_once(web, client, answering):
    web.answer = lambda request: answering(status=429, headers={"retry-after": "3600"})
    with pytest.raises(RateLimited) as error:
        client().request("GET")
    assert error.value.retry_after == 3600
    assert len(web.requests) == 1


def test_answers_that_are_none(web, client, answering):
    web.in_turn("<html>a page</html>", answering({"ok": 1}))
    assert client().request("GET") == {"ok": 1}
    web.answer = lambda request: "<html>a page</html>"
    with pytest.raises(ServiceUnavailable, match="not JSON"):
        client().request("GET")


def test_a_server_that_is_not_there():
    service = ServiceClient("Service", "http://127.0.0.1:1", sleep=lambda seconds: None)
    with pytest.raises(ServiceUnavailable, match=r"cannot be reached at http://127\.0\.0\.1:1"):
        service.request("GET")
    service.close()


def test_the_circuit_breaker_spares_a_service_that_is_down(web, client, answering):
    web.answer = lambda request: answering(status=500)
    service = client(retry=RetryPolicy(attempts=1))
    now = [0.0]
    service.breaker = CircuitBreaker(3, 30, clock=lambda: now[0])
    for _ in range(3):
        with pytest.raises(ServiceUnavailable, match="answered 500"):
            service.request("GET")
    for _ in range(5):
        with pytest.raises(ServiceUnavailable, match="failed 3 times in a row; it is asked again in 30 s"):
            service.request("GET")
    assert len(web.requests) == 3
    now[0] = 31
    with pytest.raises(ServiceUnavailable, match="answered 500"):
        service.request("GET")
    with pytest.raises(ServiceUnavailable, match="in a row"):
        service.request("GET")
    assert len(web.requests) == 4
    now[0] = 62
    web.answer = lambda request: {}
    service.request("GET")
    service.request("GET")
    assert len(web.requests) == 6


def test_a_refusal_is_no_failure_of_the_service(web, client, answering):
    web.answer = lambda request: answering(status=400)
    service = client()
    service.breaker = CircuitBreaker(2)
    for _ in range(5):
        with pytest.raises(ServiceRefused):
            service.request("GET")


@given(st.lists(st.floats(0, 5), min_size=1, max_size=40), st.floats(1, 600), st.floats(1, 20))
def test_the_rate_is_never_exceeded(pauses, per_minute, burst):
    now = [0.0]
    limiter = RateLimiter(per_minute, burst, clock=lambda: now[0])
    starts = []
    for pause in pauses:
        now[0] += pause
        starts.append(now[0] + limiter.reserve())
    starts.sort()
    for i, start in enumerate(starts):
        for j in range(i, len(starts)):
            assert j - i + 1 <= burst + (starts[j] - start) * per_minute / 60 + 1 + 1e-6


def test_a_limited_client_waits(web, client):
    web.answer = lambda request: {}
    service = client(limiter=RateLimiter(60, clock=lambda: 0.0))
    for _ in range(3):
        service.request("GET")
    assert service.waits == [0.0, pytest.approx(1.0), pytest.approx(2.0)]


@given(st.integers(0, 20), st.floats(0, 1))
def test_waits_grow_up_to_the_cap(repetition, fraction):
    policy = RetryPolicy(base=0.5, cap=10)
    assert 0.25 <= policy.wait(repetition, fraction) <= 10
    assert policy.wait(repetition, fraction) <= policy.wait(repetition + 1, fraction)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"error": {"message": "no\\n credit", "code": 1}}', "no credit"),
        (b'{"detail": [{"msg": "bad field"}]}', "bad field"),
        (b'[{"error": "x"}]', "x"),
        (b"<html><body>Bad <b>gateway</b></body></html>", "Bad gateway"),
        (b"", ""),
        (b'{"a": 1}', '{"a": 1}'),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 1000, "x" * 300),
    ],
)
def test_what_a_service_said(content, said):
    assert said_in(content) == said


def test_every_error_is_a_service_error():
    for error in (AuthenticationFailed, RateLimited, ServiceUnavailable, ServiceRefused):
        assert issubclass(error, ServiceError)
