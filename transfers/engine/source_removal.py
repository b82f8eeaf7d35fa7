"""Remove entries at the source (--move) once their content is proven at the target and they are unchanged.

Everything is removed at the end of a transfer, while the target is still locked, and only what this call itself compared or sent
by digest: a call that was killed before has removed nothing, and the same command proves and removes it. Before that both ends are
listed again; an entry that differs in any property from the listing of the plan, or whose copy does, is left. A folder that the other end
shows under another address is recognized by a file that hibali creates in it for a moment (`Store.marked`). Its parts that `--delete` has,
too, are those of `transfers.remove`, and the ledger has a removal of its own, which readers know already.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from operator import attrgetter, itemgetter

from hibali.errors import AccessError, NotFoundError, RefusedError, TryLaterError, is_lost
from hibali.events import Deleted, Failed, Removed
from transfers.engine.endpoints import Endpoints
from transfers.history.journal import Recorder, target_line
from transfers.model.entry import Entry, Kind, Verification, deepest_first, enclosing
from transfers.model.rules import selector
from transfers.model.spool import EntrySpool, sort_on_disk
from transfers.model.store import Origin, Store, StoreView
from transfers.model.units import Committed, ListingIncompleteError
from transfers.planning.actions import same_time
from transfers.planning.overlap import is_same_file, on_one_machine
from transfers.planning.planner import TransferPlan

LEFT = "source-left"  # the code of an entry that is at the target, but not removed at the source
_SORTED_AT_ONCE = 20_000  # entries sorted in memory at a time
_SAMPLED = 20  # entries whose folders are looked for at the other end in any case


class ProvenEntries:
    """The entries of the source whose content one attempt proved at the target, on disk.

    Kept files are proven because every one was compared by digest (`Request.rules.checksum`).
    """

    def __init__(self) -> None:
        self._moved = EntrySpool()
        self._moved_there = EntrySpool()
        self.failed: set[bytes] = set()  # proven, but their permissions or attributes could not be set
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
            # a further name has the time of the file that it was linked to
            mtime_ns = 0 if entry.same_as else entry.mtime_ns
            self._moved_there.add(
                entry._replace(mtime_ns=mtime_ns, ctime_ns=0, inode=result.inode, etag=result.etag)
            )

    def ordered(self, plan: TransferPlan) -> Iterator[Entry]:
        """Yield all of them in canonical order."""
        for entry in _sorted(self._moved, plan.kept or ()):
            if entry.path not in self.failed:
                yield entry

    def possibly_shown(self, plan: TransferPlan) -> Iterator[Entry]:
        """Yield those which the target could show: a filesystem's file that was written over itself has another ctime now."""
        yield from plan.kept or ()
        # of other filesystems the first ones: a mounted bucket may have no ctimes of its own
        numbered = enumerate(self._moved)
        yield from (entry for number, entry in numbered if number < _SAMPLED or not entry.ctime_ns)

    def ordered_there(self, plan: TransferPlan) -> Iterator[Entry]:
        """Yield their copies at the target in canonical order, as far as known; 0 and None are unknown properties."""
        return _sorted(self._moved_there, plan.kept_there or ())

    def close(self) -> None:
        """Delete them from disk."""
        self._moved.close()
        self._moved_there.close()


def _sorted(*spools: Iterable[Entry]) -> Iterator[Entry]:
    entries = (entry for each in spools for entry in each)
    return sort_on_disk(entries, attrgetter("order"), EntrySpool, _SORTED_AT_ONCE)


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
    # what shows a folder of the other end by another protocol is recognized by a marker
    ends = _without_views(endpoints.origin.store), _without_views(endpoints.target)
    if not all(end.can(Store.identify) or end.can(Store.marked) for end in ends):
        raise RefusedError(
            "cannot-prove",
            "hibali cannot determine whether these sites show the same files",
            subject=subject,
            hint="Leave out --move. Nothing was moved.",
        )
    store = endpoints.origin.store
    # a view shows other files than the store has: those of a dataset, or in packs
    if isinstance(store, StoreView) or not _removes(store):
        raise RefusedError(
            "cannot-remove",
            "files at this kind of source cannot be locked and removed",
            subject=subject,
            hint="Leave out --move. Nothing was moved.",
        )


def _removes(store: Store) -> bool:
    facts = store.facts
    return facts.writable and (facts.locks or not facts.known) and store.can(Store.remove)


def _without_views(store: Store) -> Store:
    while isinstance(store, StoreView):
        store = store.store
    return store


