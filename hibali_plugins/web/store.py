"""Read files from a web server, whose pages link to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hibali.errors import HibaliError, IncompleteError, NotFoundError
from hibali.text import printable
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts, is_own_name
from transfers.model.identities import identity_of_url
from transfers.model.store import problem_of
from transfers.model.units import ListingIncompleteError, Problem
from transfers.stores.server.listing import walk_tree
from transfers.stores.server.reading import ServerReader
from transfers.stores.server.web import Page, Web

_THREADS = 16
_PIECE = 8 * 1024 * 1024
_FACTS = Facts(
    kind="url",
    read_verification=Verification.SIZE,
    write_verification=Verification.NONE,
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


class UrlStore(ServerReader):
    """A read-only store that lists folders by the links of their pages."""

    facts = _FACTS

    def __init__(self, web: Web, root: bytes, *, slash: bool = False) -> None:
        """`root` is a path below the site's URL, without leading or trailing slashes."""
        super().__init__(web.get, root, web.subject, threads=_THREADS, name="url")
        self._web = web
        self._slash = slash

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [identity_of_url(self._web.url, self.root_path)]

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        full = self._path(path) if path else self.root_path
        page = self._web.stat(full + b"/") if not path and self._slash and full else None
        page = page or self._web.stat(full)
        return None if page is None else _entry(path, page)

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store. Pages may omit files, so the listing is never complete (`Facts.complete`)."""
        root = self.stat()
        if root is None:
            raise NotFoundError("no-such-place", "it does not exist", subject=self._web.subject)
        if root.kind is Kind.FILE:
            return
        problems: _Problems = []
        yield from walk_tree(lambda folder: self._children(folder, problems), shallow=shallow)
        if problems:
            raise ListingIncompleteError(self._web.subject, problems)

    def _children(self, folder: bytes, problems: _Problems) -> Iterator[Entry]:
        """Yield the entries that one page links to, sorted; ignore dead links."""
        full = b"/".join(part for part in (self.root_path, folder) if part)
        try:
            links = self._web.links(full)
        except HibaliError as error:
            if not folder:
                raise
            problems.append((folder, problem_of(error, denied=True)))
            return
        names: _Names = sorted(links.items(), key=lambda one: one[0] + b"/" if one[1] else one[0])
        paths = [folder + b"/" + name if folder else name for name, _ in names]
        pages = self._pool.map(self._stat_child, paths, [is_folder for _, is_folder in names])
        found = []
        for path, page in zip(paths, pages, strict=True):
            if isinstance(page, Problem):
                problems.append((path, page))
            elif (
                page is not None
                and not (page.folder and path.rpartition(b"/")[2] == b".hibali")
                and not is_own_name(path)
            ):
                found.append(_entry(path, page))
        yield from sorted(found, key=lambda entry: entry.order)

    def _stat_child(self, path: bytes, is_folder: bool) -> Page | Problem | None:  # noqa: FBT001  # mapped over two lists
        if is_folder:
            return Page(folder=True, size=0, mtime_ns=0, tag="")
        try:
            page = self._web.stat(self._path(path))
        except HibaliError as error:
            return problem_of(error, denied=True)
        if page is not None and page.size < 0 and not page.folder:
            return Problem("no-size", "the server does not report its size")
        return page

    def _size_now(self, entry: Entry) -> int | None:
        page = self._web.stat(self._path(entry.path))
        return None if page is None or page.folder or page.size < 0 else page.size

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._web.close()


def _entry(path: bytes, page: Page) -> Entry:
    if page.folder:
        return Entry(path, Kind.FOLDER)
    if page.size < 0:
        raise IncompleteError("no-size", "the server does not report its size", subject=printable(path))
    return Entry(path, Kind.FILE, page.size, page.mtime_ns, etag=page.tag or None)
