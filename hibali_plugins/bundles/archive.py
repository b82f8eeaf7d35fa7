"""Write a bundle as a reproducible zip file, and read one member by member within limits (S14)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn, Self
from urllib.parse import quote, unquote_to_bytes

from hibali.documents import missing_file
from hibali.errors import AccessError, IncompleteError, RefusedError, UsageError
from hibali.files import WholeFile
from hibali.system_errors import reason_of
from hibali.text import printable
from registry.signature import is_signature_name
from transfers.model.facts import unsafe_component

METADATA = "ro-crate-metadata.json"
RECORD = "bundle.json"
RUN = "run.json"  # of an exported crate; a bundle has bundle.json instead
TASKS = "tasks.jsonl"  # of an exported sweep
WORKFLOW = "workflow.sh"  # of exported runs that use each other
DESCRIPTOR = "descriptor.json"
INVOCATION = "invocation.json"
IMAGE = "image.json"
IMAGE_FILES = ("image.tar", "image.sif")
INPUTS = "inputs.sha256"
OUTPUTS = "outputs.sha256"
MANIFEST = "bundle.sha256"
LONGEST = 4000  # bytes of a name; a line of a manifest is a little longer
LARGEST_TEXT = 16 * 1024 * 1024  # bytes of a manifest: some 150,000 files
MOST_MEMBERS = 100_000

_PLAIN = frozenset({METADATA, RECORD, DESCRIPTOR, INVOCATION, IMAGE, *IMAGE_FILES, INPUTS, OUTPUTS, MANIFEST})
_INPUT = re.compile(r"inputs/(0|[1-9][0-9]{0,5})/(.+)")
_FOLDER = re.compile(r"signatures|inputs(/(0|[1-9][0-9]{0,5}))?")
_UNESCAPED = "/+,=@"


def member_of(number: int, path: bytes) -> str:
    """Return the ASCII member name for a file of the input with that number."""
    return f"inputs/{number}/{quote(path, safe=_UNESCAPED)}"


def path_of(member: str) -> tuple[int, bytes] | None:
    """Return number and path for a name from `member_of`; None for other or unsafe names (S1)."""
    found = _INPUT.fullmatch(member)
    if found is None or len(member) > LONGEST:
        return None
    number, path = int(found[1]), unquote_to_bytes(found[2])
    if unsafe_component(path) is not None or member_of(number, path) != member:
        return None
    return number, path


def is_folder(name: str) -> bool:
    """Return whether a bundle may contain this folder entry: repacked archives list all folders."""
    above = name.removesuffix("/")
    return name != above and (_FOLDER.fullmatch(above) is not None or path_of(above) is not None)


def is_member(name: str) -> bool:
    """Return whether a bundle may contain a member of that name."""
    return name in _PLAIN or is_signature_name(name) or path_of(name) is not None


BLOCK = 1024 * 1024
_MOST_DIRECTORY = 32 * 1024 * 1024  # bytes of the list of members, which is held in memory
_MOST_RATIO = 200
_SMALL = 1024 * 1024  # members up to this size may have any compression ratio
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in zip files; constant, so that archives are reproducible
_END = struct.Struct("<4s4H2LH")  # APPNOTE.TXT 4.3.16
_END_64 = struct.Struct("<4sQ2H2L4Q")  # 4.3.14
_LOCATOR = struct.Struct("<4sLQL")  # 4.3.15
_ENTRY = b"PK\x01\x02"
_ENCRYPTED = 0x1
# Exceptions of zipfile for malicious archives; NotImplementedError means an unknown compression.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
    ValueError,
    RuntimeError,
    NotImplementedError,
    OverflowError,
    OSError,
)


class ArchiveWriter:
    """A reproducible zip file with uncompressed members, renamed to its final name in `commit`."""

    def __init__(self, path: Path) -> None:
        """Open a temporary file; raises what `WholeFile` raises."""
        self._file = WholeFile(path)
        self._zip = zipfile.ZipFile(self._file.stream, "w", zipfile.ZIP_STORED)

    def add(self, name: str, size: int, pieces: Iterable[bytes]) -> str:
        """Write one member and return its sha256.

        Raises `IncompleteError` if the disk is full, `RefusedError` if the size differs.
        """
        info = zipfile.ZipInfo(name, _EPOCH)
        info.create_system, info.external_attr, info.file_size = 3, 0o100644 << 16, size
        summed = hashlib.sha256()
        written = 0
        try:
            with self._zip.open(info, "w") as stream:
                for piece in pieces:
                    written += len(piece)
                    if written > size:
                        break
                    stream.write(piece)
                    summed.update(piece)
        except OSError as problem:
            raise self._broken(problem) from None
        if written != size:
            raise RefusedError(
                "input-changed", "the file changed while the bundle was being written", subject=name
            )
        return summed.hexdigest()

    def add_folder(self, name: str) -> None:
        """Add a folder, which may be empty."""
        info = zipfile.ZipInfo(f"{name}/", _EPOCH)
        info.create_system, info.external_attr = 3, 0o040755 << 16
        try:
            self._zip.writestr(info, b"")
        except OSError as problem:
            raise self._broken(problem) from None

    def commit(self) -> None:
        """Rename the file to its final name, durably; raises `IncompleteError`."""
        try:
            self._zip.close()
        except OSError as problem:
            raise self._broken(problem) from None
        self._file.commit()

    def _broken(self, problem: OSError) -> IncompleteError:
        return IncompleteError(
            "unwritable-file",
            f"the bundle cannot be written: {reason_of(problem)}",
            subject=str(self._file.path),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, ValueError):  # uncommitted files are discarded
            self._zip.close()
        self._file.__exit__(kind, error, trace)


class Archive:
    """An untrusted zip file. Every method raises `RefusedError` `bad-bundle` if it is not a valid bundle."""

    def __init__(self, path: Path) -> None:
        """Open it and check its directory. Also raises `NotFoundError`, `AccessError`, `UsageError`."""
        self.subject = printable(os.fsencode(path))
        self._stack = contextlib.ExitStack()
        try:
            stream = self._stack.enter_context(path.open("rb"))
        except (FileNotFoundError, NotADirectoryError):
            raise missing_file(self.subject, "the bundle") from None
        except PermissionError:
            raise AccessError("denied", "no permission to read the file", subject=self.subject) from None
        except OSError as problem:
            raise UsageError("unreadable-file", reason_of(problem), subject=self.subject) from None
        try:
            self.size = os.fstat(stream.fileno()).st_size
            with self._translated("its zip directory"):
                _check_directory(stream, self.size)
                self._zip = self._stack.enter_context(zipfile.ZipFile(stream))
            infos = self._zip.infolist()
            self.members = {info.filename: info for info in infos if not is_folder(info.filename)}
            self._check_members()
        except BaseException:
            self._stack.close()
            raise

    def read(self, name: str, most: int) -> bytes:
        """Read a complete member of at most so many bytes."""
        if name not in self.members:
            self.refuse(f"{name} is missing")
        if self.members[name].file_size > most:
            self.refuse(f"{name} has more than {most} bytes")
        return b"".join(self.pieces(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a member, never more than its declared size."""
        with self._translated(name), self._zip.open(self.members[name]) as stream:
            while piece := stream.read(BLOCK):
                yield piece

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error for an invalid bundle."""
        raise RefusedError(
            "bad-bundle",
            f"this is not a valid bundle: {reason}",
            subject=self.subject,
            hint="Nothing was started. Ask the sender for another copy.",
        )

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._stack.close()

    def _check_members(self) -> None:
        """Check names, kinds, sizes and compression of all members before any is read."""
        infos = self._zip.infolist()
        if len(infos) != len({info.filename for info in infos}):
            self.refuse("two members have the same name")
        for info in infos:
            reason = _wrong_with(info)
            if reason:
                self.refuse(f"the member {printable(info.orig_filename[:200])}: {reason}")
        # members that share their bytes would expand beyond the file's size
        if sum(info.compress_size + 30 + len(info.orig_filename) for info in infos) > self.size:
            self.refuse("its members overlap")

    @contextlib.contextmanager
    def _translated(self, subject: str) -> Iterator[None]:
        try:
            yield
        except _ZIP_ERRORS as problem:
            self.refuse(f"{subject}: {printable(str(problem)[:200])}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _wrong_with(info: zipfile.ZipInfo) -> str:
    """Return why a member is not read; "" for a valid one."""
    folder = is_folder(info.orig_filename)
    if not (folder or is_member(info.orig_filename)) or info.filename != info.orig_filename:
        return "a bundle has no member of this name"
    if stat.S_IFMT(info.external_attr >> 16) not in {0, stat.S_IFDIR if folder else stat.S_IFREG}:
        return "it is not a regular file"
    if folder and info.file_size:
        return "it is a folder entry with content"
    if info.flag_bits & _ENCRYPTED:
        return "it is encrypted"
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        return "its compression method is not supported"
    if info.file_size > max(_SMALL, info.compress_size * _MOST_RATIO):
        return f"it would unpack to more than {_MOST_RATIO} times its size"
    return ""


def _check_directory(stream: IO[bytes], size: int) -> None:
    """Raise `BadZipFile` if the directory would need much memory; `zipfile` reads it at once.

    An archive with a comment, or other bytes after its end, is not a bundle.
    """
    stream.seek(max(0, size - _END.size))
    end = stream.read(_END.size)
    if len(end) != _END.size or end[:4] != b"PK\x05\x06" or end[-2:] != b"\0\0":
        raise zipfile.BadZipFile("it is not a zip file, or data follows its end")
    length, offset = _END.unpack(end)[5:7]
    stream.seek(max(0, size - _END.size - _LOCATOR.size - _END_64.size))
    before = stream.read(_END_64.size + _LOCATOR.size)
    if before[_END_64.size : _END_64.size + 4] == b"PK\x06\x07":
        length, offset = _END_64.unpack(before[: _END_64.size])[8:10]
    if length > _MOST_DIRECTORY or offset + length > size:
        raise zipfile.BadZipFile("the zip directory is too large")
    stream.seek(offset)
    if stream.read(length).count(_ENTRY) > MOST_MEMBERS:
        raise zipfile.BadZipFile(f"more than {MOST_MEMBERS} members")
    stream.seek(0)
