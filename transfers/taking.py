"""Taking one file of a store into a file of this machine, going on behind what an earlier call wrote."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from hibali.errors import IncompleteError
from hibali.text import printable
from transfers.entry import Entry
from transfers.packing import group_units
from transfers.store import PACK_BYTES, Item, Store

_numbers = itertools.count()  # a store may keep files open by the number of their item
_ALIGNED = 1024 * 1024


def take_file(
    store: Store, entry: Entry, file: Path, progress: Callable[[int], None], *, about: str = ""
) -> None:
    """Make `file` hold what `entry` of the store does; `progress` is told how many bytes of it are there.

    What is in `file` is taken for its beginning. Where the whole then is not what the store vouches for, all is read again.
    Raises `IncompleteError` where that does not help either, where the source changed, or `file` cannot be written.
    """
    try:
        with file.open("r+b" if file.exists() else "w+b") as stream:
            there = min(os.fstat(stream.fileno()).st_size, entry.size - 1) // _ALIGNED * _ALIGNED
            there = there if entry.size > PACK_BYTES else 0  # a pack comes whole
            whole = _take(store, entry, stream, there, progress, about)
            if not whole and not (there and _take(store, entry, stream, 0, progress, about)):
                raise IncompleteError(
                    "differs",
                    "the bytes that came are not those that the content is known to have",
                    about=about,
                )
    except OSError as problem:
        raise IncompleteError(
            "cannot-write", f"{problem.strerror or problem}", about=printable(os.fsencode(file))
        ) from None


def _take(
    store: Store, entry: Entry, stream: IO[bytes], there: int, progress: Callable[[int], None], about: str
) -> bool:
    """Whether what came, behind so many bytes that were there, is what the store vouches for."""
    summed = _hash_beginning(stream, there)
    stream.truncate(there)
    vouched: str | None = None
    item = Item(next(_numbers), entry)
    for payload in store.read(group_units([item], lambda: store.facts.segment_bytes, lambda _: there)):
        if 0 in payload.problems:
            raise IncompleteError(payload.problems[0].code, payload.problems[0].message, about=about)
        stream.write(payload.data)
        summed.update(payload.data)
        vouched = payload.digests[0] or vouched
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
