"""Run an SSH server that implements only the key exchange with GSI: `python gsi_server.py PORT`.

Debian's sshd does not support GSI, but its ssh client does. An invalid proxy, authority or host name ends a
login during the key exchange, which this server implements: RFC 4462, section 2, with the tokens of the Globus GSSAPI library and the
host certificate of the environment. It prints a line for each client.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import secrets
import socket
import struct
import sys
from typing import BinaryIO

MECHANISM = bytes.fromhex("2b060104019b50010101")  # 1.3.6.1.4.1.3536.1.1.1
LIBRARY = "libglobus_gssapi_gsi.so.4"
KEXINIT, KEXGSS_INIT, KEXGSS_CONTINUE, KEXGSS_ERROR = 20, 30, 31, 34
ACCEPT = 2


class Buffer(ctypes.Structure):
    """The C structure gss_buffer_desc."""

    _fields_ = (("length", ctypes.c_size_t), ("value", ctypes.c_void_p))


class Acceptor:
    """A security context, accepted with the host's credential."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._minor = ctypes.c_uint32()
        self._context, self._credential = ctypes.c_void_p(), ctypes.c_void_p()
        got = self._library.gss_acquire_cred(
            ctypes.byref(self._minor), None, 0, None, ACCEPT, ctypes.byref(self._credential), None, None
        )
        assert got == 0, f"no host credential: {got:#x}"

    def take(self, token: bytes) -> tuple[int, bytes]:
        """Return the major status and the token that answers this one."""
        held = ctypes.create_string_buffer(token, len(token))
        given = Buffer(len(token), ctypes.cast(held, ctypes.c_void_p))
        answer = Buffer(0, None)
        status = self._library.gss_accept_sec_context(
            *(ctypes.byref(self._minor), ctypes.byref(self._context), self._credential, ctypes.byref(given)),
            *(None, None, None, ctypes.byref(answer), None, None, None),
        )
        return status & 0xFFFFFFFF, ctypes.string_at(answer.value, answer.length) if answer.length else b""


def main(port: int) -> None:
    """Serve clients sequentially."""
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            client, _ = server.accept()
            with client, client.makefile("rb") as stream:
                try:
                    _exchange(client, stream)
                except (EOFError, OSError) as problem:
                    print(f"  ended: {problem}", flush=True)


def _exchange(client: socket.socket, stream: BinaryIO) -> None:
    client.sendall(b"SSH-2.0-gsi_server\r\n")
    if not stream.readline(256).startswith(b"SSH-"):
        return
    print("connection", flush=True)
    name = base64.b64encode(
        hashlib.md5(bytes([6, len(MECHANISM)]) + MECHANISM, usedforsecurity=False).digest()
    )
    lists = (b"gss-group14-sha256-" + name, b"ssh-ed25519", *[b"aes128-ctr"] * 2, *[b"hmac-sha2-256"] * 2)
    offer = b"".join(_string(each) for each in (*lists, b"none", b"none", b"", b""))
    client.sendall(_packet(bytes([KEXINIT]) + secrets.token_bytes(16) + offer + bytes(5)))
    acceptor = Acceptor()
    while True:
        message = _read(stream)
        if message[0] not in {KEXGSS_INIT, KEXGSS_CONTINUE}:
            continue
        (length,) = struct.unpack_from(">I", message, 1)
        status, token = acceptor.take(message[5 : 5 + length])
        print(f"  token of {length} bytes: status {status:#x}", flush=True)
        if status & 0xFFFF0000:
            words = _string(b"GSS Major Status: Authentication Failed\n") + _string(b"")
            client.sendall(_packet(bytes([KEXGSS_ERROR]) + struct.pack(">II", status, 0) + words))
            return
        client.sendall(_packet(bytes([KEXGSS_CONTINUE]) + _string(token)))


def _string(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _packet(payload: bytes) -> bytes:
    padding = 16 - (len(payload) + 5) % 8
    return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)


def _read(stream: BinaryIO) -> bytes:
    (length,) = struct.unpack(">I", _exactly(stream, 4))
    if not 2 <= length <= 1 << 18:
        raise EOFError("no packet")
    content = _exactly(stream, length)
    return content[1 : length - content[0]]


def _exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("the client disconnected")
    return content


if __name__ == "__main__":
    main(int(sys.argv[1]))
