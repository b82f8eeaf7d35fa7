"""Define the format of packs: plain pax tar files, each with an index of JSON lines."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from hibali.documents import line_of_json, read_json
from hibali.errors import HibaliError, IncompleteError
from hibali.text import path_fields, path_from_fields
from transfers.model.entry import MOST_NS, Entry, Kind
from transfers.model.facts import unsafe_component
from transfers.model.units import Item, Unit
from transfers.pipeline.batches import group_units
from transfers.stores.open_views import PACKS_FOLDER

_VERSION = 1
_LINE_BYTES = 128 * 1024
_LINES = 1_000_000
_PATH_BYTES = 4096
_MOST = 2**63
_NAME = re.compile(r"pack-([0-9]{6,12})-[0-9a-f]{16}")
_TAR = re.compile(rb"(pack-[0-9]{6,12}-[0-9a-f]{16})\.tar")
_INDEX = re.compile(rb"\.hibali/packs/(pack-[0-9]{6,12}-[0-9a-f]{16})\.jsonl")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KINDS = {"file": Kind.FILE, "folder": Kind.FOLDER, "link": Kind.LINK}
_HINT = "Nothing was changed. Use another copy of this location, if there is one."

Line = dict[str, Any]


class Member(NamedTuple):
    """One entry of a packed root, as one pack's index records it; with `deleted`, its deletion.

    `entry.etag` is `PACK:OFFSET`, the location of its content, and `entry.digest` the sha256. Of several
    records for one path, the one with the highest generation is valid.
    """

    entry: Entry
    generation: int
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Pack:
    """The head of an index: size and sha256 of the tar file; unset if it only records deletions."""

    name: str
    size: int = 0
    digest: str | None = None

    @property
    def generation(self) -> int:
        """The pack's number; the record with the highest one is valid."""
        return generation_of(self.name)


def pack_name(generation: int, layout: str) -> str:
    """Return the name of a pack; equal content has an equal name, so that an upload can be resumed."""
    return f"pack-{generation:06d}-{layout[:16]}"


def generation_of(name: str) -> int:
    """Return the number in a pack's name; 0 for an invalid name."""
    found = _NAME.fullmatch(name)
    return int(found.group(1)) if found else 0


def tar_path(name: str) -> bytes:
    """Return the path of a pack's tar file."""
    return name.encode("ascii") + b".tar"


def index_path(name: str) -> bytes:
    """Return the path of a pack's index."""
    return PACKS_FOLDER + b"/" + name.encode("ascii") + b".jsonl"


def name_in(path: bytes, *, index: bool) -> str | None:
    """Return the name of the pack with this tar file (or this index, with `index`); None for other paths."""
    found = (_INDEX if index else _TAR).fullmatch(path)
    return found.group(1).decode("ascii") if found else None


def content_location(entry: Entry) -> tuple[str, int]:
    """Return the pack of a file and the offset of its content in the tar file."""
    name, _, offset = (entry.etag or "").partition(":")
    return name, int(offset) if offset.isdigit() else 0


def write_index(pack: Pack, members: Iterable[Member]) -> bytes:
    """Return the content of an index; the members can be in any order."""
    ordered = sorted(members, key=lambda member: member.entry.order)
    tar = tar_path(pack.name).decode("ascii") if pack.digest else None
    head = {"schema": 1, "kind": "pack", "version": _VERSION, "generation": pack.generation, "tar": tar}
    head |= {"size": pack.size, "sha256": pack.digest}
    lines = [head, *(_member_line(member) for member in ordered)]
    content = "".join(f"{line_of_json(line)}\n" for line in lines).encode("ascii")
    end = {"kind": "end", "count": len(ordered), "sha256": hashlib.sha256(content).hexdigest()}
    return content + line_of_json(end).encode("ascii") + b"\n"


def _member_line(member: Member) -> Line:
    entry = member.entry
    if member.deleted:
        return {"kind": "gone", "of": str(entry.kind), **path_fields(entry.path)}
    line = {
        "kind": str(entry.kind),
        **path_fields(entry.path),
        "mtime_ns": entry.mtime_ns,
        "mode": entry.mode,
    }
    if entry.kind is Kind.LINK:
        line |= path_fields(entry.link, "link")
    if entry.kind is Kind.FILE:
        line |= {"size": entry.size, "sha256": entry.digest, "offset": content_location(entry)[1]}
    return line


