"""Test that an answer that broke off and a proxy that failed are named as such by the clients of the core."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from hibali.config.model import S3Settings, Site
from hibali.errors import HibaliError
from hibali.http.client import HttpClient
from hibali.http.fetch import fetch
from hibali.locations import Location
from tests.services.processes import free_port
from tests.support.scripted_server import ScriptedServer
from transfers.stores.s3 import requests
from transfers.stores.s3.kind import open_store
from transfers.stores.s3.store import S3Store
from transfers.stores.server.web import Web

TRUNCATED = {"Content-Length": "100", "ETag": '"e"', "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}


@pytest.fixture
def server(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> ScriptedServer:
    monkeypatch.setattr(requests, "_ATTEMPTS", 1)
    server.respond = lambda *_: (200, TRUNCATED, b"x" * 50)
    return server


@pytest.fixture
def bucket(server: ScriptedServer, hibali_home: Any) -> Callable[[], S3Store]:
    """Return a function that opens a bucket at the server."""
    assert hibali_home
    site = Site("lab", "s3", s3=S3Settings(server.url, bucket="b", anonymous=True))
    return lambda: open_store(Location(site, "root", "lab:root", bucket="b"))


def test_an_answer_that_broke_off_is_not_an_unreachable_server(
    server: ScriptedServer, bucket: Callable[[], S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hibali.http.rest.with_retries", lambda attempt, **_: attempt())
    store, web = bucket(), Web(server.url + "/", "lab")
    with closing(store), closing(HttpClient(server.url, "lab")) as client:
        acts: dict[str, Callable[[], object]] = {
            "s3": lambda: store.requests.request("GET", b"root/a"),
            "obstore": lambda: store._bulk.get(b"root/a", most=100),
            "http": lambda: client.request("GET", "/a"),
            "web": lambda: web.get(b"a"),
        }
        for word, act in acts.items():
            with pytest.raises(HibaliError) as caught:
                act()
            assert (caught.value.code, caught.value.transient) == ("connection-lost", True), word
            assert "before the server's answer was complete" in caught.value.message


def test_a_proxy_that_cannot_be_reached_is_named(
    server: ScriptedServer, bucket: Callable[[], S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://me:planted-secret@127.0.0.1:{port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("hibali.http.fetch.with_retries", lambda attempt, **_: attempt())
    with closing(bucket()) as store:
        acts: dict[str, Callable[[], object]] = {
            "s3": lambda: store.requests.request("GET", b"root/a"),
            "obstore": lambda: store._bulk.get(b"root/a", most=100),
            "fetch": lambda: fetch(server.url + "/a", frozenset({server.url}), 100),
        }
        for word, act in acts.items():
            with pytest.raises(HibaliError) as caught:
                act()
            assert f"the proxy 127.0.0.1:{port} failed" in caught.value.message, word
            assert "planted-secret" not in caught.value.message
            assert "HTTPS_PROXY" in caught.value.hint
    assert server.seen == []
