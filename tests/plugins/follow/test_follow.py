"""Test `hibali push --follow`: finished files arrive while others are still written."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_overlap import TREE as OVERLAPPING
from tests.end_to_end.test_overlap import refused
from tests.schemas import check_lines
from tests.support.command_signals import TOLERATED_SECONDS
from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import STORES, Transfers, path_of
from tests.support.trees import make_tree

SOON = 60.0


class Following:
    """One call of `push --follow SOURCE there:data`, and its result."""

    def __init__(
        self, there: Transfers, *words: str | Path, quiet: str = "1s", target: str = "there:data"
    ) -> None:
        self.there = there
        self.end = there.folder / "END"
        given = ("--quiet-for", quiet, "--until", self.end, *words)
        running = len(there.hibali._running)
        self._out = there.hibali.home.folder / f"{running}.out"
        self.process = there.hibali.start("push", "--follow", there.source, target, "--json", *given)

    def until(self, met: Callable[[], object], what: str) -> None:
        """Wait for a condition; the command must not end meanwhile."""
        deadline = time.monotonic() + SOON
        while not met():
            assert self.process.poll() is None, self.lines()
            assert time.monotonic() < deadline, what
            time.sleep(0.05)

    def has(self, name: bytes, content: bytes) -> None:
        """Wait until a file exists at the target."""
        self.until(lambda: self.there.place.read("data", name) == content, f"{name!r} never arrived")

    def finish(self, code: int = 0) -> dict[str, Any]:
        """Write the file that announces the end, and return the receipt."""
        self.end.touch()
        return self.ended(code)

    def ended(self, code: int) -> dict[str, Any]:
        """Return the receipt of a command that ends by itself: its last line, and only there."""
        assert self.process.wait(SOON) == code, self.lines()
        lines = self.lines()
        receipts = [line for line in lines if line["kind"] == "receipt"]
        assert receipts == [lines[-1]]
        assert lines[-1]["exit"] == code
        return lines[-1]

    def lines(self) -> list[dict[str, Any]]:
        return check_lines(self._out.read_bytes())


def failed_of(follow: Following) -> dict[bytes, str]:
    """Return the error codes of the files that were not sent in the end, by name."""
    return {path_of(line): line["code"] for line in follow.lines() if line["kind"] == "failed"}


@contextlib.contextmanager
def writing(path: Path, line: bytes = b"x" * 100) -> Iterator[None]:
    """Write to a file all the time."""
    stop = threading.Event()

    def write() -> None:
        with path.open("ab", buffering=0) as stream:
            while not stop.wait(0.02):
                stream.write(line)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.heavy
@pytest.mark.parametrize("word", [*STORES, "sftp"])
def test_finished_files_are_sent_while_others_are_written(
    transfers_to: Callable[[str], Transfers], word: str
) -> None:
    there = transfers_to(word)
    there.make({b"first": b"1", b"folder/second": b"2"})
    with writing(there.source / "growing"):
        follow = Following(there)
        follow.has(b"first", b"1")
        follow.has(b"folder/second", b"2")
        make_tree(there.source, {b"third": b"3"})
        follow.has(b"third", b"3")
        assert there.place.read("data", b"growing") is None
    receipt = follow.finish()
    assert there.there()[b"growing"] == (there.source / "growing").read_bytes()
    assert (receipt["files"], receipt["files_moved"], receipt["proof_moved"]) == (4, 4, "digest")
    assert receipt["logins"] <= 1
    cycles = [line for line in follow.lines() if line["kind"] == "round"]
    assert sum(line["files_moved"] for line in cycles) == 4
    assert cycles[-1]["files_waiting"] == 0
    there.check_no_own_files()
    assert there.push().last["files_moved"] == 0


def test_only_the_tails_of_a_growing_file_are_sent(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"run.log": b"begin\n" * 200_000, b"other": b"1"})
    log = there.source / "run.log"
    right, wrong = 0, []
    with writing(log, os.urandom(5000)):
        follow = Following(there, "--append", "*.log")

        def grew() -> bool:
            nonlocal right
            found = there.place.read("data", b"run.log")
            if found is not None:
                if not log.read_bytes().startswith(found):
                    wrong.append(len(found))
                right = max(right, len(found))
            return right > 1_500_000

        follow.until(grew, "it did not grow")
    receipt = follow.finish()
    assert not wrong
    assert there.there()[b"run.log"] == log.read_bytes()
    assert (receipt["files_moved"], receipt["proof_moved"]) == (2, "digest")
    assert receipt["bytes_moved"] == log.stat().st_size + 1
    if there.place.word == "ssh":
        assert receipt["bytes_sent"] == receipt["bytes_moved"]
    assert there.push().last["files_moved"] == 0  # its time is the same, too
    there.verify()


def test_after_a_kill_the_same_command_sends_only_the_tail(transfers_to: Callable[[str], Transfers]) -> None:
    there = transfers_to("ssh")
    begin = os.urandom(3_000_000)
    there.make({b"run.log": begin})
    log = there.source / "run.log"
    with writing(log):
        follow = Following(there, "--append", "run.log")
        follow.until(lambda: len(there.place.read("data", b"run.log") or b"") > len(begin), "nothing came")
        os.killpg(follow.process.pid, signal.SIGKILL)
        follow.process.wait()
    existing = there.place.read("data", b"run.log")
    assert existing is not None
    assert log.read_bytes().startswith(existing)
    again = Following(there, "--append", "run.log")
    receipt = again.finish()
    assert there.there() == {b"run.log": log.read_bytes()}
    assert receipt["bytes_sent"] <= log.stat().st_size - len(existing)


@pytest.mark.parametrize("spoil", ["corrupt", "link"])
def test_a_file_with_another_beginning_is_replaced_completely(local_there: Transfers, spoil: str) -> None:
    there = local_there
    there.make({b"run.log": b"0123456789" * 1000})
    there.place.plant("data", {b"run.log": b"0123456789" * 500})
    existing = there.root / "run.log"
    second = there.folder / "second name"
    if spoil == "corrupt":
        there.place.corrupt("data", b"run.log")
    else:
        second.hardlink_to(existing)
    receipt = Following(there, "--append", "*.log").finish()
    assert there.there() == {b"run.log": b"0123456789" * 1000}
    assert (receipt["files_moved"], receipt["proof_moved"]) == (1, "digest")
    if spoil == "link":
        assert second.read_bytes() == b"0123456789" * 500  # nothing was written through it


def test_a_single_log_is_followed_under_another_name(local_there: Transfers) -> None:
    there = local_there
    there.make({b"run.log": b"1\n", b"beside": b"2"})
    there.place.plant("data", {b"old": b""})
    there.source /= "run.log"
    follow = Following(there, "--append", "run.log", target="there:data/job-7.log")
    with writing(there.source, b"more\n"):
        follow.until(lambda: len(there.place.read("data", b"job-7.log") or b"") > 20, "it did not grow")
    assert follow.finish()["files"] == 1
    assert there.there() == {b"old": b"", b"job-7.log": there.source.read_bytes()}


def test_a_rename_finishes_a_file_at_once(local_there: Transfers) -> None:
    there = local_there
    there.make({b"scan.tmp": b"half", b"direct": b"being written"})
    follow = Following(there, "--exclude", "*.tmp", quiet="1h")
    follow.until((there.root / ".hibali" / "lock").exists, "it never began")  # so one scan was done
    with (there.source / "scan.tmp").open("ab") as stream:
        stream.write(b" and half")
    (there.source / "scan.tmp").rename(there.source / "scan")
    follow.has(b"scan", b"half and half")
    assert there.place.read("data", b"direct") is None
    os.kill(follow.process.pid, signal.SIGTERM)
    assert follow.ended(143)["files_moved"] == 1


def test_with_markers_only_marked_files_are_sent_and_the_marker_last(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a.raw": b"a", b"b.raw": b"b", b"a.done": b""})
    follow = Following(there, "--done-marker", "*.done", quiet="0.3s")
    follow.has(b"a.done", b"")
    assert there.committed_files() == {b"a.raw": b"a", b"a.done": b""}
    (there.source / "b.raw.done").touch()
    follow.has(b"b.raw.done", b"")
    assert there.committed_files()[b"b.raw"] == b"b"
    (there.source / "c.raw").write_bytes(b"c")  # the announced end finishes this file, too
    assert follow.finish()["files_moved"] == 5
    assert b"c.raw" in there.there()


def test_a_marker_is_not_sent_before_its_files(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a.raw": b"a", b"a.done": b"", b"b.raw": b"b", b"b.done": b""})
    there.place.plant("data", {b"b.raw/folder": b"in the way"})
    follow = Following(there, "--done-marker", "*.done", quiet="0.3s")
    follow.has(b"a.done", b"")
    follow.finish(6)
    assert failed_of(follow) == {b"b.raw": "folder-in-the-way", b"b.done": "held-back"}
    assert there.there() == {b"a.raw": b"a", b"a.done": b"", b"b.raw/folder": b"in the way"}


def test_the_file_that_announces_the_end_arrives_last(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"a", b"z": b"z"})
    follow = Following(there, "--until", there.source / "FINISHED", quiet="1h")
    (there.source / "FINISHED").touch()
    receipt = follow.ended(0)
    assert set(there.there()) == {b"a", b"z", b"FINISHED"}
    cycles = [line["files_moved"] for line in follow.lines() if line["kind"] == "round"]
    assert (cycles, receipt["files_moved"]) == ([2, 1], 3)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_following_within_two_seconds_and_releases_the_lock(
    local_there: Transfers, number: int, code: int
) -> None:
    there = local_there
    there.make({b"a": b"a"})
    with writing(there.source / "growing"):
        follow = Following(there)
        follow.has(b"a", b"a")
        refused = there.push(exit=5)
        assert refused.last["code"] == "locked"
        began = time.monotonic()
        follow.process.send_signal(number)
        receipt = follow.ended(code)
    assert time.monotonic() - began <= TOLERATED_SECONDS
    assert (receipt["files_moved"], receipt["files"]) == (1, 2)
    notes = [line["message"] for line in follow.lines() if line["kind"] == "noted"]
    assert "1 file (1 B)" in notes[-1]
    assert "1 file not finished" in notes[-1]
    there.check_no_own_files()
    there.push()
    assert there.there() == {b"a": b"a", b"growing": (there.source / "growing").read_bytes()}


def test_unsent_files_are_reported_and_all_others_sent(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"a"})
    os.mkfifo(there.source / "pipe")
    there.place.plant("data", {b"b/folder": b"in the way"})
    (there.source / "b").write_bytes(b"b")
    follow = Following(there)
    receipt = follow.finish(6)
    assert receipt["files_failed"] == 2
    assert failed_of(follow) == {b"pipe": "special-file", b"b": "folder-in-the-way"}
    assert there.there() == {b"a": b"a", b"b/folder": b"in the way"}


def test_a_refused_start_changes_nothing(local_there: Transfers) -> None:
    there = local_there
    there.make({b".hibali-" + b"0" * 32: b"looks like ours"})
    answer = there.push("--follow", exit=8)
    assert answer.last["code"] == "unsafe-name"
    assert not there.root.exists()
    for words in (
        ["--delete"],
        ["--checksum"],
        ["-n"],
        ["--backup-dir", "there:kept"],
        ["--rename", "s/a/b/"],
    ):
        assert there.push("--follow", *words, exit=2).last["kind"] == "error"
    inside = there.hibali("push", "--follow", there.place.at(""), "there:data", "--json", exit=8)
    assert inside.last["code"] == "overlap"
    assert there.push("--append", "*.log", exit=2).last["code"] == "usage"
    assert there.push("--follow", "--done-marker", "a/b", exit=2).last["code"] == "bad-marker"


def test_a_full_target_stops_following_and_keeps_committed_files(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"a" * 1000})
    with small_filesystem(there.root, "size=1m"):
        follow = Following(there, "--append", "*.log")
        follow.has(b"a", b"a" * 1000)
        (there.source / "run.log").write_bytes(os.urandom(3_000_000))
        follow.ended(6)
        assert failed_of(follow) == {b"run.log": "no-space"}
        found = there.there()
        assert found[b"a"] == b"a" * 1000
        assert (there.source / "run.log").read_bytes().startswith(found.get(b"run.log", b""))


@pytest.mark.heavy
def test_a_note_says_that_growing_files_are_sent_again_to_a_bucket(bucket_there: Transfers) -> None:
    there = bucket_there
    there.make({b"run.log": b"1\n"})
    follow = Following(there, "--append", "*.log")
    follow.has(b"run.log", b"1\n")
    (there.source / "run.log").write_bytes(b"1\n2\n")
    follow.has(b"run.log", b"1\n2\n")
    receipt = follow.finish()
    assert receipt["files_moved"] == 2
    noted = [json.dumps(line) for line in follow.lines() if line["kind"] == "noted"]
    assert any("sent again as a whole" in line for line in noted)


def test_a_missing_root_is_not_created(unmounted: Transfers) -> None:
    answer = unmounted.hibali(
        "push",
        unmounted.source,
        "there:data",
        "--follow",
        "--until",
        unmounted.source / "a",
        "--json",
        exit=3,
    )
    assert answer.last["code"] == "no-such-folder", str(answer)
    assert answer.last["hint"].endswith("hibali mkdir there:@data")
    assert not unmounted.root.parent.exists()


def test_a_followed_source_must_not_contain_its_target(local_there: Transfers) -> None:
    there = local_there
    make_tree(there.root, OVERLAPPING)
    refused(there.hibali, "push", "--follow", there.root / "a", "there:data/a/copy")
    refused(there.hibali, "push", "--follow", there.root / "a", "there:data")


def test_empty_folders_are_not_followed(local_there: Transfers) -> None:
    local_there.make({b"a": b"1"})
    words = ("push", local_there.source, "there:x", "--follow", "--keep-empty-folders")
    assert b"--keep-empty-folders" in local_there.hibali(*words, exit=2).err
