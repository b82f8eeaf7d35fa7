"""Test that pieces that arrive while a resumed file is verified survive another interruption."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.agent_root import open_root
from tests.support.waiting import wait_for
from transfers.agent import large_files as frontier_module
from transfers.agent.journal import MARK_BYTES, PartialFile, PartialFilesJournal, read_partial_files
from transfers.agent.large_files import StreamingHash
from transfers.agent.protocol import MismatchError
from transfers.agent.safe_path import Root

BLOCKS = 6
CONTENT = random.Random(2).randbytes(BLOCKS * MARK_BYTES + 5)  # noqa: S311 - the same each time
PARTIAL = b".hibali-" + b"0123456789abcdef" * 2


def digest(start: int, stop: int) -> str:
    return sha256(CONTENT[start * MARK_BYTES : stop * MARK_BYTES]).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    (tmp_path / ".hibali").mkdir(mode=0o700)
    (tmp_path / os.fsdecode(PARTIAL)).write_bytes(CONTENT)
    found = open_root(tmp_path)
    yield found
    found.close()


def begin(root: Root, marks: int, blocks: int) -> tuple[PartialFile, PartialFilesJournal]:
    """Return a partial file with this many marks, and this many blocks after them."""
    part = PartialFile(b"large", PARTIAL, len(CONTENT), 1, "")
    part.marks = [(number * MARK_BYTES, digest(0, number)) for number in range(1, marks + 1)]
    part.blocks = [
        (number * MARK_BYTES, (number + 1) * MARK_BYTES, digest(number, number + 1))
        for number in range(marks, marks + blocks)
    ]
    begun = PartialFilesJournal(root)
    begun.start(part)
    return part, begun


def resume(root: Root, part: PartialFile, begun: PartialFilesJournal) -> StreamingHash:
    descriptor = os.open(PARTIAL, os.O_RDONLY, dir_fd=root.descriptor)
    try:
        return StreamingHash(descriptor, part, begun)
    finally:
        os.close(descriptor)


def test_resume_after_last_block_and_rehash_blocks(root: Root) -> None:
    _, begun = begin(root, 2, 3)
    begun.close()
    (known,) = read_partial_files(root)
    assert known.received == 5 * MARK_BYTES
    assert len(known.marks) == 2
    assert len(known.blocks) == 3


def test_blocks_become_marks_after_verification(root: Root) -> None:
    part, begun = begin(root, 1, 3)
    streaming_hash = resume(root, part, begun)
    assert streaming_hash.place(4 * MARK_BYTES, len(CONTENT) - 4 * MARK_BYTES)
    assert streaming_hash.finish() == sha256(CONTENT).hexdigest()
    begun.close()
    (known,) = read_partial_files(root)
    assert [mark[0] // MARK_BYTES for mark in known.marks] == list(range(1, BLOCKS + 1))
    assert known.blocks == []


def test_record_pieces_that_arrive_during_verification(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification can take long; here it never finishes."""
    part, begun = begin(root, 3, 0)
    monkeypatch.setattr(StreamingHash, "_hash", lambda self: self._wait_for(len(CONTENT)))
    streaming_hash = resume(root, part, begun)
    streaming_hash.place(3 * MARK_BYTES, 2 * MARK_BYTES + 1)
    wait_for(lambda: part.received == 5 * MARK_BYTES)
    streaming_hash.abandon()
    begun.close()
    (known,) = read_partial_files(root)
    assert known.received == 5 * MARK_BYTES


