"""Test that jobs which handle files end with the command that waits for them, at a real Slurm whose queue is full."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import IncompleteError, NotFoundError, TryLaterError
from hibali_plugins.facilities.operations import waiting
from hibali_plugins.facilities.operations.waiting import FileJobs
from tests.support.rest_sites import NAME, SiteCommands, open_site

SIZE = 9 * 1024 * 1024


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("service", "method", "words"),
    [
        ("firecrest", "s3", ("pull", f"{NAME}:large", "{local}")),
        ("firecrest", "streamer", ("pull", f"{NAME}:large", "{local}")),
        ("firecrest", "streamer", ("push", "{source}", f"{NAME}:other")),
        ("iri", "", ("pull", f"{NAME}:large", "{local}")),
        ("iri", "", ("push", "{source}", f"{NAME}:other")),
    ],
    ids=["staged", "streamed", "streamed upload", "split", "joined"],
)
def test_an_interrupted_command_leaves_no_job_in_the_queue(
    service: str, method: str, words: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    site = open_site(request, service)
    double, hibali = site.double, request.getfixturevalue("hibali")
    site.more += "streamer = true\n" if method == "streamer" else ""
    commands = SiteCommands(hibali, site.table())
    for path in (site.home / "large", tmp_path / "source"):
        path.write_bytes(os.urandom(SIZE))
    if method:
        double.transfer_method = method
    double.jobs.held = True
    argv = [word.format(local=tmp_path / "back", source=tmp_path / "source") for word in words]
    process = commands.hibali.start(*argv)
    _wait(lambda: "PENDING" in _states(double))
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    _wait(lambda: _states(double) == {"CANCELLED"})


def _states(double: Any) -> set[str]:
    return {record["JobState"] for record in double.jobs.table().values()}


def _wait(reached: Any) -> None:
    until = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.1)


DOWN = TryLaterError("unreachable", "down", subject="site")


class Service:
    """Stands in for the jobs of a service: it answers with these states in turn, the last one for ever, and fails to cancel with these errors."""

    def __init__(self, *states: str | Exception | None, fails: tuple[Exception, ...] = ()) -> None:
        self._states, self._fails = list(states), list(fails)
        self.cancelled: list[str] = []
        self.notes: list[str] = []
        self.jobs = FileJobs("site", self._state, self._cancel, "DONE".__eq__, self._note)
        self.jobs.begin(lambda: "7")

    def _note(self, event: Any) -> None:
        self.notes.append(event.message)

    def _state(self, job: str) -> str | None:
        del job
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if isinstance(state, Exception):
            raise state
        return state

    def _cancel(self, job: str) -> None:
        self.cancelled.append(job)
        if self._fails:
            raise self._fails.pop(0)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "pause", lambda _: None)
    monkeypatch.setattr(waiting, "wait_anyway", lambda _: None)


def start(service: Service) -> str:
    return service.jobs.wait_for_start("7", "streams", "PENDING".__eq__)


@pytest.mark.usefixtures("no_pauses")
def test_a_job_that_is_not_listed_for_a_moment_after_a_minute_in_the_queue_is_not_given_up() -> None:
    assert start(Service(*["PENDING"] * 12, None, "RUNNING")) == "RUNNING"


@pytest.mark.usefixtures("no_pauses")
def test_a_job_that_is_not_listed_any_more_is_given_up() -> None:
    service = Service("PENDING", None)
    with pytest.raises(TryLaterError, match="is not listed"):
        start(service)
    assert service.cancelled == ["7"]


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("begin", [start, lambda service: service.jobs.wait("7", "copies")])
def test_a_wait_survives_an_outage(begin: Callable[[Service], str]) -> None:
    service = Service("PENDING", *[DOWN] * 20, "PENDING", "DONE")
    assert (begin(service), service.cancelled) == ("DONE", [])


@pytest.mark.usefixtures("no_pauses")
def test_a_long_outage_ends_a_wait_and_closing_cancels_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_OUTAGE_SECONDS", 0.0)
    service = Service("PENDING", DOWN, fails=(DOWN,))
    with pytest.raises(TryLaterError, match="down"):
        start(service)
    service.jobs.close()
    service.jobs.close()
    assert (service.cancelled, service.notes) == (["7", "7"], [])


@pytest.mark.usefixtures("no_pauses")
def test_other_errors_end_a_wait_at_once() -> None:
    service = Service(NotFoundError("no-such-system", "gone"))
    with pytest.raises(NotFoundError):
        start(service)
    assert service.cancelled == ["7"]


@pytest.mark.parametrize("state", ["DONE", None])
def test_a_job_that_has_ended_or_is_unknown_is_not_cancelled_again(state: str | None) -> None:
    service = Service(state, fails=(IncompleteError("refused-by-server", "scancel fails"),) * 9)
    service.jobs.close()
    assert (service.cancelled, service.notes) == (["7"], [])


def test_closing_tries_again_also_when_the_command_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hibali.retry._interrupted_within", lambda _: True)
    service = Service("PENDING", fails=(DOWN,) * 2)
    service.jobs.close()
    assert service.cancelled == ["7"] * 3


def test_a_job_that_is_left_is_noted_with_the_command_that_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_CLOSING_SECONDS", 1.0)
    monkeypatch.setattr(waiting, "_NOTE_SECONDS", 0.1)
    service = Service("PENDING", fails=(DOWN,) * 99)
    service.jobs.begin(lambda: "8 $x")
    service.jobs.close()
    said = "site: 2 jobs of the service could not be cancelled yet. To end what is left, run there: "
    assert service.notes == [f"{said}scancel 7 '8 $x' (with PBS: qdel 7 '8 $x')"]
