"""Request small documents over HTTP with limits on size, time, redirects and addresses (S15)."""

from __future__ import annotations

import contextlib
import heapq
import http.client
import ipaddress
import itertools
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Self
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
from hibali.text import printable

MOST_ANSWER = 64 * 1024 * 1024  # of an answer that is kept in memory
MOST_ERROR = 64 * 1024  # of what a server says to an error; the rest is not read
ANSWER_SECONDS = 300.0  # for an answer that holds no file's content
_SLOWEST = 1024  # bytes a second that content has to come or go with, or it is taken for silence
_PIECE = 1024 * 1024


def too_long(subject: str, most: int) -> IncompleteError:
    """The error for an answer of more than `most` bytes."""
    return IncompleteError(
        "answer-too-long",
        f"the server's answer has more than {most} bytes, and was not read to its end",
        subject=subject,
        hint="Is this the server that you mean? Report it to whoever runs it",
    )


def too_slow(subject: str, seconds: float) -> TryLaterError:
    """The error for an answer that was not whole after `seconds`."""
    return TryLaterError(
        "answer-too-slow",
        f"the server's answer was not complete after {seconds:.0f} s",
        subject=subject,
        hint="Run the same command again later",
        transient=False,
    )


def patience_for(content: int, seconds: float = ANSWER_SECONDS) -> float:
    """Seconds for a request that carries so many bytes of content: a slow line is none that hangs."""
    return seconds + content / _SLOWEST


def read_at_most(read: Callable[[int], bytes], most: int, subject: str) -> bytes:
    """All that `read` gives, piece by piece. Raises `IncompleteError("answer-too-long")`."""
    pieces: list[bytes] = []
    size = 0
    while piece := read(min(_PIECE, most + 1 - size)):
        size += len(piece)
        if size > most:
            raise too_long(subject, most)
        pieces.append(piece)
    return b"".join(pieces)


class Deadline:
    """While inside, the connections that are watched are shut down when the time is over; then `answer-too-slow` is raised.

    A socket's own timeout counts the silence before each piece alone: a server that sends a byte a minute is never silent.
    """

    def __init__(self, seconds: float, subject: str) -> None:
        """`subject` names the server in the error."""
        self._seconds = seconds
        self._subject = subject
        self._connection: Any = None
        self._socket: Any = None
        self._before: Deadline | None = None
        self.is_over = False

    def watch(self, connection: Any) -> None:
        """Its attribute `sock` is what is shut down (http.client, urllib3): as it is now, or when the time is over.

        A connection forgets its socket when an answer's head says that its end is the answer's.
        """
        self._connection, self._socket = connection, getattr(connection, "sock", None)

    def __enter__(self) -> Self:
        self._before = getattr(_current, "deadline", None)
        _current.deadline = self
        _watchdog.add(self, time.monotonic() + self._seconds)
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        _current.deadline = self._before
        _watchdog.remove(self)
        # An answer that was cut off may look like one that ended.
        if self.is_over and (problem is None or isinstance(problem, Exception)):
            raise too_slow(self._subject, self._seconds) from None

    def end(self) -> None:
        """The time is over."""
        self.is_over = True
        for found in (self._socket, getattr(self._connection, "sock", None)):
            if isinstance(found, socket.socket):
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(
                        found, socket.SHUT_RDWR
                    )  # not TLS's own, which is not for two threads


_current = threading.local()


def watch_current(connection: Any) -> None:
    """Let the deadline that this thread is inside of watch a connection; for libraries that make their own."""
    deadline: Deadline | None = getattr(_current, "deadline", None)
    if deadline is not None:
        deadline.watch(connection)


def watched(kind: Any) -> Any:
    """A subclass of one of urllib3's classes of connections (or pools of them) that tells the deadline of each request."""
    if hasattr(kind, "ConnectionCls"):
        return type(kind.__name__, (kind,), {"ConnectionCls": watched(kind.ConnectionCls)})

    def request(self: Any, *words: Any, **more: Any) -> Any:
        watch_current(self)
        return kind.request(self, *words, **more)

    def getresponse(self: Any) -> Any:
        watch_current(self)
        return kind.getresponse(self)

    return type(kind.__name__, (kind,), {"request": request, "getresponse": getresponse})


