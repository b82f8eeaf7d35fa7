"""Send signed S3 requests, parse their XML, and translate errors."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes
from xml.sax.saxutils import escape

from hibali import documents
from hibali.errors import AccessError, HibaliError
from hibali.events import Listener, ignore
from hibali.http.client import MAX_RESPONSE_BYTES, Bytes, Response
from hibali.http.deadline import RESPONSE_SECONDS, Deadline, read_at_most, request_timeout, watched
from hibali.http.errors import MAX_ERROR_BYTES, failure_of, not_partial, too_long, truncated
from hibali.request_limits import RequestLimit
from hibali.retry import Result, with_retries
from hibali.text import printable
from transfers.stores.s3.credentials import Credentials, CredentialSource, Endpoint
from transfers.stores.s3.errors import (
    EXPIRED,
    UNREACHABLE,
    Said,
    bad_certificate,
    error_of,
    real_status,
    said_in,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


parse = documents.parse
_ODD = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ufffe\\uffff]")


def cut_rows(body: bytes, element: bytes, wanted: Sequence[bytes]) -> tuple[list[tuple[bytes, ...]], bytes]:
    """Return the texts of the `wanted` children of each `element`, and the rest of the document.

    Fast path for thousands of rows: searching for the layout of the first element is many times faster
    than a parser. Other layouts stay in the document, for `parse`. Texts hold no entities.
    """
    first = re.search(rb"<%s>((?:<\w+>[^<]*</\w+>)+)</%s>" % (element, element), body)
    names = tuple(re.findall(rb"<(\w+)>", first.group(1))) if first and b"<!" not in body else ()
    if any(names.count(name) != 1 for name in wanted):
        return [], body
    parts = _layout(element, names, frozenset(wanted)).split(body)
    step = len(wanted) + 1
    order = [name for name in names if name in wanted]
    columns = [parts[order.index(name) + 1 :: step] for name in wanted]
    return list(zip(*columns, strict=True)), b"".join(parts[::step])


@lru_cache(maxsize=8)
def _layout(element: bytes, names: tuple[bytes, ...], wanted: frozenset[bytes]) -> re.Pattern[bytes]:
    """Return a pattern for an element with these children in this order; drops an ETag's quotes."""
    quote = rb"""(?:&quot;|&#34;|")"""
    patterns = dict.fromkeys(wanted, rb"([^<&]*)")
    if b"ETag" in patterns:
        patterns[b"ETag"] = quote + rb'([^<&"]*)' + quote
    texts = (rb"<%s>%s</%s>" % (name, patterns.get(name, rb"[^<]*"), name) for name in names)
    return re.compile(rb"<%s>%s</%s>" % (element, b"".join(texts), element))


def name_of(element: Element) -> str:
    """Return the tag without its namespace, in which servers differ."""
    return element.tag.rpartition("}")[2]


def children(element: Element, name: str) -> Iterator[Element]:
    """Yield the direct children with that name."""
    return (child for child in element if name_of(child) == name)


def fields(element: Element) -> dict[str, str]:
    """Return the texts of direct children by name, one for each name; fast for thousands."""
    return {child.tag[child.tag.find("}") + 1 :]: child.text or "" for child in element}


def text(element: Element, name: str) -> str:
    """Return the text of the first direct child with that name, or ""."""
    for child in children(element, name):
        return child.text or ""
    return ""


def key_bytes(key: str, *, encoded: bool) -> bytes:
    """Return a key as bytes; `encoded` if the server said EncodingType url ("+" is then a space)."""
    return unquote_to_bytes(key.replace("+", " ")) if encoded else key.encode("utf-8", "surrogateescape")


def raw_key(key: bytes, *, encoded: bool) -> bytes:
    """Return a key as bytes from a document's UTF-8 text; see `key_bytes`."""
    if not encoded or (b"%" not in key and b"+" not in key):
        return key
    return unquote_to_bytes(key.replace(b"+", b" "))


