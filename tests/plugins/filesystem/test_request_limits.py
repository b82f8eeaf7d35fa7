"""Test that a file that Python opens in a real object store takes a turn for each request."""

from __future__ import annotations

from typing import Any

import hibali as api
from tests.end_to_end.test_request_limits import LARGE, MIB
from tests.support.faulty_proxy import FaultyHttpProxy


def test_a_file_that_python_opens_takes_a_turn_for_each_request(
    hibali: Any, proxy: FaultyHttpProxy, turns: list[None]
) -> None:
    config = hibali.home.config
    with api.open("bucket:t/d/7", "wb", config=config) as file:
        file.write(LARGE)
    with api.open("bucket:t/d/7", config=config) as file:
        file.seek(5 * MIB + 7)
        assert file.read(9) == LARGE[7:16]
    assert len(turns) == len(proxy.exchanges)
