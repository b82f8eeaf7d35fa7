"""Run jobs in IBM Spectrum LSF 10.1 (bsub, bjobs, bkill, bresume); tested on recorded output only.

`bjobs -a` lists jobs for an hour after their end (CLEAN_PERIOD). States are those of bjobs(1), reasons those of its
`exit_reason`. bsub reads directives only from a script on its standard input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

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
    check_directive,
    check_number,
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

_SUBMIT = 'script=$1; shift; exec bsub "$@" <"$script"'
_SUBMITTING = Submitting(
    program="bsub",
    system="LSF",
    unclear=re.compile(rb"timed? ?out|connection reset|end of file", re.IGNORECASE),
    later=re.compile(
        rb"LSF is down|please wait|cannot connect|connection refused|(?:job|pending job).{0,20}(?:limit|threshold)"
        rb"|batch daemon not responding|communication error",
        re.IGNORECASE,
    ),
)
_ACCEPTED = re.compile(r"Job <([0-9]{1,18})> is submitted to (?:default )?queue <[^>]*>\.?")
_FIELDS = "jobid jobindex stat user exit_code exit_reason delimiter='|'"
_LINE = re.compile(r"([0-9]{1,18})(?:\[[0-9]{1,18}\])?\|([0-9-]+)\|([A-Z]+)\|([^|]*)\|([^|]*)\|(.*)")
_NONE = re.compile(rb"is not found|No (?:unfinished |matching )?job found", re.IGNORECASE)
_PHASES = {
    "DONE": Phase.ENDED,
    "EXIT": Phase.ENDED,
    "PEND": Phase.WAITING,
    "PROV": Phase.WAITING,
    "PSUSP": Phase.WAITING,
    "RUN": Phase.RUNNING,
    "SSUSP": Phase.RUNNING,
    "UNKWN": Phase.RUNNING,
    "USUSP": Phase.RUNNING,
    "WAIT": Phase.WAITING,
    "ZOMBI": Phase.BROKEN,
}
_KILLED = (
    "TERM_CPULIMIT",
    "TERM_DEADLINE",
    "TERM_MEMLIMIT",
    "TERM_PROCESSLIMIT",
    "TERM_RUNLIMIT",
    "TERM_SWAP",
    "TERM_THREADLIMIT",
)
_CANCELLED = ("TERM_ADMIN", "TERM_FORCE_ADMIN", "TERM_FORCE_OWNER", "TERM_OWNER", "TERM_ORPHAN_SYSTEM")
_BROKEN = ("TERM_CWD_NOTEXIST", "TERM_LOAD", "TERM_PREEMPT", "TERM_REQUEUE_ADMIN", "TERM_REQUEUE_OWNER")


class Lsf(Scheduler):  # no accounting: the output of bacct has no stable format
    """Submit with bsub, and poll with bjobs."""

    name = "lsf"
    programs = ("bsub", "bjobs", "bkill")
    commands = ("bsub", "bjobs", "bhist", "bacct", "bkill", "bresume", "bstop")
    variables = JobVariables(
        job=("LSB_JOBID",),
        array=("LSB_JOBID",),
        index=("LSB_JOBINDEX",),
        cores=("LSB_DJOB_NUMPROC",),
        prefixes=("LSB_",),
    )

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """Return `#BSUB` lines; all cores are on one node unless nodes or processes are requested."""
        options = placement_options(resources, "-P ", "-q ", "-U ")
        if resources.seconds is not None:
            minutes = max(-(-resources.seconds // 60), 1)
            options.append(f"-W {minutes // 60}:{minutes % 60:02}")
        if not has_option(resources, "-n "):
            options += _slots(resources)
        if resources.memory_megabytes is not None:
            options.append(f"-M {resources.memory_megabytes:d}MB")
        if resources.gpus is not None:  # of each host
            options.append(f'-gpu "num={resources.gpus:d}"')
        options += [check_directive(text) for text in resources.directives]
        return tuple(f"#BSUB {option}" for option in options)

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """Use -rn, because a queue may rerun jobs; -ti ends a job whose dependency failed."""
        folder = job.script.rpartition("/")[0]
        if "%" in folder:  # bsub(1), -cwd: %J, %I, %U and others are replaced, and cannot be quoted
            raise UsageError(
                "bad-work",
                "LSF replaces `%` in the folder of a job",
                subject=printable(folder),
                hint="Set another `work` folder for the site.",
            )
        name = f"{job.name}[1-{job.tasks:d}]" if job.tasks else job.name
        options = ["-H"] if job.hold else []
        if job.after:
            done = " && ".join(f"done({check_number(each, 'a job')})" for each in job.after)
            options += ["-w", done, "-ti"]
        output = "/dev/null" if job.tasks else "scheduler.log"
        beginning = ["-J", name, "-cwd", folder, "-o", output, "-rn", *options]
        return ("/bin/sh", "-c", _SUBMIT, "hibali", job.script, *beginning)

    def read_submit(self, finished: CommandResult) -> SubmitResult:
        """Parse one sentence, among output of the site's esub."""
        lines = text_lines(finished.stdout) + text_lines(finished.stderr)
        found = [match[1] for line in lines if (match := _ACCEPTED.fullmatch(line))]
        return _SUBMITTING.read(finished, found[-1] if found else None)

    def status_argv(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """Query the jobs, with one line per task of an array."""
        return ("bjobs", "-noheader", "-a", "-o", _FIELDS, *jobs)

    def read_status(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Status]:
        """Parse the lines; LSF names forgotten jobs on standard error."""
        found = dict.fromkeys(jobs, UNKNOWN)
        for job, _, status, _ in _listed(finished):
            if job in found:
                found[job] = status
        return found

    def read_tasks(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """Parse the tasks; a job that is no array has the index 0."""
        found: dict[str, dict[int, Status]] = {job: {} for job in jobs}
        for job, index, status, _ in _listed(finished):
            number = task_number(index)
            if job in found and number:
                found[job][number] = status
        return found

    def lookup_argv(self, name: str) -> tuple[str, ...]:
        """Query jobs of this account, which is LSF's default."""
        return ("bjobs", "-noheader", "-a", "-o", _FIELDS, "-J", name)

    def read_lookup(self, finished: CommandResult, user: str) -> str | None:
        """Return the user's first job."""
        own = [int(job) for job, _, _, owner in _listed(finished) if owner == user]
        return str(min(own)) if own else None

    def cancel_argv(self, job: str) -> tuple[str, ...]:
        """End a job; LSF rejects one that has ended."""
        return ignore_error("already finished|is not found|No matching job found", "bkill", job)

    def release_argv(self, job: str) -> tuple[str, ...]:
        """Release a job; bresume rejects one that is not suspended."""
        return ignore_error("not in (a )?suspended|already finished|[Nn]ot suspended", "bresume", job)


def _slots(resources: Resources) -> list[str]:
    if resources.nodes is None and not requests_cores(resources):
        return []
    of_a_node = cores_of_a_node(resources)
    found = [f"-n {of_a_node * (resources.nodes or 1):d}"]
    if resources.nodes is not None:
        found.append(f'-R "span[ptile={of_a_node:d}]"')
    elif resources.tasks is None:
        found.append('-R "span[hosts=1]"')
    elif (resources.cores or 1) > 1:
        found.append(f'-R "span[block={resources.cores:d}]"')
    return found


def _listed(finished: CommandResult) -> Iterator[tuple[str, str, Status, str]]:
    """Yield number, index, status and owner of each line; raise if it is neither a line nor "not found"."""
    lines = text_lines(finished.stdout)
    found = [match for line in lines if (match := _LINE.fullmatch(line))]
    if not found and not _NONE.search(finished.stderr + finished.stdout):
        raise query_failed("bjobs", finished)
    for match in found:
        job, index, native, owner, code, reason = match.groups()
        yield job, index, _status(native, code.strip(), reason.strip()), owner.strip()


def _status(native: str, code: str, reason: str) -> Status:
    """Return the status; an unknown state is WAITING, and the reason explains an EXIT."""
    phase = _PHASES.get(native, Phase.WAITING)
    detail = "" if reason in {"", "-"} else printable(reason)
    if native == "EXIT":
        for beginning, means in (
            (_KILLED, Phase.KILLED),
            (_CANCELLED, Phase.CANCELLED),
            (_BROKEN, Phase.BROKEN),
        ):
            if detail.startswith(beginning):
                shown = detail.partition(":")[0]
                return Status(means, shown, TIME_LIMIT if shown == "TERM_RUNLIMIT" else detail)
        detail = detail or ("" if code in {"", "-", "0"} else f"exit code {printable(code)}")
    return Status(phase, native, detail)


SCHEDULER = Lsf()
