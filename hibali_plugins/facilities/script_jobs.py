"""Create and query the jobs of services that run job scripts: what UNICORE, FirecREST and IRI have in common."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hibali.errors import NotFoundError, TryLaterError, UsageError
from hibali.http.rest import UncertainError
from hibali.text import printable
from hibali_plugins.facilities.machine import FilesHost, MachineFiles
from runs.schedulers.base import UNKNOWN, BatchSystem, Job, Status
from runs.services.base import JobService, LostAnswerError, ServiceJob, ServiceSystem, refusal

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


_MOST_SCRIPT = 4 * 1024 * 1024


class ServiceScheduler(ServiceSystem, BatchSystem):
    """A service that starts the job scripts of hibali at a machine whose files it also serves.

    A script has the resources in its comment lines, as the service names them; `create` of its `JobService` reads them there.
    """

    has_arrays = False
    has_dependencies = False
    holds: ClassVar[bool] = False  # whether a job can be created without being started

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """Return the content of a `ServiceJob` as JSON. Raises `UsageError` for what no service can do."""
        if job.hold and not self.holds:
            raise refusal(self.name, "start a job later: leave out --hold", job.name)
        if job.tasks > 1:
            raise refusal(self.name, "start several tasks in one job", job.name)
        if job.after:
            raise refusal(self.name, "start a job after another one", job.name)
        return (json.dumps({"script": job.script, "hold": job.hold}, sort_keys=True),)


@dataclass(frozen=True, slots=True)
class Script:
    """A job script at the machine of a service: its path, its folder, and its comment lines with resources.

    On `hold` its job is created without being started.
    """

    path: bytes
    content: bytes
    hold: bool

    @property
    def folder(self) -> bytes:
        """The folder in which it starts."""
        return self.path.rpartition(b"/")[0]

    def lines(self, prefix: str) -> list[str]:
        """Return the rest of each comment line that begins with `prefix`, in the head of the script."""
        found = []
        for line in self.content.decode("utf-8", "surrogateescape").splitlines()[1:]:
            if not line.startswith("#"):
                break
            if line.startswith(prefix):
                found.append(line.removeprefix(prefix).strip())
        return found


def script_of(job: ServiceJob, read: Callable[[bytes, int], bytes | None], subject: str) -> Script:
    """Return the script of a job that the scheduler's `submit_argv` described.

    Args:
        job: The job.
        read: Returns the content of a path with at most so many bytes, None if there is none.
        subject: The site, for errors.

    Raises:
        NotFoundError: The script is not there.
    """
    path = str(job.content["script"]).encode("utf-8", "surrogateescape")
    content = read(path, _MOST_SCRIPT)
    if content is None:
        raise NotFoundError(
            "no-such-file", "the job script is not there", subject=f"{subject}:{printable(path)}"
        )
    return Script(path, content, bool(job.content.get("hold")))


class ServiceMachine(FilesHost):
    """A machine whose files and jobs are reached through a service, not by commands."""

    def __init__(self, files: MachineFiles, service: JobService, site: str) -> None:
        super().__init__(files, site)
        self.service = service

    def close(self) -> None:
        """See RemoteHost."""
        self.service.close()
        super().close()
