"""Test limits on bytes and time for the responses of Globus (S23)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import globus_sdk
import pytest
from globus_sdk.transport import RetryConfig

from hibali_plugins.globus import clients
from hibali_plugins.globus.clients import limit_responses
from tests.support.endless_server import EndlessServer
from tests.support.response_limits import (
    FRAMINGS,
    PARTS,
    SMALL,
    check_compressed_answer,
    check_endless_answer,
    check_redirect,
    check_slow_answer,
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EndlessServer]:
    """Run a server with endless responses, and reduce the limit of sizes to 4 MiB."""
    monkeypatch.setattr(clients, "_MOST", SMALL)
    with closing(EndlessServer()) as made:
        yield made


def globus(server: EndlessServer) -> Any:
    client = globus_sdk.TransferClient(base_url=server.origin, retry_config=RetryConfig(max_retries=0))
    limit_responses(client)
    try:
        return client.get_task("00000000-0000-4000-8000-000000000000")
    finally:
        client.close()


@pytest.mark.parametrize("framing", FRAMINGS)
def test_an_endless_response_is_cut_off(server: EndlessServer, framing: str) -> None:
    check_endless_answer(server, globus, framing)


@pytest.mark.heavy
@pytest.mark.parametrize("part", PARTS)
def test_a_response_sent_byte_by_byte_times_out(
    server: EndlessServer, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_RESPONSE_SECONDS", 0.5)
    check_slow_answer(server, globus, part)


@pytest.mark.heavy
def test_compressed_responses_are_limited_by_their_unpacked_size(server: EndlessServer) -> None:
    check_compressed_answer(server, globus)


def test_a_redirect_to_another_host_is_not_followed(server: EndlessServer) -> None:
    check_redirect(server, globus)
