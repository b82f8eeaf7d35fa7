"""Write and remove files at an fsspec filesystem, so that half a file never has its final name."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import islice

from hibali.errors import HibaliError, IncompleteError
from hibali.http import Bytes
from transfers.agent import protocol
from transfers.entry import Entry, Kind, Verification
from transfers.stores.base import Committed, Item, Problem
from transfers.stores.fsspec.files import Files, Found
from transfers.stores.fsspec.lock import FileLock, Own, below, find_lock
from transfers.stores.fsspec.probe import FilesystemSupport
from transfers.stores.fsspec.protocols import Exclusive, Put
from transfers.stores.fsspec.records import part_of, record_line
from transfers.stores.request_store import (
    DIFFERS,
    EARLIER,
    Refused,
    StreamedFile,
    StreamingWriter,
    UploadAbandonedError,
    UploadRestartedError,
)
from transfers.stores.s3.manifest import ManifestLines
from transfers.stores.s3.requests import problem_of
from transfers.stores.server_lease import Lease, NoLease, locked

_MOST_JOBS = 8  # files that are written at a time
CORRUPT = Problem("corrupt", "the written file differs when it is read back", retryable=True)
_CHANGED = Problem(
    "target-changed", "it changed at the target after the plan was made, so it was not replaced"
)
_FOLDER = Problem("folder-in-the-way", "a folder with that name already exists at the target")

Send = Callable[[bytes], None]  # writes the content under this name


@dataclass(slots=True)
class Target:
    """The target of one `write`; `seed` makes partial names, `left` is set if a partial file may remain."""

    files: Files
    removing: FileRemover
    support: FilesystemSupport
    holder: Lease | NoLease
    root: bytes
    seed: bytes
    path_of: Callable[[bytes], bytes]
    read_back: bool
    committed: ManifestLines = field(default_factory=ManifestLines)
    left: bool = False
    _made: set[bytes] = field(default_factory=set)
    _making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def renames(self) -> bool:
        """Whether files are written under a partial name."""
        return self.support.put == Put.RENAMED

    def make_folders(self, path: bytes) -> None:
        """Make missing folders above a path below the root. Raise if one of them is a file."""
        if not self.support.folders:
            return
        parts = path.split(b"/")[:-1]
        for count in range(1, len(parts) + 1):
            folder = b"/".join(parts[:count])
            with self._making:
                if folder not in self._made:
                    self.files.make_folder(self.path_of(folder))
                    self._made.add(folder)

    def make_folder(self, item: Item) -> None:
        """Make the folder of an item; replace a file if the plan allows it."""
        path = self.path_of(item.entry.path)
        if item.clear and item.replaces is not None and item.replaces.kind is not Kind.FOLDER:
            self.holder.check()
            problem = self.removing.remove_file(path, item.replaces)
            if problem is not None:
                raise Refused(problem)
        self.make_folders(item.entry.path + b"/")

    def put(self, item: Item, digest: Callable[[], str], send: Send) -> Found:
        """Write, verify and commit a file; leave nothing half. Raise `Refused`, `HibaliError`."""
        path = self.path_of(item.entry.path)
        self.make_folders(item.entry.path)
        if not self.renames:
            return self._put_whole(item, path, digest, send)
        name = self._partial_of(item.entry.path)
        try:
            send(name)
            self._check_written(item.entry, name, digest())
            self.holder.check()
            self._make_room(item, path)
            if self.support.replaces or self.files.stat(path) is None:
                self.files.move(name, path)
            else:
                replace_file(self.files, name, path, self._partial_of(item.entry.path, b"aside/"))
        except BaseException:
            self._drop(name)
            raise
        return self._found(item.entry, path)

    def _partial_of(self, path: bytes, prefix: bytes = b"") -> bytes:
        """Return the full partial path beside `path`; `prefix` distinguishes several for one path."""
        folder = path.rpartition(b"/")[0]
        return below(self.root, below(folder, protocol.partial_name(self.seed, prefix + path)))

    def _put_whole(self, item: Item, path: bytes, digest: Callable[[], str], send: Send) -> Found:
        """Write a file that appears when it is complete, then read it back; remove it if it differs."""
        self.holder.check()
        self._make_room(item, path)
        send(path)
        try:
            return self._check_written(item.entry, path, digest())
        except Refused:
            with contextlib.suppress(HibaliError):
                self.files.delete(path)
            raise

    def check_unchanged(self, item: Item) -> None:
        """Check a long upload again before it is completed. Raise `Refused`, `TryLaterError`."""
        if not self.renames:
            self.holder.check()
            self._check_target(item, self.path_of(item.entry.path))

    def _check_written(self, entry: Entry, name: bytes, digest: str) -> Found:
        """Check that a file is what was sent."""
        if self.read_back:
            summed, found = self.files.digest(name, entry.size)
            if summed != digest:
                raise Refused(CORRUPT)
        else:
            found = self.files.stat(name)
        if found is None or found.kind is not Kind.FILE or found.size != entry.size:
            raise Refused(CORRUPT)
        return found

    def _found(self, entry: Entry, path: bytes) -> Found:
        """Return the properties of a renamed file; a rename can fail without an error."""
        found = self.files.stat(path)
        if found is None or found.kind is not Kind.FILE or found.size != entry.size:
            raise IncompleteError(
                "corrupt",
                "it is missing after it was renamed to its final name",
                subject=self.files.subject,
                transient=True,
            )
        return found

    def _make_room(self, item: Item, path: bytes) -> None:
        """Check that the target is as planned; remove a folder that the plan replaces."""
        existing = self._check_target(item, path)
        if not item.clear or item.replaces is None:
            return
        if not self.support.folders or (existing is not None and existing.folder):
            self._clear(item.entry.path + b"/", path)

    def _clear(self, prefix: bytes, path: bytes) -> None:
        self.files.remove_tree(path)
        with self._making:
            self._made = {made for made in self._made if not (made + b"/").startswith(prefix)}

    def _check_target(self, item: Item, path: bytes) -> Found | None:
        """Return the existing target. Raise `Refused` if it may not be replaced."""
        needed = item.exact or item.replaces is not None or self.support.folders
        existing = self.files.stat(path) if needed else None
        if existing is None:
            return None
        if existing.folder:
            agreed = item.replaces is not None and item.replaces.kind is Kind.FOLDER and item.clear
            if agreed or not self.support.folders:
                return existing
            raise Refused(_FOLDER)
        if item.exact and (item.replaces is None or not existing.is_still(item.replaces)):
            raise Refused(_CHANGED)
        return existing

    def _drop(self, name: bytes) -> None:
        """Remove a partial file that will not be committed; set `left` if it stays for the next run."""
        try:
            self.files.delete(name)
        except HibaliError:
            self.left = True


def replace_file(files: Files, name: bytes, path: bytes, aside: bytes) -> None:
    """Replace a file by a rename that does not replace: the old file is first moved aside.

    If the second rename fails, also without an error, the old file gets its name back.
    """
    files.move(path, aside)
    try:
        files.move(name, path)
        if files.stat(path) is None:
            raise IncompleteError(
                "corrupt", "the rename had no effect", subject=files.subject, transient=True
            )
    except BaseException:
        with contextlib.suppress(HibaliError):
            files.move(aside, path)
        raise
    files.delete(aside)


def send_pieces(
    files: Files, path: bytes, pieces: Iterable[Bytes], size: int, put: str, before_commit: Callable[[], None]
) -> None:
    """Write a file of this size from its pieces, completely or not at all; a partial name may keep a part."""
    if put == Put.WHOLE:
        content = b"".join(pieces)
        before_commit()
        files.put(path, content)
        return
    with files.upload(path, size) as upload:
        for piece in pieces:
            upload.write(piece)
        before_commit()
        upload.commit()


def write_manifest(
    files: Files, support: FilesystemSupport, path: bytes, pieces: Iterator[bytes], size: int
) -> None:
    """Replace a manifest; the old one stays until the new one is complete."""
    if support.put != Put.RENAMED:
        send_pieces(files, path, pieces, size, support.put, lambda: None)
        return
    part = part_of(path)
    try:
        send_pieces(files, part, pieces, size, support.put, lambda: None)
        if not support.replaces:
            files.delete(path)
        files.move(part, path)
    except BaseException:
        with contextlib.suppress(HibaliError):
            files.delete(part)
        raise


class FsspecWriter(StreamingWriter):
    """The writer of files."""

    cannot_store = Problem("unsupported-kind", "fsspec cannot store symlinks and special files")

    def __init__(self, target: Target, pool: Executor) -> None:
        super().__init__(target.holder, pool, min(_MOST_JOBS, target.files.protocol.threads))
        self._target = target

    def _make_folder(self, item: Item) -> None:
        def act() -> None:
            self._target.make_folder(item)
            self._jobs.report(Committed(item, None, Verification.DIGEST))

        self._guarded(item, act)

    def _write_whole(self, item: Item, content: memoryview, digest: str) -> None:
        if hashlib.sha256(content).hexdigest() != digest or len(content) != item.entry.size:
            self._fail(item, DIFFERS)
            return
        self._put(item, lambda: digest, lambda name: self._target.files.put(name, content))

    def _put(self, item: Item, digest: Callable[[], str], send: Send) -> None:
        target = self._target

        def act() -> None:
            found = target.put(item, digest, send)
            target.committed.add(item.entry.path, record_line(item.entry, found, digest()))
            self._count(item.entry.size * (2 if target.read_back else 1))
            verification = Verification.DIGEST if target.read_back else Verification.SIZE
            self._jobs.report(Committed(item, digest(), verification, found.tag or None))

        with contextlib.suppress(UploadRestartedError):
            self._guarded(item, act)

    def _send(self, large: StreamedFile) -> None:
        """See StreamingWriter."""
        target = self._target

        def send(name: bytes) -> None:
            try:
                send_pieces(
                    target.files,
                    name,
                    large.pieces(self._stopped),
                    large.item.entry.size,
                    target.support.put,
                    lambda: target.check_unchanged(large.item),
                )
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


_BATCH = 256
_CHANGED_SINCE = Problem("target-changed", "it changed after it was listed, so it was left unchanged")
_NOT_EMPTY = Problem("folder-not-empty", "it contains entries that were not listed, so it was not removed")


class FileRemover:
    """A remover of files (concurrently) and of empty folders (one by one)."""

    def __init__(self, files: Files, pool: Executor, path_of: Callable[[bytes], bytes]) -> None:
        """Set the fields; `path_of` returns the full path of one below the root."""
        self._files = files
        self._pool = pool
        self._path_of = path_of

    def remove(
        self, entries: Iterable[Entry], check: Callable[[], None]
    ) -> Iterator[tuple[Entry, Problem | None]]:
        """Yield one result for each entry, in order; `check` raises if the lock was lost."""
        coming = iter(entries)
        while batch := list(islice(coming, _BATCH)):
            check()
            while batch:
                count = next((n for n, entry in enumerate(batch) if entry.kind is Kind.FOLDER), len(batch))
                files, batch = batch[:count], batch[count:]
                yield from zip(files, self._pool.map(self._remove, files), strict=True)
                for folder in batch[:1]:
                    yield folder, self._remove(folder)
                batch = batch[1:]

    def _remove(self, entry: Entry) -> Problem | None:
        try:
            path = self._path_of(entry.path)
            return self.remove_folder(path) if entry.kind is Kind.FOLDER else self.remove_file(path, entry)
        except HibaliError as problem:
            return problem_of(problem, denied=True)

    def remove_file(self, path: bytes, entry: Entry) -> Problem | None:
        """Remove a file that is unchanged since the listing; a missing one is no error."""
        found = self._files.stat(path)
        if found is None or (found.folder and self._files.protocol.keys):
            return None
        if not found.is_still(entry):
            return _CHANGED_SINCE
        self._files.delete(path)
        return None

    def remove_folder(self, path: bytes) -> Problem | None:
        """Remove an empty folder; fsspec can keep no other client from writing into it meanwhile."""
        found = self._files.stat(path)
        if found is None:
            return None
        if not found.folder:
            return _CHANGED_SINCE
        if self._files.children(path):
            return _NOT_EMPTY
        self._files.remove_folder(path)
        return None


class TreeRemover:
    """The removal of a root below the site's URL, and of the `.hibali` folders below it."""

    def __init__(self, files: Files, root: bytes, own_folders: Iterable[bytes]) -> None:
        self._files = files
        self._root = root
        self._own_folders = list(own_folders)

    def check(self) -> None:
        """Raise `TryLaterError("locked")` if a lock is held above, or at one of the folders."""
        parts = self._root.split(b"/") if self._root else []
        above = [b"/".join(parts[:count]) for count in range(len(parts))]
        for folder in [*above, *(below(self._root, own) for own in self._own_folders)]:
            found = find_lock(self._files, folder)
            if found is not None and not found.free:
                raise locked(found.holder, self._files.subject)

    def sweep(self, lease: int, check: Callable[[], None], how: Exclusive) -> list[tuple[bytes, Problem]]:
        """Remove own files in the folders, with their locks held if supported; return the failures."""
        problems = []
        for own in self._own_folders:
            check()
            folder = below(self._root, own)
            try:
                held = FileLock(self._files, folder, "rm", how, lease) if how else NoLease()
                self.remove_own(own)
                held.release()
                Own(self._files, folder).remove_folder()
            except HibaliError as problem:
                problems.append((own, Problem(problem.code, problem.message)))
        return problems

    def remove_own(self, own: bytes = b"") -> None:
        """Remove own files in the `.hibali` there, except a held lock."""
        for name in protocol.OWN:
            if name != b"lock":
                self._files.delete(below(below(self._root, own), protocol.OWN_FOLDER + b"/" + name))

    def remove_root(self, holder: Lease | NoLease, remove: Callable[[], Problem | None]) -> Problem | None:
        """Release the lock and `remove` the root, which must be empty then."""
        self.remove_own()
        holder.release()
        Own(self._files, self._root).remove_folder()
        return remove()
