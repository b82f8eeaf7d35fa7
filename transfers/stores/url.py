"""Open and check sites with a URL; read files from a web server through fsspec."""

from __future__ import annotations

import html
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote_from_bytes, unquote_to_bytes, urljoin, urlsplit

from hibali.config.model import Site
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
)
from hibali.events import Listener, ignore
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import (
    BUSY,
    MAX_ERROR_BYTES,
    bad_certificate,
    elsewhere,
    failure_of,
    too_long,
    too_slow,
    unreachable,
)
from hibali.http.login import Authorization
from hibali.locations import Location
from hibali.retry import with_retries
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

_SAFE = "/-_.~"
_MOST_REDIRECTS = 3
_MOST_WHOLE = 64 * 1024 * 1024  # largest file read whole from a server without ranges
# Timeout of a server that sends nothing; a whole response may take longer.
_SILENT_SECONDS = 60.0
_RESPONSE_SECONDS = RESPONSE_SECONDS
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")
_Result = TypeVar("_Result")


class Page(NamedTuple):
    """The result of HEAD. `tag`: ETag, Last-Modified or empty; size -1: unknown."""

    folder: bool
    size: int
    mtime_ns: int
    tag: str


class Web:
    """A web server below a base URL; thread-safe. Paths are unquoted bytes below `base`."""

    def __init__(
        self,
        base: str,
        subject: str,
        authorization: Authorization | None = None,
        *,
        hint: str = "Set the site's credentials_command.",
    ) -> None:
        """`base` ends in a slash; `subject` names the site in errors, `hint` says what to do if access is denied."""
        self.base = base
        self.subject = subject
        self._authorization = authorization
        self._hint = hint
        self._headers = {"Accept-Encoding": "identity"}
        self._files: Any = None

    def stat(self, path: bytes) -> Page | None:
        """Query a path: a folder if the server redirects to a URL with a final slash; None if absent."""
        found = self._tried(lambda: self._within("_info", self._url(path)), absent=True)
        if found is None:
            return None
        size, stamp = found.get("size"), found.get("Last-Modified", "")
        tag = str(found.get("ETag") or stamp or "")
        folder = urlsplit(str(found["url"])).path.endswith("/")
        return Page(folder, -1 if size is None else int(size), _time_of(stamp), tag)

    def links(self, path: bytes) -> dict[bytes, bool]:
        """Return the direct children that a folder's page links to, and whether each is a folder."""
        page = self._url(path + b"/" if path else b"")
        found: dict[bytes, bool] = {}
        for link in self._tried(lambda: self._within("_ls", page, detail=False), absent=False):
            url = html.unescape(link)
            if not url.startswith(page) or "?" in url or "#" in url:
                continue
            name = unquote_to_bytes(url[len(page) :].removesuffix("/"))
            if name not in {b"", b".", b".."} and b"/" not in name and b"\0" not in name:
                found[name] = found.get(name, False) or url.endswith("/")
        return found

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
        url = self._url(path)
        end = None if length is None else offset + length
        start = None if length is None else offset
        seconds = request_timeout(most if length is None else length, _RESPONSE_SECONDS)
        content = self._tried(
            lambda: self._within("_cat_file", url, seconds=seconds, start=start, end=end), absent=False
        )
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
        return Got(content, page.tag, page.size)

    def close(self) -> None:
        """Close the connections."""
        files, self._files = self._files, None
        if files is not None and files._session is not None:  # noqa: SLF001  # fsspec has no other way
            files.close_session(files.loop, files._session)  # noqa: SLF001

    def _url(self, path: bytes) -> str:
        return self.base + quote_from_bytes(path, safe=_SAFE)

    def _within(self, method: str, *arguments: Any, seconds: float | None = None, **more: Any) -> Any:
        """Run a coroutine method of fsspec with a timeout."""
        import asyncio

        import aiohttp
        from fsspec.asyn import sync

        files = self._fs()
        limit = _RESPONSE_SECONDS if seconds is None else seconds

        async def work() -> Any:
            try:
                return await asyncio.wait_for(getattr(files, method)(*arguments, **more), limit)
            except aiohttp.ServerTimeoutError:  # the server sent nothing
                raise
            except TimeoutError:
                raise too_slow(self.subject, limit) from None

        return sync(files.loop, work)

    def _fs(self) -> Any:
        if self._files is None:
            import aiohttp
            from fsspec.implementations.http import HTTPFileSystem

            self._files = HTTPFileSystem(
                simple_links=False,
                encoded=True,
                skip_instance_cache=True,
                headers=self._headers,  # kept by fsspec as it is, so that a renewed login is sent with the next request
                max_redirects=_MOST_REDIRECTS,
                client_kwargs={
                    "trust_env": False,
                    "timeout": aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_SILENT_SECONDS),
                    "auto_decompress": False,
                    "response_class": _response_class(self.subject),
                    "trace_configs": [_redirect_check(self.base, self.subject)],
                },
            )
        return self._files

    def _tried(self, attempt: Callable[[], _Result], *, absent: bool) -> _Result | Any:
        """Call `attempt` with retries; with `absent`, return None if the path does not exist."""

        def attempt_once(*, renews: bool = True) -> _Result | None:
            header = self._authorize()
            try:
                return attempt()
            except HibaliError:
                raise
            except Exception as problem:  # noqa: BLE001  # aiohttp's own, and several of Python's
                found, status = self._error_of(problem), _status_of(problem)
            if absent and found.code == "vanished":
                return None
            if renews and status == 401 and self._authorization and self._authorization.renew(header):
                return attempt_once(renews=False)
            raise found

        return with_retries(attempt_once, subject=self.subject)

    def _authorize(self) -> str:
        """Send the login, where there is one, with the next requests; return its header."""
        header = self._authorization.header() if self._authorization is not None else ""
        if header:
            self._headers["Authorization"] = header
        return header

    def _error_of(self, problem: BaseException) -> HibaliError:
        """Translate an error without its text, which may contain a login or text of an attacker."""
        cause = _cause_of(problem)
        if isinstance(cause, HibaliError):
            return cause
        status = _status_of(problem)
        if status in {401, 403, 407}:
            return AccessError(
                "denied",
                f"the server denied access (status {status})",
                subject=self.subject,
                hint=self._hint,
            )
        if isinstance(cause, FileNotFoundError) or status in {404, 410}:
            return NotFoundError("vanished", "it does not exist", subject=self.subject)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return bad_certificate(self.subject)
        if status is None:
            return failure_of(problem, self.subject)
        if status in BUSY:
            return unreachable(self.subject, f"status {status}")
        return IncompleteError(
            "refused-by-server", f"the server refused the request (status {status})", subject=self.subject
        )


