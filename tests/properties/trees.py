"""Generate random trees in memory, list them as a source or target, and execute plans on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import strategies as st

from tests.support.trees import sha256
from transfers.model.entry import Entry, Kind
from transfers.model.facts import Facts
from transfers.model.store import Side
from transfers.model.units import Problem
from transfers.planning.actions import Action, Verb
from transfers.planning.planner import TransferPlan

BASE = 1_600_000_000_123_456_789
SECOND = 1_000_000_000

# Some names sort between `a` and `a/`; the others have characters that programs often mishandle.
COMPONENTS = (
    b"a",
    b"a-x",
    b"a.b",
    b"a0",
    b"A",
    b"\xff\xfe",
    b"new\nline",
    b"-d",
    b"*",
    b".hibali-x",
    b"x.log",
)
CONTENTS = (b"", b"x", b"y", b"xy", b"yx")


class Node(NamedTuple):
    kind: Kind
    content: bytes = b""
    mtime_ns: int = 0
    mode: int = 0o755
    link: bytes = b""


FOLDER = Node(Kind.FOLDER)
EMPTY = Node(Kind.FILE, mtime_ns=BASE)
Model = dict[bytes, Node]


def parents(path: bytes) -> Iterator[bytes]:
    """Yield the parent folders, from the top."""
    parts = path.split(b"/")
    for count in range(1, len(parts)):
        yield b"/".join(parts[:count])


@st.composite
def files(draw: st.DrawFn, *, any_time: bool = False) -> Node:
    """Generate a file. Its time depends on its content: otherwise only digests distinguish files of one size."""
    number = draw(st.integers(0, len(CONTENTS) - 1))
    time = draw(st.integers(0, 1)) if any_time else number
    mode = draw(st.sampled_from((0o644, 0o755)))
    return Node(Kind.FILE, CONTENTS[number], BASE + time * SECOND, mode)


LINKS = st.sampled_from((b"a", b"../outside", b"\xff")).map(lambda link: Node(Kind.LINK, link=link))
PATHS = st.lists(st.sampled_from(COMPONENTS), min_size=1, max_size=3).map(b"/".join)


@st.composite
def trees(draw: st.DrawFn, *, any_time: bool = False) -> Model:
    """Generate a tree of a filesystem, in which every entry has its parent folders."""
    leaves = st.one_of(files(any_time=any_time), files(any_time=any_time), LINKS, st.just(FOLDER))
    tree: Model = {}
    for path, leaf in draw(st.lists(st.tuples(PATHS, leaves), max_size=10)):
        above = list(parents(path))
        if path in tree or any(tree.get(one, FOLDER).kind is not Kind.FOLDER for one in above):
            continue
        tree.update((one, FOLDER) for one in above)
        tree[path] = leaf
    return tree


@st.composite
def buckets(draw: st.DrawFn) -> Model:
    """Generate keys of an object store, where `a` and `a/b` may both be files and there are no folders."""
    return draw(st.dictionaries(PATHS, files(), max_size=10))


def entry_of(path: bytes, node: Node) -> Entry:
    return Entry(path, node.kind, len(node.content), node.mtime_ns, node.mode, link=node.link)


@dataclass
class ModelSide(Side):
    """A source or target from which a plan is made (transfers.model.store.Side)."""

    tree: Model
    side_facts: Facts

    @property
    def facts(self) -> Facts:
        return self.side_facts

    def list(self) -> Iterator[Entry]:
        return iter(sorted((entry_of(*item) for item in self.tree.items()), key=lambda entry: entry.order))

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        for entry in entries:
            yield entry, sha256(self.tree[entry.path].content), None


class ImpossibleError(Exception):
    """The plan needs an operation that no store has: a file below a file, or removing a folder with its content."""


def execute_plan(source: Model, target: Model, found: TransferPlan, *, folders: bool = True) -> Model:
    """Return the target after the plan, as every store executes it: moves in their order, then deletions in theirs."""
    result = dict(target)
    for action in found.moves:
        _move(result, source, action, folders=folders)
    for action in found.deletions:
        if not action.implied:
            _delete(result, action.entry.path)
    return result


def _move(result: Model, source: Model, action: Action, *, folders: bool) -> None:
    path, clear = action.entry.path, action.verb is Verb.RETYPE
    for above in parents(path) if folders else ():
        if result.setdefault(above, FOLDER).kind is not Kind.FOLDER:
            raise ImpossibleError(f"{path!r} below the {result[above].kind} {above!r}")
    existing = result.get(path)
    other = existing is not None and (existing.kind is Kind.FOLDER) != (action.entry.kind is Kind.FOLDER)
    if other and not clear:
        raise ImpossibleError(f"{path!r} over a name of another kind, which the plan does not replace")
    if clear and action.entry.kind is not Kind.FOLDER:
        for below in [name for name in result if name.startswith(path + b"/")]:
            del result[below]
    # the source has no node for a folder that only a bucket's keys imply
    result[path] = FOLDER if action.entry.kind is Kind.FOLDER else source[path]


def _delete(result: Model, path: bytes) -> None:
    node = result.get(path)
    if node is None:
        return
    if node.kind is Kind.FOLDER and any(name.startswith(path + b"/") for name in result):
        raise ImpossibleError(f"the folder {path!r} is not empty")
    del result[path]
