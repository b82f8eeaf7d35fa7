"""Test that a whole file that is read is as long as it was listed, and as its recorded digest says.

Each kind of store is read behind a proxy that damages the content: from Python, through `hibali://`, and by `hibali cat`.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hibali as api
from hibali_plugins.filesystem.filesystem import HibaliFileSystem
from tests.support.faulty_proxy import Exchange, FaultyHttpProxy
from tests.support.transfers import Transfers

CONTENT = random.Random(4).randbytes(9_000_000)  # noqa: S311 - the same ones each time; several blocks
PIECE = 1_000_000
DAMAGES = [
    pytest.param(("s3", "halve_answer")),
    pytest.param(("s3", "flip_answer")),
    # its digests are in a manifest beside the data
    pytest.param(("webdav", "flip_answer"), marks=pytest.mark.heavy),
    *(pytest.param((word, "halve_answer"), marks=pytest.mark.heavy) for word in ("webdav", "ebrains")),
]
Read = Callable[[Transfers], bytes]


class Damage:
    """A fault of every answer that carries content of the file, once it is `active`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.active = False
        self.done = 0

    def __call__(self, exchange: Exchange) -> None:
        if self.active and exchange.method == "GET" and "scan" in exchange.target:
            self.done += 1
            setattr(exchange, self.kind, True)


@pytest.fixture(params=DAMAGES)
def damaged(
    request: pytest.FixtureRequest, transfers_to: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Transfers, Damage]]:
    """Return a site that has a file `data/scan` with a recorded digest, and the fault of the proxy before it."""
    word, kind = request.param
    there = transfers_to(word)
    for name, value in there.place.env.items():
        monkeypatch.setenv(name, value)
    there.make({b"scan": CONTENT})
    there.push()
    port = int(there.place.endpoint.rstrip("/").rpartition(":")[2].partition("/")[0])
    fault = Damage(kind)
    proxy = FaultyHttpProxy(port, fault)
    config = there.hibali.home.config
    config.write_text(config.read_text().replace(f"127.0.0.1:{port}", f"127.0.0.1:{proxy.port}"))
    yield there, fault
    proxy.close()


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
    assert there.hibali("cat", "there:data/scan").out == CONTENT
    fault.active = True
    for read in READS:
        before = fault.done
        with pytest.raises(OSError, match=r".") as problem:
            read(there)
        assert isinstance(problem.value, api.HibaliError)
        assert fault.done > before, read
    answer = there.hibali("cat", "there:data/scan")
    assert answer.exit in {5, 6}, str(answer)
    assert b"Traceback" not in answer.err
