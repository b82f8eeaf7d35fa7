"""The digest of a file that comes in pieces is that of its bytes, whatever their order and whoever has them at hand."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfers.agent import frontier as frontier_module
from transfers.agent.begun import Mark
from transfers.agent.frontier import Frontier, MismatchError

MARK_BYTES = 64 * 1024  # instead of 8 MiB, which take a while to hash
PIECE = MARK_BYTES // 2 - 1000
CONTENT = bytes(range(256)) * (5 * PIECE // 256) + b"the end"
PIECES = [(offset, CONTENT[offset : offset + PIECE]) for offset in range(0, len(CONTENT), PIECE)]


@pytest.fixture(autouse=True, scope="module")
def small_marks() -> Iterator[None]:
    with mock.patch.object(frontier_module, "MARK_BYTES", MARK_BYTES):
        yield


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


MARKS = [(stop, digest(CONTENT[:stop])) for stop in range(MARK_BYTES, len(CONTENT), MARK_BYTES)]


@given(
    st.permutations(range(len(PIECES))), st.lists(st.booleans(), min_size=len(PIECES), max_size=len(PIECES))
)
def test_pieces_in_any_order(order: list[int], at_hand: list[bool]) -> None:
    marks: list[Mark] = []
    with tempfile.TemporaryFile() as file:
        frontier = Frontier(file.fileno(), len(CONTENT), [], marks.append)
        whole = []
        for number in order:
            offset, piece = PIECES[number]
            os.pwrite(file.fileno(), piece, offset)
            whole.append(frontier.place(offset, len(piece), piece if at_hand[number] else None))
        assert frontier.finish() == digest(CONTENT)
    assert whole == [False] * (len(PIECES) - 1) + [True]
    assert marks == MARKS


@pytest.mark.parametrize("wrong", [(0, 0), (-1, 5), (PIECE // 2, PIECE), (0, len(CONTENT) + 1)])
def test_a_piece_that_cannot_be_is_refused(tmp_path: Path, wrong: tuple[int, int]) -> None:
    with (tmp_path / "file").open("w+b") as file:
        frontier = Frontier(file.fileno(), len(CONTENT), [], [].append)
        os.pwrite(file.fileno(), PIECES[0][1], 0)
        assert not frontier.place(*_told(PIECES[0]), PIECES[0][1])
        with pytest.raises(ValueError, match="not asked for"):
            frontier.place(*wrong, bytes(max(0, wrong[1])))
        frontier.give_up()
        with pytest.raises(MismatchError):
            frontier.finish()


def test_what_an_earlier_time_left_is_read_and_compared(tmp_path: Path) -> None:
    marks: list[Mark] = []
    with (tmp_path / "file").open("w+b") as file:
        file.write(CONTENT[:MARK_BYTES])
        file.flush()
        frontier = Frontier(file.fileno(), len(CONTENT), MARKS[:1], marks.append)
        rest = CONTENT[MARK_BYTES:]
        os.pwrite(file.fileno(), rest, MARK_BYTES)
        assert frontier.place(MARK_BYTES, len(rest), rest)
        assert frontier.finish() == digest(CONTENT)
        assert marks == MARKS[1:]
        other = Frontier(file.fileno(), len(CONTENT), [(MARK_BYTES, "0" * 64)], marks.append)
        with pytest.raises(MismatchError):
            other.finish()


def _told(piece: tuple[int, bytes]) -> tuple[int, int]:
    return piece[0], len(piece[1])
