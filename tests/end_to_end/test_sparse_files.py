"""Test that zeros of sparse files are not sent over the network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.end_to_end.conftest import MakeTransfers
from tests.support.trees import sha256_of

SIZES = [pytest.param(48 << 20, id="small"), pytest.param(256 << 20, id="large", marks=pytest.mark.heavy)]


def allocated_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def make_sparse(path: Path, size: int) -> None:
    """Make a file with single MiB of data, some at odd offsets and one at the very end."""
    with path.open("wb") as stream:
        stream.truncate(size)
        for start, length in ((5 << 20, 1 << 19), (size // 2 - 77, 1 << 18), (size - (1 << 18), 1 << 18)):
            stream.seek(start)
            stream.write(os.urandom(length))


@pytest.mark.parametrize("size", SIZES)
def test_only_the_data_of_a_sparse_file_is_transferred(transfers_to: MakeTransfers, size: int) -> None:
    there = transfers_to("ssh")
    there.source.mkdir()
    make_sparse(there.source / "image", size)
    # no hole: zeros in allocated blocks
    (there.source / "given").write_bytes(bytes(8 << 20) + os.urandom(1000))
    receipt = there.push().last
    assert receipt["bytes_moved"] == size + (8 << 20) + 1000
    assert receipt["bytes_sent"] < 3 << 20
    assert receipt["proof_moved"] == "digest"
    assert sha256_of(there.root / "image") == sha256_of(there.source / "image")
    assert allocated_bytes(there.root / "image") < 3 << 20
    assert allocated_bytes(there.root / "given") >= 8 << 20
    back = there.folder / "back"
    receipt = there.pull(back).last
    assert receipt["bytes_sent"] < 3 << 20
    assert sha256_of(back / "image") == sha256_of(there.source / "image")
    assert sha256_of(back / "given") == sha256_of(there.source / "given")
    assert allocated_bytes(back / "image") < 3 << 20
    assert allocated_bytes(back / "given") >= 8 << 20
