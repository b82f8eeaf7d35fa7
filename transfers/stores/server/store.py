"""Store files in a folder of a server, over the calls of `Files`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing, contextmanager

from hibali.errors import HibaliError, NotFoundError, RefusedError
from hibali.events import Listener, Noted, ignore
from hibali.locations import Location
from transfers.agent import protocol
from transfers.agent.identity import Identity
from transfers.agent.protocol import LEASE_SECONDS
from transfers.model.entry import Entry, Kind, Verification, enclosing, weakest
from transfers.model.facts import Facts, name_problem, unsafe_component
from transfers.model.leases import lost_lease
from transfers.model.store import MARKER, Origin, Store, problem_of
from transfers.model.units import Committed, Item, Payload, Problem, Space
from transfers.stores.server.copying import CopySource, ServerCopying, ServerRename
from transfers.stores.server.files import Children, Files, Support
from transfers.stores.server.keys import Cache, HidingFiles, Unlisted
from transfers.stores.server.lease import Lease, NoLease
from transfers.stores.server.listing import ServerListing
from transfers.stores.server.manifest import ManifestLines
from transfers.stores.server.own_files import OWN, FolderMaker, Own, TreeRemover, below
from transfers.stores.server.reading import ServerReader
from transfers.stores.server.records import Found, Records
from transfers.stores.server.writing import FileRemover, ServerWriter, Target, write_manifest

_FOLDERS_AHEAD = 8
_NAMES_AHEAD = 64


class TreeListing(ServerListing):
    """A listing that requests the next folders in threads."""

    own_names = (*protocol.OWN, b"probe")

    def __init__(
        self, files: Files, pool: Executor, root: bytes, records: Records, *, shallow: bool = False
    ) -> None:
        """Set the fields; `root` is a folder, and entries are relative to it."""
        super().__init__(shallow=shallow)
        self._files = files
        self._noun = files.traits.words.noun
        self._pool = pool
        self._root = root
        self._records = records
        self._own = Own(files, root)
        self._ahead: dict[bytes, Future[Children]] = {}

    def _children(self, folder: bytes) -> Iterator[Entry]:
        """Yield a folder's entries without own names; start listing its subfolders."""
        future = self._ahead.pop(folder, None)
        try:
            children = future.result() if future is not None else self._list_children(folder)
            if children.own:
                self._seeds += self._own.seeds(folder)
                self.own_folders.append(folder)
                if folder:
                    self._records.nested.add(folder)
        except HibaliError as problem:
            if not folder:
                raise
            if problem.code != "vanished":
                self.problems.append((folder, problem_of(problem, denied=True)))
            elif self._is_file(folder):
                reason = f"the {self._noun} does not list what is below a file of the same name"
                self.problems.append((folder, Problem("listing-violation", reason)))
            return  # otherwise it was removed meanwhile, so it has no entries
        for name, found in self._list_subfolders_ahead(folder, children.names):
            path = below(folder, name)
            unsafe = unsafe_component(name)
            if unsafe:
                self.problems.append((path, Problem("unsafe-name", f"it cannot be a path: {unsafe}")))
            elif self._is_own(folder, path):
                continue
            elif found.size < 0:
                self.problems.append((path, self._why(found)))
            else:
                yield self._records.entry_of(path, found)

    def _why(self, found: Found) -> Problem:
        """Return the problem of a name whose properties are unknown; its tag may be the status of their request."""
        if found.tag in {"401", "403"}:
            return Problem("denied", f"the {self._noun} denied access")
        return Problem("no-size", f"the {self._noun} does not report its size")

    def _is_file(self, folder: bytes) -> bool:
        found = self._files.stat(below(self._root, folder))
        return found is not None and not found.folder

    def _list_children(self, folder: bytes) -> Children:
        return self._files.listed(below(self._root, folder))

    def _list_subfolders_ahead(
        self, folder: bytes, names: Iterator[tuple[bytes, Found]]
    ) -> Iterator[tuple[bytes, Found]]:
        """Yield the names, and request the next folders ahead."""
        coming: deque[tuple[bytes, Found]] = deque()
        for name, found in names:
            coming.append((name, found))
            if found.folder and not self._shallow and name != OWN and len(self._ahead) < _FOLDERS_AHEAD:
                path = below(folder, name)
                self._ahead[path] = self._pool.submit(self._list_children, path)
            if len(coming) > _NAMES_AHEAD:
                yield coming.popleft()
        yield from coming