def is_plain(key: bytes) -> bool:
    """Return whether XML 1.0 and obstore support this key: a path in UTF-8 without control characters."""
    if b"//" in b"/" + key + b"/":
        return False
    try:
        return _ODD.search(key.decode()) is None
    except UnicodeDecodeError:
        return False


def delete_document(keys: list[bytes]) -> bytes:
    """Return the body of DeleteObjects for plain keys; the response lists only failures."""
    objects = "".join(f"<Object><Key>{escape(key.decode())}</Key></Object>" for key in keys)
    return f"<Delete><Quiet>true</Quiet>{objects}</Delete>".encode()


def complete_document(etags: list[str]) -> bytes:
    """Return the body of CompleteMultipartUpload for parts 1, 2, ... with these ETags."""
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{escape(etag)}&quot;</ETag></Part>"
        for number, etag in enumerate(etags, 1)
    )
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()


CHECKSUM = "x-amz-checksum-sha256"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
CONNECTIONS = 32
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")
_CONNECT_SECONDS = 10
_ATTEMPTS = 5  # attempts for each request, for every client library (docs/decisions/connections.md)
_PATIENCE_SECONDS = 45.0  # the last attempt starts before this
_READ_SECONDS = 120
_UNEXPLAINED = frozenset({301, 400, 401, 403})  # statuses of answers to HEAD, which have no body
_LEAST_PATIENCE = RESPONSE_SECONDS  # minimum for a complete response


class Pieces:
    """A body that is sent in pieces: to join them costs more than to hash them."""

    def __init__(self) -> None:
        self._pieces: list[Bytes] = []
        self._size = 0

    def append(self, piece: Bytes) -> None:
        """Append a piece, which must not change any more."""
        self._pieces.append(piece)
        self._size += len(piece)

    def __len__(self) -> int:
        """Return the bytes of all pieces."""
        return self._size

    def __iter__(self) -> Iterator[Bytes]:
        """Yield the pieces, as `http.client` sends what is not bytes; again for each attempt."""
        return iter(self._pieces)


def hex_of(hashing: Any, body: Bytes | Pieces) -> str:
    """Hash a body; return the digest in hexadecimal."""
    for piece in body if isinstance(body, Pieces) else (body,):
        hashing.update(piece)
    return str(hashing.hexdigest())


