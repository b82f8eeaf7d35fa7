"""Test submitting exactly once, with a real agent on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hibali.config.model import local_site
from hibali.errors import TryLaterError, UsageError
from runs.schedulers.base import Job, JobVariables, NotSubmitted, Submitted, Unclear
from runs.schedulers.direct import Direct
from runs.schedulers.slurm import Slurm
from runs.script import job_script, start_script
from runs.submit import SubmitRequest, find_submission, submit_once, submitted_at
from transfers.remote.host import CommandResult, RemoteHost
from transfers.stores.open_store import open_host

RUN = "20260102-030405-0a1b2c3d"


@pytest.fixture
def host(hibali_home: object) -> Iterator[RemoteHost]:
    del hibali_home
    opened = open_host(local_site())
    yield opened
    opened.close()


class Place:
    """The prepared folder of a run, and the number of preparations."""

    def __init__(self, host: RemoteHost, tmp_path: Path) -> None:
        self.host = host
        self.folder = tmp_path / RUN
        self.puts = 0
        (self.folder / "work").mkdir(parents=True)

    def put(self) -> None:
        self.puts += 1
        (self.folder / "job.sh").write_text(job_script(RUN, (), JobVariables()))
        (self.folder / "start").write_text(start_script((), "echo x >>count; exec sleep 0.2"))

    def submit(self, words: tuple[str, ...] | None = None, *, begun: bool = False) -> str:
        scheduler = Direct()
        words = words or scheduler.submit_argv(Job(RUN, f"{self.folder}/job.sh"))
        submission = SubmitRequest(RUN, bytes(self.folder), words, "2026-01-02", self.put, begun)
        answer = submit_once(self.host, scheduler, submission, settling=0.5)
        if isinstance(answer, NotSubmitted):
            raise answer.error
        return answer.job

    def find(self) -> object:
        return find_submission(self.host, Direct(), RUN, bytes(self.folder), "2026-01-02")

    def markers(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("submit*"))


@pytest.fixture
def place(host: RemoteHost, tmp_path: Path) -> Place:
    return Place(host, tmp_path)


def test_two_calls_submit_once(place: Place) -> None:
    job = place.submit()
    assert place.submit() == job
    assert (place.markers(), place.puts) == (["submit"], 1)


def test_a_started_job_is_found_after_a_lost_reply(place: Place) -> None:
    place.put()
    (place.folder / "submit").mkdir()
    (place.folder / "started").mkdir()
    (place.folder / "started" / "job").write_text("12:34:ab:host\n")
    assert place.submit() == "12:34:ab:host"
    assert place.markers() == ["submit"]


def test_an_attempt_without_a_trace_is_repeated_after_a_while(place: Place) -> None:
    (place.folder / "submit").mkdir()
    job = place.submit()
    assert job.count(":") == 3
    assert place.markers() == ["submit", "submit-2"]


def test_the_number_of_attempts_is_limited(place: Place) -> None:
    with pytest.raises(TryLaterError):
        place.submit(("/bin/true",))
    assert len(place.markers()) == 2


def test_a_refusal_is_raised_at_once_and_retried_by_the_next_call(place: Place) -> None:
    with pytest.raises(UsageError):
        place.submit(("/no/such/program",))
    assert place.markers() == ["submit"]
    assert place.submit().count(":") == 3
    assert (place.markers(), place.puts) == (["submit", "submit-2"], 2)


def test_no_second_job_is_submitted_after_a_job_started(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job started, but did not record its id."""
    monkeypatch.setattr("runs.submit._WRITING_SECONDS", 0.5)
    (place.folder / "submit").mkdir()
    (place.folder / "started").mkdir()
    with pytest.raises(TryLaterError):
        place.submit()
    assert place.markers() == ["submit"]


def test_an_earlier_submission_is_searched_before_the_first_attempt(place: Place) -> None:
    """The marker was removed with the folder; the job has recorded its id again."""
    (place.folder / "started").mkdir()
    (place.folder / "started" / "job").write_text("12:34:ab:host\n")
    assert place.submit(begun=True) == "12:34:ab:host"
    assert place.markers() == []


def test_the_outcome_of_a_submission_is_found_without_submitting(place: Place) -> None:
    assert isinstance(place.find(), NotSubmitted)
    (place.folder / "submit").mkdir()
    assert isinstance(place.find(), Unclear)
    assert place.submit().count(":") == 3
    found = place.find()
    assert isinstance(found, Submitted)
    assert found.job == place.submit()
    begun = submitted_at(place.host, bytes(place.folder))
    assert begun.has_reply
    assert -5 < begun.age < 600


@pytest.mark.parametrize(
    ("exit_code", "message"),
    [
        (1, "Unable to contact slurm controller (receive failure)"),
        (1, "Unable to contact slurm controller (send failure)"),
        (1, "Batch job submission failed: Socket timed out on send/recv operation"),
        (1, "Batch job submission failed: Zero Bytes were transmitted or received"),
        (1, "Batch job submission failed: Protocol authentication error"),
        (124, ""),
        (137, ""),
        (143, "Terminated"),
        (0, "welcome"),
    ],
)
def test_the_job_of_an_unclear_slurm_submission_is_searched(exit_code: int, message: str) -> None:
    answer = Slurm().read_submit(CommandResult(exit_code, b"", f"sbatch: error: {message}\n".encode()))
    assert isinstance(answer, Unclear)


@pytest.mark.parametrize(
    "message",
    [
        "Batch job submission failed: Invalid account or account/partition combination specified",
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
    ],
)
def test_the_job_of_a_clear_slurm_refusal_is_not_searched(message: str) -> None:
    answer = Slurm().read_submit(CommandResult(1, b"", f"sbatch: error: {message}\n".encode()))
    assert isinstance(answer, NotSubmitted)
