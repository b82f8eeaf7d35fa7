"""Store and fetch small whole files, several in one request: new ones without a lock, others under a lock of this request."""

import contextlib
import errno
import os
import stat
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from transfers.agent import protocol
from transfers.agent.acl import path_in, set_like
from transfers.agent.lease import Lease, LockedError, LostLeaseError
from transfers.agent.progress import step
from transfers.agent.protocol import ChangedError, Problem, RefusedError, UnsafeNameError, problem_of
from transfers.agent.safe_path import Root, split_path
from transfers.agent.writing import sync_files, sync_folders, write_piece

_CANNOT = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)
_CANNOT_LINK = (*_CANNOT, errno.ENOENT, errno.EPERM)  # ENOENT where /proc is not mounted
_LOCK_TRIES = 40
_LOCK_PAUSE = 0.025  # seconds: another process that stores small files holds the lock as briefly

NEEDS_TRANSFER = "needs-transfer"


class NeedsTransferError(Exception):
    """Nothing was changed: this file needs the lock and journal of a transfer."""


class SmallFile(NamedTuple):
    """A file that is stored whole; its path is relative to the root."""

    path: bytes
    content: protocol.Body
    mtime_ns: int
    executable: bool  # whether a new file gets the execute bits that the umask allows


_FAILURES = (OSError, UnsafeNameError, RefusedError, NeedsTransferError, LockedError, LostLeaseError)
Failure = Optional[Exception]
Lock = Callable[[], Lease]


def store_files(root: Root, files: Sequence[SmallFile], lock: Optional[Lock] = None) -> List[Failure]:
    """Store files, each whole or not at all and on disk; return what failed, or None, for each.

    Args:
        root: the folder that contains all paths; missing folders are created.
        files: at most a few hundred, because all are open at the same time.
        lock: acquires the lock of the root, under which existing files are replaced; without it they need a transfer.
    """
    root.forget_all()  # another process may have replaced a folder since
    failures: List[Failure] = [None] * len(files)
    opened: Dict[int, int] = {}
    folders: Set[bytes] = set()
    with root.keeping_open(), contextlib.ExitStack() as stack:
        for index, file in enumerate(files):
            try:
                opened[index] = _write(root, file, folders, replaces=lock is not None)
                stack.callback(os.close, opened[index])
            except _FAILURES as problem:
                failures[index] = problem
        unsynced = sync_files(list(opened.values()))
        existing = []
        for index, descriptor in opened.items():
            failures[index] = _refused(unsynced.get(descriptor)) or _link(root, files[index], descriptor)
            if isinstance(failures[index], FileExistsError):
                existing.append(index)
        if existing:
            found = _replace(root, [(files[index], opened[index]) for index in existing], lock, stack)
            for index, failure in zip(existing, found):
                failures[index] = failure
        moved = sync_folders(root, sorted(folders))
    for index in opened:
        failures[index] = failures[index] or _refused(moved.get(_folder_of(files[index])))
    return failures


def store_whole(root: Root, file: SmallFile) -> bool:
    """Store a new file; return False, with nothing changed, if that needs a transfer.

    Raises:
        OSError, UnsafeNameError, RefusedError: as for any other file.
    """
    failure = store_files(root, [file])[0]
    if failure is None or isinstance(failure, NeedsTransferError):
        return failure is None
    raise failure


