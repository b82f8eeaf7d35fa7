"""Run jobs by `spool`, a scheduler of one shell: it starts each job at once and remembers it in ~/.spool."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hibali.config.schema import setting, table, text
from hibali.errors import UsageError
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
    query_failed,
    text_lines,
)
from transfers.remote.host import CommandResult

_SUBMIT = """
mkdir -p ~/.spool && cd "$2" || exit 1
SPOOL_JOB=$1 SPOOL_FOLDER=$2
export SPOOL_JOB SPOOL_FOLDER
: >~/.spool/"$1.running"
setsid sh -c 'sh ./job.sh; mv ~/.spool/"$1.running" ~/.spool/"$1.over"' spool "$1" </dev/null >/dev/null 2>&1 &
echo "spooled $1"
"""
_STATUS = (
    'for job do for word in running over; do [ ! -e ~/.spool/"$job.$word" ] || echo "$job $word"; done; done'
)
_SUBMITTING = Submitting(
    program="sh", system="spool", unclear=re.compile(rb"timeout"), later=re.compile(rb"busy")
)
_PHASES = {"running": Phase.RUNNING, "over": Phase.ENDED}


@table
class SpoolSettings:
    """The keys of [scheduler] that only spool has."""

    queue: str = setting(text(r"[a-z]+", "a queue"), default="day", doc="the queue that jobs go to")


class Spool(Scheduler):
    """Text and values in, text and values out."""

    name = "spool"
    settings = SpoolSettings
    programs = ("setsid",)
    variables = JobVariables(job=("SPOOL_JOB",), folder=("SPOOL_FOLDER",))

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """See Scheduler."""
        return (f"#SPOOL --queue={resources.own.queue}",) if resources.own is not None else ()

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """See Scheduler."""
        if job.tasks or job.after or job.hold:
            raise UsageError("not-supported", "spool has no job arrays, and jobs wait for nothing")
        return ("/bin/sh", "-c", _SUBMIT, "spool", job.name, job.script.rpartition("/")[0])

    def read_submit(self, finished: CommandResult) -> SubmitResult:
        """See Scheduler."""
        words = [line.split() for line in text_lines(finished.stdout)]
        job = next((word[1] for word in words if len(word) == 2 and word[0] == "spooled"), None)
        return _SUBMITTING.read(finished, job)

    def status_argv(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """See Scheduler."""
        return ("/bin/sh", "-c", _STATUS, "spool", *jobs)

    def read_status(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Status]:
        """See Scheduler."""
        if finished.exit_code != 0:
            raise query_failed("spool", finished)
        found = dict.fromkeys(jobs, UNKNOWN)
        for line in text_lines(finished.stdout):
            job, _, word = line.partition(" ")
            if job not in found or word not in _PHASES:
                raise query_failed("spool", finished)
            found[job] = Status(_PHASES[word], word)
        return found

    def read_tasks(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """See Scheduler: there are no job arrays."""
        del finished
        return {job: {} for job in jobs}

    def lookup_argv(self, name: str) -> tuple[str, ...]:
        """See Scheduler: a job is called like its run."""
        return self.status_argv([name])

    def read_lookup(self, finished: CommandResult, user: str) -> str | None:
        """See Scheduler."""
        del user
        if finished.exit_code != 0:
            raise query_failed("spool", finished)
        found = [line.partition(" ") for line in text_lines(finished.stdout)]
        if any(word not in _PHASES for _, _, word in found):
            raise query_failed("spool", finished)
        return next((job for job, _, _ in found), None)

    def cancel_argv(self, job: str) -> tuple[str, ...]:
        """See Scheduler: jobs run to their end."""
        return ("true", job)

    def release_argv(self, job: str) -> tuple[str, ...]:
        """See Scheduler: nothing is held."""
        return ("true", job)


SCHEDULER = Spool()
