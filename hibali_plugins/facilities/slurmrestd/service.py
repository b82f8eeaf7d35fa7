"""Run job scripts through slurmrestd, at a site whose files are reached as at a site with Slurm's commands.

The mark of a job is its name. slurmctld lists all jobs until some minutes after their end (MinJobAge); after that the accounting has
them, and the folder of a run tells which job started it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from hibali.config.model import Site
from hibali.errors import HibaliError, UsageError
from hibali.events import Listener, ignore
from hibali.http.rest import REQUESTS
from hibali.request_limits import request_limit
from hibali_plugins.facilities.script_jobs import ScriptJobs, script_of
from hibali_plugins.facilities.slurmrestd.client import SlurmrestdClient
from hibali_plugins.facilities.slurmrestd.records import (
    Record,
    accounted_status,
    job_of,
    number_of,
    queued_status,
    task_statuses,
    within,
)
from hibali_plugins.facilities.slurmrestd.settings import SlurmrestdSettings
from hibali_plugins.facilities.slurmrestd.submission import describe
from runs.rate_limits import counted
from runs.schedulers.base import BatchSystem, Job, JobStates, Resources, Status
from runs.schedulers.slurm import SCHEDULER, day_before, log_path
from runs.services.base import ServiceFacts, ServiceJob, ServiceSystem, refusal, service_of
from runs.submit import find_job
from transfers.remote.host import RemoteHost
from transfers.remote.lending import lending
from transfers.stores.open_store import open_host as open_machine

_PATH = "/usr/local/bin:/usr/bin:/bin"  # of the job script, which starts a login shell


class SlurmrestdJobs(ScriptJobs):
    """The jobs of one account at one cluster."""

    name = "slurmrestd"
    facts = ServiceFacts(holds=True, settling_seconds=180.0)  # as of sbatch
    _client: SlurmrestdClient

    def __init__(self, client: SlurmrestdClient, host: RemoteHost, user: str | None) -> None:
        """`host` has the files of the runs; jobs of another account than `user` are not ours."""
        self._client = client
        self._host = host
        self._user = user

    def find(self, mark: str, since: str) -> str | None:
        """See JobService."""
        for record in self._client.jobs():
            if self._is_own(record, mark, record.get("user_name")):
                return job_of(record)
        query = {"job_name": mark, "start_time": day_before(since)}
        for record in self._client.accounted("/jobs", query) or ():
            if self._is_own(record, mark, record.get("user")):
                return job_of(record)
        return None

    def _is_own(self, record: Record, mark: str, user: Any) -> bool:
        return record.get("name") == mark and user in {self._user or self._client.owner or user, None}

    def _submit(self, job: ServiceJob) -> str:
        script = script_of(
            job, lambda path, most: self._host.get(path, maximum=most) or None, self._client.subject
        )
        started = find_job(self._host, script.folder)  # slurmctld and the accounting may have forgotten it
        if started is not None:
            return started
        try:
            folder, text = script.folder.decode(), script.content.decode()
        except UnicodeDecodeError:
            raise refusal(self.name, "start a job script that is not UTF-8", job.mark) from None
        fields = {
            **{key: value for key, value in job.content.items() if key != "script"},
            "name": job.mark,
            "current_working_directory": folder,
            "standard_output": log_path(folder),
        }
        facts = self._host.facts()
        environment = {"PATH": _PATH, "HOME": facts["home"], "USER": facts["user"], "LOGNAME": facts["user"]}
        described = describe(script.lines("#SBATCH "), fields, environment, self._client.version)
        return self._client.submit(described, text)

    def _status(self, job: str) -> Status | None:
        return next(map(queued_status, self._client.job(job)), None)

    def tasks(self, job: str) -> Mapping[int, Status]:
        """Return the status of each task of an array that slurmctld knows."""
        return task_statuses(self._client.job(job))

    def account(self, jobs: Sequence[str], seconds: float) -> Mapping[str, Status] | None:
        """See JobSystem."""
        found = {}
        for job in jobs:
            try:
                records = self._client.accounted(f"/job/{job}", {}, seconds=seconds, attempts=1)
            except HibaliError:  # it only adds details
                records = None
            if records is None:
                return None
            for record in records:
                task = number_of(within(record, "array", "task_id"))
                name = job_of(record) if task is None else f"{job_of(record)}_{task}"
                found[name] = accounted_status(record)
        return found

    def cancel(self, job: str) -> None:
        """See JobService."""
        self._client.cancel(job)

    def start(self, job: str) -> None:
        """See JobService."""
        self._client.release(job)


class SlurmrestdScheduler(ServiceSystem, BatchSystem):
    """slurmrestd in the place of Slurm's commands."""

    name = "slurmrestd"
    names_itself = True
    settings = SlurmrestdSettings
    launcher = SCHEDULER.launcher
    blocking = SCHEDULER.blocking
    variables = SCHEDULER.variables

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """See BatchSystem."""
        return SCHEDULER.directives(resources)

    def warning_directives(self, seconds: int) -> tuple[str, ...]:
        """See BatchSystem."""
        return SCHEDULER.warning_directives(seconds)

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """Return the content of a `ServiceJob` as JSON: the script, and fields of the job."""
        content: dict[str, Any] = {"script": job.script}
        if job.comment:
            content["comment"] = job.comment
        if job.tasks:
            content["array"] = f"1-{job.tasks:d}"
        if job.after:
            content["dependency"] = f"afterok:{':'.join(job.after)}"
        if job.hold:
            content["hold"] = True
        return (json.dumps(content, sort_keys=True),)

    def task_job(self, job: str, index: int) -> str:
        """See JobSystem."""
        return SCHEDULER.task_job(job, index)

    def query(self, host: RemoteHost, jobs: Sequence[str], arrays: Sequence[str]) -> JobStates:
        """See JobSystem."""
        service = _jobs_of(host)
        return JobStates(service.states(jobs), {job: service.tasks(job) for job in arrays})

    def has_accounting(self, jobs: Sequence[str], since: str) -> bool:
        """See JobSystem."""
        del since
        return bool(jobs)

    def account(
        self, host: RemoteHost, jobs: Sequence[str], since: str, *, timeout: float = 60.0
    ) -> Mapping[str, Status] | None:
        """See JobSystem."""
        del since
        return _jobs_of(host).account(jobs, timeout)


def _jobs_of(host: RemoteHost) -> SlurmrestdJobs:
    return cast("SlurmrestdJobs", service_of(host))


class SlurmrestdHost:
    """The machine with the files of a site, and slurmrestd, which runs its jobs (transfers.remote.host.RemoteHost)."""

    def __init__(self, host: RemoteHost, service: SlurmrestdJobs) -> None:
        self.service = service
        self._host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def lending(self) -> AbstractContextManager[None]:
        """Lend the session of the machine."""
        return lending(self._host)

    def close(self) -> None:
        """See RemoteHost."""
        self.service.close()
        self._host.close()


SYSTEM = SlurmrestdScheduler()


def service_at(site: Site, host: RemoteHost, on_event: Listener = ignore) -> SlurmrestdJobs:
    """Return the jobs of a site; connects to slurmrestd at its first request."""
    settings = site.scheduler.own if site.scheduler is not None else None
    if not isinstance(settings, SlurmrestdSettings):
        raise UsageError(
            "usage",
            "the site's scheduler slurmrestd needs a url and a source of tokens",
            subject=site.name,
            hint=f"To set it: hibali config set sites.{site.name}.scheduler.url https://HOST:6820",
        )
    client = SlurmrestdClient(settings, site.name, request_limit(site, requests=REQUESTS), on_event)
    return SlurmrestdJobs(client, host, settings.user)


def open_host(site: Site, on_event: Listener = ignore) -> SlurmrestdHost:
    """Connect to the machine of a site, and to slurmrestd at its first request."""
    host = counted(open_machine(site, on_event=on_event), site.name)
    return SlurmrestdHost(host, service_at(site, host, on_event))
