"""Build runs and sweeps from the records of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hibali.errors import NotFoundError, UsageError
from hibali.text import path_from_fields, printable, read_ranges, write_ranges
from runs.model import (
    _BEFORE,
    DAEMON_CONTAINERS,
    FROM_RUN,
    RUN_ID,
    Chunk,
    Output,
    Run,
    State,
    Sweep,
    Task,
    read_pilot,
    state_of,
)


def check_run_id(text: str) -> str:
    """The text, if a run can be called so: it names a file of the ledger. Raises `NotFoundError`."""
    if not RUN_ID.fullmatch(text):
        raise _no_such_run(text)
    return text


def fold_records(run_id: str, records: Iterable[Mapping[str, Any]]) -> Run:
    """The run that these records tell of, oldest first; raises `NotFoundError` where none of them begins it."""
    run: Run | None = None
    for record in records:
        kind = record.get("kind")
        if run is None:
            run = _begin(record) if kind == "prepared" and record.get("id") == run_id else None
        else:
            run = _apply(run, str(kind), record)
    if run is None:
        raise _no_such_run(run_id)
    return run


def _begin(record: Mapping[str, Any]) -> Run:
    sweep = None
    if record.get("sweep"):
        sweep = begin_sweep(record)
    return Run(
        id=record["id"],
        key=record["key"],
        pipeline=record["pipeline"],
        pipeline_digest=record["pipeline_digest"],
        site=record["site"],
        name=record["name"],
        scheduler=record["scheduler"],
        container=record["container"],
        created=record["at"],
        outputs=tuple(
            Output(each["id"], each["path"], each["optional"], each["is_list"], each["is_pattern"])
            for each in record["outputs"]
        ),
        after=tuple(record.get("after", ())),
        sources=_sources(record.get("inputs", ())),
        hold=bool(record.get("hold")),
        proxy=bool(record.get("proxy")),
        hibali=record.get("hibali", ""),
        invocation=record.get("invocation", {}),
        inputs=tuple(record.get("inputs", ())),
        sweep=sweep,
        origin=record.get("origin", ""),
    )


def _sources(inputs: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    pairs = ((str(each["id"]), str(each["identity"])) for each in inputs)
    return tuple(dict.fromkeys(pair for pair in pairs if pair[1].startswith(FROM_RUN)))


def _apply(run: Run, kind: str, record: Mapping[str, Any]) -> Run:
    """One more thing that happened; a state never goes back behind an end that is known."""
    if run.sweep is not None and kind in {"staged", "chunk", "tasks", "pilot", "allocation"}:
        return apply_record(run, run.sweep, kind, record)
    match kind:
        case "staged":
            return replace(run, state=State.STAGED, folder=path_from_fields(dict(record), "folder"))
        case "submitted":
            # the job may have been found again under another id
            state = run.state if run.state.ended else State.SUBMITTED
            return replace(run, state=state, job=record["job"])
        case "seen":
            if run.state.final:
                return run
            return replace(
                run,
                state=State(record["state"]),
                native=record["native"],
                reason=record["reason"],
                exit_code=record.get("exit_code"),
                host=record.get("host") or run.host,
                started=record.get("started") or run.started,
                ended=record.get("ended") or run.ended,
                missing=tuple(record.get("missing", ())),
                **_used(run, record),
            )
        case "released":
            return replace(run, released=True)
        case "image":
            return replace(run, image=f"sha256:{record['id']}")
        case "usage":
            if run.sweep is not None:
                run = apply_record(run, run.sweep, kind, record)
            return replace(run, accounted=True, **_used(run, record))
        case "reported":
            return replace(run, reported=run.state.final)
        case "collected":
            receipts = (*run.receipts, record["receipt"]) if record.get("receipt") else run.receipts
            return replace(run, collected=(*run.collected, record["target"]), receipts=receipts)
        case _:
            return _apply_to_submission(run, kind, record)


def _apply_to_submission(run: Run, kind: str, record: Mapping[str, Any]) -> Run:
    """What happened to it before it had a job, what was wished, and what became of its folder."""
    match kind:
        case "waits":
            return replace(run, reason=record["reason"], words=tuple(record["words"]))
        case "submitting":
            return replace(run, submitting=True, words=(), reason="")
        case "cancel":
            return replace(run, cancelled=True, marked=run.marked or bool(record.get("marked")))
        case "cancel-told":
            return replace(run, told=True)
        case "cleaned":
            return replace(run, cleaned=record["at"])
        case _:
            return run


def _used(run: Run, record: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool used, as far as it is told; what was known before stays."""
    memory = record.get("memory_bytes")
    seconds = record.get("cpu_seconds")
    if record.get("kind") == "seen" and "exit_code" in record and run.container in DAEMON_CONTAINERS:
        seconds = None
    return {
        "cpu_seconds": run.cpu_seconds if seconds is None else seconds,
        "memory_bytes": run.memory_bytes if memory is None else memory,
    }


def _no_such_run(text: str) -> NotFoundError:
    return NotFoundError(
        "no-such-run", "there is no run of this id", about=printable(text), hint="hibali runs list"
    )


def folder_of(run: Run, number: int) -> bytes:
    """Where at its site a task has what a single run has in its own folder."""
    return run.folder + b"/tasks/%d" % number


def chunk_folder(run: Run, chunk: Chunk) -> bytes:
    """Where the job array of a chunk has its script, its marker and its log."""
    return run.folder + b"/chunks/%d" % chunk.number


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
                run,
                replace(sweep, tasks=_changed(sweep, record, counts=run.container not in DAEMON_CONTAINERS)),
            )
        case "usage":
            return replace(run, sweep=replace(sweep, tasks=_used_by_tasks(sweep, record.get("tasks", ()))))
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


def _used_by_tasks(sweep: Sweep, used: Iterable[Sequence[Any]]) -> dict[int, Task]:
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
