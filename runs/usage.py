"""What ended runs used, asked of their scheduler's accounting: one question for all of them, and only until it is answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from hibali.errors import HibaliError
from runs.book import Book
from runs.look import names_of_task
from runs.run import Run
from runs.scheduler import Phase, Scheduler, Status
from runs.sweeps.sweep import Sweep
from transfers.far import Far

_PATIENCE_SECONDS = 20.0  # nobody's end is told later for want of a number
_UNDER_WAY = frozenset({Phase.WAITING, Phase.RUNNING})


def note_usage(far: Far, scheduler: Scheduler, book: Book, runs: Iterable[Run]) -> None:
    """Note what accounting says of those that ended and were not accounted for; raises nothing of the site's.

    Of a job that accounting does not know as ended yet nothing is noted: whoever asks next asks again. Where there is no
    accounting, that is noted.
    """
    asked = [run for run in runs if run.state.final and run.job and not run.accounted]
    jobs = sorted({job for run in asked for job in _jobs_of(run)})
    words = scheduler.accounting_words(jobs, "", _since(asked)) if jobs else ()
    if not words:
        return
    with contextlib.suppress(HibaliError):
        known = scheduler.read_accounting(far.run(words, timeout=_PATIENCE_SECONDS))
        for run in asked:
            tasks = dict(pair for job in _jobs_of(run) for pair in _tasks_of(job, known or {}))
            if known is None or (tasks and not any(task.phase in _UNDER_WAY for task in tasks.values())):
                each = {} if run.sweep is None else _each_task(run.sweep, tasks)
                book.note(run.id, "usage", {**_together(list(tasks.values())), **each})


def _since(runs: Sequence[Run]) -> str:
    return min(run.created for run in runs)[:10]


def _jobs_of(run: Run) -> list[str]:
    """A sweep has one for each of its chunks."""
    return [run.job] if run.sweep is None else [job for chunk in run.sweep.chunks for job in chunk.jobs]


def _tasks_of(job: str, known: Mapping[str, Status]) -> list[tuple[str, Status]]:
    """The job itself, or the tasks of the array that it is: `12` is `12_1`, `12_2`, ..., elsewhere `12[1]` or `12.1`."""
    begins = tuple(f"{job.replace('[]', '')}{mark}" for mark in "_[.")
    return [(name, each) for name, each in known.items() if name == job or name.startswith(begins)]


def _each_task(sweep: Sweep, known: Mapping[str, Status]) -> dict[str, list[list[float | int | None]]]:
    """What each task used, as its number, seconds and bytes; of one that several jobs had, whoever used most ran it."""
    found: dict[int, tuple[float | None, int | None]] = {}
    for number, (chunk, index) in sweep.places().items():
        told = [each for job in chunk.jobs for name in names_of_task(job, index) if (each := known.get(name))]
        if told:
            best = max(told, key=lambda each: each.cpu_seconds or 0.0)
            found[number] = (best.cpu_seconds, best.memory_bytes)
    used = [[number, *each] for number, each in found.items() if each != (None, None)]
    return {"tasks": used} if used else {}


def _together(tasks: Sequence[Status]) -> dict[str, float | int | None]:
    """The time of all, and the memory of the one that took most."""
    seconds = [task.cpu_seconds for task in tasks if task.cpu_seconds is not None]
    memory = [task.memory_bytes for task in tasks if task.memory_bytes is not None]
    return {
        "cpu_seconds": round(sum(seconds), 3) if seconds else None,
        "memory_bytes": max(memory, default=None),
    }
