"""Lay out packs as plain pax tar files with a JSON lines index each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from hibali.documents import line_of_json, read_json
from hibali.errors import HibaliError, IncompleteError
from hibali.text import path_fields, path_from_fields
from transfers.entry import MOST_NS, Entry, Kind
from transfers.pipeline.batches import group_units
from transfers.stores.base import Item, Unit, unsafe_component

FOLDER = b".hibali/packs"  # the indexes lie here; a place that has this is a packed one
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
_HINT = "Nothing it says was believed, and nothing was changed. Other copies of the place may be whole."

Line = dict[str, Any]


class Member(NamedTuple):
    """One name in a packed place as one pack says; with `gone` that it is no more from then on.

    `entry.etag` is `PACK:OFFSET`, where its bytes lie, and `entry.digest` their sha256. The greatest generation is right.
    """

    entry: Entry
    generation: int
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Pack:
    """What an index says of its pack: `size` and `digest` are those of the tar file; neither where it only says what is gone."""

    name: str
    size: int = 0
    digest: str | None = None

    @property
    def generation(self) -> int:
        """By which pack is right."""
        return generation_of(self.name)


def pack_name(generation: int, layout: str) -> str:
    """The name of a pack; the same content that is packed again has the same name, so that it can be gone on with."""
    return f"pack-{generation:06d}-{layout[:16]}"


def generation_of(name: str) -> int:
    """The number in a pack's name."""
    found = _NAME.fullmatch(name)
    return int(found.group(1)) if found else 0


def tar_path(name: str) -> bytes:
    """Where the tar file of a pack lies."""
    return name.encode("ascii") + b".tar"


def index_path(name: str) -> bytes:
    """Where the index of a pack lies."""
    return FOLDER + b"/" + name.encode("ascii") + b".jsonl"


def name_in(path: bytes, *, index: bool) -> str | None:
    """The pack of which this is the tar file, or with `index` the index."""
    found = (_INDEX if index else _TAR).fullmatch(path)
    return found.group(1).decode("ascii") if found else None


def place_of(entry: Entry) -> tuple[str, int]:
    """The pack and the offset at which a file's bytes begin."""
    name, _, offset = (entry.etag or "").partition(":")
    return name, int(offset) if offset.isdigit() else 0


def write_index(pack: Pack, members: Iterable[Member]) -> bytes:
    """The whole index; members in any order."""
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
    if member.gone:
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
        line |= {"size": entry.size, "sha256": entry.digest, "offset": place_of(entry)[1]}
    return line


