"""Run a transfer: plan, execute, verify, delete, and write the receipt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import islice
from pathlib import Path

from hibali.errors import AccessError, HibaliError, IncompleteError, TryLaterError
from hibali.events import Adjusted, Deleted, Failed, Linked, Listener, Moved, ignore
from hibali.locations import check_writable
from transfers.endpoints import Ends
from transfers.entry import Entry, Kind
from transfers.journal import Receipt
from transfers.movers.base import Mover
from transfers.movers.globus import GlobusMover
from transfers.movers.gridftp.mover import GridftpMover, gridftp_mover
from transfers.movers.server import ServerMover
from transfers.plan import Action
from transfers.plan_file import write_plan
from transfers.planner import TransferPlan, check_plan, check_space
from transfers.reconnect import is_lost
from transfers.request import Request, adjustments, attributes_of, doomed, permissions_of
from transfers.stores.base import Adjustment, Item, Landed, Lock, Origin, Problem
from transfers.stores.server_lease import this_client
from transfers.stores.single_file import SingleSource


class Changing(Ends):
    """A call that may change its target, which is locked."""

    def _keep(self, found: TransferPlan) -> bool:
        """Whether all that is to be replaced or deleted is kept, where it was to be."""
        backup, kept = self._request.backup, True
        if backup is not None:
            for entry, problem in self._target.keep(backup, doomed(found)):
                if problem is not None:
                    kept = False
                    self.record_event(
                        Failed(entry.path, problem.code, f"it cannot be kept: {problem.message}")
                    )
        return kept

    def _carry(self, found: TransferPlan) -> None:
        kept = self._keep(found)
        # further names of a file come when it has landed
        self._carry_some(found, kept=kept, names=False)
        if found.files_to_link:
            self._carry_some(found, kept=kept, names=True)
        if not kept:
            self.record_event(
                Failed(b"", "not-kept", "nothing was replaced, because not everything could be kept")
            )

    def _carry_some(self, found: TransferPlan, *, kept: bool, names: bool) -> None:
        asked = 0

        def items() -> Iterator[Item]:
            nonlocal asked
            asked = len(self._answered)
            for number, action in enumerate(found.moves):
                wanted = bool(action.entry.same_as) is names and (kept or action.target is None)
                if wanted and number not in self._answered:
                    asked += 1
                    yield self._item(number, action)

        def carry() -> None:
            coming = items()
            self._move(coming, 0 if names else found.bytes_to_move)
            for _ in coming:  # a full target is not tried for each of them
                pass

        self._going_on.until_done(carry)
        if len(self._answered) < asked:
            self.record_event(
                Failed(b"", "not-tried", f"{asked - len(self._answered)} entries were not tried")
            )

    def _move(self, items: Iterable[Item], size: int) -> int:
        """Carry them, so many bytes; how many were answered for."""
        answered = 0
        mover = self._mover()
        ours = self._way is None and not isinstance(
            mover, GridftpMover
        )  # that one knows what is left for our lines
        for store in self._stores if ours else ():
            store.expect(size)
        # closed before anything else unwinds: the lock is not given back while something still lands
        with closing(mover.carry(self._source, self._target, items)) as events:
            for event in events:
                if isinstance(event, Landed):
                    answered += 1
                    self._answered.add(event.item.number)
                    self._landed(event)
                else:
                    self.record_event(event)
        self.receipt.mover = mover.word if answered else self.receipt.mover
        if answered and isinstance(mover, GlobusMover):
            self.receipt.checked_by = mover.checked_by
        return answered

    def _mover(self) -> Mover:
        """Globus where it carries, a copy by the target's own server where it offers one, GridFTP where a site has that, else the bytes through us."""
        stream, source = self._stream, self._source
        if self._globus is not None:
            return self._globus
        origin = Origin(self._stores[0])
        if isinstance(source, SingleSource):
            origin = Origin(source.store, source.name)
        if self._target.copies(origin.store):
            return ServerMover(self._target, origin, stream, self._wanted())
        request = self._request
        if stream.word == "stream" and not request.pack_bytes:
            sites = (request.source.site, request.target.site)
            found = gridftp_mover(origin, self._target, sites, request.lowest_rate, self._on_event)
            return found or stream
        return stream

    def _item(self, number: int, action: Action) -> Item:
        """A saved plan replaces only what it saw; any other whatever stands there when its turn comes."""
        # What was kept was looked at then, and has a second name now: its ctime is another.
        kept = self._request.backup is not None and action.target is not None
        clear, exact = action.verb == "retype", self._request.saved is not None and not kept
        rules = self._request.rules
        fidelity = permissions_of(action.entry, rules), attributes_of(action.entry, rules)
        return Item(number, action.entry, action.target, clear, exact, *fidelity)

    def _landed(self, landed: Landed) -> None:
        entry = landed.item.entry
        if landed.problem is not None:
            self.record_event(Failed(entry.path, landed.problem.code, landed.problem.message))
            return
        if entry.same_as:
            self.record_event(Linked(entry.path, entry.same_as))
            return
        digest, proof = landed.digest, landed.proof
        self.record_event(
            Moved(entry.path, entry.kind, entry.size, digest, proof, entry.mtime_ns, entry.mode, landed.etag)
        )

    def _delete(self, found: TransferPlan) -> None:
        """Last, only if all else succeeded, and never where anything could not be listed."""
        if not found.deletions.count:
            return
        if self.receipt.files_failed:
            self.record_event(
                Failed(b"", "deletions-left", "nothing was deleted, because not everything else succeeded")
            )
            return

        def remove(done: int) -> Iterator[tuple[Entry, Problem | None]]:
            own = (action.entry for action in found.deletions if not action.implied)
            return self._target.remove(islice(own, done, None))

        for action in found.deletions:
            if action.implied:
                self.record_event(Deleted(action.entry.path, action.entry.kind))
        for entry, problem in self._going_on.each(remove):
            if problem is None:
                self.record_event(Deleted(entry.path, entry.kind))
            else:
                self.record_event(Failed(entry.path, problem.code, problem.message))

    def _adjust(self, found: TransferPlan) -> None:
        """Permissions and attributes of what stood there and of new folders, when nothing more is put into them.

        A folder that could not be made has been named.
        """
        if not self._target.facts.adjusts:
            return

        def adjust(done: int) -> Iterator[tuple[Adjustment, Problem | None]]:
            return self._target.adjust(islice(adjustments(found, self._request.rules), done, None))

        for adjustment, problem in self._going_on.each(adjust):
            entry = adjustment.entry
            if problem is None:
                self.record_event(Adjusted(entry.path, entry.kind))
            elif problem.code != "vanished" or entry.kind is not Kind.FOLDER or not self.receipt.files_failed:
                self.record_event(Failed(entry.path, problem.code, problem.message))


