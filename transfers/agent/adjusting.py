"""Setting permissions and attributes of what stands, by descriptor and only where it still is what was listed (S1, S2)."""

import os
from typing import Any, Dict, List, Optional

from transfers.agent.attributes import set_attributes
from transfers.agent.beneath import Root, UnsafeNameError
from transfers.agent.problems import Problem, RefusedError, problem_of
from transfers.agent.records import FOLDER
from transfers.agent.removing import has_changed
from transfers.agent.sync import sync_files

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def adjust_items(root: Root, items: List[Dict[str, Any]]) -> Dict[int, Problem]:
    """Adjust them in their order and make that durable; what went wrong, by position."""
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
    """An open descriptor of what was changed, None where nothing had to be."""
    path = item["path"]
    found = root.lstat(path)
    if found is None:
        raise FileNotFoundError(2, "there is nothing there")
    if has_changed(found, item):
        raise _changed()
    # What a folder has of its own (setgid, sticky) is the site's; a file loses what must never be kept.
    above = found.mode & 0o7000 if found.kind == FOLDER else 0
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
            os.fchmod(descriptor, wanted)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _changed() -> RefusedError:
    return RefusedError("target-changed", "it changed after it was listed and was left alone")
