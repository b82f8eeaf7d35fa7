"""Run proxies on loopback between hibali and a server, which cut TCP connections or change HTTP messages."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Self

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect: *100-continue", re.IGNORECASE)
SLOW_DOWN = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 98\r\nConnection: close\r\n\r\n"
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please slow down.</Message></Error>     \n\n"
)


FAILED = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/xml\r\nContent-Length: 41\r\n"
    b"Connection: close\r\n\r\n<Error><Code>InternalError</Code></Error>"
)
FAILED_INSIDE = b"HTTP/1.1 200 OK\r\nContent-Length: 41\r\nConnection: close\r\n\r\n" + FAILED[-41:]
DENIED = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: 48\r\nConnection: close\r\n\r\n"
    b"<Error><Code>AccessDenied</Code></Error>        "
)


@dataclass
class Exchange:
    """One HTTP request and its outcome, which a fault sets."""

    method: str
    target: str
    number: int
    content: bytes
    head: bytes = b""
    deny: bool = False  # 403, not forwarded
    refuse: bool = False  # 503, not forwarded
    fail: bool = False  # 500, not forwarded
    fail_inside: bool = False  # 200 with the same error inside, not forwarded
    lose_answer: bool = False  # the server executes it, and the connection is cut before the answer
    flip_request: bool = False
    flip_answer: bool = False
    cut_answer: bool = False  # half of the body, then the end
    halve_answer: bool = False  # half of the body, and a Content-Length that agrees with it


class _Listener:
    """A listening socket with a thread for each connection."""

    def __init__(self, port: int, listening: socket.socket | None = None) -> None:
        self.server_port = port
        self._socket = listening or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.add(client)
        try:
            with client, socket.create_connection(("127.0.0.1", self.server_port)) as server:
                self._open.add(server)
                self.relay(client, server)
        except (OSError, ValueError):
            pass
        finally:
            self._open.discard(client)

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        raise NotImplementedError

    def cut(self, *, reset: bool = False) -> None:
        """End every connection now; with `reset` by a RST, like a host that was restarted."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                if reset:
                    # connect(2) to AF_UNSPEC sends a RST at once, even if another thread waits for the socket
                    ctypes.CDLL(None).connect(one.fileno(), bytes(16), 16)
                else:
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        self.cut()


class CuttingProxy(_Listener):
    """Forward bytes, and cut all connections after `cut_after` bytes to the server; None for never.

    With `reset` they end by a RST; with `once` later connections are not cut.
    """

    def __init__(
        self,
        port: int,
        cut_after: int | None = None,
        listening: socket.socket | None = None,
        *,
        reset: bool = False,
        once: bool = False,
    ) -> None:
        self.cut_after = cut_after
        self.reset = reset
        self.once = once
        self.sent = 0
        self._counting = threading.Lock()
        super().__init__(port, listening)

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
        back.start()
        while content := client.recv(65536):
            with self._counting:
                self.sent += len(content)
            if self.cut_after is not None and self.sent > self.cut_after:
                self.cut_after = None if self.once else self.cut_after
                self.cut(reset=self.reset)
                return
            server.sendall(content)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)
        back.join()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)


class CountingProxy(CuttingProxy):
    """Count the bytes in both directions."""

    def __init__(self, port: int) -> None:
        self.back = 0
        self._counting_back = threading.Lock()
        super().__init__(port)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:  # type: ignore[override]
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                with self._counting_back:
                    self.back += len(content)
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    @property
    def bytes(self) -> int:
        return self.sent + self.back


class StoppingProxy(CuttingProxy):
    """Forward the first bytes towards the server and no later ones; `full` is set then."""

    first = 2_000_000

    def __init__(self, port: int) -> None:
        self.full = threading.Event()
        self._closed = threading.Event()
        super().__init__(port)

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
        while content := client.recv(65536):
            self.sent += len(content)
            if self.sent > self.first:
                self.full.set()
                self._closed.wait()
                return
            server.sendall(content)

    def close(self) -> None:
        self._closed.set()
        super().close()


