"""Look up what is recorded about objects: manifests, cache, user metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import closing
from functools import partial
from itertools import islice

from hibali.errors import HibaliError, IncompleteError
from hibali.events import Listener, Noted
from transfers.model.entry import Entry, Kind, enclosing
from transfers.stores.s3.manifest import from_metadata, read_manifest, write_manifest
from transfers.stores.s3.multipart import Uploads
from transfers.stores.s3.requests import Requests
from transfers.stores.server.keys import Cache, Listed, Unlisted, time_of
from transfers.stores.server.manifest import (
    NAME,
    Keyed,
    Known,
    ManifestLines,
    differs,
    line_of,
    merged,
    newest,
)
from transfers.stores.server.records import Above, Manifests, in_listing, inside, removed_below

_BATCH = 512
_ATTEMPTS = 5


class Records:
    """The records of one root; `learned` has lines found only in user metadata."""

    def __init__(
        self, requests: Requests, pool: Executor, cache: Cache, uploads: Uploads, root: bytes
    ) -> None:
        self._requests = requests
        self._pool = pool
        self._cache = cache
        self._uploads = uploads
        self._root = root
        self._learned = ManifestLines()
        self._nested: frozenset[bytes] = frozenset()
        self._loading: Future[list[Above]] | None = None

    def begin(self) -> None:
        """Load the manifests at and above the root while the listing runs."""
        self._discard_loading()
        self._loading = self._pool.submit(self._above)

    def entries(
        self, listed: Iterable[Listed], nested: Iterable[bytes], unlisted: Unlisted, *, shallow: bool
    ) -> Iterator[Entry]:
        """Yield the listed entries in order with their records; `nested` are folders with manifests.

        At the end, files that are recorded but not listed are added to `unlisted`, with `shallow` those of the
        first level.
        """
        self._learned.close()
        self._nested = frozenset(nested)
        coming = iter(listed)
        above = self._above() if self._loading is None else self._loading.result()
        self._loading = None
        manifests = Manifests(self._load, self._nested, above, gathers=in_listing(shallow=shallow))
        with closing(manifests):
            while batch := list(islice(coming, _BATCH)):
                known = [self._find_recorded(one, manifests) for one in batch]
                unknown = [one for one, found in zip(batch, known, strict=True) if found is None]
                requested = iter(self._pool.map(self._request_metadata, unknown))
                for one, found in zip(batch, known, strict=True):
                    yield entry_of(one, next(requested) if found is None else found)
            unlisted.add_missing(manifests.missing())

    def _find_recorded(self, listed: Listed, manifests: Manifests) -> Known | None:
        """Return the record without a request, if there is one; folders have none."""
        if listed.size < 0:
            return Known("", 0)
        return manifests.find(listed) or self._cache.find(listed)

    def one(self, listed: Listed, headers: Mapping[str, str]) -> Entry:
        """Return the entry of a file from its user metadata."""
        known = from_metadata(headers, listed.etag, listed.size)
        if known.sha256 is None or not known.mtime_ns:
            with closing(Manifests(self._load, frozenset(), self._above())) as manifests:
                known = manifests.find(listed) or known
        return entry_of(listed, known)

    def close(self) -> None:
        """Free what was loaded; safe to call twice."""
        self._discard_loading()
        self._learned.close()

    def _discard_loading(self) -> None:
        if self._loading is not None:
            self._loading.add_done_callback(_close_loaded)
        self._loading = None

    def _above(self) -> list[Above]:
        """Return the manifests at and above the root, nearest first, with the root's path below each."""
        found = []
        path = self._root
        for folder in (path, *(enclosing(path) if path else ())):
            lines, etag = read_manifest(self._requests, folder + b"/" + NAME if folder else NAME)
            if etag is not None:
                found.append((path[len(folder) :].lstrip(b"/"), lines))
        return found

    def _load(self, folder: bytes) -> ManifestLines:
        return read_manifest(self._requests, self._manifest_key(folder))[0]

    def _request_metadata(self, listed: Listed) -> Known:
        """Request the user metadata of one object; cache it for this version of the object."""
        nothing = Known(listed.etag, listed.size)
        try:
            head = self._requests.request("HEAD", self._key(listed.path), accept=(403, 404))
        except IncompleteError:
            return nothing
        if head.status >= 300 or head.etag != listed.etag:
            return nothing
        known = from_metadata(head.headers, listed.etag, listed.size)
        self._cache.add(listed, known)
        if known != nothing:
            self._learned.add(listed.path, line_of(listed.path, known))
        return known

    def save(self, committed: ManifestLines, removed: ManifestLines, on_event: Listener) -> None:
        """Update the root's manifest, and remove the changed lines from manifests below it.

        A failed write is only reported: the objects' user metadata holds the same facts.
        """
        if not committed and not removed:
            return
        subject = self._requests.subject
        try:
            self._merge_into(b"", lambda: newest(self._learned, removed, committed))
            for folder in self._touched(newest(removed, committed)):
                self._merge_into(folder, partial(inside, folder, removed, committed))
        except HibaliError as problem:
            on_event(Noted(f"{subject}: the digest manifest could not be written: {problem.message}"))
            return
        self._learned.close()

    def forget_above(self, removed: ManifestLines, on_event: Listener) -> None:
        """Remove these files from the manifests of the prefixes above the root."""
        for folder in enclosing(self._root) if self._root and removed else ():
            around = Records(self._requests, self._pool, self._cache, self._uploads, folder)
            with closing(ManifestLines()) as lines:
                lines.extend(removed_below(self._root[len(folder) :].lstrip(b"/"), removed))
                around.save(ManifestLines(), lines, on_event)

    def _touched(self, changes: Iterable[Keyed]) -> list[bytes]:
        """Return the folders below that have a manifest and changes."""
        if not self._nested:
            return []
        return sorted({folder for path, _ in changes for folder in enclosing(path) if folder in self._nested})

    def _merge_into(self, folder: bytes, changes: Callable[[], Iterator[Keyed]]) -> None:
        key = self._manifest_key(folder)
        for _ in range(_ATTEMPTS):
            old, etag = read_manifest(self._requests, key)
            with closing(old):
                if not differs(old, changes()):
                    return
                if write_manifest(self._requests, self._uploads, key, merged(old, changes()), etag):
                    return
        raise IncompleteError(
            "busy", "other clients changed it at the same time", subject=self._requests.subject
        )

    def _key(self, path: bytes) -> bytes:
        return b"/".join(part for part in (self._root, path) if part)

    def _manifest_key(self, folder: bytes) -> bytes:
        return self._key(b"/".join(part for part in (folder, NAME) if part))


def _close_loaded(loaded: Future[list[Above]]) -> None:
    """Free manifests that are loaded but no longer needed."""
    if not loaded.cancelled() and loaded.exception() is None:
        for _, lines in loaded.result():
            lines.close()


def entry_of(listed: Listed, known: Known) -> Entry:
    """Return the entry of a listed file or folder; the default time is the upload time."""
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
        offline=listed.archived,
    )
