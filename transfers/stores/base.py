"""Define a store, its facts, and its optional capabilities."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

from hibali.errors import IncompleteError
from hibali.files import private_folder, state_folder, write_atomic
from hibali.ledger import now
from hibali.locations import Location
from hibali.text import printable
from transfers.entry import Entry, Kind, Proof

PACK_BYTES = 4 * 1024 * 1024  # a pack of small files closes when it holds this much
PACK_ITEMS = 256
SEGMENT_BYTES = 16 * 1024 * 1024
FIRST_BYTES = (
    2 * 1024 * 1024
)  # on the first of several lines, before the others are up: one round trip's worth
WINDOW_BYTES = 16 * 1024 * 1024  # at most this much is under way and not yet landed, on one line
LINE_BYTES = 8 * 1024 * 1024  # and this much more with each further line,
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
    adjusts: bool = False  # can set them, and nothing else, of what stands there
    hard_links: bool = False  # tells which names are of one file, and can make more of them
    attributes: bool = False  # can hold `user.*` attributes, where its filesystem does
    mtimes: bool = True  # holds modification times
    mtime_unit_ns: int = 1  # how fine they are kept
    locks: bool = True  # can hold a lease lock
    swaps: bool = True  # a file is replaced in one step; False where for a moment neither stands there
    name_bytes: int = 255  # longest single component; 0: no limit
    path_bytes: int = 4096  # longest whole relative path
    folds_case: bool = False  # takes names for one that differ in case alone
    utf8_names: bool = False  # only UTF-8 names
    segment_bytes: int = 4 * 1024 * 1024  # how large a file's pieces best are, at most SEGMENT_BYTES
    least_segment_bytes: int = 1024 * 1024  # and how small they may be
    refuses: tuple[bytes, ...] = ()  # substrings no name here can have
    reserved: frozenset[bytes] = (
        frozenset()
    )  # components, in lower case, that are kept for what is no data here
    holes: bool = False  # what is a hole at the source takes no room here
    keeps: bool = False  # can keep what is replaced in another place of its own
    writable: bool = True  # False where everything is only read
    complete: bool = True  # a listing that ends normally has everything; where that is never sure, nothing is deleted by it
    known: bool = True  # these are facts; False where the server was never asked and most is hoped


@runtime_checkable
class ChecksAbove(Protocol):
    """A store with folders that sees why its root cannot be made."""

    def file_above(self) -> bool:
        """Whether a part of the root's path is a file, so that the root neither exists nor can be made."""


@dataclass(frozen=True, slots=True)
class Item:
    """One entry that is to be carried, by its number in the plan: receivers know numbers, not paths (S1).

    `replaces` is what stands at the target now, or None where nothing does; `clear` says that what stands
    there is of another kind and was agreed to make room. With `exact` it lands only where that still stands,
    or nothing does; else it is a problem, "target-changed". `permissions` are the bits it is to have exactly;
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
        """Whether bytes travel: those of a file, but not for a further name of one that has landed."""
        return self.entry.kind is Kind.FILE and not self.entry.same_as


@dataclass(frozen=True, slots=True)
class Unit:
    """What travels in one piece: a pack of whole entries, or one segment of a large file.

    In a pack, `items` are whole and `offset` is 0. In a segment there is one item, and `length` bytes of it
    from `offset` are meant; segments of one file come in order, without gaps, and the last one ends it.
    A segment that is a `piece` is only read, from anywhere and by itself: nothing is told of the whole file.
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
    """What is to be set of a name that stands at the target: `entry` is what was listed there, or has just landed.

    None leaves what there is.
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
    it read (whoever lands the bytes hashes them and compares), weaker where nobody vouches for them.
    `problems` maps positions to what went wrong; such an item carries no bytes and must not be landed.
    """

    unit: Unit
    data: bytes | bytearray | memoryview
    sizes: list[int]
    digests: list[str | None]
    proofs: list[Proof] = field(default_factory=list)
    problems: dict[int, Problem] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Landed:
    """What became of one item at the target: it stands there under its final name, durable, or `problem` says why not.

    `digest` is what the target itself computed or checked over what it received; `proof` is the target's half.
    """

    item: Item
    digest: str | None
    proof: Proof
    etag: str | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Space:
    """Room at a place, in bytes and inodes; None where the store does not tell.

    `by` says whose quota it is ("user 1000") that leaves no more of `bytes` or of `inodes`.
    """

    free_bytes: int | None
    free_inodes: int | None
    by: Mapping[str, str] = field(default_factory=dict)


