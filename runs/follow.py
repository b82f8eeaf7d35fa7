"""Following runs: one question per site for all of them, and what the answers amount to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hibali.errors import TryLaterError
from hibali.events import Listener, Retried, ignore
from hibali.retry import Intervals, growing_intervals, pause
from runs.book import Book
from runs.run import Run, State, ignore_run
from runs.scheduler import Phase, Scheduler, Status
from runs.submit import find_job
from runs.usage import note_usage
from runs.verdict import ExitRecord, Seen, judge, read_exit_record
from transfers.far import Far

GRACE_SECONDS = 20.0  # a shared filesystem may show the exit record this much later than the job ended
PATIENCE_SECONDS = 3600.0  # a site that does not answer for so long ends the waiting
_FIRST_SECONDS = 0.5
_NOT_SUBMITTED = "not-submitted"


def only_pause(far: Far, seconds: float) -> None:
    """Nothing is done between two questions."""
    del far
    pause(seconds)


def ask(far: Far, scheduler: Scheduler, runs: Sequence[Run], *, thorough: bool = True) -> dict[str, Seen]:
    """What is known now of these runs of one site and scheduler, each with a job; one question for all.

    Exit records are read of jobs that have left the queue or fell back in it, with `thorough` of all. Raises `TryLaterError` where the scheduler does not answer.
    """
    jobs = sorted({run.job for run in runs})
    statuses = scheduler.read_status(far.run(scheduler.status_words(jobs)), jobs)
    records: dict[str, ExitRecord | None] = {}
    unclear: list[Run] = []
    for run in runs:
        phase = statuses[run.job].phase
        queued = phase in {Phase.WAITING, Phase.RUNNING}
        if thorough or not queued or (phase is Phase.WAITING and run.state is State.RUNNING):
            records[run.id] = read_exit_record(far.get(run.folder + b"/exit.json", maximum=65536), run.id)
        if not queued and records[run.id] is None:
            unclear.append(run)
    accounted = _ask_accounts(far, scheduler, unclear)
    return {
        run.id: judge(
            statuses[run.job],
            records.get(run.id),
            accounted.get(run.job),
            cancelled=run.cancelled,
            again=_was_stopped(records.get(run.id)) and far.get(run.folder + b"/again") is not None,
        )
        for run in runs
    }


def _was_stopped(record: ExitRecord | None) -> bool:
    return record is not None and bool(record.signal)


def _ask_accounts(far: Far, scheduler: Scheduler, runs: Sequence[Run]) -> Mapping[str, Status]:
    if not runs:
        return {}
    since = min(run.created for run in runs)[:10]
    words = scheduler.accounting_words(sorted({run.job for run in runs}), "", since)
    return (scheduler.read_accounting(far.run(words)) or {}) if words else {}


def update(far: Far, scheduler: Scheduler, book: Book, runs: Sequence[Run]) -> list[Run]:
    """Ask once and note what changed; the runs as they are now. LOST is noted as is, without waiting."""
    asked = [run for run in runs if run.job]
    if not asked:
        return list(runs)
    seen = ask(far, scheduler, asked)
    return [_note(book, run, seen[run.id]) if run.id in seen else run for run in runs]


def wait_for_end(
    open_far: Callable[[], Far],
    scheduler: Scheduler,
    book: Book,
    run_ids: Sequence[str],
    *,
    poll_seconds: float = 60.0,
    grace: float = GRACE_SECONDS,
    patience: float = PATIENCE_SECONDS,
    tell: Listener = ignore,
    changed: Callable[[Run], None] = ignore_run,
    meanwhile: Callable[[Far, float], None] = only_pause,
) -> list[Run]:
    """Follow the runs of one site until all have ended; `changed` is called with each new state.

    A site or scheduler that is silent is asked again, for `patience` seconds; then its error is raised. Between two
    questions `meanwhile` passes so many seconds, or fewer, with the site at hand; with 0 it is called when all have ended.
    """
    watch = _Watch(scheduler, book, grace, changed)
    intervals = growing_intervals(_FIRST_SECONDS, poll_seconds)
    far: Far | None = None
    silent = 0.0
    try:
        while True:
            try:
                far = far or open_far()
                waiting = watch.look(far, [book.load(each) for each in run_ids], intervals)
                if waiting is None:
                    note_usage(far, scheduler, book, [book.load(each) for each in run_ids])
                meanwhile(far, waiting or 0.0)
                silent = 0.0
                if waiting is None:
                    return [book.load(each) for each in run_ids]
            except TryLaterError as problem:
                if silent >= patience or problem.code == _NOT_SUBMITTED:
                    raise
                if far is not None:
                    far.close()
                    far = None
                waiting = intervals.next_pause()
                silent += waiting
                tell(Retried(problem.about, 1, waiting, problem.message))
                pause(waiting)
    finally:
        if far is not None:
            far.close()


class _Watch:
    """What has to be remembered between two looks: since when a run seems lost, and which are over."""

    def __init__(
        self, scheduler: Scheduler, book: Book, grace: float, changed: Callable[[Run], None]
    ) -> None:
        self._scheduler = scheduler
        self._book = book
        self._grace = grace
        self._changed = changed
        self._waited: dict[str, float] = {}
        self._over: set[str] = set()
        self._looked = False

    def look(self, far: Far, runs: Sequence[Run], intervals: Intervals) -> float | None:
        """Look once; the pause until the next look, None when all are over."""
        open_runs = [run for run in runs if not run.state.final and run.id not in self._over]
        for run in open_runs:
            if not run.job:
                raise _not_submitted(run)
        seen = ask(far, self._scheduler, open_runs, thorough=not self._looked) if open_runs else {}
        self._looked = True
        moved = False
        step = intervals.next_pause()
        for run in open_runs:
            found = seen[run.id]
            if found.state is State.LOST and found.record is None and self._may_turn_up(far, run, step):
                continue
            after = _note(self._book, run, found)
            if after.state is not run.state:
                moved = True
                self._changed(after)
            if after.state.ended:
                self._over.add(run.id)
        if all(run.state.final or run.id in self._over for run in runs):
            return None
        if moved:
            intervals.restart()
        return min(step, 2.0) if self._waited else step

    def _may_turn_up(self, far: Far, run: Run, step: float) -> bool:
        """Whether to look again before a run is called LOST: the record may be late, or another job has the turn."""
        job = find_job(far, run.folder)
        if job is not None and job != run.job:
            self._book.note(run.id, "submitted", {"job": job})
            return True
        waited = self._waited.get(run.id, 0.0)
        self._waited[run.id] = waited + min(step, 2.0)
        return waited < self._grace


def _note(book: Book, run: Run, seen: Seen) -> Run:
    if (run.state, run.native, run.reason) == (seen.state, seen.native, seen.reason):
        return run
    return book.note(run.id, "seen", seen.to_fields())


def _not_submitted(run: Run) -> TryLaterError:
    return TryLaterError(
        _NOT_SUBMITTED,
        "this run was never submitted: what launched it ended before",
        about=run.id,
        hint="Type its `hibali run` line again; it goes on from there.",
        transient=False,
    )
