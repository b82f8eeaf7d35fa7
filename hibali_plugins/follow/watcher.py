"""Watch a source, and decide which of its files are finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from hibali.errors import UsageError
from transfers.engine.request import FeatureOption
from transfers.model.entry import Entry, Kind
from transfers.model.facts import Facts
from transfers.model.rules import Rules, Selector, select_all, selector
from transfers.model.spool import Blocks, entry_from_list, entry_to_list
from transfers.model.store import Source
from transfers.model.units import Problem
from transfers.planning.actions import Action, Conflict, Decision, Verb, compare, decide
from transfers.planning.planner import listed
from transfers.planning.spool import Spool

QUIET_SECONDS = 30.0
_LONGEST_PAUSE = 5.0
_SHORTEST_PAUSE = 0.2
_SHARE = 9  # scans take at most a tenth of the time

_Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FollowOptions(FeatureOption):
    """The options of following a source.

    Attributes:
        quiet: a file is finished when its size and time did not change for this many seconds.
        marker: the name or pattern of files that mark finished ones; then `quiet` is not used.
        until: a file on this machine that announces that all files are finished.
        append: patterns of files that only grow at their end.
    """

    flag: ClassVar[str] = "--follow"
    quiet: float = QUIET_SECONDS
    marker: bytes | None = None
    until: Path | None = None
    append: tuple[str, ...] = ()

    def pause(self, seconds: float) -> float:
        """Return the pause after a scan (and other work of the cycle) that took `seconds`."""
        return max(_SHORTEST_PAUSE, min(_LONGEST_PAUSE, self.quiet / 3), _SHARE * seconds)


def read_marker(text: bytes) -> bytes:
    """Check a marker: `NAME`, or a pattern with one `*` for the marked file's name. Raises `UsageError`."""
    if not text.strip(b"*") or text.count(b"*") > 1 or b"/" in text or text in {b".", b".."}:
        raise UsageError(
            "bad-marker",
            "a marker is a file name, or a pattern with one * for the name of the marked file",
            subject=text.decode("utf-8", "replace"),
            hint="Examples: '*.done', CopyComplete.txt",
        )
    return text


def marker_names(marker: bytes, path: bytes) -> tuple[bytes, ...]:
    """Return the paths of possible markers of `path`; one of them is enough.

    In a pattern, `*` is the file's name, with or without its last suffix; a name marks all files in its
    folder and below.
    """
    folder, slash, name = path.rpartition(b"/")
    before, star, after = marker.partition(b"*")
    if star:
        stem = name.rpartition(b".")[0]
        return tuple(folder + slash + before + one + after for one in (name, stem) if one)
    found = []
    while folder:
        found.append(folder + b"/" + marker)
        folder = folder.rpartition(b"/")[0]
    return (*found, marker)


def is_marker(marker: bytes | None, path: bytes) -> bool:
    """Return whether the file is itself a marker."""
    if marker is None:
        return False
    name = path.rpartition(b"/")[2]
    before, star, after = marker.partition(b"*")
    if not star:
        return name == marker
    return len(name) > len(marker) - 1 and name.startswith(before) and name.endswith(after)


class ListedName(NamedTuple):
    """A name in a scan.

    Attributes:
        entry: the name.
        since: when it was first seen unchanged, in seconds of a monotonic clock.
        scans: the number of scans that found it unchanged.
        renamed: whether it was created by a rename.
        own: whether this operation wrote it.
    """

    entry: Entry
    since: float = 0.0
    scans: int = 1
    renamed: bool = False
    own: bool = False


class Snapshot:
    """Names in canonical order, on disk."""

    def __init__(self, seen: Iterable[ListedName] = ()) -> None:
        self._blocks = Blocks()
        for one in seen:
            self.add(one)

    def add(self, seen: ListedName) -> None:
        """Append one name."""
        fields = [*seen[1:], entry_to_list(seen.entry)]
        self._blocks.append(json.dumps(fields, separators=(",", ":")).encode("ascii"))

    def __iter__(self) -> Iterator[ListedName]:
        """Read all names; several readers may run at once, and nothing may be added during a read."""
        for content in self._blocks.blocks():
            *known, entry = json.loads(content)
            yield ListedName(entry_from_list(entry), *known)

    @property
    def count(self) -> int:
        """The number of names."""
        return self._blocks.count

    def close(self) -> None:
        """Delete it from disk."""
        self._blocks.close()


