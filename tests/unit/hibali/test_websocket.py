"""Test the WebSocket client with frames that a server may send (RFC 6455); tests/plugins/facilities/test_streaming.py has a real server."""

from __future__ import annotations

import base64
import hashlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from hibali.http.websocket import WebSocket, WebSocketError

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Server:
    """Accepts one connection, and sends these bytes; `heard` is what came."""

    def __init__(self, sent: bytes, *, status: int = 101, accept: str = "") -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._sent, self._status, self._accept = sent, status, accept
        self.heard, self.head = b"", b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._listening:
            connection, _ = self._listening.accept()
        with connection:
            while b"\r\n\r\n" not in self.head:
                self.head += connection.recv(65536)
            lines = dict(line.split(b": ", 1) for line in self.head.split(b"\r\n")[1:-2])
            key = lines[b"Sec-WebSocket-Key"]
            accept = (
                self._accept
                or base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest()).decode()
            )
            head = f"HTTP/1.1 {self._status} X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
            connection.sendall(head.encode() + self._sent)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                self.heard += piece

    def end(self) -> bytes:
        """Wait for the end of the connection, and return what came after the head."""
        self._thread.join(20)
        return self.heard


@pytest.fixture
def opened() -> Iterator[list[WebSocket]]:
    found: list[WebSocket] = []
    yield found
    for each in found:
        each.close()


def frame(code: int, content: bytes, *, final: bool = True) -> bytes:
    """Return a frame of a server."""
    size = len(content)
    head = bytes([(0x80 if final else 0) | code])
    if size < 126:
        return head + bytes([size]) + content
    return head + (struct.pack("!BH", 126, size) if size < 65536 else struct.pack("!BQ", 127, size)) + content


def unmasked(raw: bytes) -> tuple[int, bytes]:
    """Return code and content of the first frame of a client."""
    size, at = raw[1] & 0x7F, 2
    assert raw[1] & 0x80
    if size >= 126:
        width = 2 if size == 126 else 8
        size, at = int.from_bytes(raw[2 : 2 + width], "big"), 2 + width
    mask, content = raw[at : at + 4], raw[at + 4 : at + 4 + size]
    return raw[0], bytes(byte ^ mask[number % 4] for number, byte in enumerate(content))


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 70001])
def test_messages_of_all_sizes_are_sent_masked_and_received(size: int, opened: list[WebSocket]) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    server = Server(frame(2, content) + frame(8, b""))
    client = WebSocket("127.0.0.1", server.port, "secret", seconds=10)
    opened.append(client)
    client.send(content)
    assert client.receive(100_000) == content
    assert (client.receive(100), client.code) == (None, 1005)
    client.close()
    assert unmasked(server.end()) == (0x82, content)
    assert b"Authorization: Bearer secret" in server.head


def test_fragments_are_joined_and_pings_between_them_are_answered(opened: list[WebSocket]) -> None:
    sent = (
        frame(2, b"ab", final=False)
        + frame(9, b"hi")
        + frame(0, b"cd")
        + frame(8, b"\x03\xf1too much\x1b[2J")
    )
    server = Server(sent)
    client = WebSocket("127.0.0.1", server.port, "secret", seconds=10)
    opened.append(client)
    assert client.receive(100) == b"abcd"
    assert client.receive(100) is None
    assert (client.code, client.reason) == (1009, "too much\\x1b[2J")
    client.close()
    assert unmasked(server.end()) == (0x8A, b"hi")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x82",
        frame(2, b"x" * 101),
        b"\x82\x7f" + b"\xff" * 8,
        frame(2, b"x" * 60, final=False) + frame(0, b"x" * 60),
        b"\x89\x7e\x01\x00" + b"x" * 256,
        frame(2, b"abc")[:4],
    ],
    ids=range(7),
)
def test_what_is_cut_or_too_long_is_an_error(sent: bytes, opened: list[WebSocket]) -> None:
    client = WebSocket("127.0.0.1", Server(sent).port, "secret", seconds=10)
    opened.append(client)
    with pytest.raises(WebSocketError):
        client.receive(100)


@pytest.mark.parametrize(("status", "accept"), [(403, ""), (200, ""), (101, "odd")])
def test_a_server_that_is_none_is_an_error(status: int, accept: str) -> None:
    with pytest.raises(WebSocketError):
        WebSocket("127.0.0.1", Server(b"", status=status, accept=accept).port, "secret", seconds=10)


@pytest.mark.parametrize("raw", [b"SSH-2.0-x\r\n", b"", b"HTTP/1.1 101\r\n" + b"x" * 100_000])
def test_another_program_on_the_port_is_an_error(raw: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(raw)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(WebSocketError):
            WebSocket("127.0.0.1", listening.getsockname()[1], "secret", seconds=10)
