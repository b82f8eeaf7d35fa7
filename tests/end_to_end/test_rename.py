"""Test --rename: what goes where, in every way that files take, and what is refused before anything changes."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hibali
from hibali.errors import UsageError
from tests.end_to_end.conftest import MakeTransfers
from tests.end_to_end.test_direct import Sites, sites  # noqa: F401  # a fixture
from tests.end_to_end.test_workers import wait_for, workers_of
from tests.support.agent_signals import wait_for_agent_exit
from tests.support.small_filesystem import mounted
from tests.support.transfers import Transfers, actions, contents, counts, path_of
from tests.support.trees import (
    HOSTILE_NAMES,
    File,
    Folder,
    Leaf,
    Link,
    Tree,
    make_tree,
    many_files,
    read_tree,
    sha256,
)
from tests.support.watcher import Watcher

TREE: Tree = {
    b"sub-01/anat/sub-01_T1w": b"1",
    b"sub-01/anat/large": b"0123456789abcdef" * (5 << 16),
    b"sub-02/link": Link(b"x"),
    b"sub-02/x": b"22",
    b"sub-02/empty": Folder(),
    b"notes": b"333",
}
RULE = ("--rename", r"sub-(\d+)/s\1/")
NEW = {
    b"s01/anat/sub-01_T1w": TREE[b"sub-01/anat/sub-01_T1w"],
    b"s01/anat/large": TREE[b"sub-01/anat/large"],
    b"s02/x": b"22",
    b"notes": b"333",
}
FLAT = ("--rename", r"s|^(sub-\d+)/(anat/)?|\1_|")
ONLY_FILES = {name: leaf for name, leaf in TREE.items() if isinstance(leaf, bytes)}


def pairs(answer: Any, kind: str) -> dict[bytes, str]:
    """Return the names of lines at the target, each with that at the source if it is another one."""
    return {
        path_of(line): line["renamed_from"]
        for line in answer.lines
        if line["kind"] == kind and "renamed_from" in line
    }


@pytest.fixture(
    params=["local", "s3", *(pytest.param(w, marks=pytest.mark.heavy) for w in ("ssh", "sftp", "webdav"))]
)
def there(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    return transfers_to(request.param)


def test_a_push_renames_and_the_same_again_keeps(there: Transfers) -> None:
    there.make(ONLY_FILES)
    planned = there.hibali("push", "-n", there.source, "there:data", *RULE, "--json", exit=0)
    assert pairs(planned, "action")[b"s02/x"] == "sub-02/x"
    assert set(NEW) <= actions(planned).keys()
    receipt = there.push(*RULE)
    assert (receipt.last["files_moved"], receipt.last["files_failed"]) == (4, 0)
    assert there.there() == NEW
    there.check_no_own_files()
    assert there.verify().last["exit"] == 0
    again = counts(there.push(*RULE))
    assert (again["files_moved"], again["files_kept"], again["bytes_sent"]) == (0, 4, 0)
    assert counts(there.push(*RULE, "--checksum"))["files_kept"] == 4


def test_a_pull_renames_back(there: Transfers, tmp_path: Path) -> None:
    there.place.plant("data", NEW)
    back = there.pull(tmp_path / "back", "--rename", r"s(\d+)/sub-\1/", "-v")
    assert read_tree(tmp_path / "back") == ONLY_FILES
    assert pairs(back, "moved")[b"sub-02/x"] == "s02/x"
    assert counts(there.pull(tmp_path / "back", "--rename", r"s(\d+)/sub-\1/"))["files_moved"] == 0


def test_only_what_is_at_no_new_name_is_deleted(there: Transfers) -> None:
    there.make(ONLY_FILES)
    there.push()
    answer = there.push(*RULE, "--delete")
    assert (answer.last["files_deleted"], answer.last["files_kept"]) == (3, 1)
    assert there.there() == NEW
    assert counts(there.push(*RULE, "--delete"))["files_deleted"] == 0
    (there.source / "sub-02/x").unlink()
    assert counts(there.push(*RULE, "--delete"))["files_deleted"] == 1
    assert there.there().keys() == NEW.keys() - {b"s02/x"}


def test_moved_files_are_removed_under_their_old_names(there: Transfers) -> None:
    if there.place.word == "webdav":
        pytest.skip("a WebDAV server proves nothing by sha256 in one call")
    there.make(ONLY_FILES)
    planned = there.hibali("push", "-n", there.source, "there:data", *FLAT, "--move", "--json", exit=0)
    removed = {path_of(line) for line in planned.lines if line.get("action") == "remove"}
    assert removed == ONLY_FILES.keys()
    answer = there.push(*FLAT, "--move")
    assert (answer.last["files_moved"], answer.last["files_removed"]) == (4, 4)
    assert not read_tree(there.source)
    assert there.there().keys() == {b"sub-01_sub-01_T1w", b"sub-01_large", b"sub-02_x", b"notes"}


def test_a_server_that_shows_the_source_under_a_new_name_is_recognized(transfers_to: MakeTransfers) -> None:
    there = transfers_to("webdav")
    there.make({b"sub-01/a": b"1", b"sub-01/b/c": b"2", b"d": b"3"})
    there.root.mkdir(parents=True)
    with mounted(there.source / "sub-01", there.root / "s01"):
        answer = there.push("--move", *RULE, exit=6)
        assert answer.last["code"] == "overlap"
        assert read_tree(there.source).keys() >= {b"sub-01/a", b"sub-01/b/c", b"d"}


def test_wildcards_and_several_sources_are_renamed_below_the_target(there: Transfers, tmp_path: Path) -> None:
    there.place.plant("data", ONLY_FILES)
    words = "there:data/sub-*", "there:data/notes"
    answer = there.hibali("pull", *words, tmp_path / "into", *RULE, "--json", exit=0)
    assert answer.last["files_moved"] == 4
    assert read_tree(tmp_path / "into") == NEW
    there.hibali(
        "pull",
        "there:data/sub-01/anat",
        "there:data/sub-02",
        tmp_path / "deep",
        "--rename",
        "s|^|a/b/|",
        exit=0,
    )
    assert read_tree(tmp_path / "deep").keys() == {b"a/b/anat/sub-01_T1w", b"a/b/anat/large", b"a/b/sub-02/x"}
    assert counts(there.hibali("pull", *words, tmp_path / "into", *RULE, "--json", exit=0))["files_kept"] == 4


def test_symlinks_folders_and_hard_links_are_renamed(local_there: Transfers) -> None:
    there = local_there
    there.make(TREE)
    os.link(there.source / "sub-02/x", there.source / "sub-02/y")
    there.push(*RULE, "--hard-links", "--modes", "keep")
    links = {b"s02/link": Link(b"x"), b"s02/empty": Folder(), b"s02/y": b"22"}
    assert there.tree_there() == NEW | links
    assert (there.root / "s02/x").samefile(there.root / "s02/y")
    again = there.push(*RULE, "--hard-links", "--modes", "keep").last
    assert (again["files_moved"], again["files_linked"], again["files_adjusted"]) == (0, 0, 0)


def test_hostile_names_arrive_with_what_the_rule_adds(local_there: Transfers) -> None:
    names = [name for name in HOSTILE_NAMES if len(name) < 200]
    local_there.make(dict.fromkeys(names, b"1"))
    local_there.push("--rename", "s/^/new_/", "--rename", "s/$/.old/")
    assert local_there.there().keys() == {b"new_" + name + b".old" for name in names}
    assert counts(local_there.push("--rename", "s/^/new_/", "--rename", "s/$/.old/"))["files_moved"] == 0


def test_python_has_the_same_rules(hibali_home: Any, tmp_path: Path) -> None:
    source, target = make_tree(tmp_path / "from", ONLY_FILES), tmp_path / "to"
    rules = ["s/sub-/s/", "s/notes/n/"]
    made = hibali.plan(source, target, rename=rules)
    assert {action.entry.path: action.entry.renamed_from for action in made.actions}[b"n"] == b"notes"
    assert hibali.sync(source, target, rename=rules).files_moved == 4
    assert read_tree(target).keys() == {*NEW, b"n"} - {b"notes"}
    with pytest.raises(UsageError):
        hibali.sync(source, target, rename="s/a")
    del hibali_home


def test_files_are_selected_by_their_names_at_the_source(local_there: Transfers) -> None:
    there = local_there
    there.make(ONLY_FILES)
    there.push(*RULE, "--include", "sub-*", "--exclude", "large")
    assert there.there().keys() == {b"s01/anat/sub-01_T1w", b"s02/x"}
    listed = there.folder / "list"
    listed.write_bytes(b"notes\nsub-03\n")
    answer = there.push(*RULE, "--files-from", listed, exit=6)
    assert [line["path"] for line in answer.lines if line["kind"] == "failed"] == ["sub-03"]
    # an excluded file has no name there that another one could not get
    there.push("--rename", "s|.*|one|", "--include", "notes")
    assert there.there()[b"one"] == b"333"


def test_the_journal_has_both_names(local_there: Transfers) -> None:
    local_there.make(ONLY_FILES)
    made = local_there.push(*RULE).last["id"]
    journal = next(local_there.hibali.home.state.rglob(f"{made}.jsonl")).read_text().splitlines()
    moved = {
        line["path"]: line.get("renamed_from") for line in map(json.loads, journal) if line["kind"] == "moved"
    }
    assert (moved["s02/x"], moved["notes"]) == ("sub-02/x", None)


def test_a_saved_plan_is_applied_exactly(local_there: Transfers) -> None:
    there = local_there
    there.make(ONLY_FILES)
    file = there.folder / "plan"
    words = "plan", there.source, "there:data", "-o", file, "--exclude", "large"
    there.hibali(*words, "--rename", r"sub-\d+(\/anat)?/s/", exit=0)
    # what the plan left out has the name of what it has
    (there.source / "sub-03").mkdir()
    (there.source / "sub-03/x").write_bytes(b"other")
    there.hibali("apply", file, exit=0)
    assert there.there() == {b"s/sub-01_T1w": b"1", b"s/x": b"22", b"notes": b"333"}
    there.hibali("apply", file, exit=0)
    # another file has become the one that was planned
    there.hibali(*words, "--rename", "s|sub-02/x|new|", exit=0)
    (there.source / "sub-02/x").rename(there.source / "new")
    assert there.hibali("apply", file, "--json", exit=8).last["code"] == "drift"
    assert b"new" not in there.there()
    changed = file.read_text().replace("sub-02/x", "sub-01/x")
    file.write_text(changed)
    assert there.hibali("apply", file, "--json", exit=8).last["code"] == "plan-damaged"


CLASHES = [
    ("s|.*|x|", "rename-conflict"),
    ("s|sub-02/x|notes|", "rename-conflict"),
    ("s|notes||", "rename-conflict"),
    ("s|^|/|", "rename-conflict"),
    ("s|sub-02|..|", "rename-conflict"),
    ("s|notes|a//b|", "rename-conflict"),
    (r"s|notes|\0|", "rename-conflict"),
    ("s|notes|sub-02/x/y|", "rename-conflict"),
    ("s|sub-02/x|sub-01|", "rename-conflict"),
    ("s|notes|" + "a/" * 2100 + "b|", "rename-conflict"),
    ("s|notes|" + "a" * 300 + "|", "unsafe-name"),
    ("s|notes|.hibali/lock|", "unsafe-name"),
]


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        each if number % 4 == 0 else pytest.param(*each, marks=pytest.mark.heavy)
        for number, each in enumerate(CLASHES)
    ],
)
def test_names_that_files_cannot_have_are_refused(local_there: Transfers, rule: str, code: str) -> None:
    there = local_there
    there.make(ONLY_FILES)
    there.place.plant("data", {b"old": b"1"})
    for more in ((), ("--delete",), ("--move",), ("--dry-run",)):
        answer = there.push("--rename", rule, *more, exit=8)
        assert answer.last["code"] == code, str(answer)
    assert read_tree(there.source) == ONLY_FILES
    assert there.there() == {b"old": b"1"}


def test_a_bucket_refuses_a_file_in_a_file_only_for_new_names(bucket_there: Transfers) -> None:
    there = bucket_there
    there.place.plant("data", {b"a": b"1", b"a/b": b"2"})
    there.hibali("sync", "there:data", "there:copy", "--rename", "s/^/x/", exit=8)
    assert not there.place.files("copy")
    there.hibali("sync", "there:data", "there:copy", "--rename", "s/c/d/", exit=0)
    assert there.place.files("copy").keys() == {b"a", b"a/b"}


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (("--rename", "sub"), "bad-rename", 2),
        (("--rename", "s/(/x/"), "bad-rename", 2),
        ((*RULE, "--delete", "--exclude", "x"), "usage", 2),
        ((*RULE, "--delete", "--files-from", "/dev/null"), "usage", 2),
        (("--rename", "(s+)+$/x/"), "rename-too-slow", 2),
        (("--rename", r"s/sub-\d+/all/", "--modes", "keep"), "rename-conflict", 8),
    ],
)
def test_what_cannot_be_renamed_is_refused(
    local_there: Transfers, words: tuple[str, ...], code: str, exit_code: int
) -> None:
    local_there.make(TREE | {b"s" * 60 + b"!": b""})
    answer = local_there.push(*words, exit=exit_code)
    assert answer.last["code"] == code, str(answer)
    assert not local_there.there()


def test_one_file_and_deletions_with_several_sources_are_refused(local_there: Transfers) -> None:
    there = local_there
    there.make(ONLY_FILES)
    answer = there.hibali("push", there.source / "notes", "there:data/", *RULE, exit=2)
    assert b"there:data/NEWNAME" in answer.err
    several = there.source / "sub-01", there.source / "sub-02"
    there.hibali("push", *several, "there:data", *RULE, "--delete", exit=2)
    assert not there.there()


def test_files_are_not_renamed_to_each_other_in_their_folder(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", {b"in/a": b"1", b"in/b": b"2"})
    words = "cp", "there:data/in/a", "there:data/in/b"
    swap = "--rename", "s|^a$|in/b|", "--rename", "s|^b$|in/a|"
    assert there.hibali(*words, "there:data", *swap, "--json", exit=8).last["code"] == "overlap"
    there.hibali(*words, "there:data/in/new", "--rename", "s/^/x/", exit=0)
    assert there.there() == {b"in/a": b"1", b"in/b": b"2", b"in/new/xa": b"1", b"in/new/xb": b"2"}


def test_a_copy_within_a_site_is_renamed(there: Transfers) -> None:
    if there.place.word == "sftp":
        pytest.skip("SFTP servers copy nothing")
    there.place.plant("data", ONLY_FILES)
    there.hibali("cp", "there:data", "there:copy", *RULE, exit=0)
    assert there.place.files("copy") == NEW


@pytest.mark.heavy
def test_one_site_sends_files_directly_to_another(sites: Sites) -> None:  # noqa: F811
    sites.make(TREE | {b"sub-02/large": File(os.urandom(20 << 20))})
    answer = sites.sync(*RULE)
    assert (answer.last["mover"], answer.last["files_failed"]) == ("direct", 0)
    found = read_tree(sites.south.at("data"))
    assert NEW.items() <= found.items()
    assert found[b"s02/large"] == read_tree(sites.north.at("data"))[b"sub-02/large"]
    assert sites.sync(*RULE).last["files_moved"] == 0
    several = sites.hibali(
        "sync", "--direct", "north:data/sub-01", "north:data/notes", "south:two", *RULE, exit=0
    )
    assert b"3 files" in several.err
    assert read_tree(sites.south.at("two")).keys() == {b"s01/anat/sub-01_T1w", b"s01/anat/large", b"notes"}


def renamed(tree: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {b"new/" + name.replace(b"/", b"_"): content for name, content in tree.items()}


def kill(process: Any) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


MANY = ("--rename", "s|/|_|g", "--rename", "s|^|new/|")


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["ssh", "s3"])
def test_workers_move_renamed_files_also_after_kills(transfers_to: MakeTransfers, word: str) -> None:
    there = transfers_to(word)
    tree = many_files(5200, 300) | {b"large/%d" % number: bytes([number]) * (9 << 20) for number in range(3)}
    there.make(tree)
    process = there.hibali.start("push", there.source, "there:data", "--workers", "2", *MANY, "--json")
    found = wait_for(lambda: workers_of(process.pid))
    wait_for(lambda: len(there.place.names("data")) > 300)
    os.kill(found[0], signal.SIGKILL)
    assert process.wait(120) == 0
    assert there.there() == renamed(tree)
    again = counts(there.push("--workers", "2", *MANY))
    assert (again["files_moved"], again["files_kept"]) == (0, len(tree))


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["local", "ssh", "s3"])
def test_a_killed_push_is_resumed_under_the_new_names(transfers_to: MakeTransfers, word: str) -> None:
    there = transfers_to(word)
    tree = many_files(600 if word == "s3" else 2000, 8000)
    there.make(tree)
    wanted = renamed(tree)
    right = {name: {sha256(content)} for name, content in wanted.items()}
    for share in (len(tree) // 10, len(tree) // 2):
        with Watcher(there.place, "data", right) as watcher:
            process = there.hibali.start("push", there.source, "there:data", *MANY, "--bwlimit", "4M")
            watcher.when(share, partial(kill, process))
            process.wait(120)
            wait_for_agent_exit(there)
    committed = there.committed_files()
    assert committed.items() <= wanted.items()
    assert len(committed) >= len(tree) // 2
    answer = counts(there.push(*MANY))
    assert answer["files_moved"] + answer["files_kept"] == len(tree)
    assert answer["files_kept"] >= (len(committed) if word != "s3" else 1)
    assert there.there() == wanted
    there.check_no_own_files()
    assert counts(there.push(*MANY))["files_moved"] == 0
    assert there.verify().last["exit"] == 0


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["ssh", "s3"])
def test_a_killed_push_of_a_large_file_continues_in_it(transfers_to: MakeTransfers, word: str) -> None:
    there = transfers_to(word)
    content = os.urandom(1 << 20) * 96
    there.make({b"sub-01/large": content})
    process = there.hibali.start("push", there.source, "there:data", *RULE, "--bwlimit", "40M")
    wait_for(lambda: there.place.unfinished("data") and process.poll() is None)
    wait_for(
        lambda: (
            b'"upload"' in b"".join(p.read_bytes() for p in there.hibali.home.state.rglob("*") if p.is_file())
            or word == "ssh"
        )
    )
    kill(process)
    process.wait(60)
    wait_for_agent_exit(there)
    assert not there.committed_files()
    there.push(*RULE)
    assert there.there() == {b"s01/large": content}
    there.check_no_own_files()


@pytest.mark.heavy
def test_a_killed_move_loses_no_file(transfers_to: MakeTransfers) -> None:
    there = transfers_to("ssh")
    tree = many_files(2000, 3000)
    there.make(tree)
    wanted = renamed(tree)
    for share in (100, 1200, 1900):
        process = there.hibali.start("push", there.source, "there:data", *MANY, "--move")
        while len(there.place.names("data")) <= share and process.poll() is None:
            time.sleep(0.01)
        kill(process)
        process.wait(60)
        wait_for_agent_exit(there)
        committed, left = there.committed_files(), contents(read_tree(there.source))
        assert committed.items() <= wanted.items()
        assert renamed(left).keys() | committed.keys() == wanted.keys()
    there.push(*MANY, "--move")
    assert there.there() == wanted
    assert not read_tree(there.source)


INTO_ONE = ("--rename", r"s|^[pq]\b|s|")  # p and q are s
MORNING = 1_577_836_800


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (b"hard link", ("--exclude", "p")),
        (Link(b"x"), ("--links", "skip")),
        (Folder(), ("--exclude", "p/a/")),
    ],
    ids=["hard-link", "symlink", "folder"],
)
def test_what_is_not_moved_stays_also_if_it_has_the_same_new_path(
    local_there: Transfers, other: Leaf, words: tuple[str, ...]
) -> None:
    there = local_there
    there.make({b"p/a": other, b"q": Folder()})
    if isinstance(other, bytes):
        os.link(there.source / "p/a", there.source / "q/a")
    else:
        make_tree(there.source, {b"q/a": Folder() if isinstance(other, Folder) else b"moved"})
    there.push(*INTO_ONE, "--move", *words)
    assert read_tree(there.source) == {b"p/a": other}


def test_a_file_that_is_new_since_the_plan_stays(local_there: Transfers) -> None:
    there = local_there
    there.make({b"q/a": bytes(3 << 20)})
    process = there.hibali.start("push", there.source, "there:data", *INTO_ONE, "--move", "--bwlimit", "2M")
    wait_for(lambda: there.place.names("data"))
    make_tree(there.source, {b"p/a": bytes(3 << 20)})
    assert process.wait(60) == 0
    assert read_tree(there.source) == {b"p/a": bytes(3 << 20)}


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["sftp", "s3"])
def test_an_excluded_file_that_cannot_be_distinguished_stays(
    transfers_to: MakeTransfers, word: str, tmp_path: Path
) -> None:
    there = transfers_to(word)
    there.make({b"p/a": b"same size", b"q/a": b"same size" if word == "s3" else b"other one"})
    for name in ("p/a", "q/a"):
        os.utime(there.source / name, (MORNING, MORNING))
    there.push()
    there.pull(tmp_path / "into", *INTO_ONE, "--move", "--exclude", "p/a")
    assert there.there() == {b"p/a": b"same size"}


def test_an_empty_folder_does_not_hide_what_another_one_has(local_there: Transfers) -> None:
    there = local_there
    there.make({b"p": Folder(), b"q/a": b"1"})
    (there.source / "q").chmod(0o700)
    assert there.push(*INTO_ONE, "--modes", "keep", exit=8).last["code"] == "rename-conflict"
    there.push(*INTO_ONE)
    assert there.there() == {b"s/a": b"1"}


DAYS = [{b"run%d/data" % day: b"day %d" % day} for day in (1, 2)]


def test_a_move_replaces_no_content_of_an_earlier_one(there: Transfers) -> None:
    if there.place.word == "webdav":
        pytest.skip("a WebDAV server proves nothing by sha256 in one call")
    flat = "--rename", "s|.*/||", "--move"
    there.make(DAYS[0])
    there.push(*flat)
    there.make(DAYS[1])
    for more in ((), ("-n",)):
        answer = there.push(*flat, *more, exit=8)
        assert (answer.last["code"], "--backup-dir" in answer.last["hint"]) == ("rename-conflict", True)
    assert (read_tree(there.source), there.there()) == (DAYS[1], {b"data": b"day 1"})
    # the same content at another time is no other one
    (there.source / "run2/data").write_bytes(b"day 1")
    assert there.push(*flat).last["files_removed"] == 1


def test_a_move_replaces_what_a_backup_keeps(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", {b"data": b"day 1"})
    there.make(DAYS[1])
    there.push("--rename", "s|.*/||", "--move", "--backup-dir", "there:old")
    assert there.there() == {b"data": b"day 2"}
    assert there.place.files("old") == {b"data": b"day 1"}
    assert not read_tree(there.source)


def test_nothing_is_changed_where_a_server_shows_the_source(transfers_to: MakeTransfers) -> None:
    there = transfers_to("webdav")
    tree = {b"sub-1": b"1", b"sub-2": b"2", b"s1": b"three"}
    there.make(tree)
    there.root.mkdir(parents=True)
    with mounted(there.source, there.root):
        for words in (("s/sub-/s/", "--exclude", "s1"), ("s/sub-/t/", "--delete")):
            assert there.push("--rename", *words, exit=8).last["code"] == "overlap"
        assert contents(read_tree(there.source)) == tree


def test_a_plan_with_hard_links_is_applied_beside_others_of_the_same_new_path(local_there: Transfers) -> None:
    there = local_there
    there.make({b"p/a": b"1", b"q/a": b"2"})
    for folder in ("p", "q"):
        os.link(there.source / folder / "a", there.source / folder / "b")
    file = there.folder / "plan"
    words = "--exclude", "q", "--hard-links", *INTO_ONE
    there.hibali("plan", there.source, "there:data", "-o", file, *words, exit=0)
    there.hibali("apply", file, exit=0)
    assert there.there() == {b"s/a": b"1", b"s/b": b"1"}
    assert (there.root / "s/a").samefile(there.root / "s/b")


def test_a_dry_run_names_what_is_in_the_way_of_a_new_path(local_there: Transfers) -> None:
    there = local_there
    there.make({b"p/a": b"1"})
    there.place.plant("data", {b"s": b"a file"})
    for more in (("-n",), ()):
        answer = there.push(*INTO_ONE, "--include", "p", *more, exit=0 if more else 6)
        failures = {line["path"]: line for line in answer.lines if line["kind"] == "failed"}
        assert {line["code"] for line in failures.values()} == {"file-in-the-way"}
        assert "(p/a at the source)" in failures["s/a"]["message"]
