"""Run jobs in PBS Professional, OpenPBS and Torque (qsub, qstat, qselect, qdel, qrls).

The output shows the dialect: `qstat -x` lists ended jobs in PBS Professional and prints XML in Torque, and Slurm's
wrappers (slurm-wlm-torque) do not have it. States and exit codes are those of the PBS Professional 2021.1
Reference Guide, "Job States" and "Job Exit Codes", and of Torque's job_func.h and pbs_error.h.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from hibali import documents
from hibali.errors import TryLaterError, UsageError
from hibali.text import printable
from runs.schedulers.base import (
    TIME_LIMIT,
    UNKNOWN,
    Job,
    JobVariables,
    Phase,
    Resources,
    Scheduler,
    Status,
    SubmitResult,
    Submitting,
    as_clock,
    check_directive,
    cores_of_a_node,
    has_option,
    ignore_error,
    placement_options,
    query_failed,
    requests_cores,
    task_number,
    text_lines,
)
from transfers.remote.host import CommandResult

# Jobs start in the home folder, and PBS_O_WORKDIR is the folder of qsub: so qsub is called in the job's folder. An array of
# PBS Professional needs at least two numbers; a large step (1-2:2) leaves one. It takes only arrays that may run again, whose
# tasks begin only once, as all jobs of hibali do; other jobs and those of Torque are not repeated.
_SUBMIT = r"""
cd -- "$1" || exit
tasks=$2 script=$3; shift 3
if [ "$tasks" = 0 ]; then
  set -- -r n "$@"
else
  case $(qstat --version 2>&1) in
    *pbs_version*) if [ "$tasks" = 1 ]; then set -- -J 1-2:2 "$@"; else set -- -J "1-$tasks" "$@"; fi ;;
    *) set -- -r n -t "1-$tasks" "$@" ;;
  esac
