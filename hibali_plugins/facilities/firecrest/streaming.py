"""Move large files by the streamer of FirecREST: a job at the system that waits for one WebSocket connection.

Source: eth-cscs/firecrest-v2 35e1d08 (lib/datatransfers/streamer) and firecrest-streamer 0.0.21, read and run in November 2026. The connection has
no TLS, and every program in the range of ports is sent the secret, so users allow it (S15). The streamer writes the end message of its own
client into the file, because that is not a text message as it expects; hibali's is. It counts each message as 5 MiB of its limit.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from hibali.errors import HibaliError, IncompleteError, TryLaterError
from hibali.http.addresses import connect_to, is_near
from hibali.http.client import Bytes
from hibali.retry import growing_intervals, pause
from hibali.subprocesses import remember_secret
from hibali.text import printable
from hibali_plugins.facilities.firecrest.client import ACTIVE, FirecrestClient
from hibali_plugins.facilities.firecrest.large import UploadTarget, wait_for_job
from hibali_plugins.facilities.operations.waiting import transfer_failed
from transfers.stores.server.files import Upload

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

_WHAT = "streams the file"  # the job
_RUNNING = frozenset({"RUNNING", "R"})
_CHUNK = 5 * 1024 * 1024  # CHUNK_SIZE
_MOST_MESSAGE = _CHUNK * 5 // 4
_KEPT = 64 * 1024 * 1024  # bytes of a download that stay for pieces that are read out of order
_HOST = re.compile(r"[A-Za-z0-9.:-]{1,253}")
_SECRET = re.compile(r"[A-Za-z0-9_-]{8,256}")
_MOST_HOSTS, _MOST_PORTS = 16, 1024
_NO_CLOSE = 1006  # the connection ended without a message that closes it (RFC 6455, section 7.4.1)
_CONNECT_SECONDS, _MESSAGE_SECONDS = 5.0, 120.0
_LISTENING_SECONDS = 300.0  # in which a running job installs and starts the streamer


class Coordinates(NamedTuple):
    """Where a streamer listens, on one of these ports, and its secret."""

    hosts: tuple[str, ...]
    ports: range
    secret: str

    def __repr__(self) -> str:
        return f"Coordinates({self.hosts!r}, {self.ports!r})"


def read_coordinates(text: str, *, is_local: bool) -> Coordinates:
    """Return the coordinates that the service sent. Raise `ValueError` for others, and for this machine unless the service is here."""
    record = _record(base64.urlsafe_b64decode(text))
    hosts, ports, secret = record.get("ips"), record.get("ports"), str(record.get("secret"))
    if not (isinstance(hosts, list) and 0 < len(hosts) <= _MOST_HOSTS and all(map(_is_host, hosts))):
        raise ValueError("they have no addresses")
    if not is_local and any(map(is_near, hosts)):
        raise ValueError("they name this machine")
    first, last = ports if isinstance(ports, list) and len(ports) == 2 else (None, None)
    if not (
        isinstance(first, int)
        and isinstance(last, int)
        and 0 < first <= last < min(65536, first + _MOST_PORTS)
    ):
        raise ValueError("they have no range of ports")
    if not _SECRET.fullmatch(secret):
        raise ValueError("they have no secret")
    remember_secret(secret)
    return Coordinates(tuple(hosts), range(first, last + 1), secret)


def _is_host(value: object) -> bool:
    return isinstance(value, str) and _HOST.fullmatch(value) is not None


def _record(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a message. Raise `ValueError`."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004  # as what is no JSON
    return found


def connect(
    client: FirecrestClient, host: str, port: int, secret: str, opened: contextlib.ExitStack
) -> ClientConnection | None:
    """Connect to a streamer that expects this secret, until `opened` is closed. Return None for another server, or none."""
    # start-up: most sites have no streamer
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect as connect_websocket

    uri = f"ws://{f'[{host}]' if ':' in host else host}:{port}/"
    with contextlib.ExitStack() as ending, contextlib.suppress(OSError, ValueError, WebSocketException):
        # With a socket of ours, the library follows no redirect, uses no proxy and waits for no write without end.
        plain = ending.enter_context(
            connect_to(
                host,
                port,
                _CONNECT_SECONDS,
                client.subject,
                service=client.addresses.service,
                private=True,  # streaming is configured, and connects to nodes, whose addresses are often private
            )
        )
        plain.settimeout(_MESSAGE_SECONDS)
        connection = ending.enter_context(
            connect_websocket(
                uri,
                sock=plain,
                proxy=None,
                compression=None,
                additional_headers={"Authorization": f"Bearer {secret}"},
                open_timeout=_CONNECT_SECONDS,
                close_timeout=_CONNECT_SECONDS,
                ping_interval=None,
                max_size=_MOST_MESSAGE,
                max_queue=1,
                logger=logging.Logger("streamer", logging.CRITICAL),  # noqa: LOG001  # others log the secret, and tracebacks
            )
        )
        ending.callback(_shut_down, plain)  # otherwise the library waits for the server
        opened.push(ending.pop_all())
        return connection
    return None


def _shut_down(plain: socket.socket) -> None:
    with contextlib.suppress(OSError):
        plain.shutdown(socket.SHUT_RDWR)


class _Stream:
    """A connection to the streamer of one file."""

    def __init__(self, client: FirecrestClient, action: str, path: bytes) -> None:
        """Create the job for "upload" to or "download" from a path, wait until it listens, and connect."""
        self._client = client
        self._opened = contextlib.ExitStack()
        self.job, coordinates = client.file_jobs.begin(
            lambda: client.begin_stream(action, path), lambda begun: begun[0]
        )
        try:
            at = read_coordinates(coordinates, is_local=client.addresses.is_local)
            self._connection = self._connected(at)
        except ValueError as problem:
            self.end()
            raise IncompleteError(
                "unsafe-address",
                f"the coordinates of the streamer are not used: {problem}",
                subject=client.subject,
                hint="Report it to the site.",
            ) from None
        except BaseException:
            self.end()
            raise

    def _connected(self, at: Coordinates) -> ClientConnection:
        until, intervals = math.inf, growing_intervals(0.3, 5.0)
        while time.monotonic() < until:
            state = self._client.file_jobs.wait_for_start(self.job, _WHAT, (ACTIVE - _RUNNING).__contains__)
            if state not in _RUNNING:
                raise transfer_failed(self._client.subject, f"that {_WHAT} ended as {state}")
            until = min(until, time.monotonic() + _LISTENING_SECONDS)
            for host, port in product(at.hosts, at.ports):
                if connection := connect(self._client, host, port, at.secret, self._opened):
                    return connection
                if time.monotonic() > until:
                    break
            pause(intervals.next_pause())
        where = f"{', '.join(at.hosts)}, ports {at.ports[0]} to {at.ports[-1]}"
        raise transfer_failed(self._client.subject, f"that {_WHAT} cannot be reached at {where}")

    def send(self, content: Bytes, *, text: bool = False) -> None:
        """Send a message."""
        from websockets.exceptions import ConnectionClosed  # start-up: as in connect()

        try:
            self._connection.send(content, text=text)
        except ConnectionClosed as problem:
            raise self._lost(problem) from None

    def receive(self) -> bytes:
        """Return the next message, b"" after the last one."""
        from websockets.exceptions import ConnectionClosed, ConnectionClosedOK  # start-up: as in connect()

        try:
            return self._connection.recv(_MESSAGE_SECONDS, decode=False)
        except ConnectionClosedOK:
            return b""
        except (ConnectionClosed, TimeoutError) as problem:
            raise self._lost(problem) from None

    def finish(self) -> None:
        """Wait until the streamer closes the connection and its job has ended. Raise the error for another end than a normal one."""
        if self.receive():
            raise self._lost(ValueError())
        wait_for_job(self._client, self.job, _WHAT)
        self.end(cancel=False)

    def _lost(self, problem: Exception) -> HibaliError:
        """End what is left. Return the error for a lost connection; it is another one if the streamer closed it with a reason, such as its limit."""
        self.end()
        code = self._connection.close_code or _NO_CLOSE
        reason = printable(self._connection.close_reason or "")
        if code != _NO_CLOSE:
            return IncompleteError(
                "refused-by-server",
                f"the streamer closed the connection: {reason[:300] or f'status {code}'}",
                subject=self._client.subject,
            )
        reason = f"the connection to the streamer was lost ({type(problem.__cause__ or problem).__name__})"
        return TryLaterError("connection-lost", reason, subject=self._client.subject)

    def end(self, *, cancel: bool = True) -> None:
        """End the connection, and the job, which would otherwise wait for a day."""
        self._opened.close()
        self._client.file_jobs.end(self.job, cancel=cancel)


class StreamUpload(Upload):
    """A large file on its way to a path. An interrupted upload begins anew, because the streamer cannot continue one."""

    def __init__(
        self, client: FirecrestClient, target: UploadTarget, finish: Callable[[bytes, str], None]
    ) -> None:
        """`finish` gets the path of the partial file that the streamer wrote, and the sha256 of what was sent."""
        self._client, self._target, self._finish = client, target, finish
        self._summed, self._held = hashlib.sha256(), bytearray()
        self._stream: _Stream | None = _Stream(client, "upload", target.written or target.partial)
        init = {"type": "init", "num_chunks": -(-target.size // _CHUNK), "file_size": target.size}
        self._stream.send(json.dumps(init).encode("ascii"))

    @property
    def discards(self) -> bool:
        """See Upload."""
        return True

    def write(self, content: Bytes) -> None:
        """See Upload."""
        assert self._stream is not None
        self._summed.update(content)
        self._held += content
        while len(self._held) >= _CHUNK:
            self._stream.send(bytes(self._held[:_CHUNK]))
            del self._held[:_CHUNK]

    def commit(self) -> None:
        """See Upload."""
        assert self._stream is not None
        stream, digest = self._stream, self._summed.hexdigest()
        if self._held:
            stream.send(bytes(self._held))
        end = json.dumps({"type": "eof", "sha256_hash": digest}, separators=(",", ":"))
        stream.send(end.encode("ascii"), text=True)
        stream.finish()
        self._stream = None
        self._finish(self._target.partial, digest)

    def abandon(self) -> None:
        """See Upload."""
        if self._stream is not None:
            self._stream.end()
            self._stream = None
            with contextlib.suppress(HibaliError):
                self._client.remove(self._target.partial)


class _Download:
    """A file that comes from its beginning, of which the last bytes are kept."""

    def __init__(self, stream: _Stream, tag: str, size: int) -> None:
        self.stream, self.tag, self.size = stream, tag, size
        self.guard = threading.Lock()
        self.start = 0  # the offset of the first byte that is kept
        self._kept = bytearray()
        self._summed = hashlib.sha256()
        self.served = 0
        if _record(stream.receive()).get("file_size") != size:
            raise ValueError("it is of another size")

    def read(self, offset: int, length: int) -> bytes:
        """Return a piece that is kept or comes; less if it is no longer kept, or the connection ends."""
        while self.start + len(self._kept) < offset + length and (content := self.stream.receive()):
            self._kept += content
            self._summed.update(content)
            if self.start + len(self._kept) >= self.size:
                self._check_end()
            excess = len(self._kept) - _KEPT
            if excess > _CHUNK:
                del self._kept[:excess]
                self.start += excess
        if self.start + len(self._kept) < min(offset + length, self.size):
            raise ValueError("the streamer ended before the file did")
        if offset < self.start:
            return b""
        self.served += length
        return bytes(self._kept[offset - self.start : offset - self.start + length])

    def _check_end(self) -> None:
        """Raise `ValueError` unless the streamer sent this content and no more."""
        end = _record(self.stream.receive())
        if self.start + len(self._kept) != self.size or end.get("sha256_hash") != self._summed.hexdigest():
            raise ValueError("it is not the content of the file")
        self.stream.end(cancel=False)


class StreamedFiles:
    """Large files that a streamer sends, of which pieces are read in about their order; thread-safe."""

    def __init__(self, client: FirecrestClient, plain: Callable[[bytes], tuple[bytes, bytes]]) -> None:
        """See StagedFiles."""
        self._client = client
        self._plain = plain
        self._guard = threading.Lock()
        self._downloads: dict[bytes, _Download] = {}

    def read(self, path: bytes, tag: str, size: int, offset: int, length: int) -> bytes:
        """Return a piece of a file that has this tag and size; less than it, if the streamer sends less."""
        with self._guard:
            download = self._downloads.get(path)
            if download is None or download.tag != tag or offset < download.start:
                if download is not None:
                    download.stream.end()
                download = self._downloads[path] = self._begin(path, tag, size)
        try:
            with download.guard:
                piece = download.read(offset, min(length, size - offset))
        except (ValueError, HibaliError) as problem:
            self._forget(path, download)
            if isinstance(problem, HibaliError):
                raise
            return b""
        if download.served >= size:
            self._forget(path, download)
        return piece

    def _forget(self, path: bytes, download: _Download) -> None:
        with self._guard:
            if self._downloads.get(path) is download:
                del self._downloads[path]
        download.stream.end()

    def _begin(self, path: bytes, tag: str, size: int) -> _Download:
        plain, temporary = self._plain(path)
        try:
            stream = _Stream(self._client, "download", plain)
            try:
                return _Download(stream, tag, size)
            except BaseException:
                stream.end()
                raise
        except ValueError:
            raise TryLaterError(
                "cut-off",
                "the streamer sends another file than was listed",
                subject=f"{self._client.subject}:{printable(path)}",
            ) from None
        finally:
            if temporary:
                self._client.remove(temporary)

    def close(self) -> None:
        """End all connections and their jobs."""
        for path, download in list(self._downloads.items()):
            self._forget(path, download)
