"""Define the calls that a filesystem offers, and what is certain about a kind of filesystem before it is probed."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, Self

from hibali.errors import IncompleteError, NotFoundError, RefusedError
from hibali.http.client import Bytes
from hibali.text import printable
from transfers.agent import protocol
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts, unsafe_component
from transfers.model.store import IN_FLIGHT_BYTES
from transfers.model.units import Problem
from transfers.stores.server.lease import Held, Lease
from transfers.stores.server.own_files import NOT_EMPTY
from transfers.stores.server.probe import Seen
from transfers.stores.server.reading import Got, ServerChecksum
from transfers.stores.server.records import PIECE_BYTES, Found


class Put(StrEnum):
    """The way to put a file so that no half file is ever seen under its final name."""

    WHOLE = "whole"  # one call with the whole content, which appears at once
    STREAMED = "streamed"  # an opened file appears when it is closed, and never if it is discarded
    RENAMED = "renamed"  # a partial file is renamed
    UNKNOWN = ""


class Exclusive(StrEnum):
    """The way to create a file only if it does not exist, which the server decides in one step."""

    CREATE = "create"  # one call that fails if the file exists
    OPEN = "open"  # open(mode="xb")
    RENAME = "rename"  # a rename that does not replace
    FOLDER = "folder"  # a folder whose creation fails if it exists
    NONE = ""


@dataclass(frozen=True, slots=True)
class Words:
    """How messages name a kind of server; the defaults are those of filesystems."""

    noun: str = "filesystem"
    storage: str = "this kind of site"  # that cannot store symlinks
    no_versions: str = "versions of a file cannot be told apart here"  # why all files are sent again


@dataclass(frozen=True, slots=True)
class Traits:
    """The certain facts of a kind of server; the defaults are the safe assumptions for an unknown filesystem.

    An optional operation of `Files` whose trait is false is never called.

    Attributes:
        kind: The name of the kind of site.
        keys: Whether paths are keys of objects, so that folders exist only as parts of keys.
        put: How files are put.
        exclusive: How a lock is created.
        threads: Calls at a time.
        refuses: Characters that names cannot contain.
        keeps_parts: Whether an interruption leaves files or folders with partial names, such as parts that the next upload uses.
        swaps: Whether a file is replaced without a moment in which it does not exist; otherwise probed.
        posix: Whether it is certainly the filesystem of a Linux machine, which is not probed.
        words: How messages name it.
        manifest: Whether digests and times are recorded in manifests, and not by the server itself (`Files.describe`).
        moves_exactly: `move_exactly`.
        copies: `copy_file`.
        renames: `rename`.
        tells_space: `free_bytes`.
        flat: Whether keys are listed by pages, not folder by folder; the store of that kind lists them.
        ahead_bytes: What is requested before the target takes it.
        unrecorded: How the content of a file is verified that is read without a recorded digest.
        stores_late: Whether it may store what it received after the upload was abandoned, and its partial file removed.
    """

    kind: str
    keys: bool = False
    put: Put = Put.UNKNOWN
    exclusive: Exclusive = Exclusive.NONE
    threads: int = 1
    refuses: bytes = b""
    keeps_parts: bool = False
    swaps: bool = True
    posix: bool = False
    words: Words = Words()
    manifest: bool = True
    moves_exactly: bool = False
    copies: bool = False
    renames: bool = False
    tells_space: bool = False
    flat: bool = False
    ahead_bytes: int = IN_FLIGHT_BYTES
    unrecorded: Verification = Verification.SIZE
    stores_late: bool = False


LIST_SECONDS = 3600.0  # of one folder: all of its names may come at once


class Support(Seen, Protocol):
    """What the store needs to know of a probe result, which is another dataclass for each kind of server."""

    @property
    def writable(self) -> bool:
        """Whether files can be written, safely."""

    @property
    def put(self) -> str:
        """How files are put (`Put`)."""

    @property
    def locks(self) -> bool:
        """Whether only one client can hold the lock of a root."""

    @property
    def replaces(self) -> bool:
        """Whether a rename replaces a file."""

    @property
    def versions(self) -> bool:
        """Whether a replaced file can be told apart, so that what is recorded about files is valid."""

    @property
    def folders(self) -> bool:
        """Whether folders exist, also empty ones."""

    @property
    def file_and_folder(self) -> bool:
        """Whether a file and a folder can have the same name."""


class Children(NamedTuple):
    """The names in a folder in canonical order, and whether `.hibali` is among them."""

    names: Iterator[tuple[bytes, Found]]
    own: bool


# gets the sha256 of what was written, its properties, and those of what it would replace; raises if it must not be renamed
Approve = Callable[[str, Found | None, Found | None], None]


class Upload(ABC):
    """One file that is being written; only `commit` completes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.abandon()

    @property
    @abstractmethod
    def discards(self) -> bool:
        """Whether the file can be left without being completed."""

    @abstractmethod
    def write(self, content: Bytes) -> None:
        """Send the next bytes."""

    @abstractmethod
    def commit(self) -> None:
        """Complete the file."""

    @abstractmethod
    def abandon(self) -> None:
        """End the upload without completing it; does nothing after `commit`."""


