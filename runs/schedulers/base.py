"""Define a scheduler: its commands as argument lists, and how to parse their output."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from hibali.errors import HibaliError, TryLaterError, UsageError
from hibali.plugins import load
from hibali.text import printable
from transfers.remote.host import Finished

JOB_ID = re.compile(r"[A-Za-z0-9][][A-Za-z0-9._:+-]{0,127}")  # PBS writes arrays as 12[].server


class Phase(StrEnum):
    """What a scheduler's own word says about a job, before anybody has read its exit record.

    ENDED says only that it is over; GONE that the scheduler does not know it any more; BROKEN that the
    machine failed it; ELSEWHERE that the one asked cannot see it.
    """

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    CANCELLED = "cancelled"
    KILLED = "killed"
    BROKEN = "broken"
    GONE = "gone"
    ELSEWHERE = "elsewhere"

    @property
    def queued(self) -> bool:
        """Whether the job is still to be waited for."""
        return self in {Phase.WAITING, Phase.RUNNING, Phase.ELSEWHERE}


@dataclass(frozen=True, slots=True)
class Status:
    """One job as its scheduler sees it: the phase, the scheduler's own word, and its reason if it gave one.

    `cpu_seconds` of all its processes and the peak of `memory_bytes` are there where accounting knows them.
    """

    phase: Phase
    native: str
    reason: str = ""
    cpu_seconds: float | None = None
    memory_bytes: int | None = None


GONE = Status(Phase.GONE, "")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a job asks for, typed; None leaves it to the scheduler. `directives` are the site's own words.

    `tasks` are processes that an MPI launcher starts, `cores` those of each; memory and `gpus` are those of a node. `own` are
    the settings that only this scheduler has (`Scheduler.settings`).
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


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be submitted: a script by its absolute path, from its own folder, under a name that only one job has.

    `tasks` is how many a job array has, numbered from 1; 0 for a job that is no array. `after` are the ids of jobs
    that have to end well first; a `hold` keeps it back until somebody releases it. The `comment` is kept with the job
    where the scheduler has a place for one.
    """

    name: str
    script: str
    tasks: int = 0
    after: tuple[str, ...] = ()
    hold: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The scheduler took the job, under this id."""

    job: str


@dataclass(frozen=True, slots=True)
class NotSubmitted:
    """The scheduler certainly did not take the job; `error` says why and whether later may help."""

    error: HibaliError


@dataclass(frozen=True, slots=True)
class Unclear:
    """Nobody can say from the answer whether the job was taken: look it up, do not repeat."""

    reason: str


Answer = Submitted | NotSubmitted | Unclear


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[A-Za-z0-9_-]+\]\*)?")


@dataclass(frozen=True, slots=True)
class JobVariables:
    """The environment variables by which a job learns of itself; of several names the first that is set counts.

    Attributes:
        job: The id of the job, as the scheduler's commands take it.
        array: The id of the job array that the job is a task of.
        index: The number of this task, from 1.
        folder: Where the job was submitted from, if it may begin elsewhere.
        prefixes: How the names of its variables begin; a pipeline may not set these.
        launched: Basic regular expressions of the names by which its launcher tells a task which one it is.
    """

    job: tuple[str, ...] = ()
    array: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    folder: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    launched: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what could be more than a name in a job script (S9)."""
        for name in (*self.job, *self.array, *self.index, *self.folder, *self.prefixes):
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a variable")
        for pattern in self.launched:
            if not _VARIABLES.fullmatch(pattern):
                raise ValueError(f"{pattern!r} is not a pattern for names of variables")


