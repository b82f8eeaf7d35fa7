"""Test which errors mean a lost connection, the pauses between tries, and resuming afterwards."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali import subprocesses
from hibali.errors import AccessError, HibaliError, TryLaterError, is_lost
from hibali.retry import retry_after
from transfers.engine.reconnect import Reconnection, RetryPolicy
from transfers.model.store import Store
from transfers.pipeline.batches import NumberSet


def pauses_of(patience: RetryPolicy, now: float, tries: float = 0.0) -> list[float]:
    """Return all pauses, if each try takes this long."""
    found: list[float] = []
    while (pause := patience.next_pause(now)) is not None:
        found.append(pause)
        now += pause + tries
    return found


def lost_at(now: float, mark: object = None, *, seconds: float = 600.0) -> RetryPolicy:
    patience = RetryPolicy(seconds, lambda: 1.0)
    patience.lost(now, mark)
    return patience


def test_pauses_triple_up_to_a_limit_and_end_at_the_deadline() -> None:
    pauses = pauses_of(lost_at(50.0), 50.0)
    assert pauses[:5] == [3.0, 9.0, 27.0, 81.0, 90.0]
    assert sum(pauses) == 600.0


@given(
    seconds=st.floats(0.5, 3600.0),
    tries=st.floats(0.0, 60.0),
    jitter=st.floats(0.9, 1.1),
)
def test_tries_become_rarer_and_none_is_after_the_deadline(
    seconds: float, tries: float, jitter: float
) -> None:
    patience = RetryPolicy(seconds, lambda: jitter)
    patience.lost(0.0, None)
    pauses = pauses_of(patience, 0.0, tries)
    assert all(0 < pause <= 90.0 * 1.1 for pause in pauses)
    assert sum(pauses) + tries * (len(pauses) - 1) <= seconds * (1 + 1e-9)
    assert all(first <= second for first, second in pairwise(pauses[:-1]))
    assert len(pauses) <= 5 + seconds / 80


def test_a_second_loss_without_progress_does_not_restart_the_policy() -> None:
    patience = lost_at(0.0, mark=(1, 0), seconds=20.0)
    assert [patience.next_pause(0.0), patience.next_pause(3.0)] == [3.0, 9.0]
    patience.lost(13.0, (1, 0))
    assert pauses_of(patience, 13.0) == [7.0]
    patience.lost(13.0, (1, 8 << 20))
    assert pauses_of(patience, 13.0) == [3.0, 9.0, 8.0]


def test_lost_connections_are_recognized_by_their_errors() -> None:
    assert is_lost(TryLaterError("connection-lost", "the agent ended"))
    assert is_lost(TryLaterError("unreachable", "Connection closed by remote host"))
    assert not is_lost(TryLaterError("locked", "the target is held", transient=False))
    assert not is_lost(TryLaterError("lease-lost", "another client took the lock"))
    assert not is_lost(AccessError("login-refused", "the login was refused"))
    assert not is_lost(KeyboardInterrupt())


def test_only_transient_errors_are_retried_and_the_last_error_is_raised() -> None:
    problems: list[HibaliError] = [
        TryLaterError("unreachable", "not yet"),
        AccessError("login-refused", "never"),
        TryLaterError("unreachable", "is not requested"),
    ]
    pauses: list[tuple[str, int, float]] = []

    def attempt() -> None:
        raise problems.pop(0)

    with pytest.raises(AccessError, match="never"):
        retry_after(
            attempt,
            TryLaterError("connection-lost", "lost"),
            next_pause=lambda: 0.001,
            on_pause=lambda problem, count, seconds: pauses.append((problem.message, count, seconds)),
        )
    assert pauses == [("lost", 1, 0.001), ("not yet", 2, 0.001)]
    assert len(problems) == 1


def test_nothing_is_retried_without_a_pause() -> None:
    def attempt() -> None:
        raise AssertionError

    with pytest.raises(TryLaterError, match="lost"):
        retry_after(
            attempt,
            TryLaterError("connection-lost", "lost"),
            next_pause=lambda: None,
            on_pause=lambda *_: pytest.fail("there is no pause"),
        )


@given(st.sets(st.integers(0, 200)))
def test_answered_items_are_stored_by_number(numbers: set[int]) -> None:
    answered = NumberSet()
    for number in numbers:
        answered.add(number)
    assert {number for number in range(220) if number in answered} == numbers
    assert len(answered) == len(numbers)


class Unreachable:
    """A store whose connection was lost; each attempt to reconnect starts a program that hangs."""

    connection_lost, reconnect_seconds, resumed_bytes = True, 0.5, 0

    def can_reconnect(self, *, anew: bool) -> bool:
        return not anew

    def disconnect(self) -> None:
        """Do nothing."""

    def reconnect(self, *, anew: bool) -> None:
        assert not anew
        subprocesses.run(["sleep", "60"])
        raise TryLaterError("agent-not-started", "it was killed", subject="far", transient=False)


def test_the_last_attempt_takes_no_longer_than_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a program that started within the limit could outlast it by 90 seconds."""
    monkeypatch.setattr("transfers.engine.reconnect._LEAST_SECONDS", 0.5)

    def act() -> None:
        raise TryLaterError("connection-lost", "lost", subject="far")

    reconnection = Reconnection(cast("list[Store]", [Unreachable()]), lambda: 0, lambda _: None)
    began = time.monotonic()
    with pytest.raises(TryLaterError) as caught:
        reconnection.until_done(act)
    assert time.monotonic() - began < 30
    assert (caught.value.code, caught.value.subject) == ("unreachable", "far")
