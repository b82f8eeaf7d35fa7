"""Test that a cancellation ends waits and programs of its own operation, and of no other one."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

from hibali.cancellation import (
    Cancellation,
    as_cancelled,
    cancelled_by,
    current_cancellation,
    in_this_context,
)
from hibali.errors import CancelledError, Exit, HibaliError, TryLaterError
from hibali.retry import pause
from hibali.subprocesses import run


def test_a_wait_ends_and_the_error_is_a_cancellation() -> None:
    cancellation = Cancellation()
    threading.Timer(0.05, cancellation.cancel).start()
    with pytest.raises(CancelledError) as found, cancelled_by(cancellation):
        pause(600)
    assert found.value.exit is Exit.INTERRUPTED


def test_a_program_that_does_not_end_is_killed() -> None:
    cancellation = Cancellation()
    threading.Timer(0.05, cancellation.cancel).start()
    with contextlib.suppress(CancelledError), cancelled_by(cancellation):
        assert run(["sleep", "600"], timeout=600).exit_code == -signal.SIGKILL


def test_another_operation_continues() -> None:
    with cancelled_by(Cancellation()):
        Cancellation().cancel()
        pause(0.01)
        assert run(["true"]).exit_code == 0


def test_nothing_begins_after_a_cancellation() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(CancelledError), cancelled_by(cancellation):
        pytest.fail("it began")


def test_errors_keep_their_meaning_without_a_cancellation() -> None:
    with pytest.raises(TryLaterError), cancelled_by(Cancellation()):
        raise TryLaterError("unreachable", "the host is down")
    assert current_cancellation() is None
    problem = HibaliError("any", "any")
    assert as_cancelled(problem) is problem


def test_callbacks_are_called_once_and_can_be_taken_back() -> None:
    cancellation, called = Cancellation(), list[str]()
    cancellation.on_cancel(lambda: called.append("kept"))
    cancellation.on_cancel(lambda: called.append("taken back"))()
    cancellation.cancel()
    cancellation.cancel()
    cancellation.on_cancel(lambda: called.append("late"))
    assert called == ["kept", "late"]


def test_other_threads_of_an_operation_are_cancelled_too() -> None:
    cancellation, found = Cancellation(), list[object]()
    with cancelled_by(cancellation):
        for act in (in_this_context(current_cancellation), current_cancellation):
            thread = threading.Thread(target=lambda act=act: found.append(act()))
            thread.start()
            thread.join()
    assert found == [cancellation, None]
