"""Test storing and fetching small files: new ones without the lock, others under it."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.agent_root import open_root
from transfers.agent import small_files
from transfers.agent.lease import Lease, LockedError, LostLeaseError
from transfers.agent.protocol import UnsafeNameError
from transfers.agent.safe_path import Root
from transfers.agent.small_files import NeedsTransferError, SmallFile

TIME = 1_500_000_000_000_000_001


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_root(tmp_path)


def store(root: Root, path: bytes, content: bytes = b"content", *, executable: bool = False) -> bool:
    return small_files.store_whole(root, SmallFile(path, content, TIME, executable))


def test_store_file_with_folders_mtime_and_execute_bit(root: Root, tmp_path: Path) -> None:
    assert store(root, b"a/b/c", executable=True)
    found = (tmp_path / "a" / "b" / "c").stat()
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"content"
    assert found.st_mtime_ns == TIME
    assert found.st_mode & 0o100
    assert store(root, b"a/b/d")
    assert not (tmp_path / "a" / "b" / "d").stat().st_mode & 0o111
    assert small_files.fetch_whole(root, b"a/b/d", 100) == b"content"
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
        small_files.fetch_whole(root, path, 100)


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
    assert small_files.fetch_whole(root, b"long", 10) == b"x" * 11
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        small_files.fetch_whole(root, b"fifo", 10)


def replace(root: Root, *contents: bytes, name: bytes = b"name") -> list[Exception | None]:
    """Store contents under the same name, one after the other."""
    files = [SmallFile(name, content, TIME, executable=False) for content in contents]
    return small_files.store_files(root, files, lambda: Lease(root.clone(), "write", "test"))


def test_an_existing_file_is_replaced_under_the_lock_and_keeps_its_permissions(
    root: Root, tmp_path: Path
) -> None:
    path = tmp_path / "name"
    path.write_bytes(b"older")
    path.chmod(0o640)
    assert replace(root, b"first", b"last") == [None, None]
    assert (path.read_bytes(), path.stat().st_mode & 0o777, path.stat().st_mtime_ns) == (b"last", 0o640, TIME)
    assert [one.name for one in tmp_path.iterdir()] == ["name"]


def test_a_batch_stores_new_files_and_reports_each_that_cannot_be_stored(root: Root, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    names = [b"new", b"folder", b"a/b/c", b"../x"]
    files = [SmallFile(name, b"content", TIME, executable=False) for name in names]
    failures = small_files.store_files(root, files, lambda: Lease(root.clone(), "write", "test"))
    assert [type(each) for each in failures] == [type(None), NeedsTransferError, type(None), UnsafeNameError]
    assert (tmp_path / "a/b/c").read_bytes() == (tmp_path / "new").read_bytes() == b"content"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "folder", "new"]


@pytest.mark.parametrize("kind", ["folder", "symlink"])
def test_only_regular_files_are_replaced(kind: str, root: Root, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"older")
    name = tmp_path / "name"
    name.mkdir() if kind == "folder" else name.symlink_to("other")
    assert [type(each) for each in replace(root, b"new")] == [NeedsTransferError]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["name", "other"]
    assert (tmp_path / "other").read_bytes() == b"older"


def test_the_lock_of_another_operation_is_respected(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "_LOCK_PAUSE", 0)
    (tmp_path / "name").write_bytes(b"older")
    other = Lease(open_root(tmp_path), "push", "another")
    assert [type(each) for each in replace(root, b"new")] == [LockedError]
    assert replace(root, b"new", name=b"beside") == [None], "nobody has planned this name"
    assert (tmp_path / "name").read_bytes() == b"older"
    other.release()
    assert replace(root, b"new") == [None]


@pytest.mark.parametrize("left", ["journal", "packs"])
def test_an_interrupted_transfer_or_packed_files_need_a_transfer(
    left: str, root: Root, tmp_path: Path
) -> None:
    (tmp_path / "name").write_bytes(b"older")
    (tmp_path / ".hibali").mkdir(mode=0o700)
    (tmp_path / ".hibali" / left).write_bytes(b"{}")
    assert [type(each) for each in replace(root, b"new")] == [NeedsTransferError]
    assert (tmp_path / "name").read_bytes() == b"older"
    assert [one.name for one in (tmp_path / ".hibali").iterdir()] == [left]


def test_a_kill_before_the_rename_leaves_the_old_file_and_the_next_write_clears_up(
    root: Root, tmp_path: Path
) -> None:
    (tmp_path / "name").write_bytes(b"older")
    child = os.fork()
    if child == 0:  # the rename never happens
        os.rename = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        replace(root, b"half")
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert (tmp_path / "name").read_bytes() == b"older"
    assert any(one.name.startswith("new.") for one in (tmp_path / ".hibali").iterdir())
    assert replace(root, b"new") == [None]
    assert (tmp_path / "name").read_bytes() == b"new"
    assert [one.name for one in tmp_path.iterdir()] == ["name"]


def test_a_lost_lease_stops_the_rename(root: Root, tmp_path: Path) -> None:
    (tmp_path / "name").write_bytes(b"older")

    def lose() -> Lease:
        lease = Lease(root.clone(), "write", "test")
        record = json.loads((tmp_path / ".hibali/lock").read_text())
        (tmp_path / ".hibali/lock").write_text(json.dumps({**record, "token": "f" * 32}))
        return lease

    failures = small_files.store_files(root, [SmallFile(b"name", b"new", TIME, executable=False)], lose)
    assert [type(each) for each in failures] == [LostLeaseError]
    assert (tmp_path / "name").read_bytes() == b"older"
    assert [one.name for one in (tmp_path / ".hibali").iterdir()] == ["lock"]


def test_files_are_fetched_together_as_far_as_they_fit(root: Root, tmp_path: Path) -> None:
    for name, size in (("a", 10), ("b", 0), ("large", 100), ("c", 10)):
        (tmp_path / name).write_bytes(name[:1].encode() * size)
    (tmp_path / "link").symlink_to("a")
    found, content = small_files.fetch_files(
        root, [b"a", b"b", b"large", b"missing", b"link", b"../x", b"c"], 50
    )
    codes = [each if isinstance(each, int) else each[0] for each in found]
    assert codes == [10, 0, "needs-transfer", "vanished", codes[4], "unsafe-name", 10]
    assert codes[4] not in {"vanished", 10}
    assert content == b"a" * 10 + b"c" * 10
