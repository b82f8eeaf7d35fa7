"""Build runs and sweeps from the records of the ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from hibali.documents import canonical_digest
from hibali.errors import NotFoundError, UsageError
from hibali.files import read_regular
from hibali.ledger import records_in
from hibali.system_errors import reason_of
from hibali.text import as_bytes, path_from_fields, printable, read_ranges, write_ranges
from hibali.unreadable import unreadable
from runs.model import (
    DAEMON_CONTAINERS,
    FROM_RUN,
    RUN_ID,
    Chunk,
    Output,
    Placement,
    Run,
    RunSpec,
    RunStatus,
    State,
    Submission,
    Sweep,
    read_pilot,
    state_of,
)

_OUTPUT_FIELDS = tuple(each.name for each in fields(Output))


def check_run_id(text: str) -> str:
    """Return the text if it can be the id of a run, and so name a file of the ledger; raises `NotFoundError`."""
    if not RUN_ID.fullmatch(text):
        raise _no_such_run(text)
    return text


def fold_records(run_id: str, records: Iterable[Mapping[str, Any]]) -> Run:
    """Build a run from its records, oldest first; raises `NotFoundError` if none of them begins it."""
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


def read_run(run_id: str, path: Path) -> Run:
    """Read a run from its journal.

    Raises:
        NotFoundError: There is no such journal.
        UnreadableStateError: Its content is not that of a run: the run may exist, but nothing is known of it.
    """
    reason = "the record of this run is damaged"
    try:
        lines = read_regular(path, -1).splitlines()
        records = list(records_in(lines))
        run = fold_records(run_id, records)
        if len(records) < len(lines):
            deque(records_in(lines, path), maxlen=0)  # reports the damaged ones
        return run
    except FileNotFoundError:
        raise _no_such_run(run_id) from None
    except NotFoundError:
        pass
    except OSError as problem:
        reason = f"the record of this run cannot be read: {reason_of(problem)}"
    except (LookupError, ValueError, TypeError, AttributeError):
        pass
    raise unreadable(path, reason)


def _begin(record: Mapping[str, Any]) -> Run:
    spec = RunSpec(
        pipeline=record["pipeline"],
        pipeline_digest=record["pipeline_digest"],
        name=record["name"],
        invocation=record.get("invocation", {}),
        inputs=tuple(record.get("inputs", ())),
        outputs=_read_outputs(record["outputs"]),
        after=tuple(record.get("after", ())),
        sources=_sources(record.get("inputs", ())),
        origin=record.get("origin", ""),
        version=record.get("hibali", ""),
    )
    return Run(
        record["id"],
        record["key"],
        record["at"],
        spec,
        Placement(record["site"], record["scheduler"], record["container"]),
        Submission(hold=bool(record.get("hold")), proxy=bool(record.get("proxy"))),
        sweep=_read_sweep(record["sweep"]) if record.get("sweep") else None,
    )


def _read_outputs(outputs: Iterable[Mapping[str, Any]]) -> tuple[Output, ...]:
    return tuple(Output(**{name: each[name] for name in _OUTPUT_FIELDS}) for each in outputs)


def output_fields(outputs: Iterable[Output]) -> list[dict[str, Any]]:
    """Return the declared outputs as the ledger has them."""
    return [asdict(each) for each in outputs]


def _sources(inputs: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    pairs = ((str(each["id"]), str(each["identity"])) for each in inputs)
    return tuple(dict.fromkeys(pair for pair in pairs if pair[1].startswith(FROM_RUN)))


def _apply(run: Run, kind: str, record: Mapping[str, Any]) -> Run:
    """Return the run after one more record; a known end is never replaced by an earlier state."""
    if run.sweep is not None and kind in {"staged", "chunk", "tasks", "pilot", "allocation"}:
        return _apply_to_sweep(run, run.sweep, kind, record)
    results = run.results
    match kind:
        case "staged":
            return _with_folder(_with_status(run, state=State.STAGED), record)
        case "submitted":
            # the job may have been found under another id
            state = run.state if run.state.ended else State.SUBMITTED
            return _with_submission(_with_status(run, state=state), job=record["job"])
        case "seen":
            return run if run.state.final else _apply_observation(run, record)
        case "image":
            return replace(run, placement=replace(run.placement, image=f"sha256:{record['id']}"))
        case "usage":
            if run.sweep is not None:
                run = _apply_to_sweep(run, run.sweep, kind, record)
            return _with_results(_with_status(run, **_usage(run, record)), accounted=True)
        case "reported":
            return _with_results(run, reported=run.state.final)
        case "collected":
            receipts = (*results.receipts, record["receipt"]) if record.get("receipt") else results.receipts
            return _with_results(run, collected=(*results.collected, record["target"]), receipts=receipts)
        case "cleaned":
            return _with_results(run, cleaned=record["at"])
        case _:
            return _apply_to_submission(run, kind, record)


def _apply_observation(run: Run, record: Mapping[str, Any]) -> Run:
    status = run.status
    return _with_status(
        run,
        state=State(record["state"]),
        native=record["native"],
        reason=record["reason"],
        exit_code=record.get("exit_code"),
        host=record.get("host") or status.host,
        started=record.get("started") or status.started,
        ended=record.get("ended") or status.ended,
        missing=tuple(record.get("missing", ())),
        **_usage(run, record),
    )


def _apply_to_submission(run: Run, kind: str, record: Mapping[str, Any]) -> Run:
    match kind:
        case "waits":
            run = _with_status(run, reason=record["reason"])
            return _with_submission(run, argv=tuple(record["words"]))
        case "submitting":
            return _with_submission(_with_status(run, reason=""), begun=True, argv=())
        case "released":
            return _with_submission(run, released=True)
        case "cancel":
            marked = run.submission.cancel_marked or bool(record.get("marked"))
            return _with_submission(run, cancelled=True, cancel_marked=marked)
        case "cancel-told":
            return _with_submission(run, cancel_accepted=True)
        case _:
            return run


def _usage(run: Run, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resource usage of the tool; values that the record does not have stay as they are."""
    memory = record.get("memory_bytes")
    seconds = record.get("cpu_seconds")
    if (
        record.get("kind") == "seen"
        and "exit_code" in record
        and run.placement.container in DAEMON_CONTAINERS
    ):
        seconds = None
    return {
        "cpu_seconds": run.status.cpu_seconds if seconds is None else seconds,
        "memory_bytes": run.status.memory_bytes if memory is None else memory,
    }