class LatencyProxy(_Listener):
    """Forward bytes `seconds` late in each direction, like a long-distance link, and count those to the server.

    Connections beyond `most` at a time are closed at once, as by a server at its limit.
    """

    def __init__(self, port: int, seconds: float, most: int | None = None) -> None:
        self.seconds = seconds
        self.most = most
        self.sent = 0
        self.connections = 0
        super().__init__(port)

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        if self.most is not None and len(self._open) > 2 * self.most:  # both sockets of each are open
            return
        self.connections += 1
        back = threading.Thread(target=self._forward_late, args=(server, client), daemon=True)
        back.start()
        self._forward_late(client, server, count=True)
        back.join()

    def _forward_late(self, source: socket.socket, target: socket.socket, *, count: bool = False) -> None:
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._send_when_due, args=(waiting, target), daemon=True).start()
        content = b"."
        while content:
            try:
                content = self.carry(source, source.recv(65536))
            except OSError:
                content = b""
            self.sent += len(content) if count else 0
            waiting.put((time.monotonic() + self.seconds, content))

    def carry(self, source: socket.socket, content: bytes) -> bytes:
        """Return the part that is forwarded."""
        del source
        return content

    @staticmethod
    def _send_when_due(waiting: queue.SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, content = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not content:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(content)


class BlackHoleProxy(LatencyProxy):
    """Silently lose one direction of a connection at its first large packet, as a path with a smaller MTU and no ICMP does."""

    def __init__(self, port: int, largest: int = 8000) -> None:
        self.largest = largest
        self._ended = threading.Event()
        super().__init__(port, 0.0)

    def carry(self, source: socket.socket, content: bytes) -> bytes:
        del source
        if len(content) > self.largest:
            self._ended.wait()
            return b""
        return content

    def close(self) -> None:
        self._ended.set()
        super().close()


class LosingProxy(LatencyProxy):
    """Slow connections that are lost after `losses(number)` bytes in either direction, numbered from 0.

    Each carries `rate` bytes a second, so that others are established while the first still have work. The
    client notices a loss `late` seconds after the server.
    """

    def __init__(
        self,
        port: int,
        losses: dict[int, int],
        *,
        seconds: float = 0.02,
        rate: int = 6_000_000,
        late: float = 0.0,
    ) -> None:
        self.losses = losses
        self.rate = rate
        self.late = late
        self.down = False  # refuse all connections, and count them in `tried`
        self.tried = 0
        self.passed = 0  # bytes, both directions
        self._others: dict[socket.socket, tuple[socket.socket, list[int]]] = {}
        super().__init__(port, seconds)

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        if self.down:
            self.tried += 1
            return
        left = [self.losses.pop(self.connections, sys.maxsize)]
        self._others[client], self._others[server] = (server, left), (client, left)
        super().relay(client, server)

    def lose_all(self) -> None:
        """Lose every connection, and refuse new ones until `down` is False again."""
        self.down = True
        self.cut()

    def carry(self, source: socket.socket, content: bytes) -> bytes:
        other, left = self._others[source]
        self.passed += len(content)
        left[0] -= len(content)
        time.sleep(len(content) / self.rate)
        if left[0] > 0:
            return content
        to_server = source.getpeername()[1] == self.server_port
        server, client = (source, other) if to_server else (other, source)
        _shut(server)
        time.sleep(self.late)
        _shut(client)
        return b""


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class FaultyHttpProxy(_Listener):
    """Forward HTTP/1.1; `fault` is called for every exchange and may change it."""

    def __init__(self, port: int, fault: Callable[[Exchange], None]) -> None:
        self.fault = fault
        self.exchanges: list[Exchange] = []
        self._lock = threading.Lock()
        super().__init__(port)

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        with client.makefile("rb") as requests, server.makefile("rb") as answers:
            while self._exchange(client, server, requests, answers):
                pass

    def _exchange(
        self, client: socket.socket, server: socket.socket, requests: BinaryIO, answers: BinaryIO
    ) -> bool:
        head = _read_head(requests)
        if not head:
            return False
        if _EXPECT.search(head):
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = _EXPECT.sub(b"", head)
        content = b"".join(_body(requests, head, has_body=True))
        method, target = head.split(b" ", 2)[:2]
        with self._lock:
            exchange = Exchange(method.decode(), target.decode("latin-1"), len(self.exchanges), content, head)
            self.exchanges.append(exchange)
            self.fault(exchange)
        said = SLOW_DOWN if exchange.refuse else FAILED if exchange.fail else DENIED if exchange.deny else b""
        said = FAILED_INSIDE if exchange.fail_inside else said
        if said:
            client.sendall(said)
            return False
        server.sendall(head + (_flipped(content) if exchange.flip_request else content))
        answer = _read_head(answers)
        while answer.split(b" ", 2)[1] == b"100":
            answer = _read_head(answers)
        empty = method == b"HEAD" or answer.split(b" ", 2)[1] in {b"204", b"304"}
        body = b"".join(_body(answers, answer, has_body=not empty))
        if exchange.lose_answer or not answer:
            return False
        if exchange.flip_answer:
            body = _flipped(body)
        if exchange.halve_answer and _LENGTH.search(answer):
            body = body[: len(body) // 2]
            answer = _LENGTH.sub(b"\r\nContent-Length: %d" % len(body), answer)
        if exchange.cut_answer:
            client.sendall(answer + body[: len(body) // 2])
            return False
        client.sendall(answer + body)
        return b"\r\nconnection: close" not in answer.lower()


def _flipped(content: bytes) -> bytes:
    if not content:
        return content
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def _read_head(stream: BinaryIO) -> bytes:
    lines = []
    while line := stream.readline():
        lines.append(line)
        if line == b"\r\n":
            return b"".join(lines)
    return b""


def _body(stream: BinaryIO, head: bytes, *, has_body: bool) -> Iterator[bytes]:
    """Yield a body as received, with chunk framing."""
    if not has_body:
        return
    found = _LENGTH.search(head)
    if found:
        yield stream.read(int(found.group(1)))
    elif _CHUNKED.search(head):
        while True:
            size = stream.readline()
            yield size
            yield stream.read(int(size.split(b";")[0], 16) + 2)
            if int(size.split(b";")[0], 16) == 0:
                return
