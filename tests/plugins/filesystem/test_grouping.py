"""Test that requests of several threads are made together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from hibali_plugins.filesystem.grouping import Group


class Requests:
    """Requests that double numbers; the first one waits until it is released."""

    def __init__(self) -> None:
        self.made: list[list[int]] = []
        self.begun, self.released = threading.Event(), threading.Event()

    def make(self, items: Sequence[int]) -> list[int]:
        self.made.append([*items])
        if len(self.made) == 1:
            self.begun.set()
            assert self.released.wait(60)
        if 13 in items:
            raise OSError("thirteen")
        return [2 * each for each in items]


def together(requests: Requests, group: Group[int, int], others: Sequence[int]) -> dict[int, object]:
    """Call once for 0, and while that is under way once for each other number, each in a thread."""
    found: dict[int, object] = {}

    def call(number: int) -> None:
        try:
            found[number] = group.call([number])[0]
        except OSError as problem:
            found[number] = str(problem)

    with ThreadPoolExecutor(32) as pool:
        pool.submit(call, 0)
        assert requests.begun.wait(60)
        futures = [pool.submit(call, number) for number in others]
        while len(group._waiting) < len(others):  # all of them wait now
            assert not any(each.done() for each in futures)
        requests.released.set()
    return found


def test_what_waits_is_requested_together_and_everyone_gets_the_own_result() -> None:
    requests = Requests()
    found = together(requests, Group[int, int](requests.make, lambda _: 1, 100), range(1, 10))
    assert found == {number: 2 * number for number in range(10)}
    assert [sorted(each) for each in requests.made] == [[0], [*range(1, 10)]]


def test_a_request_has_at_most_the_bytes_unless_it_is_one_item() -> None:
    requests = Requests()
    together(requests, Group[int, int](requests.make, lambda each: each, 10), [4, 5, 50, 6])
    assert all(sum(each) <= 10 or len(each) == 1 for each in requests.made)
    assert sorted(number for each in requests.made for number in each) == [0, 4, 5, 6, 50]


def test_a_failed_request_is_an_error_of_all_who_wait_for_it() -> None:
    requests = Requests()
    found = together(requests, Group[int, int](requests.make, lambda _: 1, 100), [1, 13])
    assert found == {0: 0, 1: "thirteen", 13: "thirteen"}


def test_an_interruption_concerns_one_thread_and_the_others_go_on() -> None:
    interrupted: list[int] = []

    def make(items: Sequence[int]) -> list[int]:
        if not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        return [*items]

    group = Group[int, int](make, lambda _: 1, 100)
    with pytest.raises(KeyboardInterrupt):
        group.call([1])
    assert group.call([2]) == [2]
    assert group.call([3, 4]) == [3, 4]
