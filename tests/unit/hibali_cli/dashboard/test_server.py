"""Test that the server of the dashboard stays available."""

from __future__ import annotations

import http.client
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from hibali_cli.dashboard import server
from tests.support.waiting import wait_for


def status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("earlier", [b"", b"GET /favicon.ico HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"])
def test_connections_whose_request_never_ends_take_no_place_for_long(
    hibali_home: Any, monkeypatch: pytest.MonkeyPatch, earlier: bytes
) -> None:
    assert hibali_home
    monkeypatch.setattr(server, "_HEAD_SECONDS", 0.5)
    with server.serving(None, 0) as keys, ExitStack() as stack:
        for _ in range(70):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", keys.port)))
            if earlier:
                idle.sendall(earlier % keys.port)
                idle.recv(1000)
            idle.sendall(b"GET / HTTP/1.1\r\n")
        wait_for(lambda: status(keys.port) == 403)
