"""Archives of container images: what each says it holds, and whether it is all there; nothing is unpacked (S14)."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hibali.errors import NotFoundError, RefusedError, UsageError
from hibali.system_errors import reason_of
from hibali.text import printable
from registry.guarded_tar import BrokenArchiveError, Forward, Hashed, members
from registry.image_layout import Member, Saved, read_saved
from registry.image_record import Format, ImageRecord

_START = 512
_KEPT_EACH = 4 * 1024 * 1024  # of members that may be JSON,
_KEPT_ALL = 32 * 1024 * 1024  # of which there are few
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
_SIF_HEADER = struct.Struct("<32s10s3s3s16s8q")  # sylabs/sif, pkg/sif/sif.go, type header
_SIF_MAGIC = b"SIF_MAGIC\0"
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")


@dataclass(frozen=True, slots=True)
class Archive:
    """An image archive that was read to its end. `digests` are those that a descriptor may pin it by, `sha256:HEX` each."""

    record: ImageRecord
    digests: frozenset[str]


def read_archive(path: Path, name: str = "") -> Archive:
    """What an archive of `docker save`, `podman save`, an OCI layout in a tar, or a SIF holds; compressed or not.

    Of several images it is the one called `name`. Raises `NotFoundError`, `UsageError` `bad-image-archive` for what is none or was
    cut short, `RefusedError` for what contradicts its own digests (`image-damaged`) or grows without end (`archive-bomb`).
    """
    about = printable(os.fsencode(path))
    try:
        # a FIFO would otherwise wait for somebody who writes
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise _bad("it is no regular file", about)
            return _read(stream, found.st_size, name, about)
    except BrokenArchiveError as problem:
        raise _bad(str(problem), about) from None
    except FileNotFoundError:
        raise NotFoundError("no-such-file", "there is no such image archive", about=about) from None
    except OSError as problem:
        raise _bad(reason_of(problem), about) from None


def _read(stream: IO[bytes], size: int, name: str, about: str) -> Archive:
    source = Hashed(stream)
    start = source.read(_START)
    if start[32 : 32 + len(_SIF_MAGIC)] == _SIF_MAGIC:
        _check_sif(start, size)
        digest = _finish(source, size)
        return Archive(ImageRecord(digest, size, "sif", digest), frozenset({digest}))
    if start.startswith(b"PK\x03\x04"):
        raise RefusedError(
            "bad-image-archive", "a zip file is no image archive, and is not opened", about=about
        )
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        raise BrokenArchiveError("it is compressed with zstd; decompress it first: unzstd FILE")
    saved = read_saved(_collect(Forward(source, start, about), about), name, about)
    record = _record(saved, _finish(source, size), size)
    return Archive(record, saved.digests | {record.digest})


def _record(saved: Saved, digest: str, size: int) -> ImageRecord:
    kind: Format = "docker-archive" if saved.from_docker else "oci-archive"
    return ImageRecord(digest, size, kind, saved.id, saved.names)


def _finish(source: Hashed, size: int) -> str:
    digest = source.finish()
    if source.count != size:
        raise BrokenArchiveError("it changed while it was read")
    return f"sha256:{digest}"


def _collect(forward: Forward, about: str) -> dict[str, Member]:
    """Every file and link of a tar by its name, hashed; the content of what may be JSON is kept."""
    found: dict[str, Member] = {}
    kept = 0
    for member, content in members(forward, about):
        name = member.name.removeprefix("./")
        if member.isdir():
            continue
        where = f"{about}: {printable(name)}"
        if name.startswith("/") or ".." in name.split("/"):
            raise RefusedError("unsafe-name", "a member's name leads out of the archive", about=where)
        if name in found:
            raise RefusedError("image-damaged", "two members have one name", about=where)
        if member.issym() or member.islnk():
            found[name] = Member(link=member.linkname, is_symlink=member.issym())
        elif member.isreg():
            found[name] = _hash(name, member.size, content, about)
            kept += len(found[name].text)
        else:
            raise RefusedError("image-damaged", "a member is no file", about=where)
        if kept > _KEPT_ALL:
            raise RefusedError(
                "archive-bomb", "this archive holds too much that looks like JSON", about=about
            )
    return found


def _hash(name: str, size: int, content: Iterator[bytes], about: str) -> Member:
    """The member as it is known afterwards; raises `RefusedError` for a blob that is not what its name says."""
    blob = _BLOB.fullmatch(name)
    hashed = hashlib.sha256()
    text = bytearray()
    first = b""
    for piece in content:
        hashed.update(piece)
        first = first or piece[:8]
        if size <= _KEPT_EACH and first[:1] in {b"{", b"["}:
            text += piece
    digest = hashed.hexdigest()
    if blob and digest != blob[1]:
        raise RefusedError(
            "image-damaged",
            f"a blob has digest {digest}, and is called {blob[1]}",
            about=about,
            hint="The archive was changed or damaged; make it anew.",
        )
    return Member(size, f"sha256:{digest}", bytes(text), compressed=first.startswith(_COMPRESSED))


def _check_sif(start: bytes, size: int) -> None:
    """Raise where what its header counts on is not there."""
    if len(start) < _SIF_HEADER.size:
        raise BrokenArchiveError("it ends too early")
    *_, total, table, table_size, data, data_size = _SIF_HEADER.unpack_from(start)
    if min(total, table, table_size, data, data_size) < 0 or max(table + table_size, data + data_size) > size:
        raise BrokenArchiveError("it ends too early")


def _bad(reason: str, about: str) -> UsageError:
    return UsageError(
        "bad-image-archive",
        f"this is not a whole image archive: {printable(reason)}",
        about=about,
        hint="Make one with `docker save -o FILE IMAGE` or `podman save -o FILE IMAGE`.",
    )
