"""Open both endpoints of a transfer, refuse impossible combinations, and list both sides."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

from hibali.errors import Exit, RefusedError, UsageError
from hibali.events import Ended, Event, Listener, Listing, Noted
from hibali.ledger import new_identifier, now, scheduled_by
from hibali.locations import Location
from hibali.system_errors import hint_of, words_of
from hibali.text import printable
from transfers.agent.identity import Identity
from transfers.datasets.view import DatasetStore, see_dataset
from transfers.entry import Kind, Proof, weakest
from transfers.journal import (
    Receipt,
    end_journal,
    exit_after,
    journal_line,
    open_journal,
    origin_line,
    place_line,
    recorded_digests,
)
from transfers.movers.direct import DirectMover, Way, agent_store, check_direct, open_way
from transfers.movers.globus import GlobusMover
from transfers.movers.globus_route import globus_between, open_globus
from transfers.movers.stream import StreamMover
from transfers.overlap import (
    KnownRoots,
    check_another_file,
    check_apart,
    check_backup_apart,
    check_real_file,
)
from transfers.packs.view import PackedStore, Seeing, refuse_packed
from transfers.packs.writing import PackMover, open_target
from transfers.pipeline.batches import Answered
from transfers.plan import unholdable
from transfers.plan_file import Header, PlanEndpoint, typed_anywhere
from transfers.planner import RememberingSide, TransferPlan, UnprovenSide, missing_source, survey
from transfers.protected_roots import check_guarded
from transfers.recheck import check_same_ends, drift, recheck
from transfers.reconnect import Reconnection
from transfers.record_repair import MissingRecords, find_cut_off
from transfers.request import Request, check_backup, check_fidelity, take_attributes
from transfers.stores.agent_store import PosixStore
from transfers.stores.base import Side, Source, Store
from transfers.stores.globus.paths import identity_at
from transfers.stores.open_store import open_store
from transfers.stores.single_file import ChosenStore, SingleSource, SingleTarget


class Call:
    """Both ends of it, once they are found, and what became of it so far."""

    def __init__(self, request: Request, on_event: Listener, stack: ExitStack, *, dry: bool = False) -> None:
        self._request = request
        self._on_event = on_event
        self._stack = stack
        self._began = time.monotonic()
        self.receipt = Receipt(new_identifier(), request.operation, request.source.text, request.target.text)
        self._journal = None if dry else open_journal(self.receipt, stack)
        self._stores: list[Store] = []
        self._answered = Answered()
        self._going_on = Reconnection(self._stores, self._done, self.record_event)
        self._stream = _stream_of(request, on_event)
        self._way: Way | None = None
        self._globus: GlobusMover | None = None
        self._source: Source
        self._target: Store
        self._proof_kept = Proof.SIZE  # what is kept was compared by size and time, and no more is said of it

    def _forget(self) -> None:
        """Be as before anything was opened; what is in the receipt stays."""
        self._stores.clear()  # others hold this very list
        self._answered.clear()
        self._stream = _stream_of(self._request, self._on_event)
        self._way = self._globus = None

    def record_event(self, event: Event) -> None:
        """Fold, record and pass on one event."""
        self.receipt.take(event)
        line = journal_line(event)
        if self._journal is not None and line is not None:
            self._journal.append(line)
        self._on_event(event)

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
        self._on_event(Ended())
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
        receipt.reconnects += sum(store.reconnects for store in self._stores)

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


def _stream_of(request: Request, on_event: Listener) -> StreamMover | PackMover:
    """Bytes through us; into packs where so asked."""
    if request.pack_bytes:
        return PackMover(request.pack_bytes, request.lowest_rate, on_event)
    return StreamMover(request.lowest_rate, on_event)


def _of_tree(receipt: Receipt, kept: Proof) -> Proof | None:
    """What was kept was compared in this call, and `kept` is all that is said of it."""
    if receipt.files_kept:
        return weakest(receipt.proof_moved or kept, kept)
    return receipt.proof_moved


_TYPED = frozenset({"push", "pull", "sync", "apply"})


class Ends(Call):
    """A call that knows its source and its target."""

    def __init__(self, request: Request, on_event: Listener, stack: ExitStack, *, dry: bool = False) -> None:
        super().__init__(request, on_event, stack, dry=dry)
        self._seeing = Seeing(self._open_plain)
        self._dataset: DatasetStore | None = None  # the target, where it is in one
        self._plain: Store | None = None  # what was opened last, without what looks through it
        # the target, where a schedule writes to it
        self._target_root: tuple[KnownRoots, Store, bytes] | None = None
        self._placed = False  # the journal knows where it all is

    def _forget(self) -> None:
        """Be as before anything was opened."""
        super()._forget()
        self._seeing = Seeing(self._open_plain)
        self._dataset = self._plain = self._target_root = None

    def _open_plain(self, location: Location) -> Store:
        """As it is, but for what git-annex makes of a file."""

        def opened(at: Location) -> Store:
            return open_store(self._request.paced(at), on_event=self._on_event)

        self._plain = opened(location)
        return see_dataset(self._plain, location, opened, self._on_event)

    def _take(self, store: Store) -> Store:
        self._stack.callback(store.close)
        self._stores.append(store)
        return store

    def _open_target(self, location: Location) -> Store:
        """Packs go only where there are some or nothing else is, and nothing else where there are some."""
        store = self._open_plain(location)
        self._stack.callback(store.close)
        self._check_target_root(location)
        self._keeps_history(store)
        if self._request.pack_bytes:
            return self._take(open_target(store, location.text))
        refuse_packed(store, location.text)
        return self._take(store)

    def _check_target_root(self, location: Location) -> None:
        """A schedule writes to the folder that it wrote to before. Raises `RefusedError`."""
        schedule, store = scheduled_by().get("schedule"), self._plain
        if schedule is None or self._request.operation not in _TYPED:
            return
        if store is not None and store.facts.root_identity:
            known = KnownRoots(schedule)
            self._target_root = known, store, store.where
            known.check(location, store, store.where)

    def remember_root(self) -> None:
        """For the next run of the schedule."""
        if self._target_root is not None:
            known, store, where = self._target_root
            known.remember(self._request.target, store, where)

    def _keeps_history(self, store: Store) -> None:
        """What comes into a dataset is saved there. Raises `UsageError` where something is to be pushed on from elsewhere."""
        request = self._request
        if isinstance(store, DatasetStore):
            self._dataset = store
            store.receive(request.saving)
        elif request.saving.push_to:
            raise UsageError(
                "no-dataset",
                "--push-to is for a target in a dataset of this machine, and this is none",
                subject=request.target.text,
            )

    def _bring(self, found: TransferPlan) -> None:
        """Content of the source that git-annex keeps elsewhere."""
        source = self._source
        origin = source.store if isinstance(source, SingleSource) else source
        if isinstance(origin, DatasetStore):
            entries = (action.entry for action in found.moves)
            name = source.name if isinstance(source, SingleSource) else None
            origin.bring(entry if name is None else entry._replace(path=name) for entry in entries)

    def save(self) -> None:
        """Commit what landed in a dataset. Raises `IncompleteError`."""
        if self._dataset is not None:
            self._dataset.save(self.receipt, self._request.saving)

    def open_ends(self) -> None:
        """Reach both sides."""
        if self._request.direct:
            check_direct(self._request.source, self._request.target)
        try:
            self._source, self._target = self._find_ends()
        except UsageError as problem:
            if self._request.saved is None:
                raise
            raise drift(problem.message, problem.subject) from None
        where = self._target.where
        if isinstance(self._source, SingleSource):
            where += b"/" + self._source.entry().path
        self._check_facts()
        self._check_apart()
        check_guarded(self._request.target, where, self._on_event)
        ends = (self._request.source.text, self._request.target.text)
        check_fidelity(self._request.rules, self._source.facts, self._target.facts, ends)
        if self._request.rules.xattrs:
            take_attributes(self._stores, self._target, ends)
        if self._request.backup is not None:
            check_backup(self._request.backup, self._request.target, self._target.facts)
            self._check_backup_apart(self._request.backup)
        self._look_for_globus()
        if self._journal is not None and not self._placed:
            self._placed = True
            self._journal.append(origin_line(self._request.source, self._origin()))
            self._journal.append(place_line(self._request.target, self._target.where))

    def _look_for_globus(self) -> None:
        """Globus carries where both ends have a collection and nothing else is asked for."""
        source = self._source.store if isinstance(self._source, SingleSource) else self._stores[0]
        plain = source.facts.globus and self._target.facts.globus
        ends = globus_between(self._request, source, self._target, self._against_globus(plain=plain))
        if ends is not None and self._journal is not None:
            otherwise = self._stream
            self._globus = open_globus(self._request, ends, source, otherwise, self._hear, self._stack)

    def _hear(self, event: Event) -> None:
        """What comes from beside the events of the mover: told, and what is to be kept noted."""
        if isinstance(event, Noted):
            self.record_event(event)
        else:
            self._on_event(event)

    def _against_globus(self, *, plain: bool) -> tuple[str, ...]:
        """Why Globus does not carry this, whatever its ends are."""
        return () if plain else ("a dataset, a place with packs or a choice of files",)

    def _origin(self) -> bytes:
        """The root that is read, or the one file."""
        if isinstance(self._source, SingleSource):
            above, name = self._source.store.where.rstrip(b"/"), self._source.name
            # a bucket's keys begin without a slash
            return name if not above and self._request.source.bucket is not None else above + b"/" + name
        return self._stores[0].where

    def _check_facts(self) -> None:
        """Raise `RefusedError` or `UsageError` for what these stores can never do together."""
        if self._request.direct:
            self._direct_ends()
        if not self._target.facts.writable:
            raise RefusedError(
                "read-only-site", "this site can only be read", subject=self._request.target.text
            )
        if self._request.rules.delete and not self._source.facts.complete:
            raise RefusedError(
                "listing-unproven",
                "nothing says that what the source lists is all it has, so nothing is deleted by it",
                subject=self._request.source.text,
                hint="Leave out --delete.",
            )

    def _check_apart(self) -> None:
        """Raise `RefusedError` where both ends overlap. Files that were chosen by name are read one by one, whatever is around them."""
        if self._request.chosen is not None:
            return
        target = self._request.target
        ours, theirs = self._identities(self._stores[0]), self._identities(self._target)
        if not isinstance(self._source, SingleSource):
            check_apart(ours, theirs, target)
        elif not isinstance(self._source.store, PackedStore):
            name, folds = self._source.shown, self._target.facts.folds_case
            above = self._identities(self._source.store)
            check_another_file((above, self._source.name), (theirs, name), target, folds=folds)
            check_real_file(ours, (theirs, name), target)

    def _identities(self, store: Store) -> list[Identity]:
        """What is worth comparing: a folder of a machine is never one of a service, but for a collection that shows it."""
        sites = self._request.source.site, self._request.target.site
        site = sites[store is self._target]
        found = identity_at(site, store.where) if all(one.globus is not None for one in sites) else []
        if self._stores[0].facts.machine is self._target.facts.machine:
            found += store.identities()
        return found

    def _check_backup_apart(self, backup: Location) -> None:
        """Raise `RefusedError` where what is kept would come into the target or the source, whatever names lead there."""
        if self._target.facts.machine:
            folders = [one for one in self._target.identify([backup.raw]) if one is not None]
            check_backup_apart(
                folders, [*self._identities(self._target), *self._identities(self._stores[0])], backup
            )

    def _direct_ends(self) -> tuple[PosixStore, PosixStore]:
        source = self._source.store if isinstance(self._source, SingleSource) else self._stores[0]
        return agent_store(source, self._request.source), agent_store(self._target, self._request.target)

    def _find_way(self) -> None:
        """Before anything is changed: there may be none."""
        source, target = self._direct_ends()
        self._way = open_way(self._request.source, self._request.target, source, target, self._on_event)
        self._stack.callback(self._way.close)
        self._stream = DirectMover(self._way.line, target, self._request.lowest_rate, self._on_event)

    def note_unknown(self) -> None:
        """A dry run writes nothing, not even to ask the server what it can hold; say so where that matters."""
        if not self._target.facts.known:
            site = self._request.target.site.name
            self.record_event(
                Noted(
                    f"{self._request.target.text}: it is not known yet which names and locks this server can hold,"
                    f" and a dry run does not try. To find out: hibali sites check {site}"
                )
            )

    def header(self) -> Header:
        """What a saved plan says of its ends."""
        request = self._request
        return Header(
            PlanEndpoint(typed_anywhere(request.source), self._stores[0].where),
            PlanEndpoint(typed_anywhere(request.target), self._target.where),
            request.rules,
            now(),
            single=isinstance(self._source, SingleSource),
        )

    def _find_ends(self) -> tuple[Source, Store]:
        """Slashes as rclone has them: a folder's contents go into the target, a file goes to exactly that name."""
        source = self._request.source
        target = replace(self._request.target, confined=self._request.rules.delete)
        store, found = self._seeing.find(source)
        if self._request.chosen is not None:
            store = ChosenStore(store, self._request.chosen)
        self._take(store)
        if found is None:
            raise missing_source(source.text)
        if found.kind is Kind.FILE and source.slash:
            raise UsageError("not-a-folder", "this is a file and PATH ends in a slash", subject=source.text)
        if found.kind is Kind.FOLDER:
            # Not where something else is going to be asked of the source before.
            plain = self._request.saved is None and not self._request.rules.xattrs
            if plain:
                store.list_ahead()
            there = self._open_target(target)
            standing = there.stat()
            if standing is not None and standing.kind is Kind.FILE:
                raise UsageError(
                    "not-a-folder", "the source is a folder and the target is a file", subject=target.text
                )
            return store, there
        return self._open_file_ends(source, target)

    def _open_file_ends(self, source: Location, target: Location) -> tuple[Source, Store]:
        if self._request.pack_bytes:
            raise UsageError("pack-one-file", "--pack has no meaning for a single file", subject=source.text)
        name = source.name if target.slash else target.name
        folder = target if target.slash else target.parent
        there = self._open_target(folder)
        reason = unholdable(name, there.facts)
        if reason:
            raise RefusedError(
                "unsafe-name",
                f"the target cannot hold the name {printable(name)}: {reason}",
                subject=target.text,
                hint="Give it another name. Nothing was moved.",
            )
        standing = there.stat(name)
        if standing is not None and standing.kind is Kind.FOLDER:
            raise UsageError(
                "is-a-folder",
                "a folder of that name stands there",
                subject=target.text,
                hint=f"To put the file into it: {target.text}/",
            )
        if self._request.rules.delete:
            raise UsageError(
                "delete-one-file", "--delete has no meaning for a single file", subject=source.text
            )
        return SingleSource(
            self._take(self._seeing.parent(self._stores[0], source)), source.name, name
        ), there

    def look(self) -> TransferPlan:
        """List and plan."""
        self.record_event(Listing())
        exists = self._target.stat() is not None
        if not exists and self._target.file_above():
            raise RefusedError(
                "not-a-folder",
                f"the target cannot be made: {words_of('not-a-folder')}",
                subject=self._request.target.text,
                hint=hint_of("not-a-folder"),
            )
        target: Side = self._target
        if isinstance(self._source, SingleSource):
            target = SingleTarget(self._target, self._source.entry().path)
        rules, saved, subject = self._request.rules, self._request.saved, self._request.target.text
        if saved is None:
            found = self._survey(target, target_exists=exists)
        else:
            check_same_ends(saved.header, self.header(), subject)
            found = recheck(saved.planned, self._source, target, rules, target_exists=exists, subject=subject)
        self._stack.callback(found.close)
        self.record_event(found.planned())
        for failure in found.failures():
            self.record_event(failure)
        if found.annex_links and rules.links != "skip":
            self.record_event(
                Noted(
                    f"{self._request.source.text}: {found.annex_links} symlinks lead to content that git-annex keeps; only in datasets"
                    " of this machine are they looked through, so they are kept as symlinks"
                )
            )
        return found

    def _survey(self, target: Side, *, target_exists: bool) -> TransferPlan:
        """A plan of our own; where digests decide, they are those of this call or, if so asked, of the record."""
        request, used = self._request, False
        if self._globus is not None and not self._target.facts.external_writes:
            target = UnprovenSide(target, self._globus.unproven())
        missing = self._missing_records() if target_exists else None
        if request.recorded:
            ours = self._remembering(self._source, request.source, self._stores[0])
            theirs = self._remembering(target, request.target, self._target)
            found = survey(ours, theirs, request.rules, target_exists=target_exists, missing_records=missing)
            used = ours.used or theirs.used
        else:
            found = survey(
                self._source,
                target,
                request.rules,
                target_exists=target_exists,
                missing_records=missing,
            )
        if missing is not None and missing.message():
            self.record_event(Noted(missing.message(), kept=True))
        # a further name of a file is kept with that, whatever became of it
        if request.rules.checksum and not request.rules.hard_links:
            self._proof_kept = Proof.RECORDED if used else Proof.DIGEST
        return found

    def _missing_records(self) -> MissingRecords | None:
        """What the record of the target lacks: looked for where digests decide anyhow, and after a record was cut off."""
        request, where = self._request, self._target.where
        if self._journal is None:
            return None
        cut_off = find_cut_off(request.target, where, self.receipt.id)
        if cut_off is None and not request.rules.checksum:
            return None
        known = recorded_digests(request.target, where)
        proof = Proof.RECORDED if request.recorded else Proof.DIGEST
        return MissingRecords(known, cut_off, self.record_event, proof=proof)

    def _remembering(self, side: Side, location: Location, store: Store) -> RememberingSide:
        remembering = RememberingSide(side, location, store.where)
        self._stack.callback(remembering.close)
        return remembering
