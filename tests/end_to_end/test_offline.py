"""Test that files whose content is not on disk are reported and skipped without `--recall`.

Fully sparse files represent them, because the tests have no tape and stat(2) shows no difference.
"""

from __future__ import annotations

import os

from tests.support.transfers import Transfers, actions, failed

SIZE = 1 << 20
MTIME = 1_234_567_890_123_456_789


def make(there: Transfers) -> None:
    there.make({b"here": b"1", b"tape/away": b""})
    os.truncate(there.source / "tape/away", SIZE)
    os.utime(there.source / "tape/away", ns=(MTIME, MTIME))


def test_files_on_tape_are_reported_and_skipped(there: Transfers) -> None:
    make(there)
    there.place.plant("data", {b"extra": b"1"})
    answer = there.push("--delete", exit=6)
    assert failed(answer).keys() == {b"tape/away", b""}  # nothing was deleted
    assert failed(answer)[b"tape/away"] == "offline"
    assert "--recall" in next(line["message"] for line in answer.lines if line["kind"] == "failed")
    assert there.there() == {b"here": b"1", b"extra": b"1"}
    there.push("--recall")
    assert there.there()[b"tape/away"] == bytes(SIZE)
    assert actions(there.push("--dry-run")) == {}  # it need not be read to be found equal
    there.push()


def test_comparing_contents_does_not_fetch_them(folder_there: Transfers) -> None:
    there = folder_there
    make(there)
    there.push("--recall")
    assert failed(there.push("--checksum", exit=6)) == {b"tape/away": "offline"}
    there.push("--checksum", "--recall")


def test_a_plan_states_whether_files_on_tape_are_read(local_there: Transfers) -> None:
    there = local_there
    make(there)
    path = there.folder / "the.plan"
    there.hibali("plan", there.source, "there:data", "-o", path, exit=0)
    assert failed(there.hibali("apply", path, "--json", exit=6)) == {b"tape/away": "offline"}
    assert there.there() == {b"here": b"1"}
    there.hibali("plan", there.source, "there:data", "-o", path, "--recall", exit=0)
    there.hibali("apply", path, exit=0)
    assert there.there()[b"tape/away"] == bytes(SIZE)
