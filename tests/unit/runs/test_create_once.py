"""Test that a service creates the job of a run once, whatever happens to requests and answers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.errors import AccessError, TryLaterError, UsageError
from hibali.events import Listener
from hibali.locations import Location
from runs import submit as module
from runs.model import Output
from runs.schedulers.base import UNKNOWN, NotSubmitted, Status, Submitted, Unclear
from runs.services.base import (
    JobService,
    LostAnswerError,
    ServiceFacts,
    ServiceInput,
    ServiceJob,
    ServiceOutput,
    ToolRequest,
)
from runs.submit import create_once, find_created

JOB = ServiceJob("20260102-030405-0a1b2c3d", {})
SETTLING = 60.0


class KilledError(BaseException):
    """The process ends here."""


class Portal(JobService):
    """Keeps jobs by their marks; a request fails as it is told: `lost` before or after the job is there, `late`, or the process is killed."""

    name = "portal"
    facts = ServiceFacts(settling_seconds=SETTLING)

    def __init__(self) -> None:
        self.now = 0.0
        self.jobs: list[tuple[str, float]] = []  # marks, and when they appear in lists
        self.attempts: list[float] = []
        self.fault = ""
        self.error: Exception | None = None

    def record_attempt(self) -> None:
        self.attempts.append(self.now)

    @property
    def age(self) -> float:
        return self.now - self.attempts[-1] if self.attempts else math.inf

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def call(self, fault: str = "") -> Submitted | NotSubmitted:
        self.fault = fault
        return create_once(
            self, JOB, "2026-01-02", age=self.age, settling=180.0, record_attempt=self.record_attempt
        )

    def find(self, mark: str, since: str) -> str | None:
        assert since == "2026-01-02"
        listed = [number for number, (each, at) in enumerate(self.jobs) if each == mark and at <= self.now]
        return str(listed[0]) if listed else None

    def create(self, job: ServiceJob) -> str:
        fault, self.fault = self.fault, ""
        if self.error is not None:
            raise self.error
        if fault == "killed before":
            raise KilledError
        if fault == "lost before":
            raise LostAnswerError(TryLaterError("cut-off", "no answer"), job.mark)
        self.jobs.append((job.mark, self.now + (SETTLING - 1 if "late" in fault else 0)))
        if fault.startswith("killed"):
            raise KilledError
        if fault.startswith("lost"):
            raise LostAnswerError(TryLaterError("cut-off", "no answer"), job.mark)
        return str(len(self.jobs) - 1)

    def states(self, jobs: Sequence[str]) -> Mapping[str, Status]:
        return dict.fromkeys(jobs, UNKNOWN)

    def cancel(self, job: str) -> None:
        raise NotImplementedError

    def find_input(self, location: Location) -> ServiceInput:
        raise NotImplementedError

    def tool_job(self, request: ToolRequest, on_event: Listener) -> Mapping[str, Any]:
        raise NotImplementedError

    def input_folder(self) -> Location:
        raise NotImplementedError

    def outputs(self, mark: str, declared: Sequence[Output]) -> Sequence[ServiceOutput]:
        raise NotImplementedError

    def read(self, mark: str, name: str, offset: int, maximum: int) -> bytes | None:
        raise NotImplementedError

    def close(self) -> None:
        pass


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> Portal:
    made = Portal()
    monkeypatch.setattr(module, "pause", made.pause)
    return made


FAULTS = ["", "lost before", "lost after", "lost, late", "killed before", "killed after", "killed, late"]


@given(faults=st.lists(st.tuples(st.sampled_from(FAULTS), st.floats(0, 100)), max_size=6))
def test_any_series_of_faults_ends_with_one_job(faults: list[tuple[str, float]]) -> None:
    portal = Portal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "pause", portal.pause)
        for fault, later in faults:
            with contextlib.suppress(KilledError):
                portal.call(fault)
            portal.now += later
        assert portal.call() == Submitted("0")
    assert len(portal.jobs) == 1


def test_a_refused_job_is_not_searched_for(portal: Portal) -> None:
    portal.error = UsageError("submission-rejected", "no such tool")
    assert isinstance(portal.call(), NotSubmitted)
    portal.error = AccessError("denied", "the token is not valid")
    assert isinstance(portal.call(), NotSubmitted)
    assert portal.now < 2 * SETTLING + 1


def test_a_service_that_is_busy_is_left_to_a_later_call(portal: Portal) -> None:
    portal.error = TryLaterError("busy", "too many requests")
    with pytest.raises(TryLaterError):
        portal.call()
    portal.error = None
    assert portal.call() == Submitted("0")


def test_the_outcome_is_unclear_as_long_as_a_job_may_appear(portal: Portal) -> None:
    assert isinstance(find_created(portal, JOB.mark, "2026-01-02", SETTLING - 1), Unclear)
    assert isinstance(find_created(portal, JOB.mark, "2026-01-02", SETTLING), NotSubmitted)
    portal.call()
    assert find_created(portal, JOB.mark, "2026-01-02", 0.0) == Submitted("0")