def _cause_of(problem: BaseException) -> BaseException:
    return problem.__cause__ if isinstance(problem, FileNotFoundError) and problem.__cause__ else problem


def _status_of(problem: BaseException) -> int | None:
    """Return the status of the response with which the server refused a request."""
    status = getattr(_cause_of(problem), "status", None)
    return status if isinstance(status, int) else None


def _redirect_check(base: str, subject: str) -> Any:
    """Return an aiohttp trace that rejects redirects to another host or scheme (S15)."""
    import aiohttp

    here = urlsplit(base)

    async def check(_: Any, __: Any, redirect: Any) -> None:
        to = redirect.response.headers.get("Location") or redirect.response.headers.get("URI") or ""
        location = urlsplit(urljoin(str(redirect.response.url), to))
        if (location.scheme, location.netloc) != (here.scheme, here.netloc):
            redirect.response.close()
            raise elsewhere(subject)

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(check)
    return trace


def _response_class(subject: str) -> Any:
    """Return a response class of aiohttp that limits the bytes read to the requested ones."""
    import aiohttp

    class Response(aiohttp.ClientResponse):
        async def read(self) -> bytes:
            if self._body is None:
                pieces: list[bytes] = []
                size, most = 0, self._most()
                while piece := await self.content.readany():
                    size += len(piece)
                    if size > most:
                        self.close()
                        if self.status < 400:
                            raise too_long(subject, most)
                        break  # error pages are not used
                    pieces.append(piece)
                self._body = b"".join(pieces)
            return self._body

        def _most(self) -> int:
            if self.status >= 400:
                return MAX_ERROR_BYTES
            wanted = _RANGE.fullmatch(self.request_info.headers.get("Range", ""))
            if wanted and self.status == 206:
                return int(wanted[2]) - int(wanted[1]) + 1
            return _MOST_WHOLE

        async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
            if self.headers.get("Content-Encoding", "identity").lower() not in {"identity", ""}:
                raise IncompleteError(
                    "encoded-answer",
                    "the server compresses its pages although hibali requested uncompressed ones",
                    subject=subject,
                )
            return await super().text(encoding, errors)

    return Response


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
        return [identity_of_url(self._web.base, self.root_path)]

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
        facts |= {"url": web.base, "access": access, "writable": store.facts.writable}
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
