"""Launch a sweep: record its tasks, stage them together, split them into job arrays."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from hibali.documents import canonical_digest
from hibali.errors import IncompleteError
from hibali.locations import work_path
from hibali.text import as_bytes, path_fields, printable, write_ranges
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.containers.base import Started
from runs.fast_storage import choose_fast_storage, fast_options_of_task
from runs.images import Staged
from runs.inputs import list_inputs
from runs.model import Input, Pilot, Run, chunk_name
from runs.pilot.setup import pristine, program_files
from runs.prepare import Prepared
from runs.records import chunk_folder, sweep_fields, sweep_of
from runs.request import Request, TaskRequest, job_proxy, prepare_request, shown_image, shown_inputs
from runs.schedulers.base import Job, load_scheduler
from runs.script import FILE, PROXY, Need, array_script
from runs.stage import Cache
from runs.store import RunStore
from transfers.remote.host import RemoteHost, SmallFile


def split_tasks(
    numbers: Sequence[int], *, array_size: int, queued_jobs: int, limit: int | None = None
) -> list[tuple[int, ...]]:
    """The numbers in chunks, in order: none larger than `array_size`, the scheduler's `limit`, or the room in the queue.

    What does not fit the queue at once goes in as room appears: chunks are then at most half of it, so that one
    waits there while the other is at work.
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
    """The folders of all tasks or none of them, and those of the chunks, or a pilot's program, before; nothing where they are there.

    What an earlier call left half-done is removed: no job has seen it. `proxy` makes that of each task, b"" for none.
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
    content = proxy()
    while some := list(islice(prepared, _AT_ONCE)):
        # those for fast storage differ: one job array asks for what any of its tasks needs
        directives |= {line: None for _, each in some for line in each.directives}
        _put_some(
            host, [each for _, each in some], final, partial, pristine if pilot else _put_nothing, content
        )
    if pilot is None:
        _put_chunks(host, run, tuple(directives))
    else:
        host.put_all(program_files(run.folder, pilot), [run.folder + b"/pilot", run.folder + b"/chunks"])
    host.move(partial, final)
    if host.stat(final) is None:
        raise IncompleteError("not-put", "the tasks could not be put in place", subject=printable(final))


def _put_nothing(prepared: Prepared) -> None:
    """A task of a job array is run once, and its folder is never made anew."""
    del prepared


def _put_some(
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
        found = list(_files_of(each, placed))
        copied = [(as_bytes(copy.source), placed(copy.target)) for copy in each.copies]
        wanted = [top, top + b"/work", *(_above(file.path) for file in found)]
        wanted += [_above(target) for _, target in copied]
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


def _files_of(prepared: Prepared, placed: Callable[[str], bytes]) -> Iterator[SmallFile]:
    for path, content in prepared.configuration_files.items():
        yield SmallFile(placed(f"{prepared.folder}/work/{path}"), as_bytes(content))
    yield SmallFile(placed(prepared.command_path), as_bytes(prepared.command))
    if prepared.fast:
        yield SmallFile(placed(f"{prepared.folder}/fast.sh"), as_bytes(prepared.fast))
    if prepared.required:
        yield SmallFile(placed(f"{prepared.folder}/{FILE}"), as_bytes(prepared.required))
    yield SmallFile(placed(f"{prepared.folder}/start"), as_bytes(prepared.start))


def _above(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _down_to(folder: bytes, top: bytes) -> list[bytes]:
    """The folders from `top` to this one, `top` first."""
    found = [top]
    for part in folder[len(top) + 1 :].split(b"/") if folder != top else ():
        found.append(found[-1] + b"/" + part)
    return found


def _put_chunks(host: RemoteHost, run: Run, directives: tuple[str, ...]) -> None:
    """The script of each job array, and which task each of its indices is."""
    folders = [run.folder + b"/chunks"]
    files = []
    for chunk in sweep_of(run).chunks:
        folder = chunk_folder(run, chunk)
        folders.append(folder)
        lines = "".join(f"{number:d}\n" for number in chunk.tasks)
        files.append(SmallFile(folder + b"/tasks", lines.encode("ascii")))
        script = array_script(
            run.id, chunk.number, directives, load_scheduler(run.placement.scheduler).variables
        )
        files.append(SmallFile(folder + b"/job.sh", as_bytes(script), executable=True))
    host.put_all(files, folders)


def sweep_key(request: Request, identities: Sequence[str]) -> str:
    """What makes two lines the same sweep, or the same running again, as a sha256 (contracts.md, "The same line again")."""
    return tasks_key(
        request.pipeline,
        request.invocation,
        request.tasks,
        identities,
        request.site.name,
        request.name,
        origin=request.origin,
    )


def tasks_key(
    pipeline: Pipeline,
    invocation: Invocation,
    tasks: Sequence[TaskRequest],
    identities: Sequence[str],
    site: str,
    name: str,
    *,
    origin: str = "",
) -> str:
    """The same of what a sweep is made of; `site` is how it was named."""
    return canonical_digest(
        {
            "pipeline": pipeline.digest,
            "values": dict(invocation.values),
            "tasks": [[task.number, dict(task.invocation.values)] for task in tasks],
            "inputs": list(identities),
            "site": site,
            "name": name,
            "origin": origin,
        }
    )


def inputs_of(invocation: Invocation, files: Mapping[str, Sequence[Input]]) -> list[Input]:
    """The inputs of one task, in its own order and numbers; `files` has those of all tasks by their texts, which may stand for several."""
    found = [replace(file, id=each.id) for each in list_inputs(invocation) for file in files[each.text]]
    return [replace(each, number=number) for number, each in enumerate(found)]


def begin_tasks(request: Request, placed: Sequence[Input], run_id: str) -> dict[str, Any]:
    """The fields of a sweep's first record; whatever cannot be prepared or submitted raises here, before there is one."""
    request.scheduler.submit_words(Job(chunk_name(run_id, 1), f"/{run_id}/job.sh", tasks=1))
    request = replace(request, inputs=tuple(placed))
    _check_marks(request)
    prepared = _prepare_tasks(request, run_id, f"/{run_id}", Started(""))
    outputs = {number: each.outputs for number, each in prepared}
    return {"sweep": sweep_fields({task.number: task.values for task in request.tasks}, outputs)}


