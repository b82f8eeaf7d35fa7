"""Entries of a listing as packed bytes, many to a message."""

import struct
from typing import Iterator, NamedTuple

# lengths of path, link and attributes, kind, size, mtime_ns, mode, device, inode, link count, ctime_ns, offline, allocated
_RECORD = struct.Struct(">HHIcqqIQQIqBQ")

FILE = b"f"
FOLDER = b"d"
LINK = b"l"
SPECIAL = b"s"


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
    """One record as bytes."""
    path, kind, size, mtime_ns, mode, device, inode, links, ctime_ns, link, offline, allocated, attributes = (
        record
    )
    lengths = (len(path), len(link), len(attributes))
    told = (kind, size, mtime_ns, mode, device, inode, links, ctime_ns, offline, allocated)
    return _RECORD.pack(*lengths, *told) + path + link + attributes


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
