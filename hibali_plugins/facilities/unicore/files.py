"""Handle files at the storages of UNICORE, as those of one machine."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import NoReturn

from hibali.documents import read_json
from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, TryLaterError
from hibali.http.client import Bytes
from hibali.retry import pause, with_retries
from hibali.text import printable
from hibali_plugins.facilities.machine import MACHINE_AHEAD, MachineFiles
from hibali_plugins.facilities.unicore.client import Storage, UnicoreClient, check_path
from hibali_plugins.facilities.unicore.uftp import Uftp, can_name
from transfers.agent.identity import Identity
from transfers.model.entry import Kind
from transfers.model.identities import identity_of_url
from transfers.model.store import IN_FLIGHT_BYTES
from transfers.stores.server.files import LIST_SECONDS, Approve, Exclusive, HeldUpload, Put, Traits, Upload
from transfers.stores.server.own_files import OWN
from transfers.stores.server.reading import Got
from transfers.stores.server.records import PIECE_BYTES, Found

PART_BYTES = 16 * 1024 * 1024
_QUIET_SECONDS = 2.0  # in which a server that still writes what an interrupted upload sent changes the size
_MOST_JOURNAL = 8 * 1024 * 1024
_TRAITS = Traits(
    kind="unicore",
    put=Put.RENAMED,
    exclusive=Exclusive.FOLDER,
    threads=8,
    refuses=b"\\\n\r",
    keeps_parts=True,
    posix=True,
    ahead_bytes=MACHINE_AHEAD,
)


class UnicoreFiles(MachineFiles):
    """The files of one account. An absolute path is in the storage whose folder is the longest one above it."""

    traits = _TRAITS

    def __init__(self, client: UnicoreClient, address: str, uftp: Uftp | None = None) -> None:
        """`address` is the URL of the server; `uftp` moves the contents of files of transfers."""
        self.subject = client.subject
        self.client = client
        self.uftp = uftp
        if uftp is not None:
            self.traits = replace(_TRAITS, ahead_bytes=IN_FLIGHT_BYTES)
        self._address = address
        self._storages: list[Storage] = []
        self._user: str | None = None
        self._shared: set[bytes] = set()  # folders that are the same for the UFTP server

    @property
    def implementation(self) -> str:
        """See Files."""
        return "unicore"

    @property
    def renames(self) -> bool:
        """See Files."""
        return True

    def full(self, path: bytes) -> str:
        """See Files."""
        return path.decode("utf-8", "surrogateescape") or "/"

    def identity(self, path: bytes) -> Identity:
        """See Files."""
        return identity_of_url(self._address, path)

    # Places

    def _known_storages(self) -> list[Storage]:
        if not self._storages:
            found = self.client.storages()
            self._storages = sorted(found, key=lambda one: len(one.mount), reverse=True)
        return self._storages

    def _place(self, *paths: bytes) -> tuple[str, list[bytes]]:
        """Return the storage that has all these absolute paths, and the paths in it. Raise `NotFoundError`, `RefusedError`."""
        absolute = [path if path.startswith(b"/") else b"/" + path for path in paths]
        for path in absolute:
            check_path(path, self.subject)
        for storage in self._known_storages():
            if all(storage.covers(path) for path in absolute):
                return storage.id, [path[len(storage.mount) :] or b"/" for path in absolute]
        raise NotFoundError(
            "no-storage",
            f"no storage of the site has the path {printable(paths[0])}",
            subject=self.subject,
            hint=f"`hibali sites check {self.subject}` lists the storages.",
        )

    def _one(self, path: bytes) -> tuple[str, bytes]:
        storage, [local] = self._place(path)
        return storage, local

    def storages(self) -> dict[str, bytes]:
        """Return the folder of each storage, by its name."""
        return {storage.name: storage.mount for storage in reversed(self._known_storages())}

    def home(self) -> bytes:
        """See MachineFiles: the storage HOME."""
        found = self.variable("HOME")
        if found is None:
            raise NotFoundError(
                "no-storage",
                "the site has no storage with the name HOME",
                subject=self.subject,
                hint="Write paths in full: they begin with a slash.",
            )
        return found

    def user(self) -> str:
        """See MachineFiles."""
        if self._user is None:
            self._user = self.client.user()
        return self._user

    def variable(self, name: str) -> bytes | None:
        """Return the folder of the storage with this name, as $SCRATCH."""
        return self.storages().get(name)

    # Reading

    def stat(self, path: bytes) -> Found | None:
        """See Files; symlinks are followed, because the service does not show them."""
        found = self.client.stat(*self._one(path))
        return found.found if found is not None else None

    def is_private(self, path: bytes) -> bool:
        """See MachineFiles."""
        found = self.client.stat(*self._one(path))
        if found is None or found.found.kind is not Kind.FOLDER or len(found.permissions) != 9:
            return False
        return found.owner in {self.user(), "root"} and "w" not in (
            found.permissions[4],
            found.permissions[7],
        )

    def children(self, folder: bytes, *, seconds: float = LIST_SECONDS) -> list[tuple[bytes, Found]]:
        """See Files."""
        return self._in_order(folder, self.client.children(*self._one(folder), seconds=seconds))

    def read(self, path: bytes, offset: int, length: int) -> bytes:
        """See Files. Raise `TryLaterError` if the service sends less than there is."""
        storage, local = self._one(path)

        def attempt() -> bytes:
            content = self.client.read(storage, local, offset, length)
            if len(content) < length:
                found = self.stat(path)
                if found is not None and offset + len(content) < found.size:
                    raise TryLaterError(
                        "cut-off", "the service sent less than it has of the file", subject=self.subject
                    )
            return content

        return with_retries(attempt, subject=self.subject)

    def get(
        self,
        path: bytes,
        *,
        etag: str | None = None,
        offset: int = 0,
        length: int | None = None,
        most: int = PIECE_BYTES,
    ) -> Got:
        """See Files: over UFTP, without hibali's own files; the tag is of the file that the UFTP server read."""
        wanted = most if length is None else length
        if self.uftp is None or not wanted or not can_name(path) or OWN in path.split(b"/"):
            return super().get(path, etag=etag, offset=offset, length=length, most=most)
        content, found = self.uftp.read(path, offset, wanted)
        return Got(content, found.tag, found.size)

    def digest(self, path: bytes, expected: int) -> tuple[str, Found | None]:
        """See Files: the UFTP server computes it. Raise `IncompleteError` if the API does not have the file."""
        if self.uftp is None or not can_name(path):
            return super().digest(path, expected)
        return self.uftp.digest(path, expected), self._stat_shared(path)

    def _stat_shared(self, path: bytes) -> Found:
        """Return the properties of a file that the UFTP server has."""
        return with_retries(lambda: self.stat(path) or self._elsewhere(path), subject=self.subject)

    def _elsewhere(self, path: bytes) -> NoReturn:
        raise IncompleteError(
            "uftp-elsewhere",
            "UNICORE and the UFTP server do not show the same files",
            subject=f"{self.subject}:{printable(path)}",
            hint="Set uftp of the site to a server with the same filesystem and paths, or remove it.",
            transient=True,
        )

    # Writing

    def renames_approved(self, path: bytes) -> bool:
        """See Files: over UFTP."""
        return self.uftp is not None and can_name(path)

    def put_renamed(self, name: bytes, path: bytes, content: Bytes, approve: Approve) -> Found:
        """See Files. The API is asked for the first file of each folder only. Raise `IncompleteError` if it does not have that."""
        assert self.uftp is not None
        folder = path.rpartition(b"/")[0]
        written = False

        def approve_here(digest: str, found: Found | None, existing: Found | None) -> None:
            nonlocal written
            written = True
            if folder not in self._shared:
                self._stat_shared(name)
                self._shared.add(folder)
            approve(digest, found, existing)

        try:
            return self.uftp.put_renamed(name, path, content, approve_here)
        except NotFoundError:
            if written:
                raise
            self._elsewhere(path)

    def write_part(self, uftp: Uftp, path: bytes, offset: int, content: Bytes, *, create: bool) -> str:
        """See Uftp.write. Raise `IncompleteError` if the folder of the file does not exist for the UFTP server."""
        try:
            return uftp.write(path, offset, content, create=create)
        except NotFoundError:
            self._elsewhere(path)

    def put(self, path: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """See Files."""
        self.client.put(*self._one(path), content, seconds=seconds)

    def make_folder(self, path: bytes) -> None:
        """See Files."""
        self.client.make_folder(*self._one(path))

    def claim_folder(self, path: bytes) -> bool:
        """See Files. The service makes missing parents and accepts existing folders, so a folder with a file is renamed.

        rename(2) does not replace a folder that is not empty; a rename into an existing folder shows in its content.
        """
        mark = secrets.token_hex(8).encode("ascii")
        mine = path + b"." + mark
        self.put(mine + b"/" + mark, b"")
        self.set_mode(mine, 0o700)
        try:
            self.move(mine, path)
        except HibaliError:
            if self.stat(path + b"/" + mark) is not None:  # its answer was lost
                return True
            self._remove(mine)
            if self.stat(path) is not None:
                return False
            raise
        if self.stat(path + b"/" + mark) is not None:
            return True
        self._remove(path + b"/" + mine.rpartition(b"/")[2])
        return False

    def delete(self, path: bytes) -> None:
        """See Files."""
        self._remove(path)

    def _remove(self, path: bytes) -> None:
        self.client.delete(*self._one(path))

    def release_folder(self, path: bytes) -> None:
        """See Files. The name is free at once; what other clients moved into it goes with it."""
        aside = self._aside(path)
        self.move(path, aside)
        self._remove(aside)

    @staticmethod
    def _aside(path: bytes) -> bytes:
        return path.rpartition(b"/")[0] + b"/.hibali-" + secrets.token_hex(16).encode("ascii")

    def remove_folder(self, path: bytes) -> None:
        """See Files. The service removes folders with their content, so it is renamed, looked into, and renamed back unless empty.

        A folder of locks stays where it is: another client may have one in it meanwhile.
        """
        if path.rpartition(b"/")[2] == OWN or self.stat(path) is None:
            return
        aside = self._aside(path)
        self.move(path, aside)
        if not self.is_empty(aside):
            self.move(aside, path)
            raise IncompleteError(
                "folder-not-empty", "the folder is not empty", subject=f"{self.subject}:{printable(path)}"
            )
        self._remove(aside)

    def remove_tree(self, path: bytes) -> None:
        """See Files."""
        if not path.strip(b"/"):
            raise AccessError("denied", "refusing to remove /", subject=self.subject)
        self._remove(path)

    def move(self, path: bytes, to: bytes) -> None:
        """See Files."""
        storage, [local, target] = self._place(path, to)
        self.client.rename(storage, local, target)

    def copy(self, source: bytes, target: bytes) -> None:
        """See MachineFiles."""
        storage, [local, to] = self._place(source, target)
        self.client.copy(storage, local, to)

    def set_mode(self, path: bytes, mode: int) -> None:
        """See MachineFiles."""
        letters = "".join(
            letter if mode >> (8 - place) & 1 else "-" for place, letter in enumerate("rwxrwxrwx")
        )
        self.client.set_permissions(*self._one(path), letters)

    def upload(self, path: bytes, size: int, part_folders: Sequence[bytes] = ()) -> Upload:
        """See Files; a large file grows by one part after the other, over UFTP by several at a time."""
        if self.uftp is not None and can_name(path) and part_folders:
            return _ParallelUpload(
                self, self.uftp, path, part_folders[0], _find_parts(self, part_folders, size)
            )
        if size <= PART_BYTES or not part_folders:
            return HeldUpload(self, path)
        found = _find_parts(self, part_folders, size)
        return _GrowingUpload(self, path, _find_growing(self, part_folders[0], found))

    def append(self, path: bytes, content: Bytes) -> None:
        """Append to a file, once."""
        storage, local = self._one(path)
        self.client.append(self.client.begin_append(storage, local), content)

    def close(self) -> None:
        """See Files."""
        if self.uftp is not None:
            self.uftp.close()
        self.client.close()


@dataclass(slots=True)
class _Growing:
    """A file that grows: its folder, how much of it is there, and the sha256 of its complete parts, which are in a journal."""

    folder: bytes
    size: int = 0
    digests: list[str] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        """The file."""
        return self.folder + b"/data"

    @property
    def journal(self) -> bytes:
        """The file with the digests."""
        return self.folder + b"/parts.json"


def _find_parts(files: UnicoreFiles, folders: Sequence[bytes], most: int) -> int:
    """Return the size of what an interrupted upload of at most this size left, moved into the first folder; 0 without that."""
    for folder in folders:
        found = files.stat(folder + b"/data")
        if found is None or not found.size:
            continue
        if found.size > most:
            files.remove_tree(folder)
            continue
        if folder != folders[0]:
            files.remove_tree(folders[0])
            files.move(folder, folders[0])
        return found.size
    return 0


def _find_growing(files: UnicoreFiles, folder: bytes, size: int) -> _Growing:
    """Return what an interrupted upload left in its folder, when the server has ended it."""
    growing = _Growing(folder)
    if size:
        growing.size = _settled_size(files, growing.data, size)
        growing.digests = _read_digests(files.read_small(growing.journal, _MOST_JOURNAL))
    return growing


def _settled_size(files: UnicoreFiles, path: bytes, size: int) -> int:
    """Return the size of a file when the server no longer writes what an interrupted request sent."""
    while True:
        pause(_QUIET_SECONDS)
        found = files.stat(path)
        if found is None or found.size == size:
            return size if found is not None else 0
        size = found.size


def _read_digests(content: bytes | None) -> list[str]:
    try:
        found = read_json(content, "parts.json") if content else []
    except HibaliError:
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


class _GrowingUpload(Upload):
    """A file to which the parts are appended. What is there is not sent again if it is the same content, as its digests tell.

    The service cannot cut a file off: what an interrupted request left of a part is taken for the beginning of this part, and the digest of
    the whole file decides. If that is wrong, the parts are removed, and the next attempt begins anew.
    """

    def __init__(self, files: UnicoreFiles, path: bytes, growing: _Growing) -> None:
        self._files = files
        self._path = path
        self._growing = growing
        self._held = bytearray()
        self._count = 0

    @property
    def discards(self) -> bool:
        """See Upload."""
        return True

    def write(self, content: Bytes) -> None:
        """See Upload."""
        self._held += content
        while len(self._held) >= PART_BYTES:
            part = bytes(self._held[:PART_BYTES])
            del self._held[:PART_BYTES]
            self._add(part)

    def _add(self, part: bytes) -> None:
        growing, number = self._growing, self._count
        self._count += 1
        digest = hashlib.sha256(part).hexdigest()
        start = number * PART_BYTES
        known = growing.digests[number] if number < len(growing.digests) else digest
        if growing.size >= start + len(part) and known == digest:
            growing.digests[number:] = growing.digests[number:] or [digest]  # a kill came before the journal
            return
        if growing.size > start and known != digest:
            if number:
                raise self._other_content()
            self._files.remove_tree(growing.folder)
            growing.size, growing.digests = 0, []
        self._append(part, start)
        growing.digests[number:] = [digest]
        self._files.put(growing.journal, json.dumps(growing.digests).encode("ascii"))

    def _append(self, part: bytes, start: int) -> None:
        """Append the rest of a part. After an error the size tells how much of it arrived."""

        def attempt() -> None:
            rest = part[self._growing.size - start :]
            try:
                if rest:
                    self._files.append(self._growing.data, rest)
            except HibaliError:
                found = self._files.stat(self._growing.data)
                self._growing.size = (
                    0 if found is None else _settled_size(self._files, self._growing.data, found.size)
                )
                if not start <= self._growing.size <= start + len(part):
                    raise self._other_content() from None
                raise
            self._growing.size = start + len(part)

        with_retries(attempt, subject=self._files.subject)

    def _other_content(self) -> TryLaterError:
        """Remove the parts, which cannot be cut off, and return the error: the next attempt sends the whole file."""
        self._files.remove_tree(self._growing.folder)
        return TryLaterError(
            "changed",
            "the parts of an interrupted upload are of another content, so they were removed",
            subject=f"{self._files.subject}:{printable(self._path)}",
            hint="Run the same command again.",
            transient=False,
        )

    def commit(self) -> None:
        """See Upload."""
        if self._held:
            self._add(bytes(self._held))
            self._held.clear()
        self._files.move(self._growing.data, self._path)
        self._files.remove_tree(self._growing.folder)

    def abandon(self) -> None:
        """See Upload; the parts stay for the next one."""


class _ParallelUpload(Upload):
    """A file whose parts are written by several UFTP sessions at a time. Those that are there, as their digests tell, are not sent again."""

    def __init__(self, files: UnicoreFiles, uftp: Uftp, path: bytes, folder: bytes, known: int) -> None:
        """`known` is the size of what an interrupted upload left in `folder`."""
        self._files = files
        self._uftp = uftp
        self._path = path
        self._folder = folder
        self._known = known
        self._held = bytearray()
        self._offset = 0
        self._pending: deque[Future[None]] = deque()
        if not known:
            files.make_folder(folder)
            files.write_part(uftp, self._data, 0, b"", create=True)

    @property
    def _data(self) -> bytes:
        return self._folder + b"/data"

    @property
    def discards(self) -> bool:
        """See Upload."""
        return True

    def write(self, content: Bytes) -> None:
        """See Upload."""
        self._held += content
        while len(self._held) >= PIECE_BYTES:
            self._submit()

    def _submit(self) -> None:
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        part = bytes(self._held[:PIECE_BYTES])
        del self._held[:PIECE_BYTES]
        self._pending.append(self._uftp.submit(self._write, self._offset, part))
        self._offset += len(part)

    def _write(self, offset: int, part: bytes) -> None:
        if offset + len(part) <= self._known:
            digest = self._uftp.digest(self._data, len(part), offset)
            if digest == hashlib.sha256(part).hexdigest():
                return
        self._files.write_part(self._uftp, self._data, offset, part, create=False)

    def commit(self) -> None:
        """See Upload."""
        if self._held:
            self._submit()
        while self._pending:
            self._pending.popleft().result()
        self._files.move(self._data, self._path)
        self._files.remove_tree(self._folder)

    def abandon(self) -> None:
        """See Upload; the parts stay for the next one."""
        for each in self._pending:
            each.cancel()
        wait(self._pending)
