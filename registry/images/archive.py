"""Read image archives of docker and OCI image layouts, and write them as tar streams."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import posixpath
import re
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hibali.documents import missing_file, read_json
from hibali.errors import HibaliError, RefusedError, UsageError
from hibali.system_errors import reason_of
from hibali.text import counted, printable
from registry.images.record import MOST_NAMES, Format, ImageRecord, is_among, is_image_name

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CONFIG = re.compile(r"(?:.*/)?([0-9a-f]{64})(?:\.json)?")
_CREATE = "Create one with `docker save -o FILE IMAGE` or `podman save -o FILE IMAGE`."
_HOPS = 10
_INDEXES = frozenset(
    {
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    }
)
_CONTAINERD_NAME = "io.containerd.image.name"
_REFERENCE = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the archive: `text` is its content where that may be JSON. Or a link to another member."""

    size: int = 0
    digest: str = ""
    text: bytes = b""
    compressed: bool = False
    link: str = ""
    is_symlink: bool = False


Members = Mapping[str, Member]


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete image. `digests` are its id and its manifest's, where there is one."""

    id: str
    names: tuple[str, ...]
    digests: frozenset[str]
    from_docker: bool


def read_saved(members: Members, name: str, subject: str) -> Saved:
    """Read the image in an archive; of several the one called `name`. Both indexes are checked where there are two.

    Raises `BrokenArchiveError`, `RefusedError` `image-damaged`.
    """
    layout = _read_layout(members, name, subject) if "index.json" in members else None
    docker = _read_docker(members, name, subject) if "manifest.json" in members else None
    if docker is None and layout is None:
        raise BrokenArchiveError("it has no manifest.json and no index.json")
    if docker is None or layout is None:
        found = docker or layout
        assert found is not None
        return found
    if docker.id != layout.id:
        raise RefusedError(
            "image-damaged",
            f"its manifest.json is of image {docker.id}, its index.json of {layout.id}",
            subject=subject,
        )
    return Saved(docker.id, docker.names or layout.names, docker.digests | layout.digests, from_docker=True)


def _read_docker(members: Members, name: str, subject: str) -> Saved:
    """Read `manifest.json`: Config, RepoTags and Layers of each image (moby, image/tarexport)."""
    listed = _json(members, "manifest.json", subject)
    entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    entry = _choose([(_names(each.get("RepoTags")), each) for each in entries], name)
    config_name, layers = entry.get("Config"), entry.get("Layers")
    if not isinstance(config_name, str) or not isinstance(layers, list):
        raise BrokenArchiveError("its manifest.json names no Config and Layers")
    config = _resolve(members, config_name)
    expected = _CONFIG.fullmatch(config_name)
    if expected and config.digest != f"sha256:{expected[1]}":
        raise RefusedError(
            "image-damaged",
            f"its configuration has digest {config.digest}, but its name is {printable(config_name)}",
            subject=subject,
        )
    _check_layers([_resolve(members, each) for each in layers], _diffs(config, config_name, subject), subject)
    return Saved(config.digest, _names(entry.get("RepoTags")), frozenset({config.digest}), from_docker=True)


def _read_layout(members: Members, name: str, subject: str) -> Saved:
    """Read `index.json`, the manifest it names, its configuration and layers (OCI image layout specification)."""
    version = _json(members, "oci-layout", subject)
    if not isinstance(version, dict) or not str(version.get("imageLayoutVersion")).startswith("1."):
        raise BrokenArchiveError("its oci-layout is of another version than 1")
    described = _choose([(_annotated(each), each) for each in _images(members, "index.json", subject)], name)
    manifest_digest = _digest_of(described)
    manifest = _json(members, _blob(manifest_digest), subject)
    config, layers = (
        manifest.get(key) if isinstance(manifest, dict) else None for key in ("config", "layers")
    )
    if not isinstance(config, dict) or not isinstance(layers, list):
        raise BrokenArchiveError("its manifest names no config and layers")
    found = []
    for each in (described, config, *layers):
        member = _resolve(members, _blob(_digest_of(each)))
        if member.size != each.get("size"):
            raise BrokenArchiveError(f"{printable(_digest_of(each))} has another size than in its index")
        found.append(member)
    config_digest = _digest_of(config)
    _check_layers(found[2:], _diffs(found[1], config_digest, subject), subject)
    digests = frozenset({config_digest, manifest_digest})
    return Saved(config_digest, _annotated(described), digests, from_docker=False)


