"""Test direct transfers between two agents, and failures in transit."""

from __future__ import annotations

import os
import secrets
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hibali.errors import TryLaterError, UsageError
from hibali.subprocesses import Process
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.units import Committed, Item, Unit
from transfers.pipeline.batches import group_units
from transfers.pipeline.third_party import DirectReceiver
from transfers.remote.connection import Connection, local_command, opening

MIB = 1 << 20
AGENT = local_command(sys.executable)
# Runs an agent; after this many bytes sent to it, changes one byte or ends.
BETWEEN = """
import os, subprocess, sys
agent = subprocess.Popen(sys.argv[3:], stdin=subprocess.PIPE)
left = int(sys.argv[2])
while True:
    content = bytearray(os.read(0, 65536))
    if not content:
        break
    if 0 <= left < len(content):
        if sys.argv[1] == "end":
            break
        content[left] ^= 1
    left -= len(content)
    agent.stdin.write(content)
    agent.stdin.flush()
"""


def between(act: str, behind: int) -> list[str]:
    return [sys.executable, "-c", BETWEEN, act, str(behind), *AGENT]


class Pair:
    """An agent at `source` connected to one at `target`; a third agent holds the lock of `target`."""

    def __init__(self, folder: Path, argv: list[str]) -> None:
        self.source, self.target = folder / "source", folder / "target"
        for made in (self.source, self.target):
            made.mkdir()
        self.connection = Connection(Process(AGENT), "there")
        self.connection.request("open", path=str(self.source), make=False)
        nonce = secrets.token_hex(16)
        packed = b64encode(opening(nonce)).decode("ascii")
        self.reached = self.connection.request("start_relay", words=argv, opening=packed, nonce=nonce).header
        self.lock_holder = Connection(Process(AGENT), "keeper")
        header = {"operation": "sync", "client": "me", "lease": 60}
        self.lock_holder.request("open", path=str(self.target), make=False)
        self.token = self.lock_holder.request("lock", **header).header["token"]

    def transfer(self, contents: dict[str, bytes], token: str | None = None) -> list[Committed]:
        receiver = DirectReceiver(
            self.connection,
            os.fsencode(self.target),
            token or self.token,
            required=True,
            read_as=None,
            passed=lambda _: None,
        )
        units: Iterator[Unit] = group_units(self.items(contents), lambda: 4 * MIB, receiver.begun)
        return list(receiver.run(units))

    def items(self, contents: dict[str, bytes]) -> Iterator[Item]:
        for number, (name, content) in enumerate(contents.items()):
            path = self.source / name
            path.write_bytes(content)
            status = path.stat()
            entry = Entry(name.encode(), Kind.FILE, status.st_size, status.st_mtime_ns, status.st_mode)
            yield Item(number, entry)

    def close(self) -> None:
        self.connection.close()
        self.lock_holder.close()


@pytest.fixture
def pair_over(tmp_path: Path) -> Iterator[Callable[[list[str]], Pair]]:
    opened: list[Pair] = []

    def open_pair(argv: list[str]) -> Pair:
        opened.append(Pair(tmp_path, argv))
        return opened[-1]

    yield open_pair
    for pair in opened:
        pair.close()


def test_transfer_small_and_large_files_twice_over_one_connection(
    pair_over: Callable[[list[str]], Pair],
) -> None:
    pair = pair_over(AGENT)
    contents = {"a": b"1", "b": b"", "large": os.urandom(9 * MIB + 1)}
    for _ in range(2):
        found = pair.transfer(contents)
        assert {one.item.entry.path.decode() for one in found} == set(contents)
        assert all(one.verification is Verification.DIGEST and one.problem is None for one in found)
        assert {path.name: path.read_bytes() for path in pair.target.iterdir() if path.is_file()} == contents


@pytest.mark.parametrize("behind", [600_000, 10 * MIB])
def test_data_corrupted_in_transit_is_not_committed(
    pair_over: Callable[[list[str]], Pair], behind: int
) -> None:
    pair = pair_over(between("flip", behind))
    found = pair.transfer({"small": os.urandom(2 * MIB), "large": os.urandom(9 * MIB)})
    wrong = {one.item.entry.path: one.problem for one in found if one.problem}
    assert wrong.keys() == {b"large" if behind < MIB else b"small"}
    assert all(
        problem and (problem.code, problem.retryable) == ("corrupt", True) for problem in wrong.values()
    )
    assert not any((pair.target / name.decode()).exists() for name in wrong)


def test_reject_target_without_the_lock(pair_over: Callable[[list[str]], Pair]) -> None:
    pair = pair_over(AGENT)
    with pytest.raises(UsageError, match="not the target"):
        pair.transfer({"a": b"1"}, token="of another client")
    assert not (pair.target / "a").exists()


def test_report_source_that_changed_since_listing(pair_over: Callable[[list[str]], Pair]) -> None:
    pair = pair_over(AGENT)
    contents = {"small": b"1", "large": bytes(9 * MIB), "same": b"2"}
    items = list(pair.items(contents))
    for name in ("small", "large"):
        (pair.source / name).write_bytes(b"another")
    receiver = DirectReceiver(
        pair.connection,
        os.fsencode(pair.target),
        pair.token,
        required=True,
        read_as=None,
        passed=lambda _: None,
    )
    found = {one.item.entry.path: one.problem for one in receiver.run(group_units(items, lambda: 4 * MIB))}
    assert {name for name, problem in found.items() if problem and problem.code == "source-changed"} == {
        b"small",
        b"large",
    }
    assert {path.name for path in pair.target.iterdir() if path.is_file()} == {"same"}


def test_lost_connection_ends_the_transfer(pair_over: Callable[[list[str]], Pair]) -> None:
    """The program in between ends after this many bytes."""
    with pytest.raises(TryLaterError):
        pair_over(between("end", 3 * MIB)).transfer({"large": os.urandom(9 * MIB)})


def test_report_why_the_other_agent_did_not_start(pair_over: Callable[[list[str]], Pair]) -> None:
    argv = ["sh", "-c", "cat > /dev/null & echo no way >&2; exit 255"]
    assert pair_over(argv).reached == {"reached": False, "status": 255, "errors": "no way"}
