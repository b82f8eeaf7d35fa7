"""Test several sources and wildcards: what goes where, in one operation, and what is refused before anything changes."""

from __future__ import annotations

import os

import pytest

from tests.end_to_end.conftest import MakeTransfers
from tests.support.transfers import Transfers, actions, counts
from tests.support.trees import Link, make_tree

TREE = {
    b"run-1/out": b"1",
    b"run-1/.sub/x": b"22",
    b"run-2/out": b"333",
    b"run-x": b"4",
    b".run-0": b"5",
    b"s1/a/one": b"6",
    b"s2/a/two": b"7",
    b"other/y": b"8",
}
RUNS = {name: content for name, content in TREE.items() if name.startswith(b"run-")}


@pytest.fixture(params=["local", "s3", *(pytest.param(w, marks=pytest.mark.heavy) for w in ("ssh", "sftp"))])
def there(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    found = transfers_to(request.param)
    found.place.plant("data", TREE)
    return found


def operations(there: Transfers) -> list[dict[str, object]]:
    return there.hibali("history", "--json", exit=0).lines[:-1]


def test_each_source_goes_into_the_target_under_its_own_name(there: Transfers) -> None:
    here = make_tree(there.folder / "here", {b"f": b"1", b"d/g": b"22", b"d/e/h": b"3", b"left": b"4"})
    words = here / "f", here / "d", here / "d/../d/"
    answer = there.hibali("push", *words, "there:new/deep", "--json", exit=0)
    assert (counts(answer)["files_moved"], answer.last["target"]) == (3, "there:new/deep")
    assert there.place.files("new/deep").keys() == {b"f", b"d/g", b"d/e/h"}
    assert counts(there.hibali("push", *words, "there:new/deep", "--json", exit=0))["files_kept"] == 3
    # from several folders
    answer = there.hibali("push", here / "left", here / "d/g", here / "d/e", "there:flat", "--json", exit=0)
    assert there.place.files("flat") == {b"left": b"4", b"g": b"22", b"e/h": b"3"}
    assert [each["source"] for each in operations(there)][-1] == answer.last["source"]
    assert len(operations(there)) == 3


def test_what_matches_is_pulled_and_copied(there: Transfers) -> None:
    into = there.folder / "into"
    answer = there.hibali("pull", "there:data/run-*", into, "--json", exit=0)
    assert (counts(answer)["files_moved"], answer.last["source"]) == (4, "there:data/run-*")
    assert {os.fsencode(p.relative_to(into)): p.read_bytes() for p in into.rglob("*") if p.is_file()} == RUNS
    assert counts(there.hibali("pull", "there:data/run-*", into, "--json", exit=0))["files_kept"] == 4
    assert counts(there.hibali("verify", "there:data/run-*", into, "--json", exit=0))["files"] == 4
    there.hibali("pull", "there:data/s*/a/*", "there:data/other/y", there.folder / "flat", exit=0)
    assert {path.name for path in (there.folder / "flat").iterdir()} == {"one", "two", "y"}
    if there.place.word != "sftp":
        there.hibali("cp", "there:data/run-*", "there:copy", exit=0)
        assert there.place.files("copy") == RUNS
        there.hibali("cp", "there:data/s*/a/*", "there:copied", exit=0)
        assert there.place.files("copied").keys() == {b"one", b"two"}


def test_only_the_named_folders_lose_extraneous_files(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", TREE)
    there.place.plant("new", {b"run-1/old": b"1", b"run-1/out": b"1", b"kept/old": b"1"})
    answer = there.hibali(
        "sync", "--delete", "there:data/run-1", "there:data/run-2", "there:new", "--json", exit=0
    )
    assert counts(answer)["files_deleted"] == 1
    assert b"kept/old" in there.place.files("new")
    # the record of files beside them is not lost
    there.hibali("push", there.make({b"a": b"1"}), "there:other", exit=0)
    there.hibali("pull", "there:data/run-*", there.folder / "x", exit=0)
    assert there.verify("there:other").last["files"] == 1


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (("pull", "there:data/run-*/out", "INTO"), "same-name", 2),
        (("pull", "there:data/no*", "INTO"), "no-match", 3),
        (("pull", "there:data/run-1", "there:data/no", "INTO"), "no-such-source", 3),
        (("pull", "there:data/run-1", "there:data/run-1/out", "INTO"), "source-inside-source", 2),
        (("pull", "there:/", "there:data/run-1", "INTO"), "source-without-name", 2),
        (("pull", "there:data/run-*", "there:data/s1", "there:data/run-x/."), "wrong-direction", 2),
        (("pull", "there:data/run-*", "INTO", "--files-from", "LIST"), "usage", 2),
        (("pull", "there:data/run-1", "there:data/s1", "LIST"), "not-a-folder", 2),
        (("cp", "there:data/run-*", "there:data"), "overlap", 8),
        (("cp", "there:data/run-1", "there:data/s1", "there:data/s1/a/new"), "overlap", 8),
        (("cp", "there:data/run-x", "there:data/.run-0", "there:data"), "overlap", 8),
        (("rm", "there:data/no*"), "no-match", 3),
        (("rm", "-y", "there:data/run-*"), "is-a-folder", 2),
        (("rm", "-ry", "there:data/run-1", "there:data/run-1/out"), "source-inside-source", 2),
        (("rm", "-r", "there:data/run-*"), "unconfirmed", 8),
        (("rm", "there:data/run-[x]"), "unconfirmed", 8),
        (("rm", "-ry", "--max-delete", "3", "there:data/run-*"), "delete-limit", 8),
        (("rm", "-ry", "there:data/*", "there:/"), "source-without-name", 2),
        (("verify", "there:data/no*"), "no-match", 3),
    ],
)
def test_it_is_refused_before_anything_changes(
    local_there: Transfers, words: tuple[str, ...], code: str, exit_code: int
) -> None:
    there = local_there
    there.place.plant("data", TREE)
    listed = there.folder / "list"
    listed.write_bytes(b"x\n")
    places = {"INTO": there.folder / "into", "LIST": listed}
    before = there.whole_state()
    answer = there.hibali(*(places.get(word, word) for word in words), "--json", exit=exit_code)
    assert answer.last["code"] == code, str(answer)
    assert there.whole_state() == before
    assert not (there.folder / "into").exists()


