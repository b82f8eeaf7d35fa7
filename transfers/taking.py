"""Taking one file of a store into a file of this machine, going on behind what an earlier call wrote."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from hibali.errors import IncompleteError
from hibali.system_errors import reason_of
from hibali.text import printable
from transfers.entry import Entry
from transfers.packing import group_units
from transfers.packs.place import HashesRanges
from transfers.store import PACK_BYTES, Item, Store

_numbers = itertools.count()  # a store may keep files open by the number of their item
_ALIGNED = 1024 * 1024
_NAME_BYTES = 255


def take_file(
    store: Store,
    entry: Entry,
    file: Path,
    progress: Callable[[int], None],
    *,
    digest: str | None = None,
    about: str = "",
) -> None:
    """Make `file` hold what `entry` of the store does; `progress` is told how many bytes of it are there.

    What is in `file`, or was left beside it by a call that was cut off, is taken for its beginning. Where the whole then has not
    the sha256 `digest`, or that which the store vouches for, all is read again. It appears under its name when it is whole: whoever
    reads it while it grows may read a piece that is not there yet. Raises `IncompleteError` where nothing helps, where the
    source changed, or `file` cannot be written.
    """
    known = entry._replace(digest=digest or entry.digest)
    part = _part_of(file)
    try:
        if not part.exists():
            with suppress(FileNotFoundError):
                file.rename(part)
        with part.open("r+b" if part.exists() else "w+b") as stream:
            there = min(os.fstat(stream.fileno()).st_size, entry.size - 1) // _ALIGNED * _ALIGNED
            there = there if entry.size > PACK_BYTES else 0  # a pack comes whole
            whole = _take(store, known, stream, there, progress, about)
            if not whole and not (there and _take(store, known, stream, 0, progress, about)):
                raise _differs(about)
        part.replace(file)
    except OSError as problem:
        raise _unwritable(problem, file) from None


def put_content(
    content: bytes, file: Path, progress: Callable[[int], None], *, digest: str | None, about: str
) -> None:
    """Make `file` hold a content that came whole; raises as `take_file` does."""
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise _differs(about)
    part = _part_of(file)
    try:
        part.write_bytes(content)
        part.replace(file)
    except OSError as problem:
        raise _unwritable(problem, file) from None
    progress(len(content))


def _differs(about: str) -> IncompleteError:
    message = "the bytes that came are not those that the content is known to have"
    return IncompleteError("differs", message, about=about)


def _unwritable(problem: OSError, file: Path) -> IncompleteError:
    return IncompleteError("cannot-write", reason_of(problem), about=printable(os.fsencode(file)))


def _part_of(file: Path) -> Path:
    """Where it grows: beside it, under a name that git-annex takes for an unused content, and itself where that would be too long."""
    name = f"{file.name}.part"
    return file.with_name(name) if len(os.fsencode(name)) <= _NAME_BYTES else file


def _take(
    store: Store, entry: Entry, stream: IO[bytes], there: int, progress: Callable[[int], None], about: str
) -> bool:
    """Whether what came, behind so many bytes that were there, is what it is known to be."""
    summed = _hash_beginning(stream, there)
    stream.truncate(there)
    vouched = entry.digest
    units = group_units([Item(next(_numbers), entry)], lambda: store.facts.segment_bytes, lambda _: there)
    if there and vouched and not isinstance(store, HashesRanges):
        # else it would read what is there once more, to tell the digest of the whole
        units = (replace(unit, piece=True) for unit in units)
    for payload in store.read(units):
        if 0 in payload.problems:
            raise IncompleteError(payload.problems[0].code, payload.problems[0].message, about=about)
        stream.write(payload.data)
        summed.update(payload.data)
        vouched = vouched or payload.digests[0]
        progress(stream.tell())
    stream.flush()
    return stream.tell() == entry.size and vouched in {None, summed.hexdigest()}


def _hash_beginning(stream: IO[bytes], size: int) -> Any:
    summed = hashlib.sha256()
    stream.seek(0)
    left = size
    while left:
        chunk = stream.read(min(left, _ALIGNED))
        summed.update(chunk)
        left -= len(chunk)
    return summed
