"""Test limits on bytes and time for the responses of every server (S23)."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import globus_sdk
import pytest

from hibali.config.model import S3Settings, Site
from hibali.errors import HibaliError
from hibali.http import fetch as http
from hibali.http.deadline import request_timeout
from hibali.http.fetch import fetch, post_json
from hibali.locations import Location
from hibali_plugins.ebrains import objects as ebrains_objects
from hibali_plugins.ebrains import requests as ebrains_requests
from hibali_plugins.ebrains.requests import DataProxy
from hibali_plugins.ebrains.settings import EbrainsSettings
from hibali_plugins.ebrains.store import Bucket
from hibali_plugins.globus import clients
from hibali_plugins.globus.clients import limit_responses
from tests.support.endless_server import EndlessServer, bomb, drops
from transfers.model.entry import Entry, Kind
from transfers.model.units import Item, Unit
from transfers.stores import url
from transfers.stores.s3 import listing, requests
from transfers.stores.s3.kind import open_store
from transfers.stores.s3.store import S3Store
from transfers.stores.url import Web
from transfers.stores.webdav import files
from transfers.stores.webdav import requests as webdav_requests
from transfers.stores.webdav.requests import WebdavClient
from transfers.stores.webdav.server import DavServer

CHUNKED = b"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n{more}\r\n"
SMALL = 4 * 1024 * 1024


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EndlessServer]:
    """Run a server with endless responses, and reduce all size limits to 4 MiB."""
    for module, name in (
        *((url, "_MOST_WHOLE"), (files, "_MOST_WHOLE"), (webdav_requests, "_MOST_LISTING")),
        *((clients, "_MOST"), (listing, "_MOST_PAGE")),
        (ebrains_objects, "_MOST_PAGE"),
    ):
        monkeypatch.setattr(module, name, SMALL)
    made = EndlessServer()
    yield made
    made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit every response to half a second in all."""
    for module in (url, webdav_requests, http, clients, ebrains_requests):
        monkeypatch.setattr(module, "_RESPONSE_SECONDS", 0.5)
    monkeypatch.setattr(webdav_requests, "_LISTING_SECONDS", 0.5)
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


def list_ebrains(server: EndlessServer) -> Any:
    with closing(DataProxy(EbrainsSettings(bucket="b", url=server.origin), "lab")) as proxy:
        return list(Bucket(proxy).pages(b""))


def read_ebrains(server: EndlessServer) -> Any:
    with closing(DataProxy(EbrainsSettings(bucket="b", url=server.origin), "lab")) as proxy:
        proxy._presigned = lambda *_: f"{server.origin}/x"
        return Bucket(proxy).get(b"x", offset=0, length=1000)


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


def globus(server: EndlessServer) -> Any:
    client = globus_sdk.TransferClient(base_url=server.origin, retry_config=_no_retries())
    limit_responses(client)
    try:
        return client.get_task("00000000-0000-4000-8000-000000000000")
    finally:
        client.close()


def _no_retries() -> Any:
    from globus_sdk.transport import RetryConfig

    return RetryConfig(max_retries=0)


LISTINGS = [list_s3, list_webdav, stat_webdav, list_ebrains, page, document, globus]
READS = [read_webdav, read_web, read_ebrains, digest_webdav]
TOO_LONG = {"answer-too-long", "too-large", "source-changed", "bad-answer"}


@pytest.mark.parametrize("send_request", [*LISTINGS, *READS])
@pytest.mark.parametrize("framing", ["", "Content-Length: 100000000000\r\n"])
def test_an_endless_response_is_cut_off(
    server: EndlessServer, send_request: Callable[[EndlessServer], Any], framing: str, hibali_home: Any
) -> None:
    """The declared length does not matter."""
    status = (
        "207 Multi-Status"
        if send_request in {list_webdav, stat_webdav}
        else "206 Partial Content"
        if send_request in READS
        else "200 OK"
    )
    if send_request is digest_webdav:
        status = "200 OK"
    content_range = "Content-Range: bytes 0-999/100000000000\r\n" if "206" in status else ""
    server.head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{framing}{content_range}\r\n".encode()
    if send_request is list_webdav:
        server.head += b'<D:multistatus xmlns:D="DAV:">'
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HibaliError) as refused:
        send_request(server)
    assert hibali_home
    assert refused.value.code in TOO_LONG, refused.value
    assert server.sent < 100 * 1024 * 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250 * 1024  # KiB
    assert len(server.seen) <= 2


