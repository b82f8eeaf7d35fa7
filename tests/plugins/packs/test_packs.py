"""Test packs: few names at the target, all files back, nothing sent twice, and damage detected."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hibali as api
from tests.end_to_end.test_one_session import add_site as add_single_session
from tests.end_to_end.test_one_session import check_commands
from tests.end_to_end.test_overlap import TREE as OVERLAPPING
from tests.end_to_end.test_overlap import refused
from tests.end_to_end.test_renamed_folders import moved_away, once
from tests.end_to_end.test_times import TREE as TIMES
from tests.end_to_end.test_times import times_of
from tests.support.agent_signals import wait_for_agent_exit
from tests.support.backends import PARTIAL
from tests.support.transfers import STORES, Transfers, actions, counts, failed
from tests.support.trees import (
    HOSTILE_NAMES,
    File,
    Folder,
    Link,
    Tree,
    make_tree,
    many_files,
    read_tree,
    sha256,
)

MIB = 1 << 20
INDEXES = ".hibali/packs/"
TREE: Tree = {
    **dict.fromkeys(HOSTILE_NAMES, b"hostile"),
    **{b"many/%03d" % number: b"%d" % number for number in range(300)},
    b"a/b": b"1",
    b"a-x": b"2",
    b"a0": b"",
    b"tool": File(b"#!/bin/sh\n", executable=True, mtime_ns=1_600_000_000_123_456_789),
    b"medium": os.urandom(5 * MIB),
    b"empty/folder": Folder(),
    b"link": Link(b"a/b"),
    b"dangling": Link(b"\xff/nowhere"),
}


FURTHER = [pytest.param(word, marks=pytest.mark.heavy) for word in (*STORES, "sftp") if word != "local"]


@pytest.fixture(params=["local", *FURTHER])
def each_store(request: pytest.FixtureRequest, transfers_to: Any) -> Transfers:
    """Return a site of each writable kind of store, and ssh without an agent."""
    made: Transfers = transfers_to(request.param)
    return made


def tars(there: Transfers) -> dict[bytes, bytes]:
    """Return the tar files at the target."""
    return {name: content for name, content in there.there().items() if name.endswith(b".tar")}


def indexes(there: Transfers) -> set[bytes]:
    return {
        name
        for name in there.place.names("data")
        if name.startswith(INDEXES.encode()) and name.endswith(b"l")
    }


def mtime_of(path: Path) -> int:
    """Return the mtime of a file in nanoseconds."""
    return path.stat().st_mtime_ns


def unpacked(there: Transfers, into: Path) -> Path:
    """Unpack the packs with tar(1), in the order of their numbers."""
    into.mkdir()
    tar = shutil.which("tar")
    assert tar is not None
    for content in (content for _, content in sorted(tars(there).items())):
        done = subprocess.run([tar, "-xf", "-"], input=content, cwd=into, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    return into


@pytest.mark.heavy
@pytest.mark.parametrize(
    "word", ["ssh", "s3", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("local", "sftp"))]
)
def test_packed_files_are_pulled_unchanged_and_not_sent_again(
    transfers_to: Any, tmp_path: Path, word: str
) -> None:
    there = transfers_to(word)
    there.make(TREE)
    receipt = there.push("--pack").last
    assert (receipt["files_moved"], receipt["packs_made"]) == (receipt["files"], 1)
    assert len(tars(there)) == len(indexes(there)) == 1
    again = there.push("--pack").last
    assert (again["files_moved"], again["packs_made"], again["files_kept"]) == (0, 0, receipt["files"])
    there.pull(tmp_path / "out")
    assert read_tree(tmp_path / "out") == read_tree(there.source)
    assert mtime_of(tmp_path / "out" / "tool") == 1_600_000_000_123_456_789
    assert os.access(tmp_path / "out" / "tool", os.X_OK)
    assert read_tree(unpacked(there, tmp_path / "by tar")) == read_tree(there.source)
    listing = there.hibali("ls", "-R", "there:data", "--json", exit=0).lines[:-1]
    assert len([line for line in listing if line["type"] == "file"]) == receipt["files"] - 2
    assert there.verify().last["files_hashed"] == receipt["files"] - 2


@pytest.mark.heavy
def test_one_file_or_folder_reads_only_its_own_bytes(transfers_to: Any, tmp_path: Path) -> None:
    there = transfers_to("ssh")
    there.make(
        {b"d/large": os.urandom(20 * MIB), b"d/one": b"12345", b"e/f/two": b"123", b"x": os.urandom(9 * MIB)}
    )
    there.push("--pack")
    index = sum(len(there.place.read("data", name) or b"") for name in indexes(there))
    for path, into, size in (("d/one", "one", 5), ("e/f", "f", 3)):
        receipt = there.hibali("pull", f"there:data/{path}", tmp_path / into, "--json", exit=0).last
        assert receipt["files_moved"] == 1
        assert size <= receipt["bytes_sent"] <= size + index
    assert (tmp_path / "one").read_bytes() == b"12345"
    assert read_tree(tmp_path / "f") == {b"two": b"123"}
    there.hibali("pull", "there:data/d/none", tmp_path / "none", exit=3)
    assert there.hibali("ls", "there:data/d", exit=0).out == b"large\none\n"
    assert there.hibali("ls", "there:data", exit=0).out == b"d/\ne/\nx\n"
    verified = there.verify().last
    assert (verified["files_hashed"], verified["bytes_sent"]) == (4, index)
    digest = hashlib.sha256(b"12345").hexdigest()
    assert there.hibali("manifest", "there:data/d/one", exit=0).out == f"{digest}  one\n".encode()


def test_a_later_push_adds_a_pack_and_records_deletions(each_store: Transfers, tmp_path: Path) -> None:
    there = each_store
    there.make({b"stays": b"1", b"changes": b"2", b"goes/away": b"3", b"was/folder": b"4", b"was-file": b"5"})
    there.push("--pack")
    before = tars(there)
    shutil.rmtree(there.source)
    there.make({b"changes": b"22", b"was": b"44", b"was-file/now": b"55", b"new": b"6"})
    (there.source / "stays").write_bytes(b"1")
    (tmp_path / "same").write_bytes(b"")
    assert there.push("--pack", exit=6).last["files_deleted"] == 0
    there.push("--pack", "--delete", "--max-delete", "0", exit=8)
    receipt = there.push("--pack", "--delete").last
    assert receipt["files_deleted"] == 3
    assert before.items() <= tars(there).items()
    there.pull(tmp_path / "out")
    assert read_tree(tmp_path / "out") == read_tree(there.source)
    assert actions(there.push("--pack", "--delete", "--dry-run")) == {}


@pytest.mark.heavy
def test_ten_thousand_small_files_become_a_few_packs(local_there: Transfers) -> None:
    local_there.make(many_files(10_000, 20))
    receipt = local_there.push("--pack").last
    assert (receipt["files_moved"], receipt["packs_made"]) == (10_000, 1)
    assert len(local_there.place.names("data")) <= 5


@pytest.mark.heavy
def test_a_large_file_and_a_small_pack_size_make_more_packs(local_there: Transfers, tmp_path: Path) -> None:
    local_there.make(
        {b"%d" % number: os.urandom(MIB) for number in range(6)} | {b"large": os.urandom(40 * MIB)}
    )
    receipt = local_there.push("--pack", "--pack-size", "3M").last
    assert receipt["packs_made"] == 4
    assert sorted(len(content) > 40 * MIB for content in tars(local_there).values()) == [False] * 3 + [True]
    local_there.pull(tmp_path / "out")
    assert read_tree(tmp_path / "out") == read_tree(local_there.source)
    assert local_there.verify().last["files_hashed"] == 7


def test_files_and_packs_do_not_mix(each_store: Transfers) -> None:
    there = each_store
    there.make({b"a": b"1"})
    there.push()
    before = there.whole_state()
    assert there.push("--pack", exit=8).last["code"] == "not-packed"
    assert there.whole_state() == before
    there.hibali("push", "--pack", there.source, "there:packed", "--json", exit=0)
    before = there.whole_state()
    for words in ((there.source, "there:packed"), (there.source / "a", "there:packed/")):
        assert there.hibali("push", *words, "--json", exit=8).last["code"] == "packed-place"
    there.hibali("push", "--pack", there.source / "a", "there:one", exit=2)
    there.hibali("push", "--pack-size", "5M", there.source, "there:one", exit=2)
    assert there.whole_state() == before


@pytest.mark.heavy
def test_a_folder_in_a_packed_location_is_refused_as_target(folder_there: Transfers) -> None:
    folder_there.make({b"d/a": b"1"})
    folder_there.push("--pack")
    for words in ((), ("--pack",)):
        answer = folder_there.hibali("push", *words, folder_there.source, "there:data/d", "--json", exit=8)
        assert answer.last["code"] == "packed-place"


@pytest.mark.heavy
def test_sync_reads_and_writes_packs(each_store: Transfers, tmp_path: Path) -> None:
    there = each_store
    there.make({b"d/a": b"1", b"b": b"22", b"l": Link(b"b")})
    there.push("--pack")
    packed, plain = tmp_path / "packed", tmp_path / "plain"
    there.hibali("sync", "--pack", "there:data", packed, exit=0)
    there.hibali("sync", packed, plain, exit=0)
    assert read_tree(plain) == read_tree(there.source)
    there.hibali("verify", "there:data", packed, exit=0)
    again = there.hibali("sync", "--pack", there.source, packed, "--json", exit=0).last
    assert again["files_moved"] == 0


def test_packs_have_the_new_names(local_there: Transfers, tmp_path: Path) -> None:
    tree: Tree = {b"sub-01/a": b"1", b"sub-02/b": os.urandom(5 * MIB), b"link": Link(b"sub-01/a")}
    local_there.make(tree)
    rule = "--rename", r"s/sub-(\d+)/s\1/"
    local_there.push(*rule, "--pack")
    assert local_there.push(*rule, "--pack").last["files_kept"] == 3
    local_there.pull(tmp_path / "packed")
    assert read_tree(tmp_path / "packed").keys() == {b"s01/a", b"s02/b", b"link"}
    local_there.pull(tmp_path / "back", "--rename", r"s(\d+)/sub-\1/")
    assert read_tree(tmp_path / "back") == tree


@pytest.mark.heavy
def test_a_push_killed_between_packs_is_resumed(each_store: Transfers, tmp_path: Path) -> None:
    there = each_store
    tree = {b"%03d" % number: os.urandom(100_000) for number in range(300)}
    there.make(tree)
    words = ("push", "--pack", "--pack-size", "1M", there.source, "there:data", "--json")
    process = there.hibali.start(*words)
    deadline = time.monotonic() + 60
    while len(indexes(there)) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    wait_for_agent_exit(there)
    receipt = there.hibali(*words, exit=0).last
    assert receipt["files_kept"] >= 3 * 8
    assert receipt["files_moved"] + receipt["files_kept"] == 300
    assert {name[:-4] for name in tars(there)} == {name[len(INDEXES) : -6] for name in indexes(there)}
    assert not [name for name in there.place.names("data") if PARTIAL.fullmatch(name)]
    there.pull(tmp_path / "out")
    assert read_tree(tmp_path / "out") == tree


@pytest.mark.heavy
def test_a_push_killed_in_a_large_file_is_resumed(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"large": os.urandom(150 * MIB)})
    process = there.hibali.start("push", "--pack", "--bwlimit", "40M", there.source, "there:data", "--json")
    deadline = time.monotonic() + 60
    while not any(size > 70 * MIB for size in sizes_there(there)):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    wait_for_agent_exit(there)
    receipt = there.push("--pack").last
    assert (receipt["files_moved"], receipt["proof_moved"]) == (1, "digest")
    if there.place.word == "ssh":
        assert receipt["bytes_sent"] < 120 * MIB
    assert there.verify().last["files_hashed"] == 1


def sizes_there(there: Transfers) -> list[int]:
    """Return the allocated size of each partial file."""
    found = []
    for path in there.root.glob(".hibali-*"):
        try:
            found.append(path.stat().st_blocks * 512)
        except FileNotFoundError:
            continue
    return found


def rewrite(there: Transfers, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the lines of the only index, and correct its checksum."""
    (path,) = (there.root / INDEXES).glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines[1:-1]:
        change(line)
    text = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines[:-1])
    lines[-1]["sha256"] = sha256(text)
    path.write_bytes(text + json.dumps(lines[-1]).encode() + b"\n")