class _Watchdog:
    """One thread for all deadlines of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Deadline]] = []
        self._live: set[Deadline] = set()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def add(self, deadline: Deadline, due: float) -> None:
        with self._changed:
            self._live.add(deadline)
            heapq.heappush(self._due, (due, next(self._numbers), deadline))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="deadlines", daemon=True)
                self._thread.start()
            elif self._due[0][2] is deadline:
                self._changed.notify()

    def remove(self, deadline: Deadline) -> None:
        """After this it does not end."""
        with self._changed:
            self._live.discard(deadline)
            while self._due and self._due[0][2] not in self._live:
                heapq.heappop(self._due)

    def _work(self) -> None:
        with self._changed:
            while True:
                for deadline in self._over():
                    deadline.end()
                wait = self._due[0][0] - time.monotonic() if self._due else None
                self._changed.wait(None if wait is None else max(0.0, wait))

    def _over(self) -> Iterator[Deadline]:
        while self._due and self._due[0][0] <= time.monotonic():
            deadline = heapq.heappop(self._due)[2]
            if deadline in self._live:
                yield deadline


_watchdog = _Watchdog()


_SECONDS = 60.0  # of silence
_ANSWER_SECONDS = ANSWER_SECONDS
_MOST_REDIRECTS = 3
_MOST_ANSWER = 64 * 1024  # of whatever is said to what was sent
_ATTEMPTS = 3
_PLAIN_URL = re.compile(r"[!-~]+")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


def fetch(url: str, origins: frozenset[str], most: int) -> bytes:
    """The bytes at a URL, at most `most` of them. No login goes along, whatever ~/.netrc says.

    `origins` (`http://localhost:8080`) may be private and without TLS. Raises `NotFoundError`, `AccessError`,
    `TryLaterError`, `RefusedError` for what is too large or leads where it may not, `UsageError` for what is no URL.
    """
    return with_retries(lambda: _follow(url, origins, most), subject=printable(url))


def post_json(url: str, content: bytes, *, secret: str = "") -> None:
    """Send a JSON document once more than needed rather than never, to a URL that the user named: its host may be private.

    Nothing but the origin of the URL is told, because the rest of it may be a secret (S16); `secret` goes along as a bearer token. No redirect is followed. Raises
    `UsageError` for what is no such URL, and what `fetch` does.
    """
    parts = check_post_url(url)
    subject = _origin(parts)

    def send() -> None:
        status, _, _ = _ask(parts, trusted=True, most=_MOST_ANSWER, content=content, secret=secret)
        if status == 429 or status >= 500:
            raise TryLaterError("server-busy", f"the server says {status}", subject=subject)
        if not 200 <= status < 300:
            raise RefusedError("not-taken", f"the server does not take it ({status})", subject=subject)

    with_retries(send, subject=subject, attempts=_ATTEMPTS)


def check_post_url(url: str) -> SplitResult:
    """The parts of a URL that something may be sent to: https, http to this very machine. Raises `UsageError`."""
    try:
        parts = urlsplit(url)
        origin = _origin(parts)
    except ValueError:
        raise UsageError("bad-url", "this is no URL") from None
    plain = parts.scheme == "http" and _is_loopback(parts.hostname or "")
    if not parts.hostname or not _PLAIN_URL.fullmatch(url):
        raise UsageError("bad-url", "this is no URL")
    if not (parts.scheme == "https" or plain):
        raise UsageError(
            "bad-url", "only https URLs are sent to, but for this machine itself", subject=origin
        )
    if "@" in parts.netloc:
        host = printable(parts.hostname)
        raise UsageError(
            "bad-url", "a URL may not hold a login: other users of the machine see it", subject=host
        )
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _follow(url: str, origins: frozenset[str], most: int) -> bytes:
    at = url
    for _ in range(_MOST_REDIRECTS + 1):
        parts = _checked(at, origins)
        status, location, body = _ask(parts, trusted=_origin(parts) in origins, most=most)
        if status == 200:
            return body
        if status not in _REDIRECTS or not location:
            raise _error_of(status, at)
        at = urljoin(at, location)
    raise RefusedError(
        "too-many-redirects", f"it leads on more than {_MOST_REDIRECTS} times", subject=printable(url)
    )


def _checked(url: str, origins: frozenset[str]) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError("bad-url", "this is no URL", subject=printable(url)) from None
    del port
    if not parts.hostname or parts.scheme not in {"http", "https"}:
        raise UsageError("bad-url", "only https URLs are fetched", subject=printable(url))
    if parts.username is not None or parts.password is not None:
        raise UsageError("bad-url", "a URL may not hold a login", subject=printable(parts.hostname))
    if parts.scheme == "http" and _origin(parts) not in origins:
        raise RefusedError(
            "not-https",
            "it would come over a line that anybody can change",
            subject=printable(url),
            hint=f'Use https, or allow it: [catalogue] origins = ["{_origin(parts)}"]',
        )
    return parts


def _ask(
    parts: SplitResult, *, trusted: bool, most: int, content: bytes | None = None, secret: str = ""
) -> tuple[int, str, bytes]:
    """Status, where it leads on, and the body, of a GET or of a POST of `content`; an answer to that is cut."""
    connection = _connect(parts, trusted=trusted)
    subject = _origin(parts)
    try:
        return _exchange(connection, parts, most, content, secret)
    except ssl.SSLError as problem:
        raise AccessError(
            "bad-certificate", f"the server cannot prove who it is: {problem.reason}", subject=subject
        ) from None
    except (OSError, http.client.HTTPException, UnicodeError) as problem:
        raise TryLaterError("unreachable", f"no answer: {printable(str(problem))}", subject=subject) from None
    finally:
        connection.close()


def _exchange(
    connection: http.client.HTTPConnection, parts: SplitResult, most: int, content: bytes | None, secret: str
) -> tuple[int, str, bytes]:
    with Deadline(_ANSWER_SECONDS, _origin(parts)) as deadline:
        deadline.watch(connection)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Accept": "application/json, */*", "User-Agent": "hibali"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        connection.request("GET" if content is None else "POST", path, content, headers)
        deadline.watch(connection)  # now it has a socket
        with connection.getresponse() as answer:
            body = answer.read(most + 1)
            if answer.status >= 300:
                return answer.status, answer.headers.get("Location", ""), b""
            if len(body) > most and content is None:
                raise RefusedError(
                    "too-large", f"it is larger than {most} bytes", subject=printable(parts.geturl())
                )
            # It was asked for as it is: what a few bytes unpack to is nobody's guess.
            if content is None and answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise RefusedError(
                    "encoded-answer",
                    "the server sends it compressed, though it was asked not to",
                    subject=printable(parts.geturl()),
                )
            return answer.status, answer.headers.get("Location", ""), body


def _connect(parts: SplitResult, *, trusted: bool) -> http.client.HTTPConnection:
    """A connection to an address that was looked at; through the proxy of this account, where there is one."""
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    proxy = urllib.request.getproxies().get(parts.scheme, "")
    through = urlsplit(proxy) if proxy and not urllib.request.proxy_bypass(host) else None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            host, port, timeout=_SECONDS, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    if through is not None and through.hostname:
        _refuse_private_literal(host, trusted=trusted)
        connection.host, connection.port = through.hostname, through.port or 3128
        connection.set_tunnel(host, port)
    else:
        connection._create_connection = lambda *_, **__: _open(host, port, trusted=trusted)  # type: ignore[attr-defined]  # noqa: SLF001  # the one place where an address can be looked at before it is used
    return connection


def _open(host: str, port: int, *, trusted: bool) -> socket.socket:
    """The first address of a host that answers; raises OSError, and `RefusedError` for one that is not public."""
    last: OSError = OSError("it has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if not trusted:
            _refuse_private(str(address[0]), host)
        line = socket.socket(family, kind, protocol)
        line.settimeout(_SECONDS)
        try:
            line.connect(address)
        except OSError as problem:
            last = problem
            line.close()
        else:
            return line
    raise last


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
            f"{printable(host)} is {address}, an address of this network",
            subject=printable(host),
            hint='Allow it where that is meant: [catalogue] origins = ["https://HOST"]',
        )


def _origin(parts: SplitResult) -> str:
    port = f":{parts.port}" if parts.port else ""
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def _error_of(status: int, url: str) -> HibaliError:
    subject = printable(url)
    if status in {404, 410}:
        return NotFoundError("not-there", f"the server has nothing there ({status})", subject=subject)
    if status in {401, 403}:
        return AccessError("denied", f"the server does not give it to everybody ({status})", subject=subject)
    if status == 429 or status >= 500:
        return TryLaterError("server-busy", f"the server says {status}", subject=subject)
    return UsageError("bad-answer", f"the server says {status}", subject=subject)
