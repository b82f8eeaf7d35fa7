"""Remove a file or a tree: list it, confirm, then remove exactly the listed entries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

from hibali.config.model import Site
from hibali.errors import HibaliError, NotFoundError, RefusedError, UsageError
from hibali.events import Deleted, Ended, Listener, Listing, Planned, ignore
from hibali.locations import Location, check_writable, listing_hint
from hibali.text import counted
from transfers.agent.identity import Identity, mounts_below
from transfers.history.journal import Receipt, Recorder, target_line
from transfers.model.entry import Entry, Kind, deepest_first
from transfers.model.facts import unsafe_component
from transfers.model.rules import DeleteLimit
from transfers.model.spool import EntrySpool
from transfers.model.store import Lock, Store
from transfers.model.units import ListingIncompleteError, Problem
from transfers.planning.protected_roots import (
    check_named,
    check_read_only_roots,
    check_unprotected,
    mounted_error,
)
from transfers.remote.one_session import one_session
from transfers.stores.open_store import open_beside, open_store


@dataclass(frozen=True, slots=True)
class RemovalRequest:
    """A request to remove a file, or a folder if `recursive`; the roots of `sites` are protected.

    With `files`, these names in the folder `location` are removed, which are no folders.
    """

    location: Location
    recursive: bool = False
    limit: DeleteLimit | None = None
    sites: tuple[Site, ...] = ()
    files: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class SeveralRemovals:
    """Several removals that are one operation.

    Attributes:
        text: their locations as given.
        folder: the folder that contains all.
        parts: each of them, by the path below `folder` of what it removes, or of the folder of its files.
        limit: that of all files.
    """

    text: str
    folder: Location
    parts: Mapping[bytes, tuple[RemovalRequest, ...]]
    limit: DeleteLimit | None = None


def _with_missing(listing: Iterator[Entry]) -> Iterator[Entry]:
    """Yield a listing, and then the files that are only recorded: their removal removes the record."""
    try:
        yield from listing
    except ListingIncompleteError as problem:
        yield from problem.missing
        problem.raise_selected(lambda entry: unsafe_component(entry.path) is not None)


def _recorded(store: Store, name: bytes) -> Entry | None:
    """Return a file below the root that is recorded, but missing."""
    try:
        deque(store.list(shallow=True), maxlen=0)
    except ListingIncompleteError as problem:
        return next((entry for entry in problem.missing if entry.path == name), None)
    except NotFoundError:
        pass
    return None


@dataclass(slots=True)
class RemovalPlan:
    """The entries to remove, deepest first, on disk; links and special files count as files."""

    folder: bool
    entries: EntrySpool = field(default_factory=EntrySpool)
    files: int = 0
    folders: int = 0

    def add(self, entry: Entry) -> None:
        """Add one entry."""
        self.entries.add(entry)
        self.folders += entry.kind is Kind.FOLDER
        self.files += entry.kind is not Kind.FOLDER

    @property
    def bytes(self) -> int:
        """The total size of the files."""
        return self.entries.bytes

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of files, folders and bytes."""
        return self.files, self.folders, self.bytes

    def planned(self) -> Planned:
        """Return the counts as an event."""
        return Planned(self.files, self.bytes, 0, 0, 0, self.files)


Confirm = Callable[[RemovalPlan], None]


def remove(request: RemovalRequest, confirm: Confirm, on_event: Listener = ignore) -> Receipt:
    """Remove a file or a tree, and return the receipt, whose `exit` is the exit code.

    Args:
        request: the file or folder to remove.
        confirm: called with the plan before anything is removed; raises an error to cancel.
        on_event: the listener.

    Raises:
        RefusedError: nothing was changed.
        TryLaterError: another operation holds a lock in the tree.
        NotFoundError: it does not exist.
    """
    with ExitStack() as stack:
        place = request.location.text
        removal = Removal(request, Recorder("rm", place, place, on_event), stack)
        removal.recorder.start(stack)
        try:
            removal.run(confirm)
        except BaseException as problem:
            removal.end(problem)
            raise
        return removal.end(None)


def remove_several(several: SeveralRemovals, confirm: Confirm, on_event: Listener = ignore) -> Receipt:
    """Plan several removals, confirm all of them, then carry out one after the other, each as `remove` does.

    What another program adds after the confirmation is not removed: that removal fails, and the others are done.
    """
    with one_session(), ExitStack() as stack:
        recorder = Recorder("rm", several.text, several.text, on_event)
        recorder.start(stack)
        try:
            plans = _plan_parts(several, recorder, stack)
            confirm(plans.total)
            recorder.record(plans.total.planned())
            with closing(open_store(replace(several.folder, confined=True), on_event=on_event)) as store:
                recorder.append(target_line(several.folder, store.root_path), durable=True)
            for part, request, counts in plans.parts:
                _remove_part(request, recorder, part, counts)
        except BaseException as problem:
            recorder.on_event(Ended())
            recorder.end(problem)
            raise
        recorder.on_event(Ended())
        return recorder.end(None)


