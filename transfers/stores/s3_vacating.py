"""Emptying a prefix: nobody may be at work around it or in it, and what hibali itself and other tools keep there goes, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice

from transfers.entry import enclosing
from transfers.lock_record import locked
from transfers.store import Problem, is_own_name
from transfers.stores import s3_lock
from transfers.stores.s3_lines import Lines
from transfers.stores.s3_listing import is_folder_marker, pages
from transfers.stores.s3_removing import Removing
from transfers.stores.s3_requests import Requests

_AT_ONCE = 1000
_LOCK = b"/" + s3_lock.NAME


def is_lock(path: bytes) -> bool:
    """Whether this is the lock of a place below the root."""
    return path.endswith(_LOCK)


def check_unheld(requests: Requests, root: bytes, locks: Iterable[bytes]) -> None:
    """Raise `TryLaterError("locked")` where somebody holds a prefix around the root, or one of the whole keys `locks`."""
    above = [folder + _LOCK if folder else s3_lock.NAME for folder in enclosing(root)] if root else []
    for key in (*above, *locks):
        holder = s3_lock.living_holder(requests, key)
        if holder is not None:
            raise locked(holder, requests.about)


def clear(requests: Requests, removing: Removing, prefix: bytes) -> Problem | None:
    """Remove what is left below a prefix once its data is gone, unless something else is there, too."""
    for some in _in_batches(_left(requests, prefix)):
        foreign = [key for key, own in some if not own]
        if foreign:
            return Problem("folder-not-empty", "something came meanwhile, and was left alone")
    for some in _in_batches(_left(requests, prefix)):
        keys = [key for key, own in some if own]
        for key in [key for key in keys if is_lock(key)]:
            if s3_lock.living_holder(requests, key) is not None:
                return Problem("locked", "another operation is at work there")
        problems = [problem for problem in removing.remove_keys(keys).values() if problem is not None]
        if problems:
            return problems[0]
    return None


def _left(requests: Requests, prefix: bytes) -> Iterator[tuple[bytes, bool]]:
    """Whole keys, and whether they are ours or stand for a folder."""
    for page in pages(requests, prefix):
        for listed in page:
            yield prefix + listed.path, is_own_name(listed.path) or is_folder_marker(listed)


def _in_batches(coming: Iterator[tuple[bytes, bool]]) -> Iterator[list[tuple[bytes, bool]]]:
    while some := list(islice(coming, _AT_ONCE)):
        yield some


def around(root: bytes, gone: Lines, forget: Callable[[bytes, Lines], None]) -> None:
    """Call `forget` for each prefix around the root, with what is gone as it is called there."""
    for folder in enclosing(root) if root else ():
        before = root[len(folder) :].lstrip(b"/")
        with closing(Lines()) as there:
            there.extend((before + b"/" + path, b"") for path, _ in gone)
            forget(folder, there)
