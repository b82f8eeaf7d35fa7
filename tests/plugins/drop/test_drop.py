"""Test that `drop` removes local files only with a proof that the site holds the same bytes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import MakeTransfers
from tests.support.small_filesystem import mounted
from tests.support.transfers import Transfers, actions, at_agents, failed
from tests.support.trees import flip_byte, make_tree, many_files, read_tree
from tests.support.waiting import wait_for
from transfers.agent.removing import remove_exact
from transfers.agent.safe_path import Root

there = at_agents("s3", "sftp")

TREE = {b"a": b"1", b"sub/b": b"22", b"sub/\xff": b"333", b"sub/new\nline": b"4" * 3000}


def drop(there: Transfers, *words: str | bytes | Path, exit: int = 0) -> Any:  # noqa: A002 - as the fixture `hibali` has it
    answer = there.hibali("drop", *words, "--json", exit=exit)
    assert b"Traceback" not in answer.err, str(answer)
    assert answer.last["exit"] == exit
    return answer


def pushed(there: Transfers) -> Path:
    tree = TREE if there.place.holds_folders else {b"a": b"1", b"sub/b": b"22"}
    there.make(tree)
    there.push()
    return there.source


def journal_of(there: Transfers, operation: str) -> list[dict[str, Any]]:
    path = there.hibali.home.state / "operations" / f"{operation}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_files_that_the_site_holds_are_removed_and_can_be_pulled_back(there: Transfers) -> None:
    source = pushed(there)
    before, copies = read_tree(source), there.there()
    assert set(actions(drop(there, "-n", source, "--at", "there:data")).values()) == {"delete"}
    assert read_tree(source) == before
    receipt = drop(there, source, "--at", "there:data").last
    assert (receipt["operation"], receipt["files_deleted"], receipt["files_failed"]) == (
        "drop",
        len(before),
        0,
    )
    assert (receipt["source"], receipt["target"]) == ("there:data", str(source))
    assert (source / "sub").is_dir()
    assert not any(path.is_file() for path in source.rglob("*"))
    assert there.there() == copies
    lines = journal_of(there, receipt["id"])
    assert [line["kind"] for line in lines].count("proven") == len(before)
    assert all(len(line["sha256"]) == 64 for line in lines if line["kind"] == "proven")
    assert drop(there, source, "--at", "there:data").last["files_deleted"] == 0
    there.pull(source)
    assert read_tree(source) == before
    there.check_no_own_files()
    assert not list(source.glob(".hibali"))


def test_files_without_proof_stay_and_are_named(there: Transfers) -> None:
    source = pushed(there)
    there.place.remove("data", b"sub/b")
    there.place.corrupt("data", b"a")
    (source / "new").write_bytes(b"never pushed")
    before = read_tree(source)
    answer = drop(there, source, "--at", "there:data", exit=6)
    assert failed(answer) == {b"sub/b": "missing", b"a": "differs", b"new": "missing"}
    assert read_tree(source).keys() >= {b"sub/b", b"a", b"new"}
    assert answer.last["files_deleted"] == len(before) - 3
    text = there.hibali("drop", source, "--at", "there:data", exit=6).err
    assert b"3 files kept" in text
    assert b"[not-dropped]" in text


def test_the_recorded_place_is_used_without_place(there: Transfers) -> None:
    source = pushed(there)
    assert drop(there, source / "sub/b", "--at", "there").last["files_deleted"] == 1
    assert drop(there, source / "sub", "--at", "there").last["source"] == "there:data/sub"
    (source.parent / "other").mkdir()
    assert drop(there, source.parent / "other", "--at", "there", exit=3).last["code"] == "never-transferred"
    # sources from several folders
    several = make_tree(there.folder / "several", {b"x/a": b"1", b"y/b": b"2"})
    there.hibali("push", several / "x/a", several / "y", "there:both", exit=0)
    for words in (("drop", several / "y", "--at", "there"), ("status", several / "y")):
        assert b"several folders" in there.hibali(*words, exit=3).err
    assert drop(there, several / "y", "--at", "there:both/y").last["files_deleted"] == 1
    assert drop(there, source, "--at", "nowhere", exit=2).last["code"] == "unknown-site"


def test_single_files_and_several_paths(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"1", b"b": b"2", b"c/d": b"3"})
    there.push()
    a, b, c = (there.source / name for name in "abc")
    drop(there, a, "--at", "there:data/b", exit=6)
    assert drop(there, a, "--at", "there:data", exit=2).last["code"] == "is-a-folder"
    assert drop(there, c, "--at", "there:data/a", exit=2).last["code"] == "not-a-folder"
    assert drop(there, a, "--at", "there:data/").lines[-1]["files_deleted"] == 1
    assert drop(there, b, c, "--at", "there:data").last == {"schema": 1, "kind": "end", "count": 2, "exit": 0}
    assert read_tree(there.source) == {b"c": read_tree(there.source)[b"c"]}
    # the same command again, after everything was removed
    drop(there, a, "--at", "there:data/")
    assert drop(there, there.source / "never", "--at", "there:data/", exit=3).last["code"] == "no-such-place"
    # the same words in another folder
    words = "drop", "a", "--at", "there:data/", "--json"
    there.pull(there.source)
    there.hibali(*words, cwd=there.source, exit=0)
    there.hibali(*words, cwd=there.source, exit=0)
    assert there.hibali(*words, cwd=there.source.parent, exit=3).last["code"] == "no-such-place"
    assert drop(there, "there:data/a", "--at", "there:data/a", exit=2).last["code"] == "not-a-local-file"


def test_links_hard_links_and_special_files_stay(local_there: Transfers) -> None:
    there = local_there
    source = pushed(there)
    (source / "sub/b").unlink()
    os.link(source / "a", source / "sub/b")
    (source / "link").symlink_to("a")
    os.mkfifo(source / "fifo")
    there.place.plant("data", {b"link": b"1", b"fifo": b"", b"sub/b": b"1"})
    answer = drop(there, source, "--at", "there:data", exit=6)
    kept = {b"a": "hard-linked", b"sub/b": "hard-linked", b"link": "is-a-symlink", b"fifo": "special-file"}
    assert failed(answer) == kept
    assert {
        os.fsencode(path.relative_to(source)) for path in source.rglob("*") if not path.is_dir()
    } == kept.keys()
    for name in ("link", "fifo"):
        assert drop(there, source / name, "--at", "there:data/a", exit=2).last["code"] == "not-a-file"
    assert drop(there, source / "a", "--at", "there:data/a", exit=6).last["files_deleted"] == 0


@pytest.mark.parametrize(
    "word", ["local", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "sftp"))]
)
def test_the_copy_is_never_the_local_file_itself(transfers_to: MakeTransfers, word: str) -> None:
    there = transfers_to(word)
    there.place.plant("data", {b"a": b"1", b"sub/b": b"2"})
    before = read_tree(there.root)
    (there.root.parent / "alias").symlink_to(there.root)
    (there.root.parent / "alias-of-a").symlink_to(there.root / "a")
    for path, place in (
        (there.root, "there:data"),
        (there.root, "there:alias"),
        (there.root / "sub", "there:data"),
        (there.root / "a", "there:data/a"),
        (there.root / "a", "there:alias-of-a"),
    ):
        answer = there.hibali("drop", path, "--at", place, "--json")
        assert not any(line["kind"] == "deleted" for line in answer.lines)
        assert read_tree(there.root) == before
        assert answer.last["code"] == "overlap", str(answer)


@pytest.mark.parametrize(
    "word", ["local", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "sftp"))]
)
def test_a_file_in_a_folder_that_is_mounted_at_both_stays(transfers_to: MakeTransfers, word: str) -> None:
    there = transfers_to(word)
    before = {b"a": b"1", b"sub/x": b"22", b"sub/y": b"333"}
    there.make(before)
    there.push()
    with mounted(there.source / "sub", there.root / "sub"):
        if word == "sftp":  # it has no inodes
            assert drop(there, there.source, "--at", "there:data", exit=8).last["code"] == "overlap"
            assert read_tree(there.source) == before
            return
        answer = drop(there, there.source, "--at", "there:data", exit=6)
    assert failed(answer) == {b"sub/x": "overlap", b"sub/y": "overlap"}
    assert read_tree(there.source) == {name: before[name] for name in (b"sub/x", b"sub/y")}


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["webdav", "s3-rclone"])
def test_a_server_that_shows_the_local_folder_is_no_copy(
    transfers_to: MakeTransfers, request: pytest.FixtureRequest, word: str
) -> None:
    there = transfers_to(word)
    if word == "webdav":
        root = there.root
    else:
        root = Path(request.getfixturevalue("rclone_s3").store.folder, there.place.bucket.name, "data")
    make_tree(root, {b"a": b"1", b"sub/b": b"22"})
    before = read_tree(root)
    for path, place in ((root, "there:data"), (root / "a", "there:data/a"), (root / "sub", "there:data/sub")):
        assert drop(there, path, "--at", place, exit=8).last["code"] == "overlap"
        assert read_tree(root) == before


def test_a_file_that_changes_after_the_proof_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")

    def listed() -> tuple[int, ...]:
        found = path.stat()
        return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_dev, found.st_ino, found.st_nlink

    root = Root(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    for change in ("content", "replaced", "link", "name"):
        before = listed()
        kept = path.stat()
        time.sleep(0.02)  # the clock of the filesystem
        if change == "content":  # same size and time, same inode
            flip_byte(path)
            os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
        elif change == "replaced":
            (tmp_path / "new").write_bytes(b"2")
            os.utime(tmp_path / "new", ns=(kept.st_atime_ns, kept.st_mtime_ns))
            (tmp_path / "new").rename(path)
        elif change == "link":
            path.rename(tmp_path / "real")
            path.symlink_to("real")
        else:
            (tmp_path / "real").rename(path)
            os.link(path, tmp_path / "second")
        problem = remove_exact(root, b"a", before)
        assert problem is not None, change
        assert path.exists(), change
    assert remove_exact(root, b"a", listed()) is None
    assert not path.exists()
    assert remove_exact(root, b"a", before) is not None
    root.close()


@pytest.mark.heavy
def test_a_killed_drop_is_resumed_and_every_removal_has_its_proof(local_there: Transfers) -> None:
    there = local_there
    tree = many_files(3000, 300)
    there.make(tree)
    there.push()
    process = there.hibali.start("drop", there.source, "--at", "there:data", "--json")
    wait_for(lambda: len(read_tree(there.source)) < 2500, 60)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    left = {
        name: leaf
        for name, leaf in read_tree(there.source).items()
        if isinstance(leaf, bytes) and b".hibali" not in name
    }
    assert left.items() <= tree.items()
    assert there.there() == tree
    (newest,) = (
        path
        for path in (there.hibali.home.state / "operations").glob("*.jsonl")
        if '"drop"' in path.read_text()
    )
    proven = {line["path"] for line in journal_of(there, newest.stem) if line["kind"] == "proven"}
    assert {name.decode() for name in tree.keys() - left.keys()} <= proven
    answer = drop(there, there.source, "--at", "there:data")
    assert answer.last["files_deleted"] == len(left)
    assert not any(path.is_file() for path in there.source.rglob("*"))