class IndexReader:
    """A parser of one untrusted index, fed in pieces.

    It raises `IncompleteError("bad-index")` at the first error. It checks names (S1), a strictly increasing
    order, so that no path occurs twice, and that each member is within the tar file.
    """

    def __init__(self, name: str, subject: str) -> None:
        self._subject = subject
        self._name = name
        self._incomplete = b""
        self._lines = 0
        self._bytes = 0
        self._before = b""
        self._sum = hashlib.sha256()
        self._ended = False
        self.pack = Pack(name)

    def feed(self, content: bytes) -> Iterator[Member]:
        """Parse the next piece of content and yield the members in it."""
        *lines, self._incomplete = (self._incomplete + content).split(b"\n")
        for line in lines:
            self._lines += 1
            if len(line) > _LINE_BYTES or self._lines > _LINES:
                raise self._wrong("it is too long")
            try:
                member = self._read(read_json(line, self._subject), line)
            except HibaliError as problem:
                raise problem if problem.code == "bad-index" else self._wrong(problem.message) from None
            except (KeyError, TypeError, ValueError, RecursionError):
                raise self._wrong("the content is not that of an index") from None
            if member is not None:
                yield member
        if len(self._incomplete) > _LINE_BYTES:
            raise self._wrong("it is too long")

    def end(self) -> Pack:
        """Return the pack; raise `IncompleteError` if the end of the index is missing."""
        if not self._ended or self._incomplete:
            raise self._wrong("the end is missing")
        return self.pack

    def _wrong(self, reason: str) -> IncompleteError:
        subject = f"{self._subject}/{index_path(self._name).decode('ascii')}"
        message = f"line {self._lines} of this index is invalid: {reason}"
        return IncompleteError("bad-index", message, subject=subject, hint=_HINT)

    def _read(self, line: Any, text: bytes) -> Member | None:
        if not isinstance(line, dict) or self._ended:
            raise ValueError
        if line["kind"] == "end":
            self._ended = True
            if line["count"] != self._lines - 2 or line["sha256"] != self._sum.hexdigest():
                raise self._wrong("the index is truncated or was modified")
            return None
        self._sum.update(text + b"\n")
        if self._lines == 1:
            self._read_head(line)
            return None
        member = self._member(line)
        if member.entry.order <= self._before:
            raise self._wrong("the order is wrong")
        self._before = member.entry.order
        return member

    def _read_head(self, line: Line) -> None:
        if line["kind"] != "pack" or line["version"] != _VERSION:
            raise self._wrong("its version is unknown")
        if line["generation"] != self.pack.generation:
            raise self._wrong("it is the index of another pack")
        if line["tar"] is None:
            return
        if line["tar"] != tar_path(self._name).decode("ascii"):
            raise self._wrong("it is the index of another pack")
        self.pack = Pack(self._name, _number(line["size"]), _digest(line["sha256"]))

    def _member(self, line: Line) -> Member:
        path = path_from_fields(line)
        reason = unsafe_component(path) or ("it is too long" if len(path) > _PATH_BYTES else None)
        if reason:
            raise self._wrong(f"it has an unsafe name: {reason}")
        generation = self.pack.generation
        if line["kind"] == "gone":
            return Member(Entry(path, _KINDS[line["of"]]), generation, deleted=True)
        kind = _KINDS[line["kind"]]
        mtime_ns, mode = line["mtime_ns"], line["mode"]
        if (
            type(mtime_ns) is not int
            or abs(mtime_ns) >= MOST_NS
            or type(mode) is not int
            or not -1 <= mode < 0o10000
        ):
            raise ValueError
        entry = Entry(path, kind, mtime_ns=mtime_ns, mode=mode)
        if kind is Kind.LINK:
            link = path_from_fields(line, "link")
            if not link or b"\0" in link or len(link) > _PATH_BYTES:
                raise ValueError
            entry = entry._replace(link=link)
        if kind is Kind.FILE:
            size, offset = _number(line["size"]), _number(line["offset"])
            if offset + size > self.pack.size:
                raise self._wrong("a file extends beyond the end of the tar file")
            self._bytes += size
            if self._bytes > self.pack.size:  # members that overlap could claim unlimited bytes
                raise self._wrong("its files are larger than the tar file")
            entry = entry._replace(size=size, digest=_digest(line["sha256"]), etag=f"{self._name}:{offset}")
        return Member(entry, generation)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError
    return value


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError
    return value


BLOCK = 512
_RECORD = 20 * BLOCK  # the record size of tar; files are padded to a whole record
_FIELD = 100  # the longest name in a ustar header; longer ones need a pax record
_OCTAL_SIZE = 8**11
_COMMENT = 64 * 1024
_SECOND = 1_000_000_000
_TYPES = {Kind.FILE: b"0", Kind.LINK: b"2", Kind.FOLDER: b"5"}
_MODES = {Kind.FILE: 0o644, Kind.LINK: 0o777, Kind.FOLDER: 0o755}
_PERMISSIONS = 0o777  # setuid, setgid and sticky are never transferred (S2)


