"""Launch a sweep: record its tasks, stage them together, split them into job arrays."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from hibali.errors import IncompleteError
from hibali.locations import work_path
from hibali.text import as_bytes, path_fields, printable, write_ranges
from registry.invocation import Invocation
from runs.containers.base import Started
from runs.fast_storage import choose_fast_storage, task_fast_options
from runs.images import Staged
from runs.inputs import list_inputs
from runs.model import Input, Pilot, Run, chunk_name
from runs.prepare import Prepared, image_placeholder, known_inputs, prepare
from runs.records import sweep_fields, sweep_of
from runs.request import Request, TaskRequest, job_proxy
from runs.schedulers.base import Job, Scheduler
from runs.script import PROXY, Dependency, array_script
from runs.services.base import load_batch_system
from runs.stage import Cache
from runs.store import RunStore
from runs.task_runner import load_task_runner
from transfers.remote.host import RemoteHost, SmallFile


def split_tasks(
    numbers: Sequence[int], *, array_size: int, queued_jobs: int, limit: int | None = None
) -> list[tuple[int, ...]]:
    """Split task numbers into chunks, in order, none larger than `array_size`, the scheduler's `limit` or the queue.

    If not all tasks fit into the queue, chunks are at most half of it, so that one waits there while another one runs.
    """
    most = max(1, min(array_size, queued_jobs if limit is None else min(limit, queued_jobs)))
    if len(numbers) > queued_jobs:
        most = max(1, min(most, queued_jobs // 2))
    count = -(-len(numbers) // most)
    size, larger = divmod(len(numbers), count) if count else (0, 0)
    chunks = []
    start = 0
    for number in range(count):
        end = start + size + (1 if number < larger else 0)
        chunks.append(tuple(numbers[start:end]))
        start = end
    return chunks


_AT_ONCE = 1000  # tasks whose files are held in memory
_PARTIAL = b"tasks-"


def write_task_files(
    host: RemoteHost,
    run: Run,
    prepare: Callable[[], Iterable[tuple[int, Prepared]]],
    proxy: Callable[[], bytes],
) -> None:
    """Write the folders of all tasks, after those of the chunks or the pilot's program; nothing if they exist.

    Half-written folders of an earlier call are removed, because no job has seen them. `proxy` makes that of each task, b"" for none.
    """
    final = run.folder + b"/tasks"
    pilot = sweep_of(run).pilot
    if host.stat(final) is not None:
        return
    for name in host.names(run.folder):
        if name.startswith(_PARTIAL):
            host.remove_tree(run.folder + b"/" + name)
    partial = run.folder + b"/" + _PARTIAL + secrets.token_hex(8).encode("ascii")
    host.make_folder(partial)
    directives: dict[str, None] = {}
    prepared = iter(prepare())
    remember = load_task_runner().pristine if pilot else _put_nothing
    content = proxy()
    while some := list(islice(prepared, _AT_ONCE)):
        # directives for fast storage may differ: a job array requests everything that any of its tasks needs
        directives |= {line: None for _, each in some for line in each.directives}
        _put_tasks(host, [each for _, each in some], final, partial, remember, content)
    if pilot is None:
        _put_chunks(host, run, tuple(directives))
    else:
        host.put_all(
            load_task_runner().program_files(run.folder, pilot),
            [run.folder + b"/pilot", run.folder + b"/chunks"],
        )
    host.move(partial, final)
    if host.stat(final) is None:
        raise IncompleteError(
            "not-put",
            "the files of the tasks could not be moved to their final name",
            subject=printable(final),
            hint="Run the same command again to resume.",
        )


def _put_nothing(prepared: Prepared) -> None:
    """Return nothing to restore: a task of a job array runs once."""
    del prepared


def _put_tasks(
    host: RemoteHost,
    prepared: list[Prepared],
    final: bytes,
    partial: bytes,
    remember: Callable[[Prepared], bytes | None],
    proxy: bytes,
) -> None:
    def placed(path: str) -> bytes:
        return partial + as_bytes(path).removeprefix(final)

    folders: dict[bytes, None] = {}
    files: list[SmallFile] = []
    copies: list[tuple[bytes, bytes]] = []
    for each in prepared:
        top = placed(each.folder)
        found = [
            SmallFile(placed(f"{each.folder}/{path}"), as_bytes(text)) for path, text in each.files().items()
        ]
        copied = [(as_bytes(copy.source), placed(copy.target)) for copy in each.copies]
        wanted = [top, top + b"/work", *(_parent(file.path) for file in found)]
        wanted += [_parent(target) for _, target in copied]
        for folder in wanted:
            folders.update(dict.fromkeys(_down_to(folder, top)))
        files += found
        if proxy:
            files.append(SmallFile(top + PROXY, proxy))
        remembered = remember(each)
        if remembered is not None:
            files.append(SmallFile(top + b"/pristine.json", remembered))
        copies += copied
    host.put_all(files, list(folders))
    host.copy_all(copies)


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _down_to(folder: bytes, top: bytes) -> list[bytes]:
    """Return the folders from `top` to this one, `top` first."""
    found = [top]
    for part in folder[len(top) + 1 :].split(b"/") if folder != top else ():
        found.append(found[-1] + b"/" + part)
    return found


def _put_chunks(host: RemoteHost, run: Run, directives: tuple[str, ...]) -> None:
    """Write the script of each job array, and the task of each of its indices."""
    folders = [run.folder + b"/chunks"]
    files = []
    for chunk in run.chunks:
        folder = run.chunk_folder(chunk)
        folders.append(folder)
        lines = "".join(f"{number:d}\n" for number in chunk.tasks)
        files.append(SmallFile(folder + b"/tasks", lines.encode("ascii")))
        script = array_script(
            run.id, chunk.number, directives, load_batch_system(run.placement.scheduler).variables
        )
        files.append(SmallFile(folder + b"/job.sh", as_bytes(script), executable=True))
    host.put_all(files, folders)


def inputs_of(invocation: Invocation, files: Mapping[str, Sequence[Input]]) -> list[Input]:
    """Return the inputs of one task, in its order and with its numbers; `files` has those of all tasks by text."""
    found = [replace(file, id=each.id) for each in list_inputs(invocation) for file in files[each.text]]
    return [replace(each, number=number) for number, each in enumerate(found)]


def begin_tasks(request: Request, placed: Sequence[Input], run_id: str) -> dict[str, Any]:
    """Return the fields of a sweep's first record; raises the errors of preparing and submitting before there is a record."""
    request.compute.scheduler.submit_argv(Job(chunk_name(run_id, 1), f"/{run_id}/job.sh", tasks=1))
    request = request.with_workload(inputs=tuple(placed))
    _check_fast_options(request)
    prepared = _prepare_tasks(request, run_id, f"/{run_id}", Started(""))
    outputs = {number: each.outputs for number, each in prepared}
    tasks = request.workload.tasks
    names = [task.name for task in tasks]
    return {"sweep": sweep_fields({task.number: task.values for task in tasks}, outputs, names)}