def _check_not_shown(endpoints: Endpoints, possibly_shown: Iterable[Entry]) -> None:
    """Raise `RefusedError` if the target shows the source itself, so that each file was compared with itself.

    Stores of different protocols have no common identity. A new file in a folder of one end must not exist at the other one; both
    directions, because a server may cache its listings.
    """
    source, target = _without_views(endpoints.origin.store), _without_views(endpoints.target)
    renamed = endpoints.request.rules.rename
    folders = _folders_alike(endpoints.origin, possibly_shown) if renamed else _compared_folders(endpoints)
    back = [(there, here) for here, there in folders]
    if _is_any_shown(source, target, folders) or _is_any_shown(target, source, back):
        raise _overlap(endpoints, "removed")


def check_target_apart(endpoints: Endpoints) -> None:
    """Raise `RefusedError` if the target shows the source by another protocol: with --rename its files would be replaced or deleted.

    Only the target is written to: nothing is created at a source that stays.
    """
    source, target = _without_views(endpoints.origin.store), _without_views(endpoints.target)
    both_known = source.can(Store.identify) and target.can(Store.identify)
    if not both_known and _is_any_shown(target, source, [(b"", b"")]):
        raise _overlap(endpoints, "changed")


def _overlap(endpoints: Endpoints, done: str) -> RefusedError:
    return RefusedError(
        "overlap",
        "the target shows the files of the source",
        subject=endpoints.request.target.text,
        hint=f"Name a target with files of its own. Nothing was {done}.",
    )


def _compared_folders(endpoints: Endpoints) -> Iterable[tuple[bytes, bytes]]:
    """Return the folders whose files have the same names at both ends, below the source's store and the target."""
    single, members = endpoints.single, endpoints.request.members
    if single is not None:
        return [(b"", b"")] if single.name == single.shown else []
    if members is None:
        return [(b"", b"")]
    found = set()
    for name, path in members.paths.items():
        entry = endpoints.root.stat(path)
        folder = entry is not None and entry.kind is Kind.FOLDER
        found.add((path, name) if folder else (next(enclosing(path)), b""))
    return found


def _folders_alike(origin: Origin, entries: Iterable[Entry]) -> set[tuple[bytes, bytes]]:
    """Return the folders below which renamed files have the same paths at both ends."""
    found = set()
    for entry in entries:
        here, there = (path.split(b"/") for path in (origin.path_of(entry), entry.path))
        if entry.kind is Kind.FOLDER or here[-1] != there[-1]:
            continue
        while here and there and here[-1] == there[-1]:
            del here[-1], there[-1]
        found.add((b"/".join(here), b"/".join(there)))
    return found


