"""Following a source while it is written: what is finished goes at once, what only grows sends its tails, under one lock."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from hibali.errors import UsageError
from hibali.events import Listener, Noted, ignore
from hibali.locations import check_writable
from hibali.retry import pause
from transfers.entry import Entry, Kind
from transfers.finished import Following
from transfers.growing import Growable
from transfers.mover import Side
from transfers.receipt import Receipt
from transfers.request import Request
from transfers.rounds import Rounds
from transfers.rules import Rules, selector
from transfers.single import SingleSource, SingleTarget
from transfers.snapshot import Seen, Snapshot
from transfers.store import Problem
from transfers.survey import Survey, check_plan, check_space, listed
from transfers.watch import HELD_BACK, Watch

_IDLE_LOOKS = 2  # so often nothing may be left to do before an announced end is believed
_LAST_PAUSE = 1.0
_PATIENCE = 2.0


def follow(
    request: Request, following: Following, tell: Listener = ignore
) -> tuple[Receipt, KeyboardInterrupt | None]:
    """Do it until the end is announced, or an interruption comes, which is handed back beside the receipt.

    Raises `UsageError` for rules that have no meaning here, and what `synchronise` raises. The receipt is in the ledger in any case.
    """
    check_request(request)
    check_writable(request.target)
    with ExitStack() as stack:
        operation = Follow(request, following, tell, stack)
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
            about=request.source.text,
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
            self.tell(failed)
        if lock is not None:
            lock.release()
        return self.end(None)

    def _watching(self, *, exists: bool) -> Watch:
        side: Side = self._target
        if isinstance(self._source, SingleSource):
            side = SingleTarget(self._target, self._source.shown)
        entries = listed(side, self._unlisted_there) if exists else iter(())
        there = Snapshot(Seen(entry) for entry in entries)
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
        if not (isinstance(self._target, Growable) and isinstance(self._reading(), Growable)):
            self.tell(
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
        about = self._request.target.text
        self._watch.look(time.monotonic())
        work = self._watch.plan(time.monotonic(), everything=True)
        try:
            found = Survey(
                moves=work.moves,
                conflicts=work.conflicts,
                files=work.files,
                bytes_to_move=work.bytes_to_move,
                names_to_make=work.names_to_make + (not exists),
            )
            check_plan(found, self._request.rules, about)
            check_space(found, self._target, about)
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
        self.tell(
            Noted(
                f"interrupted; {files} files ({size} bytes) that this call sent stand at the target, whole and proven;"
                f" {self._waiting} were not finished. The same line again goes on, also with what was under way."
            )
        )
