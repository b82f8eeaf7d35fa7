"""Remove, adjust and back up entries that are unchanged since the listing; remove whole trees."""

import contextlib
import errno
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

from transfers.agent import journal, protocol
from transfers.agent.acl import set_bits
from transfers.agent.lease import Lease, LockedError, living_holder
from transfers.agent.protocol import (
    IS_FOLDER,
    LEASE_SECONDS,
    Problem,
    Record,
    RefusedError,
    UnsafeNameError,
    problem_of,
)
from transfers.agent.safe_path import Root, Roots, record_of
from transfers.agent.writing import purge, set_attributes, sync_files


def has_changed(found: Record, item: Dict[str, Any]) -> bool:
    """Return whether a name differs from the listing: kind, and for files size and mtime."""
    if found.kind.decode("ascii") != item["kind"]:
        return True
    return item["kind"] == "f" and (found.size, found.mtime_ns) != (item["size"], item["mtime_ns"])


def remove_item(root: Root, item: Dict[str, Any]) -> Optional[Problem]:
    """Remove a name if kind, and for files size and mtime, match the listing; absent is done."""
    path = item["path"]
    try:
        found = root.lstat(path)
        if found is None:
            return None
        if has_changed(found, item):
            raise _changed()
        parent = root.parent(path)
        name = path.rpartition(b"/")[2]
        if item["kind"] == "d":
            root.forget(path)
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except (OSError, UnsafeNameError, RefusedError) as problem:
        return problem_of(problem)
    return None


def remove_exact(root: Root, path: bytes, listed: Tuple[int, ...]) -> Optional[Problem]:
    """Remove a regular file only if size, mtime, ctime, device, inode and number of names are as `listed`.

    The open file is compared, and then that its name still leads to it.
    """
    try:
        descriptor, now = root.open_known_file(path)
        try:
            parent, name = root.parent(path), path.rpartition(b"/")[2]
            found = record_of(path, now)
            state = found.size, found.mtime_ns, found.ctime_ns, found.device, found.inode, found.links
            named = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if state != listed or not os.path.samestat(named, now):
                raise _changed()
            os.unlink(name, dir_fd=parent)
        finally:
            os.close(descriptor)
    except (OSError, UnsafeNameError, RefusedError) as problem:
        return problem_of(problem)
    return None


State = Tuple[int, ...]  # size, mtime, ctime, device, inode and number of names


def remove_unchanged(
    root: Root, item: Dict[str, Any], unlinked: Dict[Tuple[int, int], State]
) -> Optional[Problem]:
    """Remove a name if its whole state is as listed in `item["exact"]`; folders as `remove_item` does, absent is done.

    Removing one of several names of a file changes its ctime and number of names: `unlinked` has the state after that, by device and inode.
    """
    if item["kind"] == "d":
        return remove_item(root, item)
    path, listed = item["path"], tuple(item["exact"])
    try:
        parent, name = root.parent(path), path.rpartition(b"/")[2]
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            found = record_of(path, os.fstat(descriptor))
            if has_changed(found, item) or _state(found) != unlinked.get(listed[3:5], listed):
                raise _changed()
            os.unlink(name, dir_fd=parent)
            if found.links > 1:
                unlinked[found.device, found.inode] = _state(record_of(path, os.fstat(descriptor)))
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return None
    except (OSError, UnsafeNameError, RefusedError) as problem:
        return problem_of(problem)
    return None


def _state(found: Record) -> State:
    return found.size, found.mtime_ns, found.ctime_ns, found.device, found.inode, found.links


NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)


def open_backup(root: Root, path: bytes, into: bytes, roots: Roots) -> Root:
    """Open the backup folder at an absolute path, creating it if absent. Raises `RefusedError`, OSError.

    It must be on the root's filesystem, neither inside the root at `path` nor around it.
    """
    real, own = os.path.realpath(into) + b"/", os.path.realpath(path) + b"/"
    if real.startswith(own) or own.startswith(real):
        raise RefusedError("backup-overlaps", "the backup folder and the target overlap")
    opened = roots.open(into, make=True)
    backup = opened.root(into)
    if opened.foreign is not None:
        backup.close()
        raise opened.foreign
    if os.fstat(backup.descriptor).st_dev != os.fstat(root.descriptor).st_dev:
        backup.close()
        raise RefusedError("other-filesystem", "the backup folder is on another filesystem than the target")
    return backup


def back_up_item(root: Root, backup: Root, item: Dict[str, Any]) -> Optional[Problem]:
    """Link a file into the backup if it is unchanged since the listing; absent is done.

    A later rename replaces the first name, so that it is never missing. Without hard links the file
    itself is moved. An existing other file in the backup is never replaced.
    """
    path = item["path"]
    try:
        found = root.lstat(path)
        if found is None:
            return None
        if has_changed(found, item):
            raise _changed()
        name = path.rpartition(b"/")[2]
        parent, into = root.parent(path), backup.parent(path, make=True)
        existing = backup.lstat(path)
        if existing is not None:
            same = (existing.device, existing.inode) == (found.device, found.inode)
            return (
                None
                if same
                else ["in-the-way", "the backup already contains another file with this name", False]
            )
        try:
            os.link(name, name, src_dir_fd=parent, dst_dir_fd=into, follow_symlinks=False)
        except OSError as problem:
            if problem.errno not in NO_LINKS:
                raise
            os.rename(name, name, src_dir_fd=parent, dst_dir_fd=into)
    except FileNotFoundError:
        return None
    except (OSError, UnsafeNameError, RefusedError) as problem:
        return problem_of(problem)
    return None


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def adjust_items(root: Root, items: List[Dict[str, Any]]) -> Dict[int, Problem]:
    """Adjust items in order and make the changes durable; return problems by position."""
    problems: Dict[int, Problem] = {}
    descriptors: Dict[int, int] = {}
    try:
        for position, item in enumerate(items):
            try:
                descriptor = _adjust(root, item)
            except (OSError, UnsafeNameError, RefusedError) as problem:
                problems[position] = problem_of(problem)
            else:
                if descriptor is not None:
                    descriptors[descriptor] = position
        for descriptor, failure in sync_files(list(descriptors)).items():
            problems[descriptors[descriptor]] = failure
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return problems


