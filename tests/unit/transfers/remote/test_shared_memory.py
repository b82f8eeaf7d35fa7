"""Test buffers in shared memory: they never overlap, and are freed with their last view."""

from __future__ import annotations

import gc

from hypothesis import given, settings
from hypothesis import strategies as st

from transfers.agent.protocol import BULK_BYTES, BufferPool
from transfers.remote.shared_memory import SharedBuffers

ROUND = 64 * 1024
SIZE = 16 * ROUND


@settings(max_examples=10)  # each example runs a full garbage collection
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6 * ROUND)), max_size=40), st.randoms())
def test_buffers_do_not_overlap_and_are_freed(steps: list[tuple[bool, int]], random: object) -> None:
    arena = SharedBuffers(SIZE)
    held: list[tuple[memoryview, int]] = []
    for number, (allocate, length) in enumerate(steps):
        if allocate or not held:
            buffer = arena.allocate(length)
            if buffer is not None:
                buffer[:] = bytes([number]) * length
                held.append((buffer, number))
            del buffer
        else:
            held.pop(random.randrange(len(held)))  # type: ignore[attr-defined]
        assert all(bytes(buffer) == bytes([number]) * len(buffer) for buffer, number in held)
    held.clear()
    gc.collect()
    whole = arena.allocate(SIZE)
    assert whole is not None
    assert arena.offset_of(whole) == 0


def test_view_of_a_part_keeps_the_buffer() -> None:
    arena = SharedBuffers(SIZE)
    buffer = arena.allocate(SIZE)
    assert buffer is not None
    part = buffer[3 * ROUND + 7 : 3 * ROUND + 9]
    del buffer
    assert arena.allocate(1) is None
    assert arena.offset_of(part) == 3 * ROUND + 7
    del part
    assert arena.allocate(1) is not None


def test_copy_other_memory_while_space_is_free() -> None:
    arena = SharedBuffers(SIZE)
    assert arena.offset_of(b"elsewhere") is None
    assert arena.offset_of(memoryview(bytearray(8))) is None
    held = arena.hold(b"elsewhere")
    assert (arena.offset_of(held), bytes(held)) == (0, b"elsewhere")
    assert arena.hold(held) is held
    last = arena.allocate(SIZE - ROUND)
    assert last is not None
    assert arena.hold(b"no room") == b"no room"


def test_bytes_of_another_arena_have_no_offset() -> None:
    one, other = SharedBuffers(SIZE), SharedBuffers(SIZE)
    buffer = other.allocate(8)
    assert buffer is not None
    assert one.offset_of(buffer) is None


def test_released_buffer_is_reused() -> None:
    buffers = BufferPool()
    first = buffers.allocate(BULK_BYTES)
    assert isinstance(first, memoryview)
    content = first.obj
    buffers.release(first)
    second = buffers.allocate(BULK_BYTES + 1)
    assert isinstance(second, memoryview)
    assert second.obj is content
    assert len(second) == BULK_BYTES + 1
    assert len(buffers.allocate(7)) == 7
