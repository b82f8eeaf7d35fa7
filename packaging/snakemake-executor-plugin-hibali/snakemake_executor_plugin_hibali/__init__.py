"""Run the jobs of a Snakemake workflow at a site of hibali: without a shared filesystem, and each exactly once."""

# no `from __future__ import annotations`: Snakemake makes options of the types of the settings

import asyncio
import json
import shlex
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

import hibali
from hibali.events import Event, Noted
from hibali.retry import growing_intervals
from runs.status import find_failure
from snakemake_executor_plugin_hibali.requests import Requests, Values, identify, job_options, pack

_PIPELINE = Path(__file__).with_name("snakemake-job.json")
_JOB_CONFIG = ".hibali-job.toml"
_AT_ONCE = 4  # submissions: more would only wait for the same connection
_LOST_SECONDS = 60.0  # a shared filesystem may show the end of a job so much later
_FEW_INPUTS = 20
_LOG_CHARACTERS = 2000


@contextmanager
def explained() -> Iterator[None]:
    """Raise hibali's errors as Snakemake prints them, with what to do next."""
    try:
        yield
    except hibali.HibaliError as problem:
        raise WorkflowError(str(problem)) from problem


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """The options --hibali-*."""

    site: str = field(
        default="",
        metadata={"help": "The site of hibali's config.toml at which jobs run.", "required": True},
    )
    python: str = field(
        default="python3",
        metadata={
            "help": "The Python at the site that has Snakemake and its storage plugin, as a name or an absolute path."
        },
    )
    config: str = field(
        default="",
        metadata={
            "help": "A config.toml at the site for the jobs, as an absolute path there. By default they know only "
            "the site itself."
        },
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=True,
    job_deploy_sources=True,
    can_transfer_local_files=True,  # the sources: an input of each run, stored once
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
)


@dataclass(frozen=True, slots=True)
class _Task:
    """A job to submit: its identity, the command that starts it now, and its outputs in the storage."""

    job: JobExecutorInterface
    identity: str
    command: str
    options: dict[str, Any]
    forced: bool


@dataclass
class _Versions:
    """The times and sizes of inputs, as a cache that inventories of a storage fill."""

    exists_local: dict[str, bool] = field(default_factory=dict)
    exists_in_storage: dict[str, bool] = field(default_factory=dict)
    mtime: dict[str, Any] = field(default_factory=dict)
    size: dict[str, int] = field(default_factory=dict)
    checksum: dict[str, str | None] = field(default_factory=dict)


