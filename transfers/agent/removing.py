"""Removing what was listed, and only that."""

import errno
import os
import stat
from typing import Any, Dict, Optional

from transfers.agent.beneath import Root, UnsafeNameError
from transfers.agent.problems import Problem, problem_of
from transfers.agent.records import Record


def has_changed(found: Record, item: Dict[str, Any]) -> bool:
    """Whether a name is no longer what was listed: kind, and for files size and mtime."""
    if found.kind.decode("ascii") != item["kind"]:
        return True
    return item["kind"] == "f" and (found.size, found.mtime_ns) != (item["size"], item["mtime_ns"])


def remove_item(root: Root, item: Dict[str, Any]) -> Optional[Problem]:
    """Remove one name if it still is what was listed (kind, and for files size and mtime); absent is done already."""
    path = item["path"]
    try:
        found = root.lstat(path)
        if found is None:
            return None
        if has_changed(found, item):
            return ["target-changed", "it changed after it was listed and was left alone", False]
        parent = root.parent(path)
        name = path.rpartition(b"/")[2]
        if item["kind"] == "d":
            root.forget(path)
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except (OSError, UnsafeNameError) as problem:
        return problem_of(problem)
    return None


def remove_tree(parent: int, name: bytes) -> None:
    """Remove a name and all below it by descriptors, never through a symlink; absent is done. Raises OSError."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=parent)
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
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
    """Remove something of our own: a partial file, or a folder that made room."""
    try:
        root.forget(path)
        remove_tree(root.parent(path), path.rpartition(b"/")[2])
    except FileNotFoundError:
        pass