class SnapshotReader:
    """A reader of a snapshot in step with another listing in the same order."""

    def __init__(self, snapshot: Iterable[ListedName]) -> None:
        self._coming = iter(snapshot)
        self._next = next(self._coming, None)

    def at(self, order: bytes) -> ListedName | None:
        """Return the name at this position, if there is one; positions only increase."""
        while self._next is not None and self._next.entry.order < order:
            self._next = next(self._coming, None)
        found = self._next
        return found if found is not None and found.entry.order == order else None


def compare_scans(entry: Entry, before: ListedName | None, now: float, *, renamed: bool) -> ListedName:
    """Compare an entry of a scan at `now` with the previous scan."""
    if before is None or identity(before.entry) != identity(entry):
        return ListedName(entry, now, renamed=renamed)
    return ListedName(entry, before.since, before.scans + 1, before.renamed)


def identity(entry: Entry) -> tuple[object, ...]:
    """Return the values that change when a file is written or replaced."""
    return (entry.kind, entry.size, entry.mtime_ns, entry.device, entry.inode, entry.link)


def is_quiet(seen: ListedName, now: float, quiet: float) -> bool:
    """Return whether it was unchanged for `quiet` seconds, was renamed, or is not a file."""
    return seen.renamed or seen.entry.kind is not Kind.FILE or now - seen.since >= quiet


class Renames:
    """The files of the previous scan by inode, to recognize renamed files."""

    def __init__(self, most: int = 100_000) -> None:
        """Keep at most `most` files; renames of others are not recognized."""
        self._most = most
        self._known: dict[_Identity, tuple[int, int, bool]] = {}

    def remember(self, entry: Entry, *, selected: bool) -> None:
        """Keep a file of this scan; `selected` if its name is selected."""
        if entry.kind is Kind.FILE and entry.inode and entry.links == 1 and len(self._known) < self._most:
            self._known[entry.device, entry.inode] = (entry.size, entry.mtime_ns, selected)

    @property
    def count(self) -> int:
        """The number of remembered files."""
        return len(self._known)

    def is_renamed(self, entry: Entry) -> bool:
        """Return whether a new name is a renamed, complete file of the previous scan.

        A name that is not selected is a temporary one, renamed at the end. Other names count only if nothing
        was written since, because inodes are reused.
        """
        known = self._known.get((entry.device, entry.inode))
        if known is None or entry.kind is not Kind.FILE or entry.links != 1:
            return False
        size, mtime_ns, selected = known
        if selected:
            return (entry.size, entry.mtime_ns) == (size, mtime_ns)
        return entry.size >= size and entry.mtime_ns >= mtime_ns


HELD_BACK = "held-back"
_FLEETING = frozenset({"source-changed", "vanished", "corrupt", "target-changed"})
_NO_TAIL = frozenset({"not-a-prefix", "not-ours-alone"})
_COUNTED = frozenset({Kind.FILE, Kind.LINK})
_LONGEST_WAIT = 3600.0
_REMEMBERED = 50_000  # finished files that are remembered, to recognize a renamed folder


@dataclass(frozen=True, slots=True)
class RetryState:
    """Why a name is not at the target, the number of tries, and the time of the next one."""

    problem: Problem
    entry: Entry
    tries: int
    retry_at: float


