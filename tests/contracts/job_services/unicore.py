"""UNICORE in the contract tests of job services: jobs that wait for a file, at a real Slurm."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from runs.services.base import ServiceHost, ServiceJob, ServiceMachine
from tests.services import rest
from tests.services.oidc import Oidc
from tests.services.unicore import Unicore, UnicoreJob

_SCRIPT = "#!/bin/sh\n#UNICORE Runtime=600\nwhile [ ! -e {end} ]; do sleep 0.2; done\nexit $(cat {end})\n"


class UnicoreBackend:
    """The double of UNICORE/X."""

    odd_state = "THINKING"

    def __init__(self, double: Unicore, oidc: Oidc) -> None:
        self.double = double
        self.oidc = oidc
        self.config = f'kind = "unicore"\n[sites.site.limits]\nrequests = 2000\n[sites.site.unicore]\nurl = "{double.url}"\n{oidc.settings()}'

    def _end_file(self, mark: str) -> Path:
        return self.double.home / f"end-{mark}"

    def job(self, host: ServiceHost | ServiceMachine, mark: str) -> ServiceJob:
        path = f"{self.double.home}/{mark}/job.sh"
        host.make_folder(path.rpartition("/")[0].encode())
        host.put(path.encode(), _SCRIPT.format(end=self._end_file(mark)).encode())
        return ServiceJob(mark, json.loads(json.dumps({"script": path, "hold": False})))

    def lose_answer(self) -> None:
        self.double.fail(rest.LOST, "POST", "/jobs")

    def garble_answer(self) -> None:
        self.double.fail(rest.GARBAGE, "POST", "/jobs")

    def drop_request(self) -> None:
        self.double.fail(rest.DROPPED, "POST", "/jobs")

    def answer_with(self, status: int) -> None:
        self.double.fail(rest.STATUS, "GET", "/jobs/.*", status=status, retry_after=0)

    def expire_login(self) -> None:
        self.oidc.end_all()

    def end(self, job: str, *, well: bool) -> None:
        found = self.double.jobs[job]
        self._end_file(found.description["Name"]).write_text("0" if well else "3")
        self.double.wait(job)

    def jobs(self) -> list[str]:
        return list(self.double.jobs)

    def forget(self, job: str) -> None:
        del self.double.jobs[job]

    def rename_state(self, job: str, state: str) -> None:
        self.double.jobs[job].status = state

    def add_many(self, count: int) -> None:
        self.double.page = 7
        for number in range(count):
            job = UnicoreJob(
                str(uuid.uuid4()), {"Name": f"other {number}", "Tags": ["other"]}, Path("/nonexistent")
            )
            job.status = "SUCCESSFUL"
            self.double.jobs[job.id] = job


def open_backend(request: pytest.FixtureRequest) -> UnicoreBackend:
    """Return the backend over the double of this test."""
    return UnicoreBackend(request.getfixturevalue("unicore"), request.getfixturevalue("oidc"))
