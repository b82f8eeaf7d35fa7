"""Test that a whole file that Python reads is as long as it was listed, and as its recorded digest says."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

import hibali as api
from hibali_plugins.filesystem.filesystem import HibaliFileSystem
from tests.end_to_end.test_damaged_answers import CONTENT
from tests.support.transfers import Transfers

PIECE = 1_000_000


def _filesystem(there: Transfers) -> HibaliFileSystem:
    return HibaliFileSystem(str(there.hibali.home.config), skip_instance_cache=True)


def _open(there: Transfers) -> Any:
    return api.open("there:data/scan", config=there.hibali.home.config)


def read_opened(there: Transfers) -> bytes:
    with _open(there) as file:
        return file.read()


def read_in_pieces(there: Transfers) -> bytes:
    with _open(there) as file:
        return b"".join(iter(lambda: file.read(PIECE), b""))


def read_by_fsspec(there: Transfers) -> bytes:
    return _filesystem(there).cat_file("there/data/scan")


def read_with_others(there: Transfers) -> bytes:
    whole, start = _filesystem(there).cat_ranges(["there/data/scan"] * 2, [0, 0], [None, 5], on_error="raise")
    assert whole.startswith(start)
    return whole


def fetch(there: Transfers) -> bytes:
    target = there.folder / secrets.token_hex(8)
    _filesystem(there).get_file("there/data/scan", str(target))
    return target.read_bytes()


READS = (read_opened, read_in_pieces, read_by_fsspec, read_with_others, fetch)


def test_a_damaged_whole_file_is_never_returned(damaged: Any) -> None:
    there, fault = damaged
    assert [read(there) == CONTENT for read in READS] == [True] * len(READS)
    fault.active = True
    for read in READS:
        before = fault.done
        with pytest.raises(OSError, match=r".") as problem:
            read(there)
        assert isinstance(problem.value, api.HibaliError)
        assert fault.done > before, read
