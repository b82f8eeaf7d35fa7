"""Test preserving permissions of files and folders (`--modes keep`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.schemas import check_lines
from tests.support.transfers import Transfers, actions, counts
from tests.support.trees import Folder, walk_paths
from transfers.agent import acl

MODES = {
    b"private": 0o600,
    b"group/shared": 0o664,
    b"program": 0o751,
    b"sealed/object": 0o444,
    b"sealed": 0o555,
    b"group": 0o770,
    b"empty": 0o711,
}


@pytest.fixture(autouse=True)
def narrow_umask() -> Iterator[None]:
    """Set a restrictive umask, which must not affect the result."""
    old = os.umask(0o077)
    yield
    os.umask(old)


def make(there: Transfers) -> None:
    there.make({name: Folder() if name in {b"sealed", b"group", b"empty"} else name for name in MODES})
    for name, mode in MODES.items():
        (there.source / os.fsdecode(name)).chmod(mode)


def modes_of(root: Path) -> dict[bytes, int]:
    return {name: status.st_mode & 0o7777 for name, status in walk_paths(root)}


def test_permissions_of_files_and_folders_are_kept(folder_there: Transfers, tmp_path: Path) -> None:
    there = folder_there
    make(there)
    (there.source / "program").chmod(0o6751)
    there.push("--modes", "keep")
    assert modes_of(there.root) == MODES  # setuid and setgid are never transferred
    there.pull(tmp_path / "back", "--modes", "keep")
    assert modes_of(tmp_path / "back") == MODES
    again = there.push("--modes", "keep", "--dry-run", "--detailed-exit-code")
    assert actions(again) == {}


@pytest.mark.parametrize(
    "word", ["local", *(pytest.param(one, marks=pytest.mark.heavy) for one in ("ssh", "sftp"))]
)
def test_nobody_gains_a_right_by_kept_permissions(word: str, transfers_to: Any) -> None:
    """A folder's default list gives what the bits of the group allow, also to a replaced file and one whose content stays."""
    there = transfers_to(word)
    make(there)
    there.root.mkdir()
    member = acl.Person((acl.GROUP, 4321), 54321, {4321})
    default = acl.granted(acl.from_mode(0o750), member.key, 7)
    try:
        os.setxattr(there.root, acl.DEFAULT.decode(), acl.pack(default))
    except OSError:
        pytest.skip("this filesystem has no access control lists")

    def readable() -> set[bytes]:
        found = ((name, there.root / os.fsdecode(name)) for name in MODES)
        lists = ((name, acl.read_list(os.fsencode(path), path.stat().st_mode)) for name, path in found)
        return {name for name, one in lists if acl.may(one, (0, 0), member, acl.READ)}

    there.push("--modes", "keep")
    assert modes_of(there.root) == MODES
    assert readable() == {name for name, mode in MODES.items() if mode & 0o040}
    assert actions(there.push("--modes", "keep", "--dry-run")) == {}
    wide = there.root / "group" / "shared"
    os.setxattr(wide, acl.ACCESS.decode(), acl.pack({**default, (acl.MASK, acl.NO_ID): 0}))
    (there.source / "private").write_bytes(b"replaced")
    assert there.push("--modes", "keep").last["files_adjusted"] == 1
    assert modes_of(there.root) == MODES
    assert b"private" not in readable()
    if word != "sftp":  # the server's own chmod uncovers entries that the mask had covered
        assert b"group/shared" not in readable()
    there.push()
    assert b"private" not in readable()


