"""What ended runs used, asked of their scheduler's accounting: one question for all of them, and only until it is answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from hibali.errors import HibaliError
from runs.book import Book
from runs.run import Run
from runs.scheduler import Phase, Scheduler, Status
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
            tasks = [] if known is None else [task for job in _jobs_of(run) for task in _tasks_of(job, known)]
            if known is None or (tasks and not any(task.phase in _UNDER_WAY for task in tasks)):
                book.note(run.id, "usage", _together(tasks))


def _since(runs: Sequence[Run]) -> str:
    return min(run.created for run in runs)[:10]


def _jobs_of(run: Run) -> list[str]:
    """A sweep has one for each of its chunks."""
    return [run.job] if run.sweep is None else [job for chunk in run.sweep.chunks for job in chunk.jobs]


def _tasks_of(job: str, known: Mapping[str, Status]) -> list[Status]:
    """The job itself, or the tasks of the array that it is: `12` is `12_1`, `12_2`, ..."""
    return [status for name, status in known.items() if name == job or name.startswith(f"{job}_")]


def _together(tasks: Sequence[Status]) -> dict[str, float | int | None]:
    """The time of all, and the memory of the one that took most."""
    seconds = [task.cpu_seconds for task in tasks if task.cpu_seconds is not None]
    memory = [task.memory_bytes for task in tasks if task.memory_bytes is not None]
    return {
        "cpu_seconds": round(sum(seconds), 3) if seconds else None,
        "memory_bytes": max(memory, default=None),
    }
