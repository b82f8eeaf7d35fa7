"""Receive the requests of the double of a CBRAIN portal, and send its answers."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import urllib.parse
from dataclasses import dataclass
from typing import Any

from tests.services.cbrain_model import User


class Answer(Exception):  # noqa: N818  # not an error
    """The answer to a request, raised wherever it is known."""

    def __init__(
        self, status: int, content: Any = None, kind: str = "application/json", **headers: str
    ) -> None:
        super().__init__(status)
        self.status = status
        self.body = (
            content
            if isinstance(content, bytes)
            else b""
            if content is None
            else json.dumps(content).encode()
        )
        self.headers = {"Content-Type": kind, **headers}


class LostAnswer(Exception):  # noqa: N818
    """The connection ends without an answer."""


@dataclass
class PortalRequest:
    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]
    file: tuple[str, bytes] | None
    token: str
    address: str
    user: User | None = None

    @property
    def numbers(self) -> list[int]:
        return [int(found) for found in re.findall(r"/([0-9]+)", self.path)]


def handler_of(portal: Any) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(size)
            if len(content) < size:
                self.close_connection = True
                return
            path, _, query = self.path.partition("?")
            body, file = _parsed(self.headers.get("Content-Type", ""), content)
            request = PortalRequest(
                self.command,
                path,
                dict(urllib.parse.parse_qsl(query)),
                body,
                file,
                self.headers.get("Authorization", "").removeprefix("Bearer "),
                portal.address or self.client_address[0],
            )
            try:
                answer = portal.answer(request)
            except LostAnswer:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = do_DELETE = _respond  # noqa: N815  # names of http.server

        def log_message(self, *words: Any) -> None:
            pass

    return Handler


def _parsed(kind: str, content: bytes) -> tuple[dict[str, Any], tuple[str, bytes] | None]:
    """Return the parameters of a body, and its file."""
    if kind.startswith("multipart/form-data"):
        return _parsed_form(kind.partition("boundary=")[2].encode(), content)
    if kind.startswith("application/x-www-form-urlencoded"):
        return dict(urllib.parse.parse_qsl(content.decode())), None
    found = json.loads(content) if content else {}
    return found if isinstance(found, dict) else {"": found}, None


def _parsed_form(boundary: bytes, content: bytes) -> tuple[dict[str, Any], tuple[str, bytes] | None]:
    fields: dict[str, Any] = {}
    file = None
    for part in content.split(b"--" + boundary)[1:-1]:
        head, _, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        value = value.removesuffix(b"\r\n")
        name = re.search(rb'; name="([^"]*)"', head)
        filename = re.search(rb'; filename="([^"]*)"', head)
        assert name is not None
        fields[name[1].decode()] = "" if filename else value.decode()
        if filename:
            file = filename[1].decode(), value
    return fields, file