class Executor(RemoteExecutor):
    """Submit jobs as runs of hibali, and query all of them together."""

    def __post_init__(self) -> None:
        """See RealExecutor: check everything that does not depend on a job."""
        settings: ExecutorSettings = self.workflow.executor_settings
        self._site, self._python = str(settings.site), settings.python
        self._config = settings.config
        if self.workflow.storage_registry.default_storage_provider is None:
            raise WorkflowError(
                "Jobs at a site need a storage that they reach, too: add --default-storage-provider hibali "
                f"--default-storage-prefix hibali://{self._site}/FOLDER"
            )
        if self.envvars():
            raise WorkflowError(
                f"The environment variables {', '.join(sorted(self.envvars()))} cannot be passed to jobs, because hibali "
                "records their commands. Set them at the site, in the prologue of its scheduler."
            )
        with explained():
            self._pipeline = hibali.pipelines.add(_PIPELINE)
            self._requests = Requests(Path(".snakemake", "hibali").absolute())
            self._sources = self._requests.store_sources(
                pack(self.dag.get_sources(), {_JOB_CONFIG: self._job_config()})
            )
            limits = hibali.sites.get(self._site).limits
        self._intervals = growing_intervals(
            self.workflow.remote_execution_settings.seconds_between_status_checks, limits.poll_seconds
        )
        self._submitted: dict[str, hibali.Run] = {}
        self._ended: dict[str, hibali.Run] = {}
        self._lost_since: dict[str, float] = {}
        self._warned = ""

    def _job_config(self) -> bytes:
        """Return the config.toml of jobs, in which the site is the filesystem that they see."""
        site = hibali.sites.get(self._site)
        table: dict[str, Any] = {
            "kind": "local",
            "read_only": list(site.read_only),
            "roots": dict(site.roots),
        }
        if site.default_root is not None:
            table["default_root"] = site.default_root
        return tomlkit.dumps({"version": 1, "sites": {self._site: table}}).encode()

    # ---- the command of a job

    def get_python_executable(self) -> str:
        """See RealExecutor."""
        return shlex.quote(self._python)

    def get_job_exec_prefix(self, job: JobExecutorInterface) -> str:
        """Return what comes before a job's command: it has a config.toml, and a ledger of its own."""
        del job
        config = shlex.quote(self._config) if self._config else f'"$PWD/{_JOB_CONFIG}"'
        return f'export HIBALI_CONFIG={config} HIBALI_STATE="$PWD/.hibali-state"'

    # ---- submitting

    def run_job(self, job: JobExecutorInterface) -> None:
        """See AbstractExecutor."""
        self.run_jobs([job])

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit jobs over a few connections at a time."""
        tasks = []
        for job in jobs:
            self.run_job_pre(job)
        for job, versions in zip(jobs, self._input_versions(jobs), strict=True):
            tasks.append(self._task(job, versions))
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="submit") as pool:
            submitted: dict[Future[hibali.Run], _Task] = {
                pool.submit(self._submit, each): each for each in tasks
            }
            try:
                for each in as_completed(submitted):
                    self._report_submission(submitted[each], each)
            except BaseException:  # an interrupt: submit no more; what is submitted is cancelled
                pool.shutdown(cancel_futures=True)
                raise

    def _report_submission(self, task: _Task, submitted: Future[hibali.Run]) -> None:
        try:
            run = submitted.result()
        except hibali.HibaliError as problem:
            self.report_job_error(SubmittedJobInfo(task.job), msg=f"{problem}\n")
            return
        aux = {"run": run, "identity": task.identity}
        self.report_job_submission(SubmittedJobInfo(task.job, external_jobid=run.id, aux=aux))

    def _task(self, job: JobExecutorInterface, versions: list[Any]) -> _Task:
        dag, settings = self.workflow.dag_settings, self.workflow.config_settings
        identity = identify(
            json.loads(job.properties()),
            self._site,
            self._sources.name,
            dict(settings.overwrite_config),
            versions,
        )
        forced = bool(dag.forceall or dag.forcerun or dag.forcetargets)
        return _Task(
            job,
            identity,
            self.format_job_exec(job),
            job_options(job.threads, dict(job.resources.items())),
            forced,
        )

    def _submit(self, task: _Task) -> hibali.Run:
        """Return the run of a job, which an interrupt cancels from now on."""
        run = self._submitted[task.identity] = self._find_or_start(task)
        return run

    def _find_or_start(self, task: _Task) -> hibali.Run:
        """Return the run that an earlier call of Snakemake started and did not report, or a new one."""
        values = None if task.identity in self._ended else self._requests.find(task.identity)
        if values is not None:
            run = self._start(task, values)
            if (
                run.state == "LOST"
                or not run.state.ended
                or (run.state == "SUCCEEDED" and self._counts(task))
            ):
                return run
        values = {"sources": str(self._sources), "command": task.command}
        self._ended.pop(task.identity, None)
        return self._start(task, self._requests.write(task.identity, values), new=True)

    def _start(self, task: _Task, values: Values, *, new: bool = False) -> hibali.Run:
        rule = "group" if task.job.is_group() else task.job.name
        name = f"{rule[:40]}-{task.identity[:16]}"  # a part of the key by which hibali finds the run
        return hibali.runs.run_own(
            self._pipeline, values, site=self._site, name=name, new=new, **task.options
        )

    def _counts(self, task: _Task) -> bool:
        """Return whether an earlier success counts: no rerun is forced, and its outputs still exist."""
        outputs = [each.storage_object for each in task.job.output if each.is_storage]
        return not task.forced and all(each.exists() for each in outputs)

    def _input_versions(self, jobs: Iterable[JobExecutorInterface]) -> list[list[Any]]:
        """Return path, time and size of the inputs of each job, with few requests."""
        inputs = [[each.storage_object for each in job.input if each.is_storage] for job in jobs]
        known = _Versions()
        if sum(map(len, inputs)) > _FEW_INPUTS:
            self.workflow.async_run(_take_inventory([each for some in inputs for each in some], known))
        return [[_version(each, known) for each in some] for some in inputs]

    # ---- following

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncIterator[SubmittedJobInfo]:
        """See RemoteExecutor: one query for all jobs."""
        if not active_jobs:
            return
        async with self.status_rate_limiter:
            await asyncio.to_thread(self._refresh, [each.aux["run"] for each in active_jobs])
        for each in active_jobs:
            if self._has_ended(each.aux["run"]):
                self._intervals.restart()
                self._report_end(each)
            else:
                yield each
        self.next_seconds_between_status_checks = self._intervals.next_pause()

    def _refresh(self, runs: list[hibali.Run]) -> None:
        """Query the site; jobs stay as they are while it cannot be reached."""
        self._noted = ""
        try:
            hibali.runs.refresh(runs, on_event=self._note)
        except hibali.HibaliError as problem:
            self._noted = str(problem)
        if self._noted and self._noted != self._warned:
            self.logger.warning("%s; the jobs continue, and are queried again", self._noted)
        self._warned = self._noted

    def _note(self, event: Event) -> None:
        if isinstance(event, Noted):
            self._noted = event.message

    def _has_ended(self, run: hibali.Run) -> bool:
        if run.state != "LOST":
            self._lost_since.pop(run.id, None)
            return run.state.final
        return time.monotonic() - self._lost_since.setdefault(run.id, time.monotonic()) >= _LOST_SECONDS

    def _report_end(self, info: SubmittedJobInfo) -> None:
        run, identity = info.aux["run"], info.aux["identity"]
        self._submitted.pop(identity, None)
        if run.state == "SUCCEEDED":
            self._ended[identity] = run
            self.report_job_success(info)
            return
        problem = find_failure(run.record)
        message = str(problem) if problem is not None else f"{run.id} is {run.state}"
        if run.state.final:
            self._ended[identity] = run
        else:
            message += (
                f"\nTo run the job again although it may still run, remove {self._requests.path(identity)}"
            )
        with suppress(hibali.HibaliError):
            message += "\n" + run.logs("stderr")[-_LOG_CHARACTERS:]
        self.report_job_error(info, msg=f"{message}\n")

    # ---- ending

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """See RemoteExecutor: a cancelled job is another one when Snakemake is called again.

        Snakemake's own list lacks the jobs that it is asking about or submitting at this moment.
        """
        del active_jobs

        def cancel(submitted: tuple[str, hibali.Run]) -> None:
            identity, run = submitted
            try:
                run.cancel()
            except hibali.HibaliError as problem:
                self.logger.warning("%s", str(problem))
                return
            self._ended[identity] = run

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="cancel") as pool:
            list(pool.map(cancel, list(self._submitted.items())))

    def shutdown(self) -> None:
        """See RemoteExecutor. Only now Snakemake has recorded all ends, so that the runs need not be found again."""
        super().shutdown()
        for identity, run in self._ended.items():
            with suppress(hibali.HibaliError):
                run.wait(check=False)
            self._requests.forget(identity)


async def _take_inventory(objects: list[Any], known: _Versions) -> None:
    for each in objects:
        await each.inventory(known)


def _version(storage_object: Any, known: _Versions) -> tuple[str, float, int]:
    key = storage_object.cache_key() if known.mtime else ""
    if key in known.mtime and key in known.size:
        return storage_object.query, known.mtime[key].storage(), known.size[key]
    return storage_object.query, storage_object.mtime(), storage_object.size()
