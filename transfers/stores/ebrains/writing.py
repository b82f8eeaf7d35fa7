"""Write and remove objects, and read back what was written."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

from hibali.errors import HibaliError, IncompleteError
from hibali.http import Bytes
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.units import Committed, Item, Problem
from transfers.stores.ebrains.objects import Objects
from transfers.stores.ebrains.probe import BucketSupport
from transfers.stores.ebrains.requests import CONNECTIONS
from transfers.stores.server.keys import Cache, Listed
from transfers.stores.server.lease import Lease, NoLease
from transfers.stores.server.manifest import ManifestLines
from transfers.stores.server.own_files import CHANGED_SINCE, EntryRemover
from transfers.stores.server.records import Found, known_version, record_line
from transfers.stores.server.streaming import (
    DIFFERS,
    EARLIER,
    Refused,
    StreamedFile,
    StreamingWriter,
    UploadAbandonedError,
    UploadRestartedError,
)

MOST_BYTES = 5 * 1024 * 1024 * 1024  # of one PUT, at S3 as at Swift
CORRUPT = Problem("corrupt", "the written object differs when it is read back", retryable=True)
_CHANGED = Problem(
    "target-changed", "it changed at the target after the plan was made, so it was not replaced"
)
_TOO_LARGE = Problem("too-large", "the service takes objects of at most 5 GiB in one upload")

Send = Callable[[bytes], None]  # writes the content under this key


@dataclass(slots=True)
class Target:
    """The target of one `write`: `committed` are the manifest lines of what was written."""

    objects: Objects
    support: BucketSupport
    holder: Lease | NoLease
    key_of: Callable[[bytes], bytes]
    clear_conflicts: Callable[[Item], None]
    read_back: bool
    cache: Cache
    committed: ManifestLines = field(default_factory=ManifestLines)

    def check_unchanged(self, item: Item) -> None:
        """Check the lock, and that an exact item replaces what was planned. Raise `Refused`, `TryLaterError`."""
        self.holder.check()
        if not item.exact or item.clear:
            return
        found = self.objects.stat(self.key_of(item.entry.path))
        if found is not None and (item.replaces is None or not found.is_still(item.replaces)):
            raise Refused(_CHANGED)

    def put(self, item: Item, digest: Callable[[], str], send: Send) -> Found:
        """Write an object and verify it; remove it if it differs. Raise `Refused`, `HibaliError`."""
        if item.entry.size > MOST_BYTES:
            raise Refused(_TOO_LARGE)
        key = self.key_of(item.entry.path)
        if not self.support.file_and_folder:
            self.clear_conflicts(item)
        send(key)
        try:
            found = self._check_written(item.entry, key, digest())
        except Refused:
            with contextlib.suppress(HibaliError):
                self.objects.delete(key)
            raise
        self._record(item.entry, found, digest())
        self.clear_conflicts(item)
        return found

    def _check_written(self, entry: Entry, key: bytes, digest: str) -> Found:
        """Check that an object is what was sent."""
        if self.read_back:
            try:
                same = self.objects.digest(key, entry.size) == digest
            except IncompleteError as problem:
                if problem.code != "source-changed":  # it has another size
                    raise
                same = False
            if not same:
                raise Refused(CORRUPT)
        found = self.objects.stat(key)
        if found is None and self.read_back:
            return Found(Kind.FILE, entry.size)  # a listing that is late; without a tag, nothing is recorded
        if found is None or found.size != entry.size:
            raise Refused(CORRUPT)
        return found

    def _record(self, entry: Entry, found: Found, digest: str) -> None:
        """Record a written object in the manifest, and here at once: a killed command writes no manifest."""
        self.committed.add(entry.path, record_line(entry, found, digest))
        known = known_version(entry, found, digest)
        if known is not None and self.support.versions:
            self.cache.add(Listed(entry.path, found.size, found.tag, ""), known)


class EbrainsWriter(StreamingWriter):
    """The writer of objects."""

    cannot_store = Problem("unsupported-kind", "a bucket cannot store symlinks and special files")

    def __init__(self, target: Target, pool: Executor) -> None:
        super().__init__(target.holder, pool, CONNECTIONS)
        self._target = target

    def _make_folder(self, item: Item) -> None:
        """Remove a conflicting object; the folder itself needs no object."""

        def act() -> None:
            self._target.clear_conflicts(item)
            self._jobs.report(Committed(item, None, Verification.DIGEST))

        self._guarded(item, act)

    def _write_whole(self, item: Item, content: memoryview, digest: str) -> None:
        if hashlib.sha256(content).hexdigest() != digest or len(content) != item.entry.size:
            self._fail(item, DIFFERS)
            return

        def send(key: bytes) -> None:
            self._target.check_unchanged(item)
            self._target.objects.put(key, content)

        self._put(item, lambda: digest, send)

    def _put(self, item: Item, digest: Callable[[], str], send: Send) -> None:
        def act() -> None:
            found = self._target.put(item, digest, send)
            self._count(item.entry.size * (2 if self._target.read_back else 1))
            verification = Verification.DIGEST if self._target.read_back else Verification.SIZE
            self._jobs.report(Committed(item, digest(), verification, found.tag or None))

        with contextlib.suppress(UploadRestartedError):
            self._guarded(item, act)

    def _send(self, large: StreamedFile) -> None:
        """See StreamingWriter."""

        def send(key: bytes) -> None:
            pieces = self._checked_last(large)
            try:
                self._target.objects.upload(key, pieces, large.item.entry.size)
            except UploadAbandonedError:
                if large.restarted:
                    raise UploadRestartedError from None
                raise Refused(large.problem or EARLIER) from None
            finally:
                large.over.set()

        try:
            self._put(large.item, lambda: large.digest or "", send)
        finally:
            large.over.set()
            large.ended.set()

    def _checked_last(self, large: StreamedFile) -> Iterator[Bytes]:
        """Yield the pieces of a file, the last one only if the target is still as planned."""
        held: Bytes | None = None
        for piece in large.pieces(self._stopped):
            if held is not None:
                yield held
            held = piece
        self._target.check_unchanged(large.item)
        if held is not None:
            yield held


class ObjectRemover(EntryRemover):
    """The remover of objects; folders exist only as parts of keys."""

    def __init__(self, objects: Objects, pool: Executor, path_of: Callable[[bytes], bytes]) -> None:
        """See EntryRemover."""
        super().__init__(pool, path_of)
        self._objects = objects

    def remove_file(self, path: bytes, entry: Entry) -> Problem | None:
        """Remove an object that is unchanged since the listing; a missing one is no error."""
        found = self._objects.stat(path)
        if found is None:
            return None
        if not found.is_still(entry):
            return CHANGED_SINCE
        self._objects.delete(path)
        return None

    def remove_folder(self, path: bytes) -> Problem | None:
        """Remove the empty object for a folder, if there is one."""
        found = self._objects.stat(path + b"/")
        if found is not None and not found.size:
            self._objects.delete(path + b"/")
        return None
