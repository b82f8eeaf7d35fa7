"""Remove a file or a tree: list it, confirm, then remove exactly the listed entries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from hibali.config.model import Site
from hibali.errors import NotFoundError, RefusedError, UsageError
from hibali.events import Deleted, Ended, Listener, Listing, Planned, ignore
from hibali.locations import Location, check_writable, listing_hint
from hibali.text import counted
from transfers.agent.identity import mounts_below
from transfers.history.journal import Receipt, Recorder, target_line
from transfers.model.entry import Entry, Kind, deepest_first
from transfers.model.facts import unsafe_component
from transfers.model.rules import DeleteLimit
from transfers.model.spool import EntrySpool
from transfers.model.store import Lock, Store
from transfers.model.units import ListingIncompleteError
from transfers.planning.protected_roots import (
    check_named,
    check_read_only_roots,
    check_unprotected,
    mounted_error,
)
from transfers.stores.open_store import open_beside, open_store


@dataclass(frozen=True, slots=True)
class RemovalRequest:
    """A request to remove a file, or a folder if `recursive`; the roots of `sites` are protected."""

    location: Location
    recursive: bool = False
    limit: DeleteLimit | None = None
    sites: tuple[Site, ...] = ()


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


def plan_removal(request: RemovalRequest, show: Confirm, on_event: Listener = ignore) -> None:
    """List what `remove` would remove, without any change, not even a lock."""
    with ExitStack() as stack:
        place = request.location.text
        removal = Removal(request, Recorder("rm", place, place, on_event), stack)
        plan = removal.plan(removal.find())
        removal.check_limit(plan)
        show(plan)


class Removal:
    """One removal, or the first half of a rename: find, check, lock and list what leaves its name."""

    def __init__(self, request: RemovalRequest, recorder: Recorder, stack: ExitStack) -> None:
        self.recorder = recorder
        self._request = request
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

    def find(self) -> Entry:
        """Find the entry and check it; a folder becomes the root of the last store."""
        location, recursive = self._request.location, self._request.recursive
        check_writable(location)
        check_named(location)
        above = self._open(location.parent)
        if not above.facts.writable:
            raise RefusedError("read-only-site", "this site can only be read", subject=location.text)
        if not above.can(Store.remove_root):
            raise RefusedError(
                "cannot-remove",
                "this kind of site cannot show whether another operation is running there",
                subject=location.text,
                hint="To remove files that a source does not have, use sync --delete.",
            )
        found = above.stat(location.name) or _recorded(above, location.name)
        if found is None:
            raise NotFoundError(
                "no-such-place", "it does not exist", subject=location.text, hint=listing_hint(location.text)
            )
        if location.slash and found.kind is not Kind.FOLDER:
            found = self._folder_of_that_name(found)
        identity = check_unprotected(location, above, self._request.sites, link=found.kind is Kind.LINK)
        check_read_only_roots(location, above.root_path.rstrip(b"/") + b"/" + location.name, above)
        if found.kind is not Kind.FOLDER:
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
            plan.add(found)
            return plan
        for entry in deepest_first(_with_missing(self.store.list()), lambda entry: entry):
            if entry.kind is Kind.FOLDER and entry.device != found.device:
                raise mounted_error(entry.path, self._request.location.text)
            plan.add(entry)
        return plan

    def check_limit(self, plan: RemovalPlan) -> None:
        """Raise `RefusedError` if more files than the limit would be removed."""
        limit = self._request.limit
        if limit is not None and plan.folder and not limit.allows(plan.files, plan.files):
            raise RefusedError(
                "delete-limit",
                f"{counted(plan.files, 'file')} would be removed; the limit is {limit.in_files(plan.files)}",
                subject=self._request.location.text,
                hint=f"Check with --dry-run. To remove them, add --max-delete {plan.files}",
            )

    def lock_and_plan(self, found: Entry) -> tuple[Lock, RemovalPlan]:
        """Lock the found entry, list it, and check that no other operation is running there."""
        store = self.store
        lock = store.lock(self.recorder.receipt.operation)
        self._stack.callback(lock.release)
        plan = self.plan(found)
        store.check_no_locks(itself=plan.folder)
        self.recorder.record(plan.planned())
        return lock, plan

    def run(self, confirm: Confirm) -> None:
        """Lock, list, confirm, and remove."""
        lock, plan = self.lock_and_plan(self.find())
        store = self.store
        self.check_limit(plan)
        confirm(plan)
        self.recorder.append(target_line(self._request.location, store.root_path), durable=True)
        if plan.folder:
            for path, problem in store.remove_own_files():
                self.recorder.fail(path, problem)
        for entry, failure in store.remove(plan.entries):
            if failure is None:
                self.recorder.record(Deleted(entry.path, entry.kind))
            else:
                self.recorder.fail(entry.path, failure)
        if plan.folder and not self.recorder.receipt.files_failed:
            self._remove_root(store)
        lock.release()

    def _remove_root(self, store: Store) -> None:
        """Remove the empty folder."""
        failure = store.remove_root()
        if failure is None:
            self.recorder.record(Deleted(b"", Kind.FOLDER))
            self.recorder.append({"kind": "empty"})
        else:
            self.recorder.fail(b"", failure)

    def end(self, problem: BaseException | None) -> Receipt:
        """Write the receipt."""
        self.recorder.on_event(Ended())
        receipt = self.recorder.receipt
        receipt.bytes_sent = sum(store.wire_bytes for store in self._stores)
        receipt.logins = sum(store.logins for store in self._stores)
        return self.recorder.end(problem)
