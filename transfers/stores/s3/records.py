"""Look up what is recorded about objects: manifests, cache, user metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future
from contextlib import closing
from functools import partial
from itertools import islice

from hibali.errors import HibaliError, IncompleteError
from hibali.events import Listener, Noted
from transfers.entry import Entry, Kind, enclosing
from transfers.stores.base import is_own_name, unsafe_component
from transfers.stores.s3.listing import MOST_UNLISTED, Cache, Listed, Unlisted, time_of
from transfers.stores.s3.manifest import (
    NAME,
    Cursor,
    Keyed,
    Known,
    ManifestLines,
    differs,
    from_metadata,
    known_in,
    line_of,
    merged,
    newest,
    read_manifest,
    write_manifest,
)
from transfers.stores.s3.multipart import Uploads
from transfers.stores.s3.requests import Requests

_BATCH = 512
_ATTEMPTS = 5

_Above = tuple[bytes, ManifestLines]  # the root's path below the folder of a manifest, and its lines
_Below = tuple[bytes, ManifestLines, Cursor]  # a folder with a final slash, its manifest's lines and a cursor


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
        self._loading: Future[list[_Above]] | None = None

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

    def _above(self) -> list[_Above]:
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


class Manifests:
    """Manifest lookups along a sorted listing; only the manifests around the current path are held."""

    def __init__(
        self,
        load: Callable[[bytes], ManifestLines],
        nested: AbstractSet[bytes],
        above: Iterable[_Above],
        *,
        gathers: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """Set the fields; `missing` has only paths for which `gathers` is true."""
        self._load = load
        self._gathers = gathers
        self._nested = nested
        self._entered: set[bytes] = set()
        self._missing: dict[bytes, bytes] = {}
        self._above: list[_Below] = []
        for before, lines in above:
            start = before + b"/" if before else b""
            self._above.append((start, lines, Cursor(lines, partial(self._miss_below, start))))
        self._below: list[_Below] = []  # for the folders above the current path, outermost first

    def find(self, listed: Listed) -> Known | None:
        """Return the valid record of the nearest enclosing manifest."""
        path, size, etag = listed[:3]
        if self._nested:
            self._enter(path)
        # every manifest is asked, so that it does not count this file as missing
        lines = [cursor.line(path[len(folder) :]) for folder, _, cursor in reversed(self._below)]
        lines += [cursor.line(before + path) for before, _, cursor in self._above]
        for line in lines:
            known = known_in(line) if line else None
            if known is not None and etag and (known.etag, known.size) == (etag, size):
                return known
        return None

    def _enter(self, path: bytes) -> None:
        while self._below and not path.startswith(self._below[-1][0]):
            self._leave()
        known = {folder for folder, _, _ in self._below}
        for around in reversed([folder for folder in enclosing(path) if folder in self._nested]):
            if around + b"/" not in known:
                self._hold(around)

    def _hold(self, folder: bytes) -> None:
        lines = self._load(folder)
        self._entered.add(folder)
        cursor = Cursor(lines, lambda key, line: self._miss(folder + b"/" + key, line))
        self._below.append((folder + b"/", lines, cursor))

    def _leave(self) -> None:
        _, lines, cursor = self._below.pop()
        cursor.end()
        lines.close()

    def _miss_below(self, start: bytes, key: bytes, line: bytes) -> None:
        if key.startswith(start):
            self._miss(key[len(start) :], line)

    def _miss(self, path: bytes, line: bytes) -> None:
        if not self._gathers(path) or len(self._missing) > MOST_UNLISTED:
            return
        if unsafe_component(path) is None and not is_own_name(path):  # a manifest may be forged (S1)
            self._missing[path] = line

    def missing(self) -> Iterator[tuple[bytes, Known]]:
        """Yield the recorded files for which `find` was not called; nothing can be found after this."""
        while self._below:
            self._leave()
        for folder in sorted(self._nested - self._entered):
            self._hold(folder)
            self._leave()
        for _, _, cursor in self._above:
            cursor.end()
        for path in sorted(self._missing):
            yield path, known_in(self._missing[path])

    def close(self) -> None:
        """Free the manifests."""
        for _, lines, _ in (*self._above, *self._below):
            lines.close()


def _close_loaded(loaded: Future[list[_Above]]) -> None:
    """Free manifests that are loaded but no longer needed."""
    if not loaded.cancelled() and loaded.exception() is None:
        for _, lines in loaded.result():
            lines.close()


def in_listing(*, shallow: bool) -> Callable[[bytes], bool]:
    """Return whether a listing has a path: with `shallow` only those of the first level."""
    return lambda path: not (shallow and b"/" in path)


def removed_below(before: bytes, changes: ManifestLines) -> Iterator[Keyed]:
    """Yield the removed paths of a root as a manifest above it has them, whose folder has the root at `before`."""
    return ((before + b"/" + path, b"") for path, line in changes if not line)


def inside(folder: bytes, *changes: ManifestLines) -> Iterator[Keyed]:
    """Yield a folder's changes as removals from its manifest: the root's manifest records them now."""
    start = folder + b"/"
    return ((path.removeprefix(start), b"") for path, _ in newest(*changes) if path.startswith(start))


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
