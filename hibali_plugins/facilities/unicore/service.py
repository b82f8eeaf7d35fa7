"""Run job scripts as jobs of UNICORE.

A job has the mark of its run as a tag, which the server keeps and selects by. Sources: UNICORE-EU/unicorex (rest/Jobs.java) and the
documentation of its job descriptions.
"""

from __future__ import annotations

import re
from typing import Any

from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali.text import printable
from hibali_plugins.facilities.script_jobs import (
    Script,
    ScriptJobs,
    ServiceMachine,
    ServiceScheduler,
    bad_directive,
    plain_script_path,
    script_of,
)
from hibali_plugins.facilities.unicore.client import JobRecord, UnicoreClient
from hibali_plugins.facilities.unicore.files import UnicoreFiles
from hibali_plugins.facilities.unicore.kind import FACILITY
from runs.schedulers.base import JobVariables, Phase, Resources, Status
from runs.services.base import ServiceFacts, ServiceJob

_PREFIX = "#UNICORE "
_RESOURCE = re.compile(r"([A-Za-z][A-Za-z0-9]{0,63})=([^\s\"'`$;&|<>()\\]{1,200})")
_WAITING = frozenset({"READY", "STAGINGIN", "QUEUED"})
_RUNNING = frozenset({"RUNNING", "STAGINGOUT"})


class UnicoreJobs(ScriptJobs):
    """The jobs of one account."""

    name = "unicore"
    facts = ServiceFacts(holds=True, settling_seconds=60.0)
    _client: UnicoreClient

    def __init__(self, files: UnicoreFiles) -> None:
        self._client = files.client
        self._files = files

    def find(self, mark: str, since: str) -> str | None:
        """See JobService."""
        del since
        found = next(iter(self._client.tagged_jobs(mark)), None)
        return found.id if found is not None else None

    def _submit(self, job: ServiceJob) -> str:
        return self._client.submit(
            _description(job.mark, script_of(job, self._files.read_small, self._files.subject))
        )

    def _status(self, job: str) -> Status | None:
        record = self._client.job(job)
        return None if record is None else _status_of(record)

    def cancel(self, job: str) -> None:
        """See JobService."""
        self._client.control(job, "abort")

    def start(self, job: str) -> None:
        """See JobService."""
        self._client.control(job, "start")


def _description(mark: str, script: Script) -> dict[str, Any]:
    """Return the description of the job of a script. Raise `UsageError` for a path that a shell would not read as it is."""
    path = plain_script_path(script.path.decode("utf-8", "surrogateescape"), "UNICORE")
    resources = dict(_resource(line) for line in script.lines(_PREFIX))
    return {
        "Name": mark,
        "Tags": [mark],
        "Executable": "/bin/sh",
        "Arguments": [path],
        "Environment": {"HIBALI_FOLDER": path.rpartition("/")[0]},
        "Resources": resources,
        "haveClientStageIn": "true" if script.hold else "false",
    }


def _resource(line: str) -> tuple[str, str]:
    """Return a resource and its value. Raise `UsageError`."""
    found = _RESOURCE.fullmatch(line)
    if found is None:
        raise bad_directive(line, "UNICORE", "NodeConstraints=gpu")
    return found[1], found[2]


def _status_of(record: JobRecord) -> Status:
    """Return the status of a job; an unknown state is no end."""
    native = printable(record.status)[:100]
    if record.status in _WAITING:
        return Status(Phase.WAITING, native)
    if record.status == "SUCCESSFUL":
        return Status(Phase.ENDED, native)
    if record.status == "FAILED":
        if "abort" in record.message.lower():
            return Status(Phase.CANCELLED, native, record.message)
        if record.exit_code:
            return Status(Phase.ENDED, native)
        return Status(Phase.KILLED, f"{native}: {record.message}" if record.message else native)
    reason = "" if record.status in _RUNNING else "hibali does not know this state of UNICORE"
    return Status(Phase.RUNNING, native, reason)


class UnicoreScheduler(ServiceScheduler):
    """UNICORE as what runs job scripts; resources are named as in its job descriptions."""

    name = "unicore"
    holds = True
    # those of the batch systems behind it, whose prefixes a pipeline cannot set
    variables = JobVariables(
        job=("SLURM_JOB_ID", "PBS_JOBID", "OAR_JOB_ID"),
        folder=("HIBALI_FOLDER",),
        cores=("SLURM_CPUS_ON_NODE",),
        prefixes=("SLURM_", "SBATCH_", "PBS_", "OAR_", "UC_", "UNICORE_"),
    )

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """See BatchSystem."""
        nodes = resources.nodes or 1
        tasks = -(-(resources.tasks or 1) // nodes)
        cores = None if resources.cores is None and tasks == 1 else (resources.cores or 1) * tasks
        memory = f"{resources.memory_megabytes}M" if resources.memory_megabytes else None
        values = {
            "Nodes": resources.nodes,
            "CPUsPerNode": cores,
            "Memory": memory,
            "Runtime": resources.seconds,
            "GPUsPerNode": resources.gpus or None,
            "Project": resources.account,
            "Queue": resources.partition,
            "Reservation": resources.reservation,
        }
        lines = [f"{name}={value}" for name, value in values.items() if value is not None]
        for line in (*lines, *resources.directives):
            _resource(line)
        return tuple(f"{_PREFIX}{line}" for line in (*lines, *resources.directives))


SYSTEM = UnicoreScheduler()


def open_host(site: Site, on_event: Listener = ignore) -> ServiceMachine:
    """Connect to the server of a site."""
    files = FACILITY.open_files(site, on_event)
    return ServiceMachine(files, UnicoreJobs(files), site.name)