def synchronise(request: Request, on_event: Listener = ignore) -> Receipt:
    """Do it, and return the receipt, whose `exit` says how it went.

    Raises what stopped the call before its end: `RefusedError` when nothing was changed, `TryLaterError`,
    `AccessError`, `NotFoundError`. The receipt of a call that was stopped is in the ledger all the same. `IncompleteError` also
    where all landed in a dataset and could not be saved there.
    """
    check_writable(request.target)
    with ExitStack() as stack:
        operation = Operation(request, on_event, stack)
        try:
            receipt = operation.run()
        except BaseException as problem:
            operation.end(problem)
            raise
        operation.save()
        return receipt


def plan_only(
    request: Request,
    show: Callable[[TransferPlan], None],
    on_event: Listener = ignore,
    *,
    save: Path | None = None,
) -> TransferPlan:
    """A dry run: look and plan exactly as `synchronise` would, show the plan while it is open, change nothing.

    With `save` the plan is also written there, to be carried out later.
    """
    check_writable(request.target)
    with ExitStack() as stack:
        operation = Operation(request, on_event, stack, dry=True)
        found = _look_only(operation)
        check_plan(found, request.rules, request.target.text)
        if save is not None:
            write_plan(save, operation.header(), found)
        show(found)
        return found


def _look_only(operation: Operation) -> TransferPlan:
    """Plan. Raises `IncompleteError` also where nothing of the source or the target may be read, as where only a part may."""
    try:
        operation.open_ends()
        operation.note_unknown()
        return operation.look()
    except AccessError as problem:
        if problem.code != "denied":
            raise
        message = f"there is no plan: {problem.message}"
        raise IncompleteError(
            "plan-incomplete", message, subject=problem.subject, hint=problem.hint
        ) from problem


