"""Decide which requests the dashboard answers, and add the security headers to every answer.

Other accounts of this machine can connect to the port, and any web page can make a browser send requests there. So the
dashboard answers only requests that name its own address (a page cannot get around that by DNS rebinding) and have the
cookie, which a browser gets once, for the token of the link that the terminal shows. Cookies are sent to every port of an
address: a secret path keeps this one from servers of other accounts. The one request that does something is a POST, and has to
come from a page of the dashboard: browsers name the page's Origin in every POST, and a foreign one cannot change that.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "hibali-dashboard"
ENTRANCE = "/open"
REFRESH = "/refresh"  # below the base: the only address that does anything, on POST
_FAVICON = "/favicon.ico"
ADDRESS = "127.0.0.1"
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(slots=True)
class Keys:
    """The secrets of one dashboard.

    Attributes:
        port: its port.
        token: exchanged once for the cookie; "" after that.
        session: the value of the cookie.
        base: the path of all pages, without a slash at its end.
    """

    port: int
    token: str = field(default_factory=_secret)
    session: str = field(default_factory=_secret)
    base: str = field(default_factory=lambda: f"/{_secret()}")

    @property
    def url(self) -> str:
        """The link that opens the dashboard, once."""
        return f"http://{ADDRESS}:{self.port}{ENTRANCE}?token={self.token}"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is given instead of a page: its status, its text, and the cookie's header if it is set."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


_FORBIDDEN = Answer(
    403,
    "<!DOCTYPE html><html lang=en><title>Not allowed</title><main><h1>Not allowed</h1>"
    "<p>Open the link that <code>hibali dashboard</code> prints. It works once; start the command again for another one.</p>"
    "</main></html>",
)
_READ_ONLY = Answer(405, "This page can only be read.", {"allow": "GET, HEAD"})


def judge(method: str, path: str, query: str, headers: Mapping[str, str], keys: Keys) -> Answer | None:
    """Return the answer to a request that gets no page; None if it may be answered.

    Args:
        method: of the request.
        path: its path, decoded.
        query: its query, undecoded.
        headers: by their names in small letters.
        keys: of the dashboard; a token that was used is removed.
    """
    changes = method == "POST" and path == f"{keys.base}{REFRESH}"
    if method not in {"GET", "HEAD"} and not changes:
        return _READ_ONLY
    hosts = {f"{name}:{keys.port}" for name in (ADDRESS, "localhost")}
    origin = headers.get("origin")
    if headers.get("host") not in hosts or (
        (changes or origin is not None) and origin not in {f"http://{each}" for each in hosts}
    ):
        return _FORBIDDEN
    if path == ENTRANCE:
        return _enter(method, query, keys)
    if path == _FAVICON:  # every browser asks for it, also before it has the cookie
        return Answer(204, "")
    known = hmac.compare_digest(_cookie(headers).encode(), keys.session.encode())
    foreign = headers.get("sec-fetch-site") in {"cross-site", "same-site"}
    inside = path == keys.base or path.startswith(f"{keys.base}/")
    return None if known and inside and not foreign else _FORBIDDEN


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _enter(method: str, query: str, keys: Keys) -> Answer:
    """Exchange the token for the cookie, once; HEAD, which programs send to see what a link is, uses nothing up."""
    given = parse_qs(query).get("token", [""])[-1]
    if not keys.token or not hmac.compare_digest(given.encode(), keys.token.encode()):
        return _FORBIDDEN
    if method == "HEAD":
        return Answer(200, "")
    keys.token = ""
    # A redirect would still be a request of the page that led here, for which the browser sends no strict cookie.
    page = (
        f'<!DOCTYPE html><html lang=en><meta http-equiv="refresh" content="0; url={keys.base}/">'
        f'<title>hibali dashboard</title><main><a href="{keys.base}/">hibali dashboard</a></main></html>'
    )
    cookie = f"{COOKIE}={keys.session}; Path={keys.base}; HttpOnly; SameSite=Strict"
    return Answer(200, page, {"set-cookie": cookie})


class AccessControl:
    """Middleware that answers what `judge` refuses, and adds the security headers to all answers."""

    def __init__(self, app: Application, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = scope["query_string"].decode("latin-1")
        answer = judge(scope["method"], scope["path"], query, headers, self._keys)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        if answer is None:
            await self._app(scope, receive, send_with_headers)
            return
        body = answer.text.encode("ascii")
        own = {"content-type": "text/html; charset=utf-8", "content-length": str(len(body)), **answer.headers}
        start = [(name.encode(), value.encode()) for name, value in own.items()]
        await send_with_headers({"type": "http.response.start", "status": answer.status, "headers": start})
        sent = b"" if scope["method"] == "HEAD" else body
        await send_with_headers({"type": "http.response.body", "body": sent})
