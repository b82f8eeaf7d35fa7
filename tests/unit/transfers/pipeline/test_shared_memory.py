"""Rooms in shared memory: never two in one place, and free again when nobody looks at them any more."""

from __future__ import annotations

import gc

from hypothesis import given, settings
from hypothesis import strategies as st

from transfers.agent.protocol import BULK_BYTES, Buffers
from transfers.pipeline.shared_memory import SharedBuffers

ROUND = 64 * 1024
SIZE = 16 * ROUND


@settings(max_examples=10)  # each collects all garbage there is
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6 * ROUND)), max_size=40), st.randoms())
def test_rooms_lie_apart_and_come_back(steps: list[tuple[bool, int]], random: object) -> None:
    arena = SharedBuffers(SIZE)
    held: list[tuple[memoryview, int]] = []
    for number, (take, length) in enumerate(steps):
        if take or not held:
            room = arena.take(length)
            if room is not None:
                room[:] = bytes([number]) * length
                held.append((room, number))
            del room
        else:
            held.pop(random.randrange(len(held)))  # type: ignore[attr-defined]
        assert all(bytes(room) == bytes([number]) * len(room) for room, number in held)
    held.clear()
    gc.collect()
    whole = arena.take(SIZE)
    assert whole is not None
    assert arena.place_of(whole) == 0


def test_a_part_of_a_room_keeps_all_of_it() -> None:
    arena = SharedBuffers(SIZE)
    room = arena.take(SIZE)
    assert room is not None
    part = room[3 * ROUND + 7 : 3 * ROUND + 9]
    del room
    assert arena.take(1) is None
    assert arena.place_of(part) == 3 * ROUND + 7
    del part
    assert arena.take(1) is not None


def test_what_lies_elsewhere_is_brought_in_while_there_is_room() -> None:
    arena = SharedBuffers(SIZE)
    assert arena.place_of(b"elsewhere") is None
    assert arena.place_of(memoryview(bytearray(8))) is None
    held = arena.hold(b"elsewhere")
    assert (arena.place_of(held), bytes(held)) == (0, b"elsewhere")
    assert arena.hold(held) is held
    rest = arena.take(SIZE - ROUND)
    assert rest is not None
    assert arena.hold(b"no room") == b"no room"


def test_another_arenas_bytes_are_not_ours() -> None:
    one, other = SharedBuffers(SIZE), SharedBuffers(SIZE)
    room = other.take(8)
    assert room is not None
    assert one.place_of(room) is None


def test_a_buffer_that_came_back_is_used_again() -> None:
    buffers = Buffers()
    first = buffers.take(BULK_BYTES)
    assert isinstance(first, memoryview)
    content = first.obj
    buffers.give(first)
    second = buffers.take(BULK_BYTES + 1)
    assert isinstance(second, memoryview)
    assert second.obj is content
    assert len(second) == BULK_BYTES + 1
    assert len(buffers.take(7)) == 7