def _images(members: Members, name: str, subject: str, depth: int = 0) -> list[dict[str, Any]]:
    """Yield the descriptors of the images of an index and of its nested indexes, without attestations of buildx."""
    index = _json(members, name, subject)
    listed = index.get("manifests") if isinstance(index, dict) else None
    found: list[dict[str, Any]] = []
    for each in listed if isinstance(listed, list) else ():
        if not isinstance(each, dict):
            raise BrokenArchiveError("its index does not list images")
        annotations = each.get("annotations")
        if isinstance(annotations, dict) and "vnd.docker.reference.type" in annotations:
            continue
        if each.get("mediaType") not in _INDEXES:
            found.append(each)
        elif depth < 2:
            inner = _images(members, _blob(_digest_of(each)), subject, depth + 1)
            found += [{**image, "annotations": image.get("annotations") or annotations} for image in inner]
    return found


def _choose(images: list[tuple[tuple[str, ...], dict[str, Any]]], name: str) -> dict[str, Any]:
    named = [each for names, each in images if name and is_among(name, names)]
    chosen = named or [each for _, each in images]
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise BrokenArchiveError("it holds no image")
    raise BrokenArchiveError(
        f"it holds {counted(len(images), 'image')}, none of them named {name}"
        if name
        else f"it holds {counted(len(images), 'image')}"
    )


def _check_layers(layers: list[Member], diffs: list[str], subject: str) -> None:
    """Raise where the layers differ in number or digest from those in the configuration."""
    if len(layers) != len(diffs):
        raise BrokenArchiveError(f"it has {len(layers)} layers, but its configuration names {len(diffs)}")
    for layer, diff in zip(layers, diffs, strict=True):
        if not layer.compressed and layer.digest != diff:
            raise RefusedError(
                "image-damaged",
                f"a layer has digest {layer.digest}, but the configuration names {diff}",
                subject=subject,
                hint="The archive was changed or damaged. Create it again.",
            )


def _diffs(config: Member, name: str, subject: str) -> list[str]:
    """Return the digests of the uncompressed layers (OCI image configuration, rootfs.diff_ids)."""
    found = _parse(config.text, name, subject)
    rootfs = found.get("rootfs") if isinstance(found, dict) else None
    diffs = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diffs, list) or not all(
        isinstance(each, str) and _DIGEST.fullmatch(each) for each in diffs
    ):
        raise BrokenArchiveError("its configuration is not of an image")
    return diffs


def _resolve(members: Members, name: Any) -> Member:
    """Return the file of that name, following links: docker's archives store each layer once."""
    location = name if isinstance(name, str) else ""
    for _ in range(_HOPS):
        found = members.get(posixpath.normpath(location))
        if found is None:
            raise BrokenArchiveError(f"{printable(location)} is missing from it")
        if not found.link:
            return found
        location = posixpath.join(posixpath.dirname(location), found.link) if found.is_symlink else found.link
    raise BrokenArchiveError("its links form a loop")


def _annotated(described: dict[str, Any]) -> tuple[str, ...]:
    """Return the names that an index gives an image; a reference that is only a tag is not a name."""
    found = described.get("annotations")
    annotations = found if isinstance(found, dict) else {}
    reference_names = [annotations.get(key) for key in (_CONTAINERD_NAME, _REFERENCE)]
    whole = [each for each in reference_names if isinstance(each, str) and (":" in each or "/" in each)]
    return _names(whole[:1])