def plan_several(several: SeveralRemovals, show: Confirm, on_event: Listener = ignore) -> None:
    """List what `remove_several` would remove, without any change."""
    with one_session(), ExitStack() as stack:
        recorder = Recorder("rm", several.text, several.text, on_event)
        show(_plan_parts(several, recorder, stack).total)


@dataclass(slots=True)
class _Plans:
    total: RemovalPlan
    parts: list[tuple[bytes, RemovalRequest, tuple[int, int, int]]] = field(default_factory=list)


def _plan_parts(several: SeveralRemovals, recorder: Recorder, stack: ExitStack) -> _Plans:
    """Find, check and list everything. Raises what `remove` raises before it changes anything."""
    plans = _Plans(RemovalPlan(folder=False))
    stack.callback(plans.total.entries.close)
    for part, requests in several.parts.items():
        for request in requests:
            with ExitStack() as opened:
                removal = Removal(request, recorder, opened, part)
                plan = removal.plan(removal.find())
                for entry in plan.entries:
                    plans.total.add(entry._replace(path=removal.path_of(entry.path)))
                if plan.folder:
                    plans.total.add(Entry(part, Kind.FOLDER))
                plans.parts.append((part, request, plan.counts))
                removal.count_connections()
    check_limit(several.limit, plans.total, several.text)
    return plans


def _remove_part(
    request: RemovalRequest, recorder: Recorder, part: bytes, confirmed: tuple[int, int, int]
) -> None:
    """Carry out one of several removals; what prevents only this one is its failure."""

    def check(plan: RemovalPlan) -> None:
        if plan.counts != confirmed:
            raise RefusedError("changed", "its content changed after it was listed")

    with ExitStack() as stack:
        removal = Removal(request, recorder, stack, part)
        try:
            removal.run(check)
        except NotFoundError as problem:
            if problem.code != "no-such-place":  # another program may have removed it
                raise
        except HibaliError as problem:
            if not isinstance(problem, RefusedError) and problem.code not in {"locked", "listing-incomplete"}:
                raise
            recorder.fail(part, Problem(problem.code, f"not removed: {problem.message}"))
        finally:
            removal.count_connections()


def plan_removal(request: RemovalRequest, show: Confirm, on_event: Listener = ignore) -> None:
    """List what `remove` would remove, without any change, not even a lock."""
    with ExitStack() as stack:
        place = request.location.text
        removal = Removal(request, Recorder("rm", place, place, on_event), stack)
        plan = removal.plan(removal.find())
        if plan.folder:
            check_limit(request.limit, plan, place)
        show(plan)


def check_limit(limit: DeleteLimit | None, plan: RemovalPlan, subject: str) -> None:
    """Raise `RefusedError` if more files than the limit would be removed."""
    if limit is not None and not limit.allows(plan.files, plan.files):
        raise RefusedError(
            "delete-limit",
            f"{counted(plan.files, 'file')} would be removed; the limit is {limit.in_files(plan.files)}",
            subject=subject,
            hint=f"Check with --dry-run. To remove them, add --max-delete {plan.files}",
        )


