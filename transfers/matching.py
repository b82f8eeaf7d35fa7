"""Which files are to be hashed to prove a tree, and what is wrong with it by its names alone; in constant memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from hibali.events import Failed
from transfers.entry import Entry
from transfers.rules import Selector
from transfers.selection import with_parents
from transfers.spool import EntrySpool, Spooled, entry_from_list, entry_to_list
from transfers.tree import Tree

_IN_MEMORY = 8 * 1024 * 1024

Fail = Callable[[Failed], None]
Unknown = Callable[[bytes], None]


class Pair(NamedTuple):
    """A file at one place and the digest it should have, or files at two places that should be the same."""

    ours: Entry
    theirs: Entry | None = None
    wanted: str | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """One or both."""
        return (self.ours,) if self.theirs is None else (self.ours, self.theirs)


class Pairs(Spooled[Pair]):
    """Pairs in canonical order; `bytes` is how much there is to hash at one place."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        super().__init__(in_memory)
        self.bytes = 0

    def add(self, value: Pair) -> None:
        """See Spooled."""
        super().add(value)
        self.bytes += value.ours.size

    def _pack(self, value: Pair) -> list[Any]:
        theirs = entry_to_list(value.theirs) if value.theirs is not None else None
        return [entry_to_list(value.ours), theirs, value.wanted]

    def _unpack(self, fields: list[Any]) -> Pair:
        ours, theirs, wanted = fields
        return Pair(entry_from_list(ours), entry_from_list(theirs) if theirs else None, wanted)


@dataclass(slots=True)
class Matched:
    """What there is to compare; `nobodys` counts files that nobody says anything of and nobody asked about."""

    pairs: Pairs = field(default_factory=Pairs)
    nobodys: int = 0


def leave_out(trees: Sequence[Tree], takes: Selector, left: Callable[[bytes], object]) -> None:
    """Take what `takes` does not take by its age or size out of one or two trees; each such name is told to `left`.

    A name is judged by the first tree that has it: a copy of another size is no reason not to look at it.
    """
    kept = [EntrySpool() for _ in trees for _ in range(2)]
    sides = [_by_path(entries) for tree in trees for entries in (tree.files, tree.links)]
    for path, having in _together(*sides):
        first = next(number for number, values in enumerate(having) if values)
        if trees[first // 2].single or takes(having[first][0]):
            for spool, values in zip(kept, having, strict=True):
                for entry in values:
                    spool.add(entry)
        else:
            left(path)
    for number, tree in enumerate(trees):
        tree.close()
        tree.files, tree.links = kept[2 * number : 2 * number + 2]


def unmet_names(trees: Sequence[Tree], expected: Iterable[bytes]) -> Iterator[Failed]:
    """The names of a list that no tree has anything of, nor anybody expects."""
    missing = set.intersection(*(tree.missing for tree in trees))
    for path in expected if missing else ():
        missing.difference_update(with_parents(path))
    for name in sorted(missing):
        yield Failed(name, "missing", "nothing of this name is known")


def match_digests(
    tree: Tree, expected: Mapping[bytes, str], fail: Fail, unknown: Unknown, *, exact: bool, below: bytes
) -> Matched:
    """What should stand in one tree, and does. With `exact`, anything more below the prefix `below` is a failure.

    Without it, files that nothing is known of are told to `unknown`.
    """
    found = Matched()
    wanted = ((path, None) for path in sorted(expected))
    for path, (named, file, link) in _together(wanted, _by_path(tree.files), _by_path(tree.links)):
        if not named:
            if exact and path.startswith(below):
                fail(Failed(path, "unexpected", "nothing is known of it"))
            elif file:
                found.nobodys += 1
                unknown(path)
        elif file:
            found.pairs.add(Pair(file[0], None, expected[path]))
        elif link:
            fail(Failed(path, "differs", "a symlink stands there, and a file should"))
        else:
            fail(Failed(path, "missing", "it is not there"))
    return found


def match_trees(ours: Tree, theirs: Tree, fail: Fail) -> Matched:
    """What stands in both: the second has to hold what the first holds, and nothing else. Two single files match by themselves.

    Where the sizes differ there is no need to hash.
    """
    found = Matched()
    if ours.single and theirs.single:
        for mine, other in zip(ours.files, theirs.files, strict=True):
            found.pairs.add(Pair(mine, other))
        return found
    _match_links(ours, theirs, fail)
    for path, (here, there) in _together(_by_path(ours.files), _by_path(theirs.files)):
        if not here:
            fail(Failed(path, "unexpected", "only the second place has it"))
        elif not there:
            fail(Failed(path, "missing", "it is not there"))
        elif here[0].size != there[0].size:
            reason = f"it has {there[0].size} bytes, and {here[0].size} were expected"
            fail(Failed(path, "differs", reason))
        else:
            found.pairs.add(Pair(here[0], there[0]))
    return found


def _match_links(ours: Tree, theirs: Tree, fail: Fail) -> None:
    """A symlink is what it points to, as text."""
    for path, (here, there) in _together(_by_path(ours.links), _by_path(theirs.links)):
        if not here:
            fail(Failed(path, "unexpected", "only the second place has it"))
        elif not there:
            fail(Failed(path, "missing", "the symlink is not there"))
        elif here[0].link != there[0].link:
            fail(Failed(path, "differs", "the symlink points elsewhere"))


def _by_path(entries: EntrySpool) -> Iterator[tuple[bytes, Entry]]:
    return ((entry.path, entry) for entry in entries)


def _together(*sides: Iterable[tuple[bytes, Any]]) -> Iterator[tuple[bytes, list[list[Any]]]]:
    """Each path of sorted sides with what each of them has of it: one value, or none."""
    numbered = [_numbered(number, side) for number, side in enumerate(sides)]
    for path, group in groupby(heapq.merge(*numbered, key=itemgetter(0)), key=itemgetter(0)):
        having: list[list[Any]] = [[] for _ in sides]
        for _, number, value in group:
            having[number].append(value)
        yield path, having


def _numbered(number: int, side: Iterable[tuple[bytes, Any]]) -> Iterator[tuple[bytes, int, Any]]:
    return ((path, number, value) for path, value in side)
