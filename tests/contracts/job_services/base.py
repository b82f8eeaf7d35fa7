"""Define what the contract tests need of the double of a job service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Protocol

from runs.services.base import ServiceJob
from tests.services import rest
from tests.services.oidc import Oidc

SITE = "site"


class Backend(Protocol):
    """A double of a service, which can be told to fail.

    Attributes:
        config: The keys of the site in config.toml, from `kind` on.
        odd_state: A state that the service does not document.
    """

    config: str
    odd_state: str

    def job(self, host: Any, mark: str) -> ServiceJob:
        """Return a job that waits or runs until `end`, with all that it needs at the site."""

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
        """Let a job run to its end, which is no success unless `well`."""

    def jobs(self) -> list[str]:
        """Return the ids of all jobs."""

    def forget(self, job: str) -> None:
        """Remove a job from what the service lists and knows."""

    def rename_state(self, job: str, state: str) -> None:
        """Set a job's state to one that is not documented."""

    def add_many(self, count: int) -> None:
        """Create other jobs of this account."""


class ScriptBackend:
    """The double of a service that runs job scripts at a real Slurm: a job waits for a file, whose content is its exit code.

    Attributes:
        kind: The kind of the site.
        time_limit: A comment line of the script with a limit of 10 minutes.
        creation: The path of the request that creates a job.
        queries: A pattern of the paths of requests for the states of jobs.
        more: TOML of the site's table that the service needs beside a URL and a token.
    """

    odd_state: str = "THINKING"
    kind: ClassVar[str]
    time_limit: ClassVar[str]
    creation: ClassVar[str]
    queries: ClassVar[str]
    more: ClassVar[str] = ""

    def __init__(self, double: Any, oidc: Oidc) -> None:
        self.double = double
        self.oidc = oidc
        self.config = (
            f'kind = "{self.kind}"\n[sites.site.limits]\nrequests = 2000\n[sites.site.{self.kind}]\n'
            f'url = "{double.url}"\n{self.more}{oidc.settings()}'
        )

    def _end_file(self, mark: str) -> Path:
        path: Path = self.double.home / f"end-{mark}"
        return path

    def job(self, host: Any, mark: str) -> ServiceJob:
        end, path = self._end_file(mark), f"{self.double.home}/{mark}/job.sh"
        script = (
            f"#!/bin/sh\n{self.time_limit}\nwhile [ ! -e {end} ]; do sleep 0.2; done\nexit $(cat {end})\n"
        )
        host.make_folder(path.rpartition("/")[0].encode())
        host.put(path.encode(), script.encode())
        return ServiceJob(mark, json.loads(json.dumps({"script": path, "hold": False})))

    def lose_answer(self) -> None:
        self.double.fail(rest.LOST, "POST", self.creation)

    def garble_answer(self) -> None:
        self.double.fail(rest.GARBAGE, "POST", self.creation)

    def drop_request(self) -> None:
        self.double.fail(rest.DROPPED, "POST", self.creation)

    def answer_with(self, status: int) -> None:
        self.double.fail(rest.STATUS, "GET", self.queries, status=status, retry_after=0)

    def expire_login(self) -> None:
        self.oidc.end_all()

    def end(self, job: str, *, well: bool) -> None:
        jobs = self.double.jobs
        self._end_file(jobs.table()[job]["JobName"]).write_text("0" if well else "3")
        jobs.wait(job)

    def jobs(self) -> list[str]:
        return list(self.double.jobs.of_users())

    def forget(self, job: str) -> None:
        self.double.jobs.forgotten.add(job)

    def rename_state(self, job: str, state: str) -> None:
        self.double.jobs.renamed[job] = state

    def add_many(self, count: int) -> None:
        self.double.jobs.add_many(count)
