"""Test following a source that is written at any time: only finished files are sent, and finally all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from hibali_plugins.follow.watcher import FollowOptions, ListedName, Snapshot, SourceWatcher
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts
from transfers.model.rules import Rules
from transfers.model.units import Problem

FACTS = Facts(kind="local", read_verification=Verification.DIGEST, write_verification=Verification.DIGEST)
QUIET = 3.0
NAMES = [b"a", b"a-x", b"a.b", b"a0", b"d/a", b"d/b", b"log"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "remove", "rename", "cycle", "fail"]),
        st.sampled_from(NAMES),
        st.sampled_from(NAMES),
    ),
    max_size=40,
)


@dataclass
class Source:
    """A folder in memory: the inode of each path, and the content of each inode."""

    facts: Facts = FACTS
    names: dict[bytes, Entry] = field(default_factory=dict)
    made: int = 0

    def write(self, path: bytes, now: int) -> None:
        old = self.names.get(path)
        if old is None:
            self.made += 1
            old = Entry(path, Kind.FILE, 0, inode=self.made)
        self.names[path] = old._replace(size=old.size + 1, mtime_ns=now * 1000 + old.size)

    def list(self) -> Iterator[Entry]:
        folders = {b"d"} if any(path.startswith(b"d/") for path in self.names) else set()
        entries = [*self.names.values(), *(Entry(path, Kind.FOLDER) for path in folders)]
        yield from sorted(entries, key=lambda entry: entry.order)

    def digest(self, entries: object) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        raise NotImplementedError

    read = digest  # type: ignore[assignment]


class Target:
    """The state of the target, and the transfers that created it."""

    def __init__(self, source: Source, existing: dict[bytes, Entry]) -> None:
        self.source = source
        self.there = dict(existing)
        ordered = sorted(existing.values(), key=lambda entry: entry.order)
        following = FollowOptions(quiet=QUIET)
        self.watch = SourceWatcher(source, FACTS, Snapshot(map(ListedName, ordered)), Rules(), following)
        self.watch.existing = self.there.get
        self.watch.grows = lambda entry: entry.path == b"log"
        self.touched: dict[bytes, float] = {}

    def run_cycle(self, now: float, failing: set[bytes]) -> bool:
        """Run one scan-and-transfer cycle; return whether the plan had any work."""
        self.watch.scan(now)
        work = self.watch.plan(now)
        left = set()
        for action in work.moves:
            path = action.entry.path
            if action.entry.kind is Kind.FILE and not self.watch.ended and not self._renamed(path):
                assert now - self.touched[path] >= QUIET, f"{path!r} was sent while it was written"
            assert action.entry.kind is Kind.FOLDER or self.there.get(path) != action.entry
            if path in failing:
                left.add(path)
                self.watch.failed(action.entry, Problem("denied", ""), now)
            else:
                self.there[path] = action.entry
        grown: dict[bytes, Entry | None] = {}
        for action in work.growths:
            assert action.target is not None
            existing = self.there.get(action.entry.path)
            assert action.target.size == (existing.size if existing else 0) <= action.entry.size
            self.there[action.entry.path] = grown[action.entry.path] = action.entry
        self.watch.settle(work.offered, left, grown)
        busy = work.busy
        work.close()
        return busy

    def _renamed(self, path: bytes) -> bool:
        return self.touched[path] < 0


@settings(max_examples=settings.default.max_examples * 3 // 2)
@given(steps=STEPS, before=st.sets(st.sampled_from(NAMES)))
def test_only_finished_files_are_sent_and_finally_all_of_them(
    steps: list[tuple[str, bytes, bytes]], before: set[bytes]
) -> None:
    source = Source()
    target = Target(source, {path: Entry(path, Kind.FILE, 1, 5, inode=1) for path in before})
    failing: set[bytes] = set()
    now = 100
    for step, path, other in steps:
        now += 1
        if step == "write":
            source.write(path, now)
            target.touched[path] = now
        elif step == "remove":
            source.names.pop(path, None)
        elif step == "rename" and path in source.names and other != path:
            source.names[other] = source.names.pop(path)._replace(path=other)
            target.touched[other] = -1.0
        elif step == "fail":
            failing ^= {path}
        elif step == "cycle":
            target.run_cycle(now, failing)
    target.watch.end()
    for _ in range(2):
        now += 1
        target.run_cycle(now, set())
    assert not target.run_cycle(now, set())
    for path, entry in source.names.items():
        assert target.there[path][:4] == entry[:4]
    assert not target.watch.retries
    target.watch.close()
