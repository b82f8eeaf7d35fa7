"""Test what a transfer knows of the partial files that its agents leave when their connections are lost."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hibali.errors import TryLaterError
from hibali.subprocesses import Process
from tests.support.waiting import wait_for
from transfers.agent.protocol import has_partial_shape
from transfers.model.entry import Entry, Kind
from transfers.model.units import SEGMENT_BYTES, Item, Payload, Unit
from transfers.pipeline.channel_pool import no_channels
from transfers.pipeline.receiving import ReceiverStream
from transfers.remote.connection import Connection, local_command


def test_the_partial_of_a_large_file_is_known_after_its_agent_is_lost(tmp_path: Path) -> None:
    """A further channel can create it when the first one, which would record it, is lost already."""
    size = 2 * SEGMENT_BYTES
    item = Item(0, Entry(b"large", Kind.FILE, size, 1, 0o644))
    connection = Connection(Process(local_command(sys.executable)), "there")
    connection.request("open", path=str(tmp_path), make=False)
    connection.request("lock", operation="push", client="me", lease=60)
    stream = ReceiverStream(connection, no_channels(), os.fsencode(tmp_path))

    def payloads() -> Iterator[Payload]:
        unit = Unit((item,), 0, SEGMENT_BYTES, segment=True)
        yield Payload(unit, b"1" * SEGMENT_BYTES, [SEGMENT_BYTES], [None])
        wait_for(lambda: bool(partials_in(tmp_path)))
        os.kill(
            connection.process["pid"], signal.SIGKILL
        )  # one that is asked to end may answer before it does

    with pytest.raises(TryLaterError):
        list(stream.run(payloads()))
    connection.close()
    assert len(stream.partials()) == 1
    assert stream.partials() == partials_in(tmp_path)


def partials_in(folder: Path) -> list[bytes]:
    return [name for name in (os.fsencode(each.name) for each in folder.iterdir()) if has_partial_shape(name)]
