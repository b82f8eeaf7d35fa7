"""Define a store: what every one can do, what some can do as well, and the facts that say which."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NoReturn

from hibali.errors import IncompleteError, RefusedError
from hibali.locations import Location
from hibali.text import printable
from transfers.agent.identity import Identity
from transfers.agent.protocol import Frame
from transfers.entry import Entry, Kind, Proof

PACK_BYTES = 4 * 1024 * 1024  # a pack of small files closes when it holds this much
PACK_ITEMS = 256
SEGMENT_BYTES = 16 * 1024 * 1024
# On the first of several connections, before the others are open: one round trip's worth.
FIRST_BYTES = 2 * 1024 * 1024
WINDOW_BYTES = 16 * 1024 * 1024  # at most this much is sent and not yet committed, on one connection
LINE_BYTES = 8 * 1024 * 1024  # and this much more with each further connection,
MOST_BYTES = 64 * 1024 * 1024  # up to this: what an interruption can cost


_UNSAFE = frozenset({b"", b".", b".."})  # as components


@dataclass(frozen=True, slots=True)
class Facts:
    """What a store can hold and how well it can prove it; few, declared once."""

    kind: str
    proof_read: Proof  # the best proof that reading from here can give
    proof_write: Proof  # the best proof that writing here can give
    ordered: bool = True  # lists in canonical order by itself
    folders: bool = True  # holds empty folders
    file_and_folder: bool = False  # holds a file and a folder of one name
    links: bool = True  # holds symlinks
    modes: bool = True  # holds permission bits
    hard_links: bool = False  # lists which names are of one file, and can add names to it
    attributes: bool = False  # can hold `user.*` attributes, where its filesystem does
    mtimes: bool = True  # holds modification times
    mtime_unit_ns: int = 1  # their resolution
    locks: bool = True  # can hold a lease lock
    swaps: bool = True  # a file is replaced in one step; False where for a moment neither the old nor the new one exists
    name_bytes: int = 255  # longest single component; 0: no limit
    path_bytes: int = 4096  # longest whole relative path
    folds_case: bool = False  # names that differ only in case are one name
    utf8_names: bool = False  # only UTF-8 names
    segment_bytes: int = 4 * 1024 * 1024  # the best size of a large file's segments, at most SEGMENT_BYTES
    least_segment_bytes: int = 1024 * 1024  # and their smallest
    refuses: tuple[bytes, ...] = ()  # substrings no name here can have
    # Components, in lower case, that no data can have here.
    reserved: frozenset[bytes] = frozenset()
    holes: bool = False  # holes of sparse files take no space here
    writable: bool = True  # False where it can only be read
    complete: bool = (
        True  # a listing that ends normally has everything; where that is not sure, nothing is deleted by it
    )
    known: bool = True  # False where the server was never probed, and these are assumptions
    hashes: bool = True  # `digest` can read the files
    globus: bool = False  # Globus sees the same files, where the site has a collection
    only_globus: bool = False  # and only Globus writes them
    # Optional operations of `Store`: callers look here before they use one.
    machine: bool = False  # folders of a machine: `identify`, `resolved`, `check_trusted`
    root_identity: bool = False  # `root_identity`
    reports_packs: bool = False  # `packed_at` is known without a search
    keeps: bool = False  # `keep`
    adjusts: bool = False  # `adjust`
    appends: bool = False  # `appender`
    hashes_ranges: bool = False  # `digest_ranges`
    whole_files: bool = False  # `find_whole`, `store_whole`, `fetch_whole`, `remove_whole`
    small_files: bool = False  # `small_files`
    substores: bool = False  # `substore`
    external_writes: bool = False  # `prepare_external`, `commit_external`
    removes_trees: bool = False  # `check_no_locks`, `remove_own_files`, `remove_root`

    def of_view(self, **changes: Any) -> Facts:
        """Return the facts of a view: what the store can hold, without the optional operations that views do not pass on."""
        return replace(self, **{**_NOT_OF_VIEWS, **changes})


_NOT_OF_VIEWS = dict.fromkeys(
    (
        "globus",
        "root_identity",
        "appends",
        "hashes_ranges",
        "whole_files",
        "small_files",
        "substores",
        "external_writes",
        "removes_trees",
    ),
    False,
)


@dataclass(frozen=True, slots=True)
class Item:
    """One entry that is to be carried, by its number in the plan: receivers know numbers, not paths (S1).

    `replaces` is the entry of that name at the target, or None; `clear` says that it is of another kind and may be removed
    to make room. With `exact` the item is committed only where the target still has that entry, or none; else it is a
    problem, "target-changed". `permissions` are the bits it is to have exactly;
    None leaves them to the site, but for the execute bit. `attributes` are all that it is to have; None leaves them.
    """

    number: int
    entry: Entry
    replaces: Entry | None = None
    clear: bool = False
    exact: bool = False
    permissions: int | None = None
    attributes: bytes | None = None

    @property
    def carries(self) -> bool:
        """Whether bytes travel: those of a file, but not for a further name of a file that is there already."""
        return self.entry.kind is Kind.FILE and not self.entry.same_as


@dataclass(frozen=True, slots=True)
class Unit:
    """What travels in one piece: a pack of whole entries, or one segment of a large file.

    In a pack, `items` are whole and `offset` is 0. In a segment there is one item, and `length` bytes of it
    from `offset` are meant; segments of one file come in order, without gaps, and the last one ends it.
    A segment that is a `piece` is only read, from anywhere and by itself, without a digest of the whole file.
    """

    items: tuple[Item, ...]
    offset: int = 0
    length: int = 0
    segment: bool = False
    piece: bool = False

    @property
    def last(self) -> bool:
        """Whether the file is complete with this unit (always, for a pack)."""
        ends = self.offset + self.length >= self.items[0].entry.size
        return not self.segment or (ends and not self.piece)


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What is to be set of an entry of the target: `entry` is what was listed there, or was just committed.

    None leaves it as it is.
    """

    entry: Entry
    permissions: int | None = None
    attributes: bytes | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Why one entry could not be read or written: a stable code, words, and whether sending it again may help."""

    code: str
    message: str
    again: bool = False


@dataclass(slots=True)
class Payload:
    """A unit with its bytes, as a source read it.

    `sizes[i]` bytes of `data` belong to `unit.items[i]`, in order (0 for folders, links and failures).
    `digests[i]` is the sha256 in hexadecimal of the whole file, None for folders and links and for a segment that is not the last.
    `proofs[i]` is the source's half: DIGEST where it hashed these very bytes, RECORDED where the digest is one on record for what
    it read (the target hashes the bytes and compares), weaker where there is no digest for them.
    `problems` maps positions to what went wrong; such an item carries no bytes and must not be committed.
    """

    unit: Unit
    data: bytes | bytearray | memoryview
    sizes: list[int]
    digests: list[str | None]
    proofs: list[Proof] = field(default_factory=list)
    problems: dict[int, Problem] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of one item at the target: it has its final name, durable, or `problem` says why not.

    `digest` is what the target itself computed or checked over what it received; `proof` is the target's half.
    """

    item: Item
    digest: str | None
    proof: Proof
    etag: str | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Space:
    """Free space at a place, in bytes and inodes; None where it is not known.

    `by` says whose quota it is ("user 1000") that leaves no more of `bytes` or of `inodes`.
    """

    free_bytes: int | None
    free_inodes: int | None
    by: Mapping[str, str] = field(default_factory=dict)


