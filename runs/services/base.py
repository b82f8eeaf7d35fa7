"""Define a job service: what runs jobs behind a REST interface, and how it takes the place of a machine with a scheduler."""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol, cast

from hibali.config.kinds import service_name
from hibali.config.model import Site
from hibali.errors import HibaliError, NotFoundError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.plugins import has, load
from hibali.text import printable
from registry.pipeline import Container as Wanted
from registry.pipeline import Pipeline
from runs.containers.base import Container, Task
from runs.model import Output
from runs.schedulers.base import BatchSystem, JobStates, JobSystem, Status, load_scheduler
from transfers.model.entry import Entry, Kind
from transfers.remote.host import RemoteHost

FOLDER = (
    b"/runs/"  # of a run at a service without folders: what hibali reads there is answered by the service
)


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What a service can do.

    Attributes:
        holds: A job can be created without being started, and `start` starts it.
        settling_seconds: How long after a request without an answer its job may still appear.
    """

    holds: bool = False
    settling_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class ServiceJob:
    """A job to create: the mark by which it is found again, which no other job has, and what only this service reads."""

    mark: str
    content: Mapping[str, Any]


class LostAnswerError(HibaliError):
    """A request may have created a job, but its answer did not arrive, or says that the service failed: `refusal`."""

    def __init__(self, problem: HibaliError, mark: str, refusal: HibaliError | None = None) -> None:
        super().__init__(
            "answer-lost", f"the service's answer did not arrive: {problem.message}", subject=mark
        )
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class ServiceInput:
    """An input at the site of a service: what the service calls it, and a mark that changes with its content."""

    reference: str
    mark: str


@dataclass(frozen=True, slots=True)
class ServiceOutput:
    """An output: its id in the descriptor, the folder it is in, and its name there."""

    id: str
    folder: Location
    name: str
    is_folder: bool


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool to run: the pipeline, and its values with the references of inputs in place of their paths."""

    pipeline: Pipeline
    values: Mapping[str, Any]
    references: tuple[str, ...]


class JobService(ABC):
    """One account at one service; for one thread.

    Every method may raise `TryLaterError` (no answer, too many requests), `AccessError`, `IncompleteError`.

    Attributes:
        name: Its name, as runs record it as their scheduler.
        facts: What it can do.
    """

    name: ClassVar[str]
    facts: ClassVar[ServiceFacts] = ServiceFacts()

    @abstractmethod
    def find(self, mark: str, since: str) -> str | None:
        """Return the job with this mark, created on or after `YYYY-MM-DD`; None only if all jobs were seen."""

    @abstractmethod
    def create(self, job: ServiceJob) -> str:
        """Create a job, and return its id.

        Raises:
            LostAnswerError: It is not known whether the job exists.
            UsageError: The service refuses the job.
        """

    @abstractmethod
    def states(self, jobs: Sequence[str]) -> Mapping[str, Status]:
        """Return the status of each job; `UNKNOWN` for one that the service does not list, which does not mean that it ended."""

    @abstractmethod
    def cancel(self, job: str) -> None:
        """End a job; an ended one is no failure."""

    def start(self, job: str) -> None:
        """Start a job that was created on hold."""
        self._refuse("start a job later", job)

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    def _refuse(self, what: str, subject: str) -> NoReturn:
        raise refusal(self.name, what, subject)


class ToolService(JobService):
    """A service that runs the tools that are installed there, and keeps their inputs, outputs and streams."""

    @abstractmethod
    def find_input(self, location: Location) -> ServiceInput:
        """Find an input at the site. Raises `NotFoundError`."""

    @abstractmethod
    def tool_job(self, request: ToolRequest, on_event: Listener) -> Mapping[str, Any]:
        """Return what `create` needs to run a tool. Raises `NotFoundError` if the service does not have it."""

    @abstractmethod
    def input_folder(self) -> Location:
        """Return where inputs from elsewhere are copied to before a tool runs."""

    @abstractmethod
    def outputs(self, mark: str, declared: Sequence[Output]) -> Sequence[ServiceOutput]:
        """Return where the outputs of a job that ended are, as far as it created them."""

    @abstractmethod
    def read(self, mark: str, name: str, offset: int, maximum: int) -> bytes | None:
        """Read a file of a job: `stdout`, `stderr` or `exit.json`, as a job script writes them, or another one that it has.

        None while there is none.
        """

    def put(self, mark: str, name: str, content: bytes) -> None:
        """Write a file into the folder of a job that was not started."""
        del content
        self._refuse(f"write {name}", mark)

    def digest(self, mark: str, name: str) -> str:
        """Return the sha256 of a file of a job, computed by the service."""
        self._refuse(f"compute the digest of {name}", mark)


def refusal(service: str, what: str, subject: str = "") -> UsageError:
    """Return the error for what a service cannot do."""
    return UsageError(
        "not-supported-by-service",
        f"{service} cannot {what}",
        subject=subject,
        hint="Use a site with a scheduler: hibali sites list",
    )