def test_a_wrong_offset_in_an_index_is_detected_by_the_digest(local_there: Transfers, tmp_path: Path) -> None:
    local_there.make({b"a": b"secret" * 100, b"b": b"public" * 100})
    local_there.push("--pack")
    rewrite(local_there, lambda line: line.update(offset=0))
    assert failed(local_there.pull(tmp_path / "out", exit=6)) == {b"a": "corrupt", b"b": "corrupt"}
    assert read_tree(tmp_path / "out") == {}
    assert set(failed(local_there.verify(exit=6))) == {b"a", b"b"}


def test_an_index_with_unsafe_names_is_rejected(local_there: Transfers, tmp_path: Path) -> None:
    local_there.make({b"a": b"1"})
    local_there.push("--pack")
    rewrite(local_there, lambda line: line.update(path="../a"))
    for answer in (
        local_there.pull(tmp_path / "out", exit=6),
        local_there.push("--pack", "--delete", exit=6),
    ):
        assert answer.last["code"] == "bad-index"
    assert not (tmp_path / "a").exists()


def test_damaged_and_missing_tar_files_are_reported(local_there: Transfers, tmp_path: Path) -> None:
    local_there.make({b"a": b"1" * 4000, b"b": b"2" * 4000})
    local_there.push("--pack")
    (tar,) = local_there.root.glob("*.tar")
    content = bytearray(tar.read_bytes())
    content[content.index(b"2" * 4000) + 2000] ^= 1
    tar.write_bytes(content)
    assert failed(local_there.verify(exit=6)) == {b"b": "differs"}
    assert failed(local_there.pull(tmp_path / "out", exit=6)) == {b"b": "corrupt"}
    assert read_tree(tmp_path / "out") == {b"a": b"1" * 4000}
    tar.unlink()
    assert set(failed(local_there.verify(exit=6)).values()) == {"pack-missing"}
    assert set(failed(local_there.pull(tmp_path / "other", exit=6)).values()) == {"pack-missing"}