class Scheduler(ABC):
    """Text and values in, text and values out: no clock, no processes, no files.

    Every `*_words` method returns one command line as words, without shell syntax; every `read_*` method
    gets how that command finished. `lookup_argv`, `accounting_argv` may return () where there is no such
    question. `read_*` raise `TryLaterError` when the scheduler did not answer.

    Attributes:
        name: What [scheduler] calls it.
        settings: Its own keys of [scheduler], a class made by `hibali.config.schema.table`; `Resources.own` is an object of it, or None
            where the site gives none of them.
        programs: The programs that have to be there, the main one first.
        commands: Other programs that its command lines start; `sites usage` counts all of them.
        launcher: What starts several tasks of a job where the site names nothing.
        variables: By which a job learns of itself.
    """

    name: ClassVar[str]
    settings: ClassVar[type | None] = None
    programs: ClassVar[tuple[str, ...]] = ()
    commands: ClassVar[tuple[str, ...]] = ()
    launcher: ClassVar[tuple[str, ...]] = ()
    variables: ClassVar[JobVariables] = JobVariables()

    @abstractmethod
    def directives(self, resources: Resources) -> tuple[str, ...]:
        """The comment lines for the head of the job script; raises `UsageError` for what cannot be a directive."""

    @abstractmethod
    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """Submit it; raises `UsageError` for what this scheduler has no word for."""

    @abstractmethod
    def read_submit(self, finished: Finished) -> Answer:
        """Whether the job was taken."""

    @abstractmethod
    def status_argv(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """Ask for all these jobs at once."""

    @abstractmethod
    def read_status(self, finished: Finished, jobs: Sequence[str]) -> Mapping[str, Status]:
        """A status for each of `jobs`; `GONE` where the scheduler does not know it any more."""

    @abstractmethod
    def read_tasks(self, finished: Finished, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """The same answer read for job arrays: by job, a status for each task that the scheduler still knows."""

    @abstractmethod
    def lookup_argv(self, name: str) -> tuple[str, ...]:
        """Ask which jobs carry this name."""

    @abstractmethod
    def read_lookup(self, finished: Finished, user: str) -> str | None:
        """The first such job of `user`, or None."""

    @abstractmethod
    def cancel_argv(self, job: str) -> tuple[str, ...]:
        """End the job, of an array all tasks; one that is over already is no failure."""

    @abstractmethod
    def release_argv(self, job: str) -> tuple[str, ...]:
        """Let go a job that was submitted with `hold`."""

    def accounting_argv(self, jobs: Sequence[str], run: str, since: str) -> tuple[str, ...]:
        """Ask the accounting for `jobs`, or for the jobs named `run` when `jobs` is empty, since the date `YYYY-MM-DD`.

        () where there are no accounts that a program can read: they are never asked.
        """
        del jobs, run, since
        return ()

    def read_accounting(self, finished: Finished) -> Mapping[str, Status] | None:
        """What it knows, by job id; None where accounting is off or silent."""
        del finished
        return None

    def task_names(self, job: str, index: int) -> tuple[str, ...]:
        """How `read_accounting` may name a task of a job array."""
        return (f"{job}_{index}",)

    def start_argv(self) -> tuple[str, ...] | None:
        """Ask when the job script on standard input would start; () where every job starts at once, None where nobody can tell."""
        return None

    def read_start(self, finished: Finished, now: datetime) -> float | None:
        """Seconds from `now` on; None where the answer does not tell. Raises what it refuses such a job with."""
        del finished, now
        return None

    def warning_directives(self, seconds: int) -> tuple[str, ...]:
        """Comment lines that have the job script, and nothing else, sent TERM so long before the limit; () where that cannot be."""
        del seconds
        return ()

    def task_job(self, job: str, index: int) -> str | None:
        """What `Job.after` says for a task of a job array.

        The id of the array where only all of them can be waited for; None where a job cannot wait for an array.
        """
        del job, index
        return None

    def array_limit_argv(self) -> tuple[str, ...]:
        """Ask how large a job array may be; () where nobody can tell."""
        return ()

    def read_array_limit(self, finished: Finished) -> int | None:
        """The largest number of tasks of one array, numbered from 1; None where the answer does not tell."""
        del finished
        return None


def load_scheduler(word: str) -> Scheduler:
    """The scheduler a site names; raises `UsageError` for an unknown word."""
    module = load("runs.schedulers", word)
    found: Scheduler = getattr(module, "SCHEDULER", module)
    return found


def check_job_id(text: str) -> str | None:
    """The text if it can be a job id, else None: it will be a word of later command lines."""
    return text if JOB_ID.fullmatch(text) else None


_TASK = re.compile(r"[0-9]{1,7}", re.ASCII)
MOST_TASKS = 1_000_000  # of one array; what a scheduler tells beyond that is not believed


def task_number(text: str) -> int | None:
    """The number of a task of an array as a scheduler tells it, from 0 on; None for what cannot be one."""
    number = int(text) if _TASK.fullmatch(text) else -1
    return number if 0 <= number <= MOST_TASKS else None


_DIRECTIVE = re.compile(r"--?[A-Za-z][ -~]*")
_PLAIN = re.compile(r"[A-Za-z0-9_.,@:+=/%-]+")


def check_directive(text: str) -> str:
    """A site's own directive, if it is one printable line that is an option; raises `UsageError` (S9)."""
    if not _DIRECTIVE.fullmatch(text):
        raise UsageError(
            "bad-directive",
            "a directive is one line of printable ASCII that starts with a dash",
            subject=ascii(text),
            hint="Correct --directive, or `directives` in the site's [scheduler] table.",
        )
    return text


def check_plain(text: str, what: str) -> str:
    """An account or partition name; raises `UsageError` where it holds more than a name can (S9)."""
    if not _PLAIN.fullmatch(text) or text.startswith("-"):
        raise UsageError(
            "bad-directive",
            f"this cannot be the name of a {what}",
            subject=ascii(text),
            hint=f"Correct --{what}, or `{what}` in the site's [scheduler] table.",
        )
    return text


# A command that refuses because there is nothing left to do has done what it was asked for.
_UNLESS = r"""
over=$1; shift
said=$("$@" 2>&1)
code=$?
[ -z "$said" ] || printf '%s\n' "$said" >&2
[ "$code" = 0 ] || ! printf '%s\n' "$said" | grep -Eq -e "$over" || code=0
exit "$code"
"""


@dataclass(frozen=True, slots=True)
class Submitting:
    """How a system speaks of a submission: its program and name, and by what its errors are known.

    `unclear` matches where the job may have been taken all the same, `later` where asking again may help; `stopped` are
    exit codes of a program that somebody ended.
    """

    program: str
    system: str
    unclear: re.Pattern[bytes]
    later: re.Pattern[bytes]
    stopped: frozenset[int] = frozenset()

    def read(self, finished: Finished, job: str | None) -> Answer:
        """What the answer amounts to, `job` being the id found in it."""
        if job is not None and finished.exit_code == 0:
            return Submitted(job)
        told = finished.stderr + b"\n" + finished.stdout
        said = printable((finished.stderr.strip() or finished.stdout.strip())[-2000:])
        if finished.exit_code == 127:
            return NotSubmitted(
                UsageError(
                    "no-scheduler",
                    f"there is no {self.program} at the site",
                    hint="Correct [scheduler] name, or PATH of non-interactive logins there.",
                )
            )
        stopped = finished.exit_code <= 0 or finished.exit_code in self.stopped
        if stopped or job is not None or self.unclear.search(told):
            return Unclear(said or f"{self.program} gave no job id")
        if self.later.search(told):
            return NotSubmitted(
                TryLaterError("scheduler-busy", f"{self.system} did not take the job: {said}")
            )
        return NotSubmitted(
            UsageError(
                "submission-rejected",
                f"{self.system} refused the job: {said}",
                hint="Correct the site's [scheduler] table (account, partition, time, directives).",
            )
        )


def no_answer(program: str, finished: Finished) -> TryLaterError:
    """The error for a question that was not answered."""
    said = finished.stderr.strip() or finished.stdout.strip()
    return TryLaterError(
        "scheduler-silent",
        f"{program} gave no answer ({finished.exit_code}): {printable(said[-500:])}",
        hint="The run is not affected; ask again later.",
    )


def text_lines(text: bytes) -> list[str]:
    """The lines that say something, without the blanks around them."""
    return [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]


def unless(over: str, *words: str) -> tuple[str, ...]:
    """A command that also succeeds where it fails with words that match `over`, an extended regular expression."""
    return ("/bin/sh", "-c", _UNLESS, "hibali", over, *words)


def as_clock(seconds: int) -> str:
    """`H:MM:SS`, never zero: zero asks for no limit at all."""
    minutes, rest = divmod(max(seconds, 1), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def cores_of_a_node(resources: Resources) -> int:
    """How many cores of each node are asked for, at least one."""
    return math.ceil((resources.tasks or 1) * (resources.cores or 1) / (resources.nodes or 1))


def asks_for_cores(resources: Resources) -> bool:
    """Whether anything was said about processes or cores."""
    return resources.tasks is not None or resources.cores is not None


def has_option(resources: Resources, *options: str) -> bool:
    """Whether the site's own directives hold one of these options, which then stands instead of ours."""
    return any(text.startswith(options) for text in resources.directives)


def check_number(text: str, what: str) -> str:
    """Digits, where the system knows only numbers; raises `UsageError`."""
    if not (text.isascii() and text.isdecimal()):
        raise UsageError("bad-number", f"{what} is a number here", subject=ascii(text))
    return text
