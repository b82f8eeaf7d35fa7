"""Send HTTP requests to one server, with limits on the size and time of answers."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from hibali.http.deadline import PIECE, RESPONSE_SECONDS, Deadline, read_at_most, watched
from hibali.http.errors import MAX_ERROR_BYTES, bad_certificate, ended_unanswered, failure_of, too_long

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, HTTPConnectionPool

Bytes = bytes | bytearray | memoryview
MAX_RESPONSE_BYTES = 64 * 1024 * 1024  # of a response that is read into memory


@dataclass(frozen=True, slots=True)
class Response:
    """The status, headers (names in lower case) and body of a response, or the size of a body `received` elsewhere.

    `target` is the path and query that it answers to.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    received: int = 0
    target: str = ""

    @property
    def etag(self) -> str:
        """The ETag without its quotes."""
        return self.headers.get("etag", "").strip('"')

    @property
    def seconds(self) -> float | None:
        """The server's clock in seconds since the epoch (RFC 9110, Date)."""
        try:
            return parsedate_to_datetime(self.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return None

    @property
    def retry_after(self) -> float:
        """The seconds of the header Retry-After (RFC 9110: seconds or a date), 0 without it."""
        value = self.headers.get("retry-after", "").strip()
        if value.isascii() and value.isdigit():
            return float(value[:9])
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - (self.seconds or time.time()))
        except (ValueError, TypeError, OverflowError):
            return 0.0

    @property
    def age(self) -> float | None:
        """Seconds since the content was modified, by the server's own clock (RFC 9110, Last-Modified)."""
        now = self.seconds
        try:
            modified = parsedate_to_datetime(self.headers["last-modified"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return None
        return None if now is None else now - modified


Receive = Callable[[bytes], object]
CONNECTIONS = 16  # that are kept to one server
SILENCE_SECONDS = 120.0
CONNECT_SECONDS = 20.0  # to an address that drops everything; each retry waits for it again


class HttpClient:
    """Requests to one server over a few kept connections; may be used by many threads. Redirects are answers like others."""

    def __init__(
        self,
        origin: str,
        subject: str,
        *,
        headers: Mapping[str, str] | None = None,
        pool: HTTPConnectionPool | None = None,
    ) -> None:
        """Connect at the first request.

        Args:
            origin: The scheme, host and port of the server, as in a URL.
            subject: The name of the server in errors.
            headers: Sent with every request, such as a login.
            pool: Connections that were made in another way than to the origin's host.
        """
        self._origin, self._subject = urlsplit(origin), subject
        self._headers = {"User-Agent": "hibali", **(headers or {})}
        secure = self._origin.scheme == "https" and pool is None
        self._context = ssl.create_default_context() if secure else None
        self._pool = pool or open_pool(self._origin, self._context)

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Bytes = b"",
        limit: int = MAX_RESPONSE_BYTES,
        seconds: float = RESPONSE_SECONDS,
        receive: Receive | None = None,
        begin: Callable[[Response], bool | None] | None = None,
    ) -> Response:
        """Send one request and read its answer to the end.

        Args:
            method: As in RFC 9110 or RFC 4918.
            target: The path and query, quoted.
            headers: Sent beside those of the client.
            body: What is sent.
            limit: How many bytes of a success are read; of other answers at most `MAX_ERROR_BYTES` are.
            seconds: In which the answer must be complete.
            receive: Gets the body of a success in pieces; without it the body is returned.
            begin: Gets the head of such an answer before its first piece, and returns True if the body is not needed.

        Raises:
            AccessError: `bad-certificate`.
            IncompleteError: `answer-too-long`.
            TryLaterError: `unreachable`, `answer-too-slow`.
        """
        sent = dict(headers or {})
        if method != "GET" or body:
            sent["Content-Length"] = str(len(body))
        with Deadline(seconds, self._subject) as deadline:
            try:
                try:
                    raw_response = self._send(self._pool, method, target, sent, body or None)
                except Exception as problem:
                    # A kept connection may have ended meanwhile: that says nothing about the server.
                    if deadline.is_over or not deadline.is_reused or not ended_unanswered(problem):
                        raise
                    raw_response = self._send(self._pool, method, target, sent, body or None)
                return self._read(raw_response, target, limit, receive, begin)
            except Exception as problem:  # noqa: BLE001  # raised again, under its own name or ours
                raise self._own_error(problem) from None

    def upload(
        self,
        target: str,
        pieces: Iterable[Bytes],
        size: int,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "PUT",
        limit: int = MAX_ERROR_BYTES,
    ) -> Response:
        """Send `size` bytes that come in pieces, once, over a connection of their own.

        An error of `pieces` is raised, and the server is left with an upload that broke off. What the server says before it has
        everything is its answer. Raises what `request` does.
        """
        pool = open_pool(self._origin, self._context)
        sent = {**(headers or {}), "Content-Length": str(size)}
        # While content is sent only silence ends it: how long that takes is up to the network.
        try:
            with Deadline(RESPONSE_SECONDS, self._subject, from_response=True):
                return self._read(self._send(pool, method, target, sent, pieces), target, limit, None, None)
        except Exception as problem:  # noqa: BLE001  # as above
            raise self._own_error(problem) from None
        finally:
            pool.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _send(
        self, pool: HTTPConnectionPool, method: str, target: str, headers: Mapping[str, str], body: Any
    ) -> BaseHTTPResponse:
        return pool.urlopen(
            method,
            target,
            body,
            {**self._headers, **headers},
            retries=False,
            redirect=False,
            assert_same_host=False,  # without TLS, a proxy gets the whole URL
            preload_content=False,
            decode_content=False,
        )

    def _read(
        self,
        raw_response: BaseHTTPResponse,
        target: str,
        limit: int,
        receive: Receive | None,
        begin: Callable[[Response], bool | None] | None,
    ) -> Response:
        status = raw_response.status
        headers = {name.lower(): value for name, value in raw_response.headers.items()}
        try:
            if status >= 300:
                body = raw_response.read(MAX_ERROR_BYTES)
                if len(body) == MAX_ERROR_BYTES:
                    raw_response.close()  # the rest is not read
                return Response(status, headers, body, target=target)
            if receive is None:
                body = read_at_most(raw_response.read, limit, self._subject)
                return Response(status, headers, body, target=target)
            response = Response(status, headers, b"", target=target)
            if begin is not None and begin(response):
                raw_response.close()
                return response
            count = 0
            while piece := raw_response.read(PIECE):
                count += len(piece)
                if count > limit:
                    raise too_long(self._subject, limit)
                receive(piece)
        except BaseException:
            raw_response.close()
            raise
        return response

    def _own_error(self, problem: Exception) -> Exception:
        """Convert an error of urllib3 or ssl to ours; return others as they are."""
        from urllib3.exceptions import HTTPError, SSLError  # start-up: only after an error

        if isinstance(problem, (SSLError, ssl.SSLError)):
            return bad_certificate(self._subject)
        if isinstance(problem, (HTTPError, OSError, UnicodeError)):
            return failure_of(problem, self._subject)
        return problem


def open_pool(origin: SplitResult, context: ssl.SSLContext | None, address: str = "") -> HTTPConnectionPool:
    """Make a pool of connections to a host, at one of its addresses where one is given."""
    # start-up: stores need this module's limits before they send anything
    import urllib3

    host = origin.hostname or ""
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS)
    fields: dict[str, Any] = {"maxsize": CONNECTIONS, "timeout": timeout}
    if origin.scheme == "https":
        kind = watched(urllib3.HTTPSConnectionPool)
        fields |= {"ssl_context": context, "server_hostname": host}
    else:
        kind = watched(urllib3.HTTPConnectionPool)
    made: HTTPConnectionPool = kind(address or host, origin.port, **fields)
    return made


def origin_of(parts: SplitResult) -> str:
    """Return the scheme, host and port of a URL, without a login."""
    port = f":{parts.port}" if parts.port else ""
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"
