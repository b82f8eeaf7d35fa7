"""Run jobs in Slurm 18.08 and later (sbatch, squeue, sacct, scancel); text formats only.

`sacct --json` of 22.05 reports a job with exit code 3 as successful, so hibali reads the parsable text.
Job states are those of the man page squeue(1), "JOB STATE CODES".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from hibali.text import printable
from runs.schedulers.base import (
    TIME_LIMIT,
    UNKNOWN,
    Job,
    JobVariables,
    NotSubmitted,
    Phase,
    Resources,
    Scheduler,
    Status,
    SubmitResult,
    Submitting,
    check_directive,
    memory_reason,
    placement_options,
    query_failed,
    task_number,
    text_lines,
)
from transfers.remote.host import CommandResult

_PHASES = {
    "BOOT_FAIL": Phase.BROKEN,
    "CANCELLED": Phase.CANCELLED,
    "COMPLETED": Phase.ENDED,
    "COMPLETING": Phase.RUNNING,
    "CONFIGURING": Phase.WAITING,
    "DEADLINE": Phase.KILLED,
    "FAILED": Phase.ENDED,
    "LAUNCH_FAILED": Phase.BROKEN,
    "NODE_FAIL": Phase.BROKEN,
    "OUT_OF_MEMORY": Phase.KILLED,
    "PENDING": Phase.WAITING,
    "PREEMPTED": Phase.BROKEN,
    "RECONFIG_FAIL": Phase.BROKEN,
    "REQUEUED": Phase.WAITING,
    "REQUEUE_FED": Phase.WAITING,
    "REQUEUE_HOLD": Phase.WAITING,
    "RESIZING": Phase.RUNNING,
    "RESV_DEL_HOLD": Phase.WAITING,
    "REVOKED": Phase.BROKEN,
    "RUNNING": Phase.RUNNING,
    "SIGNALING": Phase.RUNNING,
    "SPECIAL_EXIT": Phase.WAITING,
    "STAGE_OUT": Phase.RUNNING,
    "STOPPED": Phase.RUNNING,
    "SUSPENDED": Phase.RUNNING,
    "TIMEOUT": Phase.KILLED,
}

SUBMITTING = Submitting(
    program="sbatch",
    system="Slurm",
    # The controller may have received the request although sbatch got no valid reply: of the errors "unable to contact
    # slurm controller", only a failed connect proves that no request was sent (slurm_errno.c).
    unclear=re.compile(
        rb"timed out|zero bytes were transmitted|connection reset|broken pipe|(?:send|receive|shutdown) failure"
        rb"|authentication error|insane message length|unexpected message|header lengths are longer",
        re.IGNORECASE,
    ),
    # the request was not sent, or the controller refused it for now
    later=re.compile(
        rb"unable to contact slurm controller|connect failure|temporarily unable to accept job|resource temporarily"
        rb"|submit ?limit|submitjobs|job submit limit|connection refused"
        rb"|slurm backup controller in standby",
        re.IGNORECASE,
    ),
    # limits of a job itself, which Slurm refuses with the same words as too many jobs (DenyOnLimit)
    never=re.compile(rb"error: (?:Assoc|QOS)(?!\w*Submit)\w+\s*$", re.MULTILINE),
    stopped=frozenset({124, *range(128, 256)}),  # exit codes of timeout(1), and of shells after a signal
)
_ARRAY_LIMIT = re.compile(rb"^MaxArraySize\s*=\s*([0-9]{1,9})\s*$", re.MULTILINE)
_JOB = re.compile(r"[0-9][0-9_.+-]*")
_RECORD = re.compile(r"([0-9][^:\s]*):(.*)")
_STARTS = re.compile(rb"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\b")
_CPU = re.compile(r"(?:(?:([0-9]{1,6})-)?([0-9]{1,2}):)?([0-9]{1,9}):([0-9]{2}(?:\.[0-9]{1,6})?)")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)([KMGTP]?)")
_ID_LINE = re.compile(r"(?:Submitted batch job )?([0-9]{1,18})(?:;[A-Za-z0-9_.-]+)?")


VARIABLES = JobVariables(
    job=("SLURM_JOB_ID",),
    array=("SLURM_ARRAY_JOB_ID",),
    index=("SLURM_ARRAY_TASK_ID",),
    cores=("SLURM_CPUS_ON_NODE",),
    prefixes=("SLURM_", "SBATCH_", "SRUN_"),
    # by name, because SLURM_JWT is a credential
    launched=(
        *(
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURM_NODEID",
            "SLURM_NTASKS",
            "SLURM_NPROCS",
            "SLURM_NNODES",
        ),
        *("SLURM_JOBID", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_TASKS_PER_NODE"),
        *("SLURM_STEPID", "SLURM_STEP_[A-Z_]*", "SLURM_LAUNCH_NODE_IPADDR"),
    ),
)


def phase_of(state: str) -> Phase | None:
    """Return the phase of a job in this state of Slurm, None for an unknown one."""
    return _PHASES.get(state)


def explain_state(state: str, reason: str = "") -> str:
    """Return the reason of a job in this state of Slurm, which may itself be one."""
    return TIME_LIMIT if state == "TIMEOUT" else reason


class Slurm(Scheduler):
    """Submit with sbatch, poll with squeue, and read accounting from sacct."""

    name = "slurm"
    programs = ("sbatch", "squeue", "scancel")
    commands = ("sbatch", "squeue", "scancel", "sacct", "scontrol", "sinfo")
    launcher = ("srun",)
    # squeue(1), "JOB REASON CODES": what only another request, an administrator or the end of other jobs of the account changes
    blocking = re.compile(
        r"Partition(?:Config|Down|Inactive|NodeLimit|TimeLimit)|(?:Assoc|QOS)\w+|(?:Account|QOS)NotAllowed|Invalid(?:Account|QOS)"
        r"|BadConstraints|ReqNodeNotAvail.*|NodeDown|MaxMemPerLimit|DependencyNeverSatisfied|ReservationDeleted|JobHeldAdmin"
        r"|.*(?:held state|requeued held).*"
    )
    variables = VARIABLES

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """Return `#SBATCH` lines; sbatch stops reading them at the first line that is not a comment."""
        options = placement_options(resources, "--account=", "--partition=", "--reservation=")
        if resources.seconds is not None:
            options.append(f"--time={_as_time(resources.seconds)}")
        if resources.nodes is not None:
            options.append(f"--nodes={resources.nodes:d}")
        if resources.tasks is not None:
            options.append(f"--ntasks={resources.tasks:d}")
        if resources.gpus is not None:
            options.append(f"--gres=gpu:{resources.gpus:d}")  # --gpus needs cons_tres and 19.05
        if resources.cores is not None:
            options.append(f"--cpus-per-task={resources.cores:d}")
        if resources.memory_megabytes is not None:
            options.append(f"--mem={resources.memory_megabytes:d}M")
        options += [check_directive(text, components=True) for text in resources.directives]
        return tuple(f"#SBATCH {option}" for option in options)

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """Return the command. It has the options that SBATCH_* variables at the site must not override."""
        folder = job.script.rpartition("/")[0]
        options = []
        if job.comment:
            options.append(f"--comment={job.comment}")
        if job.tasks:
            options.append(f"--array=1-{job.tasks:d}")
        if job.after:
            # a job that can never start would stay in the queue forever
            options += [f"--dependency=afterok:{':'.join(job.after)}", "--kill-on-invalid-dep=yes"]
        if job.hold:
            options.append("--hold")
        return (
            "sbatch",
            "--parsable",
            "--no-requeue",
            f"--job-name={job.name}",
            f"--chdir={folder}",
            f"--output={log_path(folder)}",
            "--open-mode=append",
            *options,
            job.script,
        )

    def read_submit(self, finished: CommandResult) -> SubmitResult:
        """Parse the last line that is an id, because sites print messages around it."""
        return SUBMITTING.read(finished, _last_id(finished.stdout))

    def status_argv(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """Return the query, written only with characters that a forced-command wrapper accepts (S7).

        It includes ended jobs, which squeue remembers for MinJobAge even without accounting. `--array` lists waiting tasks
        one by one, because squeue truncates their common line (SLURM_BITSTR_LEN).
        """
        return (
            "squeue",
            "--noheader",
            "--states=all",
            "--array",
            f"--jobs={','.join(jobs)}",
            "--format=%i:%T:%r",
        )

    def read_status(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Status]:
        """Parse one line per job."""
        found = dict.fromkeys(jobs, UNKNOWN)
        found.update((job, status) for job, status in _listed(finished) if job in found)
        return found

    def read_tasks(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """Parse one line per task, as `12_4`."""
        found: dict[str, dict[int, Status]] = {job: {} for job in jobs}
        for identifier, status in _listed(finished):
            job, _, number = identifier.partition("_")
            index = task_number(number)
            if job in found and index is not None:
                found[job][index] = status
        return found

    def warning_directives(self, seconds: int) -> tuple[str, ...]:
        """Send TERM with `B:` to the batch shell only (sbatch(1), --signal), up to a minute early."""
        return (f"#SBATCH --signal=B:TERM@{seconds:d}",)

    def start_argv(self) -> tuple[str, ...]:
        """Test the script on standard input, without submitting it."""
        return ("env", "TZ=UTC", "SLURM_TIME_FORMAT=standard", "sbatch", "--test-only")

    def read_start(self, finished: CommandResult, now: datetime) -> float | None:
        """Parse `sbatch: Job 12 to start at 2026-11-22T10:00:00 using ...`."""
        found = _STARTS.search(finished.stderr + finished.stdout)
        if found is not None:
            try:
                start = datetime.fromisoformat(found[1].decode("ascii")).replace(tzinfo=UTC)
            except ValueError:
                return None
            return max(0.0, (start - now).total_seconds())
        result = SUBMITTING.read(finished, None)
        if isinstance(result, NotSubmitted):
            raise result.error
        return None

    def lookup_argv(self, name: str) -> tuple[str, ...]:
        """Query jobs by name; for an array, too, the first number is the job's."""
        return ("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%i:%u")

    def read_lookup(self, finished: CommandResult, user: str) -> str | None:
        """Return only a job of the user, because other users' jobs may have the same name."""
        if finished.exit_code != 0:
            raise query_failed("squeue", finished)
        for job, owner in _records("squeue", finished):
            if owner == user:
                return re.split(r"[_+]", job, maxsplit=1)[0]
        return None

    def accounting_argv(self, jobs: Sequence[str], run: str, since: str) -> tuple[str, ...]:
        """Return the query, including job steps: only they have the memory used.

        Without a start time, sacct reports only today's jobs. The start time is a day early, because sacct reads it in the
        cluster's time zone, where the UTC date may not have begun.
        """
        chosen = f"--jobs={','.join(jobs)}" if jobs else f"--name={run}"
        return (
            "sacct",
            "--noheader",
            "--parsable2",
            f"--starttime={day_before(since)}",
            chosen,
            "--format=JobID,State,ExitCode,TotalCPU,MaxRSS,ReqMem",
        )

    def read_accounting(self, finished: CommandResult) -> Mapping[str, Status] | None:
        """Parse the jobs and their steps; None for any failure, because accounting only adds details.

        The refusal of a forced-command wrapper is a failure, too.
        """
        lines = text_lines(finished.stdout)
        if finished.exit_code != 0:
            return None
        found: dict[str, Status] = {}
        requested: dict[str, int | None] = {}
        for line in lines:
            identifier, state, code, cpu, memory, limit = [*line.split("|"), *[""] * 5][:6]
            component, _, step = identifier.partition(".")
            job = _leading(component)
            if job is None:
                continue
            if step and job in found:
                peak = max(found[job].memory_bytes or 0, _bytes_of(memory) or 0)
                found[job] = replace(found[job], memory_bytes=peak or None)
            elif not step and _JOB.fullmatch(job):
                native = state.split(" ", 1)[0]  # "CANCELLED by 1000"
                status = _status(native, "" if code in {"", "0:0"} else f"exit code {code}", queued=False)
                if native == "FAILED" and code.startswith(
                    "0:"
                ):  # the job's own script was killed, and left no exit record
                    status = replace(status, phase=Phase.KILLED, reason=f"signal {code[2:]}")
                found[job] = replace(status, cpu_seconds=_seconds_of(cpu))
                requested[job] = _bytes_of(limit.rstrip("n"))  # of a node; of a core it ends with c
        explained = {job: explain_memory(each, requested[job]) for job, each in found.items()}
        return explained if found or not lines else None

    def cancel_argv(self, job: str) -> tuple[str, ...]:
        """Return the command; scancel exits with 0 for a job that has ended, too."""
        return ("scancel", job)

    def task_job(self, job: str, index: int) -> str:
        """Name the task, as `squeue` does."""
        return f"{job}_{index:d}"

    def array_limit_argv(self) -> tuple[str, ...]:
        """Query the configuration, which has MaxArraySize."""
        return ("scontrol", "show", "config")

    def read_array_limit(self, finished: CommandResult) -> int | None:
        """Parse MaxArraySize, which is one more than the highest index (slurm.conf(5))."""
        found = _ARRAY_LIMIT.search(finished.stdout) if finished.exit_code == 0 else None
        return max(1, int(found[1]) - 1) if found else None

    def release_argv(self, job: str) -> tuple[str, ...]:
        """Return the command, which has no effect on a job that is not held."""
        return ("scontrol", "release", job)


