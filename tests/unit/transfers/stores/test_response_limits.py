"""Test limits on bytes and time for the responses of object stores, web servers and single documents (S23)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from hibali.config.model import S3Settings, Site
from hibali.http import fetch as http
from hibali.http.deadline import request_timeout
from hibali.http.fetch import fetch, post_json
from hibali.locations import Location
from tests.support.endless_server import EndlessServer
from tests.support.response_limits import (
    FRAMINGS,
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
from transfers.model.entry import Entry, Kind
from transfers.model.units import Item, Unit
from transfers.stores.s3 import listing, requests
from transfers.stores.s3.kind import open_store
from transfers.stores.s3.store import S3Store
from transfers.stores.server import web
from transfers.stores.server.web import Web


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, hibali_home: Any) -> Iterator[EndlessServer]:
    """Run a server with endless responses, and reduce all size limits to 4 MiB."""
    assert hibali_home
    monkeypatch.setattr(web, "_MOST_WHOLE", SMALL)
    monkeypatch.setattr(listing, "_MOST_PAGE", SMALL)
    with closing(EndlessServer()) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit every response to half a second in all."""
    for module in (web, http):
        monkeypatch.setattr(module, "_RESPONSE_SECONDS", 0.5)
    monkeypatch.setattr(requests, "_LEAST_PATIENCE", 0.5)


@contextmanager
def s3_store(server: EndlessServer) -> Iterator[S3Store]:
    site = Site("lab", "s3", s3=S3Settings(server.origin, bucket="b", anonymous=True))
    with closing(open_store(Location(site, "root", "lab:root", bucket="b"))) as store:
        yield store


def list_s3(server: EndlessServer) -> Any:
    with s3_store(server) as store:
        return list(store.list())


def head_s3(server: EndlessServer) -> Any:
    with s3_store(server) as store:
        return store.stat(b"x")


def page(server: EndlessServer) -> Any:
    with closing(Web(server.origin + "/", "lab")) as there:
        return there.links(b"")


def read_web(server: EndlessServer) -> Any:
    with closing(Web(server.origin + "/", "lab")) as there:
        return there.get(b"x", offset=0, length=1000)


def document(server: EndlessServer) -> Any:
    return fetch(server.origin + "/x", frozenset({server.origin}), 1000)


def hook(server: EndlessServer) -> Any:
    return post_json(server.origin + "/x", b"{}")


@pytest.mark.parametrize("send_request", [list_s3, page, document, read_web])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_an_endless_response_is_cut_off(
    server: EndlessServer, send_request: SendRequest, framing: str
) -> None:
    check_endless_answer(server, send_request, framing, PARTIAL if send_request is read_web else OK)


@pytest.mark.heavy
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("send_request", [list_s3, page, document, head_s3, hook])
@pytest.mark.parametrize("part", PARTS)
def test_a_response_sent_byte_by_byte_times_out(
    server: EndlessServer, send_request: SendRequest, part: str
) -> None:
    if part == "body" and send_request is head_s3:
        pytest.skip("a response to HEAD has no body")
    if send_request is hook:
        check_slow_answer(server, send_request, part, f"{OK}\r\nContent-Length: 60000")
    else:
        check_slow_answer(server, send_request, part)


@pytest.mark.heavy
@pytest.mark.parametrize("send_request", [page, document, list_s3])
def test_compressed_responses_are_limited_by_their_unpacked_size(
    server: EndlessServer, send_request: SendRequest
) -> None:
    check_compressed_answer(server, send_request)


@pytest.mark.parametrize("send_request", [list_s3, page, document])
def test_error_bodies_are_not_read_to_their_end(server: EndlessServer, send_request: SendRequest) -> None:
    check_denied_answer(server, send_request)


def test_an_object_is_read_no_further_than_it_is_long(server: EndlessServer) -> None:
    """Test an endless range, and an object with a large declared size."""
    for size, unit in ((10, None), (100_000_000, (0, 1000))):
        headers = "Content-Length: 100000000000\r\n"
        headers += "Content-Range: bytes 0-999/100000000\r\n" if unit else ""
        status = PARTIAL if unit else OK
        stamp = 'Last-Modified: Mon, 23 Nov 2026 00:00:00 GMT\r\nETag: "e"\r\n'
        server.head = f"HTTP/1.1 {status}\r\n{headers}{stamp}\r\n".encode()
        item = Item(0, Entry(b"x", Kind.FILE, size, 0, etag="e"))
        unit_read = Unit((item,), *unit, segment=True) if unit else Unit((item,))
        with s3_store(server) as store:
            payload = next(iter(store.read([unit_read])))
        assert payload.problems[0].code == "source-changed"
    assert server.sent < 100 * 1024 * 1024


def test_the_timeout_grows_with_the_size_of_the_transfer() -> None:
    """A large file must not time out because of its size."""
    assert request_timeout(0) == 300
    assert request_timeout(64 * 1024 * 1024) > 60_000


@pytest.mark.parametrize("send_request", [list_s3, head_s3, page, read_web, document, hook])
def test_a_redirect_to_another_host_is_not_followed(server: EndlessServer, send_request: SendRequest) -> None:
    check_redirect(server, send_request)
