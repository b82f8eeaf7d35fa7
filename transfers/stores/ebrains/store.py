"""Store files as objects in a bucket of the EBRAINS data proxy, or read those of a dataset."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain

from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError
from hibali.events import Listener, Noted, ignore
from hibali.text import printable
from transfers.agent.identity import Identity
from transfers.agent.protocol import LEASE_SECONDS
from transfers.model.entry import Entry, Kind, Verification, weakest
from transfers.model.facts import Facts, is_own_name, name_problem, unsafe_component
from transfers.model.identities import identity_of_url
from transfers.model.leases import lost_lease
from transfers.model.units import Committed, Item, Payload, Problem
from transfers.stores.ebrains.objects import Objects, found_of
from transfers.stores.ebrains.probe import (
    SEGMENT_BYTES,
    BucketSupport,
    facts_of,
    is_operation,
    probe_bucket,
    recall,
    remember,
)
from transfers.stores.ebrains.requests import CONNECTIONS, DataProxy
from transfers.stores.ebrains.writing import EbrainsWriter, ObjectRemover, Target
from transfers.stores.server.keys import Cache, HidingFiles, Listed, Unlisted, in_order, is_folder_marker
from transfers.stores.server.lease import Lease, NoLease
from transfers.stores.server.locks import NAME as LOCK
from transfers.stores.server.locks import ConditionalLock, check_unheld, find_lock, is_lock
from transfers.stores.server.manifest import NAME as MANIFEST
from transfers.stores.server.manifest import ManifestLines
from transfers.stores.server.own_files import below
from transfers.stores.server.probe import add_facts
from transfers.stores.server.reading import RequestStore
from transfers.stores.server.records import Records

_STATISTICS = b"stat"  # a GET of this key returns those of the bucket
_MANIFEST = b"/" + MANIFEST
_LONGEST_FACT = 200
# Requested before the target takes it: with what is in flight to an agent here, a kill costs at most 64 MiB.
_AHEAD_BYTES = 3 * SEGMENT_BYTES

_Paths = list[bytes]
_Writers = list[EbrainsWriter]


class _ProxyLock(ConditionalLock):
    """The lock object of one prefix; each check takes two requests."""

    check_seconds = 5.0


class EbrainsStore(RequestStore):
    """A store over one bucket and prefix, or over one dataset, which is read-only.

    Folders exist only as parts of keys. Digests, times and modes come from `.hibali/manifest.jsonl`, and from
    this machine's cache; without them, an object's time is its upload time.
    """

    def __init__(
        self,
        proxy: DataProxy,
        site: str,
        root: bytes,
        *,
        slash: bool = False,
        exact: bool = False,
        on_event: Listener = ignore,
        lease: int = LEASE_SECONDS,
    ) -> None:
        """Set the fields; `root` has no outer slashes; `slash` prefers a folder to a file of that name.

        With `exact`, the root and every path is the key of an object, also if it cannot be a path.
        """
        self._objects = Objects(proxy)
        super().__init__(
            self._objects.get, self._key, threads=CONNECTIONS, name="ebrains", ahead_bytes=_AHEAD_BYTES
        )
        self.root_path = root
        self._proxy = proxy
        self._settings = proxy.settings
        self._site = site
        self._slash = slash
        self._exact = exact
        self._on_event = on_event
        self._lease = lease
        self._cache = Cache(site, proxy.address, "", root)
        self._records = Records(self._objects, root, self._cache)
        self._support = recall(site, proxy.address)
        self._read_verification = Verification.RECORDED
        self._holder: Lease | NoLease = NoLease()
        self._writers: _Writers = []
        self._hiding = HidingFiles(self._objects.subject, on_event)
        self._cleared: _Paths = []
        self._locks_below: _Paths = []
        self._made = False

    @property
    def facts(self) -> Facts:
        """The probed facts, with the verification that this store's listings allow."""
        return facts_of(
            self._support,
            self.root_path,
            self._read_verification,
            writable=self._settings.bucket is not None and self._settings.has_login,
            read_back=self._settings.read_back,
        )

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return super().wire_bytes + sum(writing.bytes for writing in self._writers)

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [identity_of_url(self._proxy.address, self.root_path)]

    def add_facts(self, facts: dict[str, str | int | bool]) -> None:
        """Query the bucket or dataset, and add what `hibali sites check` shows."""
        if self._settings.bucket is None:
            self._objects.has_below(b"")
            facts["writable"] = False
            return
        found = self._proxy.ask("/" + _STATISTICS.decode())
        for name in ("objects_count", "bytes", "is_public", "role"):
            value = found.get(name)
            if isinstance(value, int | str):
                facts[name.replace("_", " ")] = (
                    printable(value[:_LONGEST_FACT]) if isinstance(value, str) else value
                )
        if self._settings.has_login:
            add_facts(self.probe(refresh=True), facts)
        else:
            facts["writable"] = False

    def probe(self, *, refresh: bool = False) -> BucketSupport:
        """Return what the bucket supports; probe it if that is unknown, or with `refresh`."""
        if self._support is None or refresh:
            self._support = probe_bucket(self._objects, self.root_path)
            remember(self._site, self._proxy.address, self._support)
        return self._support

    def _writable(self) -> BucketSupport:
        """Return what the bucket supports, probed again if writing was denied earlier."""
        if self._settings.bucket is None:
            self._refuse("be written to")
        if not self._settings.has_login:
            raise RefusedError(
                "read-only-site",
                "this site has no login, so it is read-only",
                subject=self._objects.subject,
                hint="Set the site's token_command: hibali config edit",
            )
        support = self.probe()
        support = support if support.writable else self.probe(refresh=True)
        if not support.writable:
            raise RefusedError(
                "read-only-site",
                "this account cannot write to the bucket",
                subject=self._objects.subject,
                hint="Ask the owner of the collab for the role of an editor.",
            )
        return support

    def _key(self, path: bytes) -> bytes:
        """Return the key of a path. Raise `RefusedError` if the path could climb or is ambiguous (S1)."""
        return self._safe(path, None if self._exact else unsafe_component(path))

    def _target_key(self, path: bytes) -> bytes:
        """Return the key of a path to write, with the checks for names."""
        key = self._safe(path, name_problem(path, self.facts))
        if is_operation(key):
            self._safe(path, "the service takes it for an operation")
        return key

    def _safe(self, path: bytes, reason: str | None) -> bytes:
        key = below(self.root_path, path)
        if key == _STATISTICS:
            reason = "the service answers with the statistics of the bucket"
        if reason:
            raise RefusedError(
                "unsafe-name", f"{printable(path)} cannot be a key: {reason}", subject=self._objects.subject
            )
        return key

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store. If a file and a folder share the name, return a file with content, or with `slash` the folder."""
        key = self._key(path) if path else self.root_path
        if not path and (self._slash or not key) and self._is_folder(key):
            return Entry(path, Kind.FOLDER)
        listed = self._objects.find(key) if key else None
        if listed is None:
            return Entry(path, Kind.FOLDER) if self._is_folder(key) and not self._exact else None
        if not (listed.size or self._exact) and self._is_folder(key):
            return self._hiding.folder(Entry(path, Kind.FOLDER), key)
        entry = self._records.one(path, found_of(listed))
        self._weaken(entry)
        return entry

    def _is_folder(self, key: bytes) -> bool:
        """Return whether there are objects below a key; the bucket itself may be empty."""
        return self._objects.has_below(key) or not key

    def _weaken(self, entry: Entry) -> None:
        if entry.digest is None and entry.kind is Kind.FILE:
            self._read_verification = weakest(self._read_verification, Verification.CLAIMED)

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store. Keys that cannot be safe paths, and recorded files that are missing, are reported at the end."""
        unlisted = Unlisted(self._objects.subject, self._prefix())
        self._records.begin(shallow=shallow)
        self._locks_below = []
        # Sorting reads the whole listing before the first entry, so all nested manifests are known by then.
        ordered = in_order(self._listed(shallow=shallow), self._objects.subject)
        first = next(ordered, None)
        if first is None:
            self._check_root()
        for listed in unlisted.data(ordered if first is None else chain((first,), ordered)):
            if listed.size < 0:
                yield Entry(listed.path.removesuffix(b"/"), Kind.FOLDER)
                continue
            entry = self._records.entry_of(listed.path, found_of(listed))
            self._weaken(entry)
            yield entry
        unlisted.add_missing(self._records.missing())
        self._records.close()
        unlisted.end()

    def _listed(self, *, shallow: bool) -> Iterator[Listed]:
        for page in self._objects.pages(self._prefix(), shallow=shallow):
            for listed in page:
                if listed.path.endswith(_MANIFEST):
                    self._records.nested.add(listed.path.removesuffix(_MANIFEST))
                elif is_lock(listed.path):
                    self._locks_below.append(self._prefix() + listed.path)
                yield listed

    def _prefix(self) -> bytes:
        return self.root_path + b"/" if self.root_path else b""

    def _check_root(self) -> None:
        """Raise `NotFoundError` after an empty listing, except for a file, a bucket or a created root."""
        if self.root_path and not self._made and self._objects.find(self.root_path) is None:
            raise NotFoundError("no-such-place", "it does not exist", subject=self._objects.subject)

    def _size_now(self, entry: Entry) -> int | None:
        found = self._objects.stat(self._key(entry.path))
        return None if found is None else found.size

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store; updates the manifest at the end, also after an error."""
        support = self._writable()
        self._check_held(support)
        self._cleared = []
        target = Target(
            objects=self._objects,
            support=support,
            holder=self._holder,
            key_of=self._target_key,
            clear_conflicts=self._clear_conflicts,
            read_back=self._settings.read_back,
            cache=self._cache,
        )
        writing = EbrainsWriter(target, self._pool)
        self._writers.append(writing)
        try:
            yield from writing.run(payloads)
            self._holder.check(now=True)
        finally:
            for path in self._cleared:
                target.committed.add(path, b"")
            self._save(target.committed)

    def _check_held(self, support: BucketSupport) -> None:
        if support.locks and not self._holder.held:
            raise lost_lease(self._objects.subject, "the target is not locked")

    def _clear_conflicts(self, item: Item) -> None:
        """Remove what the plan clears for the item: the objects below a file's name, or a folder's file."""
        if not item.clear or item.replaces is None:
            return
        if item.entry.kind is Kind.FOLDER:
            results = list(self._removing().remove([item.replaces], self._holder.check))
            problem = results[0][1]
            if problem is not None:
                raise IncompleteError("cannot-make-room", problem.message, subject=self._objects.subject)
            self._cleared.append(item.replaces.path)
            return
        prefix = item.entry.path + b"/"
        for page in self._objects.pages(self._prefix() + prefix):
            for listed in page:
                self._objects.delete(self._prefix() + prefix + listed.path)
                self._cleared.append(prefix + listed.path)

    def _save(self, changes: ManifestLines) -> None:
        """Record what was committed or removed, unless another client may hold the lock now."""
        support = self._support
        with closing(changes):
            if support is None or not support.versions or (support.locks and not self._holder.held):
                return
            self._records.save(changes, self._objects.upload, self._on_event)

    def _removing(self) -> ObjectRemover:
        return ObjectRemover(self._objects, self._pool, self._key)

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; requires the lock if the bucket supports locks."""
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

    def check_no_locks(self, *, itself: bool) -> None:
        """See Store; a prefix has no symlinks."""
        del itself
        check_unheld(self._objects, self.root_path, self._locks_below)

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """See Store; `remove_root` removes these files."""
        return []

    def remove_root(self) -> Problem | None:
        """See Store."""
        self._holder.check(now=True)
        self._holder.release()
        left = [
            listed
            for page in self._objects.pages(self._prefix())
            for listed in page
            if not is_folder_marker(listed)
        ]
        if not all(is_own_name(listed.path) for listed in left):
            return Problem("folder-not-empty", "new objects were added meanwhile, and were not removed")
        try:
            for listed in left:
                key = self._prefix() + listed.path
                found = find_lock(self._objects, key) if is_lock(listed.path) else None
                if found is not None and not found.free:
                    return Problem("locked", "another operation holds the lock")
                self._objects.delete(key)
        except HibaliError as problem:
            return Problem(problem.code, problem.message)
        return None

    def make_root(self) -> None:
        """See Store: probe the bucket; prefixes need no creation, and buckets are never created."""
        self._writable()
        self._made = True

    def lock(self, operation: str, *, make: bool = False) -> Lease | NoLease:
        """See Store; if the bucket cannot hold a lock, emit a note and hold nothing."""
        self._made = self._made or make
        support = self._writable()
        if support.locks:
            self._holder = _ProxyLock(self._objects, self._key(LOCK), operation, self._lease)
        else:
            self._holder = NoLease()
            self._note(
                "this service does not support locks; do not write to it from several places at the same time."
            )
        if not support.versions:
            self._note(
                "listings do not show new versions of objects at once, so every push sends all files again; to compare by content instead, use --checksum."
            )
        return self._holder

    def _note(self, text: str) -> None:
        self._on_event(Noted(f"{self._objects.subject}: {text}"))

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._records.close()
        self._cache.close()
        self._proxy.close()
