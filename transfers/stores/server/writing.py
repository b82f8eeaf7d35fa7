"""Write and remove files at a server, so that half a file never has its final name."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from hibali.errors import HibaliError, IncompleteError
from transfers.agent import protocol
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.units import Committed, Item, Problem
from transfers.stores.server.files import Files, Put, Support
from transfers.stores.server.keys import Cache, Listed
from transfers.stores.server.lease import Lease, NoLease
from transfers.stores.server.manifest import ManifestLines
from transfers.stores.server.own_files import CHANGED_SINCE, EntryRemover, FolderMaker, below
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

_MOST_JOBS = 8  # files that are written at a time
_ATTEMPTS = 3  # of a commit whose target changes meanwhile
_AGAIN = frozenset(
    {"busy", "token-expired"}
)  # errors of one upload: its sent pieces are gone, so the source sends it again
CORRUPT = Problem("corrupt", "the written file differs when it is read back", retryable=True)
_CHANGED = Problem(
    "target-changed", "it changed at the target after the plan was made, so it was not replaced"
)
_FOLDER = Problem("folder-in-the-way", "a folder with that name already exists at the target")

Send = Callable[[bytes], None]  # writes the content under this name


@dataclass(slots=True)
class Target:
    """The target of one `write`.

    `seed` makes partial names, those of interrupted operations are `earlier`; `left` is set if a partial file or the parts
    of one may remain. `aside` are replaced folders, which `purge` removes at the end; of those that are
    `cleared`, the files are removed from the manifest.
    """

    files: Files
    removing: FileRemover
    support: Support
    holder: Lease | NoLease
    root: bytes
    seed: bytes
    path_of: Callable[[bytes], bytes]
    read_back: bool
    folders: FolderMaker
    cache: Cache | None
    committed: ManifestLines = field(default_factory=ManifestLines)
    earlier: Sequence[bytes] = ()
    aside: list[bytes] = field(default_factory=list)
    cleared: list[bytes] = field(default_factory=list)
    left: bool = False

    @property
    def renames(self) -> bool:
        """Whether files are written under a partial name."""
        return self.support.put == Put.RENAMED

    def make_folders(self, path: bytes) -> None:
        """Make missing folders above a path below the root. Raise if one of them is a file."""
        if self.support.folders:
            self.folders.make_above(path)

    def make_folder(self, item: Item) -> None:
        """Make the folder of an item; replace a file if the plan allows it."""
        path = self.path_of(item.entry.path)
        if item.clear and item.replaces is not None and item.replaces.kind is not Kind.FOLDER:
            self.holder.check()
            problem = self.removing.remove_file(path, item.replaces)
            if problem is not None:
                raise Refused(problem)
            self.committed.add(item.entry.path, b"")
        self.make_folders(item.entry.path + b"/")

    def put(self, item: Item, digest: Callable[[], str], send: Send) -> Found:
        """Write, verify and commit a file; leave nothing half. Raise `Refused`, `HibaliError`."""
        self.files.check_entry(item.entry)
        path = self.path_of(item.entry.path)
        self.make_folders(item.entry.path)
        if not self.renames:
            return self._put_whole(item, path, digest, send)
        name = self.partial_of(item.entry.path)
        try:
            send(name)
            return self.finish(item, name, digest())
        except BaseException:
            self.drop(name)
            raise

    def put_content(self, item: Item, content: memoryview, digest: str) -> Found:
        """Write, verify and commit a small file, as `put` does."""
        path = self.path_of(item.entry.path)
        if not (self.renames and self.files.renames_approved(path)):
            return self.put(
                item, lambda: digest, lambda name: self.files.put_entry(name, content, item.entry)
            )
        self.files.check_entry(item.entry)
        self.make_folders(item.entry.path)
        name = self.partial_of(item.entry.path)

        def approve(summed: str, found: Found | None, existing: Found | None) -> None:
            if summed != digest:
                raise Refused(CORRUPT)
            self._check_size(item.entry, found)
            self.holder.check()
            self._clear_folder(item, path, self._fit(item, existing))

        try:
            return self.files.put_renamed(name, path, content, approve)
        except BaseException:
            self.drop(name)
            raise

    def finish(self, item: Item, name: bytes, digest: str | None) -> Found:
        """Verify a partial file and commit it; without a digest it was verified otherwise. Raise `Refused`, `HibaliError`."""
        path = self.path_of(item.entry.path)
        found = self._check_written(item.entry, name, digest)
        if digest is not None:
            found = self.files.describe(name, item.entry, digest, found)
        self.holder.check()
        if self.files.traits.moves_exactly:
            return self._commit_exactly(item, name, path, found)
        self._make_room(item, path)
        move_over(self.files, self.support, name, path, self.partial_of(item.entry.path, b"aside/"))
        return self._found(item.entry, path)

    def _commit_exactly(self, item: Item, name: bytes, path: bytes, found: Found) -> Found:
        """Commit after a check, again if the target changed meanwhile. A rename may delete even a full folder (RFC 4918, 9.9.3)."""
        checked = item.exact or item.replaces is not None
        for _ in range(_ATTEMPTS):
            existing = self._fit(item, self.files.stat(path)) if checked else None
            if existing is not None and existing.folder:
                self._set_aside(item, path, existing)
                existing = None
            if self.files.move_exactly(name, path, existing, found):
                return found
            checked = True
        raise Refused(_CHANGED)

    def _set_aside(self, item: Item, path: bytes, folder: Found) -> None:
        """Rename a folder that the plan replaces to a partial name; it is removed at the end."""
        aside = self.partial_of(item.entry.path, b"aside/")
        if self.files.move_exactly(path, aside, None, folder):
            self.aside.append(aside)
            self.folders.forget(item.entry.path)

    def purge(self) -> None:
        """Remove the replaced folders with their contents."""
        for path in self.aside:
            self.files.remove_tree(path)
        self.aside.clear()

    def partial_of(self, path: bytes, prefix: bytes = b"", *, seed: bytes | None = None) -> bytes:
        """Return the full partial path beside `path`; `prefix` distinguishes several for one path."""
        folder = path.rpartition(b"/")[0]
        return below(self.root, below(folder, protocol.partial_name(seed or self.seed, prefix + path)))

    def part_folders(self, path: bytes) -> list[bytes]:
        """Return the folders for the parts of a large file: that of this operation, then those of interrupted ones."""
        if not self.files.traits.keeps_parts:
            return []
        return [self.partial_of(path, b"parts/", seed=seed) for seed in (self.seed, *self.earlier)]

    def drop_parts(self, name: bytes, path: bytes) -> None:
        """Remove the parts of a file that was sent to `name`, as far as possible."""
        with contextlib.suppress(HibaliError):
            self.files.drop_parts(name, self.part_folders(path))

    def _put_whole(self, item: Item, path: bytes, digest: Callable[[], str], send: Send) -> Found:
        """Write a file that appears when it is complete, then read it back; remove it if it differs."""
        self.holder.check()
        late = (
            self.files.traits.flat and self.support.file_and_folder
        )  # the old files stay until the new one is complete
        if late:
            self._check_target(item, path)
        else:
            self._make_room(item, path)
        send(path)
        try:
            found = self._check_written(item.entry, path, digest())
        except Refused:
            with contextlib.suppress(HibaliError):
                self.files.delete(path)
            raise
        if late:
            self._clear(item, path)
        return found

    def check_unchanged(self, item: Item) -> None:
        """Check a long upload again before it is completed. Raise `Refused`, `TryLaterError`."""
        if not self.renames:
            self.holder.check()
            self._check_target(item, self.path_of(item.entry.path))

    def _check_written(self, entry: Entry, name: bytes, digest: str | None) -> Found:
        """Check that a file is what was sent."""
        if self.read_back and digest is not None:
            summed, found = self.files.digest(name, entry.size)
            if summed != digest:
                raise Refused(CORRUPT)
        else:
            found = self.files.stat(name)
        return self._check_size(entry, found)

    @staticmethod
    def _check_size(entry: Entry, found: Found | None) -> Found:
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
        self._clear_folder(item, path, self._check_target(item, path))

    def _clear_folder(self, item: Item, path: bytes, existing: Found | None) -> None:
        if not self.support.folders or (existing is not None and existing.folder):
            self._clear(item, path)

    def _clear(self, item: Item, path: bytes) -> None:
        """Remove a folder that the plan replaces."""
        if item.clear and item.replaces is not None:
            self.files.remove_tree(path)
            self.folders.forget(item.entry.path)
            self.cleared.append(item.entry.path)

    def _check_target(self, item: Item, path: bytes) -> Found | None:
        """Return the existing target. Raise `Refused` if it may not be replaced."""
        needed = item.exact or self.support.folders
        return self._fit(item, self.files.stat(path)) if needed else None

    def _fit(self, item: Item, existing: Found | None) -> Found | None:
        """Return the existing target. Raise `Refused` if it may not be replaced."""
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

    def record(self, entry: Entry, found: Found, digest: str | None) -> None:
        """Record a written file in the manifest, and here at once: a killed command writes no manifest."""
        if self.cache is None:
            return
        self.committed.add(entry.path, record_line(entry, found, digest))
        known = known_version(entry, found, digest)
        if known is not None and self.support.versions:
            self.cache.add(Listed(entry.path, found.size, found.tag, ""), known)

    def drop(self, name: bytes) -> None:
        """Remove a partial file that will not be committed; set `left` if it stays for the next run."""
        try:
            self.files.delete(name)
        except HibaliError:
            self.left = True


def move_over(files: Files, support: Support, name: bytes, path: bytes, aside: bytes) -> None:
    """Rename a file to a name that may exist; where a rename does not replace, the old file is first moved aside.

    If a rename fails, also after it had its effect or without an error, the old file gets its name back.
    """
    if support.replaces or files.stat(path) is None:
        files.move(name, path)
        return
    try:
        files.move(path, aside)
        files.move(name, path)
        if files.stat(path) is None:
            raise IncompleteError(
                "corrupt", "the rename had no effect", subject=files.subject, transient=True
            )
    except BaseException:
        with contextlib.suppress(HibaliError):
            if files.stat(path) is None:
                files.move(aside, path)
        raise
    files.delete(aside)


def write_manifest(files: Files, support: Support, path: bytes, pieces: Iterator[bytes], size: int) -> None:
    """Replace a manifest; the old one stays until the new one is complete."""
    entry = Entry(path, Kind.FILE, size)
    if support.put != Put.RENAMED:
        files.send(path, pieces, entry, lambda: None)
        return
    # listings skip these names
    part, aside = (
        path.rpartition(b"/")[0] + b"/journal." + secrets.token_hex(16).encode("ascii") for _ in "12"
    )
    try:
        files.send(part, pieces, entry, lambda: None)
        move_over(files, support, part, path, aside)
    except BaseException:
        with contextlib.suppress(HibaliError):
            files.delete(part)
        raise


class ServerWriter(StreamingWriter):
    """The writer of files."""

    def __init__(self, target: Target, pool: Executor) -> None:
        super().__init__(target.holder, pool, min(_MOST_JOBS, target.files.traits.threads))
        self._target = target
        storage = target.files.traits.words.storage
        self.cannot_store = Problem("unsupported-kind", f"{storage} cannot store symlinks and special files")

    def _make_folder(self, item: Item) -> None:
        def act() -> None:
            self._target.make_folder(item)
            self._jobs.report(Committed(item, None, Verification.DIGEST))

        self._guarded(item, act)

    def _put_small(self, item: Item, content: memoryview, digest: str) -> None:
        self._report(item, self._target.put_content(item, content, digest), digest)

    def _report(self, item: Item, found: Found, digest: str) -> None:
        target = self._target
        target.record(item.entry, found, digest)
        verification = target.files.written(read_back=target.read_back)
        self._count(item.entry.size * (2 if verification is Verification.DIGEST else 1))
        self._jobs.report(Committed(item, digest, verification, found.tag or None))

    def _put_large(self, large: StreamedFile) -> None:
        target = self._target

        def digest() -> str:
            return large.digest or ""

        def send(name: bytes) -> None:
            try:
                target.files.send(
                    name,
                    large.pieces(self._stopped),
                    large.item.entry,
                    lambda: target.check_unchanged(large.item),
                    target.part_folders(large.item.entry.path),
                )
            except UploadAbandonedError:
                target.left = target.left or target.files.traits.stores_late
                if large.restarted:
                    raise UploadRestartedError from None
                if large.problem in {DIFFERS, EARLIER}:
                    target.drop_parts(name, large.item.entry.path)
                raise Refused(large.problem or EARLIER) from None
            except HibaliError as problem:
                traits = target.files.traits
                target.left = target.left or traits.keeps_parts or traits.stores_late
                if problem.transient and problem.code in _AGAIN:
                    raise Refused(Problem(problem.code, problem.message, retryable=True)) from None
                raise
            finally:
                large.over.set()

        self._report(large.item, target.put(large.item, digest, send), digest())


class FileRemover(EntryRemover):
    """The remover of files and empty folders."""

    def __init__(self, files: Files, pool: Executor, path_of: Callable[[bytes], bytes]) -> None:
        """See EntryRemover."""
        super().__init__(pool, path_of)
        self._files = files

    def remove_file(self, path: bytes, entry: Entry) -> Problem | None:
        """Remove a file that is unchanged since the listing; a missing one is no error."""
        found = self._files.stat(path)
        if found is None or (found.folder and self._files.traits.keys):
            return None
        if found.is_still(entry) and self._files.delete_unchanged(path, found):
            return None
        return CHANGED_SINCE

    def remove_folder(self, path: bytes) -> Problem | None:
        """Remove an empty folder; a missing one is no error."""
        if self._files.traits.flat:
            return self._files.remove_empty(path)
        found = self._files.stat(path)
        if found is None:
            return None
        return self._files.remove_empty(path) if found.folder else CHANGED_SINCE