def test_packs_on_tape_are_recalled_only_on_request(local_there: Transfers, tmp_path: Path) -> None:
    local_there.make({b"a": b"1" * 4000, b"empty": b""})
    local_there.push("--pack")
    (tar,) = local_there.root.glob("*.tar")
    size, status = tar.stat().st_size, tar.stat()
    tar.write_bytes(b"")
    os.truncate(tar, size)  # as filesystems show files on tape: a size, and no allocated blocks
    os.utime(tar, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert failed(local_there.pull(tmp_path / "out", exit=6)) == {b"a": "offline"}
    assert failed(local_there.pull(tmp_path / "out", "--recall", exit=6)) == {b"a": "corrupt"}
    assert local_there.push("--pack").last["files_kept"] == 2


def test_a_saved_plan_from_packs_is_applied_or_refused(local_there: Transfers, tmp_path: Path) -> None:
    local_there.make({b"a": b"1", b"d/b": b"2"})
    local_there.push("--pack")
    plan, out = tmp_path / "plan", tmp_path / "out"
    local_there.hibali("plan", "there:data", out, "-o", plan, exit=0)
    (local_there.source / "a").write_bytes(b"11")
    local_there.push("--pack")
    assert local_there.hibali("apply", plan, "--json", exit=8).last["code"] == "drift"
    plan.unlink()
    local_there.hibali("plan", "there:data", out, "-o", plan, exit=0)
    local_there.hibali("apply", plan, exit=0)
    assert read_tree(out) == {b"a": b"11", b"d/b": b"2"}


def test_a_missing_root_is_not_created(unmounted: Transfers) -> None:
    answer = unmounted.hibali("sync", unmounted.source, "there:data", "--pack", "--json", exit=3)
    assert answer.last["code"] == "no-such-folder", str(answer)
    assert answer.last["hint"].endswith("hibali mkdir there:@data")
    assert not unmounted.root.parent.exists()


def test_packs_in_the_target_are_refused_as_source(local_there: Transfers) -> None:
    there = local_there
    make_tree(there.folder / "ov/keep", OVERLAPPING)
    there.hibali("sync", "--pack", there.folder / "ov/keep", there.folder / "ov/packed", exit=0)
    refused(there.hibali, "sync", "--delete", there.folder / "ov/packed", there.folder / "ov")
    there.hibali("sync", f"{there.folder}/ov/packed/four", there.folder / "ov/five", exit=0)


def test_packs_support_any_time(local_there: Transfers, tmp_path: Path) -> None:
    local_there.make(TIMES)
    local_there.push("--pack")
    assert counts(local_there.push("--pack"))["files_moved"] == 0
    local_there.pull(tmp_path / "back")
    assert times_of(tmp_path / "back") == times_of(local_there.source)
    local_there.hibali("history", exit=0)


@pytest.mark.parametrize("transport", ["agent", "sftp"])
def test_packs_are_sent_where_a_login_has_one_session(
    hibali: Any, single_session: Any, tmp_path: Path, transport: str
) -> None:
    more = f'transport = "{transport}"\n'
    add_single_session(hibali, tmp_path / "data", single_session.host, single_session.command, more)
    check_commands(hibali, (("push d far:packed --pack", 0), ("ls far:packed/no", 3)))


@pytest.mark.parametrize(
    "replace", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["renamed", "replaced"]
)
@pytest.mark.parametrize(
    "word", ["local", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "sftp"))]
)
def test_a_target_that_is_renamed_away_is_no_success(transfers_to: Any, word: str, *, replace: bool) -> None:
    there, tree = transfers_to(word), {**many_files(700, 3000, folders=4), b"large": bytes(9_000_000)}
    there.make(tree)
    away = once(moved_away(there.root, replace=replace))
    with pytest.raises(api.HibaliError) as raised:
        api.push(there.source, "there:data", pack=True, on_event=away)
    assert raised.value.exit in {5, 6}
    assert api.push(there.source, "there:data", pack=True).files_moved == len(tree)
