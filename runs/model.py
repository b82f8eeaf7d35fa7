"""Model runs, sweeps and tasks: their data and states."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hibali.errors import Exit

# The tool is a child of somebody else there, whose time the job does not see.
DAEMON_CONTAINERS = frozenset({"docker", "podman"})
RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{6}-[0-9a-f]{8}")
FROM_RUN = "run:"  # how an answer, and an input's identity, begins that is the output of a run


class State(StrEnum):
    """How far a run is (design.md, "The words")."""

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
        """Whether nothing more will happen; LOST is an end that is asked about again."""
        return self in {State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST}

    @property
    def final(self) -> bool:
        """Whether the end is known: a run that is LOST may still turn up."""
        return self.ended and self is not State.LOST


@dataclass(frozen=True, slots=True)
class Output:
    """A file or folder the run should leave below its work folder; `path` is a glob where `is_pattern`."""

    id: str
    path: str
    optional: bool = False
    is_list: bool = False
    is_pattern: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What the ledger knows of one run. Times are RFC 3339; `folder` is absolute at the site, b"" before it was made.

    `after` are the runs that `--after` named; `sources` pairs of an input's id and the output of a run that answers it, as
    `run:ID/OUTPUT`. `hold` says that it was begun on hold, `released` that somebody let it go since. Its job has a
    `proxy` of its own. One that is `reused` stands
    for what was asked now, and ran before; with `kept`, its outputs stand only where they were collected.
    A run of many tasks has a `sweep`: its state is that of all of them, and `job` the latest of its jobs; one of them by
    itself has its number as `task` (runs.records). `origin` is the run that is run again by this one.

    `submitting` says that its submission was begun, `words` are those that submit it when there is room for it in the
    queue. `cancelled` is a wish, `marked` says that it stands at the site, `told` that the scheduler took it. `cleaned` is when its
    folder was removed.
    `hibali` is the version that began it, `image` is `sha256:ID` of what was started. `invocation` are the answers as they
    were given; each of `inputs` has `id`, `name`, `location` and `identity`. `collected` are the targets, `receipts` the
    receipts of those calls. `accounted` says that the scheduler's accounting was asked, and will not know more. `missing` are the ids of
    required outputs that a tool did not leave which ended with 0: such a run is FAILED.
    """

    id: str
    key: str
    pipeline: str
    pipeline_digest: str
    site: str
    name: str
    scheduler: str
    container: str
    created: str
    outputs: tuple[Output, ...] = ()
    state: State = State.PREPARED
    folder: bytes = b""
    job: str = ""
    native: str = ""
    reason: str = ""
    exit_code: int | None = None
    host: str = ""
    started: str = ""
    ended: str = ""
    submitting: bool = False
    words: tuple[str, ...] = ()
    cancelled: bool = False
    marked: bool = False
    told: bool = False
    cleaned: str = ""
    reported: bool = False
    collected: tuple[str, ...] = field(default=())
    after: tuple[str, ...] = field(default=())
    sources: tuple[tuple[str, str], ...] = field(default=())
    hold: bool = False
    proxy: bool = False
    released: bool = False
    reused: bool = False
    kept: bool = False

    sweep: Sweep | None = None
    task: int = 0
    origin: str = ""
    receipts: tuple[str, ...] = field(default=())
    hibali: str = ""
    image: str = ""
    invocation: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Mapping[str, str], ...] = field(default=())
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    accounted: bool = False
    missing: tuple[str, ...] = field(default=())

    @property
    def failure_exit(self) -> Exit:
        """The exit code that tells how this run failed; of a sweep the tasks that failed decide, not those that were cancelled."""
        missing = [self.missing] if self.state is State.FAILED else []
        if self.sweep is not None:
            tasks = self.sweep.tasks.values()
            missing = [each.missing for each in tasks if each.state is State.FAILED]
        return Exit.OUTPUTS_MISSING if missing and all(missing) else Exit.RUN_FAILED

    @property
    def on_hold(self) -> bool:
        """Whether it waits for somebody to let it go."""
        return self.hold and not self.released and not self.state.ended

    @property
    def needs(self) -> tuple[str, ...]:
        """The runs that have to succeed before this one starts."""
        taken = (text.removeprefix(FROM_RUN).partition("/")[0] for _, text in self.sources)
        return tuple(dict.fromkeys((*self.after, *(each.partition(".")[0] for each in taken))))

    @property
    def word(self) -> str:
        """How it is called in a reference: a task of a sweep by its number, too."""
        return f"{self.id}.{self.task}" if self.task else self.id

    @property
    def waits(self) -> bool:
        """Whether it is ready and waits with us for room in the queue."""
        return bool(self.words) and not self.job and not self.state.ended

    def to_record(self) -> dict[str, Any]:
        """The fields of the JSON line of kind `run`; a run that is no sweep has one task."""
        from hibali.text import path_fields

        if self.sweep is not None:
            tasks, more = sweep_record(self.sweep)
        else:
            tasks, more = [self._task_record()], {}
        return {
            "id": self.id,
            "pipeline": self.pipeline,
            "pipeline_digest": self.pipeline_digest,
            "site": self.site,
            "name": self.name,
            "scheduler": self.scheduler,
            "container": self.container,
            "state": self.state,
            "collected": bool(self.collected),
            "collected_to": list(self.collected),
            "cleaned": self.cleaned or None,
            "receipts": list(self.receipts),
            "hibali": self.hibali or None,
            "image": self.image or None,
            "created": self.created,
            **path_fields(self.folder, "folder"),
            "outputs": [
                {"id": each.id, "path": each.path, "optional": each.optional, "is_list": each.is_list}
                for each in self.outputs
            ],
            "after": list(self.after),
            "sources": [{"input": each, "from": text} for each, text in self.sources],
            "on_hold": self.on_hold,
            "reused": self.reused,
            "tasks": tasks,
            "rerun_of": self.origin or None,
            **more,
        }

    def _task_record(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "job": self.job,
            "native": self.native,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "host": self.host,
            "started": self.started or None,
            "ended": self.ended or None,
            "cpu_seconds": self.cpu_seconds,
            "memory_bytes": self.memory_bytes,
            "missing_outputs": list(self.missing),
        }

    def to_whole_record(self) -> dict[str, Any]:
        """The same with what the run was given."""
        given = {"invocation": dict(self.invocation), "inputs": [dict(each) for each in self.inputs]}
        return {**self.to_record(), **given}


