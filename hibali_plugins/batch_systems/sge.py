"""Run jobs in Grid Engine: Son of Grid Engine 8.1, Univa, Altair (qsub, qstat, qacct, qdel, qrls).

`qstat` forgets a job at its end; qacct then reads a file that is not readable on every login node.
States are those of the man page qstat(1), failures those of sge_status(5).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from hibali import documents
from hibali.errors import TryLaterError, UsageError
from hibali.text import printable
from runs.schedulers.base import (
    UNKNOWN,
    Job,
    JobVariables,
    Phase,
    Resources,
    Scheduler,
    Status,
    SubmitResult,
    Submitting,
    check_directive,
    check_number,
    cores_of_a_node,
    has_option,
    ignore_error,
    placement_options,
    query_failed,
    text_lines,
)
from transfers.remote.host import CommandResult

_SUBMITTING = Submitting(
    program="qsub",
    system="Grid Engine",
    unclear=re.compile(rb"failed receiving gdi request|got read error|got select timeout", re.IGNORECASE),
    later=re.compile(
        rb"unable to (?:send message to|contact) qmaster|got select error|connection refused|commlib error"
        rb"|job rejected: (?:only|you already have|there are already)|max_u?_?jobs|try again later",
        re.IGNORECASE,
    ),
)
_ID_LINE = re.compile(r'(?:Your job(?:-array)? )?([0-9]{1,18})(?:\.[0-9:-]+)?(?: \(".*)?')
_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MOST_TASKS = 1_000_000
_WARNING_SECONDS = 30  # a job gets a warning signal this long before SIGKILL
_AFTER = "HIBALI_AFTER"  # runs.script reads it, because -hold_jid also waits for jobs that fail

# `qacct -j` takes one job at a time.
_ACCOUNTS = r"""
for job; do qacct -j "$job" && found=1; done
[ -n "${found:-}" ]
"""


class Sge(Scheduler):
    """Submit with qsub, poll with qstat, and read accounting from qacct: Grid Engine."""

    name = "sge"
    programs = ("qsub", "qstat", "qdel")
    commands = ("qsub", "qstat", "qacct", "qdel", "qrls", "qhost", "qconf")
    variables = JobVariables(
        job=("JOB_ID",), array=("JOB_ID",), index=("SGE_TASK_ID",), cores=("NSLOTS",), prefixes=("SGE_",)
    )

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """Return `#$` lines. Several cores need a parallel environment, whose name depends on the site: `smp` unless a
        directive `-pe NAME` names another.
        """
        options = placement_options(resources, "-A ", "-q ")
        if resources.reservation is not None:
            options.append(f"-ar {check_number(resources.reservation, 'the reservation')}")
        if resources.seconds is not None:
            options += _times(resources.seconds)
        if resources.gpus is not None:
            options.append(f"-l gpu={resources.gpus:d}")
        if resources.memory_megabytes is not None:  # of a slot, which is a core
            of_a_core = math.ceil(resources.memory_megabytes / cores_of_a_node(resources))
            options.append(f"-l h_vmem={of_a_core:d}M")
        environment, others = _environment(resources)
        options += environment
        options += [check_directive(text) for text in others]
        return tuple(f"#$ {option}" for option in options)

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """Use -S, because queues may use csh; -notify, because SIGKILL comes without a warning otherwise."""
        folder = job.script.rpartition("/")[0]
        options = ["-t", f"1-{job.tasks:d}"] if job.tasks else []
        if job.after:
            numbers = [check_number(each, "a job") for each in job.after]
            options += ["-hold_jid", ",".join(numbers), "-v", f"{_AFTER}={'/'.join(numbers)}"]
        if job.hold:
            options.append("-h")
        output = ["-o", "scheduler.log" if not job.tasks else "/dev/null", "-j", "y"]
        leading = ["-terse", "-N", job_name(job.name), "-wd", folder, *output, "-S", "/bin/sh", "-r", "n"]
        return ("qsub", *leading, "-notify", *options, job.script)

    def read_submit(self, finished: CommandResult) -> SubmitResult:
        """Parse the number from -terse, which adds an array's range, as in `12.1-10:1`."""
        found = [match[1] for line in text_lines(finished.stdout) if (match := _ID_LINE.fullmatch(line))]
        return _SUBMITTING.read(finished, found[-1] if found else None)

    def status_argv(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """Query all of the account's jobs, each waiting task by itself; `qstat -j` shows no states."""
        del jobs
        return ("qstat", "-g", "d", "-xml")

    def read_status(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Status]:
        """Parse the jobs; one that is not listed has ended, or never existed."""
        found = dict.fromkeys(jobs, UNKNOWN)
        for record in _listed(finished):
            if record.get("JB_job_number") in found:
                found[record["JB_job_number"]] = _status(record.get("state", ""))
        return found

    def read_tasks(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """Parse the tasks; waiting ones may be listed as a range."""
        found: dict[str, dict[int, Status]] = {job: {} for job in jobs}
        for record in _listed(finished):
            if record.get("JB_job_number") in found:
                status = _status(record.get("state", ""))
                numbers = found[record["JB_job_number"]]
                numbers.update((number, status) for number in _numbers(record.get("tasks", "")))
        return found

    def lookup_argv(self, name: str) -> tuple[str, ...]:
        """Query by name; names are accepted in place of numbers."""
        return ("qstat", "-j", job_name(name))

    def read_lookup(self, finished: CommandResult, user: str) -> str | None:
        """Return only a job of the user, because other users' jobs may have the same name."""
        messages = finished.stderr + finished.stdout
        if b"jobs do not exist" in messages:
            return None
        fields = [line.partition(":") for line in text_lines(finished.stdout)]
        number = ""
        for name, _, value in fields if finished.exit_code == 0 else ():
            if name == "job_number":
                number = value.strip()
            if name == "owner" and value.strip() == user and number.isdecimal():
                return number
        if not number:
            raise query_failed("qstat", finished)
        return None

    def accounting_argv(self, jobs: Sequence[str], run: str, since: str) -> tuple[str, ...]:
        """Return one qacct for each job, because it takes one at a time."""
        del since
        return ("/bin/sh", "-c", _ACCOUNTS, "hibali", *(jobs or (job_name(run),)))

    def task_names(self, job: str, index: int) -> tuple[str, ...]:
        """Name a task as this module reads qacct."""
        return (f"{job}.{index}",)

    def read_accounting(self, finished: CommandResult) -> Mapping[str, Status] | None:
        """Parse the last record of each job: a restarted one has several."""
        found = {}
        for block in re.split(r"^=+\s*$", finished.stdout.decode("utf-8", "replace"), flags=re.MULTILINE):
            parts = (line.strip().partition(" ") for line in block.splitlines())
            fields = {name: value.strip() for name, _, value in parts}
            job = fields.get("jobnumber", "")
            if job.isdecimal():
                found[job] = _accounted(fields)
        return found or None

    def cancel_argv(self, job: str) -> tuple[str, ...]:
        """End a job; an ended one no longer exists."""
        return ignore_error("does not exist|already in deletion", "qdel", job)

    def release_argv(self, job: str) -> tuple[str, ...]:
        """Release the user's hold of all tasks; no effect on a job that is not held."""
        return ("qrls", job)


def job_name(run: str) -> str:
    """Return the run's id with a prefix of seven letters, because a name may not begin with a digit."""
    return f"hibali-{run}"


def _times(seconds: int) -> list[str]:
    """Return the time limit, and the time of the signal before it."""
    limit = max(seconds, 1)
    warning = min(_WARNING_SECONDS, limit // 10)
    return [f"-l h_rt={limit:d}", *([f"-l s_rt={limit - warning:d}"] if warning else ())]


def _environment(resources: Resources) -> tuple[list[str], list[str]]:
    """Return the parallel environment with its slots, and the site's other directives."""
    named = [text for text in resources.directives if re.fullmatch(r"-pe +[A-Za-z0-9_.*-]+ *", text)]
    others = [text for text in resources.directives if text not in named]
    slots = cores_of_a_node(resources) * (resources.nodes or 1)
    if has_option(resources, "-pe ") and not named:
        return [], others  # the directive has the number of slots, too
    if named:
        return [f"{check_directive(named[0]).rstrip()} {slots:d}"], others
    if (resources.nodes or 1) > 1:
        raise UsageError(
            "no-such-scheduling",
            "Grid Engine spreads a job over nodes by a parallel environment, whose name differs from site to site",
            hint='Name it in the site\'s [scheduler] directives, as "-pe NAME" (`qconf -spl` lists them).',
        )
    return ([f"-pe smp {slots:d}"] if slots > 1 else []), others


def _listed(finished: CommandResult) -> Iterator[dict[str, str]]:
    """Yield the fields of each job from `qstat -xml`."""
    if finished.exit_code != 0:
        raise query_failed("qstat", finished)
    start = finished.stdout.find(b"<?xml")
    if start < 0:
        raise query_failed("qstat", finished)
    try:
        root = documents.parse(finished.stdout[start:], "qstat")
    except TryLaterError:
        raise query_failed("qstat", finished) from None
    for element in root.iter("job_list"):
        yield {child.tag: (child.text or "").strip() for child in element}


def _numbers(text: str) -> Iterator[int]:
    """Yield the task numbers of `3`, `3-10:1`, `1,3-5:2`."""
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match:
            first, step = int(match[1]), int(match[3] or 1)
            last = min(int(match[2] or first), _MOST_TASKS)
            yield from range(first, last + 1, max(step, 1))


def _status(native: str) -> Status:
    """Parse combined letters: `hqw` waits on hold, `dr` runs and is being deleted, `Eqw` failed to start."""
    shown = printable(native)
    if "E" in native:
        return Status(Phase.BROKEN, shown, "Grid Engine could not start the job (qstat -j says why)")
    if "q" in native or "w" in native:
        return Status(Phase.WAITING, shown, "on hold" if "h" in native else "")
    if "z" in native:
        return Status(Phase.ENDED, shown)
    return Status(Phase.RUNNING if set(native) & set("rtRsSTd") else Phase.WAITING, shown)


def _accounted(fields: Mapping[str, str]) -> Status:
    """Parse `failed`: 0, or a number and its meaning; 100 is a job that a signal ended."""
    failed, _, why = (part.strip() for part in fields.get("failed", "").partition(":"))
    code = fields.get("exit_status", "").split(" ", 1)[0].strip()
    reason = printable(why or ("" if code in {"", "0"} else f"exit code {code}"))
    number = failed.split(" ", 1)[0]
    if fields.get("deleted_by", "NONE") not in {"NONE", "(none)", ""}:
        return Status(Phase.CANCELLED, "deleted", f"deleted by {printable(fields['deleted_by'])}")
    if number in {"37", "44", "100"}:  # qmaster or execd enforced a limit; ended by a signal
        return Status(Phase.KILLED, f"failed {number}", reason)
    if number == "0":
        return Status(Phase.ENDED, "exited", reason)
    return Status(Phase.BROKEN, f"failed {printable(failed)}", reason)


SCHEDULER = Sge()
