"""Making many files durable at once."""

import errno
import os
from typing import Dict, List, Optional, Tuple

from transfers.agent.beneath import Root
from transfers.agent.problems import Problem, problem_of

_THREADS = 8
# Below this many files, syncing each costs less than writing back all that others have dirty.
_WHOLE_FILESYSTEM_FROM = 64


def _kernel() -> Tuple[int, ...]:
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


def _sync_filesystem(descriptor: int) -> Optional[int]:
    """Write back all of the filesystem, 0 or what went wrong; None where the kernel cannot tell that."""
    # Before Linux 5.8 syncfs(2) did not report failed writes.
    if _kernel() < (5, 8):
        return None
    import ctypes

    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    return 0 if syncfs(descriptor) == 0 else ctypes.get_errno() or errno.EIO


def sync_files(descriptors: List[int]) -> Dict[int, Problem]:
    """Write everything back to disk; what failed, by descriptor."""
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
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_THREADS, len(descriptors))) as pool:
        failures: Dict[int, Problem] = {}
        for part in pool.map(_sync_each, [descriptors[start::_THREADS] for start in range(_THREADS)]):
            failures.update(part)
        return failures


def _sync_each(descriptors: List[int]) -> Dict[int, Problem]:
    failures = {}
    for descriptor in descriptors:
        try:
            os.fsync(descriptor)
        except OSError as problem:
            failures[descriptor] = problem_of(problem)
    return failures


def sync_folders(root: Root, paths: List[bytes]) -> Dict[bytes, Problem]:
    """Make renames in these folders durable; what failed, by folder."""
    failures = {}
    for path in paths:
        try:
            os.fsync(root.folder(path))
        except OSError as problem:
            # Some filesystems cannot sync a folder and say so: then there is nothing more to ask of them.
            if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
                failures[path] = problem_of(problem)
    return failures
