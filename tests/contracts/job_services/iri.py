"""The IRI Facility API in the contract tests of job services: jobs that wait for a file, at a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runs.services.base import ServiceHost, ServiceJob, ServiceMachine
from tests.services import rest
from tests.services.iri import COMPUTE, Iri
from tests.services.oidc import Oidc

_SCRIPT = "#!/bin/sh\n#IRI duration=600\nwhile [ ! -e {end} ]; do sleep 0.2; done\nexit $(cat {end})\n"


class IriBackend:
    """The double of the IRI Facility API."""

    odd_state = "thinking"

    def __init__(self, double: Iri, oidc: Oidc) -> None:
        self.double = double
        self.oidc = oidc
        self.config = f'kind = "iri"\n[sites.site.limits]\nrequests = 2000\n[sites.site.iri]\nurl = "{double.url}"\n{oidc.settings()}'

    def _end_file(self, mark: str) -> Path:
        return self.double.home / f"end-{mark}"

    def job(self, host: ServiceHost | ServiceMachine, mark: str) -> ServiceJob:
        path = f"{self.double.home}/{mark}/job.sh"
        host.make_folder(path.rpartition("/")[0].encode())
        host.put(path.encode(), _SCRIPT.format(end=self._end_file(mark)).encode())
        return ServiceJob(mark, json.loads(json.dumps({"script": path, "hold": False})))

    def lose_answer(self) -> None:
        self.double.fail(rest.LOST, "POST", f"/compute/job/{COMPUTE}")

    def garble_answer(self) -> None:
        self.double.fail(rest.GARBAGE, "POST", f"/compute/job/{COMPUTE}")

    def drop_request(self) -> None:
        self.double.fail(rest.DROPPED, "POST", f"/compute/job/{COMPUTE}")

    def answer_with(self, status: int) -> None:
        self.double.fail(rest.STATUS, "GET", "/compute/status/.*", status=status, retry_after=0)

    def expire_login(self) -> None:
        self.oidc.end_all()

    def end(self, job: str, *, well: bool) -> None:
        self._end_file(self.double.jobs.table()[job]["JobName"]).write_text("0" if well else "3")
        self.double.jobs.wait(job)

    def jobs(self) -> list[str]:
        return list(self.double.jobs.of_users())

    def forget(self, job: str) -> None:
        self.double.jobs.forgotten.add(job)

    def rename_state(self, job: str, state: str) -> None:
        self.double.jobs.renamed[job] = state

    def add_many(self, count: int) -> None:
        self.double.jobs.add_many(count)


def open_backend(request: pytest.FixtureRequest) -> IriBackend:
    """Return the backend over the double of this test."""
    return IriBackend(request.getfixturevalue("iri"), request.getfixturevalue("oidc"))
