"""Watch a source, and decide which of its files are finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from hibali.errors import UsageError
from transfers.entry import Entry, Kind
from transfers.plan import Action, Conflict, Decision, Verb, compare, decide
from transfers.planner import ListedName, Reader, Snapshot, listed
from transfers.rules import Rules, Selector, selector
from transfers.spool import Spool
from transfers.stores.base import Facts, Problem, Source

QUIET_SECONDS = 30.0
_LONGEST_PAUSE = 5.0
_SHORTEST_PAUSE = 0.2
_SHARE = 9  # a look may take a tenth of the time at most

_Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Following:
    """How growing data is followed.

    A file is finished when its size and time stayed the same for `quiet` seconds; where there is a `marker`, when that is there
    instead. `until` is a file of this machine that says that all is. Files that match one of `append` only ever grow.
    """

    quiet: float = QUIET_SECONDS
    marker: bytes | None = None
    until: Path | None = None
    append: tuple[str, ...] = ()

    def pause(self, seconds: float) -> float:
        """How long to wait after a look and what goes with it took so long, in seconds."""
        return max(_SHORTEST_PAUSE, min(_LONGEST_PAUSE, self.quiet / 3), _SHARE * seconds)


def read_marker(text: bytes) -> bytes:
    """`NAME`, or a pattern with one `*` for the name of the file that it marks; raises `UsageError`."""
    if not text.strip(b"*") or text.count(b"*") > 1 or b"/" in text or text in {b".", b".."}:
        raise UsageError(
            "bad-marker",
            "a marker is a name, or has one * for the name of the file beside it",
            subject=text.decode("utf-8", "replace"),
            hint="Examples: '*.done', CopyComplete.txt",
        )
    return text


def marker_names(marker: bytes, path: bytes) -> tuple[bytes, ...]:
    """The paths of which one says that `path` is finished.

    A pattern stands for the file's name, or its name without the last suffix, beside it; a name marks all in and below its folder.
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
    """Whether the file is itself a marker."""
    if marker is None:
        return False
    name = path.rpartition(b"/")[2]
    before, star, after = marker.partition(b"*")
    if not star:
        return name == marker
    return len(name) > len(marker) - 1 and name.startswith(before) and name.endswith(after)


def see(entry: Entry, before: ListedName | None, now: float, *, renamed: bool) -> ListedName:
    """What a look at `now` makes of an entry, after what the look before it knew of that name."""
    if before is None or identity(before.entry) != identity(entry):
        return ListedName(entry, now, renamed=renamed)
    return ListedName(entry, before.since, before.looks + 1, before.renamed)


def identity(entry: Entry) -> tuple[object, ...]:
    """What differs when somebody wrote to a file, or put another in its place."""
    return (entry.kind, entry.size, entry.mtime_ns, entry.device, entry.inode, entry.link)


def is_quiet(seen: ListedName, now: float, quiet: float) -> bool:
    """Whether it has stayed as it is for so many seconds, or came by a rename, or is nothing that is written to."""
    return seen.renamed or seen.entry.kind is not Kind.FILE or now - seen.since >= quiet


class Renames:
    """Files of the look before by their inodes, so that a new name of a known file is known for what it is."""

    def __init__(self, most: int = 100_000) -> None:
        """Beyond so many files no more are remembered: a rename of those is not noticed."""
        self._most = most
        self._known: dict[_Identity, tuple[int, int, bool]] = {}

    def remember(self, entry: Entry, *, taken: bool) -> None:
        """A file as this look saw it; `taken` where its name is one that travels."""
        if entry.kind is Kind.FILE and entry.inode and entry.links == 1 and len(self._known) < self._most:
            self._known[entry.device, entry.inode] = (entry.size, entry.mtime_ns, taken)

    @property
    def count(self) -> int:
        """How many are remembered."""
        return len(self._known)

    def meets(self, entry: Entry) -> bool:
        """Whether a file that is new under its name is one of the look before, renamed when it was complete.

        From a name that does not travel: whoever writes so renames last. From any other only where nothing was written since,
        because an inode is soon used again.
        """
        known = self._known.get((entry.device, entry.inode))
        if known is None or entry.kind is not Kind.FILE or entry.links != 1:
            return False
        size, mtime_ns, taken = known
        if taken:
            return (entry.size, entry.mtime_ns) == (size, mtime_ns)
        return entry.size >= size and entry.mtime_ns >= mtime_ns