class Files(ABC):
    """The files of one server; thread-safe. Every path is bytes, relative to the site's URL or the filesystem's root.

    Methods raise hibali's errors: `NotFoundError`, `AccessError`, `TryLaterError`, `IncompleteError`, `RefusedError`.

    Attributes:
        subject: The site, as errors name it.
        traits: What is certain about the server.
        support: What was probed, None if it is unknown.
        least_copied: The size from which files are copied between servers; smaller ones are faster through this machine.
        checksum: Gets the server's own checksums of files, None if it has none.
    """

    subject: str
    traits: Traits
    support: Support | None = None
    least_copied: int = 0
    checksum: ServerChecksum | None = None

    # What the server supports

    @abstractmethod
    def recall(self, site: str) -> None:
        """Set `support` to what an earlier call probed, if any."""

    @abstractmethod
    def probe(self, site: str, root: bytes) -> None:
        """Probe the server in the existing folder `root`, set `support`, and remember it."""

    @property
    def compares(self) -> bool:
        """Whether each file that is written is compared with the server's checksum of it."""
        return False

    def written(self, *, read_back: bool) -> Verification:
        """Return how a written file was verified."""
        if read_back:
            return Verification.DIGEST
        return Verification.CLAIMED if self.compares else Verification.SIZE

    @abstractmethod
    def facts(self, root: bytes, read_verification: Verification, *, read_back: bool) -> Facts:
        """Return the facts of a store of `root`, by `support`."""

    @abstractmethod
    def hold(self, root: bytes, operation: str, seconds: int) -> Lease:
        """Take the lock of a root at a server whose `support` has locks. Raise `TryLaterError("locked")`."""

    @abstractmethod
    def find_lock(self, folder: bytes) -> Held | None:
        """Return the lock of a folder with its age, None if there is none."""

    # Single calls

    @property
    @abstractmethod
    def address(self) -> str:
        """The name of the server, for what is remembered about its files."""

    def use_seed(self, seed: bytes) -> None:
        """Give temporary files and folders partial names of this seed, by which the next operation finds those that are left."""
        del seed

    @abstractmethod
    def stat(self, path: bytes) -> Found | None:
        """Return the properties of a path, None if it is missing."""

    @abstractmethod
    def children(self, folder: bytes, *, seconds: float = LIST_SECONDS) -> list[tuple[bytes, Found]]:
        """Return the direct children of a folder in canonical order.

        Raises `NotFoundError("vanished")`, and `IncompleteError("listing-violation")` if the listing has names
        that were not requested (S3).
        """

    def listed(self, folder: bytes) -> Children:
        """Return the children of a folder as a stream; see `children`. Unsafe names may be among them."""
        children = self.children(folder)
        return Children(iter(children), any(name == protocol.OWN_FOLDER for name, _ in children))

    @abstractmethod
    def read(self, path: bytes, offset: int, length: int) -> bytes:
        """Read up to `length` bytes from `offset`; fewer only at the end of the file."""

    @abstractmethod
    def put(self, path: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """Write a whole small file in one call, replacing an existing one."""

    def check_entry(self, entry: Entry) -> None:
        """Raise `Refused` if the server cannot store such a file."""
        del entry

    def put_entry(self, path: bytes, content: Bytes, entry: Entry) -> None:
        """Write a file of a transfer as `put` does, and set its time where the server can."""
        del entry
        self.put(path, content)

    def renames_approved(self, path: bytes) -> bool:
        """Return whether `put_renamed` writes a file with this name."""
        del path
        return False

    def put_renamed(self, name: bytes, path: bytes, content: Bytes, approve: Approve) -> Found:
        """Write a file of a transfer under a partial name, and rename it in the same session, unless `approve` raises."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot rename {name!r} to {path!r} ({len(content)} bytes, {approve})"
        )

    def send(
        self,
        path: bytes,
        pieces: Iterator[Bytes],
        entry: Entry,
        before_commit: Callable[[], None],
        part_folders: Sequence[bytes] = (),
    ) -> None:
        """Write a file of the size of `entry` from its pieces, completely or not at all; a partial name may keep a part.

        The pieces come once. After a transient `TryLaterError` with the code `busy` or `token-expired` the file is sent again, a
        few times; another one ends the transfer.
        """
        if self.support is not None and self.support.put == Put.WHOLE:
            content = b"".join(pieces)
            before_commit()
            self.put(path, content)
            return
        with self.upload(path, entry.size, part_folders) as upload:
            for piece in pieces:
                upload.write(piece)
            before_commit()
            upload.commit()

    def describe(self, name: bytes, entry: Entry, digest: str, found: Found) -> Found:
        """Store digest, time and mode of the written file `name` at the server itself, if it has such properties.

        Returns what `stat` would now. Raises `Refused`.
        """
        del name, entry, digest
        return found

    def create(self, path: bytes, content: bytes, how: Exclusive) -> bool:
        """Write a small file only if the name is free; return False if a file or folder has it, and if the folder around it vanished."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot create {path!r} ({len(content)} bytes) by {how}: its locks are folders"
        )

    @abstractmethod
    def make_folder(self, path: bytes) -> None:
        """Make a folder and its parents; an existing one is no error, a file of that name is."""

    def make_root(self, path: bytes) -> None:
        """Make the root of a store, and its parents."""
        self.make_folder(path)

    def claim_folder(self, path: bytes) -> bool:
        """Make one folder, whose parent exists; return False if the name is taken. Only one of several clients gets True."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot claim {path!r}: it does not declare Exclusive.FOLDER"
        )

    def release_folder(self, path: bytes) -> None:
        """Remove a folder that `claim_folder` made."""
        self.remove_folder(path)

    @abstractmethod
    def delete(self, path: bytes) -> None:
        """Remove a file; a missing one is no error."""

    @abstractmethod
    def remove_folder(self, path: bytes) -> None:
        """Remove an empty folder; a missing one is no error."""

    def move(self, path: bytes, to: bytes) -> None:
        """Rename a file once, without a retry: the answer of a rename that succeeded may be lost."""
        raise NotImplementedError(f"{type(self).__name__} cannot rename {path!r} to {to!r}")

    def move_exactly(self, path: bytes, to: bytes, replaced: Found | None, found: Found) -> bool:
        """Rename `found`, and replace only the file `replaced` (None: nothing); return False if the target is another one."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot rename {path!r} ({found}) to {to!r} ({replaced})"
        )

    def copies_from(self, source: Files) -> bool:
        """Return whether to try `copy_file` from `source`: by default at the same URL, if `traits.copies`."""
        same = (self.traits.kind, self.address) == (source.traits.kind, source.address)
        return self.traits.copies and same

    def copy_file(
        self, source: Files, path: bytes, to: bytes, entry: Entry, stopped: threading.Event
    ) -> bool:
        """Copy a file of `source` to a partial name, with the time of `entry` where the server can set it.

        A copy that may take long ends soon after `stopped` is set. Returns whether the checksums that both servers computed
        are the same; otherwise the caller compares the contents.
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot copy {path!r} of {source.subject} to {to!r} ({entry}, {stopped})"
        )

    def rename(self, path: bytes, to: bytes, found: Found | None) -> bool:
        """Rename a file or a folder to a free name, only if it is still `found` where the server can tell; return whether it did."""
        raise NotImplementedError(f"{type(self).__name__} cannot rename {path!r} ({found}) to {to!r}")

    def free_bytes(self, path: bytes) -> int | None:
        """Return the free bytes for files in an existing folder, None if the server does not tell."""
        raise NotImplementedError(f"{type(self).__name__} does not tell the space of {path!r}")

    def delete_unchanged(self, path: bytes, found: Found) -> bool:
        """Remove a file; return False if it is no longer `found`, as far as the server can tell in the same step."""
        del found
        self.delete(path)
        return True

    def remove_empty(self, path: bytes) -> Problem | None:
        """Remove an existing folder if it is empty; other clients may be kept from writing into it meanwhile."""
        if not self.is_empty(path):
            return NOT_EMPTY
        self.remove_folder(path)
        return None

    def upload(self, path: bytes, size: int, part_folders: Sequence[bytes] = ()) -> Upload:
        """Begin to write a file of this size.

        Args:
            path: The name of the file.
            size: Its size in bytes.
            part_folders: Where its parts can be kept, with `traits.keeps_parts`: the folder of this operation, then those of
                interrupted ones, whose parts can be used. Folders that exist are removed after the transfer.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no upload for {path!r} ({size} bytes, {part_folders})"
        )

    def drop_parts(self, path: bytes, part_folders: Sequence[bytes]) -> None:
        """Remove what an upload to `path` left for the next one, because it was not the content that was wanted."""
        del path
        for folder in part_folders[:1]:
            self.remove_tree(folder)

    @abstractmethod
    def identity(self, path: bytes) -> Identity:
        """Return the identity of a path, which is the same at sites of other kinds where that can be known."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    def has_bucket(self) -> bool:
        """Return whether paths are keys, and the bucket or container of the URL exists."""
        return False

    def get(
        self,
        path: bytes,
        *,
        etag: str | None = None,
        offset: int = 0,
        length: int | None = None,
        most: int = PIECE_BYTES,
    ) -> Got:
        """Read a file of at most `most` bytes, or `length` bytes from `offset`; query tag and size afterwards."""
        del etag  # the caller compares it
        wanted = most if length is None else length
        content = self.read(path, offset, wanted) if wanted else b""
        found = self.stat(path)
        if found is None or found.kind is not Kind.FILE:
            raise NotFoundError("vanished", "it does not exist", subject=self.subject)
        return Got(content, found.tag, found.size)

    def read_small(self, path: bytes, most: int) -> bytes | None:
        """Return a small file of at most `most` bytes, None if it is missing or larger."""
        found = self.stat(path)
        if found is None or found.kind is not Kind.FILE or not 0 <= found.size <= most:
            return None
        try:
            return self.read(path, 0, found.size) if found.size else b""
        except NotFoundError:
            return None

    def digest(self, path: bytes, expected: int) -> tuple[str, Found | None]:
        """Return the sha256 of a file of the `expected` size, and its properties afterwards.

        The filesystem computes it if it can; otherwise the file is read back.
        """
        summed = hashlib.sha256()
        for offset in range(0, expected, PIECE_BYTES):
            length = min(PIECE_BYTES, expected - offset)
            content = self.read(path, offset, length)
            summed.update(content)
            if len(content) != length:
                break
        return summed.hexdigest(), self.stat(path)

    def is_empty(self, folder: bytes) -> bool:
        """Return whether a folder has no entry.

        On a store of keys a prefix is none: some stores list those of deleted keys for a while.
        """
        entries = self.children(folder)
        if not self.traits.keys:
            return not entries
        prefixes = [folder + b"/" + name if folder else name for name, found in entries if found.folder]
        return len(prefixes) == len(entries) and all(self.is_empty(each) for each in prefixes)

    def remove_tree(self, path: bytes) -> None:
        """Remove a folder with everything in it; on a store of keys, all keys below the path."""
        try:
            listed = self.children(path)
        except NotFoundError:
            return
        for name, found in listed:
            inner = path + b"/" + name if path else name
            if found.folder:
                self.remove_tree(inner)
            else:
                self.delete(inner)
        self.remove_folder(path)

    def _in_order(self, folder: bytes, listed: Iterable[tuple[bytes, Found]]) -> list[tuple[bytes, Found]]:
        """Return the names of a folder in canonical order. Raise for names that cannot be there."""
        found: dict[tuple[bytes, bool], Found] = {}
        for name, properties in listed:
            reason = unsafe_component(name) or ("it contains a slash" if b"/" in name else None)
            if reason:
                raise RefusedError(
                    "unsafe-name", f"{printable(name)} cannot be a name: {reason}", subject=self.subject
                )
            if (name, properties.folder) in found and not properties.folder:
                raise self._violation(folder, f"{printable(name)} is listed twice")
            found[name, properties.folder] = properties
        named = sorted(found, key=lambda one: one[0] + b"/" if one[1] else one[0])
        return [(key[0], found[key]) for key in named]

    def _violation(self, folder: bytes, reason: str) -> IncompleteError:
        return IncompleteError(
            "listing-violation",
            f"the listing cannot be trusted: {reason}",
            subject=f"{self.subject}:{printable(folder)}",
            hint="Nothing was deleted. If it happens again, report it to the server's administrator.",
        )


class HeldUpload(Upload):
    """A small file, which is put when it is complete."""

    def __init__(self, files: Files, path: bytes) -> None:
        self._files = files
        self._path = path
        self._content = bytearray()

    @property
    def discards(self) -> bool:
        """See Upload."""
        return True

    def write(self, content: Bytes) -> None:
        """See Upload."""
        self._content += content

    def commit(self) -> None:
        """See Upload."""
        self._files.put(self._path, bytes(self._content))

    def abandon(self) -> None:
        """See Upload."""