def stage_tasks(
    request: Request,
    run: Run,
    host: RemoteHost,
    run_store: RunStore,
    folder: str,
    image: Staged,
    cache: Cache,
) -> Run:
    """Everything that the tasks need lies at the site when this returns; `request` has its inputs where they lie there.

    How the tasks are split into chunks is decided once: jobs may be on their way when this is done again. A pilot's first allocation is
    for all of them.
    """
    if not sweep_of(run).chunks:
        if image.id:
            run_store.note(run.id, "image", {"id": image.id.removeprefix("sha256:")})
        numbers = [task.number for task in request.tasks]
        limits = request.site.limits
        pilot = _stage_pilot(request, run, host, cache)
        chunks = [tuple(numbers)]
        if pilot is None:
            chunks = split_tasks(
                numbers,
                array_size=limits.array_size,
                queued_jobs=limits.queued_jobs,
                limit=_array_limit(host, request, min(len(numbers), limits.array_size)),
            )
        how = {} if pilot is None else {"pilot": pilot.to_fields()}
        where = path_fields(as_bytes(folder), "folder")
        texts = [write_ranges(chunk) for chunk in chunks]
        run = run_store.note(run.id, "staged", {**where, "chunks": texts, **how})
    write_task_files(
        host, run, lambda: _prepare_tasks(request, run.id, folder, image.started), lambda: job_proxy(request)
    )
    return run


def _stage_pilot(request: Request, run: Run, host: RemoteHost, cache: Cache) -> Pilot | None:
    """The pilot with its library at the site, ready to go into allocations; None for job arrays."""
    pilot = sweep_of(run).pilot
    if pilot is None:
        return None
    from runs.pilot.setup import stage_library

    library = stage_library(host, request.site, cache, pilot.python)
    return replace(pilot, library=library, directives=request.scheduler.directives(request.ask().resources))


def _array_limit(host: RemoteHost, request: Request, wanted: int) -> int | None:
    """What the scheduler itself says, where that can matter; no answer is no limit, and a refusal says so later."""
    words = request.scheduler.array_limit_words()
    return request.scheduler.read_array_limit(host.run(words)) if words and wanted > 1 else None


