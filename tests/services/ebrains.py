"""Run a test double of the EBRAINS data proxy in front of a real object store.

The service cannot run here: its source is not published, and test machines do not reach it. This double has its
documented API (https://data-proxy.ebrains.eu/api/docs, and what the clients ebrains-storage and siibra-python send) for
buckets and datasets of SeaweedFS. Addresses of objects are real presigned URLs; a second listener passes requests on to
SeaweedFS, so that tests can count and disturb them. It counts in `refused` every request that the API does not allow,
also HEAD, and a token that is sent to the object store.

It does not prove how EBRAINS itself behaves. What is unknown there can be varied: what `hash` is, the size of pages,
how long an address is valid, and whether a condition of a PUT is honoured.

| request | the client ebrains-drive 0.7.0 (3be240d, 2024-02-20) and the API's documents, read on 2026-11-27 | the double |
|---|---|---|
| GET buckets/NAME/stat | the client fails unless there are name, objects_count, bytes, last_modified, is_public, role | the same members |
| GET buckets/NAME | limit, marker, prefix; the client asks until a page is empty | the same, with delimiter |
| GET KEY?redirect=False | {url}; the address does not take the token | the same, `False` too |
| PUT KEY | {url} | the same |
| PUT KEY/multipart, KEY/multipart/ID/N, KEY/multipart/ID | {uploadId}; {url} to PUT part N; {"1": ETag, ...} completes it (0.7.0 of the package index, 2026, driven against the double on 2026-11-30) | the same, over SeaweedFS; 404 for an unknown upload |
| DELETE KEY | {failures: []} or {detail: "... has been removed"} | the former |
| POST datasets/ID | 200 or 201: an e-mail is sent | 200 |
| tokens | JSON Web Tokens, of which the client reads `exp` | opaque; both end |
| HEAD | 405 | 405, and counted as misuse |
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import re
import secrets
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.services.s3_client import signing_client
from tests.services.serving import serve_in_thread
from tests.support.shared_dict import SharedCounter

CLIENT = "hibali-tests"
_PARTS = re.compile(r"(.+)/multipart(?:/([^/]+)(?:/([0-9]+))?)?")
TOKEN_PATH = "/auth/realms/hbp/protocol/openid-connect/token"
MOST_KEYS = 10_000
_PIECE = 256 * 1024
_LISTING = frozenset({"limit", "marker", "prefix", "delimiter"})
_NUMBER = re.compile(r"[0-9]{1,9}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass
class Container:
    """A bucket, or a dataset with the objects of one."""

    name: str  # at SeaweedFS
    public: bool = False
    role: str = "editor"
    guarded: bool = False
    granted: bool = False


@dataclass
class Fault:
    """What happens to the next `times` requests whose line contains `match`."""

    kind: str
    match: str
    times: int
    value: str = ""


@dataclass
class Reply:
    """An answer of the API."""

    status: int
    record: Any = None
    headers: dict[str, str] = field(default_factory=dict)


class Ebrains:
    """The double, for one test. All attributes may be set while it runs.

    Attributes:
        token_uses: how many requests of the API accept a token; None for no limit.
        address_uses: how many requests accept a presigned address; None for no limit.
        page: the most objects of one page, whatever `limit` says.
        hashes: what `hash` is: "etag", "constant" or "none".
        checks_existence: whether the API answers 404 for an address to GET a missing object.
        conditions: whether If-Match and If-None-Match reach the object store.
        rotates: whether a refresh token is valid once.
        completed: the keys of uploads in parts.
        completion_is_lost: whether the next completion is executed and answered with an error.
        odd_upload: what is answered in place of the id of an upload.
        without_parts: what is answered by a service without uploads in parts; 200 is the address of an object with that key.
        forgotten: the ids of uploads that the service does not have, or no longer.
    """

    def __init__(self, store: Any, folder: Path) -> None:
        self.token_uses: int | None = None
        self.address_uses: int | None = None
        self.page = MOST_KEYS
        self.hashes = "etag"
        self.checks_existence = False
        self.conditions = True
        self.rotates = False
        self.refused: list[str] = []
        self.seen: list[str] = []  # of the API, with the path and query
        self.mails: list[str] = []  # the datasets to which access was requested
        self.exchanges = 0  # of refresh tokens
        self.downloaded = SharedCounter()  # bytes of each key
        self.uploaded = SharedCounter()  # complete PUTs of each key
        self.token_file = folder / "ebrains-token"
        self.refresh_token = f"planted-refresh-{secrets.token_hex(8)}"
        self._containers: dict[tuple[str, str], Container] = {}
        self._tokens: dict[str, int] = {}  # how often each was used
        self._addresses: Counter[str] = Counter()
        self._faults: list[Fault] = []
        self._signed = 0
        self._lock = threading.Lock()
        self._upstream = urllib.parse.urlsplit(store.endpoint).netloc
        self._api = _serve(_ApiHandler, self)
        self._objects = _serve(_ObjectHandler, self)
        self.origin = f"http://127.0.0.1:{self._api.server_port}"
        self.url = f"{self.origin}/api"
        self.token_url = self.origin + TOKEN_PATH
        self.objects_url = f"http://127.0.0.1:{self._objects.server_port}"
        self._listing = store.client
        self.inside = signing_client(store, store.endpoint)
        self.completed: list[str] = []
        self.completion_is_lost = False
        self.odd_upload: dict[str, Any] | None = None
        self.without_parts: int | None = None
        self.forgotten: set[str] = set()
        self._signing = signing_client(store, self.objects_url)
        self.new_token()

    def add_bucket(self, name: str, **more: Any) -> Container:
        """Let the API show a bucket of SeaweedFS under its name."""
        return self._containers.setdefault(("buckets", name), Container(name, **more))

    def add_dataset(self, bucket: str, **more: Any) -> tuple[str, Container]:
        """Let the API show a bucket of SeaweedFS as a dataset; return its id."""
        name = "-".join(secrets.token_hex(count) for count in (4, 2, 2, 2, 6))
        made = self._containers[("datasets", name)] = Container(bucket, **more)
        return name, made

    def fault(self, kind: str, match: str = "", *, times: int = 1, value: str = "") -> None:
        """Disturb requests; see `_ApiHandler` and `_ObjectHandler` for the kinds."""
        with self._lock:
            self._faults.append(Fault(kind, match, times, value))

    def next_fault(self, line: str, kinds: frozenset[str]) -> Fault | None:
        """Return the fault of a request, and count it."""
        with self._lock:
            for one in self._faults:
                if one.kind in kinds and one.match in line and one.times > 0:
                    one.times -= 1
                    return one
        return None

    def new_token(self) -> str:
        """Issue a token, and write it where a token_command finds it."""
        with self._lock:
            token = f"planted-token-{secrets.token_hex(16)}"
            self._tokens[token] = 0
            partial = self.token_file.with_suffix(".part")
            partial.write_text(token + "\n")
            partial.replace(self.token_file)
        return token

    def expire_tokens(self) -> None:
        """Let no issued token be accepted any more; a new one is issued."""
        with self._lock:
            self._tokens.clear()
        self.new_token()

    def accepts(self, token: str) -> bool:
        """Return whether a token is valid, and count its use; once it is used up, a new one is issued."""
        with self._lock:
            uses = self._tokens.get(token)
            if uses is None:
                return False
            self._tokens[token] = uses + 1
            if self.token_uses is None or uses < self.token_uses:
                return True
            del self._tokens[token]
        self.new_token()
        return False

    def refuse(self, line: str) -> None:
        """Count a request that the API does not allow."""
        with self._lock:
            self.refused.append(line)

    def container(self, kind: str, name: str) -> Container | None:
        """Return the bucket or dataset of that name."""
        return self._containers.get((kind, name))

    def presigned(self, method: str, container: Container, key: str, **part: Any) -> str:
        """Return a new presigned URL for an object, or for a part of it."""
        operation = "upload_part" if part else {"GET": "get_object", "PUT": "put_object"}[method]
        arguments = {"Bucket": container.name, "Key": key, **part}
        with self._lock:
            self._signed += 1
            seconds = (
                600 + self._signed % 3000
            )  # addresses of one second differ, so that each counts its own uses
        found: str = self._signing.generate_presigned_url(operation, arguments, ExpiresIn=seconds)
        return found

    def use_address(self, target: str) -> bool:
        """Return whether an address is still valid, and count its use."""
        with self._lock:
            self._addresses[target] += 1
            return self.address_uses is None or self._addresses[target] <= self.address_uses

    def objects(self, container: Container, prefix: str) -> list[dict[str, Any]]:
        """Return all objects below a prefix in the order of their keys' bytes, as the API shows them."""
        pages = self._listing.get_paginator("list_objects_v2").paginate(Bucket=container.name, Prefix=prefix)
        found = [one for page in pages for one in page.get("Contents", ())]
        found.sort(key=lambda one: one["Key"].encode())
        digest: Callable[[str], Any] = {
            "etag": lambda etag: etag.strip('"'),
            "constant": lambda _: "d41d8cd98f00b204e9800998ecf8427e",
            "none": lambda _: None,
        }[self.hashes]
        return [
            {
                "hash": digest(one["ETag"]),
                "last_modified": one["LastModified"].strftime("%Y-%m-%dT%H:%M:%S.%f"),
                "bytes": one["Size"],
                "name": one["Key"],
                "content_type": "application/octet-stream",
            }
            for one in found
        ]

    def exists(self, container: Container, key: str) -> bool:
        """Return whether there is an object with this key."""
        return any(one["name"] == key for one in self.objects(container, key))

    def remove(self, container: Container, key: str) -> None:
        """Remove an object."""
        self._listing.delete_object(Bucket=container.name, Key=key)

    def connect(self) -> http.client.HTTPConnection:
        """Return a new connection to SeaweedFS."""
        return http.client.HTTPConnection(self._upstream, timeout=120)

    def close(self) -> None:
        for server in (self._api, self._objects):
            with contextlib.suppress(OSError):
                server.shutdown()
                server.server_close()
        self._signing.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    double: Ebrains

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients are killed in the middle of requests."""


def _serve(handler: type[http.server.BaseHTTPRequestHandler], double: Ebrains) -> _Server:
    server = _Server(("127.0.0.1", 0), handler)
    server.double = double
    serve_in_thread(server)
    return server


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def __getattr__(self, name: str) -> Any:
        """Handle all methods alike."""
        if name.startswith("do_"):
            return self.handle_method
        raise AttributeError(name)

    @property
    def double(self) -> Ebrains:
        return self.server.double

    @property
    def line(self) -> str:
        return f"{self.command} {self.path}"

    def log_message(self, *words: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self._headers_buffer.append(b"\r\n" + body)
        self.flush_headers()

    def lose(self) -> None:
        """End the connection without an answer."""
        self.close_connection = True


class _ApiHandler(_Handler):
    """The API. Faults: 429 and 500 (not executed), lost (executed, without an answer), html, sizes (of listings), address."""

    kinds = frozenset({"429", "500", "lost", "html", "sizes", "address", "endless", "redirect"})

    def handle_method(self) -> None:
        double = self.double
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if self.path == TOKEN_PATH:
            self._send(self._exchange(body))
            return
        double.seen.append(self.line)
        if self.command == "HEAD":
            double.refuse(self.line)
            self.answer(405, headers={"Allow": "GET"})
            self.close_connection = True
            return
        fault = double.next_fault(self.line, self.kinds)
        if fault is not None and fault.kind in {"429", "500"}:
            self._send(Reply(int(fault.kind), {"detail": "later"}, {"Retry-After": fault.value or "0"}))
            return
        if fault is not None and fault.kind == "redirect":
            self._send(Reply(302, None, {"Location": fault.value}))
            return
        reply = self._reply(body)
        if fault is None:
            self._send(reply)
        elif fault.kind == "lost":
            self.lose()
        elif fault.kind == "html":
            self.answer(200, b"<html>Please log in</html>", {"Content-Type": "text/html"})
        elif fault.kind == "endless":
            self._send_endless()
        elif fault.kind == "address":
            self._send(Reply(reply.status, {"url": fault.value}))
        else:
            for one in reply.record.get("objects", ()):
                one["bytes"] += 1
            self._send(reply)

    def _send(self, reply: Reply) -> None:
        body = b"" if reply.record is None else json.dumps(reply.record).encode()
        self.answer(reply.status, body, {"Content-Type": "application/json", **reply.headers})

    def _send_endless(self) -> None:
        self.answer(200, headers={"Content-Length": str(1 << 40)})
        self.lose()
        with contextlib.suppress(OSError):
            for _ in range(4096):
                self.wfile.write(b" " * _PIECE)

    def _refuse(self, status: int = 422) -> Reply:
        self.double.refuse(self.line)
        return Reply(status, {"detail": "not allowed"})

    def _reply(self, body: bytes) -> Reply:
        """Check a request against the API, and execute it."""
        path, _, query = self.path.partition("?")
        parts = path.removeprefix("/api/v1/").split("/", 2)
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
        arguments = dict(pairs)
        known = path.startswith("/api/v1/") and len(parts) >= 2 and parts[0] in {"buckets", "datasets"}
        if not known or (body and "/multipart/" not in path) or len(arguments) != len(pairs):
            return self._refuse()
        kind, name, key = (urllib.parse.unquote(part) for part in [*parts, ""][:3])
        if kind == "datasets" and not _UUID.fullmatch(name):
            return self._refuse()
        container = self.double.container(kind, name)
        token = self._token()
        if token is False:
            return self._refuse(401)
        if token and not self.double.accepts(token):
            return Reply(401, {"detail": "Token has expired"})
        if container is None:
            return Reply(404, {"detail": "not found"})
        denied = self._denied(container, token=bool(token))
        if self.command == "POST":
            return self._request_access(kind, name, container, token=bool(token), key=key, query=query)
        if denied is not None:
            return denied
        if not key:
            return self._list(container, arguments)
        if key == "stat" and kind == "buckets":
            return self._statistics(container, arguments)
        return self._object(container, key, arguments, kind, body)

    def _token(self) -> str | bool:
        """Return the token, "" without one, False for a malformed header."""
        header = self.headers.get("Authorization")
        if header is None:
            return ""
        return header[7:] if header.startswith("Bearer ") and header[7:].strip() else False

    def _denied(self, container: Container, *, token: bool) -> Reply | None:
        if container.guarded and not container.granted:
            return Reply(401, {"detail": "access is restricted", "can_request_access": True})
        if not token and not container.public:
            return Reply(401, {"detail": "Not authenticated"})
        return None

    def _request_access(
        self, kind: str, name: str, container: Container, *, token: bool, key: str, query: str
    ) -> Reply:
        if kind != "datasets" or key or query:
            return self._refuse()
        if not token:
            return Reply(401, {"detail": "Not authenticated"})
        if not container.guarded:
            return self._refuse()
        self.double.mails.append(name)
        return Reply(200, {"detail": "an e-mail was sent"})

    def _list(self, container: Container, arguments: dict[str, str]) -> Reply:
        limit = arguments.get("limit", "50")
        if self.command != "GET" or not set(arguments) <= _LISTING or not _NUMBER.fullmatch(limit):
            return self._refuse()
        prefix, marker = arguments.get("prefix", ""), arguments.get("marker", "")
        rows = list(_grouped(self.double.objects(container, prefix), prefix, arguments.get("delimiter", "")))
        rows = [row for row in rows if row.get("subdir", row.get("name", "")).encode() > marker.encode()]
        most = min(int(limit) or MOST_KEYS, self.double.page)
        return Reply(200, {"container": container.name, "prefix": prefix, "objects": rows[:most]})

    def _statistics(self, container: Container, arguments: dict[str, str]) -> Reply:
        if self.command != "GET" or arguments:
            return self._refuse()
        objects = self.double.objects(container, "")
        record = {
            "name": container.name,
            "objects_count": len(objects),
            "bytes": sum(one["bytes"] for one in objects),
            "last_modified": max((one["last_modified"] for one in objects), default=None),
            "is_public": container.public,
            "role": container.role,
        }
        return Reply(200, record)

    def _upload_parts(
        self,
        container: Container,
        key: str,
        upload: str | None,
        number: str | None,
        arguments: dict[str, str],
        body: bytes,
    ) -> Reply:
        """Begin an upload in parts, return the address of one, or complete it; as ebrains-drive 0.7.0 requests it."""
        if container.role == "viewer" or self._token() == "":
            return Reply(403, {"detail": "Insufficient permissions"})
        client, named = self.double.inside, {"Bucket": container.name, "Key": key}
        if upload is None:
            if arguments or body:
                return self._refuse()
            if self.double.without_parts is not None:
                address = self.double.presigned("PUT", container, f"{key}/multipart")
                return Reply(
                    self.double.without_parts,
                    {"url": address} if self.double.without_parts == 200 else {"detail": "Not Found"},
                )
            made = client.create_multipart_upload(**named)["UploadId"]
            return Reply(
                200, {"uploadId": made} if self.double.odd_upload is None else self.double.odd_upload
            )
        if arguments != {"redirect": "false"} or (number is not None) == bool(body):
            return self._refuse()
        named["UploadId"] = upload
        if upload in self.double.forgotten:
            return Reply(404, {"detail": "no such upload"})
        if number is not None:
            return Reply(
                200,
                {
                    "url": self.double.presigned(
                        "PUT", container, key, UploadId=upload, PartNumber=int(number)
                    )
                },
            )
        tags = json.loads(body)
        parts = [{"PartNumber": int(each), "ETag": tag} for each, tag in tags.items()]
        client.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
        self.double.completed.append(key)
        self.double.forgotten.add(upload)
        lost, self.double.completion_is_lost = self.double.completion_is_lost, False
        return Reply(500, {"detail": "later"}) if lost else Reply(200, {})

    def _object(
        self, container: Container, key: str, arguments: dict[str, str], kind: str, body: bytes
    ) -> Reply:
        parts = _PARTS.fullmatch(key)
        if parts is not None and self.command == "PUT" and kind == "buckets":
            return self._upload_parts(container, *parts.groups(), arguments, body)
        if body or (
            any(part in {"copy", "multipart"} for part in key.split("/")[-3:]) and self.command != "GET"
        ):
            return self._refuse()  # other operations, which hibali does not use
        arguments = {name: value.lower() for name, value in arguments.items()}  # ebrains-drive sends False
        if self.command == "GET" and arguments in ({"redirect": "false"}, {"redirect": "true"}, {}):
            if self.double.checks_existence and not self.double.exists(container, key):
                return Reply(404, {"detail": "Object not found"})
            url = self.double.presigned("GET", container, key)
            if arguments.get("redirect") == "false":
                return Reply(200, {"url": url})
            return Reply(307, None, {"Location": url})
        if self.command not in {"PUT", "DELETE"} or arguments or kind == "datasets":
            return self._refuse()
        if container.role == "viewer" or self._token() == "":
            return Reply(403, {"detail": "Insufficient permissions"})
        if self.command == "PUT":
            return Reply(200, {"url": self.double.presigned("PUT", container, key)})
        self.double.remove(container, key)
        return Reply(200, {"failures": []})

    def _exchange(self, body: bytes) -> Reply:
        """Exchange a refresh token (RFC 6749, section 6)."""
        double = self.double
        found = dict(urllib.parse.parse_qsl(body.decode()))
        if self.command != "POST" or set(found) != {"grant_type", "client_id", "refresh_token"}:
            return self._refuse(400)
        if found["client_id"] != CLIENT or found["refresh_token"] != double.refresh_token:
            return Reply(400, {"error": "invalid_grant"})
        double.exchanges += 1
        if double.rotates:
            double.refresh_token = f"planted-refresh-{secrets.token_hex(8)}"
        record = {"access_token": double.new_token(), "token_type": "Bearer", "expires_in": 9000}
        return Reply(200, {**record, "refresh_token": double.refresh_token})


def _grouped(rows: list[dict[str, Any]], prefix: str, delimiter: str) -> Iterator[dict[str, Any]]:
    """Yield the rows; with a delimiter, one row for all keys that share a prefix up to it."""
    last = ""
    for row in rows:
        inner, found, _ = row["name"][len(prefix) :].partition(delimiter or "\0")
        if not (delimiter and found):
            yield row
        elif inner != last:
            last = inner
            yield {"subdir": f"{prefix}{inner}{delimiter}"}


class _ObjectHandler(_Handler):
    """The object store, passed on. Faults: store-500, store-lost (executed), cut (half of the body), flip, store-redirect."""

    kinds = frozenset({"store-500", "store-lost", "cut", "flip", "store-redirect"})
    _connection: http.client.HTTPConnection | None = None

    def handle_method(self) -> None:
        double = self.double
        length = int(self.headers.get("Content-Length") or 0)
        if self.command not in {"GET", "PUT"} or "Authorization" in self.headers:
            double.refuse(f"at the object store: {self.command}")
            self.answer(405)
            self.lose()
            return
        fault = double.next_fault(self.line, self.kinds)
        if not double.use_address(self.path):
            self._answer_early(
                403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
            )
        elif fault is not None and fault.kind == "store-500":
            self._answer_early(500, b"<Error><Code>InternalError</Code></Error>")
        elif fault is not None and fault.kind == "store-redirect":
            self._answer_early(302, b"", {"Location": fault.value})
        else:
            self._forward(length, fault.kind if fault is not None else "")

    def _answer_early(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.answer(status, body, headers)
        self.lose()  # the body of the request is not read

    def _forward(self, length: int, fault: str) -> None:
        if self._connection is None:
            self._connection = self.double.connect()
        upstream = self._connection
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if self.double.conditions or not name.lower().startswith("if-"):
                upstream.putheader(name, value)
        upstream.endheaders()
        while length:
            piece = self.rfile.read1(min(_PIECE, length))
            if not piece:  # the client has ended
                upstream.close()
                self.lose()
                return
            upstream.send(piece)
            length -= len(piece)
        answer = upstream.getresponse()
        key = urllib.parse.unquote(self.path.partition("?")[0]).split("/", 2)[2]
        if self.command == "PUT" and answer.status < 300:
            self.double.uploaded.add(key)
        if fault == "store-lost":
            answer.read()
            self.lose()
            return
        self._pass_back(answer, key, fault)

    def _pass_back(self, answer: http.client.HTTPResponse, key: str, fault: str) -> None:
        size = int(answer.headers.get("Content-Length") or 0)
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        left = size // 2 if fault == "cut" else size
        while left and (piece := answer.read(min(_PIECE, left))):
            if fault == "flip":
                piece, fault = bytes([piece[0] ^ 1]) + piece[1:], ""
            self.wfile.write(piece)
            left -= len(piece)
            if answer.status < 300:
                self.double.downloaded.add(key, len(piece))
        if fault == "cut":
            self._drop()
            self.lose()
        else:
            answer.read()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def finish(self) -> None:
        self._drop()
        with contextlib.suppress(OSError):
            super().finish()
