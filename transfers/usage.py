"""How many files and bytes a tree has, folder by folder, in the memory of one path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from transfers.entry import Entry, Kind


@dataclass(slots=True)
class Usage:
    """What lies at and below `path`; b"" is the whole. Links and special files count as files without bytes."""

    path: bytes
    files: int = 0
    folders: int = 0
    bytes: int = 0

    def take(self, inner: Usage) -> None:
        """Count what a folder in it holds."""
        self.files += inner.files
        self.folders += inner.folders
        self.bytes += inner.bytes


def usages(listed: Iterable[Entry], depth: int) -> Iterator[Usage]:
    """A tree's folders down to `depth`, each behind those in it, and the whole last, from a listing in canonical order.

    A folder that only names below it tell of (an object store's) is one, too.
    """
    held = [Usage(b"")]
    for entry in listed:
        while len(held) > 1 and not entry.order.startswith(held[-1].path + b"/"):
            yield _let_go(held)
        folders = entry.order.split(b"/")[:-1]
        levels = range(len(held), min(depth, len(folders)) + 1)
        held.extend(Usage(b"/".join(folders[:level])) for level in levels)
        held[-1].folders += entry.kind is Kind.FOLDER
        if entry.kind is not Kind.FOLDER:
            held[-1].files += 1
            held[-1].bytes += entry.size
    while len(held) > 1:
        yield _let_go(held)
    yield held[0]


def _let_go(held: list[Usage]) -> Usage:
    done = held.pop()
    held[-1].take(done)
    return done
