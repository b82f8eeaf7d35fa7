"""Follow a source that is still written: scan it in cycles, and send every file once it is finished.

`follow` uses the functions of `transfers.engine.operation`. It neither restarts nor reconnects: the same command
resumes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count

from hibali.amounts import format_size
from hibali.errors import IncompleteError, UsageError
from hibali.events import Failed, Grown, Listener, Moved, Noted, Planned, Round, ignore
from hibali.locations import check_writable
from hibali.retry import Pace, pause
from hibali.text import counted, printable
from hibali_plugins.follow.appending import AppendResult, send_tails
from hibali_plugins.follow.watcher import (
    HELD_BACK,
    CyclePlan,
    FollowOptions,
    ListedName,
    Snapshot,
    SourceWatcher,
    marker_names,
)
from transfers.engine.endpoints import Endpoints
from transfers.engine.operation import (
    Operation,
    carry,
    connect,
    end_with,
    finish,
    item_of,
    lock_existing,
    make_root_and_lock,
    record_empty_target,
    record_result,
    start_operation,
)
from transfers.engine.request import Request
from transfers.engine.routes.base import FULL
from transfers.history.journal import Receipt
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.rules import Rules, selector
from transfers.model.store import Store
from transfers.model.units import Committed, Problem, Tail, of_target
from transfers.planning.actions import Action, Conflict
from transfers.planning.planner import TransferPlan, check_plan, check_space, listed, missing_source

_EXPECTED = frozenset({"source-changed", "vanished", HELD_BACK})  # failures of files that are not finished
_IDLE_CYCLES = 2  # cycles without anything to do before an announced end is believed
_LAST_PAUSE = 1.0
_IDLE_SECONDS = 2.0


def follow(
    request: Request, following: FollowOptions, on_event: Listener = ignore
) -> tuple[Receipt, KeyboardInterrupt | None]:
    """Send finished files until the end is announced, or until an interruption.

    Returns:
        The receipt, which is in the ledger in any case, and the interruption.

    Raises:
        UsageError: a rule that cannot be used with a source that is still written.
        HibaliError: the errors of `synchronise`.
    """
    check_request(request)
    check_writable(request.target)
    with ExitStack() as stack:
        # as an option, because a Globus task for every cycle would be too many
        request = replace(request, options=(*request.options, following))
        operation = start_operation(request, on_event, stack, follows=True)
        progress = Progress()
        interruption: KeyboardInterrupt | None = None
        try:
            try:
                _run(operation, following, progress, stack)
            except KeyboardInterrupt as caught:
                interruption = caught
                _record_interruption(operation, progress)
        except BaseException as problem:  # noqa: BLE001  # raised again, or as what it means now
            raise end_with(operation, problem) from problem.__cause__
        return finish(operation, interruption, save=True), interruption


def check_request(request: Request) -> None:
    """Raise `UsageError` for options that cannot be used with a source that is still written."""
    rules = request.rules
    if request.source.site.kind != "local":
        raise UsageError(
            "not-with-follow",
            "only a folder or file on this machine can be followed",
            subject=request.source.text,
            hint="Follow the data on the machine where it is written.",
        )
    refused = {
        "--move": request.move,
        "--delete": rules.delete,
        "--checksum": rules.checksum,
        "--files-from": rules.files_from is not None,
        "--rename": bool(rules.rename),
        "--keep-empty-folders": rules.keep_empty_folders,
        "--backup-dir": request.backup is not None,
    }
    for option, is_set in refused.items():
        if is_set:
            later = f"Leave it out; afterwards run push once more with {option}."
            renames = option == "--rename"  # a second push would copy everything again
            raise UsageError(
                "not-with-follow",
                f"{option} cannot be used with --follow",
                hint="Leave out --follow, and run push when the data is complete." if renames else later,
            )


@dataclass(slots=True)
class Progress:
    """The counts to report after an interruption.

    Attributes:
        waiting: the number of unfinished files.
        grown: files that were sent in tails and not yet hashed as a whole.
    """

    waiting: int = 0
    grown: dict[bytes, Grown] = field(default_factory=dict)


def _run(operation: Operation, following: FollowOptions, progress: Progress, stack: ExitStack) -> None:
    """Lock the target, list it once, and run the cycles until the end."""
    endpoints = connect(operation, stack)
    existed = endpoints.target.stat() is not None
    lock = lock_existing(endpoints, exists=existed)
    unlisted: list[tuple[bytes, Problem]] = []
    watcher = _watcher(operation, endpoints, following, _listed_target(endpoints, unlisted, exists=existed))
    stack.callback(watcher.close)
    follower = Follower(operation, endpoints, following, watcher, progress, unlisted)
    follower.check_start(exists=existed)
    lock = make_root_and_lock(endpoints, lock)
    _run_cycles(follower)
    for failed in [*follower.failures(), *follower.unverified()]:
        operation.recorder.record(failed)
    if lock is not None:
        lock.finish()


def _listed_target(endpoints: Endpoints, unlisted: list[tuple[bytes, Problem]], *, exists: bool) -> Snapshot:
    """List the locked target, which only this operation changes; unlisted names go to `unlisted`."""
    entries = listed(endpoints.target_side, unlisted, of_target) if exists else iter(())
    return Snapshot(ListedName(entry) for entry in entries)


def _watcher(
    operation: Operation, endpoints: Endpoints, following: FollowOptions, target: Snapshot
) -> SourceWatcher:
    """Return the watcher of the source, compared with what the target has."""
    if not target.count:
        record_empty_target(endpoints, operation.recorder)
    rules, source = operation.request.rules, endpoints.origin
    watcher = SourceWatcher(endpoints.source, endpoints.target.facts, target, rules, following)
    watcher.existing = endpoints.target.stat
    watcher.last = _until_inside(endpoints, following)
    marker = following.marker
    if marker is not None:

        def is_marked(entry: Entry) -> bool:
            names = marker_names(marker, source.path_of(entry))
            return any(source.store.stat(name) is not None for name in names)

        watcher.marked = is_marked
    if following.append and endpoints.target.can(Store.appender) and source.store.can(Store.appender):
        selects = selector(Rules(include=following.append))
        watcher.grows = lambda entry: selects(entry._replace(path=source.path_of(entry)))
    elif following.append:
        operation.recorder.record(
            Noted(
                f"{operation.request.target.text}: the target does not support appending; a growing file is sent again as a whole"
                f" each time it is unchanged for {following.quiet:g} s"
            )
        )
    return watcher


def _until_inside(endpoints: Endpoints, following: FollowOptions) -> bytes | None:
    """Return the path of the file that announces the end, if it is in the source: it is sent last."""
    until = following.until
    if until is None or endpoints.single is not None:
        return None
    folder = os.path.realpath(os.fsencode(until.parent))
    root = os.path.realpath(endpoints.root.root_path)
    if folder != root and not folder.startswith(root.rstrip(b"/") + b"/"):
        return None
    below = folder[len(root) :].strip(b"/")
    return below + b"/" + os.fsencode(until.name) if below else os.fsencode(until.name)


def _run_cycles(follower: Follower) -> None:
    """Run cycles until the end is announced and nothing is left to do, or until the target is full."""
    watcher, following = follower.watcher, follower.following
    idle, moved = 0, time.monotonic()
    while not follower.full:
        if following.until is not None and not watcher.ended and os.path.lexists(following.until):
            watcher.end()
        result = follower.run_cycle()
        if result.moved or not watcher.ended:
            moved = time.monotonic()
        idle = 0 if result.busy else idle + 1
        if watcher.ended and idle >= _IDLE_CYCLES and follower.verify_grown():
            break
        if time.monotonic() - moved > max(_IDLE_SECONDS, following.quiet):
            break
        wait = following.pause(result.seconds)
        pause(min(_LAST_PAUSE, wait) if watcher.ended else wait)
    follower.send_last()


def _record_interruption(operation: Operation, progress: Progress) -> None:
    """Record what is at the target, and what is not."""
    grown = list(progress.grown.values())
    progress.grown.clear()
    for one in grown:
        operation.recorder.record(_moved(one))
    files, size = operation.recorder.receipt.files_moved, operation.recorder.receipt.bytes_moved
    operation.recorder.record(
        Noted(
            f"interrupted; {counted(files, 'file')} ({format_size(size)}) sent and verified,"
            f" {counted(progress.waiting, 'file')} not finished yet. Run the same command again to resume."
        )
    )


def _moved(grown: Grown) -> Moved:
    """Return a grown file as one moved file."""
    return Moved(grown.path, Kind.FILE, grown.size, grown.digest, grown.proof, grown.mtime_ns, grown.mode)


@dataclass(frozen=True, slots=True)
class CycleResult:
    """The seconds of a cycle without transfers, whether there was work, and whether a file was committed."""

    seconds: float
    busy: bool
    moved: bool


@dataclass(slots=True)
class Cycle:
    """One cycle: its plan, its seconds without transfers, the time of the last result, and the failures."""

    plan: CyclePlan
    seconds: float
    last_result: float = 0.0
    failures: dict[bytes, Problem] = field(default_factory=dict)


@dataclass(slots=True)
class Follower:
    """Runs the cycles.

    Attributes:
        operation, endpoints: the operation that it is part of.
        following: when a file is finished.
        watcher: the known state of the source and of the target.
        progress: for the report of an interruption.
        unlisted_target: the names that could not be listed at the target.
        full: whether the target is full.
    """

    operation: Operation
    endpoints: Endpoints
    following: FollowOptions
    watcher: SourceWatcher
    progress: Progress
    unlisted_target: list[tuple[bytes, Problem]]
    full: bool = False
    _numbers: Iterator[int] = field(default_factory=count)  # over all cycles: agents know open files by these
    _cycles: int = 0
    _root_inode: int = 0
    _conflicts: list[Conflict] = field(default_factory=list)
    _noted: set[bytes] = field(default_factory=set)

    def check_start(self, *, exists: bool) -> None:
        """Refuse to start, judged by all files of the source, finished or not."""
        subject = self.operation.request.target.text
        self.watcher.scan(time.monotonic())
        plan = self.watcher.plan(time.monotonic(), everything=True)
        try:
            found = TransferPlan(
                moves=plan.moves,
                conflicts=plan.conflicts,
                files=plan.files,
                bytes_to_move=plan.bytes_to_move,
                names_to_make=plan.names_to_make + (not exists),
            )
            check_plan(found, self.operation.request.rules, subject)
            check_space(found, self.endpoints.target, subject)
            self._record_plan(plan)
        finally:
            plan.close()

    def _record_plan(self, plan: CyclePlan) -> None:
        """Record the current counts; they include moved files, so that totals only grow."""
        receipt = self.operation.recorder.receipt
        files, size = receipt.files_moved + plan.files_to_move, receipt.bytes_moved + plan.bytes_to_move
        self.operation.recorder.record(Planned(plan.files, plan.bytes, files, size, plan.files_kept, 0))

    def run_cycle(self) -> CycleResult:
        """Scan the source once, and send all finished files."""
        self._check_root()
        began = time.monotonic()
        self.watcher.scan(began)
        plan = self.watcher.plan(began)
        cycle, receipt = Cycle(plan, time.monotonic() - began), self.operation.recorder.receipt
        try:
            receipt.files, receipt.bytes, receipt.files_kept = plan.files, plan.bytes, plan.files_kept
            self.progress.waiting, self._conflicts = plan.files_waiting, plan.conflicts
            for failed in self.failures():
                if failed.code not in _EXPECTED:
                    self._note(failed.path, failed.message)
            moved = plan.busy and self._send(cycle)
            return CycleResult(cycle.seconds, plan.busy, moved)
        finally:
            plan.close()

    def _check_root(self) -> None:
        """Raise if the followed folder was replaced: new files would never be seen."""
        if self.endpoints.single is not None:
            return
        subject, found = self.operation.request.source.text, self.endpoints.root.stat()
        if found is None:
            raise missing_source(subject)
        if self._root_inode and found.inode != self._root_inode:
            raise IncompleteError(
                "source-replaced",
                "the followed folder was replaced by another one",
                subject=subject,
                hint="Run the same command again to follow the new one.",
            )
        self._root_inode = found.inode

    def _send(self, cycle: Cycle) -> bool:
        """Send whole files, then tails, then markers; return whether any was committed."""
        plan, receipt = cycle.plan, self.operation.recorder.receipt
        before = receipt.files_moved, receipt.bytes_moved
        self._record_plan(plan)
        if plan.moves.count:
            self._carry(cycle, plan.moves, plan.bytes_to_move)
        grown: dict[bytes, Entry | None] = {}
        added = sum(self._grow(cycle, grown)) if plan.growths.count and not self.full else 0
        if not self.full:
            self._carry_markers(cycle)
        if self.full:
            return False
        left = {*cycle.failures, *(conflict.entry.path for conflict in plan.conflicts)}
        self.watcher.settle(plan.offered, left, grown)
        files = receipt.files_moved - before[0] + sum(entry is not None for entry in grown.values())
        size = receipt.bytes_moved - before[1] + added
        if files:
            self._cycles += 1
            failed = len(self.watcher.retries) + len(plan.conflicts)
            counts = plan.files, plan.bytes, files, size, plan.files_waiting, failed
            self.operation.recorder.record(Round(self._cycles, *counts))
        return files > 0

    def _carry(self, cycle: Cycle, actions: Iterable[Action], size: int) -> None:
        """Send whole files.

        An object store writes the digests of the whole tree after its last file: that time counts as
        scanning.
        """

        def on_result(result: Committed) -> None:
            cycle.last_result = time.monotonic()
            if result.problem is None:
                record_result(self.operation.recorder, result)
            else:
                self._fail(cycle, result.item.entry, result.problem)

        request = self.operation.request
        items = (item_of(request, next(self._numbers), action) for action in actions)
        if carry(self.operation, self.endpoints, items, size, on_result):
            cycle.seconds += time.monotonic() - cycle.last_result

    def _carry_markers(self, cycle: Cycle) -> None:
        """Send the markers of files that are all at the target; skip the others for now."""
        markers = cycle.plan.markers
        if not markers.count:
            return
        missing = [*self.watcher.retries, *(conflict.entry.path for conflict in self._conflicts)]
        if sum(self._may_send(cycle, action.entry, missing) for action in markers):
            sent = (action for action in markers if action.entry.path not in cycle.failures)
            self._carry(cycle, sent, 0)

    def _may_send(self, cycle: Cycle, marker: Entry, missing: Iterable[bytes]) -> bool:
        pattern = self.following.marker
        assert pattern is not None
        if not any(marker.path in marker_names(pattern, path) for path in missing):
            return True
        self._fail(cycle, marker, Problem(HELD_BACK, "the files that it marks are not all at the target yet"))
        return False

    def _fail(self, cycle: Cycle | None, entry: Entry, problem: Problem) -> None:
        """Schedule another try; only a file that never succeeds counts as failed."""
        self.full = self.full or problem.code in FULL
        if cycle is not None:
            cycle.failures[entry.path] = problem
        self.watcher.failed(entry, problem, time.monotonic())
        if problem.code not in _EXPECTED:
            self._note(entry.path, problem.message)

    def _note(self, path: bytes, message: str) -> None:
        """Report a failure once for each name, because it may be tried for days."""
        if path not in self._noted:
            self._noted.add(path)
            self.operation.recorder.record(Noted(f"{printable(path) or '.'}: not sent yet: {message}"))

    def _grow(self, cycle: Cycle, grown: dict[bytes, Entry | None]) -> Iterator[int]:
        """Send tails of grown files; yield the bytes of each; `grown` receives the target's entries."""
        source, target = self.endpoints.origin, self.endpoints.target
        tails = (
            Tail(source.path_of(action.entry), action.entry, action.target.size)
            for action in cycle.plan.growths
            if action.target is not None
        )
        rate = Pace(self.operation.request.lowest_rate)
        for event in send_tails(source.store.appender(), target.appender(), tails, rate):
            if not isinstance(event, AppendResult):
                self.operation.recorder.record(event)
            elif event.digest is None or event.problem is not None:
                problem = event.problem or Problem("failed", "no reason was given")
                self._fail(cycle, event.tail.entry, problem)
                grown[event.tail.entry.path] = None
            else:
                grown[event.tail.entry.path] = event.tail.entry
                yield self._record_grown(event.tail, event.digest)
        for path in [path for path, entry in grown.items() if entry is None]:
            grown[path] = self.endpoints.target.stat(path)  # a part of its tail may be at the target

    def _record_grown(self, tail: Tail, digest: str) -> int:
        entry, added = tail.entry, tail.entry.size - tail.start
        event = Grown(entry.path, entry.size, added, digest, Verification.DIGEST, entry.mtime_ns, entry.mode)
        self.progress.grown[entry.path] = event
        self.operation.recorder.record(event)
        return added

    def verify_grown(self) -> bool:
        """Hash files that were sent in tails, at both ends; return whether all are equal."""
        waiting, self.progress.grown = self.progress.grown, {}
        entries = [Entry(one.path, Kind.FILE, one.size, one.mtime_ns) for one in waiting.values()]
        wrong = []
        both = zip(self.endpoints.source.digest(entries), self.endpoints.target.digest(entries), strict=True)
        for (entry, source_digest, _), (_, target_digest, _) in list(both):
            if source_digest is not None and source_digest == target_digest:
                self.operation.recorder.record(_moved(waiting[entry.path]))
            elif source_digest is None or target_digest is None or self._source_size(entry) != entry.size:
                self.progress.grown[entry.path] = waiting[entry.path]  # not finished yet
            else:
                wrong.append(entry.path)
        if wrong:
            self.watcher.resend_whole(wrong)
        return not (wrong or self.progress.grown)

    def _source_size(self, entry: Entry) -> int | None:
        source = self.endpoints.origin
        found = source.store.stat(source.path_of(entry))
        return None if found is None else found.size

    def send_last(self) -> None:
        """Send the file that announced the end; at the target it announces that all files are complete."""
        path, self.watcher.last = self.watcher.last, None
        if path is None or self.full:
            return
        if next(self.failures(), None) is None:
            self.run_cycle()
        else:
            problem = Problem(HELD_BACK, "it is sent last, but other files failed")
            self._fail(None, Entry(path, Kind.FILE), problem)

    def failures(self) -> Iterator[Failed]:
        """Return the files that failed for another reason than being unfinished."""
        for path, problem in (*self.unlisted_target, *self.watcher.unlisted):
            yield Failed(path, problem.code, problem.message)
        for conflict in self._conflicts:
            yield Failed(conflict.entry.path, conflict.code, conflict.message)
        for path, retries in self.watcher.retries.items():
            yield Failed(path, retries.problem.code, retries.problem.message)

    def unverified(self) -> Iterator[Failed]:
        """Return the files that were sent in tails and could not be hashed as a whole."""
        for path in self.progress.grown:
            yield Failed(path, "not-proven", "it kept changing, so it could not be hashed as a whole")
