"""Test that `rm` removes only the named and confirmed entries, and nothing that is locked."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.contracts.subjects import stores_there
from tests.end_to_end.conftest import MakeTransfers
from tests.support.backends import BucketBackend, DavBackend, FolderBackend, add_site, make_backend
from tests.support.small_filesystem import mounted, small_filesystem
from tests.support.terminal import Terminal
from tests.support.transfers import Transfers, actions, counts, failed
from tests.support.trees import HOSTILE_NAMES, Folder, Link, many_files
from tests.support.waiting import wait_for
from transfers.agent.lease import this_process
from transfers.agent.protocol import RefusedError, partial_name
from transfers.agent.writing import remove_tree

TREE = {b"keep": b"1", b"gone/a": b"22", b"gone/sub/b": b"333", b"gone/sub/-r": b"4", b"gone-too": b"5"}
KEPT = {b"keep": b"1", b"gone-too": b"5"}


@pytest.fixture(
    params=["ssh", "s3", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("local", "sftp"))]
)
def each_store(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    return transfers_to(request.param)


def refused(there: Transfers, code: str, *words: str | bytes, exit: int = 8) -> Any:  # noqa: A002
    """Check that it is refused with this code and changes nothing."""
    before = there.place.versions("")
    answer = there.hibali("rm", *words, "--json", exit=exit)
    assert answer.last["code"] == code, str(answer)
    assert there.place.versions("") == before
    return answer


def lock_of(pid: int, **more: object) -> bytes:
    """Return a lock held by this process, or by one that has ended."""
    record = {"version": 1, "operation": "push", "client": "somebody", "token": "0" * 32, "lease": 120}
    return json.dumps({**record, **this_process(), **({"pid": pid} if pid else {}), **more}).encode()


def plant_lock(there: Transfers, folder: bytes, content: bytes) -> None:
    there.place.plant("", {folder + b"/.hibali/lock": content})
    if isinstance(there.place, FolderBackend):
        at = there.place.root / os.fsdecode(folder) / ".hibali"
        at.chmod(0o700)


def test_only_the_named_tree_is_removed(each_store: Transfers) -> None:
    there = each_store
    there.make(TREE)
    there.push()
    assert refused(there, "unconfirmed", "-r", "there:data/gone").last["message"].startswith("3 files")
    answer = there.hibali("rm", "-r", "--yes", "there:data/gone", "--json", exit=0)
    assert (answer.last["operation"], counts(answer)["files_deleted"]) == ("rm", 3)
    assert (answer.last["files"], answer.last["bytes"]) == (3, 6)
    assert there.there() == KEPT
    there.check_no_own_files()
    assert there.hibali("rm", "-r", "--yes", "there:data/gone", "--json", exit=3)
    # the removed files need no record, and the others are still recorded
    assert there.verify("there:data").last["files"] == 2


@pytest.mark.parametrize("word", ["local", "s3"])
def test_a_file_is_removed_by_its_name(transfers_to: MakeTransfers, word: str) -> None:
    there = transfers_to(word)
    names = [n for n in HOSTILE_NAMES if there.place.holds_folders and not n.startswith(b".hibali")] or [
        b"a b",
        "\u00e9".encode(),
    ]
    some = [b"--delete", b"new\nline", b"\xff\xfe not UTF-8 \x80"] if there.place.holds_folders else names
    there.place.plant("data", {**TREE, **dict.fromkeys(names, b"x")})
    for name in some:
        assert counts(there.hibali("rm", b"there:data/" + name, "--json", exit=0))["files_deleted"] == 1
    assert there.there() == {**TREE, **{name: b"x" for name in names if name not in some}}
    refused(there, "is-a-folder", "there:data/gone", exit=2)
    refused(there, "not-a-folder", "there:data/keep/", exit=2)
    there.check_no_own_files()


def test_more_files_than_the_limit_are_not_removed(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", {b"t/%d" % number: b"" for number in range(60)})
    assert "--max-delete 60" in refused(there, "delete-limit", "-r", "-y", "there:data/t").last["hint"]
    refused(there, "delete-limit", "-r", "-y", "there:data/t", "--max-delete", "59")
    refused(there, "delete-limit", "-rn", "there:data/t", "--max-delete", "59")
    answer = there.hibali("rm", "-rn", "there:data/t", "--json", exit=0)
    assert set(actions(answer).values()) == {"delete"}
    assert (len(actions(answer)), answer.last["exit"]) == (60, 0)
    assert len(there.there()) == 60
    there.hibali("rm", "-r", "-y", "there:data/t", "--max-delete", "60", exit=0)
    assert not (there.root / "t").exists()


def test_targets_of_symlinks_are_not_removed(transfers_to: MakeTransfers) -> None:
    for word in ("local", "sftp"):
        there = transfers_to(word)
        there.place.plant("data", {b"outside/file": b"1", b"outside/sub/file": b"2"})
        out = os.fsencode(there.root / "outside")
        there.place.plant(
            "data",
            {
                b"t/in": b"3",
                b"t/sub/out": Link(out),
                b"t/up": Link(b".."),
                b"t/file": Link(out + b"/file"),
                b"t/no": Link(b"x"),
            },
        )
        (there.root / "alias").symlink_to("t")
        os.mkfifo(there.root / "t/fifo")
        refused(there, "not-a-folder", "-r", "-y", "there:data/alias/", exit=2)
        there.hibali("rm", "-r", "-y", "there:data/alias", exit=0)
        assert (there.root / "t/in").read_bytes() == b"3"
        there.hibali("rm", "-r", "-y", "there:data/t", exit=0)
        assert there.tree_there() == {b"outside/file": b"1", b"outside/sub/file": b"2"}
        there.hibali.home.config.unlink()


def test_protected_folders_are_not_removed(local_there: Transfers) -> None:
    there = local_there
    assert isinstance(there.place, FolderBackend)
    there.place.plant("data", {b"root/file": b"1", b"kept/file": b"2", b"free": b"3"})
    home = there.hibali.home
    (home.home / "mine").write_bytes(b"4")
    (there.root / "linked").symlink_to("root")
    (there.root / "way").symlink_to(there.root)
    text = home.config.read_text().replace(
        "data = ",
        f'inner = "{there.root}/root"\nshown = "{there.root}/linked"\nkept = "{there.root}/kept"\ndata = ',
        1,
    )
    text = text.replace('kind = "local"', 'kind = "local"\nread_only = ["kept"]\nwork = "@inner/work"')
    home.config.write_text(text)
    for place in ("there:@inner", "there:data", "there:data/way/root", "there:data/linked", "there:~"):
        refused(there, "protected-place", "-r", "-y", place)
    refused(there, "protected-place", "-r", "-y", f"there:{home.home}")
    refused(there, "protected-place", "-r", "-y", str(home.state))
    refused(there, "protected-place", "-r", "-y", str(home.state.parent))
    for place in ("there:data/way/kept/file", "there:@kept"):
        answer = there.hibali("rm", "-r", "-y", place, "--json", exit=8)
        assert answer.last["code"] in {"read-only-root", "protected-place"}
    refused(there, "own-name", "-r", "-y", "there:data/.hibali")
    assert there.there() == {b"root/file": b"1", b"kept/file": b"2", b"free": b"3"}
    assert (home.home / "mine").exists()


def test_a_configured_root_is_protected_under_every_name(
    local_there: Transfers, request: pytest.FixtureRequest
) -> None:
    there = local_there
    assert isinstance(there.place, FolderBackend)
    there.place.plant("data", {b"deep/root/file": b"1", b"other/file": b"2", b"free/file": b"3"})
    root, home = there.root / "deep/root", there.hibali.home
    table = '[sites.{}]\nkind = "{}"\ndefault_root = "r"\n[sites.{}.roots]\nr = "{}"\n'
    # the name that hibali gives to this machine
    text = home.config.read_text() + table.format("here", "local", "here", root)
    host = make_backend("ssh", there.folder, request.getfixturevalue)
    assert isinstance(host, FolderBackend)
    host.root = there.root / "other"
    home.config.write_text(text)
    add_site(home.config, "far", host)
    (there.folder / "link").symlink_to(there.root / "deep")
    with mounted(root, there.folder / "bound"), mounted(there.root, there.folder / "all"):
        for place in (
            root,
            there.root / "deep",
            there.root,
            f"{there.root}/other/../deep/root",
            there.folder / "link/root",
            there.folder / "bound",
            there.folder / "all/deep",
            "there:data/deep",
            there.root / "other",
            f"far:{root}",
            f"far:{there.folder}/all/deep",
        ):
            refused(there, "protected-place", "-r", "-y", place)
        for folder, place in (
            (there.root, "deep/root"),
            (root, "."),
            (root, "../root"),
            (root / "..", "root/"),
        ):
            answer = there.hibali("rm", "-r", "-y", place, "--json", exit=8, cwd=folder)
            assert answer.last["code"] == "protected-place", str(answer)
    assert there.there() == {b"deep/root/file": b"1", b"other/file": b"2", b"free/file": b"3"}
    with mounted(root, there.root / "free/mounted"):
        refused(there, "protected-place", "-r", "-y", there.root / "free")
    with mounted(root / "..", there.root / "free/mounted"):
        refused(there, "protected-place", "-r", "-y", there.root / "free")
    there.place.plant("data", {b"else/file": b"4"})
    with mounted(there.root / "else", there.root / "free/mounted"):
        refused(there, "another-filesystem", "-r", "-y", there.root / "free")
    # a link to a root is removed as a link, and files in a root are removed as usual
    there.hibali("rm", there.folder / "link", exit=0)
    there.hibali("rm", root / "file", exit=0)
    there.hibali("rm", "-r", "-y", there.root / "free", exit=0)


@pytest.mark.parametrize(
    "word", ["s3", *stores_there("webdav"), pytest.param("sftp", marks=pytest.mark.heavy)]
)
def test_the_root_of_another_site_at_the_same_service_is_protected(
    transfers_to: MakeTransfers, word: str, request: pytest.FixtureRequest
) -> None:
    there = transfers_to(word)
    there.place.plant("data", {b"inner/root/file": b"1", b"free/file": b"2"})
    config = there.hibali.home.config
    if isinstance(there.place, BucketBackend):
        table = there.place.table().replace("{name}", "again").replace("127.0.0.1", "localhost")
        config.write_text(f'{config.read_text()}[sites.again]\n{table}prefix = "data/inner/root/"\n')
    elif isinstance(there.place, DavBackend):
        url = f"{there.place.url}/data/inner/root"
        table = there.place.table().replace("{name}", "again").replace(there.place.url, url)
        config.write_text(f"{config.read_text()}[sites.again]\n{table.replace('127.0.0.1', 'localhost')}\n")
    else:
        other = make_backend("local", there.folder, request.getfixturevalue)
        assert isinstance(other, FolderBackend)
        other.root = there.root / "inner/root"
        add_site(config, "again", other)
    before = there.there()
    for place in ("there:data/inner/root", "there:data/inner", "there:data"):
        answer = there.hibali("rm", "-r", "-y", place, "--json", exit=8)
        assert answer.last["code"] == "protected-place", str(answer)
    assert there.there() == before
    there.hibali("rm", "-r", "-y", "there:data/free", exit=0)


def test_a_bucket_is_not_removed(bucket_there: Transfers) -> None:
    there = bucket_there
    there.place.plant("", {b"a": b"1"})
    refused(there, "protected-place", "-r", "-y", "there:")


@pytest.mark.parametrize(
    ("word", "folder"),
    [
        ("local", "."),
        pytest.param("local", "data/gone", marks=pytest.mark.heavy),
        ("local", "data/gone/sub"),
        ("ssh", "data/gone/sub"),
        pytest.param("sftp", "data", marks=pytest.mark.heavy),
        pytest.param("sftp", "data/gone/sub", marks=pytest.mark.heavy),
        pytest.param("s3", "data", marks=pytest.mark.heavy),
        ("s3", "data/gone/sub"),
    ],
)
def test_a_locked_tree_is_not_removed(transfers_to: MakeTransfers, word: str, folder: str) -> None:
    there = transfers_to(word)
    there.place.plant("data", TREE)
    plant_lock(there, os.fsencode(folder), lock_of(0))
    answer = there.hibali("rm", "-r", "--yes", "there:data/gone", "--json", exit=5)
    assert answer.last["code"] == "locked"
    assert "somebody" in answer.last["message"]
    assert {n: c for n, c in there.there().items() if b".hibali" not in n} == TREE


def test_leftovers_of_killed_operations_are_removed_with_the_tree(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("data", TREE)
    seed = bytes(16)
    partial = b"data/gone/sub/" + partial_name(seed, b"x")
    there.place.plant("", {partial: b"part"})
    plant_lock(there, b"data/gone/sub", lock_of(0, start="1", boot=this_process()["boot"]))
    journal = there.root / "gone/sub/.hibali/journal"
    journal.write_bytes(json.dumps({"version": 1, "seeds": [seed.hex()]}).encode())
    answer = there.hibali("rm", "-r", "--yes", "there:data/gone", "--json", exit=0)
    assert counts(answer)["files_deleted"] == 3
    assert there.tree_there() == KEPT


def test_files_of_an_active_operation_below_are_not_removed(local_there: Transfers) -> None:
    there = local_there
    seed = bytes(16)
    partial = b"sub/" + partial_name(seed, b"x")
    there.place.plant("data", {partial: b"part", b"sub/there": b"1"})
    plant_lock(there, b"data/sub", lock_of(0))
    journal = there.root / "sub/.hibali/journal"
    journal.write_bytes(json.dumps({"version": 1, "seeds": [seed.hex()]}).encode())
    there.make({b"sub/there": b"1", b"new": b"2"})
    there.push("--delete")
    assert (there.root / os.fsdecode(partial)).read_bytes() == b"part"
    (there.root / "sub/.hibali/lock").unlink()
    there.make({b"newer": b"3"})
    there.push("--delete")
    assert not (there.root / os.fsdecode(partial)).exists()


def test_records_and_markers_in_a_bucket_are_removed(bucket_there: Transfers) -> None:
    there = bucket_there
    assert isinstance(there.place, BucketBackend)
    there.make(TREE)
    there.push()
    there.hibali("push", there.source / "gone", "there:data/gone", exit=0)
    for marker in ("data/gone/", "data/gone/sub/", "data/gone/empty/"):
        there.place.bucket.put(marker, b"")
    plant_lock(there, b"data/gone/sub", lock_of(0, start="1"))
    there.hibali("rm", "-r", "--yes", "there:data/gone", exit=0)
    assert not [name for name in there.place.names("data") if name.startswith(b"gone/")]
    manifest = there.place.read("data", b".hibali/manifest.jsonl") or b""
    assert [json.loads(line)["key"] for line in manifest.splitlines()] == ["gone-too", "keep"]
    there.hibali("rm", "there:data/keep", exit=0)
    manifest = there.place.read("data", b".hibali/manifest.jsonl") or b""
    assert [json.loads(line)["key"] for line in manifest.splitlines()] == ["gone-too"]
    there.hibali("ls", "there:data/gone", exit=3)


def test_new_and_unremovable_files_are_reported(local_there: Transfers, unprivileged: Any) -> None:
    there = local_there
    there.place.plant("data", {b"t/a": b"1", b"t/closed/b": b"2"})
    (there.root / "t/closed").chmod(0o555)
    answer = unprivileged("rm", "-r", "-y", "there:data/t", "--json", exit=6)
    (there.root / "t/closed").chmod(0o755)
    assert failed(answer) == {b"t/closed/b"[2:]: "denied", b"closed": "folder-not-empty"}
    assert there.there() == {b"t/closed/b": b"2"}
    (there.root / "t/closed").chmod(0)
    answer = unprivileged("rm", "-r", "-y", "there:data/t", "--json", exit=6)
    (there.root / "t/closed").chmod(0o755)
    assert answer.last["code"] == "listing-incomplete"
    assert there.there() == {b"t/closed/b": b"2"}
    there.check_no_own_files()


def test_another_filesystem_in_the_tree_is_not_removed(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", {b"t/a": b"1", b"t/mounted": Folder()})
    with small_filesystem(there.root / "t/mounted", "size=1m"):
        (there.root / "t/mounted/precious").write_bytes(b"2")
        for place in ("there:data/t", "there:data/t/mounted"):
            answer = there.hibali("rm", "-r", "-y", place, "--json", exit=8)
            assert answer.last["code"] == "another-filesystem"
        assert there.there() == {b"t/a": b"1", b"t/mounted/precious": b"2"}
        opened = os.open(there.root, os.O_RDONLY)
        with pytest.raises(RefusedError, match="mounted"):
            remove_tree(opened, b"t")
        os.close(opened)
        assert (there.root / "t/mounted/precious").exists()


def test_a_killed_removal_is_resumed(folder_there: Transfers) -> None:
    there = folder_there
    tree = many_files(3000, 10, seed=1)
    there.place.plant("data", {b"t/" + name: content for name, content in tree.items()})
    there.place.plant("data", {b"beside": b"1"})
    words = ("rm", "-r", "--yes", "--max-delete", "100%", "there:data/t", "--json")
    process = there.hibali.start(*words)
    wait_for(lambda: len(there.there()) < 3000)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    left = len(there.there())
    wait_for(lambda: there.hibali(*words).exit in {0, 3})  # an agent at the site ends with its connection
    assert there.tree_there() == {b"beside": b"1"}
    assert left >= 1


def test_a_removal_is_confirmed_on_a_terminal(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", TREE)
    for answer, code in ((b"n\n", 8), (b"y\n", 0)):
        terminal = Terminal(
            [*there.hibali.command("rm", "-r", "there:data/gone")],
            there.hibali.env,
            cwd=there.hibali.home.folder,
        )
        terminal.until(
            lambda screen: "Remove all of it?" in screen and "3 files (6 B) in 2 folders" in screen
        )
        assert {n: c for n, c in there.there().items() if b".hibali" not in n} == TREE
        terminal.press(answer)
        assert terminal.end() == code
    assert there.there() == KEPT


def test_nothing_is_removed_without_a_ledger(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", TREE)
    (there.hibali.home.state / "operations").write_bytes(b"")
    there.hibali("rm", "there:data/keep", exit=8)
    assert there.there() == TREE