fi
exec qsub "$@" "./$script"
"""
# Exit code 2 means an unknown option, 36 "not configured to maintain job history".
_STATUS = r"""
qstat -t -x -f "$@"
code=$?
case $code in 2|36) ;; *) exit "$code" ;; esac
qstat -t -f "$@"
code=$?
[ "$code" = 2 ] || exit "$code"
exec qstat -f "$@"
"""
_LOOKUP = r"""
user=$(id -un)
qselect -x -u "$user" -N "$1"
code=$?
case $code in 2|36) ;; *) exit "$code" ;; esac
exec qselect -u "$user" -N "$1"
"""
_SUBMITTING = Submitting(
    program="qsub",
    system="PBS",
    unclear=re.compile(
        rb"end of file|premature end|timed? ?out|connection reset|protocol \(ASN\.1\) error", re.IGNORECASE
    ),
    later=re.compile(
        rb"cannot connect to server|connection refused|unable to contact slurm controller|maximum number of jobs"
        rb"|would exceed (?:queue|complex)|exceeds? (?:queue|server)'?s? limit on (?:the )?number|server shutting down",
        re.IGNORECASE,
    ),
)
_JOB = re.compile(r"[0-9]{1,18}(?:\[[0-9]{0,18}\])?(?:\.[A-Za-z0-9._-]{1,90})?")
_FIELD = re.compile(r"( +|\t+)([A-Za-z_][A-Za-z_0-9.]*) = (.*)")
_NAMED = ("Exit_status", "array_index", "comment", "exit_status", "job_state", "substate")
_PHASES = {
    "B": Phase.RUNNING,  # an array of which some task has begun
    "C": Phase.ENDED,
    "E": Phase.RUNNING,
    "F": Phase.ENDED,
    "H": Phase.WAITING,
    "M": Phase.WAITING,
    "Q": Phase.WAITING,
    "R": Phase.RUNNING,
    "S": Phase.RUNNING,
    "T": Phase.WAITING,
    "U": Phase.RUNNING,
    "W": Phase.WAITING,
    "X": Phase.ENDED,
}
_KILLED = {  # by dialect: how a job ended that PBS killed
    "PBS": {
        "-24": "cores",
        "-25": "cores",
        "-26": "virtual memory",
        "-27": "memory",
        "-28": "CPU time",
        "-29": "walltime",
    },
    "Torque": {"-10": "memory", "-11": "walltime", "-12": "CPU time"},
}
_DELETED = "91"  # the substate of a job that qdel ended, in PBS Professional
_UNKNOWN = {35, 153}  # "Job has finished", "Unknown Job Id"


class Pbs(Scheduler):  # no accounting: it is in files of the server, and qstat lists the jobs it remembers
    """Submit with qsub, and poll with qstat: OpenPBS and Torque."""

    name = "pbs"
    blocking = re.compile(r".*(?:can never run|exceeds).*", re.IGNORECASE)
    programs = ("qsub", "qstat", "qdel")
    commands = ("qsub", "qstat", "qdel", "qrls", "qalter", "qselect", "tracejob")
    variables = JobVariables(
        job=("PBS_JOBID",),
        array=("PBS_JOBID",),
        index=("PBS_ARRAY_INDEX", "PBS_ARRAYID"),
        folder=("PBS_O_WORKDIR",),  # for servers that start jobs in the home folder
        cores=("NCPUS",),
        prefixes=("PBS_",),
    )

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """Return `#PBS` lines with options of both dialects; GPUs, which have none, are requested as in PBS Professional.

        A site's own directive for nodes, cores or chunks replaces the generated one.
        """
        if resources.partition is not None and resources.reservation is not None:
            raise UsageError(
                "no-such-scheduling",
                "PBS uses a reservation as the queue, so no partition can be given with it",
                hint="Remove the partition.",
            )
        options = placement_options(resources, "-A ", "-q ", "-q ")
        if resources.seconds is not None:
            options.append(f"-l walltime={as_clock(resources.seconds)}")
        if not has_option(resources, "-l select", "-l nodes", "-l ncpus", "-lselect", "-lnodes", "-lncpus"):
            options += _places(resources)
        options += [check_directive(text) for text in resources.directives]
        return tuple(f"#PBS {option}" for option in options)

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """Submit a job; a shell at the site finds the option for arrays."""
        folder, _, script = job.script.rpartition("/")
        output = ["-j", "oe", "-o", "/dev/null" if job.tasks else "scheduler.log"]
        for each in job.after:
            if not _JOB.fullmatch(each):
                raise UsageError("bad-job", "this is not the id of a PBS job", subject=printable(each))
        options = [f"-Wdepend=afterok:{':'.join(job.after)}"] if job.after else []
        if job.hold:
            options.append("-h")
        return (
            *("/bin/sh", "-c", _SUBMIT, "hibali", folder, f"{job.tasks:d}", script),
            *("-N", job_name(job.name), *output, *options),
        )

    def read_submit(self, finished: CommandResult) -> SubmitResult:
        """Parse the number, with a pair of brackets for an array, and the server's name."""
        found = [line for line in text_lines(finished.stdout) if _JOB.fullmatch(line)]
        return _SUBMITTING.read(finished, found[-1] if found else None)

    def status_argv(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """Query jobs with their tasks, including ended jobs if the server remembers them."""
        return ("/bin/sh", "-c", _STATUS, "hibali", *jobs)

    def read_status(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Status]:
        """Match jobs by number, because servers have a short and a long name."""
        found = dict.fromkeys(jobs, UNKNOWN)
        by_number = {_number(job): job for job in jobs}
        for number, status in _listed(finished):
            if number in by_number:
                found[by_number[number]] = status
        return found

    def read_tasks(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """Parse the tasks, whose number is between the brackets of the job's id."""
        found: dict[str, dict[int, Status]] = {job: {} for job in jobs}
        by_number = {_number(job).partition("[")[0]: job for job in jobs}
        for number, status in _listed(finished):
            job, _, task = number.partition("[")
            index = task_number(task.rstrip("]"))
            if job in by_number and index is not None:
                found[by_number[job]][index] = status
        return found

    def lookup_argv(self, name: str) -> tuple[str, ...]:
        """Query only this account's jobs, because qselect prints only numbers."""
        return ("/bin/sh", "-c", _LOOKUP, "hibali", job_name(name))

    def read_lookup(self, finished: CommandResult, user: str) -> str | None:
        """Parse one number per line, no line if there is no such job."""
        del user
        lines = text_lines(finished.stdout)
        found = [line for line in lines if _JOB.fullmatch(line)]
        if finished.exit_code != 0 or (lines and not found):
            raise query_failed("qselect", finished)
        return min(found, key=lambda job: int(re.split(r"[.\[]", job)[0])) if found else None

    def cancel_argv(self, job: str) -> tuple[str, ...]:
        """End a job; an ended one is unknown, or has an invalid state."""
        return ignore_error("Unknown Job|has finished|invalid state|[Ii]nvalid job id specified", "qdel", job)

    def release_argv(self, job: str) -> tuple[str, ...]:
        """Release the user's hold."""
        return ("qrls", job)


def job_name(name: str) -> str:
    """Return a job name of fifteen characters, the maximum of Torque and older PBS, that begins with a letter.

    It is a run's second and its random part, in base 36; of another name, as each job of a sweep has, it is the digest.
    """
    try:
        day, time, remainder = name.split("-")
        second = int(datetime.strptime(f"{day}{time}", "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp())
        return f"h{_base36(second, 7)}{_base36(int(remainder, 16), 7)}"
    except ValueError:
        return f"j{_base36(int(hashlib.sha256(name.encode()).hexdigest(), 16), 14)}"


def _base36(number: int, digits: int) -> str:
    found = ""
    for _ in range(digits):
        number, remainder = divmod(number, 36)
        found = "0123456789abcdefghijklmnopqrstuvwxyz"[remainder] + found
    return found


def _places(resources: Resources) -> list[str]:
    nodes, cores, memory = resources.nodes or 1, cores_of_a_node(resources), resources.memory_megabytes
    if resources.gpus is not None:
        chunk = f"-l select={nodes:d}:ncpus={cores:d}:ngpus={resources.gpus:d}"
        if resources.tasks is not None:
            chunk += f":mpiprocs={-(-resources.tasks // nodes):d}"
        return [chunk if memory is None else f"{chunk}:mem={memory:d}mb"]
    found = []
    if resources.nodes is not None or requests_cores(resources):
        found.append(f"-l nodes={nodes:d}:ppn={cores:d}")
    if memory is not None:  # of the whole job
        found.append(f"-l mem={memory * nodes:d}mb")
    return found


def _number(job: str) -> str:
    """Return the id without the server's name."""
    return job.partition(".")[0]


def _listed(finished: CommandResult) -> Iterator[tuple[str, Status]]:
    """Yield number and status of each known job; unknown ids make qstat fail, but it lists the others."""
    if finished.exit_code != 0 and finished.exit_code not in _UNKNOWN:
        raise query_failed("qstat", finished)
    content = finished.stdout.strip()
    start = content.find(b"<Data>")
    if start >= 0:
        yield from _read_xml(content[start:], finished)
        return
    job, fields, some, last, indent = "", dict[str, str](), False, "", ""
    for line in [*content.decode("utf-8", "replace").splitlines(), "Job Id: "]:
        if line.startswith("Job Id:"):
            if _JOB.fullmatch(job):
                some = True
                yield _number(job), _status({name: text.strip() for name, text in fields.items()}, "PBS")
            job, fields, last, indent = line.removeprefix("Job Id:").strip(), {}, "", ""
        elif (match := _FIELD.fullmatch(line)) and match[1] == (indent or match[1]):
            indent = match[1]
            # later lines may be variables of the job
            last = match[2] if match[2] in _NAMED and match[2] not in fields else ""
            if last:
                fields[last] = match[3]
        elif last and line.startswith("\t"):  # PBS wraps lines whose fields have spaces before them
            fields[last] += line[1:]
    if not some and (content or finished.exit_code == 0):
        raise query_failed("qstat", finished)


def _read_xml(content: bytes, finished: CommandResult) -> Iterator[tuple[str, Status]]:
    try:
        root = documents.parse(content, "qstat")
    except TryLaterError:
        raise query_failed("qstat", finished) from None
    for element in root.iter("Job"):
        fields = {child.tag: (child.text or "").strip() for child in element}
        if _JOB.fullmatch(fields.get("Job_Id", "")):
            yield _number(fields["Job_Id"]), _status(fields, "Torque")


def _status(fields: Mapping[str, str], dialect: str) -> Status:
    """Return the status; an unknown state is WAITING."""
    native = fields.get("job_state", "")
    phase = _PHASES.get(native, Phase.WAITING)
    reason = printable(fields.get("comment", ""))
    if phase is not Phase.ENDED:
        return Status(phase, printable(native), reason)
    code = fields.get("Exit_status", fields.get("exit_status", ""))
    if limit := _KILLED[dialect].get(code):
        why = TIME_LIMIT if limit == "walltime" else f"over its limit of {limit}"
        return Status(Phase.KILLED, printable(native), why)
    if fields.get("substate") == _DELETED and dialect == "PBS":
        return Status(Phase.CANCELLED, printable(native), reason)
    if code.startswith("-"):
        return Status(Phase.BROKEN, printable(native), reason or f"exit status {printable(code)}")
    return Status(phase, printable(native), "" if code in {"", "0"} else f"exit code {printable(code)}")


SCHEDULER = Pbs()