def stage_tasks(
    request: Request,
    run: Run,
    host: RemoteHost,
    run_store: RunStore,
    folder: str,
    image: Staged,
    cache: Cache,
) -> Run:
    """Stage everything that the tasks need; the inputs of `request` have their paths at the site.

    The tasks are split into chunks once, because jobs may exist when this is repeated. A pilot's first allocation has all of them.
    """
    if not run.chunks:
        if image.id:
            run_store.note(run.id, "image", {"id": image.id.removeprefix("sha256:")})
        numbers = [task.number for task in request.workload.tasks]
        limits = request.compute.site.limits
        pilot, chunks = sweep_of(run).pilot, [tuple(numbers)]
        if pilot is not None:
            pilot = load_task_runner().stage_pilot(pilot, request, host, cache)
        else:
            chunks = split_tasks(
                numbers,
                array_size=limits.array_size,
                queued_jobs=limits.queued_jobs,
                limit=_array_limit(host, request, min(len(numbers), limits.array_size)),
            )
        pilot_fields = {} if pilot is None else {"pilot": pilot.to_fields()}
        folder_fields = path_fields(as_bytes(folder), "folder")
        texts = [write_ranges(chunk) for chunk in chunks]
        run = run_store.note(run.id, "staged", {**folder_fields, "chunks": texts, **pilot_fields})
    write_task_files(
        host, run, lambda: _prepare_tasks(request, run.id, folder, image.started), lambda: job_proxy(request)
    )
    return run


def _array_limit(host: RemoteHost, request: Request, wanted: int) -> int | None:
    """Query the scheduler for its largest job array if that can matter; None if the scheduler does not report it."""
    scheduler = request.compute.scheduler
    if not isinstance(scheduler, Scheduler):
        return None if scheduler.has_arrays else 1
    query = scheduler.array_limit_argv()
    return scheduler.read_array_limit(host.run(query)) if query and wanted > 1 else None


