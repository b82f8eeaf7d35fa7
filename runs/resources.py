"""Decide the resources of a job: descriptor, site defaults, then command line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from hibali.amounts import read_job_time
from hibali.config.model import Gpus, SchedulerSettings
from hibali.errors import RefusedError, UsageError
from hibali.text import counted, printable
from registry.pipeline import Resources as Suggested
from runs.containers.base import Container
from runs.schedulers.base import Resources

_MIB = 1024**2
_MOST_MEMORY = 1024**3  # MiB
_MOST_SECONDS = 10 * 366 * 86400
_MOST = 1_000_000_000  # of any resource: larger numbers are mistakes that schedulers cannot read
_NAMES = tuple(each.name for each in fields(Resources) if each.name not in {"directives", "own", "site_gpus"})
# Options of a launcher after the site's own, unless these contain {tasks} themselves: srun(1) (which does not take over
# the cores of sbatch since Slurm 22.05, and would let others wait for a task that died), mpirun(1) of Open MPI, MPICH, Intel MPI.
_OPTIONS = {
    "srun": ("--ntasks={tasks}", "--cpus-per-task={cores}", "--kill-on-bad-exit=1"),
    "mpirun": ("-n", "{tasks}"),
    "mpiexec": ("-n", "{tasks}"),
}


class Origin(StrEnum):
    """The origin of a requested resource; later ones override earlier ones."""

    DESCRIPTOR = "descriptor"
    SITE = "site"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class DecidedResources:
    """The resources that a job requests; `origins` has the fields of `resources` that are set.

    The first `site_directives` directives are the site's, the others the command line's. `suggested` are the
    author's values, used or not.
    """

    resources: Resources = field(default_factory=Resources)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    site_directives: int = 0
    suggested: Resources = field(default_factory=Resources)

    def to_fields(self) -> list[dict[str, Any]]:
        """Return JSON fields `name`, `value` (bytes or seconds) and `from`, one entry per directive."""
        found: list[dict[str, Any]] = []
        for name, origin in self.origins.items():
            value = getattr(self.resources, name)
            shown = {"memory_megabytes": "memory", "seconds": "time"}.get(name, name)
            found.append(
                {"name": shown, "value": value * _MIB if shown == "memory" else value, "from": str(origin)}
            )
        for number, text in enumerate(self.resources.directives):
            origin = Origin.SITE if number < self.site_directives else Origin.COMMAND_LINE
            found.append({"name": "directive", "value": text, "from": str(origin)})
        return found

    def shortfalls(self) -> list[str]:
        """Describe time and memory below what the author suggested, because too little of them ends jobs."""
        found = []
        for name, field_name in (("seconds", "time"), ("memory_megabytes", "memory")):
            chosen, authors = getattr(self.resources, name), getattr(self.suggested, name)
            if chosen is not None and authors is not None and chosen < authors:
                shown = [
                    show_value(field_name, each * (_MIB if field_name == "memory" else 1))
                    for each in (authors, chosen)
                ]
                origin = "the site's default" if self.origins[name] is Origin.SITE else "the command line"
                found.append(f"the author suggests {field_name} {shown[0]}, but {origin} requests {shown[1]}")
        return found


def decide_resources(
    suggested: Suggested, settings: SchedulerSettings, wanted: Resources | None = None
) -> DecidedResources:
    """Decide all resources, pure; `wanted` are those of the command line. The site's directives come first.

    0 on the command line removes the requests of the author and the site. An author's cores are those of the whole
    tool, shared among its tasks. Raises `UsageError` for impossible numbers.
    """
    wanted = wanted or Resources()
    authors = _suggested_resources(suggested)
    chosen: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    layers = (
        (Origin.DESCRIPTOR, authors),
        (Origin.SITE, _site_resources(settings)),
        (Origin.COMMAND_LINE, wanted),
    )
    for name in _NAMES:
        for origin, layer in layers:
            value = getattr(layer, name)
            if value is not None:
                chosen[name], origins[name] = value, origin
    for name in [name for name, value in chosen.items() if value == 0]:
        del chosen[name], origins[name]
    _check_amounts(chosen)
    if origins.get("cores") is Origin.DESCRIPTOR:
        chosen["cores"] = math.ceil(chosen["cores"] / chosen.get("tasks", 1))
    directives = (*settings.directives, *wanted.directives)
    return DecidedResources(
        Resources(**chosen, directives=directives, own=settings.own),
        origins,
        len(settings.directives),
        suggested=authors,
    )


def _check_amounts(chosen: Mapping[str, Any]) -> None:
    """Raise `UsageError` for numbers that no site has, which schedulers read as others or never fulfil."""
    for name, most, shown in (
        ("memory_megabytes", _MOST_MEMORY, "1 PiB of memory for each node"),
        ("seconds", _MOST_SECONDS, "ten years"),
        *((name, _MOST, f"{_MOST} {name}") for name in ("nodes", "tasks", "cores", "gpus")),
    ):
        value = chosen.get(name, 1)
        if not 0 < value <= most:
            raise UsageError(
                "bad-resources",
                f"the request is more than {shown}" if value > 0 else f"{value} is not a number of {name}",
                subject={"memory_megabytes": "memory", "seconds": "time"}.get(name, name),
                hint="Correct the option, or the value in the site's [scheduler] table.",
            )


def find_launcher(requested: Resources, argv: tuple[str, ...], needed: str = "") -> tuple[str, ...]:
    """Return the site's or scheduler's launcher of tasks (`argv`); () for a tool with one process.

    `needed` is the launcher that starts the site's containers, also a single one. Raises `UsageError` without a launcher.
    """
    tasks = requested.tasks or 1
    if needed and (not argv or PurePosixPath(argv[0]).name != needed):
        raise UsageError(
            "no-launcher",
            f"{needed} starts the containers of the site, but its launcher is {argv[0] if argv else 'not set'}",
            subject="container",
            hint=f'Run it at a site with Slurm, and set mpi = "{needed}" in its [scheduler] table, or no mpi.',
        )
    if tasks < 2 and not needed:
        return ()
    if not argv:
        raise UsageError(
            "no-launcher",
            f"the job requests {tasks} MPI tasks, but the site has no launcher for them",
            subject="tasks",
            hint='Add mpi = "mpirun", or another launcher, to the site\'s [scheduler] table.',
        )
    if not any("{tasks}" in argument for argument in argv):
        argv += _OPTIONS.get(PurePosixPath(argv[0]).name, ())
    if requested.cores is None:
        argv = tuple(argument for argument in argv if argument != "--cpus-per-task={cores}")
    values = {"{tasks}": tasks, "{cores}": requested.cores or 1, "{nodes}": requested.nodes or 1}
    return tuple(_filled(argument, values) for argument in argv)


def check_gpus(requested: Resources, gpus: Gpus | None, container: Container, site: str) -> None:
    """Raise `RefusedError` for GPUs that the site lacks or cannot make visible in its containers."""
    if requested.gpus is None:
        return
    if gpus is None:
        raise RefusedError(
            "no-gpus",
            f"the job requests {counted(requested.gpus, 'GPU')} per node, but the site has none",
            subject=site,
            hint=f"Choose another site, or configure its GPUs: per_node in [sites.{site}.gpus]. --gpus 0 requests none.",
        )
    if requested.gpus > gpus.per_node:
        raise RefusedError(
            "too-many-gpus",
            f"the job requests {counted(requested.gpus, 'GPU')} per node, but a node of the site has {gpus.per_node}",
            subject=site,
            hint="Request fewer with --gpus N, and more nodes with --nodes.",
        )
    if gpus.kind not in container.gpus:
        raise RefusedError(
            "gpus-not-shown",
            f"{container.name} cannot make {gpus.kind} GPUs visible in its containers",
            subject=site,
            hint="Run it at a site with another [container], or request no GPUs: --gpus 0",
        )


def show_value(name: str, value: Any) -> str:
    """Format a value of `to_fields`, memory and time with their units."""
    if name == "time":
        minutes, seconds = divmod(int(value), 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        return (
            f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
            if days
            else f"{hours:02}:{minutes:02}:{seconds:02}"
        )
    if name == "memory":
        megabytes = int(value) // _MIB
        return f"{megabytes // 1024}G" if megabytes % 1024 == 0 else f"{megabytes}M"
    return str(value)


def _suggested_resources(suggested: Suggested) -> Resources:
    memory = suggested.ram_gigabytes
    return Resources(
        cores=_whole(suggested.cpu_cores, "cpu-cores"),
        memory_megabytes=_whole(memory * 1024 if memory else None, "ram"),
        seconds=_whole(suggested.walltime_seconds, "walltime-estimate"),
        nodes=_whole(suggested.nodes, "nodes"),
        tasks=_whole(suggested.tasks, "tasks"),
        gpus=_whole(suggested.gpus, "gpus"),
    )


def _site_resources(settings: SchedulerSettings) -> Resources:
    try:
        seconds = None if settings.time is None else read_job_time(settings.time)
    except ValueError as problem:
        raise UsageError("bad-time", str(problem), subject="time") from None
    return Resources(
        cores=settings.cores,
        memory_megabytes=None if settings.memory is None else settings.memory // _MIB,
        seconds=seconds,
        nodes=settings.nodes,
        tasks=settings.tasks,
        gpus=settings.gpus,
        account=settings.account,
        partition=settings.partition,
        reservation=settings.reservation,
    )


def _whole(value: float | None, field_name: str) -> int | None:
    """Return a JSON number as a count (the schema accepts `2.0`, without a limit); None if unset."""
    if not value:
        return None
    if not 0 < value <= _MOST:
        raise UsageError(
            "bad-resources",
            f"the descriptor suggests a {field_name} of {printable(str(value)[:40])}",
            subject=field_name,
            hint="Correct `suggested-resources` in the descriptor.",
        )
    return math.ceil(value)


def _filled(argument: str, values: Mapping[str, int]) -> str:
    for key, value in values.items():
        argument = argument.replace(key, str(value))
    return argument