class Operation(Changing):
    """One call from its beginning to its end. `follow` makes another of it."""

    _reached = False  # both ends have answered
    _restarted = False

    def run(self) -> Receipt:
        """The whole call, begun again after a lost connection that the stores cannot resume by themselves."""
        outer = self._stack
        while True:
            self._stack = outer.enter_context(ExitStack())  # what one attempt opens
            try:
                return self._attempt()
            except TryLaterError as problem:
                if not self._may_begin_again(problem):
                    raise
                self._begin_again()
                if not self._going_on.wait_to_begin_again(problem, self._patience()):
                    raise

    def _patience(self) -> float:
        """For how many seconds a lost connection may stay lost."""
        sites = (self._request.source.site, self._request.target.site)
        return min(site.limits.reconnect_seconds for site in sites)

    def _may_begin_again(self, problem: TryLaterError) -> bool:
        """Whether this is a lost connection, of a server that this call had reached.

        After that, our own former agent may hold the target for a moment more.
        """
        sites = (self._request.source.site, self._request.target.site)
        here = {site.name for site in sites if site.kind == "local"}
        # there is no line to an agent of this machine that could come back
        if self._globus is not None or not self._patience() or problem.subject in here:
            return False
        if self._restarted and problem.code == "locked":
            return this_client() in problem.message
        return is_lost(problem) and (self._reached or problem.code == "connection-lost")

    def _begin_again(self) -> None:
        """Let go of everything; what has landed is found at the target and kept."""
        self._count_stores()
        self.receipt.reconnects += 1
        with suppress(HibaliError):
            self._stack.close()
        self._restarted = True
        self._forget()
        self.receipt.files_failed = 0
        self.receipt.failures.clear()

    def _attempt(self) -> Receipt:
        """Everything from reaching both ends to the receipt."""
        self.open_ends()
        self._reached = True
        rules = self._request.rules
        subject = self._request.target.text
        existed = self._target.stat() is not None
        lock = None
        # A folder has to be there to be locked; a prefix need not, and what its store can hold is known by then.
        if self._target.facts.locks and (existed or not self._target.facts.folders):
            lock = self._lock()
        if self._globus is not None:
            self._globus.go_on()
        found = self._going_on.until_done(self.look, anew=True)
        if self._restarted:  # what this call moved before is not kept, but moved
            self.receipt.files_kept -= self.receipt.files_moved + self.receipt.files_linked
            self.receipt.files_kept = max(0, self.receipt.files_kept)
        check_plan(found, rules, subject)
        if (
            self._journal is not None
            and not found.target_files
            and not isinstance(self._source, SingleSource)
        ):
            self._journal.append({"kind": "empty"})
        check_space(found, self._target, subject)
        if self._request.direct and found.moves.count:
            self._find_way()
        if found.changes or not existed:
            self._bring(found)
            lock = self._make_and_lock(lock)
            self._carry(found)
            self._delete(found)
            self._adjust(found)
        if self._globus is not None:
            self._globus.finish(self._target)
        if lock is not None:
            lock.release()
        self.remember_root()
        return self.end(None)

    def _make_and_lock(self, lock: Lock | None) -> Lock | None:
        """Make the target's root, and take the lease where it could not be taken before."""
        if lock is None and self._target.facts.locks:
            return self._lock(make=True)
        self._target.make_root()
        return lock

    def _lock(self, *, make: bool = False) -> Lock:
        """Take the lease; it is given back at the latest when all is closed."""
        lock = self._target.lock(self._request.operation, make=make)
        self._stack.callback(lock.release)
        return lock
