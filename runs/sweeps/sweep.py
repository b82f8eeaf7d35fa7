"""A run of many tasks: what they answer, in which jobs they go, and what the ledger's records make of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hibali.errors import NotFoundError, UsageError
from hibali.ranges import read_ranges, write_ranges
from hibali.text import path_from_fields
from runs.pilot.pilot import Pilot, read_pilot
from runs.run import BY_OTHERS, Output, Run, State
from runs.verdict import Seen


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


UNDER_WAY = (State.SUBMITTED, State.WAITING, State.RUNNING)
_BEFORE = (State.PREPARED, State.STAGED)
NOT_WELL = (State.FAILED, State.CANCELLED, State.LOST)


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


def folder_of(run: Run, number: int) -> bytes:
    """Where at its site a task has what a single run has in its own folder."""
    return run.folder + b"/tasks/%d" % number


def chunk_folder(run: Run, chunk: Chunk) -> bytes:
    """Where the job array of a chunk has its script, its marker and its log."""
    return run.folder + b"/chunks/%d" % chunk.number


def task_word(run_id: str, number: int) -> str:
    """How a task's own exit record calls it."""
    return f"{run_id}/{number}"


def chunk_name(run_id: str, number: int) -> str:
    """The name of a chunk's job, which no other job has."""
    return f"{run_id}-{number}"


def sweep_of(run: Run) -> Sweep:
    """The tasks of a run of many; raises `UsageError` for one that is no sweep."""
    if run.sweep is None:
        raise UsageError("no-sweep", "this run has no tasks: it is no sweep", about=run.id)
    return run.sweep


def one_task(run: Run, number: int, *, log_of_job: bool = False) -> Run:
    """A task as a run by itself, for whoever reads what it left; `log_of_job` where that is the job's own, which its chunk has.

    Raises `NotFoundError` where the sweep has no such task.
    """
    [found] = tasks_as_runs(run, [number])
    place = sweep_of(run).places().get(number)
    if log_of_job and found.folder and place is not None:
        return replace(found, folder=chunk_folder(run, place[0]))
    return found


def tasks_as_runs(run: Run, numbers: Iterable[int]) -> list[Run]:
    """The same of several tasks."""
    sweep = sweep_of(run)
    wanted = list(numbers)
    missing = next((number for number in wanted if number not in sweep.tasks), None)
    if missing is not None:
        known = write_ranges(sweep.tasks)
        raise NotFoundError(
            "no-such-task", f"there is no task {missing}", about=run.id, hint=f"There are: {known}"
        )
    places, outputs = sweep.places(), sweep.outputs()
    return [
        _as_run(run, number, sweep.tasks[number], places.get(number), outputs[number]) for number in wanted
    ]


def _as_run(
    run: Run, number: int, task: Task, place: tuple[Chunk, int] | None, outputs: tuple[Output, ...]
) -> Run:
    return replace(
        run,
        sweep=None,
        task=number,
        folder=folder_of(run, number) if run.folder else b"",
        outputs=outputs,
        job=place[0].jobs[0] if place and place[0].jobs else "",
        state=task.state,
        native=task.native,
        reason=task.reason,
        exit_code=task.exit_code,
        host=task.host,
        started=task.started,
        ended=task.ended,
        cpu_seconds=task.cpu_seconds,
        memory_bytes=task.memory_bytes,
        missing=task.missing,
    )


def part_of(run: Run, task: int) -> Run:
    """The run itself, or with a number that task of it."""
    return one_task(run, task) if task else run


def choose_task(run: Run, number: int | None, *, log_of_job: bool = False) -> Run:
    """The run itself, or of a sweep the task that was named, as `one_task` has it. Raises `UsageError` where that does not fit."""
    if run.sweep is None and number is None:
        return run
    if number is None:
        raise UsageError(
            "usage",
            "this is a sweep: which task?",
            about=run.id,
            hint=f"Add --task N, of {write_ranges(sweep_of(run).tasks)}.",
        )
    return one_task(run, number, log_of_job=log_of_job)


def begin_sweep(record: Mapping[str, Any]) -> Sweep | None:
    """The tasks that the first record of a run tells of; None where it is a single run."""
    told = record.get("sweep")
    if told is None:
        return None
    return Sweep(
        tasks={number: Task() for number in read_ranges(told["tasks"])},
        columns=tuple(told["columns"]),
        rows=tuple(tuple(row) for row in told["rows"]),
        sets=tuple(tuple(Output(**each) for each in outputs) for outputs in told["sets"]),
        set_of=tuple(told["set_of"]),
    )


