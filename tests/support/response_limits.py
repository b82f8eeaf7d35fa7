"""Check that a client cuts off answers that are too long or too slow, and follows no redirect to another host (S23)."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from hibali.errors import HibaliError
from tests.support.endless_server import EndlessServer, bomb, drops

SendRequest = Callable[[EndlessServer], Any]
SMALL = 4 * 1024 * 1024  # to which tests reduce the limits of sizes
FRAMINGS = ["", "Content-Length: 100000000000\r\n"]
PARTS = ["status", "headers", "body"]
OK, PARTIAL, MULTI = "200 OK", "206 Partial Content", "207 Multi-Status"
_TOO_LONG = {"answer-too-long", "too-large", "source-changed", "bad-answer"}


def check_endless_answer(
    server: EndlessServer, send_request: SendRequest, framing: str, status: str = OK, begin: bytes = b""
) -> None:
    """Check that an answer without end is cut off, whatever length it declares. `begin` precedes the rest of its body."""
    content_range = "Content-Range: bytes 0-999/100000000000\r\n" if status == PARTIAL else ""
    server.head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{framing}{content_range}\r\n".encode()
    server.head += begin
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HibaliError) as refused:
        send_request(server)
    assert refused.value.code in _TOO_LONG, refused.value
    assert server.sent < 100 * 1024 * 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250 * 1024  # KiB
    assert len(server.seen) <= 2


def check_slow_answer(
    server: EndlessServer,
    send_request: SendRequest,
    part: str,
    head: str = f"{OK}\r\nContent-Type: text/html",
    begin: bytes = b"",
) -> None:
    """Check that an answer times out that is sent byte by byte from `part` on, with pauses shorter than the socket's timeout.

    The client must allow half a second for an answer.
    """
    if part == "body":
        server.head = f"HTTP/1.1 {head}\r\n\r\n".encode() + begin
    else:
        server.head = b"HTTP/1.1 200 O" if part == "status" else b"HTTP/1.1 200 OK\r\nX:"
    server.pieces, server.pause = drops, 0.05
    with pytest.raises(HibaliError) as refused:
        send_request(server)
    assert (refused.value.code, refused.value.exit) == ("answer-too-slow", 5), refused.value
    assert len(server.seen) <= 2
    assert server.sent < 200, "more than ten seconds' bytes of responses that may take half a second"


def check_compressed_answer(server: EndlessServer, send_request: SendRequest, status: str = OK) -> None:
    """Check that a compressed answer is limited by its unpacked size."""
    server.head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n".encode()
    server.pieces = bomb
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HibaliError) as refused:
        send_request(server)
    assert refused.value.code in _TOO_LONG | {"encoded-answer"}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def check_denied_answer(server: EndlessServer, send_request: SendRequest) -> None:
    """Check that the body of an error is not read to its end."""
    server.head = b"HTTP/1.1 403 Forbidden\r\n\r\n<Error><Code>AccessDenied</Code>"
    with pytest.raises(HibaliError) as refused:
        send_request(server)
    assert refused.value.code == "denied"
    assert server.sent < 100 * 1024 * 1024


def check_redirect(server: EndlessServer, send_request: SendRequest) -> None:
    """Check that no other host is connected to: its address may be inside a private network."""
    with closing(EndlessServer()) as other:
        head = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {other.origin}/x\r\nContent-Length: 0\r\n\r\n"
        server.head = head.encode()
        server.pieces = lambda: iter(())
        with pytest.raises(HibaliError):
            send_request(server)
        assert other.seen == []
