"""Know in a worker of a transfer which one it is, and of how many: they share logins, connections and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_current: ContextVar[tuple[int, int] | None] = ContextVar("worker", default=None)


@contextmanager
def as_worker(number: int, count: int) -> Iterator[None]:
    """Let this process be worker `number` of `count` meanwhile."""
    token = _current.set((number, count))
    try:
        yield
    finally:
        _current.reset(token)


def worker_number() -> int | None:
    """Return the number of this worker; None in any other process."""
    current = _current.get()
    return None if current is None else current[0]


def worker_count() -> int:
    """Return how many workers the transfer has; 1 in any other process."""
    current = _current.get()
    return 1 if current is None else current[1]