def log_path(folder: str) -> str:
    """Return the path of the log for `--output`: Slurm reads `%` and backslashes also in the folder of a relative path.

    sbatch(1), "filename pattern": `%%` is a percent sign, and a backslash ends all replacements and quotes what follows.
    """
    if "\\" in folder:
        return folder.replace("\\", "\\\\") + "/scheduler.log"
    return folder.replace("%", "%%") + "/scheduler.log" if "%" in folder else "scheduler.log"


def _listed(finished: CommandResult) -> Iterator[tuple[str, Status]]:
    """Yield id and status of each line; squeue fails for an unknown id only if there is no other."""
    if finished.exit_code != 0:
        if b"Invalid job id specified" in finished.stderr:
            return
        raise query_failed("squeue", finished)
    for identifier, details in _records("squeue", finished):
        job = _leading(identifier)
        native, _, reason = details.partition(":")
        if job is not None:
            yield job, _status(native, reason, queued=True)


def _leading(identifier: str) -> str | None:
    """Return the job whose component leads, as it runs the script; None for another component (squeue(1), `12+1`)."""
    job, _, component = identifier.partition("+")
    return job if component in {"", "0"} else None


def explain_memory(status: Status, requested: int | None) -> Status:
    """Name the memory as the reason of a job that was killed for it: by control groups, or by Slurm itself (OverMemoryKill)."""
    used = status.memory_bytes
    killed = status.native == "FAILED" and status.phase is Phase.KILLED
    if status.native == "OUT_OF_MEMORY" or (killed and used and requested and used >= requested):
        return replace(status, reason=memory_reason(used, requested))
    return status


