"""A web server that takes a question and says nothing."""

from __future__ import annotations

import socket

import pytest

from hibali.errors import TryLaterError
from transfers.stores import url
from transfers.stores.url import Web


def test_a_server_that_falls_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url, "_SILENT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        web = Web(f"http://127.0.0.1:{silent.getsockname()[1]}/", "quiet")
        with pytest.raises(TryLaterError) as refused:
            web.get(b"large", length=1)
        web.close()
    assert (refused.value.code, refused.value.exit) == ("unreachable", 5)
