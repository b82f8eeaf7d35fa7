"""Following runs: one question per site for all of them, and what the answers amount to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hibali.errors import TryLaterError
from hibali.events import Listener, Retried, ignore
from hibali.retry import Intervals, growing_intervals, pause
from runs.book import Book
from runs.look import Key, ask
from runs.run import Run, State, ignore_run
from runs.scheduler import Scheduler, check_job_id
from runs.submit import find_job
from runs.sweeps.send import send_chunks
from runs.sweeps.sweep import UNDER_WAY, change_fields, folder_of, sweep_of
from runs.verdict import Seen
from transfers.far import Far

GRACE_SECONDS = 20.0  # a shared filesystem may show the exit record this much later than the job ended
PATIENCE_SECONDS = 3600.0  # a site that does not answer for so long ends the waiting
_FIRST_SECONDS = 0.5
# A sweep changes all the time: its pauses grow whatever changes, so that following it for hours is not asking all the time.
_SWEEP_FIRST_SECONDS = 5.0
_SWEEP_GROWTH = 1.3
_SWEEP_BEYOND = 6
_SWEEP_LONGEST_SECONDS = 100.0


def update(far: Far, scheduler: Scheduler, book: Book, runs: Sequence[Run]) -> list[Run]:
    """Ask once and note what changed; the runs as they are now. LOST is noted as is, without waiting."""
    asked = [run for run in runs if run.job]
    if not asked:
        return list(runs)
    seen = ask(far, scheduler, asked)
    return [_note(book, run, _of(run, seen)) if run.job else run for run in runs]


def _of(run: Run, seen: Mapping[Key, Seen]) -> dict[int, Seen]:
    """What was seen of one run, by task."""
    return {number: found for (run_id, number), found in seen.items() if run_id == run.id}


def wait_for_end(
    open_far: Callable[[], Far],
    scheduler: Scheduler,
    book: Book,
    run_ids: Sequence[str],
    *,
    poll_seconds: float = 60.0,
    queued_jobs: int = 100,
    grace: float = GRACE_SECONDS,
    patience: float = PATIENCE_SECONDS,
    tell: Listener = ignore,
    changed: Callable[[Run], None] = ignore_run,
) -> list[Run]:
    """Follow the runs of one site until all have ended; `changed` is called with each new state.

    What of a sweep waits for room among `queued_jobs` is submitted when there is some. A site or scheduler that is silent is asked again,
    for `patience` seconds; then its error is raised.
    """
    watch = _Watch(scheduler, book, grace, changed, queued_jobs, tell)
    intervals = pauses([book.load(each) for each in run_ids], poll_seconds)
    far: Far | None = None
    silent = 0.0
    try:
        while True:
            try:
                far = far or open_far()
                waiting = watch.look(far, [book.load(each) for each in run_ids], intervals)
                silent = 0.0
            except TryLaterError as problem:
                if silent >= patience:
                    raise
                if far is not None:
                    far.close()
                    far = None
                waiting = intervals.next_pause()
                silent += waiting
                tell(Retried(problem.about, 1, waiting, problem.message))
            if waiting is None:
                return [book.load(each) for each in run_ids]
            pause(waiting)
    finally:
        if far is not None:
            far.close()


def pauses(runs: Sequence[Run], poll_seconds: float) -> Intervals:
    """The pauses between two questions: up to `poll_seconds`; with a sweep among the runs beyond that, but never so long that the
    end of a task is not known within two minutes.
    """
    if all(run.sweep is None for run in runs):
        return growing_intervals(_FIRST_SECONDS, poll_seconds)
    longest = max(poll_seconds, min(_SWEEP_LONGEST_SECONDS, _SWEEP_BEYOND * poll_seconds))
    return growing_intervals(min(_SWEEP_FIRST_SECONDS, poll_seconds), longest, _SWEEP_GROWTH)


class _Watch:
    """What has to be remembered between two looks: since when a run or task seems lost, and which runs are over."""

    def __init__(
        self,
        scheduler: Scheduler,
        book: Book,
        grace: float,
        changed: Callable[[Run], None],
        queued_jobs: int,
        tell: Listener,
    ) -> None:
        self._scheduler = scheduler
        self._book = book
        self._grace = grace
        self._changed = changed
        self._queued_jobs = queued_jobs
        self._tell = tell
        self._waited: dict[str, float] = {}
        self._doubts: dict[Key, float] = {}
        self._over: set[str] = set()
        self._looked = False

    def look(self, far: Far, runs: Sequence[Run], intervals: Intervals) -> float | None:
        """Look once; the pause until the next look, None when all are over."""
        open_runs = [run for run in runs if not run.state.final and run.id not in self._over]
        for run in open_runs:
            if not (run.job if run.sweep is None else run.sweep.chunks):
                raise _not_submitted(run)
        asked = [run for run in open_runs if run.job]
        others = self._neighbours(open_runs)
        seen = ask(far, self._scheduler, [*asked, *others], thorough=not self._looked)
        self._looked = True
        step = intervals.next_pause()
        for run in others:
            _note(self._book, run, _of(run, seen))
        moved = False
        for run in open_runs:
            if run.sweep is not None:
                self._take_sweep(far, run, _of(run, seen), step)
            elif self._take_run(far, run, seen[run.id, 0], step):
                moved = True
        if all(run.state.final or run.id in self._over for run in runs):
            return None
        if moved and all(run.sweep is None for run in runs):
            intervals.restart()
        return min(step, 2.0) if self._waited else step

    def _neighbours(self, runs: Sequence[Run]) -> list[Run]:
        """Other runs of the site that have jobs, where a sweep waits for the room that they take."""
        waiting = [run for run in runs if run.sweep is not None and run.sweep.unsent()]
        if not waiting:
            return []
        known = {run.id for run in runs}
        site, scheduler = waiting[0].site, waiting[0].scheduler
        return [
            run
            for run in self._book.all()
            if (run.site, run.scheduler) == (site, scheduler)
            and run.id not in known
            and run.job
            and run.state in UNDER_WAY
        ]

    def _take_run(self, far: Far, run: Run, found: Seen, step: float) -> bool:
        """Note what was seen of a run; whether its state is another one now."""
        if found.state is State.LOST and found.record is None and self._may_turn_up(far, run, step):
            return False
        after = _note(self._book, run, {0: found})
        if after.state is not run.state:
            self._changed(after)
        if after.state.ended:
            self._over.add(run.id)
        return after.state is not run.state

    def _may_turn_up(self, far: Far, run: Run, step: float) -> bool:
        """Whether to look again before a run is called LOST: the record may be late, or another job has the turn."""
        job = find_job(far, run.folder)
        if job is not None and job != run.job:
            self._book.note(run.id, "submitted", {"job": job})
            return True
        waited = self._waited.get(run.id, 0.0)
        self._waited[run.id] = waited + min(step, 2.0)
        return waited < self._grace

    def _take_sweep(self, far: Far, run: Run, found: Mapping[int, Seen], step: float) -> None:
        """Note what was seen of the tasks, and submit more where there is room by now."""
        doubtful = self._doubtful(far, run, found, step)
        after = _note(self._book, run, {n: each for n, each in found.items() if n not in doubtful})
        if after is not run:
            self._changed(after)
        if sweep_of(after).unsent() and not after.cancelled:
            after = send_chunks(far, self._scheduler, self._book, after, self._queued_jobs, tell=self._tell)
        if after.state.ended:
            self._over.add(run.id)

    def _doubtful(self, far: Far, run: Run, found: Mapping[int, Seen], step: float) -> set[int]:
        """The tasks that seem lost, and may yet turn up: their record may be late, or another job of the chunk has their turn."""
        sweep = sweep_of(run)
        lost = {
            number
            for number, each in found.items()
            if each.state is State.LOST and each.record is None and not sweep.tasks[number].state.ended
        }
        for number in found.keys() - lost:
            self._doubts.pop((run.id, number), None)
        young = {number for number in lost if self._doubts.get((run.id, number), 0.0) < self._grace}
        for number in lost:
            self._doubts[run.id, number] = self._doubts.get((run.id, number), 0.0) + step
        return young | self._run_by_others(far, run, sorted(lost - young))

    def _run_by_others(self, far: Far, run: Run, numbers: Sequence[int]) -> set[int]:
        """Of these tasks, those that a job has begun which we did not know."""
        places = sweep_of(run).places()
        contents = far.get_all([folder_of(run, number) + b"/started/job" for number in numbers], maximum=256)
        found = set()
        for number, content in zip(numbers, contents, strict=True):
            chunk = places[number][0]
            job = check_job_id((content or b"").decode("ascii", "replace").strip())
            if job is not None and job not in chunk.jobs:
                self._book.note(run.id, "chunk", {"chunk": chunk.number, "job": job})
                found.add(number)
        return found


def _note(book: Book, run: Run, found: Mapping[int, Seen]) -> Run:
    """The run after what was seen of it is in the ledger, if it is news."""
    if run.sweep is not None:
        fields = change_fields(run.sweep, found)
        return run if fields is None else book.note(run.id, "tasks", fields)
    seen = found[0]
    if (run.state, run.native, run.reason) == (seen.state, seen.native, seen.reason):
        return run
    return book.note(run.id, "seen", seen.to_fields())


def _not_submitted(run: Run) -> TryLaterError:
    return TryLaterError(
        "not-submitted",
        "this run was never submitted: what launched it ended before",
        about=run.id,
        hint="Type its `hibali run` line again; it goes on from there.",
        transient=False,
    )
