"""Follow a source: run sync cycles until it is finished."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

from hibali.errors import IncompleteError, UsageError
from hibali.events import Failed, Grown, Listener, Moved, Noted, Planned, Round, ignore
from hibali.locations import check_writable
from hibali.retry import Pace, pause
from hibali.text import printable
from transfers.entry import Entry, Kind, Proof
from transfers.follow.appending import Added, add_tails
from transfers.follow.watcher import HELD_BACK, Following, Watch, Work, marker_names
from transfers.journal import Receipt
from transfers.operation import Operation
from transfers.plan import Action, Conflict
from transfers.planner import (
    ListedName,
    Snapshot,
    TransferPlan,
    check_plan,
    check_space,
    listed,
    missing_source,
)
from transfers.request import Request
from transfers.rules import Rules, selector
from transfers.spool import Spool
from transfers.stores.base import Item, Landed, Problem, Side, Store, Tail
from transfers.stores.single_file import SingleSource, SingleTarget

_FULL = frozenset({"no-space", "no-quota", "read-only"})
_QUIETLY = frozenset({"source-changed", "vanished", HELD_BACK})


@dataclass(frozen=True, slots=True)
class Done:
    """How many seconds the round took besides carrying, whether it found anything to do, and whether anything of that landed."""

    seconds: float
    busy: bool
    moved: bool


class Rounds(Operation):
    """Looks and carries; who follows says when."""

    def __init__(self, request: Request, following: Following, on_event: Listener, stack: ExitStack) -> None:
        super().__init__(request, on_event, stack)
        self._following = following
        self._watch: Watch
        self._rounds = 0
        self._numbers = count()
        self._root = 0
        self._waiting = 0
        self._aside = 0.0
        self._landed_last = 0.0
        self._full = False
        self._failures: dict[bytes, Problem] = {}
        self._conflicts: list[Conflict] = []
        self._noted: set[bytes] = set()
        self._grown: dict[bytes, Grown] = {}
        self._unlisted_there: list[tuple[bytes, Problem]] = []

    def _against_globus(self, *, plain: bool) -> tuple[str, ...]:
        """A task of Globus for every look would be many."""
        return (*super()._against_globus(plain=plain), "--follow")

    def _reading(self) -> Store:
        """The store that the source is read from."""
        return self._source.store if isinstance(self._source, SingleSource) else self._stores[0]

    def _name(self, path: bytes) -> bytes:
        """What the source calls the file that the target knows as `path`."""
        return self._source.name if isinstance(self._source, SingleSource) else path

    def _is_marked(self, entry: Entry) -> bool:
        marker = self._following.marker
        names = marker_names(marker, self._name(entry.path)) if marker is not None else ()
        return any(self._reading().stat(name) is not None for name in names)

    def _tell_plan(self, work: Work) -> None:
        """So much is known by now; what was moved before counts in, so that totals only grow."""
        files = self.receipt.files_moved + work.files_to_move
        size = self.receipt.bytes_moved + work.bytes_to_move
        self.record_event(Planned(work.files, work.bytes, files, size, work.files_kept, 0))

    def _round(self) -> Done:
        """One look, and all that it found to do."""
        self._check_root()
        began = time.monotonic()
        self._watch.look(began)
        work = self._watch.plan(began)
        self._aside = time.monotonic() - began
        try:
            self.receipt.files, self.receipt.bytes = work.files, work.bytes
            self.receipt.files_kept, self._waiting = work.files_kept, work.files_waiting
            self._conflicts = work.conflicts
            for failed in self._undone():
                if failed.code not in _QUIETLY:
                    self._note(failed.path, failed.message)
            moved = work.busy and self._carry_out(work)
            return Done(self._aside, work.busy, moved)
        finally:
            work.close()

    def _check_root(self) -> None:
        """A folder that was put in the place of the one that is followed would never be seen."""
        if isinstance(self._source, SingleSource):
            return
        found = self._stores[0].stat()
        if found is None:
            raise missing_source(self._request.source.text)
        if self._root and found.inode != self._root:
            raise IncompleteError(
                "source-replaced",
                "another folder stands in the place of the one that was followed",
                subject=self._request.source.text,
                hint="The same line again follows the new one.",
            )
        self._root = found.inode

    def _carry_out(self, work: Work) -> bool:
        """Whole files, then what grew, then the markers of what is there; whether anything landed."""
        before = (self.receipt.files_moved, self.receipt.bytes_moved)
        self._failures = {}
        self._tell_plan(work)
        if work.moves.count:
            self._move(self._items(work.moves), work.bytes_to_move)
        grown: dict[bytes, Entry | None] = {}
        added = sum(self._grow(work.growths, grown)) if work.growths.count and not self._full else 0
        if not self._full:
            self._carry_markers(work.markers)
        if self._full:
            return False
        left = {*self._failures, *(conflict.entry.path for conflict in work.conflicts)}
        self._watch.settle(work.offered, left, grown)
        files = self.receipt.files_moved - before[0] + sum(entry is not None for entry in grown.values())
        size = self.receipt.bytes_moved - before[1] + added
        if files:
            self._rounds += 1
            failed = len(self._watch.undone) + len(work.conflicts)
            self.record_event(
                Round(self._rounds, work.files, work.bytes, files, size, work.files_waiting, failed)
            )
        return files > 0

    def _carry_markers(self, markers: Spool) -> None:
        """Those of which nothing that they mark is missing over there; the others are held back."""
        if not markers.count:
            return
        missing = [*self._watch.undone, *(conflict.entry.path for conflict in self._conflicts)]
        if sum(self._lets_go(action.entry, missing) for action in markers):
            self._move(self._items(one for one in markers if one.entry.path not in self._failures), 0)

    def _items(self, actions: Iterable[Action]) -> Iterator[Item]:
        """Numbered over all rounds: agents know open files by these numbers."""
        return (self._item(next(self._numbers), action) for action in actions)

    def _lets_go(self, marker: Entry, missing: Iterable[bytes]) -> bool:
        pattern = self._following.marker
        assert pattern is not None
        if not any(marker.path in marker_names(pattern, path) for path in missing):
            return True
        self._fail(marker, Problem(HELD_BACK, "what it marks is not there yet"))
        return False

    def _move(self, items: Iterable[Item], size: int) -> int:
        """An object store writes the digests of the whole tree after each round: what that takes counts as looking."""
        answered = super()._move(items, size)
        self._aside += time.monotonic() - self._landed_last if answered else 0.0
        return answered

    def _landed(self, landed: Landed) -> None:
        self._landed_last = time.monotonic()
        if landed.problem is None:
            super()._landed(landed)
        else:
            self._fail(landed.item.entry, landed.problem)

    def _fail(self, entry: Entry, problem: Problem) -> None:
        """It is tried again, and a failure only when it never succeeds."""
        self._full = self._full or problem.code in _FULL
        self._failures[entry.path] = problem
        self._watch.failed(entry, problem, time.monotonic())
        if problem.code not in _QUIETLY:
            self._note(entry.path, problem.message)

    def _note(self, path: bytes, message: str) -> None:
        """Once a name: it may be tried for days."""
        if path not in self._noted:
            self._noted.add(path)
            self.record_event(Noted(f"{printable(path) or '.'}: not sent so far: {message}"))

    def _grow(self, growths: Spool, grown: dict[bytes, Entry | None]) -> Iterator[int]:
        """Send the tails; yields how many bytes each added, and fills in what stands there now."""
        source, target = self._reading(), self._target
        tails = (
            Tail(self._name(action.entry.path), action.entry, action.target.size)
            for action in growths
            if action.target is not None
        )
        for event in add_tails(source.appender(), target.appender(), tails, Pace(self._request.lowest_rate)):
            if not isinstance(event, Added):
                self.record_event(event)
            elif event.digest is None or event.problem is not None:
                self._fail(event.tail.entry, event.problem or Problem("failed", "no reason was given"))
                grown[event.tail.entry.path] = None
            else:
                grown[event.tail.entry.path] = event.tail.entry
                yield self._has_grown(event.tail, event.digest)
        for path in [path for path, entry in grown.items() if entry is None]:
            grown[path] = self._target.stat(path)  # how far it came

    def _has_grown(self, tail: Tail, digest: str) -> int:
        entry, added = tail.entry, tail.entry.size - tail.start
        told = Grown(entry.path, entry.size, added, digest, Proof.DIGEST, entry.mtime_ns, entry.mode)
        self._grown[entry.path] = told
        self.record_event(told)
        return added

    def _prove_grown(self) -> bool:
        """Hash in whole, at both ends, what was sent in tails; whether all of it is proven."""
        waiting, self._grown = self._grown, {}
        entries = [Entry(one.path, Kind.FILE, one.size, one.mtime_ns) for one in waiting.values()]
        wrong = []
        both = zip(self._source.digest(entries), self._target.digest(entries), strict=True)
        for (entry, ours, _), (_, theirs, _) in list(both):
            if ours is not None and ours == theirs:
                self._tell_grown(waiting[entry.path])
            elif ours is None or theirs is None or self._source_size(entry.path) != entry.size:
                self._grown[entry.path] = waiting[entry.path]  # it is touched even now
            else:
                wrong.append(entry.path)
        if wrong:
            self._watch.mistrust(wrong)
        return not (wrong or self._grown)

    def _source_size(self, path: bytes) -> int | None:
        found = self._reading().stat(self._name(path))
        return None if found is None else found.size

    def _unproven(self) -> Iterator[Failed]:
        """What was sent in tails, and could not be hashed in whole."""
        for path in self._grown:
            yield Failed(path, "not-proven", "it never stood still long enough to be hashed in whole")

    def _tell_grown(self, one: Grown) -> None:
        """All of its tails are there, and count as one file that was moved."""
        self.record_event(Moved(one.path, Kind.FILE, one.size, one.digest, one.proof, one.mtime_ns, one.mode))

    def _undone(self) -> Iterator[Failed]:
        """What is not there for another reason than that it is not finished."""
        for path, problem in (*self._unlisted_there, *self._watch.unlisted):
            yield Failed(path, problem.code, problem.message)
        for conflict in self._conflicts:
            yield Failed(conflict.entry.path, conflict.code, conflict.message)
        for path, undone in self._watch.undone.items():
            yield Failed(path, undone.problem.code, undone.problem.message)


_IDLE_LOOKS = 2  # so often nothing may be left to do before an announced end is believed
_LAST_PAUSE = 1.0
_PATIENCE = 2.0


def follow(
    request: Request, following: Following, on_event: Listener = ignore
) -> tuple[Receipt, KeyboardInterrupt | None]:
    """Do it until the end is announced, or an interruption comes, which is handed back beside the receipt.

    Raises `UsageError` for rules that have no meaning here, and what `synchronise` raises. The receipt is in the ledger in any case.
    """
    check_request(request)
    check_writable(request.target)
    with ExitStack() as stack:
        operation = Follow(request, following, on_event, stack)
        interruption: KeyboardInterrupt | None = None
        try:
            try:
                receipt = operation.run()
            except KeyboardInterrupt as caught:
                interruption = caught
                operation.leave()
                receipt = operation.end(caught)
        except BaseException as problem:
            operation.end(problem)
            raise
        operation.save()
        return receipt, interruption


def check_request(request: Request) -> None:
    """Raise `UsageError` for what cannot be asked of a source that is still written."""
    rules = request.rules
    if request.source.site.kind != "local":
        raise UsageError(
            "not-with-follow",
            "only a folder or file of this machine can be followed",
            subject=request.source.text,
            hint="Start it where the data is written.",
        )
    refused = {
        "--delete": rules.delete,
        "--checksum": rules.checksum,
        "--files-from": rules.files_from is not None,
        "--backup-dir": request.backup is not None,
    }
    for option, given in refused.items():
        if given:
            raise UsageError(
                "not-with-follow",
                f"{option} cannot be used with --follow",
                hint=f"Follow without it; afterwards push once more with {option}.",
            )


class Follow(Rounds):
    """One call: looks at the source in turn with rounds of carrying."""

    def run(self) -> Receipt:
        """The whole call."""
        self.open_ends()
        facts = self._target.facts
        existed = self._target.stat() is not None
        lock = None
        if facts.locks and (existed or not facts.folders):
            lock = self._lock()
        self._watch = self._watching(exists=existed)
        self._stack.callback(self._watch.close)
        self._first_look(exists=existed)
        lock = self._make_and_lock(lock)
        self._go_on()
        for failed in [*self._undone(), *self._unproven()]:
            self.record_event(failed)
        if lock is not None:
            lock.release()
        return self.end(None)

    def _watching(self, *, exists: bool) -> Watch:
        side: Side = self._target
        if isinstance(self._source, SingleSource):
            side = SingleTarget(self._target, self._source.shown)
        entries = listed(side, self._unlisted_there) if exists else iter(())
        there = Snapshot(ListedName(entry) for entry in entries)
        if self._journal is not None and not there.count and not isinstance(self._source, SingleSource):
            self._journal.append({"kind": "empty"})
        watch = Watch(self._source, self._target.facts, there, self._request.rules, self._following)
        watch.standing = self._target.stat
        watch.marked = self._is_marked
        watch.last = self._until_inside()
        if self._following.append:
            self._let_grow(watch)
        return watch

    def _let_grow(self, watch: Watch) -> None:
        if not (self._target.facts.appends and self._reading().facts.appends):
            self.record_event(
                Noted(
                    f"{self._request.target.text}: nothing can be appended there; a file that grows is sent again in whole,"
                    f" each time that it was quiet for {self._following.quiet:g} s"
                )
            )
            return
        takes = selector(Rules(include=self._following.append))
        watch.grows = lambda entry: takes(entry._replace(path=self._name(entry.path)))

    def _until_inside(self) -> bytes | None:
        """The file that announces the end, where it lies in the source and so travels itself: as the last of all."""
        until = self._following.until
        if until is None or isinstance(self._source, SingleSource):
            return None
        folder = os.path.realpath(os.fsencode(until.parent))
        root = os.path.realpath(self._stores[0].where)
        if folder != root and not folder.startswith(root.rstrip(b"/") + b"/"):
            return None
        below = folder[len(root) :].strip(b"/")
        return below + b"/" + os.fsencode(until.name) if below else os.fsencode(until.name)

    def _first_look(self, *, exists: bool) -> None:
        """Refuse what must not begin, as of all that is there now, finished or not."""
        subject = self._request.target.text
        self._watch.look(time.monotonic())
        work = self._watch.plan(time.monotonic(), everything=True)
        try:
            found = TransferPlan(
                moves=work.moves,
                conflicts=work.conflicts,
                files=work.files,
                bytes_to_move=work.bytes_to_move,
                names_to_make=work.names_to_make + (not exists),
            )
            check_plan(found, self._request.rules, subject)
            check_space(found, self._target, subject)
            self._tell_plan(work)
        finally:
            work.close()

    def _go_on(self) -> None:
        """Look and carry in turn until the end is announced and nothing is left, or there is no room."""
        idle, moved = 0, time.monotonic()
        while not self._full:
            self._notice_the_end()
            done = self._round()
            if done.moved or not self._watch.ended:
                moved = time.monotonic()
            idle = 0 if done.busy else idle + 1
            if self._watch.ended and idle >= _IDLE_LOOKS and self._prove_grown():
                break
            if time.monotonic() - moved > max(_PATIENCE, self._following.quiet):
                break
            wait = self._following.pause(done.seconds)
            pause(min(_LAST_PAUSE, wait) if self._watch.ended else wait)
        self._send_the_last()

    def _notice_the_end(self) -> None:
        until = self._following.until
        if until is not None and not self._watch.ended and os.path.lexists(until):
            self._watch.end()

    def _send_the_last(self) -> None:
        """The file that announced the end says over there what it says here: that everything is there."""
        path, self._watch.last = self._watch.last, None
        if path is None or self._full:
            return
        if next(self._undone(), None) is None:
            self._round()
        else:
            self._fail(
                Entry(path, Kind.FILE), Problem(HELD_BACK, "it goes last, and not everything is there")
            )

    def leave(self) -> None:
        """Interrupted: say what is there, and what is not."""
        grown = list(self._grown.values())
        self._grown.clear()
        for one in grown:
            self._tell_grown(one)
        files, size = self.receipt.files_moved, self.receipt.bytes_moved
        self.record_event(
            Noted(
                f"interrupted; {files} files ({size} bytes) that this call sent stand at the target, whole and proven;"
                f" {self._waiting} were not finished. The same line again goes on, also with what was under way."
            )
        )
