"""Test `cp` and `mv` within a site: no bytes pass through this machine, and no file is ever missing or replaced."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

import hibali as api
from tests.end_to_end.conftest import MakeTransfers
from tests.end_to_end.test_rm import lock_of, plant_lock
from tests.support.backends import FolderBackend, add_site, make_backend
from tests.support.small_filesystem import small_filesystem
from tests.support.strace import LINK, RENAME, UNLINK, kill_at, require_strace
from tests.support.transfers import Transfers
from tests.support.trees import Link, make_tree, read_tree

TREE = {b"a": b"1", b"sub/b": b"22", b"sub/deep/c": b"333"}
MOVER = {"local": "stream", "ssh": "direct", "s3": "server", "webdav": "server"}
READ_BACK = {"webdav": 6}  # bytes: the protocol has no checksums


@pytest.fixture(
    params=["local", "s3", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "webdav"))]
)
def each_store(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    return transfers_to(request.param)


def below(folder: bytes, tree: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {folder + b"/" + name: content for name, content in tree.items()}


def refused(there: Transfers, code: str, *words: Any, exit: int = 8) -> Any:  # noqa: A002
    """Check that it is refused with this code and changes nothing."""
    before = there.place.versions("")
    answer = there.hibali(*words, "--json", exit=exit)
    assert answer.last["code"] == code, str(answer)
    assert there.place.versions("") == before
    return answer


def test_a_copy_stays_at_the_site_and_is_verified(each_store: Transfers) -> None:
    there = each_store
    there.make(TREE)
    there.hibali("push", there.source, "there:data/one", exit=0)
    answer = there.hibali("cp", "there:data/one", "there:data/two", "--json", exit=0)
    assert (answer.last["operation"], answer.last["mover"]) == ("cp", MOVER[there.place.word])
    sent = READ_BACK.get(there.place.word, 0)
    assert (answer.last["files_moved"], answer.last["bytes_sent"]) == (3, sent)
    assert answer.last["proof_moved"] in {"digest", "recorded"}
    assert there.there() == below(b"one", TREE) | below(b"two", TREE)
    there.hibali("copy", "there:data/one/a", "there:data/three/", exit=0)
    assert there.place.read("data", b"three/a") == b"1"
    assert there.verify("there:data/two").last["files"] == 3
    answer = there.hibali("cp", "-n", "there:data/one", "there:data/two", "--detailed-exit-code", exit=0)
    assert b"keep 3" in answer.err


@pytest.mark.parametrize(
    "word", ["local", *(pytest.param(one, marks=pytest.mark.heavy) for one in ("ssh", "sftp"))]
)
def test_a_file_is_not_sent_in_place_of_a_symlink_to_a_folder(
    transfers_to: MakeTransfers, tmp_path: Path, word: str
) -> None:
    """It is refused as at a folder, by every command and in Python; a symlink to a file or to nothing is replaced."""
    there = transfers_to(word)
    there.make({b"a": b"1"})
    file, here = there.source / "a", tmp_path / "here"
    tree = {b"folder/kept": b"2", b"one": b"1", b"link": Link(b"folder"), b"again": Link(b"link")}
    there.place.plant("data", {**tree, b"broken": Link(b"nothing"), b"to-file": Link(b"one")})
    make_tree(here, tree)
    calls = [("push", file, f"there:data/{name}") for name in ("folder", "link", "again")]
    calls += [("pull", "there:data/one", here / "link"), ("sync", "there:data/one", "there:data/link")]
    calls += [("cp", "there:data/one", "there:data/link")] if word != "sftp" else []
    for words in calls:
        answer = refused(there, "is-a-folder", *words, exit=2)
        assert answer.last["hint"].endswith("/")
    with pytest.raises(api.UsageError):
        api.push(file, "there:data/link")
    assert read_tree(here) == read_tree(make_tree(tmp_path / "before", tree))
    there.hibali("push", file, "there:data/link/", exit=0)
    assert there.place.read("data", b"folder/a") == b"1"
    for name in ("broken", "to-file"):
        there.hibali("push", file, f"there:data/{name}", exit=0)
        assert not (there.root / name).is_symlink()


def test_a_site_that_cannot_copy_is_refused_with_the_command_that_can(transfers_to: MakeTransfers) -> None:
    there = transfers_to("sftp")
    there.place.plant("data", below(b"one", TREE))
    answer = refused(there, "cannot-copy-at-site", "cp", "there:data/one", "there:data/two")
    assert answer.last["hint"].endswith("hibali sync there:data/one there:data/two")


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["local", "ssh", "sftp", "s3", "webdav"])
def test_a_moved_folder_keeps_its_recorded_digests(transfers_to: MakeTransfers, word: str) -> None:
    there = transfers_to(word)
    there.make(TREE)
    there.hibali("push", there.source, "there:data/one", exit=0)
    answer = there.hibali("mv", "there:data/one", "there:data/new/two", "--json", exit=0)
    assert there.there() == below(b"new/two", TREE)
    mover = next(line["mover"] for line in answer.lines if line["kind"] == "receipt")
    assert mover == ("server" if there.place.word == "s3" else "rename")
    assert there.verify("there:data/new/two").last["files"] == 3
    there.hibali("mv", "there:data/new/two/a", "there:data/new/", exit=0)
    assert there.place.read("data", b"new/a") == b"1"
    assert there.verify("there:data/new").last["files"] == 3
    assert not [name for name in there.place.names("data") if name.startswith(b"one")]
    there.check_no_own_files()


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["local", "sftp", "s3", "webdav"])
def test_an_existing_target_is_refused(transfers_to: MakeTransfers, word: str) -> None:
    there = transfers_to(word)
    there.place.plant("data", {**below(b"one", TREE), **below(b"same", TREE), b"file": b"x", b"alike": b"x"})
    for source, target in (("one", "same"), ("one", "file"), ("file", "one"), ("file", "alike")):
        refused(there, "target-exists", "mv", f"there:data/{source}", f"there:data/{target}")
        refused(there, "target-exists", "mv", "-n", f"there:data/{source}", f"there:data/{target}")
    refused(there, "no-such-place", "mv", "there:data/none", "there:data/new", exit=3)


def test_what_rm_refuses_is_not_moved(local_there: Transfers, request: pytest.FixtureRequest) -> None:
    there = local_there
    there.place.plant("data", {**below(b"root/one", TREE), **below(b"kept", TREE), **below(b"free", TREE)})
    config = there.hibali.home.config
    text = config.read_text().replace(
        "data = ", f'inner = "{there.root}/root"\nkept = "{there.root}/kept"\ndata = ', 1
    )
    config.write_text(text.replace('kind = "local"', 'kind = "local"\nread_only = ["kept"]'))
    add_site(config, "other", make_backend("local", there.folder / "other", request.getfixturevalue))
    refused(there, "protected-place", "mv", "there:@inner", "there:data/new")
    refused(there, "read-only-root", "mv", "there:@kept/a", "there:data/new")
    refused(there, "read-only-root", "mv", "there:data/free", "there:data/kept/new")
    refused(there, "own-name", "mv", "there:data/free", "there:data/.hibali/x")
    refused(there, "overlap", "mv", "there:data/free", "there:data/free/sub/new")
    for word, source, target, hint in (
        ("mv", "there:data/free", "other:new", "hibali sync there:data/free other:new"),
        ("cp", "there:data/free", "new", "hibali pull there:data/free new"),
        ("cp", "new", "there:data/free", "hibali push new there:data/free"),
    ):
        assert refused(there, "two-sites", word, source, target, exit=2).last["hint"].endswith(hint)


@pytest.mark.heavy
@pytest.mark.parametrize("folder", [".", "data/one", "data/one/sub", "data/new"])
@pytest.mark.parametrize("word", ["local", "sftp", "webdav"])
def test_nothing_is_moved_from_or_to_a_locked_folder(
    transfers_to: MakeTransfers, folder: str, word: str
) -> None:
    there = transfers_to(word)
    there.place.plant("data", below(b"one", TREE))
    plant_lock(there, os.fsencode(folder), lock_of(0))
    answer = there.hibali("mv", "there:data/one", "there:data/new/two", "--json", exit=5)
    assert answer.last["code"] == "locked"
    assert {n: c for n, c in there.there().items() if b".hibali" not in n} == below(b"one", TREE)


def test_a_symlink_is_moved_itself(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", {**below(b"one", TREE), b"link": Link(b"one")})
    there.hibali("mv", "there:data/link", "there:data/other", exit=0)
    assert there.tree_there() == {**below(b"one", TREE), b"other": Link(b"one")}


def test_a_move_between_filesystems_keeps_what_a_rename_keeps(local_there: Transfers) -> None:
    there = local_there
    assert isinstance(there.place, FolderBackend)
    there.place.plant("data", {**below(b"one", TREE), b"one/link": Link(b"a")})
    (there.root / "one/a").chmod(0o640)
    (there.root / "one/sub").chmod(0o711)
    os.link(there.root / "one/a", there.root / "one/z")
    with small_filesystem(there.root / "mounted", "size=4m"):
        answer = there.hibali("mv", "-n", "there:data/one", "there:data/mounted/new", "--json", exit=0)
        assert answer.lines[0]["action"] == "move"
        answer = there.hibali("mv", "there:data/one", "there:data/mounted/new", "--json", exit=0)
        kinds = [line["operation"] for line in answer.lines if line["kind"] == "receipt"]
        assert kinds == ["mv", "rm"]
        new = there.root / "mounted/new"
        assert not (there.root / "one").exists()
        assert there.place.files("data/mounted/new") == {**TREE, b"z": b"1"}
        assert str((new / "link").readlink()) == "a"
        assert stat.S_IMODE((new / "a").stat().st_mode) == 0o640
        assert stat.S_IMODE((new / "sub").stat().st_mode) == 0o711
        assert (new / "a").stat().st_ino == (new / "z").stat().st_ino


def complete_somewhere(there: Transfers) -> bool:
    """Return whether every file is complete under its old or its new name."""
    found = {n: c for n, c in there.place.files("data").items() if b".hibali" not in n}
    return all(content in (found.get(b"one/" + n), found.get(b"m/new/" + n)) for n, content in TREE.items())


@pytest.mark.heavy
@pytest.mark.parametrize("calls", [RENAME, UNLINK, LINK])
def test_a_killed_move_loses_nothing_and_is_resumed(local_there: Transfers, calls: str) -> None:
    require_strace()
    there = local_there
    for number in range(1, 40, 3):
        there.place.plant("data", below(b"one", TREE))
        with small_filesystem(there.root / "m", "size=4m"):
            with there.under(*kill_at(calls, number)):
                answer = there.hibali("mv", "there:data/one", "there:data/m/new", exit=None)
            assert complete_somewhere(there), (calls, number)
            if answer.exit == -signal.SIGKILL or (there.root / "one").exists():
                there.hibali("mv", "there:data/one", "there:data/m/new", "--json", exit=None)
            assert there.place.files("data/m/new") == TREE
            assert not (there.root / "one").exists()
            if answer.exit == 0:
                return
    raise AssertionError("every call was killed: raise the range")


def test_a_file_with_both_names_is_moved_by_the_same_command(local_there: Transfers) -> None:
    there = local_there
    require_strace()
    there.place.plant("data", {b"file": b"x" * 1000})
    with there.under(*kill_at("unlinkat", 1)):
        there.hibali("mv", "there:data/file", "there:data/new", exit=None)
    assert b"x" * 1000 in there.place.files("data").values()
    if (there.root / "file").exists():
        there.hibali("mv", "there:data/file", "there:data/new", exit=0)
    assert there.there() == {b"new": b"x" * 1000}
