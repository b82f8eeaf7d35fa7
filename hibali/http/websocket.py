"""Send and receive messages over a WebSocket without TLS (RFC 6455), as a client."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import struct
from typing import IO, Any

from hibali.http.client import Bytes
from hibali.text import printable

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_MOST_CONTROL = 125  # bytes of a close, ping or pong


class WebSocketError(OSError):
    """The server refused the connection, or sent what the protocol does not allow."""


class WebSocket:
    """One connection. Methods raise `OSError` when it is lost."""

    def __init__(self, host: str, port: int, token: str, *, seconds: float) -> None:
        """Connect, with a bearer token; afterwards `seconds` is the longest silence."""
        self._connection = http.client.HTTPConnection(host, port, timeout=seconds)
        self._reader: IO[Any] | None = None
        key = base64.b64encode(os.urandom(16)).decode("ascii")
        headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        try:
            self._connection.request(
                "GET",
                "/",
                headers={**headers, "Sec-WebSocket-Key": key, "Authorization": f"Bearer {token}"},
            )
            response = self._connection.getresponse()
            self._reader = response.fp  # has what came after the head
        except (OSError, http.client.HTTPException, ValueError) as problem:
            self.close()
            raise WebSocketError(f"no WebSocket ({type(problem).__name__})") from None
        accepted = hashlib.sha1(key.encode("ascii") + _MAGIC, usedforsecurity=False).digest()
        expected = base64.b64encode(accepted).decode("ascii")
        if response.status != 101 or response.headers.get("Sec-WebSocket-Accept") != expected:
            self.close()
            raise WebSocketError(f"no WebSocket (status {response.status})")
        self._socket = self._connection.sock
        self.code = 0  # with which the server closed the connection (RFC 6455, section 7.4.1)
        self.reason = ""

    def set_timeout(self, seconds: float) -> None:
        """Set the longest silence."""
        self._socket.settimeout(seconds)

    def send(self, content: Bytes, *, text: bool = False) -> None:
        """Send a message."""
        self._send(_TEXT if text else _BINARY, content)

    def _send(self, code: int, content: Bytes) -> None:
        size = len(content)
        if size < 126:
            head = struct.pack("!BB", 0x80 | code, 0x80 | size)
        elif size < 65536:
            head = struct.pack("!BBH", 0x80 | code, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | code, 0x80 | 127, size)
        mask = os.urandom(4)
        stream = (mask * (size // 4 + 1))[:size]
        masked = int.from_bytes(content, "little") ^ int.from_bytes(stream, "little")
        self._socket.sendall(head + mask + masked.to_bytes(size, "little"))

    def receive(self, most: int) -> bytes | None:
        """Return the next message of at most this size; None when the server closes the connection (`code`, `reason`)."""
        message = bytearray()
        while True:
            head, size = self._read(2)
            code, size = head & 0x0F, size & 0x7F
            if size >= 126:
                size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
            if size + len(message) > (_MOST_CONTROL if code & 0x8 else most):
                raise WebSocketError("the server sent a message that is too long")
            content = self._read(size)
            if code == _CLOSE:
                self.code, self.reason = int.from_bytes(content[:2], "big") or 1005, printable(content[2:])
                return None
            if code == _PING:
                self._send(_PONG, content)
            elif code in {_CONTINUATION, _TEXT, _BINARY}:
                message += content
                if head & 0x80:
                    return bytes(message)

    def _read(self, size: int) -> bytes:
        content: bytes = self._reader.read(size) if self._reader is not None else b""
        if len(content) < size:
            raise WebSocketError("the connection ended")
        return content

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
        if self._reader is not None:
            self._reader.close()
