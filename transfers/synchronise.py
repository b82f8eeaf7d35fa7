"""One call that makes the target hold the source: look, plan, carry, prove, delete, and write the receipt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from hibali.errors import AccessError, HibaliError, IncompleteError, TryLaterError
from hibali.events import Listener, ignore
from hibali.locations import check_writable
from transfers.changing import Changing
from transfers.going_on import is_lost
from transfers.lock_record import this_client
from transfers.plan_file import write_plan
from transfers.receipt import Receipt
from transfers.request import Request
from transfers.single import SingleSource
from transfers.store import Lock
from transfers.survey import Survey, check_plan, check_space


def synchronise(request: Request, tell: Listener = ignore) -> Receipt:
    """Do it, and return the receipt, whose `exit` says how it went.

    Raises what stopped the call before its end: `RefusedError` when nothing was changed, `TryLaterError`,
    `AccessError`, `NotFoundError`. The receipt of a call that was stopped is in the ledger all the same. `IncompleteError` also
    where all landed in a dataset and could not be saved there.
    """
    check_writable(request.target)
    with ExitStack() as stack:
        operation = Operation(request, tell, stack)
        try:
            receipt = operation.run()
        except BaseException as problem:
            operation.end(problem)
            raise
        operation.save()
        return receipt


def plan_only(
    request: Request, show: Callable[[Survey], None], tell: Listener = ignore, *, save: Path | None = None
) -> Survey:
    """A dry run: look and plan exactly as `synchronise` would, show the plan while it is open, change nothing.

    With `save` the plan is also written there, to be carried out later.
    """
    check_writable(request.target)
    with ExitStack() as stack:
        operation = Operation(request, tell, stack, dry=True)
        found = _look_only(operation)
        check_plan(found, request.rules, request.target.text)
        if save is not None:
            write_plan(save, operation.header(), found)
        show(found)
        return found


def _look_only(operation: Operation) -> Survey:
    """Plan. Raises `IncompleteError` also where nothing of the source or the target may be read, as where only a part may."""
    try:
        operation.open_ends()
        operation.note_unknown()
        return operation.look()
    except AccessError as problem:
        if problem.code != "denied":
            raise
        message = f"there is no plan: {problem.message}"
        raise IncompleteError("plan-incomplete", message, about=problem.about, hint=problem.hint) from problem


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
        if self._globus is not None or not self._patience() or problem.about in here:
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
        about = self._request.target.text
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
        check_plan(found, rules, about)
        if (
            self._journal is not None
            and not found.target_files
            and not isinstance(self._source, SingleSource)
        ):
            self._journal.append({"kind": "empty"})
        check_space(found, self._target, about)
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
