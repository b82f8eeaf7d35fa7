"""Submitting once, against the real far side on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hibali.errors import TryLaterError, UsageError
from hibali.sites import local_site
from runs.scheduler import Job
from runs.schedulers.direct import Direct
from runs.script import job_script, start_script
from runs.submit import submit_once
from transfers.far import Far
from transfers.places import open_far

RUN = "20260102-030405-0a1b2c3d"


@pytest.fixture
def far(hibali_home: object) -> Iterator[Far]:
    del hibali_home
    opened = open_far(local_site())
    yield opened
    opened.close()


class Place:
    """A run's folder with everything in it, and how often it was laid ready."""

    def __init__(self, far: Far, tmp_path: Path) -> None:
        self.far = far
        self.folder = tmp_path / RUN
        self.puts = 0
        (self.folder / "work").mkdir(parents=True)

    def put(self) -> None:
        self.puts += 1
        (self.folder / "job.sh").write_text(job_script(RUN, ()))
        (self.folder / "start").write_text(start_script((), "echo x >>count; exec sleep 0.2"))

    def submit(self, words: tuple[str, ...] | None = None) -> str:
        scheduler = Direct()
        return submit_once(
            self.far,
            scheduler,
            run=RUN,
            folder=bytes(self.folder),
            words=words or scheduler.submit_words(Job(RUN, f"{self.folder}/job.sh")),
            since="2026-01-02",
            put=self.put,
            settling=0.5,
        )

    def markers(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("submit*"))


@pytest.fixture
def place(far: Far, tmp_path: Path) -> Place:
    return Place(far, tmp_path)


def test_asked_twice_it_is_submitted_once(place: Place) -> None:
    job = place.submit()
    assert place.submit() == job
    assert (place.markers(), place.puts) == (["submit"], 1)


def test_a_lost_answer_of_a_job_that_started_is_found(place: Place) -> None:
    place.put()
    (place.folder / "submit").mkdir()
    (place.folder / "started").mkdir()
    (place.folder / "started" / "job").write_text("12:34:ab:host\n")
    assert place.submit() == "12:34:ab:host"
    assert place.markers() == ["submit"]


def test_an_attempt_that_left_no_trace_is_made_again_after_a_while(place: Place) -> None:
    (place.folder / "submit").mkdir()
    job = place.submit()
    assert job.count(":") == 3
    assert place.markers() == ["submit", "submit-2"]


def test_attempts_do_not_go_on_for_ever(place: Place) -> None:
    with pytest.raises(TryLaterError):
        place.submit(("/bin/true",))
    assert len(place.markers()) == 2


def test_a_refusal_is_told_at_once_and_tried_again_by_the_next_call(place: Place) -> None:
    with pytest.raises(UsageError):
        place.submit(("/no/such/program",))
    assert place.markers() == ["submit"]
    assert place.submit().count(":") == 3
    assert (place.markers(), place.puts) == (["submit", "submit-2"], 2)
