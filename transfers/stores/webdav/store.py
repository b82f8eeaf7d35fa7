"""Store files in a folder at a WebDAV server."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future

from hibali.errors import HibaliError, NotFoundError, RefusedError
from hibali.events import Listener, Noted, ignore
from hibali.http import CONNECTIONS
from hibali.locations import Location
from hibali.text import printable
from transfers.agent import protocol
from transfers.agent.identity import Identity
from transfers.agent.protocol import LEASE_SECONDS
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts, name_problem, unsafe_component
from transfers.model.identities import identity_of_url
from transfers.model.leases import lost_lease
from transfers.model.store import Origin, Store, problem_of
from transfers.model.units import Committed, Item, ListingIncompleteError, Payload, Problem, Space
from transfers.stores.server.lease import Lease, NoLease
from transfers.stores.server.listing import ServerListing
from transfers.stores.server.own_files import OWN, FolderMaker, Own, TreeRemover, below
from transfers.stores.server.reading import RequestStore
from transfers.stores.webdav.copying import CopySource, WebdavCopying
from transfers.stores.webdav.files import Children, Files, Found
from transfers.stores.webdav.lock import DavLock, find_lock
from transfers.stores.webdav.probe import ServerSupport, facts_of, probe_server, recall, remember
from transfers.stores.webdav.renaming import WebdavRename
from transfers.stores.webdav.requests import WebdavClient
from transfers.stores.webdav.writing import FileRemover, WebdavTarget, WebdavWriter

_FOLDERS_AHEAD = 8
_NAMES_AHEAD = 64


class Listing(ServerListing):
    """A listing that requests the next folders in threads."""

    own_names = (*protocol.OWN, b"probe")

    def __init__(self, files: Files, pool: Executor, root: bytes, own: Own, *, shallow: bool = False) -> None:
        """Set the fields; `root` is a folder, and entries are relative to it."""
        super().__init__(shallow=shallow)
        self._files = files
        self._pool = pool
        self._root = root
        self._own = own
        self._ahead: dict[bytes, Future[Children]] = {}

    def _children(self, folder: bytes) -> Iterator[Entry]:
        """Yield a folder's entries without own names; start listing its subfolders."""
        future = self._ahead.pop(folder, None)
        try:
            children = future.result() if future is not None else self._list_children(folder)
            if children.own:
                self._seeds += self._own.seeds(folder)
                self.own_folders.append(folder)
        except HibaliError as problem:
            if not folder:
                raise
            if problem.code != "vanished":  # removed meanwhile, so it has no entries
                self.problems.append((folder, problem_of(problem, denied=True)))
            return
        for name, found in self._list_subfolders_ahead(folder, children.names):
            path = below(folder, name)
            reason = unsafe_component(name)
            if reason:
                self.problems.append((path, Problem("unsafe-name", f"it cannot be a path: {reason}")))
            elif self._is_own(folder, path):
                continue
            elif found.size < 0:
                self.problems.append((path, _why(found)))
            else:
                yield found.entry(path)

    def _list_children(self, folder: bytes) -> Children:
        return self._files.children(below(self._root, folder))

    def _list_subfolders_ahead(
        self, folder: bytes, names: Iterator[tuple[bytes, Found]]
    ) -> Iterator[tuple[bytes, Found]]:
        """Yield the names without slashes, and request the next folders ahead."""
        coming: deque[tuple[bytes, Found]] = deque()
        for listed, found in names:
            name = listed.removesuffix(b"/")
            coming.append((name, found))
            if found.folder and not self._shallow and name != OWN and len(self._ahead) < _FOLDERS_AHEAD:
                path = below(folder, name)
                self._ahead[path] = self._pool.submit(self._list_children, path)
            if len(coming) > _NAMES_AHEAD:
                yield coming.popleft()
        yield from coming


def _why(found: Found) -> Problem:
    """Return the problem of a name whose properties the server did not send."""
    if found.tag in {"401", "403"}:
        return Problem("denied", "the server denied access")
    return Problem("no-size", "the server does not report its size")


_Writers = list[WebdavWriter | WebdavCopying]
_Paths = list[bytes]


