"""Test transferring extended `user.*` attributes with `--xattrs`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.schemas import check_lines
from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers, actions, counts, failed
from tests.support.trees import Link, walk_paths

LARGE = os.urandom(5 << 20)
ODD = {b"user.odd \xff\n": b"\x00\xff", b"user.empty": b"", b"user.long": b"x" * 3000}


def attributes_of(root: Path) -> dict[bytes, dict[bytes, bytes]]:
    """Return the `user.*` attributes below the folder, by name."""
    found = {}
    for name, _ in walk_paths(root):
        path = os.path.join(os.fsencode(root), name)  # noqa: PTH118 - names are bytes
        there = {
            os.fsencode(one): os.getxattr(path, one, follow_symlinks=False)
            for one in os.listxattr(path, follow_symlinks=False)
        }
        if there:
            found[name] = there
    return found


def give(path: Path, attributes: dict[bytes, bytes]) -> None:
    for name, value in attributes.items():
        os.setxattr(path, name, value)


@pytest.fixture
def there(folder_there: Transfers) -> Transfers:
    """Return a site, with attributes on files and a folder of the source."""
    folder_there.make({b"small": b"1", b"d/large": LARGE, b"plain": b"2", b"link": Link(b"small")})
    give(folder_there.source / "small", ODD)
    give(folder_there.source / "d/large", {b"user.a": b"1"})
    give(folder_there.source / "d", {b"user.folder": b"2"})
    if os.geteuid() == 0:
        os.setxattr(folder_there.source / "plain", "trusted.secret", b"never")
    return folder_there


def expected(there: Transfers) -> dict[bytes, dict[bytes, bytes]]:
    found = attributes_of(there.source)
    found.pop(b"plain", None)
    return found


def test_attributes_are_transferred_on_request(there: Transfers, tmp_path: Path) -> None:
    there.push()
    assert attributes_of(there.root) == {}
    planned = actions(there.push("--xattrs", "--dry-run"))
    assert planned == {b"small": "adjust", b"d/large": "adjust", b"d": "adjust"}
    answer = there.push("--xattrs")
    assert (answer.last["bytes_sent"], answer.last["files_adjusted"]) == (0, 2)
    assert attributes_of(there.root) == expected(there)
    there.pull(tmp_path / "back", "--xattrs", "--modes", "keep")
    assert attributes_of(tmp_path / "back") == expected(there)
    assert actions(there.pull(tmp_path / "back", "--xattrs", "--modes", "keep", "--dry-run")) == {}
    os.removexattr(there.source / "small", b"user.empty")
    assert counts(there.push("--xattrs"))["files_moved"] == 0
    assert attributes_of(there.root) == expected(there)


def test_attributes_of_a_single_file_are_transferred(there: Transfers) -> None:
    there.hibali("push", there.source / "small", "there:data/other", "--xattrs", exit=0)
    assert attributes_of(there.root) == {b"other": ODD}


def test_a_saved_plan_transfers_attributes(there: Transfers) -> None:
    path = there.folder / "the.plan"
    there.push("--include", "small")
    there.hibali("plan", there.source, "there:data", "-o", path, "--xattrs", exit=0)
    check_lines(path.read_bytes())
    os.setxattr(there.root / "small", b"user.new", b"somebody's")
    assert there.hibali("apply", path, "--json", exit=8).last["code"] == "drift"
    os.removexattr(there.root / "small", b"user.new")
    assert there.hibali("apply", path, "--json", exit=8).last["code"] == "drift"  # its ctime changes
    there.hibali("plan", there.source, "there:data", "-o", path, "--xattrs", exit=0)
    there.hibali("apply", path, "--json", exit=0)
    assert attributes_of(there.root) == expected(there)
    assert counts(there.hibali("apply", path, "--json", exit=0))["files_moved"] == 0


@contextmanager
def without_attributes(folder: Path) -> Iterator[None]:
    """Mount a filesystem without extended attributes over the folder."""
    folder.mkdir(parents=True)
    words = ["mount", "-t", "ramfs", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a filesystem")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_filesystem_without_attributes_is_refused(local_there: Transfers) -> None:
    there = local_there
    there.make({b"small": b"1"})
    with without_attributes(there.root):
        refused = there.push("--xattrs", exit=8).last
        assert (refused["code"], refused["about"]) == ("cannot-keep-attributes", "there:data")
        assert there.there() == {}
        there.push()
        assert there.pull(there.folder / "back", "--xattrs", exit=8).last["about"] == "there:data"


def test_a_bucket_is_refused(bucket_there: Transfers) -> None:
    bucket_there.make({b"small": b"1"})
    assert bucket_there.push("--xattrs", exit=8).last["code"] == "cannot-keep-attributes"


def test_too_large_attributes_are_reported(local_there: Transfers) -> None:
    there = local_there
    with small_filesystem(there.source, "size=2m"):
        there.make({b"heavy": b"1", b"light": b"2"})
        try:
            for number in range(3):
                os.setxattr(there.source / "heavy", f"user.{number}", b"x" * 30_000)
        except OSError:
            pytest.skip("this kernel's tmpfs supports no such attributes")
        answer = there.push("--xattrs", exit=6)
        assert failed(answer) == {b"heavy": "attributes-too-large"}
        assert there.committed_files() == {b"light": b"2"}


def test_attributes_without_space_at_the_target_are_reported(local_there: Transfers) -> None:
    there = local_there
    with small_filesystem(there.source, "size=2m"):
        there.make({b"heavy": b"1", b"large": LARGE[: 1 << 20], b"light": b"2"})
        try:
            os.setxattr(there.source / "heavy", b"user.a", b"x" * 40_000)
        except OSError:
            pytest.skip("this kernel's tmpfs supports no such attributes")
        answer = there.hibali("push", there.source, "there:data", "--xattrs", "--json")
        if answer.exit == 0:
            pytest.skip("this filesystem stores such attributes")
        assert failed(answer) == {b"heavy": "attributes-not-kept"}
        assert there.committed_files() == {b"large": LARGE[: 1 << 20], b"light": b"2"}
