"""Launching a sweep: what its tasks are is in the ledger first, then all of them are laid ready at the site together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hibali.locations import work_path
from hibali.ranges import write_ranges
from hibali.strict_json import canonical_digest
from hibali.text import path_fields
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.book import Book
from runs.fast import marks_of_task, read_fast
from runs.guard import Need
from runs.job_proxy import job_proxy
from runs.launch import Request, TaskRequest, prepare_request, shown_image, shown_inputs
from runs.pilot.pilot import Pilot
from runs.prepare import Input, Prepared, Started, list_inputs
from runs.put import as_bytes
from runs.required import FILE
from runs.run import Run
from runs.scheduler import Job
from runs.script import array_script
from runs.site_images import Staged
from runs.stage import Cache
from runs.sweeps.chunks import TellsArrayLimit, split_tasks
from runs.sweeps.put import put_tasks
from runs.sweeps.sweep import chunk_name, sweep_fields, sweep_of
from transfers.far import Far


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
    request: Request, run: Run, far: Far, book: Book, folder: str, image: Staged, cache: Cache
) -> Run:
    """Everything that the tasks need lies at the site when this returns; `request` has its inputs where they lie there.

    How the tasks are split into chunks is decided once: jobs may be on their way when this is done again. A pilot's first allocation is
    for all of them.
    """
    if not sweep_of(run).chunks:
        if image.id:
            book.note(run.id, "image", {"id": image.id.removeprefix("sha256:")})
        numbers = [task.number for task in request.tasks]
        limits = request.site.limits
        pilot = _stage_pilot(request, run, far, cache)
        chunks = [tuple(numbers)]
        if pilot is None:
            chunks = split_tasks(
                numbers,
                array_size=limits.array_size,
                queued_jobs=limits.queued_jobs,
                limit=_array_limit(far, request, min(len(numbers), limits.array_size)),
            )
        how = {} if pilot is None else {"pilot": pilot.to_fields()}
        where = path_fields(as_bytes(folder), "folder")
        texts = [write_ranges(chunk) for chunk in chunks]
        run = book.note(run.id, "staged", {**where, "chunks": texts, **how})
    put_tasks(
        far, run, lambda: _prepare_tasks(request, run.id, folder, image.started), lambda: job_proxy(request)
    )
    return run


def _stage_pilot(request: Request, run: Run, far: Far, cache: Cache) -> Pilot | None:
    """The pilot with its library at the site, ready to go into allocations; None for job arrays."""
    pilot = sweep_of(run).pilot
    if pilot is None:
        return None
    from runs.pilot.site import stage_library

    library = stage_library(far, request.site, cache, pilot.python)
    return replace(pilot, library=library, directives=request.scheduler.directives(request.ask().resources))


def _array_limit(far: Far, request: Request, wanted: int) -> int | None:
    """What the scheduler itself says, where that can matter; no answer is no limit, and a refusal says so later."""
    if wanted < 2 or not isinstance(request.scheduler, TellsArrayLimit):
        return None
    return request.scheduler.read_array_limit(far.run(request.scheduler.array_limit_words()))


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
        marks = marks_of_task(request.marks, inputs)
        fast = read_fast(request.site, inputs, [each.in_place for each in inputs], marks)
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
    read_fast(request.site, inputs, [False] * len(inputs), request.marks)


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
    """See `runs.launch.show_prepared`."""
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
        from runs.pilot.put import allocation_texts

        pilot = Pilot("python3", directives=prepared.directives)
        texts = allocation_texts(run_id, 1, numbers, pilot)
        submit = request.scheduler.submit_words(Job(chunk_name(run_id, 1), f"{folder}/chunks/1/job.sh"))
        files = {f"chunks/1/{name}": text for name, text in texts.items()}
        return Shown(replace(prepared, folder=folder, submit=submit), {**files, **tasks}, 0)
    chunks = split_tasks(numbers, array_size=limits.array_size, queued_jobs=limits.queued_jobs)
    job = Job(chunk_name(run_id, 1), f"{folder}/chunks/1/job.sh", tasks=len(chunks[0]))
    files = {
        "chunks/1/job.sh": array_script(run_id, 1, prepared.directives),
        "chunks/1/tasks": "".join(f"{number}\n" for number in chunks[0]),
        **tasks,
    }
    submit = request.scheduler.submit_words(job)
    return Shown(replace(prepared, folder=folder, submit=submit), files, len(chunks))