_Paths = list[bytes]


class ServerStore(ServerReader):
    """A store over one folder of a server."""

    def __init__(
        self,
        files: Files,
        site: str,
        root: bytes,
        *,
        slash: bool = False,
        read_back: bool = True,
        on_event: Listener = ignore,
        lease: int = LEASE_SECONDS,
    ) -> None:
        """Set the fields; `root` is a path below the site's URL without outer slashes."""
        super().__init__(
            files.get,
            root,
            files.subject,
            threads=files.traits.threads,
            name=files.traits.kind,
            ahead_bytes=files.traits.ahead_bytes,
            checksum=files.checksum,
        )
        self._files = files
        self._site = site
        self._slash = slash
        self._read_back = read_back
        self._on_event = on_event
        self._lease = lease
        self._own = Own(files, root)
        self._cache = Cache(site, files.address, "", root) if files.traits.manifest else None
        self._records = Records(files, root, self._cache, manifest=files.traits.manifest)
        files.recall(site)
        # most files of a machine were not written by hibali, so their digests are not recorded
        self._read_verification = Verification.SIZE if files.traits.posix else Verification.RECORDED
        self._hiding = HidingFiles(files.subject, on_event)
        self._holder: Lease | NoLease = NoLease()
        self._orphans: _Paths = []
        self._own_folders: _Paths = []  # folders below that have a `.hibali`
        self._tidy = False  # all orphans are known and no other partial file exists
        self._made = False
        self._locking = False  # `lock` was called, which holds nothing at a server without locks

    def can(self, operation: Callable[..., object]) -> bool:
        """See Store; not every server renames."""
        return super().can(operation) and (operation is not Store.rename or self._files.traits.renames)

    @property
    def facts(self) -> Facts:
        """The probed facts, with the verification that this store's listings allow."""
        return self._files.facts(self.root_path, self._read_verification, read_back=self._read_back)

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [self._files.identity(self.root_path)]

    def probe(self, *, refresh: bool = False) -> Support:
        """Return what the server supports, probing it if unknown or with `refresh`; the root must exist."""
        if self._files.support is None or refresh:
            self._files.probe(self._site, self.root_path)
        assert self._files.support is not None
        return self._files.support

    def _target_path(self, path: bytes) -> bytes:
        """Return a path to write, with the checks for names at this filesystem."""
        return self._safe(path, name_problem(path, self.facts))

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store. If a file and a folder share the name, return a file with content, or with `slash` the folder."""
        full = self._path(path) if path else self.root_path
        found = self._files.stat(full)
        if found is None and not full and self._files.has_bucket():
            return Entry(b"", Kind.FOLDER)  # without any keys
        if found is not None and not found.folder and not path and self._slash and self._has_keys(full):
            return Entry(path, Kind.FOLDER)
        if found is None:
            return None
        if found.kind is Kind.FILE and not found.size and self._has_keys(full):
            return self._hiding.folder(Entry(path, Kind.FOLDER), full)
        entry = self._records.one(path, found)
        self._weaken(entry)
        return entry

    def _has_keys(self, full: bytes) -> bool:
        try:
            return self._files.traits.keys and bool(self._files.children(full))
        except NotFoundError:
            return False

    def file_above(self) -> bool:
        """See Store."""
        if self._files.traits.keys:
            return False
        parts = self.root_path.split(b"/")
        for count in range(len(parts) - 1, 0, -1):
            found = self._files.stat(b"/".join(parts[:count]))
            if found is not None:
                return not found.folder
        return False

    def _weaken(self, entry: Entry) -> None:
        if entry.kind is Kind.FILE and entry.digest is None:
            self._read_verification = weakest(self._read_verification, self._files.traits.unrecorded)

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store. A server returns all names of a folder, or raises: that replaces a final count."""
        root = self.stat()
        if root is None and self._made and self._files.traits.keys:
            return
        if root is None:
            raise NotFoundError("no-such-place", "it does not exist", subject=self._subject)
        if root.kind is not Kind.FOLDER:
            return
        self._records.begin(shallow=shallow)
        listing = TreeListing(self._files, self._pool, self.root_path, self._records, shallow=shallow)
        hides = self._files.traits.keys and not shallow  # folders are only parts of keys
        for entry in listing:
            if hides and entry.kind is Kind.FOLDER:
                continue
            self._weaken(entry)
            yield entry
        unlisted = Unlisted(self._subject)
        hidden = {folder for folder, _ in listing.problems}
        unlisted.add_missing(
            (path, known)
            for path, known in self._records.missing()
            if hidden.isdisjoint((path, *enclosing(path)))
        )
        self._records.close()
        self._orphans = listing.orphans
        self._own_folders = [folder for folder in listing.own_folders if folder]
        self._tidy = not shallow and not listing.problems
        unlisted.end(listing.problems)

    def _size_now(self, entry: Entry) -> int | None:
        found = self._files.stat(self._path(entry.path))
        return None if found is None or found.kind is not Kind.FILE else found.size

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store; requires the lock if the server supports locks."""
        target = self._target()
        writing = ServerWriter(target, self._pool)
        self._writings.append(writing)
        yield from self._tidied(target, writing.run(payloads))

    def copies(self, source: Store) -> bool:
        """See Store; the servers themselves check the permissions."""
        return isinstance(source, ServerStore) and self._files.copies_from(source._files)  # noqa: SLF001  # its own kind

    @property
    def least_copied(self) -> int:  # type: ignore[override]
        """See Store."""
        return self._files.least_copied

    def copy(self, origin: Origin, items: Iterable[Item]) -> Generator[Committed, None, None]:
        """See Store, and `ServerCopying` for how copies are verified."""
        source = origin.store
        assert isinstance(source, ServerStore)

        def source_of(item: Item) -> CopySource:
            entry = origin.entry(item)
            return CopySource(source._path(entry.path), entry)  # noqa: SLF001  # its own kind

        target = self._target()
        copying = ServerCopying(target, self._pool, source._files, source_of)  # noqa: SLF001  # its own kind
        self._writings.append(copying)
        yield from self._tidied(target, copying.run(items))

    def _tidied(
        self, target: Target, results: Generator[Committed, None, None]
    ) -> Generator[Committed, None, None]:
        """Yield the results, and then remove partial files, and the journal if none of them is left."""
        whole = False
        try:
            yield from results
            self._holder.check(now=True)
            target.purge()
            self._purge()
            whole = True
        finally:
            self._save(target.committed, target.cleared)
            if whole and self._tidy and not target.left:
                self._own.end_journal()
                if not self._holder.held:
                    self._own.remove_folder()
            self._tidy = False

    def _target(self) -> Target:
        """Probe the server, check the lock, and return the write target."""
        support = self._writable()
        self._check_held(support)
        target = Target(
            files=self._files,
            removing=self._removing(),
            support=support,
            holder=self._holder,
            root=self.root_path,
            seed=b"",
            path_of=self._target_path,
            read_back=self._read_back,
            folders=FolderMaker(self._files, self._path),  # `.hibali` too, which data must not use
            cache=self._cache,
        )
        if target.renames or self._files.traits.keeps_parts:
            earlier = self._own.seeds()
            self._tidy = self._tidy or not earlier
            target.seed = self._own.open_seed(earlier)
            target.earlier = earlier
            self._files.use_seed(target.seed)
        return target

    def _save(self, changes: ManifestLines, cleared: Sequence[bytes] = ()) -> None:
        """Record what was committed or removed, unless another client may hold the lock now."""
        support = self._files.support
        with closing(changes):
            if support is None or not support.versions or (support.locks and not self._holder.held):
                return
            self._records.save(changes, self._write_manifest, self._on_event, cleared)

    def _write_manifest(self, path: bytes, pieces: Iterator[bytes], size: int) -> None:
        write_manifest(self._files, self.probe(), path, pieces, size)

    def _writable(self, *, refresh: bool = False) -> Support:
        """Return what the server supports, with `refresh` probed again if writing was not possible. Raise `RefusedError`."""
        support = self.probe()
        if refresh and not support.writable:
            support = self.probe(refresh=True)
        if not support.writable:
            raise RefusedError(
                "read-only-site",
                f"this {self._files.traits.words.noun} does not allow writing, or not safely",
                subject=self._subject,
                hint=f"`hibali sites check {self._site}` shows its capabilities.",
            )
        return support

    def _check_held(self, support: Support) -> None:
        if support.locks and not self._holder.held:
            raise lost_lease(self._subject, "the target is not locked")

    def _removing(self) -> FileRemover:
        return FileRemover(self._files, self._pool, self._path)

    def _purge(self) -> None:
        """Remove partial files of an interrupted operation."""
        for path in self._orphans:
            full = self._path(path)
            found = self._files.stat(full) if self._files.traits.keeps_parts else None
            if found is not None and found.folder:
                self._files.remove_tree(full)
            else:
                self._files.delete(full)
        self._orphans = []

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; requires the lock if the server supports locks."""
        self._check_held(self._writable())
        self._holder.check(now=True)
        removed = ManifestLines()
        try:
            for entry, problem in self._removing().remove(entries, self._holder.check):
                if problem is None and entry.kind is not Kind.FOLDER:
                    removed.add(entry.path, b"")
                yield entry, problem
        finally:
            self._save(removed)

    @contextmanager
    def marked(self, path: bytes) -> Iterator[None]:
        """See Store."""
        full = self._path(path)
        self._files.put(full, MARKER)
        try:
            yield
        finally:
            self._files.delete(full)

    def check_no_locks(self, *, itself: bool) -> None:
        """See Store; symlinks are entries here, never followed as roots."""
        del itself
        self._tree_remover().check()

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """See Store."""
        self._purge()
        locks = self.probe().locks

        def hold(folder: bytes) -> Lease | NoLease:
            return self._files.hold(folder, "rm", self._lease) if locks else NoLease()

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
        renaming = ServerRename(self._files, below(self.root_path, entry.path), new)
        if not self._locking:
            return
        self._check_held(self._writable())
        self._holder.check(now=True)
        renaming.check_unlocked(self.root_path, self._files.find_lock)
        renaming.make_folders()
        folder, _, name = below(self.root_path, entry.path).rpartition(b"/")
        recorded = self._files.traits.manifest and self.probe().versions
        records = Records(self._files, folder, manifest=recorded)
        with records.renaming(name, new, self._write_manifest, self._on_event):
            if not entry.path:
                self._holder.release()
            renaming.execute(entry)

    def _tree_remover(self) -> TreeRemover:
        return TreeRemover(self._files, self.root_path, self._own_folders, self._files.find_lock)

    def make_root(self) -> None:
        """See Store; probes the server. Buckets are never created."""
        self._files.make_root(self.root_path)
        self._made = True
        self.probe()

    def lock(self, operation: str, *, make: bool = False) -> Lease | NoLease:
        """See Store; if the server cannot hold a lock, emit a note and hold nothing."""
        if make:
            self.make_root()
        support, words = self._writable(refresh=True), self._files.traits.words
        self._locking = True
        if support.locks:
            self._holder = self._files.hold(self.root_path, operation, self._lease)
        else:
            self._holder = NoLease()
            self._note(
                f"this {words.noun} does not support locks; do not write to it from several places at the same time."
            )
        if not support.versions:
            self._note(
                f"{words.no_versions}, so every push sends all files again; to compare by content instead, use --checksum."
            )
        return self._holder

    def _note(self, text: str) -> None:
        self._on_event(Noted(f"{self._subject}: {text}"))

    def space(self) -> Space:
        """See Store; the space of the nearest existing folder above."""
        if not self._files.traits.tells_space:
            return super().space()
        path = self.root_path
        while path and self._files.stat(path) is None:
            path = path.rpartition(b"/")[0]
        return Space(self._files.free_bytes(path), None)

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._records.close()
        if self._cache is not None:
            self._cache.close()
        self._files.close()
