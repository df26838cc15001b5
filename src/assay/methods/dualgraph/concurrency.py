"""Work that waits for others, done at the same time: the queries of a round, the pages of a query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from assay.errors import InputError
from assay.methods.dualgraph.records import (
    AuthenticationFailed,
    Hit,
    SearchBackend,
    SearchOutcome,
    ServiceError,
)

Item = TypeVar("Item")
Result = TypeVar("Result")


def concurrent_map(
    function: Callable[[Item], Result], items: Iterable[Item], limit: int = 5
) -> list[Result | ServiceError]:
    """`function` of every item, in the order of the items, at most `limit` calls at a time.

    A `ServiceError` takes the place of the result that it prevented. Any other exception ends the work: calls
    that have not begun are dropped, those under way are waited for, and it is raised.

    Raises:
        InputError: `limit` is not positive.
    """
    if limit < 1:
        raise InputError(f"the number of calls at a time must be at least 1, got {limit}")
    things = list(items)

    def attempt(item: Item) -> Result | ServiceError:
        try:
            return function(item)
        except ServiceError as error:
            return error

    if limit == 1 or len(things) <= 1:
        return [attempt(item) for item in things]
    with ThreadPoolExecutor(min(limit, len(things)), thread_name_prefix="dualgraph") as pool:
        futures = [pool.submit(attempt, item) for item in things]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def search_many(
    backends: Sequence[SearchBackend],
    queries: Sequence[str],
    *,
    k: int,
    exclude: Collection[str] = (),
    concurrency: int = 5,
) -> list[SearchOutcome]:
    """Ask every back end every query, at most `concurrency` requests at a time.

    The outcome of a query takes its results from the back ends in turn, the best of each first, without what
    was named before; an error of a back end is a line in it. Which results a query gets does not depend on
    which request was answered first.

    Args:
        backends: where to search.
        queries: what to search for.
        k: results a query, of all back ends together.
        exclude: keys of results that are already known.
        concurrency: requests at a time.

    Raises:
        InputError: no back end, or `k` or `concurrency` is not positive.
        AuthenticationFailed: a service refused the key and no other answered anything.
    """
    if not backends:
        raise InputError("there is nothing to search in; pass at least one search back end")
    if k < 1:
        raise InputError(f"the number of results must be at least 1, got {k}")
    pairs = [(query, backend) for query in queries for backend in backends]
    answers = concurrent_map(lambda pair: pair[1].search(pair[0], k, exclude=exclude), pairs, concurrency)
    refused = [answer for answer in answers if isinstance(answer, AuthenticationFailed)]
    if refused and all(isinstance(answer, ServiceError) for answer in answers):
        raise refused[0]
    outcomes = []
    for i, query in enumerate(queries):
        mine = list(zip(backends, answers[i * len(backends) : (i + 1) * len(backends)], strict=True))
        lists = [answer for _, answer in mine if not isinstance(answer, ServiceError)]
        errors = [f"{backend.name}: {answer}" for backend, answer in mine if isinstance(answer, ServiceError)]
        outcomes.append(SearchOutcome(query, tuple(_in_turn(lists)[:k]), tuple(errors)))
    return outcomes


def _in_turn(lists: Sequence[Sequence[Hit]]) -> list[Hit]:
    """The first of every list, then the second of every list, and so on, each key once."""
    longest = max((len(hits) for hits in lists), default=0)
    merged: dict[str, Hit] = {}
    for rank in range(longest):
        for hits in lists:
            if rank < len(hits):
                merged.setdefault(hits[rank].key, hits[rank])
    return list(merged.values())
