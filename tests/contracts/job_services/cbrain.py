"""CBRAIN in the contract tests of job services: one tool, one input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali.events import ignore
from hibali.locations import read_location
from registry.descriptor import read_descriptor
from runs.services.base import ServiceHost, ServiceJob, ToolRequest
from tests.contracts.job_services.base import SITE
from tests.end_to_end.run_tools import DESCRIPTOR
from tests.services import cbrain as double
from tests.services.cbrain_model import Task


class CbrainBackend:
    """The double of a CBRAIN portal."""

    odd_state = "Half Done"

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

    def job(self, host: Any, mark: str) -> ServiceJob:
        assert isinstance(host, ServiceHost)
        found = host.service.find_input(read_location(self.input, load_sites()))
        pipeline = read_descriptor(json.dumps(DESCRIPTOR).encode(), "tool.json")
        tool = ToolRequest(pipeline, {"in": found.reference}, (found.reference,))
        return ServiceJob(mark, host.service.tool_job(tool, ignore))

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


def open_backend(request: pytest.FixtureRequest) -> CbrainBackend:
    """Return the backend over the double of this test."""
    return CbrainBackend(request.getfixturevalue("cbrain"))
