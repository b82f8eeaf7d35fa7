"""Handle files at a system behind FirecREST."""

from __future__ import annotations

import re
import secrets
import shlex
import stat
from collections.abc import Sequence
from datetime import UTC, datetime

from hibali.errors import AccessError, IncompleteError, NotFoundError, TryLaterError, UsageError
from hibali.http import Bytes
from hibali.text import printable
from transfers.agent import protocol
from transfers.agent.identity import Identity
from transfers.entry import Kind
from transfers.overlap import identity_of_url
from transfers.stores.filesystem.files import LIST_SECONDS, Upload
from transfers.stores.filesystem.machine import MachineFiles
from transfers.stores.filesystem.traits import Exclusive, Put, Traits
from transfers.stores.firecrest.archive import Archive, Batches, archive_of, archive_of_link
from transfers.stores.firecrest.client import DIRECT_BYTES, FirecrestClient, Listed, Stat
from transfers.stores.firecrest.large import PartsUpload, StagedFiles, UploadTarget, wait_for_job
from transfers.stores.server_folder import OWN
from transfers.stores.server_records import Found

_ARCHIVE_BYTES = DIRECT_BYTES - 256 * 1024  # of contents in one archive, as they may not compress
_ESCAPE = re.compile(r"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPED = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_KINDS = {"d": Kind.FOLDER, "-": Kind.FILE, "l": Kind.LINK}
_TRAITS = Traits(
    kind="firecrest",
    put=Put.STREAMED,
    exclusive=Exclusive.FOLDER,
    threads=8,
    refuses=b"'\\\n\r",
    keeps_parts=True,
    posix=True,
    swaps=False,  # tar removes the old file before it makes the link
)


class FirecrestFiles(MachineFiles):
    """The files of one account at one system."""

    traits = _TRAITS

    def __init__(self, client: FirecrestClient) -> None:
        self.subject = client.subject
        self._client = client
        self._batches = Batches(self._put_together, _ARCHIVE_BYTES)
        self._seed = b""
        self._places: dict[str, str] = {}
        self._account: tuple[str, int] | None = None
        self._staged = StagedFiles(client)
        self._offsets: dict[str, int] = {}  # of local time at the system, by day
        self._proven: dict[bytes, tuple[str, str]] = {}  # the tag and sha256 of files that `upload` compared

    @property
    def implementation(self) -> str:
        """See Files."""
        return "firecrest"

    @property
    def renames(self) -> bool:
        """See Files."""
        return True

    def full(self, path: bytes) -> str:
        """See Files."""
        return path.decode("utf-8", "surrogateescape") or "/"

    def identity(self, path: bytes) -> Identity:
        """See Files."""
        settings = self._client.settings
        return identity_of_url(f"{settings.url}/{settings.system}", path)

    def use_seed(self, seed: bytes) -> None:
        """See Files."""
        self._seed = seed

    def _temporary_name(self) -> bytes:
        token = secrets.token_hex(16).encode("ascii")
        return protocol.partial_name(self._seed, token) if self._seed else b".hibali-" + token

    # Places

    def _filesystems(self) -> dict[str, str]:
        if not self._places:
            self._places = self._client.filesystems()
        return self._places

    def places(self) -> dict[str, str]:
        """Return the path of each filesystem by its type."""
        return {kind: path for kind, path in self._filesystems().items() if kind}

    def home(self) -> bytes:
        """See MachineFiles: that of the settings, or the account's folder in the filesystem of users, else of work folders."""
        if self._client.settings.home is not None:
            return self._client.settings.home.encode("utf-8", "surrogateescape")
        places = self._filesystems()
        above = places.get("users") or places.get("")
        if above is None:
            raise UsageError(
                "no-home",
                "the service does not tell where the home folder is",
                subject=self.subject,
                hint=f"hibali config set sites.{self.subject}.firecrest.home /PATH",
            )
        return f"{above.rstrip('/')}/{self.user()}".encode("utf-8", "surrogateescape")

    def user(self) -> str:
        """See MachineFiles."""
        return self._who()[0]

    def _who(self) -> tuple[str, int]:
        if self._account is None:
            self._account = self._client.user()
        return self._account

    def variable(self, name: str) -> bytes | None:
        """Return the account's folder in the filesystem of this type, as $SCRATCH."""
        above = self.places().get(name.lower())
        return (
            None if above is None else f"{above.rstrip('/')}/{self.user()}".encode("utf-8", "surrogateescape")
        )

    # Reading

    def stat(self, path: bytes) -> Found | None:
        """See Files."""
        return self._stat(path, follow=False)

    def stat_followed(self, path: bytes) -> Found | None:
        """See MachineFiles."""
        return self._stat(path, follow=True)

    def _stat(self, path: bytes, *, follow: bool) -> Found | None:
        found = self._client.stat(path or b"/", follow=follow)
        return None if found is None else _found(_kind_of(found), found.size, found.mtime)

    def is_private(self, path: bytes) -> bool:
        """See MachineFiles."""
        found = self._client.stat(path, follow=True)
        if found is None or _kind_of(found) is not Kind.FOLDER:
            return False
        return found.user in {self._who()[1], 0} and not found.mode & 0o022

    def children(self, folder: bytes, *, seconds: float = LIST_SECONDS) -> list[tuple[bytes, Found]]:
        """See Files. `ls` of a file lists it, so that its name is its path."""
        lines = self._client.ls(folder or b"/", seconds=seconds)
        if len(lines) == 1 and lines[0].name.startswith("/"):
            raise NotFoundError("vanished", "it is no folder", subject=self.subject)
        return self._in_order(folder, [self._child(folder, line) for line in lines])

    def _child(self, folder: bytes, line: Listed) -> tuple[bytes, Found]:
        name = _unescaped(line.name)
        kind = _KINDS.get(line.type, Kind.SPECIAL)
        if kind is Kind.LINK:
            return name, Found(kind, link=_unescaped(line.link))
        seconds = self._moment(folder.rstrip(b"/") + b"/" + name, line) if kind is Kind.FILE else 0
        return name, _found(kind, line.size, seconds)

    def _moment(self, path: bytes, line: Listed) -> int:
        """Return the time of a listed file in seconds since the epoch; one file of each day tells the offset of local time."""
        try:
            local = int(datetime.strptime(line.modified, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp())
        except ValueError:
            return 0
        day = line.modified[:10]
        if day not in self._offsets:
            found = self._client.stat(path)
            if found is None or abs(local - found.mtime) > 26 * 3600:
                return local
            self._offsets[day] = round((local - found.mtime) / 900) * 900
        return local - self._offsets[day]

    def read(self, path: bytes, offset: int, length: int) -> bytes:
        """See Files. A large file is first transferred to the object store, once. Raise `TryLaterError` if it is less than the file."""
        found = self._client.stat(path)
        if found is None:
            raise NotFoundError("vanished", "it does not exist", subject=f"{self.subject}:{printable(path)}")
        if found.size <= DIRECT_BYTES:
            content = self._client.download(path)
            if len(content) != found.size:
                raise self._cut_off(path)
            return content[offset : offset + length]
        content = self._staged.read(path, _tag(found.mtime, found.size), found.size, offset, length)
        if len(content) != min(length, max(0, found.size - offset)):
            raise self._cut_off(path)
        return content

    def _cut_off(self, path: bytes) -> TryLaterError:
        return TryLaterError(
            "cut-off",
            "the service sent less than it has of the file",
            subject=f"{self.subject}:{printable(path)}",
        )

    def digest(self, path: bytes, expected: int) -> tuple[str, Found | None]:
        """See Files: computed at the system; as a job, where that takes longer than the service allows."""
        del expected
        before = self.stat(path)
        known = self._proven.pop(path, None)
        if known is not None and before is not None and before.tag == known[0]:
            return known[1], before
        found = self._client.checksum(path) or self._digest_by_job(path)
        return found, self.stat(path)

    def _digest_by_job(self, path: bytes) -> str:
        result = self._own_folder() + b"/" + self._temporary_name()
        text = shlex.quote(path.decode("utf-8", "surrogateescape"))
        folder, out = (
            each.decode("utf-8", "surrogateescape") for each in (result.rpartition(b"/")[0], result)
        )
        job = self._client.submit(
            {
                "name": "hibali-sha256",
                "workingDirectory": folder,
                "standardOutput": out,
                "standardError": "/dev/null",
                "script": f"#!/bin/sh\nexec sha256sum <{text}\n",
            }
        )
        try:
            wait_for_job(self._client, job, "computes the sha256")
            digest = self._client.download(result)[:64].decode("ascii", "replace")
        finally:
            self._client.remove(result)
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise IncompleteError(
                "no-digest", "the site computed no sha256", subject=f"{self.subject}:{printable(path)}"
            )
        return digest

    def _own_folder(self) -> bytes:
        """Return a folder for output of jobs of this account, where no user's files are."""
        folder = self.home() + b"/" + OWN + b"/jobs"
        self._client.mkdir(folder, parents=True)
        return folder

    # Writing

    def put(self, path: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """See Files. Files of locks are written in place, so that their times are those of the system."""
        folder, _, name = path.rpartition(b"/")
        plain = re.fullmatch(rb"[A-Za-z0-9.-]+", name) is not None
        if plain and (folder.endswith(b"/" + OWN) or b"/" + OWN + b"/" in folder) and len(content) < 65536:
            self._client.upload(folder, name.decode("ascii"), bytes(content), seconds=seconds)
            return
        if len(content) > _ARCHIVE_BYTES:
            with self.upload(path, len(content)) as upload:
                upload.write(content)
                upload.commit()
            return
        self._batches.put(path, content)

    def _put_together(self, files: Sequence[tuple[bytes, Bytes]]) -> None:
        self._extract(archive_of(files, self._temporary_name()))

    def _extract(self, archive: Archive) -> None:
        """Upload and extract an archive, and remove what it leaves."""
        name = self._temporary_name()
        there = archive.folder.rstrip(b"/") + b"/" + name
        try:
            self._client.upload(archive.folder, name.decode("ascii"), archive.content)
            self._client.extract(there, archive.folder)
        finally:
            self._client.remove(there)
            if archive.leaves:
                self._client.remove(archive.leaves)

    def put_private(self, path: bytes, content: bytes, *, executable: bool = False) -> None:
        """See MachineFiles; the archive has mode 0600."""
        self.put(path, content)
        if executable:
            self.set_mode(path, 0o700)

    def create(self, path: bytes, content: bytes, how: Exclusive) -> bool:
        """See Files; locks are made by `claim_folder`."""
        raise NotImplementedError(f"{how} {path!r} {len(content)}")

    def make_folder(self, path: bytes) -> None:
        """See Files."""
        self._client.mkdir(path, parents=True)

    def claim_folder(self, path: bytes) -> bool:
        """See Files: mkdir(1) without -p."""
        return self._client.mkdir(path)

    def release_folder(self, path: bytes) -> None:
        """See Files."""
        self._client.remove(path)

    def delete(self, path: bytes) -> None:
        """See Files."""
        self._client.remove(path)

    def is_empty(self, folder: bytes) -> bool:
        """See Files; an empty folder of locks, which stays, counts as nothing."""
        names = [name for name, _ in self.children(folder)]
        return not names or (names == [OWN] and not self.children(folder + b"/" + OWN))

    def remove_folder(self, path: bytes) -> None:
        """See Files. The service removes folders with their content, so nothing may be written into it from its check on.

        A folder of locks stays where it is: another client may have one in it meanwhile.
        """
        if path.rpartition(b"/")[2] == OWN:
            return
        found = self._client.stat(path)
        if found is None:
            return
        self._client.chmod(path, 0o500)
        if not self.is_empty(path):
            self._client.chmod(path, stat.S_IMODE(found.mode))
            raise IncompleteError(
                "folder-not-empty", "the folder is not empty", subject=f"{self.subject}:{printable(path)}"
            )
        self._client.remove(path)

    def remove_tree(self, path: bytes) -> None:
        """See Files."""
        if not path.strip(b"/"):
            raise AccessError("denied", "refusing to remove /", subject=self.subject)
        self._client.remove(path)

    def move(self, path: bytes, to: bytes) -> None:
        """See Files: a file by a hard link, a folder by a job of the service."""
        found = self._client.stat(path)
        if found is None:
            raise NotFoundError("vanished", "it does not exist", subject=f"{self.subject}:{printable(path)}")
        if _kind_of(found) is Kind.FILE:
            self._extract(archive_of_link(path, to))
            self._client.remove(path)
        else:
            wait_for_job(self._client, self._client.begin_change("mv", path, to), "moves the folder")

    def copy(self, source: bytes, target: bytes) -> None:
        """See MachineFiles: a small file through here, others by a job of the service."""
        found = self._client.stat(source, follow=True)
        if found is not None and _kind_of(found) is Kind.FILE and found.size <= _ARCHIVE_BYTES:
            self.put(target, self._client.download(source))
            if found.mode & 0o100:
                self.set_mode(target, 0o700)
            return
        wait_for_job(self._client, self._client.begin_change("cp", source, target), "copies the files")

    def set_mode(self, path: bytes, mode: int) -> None:
        """See MachineFiles."""
        self._client.chmod(path, mode)

    def upload(self, path: bytes, size: int, part_folders: Sequence[bytes] = ()) -> Upload:
        """See Files."""
        del part_folders  # the parts are in the object store, and their journal in the state folder
        if size <= _ARCHIVE_BYTES:
            return _SmallUpload(self, path)
        folder = path.rpartition(b"/")[0]
        target = UploadTarget(path, folder + b"/" + self._temporary_name(), size)

        def finish(partial: bytes, digest: str) -> None:
            self._finish(partial, path, size, digest)

        return PartsUpload(self._client, target, finish)

    def _finish(self, partial: bytes, path: bytes, size: int, digest: str) -> None:
        """Compare a file that the service wrote, and give it its name. Raise `IncompleteError` if it differs."""
        summed, found = self.digest(partial, size)
        if found is None or found.size != size or summed != digest:
            self._client.remove(partial)
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
        self._client.close()


class _SmallUpload(Upload):
    """A file that fits into an archive."""

    def __init__(self, files: FirecrestFiles, path: bytes) -> None:
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


def _unescaped(name: str) -> bytes:
    r"""Return a name that `ls --quoting-style=c` wrote: bytes that are not printable are \ooo; hibali never writes a backslash itself."""
    if "\\" not in name:
        return name.encode("utf-8", "surrogateescape")

    def byte(found: re.Match[str]) -> str:
        text = found[1]
        value = int(text, 8) & 0xFF if len(text) == 3 else _ESCAPED.get(text, ord(text))
        return chr(value)

    # each character of the result is one byte, except those beyond Latin-1, which ls printed as they are
    pieces: list[bytes] = []
    position = 0
    for found in _ESCAPE.finditer(name):
        pieces += [
            name[position : found.start()].encode("utf-8", "surrogateescape"),
            byte(found).encode("latin-1", "replace"),
        ]
        position = found.end()
    pieces.append(name[position:].encode("utf-8", "surrogateescape"))
    return b"".join(pieces)
