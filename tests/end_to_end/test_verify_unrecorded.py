"""Test files without a recorded digest: `verify` reports them, and later commands record them."""

from __future__ import annotations

import subprocess

import pytest

from tests.schemas import check_lines
from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers, counts, path_of
from tests.support.trees import many_files

TREE = many_files(12, 300, folders=2)


def unverified(answer: object) -> set[bytes]:
    lines = answer.lines  # type: ignore[attr-defined]
    return {path_of(line) for line in lines if line["kind"] == "unverified"}


def forget_all(there: Transfers) -> None:
    """Simulate files that another machine or program stored."""
    for journal in (there.hibali.home.state / "operations").glob("*.jsonl"):
        journal.unlink()


def test_files_without_a_recorded_digest_are_reported_with_exit_11(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    there.place.plant("data", {b"theirs": b"1", b"sub/theirs": b"2"})
    answer = there.verify(exit=11)
    check_lines(answer.out)
    assert unverified(answer) == {b"theirs", b"sub/theirs"}
    receipt = answer.last
    assert (receipt["files"], receipt["files_kept"], receipt["files_unrecorded"]) == (14, 12, 2)
    assert (receipt["files_failed"], receipt["proof_tree"], receipt["exit"]) == (0, "none", 11)
    people = there.hibali("verify", "there:data", exit=11)
    assert b"sub/theirs: no digest is recorded for it" in people.err
    assert b"2 of 14 files not verified: no digest is recorded" in people.err
    there.verify("there:data", "--exclude", "theirs")


def test_a_difference_has_priority_over_unrecorded_files(local_there: Transfers) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    there.place.plant("data", {b"theirs": b"1"})
    there.place.corrupt("data", min(TREE))
    assert there.verify(exit=6).last["files_unrecorded"] == 1
    assert there.verify("there:data", "--exact", exit=6).last["files_unrecorded"] == 0


def test_files_outside_of_the_sample_are_not_a_failure(local_there: Transfers) -> None:
    """Check that only files of the sample without a recorded digest are failures."""
    there = local_there
    there.make(TREE)
    there.push()
    assert there.verify("there:data", "--sample", "3").last["files_unchecked"] == 9
    there.verify("there:data", "--sample", "3", "--resume")
    there.verify(there.source, "there:data", "--sample", "3")
    there.place.plant("data", {b"theirs": b"1"})
    assert unverified(there.verify("there:data", "--sample", "3", exit=11)) == {b"theirs"}


def test_checksum_records_the_digests_of_equal_files(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    forget_all(there)
    answer = there.push("--checksum", "--verbose")
    check_lines(answer.out)
    assert {path_of(line) for line in answer.lines if line["kind"] == "recorded"} == set(TREE)
    counted = counts(answer)
    assert (counted["files_moved"], counted["files_kept"]) == (0, 12)
    assert there.verify().last["files_kept"] == 12
    before = set((there.hibali.home.state / "operations").glob("*.jsonl"))
    there.push("--checksum")
    [journal] = set((there.hibali.home.state / "operations").glob("*.jsonl")) - before
    assert b'"recorded"' not in journal.read_bytes()  # already recorded


@pytest.mark.heavy
def test_after_a_full_ledger_the_next_call_records_the_missing_digests(
    folder_there: Transfers,
) -> None:
    there = folder_there
    tree = many_files(1500, 10, folders=3)
    there.make(tree)
    state = there.hibali.home.state
    with small_filesystem(state, "size=300k,mode=0700"):
        stopped = there.push(exit=6)
        assert stopped.last["code"] == "ledger-unwritable", str(stopped)
        committed = there.there()
        assert committed
        subprocess.run(["mount", "-o", "remount,size=64m", state], check=True)
        assert there.verify(exit=11).last["files_unrecorded"] > 0
        answer = there.push()
        assert counts(answer)["files_kept"] == len(committed)
        [note] = [
            line["message"]
            for line in answer.lines
            if line["kind"] == "noted" and "record" in line["message"]
        ]
        assert "is incomplete" in note
        assert "recorded it now" in note
        assert there.verify().last["files_kept"] == len(tree)
        assert not any("is incomplete" in line.get("message", "") for line in there.push().lines)


def test_a_truncated_record_is_repaired_by_hashing_without_transfers(local_there: Transfers) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    [journal] = (there.hibali.home.state / "operations").glob("*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:8]) + b'{"kind":"mov')
    there.place.plant("data", {b"theirs": b"1"})
    assert there.verify(exit=11).last["files_unrecorded"] > 1
    answer = there.push()
    assert (counts(answer)["files_moved"], counts(answer)["files_kept"]) == (0, 12)
    assert unverified(there.verify(exit=11)) == {b"theirs"}


@pytest.mark.parametrize("operation", ["plan", "dry run"])
def test_a_dry_run_hashes_and_records_nothing(local_there: Transfers, operation: str) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    [journal] = (there.hibali.home.state / "operations").glob("*.jsonl")
    cut = b"".join(journal.read_bytes().splitlines(keepends=True)[:5])
    journal.write_bytes(cut)
    words = (
        ("plan", there.source, "there:data")
        if operation == "plan"
        else ("push", there.source, "there:data", "-n")
    )
    there.hibali(*words, exit=0)
    assert journal.read_bytes() == cut
