"""Test that a whole file that is read is as long as it was listed, and as its recorded digest says.

Each kind of store is read behind a proxy that damages the content.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.faulty_proxy import Exchange, FaultyHttpProxy
from tests.support.transfers import Transfers

CONTENT = random.Random(4).randbytes(1_000_001) * 9  # noqa: S311 - the same ones each time; several blocks
DAMAGES = [
    pytest.param(("s3", "halve_answer")),
    pytest.param(("s3", "flip_answer")),
    # its digests are in a manifest beside the data
    pytest.param(("webdav", "flip_answer"), marks=pytest.mark.heavy),
    *(pytest.param((word, "halve_answer"), marks=pytest.mark.heavy) for word in ("webdav", "ebrains")),
]


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


def test_a_damaged_whole_file_is_never_printed(damaged: Any) -> None:
    there, fault = damaged
    assert there.hibali("cat", "there:data/scan").out == CONTENT
    fault.active = True
    answer = there.hibali("cat", "there:data/scan")
    assert fault.done
    assert answer.exit in {5, 6}, str(answer)
    assert b"Traceback" not in answer.err
