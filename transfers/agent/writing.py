"""Write files durably: extended attributes (`user.*` only, S2), sync, and holes."""

import base64
import errno
import os
import stat
import struct
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from transfers.agent.progress import step
from transfers.agent.protocol import (
    IS_FILE,
    IS_FOLDER,
    ITEM_DEFAULTS,
    Problem,
    Record,
    RefusedError,
    bytes_of,
    problem_of,
)
from transfers.agent.safe_path import Root


def remove_tree(parent: int, name: bytes) -> None:
    """Remove a name and all below it, never through a symlink; absent is a success.

    Raises OSError, and `RefusedError` where another filesystem is mounted.
    """
    step()
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=parent)
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(descriptor).st_dev != os.fstat(parent).st_dev:
            raise RefusedError("another-filesystem", "another filesystem is mounted in it")
        for child in os.listdir(descriptor):
            remove_tree(descriptor, os.fsencode(child))
    finally:
        os.close(descriptor)
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as problem:
        if problem.errno != errno.ENOENT:
            raise


def purge(root: Root, path: bytes) -> None:
    """Remove a partial file, or a folder that was moved aside."""
    try:
        root.forget(path)
        remove_tree(root.parent(path), path.rpartition(b"/")[2])
    except FileNotFoundError:
        pass


LIMIT = 64 * 1024  # bytes of one file's attributes, names and values: about the limit of XFS and btrfs
_PREFIX = b"user."
_HEAD = struct.Struct(">HI")
_NONE = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

Open = Union[int, bytes]  # a descriptor, or a path whose last component is not followed


def supports_attributes(folder: bytes) -> bool:
    """Return whether the filesystem of a folder stores such attributes."""
    if not hasattr(os, "getxattr"):
        return False
    try:
        os.getxattr(folder, b"user.hibali")
    except OSError as problem:
        return problem.errno not in _NONE
    return True


def read_attributes(descriptor: int, name: bytes) -> bytes:
    """Return the packed attributes of a name, sorted; no symlink followed. Raises OSError, `RefusedError`."""
    return _pack(_read(b"/proc/self/fd/%d/%s" % (descriptor, name)))


def with_attributes(descriptor: int, name: bytes, record: Record) -> Record:
    """Return the record with the attributes of a name in an open folder; only files and folders have any."""
    if record.kind not in (IS_FILE, IS_FOLDER):
        return record
    return record._replace(attributes=read_attributes(descriptor, name))


def _read(target: Open) -> Dict[bytes, bytes]:
    try:
        names = _names(target)
        return {name: _value(target, name) for name in names}
    except OSError as problem:
        if problem.errno in _NONE:
            return {}
        raise


def _names(target: Open) -> List[bytes]:
    names = os.listxattr(target) if isinstance(target, int) else os.listxattr(target, follow_symlinks=False)
    return [name for name in map(os.fsencode, names) if name.startswith(_PREFIX)]


def _value(target: Open, name: bytes) -> bytes:
    if isinstance(target, int):
        return os.getxattr(target, name)
    return os.getxattr(target, name, follow_symlinks=False)


def _pack(found: Dict[bytes, bytes]) -> bytes:
    packed = b"".join(_HEAD.pack(len(name), len(found[name])) + name + found[name] for name in sorted(found))
    if len(packed) > LIMIT:
        raise RefusedError("attributes-too-large", "its extended attributes are larger than 64 KiB")
    return packed


def packed_in(item: Dict[str, Any]) -> Optional[bytes]:
    """Return the attributes that a received item requests; None if it requests nothing."""
    encoded = item.get("attributes")
    return None if encoded is None else base64.b64decode(encoded, validate=True)


_NAMES = ("path", "link", "same_as")
_ITEM_DEFAULTS = {name: bytes_of(value) if name in _NAMES else value for name, value in ITEM_DEFAULTS.items()}


def unpack_item(header: Mapping[str, Any]) -> Dict[str, Any]:
    """Return an item of a message with what that left out, and with its names as bytes."""
    item = dict(_ITEM_DEFAULTS, **header)
    for name in _NAMES:
        if name in header:
            item[name] = bytes_of(item[name])
    item["attributes"] = packed_in(item)
    return item


def _unpack(packed: bytes) -> Dict[bytes, bytes]:
    """Decode the output of `_pack`; refuse anything else."""
    found: Dict[bytes, bytes] = {}
    position = 0
    while position < len(packed):
        if position + _HEAD.size > len(packed):
            raise RefusedError("failed", "the extended attributes are truncated")
        name_length, length = _HEAD.unpack_from(packed, position)
        start = position + _HEAD.size
        name = packed[start : start + name_length]
        position = start + name_length + length
        if not name.startswith(_PREFIX) or b"\0" in name or position > len(packed):
            raise RefusedError(
                "failed", "the extended attributes are malformed, or not in the `user` namespace"
            )
        found[name] = packed[start + name_length : position]
    return found