def _is_any_shown(store: Store, other: Store, pairs: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a new file in a folder of `store` exists in one of the folders of `other` that are paired with it."""
    name = b".hibali-" + os.urandom(16).hex().encode("ascii")
    if not store.can(Store.marked):
        return False
    for folder, some in groupby(sorted(pairs), key=itemgetter(0)):
        existing = [there for _, there in some if other.stat(there) is not None]
        if existing and store.stat(folder) is not None:
            with store.marked(_within(folder, name)):
                if any(other.stat(_within(there, name)) is not None for there in existing):
                    return True
    return False


def _within(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


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
            stack.callback(store.lock(endpoints.request.operation).release)
            if not store.facts.locks:  # a server that `lock` probed
                raise RefusedError("cannot-remove", "the source cannot be locked")
            _check_not_shown(endpoints, proven.possibly_shown(plan))
            unchanged = removal.unchanged(proven.ordered(plan))
            # the names of a file share its ctime, which changes with their number
            linked = bool(plan.files_to_link)
            for entry in removal.confirmed(unchanged, proven.ordered_there(plan), linked=linked):
                entries.add(entry)
        except (ListingIncompleteError, NotFoundError, RefusedError, AccessError, TryLaterError) as problem:
            if is_lost(problem) or problem.code == "overlap":
                raise
            recorder.record(Failed(b"", LEFT, f"nothing was removed at the source: {problem.message}"))
            return
        try:
            removal.run(entries, stack)
        except AccessError as problem:
            recorder.record(Failed(b"", LEFT, f"not everything was removed at the source: {problem.message}"))
    for path in sorted(proven.unproven):
        removal.leave(path, "it could not be proven by sha256")


class _SourceRemoval:
    """One removal at a source."""

    def __init__(self, endpoints: Endpoints, recorder: Recorder) -> None:
        self._endpoints = endpoints
        self._store = endpoints.origin.store
        self._ends = self._store, endpoints.target
        members = endpoints.request.members
        self._tops = frozenset((b"",) if members is None else members.paths.values())
        self._recorder = recorder
        self._selected = selector(endpoints.request.rules)

    def unchanged(self, proven: Iterable[Entry]) -> Iterator[Entry]:
        """List the source again; yield the proven entries that are as they were, in canonical order."""
        coming = iter(proven)
        wanted = next(coming, None)
        top = self._store.stat()
        for found in self._endpoints.source.list():
            while wanted is not None and wanted.order < found.order:  # another process removed it
                wanted = next(coming, None)
            if wanted is None or wanted.order != found.order:
                continue
            if found.source_path != wanted.source_path and (
                found.kind is not Kind.FOLDER or not self._selected(found)
            ):
                continue
            reason = _reason_to_stay(wanted, found, top)
            if reason:
                self.leave(found.path, reason)
            else:
                yield found

    def confirmed(
        self, unchanged: Iterable[Entry], there: Iterable[Entry], *, linked: bool
    ) -> Iterator[Entry]:
        """List the target again; yield the entries whose copy is as it was proven, in canonical order."""
        expected, found = _Ordered(there), _Ordered(self._endpoints.target_side.list())
        times = _without_views(self._endpoints.target).can(Store.identify)  # those of a filesystem
        one_machine = on_one_machine(*(store.identities() for store in self._ends))
        for entry in unchanged:
            copy, now = expected.at(entry.order), found.at(entry.order)
            if entry.kind is Kind.FOLDER:
                yield entry
            elif copy is None or now is None or not _is_still(copy, now, times=times, linked=linked):
                self.leave(entry.path, "its copy at the target changed after it was proven")
            elif is_same_file(entry, now, one_machine=one_machine):
                self.leave(entry.path, "both are one file")
            else:
                yield entry

    def run(self, entries: EntrySpool, stack: ExitStack) -> None:
        """Remove the entries, as an operation of its own in the ledger."""
        single = self._endpoints.single
        location = self._endpoints.request.source if single is None else self._endpoints.request.source.parent
        own = Recorder("rm", location.text, location.text, lambda _: None)
        own.start(stack)
        try:
            own.append(target_line(location, self._store.root_path), durable=True)
            for entry, problem in self._store.remove_unchanged(_removable(self._named(entries), self._tops)):
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
        """Yield entries with their names in the store of the source, in canonical order."""
        origin = self._endpoints.origin
        named = (entry._replace(path=origin.path_of(entry), renamed_from=b"") for entry in entries)
        yield from named if origin.renames is None else _sorted(named)

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


class _Ordered:
    """A listing in canonical order, in which ascending names are found in one pass."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._coming = iter(entries)
        self._next = next(self._coming, None)

    def at(self, order: bytes) -> Entry | None:
        """Return the entry with this order; None if there is none."""
        while self._next is not None and self._next.order < order:
            self._next = next(self._coming, None)
        return self._next if self._next is not None and self._next.order == order else None


def _is_still(proven: Entry, now: Entry, *, times: bool, linked: bool) -> bool:
    """Return whether a copy has all the properties that are known of it; with `linked` its ctime may have changed."""
    if now.kind is Kind.LINK:
        return proven.link == now.link
    same_tags = all(
        first == second or not (first and second)
        for first, second in ((proven.inode, now.inode), (proven.etag, now.etag))
    )
    same_change = linked or not proven.ctime_ns or proven.ctime_ns == now.ctime_ns
    same_age = not proven.mtime_ns or same_time(proven.mtime_ns, now.mtime_ns)
    times_agree = not times or (same_age and same_change)
    return proven.kind is now.kind and proven.size == now.size and same_tags and times_agree


def _removable(entries: Iterable[Entry], tops: Collection[bytes]) -> Iterator[Entry]:
    """Yield entries in canonical order, and every folder around one of them, in one of `tops`, after its contents; it may have others."""
    for entry in deepest_first(_with_folders(entries), lambda each: each):
        if entry.kind is not Kind.FOLDER or any(above in tops for above in enclosing(entry.path)):
            yield entry


def _with_folders(entries: Iterable[Entry]) -> Iterator[Entry]:
    last = b""
    for entry in entries:
        for above in reversed([*enclosing(entry.path)][:-1]):
            if not (last + b"/").startswith(above + b"/"):
                yield Entry(above, Kind.FOLDER)
        yield entry
        last = entry.path
