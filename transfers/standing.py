"""What stands at names that are asked about, from a listing in canonical order, in constant memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from transfers.entry import Entry, Kind
from transfers.plan import Action


class Asked(NamedTuple):
    """One action by its number in its spool."""

    action: Action
    number: int


_Event = tuple[bytes, int, Entry | Asked]


@dataclass(slots=True)
class Standing:
    """One name: what was asked of it, the file and the folder there, and a name below it that nobody asked about."""

    path: bytes
    asked: list[Asked] = field(default_factory=list)
    file: Entry | None = None
    folder: Entry | None = None
    below: bytes | None = None

    @property
    def unasked(self) -> bool:
        """Whether something stands here that no action is about."""
        folders = {one.action.entry.kind is Kind.FOLDER for one in self.asked}
        return (self.file is not None and False not in folders) or (
            self.folder is not None and True not in folders
        )


def standing(listed: Iterable[Entry], asked: Iterable[Asked]) -> Iterator[Standing]:
    """For each name asked about, in canonical order of the actions' entries, what stands there as file and as folder.

    A name is held back until its folder has passed: between `a` and `a/` other names may come (`a-x`, `a.b`).
    All that is held is a chain of prefixes.
    """
    entries: Iterator[_Event] = ((entry.order, 0, entry) for entry in listed)
    questions: Iterator[_Event] = ((one.action.entry.order, 1, one) for one in asked)
    held: list[Standing] = []
    for order, _, thing in heapq.merge(entries, questions, key=itemgetter(0, 1)):
        yield from _release(held, order)
        path = thing.path if isinstance(thing, Entry) else thing.action.entry.path
        if not held or held[-1].path != path:
            held.append(Standing(path))
        here = held[-1]
        if not isinstance(thing, Entry):
            here.asked.append(thing)
        elif thing.kind is Kind.FOLDER:
            here.folder = thing
        else:
            here.file = thing
    yield from _release(held, None)


def _release(held: list[Standing], order: bytes | None) -> Iterator[Standing]:
    """Let go of the names of which nothing more can come."""
    while held and (order is None or not order.startswith(held[-1].path)):
        name = held.pop()
        if name.unasked:
            for above in held:
                if name.path.startswith(above.path + b"/"):
                    above.below = above.below or name.path
        if name.asked:
            yield name
