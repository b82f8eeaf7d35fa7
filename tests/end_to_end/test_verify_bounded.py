"""Trees that take too long to hash at once: a sample, a limit of time, and going on from there."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.transfers import Transfers, failed
from tests.support.trees import flip_byte, make_tree, many_files

TREE = many_files(40, 300, folders=3)
ONE = b"folder 01/file-00001.dat"
LAST = b"~last"  # behind all others


@pytest.fixture
def stocked(there: Transfers, tmp_path: Path) -> tuple[Transfers, Path]:
    """The tree there, and its manifest."""
    there.place.plant("data", TREE)
    there.hibali("manifest", "there:data", "-o", tmp_path / "SUMS", exit=0)
    return there, tmp_path / "SUMS"


def looked(receipt: dict[str, Any]) -> tuple[int, int, int]:
    return receipt["files_hashed"], receipt["files_recorded"], receipt["files_unchecked"]


def test_a_sample_says_what_it_did_not_look_at(stocked: tuple[Transfers, Path]) -> None:
    there, sums = stocked
    words = ("there:data", "--manifest", sums, "--sample")
    receipt = there.verify(*words, "10%").last
    assert (receipt["files"], receipt["files_kept"], looked(receipt)) == (40, 4, (4, 0, 36))
    assert receipt["proof_tree"] == "none", "36 files are not proven"
    seed = str(receipt["sample_seed"])
    told = there.hibali("verify", *words, "10%", "--seed", seed, exit=0).err.decode()
    assert f"--seed {seed}" in told
    assert "36 not verified" in told
    whole = there.verify(*words, "40").last
    assert (looked(whole), whole["proof_tree"]) == ((40, 0, 0), "digest")


def test_the_same_seed_finds_the_same(local_there: Transfers) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    for name in TREE:
        there.place.corrupt("data", name)
    answers = [there.verify("there:data", "--sample", "5", "--seed", seed, exit=6) for seed in "112"]
    drawn = [set(failed(answer)) for answer in answers]
    assert [len(names) for names in drawn] == [5, 5, 5]
    assert drawn[0] == drawn[1] != drawn[2]
    # a file that is missing needs no hashing to be named
    there.place.remove("data", ONE)
    assert failed(there.verify("there:data", "--sample", "1", exit=6))[ONE] == "missing"


def test_a_sample_of_two_places(local_there: Transfers) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    receipt = there.verify(there.source, "there:data", "--sample", "25%").last
    assert (looked(receipt), receipt["proof_tree"]) == ((10, 0, 30), "none")


@pytest.mark.parametrize(
    "words", [("--sample", "0"), ("--sample", "101%"), ("--seed", "1"), ("--seed", "-1")]
)
def test_no_sample_is_2(local_there: Transfers, words: tuple[str, ...]) -> None:
    local_there.verify("there:data", *words, exit=2)


def lengthen(there: Transfers) -> None:
    """A last file that takes long: hours for a filesystem, a second for a bucket."""
    if there.place.word == "s3":
        there.place.plant("data", {LAST: bytes(100_000_000)})
        return
    with (there.root / os.fsdecode(LAST)).open("wb") as stream:
        stream.truncate(1 << 42)


def shorten(there: Transfers) -> None:
    there.place.plant("data", {LAST: b"short"})


def kept(there: Transfers) -> int:
    """How many files a stopped verification has found good."""
    state = there.hibali.home.state / "verify"
    return sum(file.read_bytes().count(b'"sha256"') for file in state.glob("*.jsonl"))


def kill_when_all_but_the_last_are_done(there: Transfers, *words: str | Path) -> None:
    process = there.hibali.start("verify", *words)
    while kept(there) < len(TREE):
        assert process.poll() is None, "it should take longer"
        time.sleep(0.005)
    process.kill()
    process.wait()


def test_a_killed_one_goes_on_with_what_is_unchanged(there: Transfers) -> None:
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    kill_when_all_but_the_last_are_done(there, "there:data")
    shorten(there)
    there.place.corrupt("data", ONE)  # behind its back: size and mtime stay
    answer = there.verify("there:data", "--resume", exit=6)
    assert failed(answer) == {ONE: "differs"}
    assert looked(answer.last) == (2, 39, 0)
    # it reached its end, so the next one begins anew
    anew = there.verify("there:data", "--resume", exit=6)
    assert looked(anew.last) == (41, 0, 0)
    assert "nothing to go on from" in str(anew)


def test_what_an_earlier_call_hashed_is_no_digest_of_this_one(folder_there: Transfers) -> None:
    there = folder_there
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    kill_when_all_but_the_last_are_done(there, "there:data")
    shorten(there)
    receipt = there.verify("there:data", "--resume").last
    assert (receipt["files_kept"], looked(receipt)) == (41, (1, 40, 0))
    assert receipt["proof_tree"] == "recorded"
    # and without --resume everything is hashed
    assert there.verify("there:data").last["proof_tree"] == "digest"


def test_two_places_go_on_where_neither_changed(folder_there: Transfers) -> None:
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
    assert looked(answer.last) == (2, 39, 0)


def test_another_question_goes_on_from_nothing(local_there: Transfers) -> None:
    there = local_there
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    kill_when_all_but_the_last_are_done(there, "there:data")
    shorten(there)
    assert looked(there.verify("there:data/folder 01", "--resume").last)[1] == 0
    assert looked(there.verify("there:data", "--include", "/folder 01/", "--resume").last)[1] == 0
    assert looked(there.verify("there:data", "--sample", "100%", "--resume").last)[1] == 0
    assert looked(there.verify("there:data", "--resume").last) == (1, 40, 0)


def test_a_limit_of_time_ends_it_with_5_and_says_how_far_it_came(folder_there: Transfers) -> None:
    there = folder_there
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    for seconds in (3, 12, 48):  # the first that is enough to begin with, on a busy machine
        answer = there.verify("there:data", "--max-time", f"{seconds}s", exit=5)
        if answer.last["kind"] == "receipt" and answer.last["files_hashed"]:
            break
    receipt = answer.last
    assert (receipt["files_kept"], looked(receipt), receipt["exit"]) == (40, (40, 0, 1), 5)
    assert receipt["proof_tree"] == "none"
    again = there.hibali("verify", "there:data", "--max-time", f"{seconds}s", "--resume", exit=5)
    assert b"40 hashed by an earlier verification" in again.err
    assert b"1 file not verified" in again.err
    shorten(there)
    assert looked(there.verify("there:data", "--resume").last) == (1, 40, 0)


def test_a_sample_goes_on_with_its_seed(local_there: Transfers) -> None:
    there = local_there
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    kill_when_all_but_the_last_are_done(there, "there:data", "--sample", "41", "--seed", "7")
    shorten(there)
    receipt = there.verify("there:data", "--sample", "41", "--resume").last
    assert (receipt["sample_seed"], looked(receipt)) == (7, (1, 40, 0))


def test_an_interrupted_one_ends_at_once_and_leaves_nobody_hashing(folder_there: Transfers) -> None:
    there = folder_there
    there.make({**TREE, LAST: b"short"})
    there.push()
    lengthen(there)
    process = there.hibali.start("verify", "there:data")
    while kept(there) < len(TREE):
        assert process.poll() is None
        time.sleep(0.005)
    large = there.root / os.fsdecode(LAST)
    assert is_open(large)
    before = time.monotonic()
    process.terminate()
    assert process.wait(timeout=30) == 143
    assert time.monotonic() - before < 4.5, "a busy agent was waited for"
    deadline = time.monotonic() + 20
    while is_open(large):
        assert time.monotonic() < deadline, "an agent still hashes for nobody"
        time.sleep(0.05)


def is_open(wanted: Path) -> bool:
    """Whether any process has that file open."""
    for process in Path("/proc").glob("[0-9]*"):
        files: list[Path] = []
        with contextlib.suppress(OSError):  # it has ended
            files = list((process / "fd").iterdir())
        for file in files:
            with contextlib.suppress(OSError):
                if file.readlink() == wanted:
                    return True
    return False
