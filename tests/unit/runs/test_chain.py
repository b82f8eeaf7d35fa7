"""Which jobs another one comes after, and what the ledger makes of a job that could never start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from hibali.errors import RunFailedError, TryLaterError
from runs.book import Book
from runs.chain import find_jobs
from runs.clean import Wanted, needed_ids, why_kept
from runs.explain import explain
from runs.run import Run, State
from runs.verdict import ExitRecord, Seen

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
    return Run(id=FIRST, key="k", created="t", state=state, job=job, **named)


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
        (replace(a_run(State.RUNNING), scheduler="direct"), TryLaterError),
    ],
)
def test_whoever_cannot_be_waited_for_is_named(run: Run, error: type[Exception]) -> None:
    with pytest.raises(error):
        find_jobs([run], "slurm")


def test_what_a_run_that_is_not_over_needs_is_not_cleaned() -> None:
    ended = "2026-01-02T03:04:05Z"
    done = replace(a_run(State.SUCCEEDED), folder=b"/w", collected=("d",), ended=ended)
    for state, kept in ((State.RUNNING, True), (State.SUCCEEDED, False)):
        other = replace(a_run(state), id=SECOND, sources=(("in", f"run:{FIRST}/out"),))
        wanted = Wanted(needed=needed_ids([done, other]))
        assert bool(why_kept(done, wanted, datetime.now(UTC))) is kept


class Place:
    """The files in the folder of the second run."""

    def __init__(self, **files: bytes) -> None:
        self.files = {name.replace("_", "/").encode("ascii"): content for name, content in files.items()}

    def get(self, path: bytes, *, maximum: int) -> bytes | None:
        found = self.files.get(path.removeprefix(b"/w/"))
        return found if found is None else found[:maximum]


def explained(first: State, seen: Seen, place: Place, **more: Any) -> Seen:
    """What becomes of what was seen of a run that takes an output of the first one."""
    book = Book()
    taken = {"id": "in", "name": "a", "identity": f"run:{FIRST}/out"}
    book.begin(FIRST, "1" * 64, FIELDS)
    book.note(FIRST, "submitted", {"job": "7"})
    run = book.begin(SECOND, "2" * 64, {**FIELDS, "inputs": [taken], **more})
    assert more or run.needs == (FIRST,)

    def look(runs: Sequence[Run]) -> list[Run]:
        return [book.note(run.id, "seen", {"state": first, "native": "", "reason": ""}) for run in runs]

    far: Any = place
    return explain(replace(run, folder=b"/w", job="8"), seen, far, book, look)


@pytest.mark.usefixtures("hibali_home")
@pytest.mark.parametrize("state", [State.LOST, State.CANCELLED])
def test_a_job_that_could_never_start_is_cancelled_for_a_reason(state: State) -> None:
    found = explained(State.FAILED, Seen(state, "x"), Place())
    assert (found.state, found.reason) == (State.CANCELLED, f"run {FIRST} failed")


@pytest.mark.usefixtures("hibali_home")
def test_one_that_did_start_is_lost_as_ever() -> None:
    seen = Seen(State.LOST, "x", "why")
    assert explained(State.FAILED, seen, Place(started_job=b"8\n")) == seen


@pytest.mark.usefixtures("hibali_home")
def test_one_that_was_lost_although_all_went_well_before_is_lost() -> None:
    seen = Seen(State.LOST, "x", "why")
    assert explained(State.SUCCEEDED, seen, Place()) == seen


@pytest.mark.usefixtures("hibali_home")
def test_a_tool_that_was_not_started_says_why() -> None:
    found = explained(State.SUCCEEDED, Seen(State.FAILED, record=RECORD), Place(unmet=b"no \x1b[31m\n"))
    assert (found.state, found.reason) == (State.FAILED, "not started: no \\x1b[31m")
    started = Seen(State.FAILED, record=replace(RECORD, code=3))
    book = Book()
    far: Any = Place(unmet=b"forged")
    assert explain(book.load(SECOND), started, far, book, list) == started


@pytest.mark.usefixtures("hibali_home")
def test_the_scheduler_let_it_start_although_one_before_had_failed() -> None:
    found = explained(State.FAILED, Seen(State.FAILED, record=RECORD), Place(unmet=b"run did not succeed"))
    assert (found.state, found.reason) == (State.CANCELLED, f"run {FIRST} failed")


@pytest.mark.usefixtures("hibali_home")
def test_one_on_hold_says_how_it_is_let_go() -> None:
    found = explained(State.RUNNING, Seen(State.WAITING, "PENDING", "JobHeldUser"), Place(), hold=True)
    assert found.reason == f"on hold: hibali runs release {SECOND}"
