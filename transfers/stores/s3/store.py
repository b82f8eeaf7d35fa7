"""Store files as objects below an S3 prefix."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any

from hibali.config.model import S3Settings
from hibali.errors import AccessError, IncompleteError, NotFoundError, RefusedError, TryLaterError
from hibali.events import Listener, Noted, ignore
from hibali.http.client import Response
from hibali.locations import Location
from hibali.retry import pause
from hibali.text import printable
from transfers.agent.identity import Identity
from transfers.agent.protocol import LEASE_SECONDS
from transfers.model.entry import Entry, Kind, Verification, weakest
from transfers.model.facts import Facts, is_own_name, name_problem, plain_names, unsafe_component
from transfers.model.identities import identity_of_bucket
from transfers.model.store import MARKER, Origin, SharedWriting, SmallFiles, Store
from transfers.model.units import PACK_BYTES, Committed, Item, Payload, Problem
from transfers.stores.s3 import removing
from transfers.stores.s3.bulk import Bulk
from transfers.stores.s3.copying import BackupCopier, Copying, From, patient
from transfers.stores.s3.listing import is_archived, pages
from transfers.stores.s3.multipart import Uploads
from transfers.stores.s3.probe import ServerSupport, facts_of, probe_server, recall, remember
from transfers.stores.s3.records import Records
from transfers.stores.s3.removing import ObjectRemover
from transfers.stores.s3.requests import CONNECTIONS, Requests
from transfers.stores.s3.writing import ExpectedObjects, S3Writer, WriteTarget, known_from
from transfers.stores.server.keys import Cache, HidingFiles, Listed, Unlisted, in_order, time_of
from transfers.stores.server.lease import NoLease
from transfers.stores.server.locks import NAME as LOCK
from transfers.stores.server.locks import ConditionalLock, check_unheld, is_lock
from transfers.stores.server.manifest import NAME as MANIFEST_NAME
from transfers.stores.server.manifest import ManifestLines, line_of
from transfers.stores.server.reading import RequestStore

_SETTLED_SECONDS = 2.0  # longer than any client needs between a HEAD and its PUT
_EXISTS = frozenset({409, 412})  # statuses of a conditional PUT if the key exists or is being written


class S3SmallFiles(SmallFiles):
    """Small files as single objects; writes do not change the digest manifest of the prefix."""

    def __init__(
        self,
        requests: Requests,
        pool: Executor,
        prefix: bytes,
        probe: Callable[[], ServerSupport],
        close_store: Callable[[], None],
    ) -> None:
        """Set the fields; `prefix` is empty or ends in "/", `close_store` closes the store."""
        self._requests = requests
        self._pool = pool
        self._prefix = prefix
        self._probe = probe
        self._support = ServerSupport()
        self._close_store = close_store

    def list(self) -> Iterator[Entry]:
        """See SmallFiles. Skips keys that cannot be paths; a prefix without keys is an empty folder."""
        for page in pages(self._requests, self._prefix):
            for listed in page:
                path = listed.path
                if listed.size < 0 or unsafe_component(path) is not None or is_own_name(path):
                    continue
                modified = time_of(listed.modified)
                yield Entry(path, Kind.FILE, listed.size, modified, etag=listed.etag)

    def read(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """See SmallFiles."""
        return self._pool.map(self._read, entries)

    def _read(self, entry: Entry) -> bytes:
        response = self._get(self._prefix + entry.path, entry.size)
        changed = response.status >= 300 or (entry.etag and response.etag != entry.etag)
        if entry.size and (changed or len(response.body) != entry.size):
            raise IncompleteError(
                "changed", "it changed after it was listed", subject=self._subject(entry.path), transient=True
            )
        return response.body if entry.size else b""

    def _get(self, key: bytes, size: int) -> Response:
        """Read at most `size` bytes of an object; an empty object has no range, so request 1 byte."""
        return self._requests.request(
            "GET", key, headers={"Range": f"bytes=0-{max(size, 1) - 1}"}, accept=(404, 416)
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See SmallFiles. Needs no lock: PUT is conditional, or `create` reads the object back."""
        self._support = self._probe()
        yield

    def create(self, contents: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """See SmallFiles."""
        put = self._put_new if self._support.conditional_create else self._put_absent
        existed = list(self._pool.map(put, contents, contents.values()))
        if contents and not self._support.locks:
            # Fischer's mutual exclusion, for servers without compare-and-set: the last writer after the wait
            # wins. Swift rejects a PUT if the key exists, but accepts both of two concurrent PUTs.
            pause(_SETTLED_SECONDS)
            existed = [True] * len(contents)
        doubtful = [path for path, there in zip(contents, existed, strict=True) if there]
        found = zip(doubtful, self._pool.map(self._other, doubtful, map(contents.get, doubtful)), strict=True)
        return {path: other for path, other in found if other is not None}

    def _put_new(self, path: bytes, content: bytes) -> bool:
        """Put the content if the key does not exist; return whether the key existed."""
        headers = {"If-None-Match": "*"}
        put = self._requests.request(
            "PUT", self._prefix + path, body=content, headers=headers, accept=_EXISTS
        )
        return put.status >= 300

    def _put_absent(self, path: bytes, content: bytes) -> bool:
        """Put the content unless HEAD finds the key (not atomic); return whether the key existed."""
        existing = self._requests.request("HEAD", self._prefix + path, accept=(404,))
        if existing.status == 404:
            self._requests.request("PUT", self._prefix + path, body=content)
        return existing.status != 404

    def _other(self, path: bytes, content: bytes | None) -> bytes | None:
        """Return stored content that differs from `content`; a repeated PUT may find its own, so None."""
        found = self._get(self._prefix + path, PACK_BYTES)
        if found.status == 404:  # another client's PUT was rejected too, or has not finished
            raise TryLaterError("locked", "another client is writing this file", subject=self._subject(path))
        existing = found.body if found.status < 300 else b""
        return None if existing == content else existing

    def _subject(self, path: bytes) -> str:
        return f"{self._requests.subject}/{printable(path)}"

    def close(self) -> None:
        """See SmallFiles."""
        self._close_store()


_Paths = list[bytes]
_Writers = list[S3Writer]

_MANIFEST = b"/" + MANIFEST_NAME


class S3Store(RequestStore):
    """A store over one bucket and prefix.

    Folders exist only as parts of keys. Digests, times and modes come from `.hibali/manifest.jsonl`, from
    this machine's cache, or from user metadata; without them, an object's time is its upload time.
    """

    def __init__(
        self,
        requests: Requests,
        site: str,
        root: bytes,
        *,
        slash: bool = False,
        exact: bool = False,
        on_event: Listener = ignore,
        lease: int = LEASE_SECONDS,
        swift: S3Settings | None = None,
    ) -> None:
        """Set the fields; `root` has no outer slashes; `slash` prefers a folder to a file of that name.

        With `exact`, the root and every path is the key of an object, also if it cannot be a path.
        `swift` has the URL of the account if the server is OpenStack Swift.
        """
        self._bulk = Bulk(requests)
        # Not fewer threads where fewer connections are allowed: jobs of the pool wait for others in it.
        super().__init__(self._bulk.get, self._key, threads=CONNECTIONS, name="s3")
        self.root_path = root
        self.prefix = root + b"/" if root else b""
        self.requests = requests
        self._site = site
        self._slash = slash
        self._exact = exact
        self._on_event = on_event
        self._lease = lease
        self.swift = swift
        self._cache = Cache(site, requests.endpoint.url, requests.bucket, root)
        self._uploads = Uploads(site, requests.endpoint.url, requests.bucket, root)
        self._records = Records(requests, self._pool, self._cache, self._uploads, root)
        self._removing = ObjectRemover(requests, self._pool, self._key)
        self._support = recall(site, requests.bucket, requests.endpoint.url)
        self._read_verification = Verification.RECORDED
        self._holder: ConditionalLock | NoLease = NoLease()
        self._writers: _Writers = []
        self._made = False
        self._is_substore = False
        self._lock_token = ""
        self._hiding = HidingFiles(requests.subject, on_event)
        self._cleared: _Paths = []
        self._locks_below: _Paths = []

    @property
    def facts(self) -> Facts:
        """The probed facts, with the verification that this store's listings and resumed uploads allow."""
        facts = facts_of(self._support, self.root_path, self._read_verification)
        if any(writing.continued for writing in self._writers):
            return replace(facts, write_verification=weakest(facts.write_verification, Verification.RECORDED))
        return facts

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return super().wire_bytes + sum(writing.bytes for writing in self._writers)

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [identity_of_bucket(self.requests.endpoint.url, self.requests.bucket, self.root_path)]

    def probe(self, *, refresh: bool = False) -> ServerSupport:
        """Return what the server supports; probe it if that is unknown, or with `refresh`."""
        if self._support is None or refresh:
            self._support = probe_server(self.requests, self.prefix)
            remember(self._site, self.requests.bucket, self.requests.endpoint.url, self._support)
        return self._support

    def _probe_to_write(self) -> ServerSupport:
        """Probe before a write; probe again if writing was denied earlier."""
        return self.probe() if self.probe().writable else self.probe(refresh=True)

    def _key(self, path: bytes) -> bytes:
        """Return the key of a path. Raise `RefusedError` if the path could climb or is ambiguous (S1)."""
        if not self._exact:
            _refuse(unsafe_component(path), path, self.requests.subject)
        return self.prefix + path

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store. If a file and a folder share the name, return the file, or with `slash` the folder.

        An empty file does not hide a folder: other tools store such objects for folders.
        """
        key = self._key(path) if path else self.root_path
        if self._exact and key:
            # a server that takes `a//b` for `a/b` answers to a HEAD, but does not list the key
            listed = any(one.path == b"" for one in next(pages(self.requests, key, at_most=1), []))
            return self._stat_file(path, key) if listed else None
        lookups = [self._stat_file, self._stat_folder]
        if not path and self._slash:
            lookups.reverse()
        try:
            found = next((entry for lookup in lookups if (entry := lookup(path, key)) is not None), None)
            if found is None or found.kind is Kind.FOLDER or found.size:
                return found
            folder = self._stat_folder(path, key)
            return found if folder is None else self._hiding.folder(folder, key)
        except AccessError:
            # The response to HEAD has no body and gives no reason; the response to a listing does. And who was
            # given what is below a prefix may list that, but not ask for an object with the prefix's own name.
            folder = self._stat_folder(path, key if path else self.root_path)
            if folder is None or not key:
                raise
            return folder

    def _stat_file(self, path: bytes, key: bytes) -> Entry | None:
        if not key:
            return None
        head = self.requests.request("HEAD", key, accept=(404,))
        length = head.headers.get("content-length", "")
        if head.status == 404 or not length.isdigit():
            return None
        modified = _iso(head.headers.get("last-modified", ""))
        listed = Listed(path, int(length), head.etag, modified, is_archived(head.headers))
        entry = self._records.one(listed, head.headers)
        self._weaken(entry)
        return entry

    def _stat_folder(self, path: bytes, key: bytes) -> Entry | None:
        for page in pages(self.requests, key + b"/" if key else b"", at_most=1):
            return Entry(path, Kind.FOLDER) if page or not key else None
        return None

    def _weaken(self, entry: Entry) -> None:
        if entry.digest is None:
            plain = entry.etag is not None and "-" not in entry.etag
            self._read_verification = weakest(
                self._read_verification, Verification.CLAIMED if plain else Verification.SIZE
            )

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store. Keys that cannot be safe paths, and recorded files that are missing, are reported at the end."""
        nested: _Paths = []
        unlisted = Unlisted(self.requests.subject, self.prefix)
        self._records.begin()
        self._locks_below = []
        # Sorting reads the whole listing before the first entry, so all nested manifests are known by then.
        ordered = in_order(self._listed(nested, shallow=shallow), self.requests.subject)
        first = next(ordered, None)
        if first is None:
            self._check_root()
        data = unlisted.data(ordered if first is None else chain((first,), ordered))
        for entry in self._records.entries(data, nested, unlisted, shallow=shallow):
            if entry.digest is None and entry.kind is Kind.FILE:
                self._weaken(entry)
            yield entry
        unlisted.end()

    def _listed(self, nested: _Paths, *, shallow: bool) -> Iterator[Listed]:
        for page in pages(self.requests, self.prefix, shallow=shallow):
            for listed in page:
                if listed.path.endswith(_MANIFEST):
                    nested.append(listed.path.removesuffix(_MANIFEST))
                elif is_lock(listed.path):
                    self._locks_below.append(self.prefix + listed.path)
                yield listed

    def _check_root(self) -> None:
        """Raise `NotFoundError` after an empty listing, except for a file, a bucket or a created root."""
        if self.root_path and not self._made and self._stat_file(b"", self.root_path) is None:
            raise NotFoundError("no-such-place", "it does not exist", subject=self.requests.subject)

    def _size_now(self, entry: Entry) -> int | None:
        found = self._stat_file(entry.path, self._key(entry.path))
        return None if found is None else found.size

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store; updates the manifest at the end, also after an error."""
        write_target = self._write_target()
        writing = S3Writer(write_target)
        self._writers.append(writing)
        try:
            yield from writing.run(ExpectedObjects(self.requests, self._pool, self._key).check(payloads))
        finally:
            self._save(writing.committed)

    def copies(self, source: Store) -> bool:
        """See Store: whether `source` is on the same server; the server itself checks the permissions."""
        return isinstance(source, S3Store) and source.requests.endpoint.url == self.requests.endpoint.url

    def copy(self, origin: Origin, items: Iterable[Item]) -> Generator[Committed, None, None]:
        """See Store."""
        store = origin.store
        assert isinstance(store, S3Store)
        source = From(store.requests, lambda item: store._key(origin.entry(item).path))  # noqa: SLF001  # its own kind
        write_target = patient(self._write_target())
        copying = Copying(write_target, source, ExpectedObjects(self.requests, self._pool, self._key))
        try:
            yield from copying.run(items)
        finally:
            write_target.requests.close()
            self._save(copying.committed)

    def adopt_lock(self, token: str) -> None:
        """See Store: the lock gets the same token, by which nodes recognise it."""
        self._lock_token = token

    @contextmanager
    def written_elsewhere(self) -> Iterator[tuple[WriteTarget, ManifestLines]]:
        """Let others write objects; at the end, update the manifest by the lines. The prefix must be locked if that is possible."""
        write_target, lines = self._write_target(), ManifestLines()
        try:
            yield write_target, lines
        finally:
            self._save(lines)

    def share_writing(self, count: int) -> SharedWriting:
        """See Store; the tickets say whether the prefix is locked."""
        return _SharedPrefix(count, self._holder, self._save)

    def join(self, ticket: Any) -> None:
        """See Store; whoever holds the lock also writes the manifest."""
        self._is_substore = True
        self._holder = _LockOfOther() if ticket else NoLease()

    def substore(self, folder: bytes) -> tuple[S3Store, bytes]:
        """See Store: return this store, which from now on holds no lock and writes no manifest.

        Objects are written whole and carry their own digests, so concurrent writers do not conflict.
        """
        self._is_substore = True
        return self, folder

    def _save(self, committed: ManifestLines) -> None:
        """Update the manifest, then free the lines, because a store may write many times."""
        removed = ManifestLines()
        for path in self._cleared:
            removed.add(path, b"")
        if not self._is_substore:
            self._records.save(committed, removed, self._on_event)
            self._records.forget_above(removed, self._on_event)
        committed.close()
        removed.close()

    def _write_target(self) -> WriteTarget:
        """Probe the server and return the write target."""
        support = self.probe()
        if self.requests.source.current() is None:  # it was probed with signed requests, perhaps
            support = replace(support, checks_sha256=False)
        self._cleared = []
        facts, is_plain = self.facts, plain_names(self.facts)

        def target_key(path: bytes) -> bytes:
            if not is_plain(path):
                _refuse(name_problem(path, facts), path, self.requests.subject)
            return self.prefix + path

        return WriteTarget(
            requests=self.requests,
            bulk=self._bulk,
            pool=self._pool,
            uploads=self._uploads,
            key_of=target_key,
            clear_conflicts=self._clear_conflicts,
            support=support,
            holder=self._holder,
        )

    def _clear_conflicts(self, item: Item) -> None:
        """Remove what the plan clears for the item: the objects below a file's name, or a folder's file."""
        if not item.clear or item.replaces is None:
            return
        if item.entry.kind is Kind.FOLDER:
            results = list(self._removing.remove([item.replaces]))
            problems = [problem for _, problem in results if problem is not None]
            removed = [item.replaces.path]
        else:
            below = item.entry.path + b"/"
            found = pages(self.requests, self.prefix + below)
            removed = [below + listed.path for page in found for listed in page]
            problems_by_key = self._removing.remove_keys([self.prefix + path for path in removed])
            problems = [problem for problem in problems_by_key.values() if problem is not None]
        self._cleared.extend(removed)
        if problems:
            raise IncompleteError("cannot-make-room", problems[0].message, subject=self.requests.subject)

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        removed = ManifestLines()
        try:
            self._holder.check(now=True)
            for entry, problem in self._removing.remove(entries, self._holder.check):
                if problem is None and entry.kind is not Kind.FOLDER:
                    removed.add(entry.path, b"")
                yield entry, problem
        finally:
            if not self._is_substore:
                self._records.save(ManifestLines(), removed, self._on_event)
                self._records.forget_above(removed, self._on_event)
            removed.close()

    @contextmanager
    def marked(self, path: bytes) -> Iterator[None]:
        """See Store."""
        key = self._key(path)
        self.requests.request("PUT", key, body=MARKER)
        try:
            yield
        finally:
            self.requests.request("DELETE", key, accept=(404,))

    def check_no_locks(self, *, itself: bool) -> None:
        """See Store; a prefix has no symlinks."""
        del itself
        check_unheld(self.requests, self.root_path, self._locks_below)

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """See Store; `remove_root` removes these files."""
        return []

    def remove_root(self) -> Problem | None:
        """See Store."""
        self._holder.check(now=True)
        self._holder.release()
        return removing.clear(self.requests, self._removing, self.prefix)

    def small_files(self) -> S3SmallFiles:
        """See Store."""
        return S3SmallFiles(self.requests, self._pool, self.prefix, self._probe_to_write, self.close)

    def back_up(
        self, write_target: Location, entries: Iterable[Entry]
    ) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; the copies keep digests, times and modes as metadata."""
        self._holder.check(now=True)
        copier = BackupCopier(self.requests, self._pool, self._key, write_target.raw)
        return copier.back_up(entries, self._holder.check)

    def make_root(self) -> None:
        """See Store: probe the server; prefixes need no creation, and buckets are never created."""
        self.probe()
        self._made = True

    def lock(self, operation: str, *, make: bool = False) -> ConditionalLock | NoLease:
        """See Store; if the server cannot hold a lock, emit a note and hold nothing."""
        self._made = self._made or make
        if self._is_substore:
            return NoLease()
        self._probe_to_write()
        self._holder = NoLease()
        if self.facts.locks:
            key, token = self._key(LOCK), self._lock_token
            held = ConditionalLock(self.requests, key, operation, self._lease, token=token)
            if held.renewable:
                self._holder = held
            else:
                held.release()
        if isinstance(self._holder, NoLease):
            self._on_event(
                Noted(
                    f"{self.requests.subject}: this server does not support locks; do not write to it from several places at the same time."
                )
            )
        return self._holder

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._cache.close()
        self._records.close()
        self._uploads.close()
        self.requests.close()


class _LockOfOther(NoLease):
    """The lock of another process of this client, which checks it: uploads that are begun here are its own."""

    held = True


class _SharedPrefix(SharedWriting):
    """Processes that write objects; their manifest lines are written together at the end."""

    def __init__(
        self, count: int, holder: ConditionalLock | NoLease, save: Callable[[ManifestLines], None]
    ) -> None:
        self.tickets = [holder.held] * count
        self._holder = holder
        self._save = save
        self._lines = ManifestLines()

    def committed(self, result: Committed) -> None:
        """See SharedWriting."""
        self._holder.check()
        entry = result.item.entry
        if result.problem is None and entry.kind is Kind.FILE:
            known = known_from(entry, result.digest)._replace(etag=result.etag or "")
            self._lines.add(entry.path, line_of(entry.path, known))

    def end_process(self, agents: Sequence[Mapping[str, Any]], ticket: Any, items: Iterable[Item]) -> None:
        """See SharedWriting; nothing runs at the server, and another process resumes its uploads."""

    def end(self, *, left: bool) -> None:
        """See SharedWriting."""
        del left
        self._save(self._lines)


def _refuse(reason: str | None, path: bytes, subject: str) -> None:
    if reason:
        raise RefusedError("unsafe-name", f"{printable(path)} cannot be a key: {reason}", subject=subject)


def _iso(date: str) -> str:
    """Convert a Last-Modified header to ISO 8601, as in listings."""
    try:
        return parsedate_to_datetime(date).isoformat()
    except ValueError:
        return ""