def test_a_name_with_wildcard_characters_is_never_expanded(local_there: Transfers) -> None:
    there = local_there
    there.place.plant(
        "data", {b"a*": b"1", b"ab": b"2", b"[x]": b"3", b"x": b"4", b"d*/a?": b"5", b"d1/ab": b"6"}
    )
    into = there.folder / "into"
    there.hibali("pull", "there:data/a*", into, exit=0)
    assert into.read_bytes() == b"1"
    # a name that a listing returned
    there.hibali("pull", "there:data/[ad]*", "there:data/[x]", there.folder / "several", exit=0)
    found = {path.name for path in (there.folder / "several").iterdir()}
    assert found == {"a*", "ab", "d*", "d1", "[x]"}
    assert b"pattern" not in there.hibali("rm", "there:data/a*", exit=0).err
    there.hibali("rm", "there:data/./a*", exit=3)
    there.hibali("rm", "-ry", "there:data/d[*]", "there:data/[x]", exit=0)
    assert there.there() == {b"ab": b"2", b"x": b"4", b"d1/ab": b"6"}


def test_what_matches_is_removed_as_one_operation(there: Transfers) -> None:
    there.make(TREE)
    there.push("--checksum")
    planned = actions(there.hibali("rm", "-rn", "there:data/run-*", "--json", exit=0))
    assert {name for name in planned if not name.endswith(b"/")} >= RUNS.keys()
    answer = there.hibali("rm", "-ry", "there:data/run-*", "there:data/s1", "--json", exit=0)
    assert (counts(answer)["files_deleted"], answer.last["files"]) == (5, 5)
    left = {name: content for name, content in TREE.items() if name not in RUNS and name != b"s1/a/one"}
    assert there.there() == left
    there.check_no_own_files()
    assert there.verify("there:data").last["files"] == len(left)
    assert counts(there.hibali("rm", "-y", "there:data/*/*/t*", "--json", exit=0))["files_deleted"] == 1


