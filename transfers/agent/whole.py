"""Store and read single small files by one request each, without a lock.

A file is written without a name (O_TMPFILE of open(2)) and gets its name by linkat(2) when it is complete and on disk: a
killed agent leaves nothing behind, and an existing file is never replaced. Filesystems that cannot do that (NFS, Lustre)
and names that exist are left to the locked way.
"""

import errno
import os
from typing import List

from transfers.agent import frames
from transfers.agent.beneath import Root, split_path
from transfers.agent.problems import RefusedError
from transfers.agent.sync import sync_folders

_CANNOT = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)
_CANNOT_LINK = (*_CANNOT, errno.EEXIST, errno.ENOENT, errno.EPERM)  # ENOENT where /proc is not mounted


def store_whole(root: Root, path: bytes, content: frames.Body, mtime_ns: int, executable: bool) -> bool:  # noqa: FBT001  # Python 3.6 style
    """Store `content` under the new name `path`; False, and nothing done, where that takes the locked way.

    Args:
        root: the folder that `path` is below; missing folders are made.
        path: relative to it.
        content: the whole file.
        mtime_ns: its time of modification, in nanoseconds.
        executable: whether the execute bits are set that the umask leaves.

    Raises:
        OSError, UnsafeNameError, RefusedError: as for any other file.
    """
    root.forget_all()  # another process may have replaced a folder since
    name = split_path(path)[-1]
    folders = [path.rpartition(b"/")[0]]
    try:
        parent = root.parent(path)
    except FileNotFoundError:
        parent, folders = root.parent(path, make=True), _folders_above(path)
    try:
        mode = 0o777 if executable else 0o666
        descriptor = os.open(b".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=parent)
    except OSError as problem:
        if problem.errno in _CANNOT:
            return False
        raise
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        os.fsync(descriptor)
        try:
            unnamed = "/proc/self/fd/{}".format(descriptor)
            os.link(unnamed, name, dst_dir_fd=parent, follow_symlinks=True)
        except OSError as problem:
            if problem.errno in _CANNOT_LINK:
                return False
            raise
    finally:
        os.close(descriptor)
    for failure in sync_folders(root, folders).values():
        raise RefusedError(str(failure[0]), str(failure[1]))
    return True


def fetch_whole(root: Root, path: bytes, maximum: int) -> bytes:
    """The content of a regular file, or its first `maximum` + 1 bytes; raises OSError, UnsafeNameError."""
    root.forget_all()
    descriptor = root.open_file(path)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(maximum + 1)


def _folders_above(path: bytes) -> List[bytes]:
    """The folder of `path` and those above it up to the root."""
    folders = []
    while path:
        path = path.rpartition(b"/")[0]
        folders.append(path)
    return folders