class Requests:
    """Signed requests for one bucket, each with its payload's sha256; thread-safe."""

    def __init__(
        self,
        endpoint: Endpoint,
        source: CredentialSource,
        bucket: str,
        subject: str,
        on_event: Listener = ignore,
        *,
        limit: RequestLimit,
        patience: float | None = None,
        pays: bool = False,
    ) -> None:
        """Set the fields; `subject` names site and bucket in errors, `patience` is a read timeout (s).

        With `pays`, every request says that the requester pays for it.
        """
        from botocore.httpsession import URLLib3Session
        from botocore.utils import get_environ_proxies

        self.endpoint = endpoint
        self.source = source
        self.pays = pays
        self.bucket = bucket
        self.subject = subject
        self.connections = min(CONNECTIONS, limit.connections or CONNECTIONS)
        self._limit = limit
        self._on_event = on_event
        self._patience = max(_LEAST_PATIENCE, 2.0 * (patience or 0.0))
        patience = patience or _READ_SECONDS
        self._unreachable = False  # all attempts of a request failed, and no response has arrived since
        self.proxies: Mapping[str, str] = get_environ_proxies(endpoint.url)
        self._session: Any = URLLib3Session(
            verify=endpoint.authorities or True,
            proxies=self.proxies,
            timeout=(_CONNECT_SECONDS, patience),
            max_pool_connections=self.connections,
            # urllib3's default, which botocore replaces: else a small body waits 40 ms or a round trip for the
            # answer to its headers
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        )
        pools = self._session._pool_classes_by_scheme  # noqa: SLF001  # urllib3's setting, which botocore gives no name
        pools.update({scheme: watched(kind) for scheme, kind in pools.items()})
        self._signer = _signer_class()

    def patient(self, seconds: int) -> Requests:
        """Return requests that wait this many seconds for responses; closed separately."""
        arguments = (self.endpoint, self.source, self.bucket, self.subject, self._on_event)
        return Requests(*arguments, limit=self._limit, patience=seconds, pays=self.pays)

    def request(
        self,
        method: str,
        key: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Bytes | Pieces = b"",
        sha256: str | None = None,
        accept: Collection[int] = (),
        most: int = MAX_RESPONSE_BYTES,
        into: memoryview | None = None,
        urgent: bool = False,
    ) -> Response:
        """Send one request, with retries. Raise the errors of `error_of` for statuses not in `accept`.

        `sha256` is the body's, computed if not given. Redirects are never followed. A response has at most
        `most` bytes, one to a range request at most the range. With `into`, the range must be sent (with status
        200, too, as rclone does) and is received there. An `urgent` one overtakes those that wait for the site's limits.
        """
        digest = sha256 or (hex_of(hashlib.sha256(), body) if body else EMPTY_SHA256)
        address = self.endpoint.address(self.bucket, key)
        if query:
            arguments = (
                f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query.items()
            )
            address = f"{address}?{'&'.join(arguments)}"

        def attempt_once() -> Response:
            response = self._send(method, address, dict(headers or {}), body, digest, most, into)
            if method != "GET" or query:  # the content of an object is nothing else
                response = replace(response, status=real_status(response.status, response.body))
            accepted = response.status < 300 or response.status in accept
            if method == "HEAD" and response.status in _UNEXPLAINED and (self.source.renews or not accepted):
                response = self._explained(response, address, key, dict(headers or {}))
            said = (
                said_in(response.body.decode("utf-8", "replace"), response.headers)
                if response.status >= 300
                else Said()
            )
            if accepted and said.code not in EXPIRED:
                return response
            if not said.code and method == "HEAD" and response.status == 404 and not key:
                said = Said("NoSuchBucket")
            named = f"/{printable(key)}" if said.code == "KeyTooLongError" else ""
            raise error_of(response.status, said, self.subject + named)

        return self.tried(attempt_once, urgent=urgent)

    def _explained(self, response: Response, address: str, key: bytes, headers: dict[str, str]) -> Response:
        """Return the answer to HEAD with a body that gives the reason, as the answer to a GET of the first byte has it."""
        url = address if key else f"{address}?list-type=2&max-keys=1"
        found = self._send("GET", url, {**headers, "Range": "bytes=0-0"}, b"", EMPTY_SHA256)
        return replace(response, body=found.body if found.status >= 300 else b"")

    def get_presigned(self, url: str) -> Response:
        """Request the first byte of an object with nothing but a presigned URL; the status is the caller's to judge."""
        headers = {"Range": "bytes=0-0"}
        return self.tried(lambda: self._send("GET", url, dict(headers), b"", EMPTY_SHA256, signed=False))

    def tried(self, attempt: Callable[[], Result], *, urgent: bool = False) -> Result:
        """Call `attempt`, which sends one request, with retries, but only once while the server is unreachable for any thread."""

        def attempt_in_turn() -> Result:
            with self._limit.turn(urgent=urgent):
                used = self.source.current()
                try:
                    return attempt()
                except AccessError as problem:
                    problem.transient = problem.code == "expired" and self.source.renew(used)
                    raise

        try:
            found = with_retries(
                attempt_in_turn,
                subject=self.subject,
                attempts=1 if self._unreachable else _ATTEMPTS,
                patience=_PATIENCE_SECONDS,
                on_event=self._on_event,
            )
        except HibaliError as problem:
            self._unreachable = problem.code == UNREACHABLE
            raise
        self._unreachable = False
        return found

    def _send(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: Bytes | Pieces,
        digest: str,
        most: int = MAX_RESPONSE_BYTES,
        into: memoryview | None = None,
        *,
        signed: bool = True,
    ) -> Response:
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError, SSLError
        from urllib3.exceptions import HTTPError  # botocore's own client

        if self.pays and signed:
            headers["x-amz-request-payer"] = "requester"
        request = AWSRequest(method=method, url=url, headers=headers, data=body, stream_output=True)
        request.context["payload_sha256"] = digest
        wanted = _RANGE.fullmatch(headers.get("Range", ""))
        length = int(wanted[2]) - int(wanted[1]) + 1 if wanted else 0
        credentials = self.source.current() if signed else None
        if credentials is not None:
            self._sign(request, credentials)
        with Deadline(request_timeout(len(body) + length, self._patience), self.subject):
            try:
                found = self._session.send(request.prepare())
                lowered = {name.lower(): value for name, value in found.headers.items()}
                content, received = b"", 0
                if into is not None and found.status_code < 300:
                    received = self._receive(found.raw, lowered, into)
                else:
                    content = self._read(method, found, lowered, length if found.status_code == 206 else most)
            except SSLError:
                raise bad_certificate(self.subject) from None
            except (BotoCoreError, HTTPError, HTTPException, OSError) as problem:
                raise failure_of(problem, self.subject, address="endpoint") from None
        announced = lowered.get("content-length", "")
        complete = found.status_code < 300 or len(content) < MAX_ERROR_BYTES
        arrived = len(content) + received
        if method != "HEAD" and complete and announced.isdigit() and int(announced) != arrived:
            raise truncated(self.subject)  # botocore accepts it
        return Response(found.status_code, lowered, content, received)

    def _read(self, method: str, found: Any, headers: Mapping[str, str], most: int) -> bytes:
        """Read the body as sent: `Content-Encoding` belongs to the object and is never decoded."""
        raw = found.raw
        if found.status_code >= 300:
            status_text: bytes = raw.read(MAX_ERROR_BYTES, decode_content=False)
            if len(status_text) == MAX_ERROR_BYTES:
                raw.close()
            else:
                raw.read(1, decode_content=False)  # to the end, to reuse the connection
            return status_text
        announced = headers.get("content-length", "")
        try:
            if method != "HEAD" and announced.isdigit() and int(announced) > most:
                raise too_long(self.subject, most)
            return read_at_most(lambda size: raw.read(size, decode_content=False), most, self.subject)
        except HibaliError:
            raw.close()
            raise

    def _receive(self, raw: Any, headers: Mapping[str, str], into: memoryview) -> int:
        """Receive a range as sent; return its size. Raise `IncompleteError("answer-too-long")`."""
        source = raw._fp  # noqa: SLF001  # urllib3's own `readinto` copies what it reads
        received = 0
        try:
            if "content-range" not in headers:
                raise not_partial(self.subject)
            while received < len(into) and (count := source.readinto(into[received:])):
                received += count
            if raw.read(1, decode_content=False):  # to the end, to reuse the connection
                raise too_long(self.subject, len(into))
        except BaseException:
            raw.close()
            raise
        return received

    def _sign(self, request: Any, credentials: Credentials) -> None:
        from botocore.credentials import Credentials as Keys

        keys = Keys(credentials.access_key, credentials.secret_key, credentials.token)
        self._signer(keys, "s3", self.endpoint.region).add_auth(request)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


def checksum_of(sha256: str) -> str:
    """Convert a hexadecimal sha256 to the format of the header `CHECKSUM`."""
    return base64.b64encode(bytes.fromhex(sha256)).decode("ascii")


def _signer_class() -> Callable[..., Any]:
    """Return botocore's S3 signer that takes our payload sha256 (the probe sends a wrong one)."""
    from botocore.auth import S3SigV4Auth

    class Signer(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
        def payload(self, request: Any) -> str:
            return str(request.context["payload_sha256"])

    return Signer
