"""Pass requests with presigned URLs on to the object store, and count the bytes of their bodies."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import urllib.parse
from typing import Any, Protocol

from tests.services.s3_client import signing_client
from tests.services.serving import serve_in_thread
from tests.support.shared_dict import SharedCounter

_PIECE = 256 * 1024


class Counting(Protocol):
    """What counts the bytes of contents by their path."""

    sent: SharedCounter
    received: SharedCounter


class PassedOn:
    """A second address of an object store.

    Attributes:
        client: Signs URLs of this address.
    """

    def __init__(self, store: Any, counting: Counting) -> None:
        handler = type(
            "Handler",
            (_Handler,),
            {"counting": counting, "upstream": urllib.parse.urlsplit(store.endpoint).netloc},
        )
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        serve_in_thread(self._server)
        self.client = signing_client(store, f"http://127.0.0.1:{self._server.server_port}")

    def close(self) -> None:
        """End the listener."""
        self._server.shutdown()
        self._server.server_close()
        self.client.close()


class _Server(http.server.ThreadingHTTPServer):
    """A server that says nothing of clients that were killed."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """See socketserver.BaseServer."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """A connection of a client, each of whose requests is passed on by a connection of its own."""

    counting: Counting
    upstream: str
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written one after the other

    def _pass(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, http.client.HTTPException):
            self._pass_on()
            return
        self.close_connection = True

    do_GET = do_PUT = do_POST = _pass  # noqa: N815  # the names of the library

    def _pass_on(self) -> None:
        key = urllib.parse.unquote(self.path.partition("?")[0])
        with contextlib.closing(http.client.HTTPConnection(self.upstream, timeout=120)) as upstream:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders()
            self._send_body(upstream, key)
            answer = upstream.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                    self.send_header(name, value)
            # completed multipart uploads are answered in chunks
            whole = None if answer.length is not None else answer.read()
            self.send_header("Content-Length", str(answer.length if whole is None else len(whole)))
            self.end_headers()
            self._send_answer(answer, whole, key)

    def _send_body(self, upstream: http.client.HTTPConnection, key: str) -> None:
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            piece = self.rfile.read1(min(_PIECE, left))  # type: ignore[attr-defined]  # a BufferedReader
            if not piece:
                raise ConnectionError("the client ended")
            upstream.send(piece)
            left -= len(piece)
            if self.command == "PUT":
                self.counting.received.add(key, len(piece))

    def _send_answer(self, answer: http.client.HTTPResponse, whole: bytes | None, key: str) -> None:
        if whole is not None:
            self.wfile.write(whole)
            return
        while piece := answer.read(_PIECE):
            self.wfile.write(piece)
            if self.command == "GET":
                self.counting.sent.add(key, len(piece))

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""