def ignore_run(run: Run) -> None:
    """Nobody wants to know."""
    del run


MOST_ALLOCATIONS = 5


@dataclass(frozen=True, slots=True)
class Pilot:
    """What stays the same in every allocation of a sweep.

    `python` is the site's own, which can load the library; `cores` are those of each task, `asked` those of an allocation, None
    where the scheduler decides. There are at most so many `allocations`, one after the other. `library` is where HyperQueue lies
    at the site, "" before it was staged, and `directives` are the comment lines of each job's script.
    """

    python: str
    cores: int = 1
    asked: int | None = None
    allocations: int = MOST_ALLOCATIONS
    library: str = ""
    directives: tuple[str, ...] = ()

    def to_fields(self) -> dict[str, Any]:
        """What `read_pilot` reads."""
        return {
            "python": self.python,
            "cores": self.cores,
            "asked": self.asked,
            "allocations": self.allocations,
            "library": self.library,
            "directives": list(self.directives),
        }


def read_pilot(fields: Mapping[str, Any] | None) -> Pilot | None:
    """The pilot that a record of the ledger tells of; None for job arrays."""
    if not fields:
        return None
    return Pilot(
        fields["python"],
        fields["cores"],
        fields["asked"],
        fields["allocations"],
        fields["library"],
        tuple(fields["directives"]),
    )


