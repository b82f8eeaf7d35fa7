"""Test storing single small files without the lock."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.agent_root import open_root
from transfers.agent import receiving
from transfers.agent.protocol import UnsafeNameError
from transfers.agent.safe_path import Root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_root(tmp_path)


def store(root: Root, path: bytes, content: bytes = b"content", *, executable: bool = False) -> bool:
    return receiving.store_whole(root, path, content, 1_500_000_000_000_000_001, executable)


def test_store_file_with_folders_mtime_and_execute_bit(root: Root, tmp_path: Path) -> None:
    assert store(root, b"a/b/c", executable=True)
    found = (tmp_path / "a" / "b" / "c").stat()
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"content"
    assert found.st_mtime_ns == 1_500_000_000_000_000_001
    assert found.st_mode & 0o100
    assert store(root, b"a/b/d")
    assert not (tmp_path / "a" / "b" / "d").stat().st_mode & 0o111
    assert receiving.fetch_whole(root, b"a/b/d", 100) == b"content"
    assert sorted(one.name for one in (tmp_path / "a" / "b").iterdir()) == ["c", "d"]


@pytest.mark.parametrize("kind", ["file", "folder", "dangling symlink"])
def test_store_never_replaces_existing_name(kind: str, root: Root, tmp_path: Path) -> None:
    name = tmp_path / "name"
    if kind == "file":
        name.write_bytes(b"older")
    elif kind == "folder":
        name.mkdir()
    else:
        name.symlink_to(tmp_path / "elsewhere")
    assert not store(root, b"name")
    assert [one.name for one in tmp_path.iterdir()] == ["name"]
    assert kind != "file" or name.read_bytes() == b"older"


@pytest.mark.parametrize("path", [b"", b"../x", b"a/../../x", b"/etc/x", b"a//b", b"a\0b"])
def test_store_rejects_path_outside_root(path: bytes, root: Root) -> None:
    with pytest.raises(UnsafeNameError):
        store(root, path)
    with pytest.raises(UnsafeNameError):
        receiving.fetch_whole(root, path, 100)


def test_store_does_not_follow_symlink_above(root: Root, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        store(root, b"link/x")
    assert [one.name for one in (tmp_path / "other").iterdir()] == []


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_store_needs_lock_without_unnamed_files(
    number: int, root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: bytes, flags: int, *more: int, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *more, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    assert not store(root, b"a")
    assert [one.name for one in tmp_path.iterdir()] == []


def test_read_at_most_maximum(root: Root, tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 1000)
    assert receiving.fetch_whole(root, b"long", 10) == b"x" * 11
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        receiving.fetch_whole(root, b"fifo", 10)
