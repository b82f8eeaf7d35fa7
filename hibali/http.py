"""Send HTTP requests with limits on the size and time of answers, on redirects and on addresses (S15)."""

from __future__ import annotations

import contextlib
import heapq
import html
import ipaddress
import itertools
import json
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import RemoteDisconnected
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import SplitResult, urljoin, urlsplit

from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)
from hibali.retry import with_retries
from hibali.subprocesses import without_secrets
from hibali.text import printable

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, HTTPConnectionPool

Bytes = bytes | bytearray | memoryview
MAX_RESPONSE_BYTES = 64 * 1024 * 1024  # of a response that is read into memory
MAX_ERROR_BYTES = 64 * 1024  # of an error response; the rest is not read
RESPONSE_SECONDS = 300.0  # for a response without a file's content
_SLOWEST = 1024  # bytes a second that content has to come or go with, or it is taken for silence
_PIECE = 1024 * 1024


def too_long(subject: str, most: int) -> IncompleteError:
    """Return the error for a response of more than `most` bytes."""
    return IncompleteError(
        "answer-too-long",
        f"the server's response has more than {most} bytes; hibali stopped reading it",
        subject=subject,
        hint="Check that the URL is that of the right server, and report the problem to its operator.",
    )


def too_slow(subject: str, seconds: float) -> TryLaterError:
    """Return the error for a response that was not complete after `seconds`."""
    return TryLaterError(
        "answer-too-slow",
        f"the server's response was not complete after {seconds:.0f} s",
        subject=subject,
        hint="Run the same command again later.",
        transient=False,
    )


def request_timeout(content: int, seconds: float = RESPONSE_SECONDS) -> float:
    """Return the timeout in seconds of a request with this much content: a slow connection is not a stalled one."""
    return seconds + content / _SLOWEST


def read_at_most(read: Callable[[int], bytes], most: int, subject: str) -> bytes:
    """Read everything, piece by piece, up to `most` bytes. Raises `IncompleteError("answer-too-long")`."""
    pieces: list[bytes] = []
    size = 0
    while piece := read(min(_PIECE, most + 1 - size)):
        size += len(piece)
        if size > most:
            raise too_long(subject, most)
        pieces.append(piece)
    return b"".join(pieces)


class Deadline:
    """A context manager that shuts down watched connections after a time; then `answer-too-slow` is raised.

    A socket's timeout applies to each piece alone: a server that sends a byte per minute never exceeds it.
    """

    def __init__(self, seconds: float, subject: str, *, from_response: bool = False) -> None:
        """`subject` names the server in the error; with `from_response` the time begins when all was sent."""
        self._seconds = seconds
        self._from_response = from_response
        self._subject = subject
        self._connection: Any = None
        self._socket: Any = None
        self._before: Deadline | None = None
        self.is_over = False

    def watch(self, connection: Any) -> None:
        """Watch a connection, whose attribute `sock` (http.client, urllib3) is shut down: as it is now, or when the time is over.

        A connection drops its socket when an answer's headers say that the connection's end ends the answer.
        """
        self._connection, self._socket = connection, getattr(connection, "sock", None)

    @property
    def is_reused(self) -> bool:
        """Whether the watched connection had carried another request before."""
        return getattr(self._connection, "times_used", 1) > 1

    def __enter__(self) -> Self:
        self._before = getattr(_current, "deadline", None)
        _current.deadline = self
        if not self._from_response:
            _watchdog.add(self, time.monotonic() + self._seconds)
        return self

    def await_response(self) -> None:
        """Begin the time of a deadline that is `from_response`."""
        if self._from_response:
            self._from_response = False
            _watchdog.add(self, time.monotonic() + self._seconds)

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        _current.deadline = self._before
        _watchdog.remove(self)
        # An answer that was cut off may appear complete.
        if self.is_over and (problem is None or isinstance(problem, Exception)):
            raise too_slow(self._subject, self._seconds) from None

    def end(self) -> None:
        """Shut down the watched connections: the time is over."""
        self.is_over = True
        for found in (self._socket, getattr(self._connection, "sock", None)):
            if isinstance(found, socket.socket):
                with contextlib.suppress(OSError):
                    # not the shutdown of TLS, which is not thread-safe
                    socket.socket.shutdown(found, socket.SHUT_RDWR)


_current = threading.local()


def watch_current(connection: Any) -> None:
    """Let the current deadline of this thread watch a connection; for libraries that create their own connections."""
    deadline: Deadline | None = getattr(_current, "deadline", None)
    if deadline is not None:
        deadline.watch(connection)


