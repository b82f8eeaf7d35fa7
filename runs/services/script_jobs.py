"""Create and query the jobs of services that run job scripts: what UNICORE, FirecREST and IRI have in common."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from hibali.errors import TryLaterError, UsageError
from hibali.http.rest import UncertainError
from hibali.text import printable
from runs.schedulers.base import UNKNOWN, Status
from runs.services.base import JobService, LostAnswerError, ServiceJob

_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./@:+=,-]+")


class _Client(Protocol):
    """What this needs of the client of a service."""

    def close(self) -> None:
        """Close the connections."""


class ScriptJobs(JobService):
    """A service that starts job scripts and does not list all jobs reliably, so that each job is queried by its id."""

    _client: _Client

    @abstractmethod
    def _submit(self, job: ServiceJob) -> str:
        """Create a job, and return its id. Raises what `RestClient.create` does."""

    @abstractmethod
    def _status(self, job: str) -> Status | None:
        """Return the status of a job, None if the service does not have it."""

    def create(self, job: ServiceJob) -> str:
        """See JobService."""
        try:
            return self._submit(job)
        except TryLaterError as problem:
            if problem.transient:  # it was certainly not executed
                raise
            refusal = problem.refusal if isinstance(problem, UncertainError) else None
            raise LostAnswerError(problem, job.mark, refusal) from None

    def states(self, jobs: Sequence[str]) -> Mapping[str, Status]:
        """See JobService."""
        return {job: self._status(job) or UNKNOWN for job in jobs}

    def close(self) -> None:
        """See JobService."""
        self._client.close()


def plain_script_path(path: str, service: str) -> str:
    """Return the path of a job script. Raise `UsageError` for one that a shell could read as something else (S9).

    Services paste it into shell commands.
    """
    if not _PLAIN_PATH.fullmatch(path):
        raise UsageError(
            "unsafe-word",
            f"the path of a job script at {service} may contain only letters, digits and _./@:+=,-",
            subject=printable(path),
            hint="Choose a work folder for the site whose path has no other characters.",
        )
    return path


def bad_directive(line: str, service: str, example: str) -> UsageError:
    """Return the error for a directive that is no setting of the service."""
    return UsageError(
        "bad-directive",
        f"a directive for {service} is NAME=VALUE, as {example}: {printable(line)}",
        subject="scheduler.directives",
        hint="Correct the site's [scheduler] table: hibali config edit",
    )
