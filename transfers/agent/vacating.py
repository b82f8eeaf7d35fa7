"""Removing a whole tree: nobody may be at work around it or in it, and what hibali itself keeps there goes, too."""

import contextlib
import os
from typing import Callable, List, Optional, Tuple

from transfers.agent import begun, own_names
from transfers.agent.beneath import Root, UnsafeNameError
from transfers.agent.lease import LEASE_SECONDS, Lease, LockedError, living_holder
from transfers.agent.problems import Problem, RefusedError, problem_of
from transfers.agent.records import FOLDER
from transfers.agent.removing import purge

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def check_itself(root: Root, where: bytes) -> None:
    """Raise `RefusedError` where the path `where` is a symlink to the root, or leads to something else by now."""
    if not os.path.samestat(os.stat(where, follow_symlinks=False), os.fstat(root.descriptor)):
        raise RefusedError("symlink-in-the-way", "it is a symlink, or was replaced just now")


def check_unheld(root: Root, where: bytes, places: List[bytes]) -> None:
    """Raise `LockedError` where somebody holds a folder above the root, or one of `places` below it; the root's lock is ours.

    A lock of another account counts for nothing: in a folder that all may write, anybody could forbid everything.
    """
    clock = os.stat(b"lock", dir_fd=root.folder(own_names.FOLDER), follow_symlinks=False).st_mtime
    above = os.path.realpath(where)
    while above != b"/":
        above = os.path.dirname(above)
        _check_place(os.path.join(above, own_names.FOLDER), None, clock)
    for place in places:
        with contextlib.suppress(OSError):
            _check_place(own_names.FOLDER, root.folder(place), clock)


def _check_place(path: bytes, parent: Optional[int], clock: float) -> None:
    try:
        folder = os.open(path, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    except OSError:
        return
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            held = living_holder(folder, clock)
            if held is not None:
                raise LockedError(*held)
    except OSError:
        return
    finally:
        os.close(folder)


def sweep(
    root: Root, check: Callable[[], None], partials: List[bytes], places: List[bytes]
) -> List[Tuple[bytes, Problem]]:
    """Remove what interrupted operations left in part, and what is kept at places below; what could not be."""
    for partial in [*partials, *(part.partial for part in begun.read_begun(root))]:
        check()
        with contextlib.suppress(OSError, UnsafeNameError):  # then its folder is not empty, and that is told
            purge(root, partial)
    problems = []
    for place in places:
        check()
        problem = _clear_place(root, place)
        if problem is not None:
            problems.append((place, problem))
    return problems


def _clear_place(root: Root, place: bytes) -> Optional[Problem]:
    """Remove the `.hibali` of a place below, as the holder of its lock."""
    own = place + b"/" + own_names.FOLDER
    try:
        found = root.lstat(own)
        if found is None or found.kind != FOLDER:
            return None
        inner = Root(os.dup(root.folder(place)))
    except OSError as problem:
        return problem_of(problem)
    try:
        lease = Lease(inner, "rm", "", LEASE_SECONDS)
        try:
            remove_own(inner)
        finally:
            lease.release()
    except LockedError:
        return ["locked", "another operation is at work there", False]
    except (OSError, RefusedError) as problem:
        return problem_of(problem)
    finally:
        inner.close()
    root.forget(own)
    return None


def remove_own(root: Root) -> None:
    """Remove all that is ours in the `.hibali` of a root, but for the lock that is held. Raises OSError."""
    folder = root.folder(own_names.FOLDER)
    for name in own_names.OWN:
        if name != b"lock":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


def remove_root(root: Root, where: bytes) -> Optional[Problem]:
    """Remove the folder that the root is, empty by now and never through a symlink; absent is done already."""
    try:
        above = os.open(os.path.dirname(where), _FOLDER_FLAGS)
    except OSError as problem:
        return problem_of(problem)
    try:
        name = os.path.basename(where)
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
        if not os.path.samestat(found, os.fstat(root.descriptor)):
            return ["target-changed", "something else stands there by now, and was left alone", False]
        os.rmdir(name, dir_fd=above)
    except FileNotFoundError:
        return None
    except OSError as problem:
        return problem_of(problem)
    finally:
        os.close(above)
    return None