def _adjust(root: Root, item: Dict[str, Any]) -> Optional[int]:
    """Return an open descriptor of the changed entry, None if nothing was changed."""
    path = item["path"]
    found = root.lstat(path)
    if found is None:
        raise FileNotFoundError(2, "it does not exist")
    if has_changed(found, item):
        raise _changed()
    # Folders keep setgid and sticky bits, which the site set; files lose these bits.
    above = found.mode & 0o7000 if found.kind == IS_FOLDER else 0
    wanted = found.mode if item["permissions"] is None else above | item["permissions"] & 0o777
    if found.mode == wanted and item["attributes"] is None:
        return None
    descriptor = os.open(path.rpartition(b"/")[2], _FLAGS, dir_fd=root.parent(path))
    try:
        now = os.fstat(descriptor)
        if (now.st_dev, now.st_ino) != (found.device, found.inode):
            raise _changed()
        if item["attributes"] is not None:
            set_attributes(descriptor, item["attributes"])
        if found.mode != wanted:
            set_bits(descriptor, wanted)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _changed() -> RefusedError:
    return RefusedError("target-changed", "it changed after it was listed, so hibali left it unchanged")


_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def check_root_path(root: Root, path: bytes) -> None:
    """Raise `RefusedError` if the path `path` is a symlink to the root or no longer leads to it."""
    if not os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(root.descriptor)):
        raise RefusedError("symlink-in-the-way", "it is a symlink, or was replaced")


def check_unlocked(root: Root, path: bytes, targets_below: List[bytes]) -> None:
    """Raise `LockedError` if a folder above the root, or one of `targets_below` below it, is locked.

    Locks of other accounts are ignored: in a folder that all may write, any account could block everyone.
    """
    clock = os.stat(b"lock", dir_fd=root.folder(protocol.OWN_FOLDER), follow_symlinks=False).st_mtime
    check_unlocked_above(os.path.realpath(path), clock)
    for target in targets_below:
        with contextlib.suppress(OSError):
            _check_unlocked(protocol.OWN_FOLDER, root.folder(target), clock)


def check_unlocked_above(real_path: bytes, clock: float, token: str = "") -> None:
    """Raise `LockedError` if a folder above a real path is locked, except by the lock with this token."""
    above = real_path
    while above != b"/":
        above = os.path.dirname(above)
        _check_unlocked(os.path.join(above, protocol.OWN_FOLDER), None, clock, token)


def _check_unlocked(path: bytes, parent: Optional[int], clock: float, token: str = "") -> None:
    try:
        folder = os.open(path, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    except OSError:
        return
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            held = living_holder(folder, clock)
            if held is not None and not (token and held[0].get("token") == token):
                raise LockedError(*held)
    except (OSError, RefusedError):
        return
    finally:
        os.close(folder)


def remove_own_files(
    root: Root, check: Callable[[], None], partials: List[bytes], targets_below: List[bytes]
) -> List[Tuple[bytes, Problem]]:
    """Remove partial files, and `.hibali` of targets below; return problems by path."""
    for partial in [*partials, *(part.partial for part in journal.read_partial_files(root))]:
        check()
        with contextlib.suppress(OSError, UnsafeNameError):  # its folder is then reported as not empty
            purge(root, partial)
    problems = []
    for target in targets_below:
        check()
        problem = _clear_target(root, target)
        if problem is not None:
            problems.append((target, problem))
    return problems


def _clear_target(root: Root, target: bytes) -> Optional[Problem]:
    """Lock a target below, and remove its `.hibali`."""
    own = target + b"/" + protocol.OWN_FOLDER
    try:
        found = root.lstat(own)
        if found is None or found.kind != IS_FOLDER:
            return None
        inner = Root(os.dup(root.folder(target)))
    except OSError as problem:
        return problem_of(problem)
    try:
        lease = Lease(inner, "rm", "", LEASE_SECONDS)
        try:
            clear_own_folder(inner)
        finally:
            lease.release()
    except LockedError:
        return ["locked", "another operation holds its lock", False]
    except (OSError, RefusedError) as problem:
        return problem_of(problem)
    finally:
        inner.close()
    root.forget(own)
    return None


def clear_own_folder(root: Root) -> None:
    """Remove everything in a root's `.hibali` except the held lock. Raises OSError."""
    folder = root.folder(protocol.OWN_FOLDER)
    for name in protocol.OWN:
        if name != b"lock":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


def remove_root(root: Root, path: bytes) -> Optional[Problem]:
    """Remove the root folder, empty by now, never through a symlink; absent is done."""
    try:
        above = os.open(os.path.dirname(path), _FOLDER_FLAGS)
    except OSError as problem:
        return problem_of(problem)
    try:
        name = os.path.basename(path)
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
        if not os.path.samestat(found, os.fstat(root.descriptor)):
            return ["target-changed", "the folder was replaced, so hibali did not remove it", False]
        os.rmdir(name, dir_fd=above)
    except FileNotFoundError:
        return None
    except OSError as problem:
        return problem_of(problem)
    finally:
        os.close(above)
    return None