def _status(native: str, reason: str, *, queued: bool) -> Status:
    """Return the status; an unknown state is WAITING if squeue lists the job, UNKNOWN in accounting."""
    phase = _PHASES.get(native, Phase.WAITING if queued else Phase.UNKNOWN)
    plain = explain_state(native, reason.strip())
    return Status(phase, printable(native), "" if plain in {"None", "(null)"} else printable(plain))


def _seconds_of(text: str) -> float | None:
    """Parse `[D-][HH:]MM:SS[.mmm]` of sacct; None if empty, which means not measured."""
    found = _CPU.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes = (int(part or 0) for part in found.groups()[:3])
    return round((days * 24 + hours) * 3600 + minutes * 60 + float(found[4]), 3) or None


def _bytes_of(text: str) -> int | None:
    """Parse a size of sacct: `1234K`, `1.5G`; None if empty."""
    found = _SIZE.fullmatch(text)
    return int(float(found[1]) * 1024 ** "_KMGTP".index(found[2] or "_")) or None if found else None


def _records(program: str, finished: CommandResult) -> list[tuple[str, str]]:
    """Return the id and the remainder of each line; raise if no line has an id.

    A forced-command wrapper prints its refusal to standard output and exits 0. Read as an empty list, it would mean
    that there is no such job.
    """
    lines = text_lines(finished.stdout)
    found = [(match[1], match[2]) for line in lines if (match := _RECORD.fullmatch(line))]
    if lines and not found:
        raise query_failed(program, CommandResult(finished.exit_code, b"", finished.stdout))
    return found


def _last_id(text: bytes) -> str | None:
    for line in reversed(text_lines(text)):
        match = _ID_LINE.fullmatch(line)
        if match:
            return match[1]
    return None


def _as_time(seconds: int) -> str:
    """Format seconds as `D-HH:MM:SS`, never zero, which would request no limit."""
    minutes, remainder = divmod(max(seconds, 60), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{remainder:02}"


def day_before(day: str) -> str:
    """Return the date before `day`; `day` itself if it is no date."""
    try:
        return f"{date.fromisoformat(day) - timedelta(days=1)}"
    except (ValueError, OverflowError):
        return day


SCHEDULER = Slurm()