class ListingIncompleteError(IncompleteError):
    """The listing is correct as far as it goes, but some folders or names could not be read; nothing may be deleted."""

    def __init__(self, subject: str, problems: list[tuple[bytes, Problem]]) -> None:
        first, problem = problems[0]
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(
            "listing-incomplete",
            f"could not be listed whole: {printable(first) or '.'} ({problem.message}){more}",
            subject=subject,
        )
        self.unlisted = problems


NOT_COPIED = "not-copied"  # the code of a problem: the server would not, nothing was changed, the bytes may go through us


@dataclass(frozen=True, slots=True)
class Origin:
    """Where copies come from: a store, and the name there where it is one file that may have another at the target."""

    store: Store
    name: bytes | None = None

    def entry(self, item: Item) -> Entry:
        """What an item is at its source."""
        return item.entry if self.name is None else item.entry._replace(path=self.name)

    def path_of(self, entry: Entry) -> bytes:
        """Return the path at the source of an entry of the target."""
        return entry.path if self.name is None else self.name


@dataclass(frozen=True, slots=True)
class Written:
    """An item that somebody wrote under the partial name `partial`, and the sha256 in hexadecimal that it has to have."""

    item: Item
    partial: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class RootIdentity:
    """A folder as the filesystem knows it; `device` means something only until the host boots again."""

    boot: str
    device: int
    inode: int

    def is_other(self, now: RootIdentity) -> bool:
        """Return whether another folder has its name now. Device numbers of network filesystems differ from boot to boot."""
        return self.inode != now.inode or (self.boot == now.boot and self.device != now.device)


