"""Queries at the same time: the order of results, errors, limits, and what it gains."""

import threading

import pytest

from assay.errors import InputError
from assay.methods.dualgraph.concurrency import concurrent_map, search_many
from assay.methods.dualgraph.records import Hit, SearchOutcome, ServiceUnavailable


class Fake:
    """A back end that answers from a table and fails on what is not in it."""

    def __init__(self, name, table):
        self.name = name
        self.table = table

    def search(self, query, k, *, exclude=()):
        if query not in self.table:
            raise ServiceUnavailable(f"no answer to {query}")
        return [Hit(url, url, "", backend=self.name) for url in self.table[query] if url not in exclude][:k]


def test_results_keep_the_order_of_the_items():
    started = threading.Barrier(4)

    def slow_first(item):
        if item < 4:
            # Passes only if four calls are under way together.
            started.wait(timeout=10)
        return item * item

    assert concurrent_map(slow_first, range(10), 4) == [i * i for i in range(10)]
    assert concurrent_map(slow_first, [], 4) == []
    assert concurrent_map(lambda item: -item, [5], 4) == [-5]


def test_no_more_calls_than_the_limit():
    lock, under_way, most = threading.Lock(), [0], [0]
    release = threading.Event()

    def call(item):
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            if under_way[0] == 3:
                release.set()
        release.wait(timeout=10)
        with lock:
            under_way[0] -= 1

    concurrent_map(call, range(12), 3)
    assert most[0] == 3


@pytest.mark.parametrize("limit", [1, 3])
def test_errors_of_services_are_results_and_others_are_raised(limit):
    def call(item):
        if item == 1:
            raise ServiceUnavailable("down")
        if item == 9:
            raise ZeroDivisionError
        return item

    results = concurrent_map(call, [0, 1, 2], limit)
    assert results[::2] == [0, 2]
    assert isinstance(results[1], ServiceUnavailable)
    with pytest.raises(ZeroDivisionError):
        concurrent_map(call, [0, 9, 2, 1], limit)


def test_results_of_several_back_ends_come_in_turn():
    first = Fake("first", {"q": ["a", "b", "c", "d"]})
    second = Fake("second", {"q": ["b", "x", "a"], "r": ["y"]})
    outcomes = search_many([first, second], ["q", "r", "s"], k=4)
    assert [hit.url for hit in outcomes[0].hits] == ["a", "b", "x", "c"]
    assert [hit.backend for hit in outcomes[0].hits] == ["first", "second", "second", "first"]
    assert outcomes[1].hits[0].url == "y"
    assert outcomes[1].errors == ("first: no answer to r",)
    assert outcomes[2] == SearchOutcome("s", (), ("first: no answer to s", "second: no answer to s"))
    assert [hit.url for hit in search_many([first], ["q"], k=2, exclude={"a"})[0].hits] == ["b", "c"]


def test_bad_numbers():
    with pytest.raises(InputError, match="at least one search back end"):
        search_many([], ["q"], k=1)
    with pytest.raises(InputError, match="number of results"):
        search_many([Fake("a", {})], ["q"], k=0)
    with pytest.raises(InputError, match="calls at a time"):
        concurrent_map(abs, [1], 0)