def test_removed_files_are_recorded_by_their_paths(local_there: Transfers) -> None:
    there = local_there
    there.make({b"z": b"1", b"d/f": b"2", b"d/g": b"3", b"e/h": b"4"})
    there.push()
    words = "there:data/z", "there:data/d/f", "there:data/e"
    planned = there.hibali("rm", "-rn", *words, "--json", exit=0)
    removed = {b"z", b"d/f", b"e/h", b"e"}
    assert actions(planned).keys() == removed
    answer = there.hibali("rm", "-ry", "-v", *words, "--json", exit=0)
    assert {line["path"].encode() for line in answer.lines if line["kind"] == "deleted"} == removed
    assert there.verify("there:data").last["files"] == 1


def test_messages_of_a_removal_fit_it_and_have_what_was_typed(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", TREE)
    words = "there:data/run-1", "there:data/run-1/out"
    problem = there.hibali("rm", "-ry", *words, "--json", exit=2).last
    assert problem["about"] == words[1]
    elsewhere = there.hibali("rm", "-ry", "there:data/run-x", there.folder, exit=2).err
    assert b"[sources-apart]" in elsewhere
    assert not any(word in elsewhere for word in (b"source ", b"ransfer"))
    # a retry after a file with exactly this name is gone
    there.place.plant("data", {b"[r]un-x": b"1"})
    assert b"pattern" not in there.hibali("rm", "-y", "there:data/[r]un-x", exit=0).err
    again = there.hibali("rm", "-y", "there:data/[r]un-x", exit=0).err
    assert b"nothing has exactly this name, so it is a pattern; 1 matching name" in again


def test_a_recorded_folder_that_is_gone_still_matches(local_there: Transfers) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    assert there.verify("there:data/run-*").last["files"] == 4
    (there.root / "run-2/out").unlink()
    (there.root / "run-2").rmdir()
    assert there.verify("there:data/run-*", exit=6).last["files_failed"] == 1
    assert there.verify("there:data/s*").last["files"] == 2


def test_symlinks_above_local_sources_are_followed_and_those_among_them_kept(local_there: Transfers) -> None:
    there = local_there
    make_tree(there.folder / "real", {b"a/x": b"1", b"b/y": b"2", b"b/to-x": Link(b"../a/x")})
    (there.folder / "seen").symlink_to("real")
    words = there.folder / "seen/a/x", there.folder / "seen/b/y", there.folder / "seen/b/to-x"
    there.hibali("push", *words, "there:new", exit=0)
    assert there.place.files("new") == {b"x": b"1", b"y": b"2"}
    assert (there.place.at("new") / "to-x").is_symlink()  # type: ignore[attr-defined]


def test_neither_side_is_listed_beside_the_sources(local_there: Transfers) -> None:
    """The folder around the sources is often a home folder: unreadable and changing names in it do not matter."""
    there = local_there
    make_tree(there.source, {b"a": b"1", b"d/e": b"2", b"fifo-beside/x": b"3"})
    os.mkfifo(there.source / "fifo-beside/fifo")
    there.place.plant("data", {b"d/old": b"1", b"big/x": b"1"})
    answer = there.hibali("push", there.source / "a", there.source / "d", "there:data", "--json", exit=0)
    assert counts(answer)["files_moved"] == 2
    assert there.there().keys() == {b"a", b"d/e", b"d/old", b"big/x"}