def _write(root: Root, file: SmallFile, folders: Set[bytes], replaces: bool) -> int:  # noqa: FBT001  # Python 3.6 style
    """Write a file that has no name yet; add the folders to sync once it has. Raises one of `_FAILURES`."""
    name = split_path(file.path)[-1]
    try:
        parent = root.parent(file.path)
        folders.add(_folder_of(file))
    except FileNotFoundError:
        parent = root.parent(file.path, make=True)
        folders.update(_folders_above(file.path))
    try:
        mode = 0o777 if file.executable else 0o666
        descriptor = os.open(b".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=parent)
    except OSError as problem:
        if problem.errno in _CANNOT:
            raise NeedsTransferError from None
        raise
    try:
        write_piece(descriptor, memoryview(file.content), 0)
        if replaces:
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
                set_like(descriptor, path_in(parent, name), stat.S_IMODE(found.st_mode), False)
        os.utime(descriptor, ns=(file.mtime_ns, file.mtime_ns))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _link(root: Root, file: SmallFile, descriptor: int) -> Failure:
    """Give a written file its name, unless that exists."""
    try:
        _link_at(descriptor, split_path(file.path)[-1], root.parent(file.path))
    except _FAILURES as problem:
        return problem
    return None


def _link_at(descriptor: int, name: bytes, folder: int) -> None:
    """Name a written file (open(2), O_TMPFILE). Raises OSError, `NeedsTransferError`."""
    try:
        unnamed = "/proc/self/fd/{}".format(descriptor)
        os.link(unnamed, name, dst_dir_fd=folder, follow_symlinks=True)
    except OSError as problem:
        if problem.errno in _CANNOT_LINK:
            raise NeedsTransferError from None
        raise


def _replace(
    root: Root, files: Sequence[Tuple[SmallFile, int]], lock: Optional[Lock], stack: contextlib.ExitStack
) -> List[Failure]:
    """Replace existing files by written ones; the lock is kept until `stack` ends, after the folders were synced."""
    failures: List[Failure] = []
    try:
        if lock is None:
            raise NeedsTransferError
        lease = _acquire(lock)
        stack.callback(root.forget, protocol.OWN_FOLDER)
        stack.callback(lease.release)
        root.forget(protocol.OWN_FOLDER)
        _check_nothing_begun(root)
    except _FAILURES as problem:
        return [problem] * len(files)
    for file, descriptor in files:
        try:
            _rename_over(root, lease, file, descriptor)
            failures.append(None)
        except _FAILURES as problem:
            failures.append(problem)
    return failures


def _acquire(lock: Lock) -> Lease:
    """Return the lock, after another process that stores small files released it. Raises `LockedError`."""
    for _ in range(_LOCK_TRIES):
        step()
        with contextlib.suppress(LockedError):
            return lock()
        time.sleep(_LOCK_PAUSE)
    return lock()


def _check_nothing_begun(root: Root) -> None:
    """Raise `NeedsTransferError` if an interrupted transfer may return, or the files below the root are packed."""
    names = map(os.fsencode, os.listdir(root.folder(protocol.OWN_FOLDER)))
    if any(name != b"lock" and not protocol.is_lock_part(name) for name in names):
        raise NeedsTransferError


def _rename_over(root: Root, lease: Lease, file: SmallFile, descriptor: int) -> None:
    """Rename a written file over a regular one. After a kill the next holder of the lock removes its first name."""
    parent, name = root.parent(file.path), split_path(file.path)[-1]
    if not stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        raise NeedsTransferError
    first, own = b"new." + os.urandom(16).hex().encode("ascii"), root.folder(protocol.OWN_FOLDER)
    _link_at(descriptor, first, own)
    try:
        lease.check()
        os.rename(first, name, src_dir_fd=own, dst_dir_fd=parent)
    except BaseException as problem:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(first, dir_fd=own)
        if (
            isinstance(problem, OSError) and problem.errno == errno.EXDEV
        ):  # another filesystem is mounted there
            raise NeedsTransferError from None
        raise


def fetch_whole(root: Root, path: bytes, maximum: int) -> bytes:
    """Return at most `maximum` + 1 bytes of a regular file; raises OSError, UnsafeNameError."""
    root.forget_all()
    with os.fdopen(root.open_file(path), "rb") as stream:
        return stream.read(maximum + 1)


def fetch_files(root: Root, paths: Sequence[bytes], maximum: int) -> Tuple[List[Any], bytearray]:
    """Read small files; return the size of each, or its problem, and all contents.

    A file that does not fit into `maximum` bytes, with those before it, has the problem `NEEDS_TRANSFER`.
    """
    root.forget_all()
    found: List[Any] = []
    body = bytearray()
    for path in paths:
        try:
            content = _read(root, path, maximum - len(body))
            found.append(len(content))
            body += content
        except _READ_FAILURES as problem:
            found.append(failure_of(problem))
    return found, body


_READ_FAILURES = (OSError, UnsafeNameError, NeedsTransferError, ChangedError)


def _read(root: Root, path: bytes, maximum: int) -> bytes:
    """Return the content of one version of a file. Raises one of `_READ_FAILURES`."""
    descriptor, before = root.open_known_file(path)
    with os.fdopen(descriptor, "rb") as stream:
        if before.st_size > maximum:
            raise NeedsTransferError
        content = stream.read(before.st_size + 1)
        after = os.fstat(descriptor)
    if len(content) != before.st_size or (before.st_mtime_ns, before.st_ctime_ns) != (
        after.st_mtime_ns,
        after.st_ctime_ns,
    ):
        raise ChangedError("the file changed while it was read")
    return content


def failure_of(problem: Exception) -> Problem:
    """Return [code, message, again] for an exception of this module."""
    if isinstance(problem, NeedsTransferError):
        return [NEEDS_TRANSFER, "this file needs a transfer", False]
    if isinstance(problem, (LockedError, LostLeaseError)):
        return ["locked", "another operation holds the lock", True]
    return problem_of(problem)


def _refused(problem: Optional[Problem]) -> Failure:
    return None if problem is None else RefusedError(str(problem[0]), str(problem[1]))


def _folder_of(file: SmallFile) -> bytes:
    return file.path.rpartition(b"/")[0]


def _folders_above(path: bytes) -> List[bytes]:
    """Return the folder of `path` and its parents up to the root."""
    folders = []
    while path:
        path = path.rpartition(b"/")[0]
        folders.append(path)
    return folders
