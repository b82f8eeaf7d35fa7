"""Entries of a listing as packed bytes, many to a message."""

import struct
from typing import Iterator, NamedTuple

# lengths of path, link and attributes, kind, size, mtime_ns, mode, device, inode, link count, ctime_ns, offline, allocated
_RECORD = struct.Struct(">HHIcqqIQQIqBQ")
# The same for times that 64 bits of nanoseconds do not hold (before 1678, after 2262): each is whole seconds, then
# nanoseconds. Nearly no file has one, so all others keep the short form; the kind in capitals tells which it is.
_WIDE = struct.Struct(">HHIcqqIIQQIqIBQ")
_SECOND = 1000000000

FILE = b"f"
FOLDER = b"d"
LINK = b"l"
SPECIAL = b"s"
_WIDE_KINDS = (b"F", b"D", b"L", b"S")


class Record(NamedTuple):
    """What lstat(2) tells of one name; times in nanoseconds, `link` the target of a symlink, `allocated` bytes on disk.

    `attributes` are packed by `transfers.agent.attributes`, empty where nobody asked for them.
    """

    path: bytes
    kind: bytes
    size: int
    mtime_ns: int
    mode: int
    device: int
    inode: int
    links: int
    ctime_ns: int
    link: bytes
    offline: int
    allocated: int
    attributes: bytes = b""


class RecordError(Exception):
    """The packed bytes are not records."""


def pack_record(record: Record) -> bytes:
    """One record as bytes; raises `RecordError` for what a record cannot hold, such as a path of more than 65535 bytes."""
    path, kind, size, mtime_ns, mode, device, inode, links, ctime_ns, link, offline, allocated, attributes = (
        record
    )
    lengths = (len(path), len(link), len(attributes))
    told = (kind, size, mtime_ns, mode, device, inode, links, ctime_ns, offline, allocated)
    try:
        head = _RECORD.pack(*lengths, *told)
    except struct.error:
        changed, touched = divmod(mtime_ns, _SECOND), divmod(ctime_ns, _SECOND)
        wide = (kind.upper(), size, *changed, mode, device, inode, links, *touched, offline, allocated)
        try:
            head = _WIDE.pack(*lengths, *wide)
        except struct.error as problem:
            raise RecordError("it cannot be listed: {}".format(problem)) from None
    return head + path + link + attributes


def unpack_records(packed: bytes) -> Iterator[Record]:
    """The records of one message; raises `RecordError`."""
    position = 0
    end = len(packed)
    size = _RECORD.size
    while position < end:
        if position + size > end:
            raise RecordError("a record is cut short")
        path_length, link_length, attributes_length, *told = _RECORD.unpack_from(packed, position)
        kind, length, mtime_ns, mode, device, inode, links, ctime_ns, offline, allocated = told
        if kind in _WIDE_KINDS:
            if position + _WIDE.size > end:
                raise RecordError("a record is cut short")
            _, _, _, _, length, mtime_ns, rest_ns, mode, device, inode, links, ctime_ns, more_ns, *flags = (
                _WIDE.unpack_from(packed, position)
            )
            kind, (offline, allocated) = kind.lower(), flags
            mtime_ns, ctime_ns = mtime_ns * _SECOND + rest_ns, ctime_ns * _SECOND + more_ns
            position += _WIDE.size
        else:
            position += size
        path_end = position + path_length
        link_end = path_end + link_length
        attributes_end = link_end + attributes_length
        if attributes_end > end or length < 0 or kind not in (FILE, FOLDER, LINK, SPECIAL):
            raise RecordError("a record is malformed")
        yield Record(
            packed[position:path_end],
            kind,
            length,
            mtime_ns,
            mode,
            device,
            inode,
            links,
            ctime_ns,
            packed[path_end:link_end],
            offline,
            allocated,
            packed[link_end:attributes_end],
        )
        position = attributes_end
