"""Extended attributes of the user's own (`user.*`, never another namespace: S2), as one text of bytes."""

import base64
import errno
import os
import struct
from typing import Any, Dict, List, Optional, Union

from transfers.agent.problems import RefusedError
from transfers.agent.records import FILE, FOLDER, Record

LIMIT = 64 * 1024  # bytes of one file's attributes, names and values; what XFS and btrfs hold is about that
_PREFIX = b"user."
_HEAD = struct.Struct(">HI")
_NONE = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

Open = Union[int, bytes]  # a descriptor, or a path whose last component is not followed


def are_kept(folder: bytes) -> bool:
    """Whether the filesystem at a folder keeps such attributes at all."""
    if not hasattr(os, "getxattr"):
        return False
    try:
        os.getxattr(folder, b"user.hibali")
    except OSError as problem:
        return problem.errno not in _NONE
    return True


def read_attributes(descriptor: int, name: bytes) -> bytes:
    """Those of a name in an open folder, in the order of their names; a link is not followed. Raises OSError, `RefusedError`."""
    return _pack(_read(b"/proc/self/fd/%d/%s" % (descriptor, name)))


def with_attributes(descriptor: int, name: bytes, record: Record) -> Record:
    """The record of a name in an open folder, with them; only files and folders have any."""
    if record.kind not in (FILE, FOLDER):
        return record
    return record._replace(attributes=read_attributes(descriptor, name))


def _read(what: Open) -> Dict[bytes, bytes]:
    try:
        names = _names(what)
        return {name: _value(what, name) for name in names}
    except OSError as problem:
        if problem.errno in _NONE:
            return {}
        raise


def _names(what: Open) -> List[bytes]:
    names = os.listxattr(what) if isinstance(what, int) else os.listxattr(what, follow_symlinks=False)
    return [name for name in map(os.fsencode, names) if name.startswith(_PREFIX)]


def _value(what: Open, name: bytes) -> bytes:
    if isinstance(what, int):
        return os.getxattr(what, name)
    return os.getxattr(what, name, follow_symlinks=False)


def _pack(found: Dict[bytes, bytes]) -> bytes:
    packed = b"".join(_HEAD.pack(len(name), len(found[name])) + name + found[name] for name in sorted(found))
    if len(packed) > LIMIT:
        raise RefusedError("attributes-too-large", "its attributes are more than 64 KiB")
    return packed


def packed_in(item: Dict[str, Any]) -> Optional[bytes]:
    """Those that an item is to have, as it came in a message; None where nobody says."""
    told = item.get("attributes")
    return None if told is None else base64.b64decode(told, validate=True)


def _unpack(packed: bytes) -> Dict[bytes, bytes]:
    """What `_pack` was given; anything else is refused."""
    found: Dict[bytes, bytes] = {}
    position = 0
    while position < len(packed):
        if position + _HEAD.size > len(packed):
            raise RefusedError("failed", "attributes that are cut short")
        name_length, length = _HEAD.unpack_from(packed, position)
        start = position + _HEAD.size
        name = packed[start : start + name_length]
        position = start + name_length + length
        if not name.startswith(_PREFIX) or b"\0" in name or position > len(packed):
            raise RefusedError("failed", "attributes that are none of a user's own")
        found[name] = packed[start + name_length : position]
    return found


def set_attributes(descriptor: int, packed: bytes) -> None:
    """Make an open file or folder have these and no others. Raises `RefusedError`."""
    wanted = _unpack(packed)
    try:
        there = _read(descriptor)
        for name in there.keys() - wanted.keys():
            os.removexattr(descriptor, name)
        for name, value in wanted.items():
            if there.get(name) != value:
                os.setxattr(descriptor, name, value)
    except OSError as problem:
        # A file of a full disk may well be too long for its attributes alone: that is not the disk's room.
        words = "its attributes cannot be kept there: {}".format(os.strerror(problem.errno or errno.EIO))
        raise RefusedError("attributes-not-kept", words) from None
