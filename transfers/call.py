"""One call over its whole life: what it tells, its ledger, and how it is judged in the end."""

from __future__ import annotations

import time
from contextlib import ExitStack

from hibali.errors import Exit
from hibali.events import Ended, Event, Listener
from hibali.ledger import new_identifier
from transfers.answered import Answered
from transfers.direct import Way
from transfers.entry import Proof, weakest
from transfers.going_on import GoingOn, Survivor
from transfers.journal_lines import end_journal, journal_line, open_journal
from transfers.mover import Source
from transfers.movers.globus import GlobusMover
from transfers.movers.packs import PackMover
from transfers.movers.stream import StreamMover
from transfers.receipt import Receipt, exit_after
from transfers.request import Request
from transfers.store import Store


class Call:
    """Both ends of it, once they are found, and what became of it so far."""

    def __init__(self, request: Request, tell: Listener, stack: ExitStack, *, dry: bool = False) -> None:
        self._request = request
        self._tell_others = tell
        self._stack = stack
        self._began = time.monotonic()
        self.receipt = Receipt(new_identifier(), request.operation, request.source.text, request.target.text)
        self._journal = None if dry else open_journal(self.receipt, stack)
        self._stores: list[Store] = []
        self._answered = Answered()
        self._going_on = GoingOn(self._stores, self._done, self.tell)
        self._stream = _stream_of(request, tell)
        self._way: Way | None = None
        self._globus: GlobusMover | None = None
        self._source: Source
        self._target: Store
        self._proof_kept = Proof.SIZE  # what is kept was compared by size and time, and no more is said of it

    def _forget(self) -> None:
        """Be as before anything was opened; what is in the receipt stays."""
        self._stores.clear()  # others hold this very list
        self._answered.clear()
        self._stream = _stream_of(self._request, self._tell_others)
        self._way = self._globus = None

    def tell(self, event: Event) -> None:
        """Fold, record and pass on one event."""
        self.receipt.take(event)
        line = journal_line(event)
        if self._journal is not None and line is not None:
            self._journal.append(line)
        self._tell_others(event)

    def _done(self) -> object:
        """Differs whenever the call got on."""
        receipt = self.receipt
        return (
            receipt.files_moved,
            receipt.files_linked,
            receipt.files_deleted,
            receipt.files_adjusted,
            len(self._answered),
        )

    def end(self, problem: BaseException | None) -> Receipt:
        """Judge and write the receipt; every call that began has one."""
        self._tell_others(Ended())
        receipt = self.receipt
        receipt.seconds = time.monotonic() - self._began
        self._count_stores()
        receipt.bytes_sent += self._globus.bytes_sent if self._globus is not None else 0
        held = [self._request.lowest_setting if self._stream.slowed else None]
        held += [store.limited_by for store in self._stores]
        receipt.limited_by = next((setting for setting in held if setting), None)
        receipt.proof_tree = _of_tree(receipt, self._proof_kept)
        receipt.exit = self._judge(problem)
        if self._journal is not None:
            end_journal(self._journal, receipt, problem)
        return receipt

    def _count_stores(self) -> None:
        """Add what went over the connections of the stores to the receipt; once for each store."""
        receipt = self.receipt
        receipt.bytes_sent += sum(store.wire_bytes for store in self._stores)
        receipt.logins += sum(store.logins for store in self._stores)
        receipt.logins += self._way.logins if self._way is not None else 0
        receipt.reconnects += sum(store.reconnects for store in self._stores if isinstance(store, Survivor))

    def _judge(self, problem: BaseException | None) -> Exit:
        code = exit_after(problem, self.receipt)
        if code is not Exit.DONE:
            return code
        moved = self.receipt.proof_moved
        if moved is not None and moved.strength < self._wanted().strength:
            return Exit.INCOMPLETE
        return Exit.DONE

    def _wanted(self) -> Proof:
        """The weakest proof that is good enough for what moves."""
        best = weakest(self._source.facts.proof_read, self._target.facts.proof_write)
        return self._request.rules.require_proof or best


def _stream_of(request: Request, tell: Listener) -> StreamMover | PackMover:
    """Bytes through us; into packs where so asked."""
    if request.pack_bytes:
        return PackMover(request.pack_bytes, request.lowest_rate, tell)
    return StreamMover(request.lowest_rate, tell)


def _of_tree(receipt: Receipt, kept: Proof) -> Proof | None:
    """What was kept was compared in this call, and `kept` is all that is said of it."""
    if receipt.files_kept:
        return weakest(receipt.proof_moved or kept, kept)
    return receipt.proof_moved
