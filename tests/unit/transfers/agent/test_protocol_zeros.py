"""Test that omitted zero blocks are restored, and that received runs are checked."""

from __future__ import annotations

import random
from typing import Any

import pytest

from transfers.agent import protocol
from transfers.agent.protocol import ZerosError, with_zeros, without_zeros

BLOCK = 64 * 1024


def dirty(length: int) -> bytearray:
    return bytearray(b"\xee" * length)


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 7 * BLOCK + 100])
def test_zeros_round_trip(length: int) -> None:
    for seed in range(40):
        chance = random.Random(seed)  # noqa: S311 - no secret
        content = bytearray(length)
        for _ in range(chance.randrange(4)):
            at = chance.randrange(length)
            some = chance.randbytes(chance.randrange(1, 2 * BLOCK))[: length - at]
            content[at : at + len(some)] = some
        header, body = without_zeros({"unit": 1}, memoryview(content))
        assert bytes(with_zeros(header, body, length, dirty)) == bytes(content)
        assert len(body) + (BLOCK if "runs" in header else 0) >= len(content) - content.count(0) * 2
        assert ("runs" in header) == (len(body) < length)


def test_zero_blocks_are_not_sent() -> None:
    header, body = without_zeros({}, bytes(16 << 20))
    assert (header, len(body)) == ({"runs": []}, 0)
    content = b"x" * (3 * BLOCK)
    assert without_zeros({"unit": 3}, content) == ({"unit": 3}, content)
    some = bytes(BLOCK) + b"y" + bytes(2 * BLOCK - 1)
    assert without_zeros({}, some) == ({"runs": [[BLOCK, 2 * BLOCK]]}, b"y" + bytes(BLOCK - 1))


WRONG: tuple[Any, ...] = (
    None, 5, "x", {}, [1], [[0]], [[0, 1, 2]], [[0, "1"]], [[0, True]], [[0.0, 3]], [[-1, 2]], [[0, 11]], [[3, 3]],
    [[2, 1]], [[0, 2], [1, 2]], [[2, 4], [0, 1]], [[0, 2]], [[0, 4]], [], [[0, 1 << 70]],
)  # fmt: skip


@pytest.mark.parametrize("runs", WRONG)
def test_reject_inconsistent_runs(runs: Any) -> None:
    with pytest.raises(ZerosError):
        with_zeros({"runs": runs}, b"abc", 10, dirty)


@pytest.mark.parametrize("length", [0, -1, protocol.MAXIMUM_BODY + 1, 1 << 62])
def test_never_allocate_more_than_a_piece(length: int) -> None:
    def allocate(_: int) -> bytearray:
        raise AssertionError("memory was allocated")

    with pytest.raises(ZerosError):
        with_zeros({"runs": []}, b"", length, allocate)