class ServiceSystem(JobSystem):
    """A job service as the system that runs the jobs of a site; its host has the service (`open_host`).

    Attributes:
        names_itself: Whether the id that a job records when it starts is that of the service.
    """

    names_itself: ClassVar[bool] = False

    def query(self, host: RemoteHost, jobs: Sequence[str], arrays: Sequence[str]) -> JobStates:
        """See JobSystem; an array is a job with one task."""
        found = service_of(host).states([*jobs, *arrays])
        return JobStates({job: found[job] for job in jobs}, {job: {1: found[job]} for job in arrays})

    def find(self, host: RemoteHost, name: str, since: str) -> str | None:
        """See JobSystem."""
        return service_of(host).find(name, since)

    def has_accounting(self, jobs: Sequence[str], since: str) -> bool:
        """See JobSystem; the states of a service are final."""
        del jobs, since
        return False

    def account(
        self, host: RemoteHost, jobs: Sequence[str], since: str, *, timeout: float = 60.0
    ) -> Mapping[str, Status] | None:
        """See JobSystem."""
        del host, jobs, since, timeout
        return None

    def cancel(self, host: RemoteHost, job: str) -> None:
        """See JobSystem."""
        service_of(host).cancel(job)

    def release(self, host: RemoteHost, job: str) -> None:
        """See JobSystem."""
        service_of(host).start(job)


class ServiceContainer(Container):
    """In the place of a container: the service starts the tools that are installed there, with the rights that it gives them."""

    name = "service"
    isolates = False
    confines = True

    def image_name(self, wanted: Wanted | None) -> str:
        """Return "": the service chooses the image."""
        del wanted
        return ""

    def start(self, task: Task) -> str:
        """See Container; there is no job script."""
        raise refusal(self.name, "run a command", task.run)


class ServiceHost:
    """What hibali reads and writes of runs at a site without a machine: files in the folder of a run are those of its job.

    The rest of `RemoteHost` is refused.
    """

    def __init__(self, service: ToolService, site: str) -> None:
        self.service = service
        self._site = site

    def facts(self) -> dict[str, str]:
        """See RemoteHost; nothing is known."""
        return {"host": self._site, "user": "", "home": "", "python": "", "boot": "", "clock": ""}

    def stat(self, path: bytes) -> Entry | None:
        """See RemoteHost."""
        mark, name = self._parts(path)
        content = self.service.read(mark, name, 0, 1 << 30) if name else None
        return None if content is None else Entry(path, Kind.FILE, len(content))

    def get(self, path: bytes, *, maximum: int = 1 << 20, offset: int = 0) -> bytes | None:
        """See RemoteHost."""
        mark, name = self._parts(path)
        return self.service.read(mark, name, offset, maximum) if name else None

    def get_all(self, paths: Sequence[bytes], *, maximum: int = 1 << 16) -> list[bytes | None]:
        """See RemoteHost."""
        return [self.get(path, maximum=maximum) for path in paths]

    def names(self, path: bytes) -> list[bytes]:
        """See RemoteHost; a run has no files but those of its job."""
        del path
        return []

    def make_folder(self, path: bytes, *, exclusive: bool = False) -> bool:
        """See RemoteHost; the folder of a run that was never submitted can be claimed."""
        del path
        return exclusive

    def put(self, path: bytes, content: bytes, *, executable: bool = False) -> None:
        """See RemoteHost."""
        del executable
        mark, name = self._parts(path)
        self.service.put(mark, name, content)

    def remove_tree(self, path: bytes) -> None:
        """See RemoteHost; there is nothing to remove."""

    def digest(self, path: bytes) -> str:
        """See RemoteHost."""
        return self.service.digest(*self._parts(path))

    def close(self) -> None:
        """See RemoteHost."""
        self.service.close()

    def __getattr__(self, name: str) -> Any:
        """Refuse what needs a machine."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise UsageError(
            "no-machine",
            f"{self.service.name} has no machine that can run commands",
            subject=self._site,
            hint="Use an ssh or local site: hibali sites list",
        )

    def _parts(self, path: bytes) -> tuple[str, str]:
        """Return the mark of a run, and the name of a file in its folder, "" for anything else."""
        if not path.startswith(FOLDER):
            raise NotFoundError("no-such-file", "there is no such file", subject=printable(path))
        mark, _, name = path[len(FOLDER) :].decode("utf-8", "surrogateescape").partition("/")
        return mark, posixpath.normpath(name) if name else ""


class HasService(Protocol):
    """A `RemoteHost` with the job service of its site: `ServiceHost`, or a machine whose files the service has, too."""

    @property
    def service(self) -> JobService:
        """The service."""

    def close(self) -> None:
        """Close the connections."""


def service_of(host: RemoteHost) -> JobService:
    """Return the job service of a host."""
    return cast("HasService", host).service


def open_host(site: Site, on_event: Listener = ignore) -> HasService:
    """Connect to the job service of a site; the caller closes it."""
    module = load("runs.services", service_name(site))
    found: HasService = module.open_host(site, on_event)
    return found


def service_at(site: Site, host: RemoteHost, on_event: Listener = ignore) -> JobService:
    """Return the job service that [scheduler] names, at a connected machine; the caller closes it."""
    found: JobService = load("runs.services", service_name(site)).service_at(site, host, on_event)
    return found


def load_job_system(name: str) -> JobSystem:
    """Return the scheduler or service that a run recorded; raises `UsageError` for an unknown one."""
    if has("runs.schedulers", name):
        return load_scheduler(name)
    found: JobSystem = load("runs.services", name).SYSTEM
    return found


def load_batch_system(name: str) -> BatchSystem:
    """Return what runs the job scripts of a run that recorded this name."""
    found = load_job_system(name)
    if not isinstance(found, BatchSystem):
        raise refusal(name, "run job scripts")
    return found