def _with_status(run: Run, **changes: Any) -> Run:
    return replace(run, status=replace(run.status, **changes))


def _with_submission(run: Run, **changes: Any) -> Run:
    return replace(run, submission=replace(run.submission, **changes))


def _with_results(run: Run, **changes: Any) -> Run:
    return replace(run, results=replace(run.results, **changes))


def _with_folder(run: Run, record: Mapping[str, Any]) -> Run:
    folder = path_from_fields(dict(record), "folder")
    return replace(run, placement=replace(run.placement, folder=folder))


def _no_such_run(text: str) -> NotFoundError:
    return NotFoundError(
        "no-such-run",
        "there is no run with this id",
        subject=printable(text),
        hint="To list all runs: hibali runs list",
    )


def sweep_of(run: Run) -> Sweep:
    """Return the tasks of a sweep; raises `UsageError` for a single run."""
    if run.sweep is None:
        raise UsageError("no-sweep", "this run is not a sweep and has no tasks", subject=run.id)
    return run.sweep


def one_task(run: Run, number: int, *, log_of_job: bool = False) -> Run:
    """Return a task as a run by itself.

    Args:
        run: The sweep.
        number: The number of the task.
        log_of_job: Return the folder of the task's chunk instead of its own, because the log of the job is there.

    Raises:
        NotFoundError: The sweep has no such task.
    """
    [found] = tasks_as_runs(run, [number])
    position = run.positions().get(number)
    if log_of_job and found.folder and position is not None:
        return _in_folder(found, run.chunk_folder(position[0]))
    return found


