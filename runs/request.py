"""Model the request of a run, and prepare it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hibali.config.model import ProxySettings, SchedulerSettings, Site
from hibali.documents import canonical_digest
from hibali.errors import UsageError
from hibali.locations import Location, work_path
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.containers.base import Container, Started
from runs.fast_storage import NO_FAST_OPTIONS, NOTHING_FAST, Fast, FastOptions
from runs.images import Pinned
from runs.inputs import Identity
from runs.model import Input
from runs.prepare import Prepared, prepare
from runs.resources import DecidedResources, check_gpus, decide_resources, find_launcher
from runs.schedulers.base import Resources, Scheduler
from runs.script import Waiting


def with_job_proxy(request: Request) -> Request:
    """The same, with the proxy of its job, where it is to have one: whoever calls has not gone to the site yet.

    It lasts as long as the job may take and its time in the queue, and as long as the user's own at most. Raises `AccessError`
    where that is shorter than the job may take, and `UsageError` for the tasks of a pilot.
    """
    if not request.proxy:
        return request
    if request.allocations:
        raise UsageError(
            "not-in-a-pilot",
            "the tasks of a pilot, which go from one job to the next, cannot have a proxy",
            subject="--pilot",
            hint="Leave out --pilot: job arrays give each task its own. --no-proxy goes without.",
        )
    return replace(request, proxy_content=_make(request))


def job_proxy(request: Request) -> bytes:
    """The content of a job's proxy; b"" for none. A run that was begun with one has one, however its line was typed again."""
    return (request.proxy_content or _make(request)) if request.proxy else b""


def _make(request: Request) -> bytes:
    from hibali.ssh.gsi import derive_proxy, make_proxy, ready_proxy

    settings = request.site.proxy or ProxySettings()
    asked = request.ask().resources.seconds
    needed = settings.least_seconds if asked is None else float(asked)
    life = max(needed, settings.life_seconds) + settings.queue_seconds
    subject = request.site.name
    if settings.make != "no":
        return make_proxy(settings, life, needed, subject=subject)
    users = ready_proxy(settings, subject=subject, seconds=needed)
    return derive_proxy(users.path, life, needed, subject=subject)


def run_key(
    pipeline: Pipeline,
    invocation: Invocation,
    identities: Sequence[str],
    site: str,
    name: str,
    after: Sequence[str] = (),
) -> str:
    """What makes two typed lines the same line, as a sha256 (contracts.md, "The same line again").

    `after` are the runs that have to come first.
    """
    return canonical_digest(
        {
            "pipeline": pipeline.digest,
            "values": dict(invocation.values),
            "inputs": list(identities),
            "site": site,
            "name": name,
            **({"after": list(after)} if after else {}),
        }
    )


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """One task of a sweep: its number, what it answers beside the others, and all of its answers, checked."""

    number: int
    values: Mapping[str, Any]
    invocation: Invocation


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, checked: the pipeline, its answers, and where to run it.

    `places` has for each of `inputs` where it lies, and `identities` what is known of it without asking the
    site (None for one that is at the site itself). `image` is what `--image` said, `pinned` the catalogue's own,
    `wanted` what a job is to ask for whatever the author and the site say. `line` is the key of the same line for whichever site,
    where one of several was chosen. `asked` is how the line was typed on this machine, for whoever is to type it again (runs.dataset).
    `after` are the runs that were named to come first, `waiting` is what the job waits for. With `tasks` it is a sweep: `inputs` are
    then the files of all of them, and `invocation` has what all of them answer, not checked by itself; what goes to fast storage is
    said by `marks`, in the place of `fast`. `origin` is the run that is to be run again, all of it or these tasks. With `allocations`
    the tasks go by a pilot, in so many one after the other at most. With `proxy` the job has one for GSI, whose content was made before
    the site was asked anything (runs.submit).
    """

    pipeline: Pipeline
    invocation: Invocation
    inputs: tuple[Input, ...]
    places: tuple[Location, ...]
    identities: tuple[Identity | None, ...]
    site: Site
    scheduler: Scheduler
    container: Container
    name: str = ""
    image: str = ""
    pinned: Pinned | None = None
    new: bool = False
    fast: Fast = NOTHING_FAST
    marks: FastOptions = NO_FAST_OPTIONS
    line: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    wanted: Resources = field(default_factory=Resources)
    after: tuple[str, ...] = ()
    waiting: Waiting = field(default_factory=Waiting)
    tasks: tuple[TaskRequest, ...] = ()
    origin: str = ""
    allocations: int = 0
    proxy: bool = False
    proxy_content: bytes = field(default=b"", repr=False)

    @property
    def settings(self) -> SchedulerSettings:
        """The site's defaults for jobs."""
        return self.site.scheduler or SchedulerSettings()

    def ask(self) -> DecidedResources:
        """What the job asks for; raises `RefusedError` and `UsageError` for what the site cannot give."""
        asked = decide_resources(self.pipeline.resources, self.settings, self.wanted)
        check_gpus(asked.resources, self.site.gpus, self.container, self.site.name)
        find_launcher(asked.resources, self.settings.mpi or self.scheduler.launcher)
        return asked


def prepare_request(
    request: Request, inputs: Sequence[Input], run_id: str, folder: str, *, image: Started, number: int = 0
) -> Prepared:
    """See `prepare`; what is asked for comes from the request."""
    return prepare(
        request.pipeline,
        request.invocation,
        inputs,
        run=run_id,
        folder=folder,
        settings=request.settings,
        scheduler=request.scheduler,
        container=request.container,
        image=image,
        waiting=request.waiting,
        number=number,
        fast=request.fast,
        wanted=request.wanted,
        gpus=request.site.gpus,
        site=request.site.name,
        proxy=request.proxy,
        own=request.site.container.own,
    )


def show_prepared(request: Request, run_id: str) -> Prepared:
    """What a run would put at the site, without asking the site anything: paths there stand as configured."""
    folder = f"{work_path(request.site)}/runs/{run_id}"
    return prepare_request(request, shown_inputs(request), run_id, folder, image=shown_image(request))


def shown_inputs(request: Request) -> list[Input]:
    """The inputs as far as they are known without asking the site."""
    return [
        each
        if each.in_place
        else replace(each, in_place=known is None, source=place.path if known is None else "")
        for each, place, known in zip(request.inputs, request.places, request.identities, strict=True)
    ]


def shown_image(request: Request) -> Started:
    """What stands for the image where none was looked for."""
    return Started("IMAGE" if request.container.isolates else "")
