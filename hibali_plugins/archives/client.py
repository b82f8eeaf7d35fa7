"""Send requests to an archive, and read the contents of files where it, or another server that it names, has them.

A login, of drafts, is sent to the archive only. Addresses of contents may lead to other servers, which may redirect to presigned ones; no message contains an address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, TryLaterError
from hibali.events import Listener, ignore
from hibali.http.addresses import Addresses
from hibali.http.client import Bytes, Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import BUSY, error_of
from hibali.http.login import Authorization
from hibali.http.rest import Call, Policy, RestClient
from hibali.request_limits import RequestLimit
from hibali.retry import with_retries
from hibali_plugins.archives.files import size_in, value_in

_MOST_ANSWER = 32 * 1024 * 1024  # a page of a thousand files with their metadata
_MOST_PAGES = 20_000
_MOST_WHOLE = 64 * 1024 * 1024  # of a file from a server that does not answer with a range
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 3  # S15


class ArchiveClient(RestClient):
    """The API of an archive and the contents that it names; thread-safe."""

    policy = Policy(attempts=5, redirects=3)

    def __init__(
        self,
        url: str,
        subject: str,
        limit: RequestLimit | None = None,
        on_event: Listener = ignore,
        login: Authorization | None = None,
    ) -> None:
        """`url` is the address of the archive, `subject` the site in errors; `login` is sent to that server only."""
        super().__init__(url, subject, login=login, limit=limit, on_event=on_event)
        self._addresses = Addresses(url, subject)

    def record(self, path: str, **query: str | int | None) -> dict[str, Any]:
        """Return the JSON object at a path of the API."""
        return self.ask_record(Call("GET", path, query=query, most=_MOST_ANSWER))

    def rows(self, path: str, **query: str | int | None) -> list[Any]:
        """Return the JSON list at a path of the API."""
        found = self.ask(Call("GET", path, query=query, most=_MOST_ANSWER))
        if not isinstance(found, list):
            raise self.bad_answer("it is no list")
        return found

    def pages(self, path: str, following: tuple[str, ...], **query: str | int) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list, each of which names the next one at the nested names `following`, as an address of this server."""
        more: Mapping[str, str | int] = query
        for _ in range(_MOST_PAGES):
            page = self.record(path, **more)
            yield page
            around = value_in(page, *following[:-1])
            if not isinstance(around, Mapping) or following[-1] not in around:
                raise self.bad_answer("it does not say whether another page follows")
            address = around[following[-1]]
            if address is None:
                return
            path, more = self.path_of(address), {}
        raise self.bad_answer(f"it has more than {_MOST_PAGES} pages")

    def size_of(self, record: Any, name: str = "size") -> int:
        """Return the size of a file, or another number, of which the archive always has one."""
        try:
            return size_in(record, name)
        except ValueError:
            raise self.bad_answer(f"it lacks the number {name}") from None

    def path_of(self, address: Any) -> str:
        """Return the path and query of an address of this server, below its URL; anything else is a bad answer."""
        try:
            parts = urlsplit(address if isinstance(address, str) else "")
        except ValueError:
            parts = urlsplit("")
        if f"{parts.scheme}://{parts.netloc}" != self.origin or not parts.path.startswith(self.base + "/"):
            raise self.bad_answer("an address in it is not one of this archive")
        return parts.path[len(self.base) :] + (f"?{parts.query}" if parts.query else "")

    def content(self, address: str, offset: int, length: int | None, most: int) -> tuple[Bytes, int]:
        """Return the content at an address, or `length` bytes from `offset`, and the total size as the server says.

        Raises:
            IncompleteError: The server ignores ranges, which large files need, or the address is not allowed.
        """
        return with_retries(
            lambda: self._content(address, offset, length, most),
            subject=self.subject,
            attempts=self.policy.attempts,
            on_event=self._on_event,
        )

    def _content(self, address: str, offset: int, length: int | None, most: int) -> tuple[Bytes, int]:
        if length == 0:
            return b"", most
        headers = {"Accept-Encoding": "identity"}
        if length is not None:
            headers["Range"] = f"bytes={offset}-{offset + length - 1}"
        response, content = self._follow_to_content(address, headers, most if length is None else length)
        total = _total_of(response)
        if response.status == 206 and length is not None:
            if not response.headers.get("content-range", "").startswith(f"bytes {offset}-"):
                raise self.bad_answer("it is another part of the file than the one asked for")
            return content, total
        if length is not None:
            whole = self._whole(address, most)
            return whole[offset : offset + length], len(whole)
        return content, total if total >= 0 else len(content)

    def _whole(self, address: str, most: int) -> Bytes:
        """Read a file from a server that does not answer with a range."""
        if most > _MOST_WHOLE:
            raise IncompleteError(
                "no-ranges",
                "the server does not support range requests, which large files need",
                subject=self.subject,
            )
        return self._follow_to_content(address, {"Accept-Encoding": "identity"}, most)[1]

    def _follow_to_content(
        self, address: str, headers: Mapping[str, str], most: int
    ) -> tuple[Response, bytearray]:
        """Request an address and those to which it redirects; return a success and its content, without that of a whole file instead of a range."""
        for _ in range(_MOST_REDIRECTS + 1):
            client, target = self._addresses.client_of(self._addresses.checked(address, public=True))
            content = bytearray()
            is_own = address.startswith(f"{self.origin}/")
            login = self._login_of(Call("GET", "", public=not is_own))
            with self._limit.turn():
                response = client.request(
                    "GET",
                    target,
                    headers={**headers, **login},
                    limit=most,
                    seconds=request_timeout(most, RESPONSE_SECONDS),
                    receive=content.extend,
                    begin=lambda head: "Range" in headers and head.status != 206,
                )
            if response.status not in _REDIRECTS:
                return self._judged_content(response), content
            try:
                address = urljoin(address, response.headers.get("location", ""))
            except ValueError:
                address = ""
        raise IncompleteError(
            "too-many-redirects", "the server redirects without an end", subject=self.subject
        )

    def _judged(self, call: Call, response: Response) -> Response:
        """See RestClient. A firewall before an archive answers 202, or with this header, to what it takes for a robot."""
        if response.status == 202 or "x-amzn-waf-action" in response.headers:
            raise TryLaterError(
                "busy",
                f"a firewall before the archive did not let the request pass (status {response.status})",
                subject=self.subject,
                hint="Run the same command again later, or from another network.",
                transient=False,
            )
        return super()._judged(call, response)

    def _judged_content(self, response: Response) -> Response:
        if response.status in {200, 206}:
            return response
        if response.status < 300 or "x-amzn-waf-action" in response.headers:
            return self._judged(Call("GET", ""), response)
        if response.status in BUSY:
            self.slow_down(response)
        if response.status in {404, 410}:
            raise NotFoundError("vanished", "the archive no longer has the content", subject=self.subject)
        raise self._error(response.status)

    def _error_of(self, call: Call, response: Response) -> HibaliError:
        del call
        return self._error(response.status)

    def _error(self, status: int) -> HibaliError:
        """Return the error for a status, without the text of the answer, which may be that of an attacker."""
        if status in {401, 403}:
            public = "Only public datasets are read: restricted and embargoed files need the client of the archive."
            own = "The token needs the scope deposit:write, and the draft must be one of its account."
            return AccessError(
                "denied",
                f"the archive denied access (status {status})",
                subject=self.subject,
                hint=own if self._login is not None else public,
            )
        if status == 404 and self._login is not None:
            return NotFoundError("vanished", "the archive has no such draft or file", subject=self.subject)
        if status in {404, 410}:
            return NotFoundError(
                "no-such-dataset",
                "the archive has no public dataset with this DOI, or no longer",
                subject=self.subject,
                hint=doi_hint(self.subject),
            )
        return error_of(status, self.subject)

    def close(self) -> None:
        """Close all connections."""
        super().close()
        self._addresses.close()


def doi_hint(subject: str) -> str:
    """Return how to check the DOI of a site, or of a location that has one itself."""
    return f"Check the DOI: {subject if subject.startswith('doi:') else f'hibali sites show {subject}'}"


def _total_of(response: Response) -> int:
    """Return the size of the whole file by the head of an answer, -1 if it does not tell."""
    name = "content-range" if response.status == 206 else "content-length"
    digits = response.headers.get(name, "").rpartition("/")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1
