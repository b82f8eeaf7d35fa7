"""Handle files by the operations of a service: small ones in archives, large ones as the service can."""

from __future__ import annotations

import hashlib
import re
import secrets
import stat
from abc import abstractmethod
from collections.abc import Sequence

from hibali.errors import AccessError, IncompleteError, NotFoundError, TryLaterError, UsageError
from hibali.http.client import Bytes
from hibali.retry import with_retries
from hibali.text import printable
from hibali_plugins.facilities.machine import MachineFiles
from hibali_plugins.facilities.operations.archive import Archive, Batches, archive_of, archive_of_link
from hibali_plugins.facilities.operations.base import Listed, Operations, Stat
from transfers.agent import protocol
from transfers.agent.identity import Identity
from transfers.model.entry import Kind
from transfers.model.identities import identity_of_url
from transfers.stores.server.files import LIST_SECONDS, HeldUpload, Upload
from transfers.stores.server.own_files import OWN
from transfers.stores.server.records import Found

_ARCHIVE_OVERHEAD = 256 * 1024  # of an archive, whose contents may not compress
_MOST_OWN = 65_536  # bytes of a file of a lock


class OperationFiles(MachineFiles):
    """The files of one account at one machine, by the operations of a service."""

    def __init__(self, operations: Operations, address: str) -> None:
        """`address` identifies the machine."""
        self.subject = operations.subject
        self._operations = operations
        self._address = address
        self._archive_bytes = operations.direct_bytes - _ARCHIVE_OVERHEAD
        self._batches = Batches(self._put_together, self._archive_bytes)
        self._seed = b""
        self._offsets: dict[str, int] = {}  # of local time at the system, by day
        self._proven: dict[bytes, tuple[str, str]] = {}  # the tag and sha256 of files that were compared

    @property
    def implementation(self) -> str:
        """See Files."""
        return self.traits.kind

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

    def use_seed(self, seed: bytes) -> None:
        """See Files."""
        self._seed = seed

    def temporary_name(self) -> bytes:
        """Return a new partial name."""
        token = secrets.token_hex(16).encode("ascii")
        return protocol.partial_name(self._seed, token) if self._seed else b".hibali-" + token

    # Where

    @abstractmethod
    def owner(self) -> int:
        """Return the number of the account at the machine."""

    def own_folder(self) -> bytes:
        """Return a folder for what jobs of hibali write for this account, where no user's files are."""
        folder = self.home() + b"/" + OWN + b"/jobs"
        self._operations.mkdir(folder, parents=True)
        return folder

    # Reading

    def stat(self, path: bytes) -> Found | None:
        """See Files."""
        return self._stat(path, follow=False)

    def stat_followed(self, path: bytes) -> Found | None:
        """See MachineFiles."""
        return self._stat(path, follow=True)

    def _stat(self, path: bytes, *, follow: bool) -> Found | None:
        found = self._operations.stat(path or b"/", follow=follow)
        return None if found is None else _found(_kind_of(found), found.size, found.mtime)

    def is_private(self, path: bytes) -> bool:
        """See MachineFiles."""
        found = self._operations.stat(path, follow=True)
        if found is None or _kind_of(found) is not Kind.FOLDER:
            return False
        return found.user in {self.owner(), 0} and not found.mode & 0o022

    def children(self, folder: bytes, *, seconds: float = LIST_SECONDS) -> list[tuple[bytes, Found]]:
        """See Files."""
        lines = with_retries(lambda: self._ls(folder or b"/", seconds), subject=self.subject)
        return self._in_order(folder, [self._child(folder, line) for line in lines])

    def _ls(self, folder: bytes, seconds: float) -> list[Listed]:
        """List a folder. Raise `TryLaterError` if only a file in it was missing: ls(1) fails if one is removed meanwhile."""
        try:
            return self._operations.ls(folder, seconds=seconds)
        except NotFoundError:
            found = self._operations.stat(folder, follow=True)
            if found is None or _kind_of(found) is not Kind.FOLDER:
                raise
            message = "the folder changed while it was listed"
            raise TryLaterError("changed", message, subject=f"{self.subject}:{printable(folder)}") from None

    def _child(self, folder: bytes, line: Listed) -> tuple[bytes, Found]:
        if line.kind is Kind.LINK:
            return line.name, Found(line.kind, link=line.link)
        path = folder.rstrip(b"/") + b"/" + line.name
        seconds = self._moment(path, line) if line.kind is Kind.FILE else 0
        return line.name, _found(line.kind, line.size, seconds)

    def _moment(self, path: bytes, line: Listed) -> int:
        """Return the time of a listed file in seconds since the epoch; one file of each day tells the offset of local time."""
        if not line.local:
            return line.seconds
        day = str(line.seconds // 86400)
        if day not in self._offsets:
            found = self._operations.stat(path)
            if found is None or abs(line.seconds - found.mtime) > 26 * 3600:
                return line.seconds
            self._offsets[day] = round((line.seconds - found.mtime) / 900) * 900
        return line.seconds - self._offsets[day]

    def read(self, path: bytes, offset: int, length: int) -> bytes:
        """See Files. Raise `TryLaterError("cut-off")` if it is less than the file, also when it is tried again."""

        def attempt() -> bytes:
            found = self._operations.stat(path)
            if found is None:
                raise NotFoundError(
                    "vanished", "it does not exist", subject=f"{self.subject}:{printable(path)}"
                )
            content = self._read_piece(path, found, offset, length)
            if len(content) != min(length, max(0, found.size - offset)):
                raise self._cut_off(path)
            return content

        return with_retries(attempt, subject=self.subject)

    def _read_piece(self, path: bytes, found: Stat, offset: int, length: int) -> bytes:
        if found.size > self._operations.download_bytes:
            return self._read_large(path, _tag(found.mtime, found.size), found.size, offset, length)
        whole = self._operations.download(path)
        return whole[offset : offset + length] if len(whole) == found.size else b""

    @abstractmethod
    def _read_large(self, path: bytes, tag: str, size: int, offset: int, length: int) -> bytes:
        """Return a piece of a file that is too large to be downloaded whole; less of it if the service sends less."""

    def _cut_off(self, path: bytes) -> TryLaterError:
        return TryLaterError(
            "cut-off",
            "the service sent less than it has of the file",
            subject=f"{self.subject}:{printable(path)}",
        )

    def digest(self, path: bytes, expected: int) -> tuple[str, Found | None]:
        """See Files: computed at the system."""
        known = self._proven.pop(path, None)
        if known is not None:
            found = self.stat(path)
            if found is not None and found.tag == known[0]:
                return known[1], found
        summed = self._operations.checksum(path) or self._other_digest(path, expected)
        return summed, self.stat(path)

    def _other_digest(self, path: bytes, size: int) -> str:
        """Return the sha256 of a file where `checksum` returns none: a small file is read back."""
        if size > self._operations.download_bytes:
            return self._slow_digest(path)
        return hashlib.sha256(self.read(path, 0, size)).hexdigest()

    def _slow_digest(self, path: bytes) -> str:
        """Return the sha256 of a file that is too large to be read back."""
        raise IncompleteError(
            "no-digest", "the site computed no sha256", subject=f"{self.subject}:{printable(path)}"
        )

    # Writing

    def put(self, path: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """See Files. Files of locks are written in place, so that their times are those of the system."""
        folder, _, name = path.rpartition(b"/")
        plain = re.fullmatch(rb"[A-Za-z0-9.-]+", name) is not None
        own = folder.endswith(b"/" + OWN) or b"/" + OWN + b"/" in folder
        if plain and own and len(content) < _MOST_OWN:
            self._operations.upload(path, bytes(content), seconds=seconds)
            return
        if len(content) > self._archive_bytes:
            with self.upload(path, len(content)) as upload:
                upload.write(content)
                upload.commit()
            return
        self._batches.put(path, content)

    def _put_together(self, files: Sequence[tuple[bytes, Bytes]]) -> None:
        self._extract(archive_of(files, self.temporary_name()))

    def _extract(self, archive: Archive) -> None:
        """Upload and extract an archive, and remove what it leaves."""
        there = archive.folder.rstrip(b"/") + b"/" + self.temporary_name()
        try:
            self._operations.upload(there, archive.content)
            self._operations.extract(there, archive.folder)
        finally:
            self._operations.remove(there)
            if archive.leaves:
                self._operations.remove(archive.leaves)

    def put_private(self, path: bytes, content: bytes, *, executable: bool = False) -> None:
        """See MachineFiles; the archive has mode 0600."""
        self.put(path, content)
        if executable:
            self.set_mode(path, 0o700)

    def make_folder(self, path: bytes) -> None:
        """See Files."""
        self._operations.mkdir(path, parents=True)

    def claim_folder(self, path: bytes) -> bool:
        """See Files: mkdir(1) without -p."""
        return self._operations.mkdir(path)

    def release_folder(self, path: bytes) -> None:
        """See Files."""
        self._operations.remove(path)

    def delete(self, path: bytes) -> None:
        """See Files."""
        self._operations.remove(path)

    def remove_folder(self, path: bytes) -> None:
        """See Files. The service removes folders with their content, so nothing may be written into it from its check on.

        A folder of locks stays where it is: another client may have one in it meanwhile.
        """
        if path.rpartition(b"/")[2] == OWN:
            return
        found = self._operations.stat(path)
        if found is None:
            return
        self._operations.chmod(path, 0o500)
        if not self.is_empty(path):
            self._operations.chmod(path, stat.S_IMODE(found.mode))
            raise IncompleteError(
                "folder-not-empty", "the folder is not empty", subject=f"{self.subject}:{printable(path)}"
            )
        self._operations.remove(path)

    def remove_tree(self, path: bytes) -> None:
        """See Files."""
        if not path.strip(b"/"):
            raise AccessError("denied", "refusing to remove /", subject=self.subject)
        self._operations.remove(path)

    def move(self, path: bytes, to: bytes) -> None:
        """See Files: a file by a hard link, because that needs no job."""
        found = self._operations.stat(path)
        if found is None:
            raise NotFoundError("vanished", "it does not exist", subject=f"{self.subject}:{printable(path)}")
        if _kind_of(found) is Kind.FILE:
            self._extract(archive_of_link(path, to))
            self._operations.remove(path)
        else:
            self._move_folder(path, to)

    @abstractmethod
    def _move_folder(self, path: bytes, to: bytes) -> None:
        """Rename a folder."""

    def copy(self, source: bytes, target: bytes) -> None:
        """See MachineFiles; a small file goes through here."""
        found = self._operations.stat(source, follow=True)
        most = min(self._archive_bytes, self._operations.download_bytes)
        if found is None or _kind_of(found) is not Kind.FILE or found.size > most:
            self._copy_there(source, target)
            return
        self.put(target, self._operations.download(source))
        if found.mode & 0o100:
            self.set_mode(target, 0o700)

    @abstractmethod
    def _copy_there(self, source: bytes, target: bytes) -> None:
        """Copy a large file or a tree at the machine."""

    def set_mode(self, path: bytes, mode: int) -> None:
        """See MachineFiles."""
        self._operations.chmod(path, mode)

    def upload(self, path: bytes, size: int, part_folders: Sequence[bytes] = ()) -> Upload:
        """See Files."""
        if size <= self._archive_bytes:
            return HeldUpload(self, path)
        return self._large_upload(path, size, part_folders)

    @abstractmethod
    def _large_upload(self, path: bytes, size: int, part_folders: Sequence[bytes]) -> Upload:
        """Begin to write a file that does not fit into an archive."""

    def finish_upload(self, partial: bytes, path: bytes, size: int, digest: str) -> None:
        """Compare a file that the service wrote, and give it its name. Raise `IncompleteError` if it differs."""
        summed, found = self.digest(partial, size)
        if found is None or found.size != size or summed != digest:
            self._operations.remove(partial)
            raise IncompleteError(
                "corrupt",
                "the file that the service wrote differs from what was sent",
                subject=f"{self.subject}:{printable(path)}",
                transient=True,
            )
        self.move(partial, path)
        self._proven[path] = (found.tag, summed)

    def close(self) -> None:
        """See Files."""
        self._operations.close()


def home_unknown(subject: str, setting: str) -> UsageError:
    """Return the error for a service that does not tell where the home folder is."""
    return UsageError(
        "no-home",
        "the service does not tell where the home folder is",
        subject=subject,
        hint=f"To set it: hibali config set sites.{subject}.{setting}.home /PATH",
    )


def _kind_of(found: Stat) -> Kind:
    mode = stat.S_IFMT(found.mode)
    kinds = {stat.S_IFDIR: Kind.FOLDER, stat.S_IFREG: Kind.FILE, stat.S_IFLNK: Kind.LINK}
    return kinds.get(mode, Kind.SPECIAL)


def _found(kind: Kind, size: int, seconds: int) -> Found:
    if kind is not Kind.FILE:
        return Found(kind)
    return Found(kind, size, seconds * 1_000_000_000, _tag(seconds, size))


def _tag(seconds: int, size: int) -> str:
    return f"@{seconds}:{size}"
