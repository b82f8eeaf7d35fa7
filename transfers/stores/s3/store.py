"""Store files as objects below an S3 prefix."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from itertools import chain

from hibali.errors import AccessError, IncompleteError, NotFoundError, RefusedError, TryLaterError
from hibali.events import Listener, Noted, ignore
from hibali.http import Answer
from hibali.locations import Location
from hibali.retry import pause
from hibali.text import printable
from transfers.agent.identity import Identity
from transfers.agent.lease import LEASE_SECONDS
from transfers.entry import Entry, Kind, Proof, weakest
from transfers.overlap import identity_of_bucket
from transfers.plan import unholdable
from transfers.stores.base import (
    PACK_BYTES,
    Committed,
    Facts,
    Item,
    Origin,
    Payload,
    Problem,
    SmallFiles,
    Store,
    is_own_name,
    unsafe_component,
)
from transfers.stores.pooled_reading import RequestStore
from transfers.stores.s3 import manifest, removing
from transfers.stores.s3.bulk import Bulk
from transfers.stores.s3.copying import Copying, From, Keeping, patient
from transfers.stores.s3.listing import Cache, Listed, in_order, is_folder_marker, pages, refuse_unsafe
from transfers.stores.s3.lock import NAME as LOCK
from transfers.stores.s3.lock import S3Lock
from transfers.stores.s3.manifest import ManifestLines
from transfers.stores.s3.multipart import Uploads
from transfers.stores.s3.probe import Honours, facts_of, probe_server, recall, remember
from transfers.stores.s3.records import Records, time_of
from transfers.stores.s3.removing import ObjectRemover
from transfers.stores.s3.requests import CONNECTIONS, Requests
from transfers.stores.s3.writing import ExpectedObjects, WriteTarget, Writing
from transfers.stores.server_lease import NoLease

_SETTLED_SECONDS = 2.0  # longer than anybody takes from looking at a key to having put it
_STANDS = frozenset({409, 412})  # what a conditional put is answered where something stands, or is being put


class S3SmallFiles(SmallFiles):
    """Small files as single objects; the digest manifest of the prefix is not touched."""

    def __init__(
        self,
        requests: Requests,
        pool: Executor,
        prefix: bytes,
        probe: Callable[[], Honours],
        let_go: Callable[[], None],
    ) -> None:
        """`prefix` is empty or ends in a slash; `probe` tells what the server honours; `let_go` closes the store."""
        self._requests = requests
        self._pool = pool
        self._prefix = prefix
        self._probe = probe
        self._honours = Honours()
        self._let_go = let_go

    def list(self) -> Iterator[Entry]:
        """See SmallFiles. Keys that cannot be paths are passed over; a prefix without any is there all the same."""
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
        answer = self._get(self._prefix + entry.path, entry.size)
        changed = answer.status >= 300 or (entry.etag and answer.etag != entry.etag)
        if entry.size and (changed or len(answer.body) != entry.size):
            raise IncompleteError(
                "changed", "it changed since it was listed", subject=self._subject(entry.path), transient=True
            )
        return answer.body if entry.size else b""

    def _get(self, key: bytes, size: int) -> Answer:
        """At most so many bytes of an object; of an empty one no range can be had."""
        return self._requests.ask(
            "GET", key, headers={"Range": f"bytes=0-{max(size, 1) - 1}"}, accept=(404, 416)
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See SmallFiles. No lock is needed where the server puts only if nothing stands; elsewhere `create` reads back."""
        self._honours = self._probe()
        yield

    def create(self, contents: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """See SmallFiles."""
        put = self._put_new if self._honours.conditional_create else self._put_absent
        stands = list(self._pool.map(put, contents, contents.values()))
        if contents and not self._honours.locks:
            # Fischer's way to exclude others where nothing can be compared and set: who wrote last, and waited, is the one.
            # Swift refuses what stands, but of two that come at once it takes both.
            pause(_SETTLED_SECONDS)
            stands = [True] * len(contents)
        doubtful = [path for path, there in zip(contents, stands, strict=True) if there]
        found = zip(doubtful, self._pool.map(self._other, doubtful, map(contents.get, doubtful)), strict=True)
        return {path: other for path, other in found if other is not None}

    def _put_new(self, path: bytes, content: bytes) -> bool:
        """Put it where nothing stands; whether something does."""
        headers = {"If-None-Match": "*"}
        put = self._requests.ask("PUT", self._prefix + path, body=content, headers=headers, accept=_STANDS)
        return put.status >= 300

    def _put_absent(self, path: bytes, content: bytes) -> bool:
        """Put it unless something stands there now; whether something does, which may be another's by the next moment."""
        existing = self._requests.ask("HEAD", self._prefix + path, accept=(404,))
        if existing.status == 404:
            self._requests.ask("PUT", self._prefix + path, body=content)
        return existing.status != 404

    def _other(self, path: bytes, content: bytes | None) -> bytes | None:
        """What stands there, where it is not this content. A put whose answer was lost finds its own."""
        found = self._get(self._prefix + path, PACK_BYTES)
        if found.status == 404:  # somebody else's put was refused, too, or has not ended
            raise TryLaterError("locked", "somebody else is writing this", subject=self._subject(path))
        existing = found.body if found.status < 300 else b""
        return None if existing == content else existing

    def _subject(self, path: bytes) -> str:
        return f"{self._requests.subject}/{printable(path)}"

    def close(self) -> None:
        """See SmallFiles."""
        self._let_go()


_Paths = list[bytes]
_Writings = list[Writing]

_MANIFEST = b"/" + manifest.NAME


class S3Store(RequestStore):
    """A store over one bucket and prefix.

    Folders are only in the names of keys. Digests, times and modes come from `.hibali/manifest.jsonl`, from
    this machine's cache, or from the objects' user metadata; an object without has the time it was put there.
    """

    def __init__(
        self,
        requests: Requests,
        site: str,
        root: bytes,
        *,
        slash: bool = False,
        on_event: Listener = ignore,
        lease: int = LEASE_SECONDS,
    ) -> None:
        """`root` is a key without slashes around it; with `slash` a folder of that name is meant where a file has it too."""
        self._bulk = Bulk(requests)
        super().__init__(self._bulk.get, self._key, threads=CONNECTIONS, name="s3")
        self.where = root
        self._requests = requests
        self._site = site
        self._slash = slash
        self._on_event = on_event
        self._lease = lease
        self._cache = Cache(site, requests.endpoint.url, requests.bucket, root)
        self._uploads = Uploads(site, requests.endpoint.url, requests.bucket, root)
        self._records = Records(requests, self._pool, self._cache, self._uploads, root)
        self._removing = ObjectRemover(requests, self._pool, self._key)
        self._honours = recall(site, requests.bucket, requests.endpoint.url)
        self._proof_read = Proof.RECORDED
        self._holder: S3Lock | NoLease = NoLease()
        self._writings: _Writings = []
        self._made = False
        self._is_substore = False
        self._cleared: _Paths = []
        self._locks_below: _Paths = []

    @property
    def facts(self) -> Facts:
        """What the server was seen to do, and the best proof that what was listed and gone on with here allows."""
        facts = facts_of(self._honours, self.where, self._proof_read)
        if any(writing.continued for writing in self._writings):
            return replace(facts, proof_write=weakest(facts.proof_write, Proof.RECORDED))
        return facts

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return super().wire_bytes + sum(writing.bytes for writing in self._writings)

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [identity_of_bucket(self._requests.endpoint.url, self._requests.bucket, self.where)]

    def probe(self, *, again: bool = False) -> Honours:
        """What the server honours, tried where nobody knows yet."""
        if self._honours is None or again:
            self._honours = probe_server(self._requests, self._prefix())
            remember(self._site, self._requests.bucket, self._requests.endpoint.url, self._honours)
        return self._honours

    def _probe_to_write(self) -> Honours:
        """The same; who was not let in before may be now."""
        return self.probe() if self.probe().writable else self.probe(again=True)

    def _prefix(self) -> bytes:
        return self.where + b"/" if self.where else b""

    def _key(self, path: bytes) -> bytes:
        """The key of a path; raises `RefusedError` for one that could climb or is ambiguous (S1)."""
        _refuse(unsafe_component(path), path, self._requests.subject)
        return self._prefix() + path

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store. Where a file and a folder have this name, the file is told, or the folder if a slash was typed."""
        key = self._key(path) if path else self.where
        looks = [self._stat_file, self._stat_folder]
        if not path and self._slash:
            looks.reverse()
        try:
            found = (look(path, key) for look in looks)
            return next((entry for entry in found if entry is not None), None)
        except AccessError:
            # An answer to HEAD has no body and so no reason; one to a listing has.
            self._stat_folder(b"", self.where)
            raise

    def _stat_file(self, path: bytes, key: bytes) -> Entry | None:
        if not key:
            return None
        head = self._requests.ask("HEAD", key, accept=(404,))
        length = head.headers.get("content-length", "")
        if head.status == 404 or not length.isdigit():
            return None
        listed = Listed(path, int(length), head.etag, _iso(head.headers.get("last-modified", "")))
        entry = self._records.one(listed, head.headers)
        self._weaken(entry)
        return entry

    def _stat_folder(self, path: bytes, key: bytes) -> Entry | None:
        for page in pages(self._requests, key + b"/" if key else b"", at_most=1):
            return Entry(path, Kind.FOLDER) if page or not key else None
        return None

    def _weaken(self, entry: Entry) -> None:
        if entry.digest is None:
            plain = entry.etag is not None and "-" not in entry.etag
            self._proof_read = weakest(self._proof_read, Proof.CLAIMED if plain else Proof.SIZE)

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store. A key that cannot be a safe path ends it with `RefusedError("unsafe-name")`."""
        nested: _Paths = []
        self._records.begin()
        self._locks_below = []
        # Everything is sorted before the first comes out, so by then all manifests below have been met.
        ordered = in_order(self._listed(nested, shallow=shallow), self._requests.subject)
        first = next(ordered, None)
        if first is None:
            self._check_root()
            return
        for entry in self._records.entries(self._data(chain((first,), ordered)), nested):
            if entry.digest is None and entry.kind is Kind.FILE:
                self._weaken(entry)
            yield entry

    def _listed(self, nested: _Paths, *, shallow: bool) -> Iterator[Listed]:
        for page in pages(self._requests, self._prefix(), shallow=shallow):
            for listed in page:
                if listed.path.endswith(_MANIFEST):
                    nested.append(listed.path.removesuffix(_MANIFEST))
                elif removing.is_lock(listed.path):
                    self._locks_below.append(self._prefix() + listed.path)
                yield listed

    def _data(self, ordered: Iterable[Listed]) -> Iterator[Listed]:
        """Without names of our own and other tools' folder markers; what cannot be a path is refused."""
        for listed in ordered:
            path, size, _, _ = listed
            if size > 0 and b".hibali" not in path and unsafe_component(path) is None:
                yield listed  # nearly all
                continue
            if is_own_name(path.removesuffix(b"/") if size < 0 else path) or is_folder_marker(listed):
                continue
            refuse_unsafe(listed, self._requests.subject)
            yield listed

    def _check_root(self) -> None:
        """Nothing lies below: a file of that name has nothing below it, an empty bucket is there."""
        if self.where and not self._made and self._stat_file(b"", self.where) is None:
            raise NotFoundError("no-such-place", "there is nothing there", subject=self._requests.subject)

    def _size_now(self, entry: Entry) -> int | None:
        found = self._stat_file(entry.path, self._key(entry.path))
        return None if found is None else found.size

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store; the manifest is brought up to date when it ends, however it ends."""
        place = self._place()
        writing = Writing(place)
        self._writings.append(writing)
        try:
            yield from writing.run(ExpectedObjects(self._requests, self._pool, self._key).check(payloads))
        finally:
            self._save(writing.committed)

    def copies(self, source: Store) -> bool:
        """See Store: another prefix or bucket of the same server; whose keys may read there, it says itself."""
        return isinstance(source, S3Store) and source._requests.endpoint.url == self._requests.endpoint.url  # noqa: SLF001  # its own kind

    def copy(self, origin: Origin, items: Iterable[Item]) -> Generator[Committed, None, None]:
        """See Store."""
        store = origin.store
        assert isinstance(store, S3Store)
        source = From(store._requests, lambda item: store._key(origin.entry(item).path))  # noqa: SLF001  # its own kind
        place = patient(self._place())
        copying = Copying(place, source, ExpectedObjects(self._requests, self._pool, self._key))
        try:
            yield from copying.run(items)
        finally:
            place.requests.close()
            self._save(copying.committed)

    def substore(self, folder: bytes) -> tuple[S3Store, bytes]:
        """See Store: this very store, which from now on holds no lock and keeps no manifest.

        Objects come whole and carry their own digests, so others may come and go beside them.
        """
        self._is_substore = True
        return self, folder

    def _save(self, committed: ManifestLines) -> None:
        """Bring the manifest up to date; whoever writes again and again must not remember it all."""
        gone = ManifestLines()
        for path in self._cleared:
            gone.add(path, b"")
        if not self._is_substore:
            self._records.save(committed, gone, self._on_event)
        committed.close()
        gone.close()

    def _place(self) -> WriteTarget:
        """Where and how objects land, once the server was tried."""
        honours = self.probe()
        self._cleared = []
        facts = self.facts

        def target_key(path: bytes) -> bytes:
            _refuse(unholdable(path, facts), path, self._requests.subject)
            return self._prefix() + path

        return WriteTarget(
            requests=self._requests,
            bulk=self._bulk,
            pool=self._pool,
            uploads=self._uploads,
            key_of=target_key,
            make_room=self._make_room,
            honours=honours,
            holder=self._holder,
        )

    def _make_room(self, item: Item) -> None:
        """What is of another kind and was agreed to go: all below a file's name, or the file of a folder's name."""
        if not item.clear or item.replaces is None:
            return
        if item.entry.kind is Kind.FOLDER:
            answers = list(self._removing.remove([item.replaces]))
            problems = [problem for _, problem in answers if problem is not None]
            gone = [item.replaces.path]
        else:
            below = item.entry.path + b"/"
            found = pages(self._requests, self._prefix() + below)
            gone = [below + listed.path for page in found for listed in page]
            answered = self._removing.remove_keys([self._prefix() + path for path in gone])
            problems = [problem for problem in answered.values() if problem is not None]
        self._cleared.extend(gone)
        if problems:
            raise IncompleteError("cannot-make-room", problems[0].message, subject=self._requests.subject)

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        gone = ManifestLines()
        try:
            self._holder.check(now=True)
            for entry, problem in self._removing.remove(entries, self._holder.check):
                if problem is None:
                    gone.add(entry.path, b"")
                yield entry, problem
        finally:
            if not self._is_substore:
                self._records.save(ManifestLines(), gone, self._on_event)
                removing.around(self.where, gone, self._forget)
            gone.close()

    def _forget(self, folder: bytes, gone: ManifestLines) -> None:
        """Take the lines of these out of the manifest of a prefix around this one."""
        around = Records(self._requests, self._pool, self._cache, self._uploads, folder)
        around.save(ManifestLines(), gone, self._on_event)

    def check_no_locks(self, *, itself: bool) -> None:
        """See Store; a prefix cannot be another."""
        del itself
        removing.check_unheld(self._requests, self.where, self._locks_below)

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """See Store; all of that goes at the end."""
        return []

    def remove_root(self) -> Problem | None:
        """See Store."""
        self._holder.check(now=True)
        self._holder.release()
        return removing.clear(self._requests, self._removing, self._prefix())

    def small_files(self) -> S3SmallFiles:
        """See Store."""
        return S3SmallFiles(self._requests, self._pool, self._prefix(), self._probe_to_write, self.close)

    def keep(self, place: Location, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; digests, times and modes stay with the copies, as metadata."""
        self._holder.check(now=True)
        keeping = Keeping(self._requests, self._pool, self._key, place.raw)
        return keeping.keep(entries, self._holder.check)

    def make_root(self) -> None:
        """See Store: a prefix needs no making, the bucket is never made; what it honours is known after this."""
        self.probe()
        self._made = True

    def lock(self, operation: str, *, make: bool = False) -> S3Lock | NoLease:
        """See Store; where the server cannot hold a lock, that is told and nothing is held."""
        self._made = self._made or make
        if self._is_substore:
            return NoLease()
        self._probe_to_write()
        if self.facts.locks:
            self._holder = S3Lock(self._requests, self._key(LOCK), operation, self._lease)
        else:
            self._holder = NoLease()
            self._on_event(
                Noted(
                    f"{self._requests.subject}: this server cannot hold a lock; write to it from one place at a time."
                )
            )
        return self._holder

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._cache.close()
        self._records.close()
        self._uploads.close()
        self._requests.close()


def _refuse(reason: str | None, path: bytes, subject: str) -> None:
    if reason:
        raise RefusedError("unsafe-name", f"{printable(path)} cannot be a key: {reason}", subject=subject)


def _iso(date: str) -> str:
    """Last-Modified of a header as a listing writes it."""
    try:
        return parsedate_to_datetime(date).isoformat()
    except ValueError:
        return ""
