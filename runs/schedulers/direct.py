"""No scheduler: a process at the site in a session of its own, which survives our leaving.

A job's id is PID:STARTTICKS:BOOT:HOST, where STARTTICKS is field 22 of /proc/PID/stat (proc(5)) and BOOT the
head of the boot id, so that neither a reused pid nor a reboot nor another login node is taken for the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from hibali.errors import TryLaterError, UsageError
from hibali.text import printable
from runs.scheduler import (
    GONE,
    Answer,
    Job,
    KeepsNoAccounts,
    NotSubmitted,
    Phase,
    Resources,
    Status,
    Submitted,
    Unclear,
    check_job_id,
    task_number,
)
from runs.schedulers.batch_words import cores_of_a_node
from runs.schedulers.direct_launch import CANCEL, LAUNCH, LEADER, RELEASE, STATUS
from transfers.far import Finished


class Direct(KeepsNoAccounts):
    """A process instead of a job: what it waits for, and how long it may take, it looks after itself."""

    name = "direct"

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """`#DIRECT` lines: what a task of an array needs of the processors, and when a job is told to end.

        There is nobody to give anything else, so whatever else is asked for is left out.
        """
        options = []
        cores = cores_of_a_node(resources)
        if cores > 1:
            options.append(f"--cores={cores:d}")
        if resources.seconds is not None:
            options.append(f"--time={max(resources.seconds, 1):d}")
        return tuple(f"#DIRECT {option}" for option in options)

    def submit_words(self, job: Job) -> tuple[str, ...]:
        """Constant scripts, and the run's folder among their arguments."""
        for each in job.after:
            if each.count(":") != 3 or check_job_id(each) is None:
                raise UsageError(
                    "bad-job", "this is no job of a site without a scheduler", about=printable(each)
                )
        folder = job.script.rpartition("/")[0]
        hold = "hold" if job.hold else ""
        return ("/bin/sh", "-c", LAUNCH, job.name, LEADER, folder, f"{job.tasks:d}", hold, *job.after)

    def task_job(self, job: str, index: int) -> str:
        """The process that leads an array ends with the last of its tasks (see runs.scheduler.WaitsForTasks)."""
        del index
        return job

    def read_submit(self, finished: Finished) -> Answer:
        """The launcher's last word is the job's id."""
        words = finished.stdout.decode("ascii", "replace").split()
        job = check_job_id(words[-1]) if words else None
        if finished.exit_code == 0 and job is not None and job.count(":") == 3:
            return Submitted(job)
        said = printable((finished.stdout + finished.stderr).strip()[-500:])
        if finished.exit_code in {65, 66, 67, 127}:
            return NotSubmitted(
                UsageError(
                    "no-start",
                    f"the process could not be started at the site: {said}",
                    hint="`direct` needs a Linux site with /bin/sh, setsid and /proc.",
                )
            )
        return Unclear(said or f"the launcher ended with {finished.exit_code}")

    def status_words(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """One shell looks at all of them."""
        return ("/bin/sh", "-c", STATUS, "hibali", *jobs)

    def read_status(self, finished: Finished, jobs: Sequence[str]) -> Mapping[str, Status]:
        """A process that is not there is GONE: its exit record tells how it went."""
        found = dict.fromkeys(jobs, GONE)
        for job, word, rest in _told(finished):
            if job in found:
                found[job] = _status(word, rest)
        return found

    def read_tasks(self, finished: Finished, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """Known while the process that runs them is there; later their exit records are all there is."""
        found: dict[str, dict[int, Status]] = {job: {} for job in jobs}
        for job, word, rest in _told(finished):
            of, _, marked = rest.partition(" ")
            total, _, marked = marked.partition(" ")
            count = task_number(total)
            if job in found and (word, of) == ("running", "of") and count is not None:
                tasks = found[job]
                tasks.update(dict.fromkeys(range(1, count + 1), Status(Phase.WAITING, "waiting")))
                for mark in marked.split():
                    over, number = mark.endswith("."), task_number(mark[:-1])
                    if number is not None:
                        tasks[number] = (
                            Status(Phase.ENDED, "over") if over else Status(Phase.RUNNING, "running")
                        )
        return found

    def start_words(self) -> tuple[str, ...]:
        """Nothing waits."""
        return ()

    def read_start(self, finished: Finished, now: datetime) -> float | None:
        """Never asked."""
        del finished, now
        return 0.0

    def lookup_words(self, name: str) -> tuple[str, ...]:
        """Nobody to ask: what the job wrote into `started` is all there is."""
        del name
        return ()

    def read_lookup(self, finished: Finished, user: str) -> str | None:
        """Never asked."""
        del finished, user
        return None

    def cancel_words(self, job: str) -> tuple[str, ...]:
        """All of its process group, for which it has five seconds."""
        return ("/bin/sh", "-c", CANCEL, "hibali", job)

    def release_words(self, job: str) -> tuple[str, ...]:
        """The process looks for a file in its folder."""
        return ("/bin/sh", "-c", RELEASE, "hibali", job)


def _told(finished: Finished) -> list[tuple[str, str, str]]:
    """The id, the word and the rest of each line."""
    if finished.exit_code != 0:
        raise TryLaterError(
            "scheduler-silent",
            f"the site did not list its processes: {printable(finished.stderr[-500:])}",
        )
    lines = (line.split(" ", 2) for line in finished.stdout.decode("ascii", "replace").splitlines())
    return [(parts[0], parts[1], parts[2] if len(parts) > 2 else "") for parts in lines if len(parts) > 1]


def _status(word: str, rest: str) -> Status:
    if word == "running":
        return Status(Phase.RUNNING, "running")
    if word == "queued":
        return Status(Phase.WAITING, "queued", printable(rest))
    if word == "elsewhere":
        return Status(Phase.ELSEWHERE, "elsewhere", "the run was started on another host of the site")
    return GONE


SCHEDULER = Direct()