class IndexReader:
    """Reads one index that nobody vouches for, in pieces; raises `IncompleteError("bad-index")` for the first thing that is wrong.

    Names are checked (S1), the order is strict, so that none comes twice, and a member lies within its tar file.
    """

    def __init__(self, name: str, subject: str) -> None:
        self._subject = subject
        self._name = name
        self._rest = b""
        self._lines = 0
        self._bytes = 0
        self._before = b""
        self._sum = hashlib.sha256()
        self._ended = False
        self.pack = Pack(name)

    def take(self, content: bytes) -> Iterator[Member]:
        """The members in what comes next."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            self._lines += 1
            if len(line) > _LINE_BYTES or self._lines > _LINES:
                raise self._wrong("it is too long")
            try:
                member = self._read(read_json(line, self._subject), line)
            except HibaliError as problem:
                raise problem if problem.code == "bad-index" else self._wrong(problem.message) from None
            except (KeyError, TypeError, ValueError, RecursionError):
                raise self._wrong("it is not what an index has") from None
            if member is not None:
                yield member
        if len(self._rest) > _LINE_BYTES:
            raise self._wrong("it is too long")

    def end(self) -> Pack:
        """What it says of the pack; nothing may be missing."""
        if not self._ended or self._rest:
            raise self._wrong("the end is missing")
        return self.pack

    def _wrong(self, reason: str) -> IncompleteError:
        subject = f"{self._subject}/{index_path(self._name).decode('ascii')}"
        words = f"line {self._lines} of this index cannot be believed: {reason}"
        return IncompleteError("bad-index", words, subject=subject, hint=_HINT)

    def _read(self, line: Any, text: bytes) -> Member | None:
        if not isinstance(line, dict) or self._ended:
            raise ValueError
        if line["kind"] == "end":
            self._ended = True
            if line["count"] != self._lines - 2 or line["sha256"] != self._sum.hexdigest():
                raise self._wrong("it was cut or changed")
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
            raise self._wrong("it is of a version that this hibali does not know")
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
            raise self._wrong(f"a name in it is not safe: {reason}")
        generation = self.pack.generation
        if line["kind"] == "gone":
            return Member(Entry(path, _KINDS[line["of"]]), generation, gone=True)
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
                raise self._wrong("a file in it lies beyond the end of its tar file")
            self._bytes += size
            if self._bytes > self.pack.size:  # the same bytes a million times
                raise self._wrong("its files are more than its tar file holds")
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
_RECORD = 20 * BLOCK  # what tapes are written in; tar files end at a whole one
_FIELD = 100  # the longest name that a header holds by itself
_OCTAL_SIZE = 8**11
_COMMENT = 64 * 1024
_SECOND = 1_000_000_000
_TYPES = {Kind.FILE: b"0", Kind.LINK: b"2", Kind.FOLDER: b"5"}
_MODES = {Kind.FILE: 0o644, Kind.LINK: 0o777, Kind.FOLDER: 0o755}
_PERMISSIONS = 0o777  # setuid, setgid and sticky never travel (S2)


def header_of(entry: Entry) -> bytes:
    """The blocks before a member's content: name, time and link target exact to the byte, owned by nobody in particular."""
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
    """What follows so much content, so that the next header begins with a block."""
    return bytes(-size % BLOCK)


def padded(content: bytes) -> bytes:
    """Whole blocks."""
    return content + padding(len(content))


def end_of(size: int) -> bytes:
    """What ends a tar file after so many bytes of members."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % _RECORD)


def filler(length: int) -> bytes:
    """So many bytes in place of a member that could not be read: comments, which every tar passes over.

    `length` is that of a header and its content, so at least three blocks.
    """
    blocks = []
    while length:
        room = min(length - BLOCK, _COMMENT)
        if length - BLOCK - room == BLOCK:  # one block alone would be a header without content
            room -= BLOCK
        start = b"%d comment=" % room
        blocks.append(
            _block(b"g", b"pax_global_header", room) + start + b"x" * (room - len(start) - 1) + b"\n"
        )
        length -= BLOCK + room
    return b"".join(blocks)


def _fits(name: bytes) -> bool:
    return len(name) <= _FIELD and name.isascii()


def _time(nanoseconds: int) -> bytes:
    seconds, rest = divmod(abs(nanoseconds), _SECOND)
    return b"%s%d.%09d" % (b"-" if nanoseconds < 0 else b"", seconds, rest)


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH KEY=VALUE` and a newline, where LENGTH counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(b"%d" % rest)
    if len(b"%d" % length) + rest != length:
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def _block(
    letter: bytes, name: bytes, size: int, mode: int = 0o644, seconds: int = 0, link: bytes = b""
) -> bytes:
    """One ustar header."""
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


LARGE_BYTES = 32 * 1024 * 1024  # a file above this has a pack of its own
LEAST_BYTES = 1024 * 1024
MEMBERS = 20_000  # in one pack: what is held in memory of it
_NAMES_BYTES = 8 * 1024 * 1024  # the names in one pack together


@dataclass(frozen=True, slots=True)
class Layout:
    """One pack: `units` are what is asked of the source, and their order is that of the members.

    `offsets` has where an item's content begins, by its number. A large file is `alone`: it streams.
    """

    name: str
    tar: Entry
    units: tuple[Unit, ...]
    offsets: dict[int, int]
    alone: bool


def gather(items: Iterable[Item], pack_bytes: int) -> Iterator[list[Item]]:
    """The items of each pack, in their order but for large files, so that what is left after an interruption is packed as before."""
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
    """Where everything lies. The tar file is named by what goes into it and has the time of the newest of it."""
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
    """Each item once, as units bring them."""
    for unit in units:
        if unit.offset == 0:
            yield from unit.items
