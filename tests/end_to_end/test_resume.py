"""Test that an interrupted large file is resumed, after a check of the part that exists."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers, counts
from tests.support.trees import flip_byte, random_bytes
from tests.support.waiting import wait_for

MIB = 1 << 20
IN_FLIGHT = 64 * MIB  # the maximum amount of data that an interruption may repeat


def large() -> bytes:
    """Return the content of a large file."""
    return random_bytes(7, 96 * MIB)


def kill_half_way(there: Transfers, at_least: int, *words: str) -> None:
    """Kill a push with SIGKILL once that many bytes are recorded at the target, and wait for the end of its agent.

    The push is slow, so that it is not complete by then.
    """
    process = there.hibali.start("push", there.source, "there:data", "--bwlimit", "40M", *words)
    agent = 0
    try:
        deadline = time.monotonic() + 60
        while recorded_bytes(there.root) < at_least:
            assert process.poll() is None, "the push was too fast"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        agent = json.loads((there.root / ".hibali" / "lock").read_bytes())["pid"]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wait_for(lambda: _has_ended(agent))


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended; one that was not waited for is still listed, without arguments."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def recorded_bytes(root: Path) -> int:
    """Return how many bytes of its only file the target's journal records."""
    try:
        lines = [json.loads(line) for line in (root / ".hibali" / "begun").read_bytes().splitlines()]
    except (FileNotFoundError, ValueError):
        return 0
    return max((line.get("to", 0) for line in lines), default=0)


def push_again(there: Transfers) -> Any:
    """Repeat the command as soon as the lock of the killed push is released."""
    deadline = time.monotonic() + 30
    while True:
        answer = there.hibali("push", there.source, "there:data", "--json")
        if answer.exit != 5 or time.monotonic() > deadline:
            assert answer.exit == 0, str(answer)
            return answer


@pytest.mark.heavy
def test_the_space_of_the_received_part_is_not_needed_again(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"deep/large": large()})
    with small_filesystem(
        there.root, "size=120m"
    ):  # the file has 96 MiB: less than that is free after the kill
        kill_half_way(there, 40 * MIB)
        assert counts(push_again(there))["files_moved"] == 1
        assert there.committed_files() == {b"deep/large": large()}
        there.check_no_own_files()


def test_the_same_command_sends_only_the_rest(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"deep/large": large()})
    kill_half_way(there, 40 * MIB)
    assert there.committed_files() == {}
    there_already = recorded_bytes(there.root)
    answer = push_again(there)
    assert counts(answer)["files_moved"] == 1
    assert there.there() == {b"deep/large": large()}
    there.check_no_own_files()
    if there.place.word == "ssh":
        assert counts(answer)["bytes_sent"] <= len(large()) - there_already + MIB


def test_data_damaged_meanwhile_is_sent_again(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"large": large()})
    kill_half_way(there, 40 * MIB)
    [partial] = there.place.unfinished("data")
    with (there.root / os.fsdecode(partial)).open("r+b") as stream:
        stream.seek(20 * MIB)
        stream.write(b"damaged")
    answer = push_again(there)
    assert there.there() == {b"large": large()}
    assert answer.last["proof_moved"] == "digest"
    there.check_no_own_files()


@pytest.mark.parametrize("keeps_times", [pytest.param(False, marks=pytest.mark.heavy), True])
def test_a_source_that_changed_meanwhile_is_never_mixed_with_its_old_part(
    folder_there: Transfers, keeps_times: bool
) -> None:
    there = folder_there
    there.make({b"large": large()})
    kill_half_way(there, 40 * MIB)
    source = there.source / "large"
    before = source.stat()
    flip_byte(source)
    content = source.read_bytes()
    if keeps_times:
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    push_again(there)
    assert there.there() == {b"large": content}
    there.check_no_own_files()


def test_a_partial_file_that_others_replaced_is_not_used(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"large": large()})
    kill_half_way(there, 40 * MIB)
    [partial] = there.place.unfinished("data")
    outside = there.folder / "outside"
    outside.write_bytes(b"somebody's")
    path = there.root / os.fsdecode(partial)
    path.unlink()
    path.symlink_to(outside)
    push_again(there)
    assert there.there() == {b"large": large()}
    assert outside.read_bytes() == b"somebody's"


def test_an_interruption_keeps_the_partial_file(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"large": large()})
    process = there.hibali.start("push", there.source, "there:data", "--json")
    while recorded_bytes(there.root) < 40 * MIB and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) in {0, 130}
    answer = push_again(there)
    assert there.there() == {b"large": large()}
    there.check_no_own_files()
    if there.place.word == "ssh" and process.returncode == 130:
        assert counts(answer)["bytes_sent"] < len(large()) - 32 * MIB


def test_a_sparse_file_resumes_and_keeps_its_holes(folder_there: Transfers) -> None:
    there = folder_there
    path = there.make({b"small": b"1"}) / "large"
    with path.open("wb") as stream:
        stream.write(large()[: 16 * MIB])
        stream.seek(64 * MIB)
        stream.write(large()[: 32 * MIB])
        stream.truncate(160 * MIB)
    kill_half_way(there, 40 * MIB)
    push_again(there)
    assert (there.root / "large").read_bytes() == path.read_bytes()
    assert (there.root / "large").stat().st_blocks * 512 < 56 * MIB
    there.check_no_own_files()