def tasks_as_runs(run: Run, numbers: Iterable[int]) -> list[Run]:
    """Return several tasks as runs by themselves; raises `NotFoundError` like `one_task`."""
    sweep = sweep_of(run)
    wanted = list(numbers)
    missing = next((number for number in wanted if number not in sweep.tasks), None)
    if missing is not None:
        known = write_ranges(sweep.tasks)
        raise NotFoundError(
            "no-such-task", f"the sweep has no task {missing}", subject=run.id, hint=f"Its tasks: {known}."
        )
    positions, outputs = run.positions(), run.outputs()
    found = []
    for number in wanted:
        chunk, _ = positions.get(number, (None, 0))
        job = chunk.jobs[0] if chunk and chunk.jobs else ""
        task = replace(
            run,
            sweep=None,
            task=number,
            spec=replace(run.spec, outputs=outputs[number]),
            submission=replace(run.submission, job=job),
            status=sweep.tasks[number],
        )
        found.append(_in_folder(task, run.task_folder(number) if run.folder else b""))
    return found


def collected_names(run: Run) -> Callable[[bytes], bytes]:
    """Return a function from `N/PATH`, an output of a task, to its name among collected outputs; of a single run they are the same."""
    if run.sweep is None:
        return bytes
    folders = {b"%d" % number: as_bytes(name) for number, name in run.task_names().items()}

    def collected(name: bytes) -> bytes:
        number, _, path = name.partition(b"/")
        return folders[number] + b"/" + path

    return collected


def tasks_by_values(run: Run) -> Iterator[tuple[str, int, State]]:
    """Yield the digest of all values of each task, its number, and its state; of a single run with the number 0."""
    tasks = run.tasks
    for number, values in run.values():
        yield canonical_digest({**run.spec.invocation, **values}), number, tasks[number].state


def _in_folder(run: Run, folder: bytes) -> Run:
    return replace(run, placement=replace(run.placement, folder=folder))


def part_of(run: Run, task: int) -> Run:
    """Return the run itself, or its task of this number if that is not 0."""
    return one_task(run, task) if task else run


def choose_task(run: Run, number: int | None, *, log_of_job: bool = False) -> Run:
    """Return the run itself, or of a sweep the task that `--task` names, like `one_task`.

    Raises `UsageError` for a sweep without a number, and for a number without a sweep.
    """
    if run.sweep is None and number is None:
        return run
    if number is None:
        raise UsageError(
            "usage",
            "this run is a sweep, and the command needs one of its tasks",
            subject=run.id,
            hint=f"Add --task N; its tasks: {write_ranges(run.tasks)}.",
        )
    return one_task(run, number, log_of_job=log_of_job)


def _read_sweep(record: Mapping[str, Any]) -> Sweep:
    return Sweep(
        tasks={number: RunStatus() for number in read_ranges(record["tasks"])},
        columns=tuple(record["columns"]),
        rows=tuple(tuple(row) for row in record["rows"]),
        sets=tuple(_read_outputs(outputs) for outputs in record["sets"]),
        set_of=tuple(record["set_of"]),
        names=tuple(record.get("names", ())),
    )


