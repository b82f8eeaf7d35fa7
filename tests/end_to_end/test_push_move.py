"""Test that --move removes at the source what is proven at the target, and nothing else."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali_api.transfer_request import transfer_request
from tests.support import strace
from tests.support.agent_signals import wait_for_agent_exit
from tests.support.small_filesystem import mounted
from tests.support.transfers import Transfers
from tests.support.trees import Folder, Link, Tree, make_tree, many_files, read_tree
from transfers.engine.operation import synchronise

TREE: Tree = {
    b"a": b"1",
    b"b/c": b"22",
    b"b/d/e": b"",
    "ä ö".encode(): b"333",
    b"link": Link(b"a"),
    b"empty": Folder(),
}


def left(there: Transfers) -> set[bytes]:
    """Return the names in the source."""
    return set(read_tree(there.source))


@pytest.fixture(
    params=[
        "local",
        pytest.param("ssh", marks=pytest.mark.heavy),
        pytest.param("sftp", marks=pytest.mark.heavy),
    ]
)
def there(request: pytest.FixtureRequest, transfers_to: Any) -> Transfers:
    made: Transfers = transfers_to(request.param)
    return made


def test_a_push_moves_everything_and_removes_empty_folders(there: Transfers) -> None:
    there.make(TREE)
    answer = there.push("--move", "-v")
    assert answer.last["files_removed"] == 5
    assert left(there) == set()
    assert there.source.is_dir()
    assert there.tree_there().keys() >= {b"a", b"b/c", b"b/d/e", b"link", b"empty"}
    there.check_no_own_files()
    removed = {
        line["path"] for line in answer.lines if line["kind"] == "removed" and line["type"] == "folder"
    }
    assert removed == {"b", "b/d", "empty"}
    there.verify()
    again = there.push("--move")
    assert (again.last["files_removed"], again.last["files_moved"]) == (0, 0)
    assert there.there()[b"a"] == b"1"


def test_a_pull_moves_everything_from_a_site(there: Transfers, tmp_path: Path) -> None:
    there.make(TREE)
    there.push()
    answer = there.pull(tmp_path / "back", "--move")
    assert (answer.last["files_moved"], answer.last["files_removed"]) == (5, 5)
    assert not there.there()
    there.check_no_own_files()
    assert (tmp_path / "back" / "b" / "c").read_bytes() == b"22"


def test_a_bucket_is_emptied_by_a_pull(bucket_there: Transfers, tmp_path: Path) -> None:
    bucket_there.make({b"a": b"1", b"b/c": b"22"})
    bucket_there.push("--move")
    assert left(bucket_there) == set()
    answer = bucket_there.pull(tmp_path / "back", "--move")
    assert answer.last["files_removed"] == 2
    assert not bucket_there.there()


def test_one_file_is_moved(there: Transfers) -> None:
    there.make({b"a": b"1", b"other": b"2"})
    answer = there.hibali("push", there.source / "a", "there:data/", "--move", "--json", exit=0)
    assert answer.last["files_removed"] == 1
    assert left(there) == {b"other"}
    assert there.there() == {b"a": b"1"}


def test_the_plan_shows_what_would_be_removed(local_there: Transfers) -> None:
    local_there.make({b"a": b"1", b"b": b"2"})
    local_there.push("--include", "a")
    planned = local_there.hibali(
        "push", local_there.source, "there:data", "--move", "--dry-run", "--json", exit=0
    )
    removed = [
        line["path"] for line in planned.lines if line["kind"] == "action" and line["action"] == "remove"
    ]
    assert sorted(removed) == ["a", "b"]
    assert planned.last["count"] == len(planned.lines) - 1
    assert left(local_there) == {b"a", b"b"}
    shown = local_there.hibali("push", local_there.source, "there:data", "--move", "--dry-run", exit=0)
    assert b"Would then remove 2 files at the source." in shown.err


def test_excluded_files_and_their_folders_stay(local_there: Transfers) -> None:
    local_there.make({b"a/b": b"1", b"a/raw.tmp": b"2", b"c/d": b"3"})
    answer = local_there.push("--move", "--exclude", "*.tmp")
    assert answer.last["files_removed"] == 2
    assert left(local_there) == {b"a/raw.tmp"}


def test_a_file_of_the_same_size_and_time_is_compared_by_digest(local_there: Transfers) -> None:
    local_there.make({b"a": b"right", b"b": b"same"})
    local_there.push()
    there = local_there.root / "a"
    stamp = there.stat()
    there.write_bytes(b"wrong")
    os.utime(there, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert local_there.push().last["files_moved"] == 0
    answer = local_there.push("--move")
    assert (answer.last["files_moved"], answer.last["files_removed"]) == (1, 2)
    assert local_there.there() == {b"a": b"right", b"b": b"same"}


def test_hard_links_are_moved_with_all_their_names(local_there: Transfers) -> None:
    for words in ((), ("--hard-links",)):
        local_there.make({b"a": b"1"})
        os.link(local_there.source / "a", local_there.source / "b")
        answer = local_there.push("--move", *words)
        assert answer.last["files_removed"] == 2, words
        assert local_there.there() == {b"a": b"1", b"b": b"1"}
        assert left(local_there) == set()


@pytest.mark.parametrize("change", ["content", "same time", "replaced"])
def test_a_file_that_changes_after_it_was_read_stays(
    local_there: Transfers, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file changes once it is at the target: events are reported before anything is removed."""
    local_there.make({b"a": b"1", b"b": b"2"})
    path = local_there.source / "a"
    stamp = path.stat()

    def on_event(event: Any) -> None:
        if type(event).__name__ != "Moved" or event.path != b"a":
            return
        new = tmp_path / "new" if change == "replaced" else path
        new.write_bytes(b"x")
        if change != "content":
            os.utime(new, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        new.rename(path)

    receipt = in_process(local_there, on_event, monkeypatch)
    assert (receipt.exit, receipt.files_removed) == (6, 1)
    assert [(each.path, each.code) for each in receipt.failures] == [(b"a", "source-left")]
    assert local_there.there() == {b"a": b"1", b"b": b"2"}
    assert path.read_bytes() == b"x"
    assert left(local_there) == {b"a"}


@pytest.mark.parametrize(
    "number", [*(pytest.param(one, marks=pytest.mark.heavy) for one in range(1, 20) if one % 8), 8, 16]
)
def test_a_kill_between_proof_and_removal_loses_nothing(local_there: Transfers, number: int) -> None:
    """Kill any process of the command at each system call that removes a name: locks, files and folders of the source."""
    strace.require_strace()
    tree = {b"a": b"1", b"b/c": b"22", b"b/d/e": b"333", b"f": b"4444"}
    local_there.make(tree)
    with local_there.under(*strace.kill_at(strace.UNLINK, number)):
        local_there.hibali("push", local_there.source, "there:data", "--move")
    wait_for_agent_exit(local_there)
    here = {
        name: leaf
        for name, leaf in read_tree(local_there.source).items()
        if isinstance(leaf, bytes) and not name.startswith(b".hibali/")  # the lock of the killed command
    }
    there = local_there.committed_files()
    assert here.items() | there.items() == tree.items()
    local_there.push("--move")
    assert local_there.there() == tree
    assert left(local_there) == set()
    local_there.check_no_own_files()


@pytest.mark.parametrize("flag", [["--delete"], ["--checksum", "--recorded"], ["--pack"], ["--follow"]])
def test_unsafe_combinations_are_refused(local_there: Transfers, flag: list[str]) -> None:
    local_there.make({b"a": b"1"})
    answer = local_there.hibali("push", local_there.source, "there:data", "--move", *flag, "--json", exit=2)
    assert "--move" in answer.last["message"], str(answer)
    assert left(local_there) == {b"a"}


def test_protected_and_read_only_sources_are_refused(
    local_there: Transfers, tmp_path: Path, hibali: Any
) -> None:
    local_there.make({b"a": b"1"})
    local_there.push()
    root = hibali("pull", "there:", tmp_path / "back", "--move", "--json", exit=8)
    assert root.last["code"] == "protected-place"
    home = hibali("push", str(hibali.home.folder), "there:home", "--move", "--json")
    assert (home.exit, home.last["code"]) == (8, "protected-place"), str(home)
    config = hibali.home.config
    config.write_text(
        config.read_text().replace('default_root = "data"\n', 'default_root = "data"\nread_only = ["data"]\n')
    )
    assert (
        hibali("pull", "there:data", tmp_path / "back", "--move", "--json", exit=8).last["code"]
        == "read-only-root"
    )
    assert local_there.there() == {b"a": b"1"}


@pytest.mark.heavy
def test_many_files_are_moved_by_several_processes(local_there: Transfers) -> None:
    tree = many_files(3000, 3000)
    local_there.make(tree)
    answer = local_there.push("--move", "--workers", "2")
    assert answer.last["files_removed"] == 3000
    assert left(local_there) == set()
    assert local_there.there() == tree


def test_a_dry_run_says_that_only_removals_are_left(local_there: Transfers) -> None:
    local_there.make({b"a": b"1"})
    local_there.push()
    words = ("push", local_there.source, "there:data", "--dry-run", "--detailed-exit-code")
    local_there.hibali(*words, exit=0)
    local_there.hibali(*words, "--move", exit=10)


def test_the_ledger_has_the_removal_at_the_source(local_there: Transfers) -> None:
    local_there.make({b"a": b"1", b"b": b"2"})
    local_there.push("--move")
    listed = [
        line for line in local_there.hibali("history", "--json", exit=0).lines if line["kind"] == "operation"
    ]
    assert {(line["operation"], line["result"]) for line in listed} == {("push", "done"), ("rm", "done")}
    local_there.verify()
    assert local_there.verify("there:data").last["files_hashed"] == 2


def test_packs_are_refused_as_a_source(local_there: Transfers, tmp_path: Path) -> None:
    local_there.make({b"a": b"1", b"b": b"2"})
    local_there.push("--pack")
    before = local_there.whole_state()
    answer = local_there.pull(tmp_path / "back", "--move", exit=8)
    assert answer.last["code"] == "cannot-remove"
    assert local_there.whole_state() == before


def in_process(there: Transfers, on_event: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Push with --move in this process, where an event can change files at a certain moment."""
    for name, value in there.hibali.env.items():
        monkeypatch.setenv(name, value)
    values = {"move": True, "files_from": None}
    request = transfer_request("push", str(there.source), "there:data", values, load_sites())
    return synchronise(request, on_event)


def overwrite(path: Path, *, same_time: bool = True) -> None:
    """Replace the content by another one of the same size, and with its time as `rsync -t` does."""
    stamp = path.stat()
    path.write_bytes(b"x" * stamp.st_size)
    if same_time:
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


@pytest.mark.parametrize("same_time", [False, True])
def test_a_file_whose_copy_changes_after_the_proof_stays(
    local_there: Transfers,
    same_time: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`a` is kept and `b` sent; while `b` is committed, somebody overwrites both at the target (`b` with a new time)."""
    local_there.make({b"a": b"1"})
    local_there.push()
    local_there.make({b"b": b"2", b"c": b"3"})

    def on_event(event: Any) -> None:
        if type(event).__name__ == "Moved" and event.path == b"c":
            overwrite(local_there.root / "a", same_time=same_time)
            overwrite(local_there.root / "b", same_time=False)

    receipt = in_process(local_there, on_event, monkeypatch)
    assert {(each.path, each.code) for each in receipt.failures} == {
        (b"a", "source-left"),
        (b"b", "source-left"),
    }
    assert (receipt.exit, left(local_there)) == (6, {b"a", b"b"})


def test_a_file_that_is_one_with_its_copy_stays(local_there: Transfers) -> None:
    local_there.make({b"a": b"1", b"b": b"2"})
    local_there.push()
    (local_there.root / "a").unlink()
    os.link(local_there.source / "a", local_there.root / "a")
    answer = local_there.push("--move", exit=6)
    assert answer.last["files_removed"] == 1
    assert left(local_there) == {b"a"}


@pytest.mark.parametrize("several", [False, True])
def test_a_server_that_shows_the_source_is_recognized(
    transfers_to: Any,
    tmp_path: Path,
    several: bool,
) -> None:
    there = transfers_to("webdav")
    folders = [tmp_path / "w/p/one", tmp_path / "w/q/two"] if several else [there.source]
    with ExitStack() as stack:
        for folder in folders:
            make_tree(folder, {b"a": b"1", b"b/c": b"2"})
            stack.enter_context(mounted(folder, there.root / folder.name if several else there.root))
        answer = there.hibali("push", "--move", *folders, "there:data", "--json")
        # with one folder, the locks of both ends are in it, and the server made the first one
        allowed = {(8, "overlap")} if several else {(8, "overlap"), (5, "locked"), (6, None)}
        assert (answer.exit, answer.last.get("code")) in allowed, str(answer)
        for folder in folders:
            assert {b"a", b"b/c"} <= set(read_tree(folder))
            assert not list(folder.glob(".hibali-*")), "the marker was removed"


def test_a_file_whose_permissions_cannot_be_set_stays(local_there: Transfers, unprivileged: Any) -> None:
    local_there.make({b"a": b"1", b"b": b"2"})
    local_there.push()
    (local_there.source / "a").chmod(0o600)
    os.chown(local_there.root / "a", 12345, -1)
    (local_there.root / "a").chmod(0o644)
    answer = unprivileged(
        "push", local_there.source, "there:data", "--move", "--modes", "keep", "--json", exit=6
    )
    assert answer.last["files_removed"] == 1, str(answer)
    assert left(local_there) == {b"a"}


def test_a_source_that_cannot_be_written_is_left_with_a_word(
    local_there: Transfers, unprivileged: Any
) -> None:
    local_there.make({b"a": b"1"})
    local_there.source.chmod(0o555)
    answer = unprivileged("push", local_there.source, "there:data", "--move", "--json", exit=6)
    local_there.source.chmod(0o755)
    (failure,) = (line for line in answer.lines if line["kind"] == "failed")
    assert failure["code"] == "source-left"
    assert "nothing was removed at the source" in failure["message"]
    assert (local_there.there(), left(local_there)) == ({b"a": b"1"}, {b"a"})


def test_each_of_several_sources_is_checked_not_their_common_folder(
    local_there: Transfers, tmp_path: Path, hibali: Any
) -> None:
    home = hibali.home.folder
    files = [home / "x", home / "y"]
    for file in files:
        file.write_bytes(b"1")
    hibali("push", "--move", *files, "there:data", exit=0)
    assert not any(file.exists() for file in files)
    hibali("pull", "--move", "there:data/x", "there:data/y", tmp_path / "back", exit=0)
    assert not local_there.there()
    (home.parent / "z").write_bytes(b"1")
    words = "push", "--move", home, home.parent / "z", "there:data", "--json"
    assert hibali(*words, exit=8).last["code"] == "protected-place"
    assert (home.parent / "z").exists()


def test_of_several_sources_their_own_folders_stay(local_there: Transfers, tmp_path: Path) -> None:
    folders = [tmp_path / "p" / "one", tmp_path / "p" / "q" / "two"]
    for folder in folders:
        make_tree(folder, {b"b/c": b"2"})
    local_there.hibali("push", "--move", *folders, "there:data", exit=0)
    assert set(read_tree(tmp_path / "p")) == {b"one", b"q/two"}
    assert local_there.there() == {b"one/b/c": b"2", b"two/b/c": b"2"}
