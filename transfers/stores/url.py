"""Open and check sites with a URL; read files from a web server."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from typing import ClassVar, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit

from hibali.config.model import Site
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    TryLaterError,
)
from hibali.events import Listener, ignore
from hibali.http.client import Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import BUSY, error_of, too_long, unreachable
from hibali.http.login import Authorization
from hibali.http.rest import SAFE, Call, Policy, RestClient
from hibali.locations import Location
from hibali.text import printable
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts, is_own_name
from transfers.model.identities import identity_of_url
from transfers.model.store import problem_of
from transfers.model.units import ListingIncompleteError, Problem
from transfers.stores import web_login
from transfers.stores.server.listing import walk_tree
from transfers.stores.server.probe import add_facts
from transfers.stores.server.reading import Got, ServerReader
from transfers.stores.server.store import ServerStore
from transfers.stores.web_login import (
    authorize,
    has_login,
    has_password,
)
from transfers.stores.webdav.requests import WebdavClient
from transfers.stores.webdav.server import DavServer

log_in, log_out = web_login.log_in, web_login.log_out

_MOST_WHOLE = 64 * 1024 * 1024  # largest file read whole from a server without ranges
_RESPONSE_SECONDS = RESPONSE_SECONDS
_ABSENT = frozenset({404, 410})
# linear in the page's size, whatever a server sends: no part can match what another one matched
_LINK = re.compile(r"""<[aA](?=\s)[^<>]{0,8192}?\s(?:href|HREF)=["']([^"']+)""")


class Page(NamedTuple):
    """The result of HEAD. `tag`: ETag, Last-Modified or empty; size -1: unknown."""

    folder: bool
    size: int
    mtime_ns: int
    tag: str


class Web(RestClient):
    """A web server below a base URL; thread-safe. Paths are unquoted bytes below `url`."""

    policy = Policy(attempts=4, longest_pause=30.0, ends=False, redirects=3)
    headers: ClassVar[Mapping[str, str]] = {"Accept-Encoding": "identity"}

    def __init__(
        self,
        url: str,
        subject: str,
        authorization: Authorization | None = None,
        *,
        hint: str = "Set the site's credentials_command.",
    ) -> None:
        """`url` ends in a slash; `subject` names the site in errors, `hint` says what to do if access is denied."""
        super().__init__(url, subject, login=authorization)
        self.url = url
        self._hint = hint

    def stat(self, path: bytes) -> Page | None:
        """Query a path: a folder if the server redirects to a URL with a final slash; None if absent."""
        found = self.tried(lambda: self._head(path))
        if found.status in _ABSENT:
            return None
        stamp = found.headers.get("last-modified", "")
        folder = urlsplit(found.target).path.endswith("/")
        return Page(folder, _size_of(found), _time_of(stamp), found.headers.get("etag") or stamp)

    def _head(self, path: bytes) -> Response:
        """Return the head of a document; by GET if the server refuses HEAD, or reports no size."""
        call = self._call("HEAD", path)
        with contextlib.suppress(TryLaterError):
            found = self.send(replace(call, accept=range(400, 600)))
            if found.status == 401:  # the login was renewed before, so GET would be refused, too
                raise self._error_of(call, found)
            if found.status < 300 and _size_of(found) >= 0:
                return found
        heads: list[Response] = []

        def begin(head: Response) -> bool:
            heads.append(head)
            return True

        return self.send(replace(call, method="GET", accept=_ABSENT, receive=lambda _: None, begin=begin))

    def links(self, path: bytes) -> dict[bytes, bool]:
        """Return the direct children that a folder's page links to, and whether each is a folder."""
        page = self._url(path + b"/" if path else b"")
        response = self.repeat(self._call("GET", path + b"/" if path else b""))
        found: dict[bytes, bool] = {}
        for link in _LINK.findall(self._text_of(response)):
            above = self.origin if link.startswith("/") else "" if link.startswith("http") else page
            url = html.unescape(above + link)
            if not url.startswith(page) or "?" in url or "#" in url:
                continue
            name = unquote_to_bytes(url[len(page) :].removesuffix("/"))
            if name not in {b"", b".", b".."} and b"/" not in name and b"\0" not in name:
                found[name] = found.get(name, False) or url.endswith("/")
        return found

    def _text_of(self, response: Response) -> str:
        """Return the text of a page, "" if it is none."""
        kind = EmailMessage()
        kind["Content-Type"] = response.headers.get("content-type", "text/html")
        if kind.get_content_type() != "text/html":
            return ""
        if response.headers.get("content-encoding", "identity").lower() not in {"identity", ""}:
            raise IncompleteError(
                "encoded-answer",
                "the server compresses its pages although hibali requested uncompressed ones",
                subject=self.subject,
            )
        try:
            return response.body.decode(kind.get_content_charset("utf-8"), "ignore")
        except LookupError:
            return response.body.decode("utf-8", "ignore")

    def get(
        self,
        path: bytes,
        *,
        etag: str | None = None,
        offset: int = 0,
        length: int | None = None,
        most: int = _MOST_WHOLE,
    ) -> Got:
        """Read the whole file, or `length` bytes from `offset`; query tag and size afterwards."""
        del etag  # the caller compares it: the server may not support conditional requests
        headers = {} if length is None else {"Range": f"bytes={offset}-{offset + length - 1}"}
        call = self._call("GET", path, headers=headers, content=most if length is None else length)
        response = None if length == 0 else self.repeat(call)
        content = b"" if response is None else response.body
        page = self.stat(path)
        if page is None or page.folder:
            raise IncompleteError("source-changed", "it changed while it was read", subject=self.subject)
        if length is not None and len(content) != length and len(content) == page.size:
            if page.size > _MOST_WHOLE:
                raise IncompleteError(
                    "no-ranges",
                    "the server does not support range requests, which large files need",
                    subject=self.subject,
                )
            content = content[offset : offset + length]
        if length is not None and len(content) > length:
            raise too_long(self.subject, length)
        return Got(content, page.tag, page.size)

    def _call(
        self, method: str, path: bytes, *, headers: Mapping[str, str] | None = None, content: int = 0
    ) -> Call:
        seconds = request_timeout(content, _RESPONSE_SECONDS)
        target = "/" + quote_from_bytes(path, safe=SAFE)
        return Call(method, target, headers=headers or {}, most=_MOST_WHOLE, seconds=seconds)

    def _url(self, path: bytes) -> str:
        return self.url + quote_from_bytes(path, safe=SAFE)

    def _error_of(self, call: Call, response: Response) -> HibaliError:
        """Return the error of an answer, without its text, which may be that of an attacker."""
        del call
        status = response.status
        if status in {401, 403, 407}:
            return AccessError(
                "denied",
                f"the server denied access (status {status})",
                subject=self.subject,
                hint=self._hint,
            )
        if status in BUSY:
            return unreachable(self.subject, f"status {status}")
        if status in _ABSENT or status < 400:
            return error_of(status, self.subject)
        return IncompleteError(
            "refused-by-server", f"the server refused the request (status {status})", subject=self.subject
        )


def _size_of(head: Response) -> int:
    """Return the size of a document by the head of its answer, -1 if it does not tell."""
    length = head.headers.get("content-length")
    if length is None:
        size = head.headers.get("content-range", "").rpartition("/")[2]
    else:
        size = length if head.headers.get("content-encoding", "identity") in {"identity", ""} else ""
    return int(size) if size.isascii() and size.isdigit() else -1


def _time_of(stamp: str) -> int:
    try:
        return int(parsedate_to_datetime(stamp).timestamp()) * 1_000_000_000
    except (ValueError, TypeError, OverflowError):
        return 0


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


_WEBDAV_SCHEMES = {"davs": "https", "dav": "http"}


def open_store(location: Location, *, on_event: Listener = ignore) -> UrlStore | ServerStore:
    """Open the path below the site's URL; web servers without WebDAV are read-only.

    A WebDAV server is probed once, at a site check or the first write.
    """
    site = location.site
    if not _is_webdav(site):
        return UrlStore(_web(site), location.raw, slash=location.slash)
    return ServerStore(
        DavServer(_webdav_client(site, on_event)),
        site.name,
        location.raw,
        read_back=site.read_back,
        on_event=on_event,
        lease=site.limits.lease_seconds,
    )


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Connect to the site and fill `facts`. Raise connection errors.

    At a WebDAV server this writes small files below the site's URL and removes them.
    """
    access = "with a login" if has_login(site) else "without a login"
    store: UrlStore | ServerStore
    if _is_webdav(site):
        client = _webdav_client(site, on_event)
        store = ServerStore(DavServer(client), site.name, b"", on_event=on_event)
        facts |= {"url": client.address(b""), "access": access}
    else:
        web = _web(site)
        store = UrlStore(web, b"", slash=True)
        facts |= {"url": web.url, "access": access, "writable": store.facts.writable}
    try:
        if store.stat() is None:
            raise NotFoundError(
                "no-such-folder",
                "nothing exists at this URL",
                subject=site.name,
                hint="Correct config.toml.",
            )
        if isinstance(store, ServerStore):
            add_facts(store.probe(refresh=True), facts)
            free_bytes = store.space().free_bytes
            if free_bytes is not None:
                facts["free bytes"] = free_bytes
    finally:
        store.close()


def _is_webdav(site: Site) -> bool:
    return (site.url or "").partition(":")[0] in _WEBDAV_SCHEMES


def _web(site: Site) -> Web:
    base = (site.url or "").rstrip("/") + "/"
    authorization = authorize(site)
    if authorization is None:
        return Web(base, site.name)
    authorization.header()  # a login that fails is reported before anything is requested
    by_prompt = not has_password(site)
    hint = f"hibali sites login {site.name}" if by_prompt else "Check the site's login and its permissions."
    return Web(base, site.name, authorization, hint=hint)


def _webdav_client(site: Site, on_event: Listener) -> WebdavClient:
    scheme, _, rest = (site.url or "").partition(":")
    url = f"{_WEBDAV_SCHEMES[scheme]}:{rest}"
    return WebdavClient(url, site.name, authorize(site), on_event)