@pytest.mark.heavy
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("send_request", [*LISTINGS, head_s3, hook])
@pytest.mark.parametrize("part", ["status", "headers", "body"])
def test_a_response_sent_byte_by_byte_times_out(
    server: EndlessServer, send_request: Callable[[EndlessServer], Any], part: str, hibali_home: Any
) -> None:
    """Each pause is shorter than the timeout of the socket."""
    if part == "body" and send_request is head_s3:
        pytest.skip("a response to HEAD has no body")
    if send_request is hook and part == "body":
        server.head = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"
    elif part == "body":
        status = b"207 Multi-Status" if send_request in {list_webdav, stat_webdav} else b"200 OK"
        server.head = b"HTTP/1.1 " + status + b"\r\nContent-Type: text/html\r\n\r\n"
        server.head += b'<D:multistatus xmlns:D="DAV:">' if b"207" in status else b""
    else:
        server.head = b"HTTP/1.1 200 O" if part == "status" else b"HTTP/1.1 200 OK\r\nX:"
    server.pieces, server.pause = drops, 0.05
    with pytest.raises(HibaliError) as refused:
        send_request(server)
    assert hibali_home
    assert (refused.value.code, refused.value.exit) == ("answer-too-slow", 5), refused.value
    assert len(server.seen) <= 2
    assert server.sent < 200, "more than ten seconds' bytes of responses that may take half a second"


@pytest.mark.heavy
@pytest.mark.parametrize("send_request", [page, document, globus, list_s3, stat_webdav])
def test_compressed_responses_are_limited_by_their_unpacked_size(
    server: EndlessServer, send_request: Callable[[EndlessServer], Any], hibali_home: Any
) -> None:
    status = b"207 Multi-Status" if send_request is stat_webdav else b"200 OK"
    server.head = b"HTTP/1.1 " + status + b"\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n"
    server.pieces = bomb
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HibaliError) as refused:
        send_request(server)
    assert hibali_home
    assert refused.value.code in TOO_LONG | {"encoded-answer"}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_error_bodies_are_not_read_to_their_end(server: EndlessServer, hibali_home: Any) -> None:
    server.head = b"HTTP/1.1 403 Forbidden\r\n\r\n<Error><Code>AccessDenied</Code>"
    for send_request in (list_s3, list_webdav, page, document):
        with pytest.raises(HibaliError) as refused:
            send_request(server)
        assert refused.value.code == "denied"
    assert hibali_home
    assert server.sent < 100 * 1024 * 1024


def test_an_object_is_read_no_further_than_it_is_long(server: EndlessServer, hibali_home: Any) -> None:
    """Test an endless range, and an object with a large declared size."""
    assert hibali_home
    for size, unit in ((10, None), (100_000_000, (0, 1000))):
        headers = "Content-Length: 100000000000\r\n"
        headers += "Content-Range: bytes 0-999/100000000\r\n" if unit else ""
        status = "206 Partial Content" if unit else "200 OK"
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


def test_a_redirect_to_another_host_is_not_followed(server: EndlessServer, hibali_home: Any) -> None:
    """hibali does not even connect to it: the address may be inside a private network."""
    assert hibali_home
    other = EndlessServer()
    server.head = (
        f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {other.origin}/x\r\nContent-Length: 0\r\n\r\n".encode()
    )
    server.pieces = lambda: iter(())
    senders = (
        list_s3,
        head_s3,
        list_webdav,
        stat_webdav,
        read_webdav,
        page,
        read_web,
        document,
        hook,
        globus,
    )
    for send_request in senders:
        with pytest.raises(HibaliError):
            send_request(server)
        assert other.seen == [], send_request
    other.close()
