"""Test limits on bytes and time for the responses of WebDAV servers (S23)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hibali.errors import HibaliError
from hibali_plugins.web.webdav import files
from hibali_plugins.web.webdav import requests as webdav_requests
from hibali_plugins.web.webdav.requests import WebdavClient
from hibali_plugins.web.webdav.server import DavServer
from tests.support.endless_server import EndlessServer
from tests.support.response_limits import (
    FRAMINGS,
    MULTI,
    OK,
    PARTIAL,
    PARTS,
    SMALL,
    SendRequest,
    check_compressed_answer,
    check_denied_answer,
    check_endless_answer,
    check_redirect,
    check_slow_answer,
)

BEGIN = b'<D:multistatus xmlns:D="DAV:">'


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, hibali_home: Any) -> Iterator[EndlessServer]:
    """Run a server with endless responses, and reduce all size limits to 4 MiB."""
    assert hibali_home
    monkeypatch.setattr(files, "_MOST_WHOLE", SMALL)
    monkeypatch.setattr(webdav_requests, "_MOST_LISTING", SMALL)
    with closing(EndlessServer()) as made:
        yield made


def list_webdav(server: EndlessServer) -> Any:
    with closing(WebdavClient(server.origin + "/", "lab")) as client:
        return list(DavServer(client).listed(b"").names)


def stat_webdav(server: EndlessServer) -> Any:
    with closing(WebdavClient(server.origin + "/", "lab")) as client:
        return DavServer(client).free_bytes(b"x")


def read_webdav(server: EndlessServer) -> Any:
    with closing(WebdavClient(server.origin + "/", "lab")) as client:
        return DavServer(client).get(b"x", offset=0, length=1000)


def digest_webdav(server: EndlessServer) -> Any:
    with closing(WebdavClient(server.origin + "/", "lab")) as client:
        found = DavServer(client).digest(b"x", 1000)
    raise HibaliError("answer-too-long", str(found)) if found[1] is None else AssertionError(found)


@pytest.mark.parametrize(
    ("send_request", "status", "begin"),
    [
        (list_webdav, MULTI, BEGIN),
        (stat_webdav, MULTI, b""),
        (read_webdav, PARTIAL, b""),
        (digest_webdav, OK, b""),
    ],
)
@pytest.mark.parametrize("framing", FRAMINGS)
def test_an_endless_response_is_cut_off(
    server: EndlessServer, send_request: SendRequest, status: str, begin: bytes, framing: str
) -> None:
    check_endless_answer(server, send_request, framing, status, begin)


@pytest.mark.heavy
@pytest.mark.parametrize("send_request", [list_webdav, stat_webdav])
@pytest.mark.parametrize("part", PARTS)
def test_a_response_sent_byte_by_byte_times_out(
    server: EndlessServer, send_request: SendRequest, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_RESPONSE_SECONDS", "_LISTING_SECONDS"):
        monkeypatch.setattr(webdav_requests, name, 0.5)
    check_slow_answer(server, send_request, part, f"{MULTI}\r\nContent-Type: text/html", BEGIN)


@pytest.mark.heavy
def test_compressed_responses_are_limited_by_their_unpacked_size(server: EndlessServer) -> None:
    check_compressed_answer(server, stat_webdav, MULTI)


def test_error_bodies_are_not_read_to_their_end(server: EndlessServer) -> None:
    check_denied_answer(server, list_webdav)


@pytest.mark.parametrize("send_request", [list_webdav, stat_webdav, read_webdav])
def test_a_redirect_to_another_host_is_not_followed(server: EndlessServer, send_request: SendRequest) -> None:
    check_redirect(server, send_request)
