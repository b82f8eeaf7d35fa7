"""What a saved plan says must stand at a key when an object is put there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor

from hibali.errors import HibaliError
from transfers.entry import Kind
from transfers.store import Item, Payload, Problem
from transfers.stores.s3_errors import problem_of
from transfers.stores.s3_requests import Requests

_CHANGED = Problem("target-changed", "it is no longer what the plan saw at the target, and was left alone")


class Expected:
    """Looks at the keys of exact items just before they are written."""

    def __init__(self, requests: Requests, pool: Executor, key_of: Callable[[bytes], bytes]) -> None:
        """`key_of` gives the whole key of a path below the root."""
        self._requests = requests
        self._pool = pool
        self._key_of = key_of

    def check(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        """The same payloads; an item whose key holds something else than was planned has a problem."""
        for payload in payloads:
            asked = [
                (position, item)
                for position, item in enumerate(payload.unit.items)
                if is_exact(item) and not payload.unit.offset
            ]
            found = self._pool.map(self.look, [item for _, item in asked])
            for (position, _), problem in zip(asked, found, strict=True):
                if problem is not None:
                    payload.problems.setdefault(position, problem)
            yield payload

    def look(self, item: Item) -> Problem | None:
        """Whether another object stands at this item's key than was planned."""
        try:
            head = self._requests.ask("HEAD", self._key_of(item.entry.path), accept=(404,))
        except HibaliError as error:
            return problem_of(error, denied=True)
        planned = item.replaces
        if head.status == 404 or (planned is not None and planned.etag == head.etag):
            return None
        return _CHANGED


def is_exact(item: Item) -> bool:
    """Whether a saved plan says what stands at the key of this file."""
    return item.exact and not item.clear and item.entry.kind is Kind.FILE