def test_slow_hashing_delays_the_writer_and_loses_no_more_than_one_mark(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, begun = begin(root, 3, 0)
    may_note, written = threading.Event(), list[int]()
    note = begun.block

    def note_late(part: PartialFile, block: tuple[int, int, str]) -> None:
        may_note.wait()
        note(part, block)

    monkeypatch.setattr(begun, "block", note_late)
    monkeypatch.setattr(
        StreamingHash, "_hash", lambda self: self._wait_for(len(CONTENT))
    )  # it never finishes
    streaming_hash = resume(root, part, begun)

    def write() -> None:
        for number in range(3, BLOCKS):
            streaming_hash.place(number * MARK_BYTES, MARK_BYTES)
            written.append((number + 1) * MARK_BYTES - part.received)

    writer = threading.Thread(target=write)
    writer.start()
    wait_for(lambda: streaming_hash._received >= 5 * MARK_BYTES)
    may_note.set()
    writer.join()
    streaming_hash.abandon()
    begun.close()
    assert max(written) <= MARK_BYTES


@pytest.mark.parametrize(("damaged", "good"), [(0, 0), (1, 1), (3, 3)])
def test_detect_damaged_mark_or_block_and_keep_data_before_it(
    tmp_path: Path, root: Root, damaged: int, good: int
) -> None:
    part, begun = begin(root, 2, 2)
    with (tmp_path / os.fsdecode(PARTIAL)).open("r+b") as stream:
        stream.seek(damaged * MARK_BYTES + 17)
        stream.write(b"damaged")
    streaming_hash = resume(root, part, begun)
    streaming_hash.place(4 * MARK_BYTES, len(CONTENT) - 4 * MARK_BYTES)
    with pytest.raises(MismatchError) as caught:
        streaming_hash.finish()
    assert caught.value.good == good * MARK_BYTES
    begun.cut(part, caught.value.good)
    begun.close()
    (known,) = read_partial_files(root)
    assert known.received == good * MARK_BYTES


@pytest.mark.parametrize("written", [True, False])
def test_an_offered_piece_has_no_marks_before_it_is_written(root: Root, *, written: bool) -> None:
    part, begun = begin(root, 0, 0)
    streaming_hash = resume(root, part, begun)
    streaming_hash.offer(0, CONTENT[: 2 * MARK_BYTES])
    wait_for(lambda: streaming_hash._position == 2 * MARK_BYTES)
    assert part.marks == []
    if written:
        streaming_hash.place(0, 2 * MARK_BYTES)
    streaming_hash.abandon()
    begun.close()
    (known,) = read_partial_files(root)
    assert known.received == (2 * MARK_BYTES if written else 0)


SMALL_MARK = 64 * 1024
PIECE = SMALL_MARK // 2 - 1000
PIECES = [CONTENT[offset : offset + PIECE] for offset in range(0, 6 * PIECE, PIECE)]
WHOLE = b"".join(PIECES)


@given(st.permutations(range(len(PIECES))), st.lists(st.booleans(), min_size=6, max_size=6))
def test_digest_does_not_depend_on_the_order_of_pieces(order: list[int], with_content: list[bool]) -> None:
    part = PartialFile(b"large", PARTIAL, len(WHOLE), 1, "")
    begun = mock.Mock()
    with tempfile.TemporaryFile() as file, mock.patch.object(frontier_module, "MARK_BYTES", SMALL_MARK):
        streaming_hash = StreamingHash(file.fileno(), part, begun)
        whole = []
        for number in order:
            piece = PIECES[number]
            if with_content[number]:
                streaming_hash.offer(number * PIECE, piece)
            os.pwrite(file.fileno(), piece, number * PIECE)
            whole.append(streaming_hash.place(number * PIECE, PIECE))
        assert streaming_hash.finish() == sha256(WHOLE).hexdigest()
    assert whole == [False] * 5 + [True]
    marks = [(stop, sha256(WHOLE[:stop]).hexdigest()) for stop in range(SMALL_MARK, len(WHOLE), SMALL_MARK)]
    assert begun.mark.call_args_list == [mock.call(part, mark) for mark in marks]


@pytest.mark.parametrize("wrong", [(0, 0), (-1, 5), (PIECE // 2, PIECE), (0, len(WHOLE) + 1)])
def test_reject_invalid_piece(root: Root, wrong: tuple[int, int]) -> None:
    part, begun = begin(root, 0, 0)
    streaming_hash = resume(root, part, begun)
    streaming_hash.offer(0, PIECES[0])
    assert not streaming_hash.place(0, PIECE)
    streaming_hash.offer(wrong[0], bytes(max(0, wrong[1])))
    with pytest.raises(ValueError, match="not requested"):
        streaming_hash.place(*wrong)
    streaming_hash.abandon()
    with pytest.raises(MismatchError):
        streaming_hash.finish()
    begun.close()
