"""Model runs, sweeps and tasks: their data and states."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from hibali.errors import Exit
from hibali.events import Listener
from hibali.ledger import IDENTIFIER, LATEST
from hibali.locations import Location
from hibali.text import path_fields
from transfers.model.entry import Entry
from transfers.model.rules import Rules

# These runtimes start the tool as a child of a daemon, so that the job's own CPU time does not include it.
DAEMON_CONTAINERS = frozenset({"docker", "podman"})
RUN_ID = IDENTIFIER
_LIKE_AN_ID = re.compile(rf"[0-9a-f]{{8}}(-[0-9a-f-]*)?|{LATEST}(:.*)?", re.DOTALL)
# wider than the schema, but without characters that are special in a shell or JSON
OUTPUT_ID = re.compile(r"[A-Za-z0-9_,.-]{1,200}")
FROM_RUN = "run:"  # prefix of an input, and of an input's identity, that is the output of a run


def is_run_name(text: str) -> bool:
    """Return whether a run can be found by this name: it is neither `latest` nor like the id of another run."""
    return bool(text) and not _LIKE_AN_ID.fullmatch(text)


class State(StrEnum):
    """The state of a run or of one task of a sweep."""

    PREPARED = "PREPARED"
    STAGED = "STAGED"
    SUBMITTED = "SUBMITTED"
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"

    @property
    def ended(self) -> bool:
        """True if the run is over as far as hibali knows; a LOST run is queried again."""
        return self in {State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST}

    @property
    def final(self) -> bool:
        """True if the end is known; a LOST run may reappear."""
        return self.ended and self is not State.LOST


@dataclass(frozen=True, slots=True)
class Output:
    """A file or folder that a run should create below its work folder; `path` is a glob if `is_pattern`."""

    id: str
    path: str
    optional: bool = False
    is_list: bool = False
    is_pattern: bool = False


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The workload of a run: the pipeline, its invocation, inputs and outputs; fixed when the run is created.

    `invocation` has the values as they were given. Each of `inputs` has `id`, `name`, `location` and `identity`. `after` are the
    runs named by `--after`, `sources` pairs of an input's id and the output that it uses, as `run:ID/OUTPUT`. `origin` is the run that
    this one repeats. `version` is the version of hibali that created the run.
    """

    pipeline: str
    pipeline_digest: str
    name: str = ""
    invocation: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Mapping[str, str], ...] = ()
    outputs: tuple[Output, ...] = ()
    after: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    origin: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a run: the names of its site, scheduler and container, and its folder there.

    `folder` is absolute, b"" until it exists. `image` is the `sha256:ID` of the image that was started, "" while unknown.
    """

    site: str
    scheduler: str
    container: str
    folder: bytes = b""
    image: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """The submission of a run to the scheduler, and later requests to its job.

    `job` is the job's id, of a sweep that of its latest job, "" before the submission. `begun`: the submission was begun;
    `argv` is the command that submits the run, while it waits for a place in the queue. `hold`: the job was submitted on hold;
    `released`: the hold was removed. `proxy`: the job has a proxy of its own. `cancelled`: cancellation was requested;
    `cancel_marked`: the job can see the request at the site; `cancel_accepted`: the scheduler accepted it.
    """

    job: str = ""
    begun: bool = False
    argv: tuple[str, ...] = ()
    hold: bool = False
    released: bool = False
    proxy: bool = False
    cancelled: bool = False
    cancel_marked: bool = False
    cancel_accepted: bool = False


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run or of one task of a sweep, and how it ended.

    Times are RFC 3339, "" while unknown. `native` and `reason` are as the scheduler reports them. `missing` are the ids of required outputs
    that the tool did not create although it exited with 0: such a run is FAILED.
    """

    state: State = State.PREPARED
    native: str = ""
    reason: str = ""
    exit_code: int | None = None
    host: str = ""
    started: str = ""
    ended: str = ""
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Results:
    """The use of a run after its end.

    `collected` are the targets, `receipts` the receipts of those transfers. `accounted`: accounting was queried and has no
    more data. `reported`: the end was shown to the user. `cleaned`: when its folder was removed, "" if it was not. `reused`: the run was
    found by `--reuse`, not started by this command; with `from_copy` its outputs exist only where they were collected.
    """

    collected: tuple[str, ...] = ()
    receipts: tuple[str, ...] = ()
    accounted: bool = False
    reported: bool = False
    cleaned: str = ""
    reused: bool = False
    from_copy: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the ledger knows it.

    `created` is RFC 3339. A run of many tasks has a `sweep`; its status is that of all tasks together. The methods answer for a single run as
    for a sweep whose only task has the number 0, in the chunk 0. A single task of a sweep, as
    a run by itself, has its number as `task` (runs.records).
    """

    id: str
    key: str
    created: str
    spec: RunSpec
    placement: Placement
    submission: Submission = field(default_factory=Submission)
    status: RunStatus = field(default_factory=RunStatus)
    results: Results = field(default_factory=Results)
    sweep: Sweep | None = None
    task: int = 0

    @property
    def state(self) -> State:
        """The state of the run, of a sweep that of all its tasks together."""
        return self.status.state

    @property
    def site(self) -> str:
        """The name of the run's site."""
        return self.placement.site

    @property
    def folder(self) -> bytes:
        """The run's absolute folder at its site, b"" before it exists."""
        return self.placement.folder

    @property
    def job(self) -> str:
        """The id of the run's job, of a sweep that of the latest one, "" before the submission."""
        return self.submission.job

    @property
    def failure_exit(self) -> Exit:
        """The exit code for a failed run; of a sweep the failed tasks decide, not the cancelled ones."""
        missing = [each.missing for each in self.tasks.values() if each.state is State.FAILED]
        return Exit.OUTPUTS_MISSING if missing and all(missing) else Exit.RUN_FAILED

    @property
    def on_hold(self) -> bool:
        """True if the run waits for `hibali runs release`."""
        return self.submission.hold and not self.submission.released and not self.state.ended

    @property
    def is_withdrawn(self) -> bool:
        """True if the user cancelled the run: it has ended by that, or will."""
        submission, state = self.submission, self.state
        return submission.cancelled and (
            state is State.CANCELLED or (submission.cancel_accepted and not state.ended)
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """The ids of the runs that must succeed before this one starts."""
        sources = (text.removeprefix(FROM_RUN).partition("/")[0] for _, text in self.spec.sources)
        return tuple(dict.fromkeys((*self.spec.after, *(each.partition(".")[0] for each in sources))))

    @property
    def reference(self) -> str:
        """The id as references to outputs have it: `ID`, or `ID.NUMBER` for a task of a sweep."""
        return f"{self.id}.{self.task}" if self.task else self.id

    @property
    def waits(self) -> bool:
        """True if the run is staged and hibali has not submitted it yet, because the queue is full."""
        return bool(self.submission.argv) and not self.job and not self.state.ended

    @property
    def tasks(self) -> Mapping[int, RunStatus]:
        """The status of each task by its number; a single run is task 0."""
        return {0: self.status} if self.sweep is None else self.sweep.tasks

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The jobs of the run with their tasks; that of a single run has the number 0."""
        if self.sweep is None:
            return (Chunk(0, (0,), (self.job,) if self.job else ()),)
        return self.sweep.chunks

    def positions(self) -> dict[int, tuple[Chunk, int]]:
        """Return the chunk of each task, the last one if it is in several, and its index there, from 1."""
        return {
            number: (chunk, index)
            for chunk in self.chunks
            for index, number in enumerate(chunk.tasks, start=1)
        }

    def outputs(self) -> dict[int, tuple[Output, ...]]:
        """Return the declared outputs of each task."""
        if self.sweep is None:
            return {0: self.spec.outputs}
        sets = self.sweep.sets
        return {number: sets[index] for number, index in zip(self.tasks, self.sweep.set_of, strict=True)}

    def values(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each task with the values that only this task has."""
        if self.sweep is None:
            yield 0, {}
            return
        for number, row in zip(self.tasks, self.sweep.rows, strict=True):
            values = zip(self.sweep.columns, row, strict=True)
            yield number, {name: each for name, each in values if each is not None}

    def task_names(self) -> dict[int, str]:
        """Return the name of each task, which is its folder among collected outputs; "" for a single run."""
        if self.sweep is None:
            return {0: ""}
        return dict(zip(self.tasks, self.sweep.names or map(str, self.tasks), strict=True))

    def in_state(self, *states: State) -> tuple[int, ...]:
        """Return the numbers of the tasks in one of these states."""
        return tuple(number for number, task in self.tasks.items() if task.state in states)

    def counts(self) -> dict[State, int]:
        """Return the number of tasks in each state that occurs, in the order of `State`."""
        counted = Counter(task.state for task in self.tasks.values())
        return {state: counted[state] for state in State if counted[state]}

    def jobs(self) -> list[str]:
        """Return the ids of all jobs of the run."""
        return [job for chunk in self.chunks for job in chunk.jobs]

    def task_folder(self, number: int) -> bytes:
        """Return the folder of a task at the site, which is like that of a single run."""
        return self.folder + b"/tasks/%d" % number if number else self.folder

    def chunk_folder(self, chunk: Chunk) -> bytes:
        """Return the folder of a job at the site, with its script, marker and log."""
        return self.folder + b"/chunks/%d" % chunk.number if chunk.number else self.folder

    def record_id(self, number: int) -> str:
        """Return the name of a task in its exit record."""
        return f"{self.id}/{number}" if number else self.id

    def to_record(self) -> dict[str, Any]:
        """Return the fields of the JSON line of kind `run`; a run that is no sweep has one task."""
        spec, placement, results = self.spec, self.placement, self.results
        if self.sweep is not None:
            tasks, more = _sweep_record(self, self.sweep)
        else:
            tasks, more = [task_record(self.status, self.job)], {}
        return {
            "id": self.id,
            "pipeline": spec.pipeline,
            "pipeline_digest": spec.pipeline_digest,
            "site": placement.site,
            "name": spec.name,
            "scheduler": placement.scheduler,
            "container": placement.container,
            "state": self.state,
            "collected": bool(results.collected),
            "collected_to": list(results.collected),
            "cleaned": results.cleaned or None,
            "receipts": list(results.receipts),
            "hibali": spec.version or None,
            "image": placement.image or None,
            "created": self.created,
            **path_fields(placement.folder, "folder"),
            "outputs": [
                {"id": each.id, "path": each.path, "optional": each.optional, "is_list": each.is_list}
                for each in spec.outputs
            ],
            "after": list(spec.after),
            "sources": [{"input": each, "from": text} for each, text in spec.sources],
            "on_hold": self.on_hold,
            "reused": results.reused,
            "tasks": tasks,
            "rerun_of": spec.origin or None,
            **more,
        }

    def to_whole_record(self) -> dict[str, Any]:
        """Return the fields of `to_record` with the invocation and the inputs."""
        spec = self.spec
        return {
            **self.to_record(),
            "invocation": dict(spec.invocation),
            "inputs": [dict(each) for each in spec.inputs],
        }


def task_record(status: RunStatus, job: str, **fields: Any) -> dict[str, Any]:
    """Return one of `tasks` in the JSON line of a run; `fields` are inserted after the job."""
    return {
        "state": status.state,
        "job": job,
        **fields,
        "native": status.native,
        "reason": status.reason,
        "exit_code": status.exit_code,
        "host": status.host,
        "started": status.started or None,
        "ended": status.ended or None,
        "cpu_seconds": status.cpu_seconds,
        "memory_bytes": status.memory_bytes,
        "missing_outputs": list(status.missing),
    }


def ignore_run(run: Run) -> None:
    """Ignore the change of a run."""
    del run


MOST_ALLOCATIONS = 5


@dataclass(frozen=True, slots=True)
class Pilot:
    """The settings of every allocation of a sweep that is run by a pilot.

    `python` is the site's interpreter that can load the library. `cores` are those of each task, `asked` those of an allocation, None if
    the scheduler decides. At most so many `allocations` follow each other. `library` is the path of HyperQueue at the site, "" before
    it was staged; `directives` are the comment lines of each job script.
    """

    python: str
    cores: int = 1
    asked: int | None = None
    allocations: int = MOST_ALLOCATIONS
    library: str = ""
    directives: tuple[str, ...] = ()

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that `read_pilot` reads."""
        return {**asdict(self), "directives": list(self.directives)}


def read_pilot(fields: Mapping[str, Any] | None) -> Pilot | None:
    """Read the pilot from a record of the ledger; None for job arrays."""
    return Pilot(**{**fields, "directives": tuple(fields["directives"])}) if fields else None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The numbers of the tasks of one job array, in the order of its indices; with a pilot, those of one allocation.

    There is more than one of `jobs` only if a submission was repeated because the first left no trace: each task is then run by the
    job that starts it first.
    """

    number: int
    tasks: tuple[int, ...]
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """The tasks of a run, by number.

    `rows` have a value for each of `columns`, or None, in the order of `tasks`. `sets` are the different sets of outputs, and
    `set_of` has the index of each task's set. `names` are the names of the tasks, none if an older version began the run. With a `pilot` each chunk is one allocation, for the tasks that the previous one did not finish.
    """

    tasks: Mapping[int, RunStatus]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    sets: tuple[tuple[Output, ...], ...] = ((),)
    set_of: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    pilot: Pilot | None = None
    names: tuple[str, ...] = ()

    def unsubmitted(self) -> tuple[Chunk, ...]:
        """Return the chunks that were not submitted and have tasks that have not ended."""
        return tuple(
            chunk
            for chunk in self.chunks
            if not chunk.jobs and not all(self.tasks[number].state.ended for number in chunk.tasks)
        )

    def unfinished(self) -> tuple[int, ...]:
        """Return the tasks that the pilot's last allocation did not finish; () while it runs or if no other one may follow."""
        if self.pilot is None or not self.chunks or not self.chunks[-1].jobs or not self.may_continue:
            return ()
        states = {number: self.tasks[number].state for number in self.chunks[-1].tasks}
        if not all(state.ended or state is State.STAGED for state in states.values()):
            return ()
        return tuple(number for number, state in states.items() if state is State.STAGED)

    @property
    def may_continue(self) -> bool:
        """True if the pilot may have another allocation."""
        return self.pilot is not None and len(self.chunks) < self.pilot.allocations


UNSUCCESSFUL_STATES = (State.FAILED, State.CANCELLED, State.LOST)


def state_of(tasks: Iterable[RunStatus]) -> State:
    """Return the state of a run of these tasks: RUNNING from the first start to the last end, then the worst end.

    LOST is the worst: the end is not known, and is queried again.
    """
    states = {task.state for task in tasks}
    if all(state.ended for state in states):
        order = (State.LOST, State.FAILED, State.CANCELLED, State.SUCCEEDED)
    elif State.RUNNING in states or any(state.ended for state in states):
        return State.RUNNING
    else:
        order = (State.WAITING, State.SUBMITTED, State.STAGED, State.PREPARED)
    return next(state for state in order if state in states)


def chunk_name(run_id: str, number: int) -> str:
    """Return the unique name of a chunk's job."""
    return f"{run_id}-{number}"


def _sweep_record(run: Run, sweep: Sweep) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the items of `tasks`, and the fields that only a sweep has."""
    positions = run.positions()
    tasks = []
    for number, values in run.values():
        chunk, index = positions.get(number, (None, 0))
        job = chunk.jobs[0] if chunk is not None and chunk.jobs else ""
        tasks.append(
            {"number": number, "values": values, **task_record(sweep.tasks[number], job, index=index)}
        )
    pilot = None
    if sweep.pilot is not None:
        submitted = sum(bool(chunk.jobs) for chunk in sweep.chunks)
        pilot = {"allocations": submitted, "most": sweep.pilot.allocations}
    counts = {str(state): count for state, count in run.counts().items()}
    return tasks, {"counts": counts, "pilot": pilot}


@dataclass(frozen=True, slots=True)
class Input:
    """One file or folder that an invocation names.

    `number` counts the files of the invocation from 0, `text` is the path as written. `name` is the last component of the path, which
    the tool sees too, because many tools depend on it. `source` is the absolute path at the site, "" while unknown; `in_place`
    means that the tool reads the user's own copy there. `below` is the path in it of the folder that the tool gets, "" for itself.
    """

    id: str
    number: int
    text: str
    name: str = "input"
    in_place: bool = False
    source: str = ""
    below: str = ""


Key = tuple[str, int]  # a run's id and the number of its task, 0 for a run that is no sweep


class Carrier(Protocol):
    """Copies files from one location to another: `Synchroniser`, or a double in tests."""

    def copy(self, source: Location, target: Location, on_event: Listener, rules: Rules) -> None:
        """Copy a file, or what the rules select of a folder, and verify it, or raise."""

    def entries(self, location: Location) -> Iterable[Entry]:
        """List everything below a folder, in order."""