@dataclass(slots=True)
class CyclePlan:
    """The plan of one cycle: whole files, their markers, grown files, and counts."""

    moves: Spool = field(default_factory=Spool)
    markers: Spool = field(default_factory=Spool)
    growths: Spool = field(default_factory=Spool)
    conflicts: list[Conflict] = field(default_factory=list)
    offered: bytearray = field(default_factory=bytearray)
    files: int = 0
    bytes: int = 0
    files_kept: int = 0
    files_waiting: int = 0
    files_to_move: int = 0
    bytes_to_move: int = 0
    names_to_make: int = 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to send."""
        return bool(self.moves.count or self.markers.count or self.growths.count)

    def close(self) -> None:
        """Delete it from disk."""
        for spool in (self.moves, self.markers, self.growths):
            spool.close()


class SourceWatcher:
    """The state of both sides between scans; memory is one byte for each name, plus failures."""

    def __init__(
        self, source: Source, target_facts: Facts, there: Snapshot, rules: Rules, following: FollowOptions
    ) -> None:
        """Keep `there`, the listing of the locked target, which only this operation changes.

        `grows`, `marked` and `existing` return whether a file only grows, whether it has a marker, and the
        target's entry.
        """
        self._source = source
        self._facts = target_facts
        self._there = there
        self._rules = rules
        self._following = following
        self._selected: Selector = selector(rules)
        self._seen = Snapshot()
        self._renames = Renames()
        self.retries: dict[bytes, RetryState] = {}
        self.unlisted: list[tuple[bytes, Problem]] = []
        self.ended = False
        self.last: bytes | None = None  # a name to send after everything else
        self.grows: Callable[[Entry], bool] = lambda _: False
        self.marked: Callable[[Entry], bool] = lambda _: False
        self.existing: Callable[[bytes], Entry | None] = lambda _: None
        self._whole: set[bytes] = set()
        self._resend: set[bytes] = set()

    def scan(self, now: float) -> None:
        """List the source, and compare it with the previous scan."""
        seen, renames, unlisted = Snapshot(), Renames(), list[tuple[bytes, Problem]]()
        before = SnapshotReader(self._seen)
        failing: dict[bytes, RetryState] = {}
        for entry in listed(self._source, unlisted):
            if not self._selected(entry):
                renames.remember(entry, selected=False)
                continue
            known = before.at(entry.order)
            fresh = known is None or known.entry.inode != entry.inode
            one = compare_scans(entry, known, now, renamed=fresh and self._renames.is_renamed(entry))
            seen.add(one)
            if not is_quiet(one, now, self._following.quiet) or renames.count < _REMEMBERED:
                renames.remember(entry, selected=True)
            retries = self.retries.get(entry.path)
            if retries is not None and identity(retries.entry) == identity(entry):
                failing[entry.path] = retries
        self._seen.close()
        self._seen, self._renames = seen, renames
        self.retries, self.unlisted = failing, unlisted

    def plan(self, now: float, *, everything: bool = False) -> CyclePlan:
        """Return what to send now; with `everything`, as if all files were finished."""
        plan = CyclePlan()
        at_target = (seen.entry for seen in self._there)
        at_source = self._finished(plan, now, everything=everything)
        for decision in decide(
            at_source, at_target, self._rules, select_all, self._source.facts, self._facts
        ):
            self._count(plan, decision)
        return plan

    def _finished(self, plan: CyclePlan, now: float, *, everything: bool) -> Iterator[Entry]:
        there = SnapshotReader(self._there)
        for seen in self._seen:
            entry = seen.entry
            at_target = there.at(entry.order)
            same = at_target is not None and self._is_same(entry, at_target.entry)
            if entry.kind in _COUNTED:
                plan.files += 1
                plan.bytes += entry.size
                plan.files_kept += same and at_target is not None and not at_target.own
            ready = same or self._is_ready(seen, now) or everything
            grows = not same and not everything and self._can_grow(seen, at_target, now)
            plan.offered.append(ready and not grows and not same)
            if plan.offered[-1] and at_target is not None and at_target.own:
                self._resend.add(entry.path)
            if grows:
                self._add_growth(plan, entry, at_target)
            elif ready:
                yield entry
            elif entry.path not in self.retries and entry.path != self.last:
                plan.files_waiting += 1

    def _is_same(self, at_source: Entry, at_target: Entry) -> bool:
        if at_source.kind is Kind.FOLDER or at_source.kind is not at_target.kind:
            return at_source.kind is at_target.kind
        return compare(at_source, at_target, self._rules, self._source.facts, self._facts).verb is Verb.KEEP

    def _is_ready(self, seen: ListedName, now: float) -> bool:
        entry = seen.entry
        if entry.path == self.last:
            return False
        retries = self.retries.get(entry.path)
        if retries is not None:
            return now >= retries.retry_at
        if self.ended or entry.kind is not Kind.FILE:
            return True
        marker = self._following.marker
        if is_marker(marker, entry.path):
            return seen.scans > 1  # the previous scan began after the marker existed
        if marker is not None:
            return self.marked(entry)
        return is_quiet(seen, now, self._following.quiet)

    def _can_grow(self, seen: ListedName, at_target: ListedName | None, now: float) -> bool:
        """Return whether to send only a tail; complete new files are sent whole, over all channels."""
        entry = seen.entry
        if (
            entry.kind is not Kind.FILE
            or not entry.size
            or not self.grows(entry)
            or entry.path in self._whole
        ):
            return False
        retries = self.retries.get(entry.path)
        if retries is not None and now < retries.retry_at:
            return False
        if at_target is None:
            return not self.ended and not is_quiet(seen, now, self._following.quiet)
        return at_target.entry.kind is Kind.FILE and at_target.entry.size <= entry.size

    def _add_growth(self, plan: CyclePlan, entry: Entry, at_target: ListedName | None) -> None:
        start = 0 if at_target is None else at_target.entry.size
        plan.growths.add(Action(Verb.REPLACE, entry, "it grew", Entry(entry.path, Kind.FILE, start)))
        plan.files_to_move += 1
        plan.bytes_to_move += entry.size - start

    def _count(self, plan: CyclePlan, decision: Decision) -> None:
        if isinstance(decision, Conflict):
            plan.conflicts.append(decision)
        elif decision.verb is not Verb.KEEP:
            if decision.entry.path in self._resend:
                # files of this operation have the permissions that the site sets
                self._resend.discard(decision.entry.path)
                decision = decision._replace(target=self.existing(decision.entry.path))
            later = is_marker(self._following.marker, decision.entry.path)
            (plan.markers if later else plan.moves).add(decision)
            plan.files_to_move += decision.entry.kind in _COUNTED
            plan.bytes_to_move += decision.entry.size
            plan.names_to_make += decision.target is None

    def failed(self, entry: Entry, problem: Problem, now: float) -> None:
        """Note a failure; the name is tried again when it changes, and from time to time."""
        if problem.code in _NO_TAIL:  # not a failure: it is sent as a whole once it is finished
            self._whole.add(entry.path)
            self.retries.pop(entry.path, None)
            return
        before = self.retries.get(entry.path)
        tries = before.tries if before is not None else 0
        wait = min(_LONGEST_WAIT, self._following.quiet * 2**tries)
        if problem.code == HELD_BACK:
            wait = 0.0
        elif self.ended:
            wait = 0.0 if problem.code in _FLEETING else float("inf")
        self.retries[entry.path] = RetryState(problem, entry, min(tries + 1, 30), now + wait)

    def end(self) -> None:
        """Treat all files as finished, and try failed ones once more."""
        self.ended = True
        self.retries = {}

    def resend_whole(self, paths: Iterable[bytes]) -> None:
        """Send these files again as a whole: their content at the target is wrong."""
        wrong: dict[bytes, Entry | None] = {path: Entry(path, Kind.FILE, -1) for path in paths}
        self._whole.update(wrong)
        self.settle(bytes(self._seen.count), set(), wrong)

    def settle(self, offered: bytes | bytearray, left: set[bytes], grown: dict[bytes, Entry | None]) -> None:
        """Update the target's state with what a plan `offered`, except what was `left`, and with `grown`."""
        there, before = Snapshot(), iter(self._there)
        existing = next(before, None)
        for was_offered, seen in zip(offered, self._seen, strict=True):
            order, path = seen.entry.order, seen.entry.path
            while existing is not None and existing.entry.order < order:
                there.add(existing)
                existing = next(before, None)
            known = existing if existing is not None and existing.entry.order == order else None
            if known is not None:
                existing = next(before, None)
            if path in grown:
                changed = grown[path]
                known = None if changed is None else ListedName(changed, own=True)
            elif was_offered and path not in left:
                known = ListedName(seen.entry, own=True)
                self._whole.discard(path)
            if known is not None:
                there.add(known)
        while existing is not None:
            there.add(existing)
            existing = next(before, None)
        self._there.close()
        self._there = there

    def close(self) -> None:
        """Delete both snapshots from disk."""
        self._seen.close()
        self._there.close()