class Lock(ABC):
    """A lease on a target; while it is held no other hibali writes there (S6)."""

    @abstractmethod
    def release(self) -> None:
        """Give it back; safe to call twice."""


class PagedListing(Iterator[Entry]):
    """A listing that comes in pages, which can be skipped unread between two entries."""

    @property
    @abstractmethod
    def page(self) -> Page | None:
        """The page whose first entry comes next; None inside of one, and at the end."""

    @abstractmethod
    def pass_over(self) -> None:
        """Leave out the page that comes next; its order is still checked."""


@dataclass(frozen=True, slots=True)
class Page:
    """Names of one folder that follow each other; `files` counts links, too, and `size` is their bytes.

    `digest` is over everything by which files are compared (path, kind, size, mtime, execute bit, link); it is
    empty where a page cannot be compared.
    """

    names: int
    files: int
    size: int
    digest: str
    packed: memoryview


@dataclass(frozen=True, slots=True)
class Tail:
    """What is to be added: `start` bytes are at the target under `entry.path`, and `entry.size` are to be; the source knows the file as `name`."""

    name: bytes
    entry: Entry
    start: int


class Appender(ABC):
    """Reads files from any byte on, and adds to their end; used by one thread, and nothing else is asked of the store meanwhile."""

    @abstractmethod
    def read(self, name: bytes, start: int, stop: int) -> Frame:
        """The bytes from `start` to `stop` with the digests before and after them, or a problem."""

    @abstractmethod
    def add(self, tail: Tail, start: int, frame: Frame) -> None:
        """Send a piece; `answered` gives in the same order what became of each."""

    @abstractmethod
    def answered(self) -> Problem | None:
        """The next answer."""