@dataclass(frozen=True, slots=True)
class Task:
    """What is known of one task; times are RFC 3339, "" while unknown. `missing` as for a run."""

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
class Chunk:
    """Tasks that are one job array, by their numbers, in the order of its indices; with a pilot, those of one allocation.

    There is more than one of `jobs` only where a submission was made twice, because the first had left no trace: each
    task is then run by whichever came first.
    """

    number: int
    tasks: tuple[int, ...]
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """The tasks of a run, by number.

    `rows` have a value for each of `columns`, or None, in the order of `tasks`; `sets` are different sets of outputs, and
    `set_of` says which one a task has. With a `pilot` each chunk is what was left for one more allocation.
    """

    tasks: Mapping[int, Task]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    sets: tuple[tuple[Output, ...], ...] = ((),)
    set_of: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    pilot: Pilot | None = None

    def values(self, number: int) -> dict[str, Any]:
        """What this task answers beside the answers of all."""
        row = self.rows[self._position(number)]
        return {name: value for name, value in zip(self.columns, row, strict=True) if value is not None}

    def all_values(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The same of every task, in order."""
        for number, row in zip(self.tasks, self.rows, strict=True):
            yield (
                number,
                {name: each for name, each in zip(self.columns, row, strict=True) if each is not None},
            )

    def outputs(self) -> dict[int, tuple[Output, ...]]:
        """What each task should leave."""
        return {number: self.sets[chosen] for number, chosen in zip(self.tasks, self.set_of, strict=True)}

    def _position(self, number: int) -> int:
        return list(self.tasks).index(number)

    def places(self) -> dict[int, tuple[Chunk, int]]:
        """The chunk of each task, the last one where there are several, and its index there, from 1."""
        return {
            number: (chunk, index)
            for chunk in self.chunks
            for index, number in enumerate(chunk.tasks, start=1)
        }

    def unsent(self) -> tuple[Chunk, ...]:
        """The chunks that are not submitted and still have something to do."""
        return tuple(
            chunk
            for chunk in self.chunks
            if not chunk.jobs and not all(self.tasks[number].state.ended for number in chunk.tasks)
        )

    def unfinished(self) -> tuple[int, ...]:
        """The tasks that the last allocation of a pilot left, where another one may follow; () while it may still go on."""
        if self.pilot is None or not self.chunks or not self.chunks[-1].jobs or not self.may_continue:
            return ()
        states = {number: self.tasks[number].state for number in self.chunks[-1].tasks}
        if not all(state.ended or state is State.STAGED for state in states.values()):
            return ()
        return tuple(number for number, state in states.items() if state is State.STAGED)

    @property
    def may_continue(self) -> bool:
        """Whether one more allocation of a pilot may follow those there are."""
        return self.pilot is not None and len(self.chunks) < self.pilot.allocations

    def in_state(self, *states: State) -> tuple[int, ...]:
        """The numbers of the tasks that are in one of these."""
        return tuple(number for number, task in self.tasks.items() if task.state in states)

    def counts(self) -> dict[State, int]:
        """How many tasks there are in each state that some are in, in the order of states."""
        counted = Counter(task.state for task in self.tasks.values())
        return {state: counted[state] for state in State if counted[state]}


ACTIVE_STATES = (State.SUBMITTED, State.WAITING, State.RUNNING)
_BEFORE = (State.PREPARED, State.STAGED)
UNSUCCESSFUL_STATES = (State.FAILED, State.CANCELLED, State.LOST)


def state_of(tasks: Iterable[Task]) -> State:
    """What a run of these tasks is: RUNNING from the first that began to the last that ends, then the worst of the ends.

    LOST is the worst: it is no end that is known, and asked about again.
    """
    states = {task.state for task in tasks}
    if all(state.ended for state in states):
        ends = (State.LOST, State.FAILED, State.CANCELLED, State.SUCCEEDED)
        return next(state for state in ends if state in states)
    if State.RUNNING in states or any(state.ended for state in states):
        return State.RUNNING
    order = (State.WAITING, State.SUBMITTED, State.STAGED, State.PREPARED)
    return next(state for state in order if state in states)


def task_record_id(run_id: str, number: int) -> str:
    """How a task's own exit record calls it."""
    return f"{run_id}/{number}"


def chunk_name(run_id: str, number: int) -> str:
    """The name of a chunk's job, which no other job has."""
    return f"{run_id}-{number}"


def sweep_record(sweep: Sweep) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The items of `tasks`, and the fields that only a sweep has."""
    places = sweep.places()
    tasks = []
    for number, values in sweep.all_values():
        task = sweep.tasks[number]
        chunk, index = places.get(number, (None, 0))
        tasks.append(
            {
                "number": number,
                "values": values,
                "state": task.state,
                "job": chunk.jobs[0] if chunk is not None and chunk.jobs else "",
                "index": index,
                "native": task.native,
                "reason": task.reason,
                "exit_code": task.exit_code,
                "host": task.host,
                "started": task.started or None,
                "ended": task.ended or None,
                "cpu_seconds": task.cpu_seconds,
                "memory_bytes": task.memory_bytes,
                "missing_outputs": list(task.missing),
            }
        )
    pilot = None
    if sweep.pilot is not None:
        pilot = {
            "allocations": sum(bool(chunk.jobs) for chunk in sweep.chunks),
            "most": sweep.pilot.allocations,
        }
    counts = {str(state): count for state, count in sweep.counts().items()}
    return tasks, {"counts": counts, "pilot": pilot}


@dataclass(frozen=True, slots=True)
class Input:
    """One file or folder that an invocation names: `number` counts all of them from 0, `text` is as written.

    `name` is the last component, which the tool sees too: many tools decide by it. `source` is where it lies
    at the site, absolute, "" while unknown; `in_place` says that this is the user's own copy there.
    """

    id: str
    number: int
    text: str
    name: str = "input"
    in_place: bool = False
    source: str = ""


Key = tuple[str, int]  # a run's id, and the number of its task; 0 for a run that is no sweep
