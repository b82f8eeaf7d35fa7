"""A test double of a LORIS: it gives tokens, and serves files to requests with one.

LORIS is a PHP application with MySQL, which cannot run here. The double has only what DataLad's own LORIS token generator
uses: `POST .../login` with a JSON object of `username` and `password` answers `{"token": ...}`, and requests without
`Authorization: Bearer TOKEN` get 401. It does not show how a LORIS itself answers to anything else.

| request | LORIS as datalad's token generator uses it (datalad/downloaders/credentials.py), read in 2026-11 | the double |
|---|---|---|
| POST login | {"token": ...}; a login that fails has no token | the same, 401 for a wrong one |
| GET of a file | with `Authorization: Bearer`; 401 without | the same, with ranges |
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import secrets
from typing import Any

from tests.services.serving import serve_in_thread

LOGIN = "/api/v0.0.3/login"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class LorisServer:
    """The double on a free port. `seen` are the requests, and whether they had a login; `tokens` are those that are valid."""

    def __init__(
        self, files: dict[str, bytes], *, login: tuple[str, str] = ("me", "planted-password")
    ) -> None:
        self.files = files
        self.login = login
        self.tokens: set[str] = set()
        self.seen: list[str] = []
        self.redirect: str | None = None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.loris = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        serve_in_thread(self._server)

    def log_in(self, record: Any) -> str | None:
        """Return a new token for the right name and password."""
        if (record.get("username"), record.get("password")) != self.login:
            return None
        token = f"planted.{secrets.token_hex(8)}.token"
        self.tokens.add(token)
        return token

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown()
            self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written one after the other

    @property
    def loris(self) -> LorisServer:
        return self.server.loris  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        self.loris.seen.append(f"POST {self.path}")
        record = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        token = self.loris.log_in(record) if self.path == LOGIN else None
        status, answer = (200, {"token": token}) if token else (401, {"error": "Unacceptable password"})
        self._answer(status, json.dumps(answer).encode(), kind="application/json")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.loris.seen.append(f"{self.command} {self.path}{' with a login' if token else ''}")
        content = self.loris.files.get(self.path)
        if token not in self.loris.tokens:
            self._answer(401, b'{"error": "User not authenticated"}', kind="application/json")
        elif self.loris.redirect is not None:
            self._answer(302, location=self.loris.redirect)
        elif content is None:
            self._answer(404)
        else:
            self._serve(content)

    def _serve(self, content: bytes) -> None:
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked is None or not content:
            self._answer(200, content)
            return
        part = content[int(asked[1]) : int(asked[2]) + 1]
        about = f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{len(content)}"
        self._answer(206, part, content_range=about)

    def _answer(
        self, status: int, body: bytes = b"", *, kind: str = "application/octet-stream", **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-").title(), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass
