"""Run job scripts as jobs of FirecREST.

The mark of a job is its name. The list of jobs cannot be searched for a name in all versions, and may lack jobs
(eth-cscs/firecrest-v2#177): a job that is not listed is not gone. Source: eth-cscs/firecrest-v2 (compute, lib/scheduler_clients).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hibali.config.model import Site
from hibali.config.schema import choice, setting, table
from hibali.errors import UsageError
from hibali.events import Listener, ignore
from hibali.text import printable
from hibali_plugins.facilities.firecrest.client import FirecrestClient, JobRecord
from hibali_plugins.facilities.firecrest.files import FirecrestFiles
from hibali_plugins.facilities.firecrest.kind import FACILITY
from hibali_plugins.facilities.script_jobs import (
    ScriptJobs,
    ServiceMachine,
    ServiceScheduler,
    plain_script_path,
    script_of,
)
from runs.schedulers.base import Phase, Resources, Status, load_scheduler
from runs.schedulers.slurm import SCHEDULER, VARIABLES, explain_state, phase_of
from runs.services.base import ServiceFacts, ServiceJob, refusal
from transfers.remote.host import CommandResult

_Type = Literal["slurm", "pbs"]


@table
class FirecrestJobSettings:
    """The keys of [scheduler] for FirecREST alone."""

    type: _Type = setting(choice(_Type), default="slurm", doc="the scheduler of the system")


class FirecrestJobs(ScriptJobs):
    """The jobs of one account at one system."""

    name = "firecrest"
    facts = ServiceFacts(settling_seconds=60.0)
    _client: FirecrestClient

    def __init__(self, files: FirecrestFiles, scheduler: str) -> None:
        """`scheduler` is the type in the settings of the site."""
        self._client = files.client
        self._files = files
        self._scheduler = scheduler

    def find(self, mark: str, since: str) -> str | None:
        """See JobService."""
        del since
        return next((each.id for each in self._client.jobs() if each.name == mark), None)

    def _submit(self, job: ServiceJob) -> str:
        self._check_scheduler()
        path = plain_script_path(str(job.content["script"]), "FirecREST")
        folder = path.rpartition("/")[0]
        description = {
            "name": job.mark,
            "workingDirectory": folder,
            "standardOutput": f"{folder}/scheduler.log",
            "standardError": f"{folder}/scheduler.log",
            "scriptPath": path,
        }
        if self._scheduler == "pbs":  # qsub reads no comment lines of a script that it gets by its path
            del description["scriptPath"]
            description["script"] = self._text_of(job)
        return self._client.submit(description)

    def _text_of(self, job: ServiceJob) -> str:
        try:
            return script_of(job, self._files.read_small, self._client.subject).content.decode()
        except UnicodeDecodeError:
            raise refusal(self.name, "start a job script that is not UTF-8", job.mark) from None

    def _check_scheduler(self) -> None:
        announced = self._client.scheduler()
        if announced != self._scheduler:
            raise UsageError(
                "wrong-scheduler",
                f"the scheduler of the system is {printable(announced)[:50]}, not {self._scheduler}",
                subject=self._client.subject,
                hint=f"To set it: hibali config set sites.{self._client.subject}.scheduler.type {announced}"
                if announced in {"slurm", "pbs"}
                else "",
            )

    def _status(self, job: str) -> Status | None:
        record = self._client.job(job)
        if record is None:
            return None
        return _pbs_status(record) if self._scheduler == "pbs" else _status_of(record.state)

    def cancel(self, job: str) -> None:
        """See JobService."""
        self._client.cancel(job)


def _pbs_status(record: JobRecord) -> Status:
    """Return the status of a job of PBS, as `qstat -f` writes its state and exit status; 271 is SIGTERM, by which qdel ends it (substate 91)."""
    lines = f"Job Id: {record.id}\n    job_state = {record.state[:1]}\n    Exit_status = {record.exit_code or 0}\n"
    if record.exit_code == 271:
        lines += "    substate = 91\n"
    found = load_scheduler("pbs").read_status(CommandResult(0, lines.encode(), b""), [record.id])
    return found[record.id]


def _status_of(state: str) -> Status:
    """Return the status of a job; an unknown state is no end. Slurm writes CANCELLED by UID."""
    native = printable(state)[:100]
    phase = phase_of(state.partition(" ")[0])
    if phase is None:
        return Status(Phase.RUNNING, native, "hibali does not know this state of FirecREST")
    return Status(phase, native, explain_state(native))


class FirecrestScheduler(ServiceScheduler):
    """FirecREST as what runs job scripts, before a Slurm or a PBS, which reads their comment lines."""

    name = "firecrest"
    settings = FirecrestJobSettings
    launcher = SCHEDULER.launcher
    variables = replace(  # it starts no arrays; those of PBS are not set in jobs of Slurm
        VARIABLES,
        job=(*VARIABLES.job, "PBS_JOBID"),
        array=(),
        index=(),
        folder=("PBS_O_WORKDIR",),
        cores=(*VARIABLES.cores, "NCPUS"),
        prefixes=(*VARIABLES.prefixes, "PBS_"),
    )

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """See BatchSystem."""
        own = resources.own
        if isinstance(own, FirecrestJobSettings) and own.type == "pbs":
            return load_scheduler("pbs").directives(replace(resources, own=None))
        return SCHEDULER.directives(replace(resources, own=None))


SYSTEM = FirecrestScheduler()


def open_host(site: Site, on_event: Listener = ignore) -> ServiceMachine:
    """Connect to the service of a site."""
    files = FACILITY.open_files(site, on_event)
    own = site.scheduler.own if site.scheduler is not None else None
    scheduler = own.type if isinstance(own, FirecrestJobSettings) else "slurm"
    return ServiceMachine(files, FirecrestJobs(files, scheduler), site.name)
