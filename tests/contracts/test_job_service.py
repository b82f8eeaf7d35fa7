"""Test every job service with faults: a job is created once, found by its mark, and its states are never better than they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from hibali.config.settings import load_sites
from hibali.errors import AccessError, HibaliError, NotFoundError, TryLaterError, UsageError
from hibali.events import ignore
from hibali.locations import read_location
from hibali.plugins import built_in_names
from registry.descriptor import read_descriptor
from registry.pipeline import Pipeline
from runs.model import Output
from runs.schedulers.base import UNKNOWN, Phase
from runs.services.base import JobService, LostAnswerError, ServiceHost, ServiceJob, ToolRequest, open_service
from tests.end_to_end.run_tools import DESCRIPTOR
from tests.services import cbrain as double
from tests.services.cbrain_model import Task

SITE = "site"
MARK, OTHER = "20260102-030405-0a1b2c3d", "20260102-030405-0a1b2c3e"
SINCE = "2026-01-02"


class Backend(Protocol):
    """A service with one tool and one input, which can be told to fail."""

    config: str
    input: str

    def lose_answer(self) -> None:
        """Execute the next creation without an answer."""

    def garble_answer(self) -> None:
        """Execute the next creation, with an answer that is not understood."""

    def drop_request(self) -> None:
        """Execute the next creation not at all, without an answer."""

    def answer_with(self, status: int) -> None:
        """Answer the next question about jobs with this status."""

    def expire_login(self) -> None:
        """Make the current login invalid."""

    def end(self, job: str, *, well: bool) -> None:
        """Let a job run to its end."""

    def jobs(self) -> list[str]:
        """Return the ids of all jobs."""

    def forget(self, job: str) -> None:
        """Remove a job."""

    def rename_state(self, job: str, state: str) -> None:
        """Set a job's state to one that is not documented."""

    def add_many(self, count: int) -> None:
        """Create other jobs of this account."""


class CbrainBackend:
    """The double of a CBRAIN portal."""

    def __init__(self, portal: double.CbrainDouble) -> None:
        self.portal = portal
        portal.automatic = False
        self.provider = portal.add_provider("lab")
        portal.add_userfile(self.provider, "in.txt", b"hello\n")
        self.tool = portal.add_tool("Count Letters", DESCRIPTOR)
        self.well = True
        portal.runner = self._run
        self.config = (
            f'kind = "cbrain"\n[sites.{SITE}.cbrain]\nurl = "{portal.url}"\nlogin = "me"\n'
            f'password_command = ["echo", "{double.PASSWORD}"]\n'
        )
        self.input = f"{SITE}:@lab/in.txt"

    def _run(self, running: double.RunningTask) -> double.Outputs:
        if not self.well:
            raise double.TaskFailedError
        return {"out_file": [(f"out-{running.id}.txt", b"hello\n")]}

    def lose_answer(self) -> None:
        self.portal.fail("POST", "/tasks", double.LOST)

    def garble_answer(self) -> None:
        self.portal.fail("POST", "/tasks", double.GARBAGE)

    def drop_request(self) -> None:
        self.portal.fail("POST", "/tasks", double.DROPPED)

    def answer_with(self, status: int) -> None:
        self.portal.fail("GET", "/tasks.*", double.STATUS, status=status, retry_after=0)

    def expire_login(self) -> None:
        self.portal.expire_tokens()

    def end(self, job: str, *, well: bool) -> None:
        self.well = well
        while self.portal.advance(int(job)) not in double.ENDED:
            pass

    def jobs(self) -> list[str]:
        return [str(number) for number in self.portal.tasks]

    def forget(self, job: str) -> None:
        del self.portal.tasks[int(job)]

    def rename_state(self, job: str, state: str) -> None:
        self.portal.tasks[int(job)].status = state

    def add_many(self, count: int) -> None:
        self.portal.page_limit = 7
        with_mark = next(iter(self.portal.tasks.values()), None)
        for number in range(count):
            self.portal.tasks[10_000 + number] = Task(
                10_000 + number, 1, 1, self.tool, {}, self.provider.id, f"other {number}", changed=number
            )
        if with_mark is not None:
            with_mark.changed = -1  # the last of the list


@pytest.fixture(params=built_in_names("runs.services"))
def backend(request: pytest.FixtureRequest) -> Backend:
    makers: Mapping[str, Callable[[], Backend]] = {
        "cbrain": lambda: CbrainBackend(request.getfixturevalue("cbrain"))
    }
    return makers[request.param]()


@pytest.fixture
def host(backend: Backend, hibali_home: Any) -> Iterator[ServiceHost]:
    config: Path = hibali_home.config
    config.write_text(f"version = 1\n[sites.{SITE}]\n{backend.config}")
    config.chmod(0o600)
    opened = open_service(load_sites(str(config)).site(SITE))
    yield opened
    opened.close()


@pytest.fixture
def service(host: ServiceHost) -> JobService:
    return host.service


def pipeline_of(document: dict[str, Any]) -> Pipeline:
    return read_descriptor(json.dumps(document).encode(), "tool.json")


def job(service: JobService, backend: Backend, hibali_home: Any, mark: str = MARK) -> ServiceJob:
    found = service.find_input(read_location(backend.input, load_sites(str(hibali_home.config))))
    tool = ToolRequest(pipeline_of(DESCRIPTOR), {"in": found.reference}, (found.reference,))
    return ServiceJob(mark, service.tool_job(tool, ignore))


