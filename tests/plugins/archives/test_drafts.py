"""Test drafts of Zenodo: files are sent once, replaced and deleted there only, and never published."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import RefusedError
from hibali.http.login import bearer_authorization
from hibali_plugins.archives.client import ArchiveClient
from hibali_plugins.archives.drafts.files import DraftFiles
from tests.services.zenodo import Deposition, Zenodo
from tests.support.payloads import file_entry, items_of, payloads_of
from tests.support.waiting import wait_for
from transfers.stores.server.store import ServerStore

MIB = 1 << 20
TREE = {"README.md": b"A dataset.\n", "empty": b"", "scan 1 ü.nii": b"x" * 3000}
TOKEN = "ZENODO_TOKEN"


@pytest.fixture
def zenodo() -> Iterator[Zenodo]:
    double = Zenodo()
    double.depositions[1234567] = Deposition(1234567, {"title": "Atlas"})
    yield double
    double.close()
    assert not double.refused
    assert not double.published()


@pytest.fixture
def draft(hibali: Any, zenodo: Zenodo) -> dict[str, bytes]:
    """Return the files of the draft of the site `atlas`."""
    hibali.env[TOKEN] = zenodo.token
    address = ("--set", f"zenodo.url={zenodo.url}", "--set", f"zenodo.token_variable={TOKEN}")
    hibali("sites", "add", "atlas", "--zenodo", "1234567", *address, exit=0)
    return zenodo.depositions[1234567].files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    for name, content in TREE.items():
        (made / name).write_bytes(content)
    return made


def named(content: dict[str, bytes]) -> dict[str, bytes]:
    return dict(sorted(content.items()))


def test_a_folder_is_pushed_once_compared_changed_and_pulled(
    hibali: Any, zenodo: Zenodo, draft: dict[str, bytes], folder: Path, tmp_path: Path
) -> None:
    receipt = hibali("push", folder, "atlas:", "--json", exit=0).last
    assert (receipt["files_moved"], receipt["proof_moved"]) == (3, "claimed")
    assert named(draft) == named(TREE)
    before = dict(zenodo.received)
    assert hibali("push", folder, "atlas:", "--json", exit=0).last["files_moved"] == 0
    assert dict(zenodo.received) == before
    hibali("verify", folder, "atlas:", exit=0)
    (folder / "README.md").write_bytes(b"Another one.\n")
    (folder / "empty").unlink()
    assert hibali("push", folder, "atlas:", "--delete", "--json", exit=0).last["files_moved"] == 1
    assert named(draft) == named({"README.md": b"Another one.\n", "scan 1 ü.nii": TREE["scan 1 ü.nii"]})
    hibali("pull", "atlas:", tmp_path / "back", exit=0)
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == draft
    assert hibali("cat", "atlas:README.md", exit=0).out == b"Another one.\n"
    hibali("rm", "atlas:README.md", exit=0)
    assert list(draft) == ["scan 1 ü.nii"]


def test_a_file_that_is_there_is_not_sent_again_from_another_machine(
    hibali: Any, zenodo: Zenodo, draft: dict[str, bytes], folder: Path
) -> None:
    draft.update(TREE)
    hibali("push", folder, "atlas:", exit=0)
    assert not dict(zenodo.received)
    assert hibali("push", folder, "atlas:", "--json", exit=0).last["files_moved"] == 0


@pytest.mark.parametrize("size", [3000, 20 * MIB])
def test_a_file_whose_answer_was_lost_is_not_sent_twice(
    hibali: Any, zenodo: Zenodo, draft: dict[str, bytes], tmp_path: Path, size: int
) -> None:
    (tmp_path / "scan.nii").write_bytes(os.urandom(size))
    zenodo.fail("lost", "PUT", times=1)
    hibali("push", tmp_path / "scan.nii", "atlas:scan.nii")
    hibali("push", tmp_path / "scan.nii", "atlas:scan.nii", exit=0)
    assert draft["scan.nii"] == (tmp_path / "scan.nii").read_bytes()
    assert dict(zenodo.received)["scan.nii"] == size


def test_a_killed_push_sends_the_rest(
    hibali: Any, zenodo: Zenodo, draft: dict[str, bytes], folder: Path
) -> None:
    (folder / "zz").write_bytes(os.urandom(20 * MIB))
    zenodo.fail("slow", "PUT", "/zz", seconds=3.0)
    process = hibali.start("push", folder, "atlas:", "--json")
    wait_for(lambda: len(draft) == 3)
    process.kill()
    process.wait()
    assert "zz" not in draft
    before = dict(zenodo.received)
    hibali("push", folder, "atlas:", exit=0)
    sent = {name: count - before.get(name, 0) for name, count in dict(zenodo.received).items()}
    assert {name for name, count in sent.items() if count} == {"zz"}
    assert hashlib.sha256(draft["zz"]).digest() == hashlib.sha256((folder / "zz").read_bytes()).digest()


def test_what_was_damaged_on_the_way_gets_no_name(
    hibali: Any, zenodo: Zenodo, draft: dict[str, bytes], folder: Path
) -> None:
    zenodo.damaged = "README.md"
    failed = hibali("push", folder, "atlas:", "--json", exit=6)
    assert "corrupt" in str(failed.lines)
    assert "README.md" not in draft
    zenodo.damaged = ""
    hibali("push", folder, "atlas:", exit=0)
    assert named(draft) == named(TREE)


def test_folders_are_refused_before_anything_is_sent(
    hibali: Any, draft: dict[str, bytes], folder: Path
) -> None:
    (folder / "sub-01").mkdir()
    (folder / "sub-01/scan.nii").write_bytes(b"x")
    refused = hibali("push", folder, "atlas:", "--json", exit=8)
    assert "no folders" in str(refused.lines)
    assert not draft
    assert hibali("push", folder / "empty", "atlas:sub-01/empty", "--json", exit=2).last["code"]
    assert not draft


def test_a_published_record_is_never_changed(
    hibali: Any, zenodo: Zenodo, draft: dict[str, bytes], folder: Path
) -> None:
    zenodo.depositions[1234567].submitted = True
    assert hibali("push", folder, "atlas:", "--json", exit=8).last["code"] == "not-a-draft"
    assert not draft
    zenodo.depositions[1234567].submitted = False


@pytest.fixture
def files(hibali_home: Any, zenodo: Zenodo, draft: dict[str, bytes]) -> Iterator[DraftFiles]:
    """Return the files of the draft in this process."""
    del hibali_home, draft
    login = bearer_authorization(lambda: zenodo.token, lambda _: zenodo.token)
    opened = DraftFiles(ArchiveClient(zenodo.url, "atlas", login=login), "1234567", "atlas")
    yield opened
    opened.close()


def test_a_file_that_the_plan_did_not_see_is_not_replaced(files: DraftFiles, draft: dict[str, bytes]) -> None:
    """It came after the draft was listed a moment ago."""
    store = ServerStore(files, "atlas", b"")
    draft["old"] = b"old"
    listed = {entry.path: entry for entry in store.list()}
    draft.update({"old": b"theirs", "new": b"theirs"})
    contents = {b"new": b"mine", b"old": b"mine", b"third": b"mine"}
    items = items_of([file_entry(*one) for one in contents.items()], listed)
    results = list(store.write(payloads_of([item._replace(exact=True) for item in items], contents)))
    assert sorted(one.problem.code if one.problem else "" for one in results) == [
        "",
        "target-changed",
        "target-changed",
    ]
    assert draft == {"old": b"theirs", "new": b"theirs", "third": b"mine"}
    store.close()


def test_what_was_sent_is_counted_once(hibali: Any, draft: dict[str, bytes], folder: Path) -> None:
    """Nothing is read back."""
    receipt = hibali("push", folder, "atlas:", "--json", exit=0).last
    assert receipt["bytes_sent"] < 2 * sum(map(len, draft.values()))


def test_a_name_with_a_slash_is_not_said_to_be_removed(hibali: Any, draft: dict[str, bytes]) -> None:
    draft["sub/a.txt"] = b"1"
    refused = hibali("rm", "atlas:sub/a.txt", "--json", exit=6)
    assert "browser" in str(refused.lines)
    assert draft == {"sub/a.txt": b"1"}


def test_a_draft_that_is_published_meanwhile_is_said(
    files: DraftFiles, zenodo: Zenodo, draft: dict[str, bytes]
) -> None:
    draft["a"] = b"1"
    files.children(b"")
    zenodo.depositions[1234567].submitted = True
    try:
        for act in (lambda: files.put(b"b", b"2"), lambda: files.delete(b"a")):
            with pytest.raises(RefusedError) as refused:
                act()
            assert refused.value.code == "not-a-draft"
    finally:
        zenodo.depositions[1234567].submitted = False
    assert draft == {"a": b"1"}


def test_a_wrong_token_and_draft_are_said(
    hibali: Any, zenodo: Zenodo, draft: dict[str, bytes], folder: Path
) -> None:
    hibali.env[TOKEN] = "another-token"
    refused = hibali("push", folder, "atlas:", "--json", exit=4)
    assert "another-token" not in str(refused.lines)
    hibali.env[TOKEN] = zenodo.token
    del zenodo.depositions[1234567]
    assert hibali("push", folder, "atlas:", "--json", exit=3).last["code"] == "vanished"
    assert not draft


def test_packs_are_refused_before_anything_is_sent(
    hibali: Any, draft: dict[str, bytes], folder: Path
) -> None:
    assert hibali("push", folder, "atlas:", "--pack", "--json", exit=8).last["code"] == "cannot-keep-packs"
    assert not draft
