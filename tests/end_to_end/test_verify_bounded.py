"""Test samples, time limits and resumed verifications of large trees."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.transfers import Transfers, at_agents, failed
from tests.support.trees import flip_byte, make_tree, many_files
from tests.support.waiting import wait_for

there = at_agents("s3")
folder_there = at_agents()

TREE = many_files(40, 300, folders=3)
ONE = b"folder 01/file-00001.dat"
LAST = b"~last"  # after all others


@pytest.fixture
def stocked(there: Transfers, tmp_path: Path) -> tuple[Transfers, Path]:
    """Return a site with the tree, and its manifest."""
    there.place.plant("data", TREE)
    there.hibali("manifest", "there:data", "-o", tmp_path / "SUMS", exit=0)
    return there, tmp_path / "SUMS"


def examined(receipt: dict[str, Any]) -> tuple[int, int, int]:
    return receipt["files_hashed"], receipt["files_recorded"], receipt["files_unchecked"]


def test_a_sample_reports_the_unchecked_files(stocked: tuple[Transfers, Path]) -> None:
    there, sums = stocked
    words = ("there:data", "--manifest", sums, "--sample")
    receipt = there.verify(*words, "10%").last
    assert (receipt["files"], receipt["files_kept"], examined(receipt)) == (40, 4, (4, 0, 36))
    assert receipt["proof_tree"] == "none", "36 files are not verified"
    seed = str(receipt["sample_seed"])
    message = there.hibali("verify", *words, "10%", "--seed", seed, exit=0).err.decode()
    assert f"--seed {seed}" in message
    assert "36 not verified" in message
    assert "A random sample of 4 of 40 files (10%) is correct. If 1% of all (1 file) were damaged" in message
    assert "with 10% probability" in message
    assert receipt["sample_of"] == 40
    whole = there.verify(*words, "40").last
    assert (examined(whole), whole["proof_tree"]) == ((40, 0, 0), "digest")


def test_the_same_seed_selects_the_same_sample(local_there: Transfers) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    for name in TREE:
        there.place.corrupt("data", name)
    answers = [there.verify("there:data", "--sample", "5", "--seed", seed, exit=6) for seed in "112"]
    drawn = [set(failed(answer)) for answer in answers]
    assert [len(names) for names in drawn] == [5, 5, 5]
    assert drawn[0] == drawn[1] != drawn[2]
    # a missing file is reported without hashing
    there.place.remove("data", ONE)
    assert failed(there.verify("there:data", "--sample", "1", exit=6))[ONE] == "missing"


def test_a_sample_of_two_locations(local_there: Transfers) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    receipt = there.verify(there.source, "there:data", "--sample", "25%").last
    assert (examined(receipt), receipt["proof_tree"]) == ((10, 0, 30), "none")


@pytest.mark.parametrize(
    "words", [("--sample", "0"), ("--sample", "101%"), ("--seed", "1"), ("--seed", "-1")]
)
def test_an_invalid_sample_is_a_usage_error(local_there: Transfers, words: tuple[str, ...]) -> None:
    local_there.verify("there:data", *words, exit=2)


def lengthen(there: Transfers, megabytes: int = 100) -> None:
    """Add a last file that takes long to hash: hours on a filesystem, a second in a bucket."""
    if there.place.word == "s3":
        there.place.plant("data", {LAST: bytes(megabytes * 1_000_000)})
        return
    with (there.root / os.fsdecode(LAST)).open("wb") as stream:
        stream.truncate(1 << 42)


def shorten(there: Transfers) -> None:
    there.place.plant("data", {LAST: b"short"})


def kept(there: Transfers) -> int:
    """Return the number of files that a stopped verification found unchanged."""
    state = there.hibali.home.state / "verify"
    return sum(file.read_bytes().count(b'"sha256"') for file in state.glob("*.jsonl"))


def kill_when_all_but_the_last_are_done(there: Transfers, *words: str | Path) -> None:
    for longer in (300, 900, 0):
        process = there.hibali.start("verify", *words)
        while kept(there) < len(TREE) and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            return
        # where this process got no CPU meanwhile, it ended before
        assert longer, "hashing ended too early"
        assert there.place.word == "s3", "hashing ended too early"
        lengthen(there, longer)


def test_a_killed_verification_is_resumed_for_unchanged_files(there: Transfers) -> None:
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    kill_when_all_but_the_last_are_done(there, "there:data")
    shorten(there)
    there.place.corrupt("data", ONE)  # without any other sign: size and mtime stay
    answer = there.verify("there:data", "--resume", exit=6)
    assert failed(answer) == {ONE: "differs"}
    assert examined(answer.last) == (2, 39, 0)
    # it was completed, so the next one starts from the beginning
    anew = there.verify("there:data", "--resume", exit=6)
    assert examined(anew.last) == (41, 0, 0)
    assert "no interrupted verification to resume" in str(anew)


def test_digests_of_a_resumed_verification_count_as_recorded(folder_there: Transfers) -> None:
    there = folder_there
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    kill_when_all_but_the_last_are_done(there, "there:data")
    shorten(there)
    receipt = there.verify("there:data", "--resume").last
    assert (receipt["files_kept"], examined(receipt)) == (41, (1, 40, 0))
    assert receipt["proof_tree"] == "recorded"
    # without --resume everything is hashed
    assert there.verify("there:data").last["proof_tree"] == "digest"


def test_a_comparison_of_two_locations_is_resumed(folder_there: Transfers) -> None:
    there = folder_there
    there.make(TREE)
    there.place.plant("data", TREE)
    for root in (there.source, there.root):
        with (root / os.fsdecode(LAST)).open("wb") as stream:
            stream.truncate(1 << 42)
    kill_when_all_but_the_last_are_done(there, there.source, "there:data")
    for root in (there.source, there.root):
        make_tree(root, {LAST: b"short"})
    flip_byte(there.source / os.fsdecode(ONE))
    answer = there.verify(there.source, "there:data", "--resume", exit=6)
    assert failed(answer) == {ONE: "differs"}
    assert examined(answer.last) == (2, 39, 0)


def test_another_request_is_not_resumed(local_there: Transfers) -> None:
    there = local_there
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    kill_when_all_but_the_last_are_done(there, "there:data")
    shorten(there)
    assert examined(there.verify("there:data/folder 01", "--resume").last)[1] == 0
    assert examined(there.verify("there:data", "--include", "/folder 01/", "--resume").last)[1] == 0
    assert examined(there.verify("there:data", "--sample", "100%", "--resume").last)[1] == 0
    assert examined(there.verify("there:data", "--resume").last) == (1, 40, 0)


@pytest.mark.heavy
def test_a_time_limit_exits_with_5_and_reports_the_progress(folder_there: Transfers) -> None:
    there = folder_there
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    for seconds in (3, 12, 48):  # the first limit that is enough to begin, on a busy machine
        answer = there.verify("there:data", "--max-time", f"{seconds}s", exit=5)
        if answer.last["kind"] == "receipt" and answer.last["files_hashed"]:
            break
    receipt = answer.last
    assert (receipt["files_kept"], examined(receipt), receipt["exit"]) == (40, (40, 0, 1), 5)
    assert receipt["proof_tree"] == "none"
    again = there.hibali("verify", "there:data", "--max-time", f"{seconds}s", "--resume", exit=5)
    assert b"40 hashed by an earlier verification" in again.err
    assert b"1 file not verified" in again.err
    shorten(there)
    assert examined(there.verify("there:data", "--resume").last) == (1, 40, 0)


def test_a_resumed_sample_keeps_its_seed(local_there: Transfers) -> None:
    there = local_there
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    kill_when_all_but_the_last_are_done(there, "there:data", "--sample", "41", "--seed", "7")
    shorten(there)
    receipt = there.verify("there:data", "--sample", "41", "--resume").last
    assert (receipt["sample_seed"], examined(receipt)) == (7, (1, 40, 0))


@pytest.mark.heavy
def test_an_interruption_stops_all_hashing_at_once(folder_there: Transfers) -> None:
    there = folder_there
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    large = there.root / os.fsdecode(LAST)
    seconds = (interrupt(there, large) for _ in range(3))  # a busy machine may take longer, but not each time
    assert any(took < 4.5 for took in seconds), "the command waited for a busy agent"


def interrupt(there: Transfers, large: Path) -> float:
    """Interrupt a verification that hashes the large file; return how long it took to end."""
    process = there.hibali.start("verify", "there:data")
    wait_for(lambda: process.poll() is not None or (kept(there) >= len(TREE) and is_open(large)))
    before = time.monotonic()
    process.terminate()
    assert process.wait(timeout=60) == 143
    took = time.monotonic() - before
    wait_for(lambda: not is_open(large))  # no agent hashes without a client
    return took


def is_open(wanted: Path) -> bool:
    """Return whether any process has the file open."""
    for process in Path("/proc").glob("[0-9]*"):
        files: list[Path] = []
        with contextlib.suppress(OSError):  # it has ended
            files = list((process / "fd").iterdir())
        for file in files:
            with contextlib.suppress(OSError):
                if file.readlink() == wanted:
                    return True
    return False