def watched(kind: Any) -> Any:
    """Return a subclass of a urllib3 connection (or pool) class that registers each request with the deadline."""
    if hasattr(kind, "ConnectionCls"):
        return type(kind.__name__, (kind,), {"ConnectionCls": watched(kind.ConnectionCls)})

    def request(self: Any, *arguments: Any, **more: Any) -> Any:
        watch_current(self)
        self.times_used = getattr(self, "times_used", 0) + 1
        return kind.request(self, *arguments, **more)

    def getresponse(self: Any) -> Any:
        watch_current(self)
        deadline: Deadline | None = getattr(_current, "deadline", None)
        if deadline is not None:
            deadline.await_response()
        return kind.getresponse(self)

    return type(kind.__name__, (kind,), {"request": request, "getresponse": getresponse})


class _Watchdog:
    """One thread that ends all deadlines of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._deadlines: list[tuple[float, int, Deadline]] = []
        self._live: set[Deadline] = set()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def add(self, deadline: Deadline, due: float) -> None:
        with self._changed:
            self._live.add(deadline)
            heapq.heappush(self._deadlines, (due, next(self._numbers), deadline))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="deadlines", daemon=True)
                self._thread.start()
            elif self._deadlines[0][2] is deadline:
                self._changed.notify()

    def remove(self, deadline: Deadline) -> None:
        """Remove a deadline, which then does not end its connections any more."""
        with self._changed:
            self._live.discard(deadline)
            while self._deadlines and self._deadlines[0][2] not in self._live:
                heapq.heappop(self._deadlines)

    def _work(self) -> None:
        with self._changed:
            while True:
                for deadline in self._over():
                    deadline.end()
                wait = self._deadlines[0][0] - time.monotonic() if self._deadlines else None
                self._changed.wait(None if wait is None else max(0.0, wait))

    def _over(self) -> Iterator[Deadline]:
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            deadline = heapq.heappop(self._deadlines)[2]
            if deadline in self._live:
                yield deadline


_watchdog = _Watchdog()


@dataclass(frozen=True, slots=True)
class Response:
    """The status, headers (names in lower case) and body of a response, or the size of a body `received` elsewhere."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    received: int = 0

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
_SILENCE_SECONDS = 120.0


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
        begin: Callable[[Response], None] | None = None,
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
            begin: Gets the head of such an answer before its first piece.

        Raises:
            AccessError: `bad-certificate`.
            IncompleteError: `answer-too-long`.
            TryLaterError: `unreachable`, `answer-too-slow`.
        """
        sent = dict(headers or {})
        if method != "GET" or body:
            sent["Content-Length"] = str(len(body))
        with Deadline(seconds, self._subject) as deadline, self._own_errors():
            try:
                raw_response = self._send(self._pool, method, target, sent, body or None)
            except Exception as problem:
                # A kept connection may have ended meanwhile: that says nothing about the server.
                if deadline.is_over or not deadline.is_reused or not _ended_unanswered(problem):
                    raise
                raw_response = self._send(self._pool, method, target, sent, body or None)
            return self._read(raw_response, limit, receive, begin)

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
            with Deadline(RESPONSE_SECONDS, self._subject, from_response=True), self._own_errors():
                return self._read(self._send(pool, method, target, sent, pieces), limit, None, None)
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
        limit: int,
        receive: Receive | None,
        begin: Callable[[Response], None] | None,
    ) -> Response:
        response = Response(
            raw_response.status, {name.lower(): value for name, value in raw_response.headers.items()}, b""
        )
        try:
            if response.status >= 300:
                body = raw_response.read(MAX_ERROR_BYTES)
                if len(body) == MAX_ERROR_BYTES:
                    raw_response.close()  # the rest is not read
                return Response(response.status, response.headers, body)
            if receive is None:
                return Response(
                    response.status, response.headers, read_at_most(raw_response.read, limit, self._subject)
                )
            if begin is not None:
                begin(response)
            count = 0
            while piece := raw_response.read(_PIECE):
                count += len(piece)
                if count > limit:
                    raise too_long(self._subject, limit)
                receive(piece)
        except BaseException:
            raw_response.close()
            raise
        return response

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Convert the errors of urllib3 and ssl to ours."""
        from urllib3.exceptions import HTTPError, SSLError  # start-up: only after an error

        try:
            yield
        except (SSLError, ssl.SSLError):
            raise bad_certificate(self._subject) from None
        except (HTTPError, OSError, UnicodeError) as problem:
            raise failure_of(problem, self._subject) from None


