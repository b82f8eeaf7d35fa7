"""Build test doubles of REST services: routes, bearer tokens, counted requests, and faults that a test arms."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tests.services.serving import serve_in_thread
from tests.support.shared_dict import SharedCounter

LOST, DROPPED, STATUS, SLOW, GARBAGE = "lost", "dropped", "status", "slow", "garbage"
TRUNCATED = "truncated"  # the service keeps or sends less than there is, and says nothing
_PIECE = 256 * 1024


@dataclass
class Fault:
    """What happens to the next `times` requests of this method whose path matches."""

    kind: str
    method: str
    path: str
    times: int = 1
    status: int = 500
    retry_after: int | None = None
    seconds: float = 0.0


@dataclass
class Reply:
    """An answer; `content` is JSON unless it is bytes or an iterator of bytes of `size`, -1: its end is that of the connection."""

    status: int = 200
    content: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    size: int = 0


class RefusalError(Exception):
    """A request that the documented API does not allow; it is counted. `expected`: an answer of the API that is no misuse."""

    def __init__(self, status: int, message: str, *, expected: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.expected = status, message, expected


@dataclass
class Request:
    """A request: its decoded path, its query, and its body, which a route reads once."""

    method: str
    path: str
    query: dict[str, str]
    headers: Any
    stream: BinaryIO
    length: int
    truncated: bool = False

    def json(self) -> Any:
        """Return the JSON of the body."""
        try:
            return json.loads(self.body() or b"{}")
        except ValueError:
            raise RefusalError(400, "the body is not JSON") from None

    def body(self) -> bytes:
        """Return the whole body."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Yield the body; ends early if the client ends."""
        while self.length > 0:
            piece = self.stream.read(min(_PIECE, self.length))
            if not piece:
                raise ConnectionError("the client ended")
            self.length -= len(piece)
            yield piece

    def allow(self, *names: str) -> None:
        """Refuse parameters that the API does not name."""
        odd = sorted(set(self.query) - set(names))
        if odd:
            raise RefusalError(400, f"unknown parameters: {', '.join(odd)}")


Route = Callable[[Request, re.Match[str]], Reply]


class RestDouble:
    """A service on loopback. All attributes may be set while it runs.

    Attributes:
        accepts: Whether a bearer token is valid.
        requests: How many requests came, by method and the first group of the route's pattern.
        watch: Called with each request `before` it is executed and `after` that; if it returns true, the connection ends there.
        refused: What the API does not allow.
        sent: Bytes of contents that were sent, by path.
        received: Bytes of contents that arrived, by path.
    """

    prefix = ""
    host = "127.0.0.1"

    def __init__(self) -> None:
        self.token = "planted-token"
        self.accepts: Callable[[str], bool] = lambda token: token == self.token
        self.requests = SharedCounter()
        self.watch: Callable[[Request, str], bool] = lambda request, when: False  # noqa: ARG005
        self.refused: list[str] = []
        self.sent = SharedCounter()
        self.received = SharedCounter()
        self.guard = threading.RLock()
        self._faults: list[Fault] = []
        self._server = _Server((self.host, 0), type("Handler", (_Handler,), {"double": self}))
        self._server.daemon_threads = True
        serve_in_thread(self._server)
        self.origin = f"http://{self.host}:{self._server.server_port}"
        self.url = self.origin + self.prefix

    def routes(self) -> list[tuple[str, str, Route]]:
        """Return method, pattern of the path below the prefix, and the function that answers."""
        raise NotImplementedError

    def open_paths(self) -> str:
        """Return a pattern of paths that need no token."""
        return r"(?!)"

    def error(self, status: int, message: str) -> Any:
        """Return the body of an error."""
        return {"status": status, "message": message}

    def fail(self, kind: str, method: str, path: str = ".*", **more: Any) -> None:
        """Arm a fault; see `Fault`."""
        with self.guard:
            self._faults.append(Fault(kind, method, path, **more))

    def forget_faults(self) -> None:
        """Disarm all faults."""
        with self.guard:
            self._faults.clear()

    def next_fault(self, method: str, path: str, kinds: frozenset[str]) -> Fault | None:
        """Return the fault of a request, and count it."""
        with self.guard:
            for each in self._faults:
                if (
                    each.kind in kinds
                    and each.times > 0
                    and each.method == method
                    and re.search(each.path, path)
                ):
                    each.times -= 1
                    return each
        return None

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


_ALL = frozenset({LOST, DROPPED, STATUS, SLOW, GARBAGE, TRUNCATED})


class _Server(http.server.ThreadingHTTPServer):
    """A server that says nothing of clients that were killed."""

    request_queue_size = 50  # as Java has it; with five, some of eight connections at once wait for a second

    def handle_error(self, request: Any, client_address: Any) -> None:
        """See socketserver.BaseServer."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """A connection; a subclass names the double."""

    double: RestDouble
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written one after the other

    def _answer(self) -> None:
        try:
            self._answer_now()
        except (OSError, ConnectionError, TimeoutError):
            self._hang_up()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815  # the names of the library

    def _answer_now(self) -> None:
        raw, _, query = self.path.partition("?")
        path = urllib.parse.unquote(raw.removeprefix(self.double.prefix), errors="surrogateescape")
        fields = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        length = int(self.headers.get("Content-Length") or 0)
        request = Request(self.command, path, fields, self.headers, self.rfile, length)
        fault = self.double.next_fault(self.command, path, _ALL)
        if fault is not None and fault.kind == SLOW:
            time.sleep(fault.seconds)
        if (fault is not None and fault.kind == DROPPED) or self.double.watch(request, "before"):
            return self._hang_up()
        request.truncated = fault is not None and fault.kind == TRUNCATED
        if fault is not None and fault.kind == STATUS:
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            reply = Reply(fault.status, self.double.error(fault.status, "as the test wants it"), headers)
        else:
            reply = self._routed(request)
        if (fault is not None and fault.kind == LOST) or self.double.watch(request, "after"):
            return self._hang_up()
        if fault is not None and fault.kind == GARBAGE:
            reply = Reply(reply.status, b"{nonsense", dict.fromkeys(reply.headers, "nonsense"))
        if request.length > 0:
            self.close_connection = True
        return self._send(request, reply)

    def _routed(self, request: Request) -> Reply:
        try:
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            if not re.fullmatch(self.double.open_paths(), request.path) and not self.double.accepts(token):
                return Reply(401, self.double.error(401, "the token is not valid"))
            for method, pattern, route in self.double.routes():
                found = re.fullmatch(pattern, request.path, re.DOTALL)
                if found is not None and method == request.method:
                    self.double.requests.add(f"{method} {pattern}")
                    return route(request, found)
            raise RefusalError(404, "there is no such request")
        except RefusalError as problem:
            if not problem.expected:
                self.double.refused.append(f"{request.method} {request.path}: {problem.message}")
            return Reply(problem.status, self.double.error(problem.status, problem.message))

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, request: Request, reply: Reply) -> None:
        content, kind = reply.content, "application/json"
        if content is None or isinstance(content, bytes):
            content = content or b""
        elif isinstance(content, Iterator):
            kind = "application/octet-stream"
        else:
            content = json.dumps(content).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Type": kind, **reply.headers}.items():
            self.send_header(name, value)
        size = reply.size if isinstance(content, Iterator) else len(content)
        if size < 0:
            self.close_connection = True
        elif reply.status != 204:
            self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command == "HEAD" or reply.status == 204:
            return
        for piece in content if isinstance(content, Iterator) else [content]:
            self.wfile.write(piece)
            if kind == "application/octet-stream":
                self.double.sent.add(request.path, len(piece))

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""