def _prepare_tasks(
    request: Request, run_id: str, folder: str, image: Started
) -> Iterator[tuple[int, Prepared]]:
    files: dict[str, list[Input]] = {}
    for each in request.inputs:
        files.setdefault(each.text, []).append(each)
    needs = {
        f"{need.folder}/work/{path}".removesuffix("/."): replace(need, paths=(path,))
        for need in request.waiting.needs
        for path in need.paths
    }
    for task in request.tasks:
        inputs = inputs_of(task.invocation, files)
        marks = fast_options_of_task(request.marks, inputs)
        fast = choose_fast_storage(request.site, inputs, [each.in_place for each in inputs], marks)
        waiting = replace(request.waiting, needs=_needs_of(inputs, needs))
        alone = replace(request, invocation=task.invocation, fast=fast, waiting=waiting)
        where = f"{folder}/tasks/{task.number}"
        yield task.number, prepare_request(alone, inputs, run_id, where, image=image, number=task.number)


def _needs_of(inputs: Sequence[Input], needs: Mapping[str, Need]) -> tuple[Need, ...]:
    """What one task takes of other runs, which is looked after before its tool starts; `needs` are those of all by path."""
    taken = (needs[each.source] for each in inputs if each.in_place and each.source in needs)
    return tuple(dict.fromkeys(taken))


def _check_marks(request: Request) -> None:
    """Raise `UsageError` for a mark that no task has an input for."""
    named = {each.id: each for task in request.tasks for each in list_inputs(task.invocation)}
    inputs = list(named.values())
    choose_fast_storage(request.site, inputs, [False] * len(inputs), request.marks)


def takes_several(tasks: Sequence[TaskRequest]) -> Callable[[Input], bool]:
    """Whether an input of `files_of` may stand for several files: it does where it stands in lists alone."""
    single = {
        answer for task in tasks for _, answer in task.invocation.file_inputs() if isinstance(answer, str)
    }
    return lambda each: each.text not in single


def files_of(tasks: Sequence[TaskRequest]) -> list[Input]:
    """The files that any of the tasks names, each once, for all of them together."""
    texts = (each.text for task in tasks for each in list_inputs(task.invocation))
    return [Input("", number, text) for number, text in enumerate(dict.fromkeys(texts))]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a sweep would put at its site: the first task, the files of it and of the first of so many chunks, by path in the run's folder.

    With a pilot there are no `chunks`: it is one allocation after the other.
    """

    prepared: Prepared
    files: Mapping[str, str]
    chunks: int


def show_tasks(request: Request, run_id: str) -> Shown:
    """See `runs.request.show_prepared`."""
    first = request.tasks[0]
    folder = f"{work_path(request.site)}/runs/{run_id}"
    where = f"tasks/{first.number}"
    alone = replace(request, inputs=tuple(shown_inputs(request)), tasks=(first,))
    [(_, prepared)] = _prepare_tasks(alone, run_id, folder, shown_image(request))
    tasks = {f"{where}/start": prepared.start, f"{where}/command": prepared.command}
    if prepared.fast:
        tasks[f"{where}/fast.sh"] = prepared.fast
    if prepared.required:
        tasks[f"{where}/{FILE}"] = prepared.required
    tasks |= {f"{where}/work/{path}": text for path, text in prepared.configuration_files.items()}
    limits = request.site.limits
    numbers = [task.number for task in request.tasks]
    if request.allocations:
        from runs.pilot.setup import allocation_texts

        pilot = Pilot("python3", directives=prepared.directives)
        texts = allocation_texts(run_id, 1, numbers, pilot, request.scheduler.variables)
        submit = request.scheduler.submit_words(Job(chunk_name(run_id, 1), f"{folder}/chunks/1/job.sh"))
        files = {f"chunks/1/{name}": text for name, text in texts.items()}
        return Shown(replace(prepared, folder=folder, submit=submit), {**files, **tasks}, 0)
    chunks = split_tasks(numbers, array_size=limits.array_size, queued_jobs=limits.queued_jobs)
    job = Job(chunk_name(run_id, 1), f"{folder}/chunks/1/job.sh", tasks=len(chunks[0]))
    files = {
        "chunks/1/job.sh": array_script(run_id, 1, prepared.directives, request.scheduler.variables),
        "chunks/1/tasks": "".join(f"{number}\n" for number in chunks[0]),
        **tasks,
    }
    submit = request.scheduler.submit_words(job)
    return Shown(replace(prepared, folder=folder, submit=submit), files, len(chunks))
