"""Doing some of many things ahead of their turn, in threads, and giving them in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Asked = TypeVar("Asked")
Given = TypeVar("Given")


def in_order(
    things: Iterable[Asked],
    do: Callable[[Asked], Given],
    *,
    at_once: int,
    weigh: Callable[[Asked], int] = lambda _: 0,
    most: int = 0,
) -> Iterator[tuple[Asked, Given]]:
    """Each thing with what `do` made of it, up to `at_once` or `most` weight of them under way."""
    coming = iter(things)
    under_way: deque[tuple[Asked, int, Future[Given]]] = deque()
    held = 0
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="sftp")
    try:
        while True:
            while len(under_way) < at_once and held <= most:
                thing = next(coming, None)
                if thing is None:
                    break
                weight = weigh(thing)
                held += weight
                under_way.append((thing, weight, pool.submit(do, thing)))
            if not under_way:
                return
            thing, weight, future = under_way.popleft()
            held -= weight
            yield thing, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
