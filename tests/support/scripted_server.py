"""Run an HTTP server on loopback whose answers a test computes."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.services.serving import serve_in_thread


class ScriptedServer:
    """A server that sends the result of `respond`: (status, headers, body) for a method, path and query."""

    def __init__(self) -> None:
        self.respond: Callable[[str, str, dict[str, list[str]]], tuple[int, dict[str, str], bytes]] | None = (
            None
        )
        self.seen: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []  # of each request
        self.bodies: list[bytes] = []  # of each request
        self.connections: set[Any] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are written one after the other

            def _do(self) -> None:
                server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                parts = urlsplit(self.path)
                server.seen.append((self.command, self.path))
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
                server.connections.add(self.client_address)
                assert server.respond is not None
                status, headers, body = server.respond(self.command, parts.path, parse_qs(parts.query, True))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)
                if int(headers.get("Content-Length", len(body))) != len(body):
                    self.close_connection = True

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _do  # noqa: N815 - http.server's names

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        serve_in_thread(self._server)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
