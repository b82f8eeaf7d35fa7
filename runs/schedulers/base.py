"""Define a scheduler: its commands as argument lists, and how to parse their output."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from hibali.amounts import format_size
from hibali.config.model import Gpus
from hibali.errors import HibaliError, TryLaterError, UsageError
from hibali.plugins import load
from hibali.text import one_line
from transfers.remote.host import CommandResult, RemoteHost

JOB_ID = re.compile(r"[A-Za-z0-9][][A-Za-z0-9._:+-]{0,127}")  # PBS writes arrays as 12[].server


class Phase(StrEnum):
    """The phase of a job as its scheduler reports it, before its exit record is read.

    ENDED means only that the job is over; UNKNOWN that the scheduler no longer has it; BROKEN that the machine
    failed; ELSEWHERE that the queried host cannot see it.
    """

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    CANCELLED = "cancelled"
    KILLED = "killed"
    BROKEN = "broken"
    UNKNOWN = "gone"
    ELSEWHERE = "elsewhere"

    @property
    def queued(self) -> bool:
        """Whether the job has not ended, so that polling continues."""
        return self in {Phase.WAITING, Phase.RUNNING, Phase.ELSEWHERE}


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a job: the phase, the scheduler's own state, and its reason if it gave one.

    `cpu_seconds` of all its processes and the peak of `memory_bytes` are set if accounting knows them.
    """

    phase: Phase
    native: str
    reason: str = ""
    cpu_seconds: float | None = None
    memory_bytes: int | None = None


UNKNOWN = Status(Phase.UNKNOWN, "")
TIME_LIMIT = "time limit reached"  # the reason of a job that the scheduler killed for that


def memory_reason(used: int | None, requested: int | None) -> str:
    """Return the reason of a job that was killed for its memory, with the bytes that are known."""
    amounts = ("used", used), ("requested", requested)
    known = ", ".join(f"{word} {format_size(amount)}" for word, amount in amounts if amount)
    return f"out of memory: {known}" if known else "out of memory"


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that a job requests; None leaves a value to the scheduler. `directives` are the site's
    own.

    `tasks` are processes that an MPI launcher starts, `cores` those of each; memory and `gpus` are those of a
    node, of which it has `site_gpus`. `own` has the settings that only this scheduler has (`Scheduler.settings`).
    """

    cores: int | None = None
    memory_megabytes: int | None = None
    seconds: int | None = None
    nodes: int | None = None
    tasks: int | None = None
    gpus: int | None = None
    account: str | None = None
    partition: str | None = None
    reservation: str | None = None
    directives: tuple[str, ...] = field(default=())
    own: Any = None
    site_gpus: Gpus | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job to submit: a script by its absolute path, its folder, and a name that only this job has.

    `tasks` is the number of tasks of a job array, numbered from 1; 0 for a job that is no array. `after` are
    the ids of jobs that must succeed first; a `hold` delays the job until it is released. The `comment` is
    stored with the job if the scheduler supports that.
    """

    name: str
    script: str
    tasks: int = 0
    after: tuple[str, ...] = ()
    hold: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The scheduler accepted the job and gave it this id."""

    job: str


@dataclass(frozen=True, slots=True)
class NotSubmitted:
    """The scheduler did not accept the job; `error` has the reason, and whether a later retry may help."""

    error: HibaliError


@dataclass(frozen=True, slots=True)
class Unclear:
    """The reply does not show whether the job was accepted: look it up, do not submit again."""

    reason: str


SubmitResult = Submitted | NotSubmitted | Unclear


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[A-Za-z0-9_-]+\]\*)?")


@dataclass(frozen=True, slots=True)
class JobVariables:
    """The environment variables that identify a job; of several names, the first one that is set counts.

    Attributes:
        job: The id of the job, as the scheduler's commands take it.
        array: The id of the job array that the job is a task of.
        index: The number of this task, from 1.
        folder: The folder of the submission, if jobs may start in another one.
        cores: The number of cores that the job may use on this node.
        prefixes: Prefixes of its variables; a pipeline cannot set these.
        launched: Basic regular expressions of the variables in which its launcher passes a task its number.
    """

    job: tuple[str, ...] = ()
    array: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    folder: tuple[str, ...] = ()
    cores: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    launched: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse names that could be more than a name in a job script (S9)."""
        for name in (*self.job, *self.array, *self.index, *self.folder, *self.cores, *self.prefixes):
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a variable")
        for pattern in self.launched:
            if not _VARIABLES.fullmatch(pattern):
                raise ValueError(f"{pattern!r} is not a pattern for names of variables")


