"""Test dry runs, filters, and the exit codes that show whether there are changes."""

from __future__ import annotations

from pathlib import Path

from tests.support.transfers import Transfers, actions, at_agents, counts
from tests.support.trees import Folder, state_of

there = at_agents("s3")
folder_there = at_agents()

TREE = {
    b"a.txt": b"1",
    b"b.log": b"22",
    b"sub/c.txt": b"333",
    b"sub/d.log": b"4444",
    b"sub/deep/e.txt": b"55555",
    b"other/f.txt": b"666666",
}


def test_a_dry_run_prints_the_plan_and_changes_nothing(there: Transfers) -> None:
    there.place.plant("data", {b"extra": b"1", b"same": b"2", b"changed": b"3"})
    there.pull(there.source)
    odd = b"odd" if there.place.word == "s3" else b"odd \xff\n"
    there.make({b"new": b"4", b"changed": b"33", odd: b"5"})
    (there.source / "extra").unlink()
    before, ledger = there.whole_state(), state_of(there.hibali.home.state)
    answer = there.push("--dry-run", "--delete")
    assert actions(answer) == {b"new": "copy", b"changed": "replace", odd: "copy", b"extra": "delete"}
    assert answer.lines[-1] == {"schema": 1, "kind": "end", "count": 5, "exit": 0}
    planned = answer.lines[-2]
    assert planned["kind"] == "planned"
    assert (planned["files_to_move"], planned["files_to_delete"], planned["files_kept"]) == (3, 1, 1)
    assert there.whole_state() == before
    assert state_of(there.hibali.home.state) == ledger
    receipt = counts(there.push("--delete"))
    assert (receipt["files_moved"], receipt["files_deleted"], receipt["files_kept"]) == (3, 1, 1)


def test_a_dry_run_does_not_create_the_folder(there: Transfers) -> None:
    there.make(TREE)
    before = there.whole_state()
    there.push("-n")
    assert there.whole_state() == before


def test_the_readable_plan_is_on_stdout(local_there: Transfers) -> None:
    local_there.make({b"new": b"1", b"with\nnewline \x1b[31m": b"2"})
    answer = local_there.hibali("push", local_there.source, "there:data", "-n", exit=0)
    lines = answer.out.splitlines()
    assert len(lines) == 2
    assert lines[0].split()[:2] == [b"copy", b"new"]
    assert b"\x1b" not in answer.out
    assert b"Nothing was changed" in answer.err


def test_the_detailed_exit_code_shows_changes(there: Transfers) -> None:
    there.make(TREE)
    words = ("push", there.source, "there:data", "--dry-run", "--detailed-exit-code")
    there.hibali(*words, exit=10)
    assert there.there() == {}
    there.push()
    there.hibali(*words, exit=0)
    there.hibali("push", there.source, "there:data", "--dry-run", exit=0)


def test_a_dry_run_refuses_the_same_transfers_as_a_push(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", {b"%d" % number: b"1" for number in range(60)})
    there.make({b"a": b"1"})
    assert there.push("-n", "--delete", exit=8).last["code"] == "delete-limit"
    (there.source / ("." + "hibali-" + "0123456789abcdef" * 2)).write_bytes(b"mine")
    assert there.push("-n", exit=8).last["code"] == "unsafe-name"


def test_exclude_omits_matches(there: Transfers) -> None:
    there.make(TREE)
    receipt = counts(there.push("--exclude", "*.log", "--exclude", "/sub/deep/"))
    assert (receipt["files"], receipt["files_moved"]) == (3, 3)
    assert there.there().keys() == {b"a.txt", b"sub/c.txt", b"other/f.txt"}


def test_include_selects_only_matches(there: Transfers) -> None:
    there.make(TREE)
    there.push("--include", "*.txt", "--include", "d.log", "--exclude", "sub/deep")
    assert there.there().keys() == {b"a.txt", b"sub/c.txt", b"sub/d.log", b"other/f.txt"}


def test_an_exclusion_can_be_negated(there: Transfers) -> None:
    there.make(TREE)
    there.push("--exclude", "*.log", "--exclude", "!d.log")
    assert there.there().keys() == TREE.keys() - {b"b.log"}


def test_filters_create_no_empty_folders(folder_there: Transfers) -> None:
    there = folder_there
    there.make({**TREE, b"empty": Folder()})
    there.push("--exclude", "sub/", "--exclude", "empty/")
    assert there.tree_there().keys() == {b"a.txt", b"b.log", b"other/f.txt"}
    assert not (there.root / "sub").exists()


def test_an_invalid_pattern_is_a_usage_error(local_there: Transfers) -> None:
    local_there.make({b"a": b"1"})
    local_there.hibali("push", local_there.source, "there:data", "--exclude", "!", exit=2)


def test_a_weaker_verification_than_required_is_6_and_an_unknown_one_a_usage_error(
    local_there: Transfers,
) -> None:
    local_there.make({b"a": b"1"})
    local_there.push("--require-proof", "digest")
    local_there.hibali("push", local_there.source, "there:data", "--require-proof", "oath", exit=2)


def test_sync_transfers_between_two_locations(there: Transfers, tmp_path: Path) -> None:
    there.make(TREE)
    there.push()
    target = tmp_path / "third"
    receipt = there.hibali("sync", "there:data/sub", target, "--json", exit=0).last
    # a bucket does not hash what it sends; it uses a recorded digest
    proof = "recorded" if there.place.word == "s3" else "digest"
    assert (receipt["operation"], receipt["files_moved"], receipt["proof_moved"]) == ("sync", 3, proof)
    assert (target / "deep/e.txt").read_bytes() == b"55555"
    receipt = there.hibali("sync", "there:data", "there:copy", "--json", exit=0).last
    assert receipt["files_moved"] == len(TREE)
    assert there.place.files("copy") == TREE


def test_a_dry_run_reports_the_untested_features_of_a_bucket(bucket_there: Transfers) -> None:
    there = bucket_there
    there.make({b"a": b"1"})
    noted = [line["message"] for line in there.push("-n").lines if line["kind"] == "noted"]
    assert any("hibali sites check there" in message for message in noted)
    assert there.whole_state() == {}
    there.push()
    assert [line["kind"] for line in there.push("-n").lines] == ["planned", "end"]