def _prepare_tasks(
    request: Request, run_id: str, folder: str, image: Started
) -> Iterator[tuple[int, Prepared]]:
    files: dict[str, list[Input]] = {}
    for each in request.workload.inputs:
        files.setdefault(each.text, []).append(each)
    needs = {
        f"{need.folder}/work/{path}".removesuffix("/."): replace(need, paths=(path,))
        for need in request.job.dependencies.needs
        for path in need.paths
    }
    for task in request.workload.tasks:
        inputs = inputs_of(task.invocation, files)
        options = task_fast_options(request.job.fast_options, inputs)
        fast = choose_fast_storage(request.compute.site, inputs, [each.in_place for each in inputs], options)
        dependencies = replace(request.job.dependencies, needs=_needs_of(inputs, needs))
        task_request = request.with_workload(invocation=task.invocation).with_job(
            fast=fast, dependencies=dependencies
        )
        task_path = f"{folder}/tasks/{task.number}"
        yield task.number, prepare(task_request, inputs, run_id, task_path, image=image, number=task.number)


def _needs_of(inputs: Sequence[Input], needs: Mapping[str, Dependency]) -> tuple[Dependency, ...]:
    """Return the outputs of other runs that one task reads; `needs` are those of all tasks by path."""
    found = (needs[each.source] for each in inputs if each.in_place and each.source in needs)
    return tuple(dict.fromkeys(found))


def _check_fast_options(request: Request) -> None:
    """Raise `UsageError` for a fast input that no task has."""
    named = {each.id: each for task in request.workload.tasks for each in list_inputs(task.invocation)}
    inputs = list(named.values())
    choose_fast_storage(request.compute.site, inputs, [False] * len(inputs), request.job.fast_options)


def files_of(tasks: Sequence[TaskRequest]) -> list[Input]:
    """Return the files of all tasks, each once."""
    texts = (each.text for task in tasks for each in list_inputs(task.invocation))
    return [Input("", number, text) for number, text in enumerate(dict.fromkeys(texts))]


class DryRun(NamedTuple):
    """What a run would do: its files by path in its folder, of a sweep those of the first of its `chunks` job arrays and of its first task.

    With a pilot `chunks` is 0.
    """

    prepared: Prepared
    files: Mapping[str, str]
    chunks: int = 0


def prepare_dry_run(request: Request, run_id: str) -> DryRun:
    """Prepare a run without contacting the site; paths there are as configured."""
    folder = f"{work_path(request.compute.site)}/runs/{run_id}"
    inputs, image = known_inputs(request), image_placeholder(request)
    if not request.workload.tasks:
        prepared = prepare(request, inputs, run_id, folder, image=image)
        return DryRun(prepared, {"job.sh": prepared.job_script, **prepared.shown_files()})
    first = request.workload.tasks[0]
    task_request = request.with_workload(inputs=tuple(inputs), tasks=(first,))
    [(_, prepared)] = _prepare_tasks(task_request, run_id, folder, image)
    jobs, chunks = _show_first_job(request, run_id, prepared)
    tasks = {f"tasks/{first.number}/{path}": text for path, text in prepared.shown_files().items()}
    size = 0 if request.job.allocations else len(chunks[0])
    job = Job(chunk_name(run_id, 1), f"{folder}/chunks/1/job.sh", tasks=size)
    submit = request.compute.scheduler.submit_argv(job)
    return DryRun(replace(prepared, folder=folder, submit=submit), {**jobs, **tasks}, len(chunks))


def _show_first_job(
    request: Request, run_id: str, prepared: Prepared
) -> tuple[dict[str, str], list[tuple[int, ...]]]:
    """Return the files of the first job array of a sweep and the tasks of each, or the files of the first allocation."""
    numbers = [task.number for task in request.workload.tasks]
    scheduler, limits = request.compute.scheduler, request.compute.site.limits
    if request.job.allocations:
        pilot = Pilot("python3", directives=prepared.directives)
        texts = load_task_runner().allocation_texts(run_id, 1, numbers, pilot, scheduler.variables)
        return {f"chunks/1/{name}": text for name, text in texts.items()}, []
    chunks = split_tasks(
        numbers,
        array_size=limits.array_size,
        queued_jobs=limits.queued_jobs,
        limit=None if scheduler.has_arrays else 1,
    )
    script = array_script(run_id, 1, prepared.directives, scheduler.variables)
    lines = "".join(f"{number}\n" for number in chunks[0])
    return {"chunks/1/job.sh": script, "chunks/1/tasks": lines}, chunks
