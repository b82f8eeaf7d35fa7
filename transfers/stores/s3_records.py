"""What is on record about the objects of one root: manifests around and below it, this machine's cache, user metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from datetime import datetime
from itertools import islice

from hibali.errors import HibaliError, IncompleteError
from hibali.events import Listener, Noted
from transfers.entry import Entry, Kind
from transfers.stores.s3_cache import Cache
from transfers.stores.s3_listing import Listed
from transfers.stores.s3_manifest import (
    NAME,
    Known,
    Manifest,
    enclosing,
    from_metadata,
    merge,
    read_lines,
    write_lines,
)
from transfers.stores.s3_requests import Requests

_AT_ONCE = 512
_ROUNDS = 5


class Records:
    """The records of one root. `learned` has what only user metadata told, until a manifest holds it."""

    def __init__(self, requests: Requests, pool: Executor, cache: Cache, root: bytes) -> None:
        self._requests = requests
        self._pool = pool
        self._cache = cache
        self._root = root
        self._learned: dict[bytes, Known] = {}
        self._nested: list[bytes] = []
        self._coming: Future[list[tuple[bytes, Manifest]]] | None = None

    def begin(self) -> None:
        """Load what lies at the root and above it while the listing comes."""
        self._coming = self._pool.submit(self._above)

    def entries(self, listed: Iterable[Listed], nested: list[bytes]) -> Iterator[Entry]:
        """The listed files with all that is on record of them; `nested` are the folders below that have manifests."""
        self._learned = {}
        self._nested = nested
        below = {folder: self._load(self._manifest_key(folder))[0] for folder in nested}
        above = self._above() if self._coming is None else self._coming.result()
        self._coming = None
        coming = iter(listed)
        while some := list(islice(coming, _AT_ONCE)):
            known = [self._at_hand(one, below, above) for one in some]
            unknown = [one for one, found in zip(some, known, strict=True) if found is None]
            looked = iter(self._pool.map(self._look, unknown))
            for one, found in zip(some, known, strict=True):
                yield entry_of(one, next(looked) if found is None else found)

    def _at_hand(
        self, listed: Listed, below: Mapping[bytes, Manifest], above: list[tuple[bytes, Manifest]]
    ) -> Known | None:
        """What is known without asking; of a folder there is nothing to know."""
        if listed.size < 0:
            return Known("", 0)
        return self._from_manifests(listed, below, above) or self._cache.find(listed)

    def one(self, listed: Listed, headers: Mapping[str, str]) -> Entry:
        """One file whose user metadata is at hand already."""
        known = from_metadata(headers, listed.etag, listed.size)
        if known.sha256 is None or not known.mtime_ns:
            known = self._from_manifests(listed, {}, self._above()) or known
        return entry_of(listed, known)

    def _above(self) -> list[tuple[bytes, Manifest]]:
        """The manifests of the root and of the folders around it, nearest first, with the root's path below each."""
        found = []
        path = self._root
        for folder in (path, *(enclosing(path) if path else ())):
            manifest, _ = self._load(folder + b"/" + NAME if folder else NAME)
            if manifest.lines:
                found.append((path[len(folder) :].lstrip(b"/"), manifest))
        return found

    def _from_manifests(
        self, listed: Listed, below: Mapping[bytes, Manifest], above: list[tuple[bytes, Manifest]]
    ) -> Known | None:
        """The nearest enclosing line that counts."""
        for folder in enclosing(listed.path) if below else ():
            inner = below.get(folder)
            if inner is not None and folder:
                found = inner.find(listed.path[len(folder) + 1 :], listed.etag, listed.size)
                if found is not None:
                    return found
        path, size, etag, _ = listed
        for before, manifest in above:
            found = manifest.find(before + b"/" + path if before else path, etag, size)
            if found is not None:
                return found
        return None

    def _look(self, listed: Listed) -> Known:
        """Ask for the user metadata of one object; remembered while it is this very object."""
        nothing = Known(listed.etag, listed.size)
        try:
            head = self._requests.ask("HEAD", self._key(listed.path), accept=(403, 404))
        except IncompleteError:
            return nothing
        if head.status >= 300 or head.etag != listed.etag:
            return nothing
        known = from_metadata(head.headers, listed.etag, listed.size)
        self._cache.add(listed, known)
        if known != nothing:
            self._learned[listed.path] = known
        return known

    def save(self, landed: Mapping[bytes, Known], gone: Iterable[bytes], tell: Listener) -> None:
        """Bring the root's manifest up to date, and take what changed out of those below it.

        What cannot be written is told, not raised: the objects themselves carry the same in their metadata.
        """
        removed = list(gone)
        if not landed and not removed:
            return
        try:
            self._merge_into(b"", {**self._learned, **landed}, removed)
            for folder in self._nested:
                inside = [p[len(folder) + 1 :] for p in (*landed, *removed) if p.startswith(folder + b"/")]
                if inside:
                    self._merge_into(folder, {}, inside)
        except HibaliError as problem:
            tell(
                Noted(f"{self._requests.about}: the digest manifest could not be written: {problem.message}")
            )
            return
        self._learned = {}

    def _merge_into(self, folder: bytes, landed: Mapping[bytes, Known], gone: list[bytes]) -> None:
        key = self._manifest_key(folder)
        for _ in range(_ROUNDS):
            old, exists = self._load(key)
            lines = merge(old.lines, landed, gone)
            if lines == old.lines:
                return
            if not lines:
                self._requests.ask("DELETE", key, accept=(404,))
                return
            condition = {"If-Match": f'"{old.etag}"'} if exists else {"If-None-Match": "*"}
            content = write_lines(lines)
            answer = self._requests.ask(
                "PUT", key, body=content, headers=condition, accept=(404, 409, 412, 501)
            )
            if answer.status == 501:
                answer = self._requests.ask("PUT", key, body=content)
            if answer.status < 300:
                return
        raise IncompleteError("busy", "others kept changing it", about=self._requests.about)

    def _load(self, key: bytes) -> tuple[Manifest, bool]:
        answer = self._requests.ask("GET", key, accept=(403, 404))
        if answer.status >= 300:
            return Manifest(), False
        return Manifest(read_lines(answer.body), answer.etag), True

    def _key(self, path: bytes) -> bytes:
        return b"/".join(part for part in (self._root, path) if part)

    def _manifest_key(self, folder: bytes) -> bytes:
        return self._key(b"/".join(part for part in (folder, NAME) if part))


def entry_of(listed: Listed, known: Known) -> Entry:
    """A listed file or folder; a file that nobody recorded a time for has the time it was put there."""
    if listed.size < 0:
        return Entry(listed.path.removesuffix(b"/"), Kind.FOLDER)
    return Entry(
        listed.path,
        Kind.FILE,
        listed.size,
        known.mtime_ns or time_of(listed.modified),
        known.mode,
        etag=listed.etag or None,
        digest=known.sha256,
    )


def time_of(modified: str) -> int:
    """LastModified of a listing in nanoseconds since the epoch; 0 where it is no ISO 8601 time."""
    try:
        return round(datetime.fromisoformat(modified).timestamp() * 1000) * 1_000_000
    except ValueError:
        return 0
