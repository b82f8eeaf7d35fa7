"""Test the number of channels for a link, and the data in flight over them."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from transfers.pipeline.batches import Window
from transfers.pipeline.channel_pool import count_channels

MIB = 1 << 20


def test_open_as_many_channels_as_fill_a_long_link() -> None:
    assert count_channels(0.110, 2 << 30, 8) == 8
    assert count_channels(0.110, 2 << 30, 64, rate=125_000_000) == 7  # 110 ms of 1 Gbit/s are 13.75 MB
    assert count_channels(0.0003, 2 << 30, 8) == 1
    assert count_channels(0.110, 20 * MIB, 8) == 3  # three times the least bytes for a channel
    assert count_channels(0.110, 0, 8) == 1


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 16 * MIB)), min_size=1, max_size=60), st.randoms()
)
def test_window_limit_holds_for_any_order_of_replies(units: list[tuple[int, int]], random: object) -> None:
    limit = 32 * MIB
    window = Window(lambda: limit)
    offsets = dict.fromkeys(range(4), 0)
    under_way: dict[int, tuple[int, int, int]] = {}
    done: dict[int, set[int]] = {of: set() for of in range(4)}
    for number, (of, size) in enumerate(units):
        while not _opens(window, number, size, of, offsets[of]):
            closed = random.choice(sorted(under_way))  # type: ignore[attr-defined]
            done[under_way[closed][0]].add(closed)
            del under_way[closed]
            window.close(closed)
        under_way[number] = (of, offsets[of], size)
        offsets[of] += size
        held = sum(one for _, _, one in under_way.values())
        assert held <= max(limit, size)
        gap = min(offset for file, offset, _ in under_way.values() if file == of)
        assert offsets[of] - gap <= max(limit, size)


def _opens(window: Window, number: int, size: int, of: int, offset: int) -> bool:
    """Open a unit if it fits now, without waiting."""
    thread = threading.Thread(target=window.open, args=(number, size), kwargs={"of": of, "offset": offset})
    if not window.fits(size, of, offset):
        return False
    thread.start()
    thread.join(5)
    return not thread.is_alive()


def test_stopped_window_wakes_all_threads() -> None:
    window = Window(lambda: 1)
    assert window.open(1, 1)
    waiting = threading.Thread(target=window.open, args=(2, 1))
    waiting.start()
    window.stop()
    waiting.join(5)
    assert not waiting.is_alive()
    assert not window.wait_empty()
    assert not window.open(3, 1)


def test_a_unit_without_bytes_never_waits_for_another() -> None:
    """All further channels can be lost at a time, which lowers the limit below what they have in flight."""
    limit = 10
    window = Window(lambda: limit)
    assert window.open(1, 10)
    limit = 5
    opening = threading.Thread(target=window.open, args=(-1, 0), daemon=True)
    opening.start()
    opening.join(5)
    assert not opening.is_alive()
    assert not window.fits(1, None, 0)
