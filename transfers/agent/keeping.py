"""Keeping what is about to be replaced or deleted, under the same name in another folder of the filesystem."""

import errno
import os
from typing import Any, Dict, Optional

from transfers.agent.beneath import Root, UnsafeNameError
from transfers.agent.problems import Problem, RefusedError, problem_of
from transfers.agent.removing import has_changed
from transfers.agent.trusted import Roots

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)


def open_backup(root: Root, path: bytes, into: bytes, roots: Roots) -> Root:
    """The backup folder at an absolute path, made where it is missing. Raises `RefusedError`, OSError.

    It has to be on the root's filesystem, neither in the root at `path` nor around it.
    """
    real, own = os.path.realpath(into) + b"/", os.path.realpath(path) + b"/"
    if real.startswith(own) or own.startswith(real):
        raise RefusedError("backup-overlaps", "the backup folder and the target lie one in the other")
    place = roots.open(into, make=True)
    backup = Root(place.descriptor)
    if place.foreign is not None:
        backup.close()
        raise place.foreign
    if os.fstat(backup.descriptor).st_dev != os.fstat(root.descriptor).st_dev:
        backup.close()
        raise RefusedError("other-filesystem", "the backup folder is on another filesystem than the target")
    return backup


def keep_item(root: Root, backup: Root, item: Dict[str, Any]) -> Optional[Problem]:
    """Give the file a second name in the backup, if it still is what was listed; absent is done already.

    The first name goes when something is renamed over it, so that it is never missing. Where there are no hard links
    the file itself is moved. Another file that is kept there already is never replaced.
    """
    path = item["path"]
    try:
        found = root.lstat(path)
        if found is None:
            return None
        if has_changed(found, item):
            return ["target-changed", "it changed after it was listed and was left alone", False]
        name = path.rpartition(b"/")[2]
        parent, into = root.parent(path), backup.parent(path, make=True)
        kept = backup.lstat(path)
        if kept is not None:
            same = (kept.device, kept.inode) == (found.device, found.inode)
            return None if same else ["in-the-way", "another file of this name is kept there already", False]
        try:
            os.link(name, name, src_dir_fd=parent, dst_dir_fd=into, follow_symlinks=False)
        except OSError as problem:
            if problem.errno not in _NO_LINKS:
                raise
            os.rename(name, name, src_dir_fd=parent, dst_dir_fd=into)
    except FileNotFoundError:
        return None
    except (OSError, UnsafeNameError) as problem:
        return problem_of(problem)
    return None
