"""slurmrestd in the contract tests of job services; its site is this machine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contracts.job_services.base import SITE, ScriptBackend


class SlurmrestdBackend(ScriptBackend):
    """The real slurmrestd, behind a relay that fails as a test wants."""

    time_limit = "#SBATCH --time=10"
    creation = "/job/submit"
    queries = "/job/.*"

    def __init__(self, relay: Any) -> None:
        self.double = relay
        self.config = f'kind = "local"\n[sites.{SITE}.scheduler]\n{relay.settings()}'

    def expire_login(self) -> None:
        self.double.end_all()

    def add_many(self, count: int) -> None:
        for number in range(count):
            options = ["--hold", f"--job-name=other {number}", f"--chdir={self.double.home}"]
            self.double.jobs.submit(options, b"#!/bin/sh\n")


def open_backend(request: pytest.FixtureRequest) -> SlurmrestdBackend:
    """Return the backend over slurmrestd."""
    return SlurmrestdBackend(request.getfixturevalue("slurmrestd"))
