"""Test reading the record of a Jupyter server, which other programs of the account can write."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hibali.errors import RefusedError
from hibali_plugins.notebooks.server import NotebookServer, _read_server

RUN: Any = SimpleNamespace(reference="ID")
RECORD = {"port": 8888, "token": "0123456789abcdef", "base_url": "/", "pid": 1}


def test_a_record_is_read() -> None:
    server = _read_server(json.dumps(RECORD).encode(), RUN)
    assert server == NotebookServer(8888, "0123456789abcdef")
    assert server.address(5000) == "http://127.0.0.1:5000/?token=0123456789abcdef"


def test_an_incomplete_record_is_read_again_later() -> None:
    assert _read_server(json.dumps(RECORD).encode()[:-3], RUN) is None


@pytest.mark.parametrize(
    "change",
    [
        {"port": 0},
        {"port": "8888"},
        {"port": 70000},
        {"token": ""},
        {"token": "a\x1b[31mb0123456789abcdef"},
        {"base_url": "//evil.example/"},
        {"base_url": "@evil.example/"},
        {"base_url": None},
    ],
)
def test_a_hostile_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="invalid"):
        _read_server(json.dumps({**RECORD, **change}).encode(), RUN)


def test_a_record_that_is_no_object_is_refused() -> None:
    with pytest.raises(RefusedError):
        _read_server(b"[1]", RUN)
