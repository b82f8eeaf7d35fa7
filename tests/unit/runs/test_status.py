"""Test the state of a run from scheduler output and exit record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hibali.errors import RunFailedError
from runs.model import RunStatus, State, Sweep
from runs.schedulers.base import TIME_LIMIT, Phase, Status
from runs.status import CANCEL_REQUESTED, ExitRecord, find_failure, read_exit_record, resolve_status
from tests.support.runs import make_run

RUN = "20260102-030405-0a1b2c3d"


def record(code: int, signal: str = "") -> ExitRecord:
    return ExitRecord(code, signal, "node", "1", "then", "later")


def status(phase: Phase) -> Status:
    return Status(phase, phase.name, "")


@pytest.mark.parametrize("phase", list(Phase))
def test_without_an_exit_record_no_run_succeeds(phase: Phase) -> None:
    for accounted in (None, *(status(each) for each in Phase)):
        for cancelled in (False, True):
            seen = resolve_status(status(phase), None, accounted, cancelled=cancelled)
            assert seen.state is not State.SUCCEEDED


@pytest.mark.parametrize("phase", list(Phase))
def test_an_exit_record_of_zero_is_a_success_unless_the_scheduler_cancelled_the_job(phase: Phase) -> None:
    expected = State.CANCELLED if phase is Phase.CANCELLED else State.SUCCEEDED
    assert resolve_status(status(phase), record(0), None).state is expected


@pytest.mark.parametrize("phase", list(Phase))
def test_a_tool_that_got_a_signal_never_succeeds(phase: Phase) -> None:
    """A tool whose child was killed first may continue without it, and exit with 0."""
    for again in (False, True):
        assert (
            resolve_status(status(phase), record(0, "TERM"), None, restarted=again).state
            is not State.SUCCEEDED
        )


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.WAITING, State.WAITING),
        (Phase.RUNNING, State.RUNNING),
        (Phase.ELSEWHERE, State.RUNNING),
        (Phase.ENDED, State.LOST),
        (Phase.UNKNOWN, State.LOST),
        (Phase.BROKEN, State.LOST),
        (Phase.KILLED, State.FAILED),
        (Phase.CANCELLED, State.CANCELLED),
    ],
)
def test_without_a_record_the_scheduler_decides(phase: Phase, expected: State) -> None:
    assert resolve_status(status(phase), None, None).state is expected


def test_accounting_decides_if_the_queue_does_not_know_the_job() -> None:
    gone = status(Phase.UNKNOWN)
    assert resolve_status(gone, None, status(Phase.KILLED)).state is State.FAILED
    assert resolve_status(gone, None, status(Phase.CANCELLED)).state is State.CANCELLED
    assert resolve_status(gone, None, status(Phase.RUNNING)).state is State.LOST
    assert resolve_status(status(Phase.WAITING), None, status(Phase.KILLED)).state is State.WAITING


def test_a_cancel_request_explains_a_failure_but_not_a_success() -> None:
    assert resolve_status(status(Phase.UNKNOWN), None, None, cancelled=True).state is State.CANCELLED
    assert (
        resolve_status(status(Phase.ENDED), record(143, "TERM"), None, cancelled=True).state
        is State.CANCELLED
    )
    assert resolve_status(status(Phase.ENDED), record(0), None, cancelled=True).state is State.SUCCEEDED


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("code", [0, 3])
def test_a_tool_that_ended_before_the_cancel_request_was_not_cancelled(phase: Phase, code: int) -> None:
    """The job would have seen the request at its end, so the scheduler acted later."""
    seen = resolve_status(
        status(phase), record(code), None, cancelled=True, cancel_marked=True, cancel_accepted=True
    )
    assert seen.state is (State.FAILED if code else State.SUCCEEDED)


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize(
    ("phase", "accepted", "expected"),
    [
        (Phase.CANCELLED, True, State.CANCELLED),
        (
            Phase.CANCELLED,
            False,
            State.CANCELLED,
        ),  # another user cancelled the job, or hibali died after the request
        (Phase.UNKNOWN, True, State.CANCELLED),
        (Phase.RUNNING, True, State.RUNNING),  # the scheduler has not reported the end yet
        (Phase.RUNNING, False, State.RUNNING),
        (Phase.ENDED, True, None),  # it ended by itself before the scheduler cancelled it
        (Phase.UNKNOWN, False, None),  # the scheduler got no request
        (Phase.ELSEWHERE, False, None),
    ],
)
def test_a_tool_that_ended_after_the_cancel_request_has_the_scheduler_s_state(
    code: int, phase: Phase, accepted: bool, expected: State | None
) -> None:
    """Its child may have been killed first, and it continued without it: no signal arrived, so the exit code is not conclusive."""
    by_itself = State.FAILED if code else State.SUCCEEDED
    seen = resolve_status(
        status(phase),
        record(code, CANCEL_REQUESTED),
        None,
        cancelled=True,
        cancel_marked=True,
        cancel_accepted=accepted,
    )
    assert seen.state is (expected or by_itself)


def test_a_missing_required_output_is_a_failure_unless_the_run_was_cancelled() -> None:
    left = replace(record(0), missing=("out", "log"))
    failed = resolve_status(status(Phase.ENDED), left, None)
    assert (failed.state, failed.reason) == (State.FAILED, "the required outputs out, log are missing")
    assert failed.to_fields()["missing"] == ["out", "log"]
    assert resolve_status(status(Phase.ENDED), left, None, cancelled=True).state is State.CANCELLED
    content = b'{"run":"r","code":0,"missing":["out"],"signal":"","host":"","job":"","started":"","ended":""}'
    read = read_exit_record(content, "r")
    assert read is not None
    assert read.missing == ("out",)
    assert read_exit_record(content.replace(b'"out"', b'"../x"'), "r") is None


def test_a_cancel_request_that_was_not_accepted_explains_nothing() -> None:
    assert (
        resolve_status(status(Phase.UNKNOWN), None, None, cancelled=True, cancel_accepted=False).state
        is State.LOST
    )
    assert (
        resolve_status(status(Phase.ENDED), None, None, cancelled=True, cancel_accepted=True).state
        is State.LOST
    )
    assert (
        resolve_status(status(Phase.KILLED), None, None, cancelled=True, cancel_accepted=True).state
        is State.FAILED
    )
    limit = resolve_status(
        status(Phase.KILLED), record(143, "TERM"), None, cancelled=True, cancel_accepted=True
    )
    assert limit.state is State.FAILED


@example(Phase.CANCELLED, Phase.ENDED, (0, ""), False, False, False, False)
@example(Phase.CANCELLED, Phase.KILLED, (0, ""), False, False, False, False)
@given(
    st.sampled_from(list(Phase)),
    st.none() | st.sampled_from(list(Phase)),
    st.none() | st.tuples(st.sampled_from([0, 1, 143]), st.sampled_from(["", "TERM", CANCEL_REQUESTED])),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_success_and_cancellation_need_evidence(
    phase: Phase,
    accounted: Phase | None,
    made: tuple[int, str] | None,
    cancelled: bool,
    marked: bool,
    accepted: bool,
    again: bool,
) -> None:
    marked, accepted = marked and cancelled, accepted and cancelled
    found = resolve_status(
        status(phase),
        record(*made) if made else None,
        status(accounted) if accounted else None,
        cancelled=cancelled,
        cancel_marked=marked,
        cancel_accepted=accepted,
        restarted=again,
    )
    said_cancelled = Phase.CANCELLED in {phase, accounted}
    if found.state is State.SUCCEEDED:
        assert made is not None
        assert made[0] == 0
        assert made[1] != "TERM"
        assert (marked and not made[1]) or phase is not Phase.CANCELLED
    if found.state is State.CANCELLED:
        assert cancelled or said_cancelled


def test_a_requeued_job_is_followed_until_it_has_done_nothing() -> None:
    waiting = resolve_status(status(Phase.WAITING), record(143, "TERM"), None)
    assert (waiting.state, "requeued" in waiting.reason) == (State.WAITING, True)
    assert resolve_status(status(Phase.RUNNING), record(143, "TERM"), None).state is State.RUNNING
    assert resolve_status(status(Phase.ENDED), record(143, "TERM"), None, restarted=True).state is State.LOST
    assert resolve_status(status(Phase.KILLED), record(143, "TERM"), None).state is State.FAILED
    assert resolve_status(status(Phase.ENDED), record(3), None, restarted=True).state is State.FAILED


@pytest.mark.parametrize("left", [None, record(143, "TERM")])
def test_a_job_that_a_node_or_another_job_ended_is_not_called_requeued(left: ExitRecord | None) -> None:
    for native in ("PREEMPTED", "NODE_FAIL"):
        seen = resolve_status(Status(Phase.BROKEN, native), left, None)
        assert (seen.state, seen.reason) == (State.LOST, f"the scheduler ended the job: {native}")


@pytest.mark.parametrize("left", [None, record(143, "TERM"), record(1)])
def test_a_time_limit_has_a_code_and_says_how_to_get_more_time(left: ExitRecord | None) -> None:
    seen = resolve_status(Status(Phase.KILLED, "TIMEOUT", TIME_LIMIT), left, None)
    run = make_run(state=seen.state, reason=seen.reason, exit_code=left and left.code)
    found = find_failure(run)
    assert isinstance(found, RunFailedError)
    assert (found.code, "TIMEOUT, time limit reached" in found.message) == ("time-limit", True)
    assert found.hint is not None
    assert "--time" in found.hint
    assert f"hibali runs collect {run.id}" in found.hint


def test_a_sweep_counts_the_tasks_that_reached_their_time_limit() -> None:
    late = RunStatus(State.FAILED, "TIMEOUT", f"ended by the scheduler: TIMEOUT, {TIME_LIMIT}", 143)
    run = make_run(
        state=State.FAILED, sweep=Sweep(tasks={1: late, 2: RunStatus(State.FAILED, exit_code=3), 3: late})
    )
    assert str(find_failure(run)).count("; 2 tasks reached the time limit") == 1


def test_a_tool_that_succeeded_before_the_time_limit_keeps_its_result() -> None:
    seen = resolve_status(Status(Phase.KILLED, "TIMEOUT", TIME_LIMIT), record(0), None)
    assert find_failure(make_run(state=seen.state, reason=seen.reason, exit_code=0)) is None


@pytest.mark.parametrize("left", [None, record(137)])
def test_the_reason_of_a_killed_job_is_what_the_scheduler_says(left: ExitRecord | None) -> None:
    killed = Status(Phase.KILLED, "OUT_OF_MEMORY", "out of memory")
    seen = resolve_status(Status(Phase.ENDED, "FAILED"), left, killed)
    assert (seen.state, seen.reason) == (State.FAILED, "ended by the scheduler: OUT_OF_MEMORY, out of memory")


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
def test_an_invalid_exit_record_is_ignored(content: bytes | None) -> None:
    assert read_exit_record(content, RUN) is None
