"""Remove a file or a tree: list it, ask, then remove exactly what was listed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from hibali.config.model import Site
from hibali.errors import NotFoundError, RefusedError, UsageError
from hibali.events import Deleted, Ended, Event, Failed, Listener, Listing, Planned, ignore
from hibali.ledger import Journal, new_identifier
from hibali.locations import Location, check_writable
from hibali.text import printable
from transfers.agent import protocol
from transfers.entry import Entry, Kind
from transfers.journal import Receipt, end_journal, exit_after, journal_line, open_journal, place_line
from transfers.protected_roots import check_guarded, check_named, check_unprotected
from transfers.rules import DeleteLimit
from transfers.spool import EntrySpool
from transfers.stores.base import Store
from transfers.stores.open_store import open_store


@dataclass(frozen=True, slots=True)
class Request:
    """What is to go. `recursive` takes a folder with all in it; `sites` are all that are configured, whose roots stay."""

    location: Location
    recursive: bool = False
    limit: DeleteLimit | None = None
    sites: tuple[Site, ...] = ()


@dataclass(slots=True)
class Doomed:
    """What goes, the deepest first, on disk; links and special files count as files."""

    folder: bool
    entries: EntrySpool = field(default_factory=EntrySpool)
    files: int = 0
    folders: int = 0

    def add(self, entry: Entry) -> None:
        """One more."""
        self.entries.add(entry)
        self.folders += entry.kind is Kind.FOLDER
        self.files += entry.kind is not Kind.FOLDER

    @property
    def bytes(self) -> int:
        """The sizes of all files."""
        return self.entries.bytes

    def planned(self) -> Planned:
        """The counts as an event."""
        return Planned(self.files, self.bytes, 0, 0, 0, self.files)


Agree = Callable[[Doomed], None]


def remove(request: Request, agree: Agree, on_event: Listener = ignore) -> Receipt:
    """Do it, and return the receipt, whose `exit` says how it went.

    `agree` is called with what a whole tree holds, before anything of it goes, and raises to keep it. Raises what stopped the call:
    `RefusedError` when nothing was changed, `TryLaterError` where somebody is at work there, `NotFoundError`.
    """
    with ExitStack() as stack:
        removal = _Removal(request, on_event, stack)
        journal = open_journal(removal.receipt, stack)
        try:
            removal.run(agree, journal)
        except BaseException as problem:
            removal.end(journal, problem)
            raise
        return removal.end(journal, None)


def look_only(request: Request, show: Agree, on_event: Listener = ignore) -> None:
    """Look exactly as `remove` would, and show what would go; nothing is touched, not even to lock it."""
    with ExitStack() as stack:
        removal = _Removal(request, on_event, stack)
        doomed = removal.look(removal.find())
        removal.check_limit(doomed)
        show(doomed)


class _Removal:
    """One call."""

    def __init__(self, request: Request, on_event: Listener, stack: ExitStack) -> None:
        place = request.location.text
        self.receipt = Receipt(new_identifier(), "rm", place, place)
        self._request = request
        self._on_event = on_event
        self._stack = stack
        self._began = time.monotonic()
        self._stores: list[Store] = []
        self._journal: Journal | None = None

    def _record_event(self, event: Event) -> None:
        self.receipt.take(event)
        line = journal_line(event)
        if self._journal is not None and line is not None:
            self._journal.append(line)
        self._on_event(event)

    def _open(self, location: Location) -> Store:
        store = open_store(replace(location, confined=True), on_event=self._on_event)
        self._stack.callback(store.close)
        self._stores.append(store)
        return store

    def find(self) -> Entry:
        """What is named, checked to be something that may go; the last of the stores has it, as its root if it is a folder."""
        location, recursive = self._request.location, self._request.recursive
        check_writable(location)
        check_named(location)
        above = self._open(location.parent)
        if not above.facts.writable:
            raise RefusedError("read-only-site", "this site can only be read", subject=location.text)
        if not above.facts.removes_trees:
            raise RefusedError(
                "cannot-remove",
                "it cannot be told at this kind of site whether somebody is at work there",
                subject=location.text,
                hint="What a source does not have, a sync with --delete removes there.",
            )
        found = above.stat(location.name)
        if found is None:
            raise NotFoundError("no-such-place", "there is nothing there", subject=location.text)
        if location.slash and found.kind is not Kind.FOLDER:
            found = self._folder_of_that_name(found)
        identity = check_unprotected(location, above, self._request.sites, link=found.kind is Kind.LINK)
        check_guarded(location, above.where.rstrip(b"/") + b"/" + location.name, self._on_event)
        if found.kind is not Kind.FOLDER:
            return found
        if not recursive:
            raise UsageError(
                "is-a-folder", "this is a folder", subject=location.text, hint="With all in it: --recursive"
            )
        top = above.stat()
        mounts = [] if identity is None else identity["places"][1:]
        if mounts:
            raise self._another(protocol.bytes_of(mounts[0][2]))
        if top is not None and top.device != found.device:
            raise self._another(b"")
        self._open(location)
        return found

    def _folder_of_that_name(self, found: Entry) -> Entry:
        """An object store may have a file of the folder's name, too."""
        location = self._request.location
        again = self._open(location).stat() if found.kind is Kind.FILE else None
        if again is None or again.kind is not Kind.FOLDER:
            what = "a symlink, which goes without the slash" if found.kind is Kind.LINK else "no folder"
            raise UsageError(
                "not-a-folder", f"PATH ends in a slash, and this is {what}", subject=location.text
            )
        return again

    def look(self, found: Entry) -> Doomed:
        """All that goes with it. A listing that is not whole is raised: then nothing goes."""
        doomed = Doomed(found.kind is Kind.FOLDER)
        self._stack.callback(doomed.entries.close)
        self._record_event(Listing())
        if not doomed.folder:
            doomed.add(found)
            return doomed
        for entry in _deepest_first(self._stores[-1].list()):
            if entry.kind is Kind.FOLDER and entry.device != found.device:
                raise self._another(entry.path)
            doomed.add(entry)
        return doomed

    def _another(self, path: bytes) -> RefusedError:
        where = f"at {printable(path)}" if path else "here"
        return RefusedError(
            "another-filesystem",
            f"another filesystem is mounted {where}",
            subject=self._request.location.text,
            hint="Remove what it holds by itself, or unmount it.",
        )

    def check_limit(self, doomed: Doomed) -> None:
        """Raise `RefusedError` for more files than may go."""
        limit = self._request.limit
        if limit is not None and doomed.folder and not limit.allows(doomed.files, doomed.files):
            raise RefusedError(
                "delete-limit",
                f"{doomed.files} files would be removed, and the limit is {limit.in_files(doomed.files)}",
                subject=self._request.location.text,
                hint=f"Look with --dry-run; if it is meant: --max-delete {doomed.files}",
            )

    def run(self, agree: Agree, journal: Journal) -> None:
        """Lock it, look, have it agreed to, and remove it."""
        found = self.find()
        store = self._stores[-1]
        lock = store.lock("rm")
        self._stack.callback(lock.release)
        doomed = self.look(found)
        store.check_no_locks(itself=doomed.folder)
        self._record_event(doomed.planned())
        self.check_limit(doomed)
        if doomed.folder:
            agree(doomed)
        self._journal = journal
        journal.append(place_line(self._request.location, store.where), durable=True)
        if doomed.folder:
            for path, problem in store.remove_own_files():
                self._record_event(Failed(path, problem.code, problem.message))
        for entry, gone in store.remove(doomed.entries):
            self._record_event(
                Deleted(entry.path, entry.kind)
                if gone is None
                else Failed(entry.path, gone.code, gone.message)
            )
        if doomed.folder and not self.receipt.files_failed:
            self._remove_root(store)
        lock.release()

    def _remove_root(self, store: Store) -> None:
        """Now that nothing is left in it."""
        stays = store.remove_root()
        if stays is None:
            self._record_event(Deleted(b"", Kind.FOLDER))
            assert self._journal is not None
            self._journal.append({"kind": "empty"})
        else:
            self._record_event(Failed(b"", stays.code, stays.message))

    def end(self, journal: Journal, problem: BaseException | None) -> Receipt:
        """Judge and write the receipt."""
        self._on_event(Ended())
        receipt = self.receipt
        receipt.seconds = time.monotonic() - self._began
        receipt.bytes_sent = sum(store.wire_bytes for store in self._stores)
        receipt.logins = sum(store.logins for store in self._stores)
        receipt.exit = exit_after(problem, receipt)
        end_journal(journal, receipt, problem)
        return receipt


def _deepest_first(listed: Iterable[Entry]) -> Iterator[Entry]:
    """A listing in canonical order, each folder behind all in it; only the folders of one path are held."""
    held: list[Entry] = []
    for entry in listed:
        while held and not entry.order.startswith(held[-1].order):
            yield held.pop()
        if entry.kind is Kind.FOLDER:
            held.append(entry)
        else:
            yield entry
    yield from reversed(held)
