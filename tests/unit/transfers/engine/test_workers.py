"""Test how many workers a transfer gets, how files are dealt out to them, and what crosses between the processes."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali import request_log
from hibali.config.model import Limits, SshSettings, local_site
from hibali.errors import AccessError
from hibali.events import ignore
from hibali.locations import Location
from hibali.subprocesses import Process
from hibali.workers import as_worker
from tests.support.payloads import file_entry, items_of
from transfers.engine.request import Request
from transfers.engine.routes import workers
from transfers.engine.routes.stream import StreamRoute
from transfers.engine.routes.worker import Job, Messages, Over, sent_item
from transfers.engine.routes.workers import count_workers, in_batches, share_of, suitable_workers
from transfers.model.store import IN_FLIGHT_BYTES, share_in_flight
from transfers.model.units import PACK_ITEMS, SEGMENT_BYTES, Item

TOGETHER = 1000
GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "size", "most", "expected"),
    [
        (1, 1, 16, 1),
        (4999, 0, 16, 1),
        (5000, 0, 16, 2),
        (1, GIB // 4, 16, 1),
        (8, GIB // 2, 16, 2),
        (50_000, 8 * GIB, 8, 8),
        (50_000, 8 * GIB, 1, 1),
    ],
)
def test_small_transfers_get_no_workers_and_large_ones_as_many_as_allowed(
    files: int, size: int, most: int, expected: int
) -> None:
    assert count_workers(files, size, most) == expected


@pytest.mark.parametrize(
    ("cores", "is_shared", "logins", "asked", "allowed", "expected"),
    [
        (1, False, 0, 0, 0, 0),
        (2, False, 0, 0, 0, 1),
        (4, False, 0, 0, 0, 2),
        (16, False, 0, 0, 0, 8),
        (128, False, 0, 0, 0, 8),
        (128, True, 0, 0, 0, 4),
        (16, False, 1, 0, 0, 2),
        (16, False, 3, 0, 0, 6),
        (2, True, 1, 12, 3, 12),
        (2, True, 1, 0, 12, 12),
        (64, False, 8, 0, 1, 1),
    ],
)
def test_workers_suit_the_machine_and_the_logins_unless_asked_or_limited(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    is_shared: bool,
    logins: int,
    asked: int,
    allowed: int,
    expected: int,
) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: cores)
    monkeypatch.setattr(workers, "is_shared_machine", lambda: is_shared)
    here = Location(local_site(), "/data", "/data")
    site = replace(local_site(), limits=Limits(workers=allowed))
    if logins:
        site = replace(site, ssh=SshSettings(host="there", logins=logins))
    request = Request("push", here, Location(site, "/data", "there:/data"), workers=asked)
    assert (request.asked_workers or suitable_workers(request)) == expected


def test_workers_of_an_object_store_are_fewer_and_share_the_bytes_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All together must need less than 400 MB."""
    monkeypatch.setattr(workers, "usable_cores", lambda: 64)
    monkeypatch.setattr(workers, "is_shared_machine", lambda: False)
    here, bucket = (
        Location(local_site(), "/data", "/data"),
        Location(local_site(), "data", "b:data", bucket="bucket"),
    )
    for ends in ((here, bucket), (bucket, here)):
        assert suitable_workers(Request("push", *ends)) == 4
    assert share_in_flight() == IN_FLIGHT_BYTES
    with as_worker(0, 2):
        assert share_in_flight() == IN_FLIGHT_BYTES // 2
    with as_worker(63, 64):
        assert share_in_flight() == SEGMENT_BYTES


@pytest.mark.parametrize("asked", [False, True])
def test_no_workers_start_unasked_beside_further_channels(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """Over a long line both would need more sessions than an sshd allows."""
    shared = MagicMock(side_effect=InterruptedError)
    far = MagicMock(several_channels=True, share_writing=shared)
    monkeypatch.setattr(StreamRoute, "_transfer", lambda *_: iter(()))
    here = Location(local_site(), "/data", "/data")
    route = workers.WorkersRoute(Job(here, here, None, attributes=False, rate=0), 8, 0, ignore, asked=asked)
    route.open(MagicMock(kinds_changed=0, bytes_to_move=GIB, moves=MagicMock(count=4)))
    with pytest.raises(InterruptedError) if asked else nullcontext():
        list(route.carry(far, far, []))
    assert shared.called is asked


@given(st.lists(st.integers(0, 3 * TOGETHER), max_size=600))
def test_batches_have_all_files_once_and_large_files_alone(sizes: list[int]) -> None:
    items = items_of([file_entry(b"%d" % number, b"1" * size) for number, size in enumerate(sizes)])
    batches = list(in_batches(iter(items), TOGETHER))
    assert sorted(item.number for batch in batches for item in batch) == list(range(len(sizes)))
    for batch in batches:
        assert 0 < len(batch) <= PACK_ITEMS
        assert len(batch) == 1 or sum(item.entry.size for item in batch) <= TOGETHER
        assert [item.number for item in batch] == sorted(item.number for item in batch)


def test_workers_share_the_rate_and_the_connections_of_a_site() -> None:
    site = replace(local_site(), limits=Limits(bandwidth=1000, connections=6))
    place = Location(site, "/data", "here:/data")
    own = share_of(Job(place, place, None, attributes=False, rate=1000), 4)
    limits = own.target.site.limits
    assert (own.rate, own.workers, limits.bandwidth, limits.connections) == (250, 4, 250, 1)
    free = replace(place, site=local_site())
    none = share_of(Job(free, free, None, attributes=False, rate=0), 4)
    assert (none.rate, none.source.site.limits.connections) == (0, 0)


def test_items_and_errors_cross_unchanged() -> None:
    one, other = os.pipe()
    with os.fdopen(one, "rb", buffering=0) as reading, os.fdopen(other, "wb", buffering=0) as writing:
        messages = Messages(reading, writing)
        item = items_of([file_entry(b"\xff name", b"content")])[0]
        messages.send([sent_item(item)])
        assert [Item(*fields) for fields in messages.receive()] == [item]
        messages.send(AccessError("denied", "no", subject="a", hint="b"))
        found = messages.receive()
        assert (type(found), found.to_record()) == (
            AccessError,
            AccessError("denied", "no", subject="a", hint="b").to_record(),
        )
        writing.close()
        with pytest.raises(EOFError):
            messages.receive()


@pytest.mark.parametrize("logs", [False, True])
def test_a_worker_reports_its_requests_where_these_are_logged(tmp_path: Path, logs: bool) -> None:
    here = Location(local_site(), str(tmp_path), "here")
    worker = Process([sys.executable, "-P", "-c", workers._PROGRAM])
    messages = Messages(worker.stdout, worker.stdin)
    messages.send(Job(here, here, None, attributes=False, rate=0, logs=logs))
    found = [messages.receive()]
    while not isinstance(found[-1], Over):  # no ticket lets it join a transfer
        found.append(messages.receive())
    assert worker.end() == 0
    assert any(str(each).startswith("program  ") for each in found) is logs


def test_a_line_of_a_worker_is_logged_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(request_log, "_sinks", [lines.append])
    sent = ["request  GET token=PLANTED", Over(left=False, wire_bytes=0, slowed=False, problem=None)]
    worker = MagicMock(_messages=MagicMock(receive=MagicMock(side_effect=[*sent, EOFError])))
    workers._Worker._listen(worker)
    assert lines == ["request  GET token=***"]
    assert [call.args[0][1] for call in worker._all.put.call_args_list] == [sent[1], None]