HELD_BACK = "held-back"
_FLEETING = frozenset({"source-changed", "vanished", "corrupt", "target-changed"})
_NO_TAIL = frozenset({"not-a-prefix", "not-ours-alone"})
_COUNTED = frozenset({Kind.FILE, Kind.LINK})
_LONGEST_WAIT = 3600.0
_REMEMBERED = 50_000  # files that were finished already, by which a folder that is renamed is known


@dataclass(frozen=True, slots=True)
class Undone:
    """Why a name is not at the target, how often that was tried, and when it is tried again if nobody touches it."""

    problem: Problem
    entry: Entry
    tries: int
    again_at: float


@dataclass(slots=True)
class Work:
    """What one look found: what is to be sent whole, the markers behind it, the files to be made longer, and counts."""

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
        """Whether there is anything to do."""
        return bool(self.moves.count or self.markers.count or self.growths.count)

    def close(self) -> None:
        """Forget it."""
        for spool in (self.moves, self.markers, self.growths):
            spool.close()


class Watch:
    """What is known of both sides between two looks; constant in memory but for one byte a name, and what fails."""

    def __init__(
        self, source: Source, target_facts: Facts, there: Snapshot, rules: Rules, following: Following
    ) -> None:
        """`there` is what stood at the target when it was locked; nobody else changes that since.

        `grows` tells which files only ever grow, `marked` which have a marker, `standing` what the target has now.
        """
        self._source = source
        self._facts = target_facts
        self._there = there
        self._rules = rules
        self._following = following
        self._selected: Selector = selector(rules)
        self._seen = Snapshot()
        self._renames = Renames()
        self.undone: dict[bytes, Undone] = {}
        self.unlisted: list[tuple[bytes, Problem]] = []
        self.ended = False
        self.last: bytes | None = None  # a name that waits until everything else is there
        self.grows: Callable[[Entry], bool] = lambda _: False
        self.marked: Callable[[Entry], bool] = lambda _: False
        self.standing: Callable[[bytes], Entry | None] = lambda _: None
        self._whole: set[bytes] = set()
        self._again: set[bytes] = set()

    def look(self, now: float) -> None:
        """List the source, beside what the look before saw."""
        seen, renames, unlisted = Snapshot(), Renames(), list[tuple[bytes, Problem]]()
        before = Reader(self._seen)
        failing: dict[bytes, Undone] = {}
        for entry in listed(self._source, unlisted):
            if not self._selected(entry):
                renames.remember(entry, taken=False)
                continue
            known = before.at(entry.order)
            fresh = known is None or known.entry.inode != entry.inode
            one = see(entry, known, now, renamed=fresh and self._renames.meets(entry))
            seen.add(one)
            if not is_quiet(one, now, self._following.quiet) or renames.count < _REMEMBERED:
                renames.remember(entry, taken=True)
            undone = self.undone.get(entry.path)
            if undone is not None and identity(undone.entry) == identity(entry):
                failing[entry.path] = undone
        self._seen.close()
        self._seen, self._renames = seen, renames
        self.undone, self.unlisted = failing, unlisted

    def plan(self, now: float, *, everything: bool = False) -> Work:
        """What there is to do now; with `everything`, as if all of the source were finished."""
        work = Work()
        theirs = (seen.entry for seen in self._there)
        ours = self._finished(work, now, everything=everything)
        for decision in decide(ours, theirs, self._rules, _all, self._source.facts, self._facts):
            self._count(work, decision)
        return work

    def _finished(self, work: Work, now: float, *, everything: bool) -> Iterator[Entry]:
        there = Reader(self._there)
        for seen in self._seen:
            entry = seen.entry
            theirs = there.at(entry.order)
            same = theirs is not None and self._is_same(entry, theirs.entry)
            if entry.kind in _COUNTED:
                work.files += 1
                work.bytes += entry.size
                work.files_kept += same and theirs is not None and not theirs.ours
            ready = same or self._is_ready(seen, now) or everything
            grows = not same and not everything and self._can_grow(seen, theirs, now)
            work.offered.append(ready and not grows and not same)
            if work.offered[-1] and theirs is not None and theirs.ours:
                self._again.add(entry.path)
            if grows:
                self._add_growth(work, entry, theirs)
            elif ready:
                yield entry
            elif entry.path not in self.undone and entry.path != self.last:
                work.files_waiting += 1

    def _is_same(self, ours: Entry, theirs: Entry) -> bool:
        if ours.kind is Kind.FOLDER or ours.kind is not theirs.kind:
            return ours.kind is theirs.kind
        return compare(ours, theirs, self._rules, self._source.facts, self._facts).verb is Verb.KEEP

    def _is_ready(self, seen: ListedName, now: float) -> bool:
        entry = seen.entry
        if entry.path == self.last:
            return False
        undone = self.undone.get(entry.path)
        if undone is not None:
            return now >= undone.again_at
        if self.ended or entry.kind is not Kind.FILE:
            return True
        marker = self._following.marker
        if is_marker(marker, entry.path):
            return (
                seen.looks > 1
            )  # the look before this one began after it was there, and so saw what it marks
        if marker is not None:
            return self.marked(entry)
        return is_quiet(seen, now, self._following.quiet)

    def _can_grow(self, seen: ListedName, theirs: ListedName | None, now: float) -> bool:
        """Whether only a tail is to be sent. One that is complete and not there at all travels as any file, by all lines."""
        entry = seen.entry
        if (
            entry.kind is not Kind.FILE
            or not entry.size
            or not self.grows(entry)
            or entry.path in self._whole
        ):
            return False
        undone = self.undone.get(entry.path)
        if undone is not None and now < undone.again_at:
            return False
        if theirs is None:
            return not self.ended and not is_quiet(seen, now, self._following.quiet)
        return theirs.entry.kind is Kind.FILE and theirs.entry.size <= entry.size

    def _add_growth(self, work: Work, entry: Entry, theirs: ListedName | None) -> None:
        start = 0 if theirs is None else theirs.entry.size
        work.growths.add(Action(Verb.REPLACE, entry, "it grew", Entry(entry.path, Kind.FILE, start)))
        work.files_to_move += 1
        work.bytes_to_move += entry.size - start

    def _count(self, work: Work, decision: Decision) -> None:
        if isinstance(decision, Conflict):
            work.conflicts.append(decision)
        elif decision.verb is not Verb.KEEP:
            if decision.entry.path in self._again:
                # What this call put there has the permissions that the site gave it.
                self._again.discard(decision.entry.path)
                decision = replace(decision, target=self.standing(decision.entry.path))
            later = is_marker(self._following.marker, decision.entry.path)
            (work.markers if later else work.moves).add(decision)
            work.files_to_move += decision.entry.kind in _COUNTED
            work.bytes_to_move += decision.entry.size
            work.names_to_make += decision.target is None

    def failed(self, entry: Entry, problem: Problem, now: float) -> None:
        """It could not be sent: it is tried again when somebody touches it, and from time to time."""
        if problem.code in _NO_TAIL:  # no failure yet: once it is finished it goes in whole
            self._whole.add(entry.path)
            self.undone.pop(entry.path, None)
            return
        before = self.undone.get(entry.path)
        tries = before.tries if before is not None else 0
        wait = min(_LONGEST_WAIT, self._following.quiet * 2**tries)
        if problem.code == HELD_BACK:
            wait = 0.0
        elif self.ended:
            wait = 0.0 if problem.code in _FLEETING else float("inf")
        self.undone[entry.path] = Undone(problem, entry, min(tries + 1, 30), now + wait)

    def end(self) -> None:
        """Nobody writes any more: all that is there counts as finished, and what failed is tried once more."""
        self.ended = True
        self.undone = {}

    def mistrust(self, paths: Iterable[bytes]) -> None:
        """What stands there under these names is not what the source has: it is sent again, in whole."""
        wrong: dict[bytes, Entry | None] = {path: Entry(path, Kind.FILE, -1) for path in paths}
        self._whole.update(wrong)
        self.settle(bytes(self._seen.count), set(), wrong)

    def settle(self, offered: bytes | bytearray, left: set[bytes], grown: dict[bytes, Entry | None]) -> None:
        """Take in what stands at the target now: what a plan `offered` but for what was `left`, and what became longer."""
        there, before = Snapshot(), iter(self._there)
        standing = next(before, None)
        for given, seen in zip(offered, self._seen, strict=True):
            order, path = seen.entry.order, seen.entry.path
            while standing is not None and standing.entry.order < order:
                there.add(standing)
                standing = next(before, None)
            known = standing if standing is not None and standing.entry.order == order else None
            if known is not None:
                standing = next(before, None)
            if path in grown:
                changed = grown[path]
                known = None if changed is None else ListedName(changed, ours=True)
            elif given and path not in left:
                known = ListedName(seen.entry, ours=True)
                self._whole.discard(path)
            if known is not None:
                there.add(known)
        while standing is not None:
            there.add(standing)
            standing = next(before, None)
        self._there.close()
        self._there = there

    def close(self) -> None:
        """Forget everything."""
        self._seen.close()
        self._there.close()


def _all(entry: Entry) -> bool:
    del entry
    return True
