"""Remove entries at the source (--move) once their content is proven at the target and they are unchanged.

Everything is removed at the end of a transfer, while the target is still locked, and only what this call itself compared or sent
by digest: a call that was killed before has removed nothing, and the same command proves and removes it. Before that the source is
listed again; an entry that differs in any property from the listing of the plan is left. Its parts that `--delete` has,
too, are those of `transfers.remove`, and the ledger has a removal of its own, which readers know already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from operator import attrgetter

from hibali.errors import NotFoundError, RefusedError
from hibali.events import Deleted, Failed, Removed
from transfers.engine.endpoints import Endpoints
from transfers.history.journal import Recorder, target_line
from transfers.model.entry import Entry, Kind, Verification, deepest_first, enclosing
from transfers.model.spool import EntrySpool, sort_on_disk
from transfers.model.store import Store, StoreView
from transfers.model.units import Committed, ListingIncompleteError
from transfers.planning.planner import TransferPlan

LEFT = "source-left"  # the code of an entry that is at the target, but not removed at the source
_SORTED_AT_ONCE = 20_000  # entries sorted in memory at a time


class ProvenEntries:
    """The entries of the source whose content one attempt proved at the target, on disk.

    Kept files are proven because every one was compared by digest (`Request.rules.checksum`).
    """

    def __init__(self) -> None:
        self._moved = EntrySpool()
        self.unproven: set[bytes] = set()  # files, whose further names are unproven, too

    def note(self, result: Committed) -> None:
        """Note the result of one entry."""
        entry = result.item.entry
        if result.problem is not None:
            return
        weak = entry.kind is Kind.FILE and result.verification.strength < Verification.RECORDED.strength
        if entry.same_as in self.unproven or (weak and not entry.same_as):
            self.unproven.add(entry.path)
        else:
            self._moved.add(entry)

    def ordered(self, plan: TransferPlan) -> Iterator[Entry]:
        """Yield all of them in canonical order."""
        entries = (entry for each in (self._moved, plan.kept or ()) for entry in each)
        yield from sort_on_disk(entries, attrgetter("order"), EntrySpool, _SORTED_AT_ONCE)

    def close(self) -> None:
        """Delete them from disk."""
        self._moved.close()


def check_provable(endpoints: Endpoints) -> None:
    """Raise `RefusedError` if no file can be proven by digest between these endpoints, or none can be removed."""
    subject = endpoints.request.source.text
    weak = endpoints.required_verification.strength < Verification.RECORDED.strength
    if weak and endpoints.target.facts.known:  # others are probed before they are written
        raise RefusedError(
            "cannot-prove",
            "--move removes only files that are proven by sha256, which these sites cannot do",
            subject=subject,
            hint="Leave out --move. Nothing was moved.",
        )
    store = endpoints.origin.store
    # a view shows other files than the store has: those of a dataset, or in packs
    if isinstance(store, StoreView) or not store.facts.writable or not store.can(Store.remove):
        raise RefusedError(
            "cannot-remove",
            "files at this kind of source cannot be removed",
            subject=subject,
            hint="Leave out --move. Nothing was moved.",
        )


def remove_sources(
    endpoints: Endpoints, plan: TransferPlan, proven: ProvenEntries, recorder: Recorder
) -> None:
    """Remove the proven entries that are unchanged, then the folders that became empty; the root stays.

    What is not removed is recorded as a failure. Raises the errors of the source's store.
    """
    if plan.unlisted:  # S3
        recorder.record(Failed(b"", LEFT, "nothing was removed at the source: a listing is not complete"))
        return
    removal = _SourceRemoval(endpoints, recorder)
    with ExitStack() as stack:
        entries = EntrySpool()
        stack.callback(entries.close)
        store = endpoints.origin.store
        try:
            if store.facts.locks:
                stack.callback(store.lock(endpoints.request.operation).release)
            for entry in removal.unchanged(proven.ordered(plan)):
                entries.add(entry)
        except (ListingIncompleteError, NotFoundError, RefusedError) as problem:
            recorder.record(Failed(b"", LEFT, f"nothing was removed at the source: {problem.message}"))
            return
        removal.run(entries, stack)
    for path in sorted(proven.unproven):
        removal.leave(path, "it could not be proven by sha256")


class _SourceRemoval:
    """One removal at a source."""

    def __init__(self, endpoints: Endpoints, recorder: Recorder) -> None:
        self._endpoints = endpoints
        self._store = endpoints.origin.store
        self._recorder = recorder

    def unchanged(self, proven: Iterable[Entry]) -> Iterator[Entry]:
        """List the source again; yield the proven entries that are as they were, in canonical order."""
        coming = iter(proven)
        wanted = next(coming, None)
        top = self._store.stat()
        for found in self._endpoints.source.list():
            while wanted is not None and wanted.order < found.order:  # somebody else removed it
                wanted = next(coming, None)
            if wanted is None or wanted.order != found.order:
                continue
            reason = _reason_to_stay(wanted, found, top)
            if reason:
                self.leave(found.path, reason)
            else:
                yield found

    def run(self, entries: EntrySpool, stack: ExitStack) -> None:
        """Remove the entries, as an operation of its own in the ledger."""
        single = self._endpoints.single
        location = self._endpoints.request.source if single is None else self._endpoints.request.source.parent
        own = Recorder("rm", location.text, location.text, lambda _: None)
        own.start(stack)
        try:
            own.append(target_line(location, self._store.root_path), durable=True)
            for entry, problem in self._store.remove(_removable(self._named(entries))):
                if problem is None:
                    own.record(Deleted(entry.path, entry.kind))
                    self._recorder.record(Removed(entry.path, entry.kind))
                elif entry.kind is not Kind.FOLDER:  # a folder with other contents stays
                    self.leave(entry.path, problem.message)
        except BaseException as problem:
            own.end(problem)
            raise
        own.end(None)

    def _named(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield entries with their names in the store of the source."""
        for entry in entries:
            yield entry._replace(path=self._endpoints.origin.path_of(entry))

    def leave(self, path: bytes, reason: str) -> None:
        """Record an entry that is not removed."""
        self._recorder.record(
            Failed(path, LEFT, f"it is at the target, but was not removed at the source: {reason}")
        )


def _reason_to_stay(wanted: Entry, found: Entry, top: Entry | None) -> str:
    """Return why an entry that is found again is not removed; "" if it is as it was planned."""
    if found.kind is Kind.FOLDER:
        return ""
    if _identity(wanted) != _identity(found):
        return "it changed after it was listed"
    if top is not None and found.device and found.device != top.device:
        return "it is on another filesystem, which is mounted below the source"
    return ""


def _identity(entry: Entry) -> tuple[object, ...]:
    times = entry.mtime_ns, entry.ctime_ns
    return entry.kind, entry.size, *times, entry.device, entry.inode, entry.link, entry.etag


def _removable(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield entries in canonical order, and every folder around one of them after its contents; it may have others."""
    yield from deepest_first(_with_folders(entries), lambda each: each)


def _with_folders(entries: Iterable[Entry]) -> Iterator[Entry]:
    last = b""
    for entry in entries:
        for above in reversed([*enclosing(entry.path)][:-1]):
            if not (last + b"/").startswith(above + b"/"):
                yield Entry(above, Kind.FOLDER)
        yield entry
        last = entry.path
