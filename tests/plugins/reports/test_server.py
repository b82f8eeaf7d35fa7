"""Test that the server of the dashboard stays available."""

from __future__ import annotations

import http.client
import socket
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from hibali.errors import UsageError
from hibali_cli.options import Common
from hibali_plugins.reports.dashboard import server
from hibali_plugins.reports.dashboard.start import show_dashboard
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


def test_a_missing_package_of_the_dashboard_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "hibali_plugins.reports.dashboard.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UsageError) as caught:
        show_dashboard(Common(), port=0, no_open=True)
    assert (caught.value.code, caught.value.hint) == (
        "dashboard-not-installed",
        "pip install 'hibali[dashboard]'",
    )
    assert "uvicorn" in caught.value.message