class Removal:
    """One removal, or the first half of a rename: find, check, lock and list what leaves its name."""

    def __init__(
        self, request: RemovalRequest, recorder: Recorder, stack: ExitStack, part: bytes | None = None
    ) -> None:
        """`part` is the path under which names are recorded if this is one of several removals."""
        self.recorder = recorder
        self._request = request
        self._part = part
        self._stack = stack
        self._stores: list[Store] = []

    def _open(self, location: Location, above: Store | None = None) -> Store:
        location, on_event = replace(location, confined=True), self.recorder.on_event
        if above is None:
            store = open_store(location, on_event=on_event)
        else:
            store = open_beside(above, location, on_event=on_event)
        self._stack.callback(store.close)
        self._stores.append(store)
        return store

    @property
    def store(self) -> Store:
        """The store of the found entry: of the folder itself, or of the folder around a file."""
        return self._stores[-1]

    def path_of(self, path: bytes) -> bytes:
        """Return the path under which a name is recorded."""
        return b"/".join(filter(None, (self._part, path)))

    def find(self) -> Entry:
        """Find the entry, or the first of the files, and check it; a folder becomes the root of the last store."""
        location, recursive = self._request.location, self._request.recursive
        check_writable(location)
        if self._request.files:
            return self._check_files(self._open_above(location))
        check_named(location)
        above = self._open_above(location.parent)
        found = above.stat(location.name) or _recorded(above, location.name)
        if found is None:
            raise NotFoundError(
                "no-such-place", "it does not exist", subject=location.text, hint=listing_hint(location.text)
            )
        if location.slash and found.kind is not Kind.FOLDER:
            found = self._folder_of_that_name(found)
        identity = self._check_unprotected(location, above, link=found.kind is Kind.LINK)
        if found.kind is not Kind.FOLDER:
            if self._part is not None:  # the name is in the folder around it
                self._part = self._part.rpartition(b"/")[0]
            return found
        if not recursive:
            raise UsageError(
                "is-a-folder",
                "this is a folder",
                subject=location.text,
                hint="To remove it with its contents, add --recursive.",
            )
        top = above.stat()
        mounts = [] if identity is None else mounts_below(identity)
        if mounts:
            raise mounted_error(mounts[0], location.text)
        if top is not None and top.device != found.device:
            raise mounted_error(b"", location.text)
        self._open(location, above)
        return found

    def _check_files(self, above: Store) -> Entry:
        """Check listed files in one folder; a regular file cannot lead to a protected folder."""
        for entry in self._request.files:
            location = self._request.location.child(entry.path)
            check_named(location)
            if entry.kind is not Kind.FILE or location.site.read_only:
                self._check_unprotected(location, above, link=entry.kind is Kind.LINK)
        return self._request.files[0]

    def _check_unprotected(self, location: Location, above: Store, *, link: bool) -> Identity | None:
        identity = check_unprotected(location, above, self._request.sites, link=link)
        check_read_only_roots(location, above.root_path.rstrip(b"/") + b"/" + location.name, above)
        return identity

    def _open_above(self, folder: Location) -> Store:
        """Open the folder around what is removed. Raises `RefusedError` if nothing can be removed there."""
        location = self._request.location
        above = self._open(folder)
        if not above.facts.writable:
            raise RefusedError("read-only-site", "this site can only be read", subject=location.text)
        if not above.can(Store.remove_root):
            raise RefusedError(
                "cannot-remove",
                "this kind of site cannot show whether another operation is running there",
                subject=location.text,
                hint="To remove files that a source does not have, use sync --delete.",
            )
        return above

    def _folder_of_that_name(self, found: Entry) -> Entry:
        """Return the folder, if an object store has a file of the same name, too."""
        location = self._request.location
        folder = self._open(location, self.store).stat() if found.kind is Kind.FILE else None
        if folder is None or folder.kind is not Kind.FOLDER:
            description = "a symlink; remove the slash" if found.kind is Kind.LINK else "not a folder"
            raise UsageError(
                "not-a-folder",
                f"the path ends with a slash, but this is {description}",
                subject=location.text,
            )
        return folder

    def plan(self, found: Entry) -> RemovalPlan:
        """List everything to remove. Raises if the listing is incomplete: then nothing is removed."""
        plan = RemovalPlan(found.kind is Kind.FOLDER)
        self._stack.callback(plan.entries.close)
        self.recorder.record(Listing())
        if not plan.folder:
            for each in self._request.files or (found,):
                plan.add(each)
            return plan
        for entry in deepest_first(_with_missing(self.store.list()), lambda entry: entry):
            if entry.kind is Kind.FOLDER and entry.device != found.device:
                raise mounted_error(entry.path, self._request.location.text)
            plan.add(entry)
        return plan

    def lock_and_plan(self, found: Entry) -> tuple[Lock, RemovalPlan]:
        """Lock the found entry, list it, and check that no other operation is running there."""
        store = self.store
        lock = store.lock(self.recorder.receipt.operation)
        self._stack.callback(lock.release)
        plan = self.plan(found)
        store.check_no_locks(itself=plan.folder)
        if self._part is None:
            self.recorder.record(plan.planned())
        return lock, plan

    def run(self, confirm: Confirm) -> None:
        """Lock, list, confirm, and remove."""
        lock, plan = self.lock_and_plan(self.find())
        store = self.store
        if plan.folder:
            check_limit(self._request.limit, plan, self._request.location.text)
        confirm(plan)
        if self._part is None:
            self.recorder.append(target_line(self._request.location, store.root_path), durable=True)
        failed = self.recorder.receipt.files_failed
        if plan.folder:
            for path, problem in store.remove_own_files():
                self.recorder.fail(self.path_of(path), problem)
        for entry, failure in store.remove(plan.entries):
            if failure is None:
                self.recorder.record(Deleted(self.path_of(entry.path), entry.kind))
            else:
                self.recorder.fail(self.path_of(entry.path), failure)
        if plan.folder and self.recorder.receipt.files_failed == failed:
            self._remove_root(store)
        lock.release()

    def _remove_root(self, store: Store) -> None:
        """Remove the empty folder."""
        failure = store.remove_root()
        if failure is None:
            self.recorder.record(Deleted(self.path_of(b""), Kind.FOLDER))
            if self._part is None:
                self.recorder.append({"kind": "empty"})
        else:
            self.recorder.fail(self.path_of(b""), failure)

    def end(self, problem: BaseException | None) -> Receipt:
        """Write the receipt."""
        self.recorder.on_event(Ended())
        self.count_connections()
        return self.recorder.end(problem)

    def count_connections(self) -> None:
        """Add the bytes sent and the logins to the receipt."""
        receipt = self.recorder.receipt
        receipt.bytes_sent += sum(store.wire_bytes for store in self._stores)
        receipt.logins += sum(store.logins for store in self._stores)
