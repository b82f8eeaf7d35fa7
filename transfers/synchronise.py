"""One call that makes the target hold the source: look, plan, carry, prove, delete, and write the receipt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from hibali.errors import Exit, RefusedError, UsageError
from hibali.events import (
    Adjusted,
    Deleted,
    Ended,
    Event,
    Failed,
    Linked,
    Listener,
    Listing,
    Moved,
    Noted,
    ignore,
)
from hibali.ledger import new_identifier, now
from hibali.locations import Location, check_writable
from hibali.text import printable
from transfers.answered import Answered
from transfers.backup import check_backup, doomed
from transfers.copying import Copier, Origin
from transfers.direct import Way, agent_store, check_direct, open_way
from transfers.entry import Entry, Kind, Proof, weakest
from transfers.fidelity import (
    adjustments,
    attributes_of,
    check_fidelity,
    permissions_of,
    take_attributes,
)
from transfers.going_on import GoingOn, Survivor
from transfers.guarded import check_guarded
from transfers.journal_lines import journal_line, open_journal, place_line
from transfers.mover import ListsAhead, Mover, Side, Source
from transfers.movers.direct import DirectMover
from transfers.movers.packs import PackMover
from transfers.movers.server import ServerMover
from transfers.movers.stream import StreamMover
from transfers.packs.seeing import Seeing, refuse_packed
from transfers.packs.target import open_target
from transfers.places import open_store
from transfers.plan import Action, unholdable
from transfers.plan_file import Header, Place, typed_anywhere, write_plan
from transfers.plan_reader import SavedPlan
from transfers.posix import PosixStore
from transfers.receipt import Receipt, exit_after
from transfers.recheck import check_same_ends, drift, recheck
from transfers.remembering import RememberingSide
from transfers.rules import Rules
from transfers.single import SingleSource, SingleTarget
from transfers.store import Adjustment, Item, Landed, Lock, Problem, Store
from transfers.survey import Survey, check_plan, check_space, missing_source, survey


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked; `operation` is the word of the command, `saved` a plan to be carried out as it is.

    What would be replaced or deleted is kept at `backup`, where that is given. `rate` is the most bytes a second,
    0 for what the sites' own limits allow. With `pack_bytes` files go into packs of at most so many bytes. Where `recorded`,
    digests that decide count from the record, too. `direct` has the source's site send to the target's by itself.
    """

    operation: str
    source: Location
    target: Location
    rules: Rules = field(default_factory=Rules)
    saved: SavedPlan | None = None
    backup: Location | None = None
    rate: int = 0
    pack_bytes: int = 0
    recorded: bool = False
    direct: bool = False

    @property
    def lowest_rate(self) -> int:
        """The most bytes a second that everybody allows, 0 for no limit."""
        return min((rate for rate in (self.rate, self._bandwidth) if rate), default=0)

    @property
    def lowest_setting(self) -> str:
        """What says so: `bwlimit` or `bandwidth`."""
        return "bandwidth" if self.lowest_rate == self._bandwidth else "bwlimit"

    @property
    def _bandwidth(self) -> int:
        both = (self.source.site.limits.bandwidth, self.target.site.limits.bandwidth)
        return min((rate for rate in both if rate), default=0)

    def paced(self, location: Location) -> Location:
        """The same place at a site from which no more is expected than everybody allows."""
        limits = replace(location.site.limits, bandwidth=self.lowest_rate)
        return replace(location, site=replace(location.site, limits=limits))


def synchronise(request: Request, tell: Listener = ignore) -> Receipt:
    """Do it, and return the receipt, whose `exit` says how it went.

    Raises what stopped the call before its end: `RefusedError` when nothing was changed, `TryLaterError`,
    `AccessError`, `NotFoundError`. The receipt of a call that was stopped is in the ledger all the same.
    """
    check_writable(request.target)
    with ExitStack() as stack:
        operation = Operation(request, tell, stack)
        try:
            return operation.run()
        except BaseException as problem:
            operation.end(problem)
            raise


def plan_only(
    request: Request, show: Callable[[Survey], None], tell: Listener = ignore, *, save: Path | None = None
) -> Survey:
    """A dry run: look and plan exactly as `synchronise` would, show the plan while it is open, change nothing.

    With `save` the plan is also written there, to be carried out later.
    """
    check_writable(request.target)
    with ExitStack() as stack:
        operation = Operation(request, tell, stack, dry=True)
        operation.open_ends()
        operation.note_unknown()
        found = operation.look()
        check_plan(found, request.rules, request.target.text)
        if save is not None:
            write_plan(save, operation.header(), found)
        show(found)
        return found


