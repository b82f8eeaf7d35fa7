"""Get documents from the web, and send some, with limits on redirects and on addresses (S15)."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
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
from hibali.http.addresses import is_private
from hibali.http.client import (
    CONNECT_SECONDS,
    MAX_RESPONSE_BYTES,
    SILENCE_SECONDS,
    HttpClient,
    Response,
    open_pool,
    origin_of,
)
from hibali.http.deadline import RESPONSE_SECONDS
from hibali.http.errors import is_failing, reason_of, unreachable
from hibali.retry import with_retries
from hibali.text import printable

if TYPE_CHECKING:
    from urllib3 import HTTPConnectionPool

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
    subject = origin_of(parts)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {secret}"} if secret else {})

    def send() -> None:
        try:
            response = send_once(
                parts, "POST", headers, body=content, limit=_MAX_RESPONSE_BYTES, trusted=True
            )
        except IncompleteError:  # it was accepted, with a response that is not needed
            return
        if is_failing(response.status):
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
        origin = origin_of(parts)
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
            response = send_once(parts, "GET", {}, limit=most, trusted=origin_of(parts) in origins)
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
    if parts.scheme == "http" and origin_of(parts) not in origins:
        raise RefusedError(
            "not-https",
            "without https, others can change the document on its way",
            subject=printable(url),
            hint=f'Use https, or allow it: [catalogue] origins = ["{origin_of(parts)}"]',
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
    begin: Callable[[Response], bool | None] | None = None,
) -> Response:
    """Send one request to the first address of the host that answers, or through the proxy of this account.

    Redirects are answers like others. `begin` gets the head of a success before its content, which is then not returned.
    Raises `RefusedError` for an address that is not public, unless the host is trusted, and what `HttpClient.request` does.
    """
    origin, path = origin_of(parts), (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
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
        timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS),
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
        raise unreachable(origin_of(parts), reason_of(problem)) from None
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
    if is_private(address):
        raise RefusedError(
            "private-address",
            f"{printable(host)} has the address {address} in a private network",
            subject=printable(host),
            hint='To allow it, set [catalogue] origins = ["https://HOST"]',
        )


def _error_of(status: int, url: str) -> HibaliError:
    subject = printable(url)
    if status in {404, 410}:
        return NotFoundError("not-there", f"the document does not exist ({status})", subject=subject)
    if status in {401, 403}:
        return AccessError("denied", f"the server requires a login ({status})", subject=subject)
    if is_failing(status):
        return TryLaterError("server-busy", f"the server's status is {status}", subject=subject)
    return UsageError("bad-answer", f"the server's status is {status}", subject=subject)
