"""Copy files inside one WebDAV server with COPY (RFC 4918, section 9.8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, wait
from typing import NamedTuple

from hibali.cancellation import in_this_context
from hibali.errors import HibaliError
from transfers.model.entry import Entry, Verification
from transfers.model.store import problem_of
from transfers.model.units import NOT_COPIED, Committed, Item, Problem
from transfers.stores.server.streaming import Refused
from transfers.stores.webdav.writing import WebdavTarget

_MOST_JOBS = 8  # copies at a time
# The problems of one file that sending its bytes instead would not solve; all others are NOT_COPIED.
_ITEM_CODES = frozenset(
    {"source-changed", "vanished", "target-changed", "folder-in-the-way", "locked-by-another", "no-space"}
)
_CHANGED = Problem("source-changed", "it changed after it was listed, so it was not copied")
_VANISHED = Problem("vanished", "the file no longer exists")


class CopySource(NamedTuple):
    """The full path of an item's source below the site's URL, and its entry as listed."""

    path: bytes
    entry: Entry


class WebdavCopying:
    """One `copy` call, used once. `bytes` counts the file bytes that were read to verify copies."""

    def __init__(
        self, write_target: WebdavTarget, pool: Executor, source_of: Callable[[Item], CopySource]
    ) -> None:
        self._write_target = write_target
        self._pool = pool
        self._source_of = source_of
        self.bytes = 0

    def run(self, items: Iterable[Item]) -> Generator[Committed, None, None]:
        """See Store.copy."""
        under_way: deque[Future[tuple[Committed, int]]] = deque()

        def next_result() -> Committed:
            committed, read = under_way.popleft().result()
            self.bytes += read
            return committed

        holder = self._write_target.holder
        try:
            holder.check(now=True)
            for item in items:
                holder.check()
                under_way.append(self._pool.submit(in_this_context(self._copy), item))
                if len(under_way) >= _MOST_JOBS:
                    yield next_result()
            while under_way:
                yield next_result()
        finally:
            for one in under_way:
                one.cancel()
            wait(under_way)

    def _copy(self, item: Item) -> tuple[Committed, int]:
        """Return the result and the number of bytes read; raise what ends the whole operation."""
        try:
            return self._copied(item)
        except Refused as refused:
            problem = refused.problem
        except HibaliError as error:
            problem = problem_of(error, denied=True)
        if problem.code not in _ITEM_CODES:
            problem = Problem(NOT_COPIED, problem.message)
        return Committed(item, None, Verification.NONE, problem=problem), 0

    def _copied(self, item: Item) -> tuple[Committed, int]:
        """Copy to a partial name, verify the copy, and commit it. Raise `Refused`, `HibaliError`.

        The source's tag is compared after the copy and not by a condition of it: a server may change the source while
        it copies, and the tag of a file is weak in its first second, which conditions reject.
        """
        write_target, (path, entry) = self._write_target, self._source_of(item)
        write_target.path_of(item.entry.path)  # check that the server supports the name
        write_target.folders.make_above(item.entry.path)
        name = write_target.name_for(item.entry.path)
        try:
            write_target.files.copy(path, name, entry.size)
            digest = entry.digest or self._source_digest(path, entry)
            found = write_target.files.stat(path)
            if found is None:
                raise Refused(_VANISHED)
            if not found.is_still(entry):
                raise Refused(_CHANGED)
            copied = write_target.finish(item, name, digest)
            name = b""
        finally:
            if name:
                write_target.drop(name)
        verification = Verification.RECORDED if entry.digest else Verification.DIGEST
        if not write_target.read_back:
            verification = Verification.SIZE
        read = entry.size * (int(not entry.digest) + int(write_target.read_back))
        return Committed(item, digest, verification, copied.tag or None), read

    def _source_digest(self, path: bytes, entry: Entry) -> str:
        """Read the source, because no digest of it is recorded, and return its digest."""
        digest, size, _ = self._write_target.files.digest(path, entry.size)
        if size != entry.size:
            raise Refused(_CHANGED)
        return digest
