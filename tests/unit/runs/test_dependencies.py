"""Test dependencies between jobs, and jobs that can never start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from hibali.config.model import local_site
from hibali.errors import RunFailedError, TryLaterError
from runs import poll
from runs.clean import CleanRequest, needed_ids, reason_to_keep
from runs.dependencies import find_jobs, find_task_jobs
from runs.model import Chunk, Pilot, Run, RunStatus, State, Sweep
from runs.records import sweep_fields
from runs.schedulers.base import load_scheduler
from runs.site_session import SiteSession
from runs.status import ExitRecord, Observation
from runs.store import RunStore
from tests.support.runs import change_run, make_run

FIRST, SECOND = "20260102-030405-00000001", "20260102-030405-00000002"
FIELDS: dict[str, Any] = {
    "pipeline": "p@1",
    "pipeline_digest": "d",
    "site": "here",
    "name": "",
    "scheduler": "slurm",
    "container": "bare",
    "outputs": [],
}
RECORD = ExitRecord(75, "", "h", "8", "t", "t")


def a_run(state: State, job: str = "7") -> Run:
    named = {name: value for name, value in FIELDS.items() if name != "outputs"}
    return make_run(id=FIRST, created="t", state=state, job=job, **named)


def test_jobs_are_those_of_runs_that_have_not_ended() -> None:
    runs = [
        a_run(State.SUCCEEDED),
        a_run(State.WAITING, "8"),
        a_run(State.RUNNING, "9"),
        a_run(State.RUNNING, "9"),
    ]
    assert find_jobs(runs, "slurm") == ("8", "9")


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (a_run(State.FAILED), RunFailedError),
        (a_run(State.CANCELLED), RunFailedError),
        (a_run(State.LOST), TryLaterError),
        (a_run(State.STAGED, ""), TryLaterError),
        (change_run(a_run(State.RUNNING), scheduler="direct"), TryLaterError),
    ],
)
def test_a_run_that_cannot_be_waited_for_is_named(run: Run, error: type[Exception]) -> None:
    with pytest.raises(error):
        find_jobs([run], "slurm")


def test_runs_that_an_unfinished_run_needs_are_not_cleaned() -> None:
    ended = "2026-01-02T03:04:05Z"
    done = change_run(a_run(State.SUCCEEDED), folder=b"/w", collected=("d",), ended=ended)
    for state, kept in ((State.RUNNING, True), (State.SUCCEEDED, False)):
        other = change_run(a_run(state), id=SECOND, sources=(("in", f"run:{FIRST}/out"),))
        wanted = CleanRequest(needed=needed_ids([done, other]))
        assert bool(reason_to_keep(done, wanted, datetime.now(UTC))) is kept


class Place:
    """The files in the folder of the second run."""

    def __init__(self, **files: bytes) -> None:
        self.files = {name.replace("_", "/").encode("ascii"): content for name, content in files.items()}

    def get_all(self, paths: Sequence[bytes], *, maximum: int) -> list[bytes | None]:
        return [self.get(path, maximum=maximum) for path in paths]

    def get(self, path: bytes, *, maximum: int) -> bytes | None:
        found = self.files.get(path.removeprefix(b"/w/"))
        return found if found is None else found[:maximum]


def explained(first: State, seen: Observation, place: Place, **more: Any) -> Observation:
    """Return the observation of a run that uses an output of the first one, with its reason."""
    run_store = RunStore()
    taken = {"id": "in", "name": "a", "identity": f"run:{FIRST}/out"}
    run_store.begin(FIRST, "1" * 64, FIELDS)
    run_store.note(FIRST, "submitted", {"job": "7"})
    run = run_store.begin(SECOND, "2" * 64, {**FIELDS, "inputs": [taken], **more})
    assert more or run.needs == (FIRST,)

    def refresh(_: SiteSession, runs: Sequence[Run]) -> list[Run]:
        return [run_store.note(run.id, "seen", {"state": first, "native": "", "reason": ""}) for run in runs]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(poll, "update", refresh)
        return reasoned(change_run(run, folder=b"/w", job="8"), seen, place)


def reasoned(run: Run, seen: Observation, place: Place) -> Observation:
    session = SiteSession(local_site(), cast("Any", place), "slurm", RunStore())
    key = (run.id, 0)
    return poll.add_reasons(session, [run], {key: seen}).get(key, seen)


@pytest.mark.usefixtures("hibali_home")
@pytest.mark.parametrize("state", [State.LOST, State.CANCELLED])
def test_a_job_that_could_never_start_is_cancelled_for_a_reason(state: State) -> None:
    found = explained(State.FAILED, Observation(state, "x"), Place())
    assert (found.state, found.reason) == (State.CANCELLED, f"run {FIRST} failed")


@pytest.mark.usefixtures("hibali_home")
def test_a_started_job_without_a_record_is_lost() -> None:
    seen = Observation(State.LOST, "x", "why")
    assert explained(State.FAILED, seen, Place(started_job=b"8\n")) == seen


@pytest.mark.usefixtures("hibali_home")
def test_a_job_without_a_failed_dependency_is_lost() -> None:
    seen = Observation(State.LOST, "x", "why")
    assert explained(State.SUCCEEDED, seen, Place()) == seen


@pytest.mark.usefixtures("hibali_home")
def test_the_reason_is_reported_if_the_tool_was_not_started() -> None:
    found = explained(
        State.SUCCEEDED, Observation(State.FAILED, record=RECORD), Place(unmet=b"no \x1b[31m\n")
    )
    assert (found.state, found.reason) == (State.FAILED, "not started: no \\x1b[31m")
    started = Observation(State.FAILED, record=replace(RECORD, code=3))
    run_store = RunStore()
    assert reasoned(run_store.load(SECOND), started, Place(unmet=b"forged")) == started


@pytest.mark.usefixtures("hibali_home")
def test_a_job_that_started_after_a_failed_dependency_is_cancelled() -> None:
    found = explained(
        State.FAILED, Observation(State.FAILED, record=RECORD), Place(unmet=b"run did not succeed")
    )
    assert (found.state, found.reason) == (State.CANCELLED, f"run {FIRST} failed")


@pytest.mark.usefixtures("hibali_home")
def test_a_run_on_hold_names_the_release_command() -> None:
    found = explained(State.RUNNING, Observation(State.WAITING, "PENDING", "JobHeldUser"), Place(), hold=True)
    assert found.reason == f"on hold: hibali runs release {SECOND}"


def a_sweep(
    *states: State, jobs: tuple[tuple[str, ...], ...] = (("7",), ("8",)), scheduler: str = "slurm"
) -> Run:
    """Return a sweep of six tasks in two arrays; tasks beyond `states` are queued."""
    tasks = {number: RunStatus(State.WAITING) for number in range(1, 7)} | {
        number: RunStatus(state) for number, state in enumerate(states, start=1)
    }
    chunks = (Chunk(1, (1, 2, 3), jobs[0]), Chunk(2, (4, 5, 6), jobs[1]))
    sweep = Sweep(tasks, rows=((),) * 6, set_of=(0,) * 6, chunks=chunks)
    return change_run(a_run(State.RUNNING), sweep=sweep, scheduler=scheduler)


NEEDED = [
    (a_sweep(), range(1, 7), ("7", "8"), ("7", "8")),
    (a_sweep(), [2, 3], ("7_2", "7_3"), ("7",)),
    (a_sweep(), [1, 2, 3, 6], ("7", "8_3"), ("7", "8")),
    (a_sweep(State.SUCCEEDED, State.SUCCEEDED), [1, 2], (), ()),
    (
        a_sweep(State.SUCCEEDED, State.FAILED),
        [3],
        ("7_3",),
        None,
    ),  # an array with a failure never succeeds
    (a_sweep(State.SUCCEEDED, State.FAILED), [1], (), ()),
    (a_sweep(State.FAILED), [1, 4], None, None),
    (a_sweep(jobs=(("7",), ())), [1], ("7_1",), ("7",)),
    (a_sweep(jobs=(("7",), ())), [1, 4], None, None),  # the second array is not submitted yet
    (a_sweep(jobs=(("7", "9"), ("8",))), [1], None, None),  # it is unknown which of the two jobs runs it
]


@pytest.mark.parametrize(("run", "numbers", "slurm", "direct"), NEEDED)
def test_a_job_depends_on_the_tasks_that_it_needs(
    run: Run, numbers: Sequence[int], slurm: tuple[str, ...] | None, direct: tuple[str, ...] | None
) -> None:
    assert find_task_jobs(run, list(numbers), load_scheduler("slurm")) == slurm
    assert (
        find_task_jobs(change_run(run, scheduler="direct"), list(numbers), load_scheduler("direct")) == direct
    )


@pytest.mark.usefixtures("hibali_home")
def test_a_job_that_could_never_start_names_the_task_that_failed() -> None:
    run_store = RunStore()
    sweep = sweep_fields({number: {} for number in (1, 2)}, dict.fromkeys((1, 2), ()))
    run_store.begin(FIRST, "1" * 64, {**FIELDS, "sweep": sweep})
    failed = {"state": State.FAILED, "native": "", "reason": "", "tasks": "2"}
    run_store.note(FIRST, "tasks", {"changes": [failed], "ends": [[2, 3, "t", "t", "h", 0.5]]})
    taken = {"id": "in", "name": "a", "identity": f"run:{FIRST}.2/out"}
    run = run_store.begin(SECOND, "2" * 64, {**FIELDS, "inputs": [taken]})
    assert run.needs == (FIRST,)
    found = reasoned(change_run(run, folder=b"/w", job="8"), Observation(State.LOST, "x"), Place())
    assert (found.state, found.reason) == (State.CANCELLED, f"run {FIRST}.2 failed")


def test_the_job_of_a_pilot_is_not_waited_for() -> None:
    run = a_sweep(State.SUCCEEDED)
    assert run.sweep is not None
    by_pilot = replace(run, sweep=replace(run.sweep, pilot=Pilot("python3")))
    assert find_task_jobs(by_pilot, [1], load_scheduler("slurm")) == ()
    assert find_task_jobs(by_pilot, [2], load_scheduler("slurm")) is None