class DavStore(RequestStore):
    """A store over one folder of a WebDAV server."""

    def __init__(
        self,
        client: WebdavClient,
        site: str,
        root: bytes,
        *,
        read_back: bool = True,
        on_event: Listener = ignore,
        lease: int = LEASE_SECONDS,
    ) -> None:
        """Set the fields; `root` is a path below the site's URL without outer slashes."""
        self._files = Files(client)
        super().__init__(self._files.get, self._path, threads=CONNECTIONS, name="webdav")
        self.root_path = root
        self._client = client
        self._site = site
        self._read_back = read_back
        self._on_event = on_event
        self._lease = lease
        self._own = Own(self._files, root)
        self._support = recall(site, client.origin, client.base)
        self._read_verification = Verification.RECORDED
        self._holder: Lease | NoLease = NoLease()
        self._writers: _Writers = []
        self._orphans: _Paths = []
        self._own_folders: _Paths = []  # folders below that have a `.hibali`
        self._locking = False  # `lock` was called, which holds nothing at a server without locks
        self._tidy = False  # all orphans are known and no other partial file exists

    @property
    def facts(self) -> Facts:
        """The probed facts, with the verification that this store's listings allow."""
        return facts_of(self._support, self._read_verification, read_back=self._read_back)

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return super().wire_bytes + sum(writing.bytes for writing in self._writers)

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [identity_of_url(self._client.origin + self._client.base, self.root_path)]

    def probe(self, *, refresh: bool = False) -> ServerSupport:
        """Return what the server supports, probing it if unknown or with `refresh`; the root must exist."""
        if self._support is None or refresh:
            self._support = probe_server(self._files, self.root_path)
            remember(self._site, self._client.origin, self._client.base, self._support)
        return self._support

    def _path(self, path: bytes) -> bytes:
        """Return a path below the site's URL. Raise `RefusedError` if it could climb or is ambiguous (S1)."""
        return self._safe(path, unsafe_component(path))

    def _target_path(self, path: bytes) -> bytes:
        """Return a path to write, with the checks for names at this server."""
        return self._safe(path, name_problem(path, self.facts))

    def _safe(self, path: bytes, reason: str | None) -> bytes:
        if reason:
            raise RefusedError(
                "unsafe-name", f"{printable(path)} cannot be a path: {reason}", subject=self._client.subject
            )
        return below(self.root_path, path)

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        found = self._files.stat(self._path(path) if path else self.root_path)
        if found is None:
            return None
        entry = found.entry(path)
        self._weaken(entry)
        return entry

    def file_above(self) -> bool:
        """See Store."""
        parts = self.root_path.strip(b"/").split(b"/")
        for count in range(len(parts) - 1, 0, -1):
            found = self._files.stat(b"/".join(parts[:count]))
            if found is not None:
                return not found.folder
        return False

    def _weaken(self, entry: Entry) -> None:
        if entry.kind is Kind.FILE and entry.digest is None:
            self._read_verification = Verification.SIZE

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store. A complete XML document replaces a final count."""
        root = self.stat()
        if root is None:
            raise NotFoundError("no-such-place", "it does not exist", subject=self._client.subject)
        if root.kind is Kind.FILE:
            return
        listing = Listing(self._files, self._pool, self.root_path, self._own, shallow=shallow)
        for entry in listing:
            self._weaken(entry)
            yield entry
        self._orphans = listing.orphans
        self._own_folders = [folder for folder in listing.own_folders if folder]
        self._tidy = not shallow and not listing.problems
        if listing.problems:
            raise ListingIncompleteError(self._client.subject, listing.problems)

    def _size_now(self, entry: Entry) -> int | None:
        found = self._files.stat(self._path(entry.path))
        return None if found is None or found.folder else found.size

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store; requires the lock if the server supports locks."""
        write_target = self._write_target()
        writing = WebdavWriter(write_target, self._pool)
        self._writers.append(writing)
        yield from self._tidied(write_target, writing.run(payloads))

    def copies(self, source: Store) -> bool:
        """See Store: whether `source` is below the same URL; the server itself checks the permissions."""
        if not isinstance(source, DavStore):
            return False
        ours, theirs = self._client, source._client  # noqa: SLF001  # its own kind
        return (ours.origin, ours.base) == (theirs.origin, theirs.base)

    def copy(self, origin: Origin, items: Iterable[Item]) -> Generator[Committed, None, None]:
        """See Store; a copy is read back as what is written, and a source without a recorded digest is read."""
        source = origin.store
        assert isinstance(source, DavStore)

        def source_of(item: Item) -> CopySource:
            entry = origin.entry(item)
            return CopySource(source._path(entry.path), entry)  # noqa: SLF001  # its own kind

        write_target = self._write_target()
        copying = WebdavCopying(write_target, self._pool, source_of)
        self._writers.append(copying)
        yield from self._tidied(write_target, copying.run(items))

    def _tidied(
        self, write_target: WebdavTarget, results: Generator[Committed, None, None]
    ) -> Generator[Committed, None, None]:
        """Yield the results, and then remove partial files, and the journal if none of them is left."""
        whole = False
        try:
            yield from results
            self._holder.check(now=True)
            write_target.purge()
            self._purge()
            whole = True
        finally:
            if whole and self._tidy and not write_target.left:
                self._own.end_journal()
                if not self._holder.held:
                    self._own.remove_folder()
            self._tidy = False

    def _write_target(self) -> WebdavTarget:
        """Probe the server, check the lock, and return the write target."""
        support = self._writable()
        self._check_held(support)
        earlier = self._own.seeds()
        self._tidy = self._tidy or not earlier
        return WebdavTarget(
            files=self._files,
            removing=self._removing(),
            support=support,
            holder=self._holder,
            root=self.root_path,
            seed=self._own.open_seed(earlier),
            path_of=self._target_path,
            read_back=self._read_back,
            folders=FolderMaker(self._files, self._target_path),
        )

    def _writable(self) -> ServerSupport:
        support = self.probe()
        if not support.writable:
            raise RefusedError(
                "read-only-site",
                "this server does not allow writing, or not safely",
                subject=self._client.subject,
                hint=f"`hibali sites check {self._site}` shows its capabilities.",
            )
        return support

    def _check_held(self, support: ServerSupport) -> None:
        if support.locks and not self._holder.held:
            raise lost_lease(self._client.subject, "the target is not locked")

    def _removing(self) -> FileRemover:
        return FileRemover(self._files, self._pool, self.probe(), self._path)

    def _purge(self) -> None:
        """Remove partial files of an interrupted operation."""
        for path in self._orphans:
            self._files.delete(self._path(path))
        self._orphans = []

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; requires the lock if the server supports locks."""
        self._check_held(self._writable())
        self._holder.check(now=True)
        yield from self._removing().remove(entries, self._holder.check)

    def check_no_locks(self, *, itself: bool) -> None:
        """See Store; WebDAV does not report symlinks."""
        del itself
        self._tree_remover().check()

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """See Store."""
        self._purge()
        locks = self.facts.locks

        def hold(folder: bytes) -> Lease | NoLease:
            return DavLock(self._files, folder, "rm", self._lease) if locks else NoLease()

        return self._tree_remover().sweep(self._holder.check, hold)

    def remove_root(self) -> Problem | None:
        """See Store."""
        self._holder.check(now=True)
        return self._tree_remover().remove_root(
            self._holder, lambda: self._removing().remove_folder(self.root_path)
        )

    def rename(self, entry: Entry, target: Location) -> None:
        """See Store; a folder's lock is released just before, because it is a file in it.

        From then on the server itself refuses: MOVE of a folder in which another client holds a LOCK fails.
        """
        new = target.raw.strip(b"/")
        reason = name_problem(new, self.facts)
        if reason:
            raise RefusedError("unsafe-name", reason, subject=target.text)
        renaming = WebdavRename(self._files, below(self.root_path, entry.path), new)
        if not self._locking:
            return
        self._check_held(self._writable())
        self._holder.check(now=True)
        renaming.check_unlocked(self.root_path, lambda folder: find_lock(self._files, folder))
        renaming.make_folders()
        if not entry.path:
            self._holder.release()
        renaming.execute(entry, if_tag=self.probe().if_tag)

    def _tree_remover(self) -> TreeRemover:
        files = self._files
        return TreeRemover(files, self.root_path, self._own_folders, lambda folder: find_lock(files, folder))

    def make_root(self) -> None:
        """See Store; probes the server."""
        parts = self.root_path.split(b"/") if self.root_path else []
        if self._files.stat(self.root_path) is None:
            for count in range(1, len(parts) + 1):
                self._files.make_folder(b"/".join(parts[:count]))
        self.probe()

    def lock(self, operation: str, *, make: bool = False) -> Lease | NoLease:
        """See Store; if the server cannot hold a lock, emit a note and hold nothing."""
        if make:
            self.make_root()
        if not self.probe().writable:
            self.probe(refresh=True)
        support = self._writable()
        self._locking = True
        if support.locks:
            self._holder = DavLock(self._files, self.root_path, operation, self._lease)
        else:
            self._holder = NoLease()
            self._note(
                "this server does not support locks; do not write to it from several places at the same time."
            )
        if not support.mtimes:
            self._note(
                "this server does not store modification times, so every push sends all files again; to compare by content instead, use --checksum."
            )
        return self._holder

    def _note(self, text: str) -> None:
        self._on_event(Noted(f"{self._client.subject}: {text}"))

    def space(self) -> Space:
        """See Store; the space of the nearest existing folder above."""
        path = self.root_path
        while path and self._files.stat(path) is None:
            path = path.rpartition(b"/")[0]
        return Space(self._files.free_bytes(path), None)

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()
