"""Test every job service with faults: a job is created once, found by its mark, and its states are never better than they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali.errors import AccessError, HibaliError, NotFoundError, TryLaterError, UsageError
from hibali.events import ignore
from hibali.locations import read_location
from hibali.plugins import built_in_names
from registry.descriptor import read_descriptor
from runs.model import Output
from runs.schedulers.base import UNKNOWN, Phase
from runs.services.base import JobService, LostAnswerError, ServiceHost, ToolRequest, ToolService, open_host
from tests.contracts.job_services.base import SITE, Backend
from tests.contracts.job_services.cbrain import CbrainBackend
from tests.end_to_end.run_tools import DESCRIPTOR

MARK, OTHER = "20260102-030405-0a1b2c3d", "20260102-030405-0a1b2c3e"
SINCE = "2026-01-02"


@pytest.fixture(params=built_in_names("runs.services"))
def backend(request: pytest.FixtureRequest, hibali_home: Any) -> Backend:
    assert hibali_home
    found: Backend = import_module(f"tests.contracts.job_services.{request.param}").open_backend(request)
    return found


@pytest.fixture
def host(backend: Backend, hibali_home: Any) -> Iterator[Any]:
    config: Path = hibali_home.config
    config.write_text(f"version = 1\n[sites.{SITE}]\n{backend.config}")
    config.chmod(0o600)
    opened = open_host(load_sites(str(config)).site(SITE))
    yield opened
    opened.close()


@pytest.fixture
def service(host: Any) -> JobService:
    return host.service


@pytest.fixture
def tools(service: JobService) -> ToolService:
    if not isinstance(service, ToolService):
        pytest.skip("this service runs job scripts")
    return service


def test_a_job_is_found_by_its_mark_among_many(
    service: JobService, backend: Backend, host: ServiceHost
) -> None:
    assert service.find(MARK, SINCE) is None
    created = service.create(backend.job(host, MARK))
    backend.add_many(30)
    assert service.find(MARK, SINCE) == created
    assert service.find(OTHER, SINCE) is None
    assert service.find(MARK[:-1], SINCE) is None


@pytest.mark.parametrize("fault", ["lose_answer", "garble_answer"])
def test_a_lost_answer_is_reported_and_its_job_is_found(
    service: JobService, backend: Backend, host: ServiceHost, fault: str
) -> None:
    wanted = backend.job(host, MARK)
    getattr(backend, fault)()
    with pytest.raises(LostAnswerError):
        service.create(wanted)
    assert [service.find(MARK, SINCE)] == backend.jobs()


def test_a_dropped_request_is_reported_and_leaves_no_job(
    service: JobService, backend: Backend, host: ServiceHost
) -> None:
    wanted = backend.job(host, MARK)
    backend.drop_request()
    with pytest.raises(LostAnswerError):
        service.create(wanted)
    assert (service.find(MARK, SINCE), backend.jobs()) == (None, [])


def test_a_login_that_ends_in_the_middle_is_renewed(
    service: JobService, backend: Backend, host: ServiceHost
) -> None:
    wanted = backend.job(host, MARK)
    backend.expire_login()
    created = service.create(wanted)
    backend.expire_login()
    assert service.states([created])[created].phase.queued
    assert backend.jobs() == [created]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_asked_again(
    service: JobService, backend: Backend, host: ServiceHost, status: int
) -> None:
    created = service.create(backend.job(host, MARK))
    backend.answer_with(status)
    assert service.states([created])[created].phase.queued


def test_a_state_that_is_not_documented_is_no_end(
    service: JobService, host: ServiceHost, backend: Backend
) -> None:
    created = service.create(backend.job(host, MARK))
    backend.rename_state(created, backend.odd_state)
    status = service.states([created])[created]
    assert (status.phase, status.native) == (Phase.RUNNING, backend.odd_state)
    assert status.reason


def test_a_tool_succeeds_only_when_the_service_says_that_it_is_complete(
    tools: ToolService, host: ServiceHost, backend: Backend
) -> None:
    created = tools.create(backend.job(host, MARK))
    assert host.get(b"/runs/%b/exit.json" % MARK.encode()) is None
    backend.rename_state(created, backend.odd_state)
    tools.states([created])
    assert host.get(b"/runs/%b/exit.json" % MARK.encode()) is None


def test_the_end_of_a_job(service: JobService, host: ServiceHost, backend: Backend) -> None:
    created = service.create(backend.job(host, MARK))
    backend.end(created, well=True)
    assert service.states([created])[created].phase is Phase.ENDED


def test_a_job_that_failed_did_not_succeed(service: JobService, host: ServiceHost, backend: Backend) -> None:
    failed = service.create(backend.job(host, OTHER))
    backend.end(failed, well=False)
    # the exit record of a job script has the reason; without a script the service must know it
    wanted = {Phase.KILLED} if isinstance(service, ToolService) else {Phase.KILLED, Phase.ENDED}
    assert service.states([failed])[failed].phase in wanted


def test_the_outputs_of_a_tool(tools: ToolService, host: ServiceHost, backend: Backend) -> None:
    created = tools.create(backend.job(host, MARK))
    backend.end(created, well=True)
    assert tools.states([created])[created].phase is Phase.ENDED
    assert host.get(b"/runs/%b/exit.json" % MARK.encode()) is not None
    outputs = tools.outputs(
        MARK, (Output("out_file", "out.txt", optional=False, is_list=False, is_pattern=False),)
    )
    assert [(each.id, each.is_folder) for each in outputs] == [("out_file", False)]
    failed = tools.create(backend.job(host, OTHER))
    backend.end(failed, well=False)
    tools.states([failed])
    assert host.get(b"/runs/%b/exit.json" % OTHER.encode()) is None


def test_a_job_that_is_not_listed_is_unknown(
    service: JobService, backend: Backend, host: ServiceHost
) -> None:
    created = [service.create(backend.job(host, f"{MARK}{n}")) for n in range(8)]
    backend.forget(created[3])
    found = service.states(created)
    assert found[created[3]] == UNKNOWN
    assert all(found[each].phase.queued for each in created if each != created[3])


def test_cancelling_ends_a_job_and_leaves_an_ended_one(
    service: JobService, backend: Backend, host: ServiceHost
) -> None:
    created = service.create(backend.job(host, MARK))
    service.cancel(created)
    backend.end(created, well=False)
    assert service.states([created])[created].phase is Phase.CANCELLED
    service.cancel(created)


def test_a_tool_or_input_that_is_missing_is_named(tools: ToolService, backend: Backend) -> None:
    assert isinstance(backend, CbrainBackend)
    with pytest.raises(NotFoundError):
        tools.find_input(read_location(f"{backend.input}.missing", load_sites()))
    other = read_descriptor(json.dumps({**DESCRIPTOR, "name": "another tool"}).encode(), "tool.json")
    with pytest.raises(NotFoundError, match=r"no tool another-tool@1\.0"):
        tools.tool_job(ToolRequest(other, {}, ()), ignore)


def test_what_a_service_cannot_do_is_refused(service: JobService, host: ServiceHost) -> None:
    if service.name == "slurmrestd":  # its host is a machine
        assert host.run(["true"]).exit_code == 0
    else:
        with pytest.raises(UsageError, match=r"no machine|only jobs"):
            host.run(["true"])
    if not service.facts.holds:
        with pytest.raises(UsageError, match="start a job later"):
            service.start("1")
    if isinstance(service, ToolService):
        with pytest.raises(UsageError, match="digest"):
            host.digest(b"/runs/%b/out.txt" % MARK.encode())


def test_errors_of_a_service_are_those_of_users(
    service: JobService, backend: Backend, host: ServiceHost
) -> None:
    created = service.create(backend.job(host, MARK))
    backend.answer_with(400)
    with pytest.raises(HibaliError) as problem:
        service.states([created])
    assert not isinstance(problem.value, (TryLaterError, AccessError))
