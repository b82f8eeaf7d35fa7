"""What one side looked like, kept out of memory in canonical order, with what is known of each name besides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from transfers.entry import Entry
from transfers.spool import Blocks, entry_from_list, entry_to_list


class Seen(NamedTuple):
    """One name as it was seen.

    `since` is when it first was as it is, in seconds of a clock that only goes forward. `looks` counts the looks that found it so,
    1 for the first. `renamed` says that it came by a rename. `ours` says that it is so by this very call.
    """

    entry: Entry
    since: float = 0.0
    looks: int = 1
    renamed: bool = False
    ours: bool = False


class Snapshot:
    """Names in the order they were added, which is the canonical one."""

    def __init__(self, seen: Iterable[Seen] = ()) -> None:
        self._blocks = Blocks()
        for one in seen:
            self.add(one)

    def add(self, seen: Seen) -> None:
        """Append one name."""
        fields = [*seen[1:], entry_to_list(seen.entry)]
        self._blocks.append(json.dumps(fields, separators=(",", ":")).encode("ascii"))

    def __iter__(self) -> Iterator[Seen]:
        """Forward; several may read at once, and nothing may be added meanwhile."""
        for content in self._blocks.blocks():
            *known, entry = json.loads(content)
            yield Seen(entry_from_list(entry), *known)

    @property
    def count(self) -> int:
        """How many names."""
        return self._blocks.count

    def close(self) -> None:
        """Forget it."""
        self._blocks.close()


class Reader:
    """Goes through a snapshot beside another listing in the same order."""

    def __init__(self, snapshot: Iterable[Seen]) -> None:
        self._coming = iter(snapshot)
        self._next = next(self._coming, None)

    def at(self, order: bytes) -> Seen | None:
        """What is there at this place of the order, if anything; only ever asked forward."""
        while self._next is not None and self._next.entry.order < order:
            self._next = next(self._coming, None)
        found = self._next
        return found if found is not None and found.entry.order == order else None
