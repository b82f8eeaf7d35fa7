"""Run a test double of an OIDC service: tokens for clients with a secret, refresh tokens, and logins with a code.

Written from RFC 6749 and RFC 8628; a real one (Keycloak) is a Java program that does not run here. It refuses what
the documents do not allow, and counts it in `refused`.

| request | RFC 6749, RFC 8628 | the double |
|---|---|---|
| client_credentials, refresh_token | access_token, expires_in; invalid_client 401, invalid_grant 400; refresh tokens may be rotated | the same |
| device_authorization, device_code | authorization_pending, slow_down, expired_token | never slow_down; invalid_grant for an unknown code |
| the tokens themselves | Keycloak's are JSON Web Tokens of a few KB | opaque and short |
"""

from __future__ import annotations

import base64
import http.server
import json
import secrets
import threading
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from tests.services.serving import serve_in_thread

CLIENT, SECRET = "hibali-tests", "planted-client-secret"
_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


class OidcError(Exception):
    """An answer with an `error` (RFC 6749, 5.2)."""

    def __init__(self, error: str, status: int = 400) -> None:
        super().__init__(error)
        self.error, self.status = error, status


@dataclass
class Oidc:
    """The double. All attributes may be set while it runs.

    Attributes:
        life: The seconds that new access tokens live; they also end after `uses` requests, None for no limit.
        approved: Whether the user has typed the code.
        rotates: Whether a refresh token is valid once.
        issued: How many access tokens were issued.
    """

    life: float = 3600.0
    uses: int | None = None
    approved: bool = True
    rotates: bool = True
    issued: int = 0
    refused: list[str] = field(default_factory=list)
    busy: int = 0  # so many of the next requests get 503
    _access: dict[str, int] = field(default_factory=dict)  # how often each may still be used
    _refresh: set[str] = field(default_factory=set)
    _codes: dict[str, str] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        serve_in_thread(self._server)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.token_url, self.device_url = f"{self.url}/token", f"{self.url}/device"

    def accepts(self, token: str) -> bool:
        """Return whether an access token is valid, and count its use."""
        with self._guard:
            left = self._access.get(token, 0)
            if left <= 0:
                return False
            self._access[token] = left - 1
            return True

    def end_all(self) -> None:
        """Let all access tokens expire."""
        with self._guard:
            self._access.clear()

    def settings(self, *, device: bool = False) -> str:
        """Return the lines of config.toml for a client with a secret in TEST_OIDC_SECRET, or for logins with a code."""
        own = f'device_url = "{self.device_url}"' if device else 'client_secret_variable = "TEST_OIDC_SECRET"'
        return f'client_id = "{CLIENT}"\ntoken_url = "{self.token_url}"\n{own}\n'

    def answer(self, path: str, form: dict[str, str], basic: str) -> dict[str, Any]:
        """Return the answer to a form. Raise `OidcError`."""
        with self._guard:
            if self.busy > 0:
                self.busy -= 1
                raise OidcError("temporarily_unavailable", 503)
            if path == "/device":
                return self._begin(form)
            return self._token(form, basic)

    def _begin(self, form: dict[str, str]) -> dict[str, Any]:
        if form.get("client_id") != CLIENT:
            raise OidcError("invalid_client", 401)
        code = secrets.token_hex(16)
        self._codes[code] = "ABCD-EFGH"
        return {
            "device_code": code,
            "user_code": self._codes[code],
            "verification_uri": f"{self.url}/activate",
            "expires_in": 60,
            "interval": 1,
        }

    def _token(self, form: dict[str, str], basic: str) -> dict[str, Any]:
        kind = form.get("grant_type")
        if kind == "client_credentials":
            if basic != f"{CLIENT}:{SECRET}":
                raise OidcError("invalid_client", 401)
            return self._grant(refreshes=False)
        if form.get("client_id") != CLIENT:
            raise OidcError("invalid_client", 401)
        if kind == "refresh_token":
            if form.get("refresh_token") not in self._refresh:
                raise OidcError("invalid_grant")
            if self.rotates:
                self._refresh.discard(form["refresh_token"])
            return self._grant(refreshes=self.rotates)
        if kind != _DEVICE:
            raise OidcError("unsupported_grant_type")
        if form.get("device_code") not in self._codes:
            raise OidcError("invalid_grant")
        if not self.approved:
            raise OidcError("authorization_pending")
        del self._codes[form["device_code"]]
        return self._grant(refreshes=True)

    def _grant(self, *, refreshes: bool) -> dict[str, Any]:
        self.issued += 1
        token = f"planted-access-{secrets.token_hex(8)}"
        self._access[token] = 1 << 40 if self.uses is None else self.uses
        found = {"access_token": token, "token_type": "Bearer", "expires_in": self.life}
        if refreshes:
            refresh = f"planted-refresh-{secrets.token_hex(8)}"
            self._refresh.add(refresh)
            found["refresh_token"] = refresh
        return found

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


def _handler(double: Oidc) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are written one after the other

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            kind, _, pair = self.headers.get("Authorization", "").partition(" ")
            basic = urllib.parse.unquote(base64.b64decode(pair).decode()) if kind == "Basic" else ""
            try:
                if self.path not in {"/token", "/device"}:
                    raise OidcError("not_found", 404)
                self._send(200, double.answer(self.path, dict(urllib.parse.parse_qsl(body)), basic))
            except OidcError as problem:
                if problem.error not in {"authorization_pending", "temporarily_unavailable"}:
                    double.refused.append(f"{self.path}: {problem.error}")
                self._send(problem.status, {"error": problem.error})

        def _send(self, status: int, record: dict[str, Any]) -> None:
            content = json.dumps(record).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            """Print nothing."""

    return Handler
