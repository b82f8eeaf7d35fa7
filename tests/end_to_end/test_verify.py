"""Test verification of a target by digest, and reports of the differences."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.transfers import Transfers, at_agents, counts, failed
from tests.support.trees import Link, flip_byte, many_files

there = at_agents("s3")
folder_there = at_agents()

TREE = many_files(60, 400, folders=3)
ONE = b"folder 01/file-00001.dat"
TWO = b"folder 02/file-00032.dat"


def test_one_flipped_byte_is_found_and_reported(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    sound = there.verify().last
    assert (sound["operation"], sound["files"], sound["files_kept"], sound["proof_tree"]) == (
        "verify",
        60,
        60,
        "digest",
    )
    there.place.corrupt("data", ONE)
    # size and time are unchanged
    if there.place.word != "s3":
        assert counts(there.push())["files_moved"] == 0
    answer = there.verify(exit=6)
    assert failed(answer) == {ONE: "differs"}
    assert (answer.last["files_failed"], answer.last["files_kept"]) == (1, 59)
    assert answer.last["proof_tree"] != "digest"


def test_a_removed_file_is_reported(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    there.place.remove("data", TWO)
    assert failed(there.verify(exit=6)) == {TWO: "missing"}


def test_all_differences_are_reported_together(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    there.place.corrupt("data", ONE)
    there.place.remove("data", TWO)
    assert failed(there.verify(exit=6)) == {ONE: "differs", TWO: "missing"}
    # --checksum repairs it
    assert counts(there.push("--checksum"))["files_moved"] == 2
    there.verify()


def test_the_readable_output_has_the_names(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    there.place.corrupt("data", ONE)
    answer = there.hibali("verify", "there:data", exit=6)
    assert ONE in answer.err
    assert answer.err.count(b"folder ") == 1


def test_without_recorded_digests_the_exit_is_3(there: Transfers) -> None:
    there.place.plant("data", {b"a": b"1"})
    assert there.verify(exit=3).last["code"] == "nothing-recorded"
    assert there.verify("there:nowhere", exit=3).last["kind"] == "error"


def test_a_part_and_a_single_file_can_be_verified(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    assert there.verify("there:data/folder 01").last["files"] == 20
    assert there.verify(f"there:data/{ONE.decode()}").last["files"] == 1
    there.place.corrupt("data", ONE)
    there.verify("there:data/folder 02")
    there.verify("there:data/folder 01", exit=6)
    there.verify(f"there:data/{ONE.decode()}", exit=6)
    there.verify("there:", exit=6)


def test_filters_select_the_verified_files(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    there.place.corrupt("data", ONE)
    assert there.verify("there:data", "--include", "/folder 02/").last["files"] == 20
    there.verify("there:data", "--include", "/folder 01/", exit=6)


def test_two_locations_are_compared(there: Transfers, tmp_path: Path) -> None:
    there.make(TREE)
    there.push()
    there.pull(tmp_path / "back")
    for words in (
        (there.source, "there:data"),
        ("there:data", there.source),
        (there.source, tmp_path / "back"),
    ):
        receipt = there.verify(*words).last
        assert (receipt["files"], receipt["files_kept"], receipt["proof_tree"]) == (60, 60, "digest")
    there.place.corrupt("data", ONE)
    assert failed(there.verify(there.source, "there:data", exit=6)) == {ONE: "differs"}
    assert failed(there.verify("there:data", tmp_path / "back", exit=6)) == {ONE: "differs"}


def test_files_at_only_one_location_are_reported(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    there.place.remove("data", TWO)
    there.place.plant("data", {b"theirs": b"1"})
    assert failed(there.verify(there.source, "there:data", exit=6)) == {
        TWO: "missing",
        b"theirs": "unexpected",
    }


def test_another_size_is_a_difference_that_needs_no_hashing(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    there.place.plant("data", {ONE: b"shorter"})
    answer = there.verify(there.source, "there:data", exit=6)
    assert failed(answer) == {ONE: "differs"}
    assert (answer.last["files_kept"], answer.last["files_hashed"], answer.last["proof_tree"]) == (
        59,
        59,
        "none",
    )


def test_links_are_compared_as_text(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"file": b"1", b"link": Link(b"file")})
    there.push()
    there.verify(there.source, "there:data")
    (there.root / "link").unlink()
    (there.root / "link").symlink_to("elsewhere")
    assert failed(there.verify(there.source, "there:data", exit=6)) == {b"link": "differs"}
    (there.root / "link").unlink()
    assert failed(there.verify(there.source, "there:data", exit=6)) == {b"link": "missing"}


def test_a_link_only_at_the_second_location_is_reported(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"file": b"1"})
    there.push()
    (there.root / "link").symlink_to("file")
    assert failed(there.verify(there.source, "there:data", exit=6)) == {b"link": "unexpected"}


def test_a_file_that_was_replaced_by_a_link_is_reported(folder_there: Transfers) -> None:
    """Check that the link is not followed, although its content is equal."""
    there = folder_there
    there.make(TREE)
    there.push()
    file = there.root / os.fsdecode(ONE)
    file.rename(there.folder / "aside")
    file.symlink_to(there.folder / "aside")
    assert ONE in failed(there.verify(exit=6))
    assert ONE in failed(there.verify(there.source, "there:data", exit=6))


def test_pulled_files_have_recorded_digests(there: Transfers, tmp_path: Path) -> None:
    there.place.plant("data", TREE)
    back = tmp_path / "back"
    there.pull(back)
    assert there.verify(back).last["files"] == 60
    flip_byte(back / os.fsdecode(ONE))
    assert failed(there.verify(back, exit=6)) == {ONE: "differs"}


def test_deleted_files_are_not_reported_as_missing(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    (there.source / os.fsdecode(TWO)).unlink()
    assert counts(there.push("--delete"))["files_deleted"] == 1
    assert there.verify().last["files"] == 59


def test_verify_hashes_and_changes_nothing(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    before = there.whole_state()
    there.verify()
    there.verify(there.source, "there:data")
    assert there.whole_state() == before