def _names(listed: Any) -> tuple[str, ...]:
    names = listed if isinstance(listed, list) else []
    if len(names) > MOST_NAMES or not all(map(is_image_name, names)):
        raise BrokenArchiveError("it has invalid image names")
    return tuple(sorted(set(names)))


def _digest_of(described: Any) -> str:
    digest = described.get("digest") if isinstance(described, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BrokenArchiveError("it uses a digest other than sha256")
    return digest


def _blob(digest: str) -> str:
    return digest.replace("sha256:", "blobs/sha256/")


def _json(members: Members, name: str, subject: str) -> Any:
    return _parse(_resolve(members, name).text, name, subject)


def _parse(text: bytes, name: str, subject: str) -> Any:
    try:
        return read_json(text, f"{subject}: {printable(name)}")
    except HibaliError as problem:
        raise BrokenArchiveError(f"{printable(name)}: {problem.message}") from None


_START = 512
_RETAINED_EACH = 4 * 1024 * 1024  # bytes of a member that may be JSON,
_RETAINED_ALL = 32 * 1024 * 1024  # and of all such members
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
_SIF_HEADER = struct.Struct("<32s10s3s3s16s8q")  # sylabs/sif, pkg/sif/sif.go, type header
_SIF_MAGIC = b"SIF_MAGIC\0"
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")


@dataclass(frozen=True, slots=True)
class Archive:
    """A complete image archive. `digests` are those to which a descriptor can pin it, `sha256:HEX` each."""

    record: ImageRecord
    digests: frozenset[str]


def read_archive(path: Path, name: str = "") -> Archive:
    """Read an archive of `docker save` or `podman save`, an OCI layout in a tar, or a SIF; compressed or not.

    Of several images it is the one called `name`. Raises `NotFoundError`, `UsageError` `bad-image-archive` for other or truncated
    files, `RefusedError` for one that contradicts its own digests (`image-damaged`) or decompresses without end (`archive-bomb`).
    """
    subject = printable(os.fsencode(path))
    try:
        # otherwise opening a FIFO would wait for a writer
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise _bad("it is not a regular file", subject)
            return _read(stream, found.st_size, name, subject)
    except BrokenArchiveError as problem:
        raise _bad(str(problem), subject) from None
    except FileNotFoundError:
        raise missing_file(subject, "the image archive") from None
    except OSError as problem:
        raise _bad(reason_of(problem), subject) from None


def _read(stream: IO[bytes], size: int, name: str, subject: str) -> Archive:
    source = Hashed(stream)
    start = source.read(_START)
    if start[32 : 32 + len(_SIF_MAGIC)] == _SIF_MAGIC:
        _check_sif(start, size)
        digest = _finish(source, size)
        return Archive(ImageRecord(digest, size, "sif", digest), frozenset({digest}))
    if start.startswith(b"PK\x03\x04"):
        raise RefusedError(
            "bad-image-archive", "it is a zip file, not an image archive", subject=subject, hint=_CREATE
        )
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        raise BrokenArchiveError(
            "it is compressed with zstd, which hibali does not read; decompress it first: unzstd FILE"
        )
    saved = read_saved(_collect(Forward(source, start, subject), subject), name, subject)
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


def _collect(forward: Forward, subject: str) -> dict[str, Member]:
    """Read every file and link of a tar by its name, with digests, and with the content of files that may be JSON."""
    found: dict[str, Member] = {}
    retained = 0
    for member, content in members(forward, subject):
        name = member.name.removeprefix("./")
        if member.isdir():
            continue
        location = f"{subject}: {printable(name)}"
        if name.startswith("/") or ".." in name.split("/"):
            raise RefusedError(
                "unsafe-name", "the name of a member leads out of the archive", subject=location
            )
        if name in found:
            raise RefusedError("image-damaged", "two members have the same name", subject=location)
        if member.issym() or member.islnk():
            found[name] = Member(link=member.linkname, is_symlink=member.issym())
        elif member.isreg():
            found[name] = _hash(name, member.size, content, subject)
            retained += len(found[name].text)
        else:
            raise RefusedError("image-damaged", "a member is not a file", subject=location)
        if retained > _RETAINED_ALL:
            raise RefusedError("archive-bomb", "this archive holds too much JSON", subject=subject)
    return found


def _hash(name: str, size: int, content: Iterator[bytes], subject: str) -> Member:
    """Hash a member; raises `RefusedError` for a blob whose digest differs from its name."""
    blob = _BLOB.fullmatch(name)
    hashed = hashlib.sha256()
    text = bytearray()
    first = b""
    for piece in content:
        hashed.update(piece)
        first = first or piece[:8]
        if size <= _RETAINED_EACH and first[:1] in {b"{", b"["}:
            text += piece
    digest = hashed.hexdigest()
    if blob and digest != blob[1]:
        raise RefusedError(
            "image-damaged",
            f"a blob has digest {digest}, but its name is {blob[1]}",
            subject=subject,
            hint="The archive was changed or damaged. Create it again.",
        )
    return Member(size, f"sha256:{digest}", bytes(text), compressed=first.startswith(_COMPRESSED))


def _check_sif(start: bytes, size: int) -> None:
    """Raise where a SIF is shorter than its header describes."""
    if len(start) < _SIF_HEADER.size:
        raise BrokenArchiveError("it ends too early")
    *_, total, table, table_size, data, data_size = _SIF_HEADER.unpack_from(start)
    if min(total, table, table_size, data, data_size) < 0 or max(table + table_size, data + data_size) > size:
        raise BrokenArchiveError("it ends too early")


def _bad(reason: str, subject: str) -> UsageError:
    return UsageError(
        "bad-image-archive",
        f"this is not a complete image archive: {printable(reason)}",
        subject=subject,
        hint=_CREATE,
    )


MOST_MEMBERS = 20_000
_CHUNK = 1024 * 1024
_MOST_BYTES = 1 << 42  # decompressed
_FREE_BYTES = 64 * 1024 * 1024  # limit of the decompressed size of any archive,
_RATIO = 200  # or this many times the compressed size; real images compress to about a third
_HEADER_BYTES = 64 * 1024  # of the headers of one member; tarfile would read any size that they declare
_XZ_MEMORY = 512 * 1024 * 1024

_Pull = Callable[[int], bytes]


class BrokenArchiveError(Exception):
    """The file is not a readable tar file, or ends too early; the message says why."""


class Hashed:
    """A stream that hashes the bytes read from it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes; b"" at the end."""
        content = self._stream.read(min(size, _CHUNK) if size >= 0 else _CHUNK)
        self._sha256.update(content)
        self.count += len(content)
        return content

    def finish(self) -> str:
        """Read the rest and return the sha256 of the whole stream in hexadecimal."""
        while self.read():
            pass
        return self._sha256.hexdigest()


class Forward:
    """A forward-only file of the decompressed content of a stream, with a limit of size."""

    def __init__(self, source: Hashed, start: bytes, subject: str) -> None:
        """Open a stream; `start` are its first bytes, which were read to detect the compression."""
        self._source = source
        self._subject = subject
        self._pull = _decompressed(_Started(source, start), start)
        self._position = 0
        self.allowance: int | None = None  # bytes that may be read until the next member

    def read(self, size: int = -1) -> bytes:
        """Read exactly `size` bytes, fewer only at the end."""
        assert size >= 0
        if self.allowance is not None:
            if size > self.allowance:
                raise self._bomb("the headers of a member are too large")
            self.allowance -= size
        parts = []
        while size > 0:
            content = self._some(size)
            if not content:
                break
            parts.append(content)
            size -= len(content)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seek(self, position: int) -> int:
        """Skip forward to a position."""
        if position < self._position:
            raise BrokenArchiveError("its members overlap")
        while self._position < position:
            if not self._some(min(position - self._position, _CHUNK)):
                break
        return self._position

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._position

    def _some(self, size: int) -> bytes:
        try:
            content = self._pull(min(size, _CHUNK))
        except EOFError:
            raise BrokenArchiveError("it ends too early") from None
        except (OSError, zlib.error, lzma.LZMAError) as problem:
            raise BrokenArchiveError(f"it cannot be decompressed: {problem}") from None
        self._position += len(content)
        if self._position > min(_MOST_BYTES, _FREE_BYTES + _RATIO * self._source.count):
            raise self._bomb(f"it would grow to more than {self._position} bytes")
        return content

    def _bomb(self, reason: str) -> RefusedError:
        return RefusedError(
            "archive-bomb", f"hibali stopped reading this archive: {reason}", subject=self._subject
        )


def members(forward: Forward, subject: str) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
    """Yield each member and its content in pieces, which must be read before the next member.

    Raises `BrokenArchiveError` for a file that is not a tar file or was cut short, `RefusedError` `archive-bomb`.
    """
    forward.allowance = _HEADER_BYTES
    try:
        tar = tarfile.open(fileobj=forward, mode="r:")  # type: ignore[call-overload]  # noqa: SIM115  # nothing of its own to close
        member = tar.next()
        for _ in range(MOST_MEMBERS):
            if member is None:
                return
            forward.allowance = None
            if member.sparse is not None:
                raise BrokenArchiveError("it has sparse members")
            yield member, _content(forward, member)
            forward.allowance = _HEADER_BYTES
            member = tar.next()
    except (tarfile.TarError, RecursionError, ValueError, OverflowError) as problem:
        raise BrokenArchiveError(str(problem)) from None
    raise RefusedError("archive-bomb", f"this archive has more than {MOST_MEMBERS} members", subject=subject)


def _content(forward: Forward, member: tarfile.TarInfo) -> Iterator[bytes]:
    remaining = member.size if member.isreg() else 0
    if remaining:
        forward.seek(member.offset_data)
    while remaining > 0:
        content = forward.read(min(remaining, _CHUNK))
        if not content:
            raise BrokenArchiveError("it ends too early")
        remaining -= len(content)
        yield content


class _Started:
    """A stream whose first bytes were read before, with the methods that decompressors need."""

    def __init__(self, source: Hashed, start: bytes) -> None:
        self._source = source
        self._start = start

    def read(self, size: int = -1) -> bytes:
        if not self._start:
            return self._source.read(size)
        end = len(self._start) if size < 0 else size
        content, self._start = self._start[:end], self._start[end:]
        return content

    def prepend(self, content: bytes) -> None:
        self._start = content + self._start

    def seekable(self) -> bool:
        return False


def _decompressed(stream: _Started, start: bytes) -> _Pull:
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream, mode="rb").read1  # type: ignore[call-overload, no-any-return]
    if start.startswith(b"BZh"):
        return _Unpacked(stream, bz2.BZ2Decompressor).read
    if start.startswith(b"\xfd7zXZ\0"):
        return _Unpacked(stream, lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)).read
    return stream.read


class _Unpacked:
    """Decompressed bzip2 or xz, also of several concatenated streams; the library's own classes have no memory limit."""

    def __init__(
        self, stream: _Started, begin: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
    ) -> None:
        self._stream = stream
        self._begin = begin
        self._part = begin()

    def read(self, size: int) -> bytes:
        while True:
            if self._part.eof:
                remainder = self._part.unused_data or self._stream.read(_CHUNK)
                if not remainder.strip(b"\0"):
                    return b""
                self._stream.prepend(remainder)
                self._part = self._begin()
            raw = self._stream.read(64 * 1024) if self._part.needs_input else b""
            if self._part.needs_input and not raw:
                raise EOFError
            content = self._part.decompress(raw, size)
            if content:
                return content
