"""Provide the double's HTTP layer: requests, answers, routes, and the server process."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import socket
import sys
import threading
import traceback
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.services.globus.world import ApiError, World, new_id

_WORLD = re.compile(r"/w/([\w-]+)(/.*)")


@dataclass
class Request:
    """A request to one world; `path` is without the world's prefix."""

    world: World
    method: str
    path: str
    query: dict[str, str]
    headers: Any
    body: bytes
    id: str = field(default_factory=lambda: secrets.token_urlsafe(7)[:9])

    def json(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ApiError(400, "ClientError.BadRequest", "The body is not a JSON object")
        return found

    def form(self) -> dict[str, str]:
        pairs = urllib.parse.parse_qsl(self.body.decode("utf-8", "replace"), keep_blank_values=True)
        found: dict[str, str] = {}
        # the SDK sends several scopes as one string, other clients repeat the field
        for name, value in pairs:
            found[name] = f"{found[name]} {value}" if name in found else value
        return found

    def basic(self) -> tuple[str, str] | None:
        kind, _, text = self.headers.get("Authorization", "").partition(" ")
        if kind != "Basic":
            return None
        with contextlib.suppress(ValueError):
            name, _, secret = base64.b64decode(text).decode().partition(":")
            return name, secret
        return None

    def bearer(self) -> str:
        kind, _, text = self.headers.get("Authorization", "").partition(" ")
        return text if kind == "Bearer" else ""

    def number(self, name: str, default: int) -> int:
        try:
            value = int(self.query.get(name, default))
        except ValueError:
            value = -1
        if value < 0:
            raise ApiError(400, "ClientError.BadRequest", f"{name} is not a number of zero or more")
        return value


@dataclass
class Answer:
    """An answer: status, body and headers; a `lost` answer is not sent and the connection is closed instead."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    lost: bool = False

    def encoded(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        self.headers.setdefault("Content-Type", "application/json")
        return json.dumps(self.body).encode()


Serve = Callable[..., Any]
ROUTES: list[tuple[str, re.Pattern[str], Serve]] = []


def route(method: str, pattern: str) -> Callable[[Serve], Serve]:
    """Register a function for this method and path; `{name}` matches one component."""
    expression = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern) + r"/?\Z")

    def register(serve: Serve) -> Serve:
        ROUTES.append((method, expression, serve))
        return serve

    return register


class Server(ThreadingHTTPServer):
    """The HTTP server of all worlds."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.worlds: dict[str, World] = {}
        self.lock = threading.Lock()

    def new_world(self, name: str = "") -> tuple[str, World]:
        name = name or new_id()[:8]
        with self.lock:
            return name, self.worlds.setdefault(name, World(f"{self.url}/w/{name}"))

    def end_world(self, name: str) -> None:
        with self.lock:
            world = self.worlds.pop(name, None)
        if world is not None:
            with world.changed:
                world.ended = True
                world.changed.notify_all()
                world.changed.wait_for(lambda: all(task.is_over for task in world.tasks.values()), timeout=20)


class Handler(BaseHTTPRequestHandler):
    """The handler of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self._answer(body)
        if answer.lost:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        data = answer.encoded()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve  # noqa: N815 - the names that http.server calls

    def _answer(self, body: bytes) -> Answer:
        parts = urllib.parse.urlsplit(self.path)
        if parts.path == "/_test/worlds" and self.command == "POST":
            name, world = self.server.new_world(json.loads(body or b"{}").get("name", ""))
            return Answer(201, {"name": name, "url": world.url})
        match = _WORLD.fullmatch(parts.path)
        found = self.server.worlds.get(match[1]) if match else None
        if match is None or found is None:
            return Answer(404, {"code": "NotFound", "message": "no such world"})
        if match[2] == "/_test" and self.command == "DELETE":
            self.server.end_world(match[1])
            return Answer(200, {})
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        path = urllib.parse.unquote(match[2])
        request = Request(found, self.command, path, query, self.headers, body)
        answer = respond(request)
        if not path.startswith("/_test"):
            logged = {"method": self.command, "path": path, "query": query, "status": answer.status}
            found.requests.append({**logged, "lost": answer.lost})
        return answer


def respond(request: Request) -> Answer:
    """Call the route's function; convert its errors to the format of the requested service."""
    try:
        for method, expression, serve in ROUTES:
            match = expression.match(request.path)
            if method == request.method and match:
                found = serve(request, **match.groupdict())
                return found if isinstance(found, Answer) else Answer(200, found)
        raise ApiError(404, "ClientError.NotFound", f"There is nothing at {request.method} {request.path}")
    except ApiError as problem:
        return Answer(problem.status, _error_body(request, problem), dict(problem.headers))
    except Exception as problem:  # noqa: BLE001 - the test gets the error, and the log the traceback
        traceback.print_exc()
        return Answer(500, {"code": "InternalError", "message": repr(problem)})


def _error_body(request: Request, problem: ApiError) -> dict[str, Any]:
    if request.path.startswith("/v2/oauth2/") and "error" in problem.more:
        return problem.more  # OAuth 2 has its own error format
    if request.path.startswith("/v2/"):
        detail = {
            "status": str(problem.status),
            "id": new_id(),
            "code": problem.code,
            "detail": problem.message,
            "title": problem.code.title(),
        }
        return {"errors": [detail], "error_description": problem.message, "error": problem.code.lower()}
    body = {"code": problem.code, "message": problem.message}
    return {**body, "request_id": request.id, "resource": request.path, **problem.more}


def serve(ready: Path) -> None:
    """Serve forever; the port is written to `ready` when connections are accepted."""
    server = Server(("127.0.0.1", 0))
    written = ready.with_suffix(".new")
    written.write_text(server.url)
    written.rename(ready)
    server.serve_forever()


def main() -> None:
    # these modules register their routes
    from tests.services.globus import (  # noqa: F401
        access_rules,
        auth,
        collections,
        control,
        files,
        https,
        openid,
        submissions,
        tasks,
    )

    serve(Path(sys.argv[1]))
