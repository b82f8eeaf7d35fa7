"""Test appending to a file by an agent, and its refusals."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_root import open_root
from transfers.agent.appending import AppendTarget, TailReader
from transfers.agent.lease import LostLeaseError
from transfers.agent.safe_path import Root


def nothing() -> None:
    """Allow everything."""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    opened = open_root(tmp_path)
    yield opened
    opened.close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def piece(
    before: bytes, content: bytes, path: bytes = b"log", **other: Any
) -> tuple[dict[str, Any], bytearray]:
    """Return the request that appends `content` after `before`."""
    header = {
        "path": path,
        "from": len(before),
        "mode": 0o644,
        "mtime_ns": 5_000_000_000,
        "last": True,
        "before": sha256(before),
        "piece": sha256(content),
        "after": sha256(before + content),
    }
    return {**header, **other}, bytearray(content)


def test_append_pieces_and_set_mtime_with_the_last(root: Root, tmp_path: Path) -> None:
    growths = AppendTarget(root, nothing, nothing)
    assert growths.append(*piece(b"", b"one ", b"sub/log", last=False)) == {"problem": None}
    made = tmp_path / "sub" / "log"
    assert made.stat().st_mtime_ns != 5_000_000_000
    assert growths.append(*piece(b"one ", b"two", b"sub/log")) == {"problem": None}
    assert (made.read_bytes(), made.stat().st_mtime_ns) == (b"one two", 5_000_000_000)
    assert growths.append(*piece(b"one two", b"", b"sub/log")) == {"problem": None}
    assert made.read_bytes() == b"one two"


@pytest.mark.parametrize(
    ("existing", "request_of", "code"),
    [
        (b"other", piece(b"12345", b"6"), "not-a-prefix"),
        (b"12345", piece(b"12345", b"6", piece=sha256(b"7")), "corrupt"),
        (b"12345", piece(b"12345", b"6", after=sha256(b"7")), "corrupt"),
        (b"123456", piece(b"12345", b"6"), "target-changed"),
        (b"1234", piece(b"12345", b"6"), "target-changed"),
        (b"1", piece(b"", b"6"), "target-changed"),
        (None, piece(b"12345", b"6"), "target-changed"),
    ],
)
def test_append_nothing_if_a_digest_differs(
    root: Root,
    tmp_path: Path,
    existing: bytes | None,
    request_of: tuple[dict[str, Any], bytearray],
    code: str,
) -> None:
    log = tmp_path / "log"
    if existing is not None:
        log.write_bytes(existing)
    reply = AppendTarget(root, nothing, nothing).append(*request_of)
    assert reply["problem"][0] == code
    assert (log.read_bytes() if log.exists() else None) == existing


def test_rehash_target_that_others_changed(root: Root, tmp_path: Path) -> None:
    growths = AppendTarget(root, nothing, nothing)
    growths.append(*piece(b"", b"12345"))
    (tmp_path / "log").write_bytes(b"54321")
    os.utime(tmp_path / "log", ns=(5_000_000_000, 5_000_000_000))
    assert growths.append(*piece(b"12345", b"6"))["problem"][0] == "not-a-prefix"


@pytest.mark.parametrize("kind", ["link", "pipe", "second name"])
def test_append_only_to_own_regular_file(root: Root, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"12345")
    if kind == "link":
        (tmp_path / "log").symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(tmp_path / "log")
    else:
        (tmp_path / "log").hardlink_to(other)
    reply = AppendTarget(root, nothing, nothing).append(*piece(b"12345", b"6"))
    assert reply["problem"][0] in {"symlink-in-the-way", "not-ours-alone"}
    assert other.read_bytes() == b"12345"


def test_append_nothing_without_the_lock(root: Root, tmp_path: Path) -> None:
    def lost() -> None:
        raise LostLeaseError("the lease ran out")

    with pytest.raises(LostLeaseError):
        AppendTarget(root, nothing, lost).append(*piece(b"", b"1"))
    assert not (tmp_path / "log").exists()


def test_read_tail_with_its_digests(root: Root, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one two three")
    tails = TailReader(root, nothing)
    for start, stop in ((4, 7), (7, 8), (0, 3), (8, 8)):  # with and without the earlier hash state
        header, body = tails.read({"path": b"log", "from": start, "to": stop})
        content = b"one two three"
        assert bytes(body) == content[start:stop]
        assert header == {
            "problem": None,
            "before": sha256(content[:start]),
            "piece": sha256(content[start:stop]),
            "after": sha256(content[:stop]),
        }


def test_report_truncated_or_replaced_source(root: Root, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"12345")
    tails = TailReader(root, nothing)
    tails.read({"path": b"log", "from": 0, "to": 5})
    log.rename(tmp_path / "log.1")
    log.write_bytes(b"abcdefgh")
    header, _ = tails.read({"path": b"log", "from": 5, "to": 6})
    assert header["before"] == sha256(b"abcde")
    assert tails.read({"path": b"log", "from": 5, "to": 9})[0]["problem"][0] == "source-changed"
    log.unlink()
    assert tails.read({"path": b"log", "from": 5, "to": 6})[0]["problem"][0] == "vanished"
