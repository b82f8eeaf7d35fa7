"""Test limits on bytes and time for the responses of the data proxy (S23)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hibali_plugins.ebrains import objects, requests
from hibali_plugins.ebrains.requests import DataProxy
from hibali_plugins.ebrains.settings import EbrainsSettings
from hibali_plugins.ebrains.store import Bucket
from tests.support.endless_server import EndlessServer
from tests.support.response_limits import (
    FRAMINGS,
    OK,
    PARTIAL,
    PARTS,
    SMALL,
    SendRequest,
    check_endless_answer,
    check_slow_answer,
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, hibali_home: Any) -> Iterator[EndlessServer]:
    """Run a server with endless responses, and reduce the limit of a page to 4 MiB."""
    assert hibali_home
    monkeypatch.setattr(objects, "_MOST_PAGE", SMALL)
    with closing(EndlessServer()) as made:
        yield made


def list_ebrains(server: EndlessServer) -> Any:
    with closing(DataProxy(EbrainsSettings(bucket="b", url=server.origin), "lab")) as proxy:
        return list(Bucket(proxy).pages(b""))


def read_ebrains(server: EndlessServer) -> Any:
    with closing(DataProxy(EbrainsSettings(bucket="b", url=server.origin), "lab")) as proxy:
        proxy._presigned = lambda *_: f"{server.origin}/x"
        return Bucket(proxy).get(b"x", offset=0, length=1000)


@pytest.mark.parametrize(("send_request", "status"), [(list_ebrains, OK), (read_ebrains, PARTIAL)])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_an_endless_response_is_cut_off(
    server: EndlessServer, send_request: SendRequest, status: str, framing: str
) -> None:
    check_endless_answer(server, send_request, framing, status)


@pytest.mark.heavy
@pytest.mark.parametrize("part", PARTS)
def test_a_response_sent_byte_by_byte_times_out(
    server: EndlessServer, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_RESPONSE_SECONDS", 0.5)
    check_slow_answer(server, list_ebrains, part)
