"""Run job scripts as jobs of the IRI Facility API.

The mark of a job is its name; a request that repeats the key made of it creates no second job, where the facility keeps keys. Job
specifications are those of PSI/J. Source: doe-iri/iri-facility-api-python (compute, idempotency).
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali.text import printable
from hibali_plugins.facilities.iri.client import IriClient, JobRecord
from hibali_plugins.facilities.iri.files import IriFiles
from hibali_plugins.facilities.iri.kind import FACILITY
from hibali_plugins.facilities.script_jobs import (
    Script,
    ScriptJobs,
    ServiceMachine,
    ServiceScheduler,
    bad_directive,
    plain_script_path,
    script_of,
)
from runs.schedulers.base import JobVariables, Phase, Resources, Status
from runs.services.base import ServiceFacts, ServiceJob

_PREFIX = "#IRI "
_SETTING = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,63})=([^\s\"'`$;&|<>()\\]{1,200})")
_RESOURCES = frozenset(
    {
        "node_count",
        "process_count",
        "processes_per_node",
        "cpu_cores_per_process",
        "gpu_cores_per_process",
        "memory",
    }
)
_TEXTS = frozenset({"queue_name", "account", "reservation_id"})  # attributes; others are the scheduler's own
_PHASES = {
    "new": Phase.WAITING,
    "queued": Phase.WAITING,
    "held": Phase.WAITING,
    "active": Phase.RUNNING,
    "completed": Phase.ENDED,
    "canceled": Phase.CANCELLED,
}
_KEYS = uuid.UUID("0d7cf5d6-5f0e-4c61-9a3f-3f2f1f0e7a55")  # the namespace of hibali's keys


class IriJobs(ScriptJobs):
    """The jobs of one account at one resource."""

    name = "iri"
    facts = ServiceFacts(settling_seconds=60.0)
    _client: IriClient

    def __init__(self, files: IriFiles) -> None:
        self._client = files.client
        self._files = files

    def find(self, mark: str, since: str) -> str | None:
        """See JobService."""
        del since
        return next((each.id for each in self._client.jobs() if each.name == mark), None)

    def _submit(self, job: ServiceJob) -> str:
        specification = _specification(job.mark, script_of(job, self._files.read_small, self._files.subject))
        return self._client.submit(specification, str(uuid.uuid5(_KEYS, job.mark)))

    def _status(self, job: str) -> Status | None:
        record = self._client.job(job)
        return None if record is None else _status_of(record)

    def cancel(self, job: str) -> None:
        """See JobService."""
        self._client.cancel(job)


def _specification(mark: str, script: Script) -> dict[str, Any]:
    """Return the specification of the job of a script. Raise `UsageError` for a path that a shell would not read as it is."""
    path = plain_script_path(script.path.decode("utf-8", "surrogateescape"), "a facility")
    folder = path.rpartition("/")[0]
    resources: dict[str, Any] = {"exclusive_node_use": False}
    attributes: dict[str, Any] = {}
    custom: dict[str, str] = {}
    for line in script.lines(_PREFIX):
        name, value = _setting(line)
        if name in _RESOURCES:
            resources[name] = int(value)
        elif name == "duration":
            attributes[name] = int(value)
        elif name in _TEXTS:
            attributes[name] = value
        else:
            custom[name] = value
    return {
        "executable": "/bin/sh",
        "arguments": [path],
        "directory": folder,
        "name": mark,
        "environment": {"HIBALI_FOLDER": folder},
        "stdout_path": f"{folder}/scheduler.log",
        "stderr_path": f"{folder}/scheduler.log",
        "resources": resources,
        "attributes": {**attributes, "custom_attributes": custom} if custom else attributes,
    }


def _setting(line: str) -> tuple[str, str]:
    """Return a resource or attribute and its value. Raise `UsageError`."""
    found = _SETTING.fullmatch(line)
    if found is None or (found[1] in _RESOURCES | {"duration"} and not found[2].isdigit()):
        raise bad_directive(line, "the IRI API", "constraint=gpu")
    return found[1], found[2]


def _status_of(record: JobRecord) -> Status:
    """Return the status of a job; an unknown state is no end."""
    native = printable(record.state)[:100]
    if record.state == "failed":
        if record.exit_code:
            return Status(Phase.ENDED, native)
        return Status(Phase.KILLED, f"{native}: {record.message}" if record.message else native)
    phase = _PHASES.get(record.state)
    if phase is None:
        return Status(Phase.RUNNING, native, "hibali does not know this state of the IRI API")
    return Status(phase, native)


class IriScheduler(ServiceScheduler):
    """A facility as what runs job scripts; resources are named as in job specifications."""

    name = "iri"
    # those of the batch systems behind it, whose prefixes a pipeline cannot set
    variables = JobVariables(
        job=("SLURM_JOB_ID", "PBS_JOBID"),
        folder=("HIBALI_FOLDER",),
        cores=("SLURM_CPUS_ON_NODE",),
        prefixes=("SLURM_", "SBATCH_", "SRUN_", "PBS_", "PSIJ_"),
    )

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """See BatchSystem. Memory is in bytes, for each node."""
        memory = resources.memory_megabytes
        values = {
            "node_count": resources.nodes,
            "process_count": resources.tasks,
            "cpu_cores_per_process": resources.cores,
            "gpu_cores_per_process": resources.gpus or None,
            "memory": memory * 1024 * 1024 if memory else None,
            "duration": resources.seconds,
            "queue_name": resources.partition,
            "account": resources.account,
            "reservation_id": resources.reservation,
        }
        lines = [f"{name}={value}" for name, value in values.items() if value is not None]
        for line in (*lines, *resources.directives):
            _setting(line)
        return tuple(f"{_PREFIX}{line}" for line in (*lines, *resources.directives))


SYSTEM = IriScheduler()


def open_host(site: Site, on_event: Listener = ignore) -> ServiceMachine:
    """Connect to the facility of a site."""
    files = FACILITY.open_files(site, on_event)
    return ServiceMachine(files, IriJobs(files), site.name)