def test_a_job_is_found_by_its_mark_among_many(
    service: JobService, backend: Backend, hibali_home: Any
) -> None:
    assert service.find(MARK, SINCE) is None
    created = service.create(job(service, backend, hibali_home))
    backend.add_many(30)
    assert service.find(MARK, SINCE) == created
    assert service.find(OTHER, SINCE) is None
    assert service.find(MARK[:-1], SINCE) is None


@pytest.mark.parametrize("fault", ["lose_answer", "garble_answer"])
def test_a_lost_answer_is_reported_and_its_job_is_found(
    service: JobService, backend: Backend, hibali_home: Any, fault: str
) -> None:
    wanted = job(service, backend, hibali_home)
    getattr(backend, fault)()
    with pytest.raises(LostAnswerError):
        service.create(wanted)
    assert [service.find(MARK, SINCE)] == backend.jobs()


def test_a_dropped_request_is_reported_and_leaves_no_job(
    service: JobService, backend: Backend, hibali_home: Any
) -> None:
    wanted = job(service, backend, hibali_home)
    backend.drop_request()
    with pytest.raises(LostAnswerError):
        service.create(wanted)
    assert (service.find(MARK, SINCE), backend.jobs()) == (None, [])


def test_a_login_that_ends_in_the_middle_is_renewed(
    service: JobService, backend: Backend, hibali_home: Any
) -> None:
    wanted = job(service, backend, hibali_home)
    backend.expire_login()
    created = service.create(wanted)
    backend.expire_login()
    assert service.states([created])[created].phase is Phase.WAITING
    assert backend.jobs() == [created]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_asked_again(
    service: JobService, backend: Backend, hibali_home: Any, status: int
) -> None:
    created = service.create(job(service, backend, hibali_home))
    backend.answer_with(status)
    assert service.states([created])[created].phase is Phase.WAITING


def test_a_job_succeeds_only_when_the_service_says_that_it_is_complete(
    service: JobService, host: ServiceHost, backend: Backend, hibali_home: Any
) -> None:
    created = service.create(job(service, backend, hibali_home))
    assert host.get(b"/runs/%b/exit.json" % MARK.encode()) is None
    backend.rename_state(created, "Half Done")
    status = service.states([created])[created]
    assert (status.phase, status.native) == (Phase.RUNNING, "Half Done")
    assert status.reason
    assert host.get(b"/runs/%b/exit.json" % MARK.encode()) is None


def test_the_end_of_a_job(service: JobService, host: ServiceHost, backend: Backend, hibali_home: Any) -> None:
    created = service.create(job(service, backend, hibali_home))
    backend.end(created, well=True)
    assert service.states([created])[created].phase is Phase.ENDED
    assert host.get(b"/runs/%b/exit.json" % MARK.encode()) is not None
    outputs = service.outputs(
        MARK, (Output("out_file", "out.txt", optional=False, is_list=False, is_pattern=False),)
    )
    assert [(each.id, each.is_folder) for each in outputs] == [("out_file", False)]
    failed = service.create(job(service, backend, hibali_home, OTHER))
    backend.end(failed, well=False)
    assert service.states([failed])[failed].phase is Phase.KILLED
    assert host.get(b"/runs/%b/exit.json" % OTHER.encode()) is None


def test_a_job_that_is_not_listed_is_unknown(service: JobService, backend: Backend, hibali_home: Any) -> None:
    created = [service.create(job(service, backend, hibali_home, f"{MARK}{n}")) for n in range(8)]
    backend.forget(created[3])
    found = service.states(created)
    assert found[created[3]] == UNKNOWN
    assert {found[each].phase for each in created if each != created[3]} == {Phase.WAITING}


def test_cancelling_ends_a_job_and_leaves_an_ended_one(
    service: JobService, backend: Backend, hibali_home: Any
) -> None:
    created = service.create(job(service, backend, hibali_home))
    service.cancel(created)
    assert service.states([created])[created].phase is Phase.CANCELLED
    service.cancel(created)


def test_a_tool_or_input_that_is_missing_is_named(
    service: JobService, backend: Backend, hibali_home: Any
) -> None:
    sites = load_sites(str(hibali_home.config))
    with pytest.raises(NotFoundError):
        service.find_input(read_location(f"{backend.input}.missing", sites))
    other = pipeline_of({**DESCRIPTOR, "name": "another tool"})
    with pytest.raises(NotFoundError, match=r"no tool another-tool@1\.0"):
        service.tool_job(ToolRequest(other, {}, ()), ignore)


def test_what_a_service_cannot_do_is_refused(service: JobService, host: ServiceHost) -> None:
    with pytest.raises(UsageError, match="no machine"):
        host.run(["true"])
    if not service.facts.holds:
        with pytest.raises(UsageError, match="start a job later"):
            service.start("1")
    if not service.facts.checksums:
        with pytest.raises(UsageError, match="digest"):
            host.digest(b"/runs/%b/out.txt" % MARK.encode())


def test_errors_of_a_service_are_those_of_users(
    service: JobService, backend: Backend, hibali_home: Any
) -> None:
    created = service.create(job(service, backend, hibali_home))
    backend.answer_with(400)
    with pytest.raises(HibaliError) as problem:
        service.states([created])
    assert not isinstance(problem.value, (TryLaterError, AccessError))