def sweep_fields(
    values: Mapping[int, Mapping[str, Any]],
    outputs: Mapping[int, Sequence[Output]],
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the field `sweep` of a run's first record.

    Args:
        values: The values that only this task has, by the task's number.
        outputs: The declared outputs, by the task's number.
        names: The names of the tasks, in the order of their numbers.
    """
    numbers = sorted(values)
    columns = list(dict.fromkeys(name for number in numbers for name in values[number]))
    known: dict[tuple[Output, ...], int] = {}
    set_of = [known.setdefault(tuple(outputs[number]), len(known)) for number in numbers]
    return {
        "tasks": write_ranges(numbers),
        "columns": columns,
        "rows": [[values[number].get(name) for name in columns] for number in numbers],
        "sets": [output_fields(each) for each in known],
        "set_of": set_of,
        "names": list(names),
    }


def _apply_to_sweep(run: Run, sweep: Sweep, kind: str, record: Mapping[str, Any]) -> Run:
    """Return the run after one more record of its tasks; a known end is never replaced by an earlier state."""
    match kind:
        case "staged":
            chunks = tuple(
                Chunk(number, read_ranges(text)) for number, text in enumerate(record["chunks"], start=1)
            )
            tasks = _advanced(sweep, sweep.tasks, State.STAGED)
            pilot = read_pilot(record.get("pilot"))
            return _with_sweep(
                _with_folder(run, record), replace(sweep, chunks=chunks, tasks=tasks, pilot=pilot)
            )
        case "pilot":
            return replace(run, sweep=replace(sweep, pilot=read_pilot(record["pilot"])))
        case "allocation":
            chunk = Chunk(len(sweep.chunks) + 1, read_ranges(record["tasks"]))
            return replace(run, sweep=replace(sweep, chunks=(*sweep.chunks, chunk)))
        case "chunk":
            known = sweep.chunks[record["chunk"] - 1]
            chunk = replace(known, jobs=tuple(dict.fromkeys((*known.jobs, record["job"]))))
            chunks = tuple(chunk if each.number == chunk.number else each for each in sweep.chunks)
            tasks = _advanced(sweep, chunk.tasks, State.SUBMITTED)
            run = _with_submission(run, job=record["job"])
            return _with_sweep(run, replace(sweep, chunks=chunks, tasks=tasks))
        case "tasks":
            measured = run.placement.container not in DAEMON_CONTAINERS
            return _with_sweep(run, replace(sweep, tasks=_observed(sweep, record, measured=measured)))
        case "usage":
            return replace(run, sweep=replace(sweep, tasks=_tasks_usage(sweep, record.get("tasks", ()))))
        case _:
            return run


def _with_sweep(run: Run, sweep: Sweep) -> Run:
    return _with_status(replace(run, sweep=sweep), state=state_of(sweep.tasks.values()))


def _advanced(sweep: Sweep, numbers: Iterable[int], state: State) -> dict[int, RunStatus]:
    """Return all tasks, these in the next state unless the scheduler reported a later one."""
    tasks = dict(sweep.tasks)
    for number in numbers:
        if tasks[number].state in {State.PREPARED, State.STAGED}:
            tasks[number] = replace(tasks[number], state=state)
    return tasks


def _tasks_usage(sweep: Sweep, usage: Iterable[Sequence[Any]]) -> dict[int, RunStatus]:
    """Return all tasks with their resource usage from the accounting."""
    tasks = dict(sweep.tasks)
    for number, seconds, memory in usage:
        before = tasks[number].cpu_seconds
        tasks[number] = replace(
            tasks[number], cpu_seconds=before if seconds is None else seconds, memory_bytes=memory
        )
    return tasks


def _observed(sweep: Sweep, record: Mapping[str, Any], *, measured: bool) -> dict[int, RunStatus]:
    """Return all tasks after an observation; `measured`: the CPU time of a job is that of its tool."""
    tasks = dict(sweep.tasks)
    ends = {number: recorded for number, *recorded in record["ends"]}
    for change in record["changes"]:
        for number in read_ranges(change["tasks"]):
            before = tasks[number]
            if before.state.final:
                continue
            code, started, ended, host, *usage = ends.get(number, (None, "", "", ""))
            tasks[number] = RunStatus(
                State(change["state"]),
                change["native"],
                change["reason"],
                code,
                host or before.host,
                started or before.started,
                ended or before.ended,
                usage[0] if usage and measured else before.cpu_seconds,
                before.memory_bytes,
                tuple(usage[1]) if len(usage) > 1 else (),
            )
    return tasks
