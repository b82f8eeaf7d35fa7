"""What a web server shows below a URL, as a store that can only be read."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, cast

from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError
from hibali.locations import Location
from hibali.text import printable
from transfers.agent.identity import Identity
from transfers.entry import Entry, Kind, Proof
from transfers.overlap import identity_of_url
from transfers.store import (
    Facts,
    Item,
    Landed,
    ListingIncompleteError,
    Payload,
    Problem,
    Space,
    Unit,
    is_own_name,
    unsafe_component,
)
from transfers.stores.s3_errors import problem_of
from transfers.stores.s3_reading import Reading
from transfers.stores.url_web import Page, Web

_AT_ONCE = 16
_PIECE = 8 * 1024 * 1024
_FACTS = Facts(
    kind="url",
    proof_read=Proof.SIZE,
    proof_write=Proof.NONE,
    links=False,
    modes=False,
    mtime_unit_ns=1_000_000_000,
    locks=False,
    utf8_names=True,
    segment_bytes=_PIECE,
    least_segment_bytes=_PIECE,
    writable=False,
    complete=False,
)

_Names = list[tuple[bytes, bool]]
_Problems = list[tuple[bytes, Problem]]
_Stack = list[Iterator[Entry]]
_Readings = list[Reading]
_Identities = list[Identity]


class UrlStore:
    """The Store protocol over pages that link to what they hold (transfers.store.Store)."""

    facts = _FACTS
    logins = 0
    limited_by = None

    def __init__(self, web: Web, root: bytes, *, slash: bool = False) -> None:
        """`root` is a path below the site's URL without slashes around it."""
        self.where = root
        self._web = web
        self._slash = slash
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="url")
        self._readings: _Readings = []

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return sum(reading.bytes for reading in self._readings)

    def identities(self) -> _Identities:
        """See Identified."""
        return [identity_of_url(self._web.base, self.where)]

    def _path(self, path: bytes) -> bytes:
        """Below the site's URL; raises `RefusedError` for one that could climb or is ambiguous (S1)."""
        reason = unsafe_component(path)
        if reason:
            raise RefusedError(
                "unsafe-name", f"{printable(path)} cannot be a path: {reason}", about=self._web.about
            )
        return self.where + b"/" + path if self.where else path

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        full = self._path(path) if path else self.where
        page = self._web.look(full + b"/") if not path and self._slash and full else None
        page = page or self._web.look(full)
        return None if page is None else _entry(path, page)

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store. A page may leave out what it likes, so what comes is never called complete (`Facts.complete`)."""
        root = self.stat()
        if root is None:
            raise NotFoundError("no-such-place", "there is nothing there", about=self._web.about)
        if root.kind is Kind.FILE:
            return
        problems: _Problems = []
        stack: _Stack = [self._children(b"", problems)]
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
                continue
            yield entry
            if entry.kind is Kind.FOLDER and not shallow:
                stack.append(self._children(entry.path, problems))
        if problems:
            raise ListingIncompleteError(self._web.about, problems)

    def _children(self, folder: bytes, problems: _Problems) -> Iterator[Entry]:
        """What one page links to, sorted; a link that leads nowhere is nothing."""
        full = b"/".join(part for part in (self.where, folder) if part)
        try:
            links = self._web.links(full)
        except HibaliError as error:
            if not folder:
                raise
            problems.append((folder, problem_of(error, denied=True)))
            return
        names: _Names = sorted(links.items(), key=lambda one: one[0] + b"/" if one[1] else one[0])
        paths = [folder + b"/" + name if folder else name for name, _ in names]
        looks = self._pool.map(self._look, paths, [is_folder for _, is_folder in names])
        found = []
        for path, page in zip(paths, looks, strict=True):
            if isinstance(page, Problem):
                problems.append((path, page))
            elif (
                page is not None
                and not (page.folder and path.rpartition(b"/")[2] == b".hibali")
                and not is_own_name(path)
            ):
                found.append(_entry(path, page))
        yield from sorted(found, key=lambda entry: entry.order)

    def _look(self, path: bytes, is_folder: bool) -> Page | Problem | None:  # noqa: FBT001  # mapped over two lists
        if is_folder:
            return Page(folder=True, size=0, mtime_ns=0, tag="")
        try:
            page = self._web.look(self._path(path))
        except HibaliError as error:
            return problem_of(error, denied=True)
        if page is not None and page.size < 0 and not page.folder:
            return Problem("no-size", "the server does not tell how large it is")
        return page

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        return self._reading().read(units)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store: every file is read whole."""
        return self._reading().digest(entries, self._size_now, _PIECE)

    def _reading(self) -> Reading:
        reading = Reading(cast("Any", self._web), self._pool, self._path)
        self._readings.append(reading)
        return reading

    def _size_now(self, entry: Entry) -> int | None:
        page = self._web.look(self._path(entry.path))
        return None if page is None or page.folder or page.size < 0 else page.size

    def write(self, payloads: Iterable[Payload]) -> Generator[Landed, None, None]:
        """See Store: nothing can be written."""
        del payloads
        self._refuse()

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store: nothing can be removed."""
        del entries
        self._refuse()

    def keep(self, place: Location, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        del place, entries
        self._refuse()

    def make_root(self) -> None:
        """See Store."""
        self._refuse()

    def lock(self, operation: str) -> Any:
        """See Store: there is nothing to hold."""
        del operation
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RefusedError(
            "read-only-site",
            "this site can only be read",
            about=self._web.about,
            hint="Write to another site.",
        )

    def expect(self, size: int) -> None:
        """See Store: connections are opened as they are needed."""

    def begun(self, item: Item) -> int:
        """See Store."""
        del item
        return 0

    def space(self) -> Space:
        """See Store."""
        return Space(None, None)

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._web.close()


def _entry(path: bytes, page: Page) -> Entry:
    if page.folder:
        return Entry(path, Kind.FOLDER)
    if page.size < 0:
        raise IncompleteError("no-size", "the server does not tell how large it is", about=printable(path))
    return Entry(path, Kind.FILE, page.size, page.mtime_ns, etag=page.tag or None)