def sweep_fields(
    values: Mapping[int, Mapping[str, Any]], outputs: Mapping[int, Sequence[Output]]
) -> dict[str, Any]:
    """What `begin_sweep` reads."""
    numbers = sorted(values)
    columns = list(dict.fromkeys(name for number in numbers for name in values[number]))
    known: dict[tuple[Output, ...], int] = {}
    set_of = [known.setdefault(tuple(outputs[number]), len(known)) for number in numbers]
    return {
        "tasks": write_ranges(numbers),
        "columns": columns,
        "rows": [[values[number].get(name) for name in columns] for number in numbers],
        "sets": [
            [
                {
                    "id": each.id,
                    "path": each.path,
                    "optional": each.optional,
                    "is_list": each.is_list,
                    "is_pattern": each.is_pattern,
                }
                for each in some
            ]
            for some in known
        ],
        "set_of": set_of,
    }


def apply_record(run: Run, sweep: Sweep, kind: str, record: Mapping[str, Any]) -> Run:
    """The run after one more thing that happened to its tasks; a state never goes back behind an end that is known."""
    match kind:
        case "staged":
            chunks = tuple(
                Chunk(number, read_ranges(text)) for number, text in enumerate(record["chunks"], start=1)
            )
            run = replace(run, folder=path_from_fields(dict(record), "folder"))
            tasks = _moved(sweep, sweep.tasks, State.STAGED)
            pilot = read_pilot(record.get("pilot"))
            return _with(run, replace(sweep, chunks=chunks, tasks=tasks, pilot=pilot))
        case "pilot":
            return replace(run, sweep=replace(sweep, pilot=read_pilot(record["pilot"])))
        case "allocation":
            chunk = Chunk(len(sweep.chunks) + 1, read_ranges(record["tasks"]))
            return replace(run, sweep=replace(sweep, chunks=(*sweep.chunks, chunk)))
        case "chunk":
            known = sweep.chunks[record["chunk"] - 1]
            chunk = replace(known, jobs=tuple(dict.fromkeys((*known.jobs, record["job"]))))
            chunks = tuple(chunk if each.number == chunk.number else each for each in sweep.chunks)
            tasks = _moved(sweep, chunk.tasks, State.SUBMITTED)
            return _with(replace(run, job=record["job"]), replace(sweep, chunks=chunks, tasks=tasks))
        case "tasks":
            return _with(
                run, replace(sweep, tasks=_changed(sweep, record, counts=run.container not in BY_OTHERS))
            )
        case "usage":
            return replace(run, sweep=replace(sweep, tasks=_used(sweep, record.get("tasks", ()))))
        case _:
            return run


def _with(run: Run, sweep: Sweep) -> Run:
    return replace(run, sweep=sweep, state=state_of(sweep.tasks.values()))


def _moved(sweep: Sweep, numbers: Iterable[int], state: State) -> dict[int, Task]:
    """These tasks a step further, but for those of which the scheduler has told more."""
    tasks = dict(sweep.tasks)
    for number in numbers:
        if tasks[number].state in _BEFORE:
            tasks[number] = replace(tasks[number], state=state)
    return tasks


def _used(sweep: Sweep, used: Iterable[Sequence[Any]]) -> dict[int, Task]:
    """The tasks with what accounting says that each of them used."""
    tasks = dict(sweep.tasks)
    for number, seconds, memory in used:
        before = tasks[number].cpu_seconds
        tasks[number] = replace(
            tasks[number], cpu_seconds=before if seconds is None else seconds, memory_bytes=memory
        )
    return tasks


def _changed(sweep: Sweep, record: Mapping[str, Any], *, counts: bool) -> dict[int, Task]:
    """The tasks after what was told of them; whether the time that a job `counts` is its tool's depends on the container."""
    tasks = dict(sweep.tasks)
    ends = {number: rest for number, *rest in record["ends"]}
    for change in record["changes"]:
        for number in read_ranges(change["tasks"]):
            before = tasks[number]
            if before.state.final:
                continue
            code, started, ended, host, *used = ends.get(number, (None, "", "", ""))
            tasks[number] = Task(
                State(change["state"]),
                change["native"],
                change["reason"],
                code,
                host or before.host,
                started or before.started,
                ended or before.ended,
                used[0] if used and counts else before.cpu_seconds,
                before.memory_bytes,
                tuple(used[1]) if len(used) > 1 else (),
            )
    return tasks


def change_fields(sweep: Sweep, seen: Mapping[int, Seen]) -> dict[str, Any] | None:
    """The record of what changed since it was last noted, in few words: ranges of tasks for each state; None for nothing.

    How a task ended is told once.
    """
    changes: dict[tuple[State, str, str], list[int]] = {}
    ends: list[list[Any]] = []
    for number, found in sorted(seen.items()):
        task = sweep.tasks[number]
        if task.state.final or (task.state, task.reason) == (found.state, found.reason):
            continue
        changes.setdefault((found.state, found.native, found.reason), []).append(number)
        if found.record is not None and found.state.ended:
            record = found.record
            end = [number, record.code, record.started, record.ended, record.host, record.cpu_seconds]
            ends.append([*end, list(record.missing)] if record.missing else end)
    if not changes:
        return None
    return {
        "changes": [
            {"state": state, "native": native, "reason": reason, "tasks": write_ranges(numbers)}
            for (state, native, reason), numbers in changes.items()
        ],
        "ends": ends,
    }
