"""Define the store interface: required operations, and optional ones that a store overrides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from hibali.errors import HibaliError, IncompleteError, RefusedError
from hibali.locations import Location
from hibali.text import printable
from hibali.workers import worker_count
from transfers.agent.identity import Identity
from transfers.agent.protocol import Frame
from transfers.model.entry import Entry
from transfers.model.facts import Facts
from transfers.model.units import (
    SEGMENT_BYTES,
    Adjustment,
    Committed,
    Item,
    Payload,
    Problem,
    Space,
    Tail,
    Unit,
    Written,
)

IN_FLIGHT_BYTES = 64 * 1024 * 1024  # at a server of single requests: several parts, or two whole objects
MARKER = b"hibali checks whether another path shows this folder\n"
_Value = TypeVar("_Value")
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def share_in_flight(size: int = IN_FLIGHT_BYTES) -> int:
    """Return how many bytes a store of this process may have in flight, of `size` bytes for all workers of a transfer."""
    return max(SEGMENT_BYTES, size // worker_count())


def problem_of(error: HibaliError, *, denied: bool = False) -> Problem:
    """Return an entry's error as its problem; raise an error that affects the whole call.

    With `denied`, a denied access affects only this entry.
    """
    if (
        isinstance(error, (IncompleteError, RefusedError))
        or error.code == "vanished"
        or (denied and error.code == "denied")
    ):
        return Problem(error.code, error.message, retryable=error.transient)
    raise error


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a server-side copy: a store, and the `name` of a single file, or what returns the paths of entries with others."""

    store: Store
    name: bytes | None = None
    renames: Callable[[Entry], bytes] | None = None

    def entry(self, item: Item) -> Entry:
        """Return the entry of an item at its source."""
        return item.entry._replace(path=self.path_of(item.entry))

    def path_of(self, entry: Entry) -> bytes:
        """Return the source path of an entry of the target."""
        if self.name is not None:
            return self.name
        return entry.path if self.renames is None else self.renames(entry)


@dataclass(frozen=True, slots=True)
class RootIdentity:
    """The device and inode of a folder; `device` is valid only until the host boots again."""

    boot: str
    device: int
    inode: int

    def is_other(self, now: RootIdentity) -> bool:
        """Return whether `now` is another folder. A boot changes device numbers of network filesystems."""
        return self.inode != now.inode or (self.boot == now.boot and self.device != now.device)


class Lock(ABC):
    """A lease on a target; while it is held, no other hibali process writes there (S6)."""

    @abstractmethod
    def finish(self) -> None:
        """Release the lock after the last change.

        Raise `TryLaterError("lease-lost")` if it was lost, also because another folder is at the target's path.
        """

    @abstractmethod
    def release(self) -> None:
        """Release the lock; safe to call twice."""


class SharedWriting(ABC):
    """A locked target to which further processes of this client write, each with a ticket of its own.

    Attributes:
        tickets: As many as were asked for; they can be pickled. A ticket serves one process only.
    """

    tickets: Sequence[Any]

    def committed(self, result: Committed) -> None:  # noqa: B027  # only stores that keep records
        """Note an item that a process wrote, or that failed. Raises `TryLaterError` if the lock was lost."""

    @abstractmethod
    def end_process(self, agents: Sequence[Mapping[str, Any]], ticket: Any, items: Iterable[Item]) -> None:
        """End what a killed process left running, before others write its unanswered `items`.

        Raises `TryLaterError` if that is not possible.
        """

    @abstractmethod
    def end(self, *, left: bool) -> None:
        """Note that no process writes any more, and whether partial files may be left."""


class PagedListing(Iterator[Entry]):
    """A listing in pages; a page can be skipped between two entries."""

    @property
    @abstractmethod
    def page(self) -> Page | None:
        """The page that starts with the next entry; None inside a page and at the end."""

    @abstractmethod
    def skip_page(self) -> None:
        """Skip the next page; its order is still checked."""

    @property
    @abstractmethod
    def next_order(self) -> bytes | None:
        """The order of the first name of the page that comes next; None inside a page and at the end."""

    @abstractmethod
    def take_plain_page(self, plain: Callable[[bytes], object]) -> PlainPage | None:
        """Take the next page if it has only files on disk and folders, whose names are all `plain`.

        Their order is checked. If it returns None, the page must be read entry by entry.
        """