def header_of(entry: Entry) -> bytes:
    """Return the blocks before a member's content: exact name, time and link target, and no owner."""
    name = entry.path + b"/" if entry.kind is Kind.FOLDER else entry.path
    records = [_record(b"mtime", _time(entry.mtime_ns))]
    if not _fits(name):
        records.append(_record(b"path", name))
    if not _fits(entry.link):
        records.append(_record(b"linkpath", entry.link))
    if entry.size >= _OCTAL_SIZE:
        records.append(_record(b"size", b"%d" % entry.size))
    content = b"".join(records)
    mode = entry.mode & _PERMISSIONS if entry.mode >= 0 else _MODES[entry.kind]
    return (
        _block(b"x", b"././@PaxHeader", len(content))
        + padded(content)
        + _block(_TYPES[entry.kind], name, entry.size, mode, entry.mtime_ns // _SECOND, entry.link)
    )


def padding(size: int) -> bytes:
    """Return the zero bytes that pad content of this size to whole blocks."""
    return bytes(-size % BLOCK)


def padded(content: bytes) -> bytes:
    """Return the content, padded to whole blocks."""
    return content + padding(len(content))


def end_of(size: int) -> bytes:
    """Return the end of a tar file with `size` bytes of members."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % _RECORD)


def filler(length: int) -> bytes:
    """Return `length` bytes that replace an unreadable member: pax comments, which every tar program skips.

    `length` is that of a header and its content, so at least three blocks.
    """
    blocks = []
    while length:
        comment_size = min(length - BLOCK, _COMMENT)
        # a single remaining block would be a header without content
        if length - BLOCK - comment_size == BLOCK:
            comment_size -= BLOCK
        start = b"%d comment=" % comment_size
        blocks.append(
            _block(b"g", b"pax_global_header", comment_size)
            + start
            + b"x" * (comment_size - len(start) - 1)
            + b"\n"
        )
        length -= BLOCK + comment_size
    return b"".join(blocks)


def _fits(name: bytes) -> bool:
    return len(name) <= _FIELD and name.isascii()


def _time(nanoseconds: int) -> bytes:
    seconds, digits = divmod(abs(nanoseconds), _SECOND)
    return b"%s%d.%09d" % (b"-" if nanoseconds < 0 else b"", seconds, digits)


def _record(key: bytes, value: bytes) -> bytes:
    """Return the pax record `LENGTH KEY=VALUE` with a newline; LENGTH includes itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(b"%d" % rest)
    if len(b"%d" % length) + rest != length:
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def _block(
    letter: bytes, name: bytes, size: int, mode: int = 0o644, seconds: int = 0, link: bytes = b""
) -> bytes:
    """Return a ustar header."""
    size = 0 if size >= _OCTAL_SIZE else size
    seconds = min(max(seconds, 0), _OCTAL_SIZE - 1)
    fields = [
        name[:_FIELD].ljust(_FIELD, b"\0"),
        b"%07o\0" % mode,
        b"0000000\0" * 2,
        b"%011o\0" % size,
        b"%011o\0" % seconds,
        b" " * 8,
        letter,
        link[:_FIELD].ljust(_FIELD, b"\0"),
        b"ustar\x0000",
    ]
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


LARGE_BYTES = 32 * 1024 * 1024  # a larger file has its own pack
MEMBERS = 20_000  # at most in one pack, because they are kept in memory
_NAMES_BYTES = 8 * 1024 * 1024  # at most, the total length of the names in one pack


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one pack: `units` are the batches to read from the source, in the order of the members.

    `offsets` maps an item's number to the offset of its content. With `alone`, the pack is one large file,
    which is streamed.
    """

    name: str
    tar: Entry
    units: tuple[Unit, ...]
    offsets: dict[int, int]
    alone: bool


def gather(items: Iterable[Item], pack_bytes: int) -> Iterator[list[Item]]:
    """Group items into packs, in their order except for large files.

    The order is kept so that the same command packs the rest in the same way after an interruption.
    """
    some: list[Item] = []
    size = names = 0
    for item in items:
        if item.entry.size > LARGE_BYTES and item.entry.kind is Kind.FILE:
            yield [item]
            continue
        length = item.entry.size + 2048
        named = len(item.entry.path) + len(item.entry.link)
        if some and (size + length > pack_bytes or names + named > _NAMES_BYTES or len(some) >= MEMBERS):
            yield some
            some, size, names = [], 0, 0
        some.append(item)
        size += length
        names += named
    if some:
        yield some


def lay_out(items: list[Item], generation: int, piece: int) -> Layout:
    """Compute the offsets; the tar file has a name from a hash of its headers, and the newest time."""
    units = tuple(group_units(items, lambda: piece))
    offsets: dict[int, int] = {}
    summed = hashlib.sha256()
    size = newest = 0
    for item in ordered(units):
        header = header_of(item.entry)
        summed.update(header)
        offsets[item.number] = size + len(header)
        size += len(header) + item.entry.size + len(padding(item.entry.size))
        newest = max(newest, item.entry.mtime_ns)
    name = pack_name(generation, summed.hexdigest())
    tar = Entry(tar_path(name), Kind.FILE, size + len(end_of(size)), newest, 0o644)
    alone = len(items) == 1 and items[0].entry.size > LARGE_BYTES
    return Layout(name, tar, units, offsets, alone)


def ordered(units: Iterable[Unit]) -> Iterator[Item]:
    """Yield each item once, in the order of the units."""
    for unit in units:
        if unit.offset == 0:
            yield from unit.items