def open_pool(origin: SplitResult, context: ssl.SSLContext | None, address: str = "") -> HTTPConnectionPool:
    """Make a pool of connections to a host, at one of its addresses where one is given."""
    # start-up: stores need this module's limits before they send anything
    import urllib3

    host = origin.hostname or ""
    fields: dict[str, Any] = {"maxsize": CONNECTIONS, "timeout": urllib3.Timeout(_SILENCE_SECONDS)}
    if origin.scheme == "https":
        kind = watched(urllib3.HTTPSConnectionPool)
        fields |= {"ssl_context": context, "server_hostname": host}
    else:
        kind = watched(urllib3.HTTPConnectionPool)
    made: HTTPConnectionPool = kind(address or host, origin.port, **fields)
    return made


def unreachable(subject: str, reason: str = "", *, address: str = "URL") -> TryLaterError:
    """Make the error for a server that did not answer, or whose answer broke off; `address` names the setting to check."""
    return TryLaterError(
        "unreachable",
        f"the server cannot be reached{f': {reason}' if reason else ''}",
        subject=subject,
        hint=f"Check the {address} and the network.",
    )


# Classes of all client libraries, by name: importing them takes too long.
_OF_PROXIES = frozenset(
    {"ClientHttpProxyError", "ClientProxyConnectionError", "ProxyConnectionError", "ProxyError"}
)
_OF_CUT_ANSWERS = frozenset(
    {"ChunkedEncodingError", "ClientPayloadError", "IncompleteRead", "IncompleteReadError"}
)


def failure_of(problem: BaseException, subject: str, *, address: str = "URL") -> TryLaterError:
    """Return the error for an exception of a client library: a proxy that failed, an answer that broke off, or no answer."""
    if _classes_of(problem) & _OF_CUT_ANSWERS:
        return truncated(subject)
    return proxy_failure(problem, subject) or unreachable(subject, _reason(problem), address=address)


def proxy_failure(problem: BaseException, subject: str) -> TryLaterError | None:
    """Return the error for a proxy that cannot be reached or refuses; None for other exceptions of a client library."""
    if not _classes_of(problem) & _OF_PROXIES:
        return None
    found = (value for name, value in urllib.request.getproxies().items() if name in {"http", "https", "all"})
    # without their logins (S16)
    hosts = " or ".join(sorted({printable(each.rpartition("@")[2].rpartition("//")[2]) for each in found}))
    return TryLaterError(
        "unreachable",
        f"the proxy {hosts} failed: {_reason(problem)}",
        subject=subject,
        hint="Correct the variables HTTPS_PROXY and HTTP_PROXY, or name the host in NO_PROXY.",
    )


def _classes_of(problem: BaseException) -> set[str]:
    return {kind.__name__ for each in _causes(problem) for kind in type(each).__mro__}


def truncated(subject: str) -> TryLaterError:
    """Return the error for an answer that has less content than its head says."""
    return TryLaterError(
        "connection-lost", "the connection was lost before the server's answer was complete", subject=subject
    )


def not_partial(subject: str) -> IncompleteError:
    """Return the error for a server that ignores ranges, or sends another one."""
    return IncompleteError(
        "not-the-range-asked", "the server did not send the requested range", subject=subject
    )


FAILED = "server-failed"


def failed_request(reason: str, subject: str) -> TryLaterError:
    """Return the error of a server that failed, which may concern only this request."""
    return TryLaterError(FAILED, f"the server failed to process the request ({reason})", subject=subject)


_MESSAGE = re.compile(r"<(?:\w+:)?[Mm]essage[^>]*>([^<]{1,2000})<")
_KEYS = ("message", "errorMessage", "detail", "error_description")
_MOST_EXPLANATION = 300  # characters of a server's explanation that are shown


def explanation(body: bytes) -> str:
    """Return what a server's XML or JSON says about an error, shortened and safe to print (S16, S17); "" if it says nothing."""
    answer = body[:MAX_ERROR_BYTES].decode("utf-8", "replace")
    found = _MESSAGE.search(answer)
    words = html.unescape(found.group(1)) if found is not None else _text_in(answer)
    shown = printable(without_secrets(" ".join(words.split()).rstrip(".")))
    return shown[:_MOST_EXPLANATION]


def _text_in(answer: str) -> str:
    try:
        record = json.loads(answer)
    except (ValueError, RecursionError):
        return ""
    texts = [record.get(key) for key in _KEYS] if isinstance(record, dict) else []
    return next((text for text in texts if isinstance(text, str)), "")


def bad_certificate(subject: str, variable: str = "SSL_CERT_FILE") -> AccessError:
    """Make the error for a server whose certificate is not valid; `variable` names the file of trusted authorities."""
    return AccessError(
        "bad-certificate",
        "the server's certificate cannot be trusted",
        subject=subject,
        hint=f"For a private authority set {variable} to its certificate.",
    )