class ListingIncompleteError(IncompleteError):
    """The listing is right as far as it goes, but some folders or names could not be read; nothing may be deleted."""

    def __init__(self, about: str, problems: list[tuple[bytes, Problem]]) -> None:
        first, problem = problems[0]
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(
            "listing-incomplete",
            f"could not be listed whole: {printable(first) or '.'} ({problem.message}){more}",
            about=about,
        )
        self.unlisted = problems


class Lock(Protocol):
    """A lease on a target; while it is held no other hibali writes there (S6)."""

    def release(self) -> None:
        """Give it back; safe to call twice."""


class Store(Protocol):
    """One root at one site, answering in bytes paths below that root.

    Every method translates foreign exceptions into `hibali.errors`; no text holds a secret. A store object
    belongs to one thread unless a method says otherwise; `read` and `write` may run side by side.
    """

    facts: Facts
    where: bytes  # the root as its site knows it: an absolute path, or a key prefix
    wire_bytes: int  # file bytes that crossed a network to or from here, in this store's life
    logins: int  # how often somebody had to log in for it
    limited_by: str | None  # the setting that held the speed down, where that can be told

    def stat(self, path: bytes = b"") -> Entry | None:
        """What stands at `path` (b"" is the root); None when absent.

        Absent differs from unreachable (`TryLaterError`) and from denied (`AccessError`).
        """

    def take_attributes(self) -> bool:
        """Tell `user.*` attributes with every entry from now on; False where the filesystem keeps none.

        Only where `facts.attributes`.
        """

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """All entries below the root in canonical order, without the root itself, streaming.

        `shallow` stops at the first level, where a store without folders names prefixes as folders.
        An iterator that ends normally is complete. Ends with `ListingIncompleteError` where something could
        not be listed, and with `IncompleteError("listing-violation")` where the closing count is missing or
        wrong or the order is violated (S3). Folders come where the store holds them. Names of hibali's own (partial names, lock,
        journal, manifest) are left out. A missing root raises `NotFoundError`. A root that is a file
        yields nothing (`stat` tells).
        """

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """The bytes of each unit, in the order asked; asks ahead within `WINDOW_BYTES`, an object store in twice that.

        The segments of a file may begin beyond 0, where the rest stands at the target already: the last one has the
        digest of the whole file all the same, from the record or because the source reads what was left out, too.

        A source that changed since it was listed (size, mtime, ETag), vanished or cannot be read is a
        `Problem` of its item, never wrong bytes under a right name.
        """

    def write(self, payloads: Iterable[Payload]) -> Generator[Landed, None, None]:
        """Land the payloads; one answer per whole item, in any order, at most `WINDOW_BYTES` unanswered.

        Nothing is seen under a final name before it is complete and its digest equals the source's.
        Closing it ends what is under way: whoever gives back the lock closes it before.
        `payloads` is consumed in another thread. Folders above an item are made as needed.
        """

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """The sha256 in hexadecimal of the content as it is now, read there, in the order asked."""

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """Remove what was listed, deepest first as given; an absent one is done already; a folder must be empty.

        An entry that is no longer what was listed (kind, size, mtime) is a problem, not removed.
        """

    def adjust(self, adjustments: Iterable[Adjustment]) -> Iterator[tuple[Adjustment, Problem | None]]:
        """Set permission bits and attributes of files and folders where they stand, deepest first as given; never setuid, setgid, sticky.

        One that is no longer what was listed (kind, size, mtime) is a problem and left alone. Only where `facts.adjusts`.
        """

    def keep(self, place: Location, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """Keep what was listed under its own path below `place`, at this store's site and apart from this root.

        Afterwards it may still stand here, too. An absent one is done already, one that changed since is a problem.
        Only where `facts.keeps`. Raises `RefusedError` where `place` cannot be used.
        """

    def make_root(self) -> None:
        """Make the root folder and those above it; nothing where the store has no folders."""

    def expect(self, size: int) -> None:
        """So many bytes are going to be read from or written to here: time to open what that takes."""

    def begun(self, item: Item) -> int:
        """How many bytes of this very file an earlier `write` left here, to go on behind; asked while `write` takes payloads."""

    def lock(self, operation: str, *, make: bool = False) -> Lock:
        """Take the lease, after `make_root` where it is to `make` it; raises `TryLaterError("locked")` that names the holder."""

    def space(self) -> Space:
        """Room for more."""

    def close(self) -> None:
        """Let go of connections and processes; safe to call twice."""


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


__all__ = [
    "LINE_BYTES",
    "MOST_BYTES",
    "PACK_BYTES",
    "PACK_ITEMS",
    "SEGMENT_BYTES",
    "WINDOW_BYTES",
    "Adjustment",
    "Facts",
    "Item",
    "Kind",
    "Landed",
    "ListingIncompleteError",
    "Lock",
    "Payload",
    "Problem",
    "Space",
    "Store",
    "Unit",
    "is_own_name",
    "is_partial_name",
    "unsafe_component",
]


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


class OnlyRead(ABC):
    """What of the Store protocol would change something."""

    @abstractmethod
    def _refuse(self) -> NoReturn:
        """Raise the `RefusedError` that says why."""

    def write(self, payloads: Iterable[Payload]) -> Generator[Landed, None, None]:
        """See Store."""
        del payloads
        self._refuse()

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        del entries
        self._refuse()

    def adjust(self, adjustments: Iterable[Adjustment]) -> Iterator[tuple[Adjustment, Problem | None]]:
        """See Store."""
        del adjustments
        self._refuse()

    def keep(self, place: Location, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        del place, entries
        self._refuse()

    def make_root(self) -> None:
        """See Store."""
        self._refuse()


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


@runtime_checkable
class Copier(Protocol):
    """The part of a Store that some have: it can be told to fetch entries from a store next door."""

    def copies(self, source: Store) -> bool:
        """Whether that is worth trying from `source`; the server has the last word, entry by entry."""

    def copy(self, origin: Origin, items: Iterable[Item]) -> Generator[Landed, None, None]:
        """Copy files whole; one answer for each, in any order, as `Store.write` gives them.

        The source is copied only while it is what was listed. `Landed.proof` is that of the whole copy: RECORDED
        where a digest is on record for the source and the server names the same sum for the copy, else weaker.
        A problem of the code `NOT_COPIED` says that the server would not. Closing it ends what is under way.
        """


@runtime_checkable
class Shelving(Protocol):
    """A store that lends out its folders one by one, so that others can be at work in the next one."""

    def shelf(self, folder: bytes) -> tuple[Store, bytes]:
        """A store of that folder (b"" is the root) over the connection there is, and the folder's path in it.

        It is locked and written to as any other, and not closed. It is good until anything else is asked of the store that
        lent it out. Where the path is b"" the lock is that of the folder alone; else files land without any.
        """


@runtime_checkable
class StoresWhole(Protocol):
    """A store that finds, takes, gives and removes one small file by a single request each and without a lock.

    For contents that only ever appear whole under a name of their own, as those of git-annex: a lock and a journal for each
    take several times as long as the content.
    """

    def find_whole(self, path: bytes) -> Entry | None:
        """What is at `path` (b"" is the root), never remembered from an earlier request."""

    def store_whole(self, entry: Entry, content: bytes) -> bool:
        """Store `content` at `entry.path`, durable and hashed at both ends; missing folders are made.

        Returns:
            False, and nothing was changed, where the name exists or the filesystem cannot do that without a lock.
        """

    def fetch_whole(self, entry: Entry) -> bytes:
        """The content of a file of at most a pack's size. Raises `IncompleteError` where it is not of the size listed."""

    def remove_whole(self, entry: Entry) -> Problem | None:
        """Remove a file that still is what was listed; an absent one is done."""


def named_anew(store: Store, entry: Entry, name: bytes) -> Iterator[Landed] | None:
    """Land a file of the locked store under a further name there, without its bytes travelling; None where it cannot do that."""
    if isinstance(store, Copier) and store.copies(store):
        return store.copy(Origin(store, entry.path), [Item(0, entry._replace(path=name))])
    if not store.facts.hard_links:
        return None
    further = Item(0, entry._replace(path=name, same_as=entry.path))
    return store.write([Payload(Unit((further,)), b"", [0], [None])])


@dataclass(frozen=True, slots=True)
class Written:
    """An item that somebody wrote under the partial name `partial`, and the sha256 in hexadecimal that it has to have."""

    item: Item
    partial: bytes
    digest: str


@runtime_checkable
class ThirdPartyTarget(Protocol):
    """The part of a Store that some have; the target must be locked."""

    def invite(self, items: Iterable[Item]) -> Iterator[tuple[Item, bytes, Problem | None]]:
        """Make room for files that somebody else will write: the path below the root that each is to be written at.

        What lies there is kept, from this call to the next, until it is adopted or another landing brings the same file.
        """

    def adopt(self, written: Iterable[Written]) -> Generator[Landed, None, None]:
        """Hash them there; what is right stands under its name, durable, and anything else of them is gone.

        A problem is to be sent `again` where nothing arrived, or something else than was read.
        """


@runtime_checkable
class RemovesTrees(Protocol):
    """A store whose root can go with all in it; its lock is held."""

    def check_vacant(self, *, itself: bool) -> None:
        """Raise `TryLaterError("locked")` where somebody of this account is at work at a place above the root or below it.

        Below as far as the last listing showed. With `itself` a root that is a symlink by itself is a `RefusedError`.
        """

    def sweep(self) -> list[tuple[bytes, Problem]]:
        """Remove what hibali keeps below the root as the last listing showed it, partial files too; what could not be."""

    def vacate(self) -> Problem | None:
        """Remove what hibali keeps at the root, give the lock back, and remove the root; why it stays, where it does."""


def read_seen(site: str, table: str, name: str, endpoint: str) -> dict[str, Any] | None:
    """What `keep_seen` kept of this place at this very endpoint; None where nothing was. Its values are to be judged."""
    found = _read(_file(site)).get(table)
    one = found.get(name) if isinstance(found, dict) else None
    if not isinstance(one, dict) or one.get("endpoint") != endpoint:
        return None
    seen = one.get("honours")
    return seen if isinstance(seen, dict) else None


def keep_seen(site: str, table: str, name: str, endpoint: str, seen: dict[str, Any]) -> None:
    """Keep it for the next call; where that fails it is asked again."""
    path = _file(site)
    record = _read(path)
    places = record.get(table)
    kept = places if isinstance(places, dict) else {}
    kept[name] = {"endpoint": endpoint, "at": now(), "honours": seen}
    with contextlib.suppress(OSError):
        write_atomic(path, json.dumps({**record, table: kept, "schema": 1}, indent=1).encode("ascii") + b"\n")


def _file(site: str) -> Path:
    return private_folder(state_folder() / "sites") / f"{site}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


class CleanupResult(StrEnum):
    """What becomes of it; PLANNED where a dry run would end it, FAILED where the server did not let us."""

    ENDED = "ended"
    PLANNED = "planned"
    KEPT = "kept"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Leftover:
    """An upload that was begun and never completed.

    `age` in seconds by the server's clock, None where it does not tell; `ours` whether this machine began it.
    `because` says why it stays, and is empty where it does not.
    """

    bucket: str
    key: bytes
    begun: str
    age: float | None
    ours: bool
    fate: CleanupResult
    because: str = ""
