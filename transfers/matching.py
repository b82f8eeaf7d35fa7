"""Which files are to be hashed to prove a tree, and what is wrong with it by its names alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hibali.events import Failed
from transfers.entry import Entry
from transfers.rules import Selector
from transfers.selection import with_parents
from transfers.tree import Tree


class Pair(NamedTuple):
    """A file at one place and the digest it should have, or files at two places that should be the same."""

    ours: Entry
    theirs: Entry | None = None
    wanted: str | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """One or both."""
        return (self.ours,) if self.theirs is None else (self.ours, self.theirs)


@dataclass(slots=True)
class Matched:
    """`pairs` in canonical order; `nobodys` counts files that nobody says anything of and nobody asked about."""

    pairs: list[Pair] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)
    nobodys: int = 0


def leave_out(trees: Sequence[Tree], takes: Selector) -> set[bytes]:
    """Take what `takes` does not take by its age or size out of one or two trees; the names.

    A name is judged by the first tree that has it: a copy of another size is no reason not to look at it.
    """
    judged: dict[bytes, bool] = {}
    for tree in trees:
        for entry in (*tree.files, *tree.links):
            judged.setdefault(entry.path, tree.single or takes(entry))
    out = {path for path, taken in judged.items() if not taken}
    for tree in trees if out else ():
        tree.files = [entry for entry in tree.files if entry.path not in out]
        tree.links = [entry for entry in tree.links if entry.path not in out]
    return out


def unmet_names(trees: Sequence[Tree], expected: Iterable[bytes]) -> Iterator[Failed]:
    """The names of a list that no tree has anything of, nor anybody expects."""
    missing = set.intersection(*(tree.missing for tree in trees))
    for path in expected if missing else ():
        missing.difference_update(with_parents(path))
    for name in sorted(missing):
        yield Failed(name, "missing", "nothing of this name is known")


def match_digests(tree: Tree, expected: Mapping[bytes, str], *, exact: bool, below: bytes) -> Matched:
    """What should stand in one tree, and does. With `exact`, anything more below the prefix `below` is a failure."""
    found = Matched()
    links = {entry.path for entry in tree.links}
    standing = {entry.path for entry in tree.files}
    for path in sorted(expected.keys() - standing):
        if path in links:
            found.failures.append(Failed(path, "differs", "a symlink stands there, and a file should"))
        else:
            found.failures.append(Failed(path, "missing", "it is not there"))
    more = sorted((standing | links) - expected.keys())
    for path in more:
        if exact and path.startswith(below):
            found.failures.append(Failed(path, "unexpected", "nothing is known of it"))
        else:
            found.nobodys += path in standing
    found.pairs = [Pair(entry, None, expected[entry.path]) for entry in tree.files if entry.path in expected]
    return found


def match_trees(ours: Tree, theirs: Tree) -> Matched:
    """What stands in both: the second has to hold what the first holds, and nothing else. Two single files match by themselves.

    Where the sizes differ there is no need to hash.
    """
    found = Matched()
    if ours.single and theirs.single:
        found.pairs = [Pair(mine, other) for mine, other in zip(ours.files, theirs.files, strict=True)]
        return found
    _match_links(ours, theirs, found)
    there = {entry.path: entry for entry in theirs.files}
    here = {entry.path for entry in ours.files}
    for path in sorted(there.keys() - here):
        found.failures.append(Failed(path, "unexpected", "only the second place has it"))
    for path in sorted(here - there.keys()):
        found.failures.append(Failed(path, "missing", "it is not there"))
    for entry in ours.files:
        other = there.get(entry.path)
        if other is not None and other.size != entry.size:
            reason = f"it has {other.size} bytes, and {entry.size} were expected"
            found.failures.append(Failed(entry.path, "differs", reason))
        elif other is not None:
            found.pairs.append(Pair(entry, other))
    return found


def _match_links(ours: Tree, theirs: Tree, found: Matched) -> None:
    """A symlink is what it points to, as text."""
    there = {entry.path: entry.link for entry in theirs.links}
    here = {entry.path: entry.link for entry in ours.links}
    for path in sorted(there.keys() - here.keys()):
        found.failures.append(Failed(path, "unexpected", "only the second place has it"))
    for path, link in here.items():
        if path not in there:
            found.failures.append(Failed(path, "missing", "the symlink is not there"))
        elif there[path] != link:
            found.failures.append(Failed(path, "differs", "the symlink points elsewhere"))
