"""Run a local server whose answers never end: it sends continuously, or single bytes with pauses."""

from __future__ import annotations

import contextlib
import socket
import threading
import zlib
from collections.abc import Callable, Iterator

PIECE = b"<!-- no end -->" * 4096


class EndlessServer:
    """`seen` are the request lines, `sent` the bytes of answers; `answer` returns the answer to a request
    line."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.sent = 0
        self.head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
        self.pieces: Callable[[], Iterator[bytes]] = without_end
        self.pause = 0.0
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.origin = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                got = connection.recv(65536)
                if not got:
                    return
                request += got
            self.seen.append(request.partition(b"\r\n")[0].decode())
            connection.sendall(self.head)
            for piece in self.pieces():
                connection.sendall(piece)
                self.sent += len(piece)
                if self._over.wait(self.pause):
                    return

    def close(self) -> None:
        """End all answers."""
        self._over.set()
        self._listener.close()


def without_end() -> Iterator[bytes]:
    """Yield 400 MiB as fast as possible, more than a client should accept."""
    for _ in range(400 * 1024 * 1024 // len(PIECE)):
        yield PIECE


def drops() -> Iterator[bytes]:
    """Yield one byte after another, slowly."""
    while True:
        yield b"x"


def bomb() -> Iterator[bytes]:
    """Yield compressed data that expands a thousandfold, to 300 MiB, without holding all of it in memory."""
    packer = zlib.compressobj(9, wbits=31)
    for _ in range(300):
        yield packer.compress(bytes(1024 * 1024))
    yield packer.flush()
