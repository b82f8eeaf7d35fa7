"""Which entries a transfer takes by what they are: a list of names, their age, their size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hibali.errors import UsageError
from hibali.text import printable
from transfers.entry import Entry, Kind
from transfers.store import unsafe_component


def read_names(content: bytes, about: str, *, separator: bytes = b"\n") -> frozenset[bytes]:
    """The names of a list, relative to the source; `./x` and `x/` are `x`, empty ones are passed over.

    Raises `UsageError` for a name that is absolute or climbs.
    """
    names: set[bytes] = set()
    for number, written in enumerate(content.split(separator), 1):
        name = written.removeprefix(b"./").rstrip(b"/") if written != b"/" else written
        if not name:
            continue
        reason = unsafe_component(name)
        if reason:
            raise UsageError(
                "bad-name",
                f"{printable(written)} cannot be a name below the source: {reason}",
                about=f"{about}:{number}",
                hint="Names are relative to the source, one a line; --from0 takes those of `find -print0`.",
            )
        names.add(name)
    return frozenset(names)


def with_parents(path: bytes) -> Iterator[bytes]:
    """The path and every folder above it."""
    yield path
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)


def is_named(path: bytes, names: frozenset[bytes]) -> bool:
    """Whether the list has this name or a folder above it."""
    return any(name in names for name in with_parents(path))


def unmet(names: frozenset[bytes], entries: Iterable[Entry], missing: set[bytes]) -> Iterator[Entry]:
    """The same entries; `missing` is left with the names of the list that none of them met."""
    missing.update(names)
    for entry in entries:
        if missing:
            missing.difference_update(with_parents(entry.path))
        yield entry


def takes_by_facts(
    entry: Entry,
    names: frozenset[bytes] | None,
    newer_ns: int | None,
    sizes: tuple[int | None, int | None],
) -> bool:
    """Whether the entry is named, new and of a size that was asked for.

    A folder is taken where it is named and nothing else was asked: its age and size say nothing of what it
    holds, and the folders above a file are made with it. A time or size that is not known leaves nothing out.
    """
    smallest, largest = sizes
    plain = newer_ns is None and smallest is None and largest is None
    if names is not None and not is_named(entry.path, names):
        return False
    if entry.kind is Kind.FOLDER:
        return plain
    if newer_ns is not None and entry.mtime_ns and entry.mtime_ns < newer_ns:
        return False
    if entry.kind is not Kind.FILE:
        return True
    return (smallest is None or entry.size >= smallest) and (largest is None or entry.size <= largest)
