"""What was heard of runs, put into the ledger where it is news."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from runs.book import Book
from runs.explain import explain_all
from runs.job_proxy import remove_proxies
from runs.look import Key, ask
from runs.queued import Queued, holder_of
from runs.run import Run
from runs.scheduler import Scheduler
from runs.sweeps.sweep import change_fields, sweep_of
from runs.verdict import Seen
from transfers.far import Far


def update(far: Far, scheduler: Scheduler, book: Book, runs: Sequence[Run]) -> list[Run]:
    """Ask once and note what changed; the runs as they are now. LOST is noted as is, without waiting."""
    asked = [run for run in runs if run.job]
    if not asked:
        return list(runs)
    seen = ask(far, scheduler, asked)
    seen |= explain_all(asked, seen, far, book, partial(update, far, scheduler, book))
    remove_proxies(far, asked, seen)
    return [note_seen(book, run, seen_of(run, seen)) if run.job else run for run in runs]


def seen_of(run: Run, seen: Mapping[Key, Seen]) -> dict[int, Seen]:
    """What was seen of one run, by task."""
    return {number: found for (run_id, number), found in seen.items() if run_id == run.id}


def note_seen(book: Book, run: Run, found: Mapping[int, Seen]) -> Run:
    """The run after what was seen of it is in the ledger, if it is news."""
    if run.sweep is not None:
        fields = change_fields(run.sweep, found)
        return run if fields is None else _with_places(book.note(run.id, "tasks", fields))
    seen = found[0]
    if (run.state, run.native, run.reason) == (seen.state, seen.native, seen.reason):
        return run
    return book.note(run.id, "seen", seen.to_fields())


def _with_places(run: Run) -> Run:
    """The sweep, holding places in the queue only for tasks that are not over."""
    queued = Queued(run.site)
    held = queued.held()
    sweep = sweep_of(run)
    for chunk in sweep.chunks:
        holder = holder_of(run.id, chunk.number)
        left = sum(not sweep.tasks[number].state.ended for number in chunk.tasks)
        if sweep.pilot is not None:
            left = int(bool(left) and chunk is sweep.chunks[-1] and not sweep.unfinished())
        if left < held.get(holder, 0):
            queued.keep(holder, left)
    return run
