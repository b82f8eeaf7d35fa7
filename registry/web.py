"""Small documents fetched from the web, and sent there: https, few redirects, no address of this network unless it was named (S15)."""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import urllib.request
from urllib.parse import SplitResult, urljoin, urlsplit

from hibali.answers import ANSWER_SECONDS, Deadline
from hibali.errors import AccessError, HibaliError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.retry import with_retries
from hibali.text import printable

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
    return with_retries(lambda: _follow(url, origins, most), about=printable(url))


def post_json(url: str, content: bytes, *, secret: str = "") -> None:
    """Send a JSON document once more than needed rather than never, to a URL that the user named: its host may be private.

    Nothing but the origin of the URL is told, because the rest of it may be a secret (S16); `secret` goes along as a bearer token. No redirect is followed. Raises
    `UsageError` for what is no such URL, and what `fetch` does.
    """
    parts = check_post_url(url)
    about = _origin(parts)

    def send() -> None:
        status, _, _ = _ask(parts, trusted=True, most=_MOST_ANSWER, content=content, secret=secret)
        if status == 429 or status >= 500:
            raise TryLaterError("server-busy", f"the server says {status}", about=about)
        if not 200 <= status < 300:
            raise RefusedError("not-taken", f"the server does not take it ({status})", about=about)

    with_retries(send, about=about, attempts=_ATTEMPTS)


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
        raise UsageError("bad-url", "only https URLs are sent to, but for this machine itself", about=origin)
    if "@" in parts.netloc:
        host = printable(parts.hostname)
        raise UsageError(
            "bad-url", "a URL may not hold a login: other users of the machine see it", about=host
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
        "too-many-redirects", f"it leads on more than {_MOST_REDIRECTS} times", about=printable(url)
    )


def _checked(url: str, origins: frozenset[str]) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError("bad-url", "this is no URL", about=printable(url)) from None
    del port
    if not parts.hostname or parts.scheme not in {"http", "https"}:
        raise UsageError("bad-url", "only https URLs are fetched", about=printable(url))
    if parts.username is not None or parts.password is not None:
        raise UsageError("bad-url", "a URL may not hold a login", about=printable(parts.hostname))
    if parts.scheme == "http" and _origin(parts) not in origins:
        raise RefusedError(
            "not-https",
            "it would come over a line that anybody can change",
            about=printable(url),
            hint=f'Use https, or allow it: [catalogue] origins = ["{_origin(parts)}"]',
        )
    return parts


def _ask(
    parts: SplitResult, *, trusted: bool, most: int, content: bytes | None = None, secret: str = ""
) -> tuple[int, str, bytes]:
    """Status, where it leads on, and the body, of a GET or of a POST of `content`; an answer to that is cut."""
    connection = _connect(parts, trusted=trusted)
    about = _origin(parts)
    try:
        return _exchange(connection, parts, most, content, secret)
    except ssl.SSLError as problem:
        raise AccessError(
            "bad-certificate", f"the server cannot prove who it is: {problem.reason}", about=about
        ) from None
    except (OSError, http.client.HTTPException, UnicodeError) as problem:
        raise TryLaterError("unreachable", f"no answer: {printable(str(problem))}", about=about) from None
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
                    "too-large", f"it is larger than {most} bytes", about=printable(parts.geturl())
                )
            # It was asked for as it is: what a few bytes unpack to is nobody's guess.
            if content is None and answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise RefusedError(
                    "encoded-answer",
                    "the server sends it compressed, though it was asked not to",
                    about=printable(parts.geturl()),
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
            about=printable(host),
            hint='Allow it where that is meant: [catalogue] origins = ["https://HOST"]',
        )


def _origin(parts: SplitResult) -> str:
    port = f":{parts.port}" if parts.port else ""
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def _error_of(status: int, url: str) -> HibaliError:
    about = printable(url)
    if status in {404, 410}:
        return NotFoundError("not-there", f"the server has nothing there ({status})", about=about)
    if status in {401, 403}:
        return AccessError("denied", f"the server does not give it to everybody ({status})", about=about)
    if status == 429 or status >= 500:
        return TryLaterError("server-busy", f"the server says {status}", about=about)
    return UsageError("bad-answer", f"the server says {status}", about=about)
