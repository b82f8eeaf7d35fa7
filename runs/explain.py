"""What the ledger adds to a scheduler's word about a run: that it is on hold, or that a run which it needs failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hibali.errors import NotFoundError
from hibali.text import printable
from runs.book import Book
from runs.look import Key
from runs.run import Run, State
from runs.script import EXIT_NOT_RUN
from runs.submit import find_job
from runs.sweeps.sweep import one_task
from runs.verdict import Seen
from transfers.far import Far

_FAILED = {State.FAILED: "failed", State.CANCELLED: "was cancelled"}


def explain_all(
    runs: Sequence[Run],
    seen: Mapping[Key, Seen],
    far: Far,
    book: Book,
    look: Callable[[Sequence[Run]], Sequence[Run]],
) -> dict[Key, Seen]:
    """The same of each of these runs that was seen, but for sweeps."""
    keys = {(run.id, 0): run for run in runs if run.sweep is None}
    return {key: explain(run, seen[key], far, book, look) for key, run in keys.items() if key in seen}


def explain(
    run: Run, seen: Seen, far: Far, book: Book, look: Callable[[Sequence[Run]], Sequence[Run]]
) -> Seen:
    """The same with what people understand; `look` asks the site about runs that have not ended by the ledger.

    A job that can never start because of another one leaves the queue without a trace of its own, or with the scheduler's
    word for it: the run is CANCELLED then, not LOST.
    """
    if seen.state is State.WAITING and run.on_hold:
        return replace(seen, reason=f"on hold: hibali runs release {run.id}")
    if not run.needs:
        return seen
    if seen.record is not None:
        started = seen.record.code != EXIT_NOT_RUN
    else:
        gone = seen.state in {State.LOST, State.CANCELLED} and not run.cancelled
        started = not gone or find_job(far, run.folder) is not None
    failed = None if started else _find_failed(run, book, look)
    if failed is not None:
        return replace(seen, state=State.CANCELLED, reason=failed_words(failed))
    unmet = "" if started else _unmet(far, run)
    return replace(seen, reason=f"not started: {unmet}") if unmet else seen


def failed_words(run: Run) -> str:
    """How a run ended that another one needs, as that one's reason; of a sweep the first task that did not end well."""
    failed = _failed_part(run) or run
    return f"run {failed.word} {_FAILED.get(failed.state, f'is {failed.state}')}"


def _failed_part(run: Run) -> Run | None:
    """The run, or the first of its tasks, that did not end well; None where all is well so far."""
    if run.sweep is None:
        return run if run.state in _FAILED else None
    return next((one_task(run, number) for number in run.sweep.in_state(*_FAILED)), None)


def _unmet(far: Far, run: Run) -> str:
    return printable((far.get(run.folder + b"/unmet", maximum=1000) or b"").strip())


def _find_failed(run: Run, book: Book, look: Callable[[Sequence[Run]], Sequence[Run]]) -> Run | None:
    needed = []
    for each in run.needs:
        try:
            needed.append(book.load(each))
        except NotFoundError:
            continue
    same = [each for each in needed if (each.site, each.scheduler) == (run.site, run.scheduler)]
    open_runs = [each for each in same if each.job and not each.state.final]
    asked = {each.id: each for each in (look(open_runs) if open_runs else ())}
    parts = (_failed_part(asked.get(each.id, each)) for each in needed)
    return next((part for part in parts if part is not None), None)
