"""Test that sparse files arrive unchanged for any order of their pieces, and that zeros use no disk space."""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from transfers.agent.writing import write_at

BLOCK = 4096
SPARSE = {"sparse": True}
PARTS = st.lists(
    st.tuples(st.sampled_from((b"\0", b"x", b"\0\0x\0")), st.integers(1, 3 * BLOCK)), max_size=8
).map(lambda parts: b"".join((unit * length)[:length] for unit, length in parts))


@given(content=PARTS, cuts=st.lists(st.integers(0, 20 * BLOCK)), left=PARTS, order=st.randoms())
def test_every_byte_arrives(content: bytes, cuts: list[int], left: bytes, order: object) -> None:
    edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    pieces = list(pairwise(edges))
    order.shuffle(pieces)  # type: ignore[attr-defined]
    with tempfile.TemporaryFile() as file:
        os.pwrite(file.fileno(), left[: len(content)], 0)
        for start, end in pieces:
            write_at(file.fileno(), SPARSE, memoryview(content)[start:end], start)
        os.ftruncate(file.fileno(), len(content))
        assert os.pread(file.fileno(), len(content) + 1, 0) == content


def test_blocks_of_zeros_use_no_disk_space_and_a_dense_file_stays_dense() -> None:
    content = memoryview(b"1" + bytes(64 * BLOCK) + b"2" + bytes(64 * BLOCK))
    allocated = []
    for item in (SPARSE, {"sparse": False}):
        with tempfile.TemporaryFile() as file:
            write_at(file.fileno(), item, content, 0)
            os.ftruncate(file.fileno(), len(content))
            os.fsync(file.fileno())
            allocated.append(os.fstat(file.fileno()).st_blocks * 512)
    assert allocated[0] < 16 * BLOCK
    assert allocated[1] >= len(content)