def test_only_permissions_are_set_if_nothing_else_differs(folder_there: Transfers) -> None:
    there = folder_there
    make(there)
    there.push("--modes", "keep")
    before = {name: (status.st_ino, status.st_mtime_ns) for name, status in walk_paths(there.root)}
    (there.root / "group").chmod(0o2700)
    (there.source / "group/shared").chmod(0o640)
    (there.source / "sealed").chmod(0o500)
    assert counts(there.push())["files_moved"] == 0
    assert modes_of(there.root)[b"group/shared"] == 0o664
    planned = {b"group/shared": "adjust", b"sealed": "adjust", b"group": "adjust"}
    assert actions(there.push("--modes", "keep", "--dry-run")) == planned
    answer = there.push("--modes", "keep", "-v")
    check_lines(answer.out)
    receipt = answer.last
    assert (receipt["files_moved"], receipt["bytes_sent"], receipt["files_adjusted"]) == (0, 0, 1)
    assert {line["path"] for line in answer.lines if line["kind"] == "adjusted"} == {
        "group",
        "group/shared",
        "sealed",
    }
    # the folder's own special bits stay
    assert modes_of(there.root) == {**MODES, b"group/shared": 0o640, b"sealed": 0o500, b"group": 0o2770}
    after = {name: (status.st_ino, status.st_mtime_ns) for name, status in walk_paths(there.root)}
    assert after == before
    assert actions(there.push("--modes", "keep", "--checksum", "--dry-run")) == {}


def test_a_saved_plan_preserves_permissions_and_refuses_drift(local_there: Transfers) -> None:
    there = local_there
    make(there)
    there.push("--modes", "keep")
    (there.source / "private").chmod(0o640)
    (there.source / "group").chmod(0o750)
    there.make({b"new/file": b"1"})
    (there.source / "new").chmod(0o705)
    (there.source / "new/file").chmod(0o604)
    path = there.folder / "the.plan"
    there.hibali("plan", there.source, "there:data", "-o", path, "--modes", "keep", exit=0)
    check_lines(path.read_bytes())
    (there.root / "group").chmod(0o777)
    refused = there.hibali("apply", path, "--json", exit=8)
    assert "group" in refused.last["message"]
    (there.root / "group").chmod(0o770)
    # the state after an interruption: the folder exists without its permissions
    (there.root / "new").mkdir(mode=0o700)
    assert there.hibali("apply", path, "--json", exit=0).last["files_adjusted"] == 1
    assert modes_of(there.root) == {
        **MODES,
        b"private": 0o640,
        b"group": 0o750,
        b"new": 0o705,
        b"new/file": 0o604,
    }
    again = there.hibali("apply", path, "--json", exit=0).last
    assert (again["files_moved"], again["files_adjusted"]) == (0, 0)
    (there.source / "private").chmod(0o600)
    assert there.hibali("apply", path, "--json", exit=8).last["code"] == "drift"


def test_permissions_are_kept_in_a_bucket(bucket_there: Transfers, tmp_path: Path) -> None:
    there = bucket_there
    make(there)
    there.push("--modes", "keep")
    assert actions(there.push("--modes", "keep", "--dry-run")) == {}
    there.pull(tmp_path / "back", "--modes", "keep")
    files = {name: mode for name, mode in MODES.items() if (there.source / os.fsdecode(name)).is_file()}
    found = modes_of(tmp_path / "back")
    assert {name: found[name] for name in files} == files
    (tmp_path / "back/private").chmod(0o644)
    assert counts(there.pull(tmp_path / "back", "--modes", "keep"))["bytes_sent"] == 0
    assert modes_of(tmp_path / "back")[b"private"] == 0o600


def test_permissions_are_kept_over_sftp(transfers_to: Any, tmp_path: Path) -> None:
    there = transfers_to("sftp")
    make(there)
    there.push("--modes", "keep")
    assert modes_of(there.root) == MODES
    (there.source / "private").chmod(0o640)
    (there.source / "group").chmod(0o2755)
    receipt = there.push("--modes", "keep").last
    assert (receipt["files_moved"], receipt["files_adjusted"]) == (0, 1)
    assert modes_of(there.root) == {**MODES, b"private": 0o640, b"group": 0o755}
    there.pull(tmp_path / "back", "--modes", "keep")
    assert modes_of(tmp_path / "back") == modes_of(there.root)
