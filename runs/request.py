"""Model the request of a run: its workload, site and job options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hibali.config.kinds import service_name
from hibali.config.model import ProxySettings, SchedulerSettings, Site
from hibali.documents import canonical_digest
from hibali.errors import UsageError
from hibali.locations import Location
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.containers.base import Container, load_container
from runs.fast_storage import NO_FAST_OPTIONS, NOTHING_FAST, Fast, FastOptions
from runs.identity import Identity
from runs.images import Pinned
from runs.model import Input
from runs.resources import DecidedResources, check_gpus, decide_resources, find_launcher
from runs.schedulers.base import BatchSystem, JobSystem, Resources, load_scheduler
from runs.script import Dependencies
from runs.services.base import ServiceContainer, load_job_system, refusal


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """One task of a sweep: its number, the values that only it has, its whole invocation, checked, and its name (runs.new_request)."""

    number: int
    values: Mapping[str, Any]
    invocation: Invocation
    name: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of a run: a pipeline, its invocation and input files, checked.

    `locations` and `identities` belong to `inputs`, in their order; an identity is None for an input at the run's site, which is only
    identified there. `after` are the ids of runs that must succeed before. `origin` is the run that is repeated. A sweep has `tasks`:
    `inputs` are then the files of all of them, and `invocation` has the values that all of them share, not checked by itself.
    """

    pipeline: Pipeline
    invocation: Invocation
    inputs: tuple[Input, ...] = ()
    locations: tuple[Location, ...] = ()
    identities: tuple[Identity | None, ...] = ()
    name: str = ""
    after: tuple[str, ...] = ()
    origin: str = ""
    tasks: tuple[TaskRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class ComputeSite:
    """A site that runs jobs, with the scheduler or the service that runs them, and its container."""

    site: Site
    jobs: JobSystem
    container: Container

    @property
    def scheduler(self) -> BatchSystem:
        """What runs job scripts. Raises `UsageError` where a service runs tools that are installed there."""
        if not isinstance(self.jobs, BatchSystem):
            raise refusal(self.jobs.name, "do that: it has no scheduler with job scripts", self.site.name)
        return self.jobs

    @property
    def name(self) -> str:
        """The site's name."""
        return self.site.name

    @property
    def settings(self) -> SchedulerSettings:
        """The site's defaults for jobs."""
        return self.site.scheduler or SchedulerSettings()

    @property
    def launcher(self) -> tuple[str, ...]:
        """The command that starts several tasks of a job: that of the site, else that of its scheduler."""
        own = self.jobs.launcher if isinstance(self.jobs, BatchSystem) else ()
        return tuple(self.settings.mpi or own)

    def find_launcher(self, resources: Resources) -> tuple[str, ...]:
        """Return the command that starts the tasks; see `runs.resources.find_launcher`."""
        return find_launcher(resources, self.launcher, self.container.launcher)


def compute_site(site: Site) -> ComputeSite:
    """Load the scheduler and the container of a site, or what its service has in their place."""
    service = service_name(site)
    if service:
        jobs = load_job_system(service)
        batch = isinstance(jobs, BatchSystem)
        return ComputeSite(site, jobs, load_container(site.container.name) if batch else ServiceContainer())
    name = site.scheduler.name if site.scheduler else "direct"
    return ComputeSite(site, load_scheduler(name), load_container(site.container.name))


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of a job: its resources, dependencies, fast storage and proxy.

    `resources` are those of the command line, which take precedence over those of the pipeline and the site. `fast` is the fast storage of a single
    run; a sweep decides it for each task from `fast_options`. With `allocations` a pilot runs the tasks, in so many jobs at most.
    `proxy_content` is made by `with_job_proxy`.
    """

    resources: Resources = field(default_factory=Resources)
    dependencies: Dependencies = field(default_factory=Dependencies)
    fast: Fast = NOTHING_FAST
    fast_options: FastOptions = NO_FAST_OPTIONS
    allocations: int = 0
    proxy: bool = False
    proxy_content: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request for a run.

    `image` is the value of `--image`, `pinned` the image that the catalogue pins. `new` starts a new run although one of the same
    command is unfinished; `resumed` is the id of the only run that it may be. `command_key` is the key of the command for any site, if one of several sites was chosen. `typed` is the command
    line as it was typed, for `datalad rerun` (runs.typed).
    """

    workload: Workload
    compute: ComputeSite
    job: JobOptions = field(default_factory=JobOptions)
    image: str = ""
    pinned: Pinned | None = None
    new: bool = False
    resumed: str = ""
    command_key: str = ""
    typed: Mapping[str, Any] = field(default_factory=dict)

    def decide_resources(self) -> DecidedResources:
        """Decide the resources of the job; raises `RefusedError` and `UsageError` if the site does not have them."""
        settings, site = self.compute.settings, self.compute.site
        decided = decide_resources(self.workload.pipeline.resources, settings, self.job.resources)
        check_gpus(decided.resources, site.gpus, self.compute.container, site.name)
        self.compute.find_launcher(decided.resources)
        return replace(decided, resources=replace(decided.resources, site_gpus=site.gpus))

    def with_workload(self, **changes: Any) -> Request:
        """Return the request with other fields of its workload."""
        return replace(self, workload=replace(self.workload, **changes))

    def with_job(self, **changes: Any) -> Request:
        """Return the request with other job options."""
        return replace(self, job=replace(self.job, **changes))


def with_job_proxy(request: Request) -> Request:
    """Make the job's proxy, if it is to have one, before the site is contacted.

    The proxy is valid for the job's time limit and its time in the queue, but not longer than the user's own.

    Raises:
        AccessError: The user's proxy ends before the job may.
        UsageError: A pilot runs the tasks.
    """
    if not request.job.proxy:
        return request
    if request.job.allocations:
        raise UsageError(
            "not-in-a-pilot",
            "tasks that a pilot runs cannot have a proxy, because they move from one job to the next",
            subject="--pilot",
            hint="Leave out --pilot: each task of a job array has its own proxy. Or run without one: --no-proxy.",
        )
    return request.with_job(proxy_content=_make_proxy(request))


def job_proxy(request: Request) -> bytes:
    """Return the content of the job's proxy, b"" for none; it is made now if the request does not have it yet."""
    return (request.job.proxy_content or _make_proxy(request)) if request.job.proxy else b""


def _make_proxy(request: Request) -> bytes:
    # local: most runs have no proxy, and the module is slow to load
    from hibali.ssh.gsi import derive_proxy, make_proxy, ready_proxy

    settings = request.compute.site.proxy or ProxySettings()
    limit = request.decide_resources().resources.seconds
    needed = settings.least_seconds if limit is None else float(limit)
    life = max(needed, settings.life_seconds) + settings.queue_seconds
    site = request.compute.name
    if settings.make != "no":
        return make_proxy(settings, life, needed, subject=site)
    users = ready_proxy(settings, subject=site, seconds=needed)
    return derive_proxy(users.path, life, needed, subject=site)


def workload_key(workload: Workload, identities: Sequence[str], site: str) -> str:
    """Return the sha256 by which the same command finds the run, the sweep or the rerun that it started."""
    key: dict[str, Any] = {
        "pipeline": workload.pipeline.digest,
        "values": dict(workload.invocation.values),
        "inputs": list(identities),
        "site": site,
        "name": workload.name,
    }
    if workload.tasks or workload.origin:
        key["tasks"] = [[task.number, dict(task.invocation.values)] for task in workload.tasks]
        key["origin"] = workload.origin
    elif workload.after:
        key["after"] = list(workload.after)
    return canonical_digest(key)