def _causes(problem: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    found: BaseException | None = problem
    while found is not None and found not in seen:
        seen.append(found)
        yield found
        inner = [each for each in found.args if isinstance(each, BaseException)]
        found = found.__cause__ or (inner[0] if inner else found.__context__)


def _ended_unanswered(problem: BaseException) -> bool:
    return any(isinstance(each, RemoteDisconnected | ConnectionResetError) for each in _causes(problem))


def _reason(problem: BaseException) -> str:
    for each in _causes(problem):
        # the text of a library's own exception may contain a URL with a login; http.client's has none
        if isinstance(each, OSError) and (each.strerror or (each.args and type(each) is OSError)):
            return printable(each.strerror or str(each.args[-1]))
    return printable(type(problem).__name__)


_RESPONSE_SECONDS = RESPONSE_SECONDS
_MOST_REDIRECTS = 3
_MAX_RESPONSE_BYTES = 64 * 1024  # to a document that was sent
_ATTEMPTS = 3
_PLAIN_URL = re.compile(r"[!-~]+")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


def fetch(url: str, origins: frozenset[str], most: int) -> bytes:
    """Return the document at a URL, of at most `most` bytes. No login is sent, even if ~/.netrc has one.

    `origins` (`http://localhost:8080`) may be private and without TLS. Raises `NotFoundError`, `AccessError`,
    `TryLaterError`, `RefusedError` for a document that is too large or a forbidden address, `UsageError` for an invalid URL.
    """
    return with_retries(lambda: _fetch_once(url, origins, most), subject=printable(url))


def post_json(url: str, content: bytes, *, secret: str = "") -> None:
    """Send a JSON document, at least once, to a URL that the user named: its host may be private.

    Errors name only the origin of the URL, because the rest of it may be a secret (S16); `secret` is sent as a bearer token. No
    redirect is followed. Raises `UsageError` for an invalid URL, and what `fetch` does.
    """
    parts = check_post_url(url)
    subject = _origin(parts)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {secret}"} if secret else {})

    def send() -> None:
        try:
            response = send_once(
                parts, "POST", headers, body=content, limit=_MAX_RESPONSE_BYTES, trusted=True
            )
        except IncompleteError:  # it was accepted, with a response that is not needed
            return
        if response.status == 429 or response.status >= 500:
            raise TryLaterError("server-busy", f"the server's status is {response.status}", subject=subject)
        if not 200 <= response.status < 300:
            raise RefusedError(
                "not-taken", f"the server does not accept it ({response.status})", subject=subject
            )

    with_retries(send, subject=subject, attempts=_ATTEMPTS)


def check_post_url(url: str) -> SplitResult:
    """Return the parts of a URL that documents may be sent to: https, or http to this machine. Raises `UsageError`."""
    try:
        parts = urlsplit(url)
        origin = _origin(parts)
    except ValueError:
        raise UsageError("bad-url", "this is not a URL") from None
    plain = parts.scheme == "http" and _is_loopback(parts.hostname or "")
    if not parts.hostname or not _PLAIN_URL.fullmatch(url):
        raise UsageError("bad-url", "this is not a URL")
    if not (parts.scheme == "https" or plain):
        raise UsageError(
            "bad-url", "only https URLs are allowed, except for this machine itself", subject=origin
        )
    if "@" in parts.netloc:
        host = printable(parts.hostname)
        raise UsageError(
            "bad-url",
            "a URL may not contain a login: other users of the machine can see it",
            subject=host,
        )
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _fetch_once(url: str, origins: frozenset[str], most: int) -> bytes:
    at = url
    for _ in range(_MOST_REDIRECTS + 1):
        parts = _checked(at, origins)
        subject = printable(parts.geturl())
        try:
            response = send_once(parts, "GET", {}, limit=most, trusted=_origin(parts) in origins)
        except IncompleteError:
            raise RefusedError(
                "too-large", f"the document is larger than {most} bytes", subject=subject
            ) from None
        if response.status < 300:
            # It was requested as it is: what a few bytes unpack to is unknown.
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise RefusedError(
                    "encoded-answer",
                    "the server sends a compressed document although hibali did not accept one",
                    subject=subject,
                )
            return response.body
        if response.status not in _REDIRECTS or not response.headers.get("location"):
            raise _error_of(response.status, at)
        at = urljoin(at, response.headers["location"])
    raise RefusedError("too-many-redirects", f"more than {_MOST_REDIRECTS} redirects", subject=printable(url))


def _checked(url: str, origins: frozenset[str]) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError("bad-url", "this is not a URL", subject=printable(url)) from None
    del port
    if not parts.hostname or parts.scheme not in {"http", "https"}:
        raise UsageError("bad-url", "only https URLs can be fetched", subject=printable(url))
    if parts.username is not None or parts.password is not None:
        raise UsageError("bad-url", "a URL may not contain a login", subject=printable(parts.hostname))
    if parts.scheme == "http" and _origin(parts) not in origins:
        raise RefusedError(
            "not-https",
            "without https, others can change the document on its way",
            subject=printable(url),
            hint=f'Use https, or allow it: [catalogue] origins = ["{_origin(parts)}"]',
        )
    return parts


def send_once(
    parts: SplitResult,
    method: str,
    headers: Mapping[str, str],
    *,
    trusted: bool,
    body: bytes = b"",
    limit: int = MAX_RESPONSE_BYTES,
    seconds: float | None = None,
    begin: Callable[[Response], None] | None = None,
) -> Response:
    """Send one request to the first address of the host that answers, or through the proxy of this account.

    Redirects are answers like others. `begin` gets the head of a success before its content, which is then not returned.
    Raises `RefusedError` for an address that is not public, unless the host is trusted, and what `HttpClient.request` does.
    """
    origin, path = _origin(parts), (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    context = ssl.create_default_context() if parts.scheme == "https" else None
    sent = {"Accept": "application/json, */*", "Host": origin.partition("://")[2], **headers}
    proxy = _proxy_of(parts)
    if proxy:
        _refuse_private_literal(parts.hostname or "", trusted=trusted)
        routes = [(_open_proxied(proxy, parts, context), path if context else parts.geturl())]
    else:
        routes = [(open_pool(parts, context, each), path) for each in _addresses(parts, trusted=trusted)]
    for number, (pool, target) in enumerate(routes, 1):
        client = HttpClient(origin, origin, headers=sent, pool=pool)
        try:
            return client.request(
                method,
                target,
                body=body,
                limit=limit,
                seconds=_RESPONSE_SECONDS if seconds is None else seconds,
                receive=None if begin is None else _ignore,
                begin=begin,
            )
        except TryLaterError as problem:
            if number == len(routes) or problem.code != "unreachable":
                raise
        finally:
            client.close()
    raise unreachable(origin, "the host has no address")


def _ignore(piece: bytes) -> None:
    """Ignore content of which only the head is needed."""


def _proxy_of(parts: SplitResult) -> str:
    proxy = urllib.request.getproxies().get(parts.scheme, "")
    return "" if not proxy or urllib.request.proxy_bypass(parts.hostname or "") else proxy


def _open_proxied(proxy: str, parts: SplitResult, context: ssl.SSLContext | None) -> HTTPConnectionPool:
    # start-up: most machines have no proxy
    import urllib3

    login = urlsplit(proxy)
    credentials = f"{login.username}:{login.password or ''}" if login.username else None
    manager = urllib3.ProxyManager(
        proxy if "://" in proxy else f"http://{proxy}",
        proxy_headers=urllib3.make_headers(proxy_basic_auth=credentials),
        timeout=urllib3.Timeout(_SILENCE_SECONDS),
        ssl_context=context,
    )
    port = parts.port or (443 if context else 80)
    made: HTTPConnectionPool = manager.connection_from_host(parts.hostname, port, parts.scheme)
    return made


def _addresses(parts: SplitResult, *, trusted: bool) -> list[str]:
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise unreachable(_origin(parts), _reason(problem)) from None
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    if not trusted:
        for address in addresses:
            _refuse_private(address, host)
    return addresses


def _refuse_private_literal(host: str, *, trusted: bool) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return
    if not trusted:
        _refuse_private(host, host)


def _refuse_private(address: str, host: str) -> None:
    if not ipaddress.ip_address(address.partition("%")[0]).is_global:
        raise RefusedError(
            "private-address",
            f"{printable(host)} has the address {address} in a private network",
            subject=printable(host),
            hint='To allow it, set [catalogue] origins = ["https://HOST"]',
        )


def _origin(parts: SplitResult) -> str:
    port = f":{parts.port}" if parts.port else ""
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def _error_of(status: int, url: str) -> HibaliError:
    subject = printable(url)
    if status in {404, 410}:
        return NotFoundError("not-there", f"the document does not exist ({status})", subject=subject)
    if status in {401, 403}:
        return AccessError("denied", f"the server requires a login ({status})", subject=subject)
    if status == 429 or status >= 500:
        return TryLaterError("server-busy", f"the server's status is {status}", subject=subject)
    return UsageError("bad-answer", f"the server's status is {status}", subject=subject)
