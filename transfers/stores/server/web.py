"""Send requests to a web server: heads of documents, links of pages, ranges of files."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Mapping
from dataclasses import replace
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from typing import ClassVar, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit

from hibali.errors import AccessError, HibaliError, IncompleteError, TryLaterError
from hibali.http.client import Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import BUSY, error_of, too_long, unreachable
from hibali.http.login import Authorization
from hibali.http.rest import SAFE, Call, Policy, RestClient
from transfers.stores.server.reading import Got

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
