"""What the answers of a scheduler and a job's own record amount to."""

from __future__ import annotations

import pytest

from runs.run import State
from runs.scheduler import Phase, Status
from runs.verdict import ExitRecord, judge, read_exit_record

RUN = "20260102-030405-0a1b2c3d"


def record(code: int, signal: str = "") -> ExitRecord:
    return ExitRecord(code, signal, "node", "1", "then", "later")


def status(phase: Phase) -> Status:
    return Status(phase, phase.name, "")


@pytest.mark.parametrize("phase", list(Phase))
def test_without_an_exit_record_nothing_ever_succeeded(phase: Phase) -> None:
    for accounted in (None, *(status(each) for each in Phase)):
        for cancelled in (False, True):
            seen = judge(status(phase), None, accounted, cancelled=cancelled)
            assert seen.state is not State.SUCCEEDED


@pytest.mark.parametrize("phase", list(Phase))
def test_an_exit_record_of_zero_is_a_success_whatever_the_scheduler_says(phase: Phase) -> None:
    assert judge(status(phase), record(0), None).state is State.SUCCEEDED


@pytest.mark.parametrize("phase", list(Phase))
def test_a_tool_that_was_told_to_stop_never_succeeded(phase: Phase) -> None:
    """A tool whose child was killed first may go on without it, and end with 0."""
    for again in (False, True):
        assert judge(status(phase), record(0, "TERM"), None, again=again).state is not State.SUCCEEDED


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.WAITING, State.WAITING),
        (Phase.RUNNING, State.RUNNING),
        (Phase.ELSEWHERE, State.RUNNING),
        (Phase.ENDED, State.LOST),
        (Phase.GONE, State.LOST),
        (Phase.BROKEN, State.LOST),
        (Phase.KILLED, State.FAILED),
        (Phase.CANCELLED, State.CANCELLED),
    ],
)
def test_what_the_scheduler_says_counts_where_there_is_no_record(phase: Phase, expected: State) -> None:
    assert judge(status(phase), None, None).state is expected


def test_accounting_is_believed_where_the_queue_has_forgotten() -> None:
    gone = status(Phase.GONE)
    assert judge(gone, None, status(Phase.KILLED)).state is State.FAILED
    assert judge(gone, None, status(Phase.CANCELLED)).state is State.CANCELLED
    assert judge(gone, None, status(Phase.RUNNING)).state is State.LOST
    assert judge(status(Phase.WAITING), None, status(Phase.KILLED)).state is State.WAITING


def test_a_wish_to_cancel_explains_an_end_but_not_a_success() -> None:
    assert judge(status(Phase.GONE), None, None, cancelled=True).state is State.CANCELLED
    assert judge(status(Phase.ENDED), record(143, "TERM"), None, cancelled=True).state is State.CANCELLED
    assert judge(status(Phase.ENDED), record(0), None, cancelled=True).state is State.SUCCEEDED


def test_a_job_that_was_stopped_and_put_back_is_lost() -> None:
    assert judge(status(Phase.WAITING), record(143, "TERM"), None).state is State.LOST
    assert judge(status(Phase.ENDED), record(143, "TERM"), None, again=True).state is State.LOST
    assert judge(status(Phase.KILLED), record(143, "TERM"), None).state is State.FAILED
    assert judge(status(Phase.ENDED), record(3), None, again=True).state is State.FAILED


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{",
        b"[]",
        b'{"run":"other","code":0}',
        b'{"run":"%s","code":"0"}' % RUN.encode(),
        b'{"run":"%s","code":true}' % RUN.encode(),
        b'{"run":"%s","code":0,"code":1}' % RUN.encode(),
    ],
)
def test_what_is_no_exit_record_is_none(content: bytes | None) -> None:
    assert read_exit_record(content, RUN) is None