def set_attributes(descriptor: int, packed: bytes) -> None:
    """Set exactly these attributes on an open file or folder. Raises `RefusedError`."""
    wanted = _unpack(packed)
    try:
        there = _read(descriptor)
        for name in there.keys() - wanted.keys():
            os.removexattr(descriptor, name)
        for name, value in wanted.items():
            if there.get(name) != value:
                os.setxattr(descriptor, name, value)
    except OSError as problem:
        # ENOSPC here may mean that the attributes are too large, not that the disk is full.
        message = "its extended attributes cannot be stored there: {}".format(
            os.strerror(problem.errno or errno.EIO)
        )
        raise RefusedError("attributes-not-kept", message) from None


_THREADS = 8
# For fewer files, syncing each is cheaper than writing back all dirty data of other processes.
_WHOLE_FILESYSTEM_FROM = 64


def _kernel() -> Tuple[int, ...]:
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


def _sync_filesystem(descriptor: int) -> Optional[int]:
    """Sync the whole filesystem; return 0 or the errno, None if the kernel does not report errors."""
    # Before Linux 5.8 syncfs(2) did not report failed writes.
    if _kernel() < (5, 8):
        return None
    import ctypes  # start-up: only for this request

    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    return 0 if syncfs(descriptor) == 0 else ctypes.get_errno() or errno.EIO


def sync_files(descriptors: List[int]) -> Dict[int, Problem]:
    """Sync all files to disk; return problems by descriptor."""
    if not descriptors:
        return {}
    if len(descriptors) >= _WHOLE_FILESYSTEM_FROM:
        number = _sync_filesystem(descriptors[0])
        if number == 0:
            return {}
        if number is not None:
            return dict.fromkeys(descriptors, problem_of(OSError(number, os.strerror(number))))
    if len(descriptors) == 1:
        return _sync_each(descriptors)
    from concurrent.futures import ThreadPoolExecutor  # start-up: only for this request

    with ThreadPoolExecutor(min(_THREADS, len(descriptors))) as pool:
        failures: Dict[int, Problem] = {}
        for part in pool.map(_sync_each, [descriptors[start::_THREADS] for start in range(_THREADS)]):
            failures.update(part)
        return failures


def _sync_each(descriptors: List[int]) -> Dict[int, Problem]:
    failures = {}
    for descriptor in descriptors:
        step()
        try:
            os.fsync(descriptor)
        except OSError as problem:
            failures[descriptor] = problem_of(problem)
    return failures


def sync_folders(root: Root, paths: List[bytes]) -> Dict[bytes, Problem]:
    """Make renames in these folders durable; return problems by folder, also of folders that were moved meanwhile."""
    failures: Dict[bytes, Problem] = {}
    for path in paths:
        try:
            os.fsync(root.folder(path))
            if not root.leads_to(path):
                failures[path] = ["target-changed", "its folder was renamed, replaced or unmounted", False]
        except OSError as problem:
            # Some filesystems cannot sync a folder and report that: nothing more can be done.
            if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
                failures[path] = problem_of(problem)
    return failures


_BLOCK = 4096  # smallest allocation of filesystems (ext4, XFS, Lustre and tmpfs by default)
_ZEROS = bytes(_BLOCK)
_CHUNK = 1024 * 1024


def write_at(descriptor: int, item: Dict[str, Any], content: memoryview, offset: int) -> None:
    """Write at an offset, but not a sparse file's zero blocks; the opener sets its length. Raises OSError."""
    if not item["sparse"]:
        write_piece(descriptor, content, offset)
        return
    for zeros, start, end in _runs(content, offset):
        # An earlier attempt may have left data: check that zeros are read before leaving a hole.
        if not (zeros and _is_empty(descriptor, offset + start, end - start)):
            write_piece(descriptor, content[start:end], offset + start)


def write_piece(descriptor: int, content: memoryview, offset: int) -> None:
    """Write everything at an offset. Raises OSError."""
    while len(content):
        step()
        written = os.pwrite(descriptor, content, offset)
        content = content[written:]
        offset += written


def _runs(content: memoryview, offset: int) -> Iterator[Tuple[bool, int, int]]:
    """Yield runs of whole zero blocks (aligned in the file) and of other data: (zeros, start, end)."""
    length = len(content)
    start = position = 0
    before = False
    while position < length:
        stop = min(length, position + _BLOCK - (offset + position) % _BLOCK)
        zeros = (
            stop - position == _BLOCK
            and content[position] == 0
            and content[stop - 1] == 0
            and bytes(content[position:stop]) == _ZEROS
        )
        if zeros != before:
            if position > start:
                yield before, start, position
            start, before = position, zeros
        position = stop
    if length > start:
        yield before, start, length


def _is_empty(descriptor: int, offset: int, length: int) -> bool:
    """Return whether the range has only zeros or is beyond the end of the file."""
    end = offset + length
    while offset < end:
        step()
        found = os.pread(descriptor, min(_CHUNK, end - offset), offset)
        if found.count(0) != len(found):
            return False
        if not found:
            return True
        offset += len(found)
    return True