@dataclass(frozen=True, slots=True)
class Page:
    """Consecutive names of one folder; `files` includes links, and `size` is their total size in bytes.

    `digest` covers all compared properties (path, kind, size, mtime, execute bit, link);
    it is empty if the page cannot be compared.
    """

    names: int
    files: int
    size: int
    digest: str
    packed: memoryview


@dataclass(frozen=True, slots=True)
class PlainPage:
    """A page without symlinks, special files and files on tape; `size` and `holes` are bytes of its files."""

    names: int
    files: int
    size: int
    holes: int
    packed: bytes


class Appender(ABC):
    """A reader and appender, for one thread. Call no other method of the store while it is in use."""

    @abstractmethod
    def read(self, name: bytes, start: int, stop: int) -> Frame:
        """Return the bytes from `start` to `stop` with the digests up to both offsets, or a problem."""

    @abstractmethod
    def add(self, tail: Tail, start: int, frame: Frame) -> None:
        """Send one piece; `next_result` returns the results in the same order."""

    @abstractmethod
    def next_result(self) -> Problem | None:
        """Return the next result: None, or the problem."""


class SmallFiles(ABC):
    """Files of at most `PACK_BYTES` below one root; they are never replaced or removed."""

    @abstractmethod
    def list(self) -> Iterator[Entry]:
        """List all regular files, in any order. Raise `NotFoundError` if the root does not exist."""

    @abstractmethod
    def read(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """Read contents concurrently, in the given order. Raise `IncompleteError` if a file changed."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Lock the root, if the store supports locks. Raise `TryLaterError("locked")`."""

    @abstractmethod
    def create(self, contents: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Create the files that do not exist, durably, inside `writing`.

        Returns:
            The contents, by path, of existing files that differ.

        Raises:
            IncompleteError, AccessError, RefusedError: A file could not be created.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the store; safe to call twice."""


class Side(ABC):
    """The operations of a store that planning needs."""

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """The capabilities and limits."""

    @abstractmethod
    def list(self) -> Iterator[Entry]:
        """List all entries in canonical order; see `Store.list`."""

    @abstractmethod
    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """Compute the sha256 (hexadecimal) of current contents at the site, in the given order."""

    @property
    def in_pages(self) -> bool:
        """Whether `pages` is supported; false for views, because pages have the store's own names."""
        return False

    def pages(self) -> PagedListing | None:
        """List in pages, if `in_pages`; return None if the root is not a folder."""
        raise RefusedError("not-supported", "this store does not list in pages")


class Source(Side):
    """The read operations of a store."""

    @abstractmethod
    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """Read each unit; see `Store.read`."""

    @property
    def several_channels(self) -> bool:
        """Whether further connections are open or being opened."""
        return False


class Store(Source):
    """A root at a site. Paths are bytes, relative to the root.

    Abstract methods are required. Optional methods have a default that does nothing or raises `RefusedError`; a store
    that overrides one supports it: `can`.

    Methods translate foreign exceptions into `hibali.errors`; no message contains a secret. Use a store in
    one thread unless a method says otherwise; `read` and `write` may run concurrently.
    """

    root_path: bytes  # the root at its site: an absolute path, or a key prefix
    packed_at: bytes | None = (
        None  # the packed folder that contains the root, as `root_path`; see `Facts.reports_packs`
    )
    files_apart: bool = True  # whether each file is one of its own at the site
    least_copied: int = 0  # smaller files are faster through this machine than by `copy`

    def can(self, operation: Callable[..., object]) -> bool:
        """Return whether an optional operation such as `Store.rename` is supported."""
        return getattr(type(self), operation.__name__) is not operation

    @property
    @abstractmethod
    def wire_bytes(self) -> int:
        """The number of file bytes sent or received over a network by this object."""

    @property
    def logins(self) -> int:
        """The number of logins made."""
        return 0

    @property
    def limited_by(self) -> str | None:
        """The setting that limited the speed, if known."""
        return None

    def _refuse(self, operation: str) -> NoReturn:
        """Raise `RefusedError` for an unsupported operation."""
        if not self.facts.writable:
            raise RefusedError(
                "read-only-site",
                "this site is read-only",
                subject=printable(self.root_path),
                hint="Write to another site.",
            )
        raise RefusedError(
            "not-supported",
            f"a store of kind {self.facts.kind} cannot {operation}",
            subject=printable(self.root_path),
        )

    @abstractmethod
    def stat(self, path: bytes = b"") -> Entry | None:
        """Return the entry at `path` (b"" is the root), or None if it does not exist.

        Raises:
            TryLaterError: The server cannot be reached.
            AccessError: Permission was denied.
        """

    def include_attributes(self) -> bool:
        """Include `user.*` attributes in all entries from now on; return False if the filesystem has none.

        Requires `facts.attributes`.
        """
        return False

    @abstractmethod
    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """Yield all entries below the root in canonical order, without the root itself.

        `shallow` lists only the first level; a store without folders then lists prefixes as folders. hibali's
        own names (partial files, lock, journal, manifest) are omitted. If the root is a file, nothing is
        yielded. A listing without an error is complete.

        Raises:
            NotFoundError: The root does not exist.
            ListingIncompleteError: At the end, if some folders or names could not be listed.
            IncompleteError: "listing-violation": the closing count is missing or wrong, or the order is (S3).
        """

    def become_target(self) -> None:
        """Prepare to be the target of a transfer: entries that `write` and `remove` cannot change need not be listed."""

    def list_only(self, names: frozenset[bytes]) -> None:  # only where that saves time
        """Let deep listings leave out what is neither one of `names`, nor above or below one; they may also have all."""

    def list_ahead(self) -> None:
        """Start the listing for the next `list`, if that saves time; call no other method in between."""

    @abstractmethod
    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """Read each unit, in the given order, up to `WINDOW_BYTES` ahead (object stores: twice that).

        The first segment of a file may start after 0, if the target has the bytes before it. The last segment
        has the digest of the whole file anyway: recorded earlier, or because the source reads the omitted
        bytes, too.

        A file that changed since it was listed (size, mtime, ETag), vanished or is unreadable gets a
        `Problem`; wrong bytes are never returned under its name.
        """

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """Write payloads; yield one result per whole item, in any order, with at most `WINDOW_BYTES` pending.

        A file gets its final name only when it is complete and its digest equals the source's.
        Closing the generator ends the transfer; close it before releasing the lock.
        `payloads` is consumed in another thread. Missing parent folders are created.
        """
        del payloads
        self._refuse("be written to")

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """Remove entries in the given order (deepest first); absent ones succeed, folders must be empty.

        An entry that changed since it was listed (kind, size, mtime) is a problem and is not removed.
        """
        del entries
        self._refuse("remove files")

    def remove_unchanged(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """Remove entries as `remove` does, where the store can only those of which no property differs, not even ctime, inode or links."""
        return self.remove(entries)

    def marked(self, path: bytes) -> AbstractContextManager[None]:
        """Create a small file at `path`, one of hibali's own names, for the time of the context; its folder must exist."""
        del path
        self._refuse("create markers")

    def adjust(self, adjustments: Iterable[Adjustment]) -> Iterator[tuple[Adjustment, Problem | None]]:
        """Set permissions and attributes in the given order (deepest first); never setuid, setgid or sticky.

        An entry that changed since it was listed (kind, size, mtime) is a problem and is not modified.
        Requires `facts.adjusts`.
        """
        del adjustments
        self._refuse("set permissions")

    def back_up(self, place: Location, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """Back up entries under their paths below `place`, which is at this site and outside this root.

        An entry may still exist here afterwards. Absent entries succeed; a changed entry is a problem.
        Raises `RefusedError` if `place` cannot be used.
        """
        del place, entries
        self._refuse("keep backups")

    def make_root(self) -> None:
        """Create the root folder and its parents; do nothing if the store has no folders."""
        self._refuse("make folders")

    def file_above(self) -> bool:
        """Return whether a parent of the root is a file, so that the root cannot be created."""
        return False

    def beside(self, location: Location) -> Store | None:
        """Return the store of another place of its site over the same connection; None if it has to be opened anew.

        A login at a site that allows one session, or takes codes that count once, is enough for both. They are
        used in turn: not while one of them lists, reads, writes or is locked. This one is closed last; bytes
        and logins are counted here.
        """
        del location
        return None

    def folder_of_file(self, location: Location) -> Store | None:
        """Return the folder of the file at `location`, which is the root, as `beside` does."""
        return self.beside(location.parent)

    def fetch(self, entries: Iterable[Entry]) -> None:
        """Get content that is stored elsewhere, before these entries are read; failures are reported when they are."""

    def expect(self, size: int) -> None:
        """Start to open the connections needed to read or write `size` bytes."""

    def begun(self, item: Item) -> int:
        """Return how many bytes of this file an earlier `write` left, to resume; called during `write`."""
        del item
        return 0

    def lock(self, operation: str, *, make: bool = False) -> Lock:
        """Take the lease, after `make_root` if `make`. Raise `TryLaterError("locked")` with the holder.

        Requires `facts.locks`.
        """
        del operation, make
        self._refuse("be locked")

    def share_writing(self, count: int) -> SharedWriting:
        """Let `count` further processes write here at the same time; this store is locked, and does not `write` meanwhile."""
        del count
        self._refuse("be written to by several processes")

    def join(self, ticket: Any) -> None:
        """Let this store, which holds no lock, `write` with a ticket of `share_writing`. Requires `share_writing`."""
        del ticket
        self._refuse("be written to by several processes")

    @property
    def agents(self) -> Sequence[Mapping[str, Any]]:
        """The processes at the site that work for this store, as `SharedWriting.end_process` needs them."""
        return []

    @property
    def left(self) -> bool:
        """Whether the last `write` may have left partial files."""
        return False

    def space(self) -> Space:
        """Return the free space, as far as it is known."""
        return Space(None, None)

    def partial_bytes(self) -> int:
        """Return the bytes of incomplete files here that the next transfer resumes: they are not free, but needed by it."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Close connections and processes; safe to call twice."""

    # Location of the root

    def identities(self) -> Sequence[Identity]:
        """Return all identities of the root, to compare with those of other stores (transfers.planning.overlap)."""
        return []

    def missing_names(self) -> int | None:
        """Return how many of the last names of the root's path do not exist; None if that would need a request."""
        return None

    def identify(self, paths: Sequence[bytes]) -> Sequence[Identity | None]:
        """Identify folders, given as in config.toml; None if the variable of a path is not set there."""
        del paths
        self._refuse("identify folders")

    def resolved(self, paths: Sequence[bytes] = ()) -> Sequence[bytes]:
        """Resolve the symlinks of the root and `paths`, as far as they exist.

        `paths` are absolute, or begin with `~/` or `$NAME`. The result is b"" if the variable is not set
        there.
        """
        del paths
        self._refuse("resolve symlinks")

    def check_trusted(self) -> None:
        """Raise `RefusedError` if the path has a symlink of another account below a configured root."""

    def root_identity(self) -> RootIdentity | None:
        """Return the identity of the root, or None if it does not exist."""
        self._refuse("identify its root folder")

    # Server-side copies, and contents that third parties write

    def copies(self, source: Store) -> bool:
        """Return whether to try `copy` from `source`; the server may still refuse single entries."""
        del source
        return False

    def adopt_lock(self, token: str) -> None:
        """Let the next lock take over the one that an earlier call of this operation left to compute nodes."""
        del token
        self._refuse("leave its lock to compute nodes")

    def copy(self, origin: Origin, items: Iterable[Item]) -> Generator[Committed, None, None]:
        """Let the server copy whole files; yield one result for each, in any order. Requires `copies`.

        A source is copied only if it is unchanged since it was listed. `Committed.verification` is RECORDED if the
        source has a recorded digest and the server reports the same checksum for the copy, else weaker. The
        problem code `NOT_COPIED` means that the server refused. Closing the generator ends the copies.
        """
        del origin, items
        self._refuse("copy files on the server")

    def prepare_external(self, items: Iterable[Item]) -> Iterator[tuple[Item, bytes, Problem | None]]:
        """Prepare for files that a third party will write; yield the path below the root for each.

        A partial file there is kept between calls until it is committed or another `write` transfers the same
        file. The target must be locked.
        """
        del items
        self._refuse("receive files that a third party writes")

    def commit_external(self, written: Iterable[Written]) -> Generator[Committed, None, None]:
        """Hash the files at the site; rename correct ones durably to their final names, remove the others.

        A problem has `retryable` set if the file is missing or differs from the source. The target must be
        locked.
        """
        del written
        self._refuse("receive files that a third party writes")

    # Parts of files, and small files with one request each

    def digest_ranges(
        self, ranges: Iterable[tuple[Entry, int, int]]
    ) -> Iterator[tuple[tuple[Entry, int, int], str | None, Problem | None]]:
        """Compute the sha256 of (entry, offset, length) ranges, in order."""
        del ranges
        self._refuse("hash parts of files")

    def appender(self) -> Appender:
        """Return an `Appender`."""
        self._refuse("append to files")

    def find_whole(self, path: bytes) -> Entry | None:
        """Return the current entry at `path` (b"" is the root), uncached.

        The `*_whole` methods handle one small file with one request and without a lock. They are for contents
        that are never modified under a name, like those of git-annex: a lock and a journal would take several
        times as long as the content.
        """
        del path
        self._refuse("find single files")

    def store_whole(self, entry: Entry, content: bytes) -> bool:
        """Store `content` at `entry.path`, durably and hashed at both ends; create missing folders.

        Returns:
            False, with nothing changed, if the name exists or the filesystem needs a lock for this.
        """
        del entry, content
        self._refuse("store single files")

    def store_files(self, files: Sequence[tuple[Entry, bytes]]) -> Sequence[Problem | None]:
        """Store small files that are together in one request, durably and hashed at both ends; create missing folders.

        New files need no lock. Existing regular ones are replaced, with their permissions, under a lock of the root for the
        time of the request.

        Returns:
            A problem, or None, for each. `needs-transfer` and `locked` mean that nothing was changed: the file needs a
            transfer, which waits or refuses.
        """
        del files
        self._refuse("store small files")

    def fetch_files(self, paths: Sequence[bytes], maximum: int) -> Sequence[bytes | Problem]:
        """Read small files, each in one version; return a problem, such as `needs-transfer`, for those that exceed `maximum` bytes together."""
        del paths, maximum
        self._refuse("fetch small files")

    def fetch_whole(self, entry: Entry) -> bytes:
        """Read a file of at most `PACK_BYTES`. Raise `IncompleteError` if its size is not the listed one."""
        del entry
        self._refuse("fetch single files")

    def remove_whole(self, entry: Entry) -> Problem | None:
        """Remove a file if it is unchanged since it was listed; an absent file is a success."""
        del entry
        self._refuse("remove single files")

    def small_files(self) -> SmallFiles:
        """Return the files below the root, with operations cheaper than those for trees.

        Closing it closes this store.
        """
        self._refuse("handle small files")

    def substore(self, folder: bytes) -> tuple[Store, bytes]:
        """Return a store for `folder` (b"": the root) on this connection, and the folder's path in it.

        Other processes can then write to sibling folders. Lock and write to it like any store, but do not
        close it; it is valid until the next request to this store. If the returned path is b"", the lock
        covers only the folder; else files are written without a lock.
        """
        del folder
        self._refuse("open its folders as stores")

    # Removing a whole tree including its root, with its lock held

    def check_no_locks(self, *, itself: bool) -> None:
        """Raise `TryLaterError("locked")` if this account holds a lock above or below the root.

        Locks below are known from the last listing. With `itself`, raise `RefusedError` if the root is a
        symlink.
        """
        del itself
        self._refuse("remove trees")

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """Remove hibali's own files, also partial files, found by the last listing; return the failures."""
        self._refuse("remove trees")

    def remove_root(self) -> Problem | None:
        """Remove hibali's files at the root, release the lock, remove the root; return why it failed."""
        self._refuse("remove trees")

    def rename(self, entry: Entry, target: Location) -> None:
        """Rename an entry of the first level, or the root itself (its path is b""), to a name at this site.

        Without the lock this only checks whether it is possible. Nothing is ever replaced but an empty folder;
        missing folders above the target are created.

        Raises:
            RefusedError: "target-exists", "overlap" or "other-filesystem"; nothing was changed.
            TryLaterError: "locked": this account holds a lock above the target.
        """
        del entry, target
        self._refuse("rename files")

    # Reconnecting after a lost connection (transfers.engine.reconnect)

    @property
    def reconnects(self) -> int:
        """The number of lost connections that were replaced."""
        return 0

    @property
    def connection_lost(self) -> bool:
        """Whether the first connection is lost."""
        return False

    @property
    def reconnect_seconds(self) -> float:
        """The time limit for `reconnect` in seconds; 0 disables it."""
        return 0.0

    @property
    def resumed_bytes(self) -> int:
        """The number of bytes in partial files when the last `write` started."""
        return 0

    def can_reconnect(self, *, anew: bool) -> bool:
        """Return whether other writers can be excluded, or need not be because all is listed `anew`."""
        del anew
        return False

    def disconnect(self) -> None:
        """Close all connections, lost or not; safe to call twice. Requires `can_reconnect`."""
        self._refuse("reconnect")

    def reconnect(self, *, anew: bool) -> None:
        """Reconnect in one try with at most one login and no prompt; retake the lock if it was held.

        Raises an error with `transient` set if a later try may succeed. Requires `can_reconnect`.
        """
        del anew
        self._refuse("reconnect")


class StoreView(Store):
    """A view of another store: it forwards location and traffic counts, and subclasses define the contents.

    It supports the optional operations that it and its store have.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.root_path = store.root_path
        self.packed_at = store.packed_at

    def can(self, operation: Callable[..., object]) -> bool:
        """See Store."""
        return super().can(operation) and self.store.can(operation)

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return self.store.wire_bytes

    @property
    def logins(self) -> int:
        """See Store."""
        return self.store.logins

    @property
    def limited_by(self) -> str | None:
        """See Store."""
        return self.store.limited_by

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return self.store.identities()

    def identify(self, paths: Sequence[bytes]) -> Sequence[Identity | None]:
        """See Store."""
        return self.store.identify(paths)

    def resolved(self, paths: Sequence[bytes] = ()) -> Sequence[bytes]:
        """See Store."""
        return self.store.resolved(paths)

    def check_trusted(self) -> None:
        """See Store."""
        self.store.check_trusted()

    def become_target(self) -> None:
        """See Store."""
        self.store.become_target()

    def expect(self, size: int) -> None:
        """See Store."""
        self.store.expect(size)

    def space(self) -> Space:
        """See Store."""
        return self.store.space()

    def partial_bytes(self) -> int:
        """See Store."""
        return self.store.partial_bytes()

    def close(self) -> None:
        """See Store."""
        self.store.close()


def read_renamed(
    read: Callable[[Iterable[Unit]], Iterator[Payload]],
    units: Iterable[Unit],
    rename: Callable[[Entry], Entry],
) -> Iterator[Payload]:
    """Call `Source.read` with changed entries; yield the payloads with the units as given."""

    def changed(unit: Unit) -> Unit:
        items = tuple(item._replace(entry=rename(item.entry)) for item in unit.items)
        return replace(unit, items=items)

    for unit, payload in with_answers(read, units, changed):
        payload.unit = unit
        yield payload


def with_answers(
    call: Callable[[Iterable[_Asked]], Iterator[_Answer]],
    values: Iterable[_Value],
    change: Callable[[_Value], _Asked],
) -> Iterator[tuple[_Value, _Answer]]:
    """Call with every value changed, which is answered in order; yield each value as given, with its answer."""
    pending: deque[_Value] = deque()

    def changed() -> Iterator[_Asked]:
        for value in values:
            pending.append(value)
            yield change(value)

    for answer in call(changed()):
        yield pending.popleft(), answer


def named_anew(store: Store, entry: Entry, name: bytes) -> Iterator[Committed] | None:
    """Copy or hard-link a file within the locked store, without a transfer; None if unsupported."""
    if store.copies(store):
        return store.copy(Origin(store, entry.path), [Item(0, entry._replace(path=name))])
    if not store.facts.hard_links:
        return None
    further = Item(0, entry._replace(path=name, same_as=entry.path))
    return store.write([Payload(Unit((further,)), b"", [0], [None])])
