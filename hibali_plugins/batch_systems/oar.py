"""Run jobs in OAR 2.5 as at Grid'5000 (oarsub, oarstat, oardel, oarresume).

Every job is an array, most of them of one job with the array's own number; so all queries are by array. States and
events are those of OAR's documentation, "Database scheme". `oarstat` remembers ended jobs, so accounting is not queried.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hibali.errors import UsageError
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
    check_number,
    cores_of_a_node,
    has_option,
    ignore_error,
    placement_options,
    query_failed,
    requests_cores,
    task_number,
)
from transfers.remote.host import CommandResult

_PHASES = {
    "Error": Phase.BROKEN,
    "Finishing": Phase.RUNNING,
    "Hold": Phase.WAITING,
    "Launching": Phase.WAITING,
    "Resuming": Phase.RUNNING,
    "Running": Phase.RUNNING,
    "Suspended": Phase.RUNNING,
    "Terminated": Phase.ENDED,
    "toAckReservation": Phase.WAITING,
    "toError": Phase.RUNNING,
    "toLaunch": Phase.WAITING,
    "Waiting": Phase.WAITING,
}
# Events that explain the end of a job. The first match counts: OAR also requests the deletion at a walltime.
_EVENTS = {
    "WALLTIME": Phase.KILLED,
    "BESTEFFORT_KILL": Phase.BROKEN,
    "FRAG_JOB_REQUEST": Phase.CANCELLED,
}
_SUBMITTING = Submitting(
    program="oarsub",
    system="OAR",
    unclear=re.compile(rb"cannot connect to executor", re.IGNORECASE),  # the job is in the database by then
    later=re.compile(
        rb"DB connection|could not connect to server|connection refused|connect\(.*failed", re.IGNORECASE
    ),
)
_IDENTIFIER = re.compile(rb"^OAR_(JOB|ARRAY)_ID=([0-9]{1,18})\s*$", re.MULTILINE)
_PLAIN = re.compile(r"/[A-Za-z0-9_./:=@%+,-]+")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_WARNING_SECONDS = (
    30  # a job gets SIGTERM this long before its time limit, at which OAR kills it without a warning
)


class Oar(Scheduler):
    """Submit with oarsub, and poll with oarstat."""

    name = "oar"
    blocking = re.compile(r".*cannot find enough resources.*", re.IGNORECASE)
    programs = ("oarsub", "oarstat", "oardel")
    commands = ("oarsub", "oarstat", "oardel", "oarresume", "oarnodes")
    variables = JobVariables(
        job=("OAR_JOB_ID",),
        array=("OAR_ARRAY_ID",),
        index=("OAR_ARRAY_INDEX",),
        folder=("OAR_WORKDIR",),
        prefixes=("OAR_",),
    )

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """Return `#OAR` lines, in the only form that `oarsub -S` reads: the option, a blank, the value.

        OAR has no option for memory: a job gets the memory that belongs to its cores.
        """
        options = placement_options(resources, "--project ", "-q ")
        if resources.reservation is not None:  # a job of the type `container`
            options.append(f"-t inner={check_number(resources.reservation, 'the reservation')}")
        wanted = _wanted(resources)
        if wanted and not has_option(resources, "-l", "--resource"):  # a second one would be an alternative
            options.append(f"-l {wanted}")
        warning = min(_WARNING_SECONDS, (resources.seconds or 0) // 10)
        if warning and not has_option(resources, "--checkpoint", "--signal"):
            options += [f"--checkpoint {warning}", "--signal 15"]
        options += [check_directive(text) for text in resources.directives]
        return tuple(f"#OAR {option}" for option in options)

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """Return the command with the script's absolute path, unless a shell would need quotes for it.

        OAR passes the command to a shell, whose start-up files may change the folder. `--anterior` waits for the end of a
        job, also after a failure; so the script itself (runs.script) checks the jobs in its third argument.
        """
        folder, _, script = job.script.rpartition("/")
        command = job.script if _PLAIN.fullmatch(job.script) else f"./{script}"
        options = [f"--array={job.tasks:d}"] if job.tasks else []
        if job.after:
            numbers = [check_number(each, "a job") for each in job.after]
            options += [f"--anterior={number}" for number in numbers]
            command += f" '' '' {'/'.join(numbers)}"
        if job.hold:
            options.append("--hold")
        return (
            "oarsub",
            "-S",
            f"--name={job.name}",
            f"--directory={folder}",
            "--stdout=scheduler.log",
            "--stderr=scheduler.log",
            *options,
            command,
        )

    def read_submit(self, finished: CommandResult) -> SubmitResult:
        """Parse the array's id, the last one printed; admission rules may print other lines."""
        found = dict(_IDENTIFIER.findall(finished.stdout))
        job = found.get(b"ARRAY", found.get(b"JOB"))
        return _SUBMITTING.read(finished, job.decode("ascii") if job else None)

    def status_argv(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """Return the query, with --full for the events that explain an end.

        OAR resubmits a job that it could not start under another number.
        """
        numbers = ",".join(job for job in jobs if job.isdecimal()) or "0"
        condition = f"array_id IN ({numbers}) OR resubmit_job_id IN ({numbers})"
        return ("oarstat", "--full", "--json", "--sql", condition)

    def read_status(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Status]:
        """Parse the jobs; OAR remembers ended ones as long as its database exists."""
        found = dict.fromkeys(jobs, UNKNOWN)
        resubmitted: dict[str, Status] = {}
        for record in _records(finished):
            if record["job"] in found:
                found[record["job"]] = _status(record)
            if str(record.get("resubmit_job_id")) in found:
                resubmitted[str(record["resubmit_job_id"])] = _status(record)
        return {**found, **resubmitted}

    def read_tasks(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """Parse the tasks: each is a job of its own, with its index in the array."""
        found: dict[str, dict[int, Status]] = {job: {} for job in jobs}
        for record in _records(finished):
            number = task_number(str(record.get("array_index")))
            if record["array"] in found and number is not None:
                found[record["array"]][number] = _status(record)
        return found

    def lookup_argv(self, name: str) -> tuple[str, ...]:
        """Query jobs by name, including ended ones."""
        if not _NAME.fullmatch(name):
            raise UsageError("bad-name", "this cannot be the name of a job", subject=ascii(name))
        return ("oarstat", "--full", "--json", "--sql", f"job_name = '{name}'")

    def read_lookup(self, finished: CommandResult, user: str) -> str | None:
        """Return only a job of the user, because other users' jobs may have the same name."""
        own = [record for record in _records(finished) if record.get("owner") == user]
        return str(min(own, key=lambda record: int(record["job"]))["array"]) if own else None

    def cancel_argv(self, job: str) -> tuple[str, ...]:
        """End a job; OAR rejects one that is being ended, but not one that has ended."""
        return ignore_error("already killed", "oardel", "--array", job)

    def release_argv(self, job: str) -> tuple[str, ...]:
        """Release a job; there is no effect if it is not held."""
        return ignore_error("not in the Hold", "oarresume", "--array", job)


def _wanted(resources: Resources) -> str:
    """Return the value of `-l`: resources from the largest part to the smallest, and the walltime."""
    parts = [_layout(resources)]
    if resources.seconds is not None:
        parts.append(f"walltime={as_clock(resources.seconds)}")
    return ",".join(part for part in parts if part)


def _layout(resources: Resources) -> str:
    nodes, gpus = resources.nodes, resources.gpus
    if nodes is None and gpus is None:
        if not requests_cores(resources):
            return ""
        if resources.tasks is not None and (resources.cores or 1) == 1:
            return f"/core={resources.tasks:d}"
        if (resources.tasks or 1) > 1:
            raise UsageError(
                "no-such-scheduling",
                "OAR cannot keep the cores of each process together on nodes it chooses itself",
                hint="Give the number of nodes, with --nodes N or in the site's settings.",
            )
    found = f"/nodes={nodes or 1:d}"
    cores = cores_of_a_node(resources)
    if gpus is not None:
        found += f"/gpu={gpus:d}"
        cores = math.ceil(cores / max(gpus, 1))
    return f"{found}/core={cores:d}" if requests_cores(resources) else found


def _records(finished: CommandResult) -> Iterator[dict[str, Any]]:
    """Yield each job of the JSON output, with its own and its array's number as text in `job` and `array`.

    The output is an object by job number, or a list; without jobs it is empty or `null`. Site scripts may print other
    lines around it.
    """
    if finished.exit_code != 0:
        raise query_failed("oarstat", finished)
    if not finished.stdout.strip():
        return
    text = finished.stdout.decode("utf-8", "replace")
    start = re.search(r"^(?:[\[{]|null\s*$)", text, re.MULTILINE)
    try:
        if start is None:
            raise ValueError("no JSON")
        found, _ = json.JSONDecoder().raw_decode(text, start.start())
    except (ValueError, RecursionError):
        raise query_failed("oarstat", finished) from None
    pairs = found.items() if isinstance(found, dict) else ((None, each) for each in found or ())
    for key, record in pairs:
        if isinstance(record, dict):
            job = str(record.get("Job_Id", record.get("id", key)))
            if job.isdecimal():
                yield {**record, "job": job, "array": str(record.get("array_id") or job)}


def _status(record: Mapping[str, Any]) -> Status:
    """Return the status; an unknown state is WAITING.

    The job's events show what ended it; `exit_code` is a wait status (768 is exit 3).
    """
    native = printable(str(record.get("state")))
    phase = _PHASES.get(native, Phase.WAITING)
    reason = printable(str(record.get("message") or ""))
    if reason.startswith("R="):
        reason = ""  # the request, and the user's priority
    if phase not in {Phase.BROKEN, Phase.ENDED}:
        return Status(phase, native, reason)
    events = {
        str(event.get("type")): printable(str(event.get("description")))
        for event in record.get("events") or ()
        if isinstance(event, dict)
    }
    for event, means in _EVENTS.items():
        if event in events:
            return Status(means, event, TIME_LIMIT if event == "WALLTIME" else events[event])
    code = record.get("exit_code")
    if isinstance(code, int) and code:
        reason = f"signal {code & 127}" if code & 127 else f"exit code {code >> 8}"
    return Status(phase, native, reason if phase is Phase.ENDED else next(iter(events.values()), reason))


SCHEDULER = Oar()
