"""Copy files inside one server or between two, and rename them: the servers do it themselves."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, wait
from typing import NamedTuple

from hibali.cancellation import in_this_context
from hibali.errors import HibaliError, IncompleteError, RefusedError
from hibali.text import printable
from transfers.model.entry import Entry, Verification
from transfers.model.leases import locked
from transfers.model.store import problem_of
from transfers.model.units import NOT_COPIED, Committed, Item, Problem
from transfers.stores.server.files import Files
from transfers.stores.server.lease import Held
from transfers.stores.server.records import Found
from transfers.stores.server.streaming import Refused
from transfers.stores.server.writing import Target

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


class ServerCopying:
    """One `copy` call, used once. `bytes` counts the file bytes that were read to verify copies.

    A copy is read back as what is written, and a source without a recorded digest is read, unless the servers computed
    the same checksum of both.
    """

    def __init__(
        self, target: Target, pool: Executor, source: Files, source_of: Callable[[Item], CopySource]
    ) -> None:
        self._target = target
        self._pool = pool
        self._source = source
        self._source_of = source_of
        self._stopped = threading.Event()
        self.bytes = 0

    def run(self, items: Iterable[Item]) -> Generator[Committed, None, None]:
        """See Store.copy."""
        under_way: deque[Future[tuple[Committed, int]]] = deque()

        def next_result() -> Committed:
            committed, read = under_way.popleft().result()
            self.bytes += read
            return committed

        holder = self._target.holder
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
            self._stopped.set()
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
        target, (path, entry) = self._target, self._source_of(item)
        target.path_of(item.entry.path)  # check that the server supports the name
        target.make_folders(item.entry.path)
        # a server may still write there after a copy that was given up, so it is not the name of a file that hibali sends
        name = target.partial_of(item.entry.path, b"copy/")
        try:
            same = target.files.copy_file(self._source, path, name, item.entry, self._stopped)
            digest = entry.digest or (None if same else self._source_digest(path, entry))
            found = self._source.stat(path)
            if found is None:
                raise Refused(_VANISHED)
            if not found.is_still(entry):
                raise Refused(_CHANGED)
            copied = target.finish(item, name, digest)
            name = b""
        except HibaliError as problem:
            target.left = target.left or problem.transient  # it may still be copied
            raise
        finally:
            if name:
                target.drop(name)
        target.record(item.entry, copied, digest)
        if target.read_back and digest:
            verification = Verification.RECORDED if entry.digest else Verification.DIGEST
        else:
            verification = Verification.CLAIMED if same else Verification.SIZE
        times = int(digest != entry.digest) + int(target.read_back and bool(digest))
        return Committed(item, digest, verification, copied.tag or None), entry.size * times

    def _source_digest(self, path: bytes, entry: Entry) -> str:
        """Read the source, because no digest of it is recorded, and return its digest."""
        digest, found = self._source.digest(path, entry.size)
        if found is None or found.size != entry.size:
            raise Refused(_CHANGED)
        return digest


class ServerRename:
    """A rename between two paths below the site's URL."""

    def __init__(self, files: Files, old: bytes, new: bytes) -> None:
        """Set the fields. Raise `RefusedError` for a target that no rename may have."""
        self._files = files
        self._old = old
        self._new = new
        if (new + b"/").startswith(old + b"/"):
            raise self._refused("overlap", "the target is inside the source")
        if files.stat(new) is not None:
            raise self._exists()

    def check_source(self, entry: Entry) -> Found:
        """Return the entry's properties now. Raise `RefusedError` if it changed since it was listed."""
        found = self._files.stat(self._old)
        if found is None or not found.is_still(entry):
            raise self._refused(
                "target-changed", "it changed after it was listed, so hibali left it unchanged"
            )
        return found

    def check_unlocked(self, root: bytes, find_lock: Callable[[bytes], Held | None]) -> None:
        """Raise `TryLaterError("locked")` if a lock is held above the target, except at `root`."""
        for folder in self._folders_above():
            found = find_lock(folder) if folder != root else None
            if found is not None and not found.free:
                raise locked(found.holder, self._files.subject)

    def make_folders(self) -> None:
        """Make the missing folders above the target. Raise if one of them is a file."""
        for folder in self._folders_above()[1:]:
            self._files.make_folder(folder)

    def execute(self, entry: Entry) -> None:
        """Rename it, on the condition that it is unchanged where the server has such a condition.

        Raises:
            RefusedError: Nothing was changed.
            IncompleteError: The server failed, or moved only a part of a folder.
        """
        if self._moved(self.check_source(entry)):
            return
        # The tag of an unchanged file is weak in its first second, which conditions reject.
        self.check_source(entry)
        if not self._moved(None):
            raise self._exists()

    def _moved(self, found: Found | None) -> bool:
        """Return whether the rename succeeded, False if its condition failed. Raise `RefusedError` if the target exists."""
        if self._files.rename(self._old, self._new, found):
            return True
        # A repeated request whose first response was lost finds no source, and the target.
        source, target = self._files.stat(self._old), self._files.stat(self._new)
        if source is not None and target is not None:
            raise self._exists()
        if source is None and target is None:
            raise IncompleteError("vanished", "it disappeared before it was renamed", subject=self._subject)
        return target is not None

    def _folders_above(self) -> list[bytes]:
        """Return the folders above the target, from the site's URL (b"") on."""
        parts = self._new.split(b"/")[:-1]
        return [b"/".join(parts[:count]) for count in range(len(parts) + 1)]

    @property
    def _subject(self) -> str:
        return f"{self._files.subject}:{printable(self._new)}"

    def _exists(self) -> RefusedError:
        return self._refused("target-exists", "a file or folder with that name already exists")

    def _refused(self, code: str, message: str) -> RefusedError:
        return RefusedError(
            code, message, subject=self._subject, hint="Choose another name. Nothing was changed."
        )