class Operation:
    """One call: both ends open, the ledger written. `follow` makes another of it."""

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
        rate = request.lowest_rate
        self._stream = (
            PackMover(request.pack_bytes, rate, tell) if request.pack_bytes else StreamMover(rate, tell)
        )
        self._way: Way | None = None
        self._seeing = Seeing(self._open_plain)
        self._source: Source
        self._target: Store
        self._proof_kept = Proof.SIZE  # what is kept was compared by size and time, and no more is said of it

    def tell(self, event: Event) -> None:
        """Fold, record and pass on one event."""
        self.receipt.take(event)
        line = journal_line(event)
        if self._journal is not None and line is not None:
            self._journal.append(line)
        self._tell_others(event)

    def _done(self) -> object:
        """Differs whenever the call got on."""
        return len(self._answered), self.receipt.files_deleted, self.receipt.files_adjusted

    def _open_plain(self, location: Location) -> Store:
        return open_store(self._request.paced(location), tell=self._tell_others)

    def _take(self, store: Store) -> Store:
        self._stack.callback(store.close)
        self._stores.append(store)
        return store

    def _open_target(self, location: Location) -> Store:
        """Packs go only where there are some or nothing else is, and nothing else where there are some."""
        store = self._open_plain(location)
        self._stack.callback(store.close)
        if self._request.pack_bytes:
            return self._take(open_target(store, location.text))
        refuse_packed(store, location.text)
        return self._take(store)

    def open_ends(self) -> None:
        """Reach both sides."""
        if self._request.direct:
            check_direct(self._request.source, self._request.target)
        try:
            self._source, self._target = self._find_ends()
        except UsageError as problem:
            if self._request.saved is None:
                raise
            raise drift(problem.message, problem.about) from None
        where = self._target.where
        if isinstance(self._source, SingleSource):
            where += b"/" + self._source.entry().path
        self._check_facts()
        check_guarded(self._request.target, where, self._tell_others)
        ends = (self._request.source.text, self._request.target.text)
        check_fidelity(self._request.rules, self._source.facts, self._target.facts, ends)
        if self._request.rules.xattrs:
            take_attributes(self._stores, self._target, ends)
        if self._request.backup is not None:
            check_backup(self._request.backup, self._request.target, self._target.facts)
        if self._journal is not None:
            self._journal.append(place_line(self._request.target, self._target.where))

    def _check_facts(self) -> None:
        """Raise `RefusedError` or `UsageError` for what these stores can never do together."""
        if self._request.direct:
            self._direct_ends()
        if not self._target.facts.writable:
            raise RefusedError(
                "read-only-site", "this site can only be read", about=self._request.target.text
            )
        if self._request.rules.delete and not self._source.facts.complete:
            raise RefusedError(
                "listing-unproven",
                "nothing says that what the source lists is all it has, so nothing is deleted by it",
                about=self._request.source.text,
                hint="Leave out --delete.",
            )

    def _direct_ends(self) -> tuple[PosixStore, PosixStore]:
        source = self._source.store if isinstance(self._source, SingleSource) else self._stores[0]
        return agent_store(source, self._request.source), agent_store(self._target, self._request.target)

    def _find_way(self) -> None:
        """Before anything is changed: there may be none."""
        source, target = self._direct_ends()
        self._way = open_way(self._request.source, self._request.target, source, target, self._tell_others)
        self._stack.callback(self._way.close)
        self._stream = DirectMover(self._way.line, target, self._request.lowest_rate, self._tell_others)

    def note_unknown(self) -> None:
        """A dry run writes nothing, not even to ask the server what it can hold; say so where that matters."""
        if not self._target.facts.known:
            site = self._request.target.site.name
            self.tell(
                Noted(
                    f"{self._request.target.text}: it is not known yet which names and locks this server can hold,"
                    f" and a dry run does not try. To find out: hibali sites check {site}"
                )
            )

    def header(self) -> Header:
        """What a saved plan says of its ends."""
        request = self._request
        return Header(
            Place(typed_anywhere(request.source), self._stores[0].where),
            Place(typed_anywhere(request.target), self._target.where),
            request.rules,
            now(),
            single=isinstance(self._source, SingleSource),
        )

    def _find_ends(self) -> tuple[Source, Store]:
        """Slashes as rclone has them: a folder's contents go into the target, a file goes to exactly that name."""
        source, target = self._request.source, self._request.target
        store, found = self._seeing.find(source)
        self._take(store)
        if found is None:
            raise missing_source(source.text)
        if found.kind is Kind.FILE and source.slash:
            raise UsageError("not-a-folder", "this is a file and PATH ends in a slash", about=source.text)
        if found.kind is Kind.FOLDER:
            # Not where something else is going to be asked of the source before.
            plain = self._request.saved is None and not self._request.rules.xattrs
            if plain and isinstance(store, ListsAhead):
                store.list_ahead()
            there = self._open_target(target)
            standing = there.stat()
            if standing is not None and standing.kind is Kind.FILE:
                raise UsageError(
                    "not-a-folder", "the source is a folder and the target is a file", about=target.text
                )
            return store, there
        return self._open_file_ends(source, target)

    def _open_file_ends(self, source: Location, target: Location) -> tuple[Source, Store]:
        if self._request.pack_bytes:
            raise UsageError("pack-one-file", "--pack has no meaning for a single file", about=source.text)
        name = source.name if target.slash else target.name
        folder = target if target.slash else target.parent
        there = self._open_target(folder)
        reason = unholdable(name, there.facts)
        if reason:
            raise RefusedError(
                "unsafe-name",
                f"the target cannot hold the name {printable(name)}: {reason}",
                about=target.text,
                hint="Give it another name. Nothing was moved.",
            )
        standing = there.stat(name)
        if standing is not None and standing.kind is Kind.FOLDER:
            raise UsageError(
                "is-a-folder",
                "a folder of that name stands there",
                about=target.text,
                hint=f"To put the file into it: {target.text}/",
            )
        if self._request.rules.delete:
            raise UsageError(
                "delete-one-file", "--delete has no meaning for a single file", about=source.text
            )
        return SingleSource(
            self._take(self._seeing.parent(self._stores[0], source)), source.name, name
        ), there

    def look(self) -> Survey:
        """List and plan."""
        self.tell(Listing())
        exists = self._target.stat() is not None
        target: Side = self._target
        if isinstance(self._source, SingleSource):
            target = SingleTarget(self._target, self._source.entry().path)
        rules, saved, about = self._request.rules, self._request.saved, self._request.target.text
        if saved is None:
            found = self._survey(target, target_exists=exists)
        else:
            check_same_ends(saved.header, self.header(), about)
            found = recheck(saved.planned, self._source, target, rules, target_exists=exists, about=about)
        self._stack.callback(found.close)
        self.tell(found.planned())
        for failure in found.failures():
            self.tell(failure)
        return found

    def _survey(self, target: Side, *, target_exists: bool) -> Survey:
        """A plan of our own; where digests decide, they are those of this call or, if so asked, of the record."""
        request, used = self._request, False
        if request.recorded:
            ours = self._remembering(self._source, request.source, self._stores[0])
            theirs = self._remembering(target, request.target, self._target)
            found = survey(ours, theirs, request.rules, target_exists=target_exists)
            used = ours.used or theirs.used
        else:
            found = survey(self._source, target, request.rules, target_exists=target_exists)
        # a further name of a file is kept with that, whatever became of it
        if request.rules.checksum and not request.rules.hard_links:
            self._proof_kept = Proof.RECORDED if used else Proof.DIGEST
        return found

    def _remembering(self, side: Side, location: Location, store: Store) -> RememberingSide:
        remembering = RememberingSide(side, location, store.where)
        self._stack.callback(remembering.close)
        return remembering

    def run(self) -> Receipt:
        """The whole call."""
        self.open_ends()
        rules = self._request.rules
        about = self._request.target.text
        existed = self._target.stat() is not None
        lock = None
        # A folder has to be there to be locked; a prefix need not, and what its store can hold is known by then.
        if self._target.facts.locks and (existed or not self._target.facts.folders):
            lock = self._lock()
        found = self._going_on.until_done(self.look, anew=True)
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
            lock = self._make_and_lock(lock)
            self._carry(found)
            self._delete(found)
            self._adjust(found)
        if lock is not None:
            lock.release()
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

    def _keep(self, found: Survey) -> bool:
        """Whether all that is to be replaced or deleted is kept, where it was to be."""
        backup, kept = self._request.backup, True
        if backup is not None:
            for entry, problem in self._target.keep(backup, doomed(found)):
                if problem is not None:
                    kept = False
                    self.tell(Failed(entry.path, problem.code, f"it cannot be kept: {problem.message}"))
        return kept

    def _carry(self, found: Survey) -> None:
        kept = self._keep(found)
        # further names of a file come when it has landed
        self._carry_some(found, kept=kept, names=False)
        if found.files_to_link:
            self._carry_some(found, kept=kept, names=True)
        if not kept:
            self.tell(Failed(b"", "not-kept", "nothing was replaced, because not everything could be kept"))

    def _carry_some(self, found: Survey, *, kept: bool, names: bool) -> None:
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
            self.tell(Failed(b"", "not-tried", f"{asked - len(self._answered)} entries were not tried"))

    def _move(self, items: Iterable[Item], size: int) -> int:
        """Carry them, so many bytes; how many were answered for."""
        for store in self._stores if self._way is None else ():
            store.expect(size)
        answered = 0
        mover = self._mover()
        # closed before anything else unwinds: the lock is not given back while something still lands
        with closing(mover.carry(self._source, self._target, items)) as events:
            for event in events:
                if isinstance(event, Landed):
                    answered += 1
                    self._answered.add(event.item.number)
                    self._landed(event)
                else:
                    self.tell(event)
        self.receipt.mover = mover.word if answered else self.receipt.mover
        return answered

    def _mover(self) -> Mover:
        """A copy by the target's own server where it offers one, else the bytes through us."""
        stream, source = self._stream, self._source
        origin = Origin(self._stores[0])
        if isinstance(source, SingleSource):
            origin = Origin(source.store, source.name)
        if isinstance(self._target, Copier) and self._target.copies(origin.store):
            return ServerMover(self._target, origin, stream, self._wanted())
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
            self.tell(Failed(entry.path, landed.problem.code, landed.problem.message))
            return
        if entry.same_as:
            self.tell(Linked(entry.path, entry.same_as))
            return
        digest, proof = landed.digest, landed.proof
        self.tell(
            Moved(entry.path, entry.kind, entry.size, digest, proof, entry.mtime_ns, entry.mode, landed.etag)
        )

    def _delete(self, found: Survey) -> None:
        """Last, only if all else succeeded, and never where anything could not be listed."""
        if not found.deletions.count:
            return
        if self.receipt.files_failed:
            self.tell(
                Failed(b"", "deletions-left", "nothing was deleted, because not everything else succeeded")
            )
            return

        def remove(done: int) -> Iterator[tuple[Entry, Problem | None]]:
            own = (action.entry for action in found.deletions if not action.implied)
            return self._target.remove(islice(own, done, None))

        for action in found.deletions:
            if action.implied:
                self.tell(Deleted(action.entry.path, action.entry.kind))
        for entry, problem in self._going_on.each(remove):
            if problem is None:
                self.tell(Deleted(entry.path, entry.kind))
            else:
                self.tell(Failed(entry.path, problem.code, problem.message))

    def _adjust(self, found: Survey) -> None:
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
                self.tell(Adjusted(entry.path, entry.kind))
            elif problem.code != "vanished" or entry.kind is not Kind.FOLDER or not self.receipt.files_failed:
                self.tell(Failed(entry.path, problem.code, problem.message))

    def end(self, problem: BaseException | None) -> Receipt:
        """Judge and write the receipt; every call that began has one."""
        self._tell_others(Ended())
        receipt = self.receipt
        receipt.seconds = time.monotonic() - self._began
        receipt.bytes_sent = sum(store.wire_bytes for store in self._stores)
        receipt.logins = sum(store.logins for store in self._stores)
        receipt.logins += self._way.logins if self._way is not None else 0
        receipt.reconnects = sum(store.reconnects for store in self._stores if isinstance(store, Survivor))
        held = [self._request.lowest_setting if self._stream.slowed else None]
        held += [store.limited_by for store in self._stores]
        receipt.limited_by = next((setting for setting in held if setting), None)
        receipt.proof_tree = _of_tree(receipt, self._proof_kept)
        receipt.exit = self._judge(problem)
        if self._journal is not None:
            self._journal.append(receipt.to_record(), durable=True)
            self._journal.close()
        return receipt

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


def _of_tree(receipt: Receipt, kept: Proof) -> Proof | None:
    """What was kept was compared in this call, and `kept` is all that is said of it."""
    if receipt.files_kept:
        return weakest(receipt.proof_moved or kept, kept)
    return receipt.proof_moved