@dataclass(frozen=True, slots=True)
class JobStates:
    """The answer to one query: the statuses of single jobs, and of the tasks of job arrays that are still known."""

    jobs: Mapping[str, Status]
    tasks: Mapping[str, Mapping[int, Status]]


class JobSystem(ABC):
    """What runs the jobs of a site: a scheduler that is reached by commands (`Scheduler`), or a service (`runs.services`).

    All methods with a host raise `TryLaterError` when there is no answer.

    Attributes:
        name: Its name, as runs record it.
        blocking: Matches reasons for which a job may wait for ever, None if it gives none.
    """

    name: ClassVar[str]
    blocking: ClassVar[re.Pattern[str] | None] = None

    @abstractmethod
    def query(self, host: RemoteHost, jobs: Sequence[str], arrays: Sequence[str]) -> JobStates:
        """Query all these jobs and job arrays at once; `UNKNOWN` for a job that it no longer has."""

    @abstractmethod
    def find(self, host: RemoteHost, name: str, since: str) -> str | None:
        """Search for a job of this account by its unique name, among jobs since `YYYY-MM-DD`."""

    @abstractmethod
    def has_accounting(self, jobs: Sequence[str], since: str) -> bool:
        """Return whether `account` can know these jobs."""

    @abstractmethod
    def account(
        self, host: RemoteHost, jobs: Sequence[str], since: str, *, timeout: float = 60.0
    ) -> Mapping[str, Status] | None:
        """Return the statuses of jobs that may have ended, by id; None if accounting is off or does not answer."""

    @abstractmethod
    def cancel(self, host: RemoteHost, job: str) -> None:
        """End a job, or all tasks of an array; ended jobs are no failure. Raises `TryLaterError` with the reason of a refusal."""

    @abstractmethod
    def release(self, host: RemoteHost, job: str) -> None:
        """Release a job that was submitted on hold. Raises `TryLaterError` with the reason of a refusal."""

    def task_names(self, job: str, index: int) -> tuple[str, ...]:
        """Return the names that `account` may use for a task of a job array."""
        return (f"{job}_{index}",)

    def task_job(self, job: str, index: int) -> str | None:
        """Return the value of `Job.after` for a task of a job array.

        The id of the array if a job can only wait for all tasks; None if a job cannot wait for an array.
        """
        del job, index
        return None


class BatchSystem(JobSystem):
    """What runs job scripts: a scheduler, or a service at a machine with one (`runs.services.base.ServiceScheduler`).

    Attributes:
        settings: Its own keys of [scheduler], a class made by `hibali.config.schema.table`; `Resources.own` is an object of it, or None
            where the site gives none of them.
        launcher: The default command that starts several tasks of a job.
        variables: The environment variables that identify a job.
        has_arrays: Whether one job can have several tasks.
        has_dependencies: Whether a job can wait for other ones (`Job.after`).
    """

    settings: ClassVar[type | None] = None
    launcher: ClassVar[tuple[str, ...]] = ()
    variables: ClassVar[JobVariables] = JobVariables()
    has_arrays: ClassVar[bool] = True
    has_dependencies: ClassVar[bool] = True

    @abstractmethod
    def directives(self, resources: Resources) -> tuple[str, ...]:
        """Return the script's comment lines; raises `UsageError` for an impossible directive."""

    @abstractmethod
    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """Return the command that submits a job, or the job as one JSON text for a service.

        Raises `UsageError` for an unsupported request.
        """

    def warning_directives(self, seconds: int) -> tuple[str, ...]:
        """Return directives that send TERM to the job script only, so long before the limit.

        () if the scheduler cannot do that.
        """
        del seconds
        return ()


class Scheduler(BatchSystem):
    """Text and values in, text and values out: no clock, no processes, no files. Only the methods with a host run commands.

    Every `*_argv` method returns one command as a list of arguments, without shell syntax; every `read_*` method
    parses how that command finished. `lookup_argv` and `accounting_argv` may return () if the scheduler has no such
    query. `read_*` raise `TryLaterError` when the scheduler did not answer.

    Attributes:
        programs: The programs that must be installed, the main one first.
        commands: All programs that query or change the scheduler; `sites usage` counts them.
    """

    programs: ClassVar[tuple[str, ...]] = ()
    commands: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def read_submit(self, finished: CommandResult) -> SubmitResult:
        """Return whether the job was accepted."""

    @abstractmethod
    def status_argv(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """Return one command that queries all these jobs."""

    @abstractmethod
    def read_status(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Status]:
        """Return a status for each of `jobs`; `UNKNOWN` if the scheduler no longer has it."""

    @abstractmethod
    def read_tasks(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """Parse the same output for job arrays: by job, a status for each task still known."""

    @abstractmethod
    def lookup_argv(self, name: str) -> tuple[str, ...]:
        """Return the command that lists the jobs with this name."""

    @abstractmethod
    def read_lookup(self, finished: CommandResult, user: str) -> str | None:
        """Return the first such job of `user`, or None."""

    @abstractmethod
    def cancel_argv(self, job: str) -> tuple[str, ...]:
        """Return the command that ends a job, or all tasks of an array; ended jobs are no failure."""

    @abstractmethod
    def release_argv(self, job: str) -> tuple[str, ...]:
        """Return the command that releases a job submitted with `hold`."""

    def accounting_argv(self, jobs: Sequence[str], run: str, since: str) -> tuple[str, ...]:
        """Return the query for `jobs`, or for jobs named `run` if `jobs` is empty, since `YYYY-MM-DD`.

        () without accounting that a program can read: then no query is made.
        """
        del jobs, run, since
        return ()

    def read_accounting(self, finished: CommandResult) -> Mapping[str, Status] | None:
        """Return the statuses by job id; None if accounting is off or does not answer."""
        del finished
        return None

    def start_argv(self) -> tuple[str, ...] | None:
        """Return the query for the start time of the job script on standard input.

        () if every job starts at once, None if the scheduler cannot predict it.
        """
        return None

    def read_start(self, finished: CommandResult, now: datetime) -> float | None:
        """Return the seconds from `now` to the start; None if unknown. Raises the job's rejection."""
        del finished, now
        return None

    def array_limit_argv(self) -> tuple[str, ...]:
        """Return the query for the largest size of a job array; () if there is none."""
        return ()

    def read_array_limit(self, finished: CommandResult) -> int | None:
        """Return the largest number of tasks of one array, numbered from 1; None if unknown."""
        del finished
        return None

    def query(self, host: RemoteHost, jobs: Sequence[str], arrays: Sequence[str]) -> JobStates:
        """See JobSystem; one command for all."""
        finished = host.run(self.status_argv(sorted({*jobs, *arrays})))
        return JobStates(
            self.read_status(finished, jobs) if jobs else {},
            self.read_tasks(finished, arrays) if arrays else {},
        )

    def find(self, host: RemoteHost, name: str, since: str) -> str | None:
        """See JobSystem; in the queue, then in the accounting."""
        argv = self.lookup_argv(name)
        job = self.read_lookup(host.run(argv), host.facts()["user"]) if argv else None
        if job is not None:
            return job
        argv = self.accounting_argv((), name, since)
        found = self.read_accounting(host.run(argv)) if argv else None
        return next(iter(found), None) if found else None

    def has_accounting(self, jobs: Sequence[str], since: str) -> bool:
        """See JobSystem."""
        return bool(self.accounting_argv(jobs, "", since))

    def account(
        self, host: RemoteHost, jobs: Sequence[str], since: str, *, timeout: float = 60.0
    ) -> Mapping[str, Status] | None:
        """See JobSystem."""
        argv = self.accounting_argv(jobs, "", since)
        return self.read_accounting(host.run(argv, timeout=timeout)) if argv else None

    def cancel(self, host: RemoteHost, job: str) -> None:
        """See JobSystem."""
        finished = host.run(self.cancel_argv(job))
        if finished.exit_code != 0:
            message = f"the scheduler did not cancel job {job}: {_last_words(finished)}"
            raise TryLaterError("not-cancelled", message)

    def release(self, host: RemoteHost, job: str) -> None:
        """See JobSystem."""
        finished = host.run(self.release_argv(job))
        if finished.exit_code != 0:
            message = f"the scheduler did not release the job: {_last_words(finished)}"
            raise TryLaterError("not-released", message)


def _last_words(finished: CommandResult) -> str:
    return one_line(finished.stderr)


def load_scheduler(name: str) -> Scheduler:
    """Return the scheduler that a site names; raises `UsageError` for an unknown one."""
    module = load("runs.schedulers", name)
    found: Scheduler = getattr(module, "SCHEDULER", module)
    return found


def check_job_id(text: str) -> str | None:
    """Return the text if it can be a job id, else None, because later commands use it as an argument."""
    return text if JOB_ID.fullmatch(text) else None


_TASK = re.compile(r"[0-9]{1,7}", re.ASCII)
MOST_TASKS = 1_000_000  # of one array; larger values from a scheduler are ignored


def task_number(text: str) -> int | None:
    """Return the number of an array's task, from 0 on; None for an invalid one."""
    number = int(text) if _TASK.fullmatch(text) else -1
    return number if 0 <= number <= MOST_TASKS else None


_DIRECTIVE = re.compile(r"--?[A-Za-z][ -~]*")
NEXT_COMPONENT = "hetjob"  # the one directive without a dash: between components of a job of Slurm
_PLAIN = re.compile(r"[A-Za-z0-9_.,@:+=/%-]+")


def check_directive(text: str, *, components: bool = False) -> str:
    """Return a directive if it is one printable line with an option, or with `components` what begins one; raises `UsageError` (S9)."""
    if not (_DIRECTIVE.fullmatch(text) or (components and text == NEXT_COMPONENT)):
        raise UsageError(
            "bad-directive",
            "a directive must be one line of printable ASCII that starts with a dash",
            subject=ascii(text),
            hint="Correct --directive, or `directives` in the site's [scheduler] table.",
        )
    return text


def add_to_first_component(directives: Sequence[str], more: Iterable[str]) -> tuple[str, ...]:
    """Return the lines with `more` for the component that runs the script, before the next one begins."""
    end = next(
        (at for at, line in enumerate(directives) if line.endswith(f" {NEXT_COMPONENT}")), len(directives)
    )
    return (*directives[:end], *more, *directives[end:])


def check_plain(text: str, label: str) -> str:
    """Return an account or partition name; raises `UsageError` for other characters (S9)."""
    if not _PLAIN.fullmatch(text) or text.startswith("-"):
        raise UsageError(
            "bad-directive",
            f"this cannot be the name of a {label}",
            subject=ascii(text),
            hint=f"Correct --{label}, or `{label}` in the site's [scheduler] table.",
        )
    return text


def placement_options(resources: Resources, account: str, partition: str, reservation: str = "") -> list[str]:
    """Return the options for account, partition and reservation; each argument is the text before a value."""
    options = (
        (account, resources.account, "account"),
        (partition, resources.partition, "partition"),
        (reservation, resources.reservation, "reservation"),
    )
    return [
        f"{option}{check_plain(value, label)}"
        for option, value, label in options
        if option and value is not None
    ]


# Wrap a command that fails if there is nothing left to do: that error counts as success.
_IGNORE_ERROR = r"""
over=$1; shift
said=$("$@" 2>&1)
code=$?
[ -z "$said" ] || printf '%s\n' "$said" >&2
[ "$code" = 0 ] || ! printf '%s\n' "$said" | grep -Eq -e "$over" || code=0
exit "$code"
"""


_USAGE = 255  # exit(-1), as sbatch and bsub end after an error in their options
_JOB_LIMIT = re.compile(
    rb"submit ?jobs?|submit ?limit|number of jobs|max_u?_?jobs|already have", re.IGNORECASE
)
_QUEUE_HINT = (
    "This account has as many jobs in the queue as it may. Set `queued_jobs` in the site's [limits] table to less than"
    " that limit: hibali then waits for a place."
)


@dataclass(frozen=True, slots=True)
class Submitting:
    """The properties of a scheduler's submission: its program and name, and patterns of its errors.

    `unclear` matches errors after which the job may still have been accepted, `later` those where a retry may
    help unless `never` matches, too; `stopped` are exit codes of an interrupted program.
    """

    program: str
    system: str
    unclear: re.Pattern[bytes]
    later: re.Pattern[bytes]
    stopped: frozenset[int] = frozenset()
    never: re.Pattern[bytes] | None = None

    def read(self, finished: CommandResult, job: str | None) -> SubmitResult:
        """Interpret the output; `job` is the id found in it."""
        if job is not None and finished.exit_code == 0:
            return Submitted(job)
        output = finished.stderr + b"\n" + finished.stdout
        message = one_line(finished.stderr.strip() or finished.stdout, 2000)
        if finished.exit_code == 127:
            return NotSubmitted(
                UsageError(
                    "no-scheduler",
                    f"{self.program} was not found at the site",
                    hint="Correct [scheduler] name, or PATH of non-interactive logins there.",
                )
            )
        stopped = finished.exit_code <= 0 or finished.exit_code in self.stopped
        if finished.exit_code == _USAGE and re.search(rf"(?m)^{self.program}: ".encode("ascii"), output):
            stopped = False  # it refused its options, and sent nothing
        if stopped or job is not None or self.unclear.search(output):
            return Unclear(message or f"{self.program} printed no job id")
        if self.later.search(output) and not (self.never and self.never.search(output)):
            return NotSubmitted(
                TryLaterError(
                    "scheduler-busy",
                    f"{self.system} did not accept the job: {message}",
                    hint=_QUEUE_HINT if _JOB_LIMIT.search(output) else "",
                )
            )
        return NotSubmitted(
            UsageError(
                "submission-rejected",
                f"{self.system} rejected the job: {message}",
                hint="Correct the site's [scheduler] table (account, partition, time, directives).",
            )
        )


def query_failed(program: str, finished: CommandResult) -> TryLaterError:
    """Return the error for a failed query."""
    message = one_line(finished.stderr.strip() or finished.stdout)
    return TryLaterError(
        "scheduler-silent",
        f"{program} failed with exit code {finished.exit_code}: {message}",
        hint="The run is not affected. Try again later.",
    )


def text_lines(text: bytes) -> list[str]:
    """Return the lines that are not empty, without surrounding blanks."""
    return [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]


def ignore_error(pattern: str, *argv: str) -> tuple[str, ...]:
    """Return a command that also succeeds if its error matches `pattern`, an extended regular expression."""
    return ("/bin/sh", "-c", _IGNORE_ERROR, "hibali", pattern, *argv)


def as_clock(seconds: int) -> str:
    """Format seconds as `H:MM:SS`, never zero, which would request no limit."""
    minutes, remainder = divmod(max(seconds, 1), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}"


def cores_of_a_node(resources: Resources) -> int:
    """Return the cores requested on each node, at least one."""
    return math.ceil((resources.tasks or 1) * (resources.cores or 1) / (resources.nodes or 1))


def requests_cores(resources: Resources) -> bool:
    """Return whether processes or cores are requested."""
    return resources.tasks is not None or resources.cores is not None


def has_option(resources: Resources, *options: str) -> bool:
    """Return whether the site's directives contain one of these options, which then replaces ours."""
    return any(text.startswith(options) for text in resources.directives)


def check_number(text: str, label: str) -> str:
    """Return the digits, for values that must be numbers; raises `UsageError`."""
    if not (text.isascii() and text.isdecimal()):
        raise UsageError("bad-number", f"{label} must be a number", subject=ascii(text))
    return text
