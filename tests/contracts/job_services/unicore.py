"""UNICORE in the contract tests of job services."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.contracts.job_services.base import ScriptBackend
from tests.services.unicore import UnicoreJob


class UnicoreBackend(ScriptBackend):
    """The double of UNICORE/X, which keeps its own list of jobs."""

    kind = "unicore"
    time_limit = "#UNICORE Runtime=600"
    creation = "/jobs"
    queries = "/jobs/.*"

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
