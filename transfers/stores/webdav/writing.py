"""Write and remove files at a WebDAV server: small ones whole, large ones as one stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from hibali.errors import HibaliError, IncompleteError
from transfers.agent import protocol
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.units import Committed, Item, Problem
from transfers.stores.server.lease import Lease, NoLease
from transfers.stores.server.own_files import CHANGED_SINCE, EntryRemover, FolderMaker, below
from transfers.stores.server.streaming import (
    DIFFERS,
    EARLIER,
    Refused,
    StreamedFile,
    StreamingWriter,
    UploadAbandonedError,
    UploadRestartedError,
)
from transfers.stores.webdav.files import Files, Found, date_of, header_seconds, known_value
from transfers.stores.webdav.lock import remove_empty
from transfers.stores.webdav.multistatus import KNOWN
from transfers.stores.webdav.probe import MODIFIED, TIME_HEADER, ServerSupport

CORRUPT = Problem("corrupt", "the written file differs when it is read back", retryable=True)
_CHANGED = Problem(
    "target-changed", "it changed at the target after the plan was made, so it was not replaced"
)
_FOLDER = Problem("folder-in-the-way", "a folder with that name already exists at the target")
_ATTEMPTS = 3


@dataclass(slots=True)
class WebdavTarget:
    """The target of one `write`. `aside` are replaced folders to purge at the end."""

    files: Files
    removing: FileRemover
    support: ServerSupport
    holder: Lease | NoLease
    root: bytes
    seed: bytes
    path_of: Callable[[bytes], bytes]
    read_back: bool
    folders: FolderMaker
    aside: list[bytes] = field(default_factory=list)
    left: bool = False  # a partial file may remain

    def name_for(self, path: bytes, prefix: bytes = b"") -> bytes:
        """Return the full partial path beside `path`; `prefix` distinguishes several for one path."""
        folder = path.rpartition(b"/")[0]
        return below(self.root, below(folder, protocol.partial_name(self.seed, prefix + path)))

    def headers_of(self, entry: Entry) -> dict[str, str]:
        """Return the headers of a PUT."""
        if self.support.times != "header":
            return {}
        return {TIME_HEADER: str(header_seconds(entry.mtime_ns))}

    def make_folder(self, item: Item) -> None:
        """Make the folder of an item; replace a file if the plan allows it."""
        if item.clear and item.replaces is not None and item.replaces.kind is not Kind.FOLDER:
            self.holder.check()
            problem = self.removing.remove_file(self.path_of(item.entry.path), item.replaces)
            if problem is not None:
                raise Refused(problem)
        self.folders.make_above(item.entry.path + b"/")

    def finish(self, item: Item, name: bytes, digest: str) -> Found:
        """Read a partial file back, set its time and commit it. Raise `Refused`, `HibaliError`."""
        entry = item.entry
        if self.support.times == "proppatch":
            self.files.set_property(name, MODIFIED, date_of(entry.mtime_ns))
        tag = self._check_written(entry, name, digest)
        is_set = bool(tag) and self.support.properties
        if is_set and not self.files.set_property(name, KNOWN, known_value(entry, digest, tag)):
            raise Refused(Problem("no-property", "the server did not store its time and digest"))
        self.holder.check()
        self._move(item, name, digest)
        return Found(folder=False, size=entry.size, mtime_ns=entry.mtime_ns, tag=tag, digest=digest)

    def _check_written(self, entry: Entry, name: bytes, digest: str) -> str:
        """Check that the partial file is what was sent; return its tag."""
        if self.read_back:
            found, size, tag = self.files.digest(name, entry.size)
            if (found, size) != (digest, entry.size):
                raise Refused(CORRUPT)
            return tag
        existing = self.files.stat(name)
        if existing is None or existing.size != entry.size:
            raise Refused(CORRUPT)
        return existing.tag

    def _move(self, item: Item, name: bytes, digest: str) -> None:
        """Commit after a check: MOVE first deletes the target, even a full folder (RFC 4918, 9.9.3)."""
        to = self.path_of(item.entry.path)
        checked = item.exact or item.replaces is not None
        for _ in range(_ATTEMPTS):
            existing = self.files.stat(to) if checked else None
            problem = self._unfit(item, existing)
            if problem is not None:
                raise Refused(problem)
            if existing is not None and existing.folder:
                self._set_aside(item, to)
                existing = None
            if self._moved(name, to, existing, digest, item.entry.size):
                return
            checked = True
        raise Refused(_CHANGED)

    def _unfit(self, item: Item, existing: Found | None) -> Problem | None:
        """Return why the existing target may not be replaced, or None."""
        if existing is None:
            return None
        if existing.folder:
            agreed = item.replaces is not None and item.replaces.kind is Kind.FOLDER and item.clear
            return None if agreed else _FOLDER
        if item.exact and (item.replaces is None or not existing.is_still(item.replaces)):
            return _CHANGED
        return None

    def _moved(self, name: bytes, to: bytes, existing: Found | None, digest: str, size: int) -> bool:
        """Return whether MOVE succeeded; False if the target changed since the check."""
        headers = {}
        if existing is not None and self.support.if_tag and not existing.tag.startswith("@"):
            headers["If"] = f'<{self.files.client.address(to)}> (["{existing.tag}"])'
        status = self.files.move(name, to, headers, overwrite=existing is not None)
        if status == 404 and self.files.digest(to, size)[0] != digest:
            # A repeated MOVE whose first response was lost finds no source.
            raise IncompleteError(
                "corrupt",
                "it disappeared before it was renamed to its final name",
                subject=self.files.subject,
                transient=True,
            )
        return status != 412

    def _set_aside(self, item: Item, path: bytes) -> None:
        """Move a folder that the plan replaces to a partial name; it is purged at the end."""
        aside = self.name_for(item.entry.path, b"aside/")
        if self.files.move(path, aside, {}, overwrite=False) < 300:
            self.aside.append(aside)
            self.folders.forget(item.entry.path)

    def drop(self, name: bytes) -> None:
        """Remove a partial file that will not be committed; set `left` if it stays for the next run."""
        try:
            self.files.delete(name)
        except HibaliError:
            self.left = True

    def purge(self) -> None:
        """Delete the replaced folders with their contents."""
        for path in self.aside:
            self.files.remove_folder(path)
        self.aside.clear()


_MOST_JOBS = 8  # connections that write


class WebdavWriter(StreamingWriter):
    """The writer of files, through partial files."""

    cannot_store = Problem("unsupported-kind", "a WebDAV server cannot store symlinks and special files")

    def __init__(self, write_target: WebdavTarget, pool: Executor) -> None:
        super().__init__(write_target.holder, pool, _MOST_JOBS)
        self._write_target = write_target

    def _make_folder(self, item: Item) -> None:
        def act() -> None:
            self._write_target.make_folder(item)
            self._jobs.report(Committed(item, None, Verification.DIGEST))

        self._guarded(item, act)

    def _write_whole(self, item: Item, content: memoryview, digest: str) -> None:
        if hashlib.sha256(content).hexdigest() != digest or len(content) != item.entry.size:
            self._fail(item, DIFFERS)
            return

        def send(name: bytes) -> None:
            self._write_target.files.put(name, content, self._write_target.headers_of(item.entry))

        self._through(item, lambda: digest, send)

    def _through(self, item: Item, digest: Callable[[], str], send: Callable[[bytes], None]) -> None:
        """Make the folders, send a partial file, verify and move it; remove it after a failure."""
        write_target = self._write_target
        name = b""

        def act() -> None:
            nonlocal name
            write_target.path_of(item.entry.path)  # check that the server supports the name
            write_target.folders.make_above(item.entry.path)
            name = write_target.name_for(item.entry.path)
            send(name)
            found = write_target.finish(item, name, digest())
            name = b""
            self._count(item.entry.size * (2 if write_target.read_back else 1))
            verification = Verification.DIGEST if write_target.read_back else Verification.SIZE
            self._jobs.report(Committed(item, found.digest, verification, found.tag or None))

        try:
            self._guarded(item, act)
        except UploadRestartedError:
            pass
        finally:
            if name:
                write_target.drop(name)

    def _send(self, large: StreamedFile) -> None:
        """Stream one large file; runs in a thread of the pool."""
        item, write_target = large.item, self._write_target

        def send(name: bytes) -> None:
            try:
                write_target.files.client.put(
                    name, large.pieces(self._stopped), item.entry.size, write_target.headers_of(item.entry)
                )
            except UploadAbandonedError:
                # The server may still store what it received after we removed the partial file.
                write_target.left = True
                if large.restarted:
                    raise UploadRestartedError from None
                raise Refused(large.problem or EARLIER) from None
            except HibaliError:
                write_target.left = True
                raise
            finally:
                large.over.set()

        try:
            self._through(item, lambda: large.digest or "", send)
        finally:
            large.over.set()
            large.ended.set()


class FileRemover(EntryRemover):
    """The remover of files and empty folders, under the server's conditions and locks where it has them."""

    def __init__(
        self, files: Files, pool: Executor, support: ServerSupport, path_of: Callable[[bytes], bytes]
    ) -> None:
        """See EntryRemover."""
        super().__init__(pool, path_of)
        self._files = files
        self._support = support

    def remove_file(self, path: bytes, entry: Entry) -> Problem | None:
        """Remove a file that is unchanged since the listing; a missing one is no error."""
        found = self._files.stat(path)
        if found is None:
            return None
        if not found.is_still(entry):
            return CHANGED_SINCE
        if self._support.if_match and not found.tag.startswith("@"):
            status = self._files.delete(path, {"If-Match": f'"{found.tag}"'})
            if status != 412:
                return None
            current = self._files.stat(path)
            if current is None:
                return None
            # The file is unchanged: its tag is weak in its first second, which conditions reject.
            if current != found:
                return CHANGED_SINCE
        self._files.delete(path)
        return None

    def remove_folder(self, path: bytes) -> Problem | None:
        """Remove an empty folder; LOCK, if supported, keeps it empty between check and DELETE."""
        found = self._files.stat(path)
        if found is None:
            return None
        if not found.folder:
            return CHANGED_SINCE
        return remove_empty(self._files, path, locks=self._support.locks)
