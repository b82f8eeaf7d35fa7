"""Run job scripts as jobs of FirecREST.

The mark of a job is its name. The list of jobs cannot be searched for a name in all versions, and may lack jobs
(eth-cscs/firecrest-v2#177): a job that is not listed is not gone. Source: eth-cscs/firecrest-v2 (compute, lib/scheduler_clients).
"""

from __future__ import annotations

from dataclasses import replace

from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali.text import printable
from hibali_plugins.facilities.firecrest.client import FirecrestClient
from hibali_plugins.facilities.firecrest.files import FirecrestFiles
from hibali_plugins.facilities.firecrest.kind import FACILITY
from hibali_plugins.facilities.script_jobs import (
    ScriptJobs,
    ServiceMachine,
    ServiceScheduler,
    plain_script_path,
)
from runs.schedulers.base import Phase, Resources, Status
from runs.schedulers.slurm import SCHEDULER, VARIABLES, phase_of
from runs.services.base import ServiceFacts, ServiceJob


class FirecrestJobs(ScriptJobs):
    """The jobs of one account at one system."""

    name = "firecrest"
    facts = ServiceFacts(settling_seconds=60.0)
    _client: FirecrestClient

    def __init__(self, files: FirecrestFiles) -> None:
        self._client = files.client

    def find(self, mark: str, since: str) -> str | None:
        """See JobService."""
        del since
        return next((each.id for each in self._client.jobs() if each.name == mark), None)

    def _submit(self, job: ServiceJob) -> str:
        path = plain_script_path(str(job.content["script"]), "FirecREST")
        folder = path.rpartition("/")[0]
        description = {
            "name": job.mark,
            "workingDirectory": folder,
            "standardOutput": f"{folder}/scheduler.log",
            "standardError": f"{folder}/scheduler.log",
            "scriptPath": path,
        }
        return self._client.submit(description)

    def _status(self, job: str) -> Status | None:
        record = self._client.job(job)
        return None if record is None else _status_of(record.state)

    def cancel(self, job: str) -> None:
        """See JobService."""
        self._client.cancel(job)


def _status_of(state: str) -> Status:
    """Return the status of a job; an unknown state is no end. Slurm writes CANCELLED by UID."""
    native = printable(state)[:100]
    phase = phase_of(state.partition(" ")[0])
    if phase is None:
        return Status(Phase.RUNNING, native, "hibali does not know this state of FirecREST")
    return Status(phase, native)


class FirecrestScheduler(ServiceScheduler):
    """FirecREST as what runs job scripts, before a Slurm, which reads their comment lines."""

    name = "firecrest"
    launcher = SCHEDULER.launcher
    variables = replace(VARIABLES, array=(), index=())  # it starts no arrays

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """See BatchSystem."""
        return SCHEDULER.directives(resources)


SYSTEM = FirecrestScheduler()


def open_host(site: Site, on_event: Listener = ignore) -> ServiceMachine:
    """Connect to the service of a site."""
    files = FACILITY.open_files(site, on_event)
    return ServiceMachine(files, FirecrestJobs(files), site.name)