class SmallFiles(ABC):
    """The files of one place, each at most `PACK_BYTES`; they are never replaced and never removed."""

    @abstractmethod
    def list(self) -> Iterator[Entry]:
        """Every regular file, in no order. Raises `NotFoundError` where the place itself is missing, and the errors of reaching it."""

    @abstractmethod
    def read(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """Their contents in the order asked, several asked for at once; raises `IncompleteError` where one changed since it was listed."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Keep other calls of hibali from writing there, where the place can hold a lock; raises `TryLaterError("locked")`."""

    @abstractmethod
    def create(self, contents: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Create each of them where no file exists, durable, inside `writing`.

        Returns the content of existing files, by path, where it differs. Raises `IncompleteError`, `AccessError`, `RefusedError`.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what was opened; safe to call twice."""


class Side(ABC):
    """The part of a store that a plan is made from."""

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """What it can hold and do."""

    @abstractmethod
    def list(self) -> Iterator[Entry]:
        """All entries in canonical order, as `Store.list` gives them."""

    @abstractmethod
    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """The sha256 in hexadecimal of the content as it is now, read there, in the order asked."""

    @property
    def in_pages(self) -> bool:
        """Whether `pages` gives the listing; never of a view, whose names are not those of the pages."""
        return False

    def pages(self) -> PagedListing | None:
        """List in pages, where `in_pages`; None where there is no folder."""
        raise RefusedError("not-supported", "this does not list in pages")


class Source(Side):
    """The half of a store that is read from."""

    @abstractmethod
    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """The bytes of each unit, as `Store.read` gives them."""

    @property
    def several_lines(self) -> bool:
        """Whether further connections are up or being opened."""
        return False


class Store(Source):
    """One root at one site, answering in bytes paths below that root.

    Abstract methods are what every store has. The others have a default: one that changes nothing and says so, or one that
    raises `RefusedError`; `facts` says which of those a store really has.

    Every method translates foreign exceptions into `hibali.errors`; no text holds a secret. A store object
    belongs to one thread unless a method says otherwise; `read` and `write` may run side by side.
    """

    where: bytes  # the root as its site knows it: an absolute path, or a key prefix
    packed_at: bytes | None = (
        None  # the packed place that the root is in, as `where`; see `Facts.reports_packs`
    )

    @property
    @abstractmethod
    def wire_bytes(self) -> int:
        """File bytes that crossed a network to or from here, in this store's life."""

    @property
    def logins(self) -> int:
        """How many logins were made for it."""
        return 0

    @property
    def limited_by(self) -> str | None:
        """The setting that limited the speed, where that is known."""
        return None

    def _refuse(self, operation: str) -> NoReturn:
        """Raise the error of an operation that this store does not have."""
        if not self.facts.writable:
            raise RefusedError(
                "read-only-site",
                "this site can only be read",
                subject=printable(self.where),
                hint="Write to another site.",
            )
        raise RefusedError(
            "not-supported",
            f"a store of kind {self.facts.kind} cannot {operation}",
            subject=printable(self.where),
        )

    @abstractmethod
    def stat(self, path: bytes = b"") -> Entry | None:
        """The entry at `path` (b"" is the root); None when absent.

        Absent differs from unreachable (`TryLaterError`) and from denied (`AccessError`).
        """

    def take_attributes(self) -> bool:
        """Give `user.*` attributes with every entry from now on; False where the filesystem keeps none.

        Only where `facts.attributes`.
        """
        return False

    @abstractmethod
    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """All entries below the root in canonical order, without the root itself, streaming.

        `shallow` stops at the first level, where a store without folders names prefixes as folders.
        An iterator that ends normally is complete. Ends with `ListingIncompleteError` where something could
        not be listed, and with `IncompleteError("listing-violation")` where the closing count is missing or
        wrong or the order is violated (S3). Folders come where the store holds them. Names of hibali's own (partial names, lock,
        journal, manifest) are left out. A missing root raises `NotFoundError`. A root that is a file
        yields nothing (`stat` says that it is one).
        """

    def list_ahead(self) -> None:
        """Begin with the listing that `list` is going to be asked for, where that saves time; nothing else is asked before that."""

    @abstractmethod
    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """The bytes of each unit, in the order asked; asks ahead within `WINDOW_BYTES`, an object store in twice that.

        The segments of a file may begin beyond 0, where the rest is at the target already: the last one has the
        digest of the whole file all the same, from the record or because the source reads what was left out, too.

        A source that changed since it was listed (size, mtime, ETag), vanished or cannot be read is a
        `Problem` of its item, never wrong bytes under a right name.
        """

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """Write the payloads; one answer per whole item, in any order, at most `WINDOW_BYTES` unanswered.

        Nothing is seen under a final name before it is complete and its digest equals the source's.
        Closing it ends what is under way: whoever gives back the lock closes it before.
        `payloads` is consumed in another thread. Folders above an item are made as needed.
        """
        del payloads
        self._refuse("be written to")

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """Remove what was listed, deepest first as given; an absent one is done already; a folder must be empty.

        An entry that is no longer what was listed (kind, size, mtime) is a problem, not removed.
        """
        del entries
        self._refuse("remove files")

    def adjust(self, adjustments: Iterable[Adjustment]) -> Iterator[tuple[Adjustment, Problem | None]]:
        """Set permission bits and attributes of existing files and folders, deepest first as given; never setuid, setgid, sticky.

        One that is no longer what was listed (kind, size, mtime) is a problem and left alone. Only where `facts.adjusts`.
        """
        del adjustments
        self._refuse("set permissions")

    def keep(self, place: Location, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """Keep what was listed under its own path below `place`, at this store's site and apart from this root.

        Afterwards it may still be here, too. An absent one is done already, one that changed since is a problem.
        Only where `facts.keeps`. Raises `RefusedError` where `place` cannot be used.
        """
        del place, entries
        self._refuse("keep backups")

    def make_root(self) -> None:
        """Make the root folder and those above it; nothing where the store has no folders."""
        self._refuse("make folders")

    def file_above(self) -> bool:
        """Whether a part of the root's path is a file, so that the root neither exists nor can be made."""
        return False

    def expect(self, size: int) -> None:
        """Open what it takes to read or write so many bytes here, where that needs time."""

    def begun(self, item: Item) -> int:
        """How many bytes of this very file an earlier `write` left here, to resume behind; asked while `write` takes payloads."""
        del item
        return 0

    def lock(self, operation: str, *, make: bool = False) -> Lock:
        """Take the lease, after `make_root` where it is to `make` it; raises `TryLaterError("locked")` that names the holder.

        Only where `facts.locks`.
        """
        del operation, make
        self._refuse("be locked")

    def space(self) -> Space:
        """The free space there, as far as it is known."""
        return Space(None, None)

    @abstractmethod
    def close(self) -> None:
        """Close connections and processes; safe to call twice."""

    # Where the root is

    def identities(self) -> Sequence[Identity]:
        """The root, described in each way that another store may describe it, too (transfers.overlap); empty where it cannot."""
        return []

    def identify(self, paths: Sequence[bytes]) -> Sequence[Identity | None]:
        """The folders at these paths, which are written as in config.toml; None for one whose variable is not set there.

        Only where `facts.machine`.
        """
        del paths
        self._refuse("identify folders")

    def resolved(self, paths: Sequence[bytes] = ()) -> Sequence[bytes]:
        """Where the root and these paths are without symlinks, as far as they exist. Only where `facts.machine`.

        They are absolute, or begin with `~/` or `$NAME`; b"" for one whose variable is not set there.
        """
        del paths
        self._refuse("resolve symlinks")

    def check_trusted(self) -> None:
        """Raise `RefusedError` where the path of the root leads through a symlink of another account below a configured root."""

    def root_identity(self) -> RootIdentity | None:
        """The root that is open; None where there is none. Only where `facts.root_identity`."""
        self._refuse("identify its root")

    # Copies by the server, and contents that do not pass through here

    def copies(self, source: Store) -> bool:
        """Whether `copy` is worth trying from `source`; the server has the last word, entry by entry."""
        del source
        return False

    def copy(self, origin: Origin, items: Iterable[Item]) -> Generator[Committed, None, None]:
        """Copy files whole; one answer for each, in any order, as `write` gives them. Only where `copies` says so.

        The source is copied only while it is what was listed. `Committed.proof` is that of the whole copy: RECORDED
        where a digest is on record for the source and the server names the same sum for the copy, else weaker.
        A problem of the code `NOT_COPIED` says that the server would not. Closing it ends what is under way.
        """
        del origin, items
        self._refuse("copy files by itself")

    def prepare_external(self, items: Iterable[Item]) -> Iterator[tuple[Item, bytes, Problem | None]]:
        """Make room for files that somebody else will write: the path below the root that each is to be written at.

        What is there is kept, from this call to the next, until it is committed or another write brings the same file.
        The target must be locked. Only where `facts.external_writes`.
        """
        del items
        self._refuse("take files that others write")

    def commit_external(self, written: Iterable[Written]) -> Generator[Committed, None, None]:
        """Hash them there; what is right gets its name, durable, and anything else of them is removed.

        A problem is to be sent `again` where nothing arrived, or something else than was read. The target must be locked.
        Only where `facts.external_writes`.
        """
        del written
        self._refuse("take files that others write")

    # Parts of files, and small files by single requests

    def digest_ranges(
        self, ranges: Iterable[tuple[Entry, int, int]]
    ) -> Iterator[tuple[tuple[Entry, int, int], str | None, Problem | None]]:
        """The sha256 of so many bytes from an offset on, as they are now, in the order asked. Only where `facts.hashes_ranges`."""
        del ranges
        self._refuse("hash parts of files")

    def appender(self) -> Appender:
        """A way to read files from any byte on and to add to their end. Only where `facts.appends`."""
        self._refuse("append to files")

    def find_whole(self, path: bytes) -> Entry | None:
        """The entry at `path` (b"" is the root), never remembered from an earlier request.

        This and the next three find, write, read and remove one small file by a single request each and without a lock, where
        `facts.whole_files`. They are for contents that only ever appear whole under a name of their own, as those of git-annex:
        a lock and a journal for each take several times as long as the content.
        """
        del path
        self._refuse("look for single files")

    def store_whole(self, entry: Entry, content: bytes) -> bool:
        """Store `content` at `entry.path`, durable and hashed at both ends; missing folders are made.

        Returns:
            False, and nothing was changed, where the name exists or the filesystem cannot do that without a lock.
        """
        del entry, content
        self._refuse("store single files")

    def fetch_whole(self, entry: Entry) -> bytes:
        """The content of a file of at most a pack's size. Raises `IncompleteError` where it is not of the size listed."""
        del entry
        self._refuse("fetch single files")

    def remove_whole(self, entry: Entry) -> Problem | None:
        """Remove a file that still is what was listed; an absent one is done."""
        del entry
        self._refuse("remove single files")

    def small_files(self) -> SmallFiles:
        """The files below the root, in a better way than the one for whole trees; closing them closes the store.

        Only where `facts.small_files`.
        """
        self._refuse("handle small files by themselves")

    def substore(self, folder: bytes) -> tuple[Store, bytes]:
        """A store of that folder (b"" is the root) over the connection there is, and the folder's path in it.

        So others can write in the folder beside it. It is locked and written to as any other, and not closed. It is good until
        anything else is asked of this store. Where the path is b"" the lock is that of the folder alone; else files are
        written without any. Only where `facts.substores`.
        """
        del folder
        self._refuse("open its folders one by one")

    # Removing a whole tree, its root included; its lock is held

    def check_no_locks(self, *, itself: bool) -> None:
        """Raise `TryLaterError("locked")` where a call of this account holds a place above the root or below it.

        Below as far as the last listing showed. With `itself` a root that is a symlink by itself is a `RefusedError`.
        Only where `facts.removes_trees`, as the next two.
        """
        del itself
        self._refuse("remove trees")

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """Remove what hibali keeps below the root as the last listing showed it, partial files too; what could not be removed."""
        self._refuse("remove trees")

    def remove_root(self) -> Problem | None:
        """Remove what hibali keeps at the root, give the lock back, and remove the root; why it stays, where it does."""
        self._refuse("remove trees")

    # Reconnecting after a lost connection (transfers.reconnect)

    @property
    def reconnects(self) -> int:
        """How many lost connections it went on after."""
        return 0

    @property
    def connection_lost(self) -> bool:
        """Whether its first connection is lost."""
        return False

    @property
    def reconnect_seconds(self) -> float:
        """For how many seconds `reconnect` may be tried; 0 for not at all."""
        return 0.0

    @property
    def resumed_bytes(self) -> int:
        """How many bytes of unfinished files were there when it began to write last."""
        return 0

    def can_reconnect(self, *, anew: bool) -> bool:
        """Whether it could know that nobody else wrote there meanwhile, or, where all is looked at `anew`, need not."""
        del anew
        return False

    def disconnect(self) -> None:
        """Close all connections, lost or not; safe to call twice. Only where it `can_reconnect`."""
        self._refuse("reconnect")

    def reconnect(self, *, anew: bool) -> None:
        """Try once, with one login at most, which asks nothing; then what was held before is held again.

        Raises an error that is `transient` where a later try may succeed. Only where it `can_reconnect`.
        """
        del anew
        self._refuse("reconnect")


class StoreView(Store):
    """A view of another store: it passes on where the store is and what it costs, and says by itself what it holds.

    Optional operations are refused unless the view has them itself: see `Facts.of_view`.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.where = store.where
        self.packed_at = store.packed_at

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

    def expect(self, size: int) -> None:
        """See Store."""
        self.store.expect(size)

    def space(self) -> Space:
        """See Store."""
        return self.store.space()

    def close(self) -> None:
        """See Store."""
        self.store.close()


def is_own_name(path: bytes) -> bool:
    """Whether hibali itself keeps this name beside data: the lock, the journal and the digest manifest."""
    if b".hibali" not in path:
        return False
    if b"/.hibali/probe/" in b"/" + path:  # what asks an object store what it checks
        return True
    return path == b".hibali" or any(
        path == own or path.endswith(b"/" + own)
        for own in (b".hibali/lock", b".hibali/journal", b".hibali/begun", b".hibali/manifest.jsonl")
    )


def is_partial_name(path: bytes) -> bool:
    """Whether the last component has the shape of a partial name: `.hibali-` and 32 hexadecimal digits."""
    name = path.rpartition(b"/")[2]
    return (
        len(name) == 40 and name.startswith(b".hibali-") and all(c in b"0123456789abcdef" for c in name[8:])
    )


def unsafe_component(path: bytes) -> str | None:
    """Why a relative path can climb, escape or be ambiguous (S1), or None when it is safe."""
    if b"\0" not in path and _UNSAFE.isdisjoint(path.split(b"/")):
        return None
    if not path:
        return "it is empty"
    if b"\0" in path:
        return "it holds a NUL byte"
    if path.startswith(b"/"):
        return "it is absolute"
    for part in path.split(b"/"):
        if part in _UNSAFE:
            return f"it has the component {part.decode('ascii')!r}"
    return None


def space_in(header: dict[str, Any]) -> Space:
    """An agent's answer to `space`; raises ValueError, KeyError or TypeError where it makes no sense."""
    return Space(_amount(header["bytes"]), _amount(header["inodes"]))


def within_quotas(space: Space, rooms: list[Any]) -> Space:
    """The least of the space and what each quota leaves; raises as `space_in`."""
    free_bytes, free_inodes, by = space.free_bytes, space.free_inodes, dict(space.by)
    for who, left_bytes, left_inodes in rooms:
        space_left, names_left = _amount(left_bytes), _amount(left_inodes)
        if space_left is not None and (free_bytes is None or space_left < free_bytes):
            free_bytes, by["bytes"] = space_left, str(who)
        if names_left is not None and (free_inodes is None or names_left < free_inodes):
            free_inodes, by["inodes"] = names_left, str(who)
    return Space(free_bytes, free_inodes, by)


def _amount(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and value >= 0):
        return value
    raise ValueError


def named_anew(store: Store, entry: Entry, name: bytes) -> Iterator[Committed] | None:
    """Land a file of the locked store under a further name there, without its bytes travelling; None where it cannot do that."""
    if store.copies(store):
        return store.copy(Origin(store, entry.path), [Item(0, entry._replace(path=name))])
    if not store.facts.hard_links:
        return None
    further = Item(0, entry._replace(path=name, same_as=entry.path))
    return store.write([Payload(Unit((further,)), b"", [0], [None])])


class CleanupResult(StrEnum):
    """What becomes of it; PLANNED where a dry run would end it, FAILED where the server did not let us."""

    ENDED = "ended"
    PLANNED = "planned"
    KEPT = "kept"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Leftover:
    """An upload that was begun and never completed.

    `age` in seconds by the server's clock, None where that is not known; `ours` whether this machine began it.
    `because` says why it stays, and is empty where it does not.
    """

    bucket: str
    key: bytes
    begun: str
    age: float | None
    ours: bool
    fate: CleanupResult
    because: str = ""
